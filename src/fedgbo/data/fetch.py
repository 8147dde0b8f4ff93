"""Downloads of the public files in sources.toml: resumed after cut connections, and checked by their digests.

Bytes go to `<name>.part`; the file gets its name once its digest is right. An interrupted download, of this or an
earlier process, continues where it stopped if the server supports Range requests. Standard library only.
"""

import hashlib
import re
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from http.client import HTTPException, HTTPMessage, HTTPResponse, InvalidURL
from importlib.resources import files
from pathlib import Path
from typing import IO
from urllib import request
from urllib.error import HTTPError
from urllib.parse import urlsplit

from fedgbo.core import ConfigError, DataError, FedGBOError, unknown
from fedgbo.data.store import disk_error

CHUNK = 1 << 17
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)  # HTTP status codes that are worth a retry

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all if known


@dataclass(frozen=True)
class Source:
    """A public file: its addresses in order of preference, its local name, and its published size and digests."""

    name: str
    urls: tuple[str, ...]
    file: str
    about: str = ""
    sha256: str | None = None
    md5: str | None = None
    size: int | None = None  # in bytes

    def __post_init__(self) -> None:
        if not self.urls:
            raise ConfigError(f"source {self.name}: it needs an address")
        for url in self.urls:
            if not _on_the_web(url):
                raise ConfigError(f"source {self.name}: '{url}' is not an http or https address")
        if re.fullmatch(r"[\w-][\w.-]*", self.file) is None:
            raise ConfigError(f"source {self.name}: '{self.file}' must be a plain file name, without folders")

    def at(self, urls: Sequence[str]) -> "Source":
        """Return the same file with other addresses first; one that ends with / is that of the file's folder."""
        return replace(self, urls=(*(url + self.file if url.endswith("/") else url for url in urls), *self.urls))

    @property
    def digest(self) -> tuple[str, str] | None:
        if self.sha256 is not None:
            return "sha256", self.sha256.lower()
        return ("md5", self.md5.lower()) if self.md5 is not None else None

    def problem(self, path: Path) -> str | None:
        """Return what is wrong with a file's size or digest, or None."""
        if self.digest is not None:
            kind, expected = self.digest
            with path.open("rb") as file:
                found = hashlib.file_digest(file, kind).hexdigest()
            if found != expected:
                return f"the {kind} should be {expected}, but is {found} ({_size(path):,} bytes)"
        elif self.size is not None and _size(path) != self.size:
            return f"it should have {self.size:,} bytes, but has {_size(path):,}"
        return None


def _on_the_web(url: str) -> bool:
    try:
        return urlsplit(url).scheme in ("http", "https") and bool(urlsplit(url).hostname)
    except ValueError:  # such as a [ without a ]
        return False


@cache
def sources() -> dict[str, tuple[Source, ...]]:
    """Return all sources by task, each task's in order of preference."""
    table = tomllib.loads(files("fedgbo.data").joinpath("sources.toml").read_text(encoding="utf-8"))
    return {
        task: tuple(Source(**entry | {"urls": tuple(entry["urls"])}) for entry in entries)
        for task, entries in table.items()
    }


def public_sources(task: str, name: str | None = None) -> tuple[Source, ...]:
    """Return the files of a task's source, by default of the first. Files with the same name belong together.

    >>> [source.file for source in public_sources("femnist")]
    ['fed_emnist.tar.bz2']
    """
    if task not in sources():
        raise ConfigError(unknown("task with public files", task, sources()))
    known = sources()[task]
    if name is not None and name not in [entry.name for entry in known]:
        raise ConfigError(unknown(f"source of {task}", name, {entry.name for entry in known}))
    return tuple(entry for entry in known if entry.name == (name or known[0].name))


class _CutError(Exception):
    """The connection ended before the file did; a retry may help."""


class _RefusedError(Exception):
    """The server refuses the file; another address may have it."""


def fetch(
    source: Source,
    folder: Path,
    *,
    progress: Progress = lambda done, total: None,
    attempts: int = 5,
    pause: float = 1.0,
    timeout: float = 30.0,
) -> Path:
    """Return the path of the file; download it unless it is there already.

    An address is given up after `attempts` in a row without new bytes, where the pause between them doubles each time,
    or after wrong bytes; then the next one is tried.
    """
    target, part = folder / source.file, folder / f"{source.file}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if target.exists() and source.problem(target) is None:
            return target
        if source.digest is None:
            part.unlink(missing_ok=True)  # a part that cannot be checked is not continued
    except OSError as error:
        raise disk_error(f"cannot download into {folder}", error) from error
    problems = []
    for url in source.urls:
        try:
            _Download(source, url, part, progress, timeout).run(attempts, pause)
            return part.replace(target)
        except _RefusedError as error:
            problems.append(str(error))
        except OSError as error:
            raise disk_error(f"cannot write {target}", error) from error
    raise DataError(f"cannot download {source.file}: {'; '.join(problems)}")


@dataclass(frozen=True)
class _Download:
    source: Source
    url: str
    part: Path
    progress: Progress
    timeout: float

    def run(self, attempts: int, pause: float) -> None:
        """Fill `part` with the right bytes, over as many connections as needed."""
        failures, most, restarted = 0, _size(self.part), False
        while True:
            resumed = _size(self.part) > 0
            try:
                self._transfer()
                problem = self.source.problem(self.part)
                if problem is None:
                    return
                self.part.unlink()
                if restarted or not resumed:
                    raise _RefusedError(f"{self.url} sent wrong data: {problem}; nothing was kept")
                most, restarted = 0, True  # the old part may belong to another file: start again once
            except _CutError as error:
                size = _size(self.part)
                failures = 0 if size > most else failures + 1
                most = max(most, size)
                if failures >= attempts:
                    kept = f"; {size:,} bytes are kept, and the next try continues there" if size else ""
                    raise _RefusedError(f"{self.url} failed {attempts} times in a row ({error}){kept}") from error
                if self.source.digest is None:
                    self.part.unlink(missing_ok=True)
                time.sleep(pause * 2 ** max(0, failures - 1))

    def _transfer(self) -> None:
        """Make one connection and append its bytes to `part`; raise _CutError unless that completes the file."""
        start = _size(self.part)
        headers = {"User-Agent": "fedgbo"} | ({"Range": f"bytes={start}-"} if start else {})
        try:
            with closing(_opener().open(request.Request(self.url, headers=headers), timeout=self.timeout)) as response:
                content_range = str(response.headers.get("Content-Range", ""))
                if response.status != 206 or not content_range.startswith(f"bytes {start}-"):
                    start = 0  # the server ignores Range and sends the whole file
                length = response.headers.get("Content-Length", "")
                total = start + int(length) if length.isdecimal() else self.source.size
                done = self._append(response, start, total)
        except HTTPError as error:
            error.close()
            if error.code == 416 and start:  # no bytes after `start`: the part is complete, or of another file
                if error.headers.get("Content-Range", "").endswith(f"/{start}"):
                    return
                self.part.unlink()
                raise _CutError("the server's file is shorter than the part that was kept") from error
            said = f"{error.code} {error.reason}"
            raise _CutError(said) if error.code in TRANSIENT else _RefusedError(f"{self.url} answers {said}") from error
        except FedGBOError:
            raise
        except (InvalidURL, ValueError) as error:
            raise _RefusedError(f"{self.url} cannot be asked for: {error}") from error
        except (OSError, HTTPException) as error:
            raise _CutError(str(error) or type(error).__name__) from error
        if total is not None and done < total:
            raise _CutError(f"the connection was cut after {done:,} of {total:,} bytes")

    def _append(self, response: HTTPResponse, start: int, total: int | None) -> int:
        done = start
        with self._writing():
            file = self.part.open("ab" if start else "wb")
        with file:
            while chunk := response.read(CHUNK):
                with self._writing():
                    file.write(chunk)
                    file.flush()
                done += len(chunk)
                self.progress(done, total)
                if self.source.size is not None and done > self.source.size:
                    break  # too many bytes: the check of the digest reports it
        return done

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Tell errors of the disk from those of the network."""
        try:
            yield
        except OSError as error:
            raise disk_error(f"cannot write {self.part}", error) from error


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class _WebOnly(request.HTTPRedirectHandler):
    """Follows redirects to http and https only: never to a file or an ftp server."""

    def redirect_request(
        self, req: request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> request.Request | None:
        if not _on_the_web(newurl):
            raise _RefusedError(f"{req.full_url} redirects to '{newurl}', which is not an http or https address")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> request.OpenerDirector:
    """Return an opener without urllib's handlers for files, ftp and data addresses."""
    opener = request.OpenerDirector()
    web = (request.ProxyHandler, request.HTTPHandler, request.HTTPSHandler)
    for handler in (*web, request.HTTPDefaultErrorHandler, _WebOnly, request.HTTPErrorProcessor):
        opener.add_handler(handler())
    return opener
