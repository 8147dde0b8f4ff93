"""Results: how they are shown, tabulated, drawn, pickled and loaded."""

import copy
import pickle
import subprocess
import sys

import pandas
import pytest
import torch
from torch.nn import functional
from typer.testing import CliRunner

import fedgbo
from fedgbo.cli.main import app
from fedgbo.runs.result import rows_of
from tests.conftest import make_task

GBO = fedgbo.FedGBO(fedgbo.SGDm(lr=0.3, beta=0.9))


@pytest.fixture
def result(task):
    return fedgbo.run(task, GBO, rounds=4, eval_every=2)


def test_a_result_is_shown_in_a_line(result, task):
    last, best = result.history[-1], result.best
    assert repr(result) == (
        f"Result(fedgbo-sgdm on small: test accuracy {last.accuracy:.2%}, best {best.accuracy:.2%} at round "
        f"{best.round}, after 4 rounds; 26 parameters, finished)"
    )
    assert (
        repr(fedgbo.Result(task, fedgbo.State(torch.zeros(3)), []))
        == "Result(not evaluated yet; 3 parameters, finished)"
    )


def regression():
    x = torch.arange(12.0).reshape(6, 2) / 12
    data = fedgbo.FederatedData.from_clients(train=[(x, x), (x, x)], test=(x, x))
    return fedgbo.Task("line", data, lambda: torch.nn.Linear(2, 2), loss=functional.mse_loss)


def test_without_a_metric_the_loss_is_shown_and_drawn():
    result = fedgbo.run(regression(), fedgbo.FedAvg(fedgbo.SGD(0.1)), rounds=2)
    assert repr(result).startswith(f"Result(fedavg on line: test loss {result.loss:.4g}, lowest {result.best.loss:.4g}")
    assert result.plot().to_dict()["encoding"]["y"]["title"] == "loss"


def test_a_frame_has_a_row_for_each_evaluation(result):
    frame = result.frame()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["round"].tolist() == [0, 2, 4]
    assert frame["accuracy"].tolist() == [record.accuracy for record in result.history]
    assert pandas.isna(frame["train_loss"][0])


def test_drift_has_columns_of_its_own():
    drifting = fedgbo.run(make_task(), GBO, rounds=2, metrics="cosine").history
    assert rows_of(drifting)[1]["drift.cosine"] == drifting[1].drift["cosine"]
    assert "drift" not in rows_of(drifting)[1]


def test_a_chart_has_the_history(result):
    drawn = result.plot().to_dict()
    assert drawn["data"]["values"] == [{"x": r.round, "y": r.accuracy} for r in result.history]
    by_bytes = result.plot(y="loss", x="upload_bytes").to_dict()
    assert by_bytes["data"]["values"][-1] == {"x": result.history[-1].upload_bytes, "y": result.loss}
    with pytest.raises(fedgbo.ConfigError, match="unknown number of a record 'acuracy'; did you mean 'accuracy'"):
        result.plot("acuracy")


def test_what_has_no_evaluation(task):
    empty = fedgbo.Result(task, fedgbo.State(torch.zeros(3)), [])
    with pytest.raises(fedgbo.ConfigError, match="has no evaluation yet"):
        _ = empty.accuracy
    with pytest.raises(fedgbo.ConfigError, match="no evaluation to plot yet"):
        empty.plot()


@pytest.mark.parametrize(("call", "module", "extra"), [("frame", "pandas", "frames"), ("plot", "altair", "charts")])
def test_a_missing_extra_is_named(result, monkeypatch, call, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"{call}\(\) needs {module}: pip install 'fedgbo\[{extra}\]'"):
        getattr(result, call)()


def test_a_pickled_result_keeps_all_but_the_task(result, task, tmp_path):
    (tmp_path / "result").write_bytes(pickle.dumps(result))
    program = (
        f"import pickle, pathlib, fedgbo; r = pickle.loads(pathlib.Path({str(tmp_path / 'result')!r}).read_bytes()); "
        "print(r); print(r.params.sum().item(), r.history[-1].loss, r.config['seed'])\n"
        "try: r.model()\nexcept fedgbo.ConfigError as error: print(error)"
    )
    shown, numbers, error = subprocess.check_output([sys.executable, "-c", program], text=True).splitlines()
    assert shown == repr(result)
    assert numbers == f"{result.params.sum().item()} {result.loss} 0"
    assert error.startswith("this result was pickled, which leaves out its task 'small'; add it with")
    again = pickle.loads(pickle.dumps(result)).with_task(task)
    assert torch.equal(torch.nn.utils.parameters_to_vector(again.model().parameters()), result.params)
    with pytest.raises(fedgbo.ConfigError, match=r"task must be a fedgbo.Task, not 'small'"):
        result.with_task("small")


def test_a_copy_keeps_the_task(result):
    for copied in (copy.copy(result), copy.deepcopy(result)):
        assert copied.task is result.task
        assert torch.equal(copied.params, result.params)
    assert copied.params.data_ptr() != result.params.data_ptr()


def test_a_run_of_pythons_is_loaded(task, tmp_path):
    result = fedgbo.run(task, GBO, rounds=4, eval_every=2, out=tmp_path / "run", seed=3)
    loaded = fedgbo.load(tmp_path / "run")
    assert repr(loaded) == repr(result)
    assert (list(loaded.history), loaded.config, loaded.status) == (list(result.history), result.config, "finished")
    assert torch.equal(loaded.params, result.params)
    assert torch.equal(loaded.state.stats["m"], result.state.stats["m"])
    with pytest.raises(fedgbo.ConfigError, match=r"was started from Python; give its task: fedgbo.load\("):
        loaded.model()
    assert isinstance(fedgbo.load(str(tmp_path / "run"), task=task).model(), torch.nn.Module)


def test_a_run_of_the_command_lines_rebuilds_its_task(tmp_path):
    CliRunner().invoke(app, ["run", "--rounds", "2", "--quiet", "--out", str(tmp_path / "run")], catch_exceptions=False)
    loaded = pickle.loads(pickle.dumps(fedgbo.load(tmp_path / "run")))
    assert loaded.task.name == "digits"
    assert loaded.config["rounds"] == 2
    assert sum(p.numel() for p in loaded.model().parameters()) == loaded.params.numel()


def test_what_cannot_be_loaded(task, tmp_path):
    with pytest.raises(fedgbo.RunFolderError, match=r"is not a run folder: it has no run\.json"):
        fedgbo.load(tmp_path)

    def die(progress):
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        fedgbo.run(task, GBO, rounds=2, out=tmp_path / "run", callbacks=die)
    with pytest.raises(fedgbo.RunFolderError, match="has no checkpoint yet; wait for the run's first evaluation"):
        fedgbo.load(tmp_path / "run")


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(task, tmp_path):
    fedgbo.run(task, GBO, rounds=4, eval_every=2, out=tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "round-00000004.safetensors").write_bytes(b"nothing")
    with pytest.warns(UserWarning, match="damaged.*; the checkpoint before it is loaded"):
        assert torch.equal(fedgbo.load(tmp_path / "run").params, fedgbo.run(task, GBO, rounds=2).params)
