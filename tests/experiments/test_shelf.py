"""Folders are named by settings, found again, and not believed when they are damaged."""

import json

import pytest

from fedgbo.core.errors import FolderBusyError
from fedgbo.experiments.experiment import Changes, make_experiment
from fedgbo.experiments.results import clear, survey
from fedgbo.experiments.shelf import folder_name, identity, look, set_aside
from fedgbo.runs.config import RunConfig, execute
from fedgbo.runs.folder import RunFolder

GRID = {"algorithms": "fedavg", "seeds": 1, "rounds": 2, "lr": 1.0, "batch_size": 2, "clients_per_round": 2}
EXPERIMENT = make_experiment(GRID, "e", Changes(overrides=("local_steps=1", "test_samples=10")))
CONFIG = EXPERIMENT.configs[0]


@pytest.fixture
def out(tmp_path):
    path = tmp_path / "runs" / folder_name(CONFIG)
    execute(CONFIG, path)
    return tmp_path


@pytest.fixture
def path(out):
    return out / "runs" / folder_name(CONFIG)


def edit(file, change):
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def test_names_follow_from_settings():
    assert folder_name(CONFIG) == f"digits-fedavg-K1-T2-seed0-{identity(CONFIG)[:10]}"
    for changed in ({"seed": 1}, {"rounds": 3}, {"eval_every": 2}, {"test_samples": 9}, {"metrics": ["cosine"]}):
        assert folder_name(CONFIG.model_copy(update=changed)) != folder_name(CONFIG)
    again = RunConfig(**json.loads(json.dumps(CONFIG.model_dump())))
    assert identity(again) == identity(CONFIG)
    own = CONFIG.model_copy(update={"task": {"name": "/some/where/my file.py:small task"}})
    assert folder_name(own).startswith("small_task-fedavg-")


def test_a_finished_run_is_found(path):
    found = look(path, CONFIG)
    assert found.state == "finished"
    assert [record.round for record in found.run.records] == [0, 1, 2]


def test_nothing_and_the_traces_of_an_early_kill_are_missing(tmp_path):
    assert look(tmp_path / "none", CONFIG).state == "missing"
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "lock").touch()
    (tmp_path / ".run.json.x7").touch()
    assert look(tmp_path, CONFIG).state == "missing"
    execute(CONFIG, tmp_path)
    assert look(tmp_path, CONFIG).state == "finished"


def test_a_run_that_was_cut_off_is_begun(path):
    (path / "status.json").unlink()
    assert look(path, CONFIG).state == "begun"
    newest = RunFolder(path).checkpoints()[-1]
    newest.write_bytes(b"x")
    assert newest.name in look(path, CONFIG).reason


def first_record(**changes):
    return lambda path: rewrite(path, lambda lines: [json.dumps(json.loads(lines[0]) | changes), *lines[1:]])


def rewrite(path, change):
    lines = (path / "metrics.jsonl").read_text().splitlines()
    (path / "metrics.jsonl").write_text("".join(f"{line}\n" for line in change(lines)))


DAMAGES = {
    "run.json cannot be read": lambda path: (path / "run.json").write_text("{"),
    "its config is not a table": lambda path: (path / "run.json").write_text('{"config": 3}'),
    "has no run.json": lambda path: (path / "run.json").unlink(),
    "run.json is damaged": lambda path: edit(path / "run.json", lambda c: c["config"].update(rounds="two")),
    "holds another run: its seed is 5, not 0": lambda path: edit(
        path / "run.json", lambda c: c["config"].update(seed=5)
    ),
    "holds another run: its algorithm is": lambda path: edit(  # 1 for 1.0
        path / "run.json", lambda c: c["config"]["algorithm"]["optimiser"].update(lr=1)
    ),
    "status.json cannot be read": lambda path: (path / "status.json").write_bytes(b"\xff"),
    "its status is None": lambda path: (path / "status.json").write_text("{}"),
    "line 1 is damaged: accuracy must be a number": first_record(accuracy="high"),
    "line 1 is damaged: round must be a whole number": first_record(round=0.5),
    "line 1 is damaged: loss must be a number": first_record(loss="low"),
    "line 1 is damaged: cosine must be a number": first_record(drift={"cosine": "far"}),
    "line 1 is damaged: a metrics record lacks": lambda path: rewrite(path, lambda lines: ["{}", *lines[1:]]),
    "line 1 is damaged: a table was expected, not 3": lambda path: rewrite(path, lambda lines: ["3", *lines[1:]]),
    "line 2 is damaged": lambda path: rewrite(path, lambda lines: [lines[0], lines[1][:20], lines[2]]),
    "round 1 is missing": lambda path: rewrite(path, lambda lines: [lines[0], lines[2]]),
    "round 2 is missing": lambda path: rewrite(path, lambda lines: lines[:2]),
    "round 0 does not follow round 2": lambda path: rewrite(path, lambda lines: [*lines, lines[0]]),
    "is damaged or not a checkpoint": lambda path: RunFolder(path).checkpoints()[-1].write_bytes(b"x"),
    "is damaged: its contents do not match": lambda path: flip(RunFolder(path).checkpoints()[-1], -1),
}


def flip(file, place):
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(bytes(content))


@pytest.mark.parametrize("reason", DAMAGES)
def test_a_damaged_folder_is_named_and_set_aside(out, path, reason):
    DAMAGES[reason](path)
    places, said = clear(survey(EXPERIMENT, out))
    assert [place.find.state for place in places] == ["missing"]
    assert len(said) == 1
    assert said[0].startswith(f"damaged, set aside as {path.name}.damaged-1, and started again: ")
    assert reason in said[0]
    assert not path.exists()
    assert path.with_name(f"{path.name}.damaged-1").is_dir()


def test_a_checkpoint_with_wrong_numbers_is_damaged(path):
    file = RunFolder(path).checkpoints()[-1]
    file.write_bytes(file.read_bytes().replace(b'\\"round\\": 2', b'\\"round\\":[2'.ljust(12)))
    assert look(path, CONFIG).state == "damaged"


def test_the_next_one_gets_the_next_number_and_files_are_set_aside_too(path):
    (path / "run.json").write_text("{")
    assert set_aside(path, CONFIG)[1].name.endswith(".damaged-1")
    path.write_text("no folder")
    assert look(path, CONFIG).state == "damaged"
    assert set_aside(path, CONFIG)[1].name.endswith(".damaged-2")


def test_what_another_experiment_has_put_right_meanwhile_stays(out, path):
    (path / "run.json").write_text("{")
    ours, ours_too = survey(EXPERIMENT, out), survey(EXPERIMENT, out)
    clear(survey(EXPERIMENT, out))  # theirs: set aside
    places, said = clear(ours)
    assert ([place.find.state for place in places], said) == (["missing"], [])
    execute(CONFIG, path)  # and done anew
    places, said = clear(ours_too)
    assert ([place.find.state for place in places], said) == (["finished"], [])
    assert look(path, CONFIG).state == "finished"
    assert len(list(path.parent.iterdir())) == 2


def test_a_folder_in_use_is_left_where_it_is(out, path):
    (path / "run.json").write_text("{")
    writer = RunFolder(path)
    writer.lock()
    with pytest.raises(FolderBusyError):
        set_aside(path, CONFIG)
    places, said = clear(survey(EXPERIMENT, out))
    assert ([place.find.state for place in places], said) == (["begun"], [])
    writer.close()
    assert set_aside(path, CONFIG)[1].exists()
