"""A node's key pair: the private part stays with the node, the server registers the public part.

ECDSA on P-384 in OpenSSH's format, as `ssh-keygen -t ecdsa -b 384` writes it and Flower reads it.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from fedgbo.core.errors import ConfigError, RunFolderError
from fedgbo.federation.extras import require_flower
from fedgbo.federation.secret_files import PUBLIC_FILE, check_private, private_folder, write_new

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


@dataclass(frozen=True)
class NodeFolder:
    """A node's own folder: its key, what Flower keeps there, its log."""

    path: Path

    @property
    def name(self) -> str:
        """The node's name, which is its folder's."""
        return self.path.name

    @property
    def private_key(self) -> Path:
        """The key that never leaves the node."""
        return self.path / "node.key"

    @property
    def public_key(self) -> Path:
        """The key for the server, with the node's name in it."""
        return self.path / f"{self.name}.pub"

    @property
    def log(self) -> Path:
        """What the node's processes say."""
        return self.path / "node.log"

    def check(self) -> None:
        """Raise unless the key is there and closed to others."""
        if not self.path.is_dir() or not self.private_key.exists():
            raise RunFolderError(f"{self.path} holds no node.key; make one with: fedgbo federation key {self.path}")
        check_private(self.private_key)


def make_node(path: Path) -> NodeFolder:
    """Make a node's folder with a new key pair in it."""
    require_flower()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    node = NodeFolder(path.absolute())
    if not _NAME.fullmatch(node.name):
        raise ConfigError(
            f"'{node.name}' cannot be a node's name; use up to 63 letters, digits, '-', '_' and '.', e.g. hospital-a"
        )
    for file in (node.private_key, node.public_key):
        if file.exists():
            raise RunFolderError(f"{file} is there already and is never overwritten; choose another name")
    private_folder(node.path)
    key = ec.generate_private_key(ec.SECP384R1())
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_new(node.private_key, secret)
    write_new(node.public_key, public + f" {node.name}\n".encode(), PUBLIC_FILE)
    return node


def read_public_key(path: Path) -> bytes:
    """Return a node's public key as the server wants it; raise if the file is not one."""
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
        raise ConfigError(f"{path} is no public key in OpenSSH's format: {error}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError(f"{path} must hold an ECDSA key, made with: fedgbo federation key NAME")
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
