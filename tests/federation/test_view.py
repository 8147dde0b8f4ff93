"""Events read while they are written, and said in sentences."""

import json

import pytest

from fedgbo.cli import federation_view
from fedgbo.cli.federation_view import sentence
from fedgbo.core import ConfigError, FederationError
from fedgbo.federation.monitor import Event, EventFile


def test_events_are_read_once_and_whole(tmp_path):
    events = EventFile(tmp_path)
    assert list(events.new()) == []
    file = tmp_path / "events.jsonl"
    file.write_text('{"kind": "joined", "node": 1}\n{"kind": "rou')
    assert [event.kind for event in events.new()] == ["joined"]
    with file.open("a") as more:
        more.write('nd"}\n[1]\nnonsense\n{"kind": 3}\n{"kind": "finished"}\n')
    assert [event.kind for event in events.new()] == ["round", "finished"]
    assert list(events.new()) == []
    assert list(EventFile(tmp_path, skip=True).new()) == []


def said(kind, **content):
    return sentence(Event(kind, content))


def test_every_event_has_its_sentence():
    assert said("joined", node="hospital-a", clients=[0, 3]) == "hospital-a hosts clients 0, 3"
    assert said("round", round=2, attempt=1, clients=[4]).startswith("round 2, attempt 2")
    rejected = said("rejected", round=2, client=4, node="hospital-a", reason="model has a NaN")
    assert "client 4 (hospital-a) rejected" in rejected
    assert rejected.endswith("in round 2: model has a NaN")
    assert "too late" in said("late", round=2, client=4)
    assert "1 usable updates, 3 needed" in said("abandoned", round=2, attempt=0, valid=1, needed=3)
    assert "node 8 is refused" in said("refused", node="node 8", reason="it has fedgbo 0.0")
    done = said(
        "done_round", round=2, of=5, took_part=[1, 2], sent_bytes=2048, received_bytes=1024,
        ledger_down=2000, ledger_up=1000, seconds={"waiting": 3.0, "sending": 0.5, "server": 0.01},
        accuracy=0.5, loss=1.0,
    )  # fmt: skip
    assert done == (
        "round 2 of 5 done, accuracy 50.0%, 2 clients took part, 2.00 KiB sent and 1.00 KiB received "
        "(by the ledger 1.95 KiB and 1000 B), 3.5 s (waiting 3.0 s, sending 0.5 s)"
    )
    assert "done, neg_mae -7.25, 1" in said(
        "done_round", round=2, of=5, took_part=[1], sent_bytes=1, received_bytes=1, ledger_down=1, ledger_up=1,
        accuracy=-7.25, metric="neg_mae",
    )  # fmt: skip
    assert said("of a later version") is None


def test_what_comes_from_outside_cannot_paint_the_terminal():
    line = said("refused", node="node 8", reason="[bold]\x1b[31mhello\nworld")
    assert "\x1b" not in line
    assert "\n" not in line
    assert r"\[bold]" in line


def test_events_as_json_lines_are_what_the_view_reads(tmp_path):
    (tmp_path / "events.jsonl").write_text(
        json.dumps({"kind": "waiting", "nodes": 1, "clients": 2, "wanted": 6}) + "\n"
    )
    (event,) = EventFile(tmp_path).new()
    assert sentence(event) == "waiting for nodes: 1 so far, with 2 of 6 clients"
    named = Event("waiting", {**event.content, "missing": ["hospital-b", "hospital-[c]"]})
    assert sentence(named) == r"waiting for hospital-b, hospital-\[c]: 1 so far, with 2 of 6 clients"


def test_a_check_that_cannot_be_made_does_not_hide_the_digest(tmp_path, monkeypatch):
    """The task may load the data of each node, so that nobody can repeat the run at one place."""

    def simulated(run):
        raise ConfigError("task hearts.py:hearts needs config")

    monkeypatch.setattr(federation_view, "digest_of", lambda run: "0123abcd")
    monkeypatch.setattr(federation_view, "simulated", simulated)
    with pytest.raises(FederationError, match=r"finished, with the digest 0123abcd, but cannot .* needs config"):
        federation_view.show_digests(tmp_path, simulate=True)
