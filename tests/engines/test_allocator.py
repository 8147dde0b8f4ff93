import ctypes
import subprocess
import sys

from fedgbo.engines import allocator

PROGRAM = """
import resource, sys, threading, torch
from fedgbo.engines.allocator import keep_freed_memory
torch.set_num_threads(1)
kept = keep_freed_memory() if sys.argv[1] == "keep" else False
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def work():
    for _ in range(20): torch.ones(12_000_000)
    before = faults()
    for _ in range(5): torch.ones(12_000_000)
    print(int(kept), faults() - before)
work()
thread = threading.Thread(target=work); thread.start(); thread.join()
"""


def run(how):
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True, timeout=100)
    return [tuple(int(word) for word in line.split()) for line in done.stdout.splitlines()]


def test_freed_blocks_are_reused_in_all_threads():
    kept = run("keep")
    if kept[0][0]:  # glibc: 48 MB are 11,719 pages
        assert all(faults < 1000 for _, faults in kept)
        assert all(faults > 10_000 for _, faults in run("leave"))


def test_does_nothing_without_glibc(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert allocator.keep_freed_memory() is False

    def missing(name):
        raise OSError("no C library")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert allocator.keep_freed_memory() is False
