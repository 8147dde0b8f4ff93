"""Public files as users have them: plain, .xz, .lzma, .gz or .bz2, in parts, in folders, and in .zip or .tar archives.

Nothing is ever extracted: members are read in place, as streams, so no name in an archive reaches the disk. A stream
ends with an error once it is longer than a limit: a small file can decompress to more than any disk holds. Damage is a
DataError; a missing permission or a full disk is a RunFolderError.
"""

import bz2
import gzip
import io
import lzma
import os
import re
import shutil
import stat
import struct
import tarfile
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from errno import EINVAL
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from fedgbo.core import DataError, FedGBOError
from fedgbo.data.store import disk_error

LIMIT = 8 << 30  # bytes of one file after decompression; the largest public one has 4.7e9
MOST_MEMBERS = 100_000  # of an archive
MAGIC: dict[bytes, Callable[[BinaryIO], object]] = {
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"]\x00\x00": lzma.LZMAFile,  # .lzma, the older format
    b"\x1f\x8b": lambda raw: gzip.GzipFile(fileobj=raw),
    b"BZh": bz2.BZ2File,
}
TAR = re.compile(r"\.(tar|tgz|txz|tbz2?)(\.\w+)?$")
PART = re.compile(r"\.part-?(\d+)$")
DAMAGE = (
    OSError, EOFError, lzma.LZMAError, zlib.error, zipfile.BadZipFile, tarfile.TarError,
    struct.error, ValueError, OverflowError, MemoryError,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class SourceFile:
    """One readable file: `name` as in its folder or archive, without .xz and the like; `where` for messages."""

    name: str
    where: str
    plain: Path | None  # the file itself, if it lies uncompressed on disk
    raw: Callable[[], BinaryIO]

    @contextmanager
    def open(self, limit: int | None = None) -> Iterator[BinaryIO]:
        """Read the decompressed bytes, at most `limit` (LIMIT by default), as a stream.

        Damage found inside the `with` becomes a DataError with the name.
        """
        with _damage(self.where), self.raw() as raw, _decompressed(raw, self.where, limit or LIMIT) as stream:
            yield stream

    @contextmanager
    def open_seekable(self) -> Iterator[BinaryIO]:
        """Like `open`, but cheap to seek in: a file that is not plain on disk is copied to an unnamed temporary one."""
        if self.plain is not None:
            with _damage(self.where), self.plain.open("rb") as file:
                yield file
            return
        with _damage(self.where), tempfile.TemporaryFile() as copy, self.open() as stream:
            try:
                shutil.copyfileobj(stream, copy, 1 << 20)
                copy.seek(0)
            except OSError as error:
                if error.errno is None:
                    raise
                folder = f"{tempfile.gettempdir()} (choose another with TMPDIR)"
                raise disk_error(f"cannot unpack {self.where} into {folder}", error) from error
            yield cast(BinaryIO, copy)


def source_files(path: Path) -> list[SourceFile]:
    """List the readable files at `path`: a file, the members of an archive, or all of these under a folder.

    A folder's files are sorted by name; an archive's members keep the archive's order, which is the fastest. Hidden
    files and those that macOS adds to archives are left out. An archive with unsafe names is refused.
    """
    if path.is_dir():
        found = sorted(_walk(path))
        groups: dict[Path, list[Path]] = {}
        for p in found:
            groups.setdefault(p.with_name(PART.sub("", p.name)), []).append(p)
        return [file for whole, parts in groups.items() for file in _expand(whole, parts, path)]
    with _damage(str(path)):
        exists, regular = path.exists(), path.is_file()
    if not regular:
        what = "is neither a file nor a folder" if exists else "does not exist"
        raise DataError(f"{path} {what}; give a file, an archive or a folder")
    return _expand(path, [path], path.parent)


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the folder's files; a folder inside it that cannot be listed is an error. Links to folders are ignored."""

    def stop(error: OSError) -> None:
        raise disk_error(f"cannot read {error.filename}", error) from error

    for parent, _, names in os.walk(folder, onerror=stop):
        for path in (Path(parent, name) for name in names):
            if path.is_file() and not _hidden(path.relative_to(folder).as_posix()):
                yield path


def only_file(path: Path, found: Sequence[SourceFile], kind: str) -> SourceFile:
    """Return the only file of its kind at `path`; refuse to choose between several."""
    if len(found) > 1:
        names = ", ".join(file.name for file in found[:5])
        raise DataError(f"{path} has several {kind}: {names}; give the path of one")
    return found[0]


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
        with _decompressed(file, where, LIMIT) as stream:
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
        opened = ExitStack()
        file = opened.enter_context(raw())
        if zipped:
            archive = zipfile.ZipFile(file)
        else:
            archive = tarfile.TarFile(fileobj=opened.enter_context(_decompressed(file, where, LIMIT)))
        weakref.finalize(archive, opened.close)
        infos = archive.infolist() if zipped else list(islice(archive, MOST_MEMBERS + 1))
    if len(infos) > MOST_MEMBERS:
        raise DataError(f"{where} has more than {MOST_MEMBERS:,} members, which no public file has; refused")
    found = []
    for info in infos:
        name, stored = (info.filename, info.orig_filename) if zipped else (info.name, info.name)
        outside = ".." in PurePosixPath(stored.replace("\\", "/")).parts or stored.startswith(("/", "\\"))
        if outside or re.match(r"[A-Za-z]:", stored):
            raise DataError(f"{where} has a member named {stored!r}, which points outside the archive; refused")
        if zipped:
            regular, opener = not info.is_dir() and not stat.S_ISLNK(info.external_attr >> 16), archive.open
        else:
            regular, opener = info.isreg(), archive.extractfile
        if regular and not _hidden(name):
            found.append(SourceFile(_stem(name), f"{name} in {where}", None, partial(opener, info)))
    return found


def _hidden(name: str) -> bool:
    return any(part == "__MACOSX" or (part.startswith(".") and part != ".") for part in name.split("/"))


def _stem(name: str) -> str:
    return re.sub(r"\.(xz|lzma|gz|bz2)$", "", PART.sub("", name.removeprefix("./")))


@contextmanager
def _decompressed(raw: BinaryIO, where: str, limit: int) -> Iterator[BinaryIO]:
    start = raw.read(6)
    raw.seek(0)
    for magic, reader in MAGIC.items():
        if start.startswith(magic):
            with cast(BinaryIO, reader(raw)) as stream:
                yield cast(BinaryIO, io.BufferedReader(_Limited(stream, where, limit), buffer_size=1 << 17))
            return
    yield cast(BinaryIO, io.BufferedReader(_Limited(raw, where, limit), buffer_size=1 << 17))


class _Limited(io.RawIOBase):
    """Another stream, with an error after `limit` bytes."""

    def __init__(self, stream: BinaryIO, where: str, limit: int) -> None:
        self._stream, self._where, self._limit = stream, where, limit

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def readinto(self, buffer: Any) -> int:
        count: int = self._stream.readinto(buffer)  # type: ignore[attr-defined]
        if self._stream.tell() > self._limit:
            size = f"{self._limit / 2**20:,.0f} MiB"
            raise DataError(
                f"{self._where} has more than {size} after decompression; refused: it may be a decompression bomb"
            )
        return count


@contextmanager
def _damage(where: str) -> Iterator[None]:
    """Turn what the libraries raise on damaged files into a DataError that names the file."""
    try:
        yield
    except FedGBOError:
        raise
    except NotImplementedError as error:
        raise DataError(f"{where} has an unsupported compression ({error}); unpack it first") from error
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno not in (None, EINVAL):  # EINVAL: a place outside the file
            raise disk_error(f"cannot read {where}", error) from error
        reason = str(error) or type(error).__name__
        raise DataError(f"{where} cannot be read: damaged or cut short ({reason}); get it again") from error
    except RuntimeError as error:
        if "encrypted" not in str(error):
            raise
        raise DataError(f"{where} is encrypted; unpack it first") from error
