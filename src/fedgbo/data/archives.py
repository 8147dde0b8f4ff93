"""Public files as users have them: plain, .xz, .gz or .bz2, in parts, in folders, and inside .zip or .tar archives.

Nothing is ever extracted: members are read in place, as streams, so no name in an archive reaches the disk.
"""

import bz2
import gzip
import io
import lzma
import re
import shutil
import tarfile
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from fedgbo.core import DataError

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
    plain: Path | None  # the file itself, if it lies uncompressed on disk
    raw: Callable[[], BinaryIO]

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Read the decompressed bytes as a stream; damage found inside the `with` becomes a DataError with the name."""
        with _damage(self.where), self.raw() as raw, _decompressed(raw) as stream:
            yield stream

    @contextmanager
    def open_seekable(self) -> Iterator[BinaryIO]:
        """Like `open`, but cheap to seek in: a file that is not plain on disk is copied to an unnamed temporary one."""
        with _damage(self.where), tempfile.TemporaryFile() if self.plain is None else self.plain.open("rb") as file:
            if self.plain is None:
                with self.open() as stream:
                    shutil.copyfileobj(stream, file, 1 << 20)
                file.seek(0)
            yield cast(BinaryIO, file)


def source_files(path: Path) -> list[SourceFile]:
    """List the readable files at `path`: a file, the members of an archive, or all of these under a folder.

    A folder's files are sorted by name; an archive's members keep the archive's order, which is the fastest. Hidden
    files and those that macOS adds to archives are left out. An archive with unsafe names is refused.
    """
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.is_file() and not _hidden(p.relative_to(path).as_posix()))
        groups: dict[Path, list[Path]] = {}
        for p in found:
            groups.setdefault(p.with_name(PART.sub("", p.name)), []).append(p)
        return [file for whole, parts in groups.items() for file in _expand(whole, parts, path)]
    if not path.is_file():
        raise DataError(f"{path} does not exist; give a file, an archive or a folder")
    return _expand(path, [path], path.parent)


def raw_file(path: Path, choose: Callable[[list[SourceFile]], list[SourceFile]], kind: str) -> SourceFile | None:
    """Return the only file at `path` unless it is JSON, else the only one that `choose` finds, if any."""
    files = source_files(path)
    found = files if len(files) == 1 and not files[0].name.endswith(".json") else choose(files)
    if len(found) > 1:
        raise DataError(f"{path} has several {kind}: {', '.join(file.name for file in found)}; give the path of one")
    return found[0] if found else None


def _expand(whole: Path, parts: list[Path], root: Path) -> list[SourceFile]:
    """List one file, which may be in parts: itself, or its members if it is an archive."""
    where = str(whole)
    parts = sorted(parts, key=lambda part: int(PART.findall(part.name)[0]) if PART.search(part.name) else -1)

    def raw() -> BinaryIO:
        if len(parts) == 1:
            return parts[0].open("rb")
        return cast(BinaryIO, io.BufferedReader(_JoinedParts(parts), buffer_size=1 << 20))

    with _damage(where), raw() as file:
        packed = file.read(6)
        file.seek(0)
        with _decompressed(file) as stream:
            head = stream.read(262)
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06") and head[:6] == packed:
        return _members(where, raw, zipped=True)
    if head[257:262] == b"ustar" or (head and TAR.search(whole.name)):
        return _members(where, raw, zipped=False)
    plain = parts[0] if len(parts) == 1 and head[:6] == packed else None
    return [SourceFile(_stem(whole.relative_to(root).as_posix()), where, plain, raw)]


class _JoinedParts(io.RawIOBase):
    """Several files as one: large public files are often distributed in parts."""

    def __init__(self, parts: Sequence[Path]) -> None:
        self._parts = parts
        self._sizes = [part.stat().st_size for part in parts]
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: sum(self._sizes)}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        start = 0
        for part, size in zip(self._parts, self._sizes, strict=True):
            if self._position < start + size:
                with part.open("rb") as file:
                    file.seek(self._position - start)
                    count = file.readinto(buffer)
                self._position += count
                return count
            start += size
        return 0


def _members(where: str, raw: Callable[[], BinaryIO], *, zipped: bool) -> list[SourceFile]:
    """List the members of an archive, which stays open as long as they are used."""
    archive: Any
    with _damage(where):
        file = raw()
        archive = zipfile.ZipFile(file) if zipped else tarfile.TarFile.open(fileobj=file, mode="r:*")
        weakref.finalize(archive, file.close)
        infos = archive.infolist() if zipped else archive.getmembers()
    found = []
    for info in infos:
        name, stored = (info.filename, info.orig_filename) if zipped else (info.name, info.name)
        outside = ".." in PurePosixPath(stored.replace("\\", "/")).parts or stored.startswith(("/", "\\"))
        if outside or re.match(r"[A-Za-z]:", stored):
            raise DataError(f"{where} has a member named {stored!r}, which points outside the archive; refused")
        regular, opener = (not info.is_dir(), archive.open) if zipped else (info.isreg(), archive.extractfile)
        if regular and not _hidden(name):
            found.append(SourceFile(_stem(name), f"{name} in {where}", None, partial(opener, info)))
    return found


def _hidden(name: str) -> bool:
    return any(part == "__MACOSX" or (part.startswith(".") and part != ".") for part in name.split("/"))


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
    """Turn what the libraries raise on damaged files into a DataError that names the file."""
    try:
        yield
    except NotImplementedError as error:
        raise DataError(f"{where} has an unsupported compression ({error}); unpack it first") from error
    except DAMAGE as error:
        raise DataError(f"{where} cannot be read: damaged or cut short ({error}); get it again") from error
    except RuntimeError as error:
        if "encrypted" not in str(error):
            raise
        raise DataError(f"{where} is encrypted; unpack it first") from error
