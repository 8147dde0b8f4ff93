"""A metric of the user's own: its name and its values in tables, sentences, pictures and on the page."""

from dataclasses import replace

import pytest

from fedgbo.cli.report import _runs_table
from fedgbo.experiments.results import ResultSection, summary_table
from fedgbo.reports.comparison import conclusion, summarise
from fedgbo.reports.finding import accuracy_chart
from fedgbo.reports.load import group_runs
from fedgbo.reports.report_files import build_page
from fedgbo.reports.run_progress import Follower
from fedgbo.reports.sections import sections_of
from fedgbo.reports.terminal_table import plain_table
from fedgbo.runs.bar import score_of
from tests.reports.runs import FEDAVG, FEDGBO


@pytest.fixture
def runs(write):
    """Three seeds of FedAvg and FedGBO with an error, negated so that larger is better."""
    written = [write(FEDAVG, seed, [-15, -10, -9, -8 + seed / 10]) for seed in range(3)]
    written += [write(FEDGBO, seed, [-15, -8, -7, -6 - seed / 10]) for seed in range(3)]
    return [
        replace(run, records=tuple(replace(r, scores={"neg_mae": r.accuracy, "r2": 0.5}) for r in run.records))
        for run in written
    ]


def test_tables_and_sentences_have_its_name_and_its_values(runs):
    groups = group_runs(runs)
    table = summary_table([ResultSection("sensors", tuple(groups))], "compare", "t")
    assert table.columns[:2] == ("Algorithm", "Best neg_mae")
    assert [row[1].ours for row in table.rows] == ["-7.9 ± 0.25", "-6.1 ± 0.25"]
    assert table.rows[1][-2].ours == "+1.8 ± 0.5"
    text = plain_table(table.shortened())
    assert "accuracy" not in text
    assert "points" not in text
    assert conclusion(summarise(groups))[0].startswith(
        "FedGBO reached FedAvg's best neg_mae (-7.9) in 1.5x fewer rounds (20 instead of 30)"
    )
    assert score_of(runs[0].records[-1]) == "neg_mae -8"


def test_its_curves_lie_in_the_picture(runs):
    spec = accuracy_chart(group_runs(runs), "sensors").to_dict()
    assert spec["title"]["text"] == "FedGBO reached FedAvg's best neg_mae in 1.5x fewer rounds (three seeds)"
    upper = spec["vconcat"][0]["layer"]
    y = next(
        inner["encoding"]["y"] for layer in upper for inner in layer.get("layer", [layer]) if "title" in str(inner)
    )
    assert y["title"] == "test neg_mae"
    low, high = y["scale"]["domain"]
    assert low <= -15 < -6.1 <= high < 0


def test_the_page_names_it(runs):
    sections = sections_of(runs)
    page = build_page(sections, ["not shown"] * len(sections), [])
    assert "Rounds to FedAvg's best neg_mae, -7.9" in page
    assert "test neg_mae" in page
    assert "best accuracy" not in page


def test_watch_names_it(runs, tmp_path):
    views = [replace(view, metric="neg_mae") for view in Follower(tmp_path).look()]
    table = _runs_table(views, tmp_path, wide=False)
    assert [column.header for column in table.columns][2] == "neg_mae"
    assert "-8" in [str(cell) for cell in table.columns[2].cells]
