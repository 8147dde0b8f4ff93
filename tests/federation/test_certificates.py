import re
import socket
import ssl
import stat
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from fedgbo.core.errors import ConfigError, FederationError, RunFolderError
from fedgbo.federation.control import control
from fedgbo.federation.credentials import make_certificates
from fedgbo.federation.network import Address, answers, check_server, free_ports
from fedgbo.federation.superlink import ServerFolder


@contextmanager
def listening(answer):
    """A server on loopback that treats each connection with `answer`."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        over = threading.Event()
        server.settimeout(0.05)

        def serve():
            while not over.is_set():
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                with connection:
                    answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield Address("127.0.0.1", server.getsockname()[1])
        finally:
            over.set()
            thread.join(20)


def tls(folder):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")

    def answer(connection):
        try:
            context.wrap_socket(connection, server_side=True).close()
        except (ssl.SSLError, OSError):
            return

    return answer


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ours") / "server"
    make_certificates(folder, ["fl.example.org", "10.1.2.3"])
    return folder


def test_private_files_are_closed_to_others(ours):
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in ours.iterdir()}
    assert modes == {"ca.crt": 0o644, "ca.key": 0o600, "server.crt": 0o644, "server.key": 0o600}
    assert stat.S_IMODE(ours.stat().st_mode) == 0o700


def test_the_server_is_known_by_all_its_names(ours):
    for name in ("localhost", "127.0.0.1", "fl.example.org", "10.1.2.3"):
        context = ssl.create_default_context(cafile=str(ours / "ca.crt"))
        context.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
        with listening(tls(ours)) as address, socket.create_connection((address.host, address.port)) as plain:
            context.wrap_socket(plain, server_hostname=name).close()
    with listening(tls(ours)) as address:
        check_server(address, ours / "ca.crt")
        check_server(Address("localhost", address.port), ours / "ca.crt")


def test_another_authority_is_refused_with_the_reason(ours, tmp_path):
    make_certificates(tmp_path / "theirs")
    with (
        listening(tls(ours)) as address,
        pytest.raises(FederationError, match=r"not signed by the authority in .*ca\.crt"),
    ):
        check_server(address, tmp_path / "theirs" / "ca.crt")


def test_another_name_is_refused_with_the_reason(ours, monkeypatch):
    real = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", lambda at, timeout: real(("127.0.0.1", at[1]), timeout))
    with (
        listening(tls(ours)) as address,
        pytest.raises(FederationError, match=r"other names than 'else\.example\.org'"),
    ):
        check_server(Address("else.example.org", address.port), ours / "ca.crt")


def test_plaintext_is_refused(ours):
    refusal = pytest.raises(FederationError, match=r"does not speak TLS|connection .* broke")
    with listening(lambda connection: connection.sendall(b"HTTP/1.1 400 Bad\r\n\r\n")) as address, refusal:
        check_server(address, ours / "ca.crt")


def test_nobody_there(ours):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(FederationError, match=f"nothing answers at 127.0.0.1:{port}"):
        check_server(Address("127.0.0.1", port), ours / "ca.crt")
    with pytest.raises(FederationError, match=r"there is no host 'nowhere\.invalid'"):
        check_server(Address("nowhere.invalid", port), ours / "ca.crt")


def test_operators_of_a_server_that_was_killed_are_told_how_to_start_it(ours):
    server = ServerFolder(ours)
    (port,) = free_ports(1)
    server.note(Address("127.0.0.1", port), Address("127.0.0.1", port))
    start = re.escape(f"start it with: fedgbo federation serve {ours}")
    with pytest.raises(FederationError, match=f"nothing answers at 127.0.0.1:{port} .* {start}"), control(server):
        pass


def test_waiting_for_a_server_ends_when_the_wrong_one_answers(ours, tmp_path):
    make_certificates(tmp_path / "theirs")
    with listening(tls(ours)) as address:
        assert answers(address, ours / "ca.crt")
    assert not answers(address, ours / "ca.crt")
    with listening(tls(ours)) as address, pytest.raises(FederationError, match="not signed by the authority"):
        answers(address, tmp_path / "theirs" / "ca.crt")


def test_no_authority_in_the_file(tmp_path):
    (tmp_path / "ca.crt").write_text("nonsense")
    with pytest.raises(RunFolderError, match=r"ca\.crt is not the certificate of an authority"):
        check_server(Address("127.0.0.1", 1), tmp_path / "ca.crt")


def test_nothing_is_overwritten_and_the_authority_outlives_the_server(tmp_path):
    folder = tmp_path / "server"
    make_certificates(folder, days=1)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(RunFolderError, match=r"server\.crt already exists and will not be overwritten"):
        make_certificates(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    for name in ("server.crt", "server.key"):
        (folder / name).rename(folder / f"old-{name}")
    make_certificates(folder)
    assert (folder / "ca.crt").read_bytes() == before["ca.crt"]
    with listening(tls(folder)) as address:
        check_server(address, folder / "ca.crt")


@pytest.mark.parametrize(
    ("hosts", "days", "message"),
    [
        (["https://fl.example.org"], 1, "neither a host name nor an IP address"),
        (["fl.example.org:8000"], 1, "without a port"),
        (["0.0.0.0"], 1, "means every address"),
        (["-x.org"], 1, "neither"),
        (["1.2.3"], 1, "neither"),
        ([], 0, "days must be a whole number of at least 1"),
        ([], 100_000, "days must be at most 3650"),
    ],
)
def test_names_and_lifetimes_are_checked(tmp_path, hosts, days, message):
    with pytest.raises(ConfigError, match=message):
        make_certificates(tmp_path / "server", hosts, days)
    assert not (tmp_path / "server").exists()


def test_a_folder_that_cannot_serve(tmp_path, ours):
    with pytest.raises(RunFolderError, match=r"lacks ca\.crt, server\.crt, server\.key"):
        ServerFolder(tmp_path).check()
    with pytest.raises(RunFolderError, match="no server runs from"):
        ServerFolder(tmp_path).address()
    for name in ("ca.crt", "server.crt", "server.key"):
        (tmp_path / name).write_bytes((ours / name).read_bytes())
    (tmp_path / "server.key").chmod(0o644)
    with pytest.raises(RunFolderError, match=r"private key that others may read; protect it with: chmod 600"):
        ServerFolder(tmp_path).check()
    (tmp_path / "server.key").chmod(0o600)
    ServerFolder(tmp_path).check()
    (tmp_path / "server.crt").write_text("nonsense")
    with pytest.raises(RunFolderError, match=r"server\.crt is not a certificate"):
        ServerFolder(tmp_path).check()


def test_a_certificate_that_ran_out(tmp_path, monkeypatch):
    make_certificates(tmp_path / "server", days=1)
    later = datetime.now(UTC) + timedelta(days=2)

    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return later

    monkeypatch.setattr("fedgbo.federation.superlink.datetime.datetime", Later)
    with pytest.raises(RunFolderError, match=r"server\.crt expired on"):
        ServerFolder(tmp_path / "server").check()
