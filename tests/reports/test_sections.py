"""What is compared with what."""

import json

from fedgbo.reports.comparison import baseline_row
from fedgbo.reports.curves import DRIFT, measured
from fedgbo.reports.load import load_run
from fedgbo.reports.report_files import build_page, cost_table, runs_table, settings_table
from fedgbo.reports.sections import sections_of, shared_settings, slug
from tests.reports.runs import FEDAVG, FEDGBO


def texts(table):
    return [tuple(cell.ours for cell in row) for row in table.rows]


def test_a_section_for_each_task_and_number_of_steps(write):
    runs = [
        write(FEDGBO, 0, [0.1, 0.5], name="a"),
        write(FEDAVG, 0, [0.1, 0.4], name="b"),
        write(FEDAVG, 0, [0.1], name="c", local_steps=50),
        write(FEDAVG, 0, [0.1], name="d", task={"name": "cifar100"}),
        write(FEDAVG, 0, [0.1], name="e", task={"name": "cifar100", "data": "/x"}),
        write(FEDAVG, 0, [0.1], name="f", task={"name": "/home/me/mine.py:../<b>"}),
    ]
    sections = sections_of(runs)
    assert [section.title for section in sections] == [
        "../<b>, K = 10",
        "cifar100, K = 10 (task.data=default)",
        "cifar100, K = 10 (task.data=/x)",
        "digits, K = 10",
        "digits, K = 50",
    ]
    assert len({section.slug for section in sections}) == 5
    assert all(section.slug == slug(section.slug) for section in sections)
    assert [line.label for line in sections[3].lines] == ["fedavg", "fedgbo-sgdm"]  # the baseline first


def test_equal_names_are_told_apart_by_their_settings(write):
    faster = {"name": "fedavg", "optimiser": {"name": "sgd", "lr": 0.3}}
    runs = [
        write(FEDAVG, 0, [0.1, 0.4], name="a"),
        write(faster, 0, [0.1, 0.6], name="b"),
        write(FEDGBO, 0, [0.1, 0.6]),
    ]
    section = sections_of(runs)[0]
    assert [line.label for line in section.lines] == ["fedavg (lr=0.1)", "fedavg (lr=0.3)", "fedgbo-sgdm"]
    rows = section.summaries
    assert baseline_row(rows).label == "fedavg (lr=0.3)"  # the one that got furthest
    assert [row.match.round if row.match else None for row in rows] == [None, 10, 10]
    nothing = ("-",) * 6
    assert texts(cost_table(section))[0][5:] == ("-", "-", "-", "-", "-20.0", "-")
    assert texts(cost_table(section))[1][5:] == nothing


def test_what_is_left_out_is_named(write):
    runs = [
        write(FEDAVG, 0, [0.1, 0.2, 0.3], name="long"),
        write(FEDAVG, 0, [0.1, 0.2], name="copy"),
        write(FEDAVG, 1, [0.1, 0.2], name="short", status="diverged"),
        write(FEDGBO, 0, [], name="begun", status=None),
    ]
    section = sections_of(runs)[0]
    notes = {note.path.name: note.reason for note in section.notes}
    assert notes.keys() == {"copy", "short", "begun"}
    assert "has the same settings and seed" in notes["copy"]
    assert "ends at round 10 (diverged); the curve of fedavg ends there" in notes["short"]
    assert "no evaluation yet" in notes["begun"]
    assert [[run.path.name for run in line.runs] for line in section.lines] == [["long", "short"]]


def rewrite(run, change):
    """Change every record of a run's file; return the run as it is then."""
    file = run.path / "metrics.jsonl"
    records = [change(json.loads(line)) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return load_run(run.path)


def test_drift_that_not_all_seeds_measured_is_named_and_not_drawn(write):
    drifting = rewrite(write(FEDAVG, 0, [0.1, 0.2]), lambda record: {**record, "drift": {"cosine": 0.1}})
    section = sections_of([drifting, write(FEDAVG, 1, [0.1, 0.2])])[0]
    assert measured(DRIFT, section.lines) == []
    assert [(note.path.name, note.reason) for note in section.notes] == [
        ("fedavg-1", "no drift was measured, so the drift of fedavg is not drawn")
    ]
    assert "<h3>Curves" in build_page([section], ["x"], [])
    alone = sections_of([drifting])[0]
    assert [axis.key for axis in measured(DRIFT, alone.lines)] == ["cosine"]
    assert alone.notes == ()


def test_seeds_without_a_round_in_common_have_no_mean(write):
    odd = rewrite(write(FEDAVG, 1, [0.1, 0.2]), lambda record: {**record, "round": record["round"] + 5})
    section = sections_of([write(FEDAVG, 0, [0.1, 0.2]), odd])[0]
    assert [[run.path.name for run in line.runs] for line in section.lines] == [["fedavg-1"]]
    assert "no round in common with other seeds" in section.notes[0].reason
    assert "<h3>Curves" in build_page([section], ["x"], [])


def test_tables(write):
    section = sections_of([write(FEDAVG, 0, [0.1, 0.5]), write(FEDAVG, 1, [0.1, 0.5]), write(FEDGBO, 0, [0.1, 0.6])])[0]
    costs = cost_table(section)
    assert costs.columns[:3] == ("Algorithm", "Best accuracy (%)", "Rounds")
    assert texts(costs) == [
        ("fedavg", "50.0", "10", "1000 B", "10.0 M", "-", "-", "-", "-", "-", "-"),
        ("fedgbo-sgdm", "60.0", "10", "1000 B", "10.0 M", "10", "1000 B", "10.0 M", "1.0x", "+10.0", "-"),
    ]
    assert [row[1].strong for row in costs.rows] == [False, True]
    assert shared_settings(section) == {"task": "digits", "optimiser.lr": "0.1", "local_steps": "10"}
    assert texts(settings_table(section)) == [
        ("fedavg", "optimiser = sgd"),
        ("fedgbo-sgdm", "optimiser = sgdm, optimiser.beta = 0.9"),
    ]
    assert texts(runs_table(section))[1][1:] == ("fedavg", "1", "finished", "10 of 30", "50.0%", "1.0 s")


def test_without_accuracy_there_is_no_table_of_costs(write):
    assert cost_table(sections_of([write(FEDAVG, 0, [None, None])])[0]) is None
