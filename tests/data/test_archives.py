import bz2
import gzip
import io
import lzma
import tarfile
import zipfile

import pytest

from fedgbo.core.errors import DataError
from fedgbo.data.archives import source_files

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
    [("a.txt", bytes), ("a.txt.xz", lzma.compress), ("a.txt.gz", gzip.compress), ("a.txt.bz2", bz2.compress)],
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
