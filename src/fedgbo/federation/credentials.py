"""Certificates and keys: files that only their owner may read, and that are never overwritten.

The server has an authority of its own and a TLS certificate signed by it. ca.crt is public: nodes check the server with
it. ca.key signs further certificates and is best kept elsewhere. A node has a key pair, ECDSA on P-384 in the OpenSSH
format, as `ssh-keygen -t ecdsa -b 384` writes it and Flower reads it: the private key stays at the node, and the server
registers the public key.
"""

import datetime
import os
import re
import secrets
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedgbo.core import ConfigError, MissingExtraError, RunFolderError, whole
from fedgbo.federation.network import EVERYWHERE, LOOPBACK, check_host, ip_of

PRIVATE_FILE = 0o600
PUBLIC_FILE = 0o644
PRIVATE_FOLDER = 0o700
AUTHORITY_DAYS = 3650
ALWAYS = ("localhost", LOOPBACK)  # so that commands on the server's own machine reach it
SKEW = datetime.timedelta(minutes=10)  # between the clocks of the machines
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def require_flower() -> None:
    """Raise MissingExtraError unless Flower, with its dependency `cryptography`, is installed."""
    if find_spec("flwr") is None or find_spec("cryptography") is None:
        raise MissingExtraError("federations need Flower; install it with: pip install 'fedgbo[flower]'")


def user_name() -> str:
    """Return the name of the user whose process this is, whatever the environment says."""
    import pwd  # Windows has none

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"  # as in some containers


def private_folder(path: Path) -> Path:
    """Make the folder if necessary, and close it to other users."""
    try:
        path.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        path.chmod(PRIVATE_FOLDER)
    except OSError as error:
        raise RunFolderError(f"cannot make the folder {path}: {error.strerror}; choose another place") from error
    return path


def write_new(path: Path, content: bytes, mode: int = PRIVATE_FILE) -> None:
    """Write a file that must not exist yet; its mode is set before it has content."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError as error:
        raise RunFolderError(f"{path} already exists and will not be overwritten; choose another folder") from error
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {error.strerror}") from error
    with os.fdopen(handle, "wb") as file:
        os.fchmod(handle, mode)  # whatever the umask is
        file.write(content)
        file.flush()
        os.fsync(handle)


def write_secret(path: Path, content: str | None = None) -> None:
    """Write a file that others cannot read in the place of the last one; without a content, a new random secret."""
    path.unlink(missing_ok=True)
    write_new(path, (secrets.token_hex(32) if content is None else content).encode())


def check_private(path: Path) -> None:
    """Raise RunFolderError unless the key exists and other users may not read it."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise RunFolderError(f"there is no key {path}: {error.strerror}") from error
    if mode & 0o077:
        raise RunFolderError(f"{path} is a private key that others may read; protect it with: chmod 600 {path}")


def make_certificates(folder: Path, hosts: Sequence[str] = (), days: int = 365) -> list[str]:
    """Make an authority and a server certificate for `hosts` in `folder`; return all names it is valid for.

    If the folder has an authority but no server certificate (moved away because it expired), the old authority signs
    the new certificate, so that nodes keep their ca.crt.
    """
    require_flower()
    for host in hosts:
        check_host(host)
        if host in EVERYWHERE:
            raise ConfigError(
                f"{host} means every address and cannot be in a certificate; give the names or addresses by which "
                "nodes will reach the server"
            )
    names = list(dict.fromkeys([*hosts, *ALWAYS]))
    whole("days", days)
    if days > AUTHORITY_DAYS:
        raise ConfigError(f"days must be at most {AUTHORITY_DAYS}, not {days}; the authority is not valid for longer")
    private_folder(folder)
    for name in ("server.crt", "server.key"):
        if (folder / name).exists():
            raise RunFolderError(
                f"{folder / name} already exists and will not be overwritten; choose another folder or, to renew the "
                "server's certificate, move server.crt and server.key away"
            )
    authority = _read_authority(folder) if (folder / "ca.crt").exists() else _issue(folder, "ca", AUTHORITY_DAYS)
    _issue(folder, "server", days, names, authority)
    return names


def _read_authority(folder: Path) -> tuple[Any, Any]:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    check_private(folder / "ca.key")
    try:
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
        return key, x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    except (OSError, ValueError, TypeError) as error:
        raise RunFolderError(f"the authority in {folder} (ca.crt, ca.key) cannot be read: {error}") from error


def _issue(
    folder: Path, name: str, days: int, hosts: Sequence[str] = (), authority: tuple[Any, Any] | None = None
) -> tuple[Any, Any]:
    """Write a key and its certificate, for a server if there is an authority to sign it, else of a new authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, is_ca = ec.generate_private_key(ec.SECP384R1()), authority is None
    title = f"fedgbo federation {'authority' if is_ca else 'server'}"
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, title)])
    now = datetime.datetime.now(datetime.UTC)
    signer, issuer, end = key, subject, now + datetime.timedelta(days=days)
    if authority is not None:
        signer, issuer, end = authority[0], authority[1].subject, min(end, authority[1].not_valid_after_utc)
    other_uses = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only")
    usage = dict.fromkeys((*other_uses, "decipher_only"), False)
    usage |= {"digital_signature": not is_ca, "key_cert_sign": is_ca, "crl_sign": is_ca}
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
    )
    if not is_ca:
        addresses = [(host, ip_of(host)) for host in hosts]
        names = [x509.DNSName(host) if ip is None else x509.IPAddress(ip) for host, ip in addresses]
        server_auth = x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH])
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        builder = builder.add_extension(server_auth, critical=False)
    certificate = builder.sign(signer, hashes.SHA384())
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    write_new(folder / f"{name}.key", key.private_bytes(pem, pkcs8, serialization.NoEncryption()))
    write_new(folder / f"{name}.crt", certificate.public_bytes(pem), PUBLIC_FILE)
    return key, certificate


class NodeFolder:
    """A node's folder: its key pair, Flower's files and the log. The node has the folder's name."""

    def __init__(self, path: Path) -> None:
        self.path, self.name, self.log = path, path.name, path / "node.log"
        self.private_key, self.public_key = path / "node.key", path / f"{path.name}.pub"
        self.apps = path / "apps"

    def check(self) -> None:
        """Raise RunFolderError unless the key exists and is closed to other users."""
        if not self.path.is_dir() or not self.private_key.exists():
            raise RunFolderError(f"{self.path} has no node.key; make one with: fedgbo federation key {self.path}")
        check_private(self.private_key)


def check_name(name: str) -> None:
    """Raise ConfigError unless a node may have this name, which is shown in logs and on terminals."""
    if not _NODE_NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be a node's name; use up to 63 letters, digits, '-', '_' and '.', e.g. hospital-a"
        )


def make_node(path: Path) -> NodeFolder:
    """Make a node's folder with a new key pair."""
    require_flower()
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    node = NodeFolder(path.absolute())
    check_name(node.name)
    for file in (node.private_key, node.public_key):
        if file.exists():
            raise RunFolderError(f"{file} already exists and will not be overwritten; choose another name")
    private_folder(node.path)
    key = ec.generate_private_key(ec.SECP384R1())
    write_new(node.private_key, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write_new(node.public_key, public + f" {node.name}\n".encode(), PUBLIC_FILE)
    return node


def read_public_key(path: Path) -> bytes:
    """Return a node's public key in the format that the server registers; raise ConfigError if it is not one."""
    require_flower()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"there is no public key {path}: {error.strerror}") from error
    if b"PRIVATE KEY" in content:
        raise ConfigError(
            f"{path} is a private key, which must stay where it was made; a node sends its .pub file only. Make a new "
            "key if this one was sent"
        )
    try:
        key = serialization.load_ssh_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path} is not a public key in OpenSSH format: {error}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError(f"{path} must hold an ECDSA key, made with: fedgbo federation key NAME")
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
