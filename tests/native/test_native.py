import os
import stat
import subprocess
import sys

import pytest

from fedgbo.engines.layers import native

PROGRAM = """
import torch
from torch import nn
from fedgbo.engines.layers import accelerate, native
stock = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2))
x = torch.randn(2, 1, 8, 8)
assert torch.allclose(accelerate(stock)(x), stock(x), atol=1e-6)
gru, x = nn.GRU(2, 32), torch.randn(3, 2, 2)
assert torch.allclose(accelerate(gru)(x)[0], gru(x)[0], atol=1e-6)
print("native" if native.library() else "torch")
"""


def run(**environment):
    """Run a fresh process, since the library is loaded once in a process."""
    env = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_builds_into_the_cache_once(tmp_path):
    if native.library() is None:
        pytest.skip("no C compiler here")
    assert run(XDG_CACHE_HOME=str(tmp_path)) == "native"
    (built,) = (tmp_path / "fedgbo").iterdir()
    first = built.stat().st_mtime_ns
    assert run(XDG_CACHE_HOME=str(tmp_path)) == "native"
    assert built.stat().st_mtime_ns == first


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    if native.library() is None:
        pytest.skip("no C compiler here")
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert run(XDG_CACHE_HOME=str(blocked), TMPDIR=str(tmp_path)) == "native"


def test_falls_back_without_a_compiler(tmp_path):
    assert run(PATH=str(tmp_path), CC="cc", XDG_CACHE_HOME=str(tmp_path)) == "torch"


def test_falls_back_when_the_compiler_fails(tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    assert run(CC=str(broken), XDG_CACHE_HOME=str(tmp_path)) == "torch"
    assert list((tmp_path / "fedgbo").glob("*")) == [] if (tmp_path / "fedgbo").exists() else True


def test_can_be_switched_off():
    assert run(**{native.SWITCH: "0"}) == "torch"
