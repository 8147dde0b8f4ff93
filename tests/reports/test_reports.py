"""Table 4's numbers by hand, from run folders written by hand."""

import json

import numpy as np
import pytest

import fedgbo
from fedgbo.reports.charts import accuracy_chart, save_chart
from fedgbo.reports.comparison import conclusion, confidence, summarise
from fedgbo.reports.load import group_runs
from tests.reports.runs import FEDAVG, FEDGBO


def test_best_and_match(write):
    runs = [
        write(FEDAVG, 0, [0.1, 0.4, 0.6, 0.7]),
        write(FEDAVG, 1, [0.1, 0.4, 0.8, 0.9]),
        write(FEDGBO, 0, [0.1, 0.8, 0.9, 0.85]),
        write(FEDGBO, 1, [0.1, 0.9, 0.9, 0.85]),
    ]
    groups = group_runs(runs)
    assert [group.label for group in groups] == ["fedavg", "fedgbo-sgdm"]
    avg, gbo = summarise(groups)
    assert avg.accuracy == pytest.approx(0.8)
    assert avg.best.round == 30
    assert avg.interval == pytest.approx(12.7062 * 0.1, rel=1e-4)  # t(0.975, 1) · 0.1414 / √2
    assert gbo.accuracy == pytest.approx(0.9)
    assert gbo.best.round == 20
    assert gbo.best.upload_bytes == 2000
    assert gbo.match.round == 10
    assert gbo.match.flops == 1e7
    assert gbo.interval == pytest.approx(0, abs=1e-12)


def test_an_equal_accuracy_matches_whatever_its_last_bit(write):
    groups = group_runs([write(FEDAVG, 0, [0.1, 0.2, 0.1 + 0.2]), write(FEDGBO, 0, [0.1, 0.3, 0.2])])
    assert 0.3 < 0.1 + 0.2
    assert summarise(groups)[1].match.round == 10


def test_an_accuracy_that_was_there_before_the_first_round(write):
    """There is no number of rounds to divide by."""
    rows = summarise(group_runs([write(FEDAVG, 0, [0.5, 0.2]), write(FEDGBO, 0, [0.5, 0.3])]))
    assert conclusion(rows) == ["fedgbo-sgdm had FedAvg's best accuracy (50.0%, round 0) before the first round."]


def test_never_matched_and_no_baseline(write):
    low = write(FEDGBO, 0, [0.1, 0.2])
    assert summarise(group_runs([low]))[0].match is None
    assert summarise(group_runs([write(FEDAVG, 0, [0.1, 0.5]), low]))[1].match is None
    assert summarise(group_runs([low]))[0].interval is None


def test_runs_of_different_length_are_compared_where_both_are(write):
    group = group_runs([write(FEDAVG, 0, [0.1, 0.2, 0.9]), write(FEDAVG, 1, [0.1, 0.4])])[0]
    assert group.rounds.tolist() == [0, 10]
    assert group.accuracy.tolist() == [[0.1, 0.2], [0.1, 0.4]]


def test_students_t():
    values = np.array([[1.0], [2.0], [3.0], [4.0], [5.0]])
    assert confidence(values)[0] == pytest.approx(2.7764 * np.sqrt(2.5 / 5), rel=1e-4)
    assert np.isnan(confidence(values[:1])[0])


def test_a_run_without_accuracy_is_named(write):
    with pytest.raises(fedgbo.RunFolderError, match="has no accuracy to show"):
        group_runs([write(FEDAVG, 0, [])])


def test_the_chart_is_drawn(write, tmp_path):
    groups = group_runs([write(FEDAVG, 0, [0.1, 0.5]), write(FEDAVG, 1, [0.2, 0.4]), write(FEDGBO, 0, [0.1, 0.8])])
    png, svg = save_chart(accuracy_chart(groups, "a title"), tmp_path / "chart")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert all(text in svg.read_text() for text in ("a title", "fedgbo-sgdm", "95% confidence"))
    spec = json.loads(accuracy_chart(groups, "a title").to_json())
    assert spec["layer"][0]["encoding"]["y2"]["field"] == "accuracy_high"


def test_a_picture_is_named_as_it_was_asked_for(write, tmp_path):
    """The end of a name is cut only if it is a picture's: 0.01 is none."""
    chart = accuracy_chart(group_runs([write(FEDAVG, 0, [0.1, 0.5])]), "a title")
    for asked in ("a.png", "a.SVG", "a"):
        assert [file.name for file in save_chart(chart, tmp_path / asked, ["svg"])] == ["a.svg"]
    assert save_chart(chart, tmp_path / "x-scale0.01", ["svg"])[0].name == "x-scale0.01.svg"
    with pytest.raises(fedgbo.ConfigError, match=r"cannot write .*nowhere/a.svg: No such file.*choose another place"):
        save_chart(chart, tmp_path / "nowhere" / "a.png", ["svg"])
