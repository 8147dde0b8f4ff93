"""The server app: its configuration, its run folder, and what it says of mistakes."""

import json
import subprocess
import sys

import httpx
import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

import fedgbo
from fedgbo.core.errors import ConfigError, FederationError, RunFolderError
from fedgbo.experiments.request import Request
from fedgbo.flower import Options, client_app, messenger, server_app
from fedgbo.runs.checkpoint import Checkpoint, digest
from fedgbo.runs.config import execute
from tests.flower.federations import events, everyone, nodes
from tests.flower.grids import LocalGrid

SETTINGS = """
algorithm = "mimelite"
optimiser = "adam"
rounds = 2
local_steps = 2
lr = 0.01
beta1 = 0.9
beta2 = 0.99
"""
QUICK = {"wait": 2.0, "deadline": 20.0, "poll": 0.01}


@pytest.fixture
def settings(tmp_path):
    file = tmp_path / "my.toml"
    file.write_text(SETTINGS)
    return file


def start(app, grid, **config):
    context = Context(1, 1, {}, RecordDict(), {key.replace("_", "-"): value for key, value in config.items()})
    app(grid, context)


def digits_nodes():
    return LocalGrid([(client_app("digits"), {"partition-id": i, "num-partitions": 3}) for i in range(3)])


def test_a_run_by_its_settings_is_the_run_of_the_command_line(settings, tmp_path):
    folder = tmp_path / "run"
    start(server_app("digits", **QUICK), digits_nodes(), run_folder=str(folder), settings=str(settings))
    config = Request(algorithm="mimelite", optimiser="adam", rounds=2, local_steps=2, lr=0.01, beta1=0.9, beta2=0.99)
    execute(config.resolve()[0], tmp_path / "plain")

    def without_time(path):
        lines = (path / "metrics.jsonl").read_text().splitlines()
        return [{**json.loads(line), "seconds": 0} for line in lines]

    assert without_time(folder) == without_time(tmp_path / "plain")
    ours, theirs = (json.loads((path / "run.json").read_text()) for path in (folder, tmp_path / "plain"))
    assert ours.pop("federation") == Options(**QUICK).decisive()
    assert ours == theirs
    checkpoint = "checkpoints/round-00000002.safetensors"
    ours, theirs = (digest_in(path / checkpoint) for path in (folder, tmp_path / "plain"))
    assert ours == theirs
    assert events(folder, "finished")[0]["digest"] == ours


def digest_in(path):
    return digest(Checkpoint.load(path).state.tensors())


def test_the_settings_may_name_the_task_and_json_is_a_whole_configuration(tmp_path):
    file = tmp_path / "run.json"
    config = Request(task={"name": "digits"}, rounds=1, local_steps=1).resolve()[0]
    file.write_text(config.model_dump_json())
    start(server_app(**QUICK), digits_nodes(), run_folder=str(tmp_path / "run"), settings=str(file))
    result = execute(config)
    assert json.loads((tmp_path / "run" / "status.json").read_text())["accuracy"] == result.accuracy


def test_resume_goes_on_where_the_folder_is_and_begins_where_it_is_not(settings, tmp_path):
    folder = str(tmp_path / "run")
    start(server_app("digits", **QUICK), digits_nodes(), run_folder=folder, settings=str(settings), resume=True)
    with pytest.raises(RunFolderError, match="already holds a run"):
        start(server_app("digits", **QUICK), digits_nodes(), run_folder=folder, settings=str(settings))
    start(server_app("digits", **QUICK), digits_nodes(), run_folder=folder, resume=True)  # the settings are in there
    assert [event["round"] for event in events(tmp_path / "run", "finished")] == [2, 2]


def test_what_the_configuration_must_say(settings, tmp_path):
    app, grid = server_app("digits"), LocalGrid([])
    with pytest.raises(ConfigError, match="must name the run's folder"):
        start(app, grid, settings=str(settings))
    with pytest.raises(ConfigError, match="must be an absolute path"):
        start(app, grid, settings=str(settings), run_folder="runs/first")
    with pytest.raises(ConfigError, match="must name the file of the run's settings"):
        start(app, grid, run_folder=str(tmp_path / "run"))
    with pytest.raises(ConfigError, match="there is no file"):
        start(app, grid, run_folder=str(tmp_path / "run"), settings=str(tmp_path / "none.toml"))
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot be read as a run's configuration"):
        start(app, grid, run_folder=str(tmp_path / "run"), settings=str(tmp_path / "bad.json"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"deadline": 0}, "deadline must be a finite number above 0"),
        ({"wait": float("nan")}, "wait must be"),
        ({"quorum": 1.5}, r"quorum must be a share of at most 1\.0, or a whole number"),
        ({"quorum": 0.0}, "quorum must be"),
        ({"over_select": -1}, "over-select must be a whole number of at least 0"),
        ({"min_nodes": 0.5}, "min-nodes must be"),
        ({"attempts": 0}, "attempts must be"),
        ({"max_norm": -1.0}, "max-norm must be"),
        ({"weighted": "yes"}, "weighted must be true or false"),
    ],
)
def test_options_that_cannot_be(option, reason):
    with pytest.raises(ConfigError, match=reason):
        Options(**option)


def test_a_default_that_is_no_option():
    with pytest.raises(ConfigError, match="unknown option of a server app 'dead-line'; did you mean 'deadline'"):
        server_app("digits", dead_line=3)


def test_an_apps_configuration_is_stronger_than_its_defaults(settings, tmp_path):
    app = server_app("digits", **{**QUICK, "min_nodes": 9, "quorum": 1.0})
    start(app, digits_nodes(), run_folder=str(tmp_path / "run"), settings=str(settings), min_nodes=2)
    assert events(tmp_path / "run", "finished")


def knows_the_model_only(config):
    """The task of a server without training data: a sample or two show their shape, and there are test data."""
    task = everyone()
    few = task.data.train.batch(np.arange(2), None)
    test = task.data.test.batch(np.arange(20), None)
    data = fedgbo.FederatedData.from_clients(train=[few], test=test)
    return fedgbo.Task("small", data, task.model, batch_size=4)


def test_a_server_without_training_data_says_how_many_clients_there_are(settings, tmp_path):
    config = {"run_folder": str(tmp_path / "run"), "settings": str(settings), "clients": 6}
    start(server_app(knows_the_model_only, **QUICK), LocalGrid(nodes(everyone)), **config)
    algorithm = Request(algorithm="mimelite", optimiser="adam", lr=0.01, beta1=0.9, beta2=0.99).resolve()[0]
    plain = fedgbo.run(everyone(), algorithm.built_algorithm, rounds=2, local_steps=2)
    assert events(tmp_path / "run", "finished")[0]["digest"] == digest(plain.state.tensors())


def test_the_core_does_without_flower_and_says_what_to_install_for_it():
    program = (
        "import sys, fedgbo, fedgbo.cli.main\n"
        "print('flwr' in sys.modules)\n"
        "sys.modules['flwr'] = None  # as if it were not installed\n"
        "try:\n    from fedgbo.flower import client_app\nexcept fedgbo.FedGBOError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported, message = done.stdout.splitlines()
    assert imported == "False"
    assert message == "federations need Flower; install it with: pip install 'fedgbo[flower]'"


def test_a_push_that_a_restart_of_the_superlink_broke_is_repeated(monkeypatch):
    monkeypatch.setattr(messenger, "PAUSES", (0.0, 0.0))
    failures = [ObjectPushError("id", 1, "session"), httpx.ReadError("gone")]

    def push():
        if failures:
            raise failures.pop()
        return ["id"]

    assert messenger._repeated(push) == ["id"]
    failures += [ObjectPushError("id", 1, "session")] * 3
    with pytest.raises(FederationError, match="the connection to the SuperLink broke"):
        messenger._repeated(push)
