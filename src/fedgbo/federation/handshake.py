"""Is there a server, does it speak TLS, and is it the one that our authority vouches for? Found out before Flower is.

So that the person at a client reads a sentence, and not a trace out of a library's depths.
"""

import socket
import ssl
from pathlib import Path

from fedgbo.core.errors import FederationError, RunFolderError
from fedgbo.federation.addresses import Address

SECONDS = 10.0


class UntrustedError(FederationError):
    """A server that answers, and is not one that we trust: waiting does not help."""


def check_server(address: Address, ca: Path | None) -> None:
    """Raise, with the reason, unless the server at `address` can be spoken to, by TLS if `ca` is given."""
    if ca is None:
        if _speaks_tls(address):
            raise FederationError(
                f"refused: the server at {address} speaks TLS only, and this client was told to speak without; give "
                "the federation's authority with --ca ca.crt instead of --insecure"
            )
        return
    try:
        context = ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise RunFolderError(
            f"{ca} is no certificate of an authority: {error}; ask the server's people for ca.crt"
        ) from error
    try:
        with _connect(address) as plain, context.wrap_socket(plain, server_hostname=address.host):
            return
    except ssl.SSLCertVerificationError as error:
        raise UntrustedError(f"refused by us: {_why(address, ca, error)}") from error
    except ssl.SSLError as error:
        raise FederationError(
            f"the server at {address} does not speak TLS ({error.reason or error}); is that its port, and was it "
            "started by fedgbo federation serve?"
        ) from error
    except OSError as error:
        raise FederationError(f"the connection to the server at {address} broke: {error}") from error


def answers(address: Address, ca: Path | None) -> bool:
    """Return whether the server is there; raise if it is the wrong one, or has a certificate for other names."""
    try:
        check_server(address, ca)
    except UntrustedError:
        raise
    except FederationError:
        return False
    return True


def _why(address: Address, ca: Path, error: ssl.SSLCertVerificationError) -> str:
    text = error.verify_message or str(error)
    if "expired" in text or "not yet valid" in text:
        return f"the certificate of the server at {address} is not valid now ({text}); its people must renew it"
    if "mismatch" in text.lower() or "not valid for" in text:
        return (
            f"the server's certificate is for other names than '{address.host}'; call it by a name that it was made "
            f"for, or have one made with: fedgbo federation certs DIR --host {address.host}"
        )
    return (
        f"the certificate of the server at {address} was not signed by the authority in {ca} ({text}); either this is "
        "the wrong ca.crt, or somebody else answers at that address. Ask the server's people for their ca.crt"
    )


def _speaks_tls(address: Address) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # only asked whether it speaks TLS; nothing is sent
    try:
        with _connect(address) as plain, context.wrap_socket(plain):
            return True
    except (ssl.SSLError, OSError):
        return False


def _connect(address: Address) -> socket.socket:
    try:
        return socket.create_connection((address.host, address.port), timeout=SECONDS)
    except socket.gaierror as error:
        raise FederationError(f"there is no host '{address.host}' ({error.strerror}); check the name") from error
    except OSError as error:
        raise FederationError(
            f"nothing answers at {address} ({error.strerror or error}); is the server running, is this its port, and "
            "does a firewall stand between?"
        ) from error
