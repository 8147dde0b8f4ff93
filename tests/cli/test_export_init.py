"""`fedgbo export` and `fedgbo init`: files that other programs read, and a project that runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from safetensors.torch import load_file
from typer.testing import CliRunner

import fedgbo
from fedgbo.cli.main import app
from fedgbo.reports.palette import INK, STRONG


def call(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("export") / "run"
    assert call("run", "--rounds", 2, "--quiet", "--keep-best", "--out", out).exit_code == 0
    return out


def test_a_state_dict_with_the_names_of_the_layers(run, tmp_path):
    told = call("export", run)
    assert told.exit_code == 0, told.stderr
    assert told.stdout.startswith(f"wrote {run / 'model.safetensors'}: ")
    assert told.stdout.endswith("parameters after round 2\n")
    model = fedgbo.load(run).model()
    tensors = load_file(run / "model.safetensors")
    assert tensors.keys() == model.state_dict().keys()
    assert all(tensors[name].equal(value) for name, value in model.state_dict().items())
    assert call("export", run, "--best", "-o", tmp_path / "best.safetensors").exit_code == 0


def test_onnx_computes_what_the_model_computes(run, tmp_path):
    file = tmp_path / "model.onnx"
    told = call("export", run, "-o", file)
    assert told.exit_code == 0, told.stderr
    result = fedgbo.load(run)
    model = result.model()
    inputs = result.task.data.test.batch(np.arange(5))[0]  # another number of samples than in the export
    with torch.no_grad():
        expected = model(inputs).numpy()
    onnx.checker.check_model(str(file))
    program = ReferenceEvaluator(str(file))
    (outputs,) = program.run(None, {program.input_names[0]: inputs.numpy()})
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_exported(run, tmp_path, monkeypatch):
    wrong = call("export", run, "-o", tmp_path / "model.pt")
    assert (wrong.exit_code, "must end in .safetensors or .onnx" in wrong.stderr) == (2, True)
    assert call("export", tmp_path / "nothing").exit_code == 4
    monkeypatch.setitem(sys.modules, "onnxscript", None)  # as if it were not installed
    missing = call("export", run, "-o", tmp_path / "model.onnx")
    assert missing.exit_code == 2
    assert "an ONNX file needs onnx and onnxscript: pip install 'fedgbo[onnx]'" in missing.stderr


class Branching(torch.nn.Module):
    """A model whose graph depends on its data."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


def test_a_model_that_onnx_cannot_express(tmp_path, capfd):
    """The message has the reason, not torch's advice, and nothing else is printed."""
    x = np.ones((4, 3), dtype="float32")
    data = fedgbo.FederatedData.from_clients(train=[(x, [0, 1, 0, 1])], test=(x, [0, 1, 0, 1]))
    result = fedgbo.run(fedgbo.Task("t", data, Branching), fedgbo.FedAvg(fedgbo.SGD(lr=0.1)), rounds=1)
    with pytest.raises(fedgbo.ConfigError, match=r"cannot write this model as ONNX: Could not guard on data-dependent"):
        result.save(tmp_path / "model.onnx")
    assert capfd.readouterr() == ("", "")


def test_a_new_project_runs_as_it_stands(tmp_path, monkeypatch):
    project = tmp_path / "mine"
    made = call("init", project)
    assert made.exit_code == 0
    assert made.stdout.endswith(f"next: cd {project} && fedgbo run run.toml\n")
    monkeypatch.chdir(project)
    assert call("run", "run.toml", "--quiet", "--out", "runs/first").exit_code == 0
    result = fedgbo.load("runs/first")
    assert result.accuracy > 0.6
    compared = call("experiment", "compare.toml", "--scale", 0.1, "--jobs", 1, "--quiet")
    assert compared.exit_code == 0, compared.stderr
    assert re.search(r"^fedgbo-sgdm \(lr=0\.[13]\) .*FedAvg's best accuracy", compared.stdout, re.MULTILINE)
    picture = Path("runs/compare-scale0.1.svg").read_text()  # the same as that of `fedgbo compare`
    assert "FedAvg&#39;s best: " in picture or "FedAvg's best: " in picture
    assert "Rounds to " in picture
    strokes = set(re.findall(r'stroke="(#[0-9a-f]{6})" stroke-width="([\d.]+)"', picture))
    assert {(STRONG, "3.2"), (INK, "2.2")} <= strokes
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], capture_output=True, text=True
    )
    assert "2 passed" in tests.stdout, tests.stdout
    again = call("init", project)
    assert again.exit_code == 4
    assert "has a README.md already" in again.stderr


def test_a_best_model_that_was_not_kept(tmp_path):
    assert call("run", "--rounds", 1, "--quiet", "--out", tmp_path / "run").exit_code == 0
    lost = call("export", tmp_path / "run", "--best")
    assert lost.exit_code == 2
    assert "did not keep the model of its best evaluation; repeat the run with --keep-best" in lost.stderr
