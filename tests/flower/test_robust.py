"""What real networks and real clients do, with hand-made replies: each row of the table in docs/flower.md."""

import dataclasses
import json
import time
from copy import deepcopy

import httpx
import numpy as np
import pytest
import torch
from flwr.app import Array, ConfigRecord, Error, Message, RecordDict

import fedgbo
from fedgbo.core.errors import DivergenceError, FederationError, RunFolderError
from fedgbo.engines.serial import SerialEngine, Work
from fedgbo.flower import Strategy, client_app
from fedgbo.flower.order import KEY
from fedgbo.runs.folder import RunFolder
from tests.conftest import make_task
from tests.flower.federations import GBO, QUICK, events, everyone, federate, nodes, simulate, some, told
from tests.flower.grids import LocalGrid


def meddled(change, *, node=1, builder=everyone, since=1):
    """A grid on which one node's replies to training messages, from a round on, are not what they should be."""

    def meddle(reply, sender):
        trained = reply.metadata.message_type.startswith("train")
        if sender == node and trained and int(reply.metadata.group_id) >= since:
            return change(reply)
        return reply

    return LocalGrid(nodes(builder, 6), meddle)


def with_array(name, values):
    def change(reply):
        reply.content["up.0"][name] = values if isinstance(values, Array) else Array(values)
        return reply

    return change


def without(name):
    def change(reply):
        del reply.content["up.0"][name]
        return reply

    return change


def scaled(factor):
    def change(reply):
        reply.content["up.0"]["params"] = Array(reply.content["up.0"]["params"].numpy() * np.float32(factor))
        return reply

    return change


def saying(**more):
    """Let the client say other things of its update."""

    def change(reply):
        answer = json.loads(reply.content[KEY]["answer"])
        answer["clients"]["0"] |= more
        reply.content[KEY] = ConfigRecord({"answer": json.dumps(answer)})
        return reply

    return change


def answering(text):
    def change(reply):
        reply.content[KEY] = ConfigRecord({"answer": text})
        return reply

    return change


def empty(reply):
    return Message(RecordDict(), reply_to=asked(reply))


def asked(reply):
    """The message that a reply is to, as far as another reply needs it."""
    message = Message(RecordDict(), reply.metadata.src_node_id, reply.metadata.message_type)
    message.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    message.metadata.__dict__["_group_id"] = reply.metadata.group_id
    return message


P = sum(parameter.numel() for parameter in everyone().model().parameters())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (with_array("params", np.full(P, np.nan, np.float32)), "params has a NaN or an infinity"),
        (with_array("params", np.full(P, -np.inf, np.float32)), "params has a NaN or an infinity"),
        (with_array("params", np.zeros(P + 1, np.float32)), "shape"),
        (with_array("params", np.zeros(1, np.float32)), "shape"),  # it would broadcast
        (with_array("params", np.zeros(P, np.float64)), "type float64"),
        (with_array("params", Array("float32", (P,), "numpy.ndarray", b"garbage")), "no npy array"),
        (with_array("stats.m", np.zeros(P, np.float32)), r"an extra stats\.m"),
        (without("params"), "lacks params"),
        (scaled(1e6), "times the median of the others"),
        (saying(loss=float("nan")), "training loss is nan"),
        (saying(loss="much"), "training loss is much"),
        (saying(samples=-1), "used -1 samples"),
        (saying(samples=1e9), "used 1000000000.0 samples"),
        (answering("{"), "no JSON"),
        (answering("[" * 100_000), "no JSON"),
        (answering('{"round": 7, "attempt": 0, "clients": {}}'), "for another round"),
        (answering('{"round": 0, "attempt": 0, "clients": {}}'), "does not have this client's update"),
        (answering('{"round": 0, "attempt": 0, "clients": 3}'), "does not say which clients"),
        (empty, "no readable 'answer'"),
    ],
)
def test_an_update_that_is_not_sound_is_rejected_by_name_and_the_round_goes_on(change, reason, tmp_path):
    result = federate(everyone, grid=meddled(change), rounds=1, out=tmp_path / "run")
    (rejected,) = events(tmp_path / "run", "rejected")
    assert (rejected["round"], rejected["client"], rejected["node"]) == (1, 0, 1)
    assert reason.replace("\\", "") in rejected["reason"]
    (done,) = events(tmp_path / "run", "done_round")
    assert done["took_part"] == [1, 2, 3, 4, 5]
    assert told(result)[0] == told(without_client_zero())[0]


def without_client_zero():
    """What the other five clients alone give."""
    task = everyone()
    engine = SerialEngine(task, GBO, seed=0)
    state = GBO.init(engine.initial_params)
    result = engine.train(GBO, GBO.broadcast(state), [1, 2, 3, 4, 5], [2] * 5, 0)
    state = GBO.server_update(state, result.mean, result.steps).to(torch.float32)
    return fedgbo.Result(task, state, [])


def test_a_round_without_some_clients_is_booked_as_it_was(tmp_path):
    result = federate(everyone, grid=meddled(empty), rounds=1, out=tmp_path / "run")
    whole = simulate(everyone, rounds=1).history[-1]
    mine = result.history[-1]
    assert mine.upload_bytes == whole.upload_bytes * 5 / 6
    assert mine.flops == pytest.approx(whole.flops * 5 / 6)
    assert mine.download_bytes == whole.download_bytes  # the model went to all six


def raises(reply):
    return Message(Error(2, "RuntimeError: no such patient"), reply_to=asked(reply))


def test_a_client_that_raises_or_dies_is_dropped(tmp_path):
    federate(everyone, grid=meddled(raises), rounds=2, out=tmp_path / "run")
    dropped = events(tmp_path / "run", "dropped")
    assert [(event["round"], event["client"]) for event in dropped] == [(1, 0), (2, 0)]
    assert "the client app raised an error: RuntimeError: no such patient" in dropped[0]["reason"]


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
    assert dropped["reason"] == "its training failed: RuntimeError; the node's log says more"
    assert events(tmp_path / "run", "done_round")[0]["took_part"] == [0, 1, 2, 4, 5]


def test_a_client_that_is_too_late_is_dropped_at_the_deadline_and_never_counts_later(tmp_path):
    kept = []
    grid = meddled(lambda reply: kept.append(reply), since=1)  # the reply of round 1 is held back

    def late(progress):
        if progress.ledger.round == 1:
            grid.replies[kept[0].metadata.reply_to_message_id] = [kept[0]]
            grid.meddle = lambda reply, node: reply

    began = time.monotonic()
    result = federate(everyone, grid=grid, rounds=3, out=tmp_path / "run", callbacks=[late])
    assert time.monotonic() - began < 5
    (dropped,) = events(tmp_path / "run", "dropped")
    assert (dropped["round"], dropped["client"], dropped["reason"]) == (1, 0, "no reply within 0.3 s")
    (late_one,) = events(tmp_path / "run", "late")
    assert (late_one["round"], late_one["client"]) == (1, 0)
    took_part = [event["took_part"] for event in events(tmp_path / "run", "done_round")]
    assert took_part == [[1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]]
    assert result.history[-1].round == 3


def test_a_node_that_hangs_is_not_asked_again_at_once_and_holds_up_one_round_only(tmp_path):
    began = time.monotonic()
    options = dataclasses.replace(QUICK, deadline=1.0)
    federate(everyone, grid=meddled(lambda reply: None), rounds=4, options=options, out=tmp_path / "run")
    assert time.monotonic() - began < 3.5  # and not four deadlines
    reasons = [event["reason"] for event in events(tmp_path / "run", "dropped")]
    assert reasons[0] == "no reply within 1 s"
    assert reasons[1] == "its node has not answered an earlier round yet"


def test_a_second_reply_to_a_message_never_counts():
    def twice(reply):
        second = scaled(3.0)(Message(deepcopy(reply.content), reply_to=asked(reply)))
        return [reply, second]

    grid = meddled(twice)
    assert told(federate(everyone, grid=grid)) == told(simulate(everyone))


def test_a_reply_to_another_message_never_counts(tmp_path):
    def stray(reply):
        reply.metadata.__dict__["_reply_to_message_id"] = "message-of-somebody-else"
        return reply

    federate(everyone, grid=meddled(stray), rounds=1, out=tmp_path / "run")
    (dropped,) = events(tmp_path / "run", "dropped")
    assert dropped["reason"] == "no reply within 0.3 s"


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


def none_in_the_second_round():
    """A grid that loses all replies of the second round's first attempt."""

    def meddle(reply, node):
        if reply.metadata.group_id == "2" and not grid.tried:
            grid.lost.add(node)
            grid.tried = len(grid.lost) == 6
            return raises(reply)
        return reply

    grid = LocalGrid(nodes(everyone, 6), meddle)
    grid.lost, grid.tried = set(), False
    return grid


def test_a_round_below_quorum_leaves_no_trace_and_is_tried_again(tmp_path):
    result = federate(everyone, grid=none_in_the_second_round(), rounds=3, out=tmp_path / "run")
    assert told(result) == told(simulate(everyone, rounds=3))
    (abandoned,) = events(tmp_path / "run", "abandoned")
    assert (abandoned["round"], abandoned["attempt"], abandoned["valid"], abandoned["needed"]) == (2, 0, 0, 3)


def test_after_some_attempts_the_run_stops_with_x_and_s_as_they_were_and_can_be_resumed(tmp_path):
    def broken(reply, node):
        return raises(reply) if reply.metadata.group_id == "3" else reply

    with pytest.raises(FederationError, match="round 3 was abandoned 3 times: fewer than the 3 good updates"):
        federate(everyone, grid=LocalGrid(nodes(everyone), broken), rounds=4, out=tmp_path / "run")
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["status"], status["round"]) == ("interrupted", 2)
    assert events(tmp_path / "run", "stopped")
    assert told(federate(everyone, rounds=4, out=tmp_path / "run", resume=True)) == told(simulate(everyone, rounds=4))


def test_a_round_tried_again_has_others_in_the_place_of_those_who_left(tmp_path):
    class Shrinking(LocalGrid):
        def get_node_ids(self):
            return [1, 2, 3] if self.gone else list(self.nodes)

    def leave(reply, node):
        if reply.metadata.message_type.startswith("train") and node > 3:
            grid.gone = True
            return Message(Error(5, "node left"), reply_to=asked(reply))
        return reply

    grid = Shrinking(nodes(some, 6), leave)
    grid.gone = False
    options = dataclasses.replace(QUICK, quorum=3, wait=5)
    federate(some, grid=grid, rounds=1, options=options, out=tmp_path / "run")
    first, second = events(tmp_path / "run", "round")
    assert set(second["clients"]) == {0, 1, 2} != set(first["clients"])
    assert "the node is gone: node left" in events(tmp_path / "run", "dropped")[0]["reason"]


def test_over_selection_takes_the_first_good_updates(tmp_path):
    options = dataclasses.replace(QUICK, over_select=2, deadline=30)
    cohort = events_of_plain_round(tmp_path / "plain")
    grid = meddled(lambda reply: None, node=cohort[0] + 1, builder=some)
    federate(some, grid=grid, rounds=1, options=options, out=tmp_path / "run")
    (asked_for,) = events(tmp_path / "run", "round")
    assert len(asked_for["clients"]) == 5
    assert asked_for["clients"][:3] == cohort
    (done,) = events(tmp_path / "run", "done_round")
    assert len(done["took_part"]) == 3
    assert cohort[0] not in done["took_part"]
    assert events(tmp_path / "run", "dropped")[0]["reason"] == "enough others were faster"


def events_of_plain_round(folder):
    federate(some, rounds=1, out=folder)
    return events(folder, "round")[0]["clients"]


def test_over_selection_with_everybody_in_time_is_the_plain_round():
    options = dataclasses.replace(QUICK, over_select=3)
    grid = LocalGrid(nodes(some, 1))  # all in one reply
    assert told(federate(some, grid=grid, options=options))[0] == told(simulate(some))[0]


def test_nobody_connects(tmp_path):
    with pytest.raises(FederationError, match=r"0 nodes joined within 0\.5 s, and it takes 1; start the nodes"):
        federate(everyone, grid=LocalGrid([]), out=tmp_path / "run")
    assert events(tmp_path / "run", "waiting")[0]["nodes"] == 0
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "interrupted"


def test_fewer_nodes_than_asked_for():
    options = dataclasses.replace(QUICK, min_nodes=4)
    with pytest.raises(FederationError, match="2 nodes joined within"):
        federate(everyone, grid=LocalGrid(nodes(everyone, 6)[:2]), options=options)


def test_a_node_that_comes_later_takes_part(tmp_path):
    grid = LocalGrid(nodes(everyone, 6)[:5])
    app = nodes(everyone, 6)[5]

    def come(progress):
        if progress.ledger.round == 1:
            grid.nodes[6] = app
            time.sleep(1.05)  # nodes are looked for once a second

    federate(everyone, grid=grid, rounds=4, out=tmp_path / "run", callbacks=[come])
    took_part = [event["took_part"] for event in events(tmp_path / "run", "done_round")]
    assert took_part[0] == [0, 1, 2, 3, 4]
    assert took_part[-1] == [0, 1, 2, 3, 4, 5]
    assert events(tmp_path / "run", "dropped")[0]["reason"] == "no node hosts it now"


def test_a_client_that_two_nodes_host_is_the_first_ones(tmp_path):
    homes = [*nodes(everyone, 3), (client_app(everyone), {"clients": "0"})]
    result = federate(everyone, grid=LocalGrid(homes), out=tmp_path / "run")
    assert told(result) == told(simulate(everyone))
    (twice,) = events(tmp_path / "run", "duplicate")
    assert (twice["client"], twice["node"], twice["kept"]) == (0, 4, 1)


def introduced(**more):
    """A grid whose first node says other things of itself."""

    def meddle(reply, node):
        if node == 1 and reply.metadata.message_type.startswith("query"):
            answer = json.loads(reply.content[KEY]["answer"]) | more
            reply.content[KEY] = ConfigRecord({"answer": json.dumps(answer)})
        return reply

    return LocalGrid(nodes(everyone, 6), meddle)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"version": "0.0.1"}, "it has fedgbo 0.0.1, the server"),
        ({"model": "other"}, "its model has other parameters"),
        ({"clients": [6]}, "it says it hosts a client 6, and there are 6"),
        ({"clients": ["0"]}, "it says it hosts a client 0"),
        ({"clients": None}, "does not say which clients"),
        ({"samples": [0]}, "client 0 has 0 samples"),
        ({"samples": [-3]}, "client 0 has -3 samples"),
        ({"samples": [float("nan")]}, "client 0 has nan samples"),
        ({"samples": [10**15]}, "samples"),
        ({"error": "no data here"}, "no data here"),
    ],
)
def test_a_node_that_does_not_fit_is_refused_at_join(more, reason, tmp_path):
    federate(everyone, grid=introduced(**more), rounds=1, out=tmp_path / "run")
    (refused,) = events(tmp_path / "run", "refused")
    assert refused["node"] == 1
    assert reason in refused["reason"]
    assert events(tmp_path / "run", "done_round")[0]["took_part"] == [1, 2, 3, 4, 5]


def test_a_node_with_another_version_says_so_at_the_node(monkeypatch, caplog, tmp_path):
    monkeypatch.setattr("fedgbo.flower.strategy.__version__", "9.9")
    with pytest.raises(FederationError, match="0 nodes joined"):
        federate(everyone, out=tmp_path / "run")
    assert "this node cannot take part" in caplog.text
    assert "the server has fedgbo 9.9" in caplog.text
    assert len(events(tmp_path / "run", "refused")) == 3


class Own(fedgbo.FedAvg):
    """An algorithm of the user's."""


def test_a_node_loads_no_file_that_the_server_names(tmp_path):
    algorithm = Own(fedgbo.SGD(lr=0.1))
    with pytest.raises(FederationError):
        federate(everyone, algorithm, out=tmp_path / "run")
    assert "the algorithm Own is not known here" in events(tmp_path / "run", "refused")[0]["reason"]
    homes = [(client_app(everyone, own=[Own]), {"partition-id": i, "num-partitions": 3}) for i in range(3)]
    assert told(federate(everyone, algorithm, grid=LocalGrid(homes))) == told(simulate(everyone, algorithm))


def test_the_mean_by_samples_is_that_of_validated_counts(tmp_path):
    task = lopsided()
    options = dataclasses.replace(QUICK, weighted=True)
    ours = federate(lopsided, fedgbo.FedAvg(fedgbo.SGD(lr=0.1)), options=options, rounds=1)
    algorithm = fedgbo.FedAvg(fedgbo.SGD(lr=0.1))
    engine = SerialEngine(task, algorithm, seed=0)
    work = Work(algorithm, fedgbo.State(engine.initial_params), 0)
    ups = [engine.train_client(engine.model, work, c, 2).up.params.double() for c in range(3)]
    mean = (1 * ups[0] + 2 * ups[1] + 5 * ups[2]) / 8
    assert torch.allclose(ours.params.double(), engine.initial_params - mean, atol=1e-7)


def lopsided():
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(n, 3)), rng.integers(0, 2, n)) for n in (4, 8, 20)]
    data = fedgbo.FederatedData.from_clients(train=pairs, test=pairs[0])
    return fedgbo.Task("lopsided", data, lambda: torch.nn.Linear(3, 2), None, 4)


def test_a_state_that_is_no_longer_finite_stops_the_run_before_it_is_saved(tmp_path):
    wild = fedgbo.AdaptiveFedOpt(fedgbo.SGD(lr=0.1), fedgbo.SGD(lr=1e40))
    with pytest.raises(DivergenceError, match="params is no longer finite after round"):
        federate(everyone, wild, rounds=5, out=tmp_path / "run")
    assert "params is no longer finite after round" in events(tmp_path / "run", "stopped")[0]["reason"]
    checkpoint, _ = RunFolder(tmp_path / "run").latest()
    assert checkpoint.state.not_finite() is None


def test_a_killed_server_resumes_to_the_same_bits(tmp_path):
    class Killed(BaseException):
        pass

    def kill(progress):
        if progress.ledger.round == 2:
            raise Killed

    with pytest.raises(Killed):
        federate(some, rounds=4, out=tmp_path / "run", callbacks=[kill])
    assert told(federate(some, rounds=4, out=tmp_path / "run", resume=True)) == told(simulate(some, rounds=4))
    assert [event["round"] for event in events(tmp_path / "run", "done_round")] == [1, 2, 3, 4]


def test_a_folder_in_use_is_refused_and_nothing_is_written_into_it(tmp_path):
    refusals = []

    def second(progress):
        with pytest.raises(RunFolderError, match="in use by another process") as error:
            federate(everyone, out=tmp_path / "run", resume=True)
        refusals.append(error)

    federate(everyone, out=tmp_path / "run", callbacks=[second])
    assert refusals
    assert not events(tmp_path / "run", "stopped")


def test_a_checkpoint_that_is_damaged_or_of_another_run_is_refused(tmp_path):
    federate(everyone, out=tmp_path / "run")
    strategy = Strategy(everyone(), GBO, local_steps=2, seed=1, options=QUICK)
    with pytest.raises(RunFolderError, match="holds a checkpoint of another run: its seed"):
        strategy.start(LocalGrid(nodes(everyone)), rounds=3, out=tmp_path / "run", resume=True)
    for file in (tmp_path / "run" / "checkpoints").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(RunFolderError, match="is damaged or no checkpoint"):
        federate(everyone, rounds=3, out=tmp_path / "run", resume=True)


def test_a_superlink_that_is_gone_ends_the_run_in_our_words(tmp_path):
    grid = LocalGrid(nodes(everyone))

    def gone(progress):
        if progress.ledger.round == 1:

            def refuse(ids):
                raise httpx.ConnectError("refused")

            grid.pull_messages = refuse

    with pytest.raises(FederationError, match="the connection to the SuperLink broke"):
        federate(everyone, grid=grid, rounds=3, out=tmp_path / "run", callbacks=[gone])
    assert told(federate(everyone, rounds=3, out=tmp_path / "run", resume=True)) == told(simulate(everyone, rounds=3))
