import json

import numpy as np
import pytest
import torch
from torch import nn

import fedgbo
from fedgbo.algorithms import ALGORITHMS, PAPER
from fedgbo.engines.plain import PlainEngine
from fedgbo.runs.folder import RunFolder
from tests.conftest import make_task

GBO = fedgbo.FedGBO(fedgbo.SGDm(lr=0.3, beta=0.9))


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state.tensors().values(), b.state.tensors().values(), strict=True))


def scores(result):
    return [(r.round, r.loss, r.accuracy, r.train_loss, r.upload_bytes, r.flops) for r in result.history]


def test_the_five_lines():
    rng = np.random.default_rng(0)
    x, centres = rng.normal(size=(300, 20)), rng.normal(size=(20, 3))
    y = (x @ centres).argmax(1)
    x0, y0, x1, y1, xt, yt = x[:100], y[:100], x[100:200], y[100:200], x[200:], y[200:]

    data = fedgbo.FederatedData.from_clients(train=[(x0, y0), (x1, y1)], test=(xt, yt))
    task = fedgbo.Task(name="mine", data=data, model=lambda: nn.Linear(20, 3), clients_per_round=2, batch_size=8)
    result = fedgbo.run(task, fedgbo.FedGBO(fedgbo.SGDm(lr=0.1, beta=0.9)), rounds=20, local_steps=10, seed=0)
    assert result.accuracy > 0.8
    assert result.params.shape == result.state.stats["m"].shape == (63,)

    outputs = result.model()(torch.as_tensor(xt, dtype=torch.float32))
    assert (outputs.argmax(1).numpy() == yt).mean() == pytest.approx(result.accuracy)


def test_the_same_seed_gives_the_same_bits():
    task = make_task(batch_size=4, clients_per_round=2)
    first, again = (fedgbo.run(task, GBO, rounds=5) for _ in range(2))
    assert same(first, again)
    assert scores(first) == scores(again)
    assert not same(first, fedgbo.run(task, GBO, rounds=5, seed=1))


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint8])
def test_numbers_of_numpys(kind, tmp_path):
    task = make_task(batch_size=kind(4), clients_per_round=kind(2))
    steps = [kind(3), [kind(3)] * task.data.clients, np.full(task.data.clients, 3, kind), lambda client: kind(3)]
    expected = fedgbo.run(make_task(batch_size=4, clients_per_round=2), GBO, rounds=3, local_steps=3, seed=5)
    numbers = {"rounds": kind(3), "eval_every": kind(2), "workers": kind(1), "seed": kind(5)}
    for i, local_steps in enumerate(steps):
        got = fedgbo.run(task, GBO, local_steps=local_steps, **numbers, out=tmp_path / str(i))
        assert same(got, expected)
        assert json.loads((tmp_path / str(i) / "run.json").read_text())["config"]["rounds"] == 3


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16])
def test_hyperparameters_of_numpys_give_the_same_bits(kind):
    """Arithmetic of numpy's own would round to its type: 0.25 * 0.5**t in half precision, for one."""
    task = make_task(batch_size=4)

    def run(number):
        sgdm = fedgbo.SGDm(lr=fedgbo.Exponential(number(0.25), factor=number(0.5)), beta=number(0.5))
        algorithm = fedgbo.Mimelite(sgdm, objective=[fedgbo.Proximal(mu=number(0.125))])
        return fedgbo.run(task, algorithm, rounds=3, local_steps=3, transforms=[fedgbo.ClipNorm(number(0.5))])

    assert same(run(kind), run(float))


def test_the_number_of_threads_does_not_matter():
    first = fedgbo.run(make_task(batch_size=4), GBO, rounds=3)
    torch.set_num_threads(2)
    assert same(first, fedgbo.run(make_task(batch_size=4), GBO, rounds=3))
    assert torch.get_num_threads() == 2


def test_initial_params_in_the_order_of_parameters():
    task = make_task(model=lambda: nn.Linear(3, 2))
    stopped = fedgbo.run(task, GBO, rounds=1, initial_params=torch.arange(8.0), callbacks=[fedgbo.Progress.stop])
    assert stopped.params.tolist() == list(range(8))
    assert stopped.model().weight.tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(fedgbo.ConfigError, match="flat vector of 8 numbers"):
        fedgbo.run(task, GBO, rounds=1, initial_params=torch.zeros(7))
    with pytest.raises(fedgbo.ConfigError, match="NaN or an infinity"):
        fedgbo.run(task, GBO, rounds=1, initial_params=torch.full((8,), torch.nan))


def test_evaluations_and_callbacks(task):
    seen = []
    result = fedgbo.run(task, GBO, rounds=7, eval_every=3, callbacks=[lambda p: seen.append(p.ledger.round)])
    assert [record.round for record in result.history] == [0, 3, 6, 7]
    assert seen == list(range(8))
    assert result.history[0].train_loss is None


@pytest.mark.parametrize("name", [*PAPER, "scaffold"])
def test_what_is_sent_is_counted(name):
    """Table 1: downloads and uploads in units of |x|, for SGDm."""
    down = {"mfl": (2, 2), "mimelite": (2, 2), "mimexlite": (2, 2), "fedgbo": (2, 1), "scaffold": (2, 2)}
    down, up = down.get(name, (1, 1))
    sgd, sgdm = fedgbo.SGD(lr=0.1), fedgbo.SGDm(lr=0.1, beta=0.9)
    algorithm = {
        "fedavg": lambda: fedgbo.FedAvg(sgd),
        "fedprox": lambda: fedgbo.FedProx(sgd, mu=0.1),
        "fedmax": lambda: fedgbo.FedMAX(sgd, beta=0.1),
        "adaptivefedopt": lambda: fedgbo.AdaptiveFedOpt(sgd, sgdm),
        "scaffold": lambda: fedgbo.SCAFFOLD(sgd),
    }.get(name, lambda: ALGORITHMS[name](sgdm))()
    last = fedgbo.run(make_task(clients_per_round=3), algorithm, rounds=2).history[-1]
    size = (3 * 4 + 4 + 4 * 2 + 2) * 4  # bytes of |x|
    assert last.download_bytes == 2 * 3 * down * size
    assert last.upload_bytes == 2 * 3 * up * size


def test_flops_by_hand():
    """Appendix B with |x| = 26, F = 20 products, K = 5, B = 4, n = 12, two clients, three rounds."""
    task = make_task(clients_per_round=2, batch_size=4)
    minibatches = 5 * 4 * 3 * 20
    for algorithm, expected in {
        fedgbo.FedAvg(fedgbo.SGD(0.1)): minibatches + 5 * 2 * 26,
        fedgbo.FedProx(fedgbo.SGD(0.1), 0.1): minibatches + 5 * 5 * 26,
        fedgbo.FedGBO(fedgbo.Adam(0.1, 0.9)): minibatches + 5 * 8 * 26,
        fedgbo.MFL(fedgbo.SGDm(0.1, 0.9)): minibatches + 5 * 8 * 26,
        fedgbo.Mimelite(fedgbo.RMSProp(0.1, 0.9)): minibatches + 12 * 3 * 20 + 5 * 5 * 26,
    }.items():
        result = fedgbo.run(task, algorithm, rounds=3, local_steps=5)
        assert result.history[-1].flops == 3 * 2 * expected


@pytest.mark.parametrize("stop_at", [1, 4, 9])
def test_resume_is_bit_for_bit(tmp_path, stop_at):
    task = make_task(batch_size=4, clients_per_round=2)
    algorithm = fedgbo.FedGBO(fedgbo.Adam(lr=fedgbo.InverseSqrt(0.1), beta1=0.9))
    whole = fedgbo.run(task, algorithm, rounds=12, eval_every=4)

    def interrupt(progress):
        if progress.ledger.round == stop_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedgbo.run(task, algorithm, rounds=12, eval_every=4, out=tmp_path / "run", callbacks=[interrupt])
    assert RunFolder(tmp_path / "run").status()["status"] == "interrupted"
    resumed = fedgbo.run(task, algorithm, rounds=12, eval_every=4, out=tmp_path / "run", resume=True)
    assert same(whole, resumed)
    assert scores(whole) == scores(resumed)
    kept = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in kept] == [0, 4, 8, 12]
    assert RunFolder(tmp_path / "run").status() == {
        "status": "finished", "round": 12, "rounds": 12, "accuracy": whole.accuracy
    }  # fmt: skip


def test_an_evaluation_that_was_interrupted_is_made_up_for(tmp_path, monkeypatch):
    task = make_task(batch_size=4, clients_per_round=2)
    whole = fedgbo.run(task, GBO, rounds=6, eval_every=2)
    evaluate, calls = PlainEngine.evaluate, []

    def interrupted(engine, server, own_buffers):
        calls.append(server)
        if len(calls) == 3:  # after round 4
            raise KeyboardInterrupt
        return evaluate(engine, server, own_buffers)

    monkeypatch.setattr(PlainEngine, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fedgbo.run(task, GBO, rounds=6, eval_every=2, out=tmp_path / "run")
    resumed = fedgbo.run(task, GBO, rounds=6, eval_every=2, out=tmp_path / "run", resume=True)
    assert scores(resumed) == scores(whole)
    assert same(whole, resumed)


def test_resuming_a_finished_run_gives_its_result_and_more_rounds_extend_it(tmp_path, task):
    first = fedgbo.run(task, GBO, rounds=4, out=tmp_path / "run", eval_every=2)
    again = fedgbo.run(task, GBO, rounds=4, out=tmp_path / "run", eval_every=2, resume=True)
    assert same(first, again)
    assert scores(first) == scores(again)
    longer = fedgbo.run(task, GBO, rounds=8, out=tmp_path / "run", eval_every=2, resume=True)
    assert scores(longer) == scores(fedgbo.run(task, GBO, rounds=8, eval_every=2))
    with pytest.raises(fedgbo.ConfigError, match="run has 8 rounds already; rounds must be at least that"):
        fedgbo.run(task, GBO, rounds=5, out=tmp_path / "run", eval_every=2, resume=True)


def test_divergence_stops_says_where_and_keeps_what_was(tmp_path):
    task = make_task(model=lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))
    with pytest.raises(fedgbo.DivergenceError, match=r"round \d+.*try a smaller lr"):
        fedgbo.run(task, fedgbo.FedAvg(fedgbo.SGD(lr=1e12)), rounds=50, out=tmp_path / "run", eval_every=1)
    folder = RunFolder(tmp_path / "run")
    assert folder.status()["status"] == "diverged"
    checkpoint, _ = folder.latest()
    assert checkpoint.state.not_finite() is None
    assert len(folder.records()) == checkpoint.ledger.round + 1


def test_a_statistic_that_is_not_finite_is_named(task):
    class Broken(fedgbo.FedGBO):
        def server_update(self, server, mean, steps):
            after = super().server_update(server, mean, steps)
            return fedgbo.State(after.params, {"m": after.stats["m"] + torch.inf})

    with pytest.raises(fedgbo.DivergenceError, match=r"stats.m is no longer finite after round 1"):
        fedgbo.run(task, Broken(fedgbo.SGDm(lr=0.1, beta=0.9)), rounds=3)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"rounds": 0}, "rounds must be a whole number of at least 1, not 0"),
        ({"rounds": 1, "local_steps": 0}, "local_steps must be a whole number of at least 1, not 0"),
        ({"rounds": 1, "local_steps": [1, 2]}, "local_steps has 2 numbers, but there are 4 clients"),
        ({"rounds": 1, "local_steps": [1, 2, 0, 1]}, r"local_steps\[2\] must be a whole number"),
        ({"rounds": 1, "local_steps": lambda t, c: 0}, r"local_steps\(0, 0\) must be a whole number"),
        ({"rounds": 1, "eval_every": 0}, "eval_every must be a whole number"),
        ({"rounds": 1, "seed": -1}, "seed must be a whole number from 0 to"),
    ],
)
def test_bad_settings(task, kwargs, message):
    with pytest.raises(fedgbo.ConfigError, match=message):
        fedgbo.run(task, GBO, **kwargs)


def test_what_is_no_algorithm(task):
    with pytest.raises(fedgbo.ConfigError, match="algorithm must be one such as"):
        fedgbo.run(task, "fedgbo", rounds=1)


def test_a_callback_comes_after_the_checkpoint_and_learns_where_the_time_went(task, tmp_path):
    seen = []

    def look(progress):
        seen.append((len(RunFolder(tmp_path / "run").checkpoints()), set(progress.seconds)))

    fedgbo.run(task, GBO, rounds=2, eval_every=2, out=tmp_path / "run", callbacks=[look], save_seconds=0.0)
    both = {"training", "server"}
    assert seen == [(0, {"evaluation"}), (1, both | {"saving"}), (2, both | {"evaluation", "saving"})]


def test_another_engine_or_pipeline_is_refused_on_a_resume(tmp_path):
    task = make_task(clients_per_round=2)
    fedgbo.run(task, GBO, rounds=2, out=tmp_path / "run", engine="plain", weights="samples")
    for changed in ({"weights": "samples"}, {"engine": "plain"}):
        with pytest.raises(fedgbo.RunFolderError, match=r"checkpoint of another run: its (engine|aggregator) is"):
            fedgbo.run(task, GBO, rounds=4, out=tmp_path / "run", resume=True, **changed)
    fedgbo.run(task, GBO, rounds=4, out=tmp_path / "run", resume=True, engine="plain", weights="samples")
    with pytest.raises(fedgbo.ConfigError, match="resume=True needs out="):
        fedgbo.run(task, GBO, rounds=4, resume=True)


class ReturnsTensor(fedgbo.FedAvg):
    def client_update(self, down, client):
        return down.params


class Forgets(fedgbo.FedGBO):
    def server_update(self, server, mean, steps):
        return fedgbo.State(server.params - mean.params)


class BroadcastsTensor(fedgbo.FedAvg):
    def broadcast(self, server):
        return server.params


def test_what_an_algorithm_returns_is_checked(task):
    sgd, sgdm = fedgbo.SGD(0.1), fedgbo.SGDm(0.1, 0.9)
    with pytest.raises(fedgbo.ConfigError, match=r"ReturnsTensor\.client_update must return a fedgbo\.State"):
        fedgbo.run(task, ReturnsTensor(sgd), rounds=1)
    with pytest.raises(fedgbo.ConfigError, match=r"BroadcastsTensor\.broadcast must return a fedgbo\.State"):
        fedgbo.run(task, BroadcastsTensor(sgd), rounds=1)
    with pytest.raises(fedgbo.ConfigError, match=r"server_update returned the statistics \[\], but there were \['m'\]"):
        fedgbo.run(task, Forgets(sgdm), rounds=1)
