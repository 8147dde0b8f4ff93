"""The picture of a comparison, by the specification that altair makes of it and the SVG that is drawn."""

import json
import re
from itertools import combinations_with_replacement
from math import factorial, prod

import numpy as np
import pytest

from fedgbo.reports.charts import save_chart, spread
from fedgbo.reports.comparison import Ratio, conclusion, fewer_rounds, finding, summarise
from fedgbo.reports.curves import SCORES, Axis
from fedgbo.reports.finding import GAP, SIZE, accuracy_chart, finding_chart
from fedgbo.reports.load import group_runs
from fedgbo.reports.palette import ALGORITHMS, INK, STRONG
from fedgbo.reports.sections import Line, sections_of
from tests.reports.runs import FEDAVG, FEDGBO

FEDPROX = {"name": "fedprox", "optimiser": {"name": "sgd", "lr": 0.1}, "mu": 0.1}
SLOW, FAST = [0.1, 0.5, 0.6, 0.7], [0.1, 0.7, 0.8, 0.9]  # after 0, 10, 20 and 30 rounds


@pytest.fixture
def groups(write):
    """FedGBO has FedAvg's best accuracy of round 30 at round 10, in each of three seeds; FedProx never has."""
    runs = [write(FEDAVG, seed, SLOW) for seed in range(3)] + [write(FEDGBO, seed, FAST) for seed in range(3)]
    return group_runs(runs + [write(FEDPROX, seed, [0.1, 0.5, 0.6, 0.65]) for seed in range(3)])


def layers(spec):
    """All layers of a specification with their data and, where they have some, their own filter."""
    return [inner for layer in spec["layer"] for inner in (layer.get("layer") or [layer])]


def crossings(spec):
    return next(layer["data"]["values"] for layer in layers(spec) if "size" in layer["encoding"])


def texts(svg):
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_the_finding_is_the_headline(groups, tmp_path):
    chart = accuracy_chart(groups, "digits")
    spec = chart.to_dict()
    assert spec["title"]["text"] == "FedGBO reached FedAvg's best accuracy in 3.0x fewer rounds (three seeds)"
    assert spec["title"]["subtitle"] == [
        "digits. Mean over three seeds; bands: 95% confidence intervals of FedAvg and FedGBO."
    ]
    (svg,) = save_chart(chart, tmp_path / "chart", ["svg"])
    drawn = texts(svg.read_text())
    assert drawn.count("3.0x fewer rounds") == 2  # its outline, and itself
    assert drawn.count("FedAvg&#39;s best: 70.0%") + drawn.count("FedAvg's best: 70.0%") == 2
    assert "Rounds to 70.0%" in drawn
    bars = drawn[drawn.index("Rounds to 70.0%") - 20 :]
    assert {"10", "30", "not reached"} <= set(bars)
    ticks = [text for text in drawn if re.fullmatch(r"[\d.,]+", text)]
    assert not [text for text in ticks if "." in text]  # rounds and per cents are whole numbers
    assert "prefers-color-scheme:dark" in svg.read_text()
    strokes = re.findall(r'stroke="(#[0-9a-f]{6})" stroke-width="([\d.]+)"', svg.read_text())
    assert {(STRONG, "3.2"), (INK, "2.2"), (ALGORITHMS["fedprox"][1], "1.4")} <= set(strokes)


def test_both_crossings_are_marked(groups):
    spec = accuracy_chart(groups, "digits", wide=True).to_dict()
    assert "vconcat" not in spec
    assert [(dot["algorithm"], dot["round"], dot["value"], dot["size"]) for dot in crossings(spec)] == [
        ("FedAvg", 30, pytest.approx(70), 80),
        ("FedGBO", 10, pytest.approx(70), 80),
    ]


def test_crossings_lie_on_their_lines(write):
    runs = [write(FEDAVG, 0, [0.1, 0.5, 0.6, 0.7]), write(FEDGBO, 0, [0.1, 0.5, 0.9, 0.8])]
    dots = crossings(accuracy_chart(group_runs(runs), "digits", wide=True).to_dict())
    assert [(dot["round"], dot["value"]) for dot in dots] == [(30, pytest.approx(70)), (20, pytest.approx(90))]


def test_crossings_in_one_place_are_both_seen(write):
    runs = [write(FEDAVG, 0, [0.1, 0.5, 0.7]), write(FEDGBO, 0, [0.1, 0.5, 0.7])]
    below, above = crossings(accuracy_chart(group_runs(runs), "digits", wide=True).to_dict())
    assert (below["algorithm"], above["algorithm"]) == ("FedAvg", "FedGBO")
    assert below["size"] > 2 * above["size"]


def names(spec):
    return next(layer["data"]["values"] for layer in layers(spec) if "at" in str(layer["encoding"].get("y2")))


def test_a_name_in_mid_panel_does_not_lie_on_a_line_that_goes_on(write):
    """FedProx ends at round 10 above FedAvg, which then rises through the place of FedProx's name."""
    runs = [write(FEDAVG, 0, [0.1, 0.2, 0.4, 0.5, 0.5]), write(FEDPROX, 0, [0.1, 0.22])]
    runs.append(write(FEDGBO, 0, [0.1, 0.9, 0.9, 0.9, 0.9]))
    chart = accuracy_chart(group_runs(runs), "digits", wide=True).to_dict()
    assert chart["title"]["subtitle"] == ["digits. FedProx ends at round 10."]
    (fedprox,) = [name for name in names(chart) if name["algorithm"] == "FedProx"]
    low, high = layers(chart)[1]["encoding"]["y"]["scale"]["domain"]
    assert fedprox["at"] <= 20 - GAP / SIZE[1] * (high - low)


def test_the_seeds_are_stated_once_if_there_is_one(write):
    spec = accuracy_chart(group_runs([write(FEDAVG, 0, SLOW), write(FEDGBO, 0, FAST)]), "digits").to_dict()
    assert json.dumps(spec["title"]).lower().count("seed") == 1


def test_the_name_of_the_target_is_clear_of_lines(write):
    """FedGBO crosses the target at once and stays just above it until round 60."""
    runs = [write(FEDAVG, 0, [0.1, *[0.3] * 19, 0.5])]
    runs.append(write(FEDGBO, 0, [0.1, *[0.51, 0.52] * 3, *[0.9] * 14]))
    spec = accuracy_chart(group_runs(runs), "digits", wide=True).to_dict()
    rows = [row for layer in layers(spec) for row in layer.get("data", {}).get("values", []) if "goal" in row]
    assert 50 < rows[0]["round"] < 100
    runs[1] = write(FEDGBO, 1, [0.1, *[0.3] * 9, *[0.9] * 11])
    spec = accuracy_chart(group_runs([write(FEDAVG, 1, [0.1, *[0.3] * 19, 0.5]), runs[1]]), "digits").to_dict()
    rows = [
        row for layer in layers(spec["vconcat"][0]) for row in layer.get("data", {}).get("values", []) if "goal" in row
    ]
    assert rows[0]["round"] == 0


def test_the_name_of_the_target_is_clear_of_names_in_mid_panel(write):
    """FedProx ends after 10 of 100 rounds, just below the target; its name is where the target's would be."""
    slow, fast = [0.0, *np.linspace(0.1, 0.5, 10)], [0.0, 0.6, *[0.8] * 9]
    runs = [write(FEDAVG, 0, slow), write(FEDGBO, 0, fast), write(FEDPROX, 0, [0.0, 0.5], rounds=10)]
    spec = accuracy_chart(group_runs(runs), "digits", wide=True).to_dict()
    (target,) = next(layer["data"]["values"] for layer in layers(spec) if "goal" in str(layer.get("data", "")))
    name = next(one for one in names(spec) if one["algorithm"] == "FedProx")
    assert abs(name["at"] - target["goal"]) < GAP / SIZE[1] * 100
    assert target["round"] > name["round"] + 10


def test_the_ratio_of_close_crossings_is_beside_its_arrow_and_clear_of_lines(write):
    """FedProx stays where the arrow would be, at the lower end of the panel."""
    runs = [write(FEDAVG, 0, [0.1, *[0.5] * 8, 0.6, 0.7]), write(FEDGBO, 0, [0.1, *[0.5] * 8, 0.72, 0.73])]
    runs.append(write(FEDPROX, 0, [0.02] * 11))
    spec = accuracy_chart(group_runs(runs), "digits", wide=True).to_dict()
    (text,) = [one for one in layers(spec) if one["mark"].get("dx") == -8 and "stroke" not in one["mark"]]
    (row,) = text["data"]["values"]
    assert row["text"] == "1.1x fewer rounds"
    assert text["mark"]["align"] == "right"
    assert row["middle"] == row["round"] == 90
    assert 2 < row["base"] < 50


def test_no_line_is_cut_late_and_no_band_of_the_two(write):
    runs = [write(FEDAVG, seed, [0.1, 0.5 + 0.2 * seed, 0.6, 0.6]) for seed in range(3)]
    runs += [write(FEDGBO, seed, [0.1, 0.7, 0.7, 0.7]) for seed in range(3)]
    spec = accuracy_chart(group_runs(runs), "digits", wide=True).to_dict()
    domain = layers(spec)[1]["encoding"]["y"]["scale"]["domain"]
    lows = [
        row["accuracy_low"] for row in layers(spec)[0].get("data", spec["layer"][0]["data"])["values"] if row["round"]
    ]
    assert domain[0] <= min(lows)
    runs += [write(FEDPROX, seed, [0.1, 0.3, 0.25, 0.6]) for seed in range(3)]
    spec = accuracy_chart(group_runs(runs), "digits", wide=True).to_dict()
    assert layers(spec)[1]["encoding"]["y"]["scale"]["domain"][0] <= 25


def test_names_are_in_final_order_and_do_not_overlap(write):
    runs = [write(FEDAVG, 0, [0.1, 0.7]), write(FEDGBO, 0, [0.1, 0.702]), write(FEDPROX, 0, [0.1, 0.701])]
    spec = accuracy_chart(group_runs(runs), "digits").to_dict()["vconcat"][0]
    labels = names(spec)
    upwards = sorted(labels, key=lambda label: label["at"])
    assert [label["algorithm"] for label in upwards] == ["FedAvg", "FedProx", "FedGBO"]
    low, high = layers(spec)[1]["encoding"]["y"]["scale"]["domain"]
    apart = np.diff([label["at"] for label in upwards]) / (high - low) * SIZE[1]
    assert apart == pytest.approx([GAP, GAP])


def test_names_are_spread_within_the_panel():
    placed = spread(np.array([9.0, 9.5, 9.9, 3.0]), 1.0, 0.0, 10.0)
    assert placed.tolist() == pytest.approx([8.0, 9.0, 10.0, 3.0])
    assert spread(np.zeros(3), 4.0, 0.0, 5.0).tolist() == [0.0, 4.0, 8.0]  # too many: they stay apart


def test_bands_are_for_the_two_within_what_is_possible(write):
    runs = [write(FEDAVG, seed, [0.1, 0.3 * seed]) for seed in range(3)]
    runs += [write(FEDGBO, seed, [0.1, 0.8 + 0.1 * seed]) for seed in range(3)]
    groups = group_runs([*runs, *(write(FEDPROX, seed, [0.1, 0.5 + 0.1 * seed]) for seed in range(3))])
    spec = accuracy_chart(groups, "digits", wide=True).to_dict()
    band = layers(spec)[0]
    assert band["transform"] == [{"filter": 'indexof(["FedAvg", "FedGBO"], datum.algorithm) >= 0'}]
    values = spec["layer"][0]["data"]["values"]
    assert min(row["accuracy_low"] for row in values) == 0  # FedAvg: 30 ± 74.5
    assert max(row["accuracy_high"] for row in values) == 100  # FedGBO: 90 ± 24.8
    assert values[-1]["algorithm"] == "FedGBO"  # drawn last, over the others


def test_two_seeds_have_no_bands(write):
    runs = [write(a, seed, accuracies) for a, accuracies in ((FEDAVG, SLOW), (FEDGBO, FAST)) for seed in range(2)]
    spec = accuracy_chart(group_runs(runs), "digits", wide=True).to_dict()
    assert "accuracy_low" not in json.dumps(spec["layer"][0]["data"])
    assert spec["title"]["subtitle"] == ["digits. Mean over two seeds."]
    assert conclusion(summarise(group_runs(runs))) == [
        "FedGBO reached FedAvg's best accuracy (70.0%) in 3.0x fewer rounds (10 instead of 30); two seeds are too few "
        "for an interval of the ratio."
    ]


def test_other_axes_and_scores(groups):
    lines = [Line(group.label, group.runs) for group in groups]
    spec = finding_chart(lines, Axis("upload_bytes", "upload (KiB)", 1024), SCORES[0], "digits").to_dict()
    assert "3.0x less upload" in json.dumps(spec)
    loss = finding_chart(lines, Axis("round", "rounds"), SCORES[1], "digits: test loss").to_dict()
    assert loss["title"]["text"] == "digits: test loss"
    assert "fewer" not in json.dumps(loss)


def test_the_interval_is_that_of_all_resamples(write):
    """Six seeds have 462 resamples, which a loop can count; one with counts c_i has the chance 6! / (6^6 Π c_i!)."""
    ours = [[0.1, 0.5, 0.7, 0.8], [0.1, 0.6, 0.9, 0.9], [0.1, 0.3, 0.5, 0.75]] * 2
    theirs = [[0.1, 0.3, 0.6, 0.7], [0.1, 0.4, 0.65, 0.6], [0.1, 0.2, 0.6, 0.7]] * 2
    runs = [write(FEDAVG, seed, values) for seed, values in enumerate(theirs)]
    baseline, group = group_runs(runs + [write(FEDGBO, seed, values) for seed, values in enumerate(ours)])
    ratios = []
    for draw in combinations_with_replacement(range(6), 6):
        mean, rival = (np.mean([curves[i] for i in draw], axis=0) for curves in (ours, theirs))
        reached = [t for t, value in zip((0, 10, 20, 30), mean, strict=True) if value >= max(rival) - 1e-9]
        ratio = 10 * int(np.argmax(rival)) / reached[0] if reached else 0
        ratios += [ratio] * (factorial(6) // prod(factorial(draw.count(i)) for i in range(6)))
    assert len(ratios) == 6**6
    low, high = np.quantile(ratios, [0.025, 0.975], method="inverted_cdf")
    found = fewer_rounds(group, baseline)
    assert (found.low, found.high) == (low, high)
    assert found.low < found.value <= found.high


def of_seeds(write, seeds, **curves):
    """Summaries of runs whose accuracies are functions of the seed, by algorithm."""
    kinds = {"fedavg": FEDAVG, "fedgbo": FEDGBO}
    runs = [write(kinds[name], seed, curve(seed)) for name, curve in curves.items() for seed in range(seeds)]
    return summarise(group_runs(runs))


def test_the_bootstrap_needs_six_seeds(write):
    said = "FedGBO reached FedAvg's best accuracy (70.0%) in 3.0x fewer rounds (10 instead of 30), "
    five = of_seeds(write, 5, fedavg=lambda _: SLOW, fedgbo=lambda _: FAST)
    assert finding(five).ours.fewer == Ratio(3.0)
    assert conclusion(five) == [f"{said[:-2]}; five seeds are too few for an interval of the ratio."]


def test_seeds_that_agree_have_a_narrow_interval(write):
    rows = of_seeds(write, 6, fedavg=lambda _: SLOW, fedgbo=lambda _: FAST)
    assert finding(rows).ours.fewer == Ratio(3.0, 3.0, 3.0)
    assert conclusion(rows) == [
        "FedGBO reached FedAvg's best accuracy (70.0%) in 3.0x fewer rounds (10 instead of 30), 95% interval 3.0x to "
        "3.0x, six seeds."
    ]


def test_what_may_be_chance_is_called_so(write):
    rows = of_seeds(
        write,
        6,
        fedavg=lambda seed: [0.1, 0.5, 0.6, 0.7 + 0.1 * (seed % 3 == 0)],
        fedgbo=lambda seed: [0.1, 0.5, 0.6 + 0.2 * (seed % 3), 0.6],
    )
    found = finding(rows)
    assert not found.ours.fewer.clear
    assert found.headline == "FedGBO and FedAvg: no clear difference in rounds (six seeds)"
    assert "but this may be chance: 95% interval not reached to 1.5x fewer" in found.sentence


def test_more_rounds_have_an_interval_of_more_rounds(write):
    slower = of_seeds(write, 6, fedavg=lambda _: [0.1, 0.5, 0.7, 0.6], fedgbo=lambda _: [0.1, 0.5, 0.6, 0.7])
    assert conclusion(slower) == [
        "FedGBO reached FedAvg's best accuracy (70.0%) in 1.5x as many rounds (30 instead of 20), 95% interval 1.5x to "
        "1.5x, six seeds."
    ]


def test_the_best_setting_is_named_first_and_solid(write):
    faster = {"name": "fedgbo", "optimiser": {"name": "sgdm", "lr": 0.3, "beta": 0.9}}
    runs = [write(FEDAVG, 0, SLOW), write(FEDGBO, 0, [0.1, 0.5, 0.6, 0.65]), write(faster, 0, FAST, name="faster")]
    (section,) = sections_of(runs)
    groups = [line.group() for line in section.lines]
    said = conclusion(section.summaries)
    assert said[0].startswith("fedgbo-sgdm (lr=0.3) reached FedAvg's best accuracy")
    assert said[1].startswith("fedgbo-sgdm (lr=0.1) did not reach")
    dash = layers(accuracy_chart(groups, "digits", wide=True).to_dict())[1]["encoding"]["strokeDash"]["scale"]
    dashes = dict(zip(dash["domain"], dash["range"], strict=True))
    assert dashes["fedgbo-sgdm (lr=0.3)"] == [1, 0]
    assert dashes["fedgbo-sgdm (lr=0.1)"] != [1, 0]


def test_what_is_not_reached_is_said(write):
    runs = [write(FEDAVG, seed, FAST) for seed in range(3)] + [write(FEDGBO, seed, SLOW) for seed in range(3)]
    found = finding(summarise(group_runs(runs)))
    assert found.headline == "FedGBO did not reach FedAvg's best accuracy (mean of three seeds)"
    assert found.sentence == "FedGBO did not reach FedAvg's best accuracy (90.0%), mean of three seeds."
