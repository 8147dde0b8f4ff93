import ctypes
import json
import subprocess
import sys

import pytest
import torch

import fedgbo
from fedgbo.engines.device import device_of, keep_freed_memory
from tests.conftest import make_task
from tests.engines.teams import ROOT, environment

SECOND = {"local_rank": 1, "local_size": 2}  # of two processes on one machine


@pytest.fixture
def gpus(monkeypatch):
    """Two GPUs, as far as names go."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.usefixtures("gpus")
def test_names():
    assert device_of("cpu") == torch.device("cpu")
    assert device_of("cuda") == device_of("auto") == device_of("cuda:0") == torch.device("cuda:0")
    assert device_of("cuda:1") == torch.device("cuda:1")
    assert device_of("cuda", **SECOND) == torch.device("cuda:1")


@pytest.mark.usefixtures("gpus")
def test_what_is_not_there():
    with pytest.raises(fedgbo.ConfigError, match="no device cuda:2 here: torch sees cpu, cuda:0, cuda:1; give one of"):
        device_of("cuda:2")
    with pytest.raises(fedgbo.ConfigError, match="cuda:1 would be shared by 2 processes of this machine; give cuda"):
        device_of("cuda:1", **SECOND)
    with pytest.raises(fedgbo.ConfigError, match="must be cpu, cuda, cuda:<number>, mps or auto, not 'gpu'"):
        device_of("gpu")


def test_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of("auto") == torch.device("cpu")
    with pytest.raises(fedgbo.ConfigError, match="torch sees cpu and no GPU; give one of these, or auto"):
        fedgbo.run(make_task(), fedgbo.FedAvg(fedgbo.SGD(0.1)), rounds=1, device="cuda")
    with pytest.raises(fedgbo.ConfigError, match="start no more processes than there are GPUs"):
        device_of("cuda", **SECOND)


def test_another_device_gives_the_same_and_nothing_is_left_on_the_cpu(tmp_path):
    """In a process of its own, for a device cannot be taken back."""
    program = [sys.executable, "-m", "tests.engines.pretend_device", tmp_path]
    subprocess.run(program, cwd=ROOT, env=environment(), check=True)
    results = json.loads((tmp_path / "results.json").read_text())
    assert "two devices" in results.pop("mixed")  # the device does notice
    there, here = results.pop("drift")
    assert there == pytest.approx(here, rel=1e-4)
    assert here["error"] > 0
    assert len(results) == 8
    for there in results.values():
        assert there["devices"] == ["pretend:0"]
        assert there["result"] == "cpu"
        assert there["error"] < 1e-4  # the C loops of the CPU round differently
        assert there["accuracies"][0] == there["accuracies"][1]


PROGRAM = """
import resource, threading, torch
from fedgbo.engines.device import keep_freed_memory
torch.set_num_threads(1)
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def work():
    for _ in range(10): torch.ones(12_000_000)
    before = faults()
    for _ in range(5): torch.ones(12_000_000)
    print(faults() - before)
def in_both_threads():
    work()
    thread = threading.Thread(target=work); thread.start(); thread.join()
in_both_threads()
if keep_freed_memory(): in_both_threads()
"""


def test_freed_blocks_are_reused_in_all_threads():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=100)
    before, kept = (counts := [int(line) for line in done.stdout.splitlines()])[:2], counts[2:]
    if kept:  # glibc: 48 MB are 11,719 pages
        assert all(count > 10_000 for count in before)
        assert all(count < 1000 for count in kept)


def test_does_nothing_without_glibc(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert keep_freed_memory() is False

    def missing(name):
        raise OSError("no C library")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert keep_freed_memory() is False
