import json
import subprocess
import sys

import numpy as np
import pytest

from fedgbo.bench import peers
from fedgbo.bench.peers import PEERS, Peer, check_peer, measure_peer
from fedgbo.bench.race import BenchError
from fedgbo.core.errors import ConfigError, MissingExtraError


@pytest.mark.parametrize(("framework", "install"), [("flower", "flwr[simulation]"), ("fedjax", "pip install fedjax")])
def test_a_framework_that_is_not_there_says_what_to_install(framework, install, monkeypatch):
    monkeypatch.setitem(PEERS, framework, "a_module_that_nobody_has")
    with pytest.raises(MissingExtraError, match=f"{framework} is not installed.*pip install") as error:
        check_peer(framework)
    assert install in str(error.value)


def test_a_framework_may_live_in_another_environment(tmp_path):
    with pytest.raises(ConfigError, match="nopython, given for fedjax, cannot be run: No such file"):
        check_peer("fedjax", str(tmp_path / "nopython"))
    python = tmp_path / "python"  # of an environment that has everything
    python.write_text("#!/bin/sh\nexit 0\n")
    python.chmod(0o755)
    check_peer("fedjax", str(python))


def test_fedjax_gets_the_model_and_the_data_in_files(tmp_path):
    settings, arrays = tmp_path / "settings.json", tmp_path / "arrays.npz"
    peers._write_stack("small-cnn", 2.0, settings, arrays)
    told, loop = json.loads(settings.read_text()), peers.loop_of("small-cnn")
    kinds = ["Conv2d", "ReLU", "MaxPool2d", "Flatten", "Linear", "ReLU", "Linear"]
    assert [layer["kind"] for layer in told["layers"]] == kinds
    assert told["layers"][0] == {"kind": "Conv2d", "stride": 1, "padding": 1}
    assert {told[name] for name in ("cohort", "local_steps", "batch_size")} == {10}
    with np.load(arrays) as found:
        assert found["inputs"].shape == (2000, 1, 8, 8)
        assert np.array_equal(found["6.weight"], loop.model[6].weight.detach())
        assert found["offsets"][-1] == len(found["targets"]) == 2000
    with pytest.raises(BenchError, match="the bench does not have lstm for fedjax"):
        peers._write_stack("lstm", 2.0, settings, arrays)


def test_unknown_names_are_refused():
    with pytest.raises(ConfigError, match="unknown framework 'flwr'"):
        check_peer("flwr")


def test_looking_at_peers_imports_no_framework():
    code = "import sys, fedgbo.bench.peers; print([m for m in ('flwr', 'ray', 'pfl') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_rate_is_steps_by_seconds(tmp_path):
    answer = tmp_path / "answer.json"
    answer.write_text(json.dumps({"rounds": 4, "steps": 200, "seconds": 2.5}))
    assert peers._read("pfl", "cifar100", answer) == Peer("pfl", "cifar100", 80.0, "(4 rounds in 2.5 s)")


def test_a_framework_without_an_answer_is_told(tmp_path):
    with pytest.raises(BenchError, match="pfl ended without an answer"):
        peers._read("pfl", "cifar100", tmp_path / "answer.json")


@pytest.fixture
def broken_flower(tmp_path, monkeypatch):
    """A module that is called flwr and is not Flower, for the process that measures."""
    (tmp_path / "flwr.py").write_text("raise RuntimeError('this is not Flower')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path), *filter(None, sys.path)]))


@pytest.mark.usefixtures("broken_flower")
def test_a_framework_that_fails_is_told_with_the_end_of_its_log():
    with pytest.raises(BenchError, match=r"(?s)flower failed with exit code 1.*this is not Flower"):
        measure_peer("flower", "sent140", 0.1)


@pytest.mark.usefixtures("broken_flower")
def test_a_framework_that_hangs_is_ended(tmp_path, monkeypatch):
    (tmp_path / "flwr.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(peers, "PATIENCE", 4.0)
    with pytest.raises(BenchError, match="flower did not end within 4 s"):
        measure_peer("flower", "sent140", 0.1)


@pytest.mark.usefixtures("broken_flower")
def test_an_answer_counts_though_the_framework_ends_badly(tmp_path):
    answer = '{"rounds": 4, "steps": 200, "seconds": 2.5}'
    lines = ["import os, pathlib, sys", f"pathlib.Path(sys.argv[-1]).write_text({answer!r})", "os.abort()"]
    (tmp_path / "flwr.py").write_text("\n".join(lines) + "\n")
    assert measure_peer("flower", "sent140", 0.1) == Peer("flower", "sent140", 80.0, "(4 rounds in 2.5 s)")
