"""What clients keep from round to round: on disk, bit for bit after a resume, bounded, and never trusted."""

from dataclasses import dataclass

import pytest
import torch

import fedgbo
from fedgbo.runs.checkpoint import Checkpoint
from fedgbo.runs.folder import RunFolder
from fedgbo.runs.memory import ClientMemory
from tests.conftest import Killed, kill_at, make_task

SCAFFOLD = fedgbo.SCAFFOLD(fedgbo.SGD(lr=0.3))
TASK = make_task(clients=6, clients_per_round=2, batch_size=4)
INITIAL = {"c": torch.zeros(3)}


def digests(folder):
    checkpoint, _ = RunFolder(folder).latest()
    return {client: ClientMemory(folder / "clients", checkpoint.clients).load(client, full()) for client in range(6)}


def full():
    return {"c": torch.zeros(26)}


@pytest.mark.parametrize("t", [1, 4, 7, 9])
def test_a_killed_run_is_resumed_bit_for_bit(tmp_path, t):
    whole = fedgbo.run(TASK, SCAFFOLD, rounds=10, eval_every=3, out=tmp_path / "whole")
    with pytest.raises(Killed):
        fedgbo.run(TASK, SCAFFOLD, rounds=10, eval_every=3, out=tmp_path / "cut", callbacks=[kill_at(t)])
    resumed = fedgbo.run(TASK, SCAFFOLD, rounds=10, eval_every=3, out=tmp_path / "cut", resume=True)
    assert torch.equal(resumed.params, whole.params)
    assert torch.equal(resumed.state.stats["c"], whole.state.stats["c"])
    kept, expected = digests(tmp_path / "cut"), digests(tmp_path / "whole")
    assert all(torch.equal(kept[client]["c"], expected[client]["c"]) for client in range(6))


def test_a_damaged_checkpoint_falls_back_to_the_one_before_with_its_own_client_states(tmp_path):
    whole = fedgbo.run(TASK, SCAFFOLD, rounds=10, eval_every=2)
    with pytest.raises(Killed):
        fedgbo.run(TASK, SCAFFOLD, rounds=10, eval_every=2, out=tmp_path / "run", callbacks=[kill_at(9)])
    newest = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:-8] + bytes(8))
    resumed = fedgbo.run(TASK, SCAFFOLD, rounds=10, eval_every=2, out=tmp_path / "run", resume=True)
    assert torch.equal(resumed.params, whole.params)


def test_with_and_without_a_folder_and_for_any_number_of_workers(tmp_path):
    results = [fedgbo.run(TASK, SCAFFOLD, rounds=5, workers=workers) for workers in (1, 2, 3)]
    results.append(fedgbo.run(TASK, SCAFFOLD, rounds=5, out=tmp_path / "run"))
    assert all(torch.equal(result.params, results[0].params) for result in results)


def test_old_versions_are_removed_and_needed_ones_kept(tmp_path):
    memory = ClientMemory(tmp_path)
    for t in (0, 2, 5, 9):
        memory.save(7, t, {"c": torch.full((3,), float(t))})
        memory.commit([7], t)
    memory.prune(oldest=5)  # that checkpoint is after rounds 0 ... 4, so that version 2 was current
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"7-{t}.safetensors" for t in (2, 5, 9)]
    assert ClientMemory(tmp_path, {7: 2}).load(7, INITIAL)["c"].tolist() == [2.0] * 3
    assert memory.load(7, INITIAL)["c"].tolist() == [9.0] * 3
    assert memory.load(1, INITIAL)["c"].tolist() == [0.0] * 3


def test_a_long_run_keeps_few_files(tmp_path):
    fedgbo.run(TASK, SCAFFOLD, rounds=60, eval_every=5, local_steps=1, out=tmp_path / "run")
    assert len(list((tmp_path / "run" / "clients").iterdir())) <= 6 + 2 * 5 * 2  # current ones, and two intervals'


def test_without_a_folder_only_current_versions_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kept = []
    count = lambda progress: kept.append(len(list(tmp_path.glob("fedgbo-clients-*/*"))))  # noqa: E731
    fedgbo.run(TASK, SCAFFOLD, rounds=20, callbacks=[count])
    assert max(kept) <= 6
    assert not list(tmp_path.glob("fedgbo-clients-*"))


@dataclass(frozen=True)
class Shared(fedgbo.SCAFFOLD):
    """Keeps the same memory under two names, on clients and on the server."""

    def init(self, params):
        state = super().init(params)
        return fedgbo.State(state.params, {**state.stats, "d": state.stats["c"]})

    def client_state(self, params):
        return {"c": torch.zeros_like(params), "d": torch.zeros_like(params)}

    def client_update(self, down, client):
        up = super().client_update(down, client)
        client.state["d"] = client.state["c"]
        return fedgbo.State(up.params, {"c": up.stats["c"], "d": up.stats["c"]})

    def server_update(self, server, mean, steps):
        after = super().server_update(server, mean, steps)
        return fedgbo.State(after.params, {"c": after.stats["c"], "d": after.stats["c"]})


def test_vectors_that_share_memory_are_saved(tmp_path):
    fedgbo.run(TASK, Shared(fedgbo.SGD(0.1)), rounds=2, out=tmp_path / "run")


def test_a_version_that_was_not_committed_is_not_seen(tmp_path):
    memory = ClientMemory(tmp_path)
    memory.save(3, 4, {"c": torch.ones(3)})
    assert memory.load(3, INITIAL)["c"].tolist() == [0.0] * 3


def damaged(path):
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\1")


def swapped(path):
    path.write_bytes(path.with_name("2-0.safetensors").read_bytes())


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda path: path.unlink(), "the state of client 1 after round 1 is missing"),
        (damaged, "damaged: its contents do not match its header"),
        (swapped, "damaged: its contents do not match its header"),
        (lambda path: path.write_bytes(b"nonsense"), "is damaged"),
    ],
)
def test_files_are_checked(tmp_path, harm, message):
    memory = ClientMemory(tmp_path)
    for client in (1, 2):
        memory.save(client, 0, {"c": torch.full((3,), float(client))})
        memory.commit([client], 0)
    harm(tmp_path / "1-0.safetensors")
    with pytest.raises(fedgbo.RunFolderError, match=message):
        memory.load(1, INITIAL)


def test_vectors_that_the_algorithm_does_not_declare_are_refused(tmp_path):
    memory = ClientMemory(tmp_path)
    memory.save(1, 0, {"other": torch.zeros(3)})
    memory.commit([1], 0)
    with pytest.raises(fedgbo.RunFolderError, match="does not hold the vectors that the algorithm declares"):
        memory.load(1, INITIAL)


def test_a_checkpoint_says_which_versions_it_goes_with(tmp_path):
    fedgbo.run(TASK, SCAFFOLD, rounds=3, out=tmp_path / "run")
    checkpoint = Checkpoint.load(sorted((tmp_path / "run" / "checkpoints").iterdir())[-1])
    assert checkpoint.clients
    assert all(0 <= t < 3 for t in checkpoint.clients.values())
    assert checkpoint.state.tensors().keys() == {"params", "stats.c"}


@dataclass(frozen=True)
class Counts(fedgbo.FedAvg):
    """Counts how often each client took part, and multiplies its update by it."""

    def client_state(self, params):
        return {"times": torch.zeros(1, dtype=params.dtype)}

    def client_update(self, down, client):
        client.state["times"] = client.state["times"] + 1
        y = client.descend(down.params, self.optimiser, {})
        return fedgbo.State((down.params - y) * client.state["times"])


def test_states_of_another_shape_than_the_model(tmp_path):
    algorithm = Counts(fedgbo.SGD(0.1))
    result = fedgbo.run(TASK, algorithm, rounds=6, out=tmp_path / "run", eval_every=2)
    checkpoint, _ = RunFolder(tmp_path / "run").latest()
    memory = ClientMemory(tmp_path / "run" / "clients", checkpoint.clients)
    times = [memory.load(client, {"times": torch.zeros(1)})["times"].item() for client in range(6)]
    assert sum(times) == 6 * 2
    assert result.params.isfinite().all()


@dataclass(frozen=True)
class Undeclared(fedgbo.FedAvg):
    def client_update(self, down, client):
        client.state["secret"] = down.params
        return super().client_update(down, client)


@dataclass(frozen=True)
class Forgets(fedgbo.SCAFFOLD):
    def client_update(self, down, client):
        up = super().client_update(down, client)
        client.state.clear()
        return up


def test_states_that_do_not_fit_the_declaration_are_refused():
    with pytest.raises(fedgbo.ConfigError, match=r"left 'secret' in client\.state.* declares nothing"):
        fedgbo.run(TASK, Undeclared(fedgbo.SGD(0.1)), rounds=1)
    with pytest.raises(fedgbo.ConfigError, match=r"removed c from client\.state"):
        fedgbo.run(TASK, Forgets(fedgbo.SGD(0.1)), rounds=1)


def test_a_state_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "clients").write_text("")  # a file where the folder should be
    memory = ClientMemory(tmp_path / "run" / "clients")
    with pytest.raises(fedgbo.RunFolderError, match=r"cannot write .*/clients/3-0\.safetensors: (Not a|File exists)"):
        memory.save(3, 0, {"c": torch.zeros(2)})
