import pytest

from fedgbo.reports.charts import save_chart
from fedgbo.reports.sensitivity import SIDE, Scale, Tried, sensitivity_chart

RATE, DECAY = Scale("lr", None, False, True), Scale("beta", None, True, True)
SCORES = [("finished", 0.5), ("finished", 0.9), ("stopped early", 0.95), ("diverged", 0.99), ("diverged", None)]


def tried(*names):
    return [Tried(k, dict.fromkeys(names, 0.1 * (k + 1)), *SCORES[k], {}) for k in range(5)]


def drawn(spec):
    """All values that any part of a chart draws."""
    if isinstance(spec, dict):
        yield from spec.get("values", []) if isinstance(spec.get("values"), list) and "mark" not in spec else []
        for part in spec.values():
            yield from drawn(part)
    elif isinstance(spec, list):
        for part in spec:
            yield from drawn(part)


def test_the_best_of_those_that_went_to_the_end_is_ringed():
    chart = sensitivity_chart(tried("lr", "beta"), [RATE, DECAY], "title", "mean accuracy", 6).to_dict()
    rows = [row for row in drawn(chart) if isinstance(row, dict) and "score" in row]
    assert {row["score"] for row in rows} == {50.0, 90.0, 95.0}
    assert {row["score"] for row in rows if row["best"]} == {90.0}
    assert {row["text"] for row in rows} == {"50.0", "90.0", "stopped"}
    assert {round(row["beta"], 6) for row in rows} == {0.9, 0.8, 0.7}  # drawn by 1 - beta
    said = "5 settings, 2 of them tried to the end, on six seeds (filled); the best is ringed"
    assert chart["title"]["subtitle"] == said
    for panel in chart["hconcat"]:  # of the same size, so that the axes of lr have the same ticks
        assert (panel["width"], panel["height"]) == (SIDE, SIDE)
    stopped, ended, _ = chart["hconcat"][0]["layer"]
    legend = ended["encoding"]["color"]["legend"]
    assert (legend["orient"], legend["titleLimit"]) == ("top", SIDE)  # over its panel, with a title that is not cut
    assert (stopped["mark"]["type"], stopped["transform"][0]["filter"]) == ("point", "!(datum.state === 'finished')")
    assert (ended["mark"]["type"], ended["transform"][0]["filter"]) == ("circle", "datum.state === 'finished'")


@pytest.mark.parametrize(("names", "panels"), [(["lr"], 1), (["lr", "beta"], 3), (["lr", "server_lr", "beta"], 4)])
def test_a_map_and_a_panel_for_each_axis(names, panels, tmp_path):
    scales = [Scale(name, [0.1 * k for k in range(1, 6)], name == "beta", True) for name in names]
    chart = sensitivity_chart(tried(*names), scales, "title", "mean accuracy", 6)
    assert len(chart.to_dict()["hconcat"]) == panels
    if panels == 4:
        assert all(file.stat().st_size > 5_000 for file in save_chart(chart, tmp_path / "picture"))


def test_losses_are_not_per_cent():
    lost = [Tried(k, {"lr": 0.1 + k}, "finished", -2.0 - k, {}) for k in range(3)]
    rows = drawn(sensitivity_chart(lost, [RATE], "title", "minus the loss", 6).to_dict())
    assert {row["score"] for row in rows if isinstance(row, dict) and "score" in row} == {-2.0, -3.0, -4.0}
