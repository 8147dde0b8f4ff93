"""The command as a team of real processes: killed, stopped, resumed by teams of other sizes."""

import json
import re
import signal
import time

import pytest

from fedgbo.runs.checkpoint import Checkpoint, digest
from fedgbo.runs.config import execute, read_config
from fedgbo.runs.folder import RunFolder
from tests.cli.test_processes import records, wait_for
from tests.engines.teams import ended, start

pytestmark = pytest.mark.slow
FEDGBO = ("-m", "fedgbo")
PATIENT = """

def patient():
    import os
    return small(float(os.environ.get("DELAY", 0)))
"""


@pytest.fixture
def args(my_file):
    my_file.write_text(my_file.read_text() + PATIENT)
    settings = ["--lr", 0.1, "--optimiser", "adam", "--beta1", 0.9, "--rounds", 60, "--eval-every", 5]
    return ["run", "--task", f"{my_file}:patient", *settings, "--clients-per-round", 5, "--json"]


def killed(processes, rank, out, after):
    """Kill one rank as soon as a checkpoint after round `after` is there; return how the others end, and how fast."""
    wait_for(lambda: any(int(path.stem[6:]) > after for path in RunFolder(out).checkpoints()))
    processes[rank].kill()
    began = time.monotonic()
    ends = ended(processes)
    return ends[:rank] + ends[rank + 1 :], time.monotonic() - began


def test_killed_ranks_end_the_others_and_teams_of_other_sizes_go_on(args, tmp_path):
    out = tmp_path / "team"
    ends, seconds = killed(start(3, *FEDGBO, *args, "--out", out, cwd=tmp_path, DELAY="0.002"), 1, out, after=0)
    assert seconds < 20
    assert [code for code, _, _ in ends] == [6, 6]
    said = (
        r"the connection to rank 1( or 2)? broke: the process was killed"  # rank 2 may be too busy to say it is there
    )
    assert re.search(said, ends[0][2])
    assert f"resume, with any number of processes, with: fedgbo resume {out}" in ends[0][2]
    assert "Traceback" not in ends[0][2]
    assert ends[1][1:] == ("", "")
    status = RunFolder(out).status()
    assert status["status"] == "interrupted"
    assert 0 < status["round"] < 60

    team = start(2, *FEDGBO, "resume", out, "--json", cwd=tmp_path, DELAY="0.002")
    ends, seconds = killed(team, 0, out, after=status["round"] + 4)  # the one that writes: the next one speaks
    assert seconds < 20
    assert ends[0][0] == 6
    assert "the connection to rank 0 broke" in ends[0][2]
    assert f"fedgbo resume {out}" in ends[0][2]
    assert "Traceback" not in ends[0][2]

    whole, resumed = tmp_path / "whole", execute(read_config(out), out, resume=True)
    execute(read_config(out), whole)
    assert digest(resumed.state.tensors()) == digest(last(whole).state.tensors())
    assert records(out) == records(whole)


def last(path):
    return Checkpoint.load(RunFolder(path).checkpoints()[-1])


def test_one_message_for_all(args, tmp_path):
    wrong = ended(start(2, *FEDGBO, *args, "--lr", -1, cwd=tmp_path))
    assert [code for code, _, _ in wrong] == [2, 2]
    assert "lr must be a finite number above 0" in wrong[0][2]
    assert wrong[1][1:] == ("", "")


def test_ctrl_c_on_one_rank_stops_all(args, tmp_path):
    out = tmp_path / "team"
    processes = start(2, *FEDGBO, *args, "--out", out, cwd=tmp_path, DELAY="0.01")
    wait_for(lambda: (out / "metrics.jsonl").exists())
    processes[1].send_signal(signal.SIGINT)
    (code, _, message), (other, _, silence) = ended(processes)
    assert (code, other, silence) == (6, 130, "")
    assert "rank 1 was stopped" in message
    assert json.loads((out / "status.json").read_text())["status"] == "interrupted"
