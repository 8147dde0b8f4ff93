"""Downloads that survive cut connections and never pass on wrong bytes. Standard library only.

Bytes go to `<name>.part`; the file gets its name once its digest is right. A download that was cut, here or in an
earlier process, goes on where it stopped, if the server takes Range requests.
"""

import hashlib
import time
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPException, HTTPMessage, HTTPResponse
from pathlib import Path
from typing import IO
from urllib import request
from urllib.error import HTTPError
from urllib.parse import urlsplit

from fedgbo.core.errors import DataError
from fedgbo.data.sources import Source

CHUNK = 1 << 17
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)  # answers that may be better the next time

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all where known


class _CutError(Exception):
    """The connection ended before the file did; to be tried again."""


class _RefusedError(Exception):
    """The server will not give the file; another address may."""


def fetch(
    source: Source,
    folder: Path,
    *,
    progress: Progress | None = None,
    attempts: int = 5,
    pause: float = 1.0,
    timeout: float = 30.0,
) -> Path:
    """Return the path of the file, downloaded unless it is there already.

    An address is given up after `attempts` in a row that bring nothing new, with pauses that double each time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target, part = folder / source.file, folder / f"{source.file}.part"
    if target.exists() and _wrong(source, target) is None:
        return target
    if source.digest is None:
        part.unlink(missing_ok=True)  # what cannot be checked is not continued
    problems = []
    for url in source.urls:
        try:
            _download(source, url, part, progress or _silent, attempts, pause, timeout)
        except _RefusedError as error:
            problems.append(str(error))
            continue
        part.replace(target)
        return target
    raise DataError(f"cannot download {source.file}: {'; '.join(problems)}")


def _download(
    source: Source, url: str, part: Path, progress: Progress, attempts: int, pause: float, timeout: float
) -> None:
    """Fill `part` with the right bytes from one address, in as many connections as it takes."""
    failures, most, again = 0, _size(part), False
    while True:
        resumed = _size(part) > 0
        try:
            _transfer(source, url, part, progress, timeout)
            problem = _wrong(source, part)
            if problem is None:
                return
            part.unlink()
            if again or not resumed:
                raise DataError(f"{url} sent wrong bytes: {problem}; nothing was kept")
            most, again = 0, True  # the piece that was there may have been another file's: once more from the start
        except _CutError as error:
            failures = 0 if _size(part) > most else failures + 1
            most = max(most, _size(part))
            if failures >= attempts:
                kept = f"; {_size(part):,} bytes are kept, and the next try goes on there" if _size(part) else ""
                raise _RefusedError(f"{url} failed {attempts} times in a row ({error}){kept}") from error
            if source.digest is None:
                part.unlink(missing_ok=True)
            time.sleep(pause * 2 ** max(0, failures - 1))


def _transfer(source: Source, url: str, part: Path, progress: Progress, timeout: float) -> None:
    """Make one connection and append to `part` what it brings; raise _CutError unless that completes the file."""
    start = _size(part)
    asked = request.Request(url, headers={"User-Agent": "fedgbo"} | ({"Range": f"bytes={start}-"} if start else {}))
    try:
        with closing(_opener().open(asked, timeout=timeout)) as response:
            if response.status != 206 or not _starts_at(response, start):
                start = 0  # the server sends the whole file, whatever was asked
            length = response.headers.get("Content-Length", "")
            total = start + int(length) if length.isdecimal() else source.size
            done = _append(response, part, start, total, source, progress)
    except HTTPError as error:
        error.close()
        if error.code == 416 and start:  # nothing after `start`: the piece is whole, or it is no piece of this file
            if error.headers.get("Content-Range", "").endswith(f"/{start}"):
                return
            part.unlink()
            raise _CutError("the server has a shorter file than was begun") from error
        said = f"{error.code} {error.reason}"
        raise _CutError(said) if error.code in TRANSIENT else _RefusedError(f"{url} answers {said}") from error
    except (OSError, HTTPException) as error:
        raise _CutError(str(error) or type(error).__name__) from error
    if total is not None and done < total:
        raise _CutError(f"the connection was cut after {done:,} of {total:,} bytes")


def _append(
    response: HTTPResponse, part: Path, start: int, total: int | None, source: Source, progress: Progress
) -> int:
    done = start
    try:
        file = part.open("ab" if start else "wb")
    except OSError as error:
        raise DataError(f"cannot write {part}: {error}") from error
    with file:
        while chunk := response.read(CHUNK):
            try:
                file.write(chunk)
                file.flush()
            except OSError as error:
                raise DataError(f"cannot write {part}: {error}; free some space or choose another folder") from error
            done += len(chunk)
            progress(done, total)
            if source.size is not None and done > source.size:
                break  # more than there can be: the digest will say what is wrong
    return done


def _wrong(source: Source, path: Path) -> str | None:
    """Say what is wrong with a file's size or digest, if anything is."""
    if source.digest is not None:
        kind, expected = source.digest
        with path.open("rb") as file:
            found = hashlib.file_digest(file, kind).hexdigest()
        if found != expected:
            return f"the {kind} should be {expected}, but is {found} ({_size(path):,} bytes)"
    elif source.size is not None and _size(path) != source.size:
        return f"it should have {source.size:,} bytes, but has {_size(path):,}"
    return None


def _starts_at(response: HTTPResponse, start: int) -> bool:
    return str(response.headers.get("Content-Range", "")).startswith(f"bytes {start}-")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _silent(done: int, total: int | None) -> None:
    """Report to nobody."""


class _WebOnly(request.HTTPRedirectHandler):
    """Follows redirects to http and https only: never to a file or an ftp server."""

    def redirect_request(
        self, req: request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> request.Request | None:
        """Refuse other schemes."""
        if urlsplit(newurl).scheme not in ("http", "https"):
            raise _RefusedError(f"{req.full_url} redirects to '{newurl}', which is no http or https address")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> request.OpenerDirector:
    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler(),
        request.HTTPHandler(),
        request.HTTPSHandler(),
        request.HTTPDefaultErrorHandler(),
        _WebOnly(),
        request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener
