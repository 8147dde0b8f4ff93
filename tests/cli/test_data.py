"""`fedgbo data` on small files in the public formats, and against a server on loopback."""

import hashlib
import json
import lzma
import pickle
import resource
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from typer.testing import CliRunner

from fedgbo.cli.main import app
from fedgbo.data.fetch import Source

from ..data.privileges import drop

runner = CliRunner()


def call(*args):
    return runner.invoke(app, [str(arg) for arg in args])


@pytest.fixture
def leaf(tmp_path):
    """LEAF's JSON of four FEMNIST writers, xz-compressed as people keep it."""
    rng = np.random.default_rng(0)
    for half, n in (("train", 12), ("test", 3)):
        data = {
            f"f{i:04}_{i:02}": {
                "x": (rng.integers(0, 256, (n, 784)) / 255).tolist(), "y": rng.integers(0, 62, n).tolist()
            }
            for i in range(4)
        }  # fmt: skip
        (tmp_path / "leaf" / half).mkdir(parents=True)
        content = {"users": list(data), "num_samples": [n] * 4, "user_data": data}
        file = tmp_path / "leaf" / half / f"all_data_0_niid_0_keep_0_{half}_8.json.xz"
        file.write_bytes(lzma.compress(json.dumps(content).encode()))
    return tmp_path / "leaf"


def test_prepare_then_info_then_run(leaf, tmp_path):
    done = call("data", "prepare", "femnist", "--from", leaf, "--data", tmp_path / "home")
    assert done.exit_code == 0, done.stderr
    assert "format leaf: 4 clients, 48 training and 12 test samples; " in done.stderr
    assert done.stdout.strip() == str(tmp_path / "home" / "femnist")
    about = json.loads(call("data", "info", "femnist", "--data", tmp_path / "home", "--json").stdout)
    assert (about["clients"], about["train_samples"], about["test_samples"]) == (4, 48, 12)
    toml = tmp_path / "run.toml"
    toml.write_text(f'rounds = 1\nlocal_steps = 1\n[task]\nname = "femnist"\ndata = "{tmp_path / "home"}"\n')
    run = call("run", toml, "--preset", "none", "--lr", 0.1, "--beta", 0.9, "--out", tmp_path / "run", "--json")
    assert json.loads(run.stdout)["rounds"] == 1


def test_the_data_folder_is_a_variable_too(leaf, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGBO_DATA", str(tmp_path / "elsewhere"))
    assert call("data", "prepare", "femnist", "--from", leaf).stdout.strip() == str(tmp_path / "elsewhere" / "femnist")


@pytest.mark.parametrize("task", ["digits", "cifar100-synthetic", "sent140-synthetic", "shakespeare-synthetic"])
def test_info_shows_clients_skew_and_samples(task, tmp_path):
    done = call("data", "info", task, "--picture", tmp_path / "skew")
    assert done.exit_code == 0, done.stderr
    assert f"{task}: " in done.stdout
    assert "labels of some clients" in done.stdout
    assert "some training samples" in done.stdout
    assert "▀" in done.stdout or "->" in done.stdout
    assert (tmp_path / "skew.png").read_bytes().startswith(b"\x89PNG")


def test_info_compares_memory():
    about = json.loads(call("data", "info", "shakespeare-synthetic", "--memory", "--json").stdout)
    assert about["memory_ratio"] > 50


def test_what_goes_wrong(tmp_path):
    def failed(*args):
        done = call(*args)
        assert done.exit_code != 0
        assert "Traceback" not in done.stderr
        return done.stderr

    home = ["--data", tmp_path / "home"]
    assert "unknown task with public files 'femnis'; did you mean 'femnist'" in failed(
        "data", "prepare", "femnis", "--from", tmp_path, *home
    )
    assert "fedgbo data fetch femnist" in failed("data", "prepare", "femnist", "--from", tmp_path / "none", *home)
    assert "fedgbo data prepare cifar100 --from PATH" in failed("data", "info", "cifar100", *home)
    for half in ("train", "test"):
        (tmp_path / "x" / half).mkdir(parents=True)
        (tmp_path / "x" / half / "empty.json").touch()
    prepare = ["data", "prepare", "femnist", "--from", tmp_path / "x", *home]
    assert "empty.json" in failed(*prepare)
    assert "femnist takes no --seed" in failed(*prepare, "--seed", 1)
    assert not (tmp_path / "home").exists()


def test_a_malicious_pickle_is_refused_and_nothing_is_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    (tmp_path / "cifar").mkdir()
    for name in ("train", "test", "meta"):
        (tmp_path / "cifar" / name).write_bytes(pickle.dumps({"data": Evil()}))
    done = call("data", "prepare", "cifar100", "--from", tmp_path / "cifar", "--data", tmp_path / "home")
    assert done.exit_code == 3
    assert "refused, and nothing was run" in done.stderr
    assert not (tmp_path / "owned").exists()
    assert not (tmp_path / "home").exists()


def test_fetch_downloads_and_says_how_to_go_on(tmp_path, monkeypatch):
    content = b"the complete works" * 1000

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/100.txt"
        digest = hashlib.sha256(content).hexdigest()
        public = Source(name="gutenberg", urls=(url,), file="100.txt", sha256=digest, size=len(content))
        monkeypatch.setattr("fedgbo.cli.data.public_sources", lambda task, name: [public])
        done = call("data", "fetch", "shakespeare", "--data", tmp_path)
    finally:
        server.shutdown()
    file = tmp_path / "downloads" / "shakespeare" / "100.txt"
    assert done.exit_code == 0, done.stderr
    assert file.read_bytes() == content
    assert f"fedgbo data prepare shakespeare --from {file}" in " ".join(done.stderr.split())


def test_fetch_from_another_address(tmp_path, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    contents = {f"/mirror/{name}": name.encode() * 100 for name in ("a.gz", "b.gz")}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            content = contents.get(self.path, b"")
            self.send_response(200 if content else 404)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args):
            pass

    public = [
        Source("idx", ("http://127.0.0.1:9/x",), path.rsplit("/", 1)[1], md5=hashlib.md5(content).hexdigest())
        for path, content in contents.items()
    ]
    monkeypatch.setattr("fedgbo.cli.data.public_sources", lambda task, name: public)
    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/mirror/"
        done = call("data", "fetch", "fashion-mnist", "--url", url, "--data", tmp_path)
    finally:
        server.shutdown()
    folder = tmp_path / "downloads" / "fashion-mnist"
    assert done.exit_code == 0, done.stderr
    assert done.stdout.split() == [str(folder / "a.gz"), str(folder / "b.gz")]
    assert f"fedgbo data prepare fashion-mnist --from {folder}" in " ".join(done.stderr.split())
    bad = call("data", "fetch", "fashion-mnist", "--url", "file:///etc/passwd", "--data", tmp_path)
    assert bad.exit_code == 2
    assert "'file:///etc/passwd' is not an http or https address" in bad.stderr


def test_prepare_says_what_it_left_out_and_info_remembers_it(leaf, tmp_path):
    (test,) = (leaf / "test").iterdir()
    content = json.loads(lzma.decompress(test.read_bytes()))
    del content["user_data"]["f0003_03"]
    content["users"].remove("f0003_03")
    for user in content["user_data"].values():
        user["y"] = [7] * len(user["y"])
    test.write_bytes(lzma.compress(json.dumps(content).encode()))
    prepare = ["data", "prepare", "femnist", "--from", leaf, "--data", tmp_path / "home"]
    done = call(*prepare)
    assert done.exit_code == 3
    assert "user 'f0003_03' has train samples but no test samples (1 such users)" in done.stderr
    assert "--drop-incomplete" in done.stderr
    done = call(*prepare, "--drop-incomplete", "--min-samples", 3)
    assert done.exit_code == 0, done.stderr
    left = "left out: 1 users without train or test samples (12 samples)"
    warning = "warning: all 9 test samples have the label 7"
    assert left in done.stderr
    assert warning in done.stderr
    info = call("data", "info", "femnist", "--data", tmp_path / "home", "--verify").stdout
    assert left in info
    assert warning in info
    assert "packed from: leaf, digest " in info
    assert "all checksums are right" in info
    digest = json.loads(call("data", "info", "femnist", "--data", tmp_path / "home", "--json").stdout)["digest"]
    assert digest in info
    assert call(*prepare, "-t", "user").exit_code == 3
    assert "leave out -t user" in call(*prepare, "-t", "user").stderr


def test_verify_finds_a_changed_byte(leaf, tmp_path):
    call("data", "prepare", "femnist", "--from", leaf, "--data", tmp_path / "home")
    file = tmp_path / "home" / "femnist" / "packed.bin"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert call("data", "info", "femnist", "--data", tmp_path / "home").exit_code == 0
    done = call("data", "info", "femnist", "--data", tmp_path / "home", "--verify")
    assert done.exit_code == 3
    assert "does not match its checksum; pack the data again" in done.stderr
    done = call("data", "info", "digits", "--verify")
    assert done.exit_code == 2
    assert "digits has no packed data to verify" in done.stderr


def test_options_that_a_task_does_not_take(tmp_path):
    prepare = ["data", "prepare", "fashion-mnist", "--from", tmp_path]
    for option, name in ((["--seed", 1], "--seed"), (["-t", "user"], "--min-samples, --drop-incomplete or -t")):
        done = call(*prepare, *option)
        assert done.exit_code == 2
        assert f"fashion-mnist takes no {name}" in done.stderr
    assert call(*prepare, "--format", "zip").exit_code == 2
    assert call("data", "prepare", "femnist", "--from", tmp_path, "--min-samples", 0).exit_code == 2


def test_disks_that_do_not_do_end_with_4(leaf, tmp_path):
    (tmp_path / "file").write_text("x")
    done = call("data", "prepare", "femnist", "--from", leaf, "--data", tmp_path / "file")
    assert done.exit_code == 4
    assert "Not a directory; check the permissions and the free space" in done.stderr
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        done = call("data", "prepare", "femnist", "--from", leaf, "--data", tmp_path / "home")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert done.exit_code == 4
    assert "File too large" in done.stderr
    assert "damaged" not in done.stderr


def test_missing_permissions_end_with_4(leaf, tmp_path):
    (tmp_path / "home").mkdir(mode=0o500)
    prepare = ["-m", "fedgbo", "data", "prepare", "femnist", "--from", leaf, "--data", tmp_path / "home"]
    command = [sys.executable, *map(str, prepare)]
    done = subprocess.run(command, preexec_fn=drop, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert "Permission denied" in done.stderr
    (leaf / "train").chmod(0)
    done = subprocess.run(command, preexec_fn=drop, capture_output=True, text=True, check=False)
    (leaf / "train").chmod(0o700)
    assert done.returncode == 4
    assert f"cannot read {leaf / 'train'}: Permission denied" in done.stderr
