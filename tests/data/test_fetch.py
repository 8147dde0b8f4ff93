"""Downloads from a real server on 127.0.0.1 that cuts connections, ignores Range, and serves wrong bytes."""

import hashlib
import resource
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from fedgbo.core.errors import ConfigError, DataError, RunFolderError
from fedgbo.data.fetch import Source, fetch, public_sources, sources

CONTENT = np.random.default_rng(0).bytes(400_000)
OTHER = bytes(400_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server:
    """Answers every request with `answer(handler, start)`, and remembers the Range headers."""

    def __init__(self) -> None:
        self.ranges: list[str | None] = []
        self.answer: Callable[[BaseHTTPRequestHandler, int], None] = send
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked = self.headers.get("Range")
                server.ranges.append(asked)
                server.answer(self, int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/file.bin"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def requests(self) -> int:
        return len(self.ranges)

    def source(self, **changes) -> Source:
        return Source(**{"name": "test", "urls": (self.url,), "file": "file.bin", "sha256": SHA256} | changes)


def send(handler, start, content=CONTENT, *, cut=None, ranges=True):
    """Send the content from `start` on, but only up to byte `cut` of it; the headers promise all."""
    start = start if ranges else 0
    handler.send_response(206 if start else 200)
    if start:
        handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
    handler.send_header("Content-Length", str(len(content) - start))
    handler.end_headers()
    handler.wfile.write(content[start:cut])


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


def get(server, folder, **changes):
    return fetch(server.source(**changes), folder, attempts=3, pause=0.001, timeout=5)


def listing(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_plain_download(server, tmp_path):
    seen = []
    path = fetch(server.source(), tmp_path / "new" / "folder", progress=lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert listing(path.parent) == ["file.bin"]
    assert seen[-1] == (400_000, 400_000)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_what_is_there_is_not_fetched_again(server, tmp_path):
    get(server, tmp_path)
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.requests == 1


def test_a_damaged_file_is_replaced(server, tmp_path):
    (tmp_path / "file.bin").write_bytes(OTHER)
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_cut_connections_are_resumed_where_they_stopped(server, tmp_path):
    # Far more cuts than attempts: those that bring something new do not count.
    server.answer = lambda handler, start: send(handler, start, cut=start + 50_000)
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, *(f"bytes={k * 50_000}-" for k in range(1, 8))]


def test_a_server_that_ignores_range_starts_again(server, tmp_path):
    cuts = iter([150_000, 300_000, None])
    server.answer = lambda handler, start: send(handler, start, cut=next(cuts), ranges=False)
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=150000-", "bytes=300000-"]


def test_a_server_that_always_cuts_at_the_same_place_is_given_up(server, tmp_path):
    server.answer = lambda handler, start: send(handler, start, cut=100_000, ranges=False)
    with pytest.raises(
        DataError, match=r"failed 3 times in a row \(.*cut after 100,000 of 400,000 bytes\); 100,000 bytes"
    ):
        get(server, tmp_path)
    assert server.requests == 4
    assert listing(tmp_path) == ["file.bin.part"]


def test_an_earlier_processs_piece_is_continued(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:123_456])
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges == ["bytes=123456-"]


def test_an_earlier_processs_whole_piece_is_enough(server, tmp_path):
    def beyond(handler, start):
        handler.send_response(416)
        handler.send_header("Content-Range", f"bytes */{len(CONTENT)}")
        handler.end_headers()

    server.answer = beyond
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.requests == 1


def test_a_piece_longer_than_the_file_is_dropped(server, tmp_path):
    def strict(handler, start):
        if start < len(CONTENT):
            return send(handler, start)
        handler.send_response(416)
        handler.send_header("Content-Range", f"bytes */{len(CONTENT)}")
        return handler.end_headers()

    server.answer = strict
    (tmp_path / "file.bin.part").write_bytes(CONTENT + b"more")
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_a_piece_of_another_file_costs_one_more_download(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(OTHER[:1000])
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges == ["bytes=1000-", None]


def test_wrong_bytes_name_both_digests_and_leave_nothing(server, tmp_path):
    server.answer = lambda handler, start: send(handler, start, OTHER)
    with pytest.raises(DataError) as caught:
        get(server, tmp_path)
    assert SHA256 in str(caught.value)
    assert hashlib.sha256(OTHER).hexdigest() in str(caught.value)
    assert server.url in str(caught.value)
    assert listing(tmp_path) == []
    assert server.requests == 1


def test_wrong_bytes_in_pieces_end_too(server, tmp_path):
    server.answer = lambda handler, start: send(handler, start, OTHER, cut=200_000 if start == 0 else None)
    with pytest.raises(DataError, match="sent wrong data"):
        get(server, tmp_path)
    assert listing(tmp_path) == []
    assert server.requests == 4


def test_md5_where_it_is_all_there_is(server, tmp_path):
    md5 = hashlib.md5(CONTENT).hexdigest()
    assert get(server, tmp_path, sha256=None, md5=md5).read_bytes() == CONTENT
    with pytest.raises(DataError, match=f"the md5 should be {'0' * 32}, but is {md5}"):
        get(server, tmp_path / "other", sha256=None, md5="0" * 32)


def test_without_a_digest_a_piece_is_not_trusted(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(OTHER[:1000])
    cuts = iter([150_000, None])
    server.answer = lambda handler, start: send(handler, start, cut=next(cuts))
    assert get(server, tmp_path, sha256=None).read_bytes() == CONTENT
    assert server.ranges == [None, None]


def test_a_size_is_checked_where_there_is_no_digest(server, tmp_path):
    with pytest.raises(DataError, match="it should have 399,999 bytes, but has 400,000"):
        get(server, tmp_path, sha256=None, size=399_999)


def test_404_is_not_tried_again(server, tmp_path):
    server.answer = lambda handler, start: handler.send_error(404)
    with pytest.raises(
        DataError, match=r"cannot download file.bin: http://127.0.0.1:\d+/file.bin answers 404 Not Found"
    ):
        get(server, tmp_path)
    assert server.requests == 1
    assert listing(tmp_path) == []


def test_another_address_is_tried(server, tmp_path):
    def answer(handler, start):
        handler.send_error(404) if handler.path == "/gone" else send(handler, start)

    server.answer = answer
    urls = (server.url.replace("/file.bin", "/gone"), server.url)
    assert get(server, tmp_path, urls=urls).read_bytes() == CONTENT


def test_the_next_address_is_tried_after_wrong_bytes(server, tmp_path):
    server.answer = lambda handler, start: send(handler, start, OTHER if handler.path == "/wrong" else CONTENT)
    urls = (server.url.replace("/file.bin", "/wrong"), server.url)
    assert get(server, tmp_path, urls=urls).read_bytes() == CONTENT
    assert server.ranges == [None, None]


def test_an_address_that_is_none_is_refused_at_once(server, tmp_path):
    with pytest.raises(DataError, match=r"/a b cannot be asked for"):
        get(server, tmp_path, urls=(server.url.replace("file.bin", "a b"),))
    with pytest.raises(DataError, match=r"/\u00fc cannot be asked for"):
        get(server, tmp_path, urls=(server.url.replace("file.bin", "\u00fc"),))


def test_other_addresses_come_first(server):
    source = server.source(urls=("https://example.org/x",)).at(["http://mirror/folder/", "http://mirror/other.bin"])
    assert source.urls == ("http://mirror/folder/file.bin", "http://mirror/other.bin", "https://example.org/x")


def test_a_busy_server_is_tried_again(server, tmp_path):
    codes = iter([503, 429])

    def busy(handler, start):
        code = next(codes, None)
        handler.send_error(code) if code else send(handler, start)

    server.answer = busy
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.requests == 3


def test_nobody_there(tmp_path):
    nobody = Source(name="test", urls=("http://127.0.0.1:9/file.bin",), file="file.bin")
    with pytest.raises(DataError, match=r"127.0.0.1:9/file.bin failed 2 times in a row"):
        fetch(nobody, tmp_path, attempts=2, pause=0.001)


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://127.0.0.1/file"])
def test_redirects_lead_to_the_web_only(server, tmp_path, place):
    def away(handler, start):
        handler.send_response(302)
        handler.send_header("Location", place)
        handler.end_headers()

    server.answer = away
    with pytest.raises(DataError, match=r"redirects to 'ftp:|not allowed"):
        get(server, tmp_path)
    assert listing(tmp_path) == []


def test_redirects_on_the_web_are_followed(server, tmp_path):
    def once(handler, start):
        if handler.path == "/there":
            return send(handler, start)
        handler.send_response(302)
        handler.send_header("Location", "/there")
        return handler.end_headers()

    server.answer = once
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_a_place_that_cannot_be_written_is_no_network_error(server, tmp_path):
    (tmp_path / "file.bin.part").mkdir()
    with pytest.raises(RunFolderError, match=r"cannot write .*file\.bin\.part: Is a directory"):
        get(server, tmp_path)
    assert server.requests == 1
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunFolderError, match=r"cannot download into .*file/inside: Not a directory"):
        get(server, tmp_path / "file" / "inside")


def test_a_folder_in_the_files_place(server, tmp_path):
    def meanwhile(handler, start):
        (tmp_path / "file.bin").mkdir()
        send(handler, start)

    server.answer = meanwhile
    with pytest.raises(RunFolderError, match=r"cannot write .*file\.bin: Is a directory"):
        get(server, tmp_path)


def test_a_full_disk_says_so_and_keeps_what_is_there(server, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    try:
        with pytest.raises(RunFolderError, match=r"cannot write .*file\.bin\.part: File too large; check the"):
            get(server, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=200000-"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"urls": ("file:///etc/passwd",)}, "'file:///etc/passwd' is not an http or https address"),
        ({"urls": ("https://",)}, "'https://' is not an http or https address"),
        ({"urls": ("https://[::1/x",)}, r"'https://\[::1/x' is not an http or https address"),
        ({"urls": ()}, "it needs an address"),
        ({"file": "../x"}, "'../x' must be a plain file name, without folders"),
        ({"file": ".."}, "must be a plain file name"),
    ],
)
def test_sources_are_checked(changes, message):
    with pytest.raises(ConfigError, match=message):
        Source(**{"name": "test", "urls": ("https://example.org/x",), "file": "x"} | changes)


def test_the_papers_tasks_have_sources_with_digests():
    assert set(sources()) == {"cifar10", "cifar100", "fashion-mnist", "femnist", "sent140", "shakespeare"}
    for entries in sources().values():
        for entry in entries:
            assert entry.digest is not None
            kind, value = entry.digest
            assert len(value) == {"sha256": 64, "md5": 32}[kind]
            assert int(value, 16) > 0


def test_sources_by_name():
    assert [source.file for source in public_sources("cifar100")] == ["cifar-100-python.tar.gz"]
    assert [source.file for source in public_sources("cifar100", "tff")] == ["fed_cifar100.tar.bz2"]
    assert len({source.file for source in public_sources("fashion-mnist")}) == 4
    with pytest.raises(ConfigError, match="unknown source of cifar100 'tf'; did you mean 'tff'"):
        public_sources("cifar100", "tf")
    with pytest.raises(
        ConfigError, match=r"unknown task with public files 'digits' \(known: cifar10, cifar100, fashion"
    ):
        public_sources("digits")
