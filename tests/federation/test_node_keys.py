import stat
import subprocess

import pytest

from fedgbo.core.errors import ConfigError, RunFolderError
from fedgbo.federation.credentials import NodeFolder, make_node, read_public_key, write_new


def test_a_key_pair_as_flower_wants_it(tmp_path):
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, uses_nist_ec_curve

    node = make_node(tmp_path / "hospital-a")
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in node.path.iterdir()} == {
        "node.key": 0o600,
        "hospital-a.pub": 0o644,
    }
    assert stat.S_IMODE(node.path.stat().st_mode) == 0o700
    private = load_ssh_private_key(node.private_key.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    public = bytes_to_public_key(read_public_key(node.public_key))
    assert uses_nist_ec_curve(public)
    assert public == private.public_key()
    assert node.public_key.read_text().endswith(" hospital-a\n")


def test_keys_are_never_overwritten_whatever_the_umask(tmp_path):
    node = make_node(tmp_path / "a")
    before = node.private_key.read_bytes()
    with pytest.raises(RunFolderError, match=r"node\.key already exists and will not be overwritten"):
        make_node(tmp_path / "a")
    with pytest.raises(RunFolderError, match="will not be overwritten"):
        write_new(node.private_key, b"other")
    assert node.private_key.read_bytes() == before


def test_no_new_private_key_beside_an_old_public_one(tmp_path):
    node = make_node(tmp_path / "a")
    node.private_key.unlink()
    with pytest.raises(RunFolderError, match=r"a\.pub already exists"):
        make_node(tmp_path / "a")
    assert not node.private_key.exists()


def test_a_wide_umask_opens_nothing(tmp_path):
    program = "import os, sys, pathlib; os.umask(0); from fedgbo.federation.credentials import *; "
    program += "write_new(private_folder(pathlib.Path(sys.argv[1])) / 'k', b'x')"
    import sys

    subprocess.run([sys.executable, "-c", program, str(tmp_path / "d")], check=True)
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "d" / "k").stat().st_mode) == 0o600


def test_a_private_key_is_not_taken_for_a_public_one(tmp_path):
    node = make_node(tmp_path / "a")
    with pytest.raises(ConfigError, match="is a private key, which must stay where it was made"):
        read_public_key(node.private_key)
    (tmp_path / "x.pub").write_text("nonsense")
    with pytest.raises(ConfigError, match=r"x\.pub is not a public key in OpenSSH format"):
        read_public_key(tmp_path / "x.pub")
    with pytest.raises(ConfigError, match=r"there is no public key .*none\.pub"):
        read_public_key(tmp_path / "none.pub")


def test_another_kind_of_key(tmp_path):
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    key = ed25519.Ed25519PrivateKey.generate().public_key()
    text = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (tmp_path / "e.pub").write_bytes(text)
    with pytest.raises(ConfigError, match="must hold an ECDSA key"):
        read_public_key(tmp_path / "e.pub")


@pytest.mark.parametrize("name", ["a b", "-a", "x" * 64, "ö"])
def test_names_are_checked(tmp_path, name):
    with pytest.raises(ConfigError, match="cannot be a node's name"):
        make_node(tmp_path / name)


def test_a_node_without_a_key_or_with_an_open_one(tmp_path):
    with pytest.raises(RunFolderError, match=r"has no node\.key; make one with: fedgbo federation key"):
        NodeFolder(tmp_path).check()
    node = make_node(tmp_path / "a")
    node.private_key.chmod(0o640)
    with pytest.raises(RunFolderError, match="others may read"):
        node.check()
