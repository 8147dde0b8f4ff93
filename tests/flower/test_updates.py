"""Clients that fail, lie or send garbage: each costs its own update, is named with the reason, and no more."""

import dataclasses

import numpy as np
import pytest
import torch
from flwr.app import Array, Context, RecordDict
from typer.testing import CliRunner

import fedgbo
from fedgbo.cli.main import app
from fedgbo.costs.operations import Meter
from fedgbo.engines.engine import Round
from fedgbo.engines.select import local_engine
from fedgbo.flower import server_app
from fedgbo.flower.registry import Registry
from fedgbo.pipeline import Pipeline
from fedgbo.pipeline.samplers import FixedSize
from tests.conftest import make_task
from tests.flower.federations import GBO, QUICK, events, everyone, federate, nodes, simulate, told
from tests.flower.grids import LocalGrid
from tests.flower.meddling import answering, empty, meddled, naming, raises, saying, scaled, with_array, without

P = sum(parameter.numel() for parameter in everyone().model().parameters())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (with_array("params", np.full(P, np.nan, np.float32)), "params has a NaN or an infinity"),
        (with_array("params", np.full(P, -np.inf, np.float32)), "params has a NaN or an infinity"),
        (with_array("params", np.zeros(P + 1, np.float32)), "shape"),
        (with_array("params", np.zeros(1, np.float32)), "shape"),  # it would broadcast
        (with_array("params", np.zeros(P, np.float64)), "type float64"),
        (with_array("params", Array("float32", (P,), "numpy.ndarray", b"garbage")), "not an npy array"),
        (with_array("stats.m", np.zeros(P, np.float32)), r"an extra stats\.m"),
        (without("params"), "lacks params"),
        (scaled(1e6), "times the median of the others"),
        (saying(loss=float("nan")), "training loss is nan"),
        (saying(loss="much"), "training loss is much"),
        (saying(loss=10**400), "training loss is 1000"),  # no float is as large
        (saying(loss=-1e200), "training loss is -1e+200"),  # no record takes it, and the run could not be resumed
        (saying(samples=-1), "used -1 samples"),
        (saying(samples=1e9), "used 1000000000.0 samples"),
        (answering("{"), "not JSON"),
        (answering("[" * 100_000), "not JSON"),
        (answering('{"round": 7, "attempt": 0, "clients": {}}'), "for another round"),
        (answering('{"round": 0, "attempt": 0, "clients": {}}'), "does not have this client's update"),
        (answering('{"round": 0, "attempt": 0, "clients": 3}'), "does not say which clients"),
        (empty, "no readable 'answer'"),
    ],
)
def test_an_update_that_is_not_sound_is_rejected_by_name_and_the_round_goes_on(change, reason, tmp_path):
    result = federate(everyone, grid=meddled(change), rounds=1, out=tmp_path / "run")
    (rejected,) = events(tmp_path / "run", "rejected")
    assert (rejected["round"], rejected["client"], rejected["node"]) == (1, 0, "node 1")
    assert reason.replace("\\", "") in rejected["reason"]
    (done,) = events(tmp_path / "run", "done_round")
    assert done["took_part"] == [1, 2, 3, 4, 5]
    assert told(result)[0] == told(without_client_zero())[0]


def test_a_reply_with_very_many_entries_is_not_read(tmp_path):
    federate(everyone, grid=meddled(naming("a", 20_001)), rounds=1, out=tmp_path / "run")
    (dropped,) = events(tmp_path / "run", "dropped")
    assert (dropped["client"], dropped["reason"]) == (0, "the reply has 20003 entries; at most 20000 are read")


def test_a_text_of_a_node_cannot_forge_lines_or_colours(tmp_path):
    text = "x\n\x1b[31mround 1 of 1 done\ud800\u202e"
    federate(everyone, grid=meddled(saying(error=text)), rounds=1, out=tmp_path / "run")
    (dropped,) = events(tmp_path / "run", "dropped")
    assert dropped["reason"] == r"its training failed: x\n\x1b[31mround 1 of 1 done\ud800\u202e"


def without_client_zero():
    """What the other five clients alone give."""
    task = everyone()
    engine = local_engine(task, GBO, seed=0)
    state = GBO.init(engine.origin.params)
    result = engine.train(work(GBO, state, [1, 2, 3, 4, 5]))
    return fedgbo.Result(task, GBO.server_update(state, result.mean, result.steps), [])


def work(algorithm, down, clients):
    return Round(0, algorithm, down, clients, [2] * len(clients), Pipeline(FixedSize(1)), Meter(algorithm))


def test_a_round_without_some_clients_is_booked_as_it_was(tmp_path):
    result = federate(everyone, grid=meddled(empty), rounds=1, out=tmp_path / "run")
    whole = simulate(everyone, rounds=1).history[-1]
    mine = result.history[-1]
    assert mine.upload_bytes == whole.upload_bytes * 5 / 6
    assert mine.flops == pytest.approx(whole.flops * 5 / 6)
    assert mine.download_bytes == whole.download_bytes  # the model went to all six


class Broken(torch.nn.Linear):
    """Fails on samples that are all above 100."""

    def forward(self, inputs):
        if bool((inputs > 100).all()):
            raise RuntimeError(f"secret {inputs[0]}")
        return super().forward(inputs)


def one_breaks():
    task = make_task(clients=6, batch_size=4, model=lambda: Broken(3, 2))
    task.data.train.inputs[36:48] = 200.0  # client 3's
    return task


def test_one_client_of_a_node_that_fails_costs_none_of_the_others_and_tells_no_data(tmp_path):
    federate(one_breaks, grid=LocalGrid(nodes(one_breaks, 2)), rounds=1, out=tmp_path / "run")
    (dropped,) = events(tmp_path / "run", "dropped")
    assert dropped["client"] == 3
    assert dropped["reason"] == "its training failed: DataError; the node's log says more"
    assert events(tmp_path / "run", "done_round")[0]["took_part"] == [0, 1, 2, 4, 5]


def test_the_mean_by_samples_is_that_of_validated_counts(tmp_path):
    task = lopsided()
    options = dataclasses.replace(QUICK, weighted=True)
    ours = federate(lopsided, fedgbo.FedAvg(fedgbo.SGD(lr=0.1)), options=options, rounds=1)
    algorithm = fedgbo.FedAvg(fedgbo.SGD(lr=0.1))
    engine = local_engine(task, algorithm, seed=0)
    order = [(client, 2) for client in range(3)]
    uploads = engine.uploads(work(algorithm, fedgbo.State(engine.origin.params), range(3)), order)
    ups = [upload.state.params.double() for upload in uploads]
    mean = (1 * ups[0] + 2 * ups[1] + 5 * ups[2]) / 8
    assert torch.allclose(ours.params.double(), engine.origin.params - mean, atol=1e-7)
    assert torch.equal(ours.params, fedgbo.run(task, algorithm, rounds=1, local_steps=2, weights="samples").params)


def lopsided():
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(n, 3)), rng.integers(0, 2, n)) for n in (4, 8, 20)]
    data = fedgbo.FederatedData.from_clients(train=pairs, test=pairs[0])
    return fedgbo.Task("lopsided", data, lambda: torch.nn.Linear(3, 2), None, 4)


def test_a_client_that_raises_or_dies_is_dropped(tmp_path):
    federate(everyone, grid=meddled(raises), rounds=2, out=tmp_path / "run")
    dropped = events(tmp_path / "run", "dropped")
    assert [(event["round"], event["client"]) for event in dropped] == [(1, 0), (2, 0)]
    assert dropped[0]["reason"] == "the client app raised an error; the node's log says more"
    assert "patient" not in (tmp_path / "run" / "events.jsonl").read_text()


def test_a_reply_that_flower_cannot_put_together_costs_that_node_only(tmp_path):
    grid, pull = meddled(lambda reply: reply), LocalGrid.pull_messages

    def breaking(self, ids):
        replies = pull(self, ids)
        if any(r.metadata.src_node_id == 1 and r.metadata.message_type.startswith("train") for r in replies):
            raise ValueError("Unexpected set of `children`")
        return replies

    grid.pull_messages = breaking.__get__(grid)
    federate(everyone, grid=grid, rounds=1, out=tmp_path / "run")
    (dropped,) = events(tmp_path / "run", "dropped")
    assert "the reply cannot be read: ValueError" in dropped["reason"]


def two():
    """Two clients, of which neither can be called the outlier."""
    return make_task(clients=2, batch_size=4)


def test_an_absurd_update_of_one_of_two_clients_names_the_client(tmp_path):
    grid = LocalGrid(nodes(two, 2), lambda reply, node: scaled(1e30)(reply) if trained_by(reply, node, 1) else reply)
    federate(two, grid=grid, rounds=1, out=tmp_path / "run")
    (rejected,) = events(tmp_path / "run", "rejected")
    assert rejected["client"] == 0
    assert "larger than max-update allows" in rejected["reason"]


def test_two_clients_are_compared_with_earlier_rounds(tmp_path):
    grid = LocalGrid(nodes(two, 2), lambda reply, node: scaled(1e4)(reply) if trained_by(reply, node, 2) else reply)
    federate(two, grid=grid, rounds=2, out=tmp_path / "run")
    (rejected,) = events(tmp_path / "run", "rejected")
    assert (rejected["round"], rejected["client"]) == (2, 0)
    assert "times the median of past rounds" in rejected["reason"]


def trained_by(reply, node, since):
    """Whether it is node 1's reply to a training message, in the round `since` or later."""
    return node == 1 and reply.metadata.message_type.startswith("train") and int(reply.metadata.group_id) >= since


def alike():
    """Seven hospitals whose patients are alike: the sign of a sum of features, which a linear model learns."""
    rng = np.random.default_rng(0)

    def draw(n):
        x = rng.normal(size=(n, 5)).astype(np.float32)
        return x, (x.sum(1) > 0).astype(np.int64)

    data = fedgbo.FederatedData.from_clients(train=[draw(40) for _ in range(7)], test=draw(400))
    return fedgbo.Task("alike", data, lambda: torch.nn.Linear(5, 2), batch_size=8)


def test_a_registered_sign_flipper_does_little_harm_to_a_median_and_a_trimmed_mean(tmp_path):
    """The flipped updates are five times as long as honest ones: within the bounds on norms."""

    def accuracy(name, factor, *settings):
        words = ["--task", f"{__file__}:alike", "--algorithm", "fedgbo", "--optimiser", "sgdm", "--rounds", "6"]
        words += ["lr=0.5", "beta=0.9", "local_steps=5", *settings]
        made = CliRunner().invoke(app, ["federation", "new", str(tmp_path / f"{name}-app"), *words])
        assert made.exit_code == 0, made.stderr

        def meddle(reply, node):
            trained = node == 1 and reply.metadata.message_type.startswith("train")
            return scaled(factor)(reply) if trained else reply

        for number in range(1, 8):
            Registry(tmp_path).add(f"hospital-{number}", number, b"key", str(number - 1))
        options = {"settings": str(tmp_path / f"{name}-app" / "settings.toml"), "nodes": str(tmp_path), "poll": 0.01}
        context = Context(1, 1, {}, RecordDict(), {"run-folder": str(tmp_path / name), **options})
        server_app(alike)(LocalGrid(nodes(alike, 7), meddle), context)
        assert not events(tmp_path / name, "rejected")
        return events(tmp_path / name, "done_round")[-1]["accuracy"]

    honest, harmed = accuracy("honest", 1), accuracy("harmed", -5)
    assert honest > 0.9
    assert harmed < honest - 0.2
    for aggregator in ("median", "trimmedmean"):
        assert accuracy(aggregator, -5, f"aggregator={aggregator}") > honest - 0.03
    assert accuracy("own share", -5, 'aggregator={ name = "trimmedmean", share = 0.3 }') > honest - 0.03
