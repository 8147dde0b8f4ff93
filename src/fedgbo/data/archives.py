"""Public files as people have them: plain, .xz, .gz or .bz2, in parts, in folders, and inside .zip or .tar archives.

Nothing is ever extracted: members are read in place, in a stream, so no name in an archive reaches the disk.
"""

import bz2
import gzip
import lzma
import re
import shutil
import tarfile
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from fedgbo.core.errors import DataError
from fedgbo.data.joined import joined

MAGIC: dict[bytes, Callable[[BinaryIO], object]] = {
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"\x1f\x8b": lambda raw: gzip.GzipFile(fileobj=raw),
    b"BZh": bz2.BZ2File,
}
TAR = re.compile(r"\.(tar|tgz|txz|tbz2?)(\.\w+)?$")
PART = re.compile(r"\.part-?(\d+)$")
DAMAGE = (OSError, EOFError, lzma.LZMAError, zlib.error, zipfile.BadZipFile, tarfile.TarError)


@dataclass(frozen=True, eq=False)
class SourceFile:
    """One readable file: `name` as in its folder or archive, without .xz and the like; `where` for messages."""

    name: str
    where: str
    plain: Path | None  # the file itself, where it lies uncompressed on disk
    raw: Callable[[], BinaryIO]

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Read the decompressed bytes as a stream; damage met inside the `with` becomes a DataError with the name."""
        with _damage(self.where), self.raw() as raw, _decompressed(raw) as stream:
            yield stream

    @contextmanager
    def open_seekable(self) -> Iterator[BinaryIO]:
        """Like `open`, but cheap to seek in: what is not plain on disk goes through a nameless temporary file."""
        if self.plain is not None:
            with _damage(self.where), self.plain.open("rb") as file:
                yield file
            return
        with tempfile.TemporaryFile() as file:
            with self.open() as stream:
                shutil.copyfileobj(stream, file, 1 << 20)
            file.seek(0)
            with _damage(self.where):
                yield cast(BinaryIO, file)


def source_files(path: Path) -> list[SourceFile]:
    """List what can be read at `path`: a file, the members of an archive, or all of these under a folder.

    A folder's files come in the order of their names; an archive's members in its own order, which is the fast one.
    Hidden files and what macOS adds to archives are left out. An archive with unsafe names is refused.
    """
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.is_file() and not _hidden(p.relative_to(path).as_posix()))
        groups: dict[Path, list[Path]] = {}
        for p in found:
            groups.setdefault(p.with_name(PART.sub("", p.name)), []).append(p)
        return [s for whole, parts in groups.items() for s in _expand(whole, sorted(parts, key=_number), path)]
    if not path.is_file():
        raise DataError(f"{path} does not exist; give a file, an archive or a folder")
    return _expand(path, [path], path.parent)


def _expand(whole: Path, parts: list[Path], root: Path) -> list[SourceFile]:
    """List one file, which may be in parts: itself, or the members if it is an archive."""
    where = str(whole)

    def raw() -> BinaryIO:
        return parts[0].open("rb") if len(parts) == 1 else joined(parts)

    with _damage(where), raw() as file:
        packed = file.read(6)
        file.seek(0)
        with _decompressed(file) as stream:
            head = stream.read(262)
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06") and head[:6] == packed:
        return _zip_members(where, raw)
    if head[257:262] == b"ustar" or (head and TAR.search(whole.name)):
        return _tar_members(where, raw)
    plain = parts[0] if len(parts) == 1 and head[:6] == packed else None
    return [SourceFile(_stem(whole.relative_to(root).as_posix()), where, plain, raw)]


def _zip_members(where: str, raw: Callable[[], BinaryIO]) -> list[SourceFile]:
    with _damage(where):
        file = raw()
        archive = zipfile.ZipFile(file)
        weakref.finalize(archive, file.close)  # it stays open for its members
    infos = archive.infolist()
    _check_names([info.orig_filename for info in infos], where)
    return [
        _member(info.filename, where, partial(archive.open, info))
        for info in infos
        if not info.is_dir() and not _hidden(info.filename)
    ]


def _tar_members(where: str, raw: Callable[[], BinaryIO]) -> list[SourceFile]:
    with _damage(where):
        file = raw()
        archive = tarfile.TarFile.open(fileobj=file, mode="r:*")
        weakref.finalize(archive, file.close)
        infos = archive.getmembers()
    _check_names([info.name for info in infos], where)
    return [
        _member(info.name, where, partial(archive.extractfile, info))
        for info in infos
        if info.isreg() and not _hidden(info.name)
    ]


def _member(name: str, where: str, raw: Callable[[], object]) -> SourceFile:
    return SourceFile(_stem(name), f"{name} in {where}", None, cast(Callable[[], BinaryIO], raw))


def _check_names(names: list[str], where: str) -> None:
    for name in names:
        parts = PurePosixPath(name.replace("\\", "/")).parts
        if ".." in parts or name.startswith(("/", "\\")) or re.match(r"[A-Za-z]:", name):
            raise DataError(
                f"{where} has a member named {name!r}, which points outside the archive; it is refused whole"
            )


def _hidden(name: str) -> bool:
    return any(part == "__MACOSX" or (part.startswith(".") and part != ".") for part in name.split("/"))


def _number(part: Path) -> int:
    found = PART.search(part.name)
    return int(found[1]) if found else -1


def _stem(name: str) -> str:
    return re.sub(r"\.(xz|gz|bz2)$", "", PART.sub("", name.removeprefix("./")))


@contextmanager
def _decompressed(raw: BinaryIO) -> Iterator[BinaryIO]:
    start = raw.read(6)
    raw.seek(0)
    for magic, reader in MAGIC.items():
        if start.startswith(magic):
            with cast(BinaryIO, reader(raw)) as stream:
                yield stream
            return
    yield raw


@contextmanager
def _damage(where: str) -> Iterator[None]:
    try:
        yield
    except NotImplementedError as error:
        raise DataError(
            f"{where} is compressed in a way that cannot be read here ({error}); unpack it first"
        ) from error
    except DAMAGE as error:
        raise DataError(f"{where} cannot be read: damaged or cut short ({error}); get it again") from error
    except RuntimeError as error:
        if "encrypted" not in str(error):
            raise
        raise DataError(f"{where} is encrypted; unpack it first") from error
