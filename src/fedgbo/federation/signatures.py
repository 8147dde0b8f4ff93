"""Signed calls: a node signs the time with its key, as Flower's nodes do, and the server checks it.

Before a node starts Flower it says hello to the server, with the same headers. The answer, or the reason for a refusal,
is what Flower's own refusals leave out: an unknown key, another name, a clock that is wrong.
"""

import base64
import binascii
import datetime
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgbo import __version__
from fedgbo.core import ConfigError, FederationError
from fedgbo.federation.credentials import NodeFolder
from fedgbo.federation.network import CONNECT_SECONDS, Address, check_server

HELLO = "/v1/fedgbo/hello"
KEY, TIME, SIGNATURE = "flwr-public-key", "flwr-timestamp", "flwr-signature"
AHEAD, BEHIND = 5.0, 300.0  # seconds by which Flower lets a node's clock differ


class BadSignature(FederationError):  # noqa: N818 - a caller's fault
    """A call whose signature does not hold."""


def sign(node: NodeFolder) -> dict[str, str]:
    """Return the headers of a call that the node signs now."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    node.check()
    try:
        private = serialization.load_ssh_private_key(node.private_key.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"{node.private_key} cannot be read: {error}; make a new key: fedgbo federation key NAME"
        ) from error
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{node.private_key} must be an ECDSA key, made with: fedgbo federation key NAME")
    now = datetime.datetime.now(datetime.UTC).isoformat()
    pem, spki = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    signature = private.sign(now.encode(), ec.ECDSA(hashes.SHA256()))
    public = private.public_key().public_bytes(pem, spki)
    return {KEY: base64.b64encode(public).decode(), TIME: now, SIGNATURE: base64.b64encode(signature).decode()}


def key_in(headers: Mapping[str, str]) -> str:
    """Return the public key that a call names, in PEM; raise BadSignature if there is none."""
    try:
        return base64.b64decode(headers[KEY], validate=True).decode("ascii")
    except (KeyError, ValueError) as error:
        raise BadSignature("it sent no key") from error


def check_signature(headers: Mapping[str, str], key: str) -> None:
    """Raise BadSignature unless a call was signed with this key, just now."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    public = serialization.load_pem_public_key(key.encode())
    try:
        signature = base64.b64decode(headers[SIGNATURE], validate=True)
        time = datetime.datetime.fromisoformat(headers[TIME])
        if not isinstance(public, ec.EllipticCurvePublicKey):
            raise ValueError("no ECDSA key")
        public.verify(signature, headers[TIME].encode(), ec.ECDSA(hashes.SHA256()))
        age = (datetime.datetime.now(datetime.UTC) - time).total_seconds()
    except (KeyError, ValueError, TypeError, binascii.Error, InvalidSignature) as error:
        raise BadSignature("its signature is not valid") from error
    if age <= -AHEAD:
        raise BadSignature(f"its clock is {-age:.0f} s ahead of the server's; at most {AHEAD:.0f} s are allowed")
    if age >= BEHIND:
        raise BadSignature(f"its clock is {age:.0f} s behind the server's; at most {BEHIND:.0f} s are allowed")


@dataclass(frozen=True)
class Welcome:
    """What a server knows of a node: its name there, and the clients that it may host."""

    name: str
    clients: str


def say_hello(node: NodeFolder, server: Address, ca: Path) -> Welcome:
    """Ask the server what it knows of this node; raise FederationError with the reason if it is refused."""
    import httpx

    check_server(server, ca)
    context = ssl.create_default_context(cafile=str(ca))
    try:
        with httpx.Client(verify=context, timeout=CONNECT_SECONDS, trust_env=False) as client:
            answer = client.post(f"https://{server}{HELLO}", headers=sign(node))
        content: Mapping[str, Any] = answer.json()
    except (httpx.HTTPError, json.JSONDecodeError) as error:
        raise FederationError(
            f"the server at {server} does not answer as one of fedgbo's ({type(error).__name__}); was it started with "
            f"fedgbo federation serve, by fedgbo {__version__}?"
        ) from error
    if answer.status_code == 200:
        if content["version"] != __version__:
            raise FederationError(
                f"refused: the server at {server} has fedgbo {content['version']}, this node {__version__}; install "
                "the same version on both"
            )
        return Welcome(str(content["name"]), str(content["clients"]))
    reason = str(content.get("error", ""))
    if "not registered" in reason:
        raise FederationError(
            f"refused: the server at {server} does not know this node's key; send {node.public_key} to its "
            f"administrators, who register it with: fedgbo federation register DIR {node.public_key.name} --clients N"
        )
    if "clock" in reason:
        date = answer.headers.get("date", "unknown")
        raise FederationError(
            f"refused: the server at {server} says of this node that {reason}. The server's time is {date}; set this "
            "machine's clock, for example with NTP"
        )
    raise FederationError(f"refused: the server at {server} says: {reason[:200]}")
