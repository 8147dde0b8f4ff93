import importlib.util
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedgbo
from fedgbo import native
from fedgbo.core.optimiser import AffineStep
from fedgbo.core.random import permutation
from fedgbo.engines.batches import PURPOSE
from fedgbo.native import build, step_in_place
from tests.examples import AFFINE, OPTIMISERS

compiled = pytest.mark.skipif(native.library() is None, reason="there is no C code here")
PROGRAM = """
import torch
from torch import nn
from fedgbo import native
from fedgbo.engines.layers import accelerate
stock = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2))
x = torch.randn(2, 1, 8, 8)
assert torch.allclose(accelerate(stock)(x), stock(x), atol=1e-6)
gru, x = nn.GRU(2, 32), torch.randn(3, 2, 2)
assert torch.allclose(accelerate(gru)(x)[0], gru(x)[0], atol=1e-6)
print("native" if native.library() else "torch")
"""


def run(**environment):
    """Use a fresh process: the library is loaded once per process."""
    env = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def copied(folder):
    """Copy the native room alone, so that a test can change or build it."""
    target = folder / "native"
    shutil.copytree(build.HERE, target, ignore=shutil.ignore_patterns("built", "__pycache__"))
    spec = importlib.util.spec_from_file_location("copied_build", target / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_library_is_the_one_for_this_processor():
    found = native.library()
    if found is None:
        pytest.skip("no C compiler here")
    assert Path(found._name).parent == build.BUILT
    assert Path(found._name).stem in build.levels()
    assert found.fedgbo_lanes() in (4, 8, 16)


def test_each_level_is_tried_on_x86_only():
    assert list(build.levels("x86_64")) == ["avx512", "avx2", "portable"]
    assert list(build.levels("aarch64")) == ["portable"]


def test_without_a_compiler_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(build.BuildError, match="there is no C compiler"):
        build.build(tmp_path / "built")


def test_a_compiler_that_fails_is_named(tmp_path, monkeypatch):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CC", str(broken))
    with pytest.raises(build.BuildError, match=f"the C compiler {broken} does not work"):
        build.build(tmp_path / "built")
    assert list((tmp_path / "built").iterdir()) == []


@compiled
def test_an_error_in_the_c_code_is_shown(tmp_path):
    module = copied(tmp_path)
    for source in module.HERE.glob("*.c"):
        source.unlink()
    (module.HERE / "wrong.c").write_text("int f(void) { return nothing; }")
    with pytest.raises(module.BuildError, match="nothing"):
        module.build()


@compiled
def test_a_level_that_the_compiler_does_not_know_is_left_out(tmp_path, monkeypatch):
    module = copied(tmp_path)
    for source in module.HERE.glob("*.c"):
        if source.name != "levels.c":
            source.unlink()
    monkeypatch.setattr(module, "X86", {"future": ("-march=x86-64-v9",)})
    monkeypatch.setattr(module, "levels", lambda: {**module.X86, "portable": ()})
    assert [path.name for path in module.build()] == ["portable.so"]
    assert [path.name for path in module.BUILT.iterdir()] == ["portable.so"]


def test_a_change_of_the_c_code_changes_the_digest(tmp_path):
    module = copied(tmp_path)
    assert module.digest() == build.digest()
    (module.HERE / "step.c").write_text("/* changed */")
    assert module.digest() != build.digest()


@compiled
def test_code_that_was_changed_after_the_build_is_not_used(monkeypatch, caplog):
    monkeypatch.setattr(native, "digest", lambda: "another")
    assert native.library.__wrapped__() is None
    assert "the C code has changed since it was built" in caplog.text


def test_without_a_build_torch_does_the_work(monkeypatch, tmp_path):
    monkeypatch.setattr(native, "BUILT", tmp_path)
    assert native.library.__wrapped__() is None


def test_can_be_switched_off():
    assert run(**{native.SWITCH: "0"}) == "torch"


def walked(seed, t, client, samples, length):
    """Return the walk of the C code, or None where it refuses."""
    rows = np.full(length + 1, -1, np.int64)
    done = native.library().fedgbo_walk(seed, PURPOSE, t, client, samples, length, rows.ctypes.data)
    assert rows[-1] == -1  # nothing is written after the end
    return rows[:-1].tolist() if done else None


@compiled
@settings(deadline=None, max_examples=150)
@given(
    samples=st.one_of(st.integers(1, 70), st.integers(71, 3000)),
    laps=st.floats(0.01, 3.5),
    seed=st.integers(0, 2**64 - 1),
    t=st.integers(0, 2**40),
    client=st.integers(0, 2**33),
)
def test_a_walk_is_one_permutation_after_the_other(samples, laps, seed, t, client):
    length = max(1, int(samples * laps))
    orders = [permutation(samples, seed, "batches", t, client, lap) for lap in range(-(-length // samples))]
    expected = np.concatenate(orders)[:length].tolist()
    assert walked(seed, t, client, samples, length) == expected


@compiled
@pytest.mark.parametrize("samples", [1, 2, 31, 1023, 1024, 1025])  # 1024: from one way of sorting to the other
def test_walks_around_the_change_of_sorting(samples):
    orders = [permutation(samples, 5, "batches", 1, 2, lap) for lap in range(2)]
    assert walked(5, 1, 2, samples, 2 * samples) == np.concatenate(orders).tolist()


@compiled
def test_there_is_no_walk_through_no_samples():
    assert walked(1, 0, 0, samples=0, length=5) is None


@pytest.fixture(params=["native", "torch"])
def backend(request, monkeypatch):
    """The C code and, as without a compiler, torch's operations."""
    if request.param == "torch":
        monkeypatch.setattr(native, "library", lambda: None)
    elif native.library() is None:
        pytest.skip("no C compiler here")


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", AFFINE)
def test_a_step_in_place_is_the_optimisers_update(name, kind):
    optimiser, random = OPTIMISERS[name], torch.Generator().manual_seed(0)
    params, grad = torch.randn(2, 37, generator=random, dtype=kind)
    stats = {key: torch.rand(37, generator=random, dtype=kind) for key in optimiser.init(params)}
    stats = optimiser.anchor(stats, params)
    step = optimiser.fixed(stats).like(params)
    expected = optimiser.update(params, stats, grad)
    y = params.clone()
    step_in_place(step, y[:10], grad[:10])
    step_in_place(step, y[10:], grad[10:], begin=10)
    assert torch.allclose(y, expected, rtol=1e-5 if kind == torch.float32 else 1e-12)


class Shifted(fedgbo.SGD):
    """An offset that is a number."""

    def affine(self, stats):
        return 1.0, self.lr


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_an_offset_that_is_a_number(kind):
    y, grad = torch.ones(5, dtype=kind), torch.full((5,), 2.0, dtype=kind)
    step_in_place(Shifted(0.25).fixed({}).like(y), y, grad)
    assert y.tolist() == [-0.5] * 5
    assert Shifted(0.25).update(torch.ones(5), {}, torch.full((5,), 2.0)).tolist() == [-0.5] * 5


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_step_on_a_part_of_the_vector_in_the_shape_of_a_layer(dtype):
    numbers = torch.arange(20, dtype=dtype)
    grad = torch.full((2, 6), 3.0, dtype=dtype)
    for step, expected in (
        (AffineStep(numbers, numbers / 4), 1 - (numbers + numbers / 4 * 3)),
        (AffineStep(0.0, numbers / 4), 1 - numbers / 4 * 3),
        (AffineStep(numbers, 0.5), 1 - (numbers + 1.5)),
        (AffineStep(0.0, 0.5), torch.full_like(numbers, -0.5)),
    ):
        y = torch.ones(20, dtype=dtype)
        step_in_place(step, y[5:17].view(2, 6), grad, begin=5)
        assert torch.equal(y[5:17], expected[5:17])
        assert torch.equal(y[:5], torch.ones(5, dtype=dtype))
        assert torch.equal(y[17:], torch.ones(3, dtype=dtype))
