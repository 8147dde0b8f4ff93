import fcntl
import json
import os
import threading
import warnings

import pytest
import torch
from safetensors.torch import save_file

import fedgbo
from fedgbo.core.errors import RunWarning
from fedgbo.native import kernel
from fedgbo.runs.checkpoint import Checkpoint
from fedgbo.runs.folder import RunFolder
from tests.conftest import make_task

GBO = fedgbo.FedGBO(fedgbo.SGDm(lr=0.3, beta=0.9))


@pytest.fixture
def finished(tmp_path):
    fedgbo.run(make_task(), GBO, rounds=6, eval_every=2, out=tmp_path / "run")
    return RunFolder(tmp_path / "run")


def go_on(folder, algorithm=GBO, **kwargs):
    return fedgbo.run(make_task(), algorithm, rounds=8, eval_every=2, out=folder.path, resume=True, **kwargs)


def test_what_a_folder_holds(finished):
    config, versions = finished.config(), finished.origin()
    assert config["algorithm"]["optimiser"] == {"name": "sgdm", "lr": 0.3, "beta": 0.9}
    assert config["seed"] == 0
    assert {"fedgbo", "torch", "numpy", "python"} <= versions.keys()
    assert [path.name for path in finished.checkpoints()] == [
        "round-00000004.safetensors",
        "round-00000006.safetensors",
    ]


def test_a_used_folder_is_left_alone(finished, tmp_path):
    with pytest.raises(fedgbo.RunFolderError, match=r"already holds a run; resume it .fedgbo resume"):
        fedgbo.run(make_task(), GBO, rounds=1, out=finished.path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(fedgbo.RunFolderError, match=r"is not empty .it holds thesis.tex."):
        fedgbo.run(make_task(), GBO, rounds=1, out=tmp_path / "other")
    assert (tmp_path / "other" / "thesis.tex").exists()


def test_an_unwritable_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(fedgbo.RunFolderError, match="cannot make the output folder"):
        fedgbo.run(make_task(), GBO, rounds=1, out=tmp_path / "file" / "run")


def test_no_run_folder(tmp_path):
    with pytest.raises(fedgbo.RunFolderError, match=r"is not a run folder: it has no run.json"):
        fedgbo.run(make_task(), GBO, rounds=1, out=tmp_path, resume=True)


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(finished):
    whole = go_on(finished).params
    finished.checkpoints()[-1].write_bytes(b"garbage")
    with pytest.warns(RunWarning, match="is damaged .*; the run continues from the older checkpoint of round 6"):
        assert torch.equal(go_on(finished).params, whole)


def test_a_resume_on_another_machine_or_version_warns_and_is_written_down(finished):
    about = json.loads((finished.path / "run.json").read_text())
    assert about["machine"].keys() == {"kernel", "compiler", "torch_kernel", "cpu", "cpu_features"}
    about["versions"]["torch"], about["machine"]["kernel"] = "1.0", "sse2"
    (finished.path / "run.json").write_text(json.dumps(about))
    with pytest.warns(RunWarning, match=r"with torch .* .was 1.0., kernel .* .was sse2.: its result may differ"):
        go_on(finished)
    (resumed,) = json.loads((finished.path / "run.json").read_text())["resumed"]
    assert (resumed["round"], resumed["machine"]["kernel"]) == (6, kernel())


def test_a_resume_on_the_same_machine_says_nothing(finished):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        go_on(finished)


def test_a_folder_of_a_newer_format_is_refused(finished):
    about = json.loads((finished.path / "run.json").read_text())
    (finished.path / "run.json").write_text(json.dumps({**about, "format": 99}))
    with pytest.raises(fedgbo.RunFolderError, match=r"was written by a newer version of fedgbo .format 99."):
        go_on(finished)


def test_lost_evaluations_are_named(finished):
    metrics = finished.path / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:1] + lines[2:]))
    with pytest.warns(RunWarning, match="has lost the evaluations of rounds 2; they are not repeated"):
        go_on(finished)


@pytest.mark.parametrize("damage", ["truncate", "flip"])
def test_damage_everywhere_is_named(finished, damage):
    for path in finished.checkpoints():
        content = bytearray(path.read_bytes())
        if damage == "truncate":
            content = content[:-10]
        else:
            content[-1] ^= 1
        path.write_bytes(content)
    with pytest.raises(fedgbo.RunFolderError, match=r"round-0+6.safetensors is damaged.*start the run again"):
        go_on(finished)


def test_a_foreign_safetensors_file(finished):
    for path in finished.checkpoints():
        save_file({"params": torch.zeros(3)}, path)
    with pytest.raises(fedgbo.RunFolderError, match="not a fedgbo checkpoint"):
        go_on(finished)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"algorithm": fedgbo.FedGBO(fedgbo.SGDm(lr=0.1, beta=0.9))}, "algorithm"),
        ({"seed": 1}, "seed"),
        ({"local_steps": 3}, "local_steps"),
        ({"initial_params": torch.zeros(26)}, "initial_params"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(finished, change, key):
    with pytest.raises(fedgbo.RunFolderError, match=f"a checkpoint of another run: its {key} is"):
        go_on(finished, **change)


def test_a_cut_off_last_record_is_dropped_and_a_damaged_one_named(finished):
    metrics = finished.path / "metrics.jsonl"
    with metrics.open("a") as file:
        file.write('{"round": 8, "lo')
    assert [record.round for record in finished.records()] == [0, 2, 4, 6]
    metrics.write_text("nonsense\n")
    with pytest.raises(fedgbo.RunFolderError, match=r"metrics.jsonl, line 1 is damaged"):
        finished.records()


def test_records_after_the_last_checkpoint_are_made_again(finished):
    """As after a kill between writing a record and writing its checkpoint."""
    finished.checkpoints()[-1].unlink()
    go_on(finished)
    assert [record.round for record in finished.records()] == [0, 2, 4, 6, 8]


def test_one_process_at_a_time(finished):
    other = RunFolder(finished.path)
    other.lock()
    with pytest.raises(fedgbo.RunFolderError, match="in use by another process"):
        go_on(finished)
    other.close()
    go_on(finished)


def test_asking_whether_it_is_in_use_does_not_get_in_the_way(finished):
    assert not finished.in_use()
    with (finished.path / "lock").open() as asking:  # as `in_use` of another process, at the worst moment
        fcntl.flock(asking, fcntl.LOCK_SH)
        threading.Timer(0.05, lambda: fcntl.flock(asking, fcntl.LOCK_UN)).start()
        finished.lock()
    assert RunFolder(finished.path).in_use()
    finished.close()
    assert not finished.in_use()


def test_a_crash_while_writing_leaves_the_last_good_checkpoint(finished, monkeypatch):
    before = finished.latest()[0]

    def crash(*args):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(fedgbo.RunFolderError, match="disk full"):
        finished.save(before)
    assert Checkpoint.load(finished.checkpoints()[-1]).ledger == before.ledger
    assert not [p for p in (finished.path / "checkpoints").iterdir() if p.name.startswith(".")]


def test_a_run_that_another_process_ended_meanwhile_is_not_begun_again(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    other = RunFolder(path)
    other.lock()  # it found the folder empty, as we shall

    def end():
        (path / "run.json").write_text("theirs")
        other.close()

    later = threading.Timer(0.05, end)  # while we wait for the lock
    later.start()
    with pytest.raises(fedgbo.RunFolderError, match="already holds a run"):
        RunFolder.create(path, {})
    later.join()
    assert (path / "run.json").read_text() == "theirs"
    assert not RunFolder(path).in_use()
