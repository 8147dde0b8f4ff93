"""A federation of real processes gives the bits of `fedgbo run`, and stays on this machine."""

import stat
from pathlib import Path

import pytest

from fedgbo.core.errors import RunFolderError
from fedgbo.federation.monitor import digest_of, simulated
from fedgbo.federation.processes import process_tree
from tests.federation.conftest import resolved

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("federation")]

ALGORITHMS = {
    "fedgbo-sgdm": {"algorithm": "fedgbo", "optimiser": "sgdm", "lr": 0.1, "beta": 0.9},
    "mimelite-adam": {"algorithm": "mimelite", "optimiser": "adam", "lr": 0.1, "beta1": 0.9},
    "scaffold": {"algorithm": "scaffold", "lr": 0.1},
    "mfl-sgdm": {"algorithm": "mfl", "optimiser": "sgdm", "lr": 0.1, "beta": 0.9},
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_same_bits_as_without_a_federation(federation, task_file, name):
    config = resolved(f"{task_file}:small", rounds=2, local_steps=3, eval_every=1, **ALGORITHMS[name])
    ending, events, folder = federation.run(name, config)
    assert ending.completed, ending.reason
    assert ending.digest == digest_of(folder) == simulated(folder)
    rounds = [event for event in events if event.kind == "done_round"]
    assert [event["round"] for event in rounds] == [1, 2]
    assert all(len(event["took_part"]) == 3 for event in rounds)
    hosted = {event["node"]: event["clients"] for event in events if event.kind == "joined"}
    assert sorted(hosted.values()) == [[0, 2, 4], [1, 3, 5]]
    assert set(hosted) == {"node-0", "node-1"}


def test_data_and_model_are_built_once_for_a_node_and_a_run(federation, task_file, tmp_path):
    notes = tmp_path / "notes"
    about = {"name": f"{task_file}:counted", "notes": str(notes)}
    config = resolved(about, "fedgbo", optimiser="sgdm", lr=0.1, beta=0.9, rounds=2, local_steps=1, eval_every=1)
    for number, app in ((1, None), (2, "counted-1")):
        ending, _, _ = federation.run(f"counted-{number}", config, app=app)
        assert ending.completed, ending.reason
        built = notes.read_text().split()
        assert [built.count(clients) for clients in ("0::2", "1::2")] == [number, number], built


def test_a_run_that_fails_says_why(federation, task_file):
    config = resolved(f"{task_file}:small", "fedavg", lr=1e300, rounds=2, local_steps=3)
    ending, events, folder = federation.run("diverges", config, attempts=1)
    assert not ending.completed
    assert "round 1 was abandoned 1 times" in ending.reason
    assert [event["client"] for event in events if event.kind in ("rejected", "dropped")]
    with pytest.raises(RunFolderError, match="is not finished"):
        digest_of(folder)


def test_nothing_listens_but_on_loopback(federation):
    pids = {mark.pid for mark in process_tree([process.popen.pid for process in federation.live.processes])}
    addresses = listening(pids)
    assert len(addresses) == 4  # the proxy, the SuperLink and, for its own helpers, each SuperNode
    assert set(addresses) <= {"0100007F"}, addresses  # 127.0.0.1, as Linux writes it


def listening(pids):
    """Return the addresses that processes listen on, in the kernel's hexadecimal."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inodes.add(str(link.readlink()))
            except OSError:
                continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.append(fields[1].split(":")[0])
    return found


def test_no_key_and_no_log_can_be_read_by_others(federation):
    kinds = ("*.key", "*.log", "*.secret", "nodes.json", "audit.jsonl")
    secrets = [file for kind in kinds for file in federation.folder.path.rglob(kind)]
    assert len(secrets) >= 4 + 4 + 4 + 2  # keys: authority, server, nodes; logs: SuperLink, proxy, nodes; secrets
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
    assert stat.S_IMODE(federation.folder.path.stat().st_mode) == 0o700
