"""Rounds with late, lost and second replies, below quorum, with clients in reserve."""

import dataclasses
import json
import threading
import time
from copy import deepcopy

import pytest
from flwr.app import Error, Message

from fedgbo.core.errors import FederationError
from fedgbo.flower import exchange
from tests.flower.federations import QUICK, events, everyone, federate, nodes, simulate, some, told
from tests.flower.grids import LocalGrid
from tests.flower.meddling import asked, empty, meddled, raises, scaled


def test_a_client_that_is_too_late_is_dropped_at_the_deadline_and_never_counts_later(tmp_path):
    kept = []
    grid = meddled(lambda reply: kept.append(reply), since=1)  # the reply of round 1 is held back

    def late(progress):
        if progress.ledger.round == 1:
            grid.replies[kept[0].metadata.reply_to_message_id] = [kept[0]]
            grid.meddle = lambda reply, node: reply

    began = time.monotonic()
    result = federate(everyone, grid=grid, rounds=3, out=tmp_path / "run", callbacks=[late])
    assert time.monotonic() - began < 60  # a busy machine may take its time; waiting for the reply would not end
    (dropped,) = events(tmp_path / "run", "dropped")
    assert (dropped["round"], dropped["client"], dropped["reason"]) == (1, 0, "no reply within 0.3 s")
    (late_one,) = events(tmp_path / "run", "late")
    assert (late_one["round"], late_one["client"]) == (1, 0)
    took_part = [event["took_part"] for event in events(tmp_path / "run", "done_round")]
    assert took_part == [[1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]]
    assert result.history[-1].round == 3


def test_a_node_that_hangs_is_not_asked_again_at_once_and_holds_up_one_round_only(tmp_path):
    options = dataclasses.replace(QUICK, deadline=4.0)
    federate(everyone, grid=meddled(lambda reply: None), rounds=3, options=options, out=tmp_path / "run")
    reasons = [event["reason"] for event in events(tmp_path / "run", "dropped")]
    assert reasons == ["no reply within 4 s", *["its node has not answered an earlier round yet"] * 2]


def test_work_that_was_lost_is_sent_again_when_the_node_says_that_it_has_none(tmp_path, monkeypatch):
    monkeypatch.setattr(exchange, "ASK_SECONDS", 0.05)
    lost = []

    def first_is_lost(reply):
        lost.append(reply)
        return None if len(lost) < 3 else reply

    options = dataclasses.replace(QUICK, deadline=60.0)
    result = federate(everyone, grid=meddled(first_is_lost), options=options, out=tmp_path / "run")
    assert told(result) == told(simulate(everyone))
    assert not events(tmp_path / "run", "dropped")
    assert [(e["round"], e["client"], e["node"]) for e in events(tmp_path / "run", "lost")] == [(1, 0, "node 1")] * 2


def test_a_node_that_loses_everything_is_asked_a_few_times_and_is_free_after_the_deadline(tmp_path, monkeypatch):
    monkeypatch.setattr(exchange, "ASK_SECONDS", 0.05)
    options = dataclasses.replace(QUICK, deadline=3.0)
    federate(everyone, grid=meddled(lambda reply: None), rounds=2, options=options, out=tmp_path / "run")
    assert len(events(tmp_path / "run", "lost")) == 2 * exchange.MOST_RESENDS
    assert [event["reason"] for event in events(tmp_path / "run", "dropped")] == ["no reply within 3 s"] * 2


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
    assert "the node is gone; the node's log says more" in events(tmp_path / "run", "dropped")[0]["reason"]


def test_a_round_tried_again_has_others_in_the_place_of_those_who_lied(tmp_path):
    """Or else one liar could hold up its round for ever, in every attempt and after every resume."""
    cohort = events_of_plain_round(tmp_path / "plain")
    grid = meddled(empty, node=cohort[0] + 1, builder=some)
    options = dataclasses.replace(QUICK, quorum=3, deadline=30)
    federate(some, grid=grid, rounds=1, options=options, out=tmp_path / "run")
    first, second = events(tmp_path / "run", "round")
    assert first["clients"] == cohort
    assert second["clients"][:2] == cohort[1:]
    assert len(second["clients"]) == 3
    assert cohort[0] not in second["clients"]


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


def test_over_selection_waits_for_another_update_in_the_place_of_an_absurd_one(tmp_path):
    """A liar that is faster than the clients in reserve costs its own update, and not the round."""
    cohort = events_of_plain_round(tmp_path / "plain")
    grid = meddled(scaled(1e6, client=cohort[0]), node=cohort[0] + 1, builder=some)
    pull, looks = grid.pull_messages, []

    def slow_reserve(ids):
        for reply in grid.replies.get(ids[0], []):
            if reply.metadata.message_type.startswith("train") and reply.metadata.src_node_id - 1 not in cohort:
                looks.append(ids[0])
                if looks.count(ids[0]) < 3:
                    return []
        return pull(ids)

    grid.pull_messages = slow_reserve
    options = dataclasses.replace(QUICK, over_select=2, quorum=1.0, deadline=60)
    federate(some, grid=grid, rounds=1, options=options, out=tmp_path / "run")
    (rejected,) = events(tmp_path / "run", "rejected")
    assert rejected["client"] == cohort[0]
    (done,) = events(tmp_path / "run", "done_round")
    assert len(done["took_part"]) == 3
    assert set(cohort[1:]) < set(done["took_part"])
    assert not events(tmp_path / "run", "abandoned")


def test_a_reply_that_is_announced_and_not_delivered_holds_up_nobody_beyond_the_deadline(tmp_path):
    """Flower waits for its pieces: here, until the test lets it end."""
    grid, delivered = meddled(lambda reply: reply), threading.Event()
    pull = grid.pull_messages

    def stalled(ids):
        replies = grid.replies.get(ids[0], [])
        if any(r.metadata.src_node_id == 1 and r.metadata.message_type.startswith("train") for r in replies):
            delivered.wait(60)
        return pull(ids)

    def deliver(progress):
        if progress.ledger.round == 2:
            delivered.set()
            time.sleep(0.2)

    grid.pull_messages = stalled
    options = dataclasses.replace(QUICK, deadline=5.0)
    began = time.monotonic()
    federate(everyone, grid=grid, rounds=3, options=options, out=tmp_path / "run", callbacks=[deliver])
    assert time.monotonic() - began < 50
    first, second = events(tmp_path / "run", "dropped")
    assert (first["client"], first["reason"]) == (0, "no reply within 5 s")
    assert second["reason"] == "its node has not answered an earlier round yet"
    (late,) = events(tmp_path / "run", "late")
    assert (late["round"], late["client"]) == (1, 0)
    assert [len(done["took_part"]) for done in events(tmp_path / "run", "done_round")] == [5, 5, 6]


def events_of_plain_round(folder):
    federate(some, rounds=1, out=folder)
    return events(folder, "round")[0]["clients"]


def test_over_selection_with_everybody_in_time_is_the_plain_round():
    options = dataclasses.replace(QUICK, over_select=3)
    grid = LocalGrid(nodes(some, 1))  # all in one reply
    assert told(federate(some, grid=grid, options=options))[0] == told(simulate(some))[0]
