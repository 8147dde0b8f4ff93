import bz2
import gzip
import io
import lzma
import resource
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedgbo.core.errors import DataError, FedGBOError, RunFolderError
from fedgbo.data import archives
from fedgbo.data.archives import source_files

from .privileges import without_privileges

TEXT = b"some bytes, more than one, " * 1000


def read(path):
    found = {}
    for source in source_files(path):
        with source.open() as stream:
            found[source.name] = stream.read()
    return found


def tar(path, members, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("a.txt", bytes),
        ("a.txt.xz", lzma.compress),
        ("a.txt.lzma", lambda text: lzma.compress(text, lzma.FORMAT_ALONE)),
        ("a.txt.gz", gzip.compress),
        ("a.txt.bz2", bz2.compress),
    ],
)
def test_compressed_files_are_read_as_they_are(tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack(TEXT))
    assert read(tmp_path / name) == {"a.txt": TEXT}


def test_compression_is_seen_from_the_content_not_the_name(tmp_path):
    (tmp_path / "a.json").write_bytes(gzip.compress(TEXT))
    assert read(tmp_path / "a.json") == {"a.json": TEXT}


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz", "w:bz2"])
def test_tar_members(tmp_path, mode):
    tar(tmp_path / "x.tar", {"d/b": b"bb", "d/a.json.xz": lzma.compress(TEXT), "d/._a": b"junk"}, mode)
    assert read(tmp_path / "x.tar") == {"d/b": b"bb", "d/a.json": TEXT}


def test_zip_members(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("d")
        archive.writestr("d/a", TEXT)
        archive.writestr("__MACOSX/d/a", b"junk")
    assert read(tmp_path / "x.zip") == {"d/a": TEXT}


def test_folder_with_everything(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "b.json").write_bytes(b"1")
    (tmp_path / ".hidden").write_bytes(b"0")
    packed = lzma.compress(TEXT)
    for k, start in enumerate(range(0, len(packed), 10)):
        (tmp_path / f"big.xz.part-{k}").write_bytes(packed[start : start + 10])
    assert len(list(tmp_path.glob("big*"))) > 10  # so that the numbers' order is not the names'
    tar(tmp_path / "more.tgz", {"c": b"2"})
    assert read(tmp_path) == {"train/b.json": b"1", "big": TEXT, "c": b"2"}


def test_seekable_reading(tmp_path):
    tar(tmp_path / "x.tgz", {"a": TEXT})
    (tmp_path / "plain").write_bytes(TEXT)
    for source in source_files(tmp_path):
        with source.open_seekable() as file:
            file.seek(-10, io.SEEK_END)
            assert file.read() == TEXT[-10:]


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/etc/evil", "..\\evil", "C:\\evil"])
def test_unsafe_names_are_refused(tmp_path, name):
    tar(tmp_path / "x.tgz", {"good": b"1", name: b"2"})
    with zipfile.ZipFile(tmp_path / "y.zip", "w") as archive:
        archive.writestr(name, b"2")
    for path in (tmp_path / "x.tgz", tmp_path / "y.zip"):
        with pytest.raises(DataError, match=r"has a member named .*evil.*outside the archive") as caught:
            source_files(path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("pack", [lzma.compress, gzip.compress, bz2.compress])
def test_truncated_file_is_named(tmp_path, pack):
    path = tmp_path / "a.json.z"
    path.write_bytes(pack(TEXT)[:-12])
    with pytest.raises(DataError, match=r"a\.json\.z cannot be read: damaged or cut short"):
        read(path)


def test_damaged_archives_are_named(tmp_path):
    tar(tmp_path / "x.tgz", {"a": TEXT})
    (tmp_path / "x.tgz").write_bytes((tmp_path / "x.tgz").read_bytes()[:60])
    with pytest.raises(DataError, match=r"x\.tgz cannot be read"):
        source_files(tmp_path)
    with zipfile.ZipFile(tmp_path / "y.zip", "w") as archive:
        archive.writestr("a", TEXT)
    (tmp_path / "y.zip").write_bytes((tmp_path / "y.zip").read_bytes().replace(b"more", b"less", 1))
    with pytest.raises(DataError, match=r"a in .*y\.zip cannot be read"):
        read(tmp_path / "y.zip")


def test_missing_path(tmp_path):
    with pytest.raises(DataError, match=r"nowhere does not exist; give a file, an archive or a folder"):
        source_files(tmp_path / "nowhere")


def test_a_device_is_no_file():
    with pytest.raises(DataError, match=r"/dev/zero is neither a file nor a folder"):
        source_files(Path("/dev/zero"))


@pytest.mark.parametrize("pack", [bytes, lzma.compress, gzip.compress, bz2.compress])
def test_more_bytes_than_the_limit_are_refused(tmp_path, pack):
    (tmp_path / "a").write_bytes(pack(bytes(4 << 20)))
    (source,) = source_files(tmp_path)
    with source.open(4 << 20) as stream:
        assert len(stream.read()) == 4 << 20
    with (
        pytest.raises(DataError, match=r"a has more than 3 MiB after decompression; refused"),
        source.open(3 << 20) as stream,
    ):
        stream.read()


@pytest.mark.parametrize("name", ["x.tgz", "x.zip"])
def test_bombs_in_archives_are_refused(tmp_path, name, monkeypatch):
    monkeypatch.setattr(archives, "LIMIT", 1 << 20)
    if name == "x.zip":
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a", bytes(3 << 20))
    else:
        tar(tmp_path / name, {"a": bytes(3 << 20), "b": b""})
    with pytest.raises(DataError, match=r"has more than 1 MiB after decompression"):
        read(tmp_path / name)


def test_too_many_members_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MOST_MEMBERS", 2)
    tar(tmp_path / "x.tgz", {"a": b"", "b": b"", "c": b""})
    with pytest.raises(DataError, match=r"x\.tgz has more than 2 members"):
        source_files(tmp_path)


def test_links_in_archives_are_left_out(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for name, kind in (("soft", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE), ("pipe", tarfile.FIFOTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    with zipfile.ZipFile(tmp_path / "y.zip", "w") as archive:
        info = zipfile.ZipInfo("soft")
        info.create_system, info.external_attr = 3, 0o120777 << 16
        archive.writestr(info, "/etc/passwd")
    assert read(tmp_path) == {}


def test_a_full_disk_is_not_called_damage(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(TEXT * 10))
    (source,) = source_files(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        match = r"cannot unpack .*a\.gz into .*TMPDIR\): File too large"
        with pytest.raises(RunFolderError, match=match), source.open_seekable():
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_missing_permissions_are_not_called_damage(tmp_path):
    (tmp_path / "closed").mkdir()
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "a").write_text("x")
    (tmp_path / "closed").chmod(0)
    (tmp_path / "open" / "a").chmod(0)
    program = (
        "import sys; from pathlib import Path; from fedgbo.core import RunFolderError; "
        "from fedgbo.data.archives import source_files\n"
        "for path in sys.argv[1:]:\n"
        "  try: source_files(Path(path))\n"
        "  except RunFolderError as error: print(error)"
    )
    said = without_privileges(program, tmp_path / "open", tmp_path / "closed", tmp_path).splitlines()
    assert [line.split(";")[0] for line in said] == [
        f"cannot read {tmp_path}/open/a: Permission denied",
        f"cannot read {tmp_path}/closed: Permission denied",
        f"cannot read {tmp_path}/closed: Permission denied",
    ]


@pytest.mark.parametrize("kind", ["tgz", "tar", "zip", "xz", "gz", "bz2", "lzma"])
def test_any_damage_is_our_own_error(tmp_path, kind):
    """Flip and cut bytes at random; whatever is still readable is read, everything else is our own error."""
    path, rng = tmp_path / f"x.{kind}", np.random.default_rng(0)
    members = {"d/a.json": TEXT[:3000], "d/b": b"bb"}
    if kind in ("tgz", "tar"):
        tar(path, members, "w:gz" if kind == "tgz" else "w")
    elif kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members.items():
                archive.writestr(name, data)
    else:
        path.write_bytes({"xz": lzma.compress, "gz": gzip.compress, "bz2": bz2.compress, "lzma": alone}[kind](TEXT))
    content, refused = path.read_bytes(), 0
    for _ in range(100):
        damaged = bytearray(content[: rng.integers(1, len(content) + 1)] if rng.random() < 0.3 else content)
        for at in rng.integers(0, len(damaged), rng.integers(1, 4)):
            damaged[at] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            read(path)
        except FedGBOError:
            refused += 1
    assert refused > 5  # a plain tar has no checksum of its contents


def alone(text):
    return lzma.compress(text, lzma.FORMAT_ALONE)
