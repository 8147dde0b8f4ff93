"""Personalised algorithms are scored with the clients' own models, on the clients' own test sets."""

from dataclasses import replace

import pytest
import torch

import fedgbo
from fedgbo.algorithms import ALGORITHMS, PERSONALISED
from fedgbo.data.federated import hold_out
from fedgbo.reports.load import load_run
from fedgbo.reports.report_files import clients_table
from fedgbo.reports.sections import sections_of
from fedgbo.runs.config import RunConfig, execute
from fedgbo.runs.folder import RunFolder
from fedgbo.runs.loop import GLOBAL_SCORES
from fedgbo.runs.memory import ClientMemory
from fedgbo.tasks.digits import digits_clients
from tests.conftest import make_task
from tests.examples import ALGORITHMS as EXAMPLES
from tests.runs.test_memory import Killed, kill_at


def own_tests():
    task = make_task(clients=4, batch_size=4, clients_per_round=2)
    return replace(task, data=hold_out(task.data, 0.25, by_client=True))


def test_the_catalogue_names_them():
    assert {name for name, algorithm in EXAMPLES.items() if algorithm.personalised} == set(PERSONALISED)
    assert EXAMPLES.keys() == ALGORITHMS.keys()
    assert fedgbo.FedBuff(EXAMPLES["ditto"]).personalised


@pytest.mark.parametrize("name", [*PERSONALISED, "fedavg", "scaffold"])
def test_scores_are_those_of_the_models_that_clients_use(name, tmp_path):
    """Computed again from the checkpoint, the states on disk and the outputs of the module."""
    task, algorithm = own_tests(), EXAMPLES[name]
    result = fedgbo.run(task, algorithm, rounds=3, out=tmp_path / "run")
    checkpoint, _ = RunFolder(tmp_path / "run").latest()
    x0 = fedgbo.run(task, algorithm, rounds=1, callbacks=[fedgbo.Progress.stop]).params
    memory, initial = ClientMemory(tmp_path / "run" / "clients", checkpoint.clients), algorithm.client_state(x0)
    correct, total = 0, 0
    for client in range(4):
        begin, end = task.data.client_tests.offsets[client : client + 2]
        inputs, labels = task.data.client_tests.samples.batch(torch.arange(begin, end).numpy())
        params = algorithm.personal(result.params, memory.load(client, initial))
        model = result.origin.finished(params, None)
        hits = (model(inputs.float()).argmax(1) == labels).sum().item()
        assert result.client_scores[client]["accuracy"] == pytest.approx(hits / len(labels))
        correct, total = correct + hits, total + len(labels)
    assert result.accuracy == pytest.approx(correct / total)
    assert result.history[-1].note is None or GLOBAL_SCORES not in result.history[-1].note
    assert fedgbo.load(tmp_path / "run").client_scores == result.client_scores
    assert fedgbo.evaluate(result, task, per_client=True).clients == result.client_scores


def test_the_model_of_a_client(tmp_path):
    """Ditto's v is on disk; without a folder it is gone with the run, and nothing else is taken for it."""
    task, ditto = own_tests(), fedgbo.Ditto(fedgbo.SGD(0.2), lam=0.1)
    result = fedgbo.run(task, ditto, rounds=3, out=tmp_path / "run")
    begin, end = task.data.client_tests.offsets[1:3]
    inputs, labels = task.data.client_tests.samples.batch(torch.arange(begin, end).numpy())
    own = torch.nn.functional.cross_entropy(result.model(client=1)(inputs.float()), labels)
    assert result.client_scores[1]["loss"] == pytest.approx(own.item())
    assert own.item() != pytest.approx(torch.nn.functional.cross_entropy(result.model()(inputs.float()), labels).item())
    with pytest.raises(fedgbo.ConfigError, match="there is no client 4; the task has clients 0 to 3"):
        result.model(client=4)
    lost = fedgbo.run(task, ditto, rounds=1)
    with pytest.raises(fedgbo.ConfigError, match="this result has no models of clients; they are in the result of run"):
        lost.model(client=1)
    with pytest.raises(fedgbo.ConfigError, match="clients have models of their own, which this result does not hold"):
        fedgbo.evaluate(lost, task, per_client=True)
    assert len(fedgbo.evaluate(lost.state, task, per_client=True).clients) == 4
    with pytest.raises(fedgbo.ConfigError, match="clients have models of their own"):
        fedgbo.evaluate(fedgbo.load(tmp_path / "run"), task, per_client=True)
    again = fedgbo.run(task, ditto, rounds=3, out=tmp_path / "run", resume=True)
    assert torch.equal(again.own_models(1).params, result.own_models(1).params)


def test_without_test_sets_of_clients_the_record_says_so():
    result = fedgbo.run(make_task(clients=4), EXAMPLES["ditto"], rounds=1)
    assert GLOBAL_SCORES in result.history[-1].note
    assert not result.client_scores
    assert fedgbo.run(make_task(clients=4), EXAMPLES["fedavg"], rounds=1).history[-1].note is None


def test_the_validation_part_is_scored_with_own_models_too():
    """With λ = 0 and a rate of 0.2, v is trained alone: validation scores differ from the global model's."""
    task = own_tests()
    data = fedgbo.FederatedData(
        task.data.train, task.data.offsets, None, task.data.client_tests, task.data.client_tests
    )
    both = replace(task, data=data)
    record = fedgbo.run(both, fedgbo.Ditto(fedgbo.SGD(0.2), lam=0.0), rounds=3).history[-1]
    assert record.validation_loss == pytest.approx(record.loss)
    assert record.loss != pytest.approx(fedgbo.run(both, fedgbo.FedAvg(fedgbo.SGD(0.2)), rounds=3).loss)


def test_a_killed_run_is_resumed_with_the_same_scores(tmp_path):
    task, algorithm = own_tests(), EXAMPLES["fedrep"]
    whole = fedgbo.run(task, algorithm, rounds=6, eval_every=1)
    with pytest.raises(Killed):
        fedgbo.run(task, algorithm, rounds=6, eval_every=1, out=tmp_path / "cut", callbacks=[kill_at(3)])
    resumed = fedgbo.run(task, algorithm, rounds=6, eval_every=1, out=tmp_path / "cut", resume=True)
    assert [record.scores for record in resumed.history] == [record.scores for record in whole.history]
    assert resumed.client_scores == whole.client_scores


def test_the_report_has_a_table_of_clients(tmp_path):
    for name, table in {"fedavg": {}, "ditto": {"lam": 0.5}, "fedper": {"personal_part": 650}}.items():
        settings = {"name": name, "optimiser": {"name": "sgd", "lr": 0.2}, **table}
        config = RunConfig(task={"name": "digits-clients"}, algorithm=settings, rounds=2, local_steps=2)
        execute(config, tmp_path / name)
    (section,) = sections_of(load_run(tmp_path / name) for name in ("fedavg", "ditto", "fedper"))
    table = clients_table(section)
    assert [row[0].ours for row in table.rows] == ["fedavg", "ditto", "fedper"]
    scores = fedgbo.load(tmp_path / "fedper").history[-1].scores
    assert table.rows[2][2].exact == pytest.approx(scores["clients.accuracy.mean"])
    assert table.rows[2][2].exact > table.rows[0][2].exact  # most clients have one or two digits


def test_digits_with_test_sets_of_clients():
    data = digits_clients().data
    assert data.test is None
    assert len(data.client_tests.samples) + len(data.train) == 1437


def test_a_personal_part_may_be_a_number():
    last = fedgbo.FedPer(fedgbo.SGD(0.2), 6)
    params = torch.arange(26.0)
    assert last.mask(params).nonzero().flatten().tolist() == list(range(20, 26))
    with pytest.raises(fedgbo.ConfigError, match="personal_part must be a whole number of at least 1, not 0"):
        fedgbo.FedPer(fedgbo.SGD(0.2), 0)
