"""The command in this process: what it prints, and how it fails."""

import json
import re

import pytest
from typer.testing import CliRunner

from fedgbo import __version__
from fedgbo.cli.console import out
from fedgbo.cli.main import app
from fedgbo.native import library
from fedgbo.runs.describe import CATALOGUES

runner = CliRunner()


def call(*args):
    return runner.invoke(app, [str(arg) for arg in args])


def test_version_and_help():
    assert call("--version").stdout == f"fedgbo {__version__}\n"
    text = call("--help").stdout
    assert all(name in text for name in ("run", "resume", "compare", "list", "130 interrupted"))


def test_list_names_everything(monkeypatch):
    listed = json.loads(call("list", "--json").stdout)
    for kind, catalogue in CATALOGUES.items():
        assert set(listed[kind]) == set(catalogue)
    assert listed["algorithm"]["scaffold"]["kept"] == "|x|"
    assert listed["algorithm"]["mime"]["exchanges"] == 2
    assert "Xu et al." in listed["algorithm"]["fedcm"]["paper"]
    assert listed["optimiser"]["amsgrad"] == {
        "about": "Adam that divides by the largest second moment so far: m from 0, v and w from `initial`",
        "settings": ["lr", "beta1", "beta2", "eps", "initial"],
        "statistics": ["m", "v", "w"],
        "inverse": True,
    }
    assert not listed["optimiser"]["lion"]["inverse"]
    assert (
        listed["task"]["cifar100"]["about"] == "60,000 colour images in 100 classes on 500 clients; needs `fedgbo data`"
    )
    for name, task in listed["task"].items():  # what the data are, and whether files are needed
        assert re.search(r"digits|images|tweets|characters|text|quadratic", task["about"]), name
        packed, made_up = "needs `fedgbo data`" in task["about"], "Synthetic" in task["about"]
        assert (packed, made_up) == ("data" in task["settings"], "synthetic" in name or name == "quadratic"), name
    assert all(entry["about"][0] != "0" for entry in listed["preset"].values()), "no empty preset"
    text = call("list").stdout
    assert "fedgbo" in text
    assert re.search(r"mime +4 \|x\| +2 \|x\| +- +2 K \+ all +Karimireddy et al. 2021", text)
    monkeypatch.setattr(out, "width", 80)
    assert max(map(len, call("list").stdout.splitlines())) <= 80
    assert "my_file.py:Class" in text


def test_run_and_resume(tmp_path):
    done = call("run", "--rounds", 3, "--out", tmp_path / "run", "--json")
    assert done.exit_code == 0
    result = json.loads(done.stdout)
    assert result["rounds"] == 3
    assert 0 <= result["accuracy"] <= 1
    assert len(result["digest"]) == 64
    longer = json.loads(call("resume", tmp_path / "run", "--rounds", 5, "--json").stdout)
    straight = json.loads(call("run", "--rounds", 5, "--eval-every", 1, "--out", tmp_path / "other", "--json").stdout)
    assert longer["digest"] == straight["digest"]


def test_the_engine_is_explained_forced_and_kept(tmp_path):
    told = call("run", "--rounds", 2, "--explain", "--quiet", "--out", tmp_path / "auto").stderr
    how = "all local steps of a client in one call of C code" if library() else "local steps in place"
    assert f"Client.descend: one client at a time, {how}" in told
    forced = ("run", "--engine", "plain", "--eval-every", 1, "--json", "--out")
    told = call(*forced, tmp_path / "plain", "--rounds", 2, "--explain")
    assert "the textbook loop, gradients by torch's autograd with torch's own layers (--engine plain)" in told.stderr
    resumed = json.loads(call("resume", tmp_path / "plain", "--rounds", 4, "--json").stdout)
    straight = json.loads(call(*forced, tmp_path / "straight", "--rounds", 4).stdout)
    assert resumed["digest"] == straight["digest"]
    unknown = call("run", "--engine", "plian", "--out", tmp_path / "no")
    assert unknown.exit_code == 2


def test_an_algorithm_is_built_once(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import fedgbo, pathlib\nfrom dataclasses import dataclass\n\n@dataclass(frozen=True)\n"
        "class Mine(fedgbo.FedAvg):\n    def __post_init__(self):\n        super().__post_init__()\n"
        f"        with pathlib.Path({str(tmp_path / 'built')!r}).open('a') as file:\n            file.write('x')\n"
    )
    arguments = ("--algorithm", f"{tmp_path / 'mine.py'}:Mine", "--lr", 0.1, "--rounds", 1, "--weights", "samples")
    done = call("run", *arguments, "--quiet", "--out", tmp_path / "run")
    assert done.exit_code == 0
    assert (tmp_path / "built").read_text() == "x"


def test_a_person_is_told_the_preset_and_the_result(tmp_path):
    done = call("run", "--rounds", 2, "--out", tmp_path / "run")
    assert "fedgbo-sgdm on digits, preset digits: lr=" in done.stderr
    assert "test accuracy" in done.stdout
    assert "KiB up" in done.stdout
    assert str(tmp_path / "run") in done.stdout
    assert "preset" not in call("run", "--rounds", 2, "--quiet", "--out", tmp_path / "other").stderr


def test_ones_own_task_and_algorithm(my_file, tmp_path):
    done = call("run", "--task", f"{my_file}:small", "--algorithm", f"{my_file}:Nothing", "--rounds", 2, "--json",
                "--out", tmp_path / "run")  # fmt: skip
    assert json.loads(done.stdout)["rounds"] == 2
    again = json.loads(call("resume", tmp_path / "run", "--json").stdout)
    assert again["digest"] == json.loads(done.stdout)["digest"]


def test_metrics(tmp_path):
    args = ("run", "--rounds", 4, "--eval-every", 2)
    plain = json.loads(call(*args, "--json", "--out", tmp_path / "plain").stdout)
    result = json.loads(call(*args, "--metrics", "drift", "--json", "--out", tmp_path / "run").stdout)
    assert result["digest"] == plain["digest"]
    assert "drift" not in plain
    assert 0 < result["drift"]["cosine"] < 1
    assert result["drift"]["error"] > 0
    longer = call("resume", tmp_path / "run", "--rounds", 6)
    assert "apart (mean cosine distance since the last evaluation); gradient perturbation" in longer.stdout
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert ["drift" in line for line in lines] == [False, True, True, True]
    cheap = call("run", "--rounds", 2, 'metrics=["cosine"]', "--out", tmp_path / "cheap")
    assert "apart (mean cosine distance since the last evaluation)\n" in cheap.stdout


def test_a_toml_file(my_file, tmp_path):
    toml = tmp_path / "run.toml"
    toml.write_text(
        f'task = "{my_file}:small"\nalgorithm = "mfl"\noptimiser = "adam"\nlr = 0.01\nbeta1 = 0.9\nrounds = 3\n'
    )
    done = call(
        "run", toml, "rounds=2", "batch_size=full", "clients_per_round=all", "--json", "--out", tmp_path / "run"
    )
    assert json.loads(done.stdout)["rounds"] == 2
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert (config["batch_size"], config["clients_per_round"]) == ("full", "all")
    assert config["algorithm"]["optimiser"]["eps"] == 1e-3


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--algorithm", "fedgob"], 2, "did you mean 'fedgbo'"),
        (["--beta", "1"], 2, "beta must be at least 0 and below 1"),
        (["--lr", "0"], 2, "lr must be a finite number above 0"),
        (["--local-steps", "0"], 2, "local_steps must be a whole number of at least 1"),
        (["--clients-per-round", "51"], 2, "there are 50 clients"),
        (["--clients-per-round", "some"], 2, "clients_per_round must be a whole number or 'all', not 'some'"),
        (["--batch-size", "0"], 2, "batch_size must be a whole number"),
        (["--task", "nothing"], 2, "unknown task"),
        (["--metrics", "speed"], 2, "unknown metric 'speed'"),
        (["a.toml", "b.toml"], 2, "give one TOML file, not 2"),
        (["none.toml"], 2, "there is no file none.toml"),
        (["--lr", "1e30", "--rounds", "3"], 5, "try a smaller lr"),
    ],
)
def test_what_goes_wrong(args, code, message, tmp_path):
    done = call("run", *args, "--out", tmp_path / "run")
    assert done.exit_code == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_folders_that_cannot_be_used(tmp_path):
    assert call("run", "--rounds", 1, "--out", tmp_path / "run").exit_code == 0
    used = call("run", "--rounds", 1, "--out", tmp_path / "run")
    assert (used.exit_code, "already holds a run" in used.stderr) == (4, True)
    assert call("resume", tmp_path).exit_code == 4
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        path.write_bytes(b"x")
    damaged = call("resume", tmp_path / "run")
    assert (damaged.exit_code, "is damaged" in damaged.stderr) == (4, True)
    (tmp_path / "run" / "run.json").write_text("{}")
    assert call("resume", tmp_path / "run").exit_code == 4


def test_a_run_begun_from_python_is_not_for_the_command(tmp_path, task):
    import fedgbo

    fedgbo.run(task, fedgbo.FedAvg(fedgbo.SGD(lr=0.1)), rounds=1, out=tmp_path / "run")
    done = call("resume", tmp_path / "run")
    assert done.exit_code == 4
    assert "was started from Python; continue with fedgbo.run(" in done.stderr


@pytest.mark.parametrize(
    ("command", "default"),
    [
        ("run", "[default: runs/<name>-<time>]"),
        ("compare", "[default: sgdm]"),
        ("experiment", "[default: the number of cores]"),
        ("tune", "[default: 30; a grid: all]"),
        ("report", "[default: report.html, unless"),
    ],
)
def test_the_help_has_the_defaults(command, default):
    """rich would take an unescaped [default: ...] for markup and swallow it."""
    assert default in call(command, "--help").stdout


def test_whole_numbers_in_any_way_that_python_writes_them(my_file, tmp_path):
    args = ("run", "--task", f"{my_file}:small", "--lr", ".1", "beta=.9", "--clients-per-round", "0b11", "--json")
    done = call(*args, "--rounds", "0x2", "--local-steps", "1_0", "--out", tmp_path / "run")
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert json.loads(done.stdout)["rounds"] == config["rounds"] == 2
    assert (config["local_steps"], config["clients_per_round"]) == (10, 3)
    wrong = call(*args, "--rounds", "ten", "--out", tmp_path / "no")
    assert wrong.exit_code == 2
    assert "'ten' is not a valid integer" in wrong.stderr


def test_each_algorithm_of_a_comparison_has_settings_of_its_own(my_file, tmp_path):
    args = ("--task", f"{my_file}:small", "--rounds", 2, "--seeds", 1, "--jobs", 1)
    done = call(
        "compare", "fedavg lr=.1", "fedavg lr=.2", "fedgbo:sgdm", "lr=.1", "beta=.5", *args, "--out", tmp_path / "c"
    )
    assert done.exit_code == 0, done.stderr
    rows = json.loads((tmp_path / "c" / "table.json").read_text())
    assert [row["label"] for row in rows] == ["fedavg (lr=0.1)", "fedavg (lr=0.2)", "fedgbo-sgdm"]
    assert "FedAvg's best accuracy" in done.stdout
    same = call("compare", "fedavg", "fedgbo:sgd", "--lr", ".1", *args, "--out", tmp_path / "same")
    assert "fedgbo with sgd trains the same model as fedavg" in same.stderr


def test_a_name_with_brackets_is_printed_as_it_is(my_file, tmp_path):
    my_file.write_text(
        my_file.read_text() + "\n\ndef bracketed():\n    import dataclasses\n\n    import fedgbo.tasks.task as task\n\n"
        "    return dataclasses.replace(small(), metric={'top[1]': task.accuracy})\n"
    )
    words = ["--task", f"{my_file}:bracketed", "--algorithm", "fedavg", "--lr", "0.1", "--rounds", "1"]
    done = CliRunner().invoke(app, ["run", *words, "--out", str(tmp_path / "[run]")])
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("test top[1] 0.")
    assert done.stdout.endswith("[run]\n")
