"""Curves over rounds, their numbers as CSV, and charts of one or many panels."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import fedgbo
from fedgbo.core.errors import RunFolderError
from fedgbo.reports.charts import panel_chart, save_chart
from fedgbo.reports.curves import curve, curves_csv
from fedgbo.reports.finding import accuracy_chart
from fedgbo.reports.load import group_runs
from fedgbo.reports.palette import ALGORITHMS, INK, STRONG
from tests.reports.runs import FEDAVG, FEDGBO

IMAGES = Path(__file__).parents[2] / "docs" / "images"
OUTSIDE = """[...document.querySelectorAll('text')].filter((text) => {
    const {left, right} = text.getBoundingClientRect();
    return left < 0 || right > document.documentElement.width.baseVal.value;
}).map((text) => text.textContent)"""


def accuracy(record):
    return record.accuracy


def test_a_curve_is_the_mean_where_all_runs_have_a_value(write):
    runs = [write(FEDAVG, 0, [0.1, 0.2, 0.9]), write(FEDAVG, 1, [0.1, 0.4])]
    line = curve(runs, accuracy, row="a", column="b", series="c")
    assert line.rounds.tolist() == [0, 10]
    assert line.mean.tolist() == pytest.approx([0.1, 0.3])
    assert np.isnan(line.half).all()  # two seeds have no interval worth drawing
    assert line.seeds == 2
    three = curve([*runs, write(FEDAVG, 2, [0.1, 0.3])], accuracy, row="a", column="b", series="c")
    assert three.half[1] == pytest.approx(4.3027 * 0.1 / np.sqrt(3), rel=1e-4)


def test_what_no_record_has_cannot_be_drawn(write):
    with pytest.raises(RunFolderError, match="fedavg-0 has nothing to draw"):
        curve([write(FEDAVG, 0, [0.1])], lambda record: None, row="", column="", series="x")


def test_the_numbers_behind_a_picture(write):
    lines = [curve([write(FEDAVG, 0, [0.1, 0.2])], accuracy, row="a", column="b", series="c")]
    text = curves_csv(lines, "A title;\nscale 0.1", ("task", "optimiser", "algorithm", "accuracy"))
    first, *rest = text.splitlines()
    assert first == "# A title; scale 0.1"
    rows = list(csv.DictReader(rest))
    assert [(row["algorithm"], row["round"], row["accuracy"], row["low"]) for row in rows] == [
        ("c", "0", "0.1", ""),
        ("c", "10", "0.2", ""),
    ]


def test_a_picture_of_panels(write, tmp_path):
    two = [write(FEDAVG, 0, [0.1, 0.5]), write(FEDAVG, 1, [0.2, 0.4])]
    one = [write(FEDGBO, 0, [0.1, 0.8])]
    places = [("CIFAR100", "SGDm"), ("CIFAR100", "Adam"), ("Sent140", "SGDm")]
    lines = [
        curve(runs, accuracy, row=row, column=column, series=series)
        for row, column in places
        for runs, series in ((two, "FedAvg"), (one, "FedGBO"))
    ]
    chart = panel_chart(lines, "a title", ["scale 0.1", "two seeds"], "accuracy (%)", 100)
    spec = json.loads(chart.to_json())
    assert [len(row["hconcat"]) for row in spec["vconcat"]] == [2, 2]
    highest = max(point["mean"] for point in spec["vconcat"][0]["hconcat"][0]["data"]["values"])
    assert highest == pytest.approx(80)
    png, svg, pdf = save_chart(chart, tmp_path / "figure-scale0.1", ("png", "svg", "pdf"))
    assert png.name == "figure-scale0.1.png"
    assert png.read_bytes().startswith(b"\x89PNG")
    assert pdf.read_bytes().startswith(b"%PDF")
    assert all(text in svg.read_text() for text in ("a title", "scale 0.1", "CIFAR100, Adam", "FedGBO"))
    assert np.isnan(lines[1].half).all()


def test_wide_bands_do_not_flatten_the_lines(write):
    runs = [write(FEDAVG, seed, [0.2, last]) for seed, last in enumerate((0.3, 0.9, 0.6))]
    line = curve(runs, accuracy, row="a", column="", series="FedAvg")
    spec = json.loads(panel_chart([line], "t", [], "accuracy (%)", 100).to_json())
    domain = spec["vconcat"][0]["hconcat"][0]["layer"][1]["encoding"]["y"]["scale"]["domain"]
    assert line.half[1] > 0.7
    assert domain == pytest.approx([14, 66])


def test_colours_and_bands_of_panels_belong_to_algorithms(write):
    kinds = {"fedavg (lr=0.1)": FEDAVG, "fedgbo-sgdm": FEDGBO, "mfl-sgdm": {**FEDGBO, "name": "mfl"}}
    lines = [
        curve([write(kind, seed, [0.1, 0.5]) for seed in range(3)], accuracy, row="a", column="", series=series)
        for series, kind in kinds.items()
    ]
    spec = json.loads(panel_chart(lines, "t", ["scale 0.1"], "v").to_json())
    scale = spec["vconcat"][0]["hconcat"][0]["layer"][1]["encoding"]["color"]["scale"]
    colours = dict(zip(scale["domain"], scale["range"], strict=True))
    assert colours == {"fedavg (lr=0.1)": INK, "fedgbo-sgdm": STRONG, "mfl-sgdm": ALGORITHMS["mfl"][1]}
    assert spec["title"]["subtitle"] == [
        "scale 0.1",
        "Mean over three seeds; bands: 95% confidence intervals of fedavg (lr=0.1) and fedgbo-sgdm.",
    ]


def test_the_legend_is_in_the_order_of_the_fullest_panel(write):
    runs = [write(FEDAVG, 0, [0.1, 0.5])]
    places = [("a", "x"), ("a", "z"), ("b", "x"), ("b", "y"), ("b", "z")]
    lines = [curve(runs, accuracy, row=row, column="", series=series) for row, series in places]
    spec = json.loads(panel_chart(lines, "t", [], "v").to_json())
    colour = spec["vconcat"][0]["hconcat"][0]["layer"][0]["encoding"]["color"]
    assert colour["scale"]["domain"] == ["x", "y", "z"]


def test_a_picture_is_named_as_it_was_asked_for(write, tmp_path):
    """The end of a name is cut only if it is a picture's: 0.01 is none."""
    chart = accuracy_chart(group_runs([write(FEDAVG, 0, [0.1, 0.5])]), "a title")
    for asked in ("a.png", "a.SVG", "a"):
        assert [file.name for file in save_chart(chart, tmp_path / asked, ["svg"])] == ["a.svg"]
    assert save_chart(chart, tmp_path / "x-scale0.01", ["svg"])[0].name == "x-scale0.01.svg"
    with pytest.raises(fedgbo.RunFolderError, match=r"cannot write .*nowhere/a.svg: No such file.*; choose another"):
        save_chart(chart, tmp_path / "nowhere" / "a.png", ["svg"])


@pytest.mark.parametrize("picture", sorted(IMAGES.glob("*.svg")), ids=lambda picture: picture.name)
def test_no_text_leaves_a_picture_in_a_browser(page, picture):
    """A browser's font may be wider than the one of the layout: DejaVu Sans is."""
    page.call("Page.navigate", url=picture.as_uri())
    page.wait_for(f"location.href === {picture.as_uri()!r} && document.readyState === 'complete'")
    page.evaluate("document.querySelectorAll('text').forEach((t) => t.setAttribute('font-family', 'DejaVu Sans'))")
    assert page.evaluate(OUTSIDE) == []


def test_a_picture_gets_room_for_a_long_title(tmp_path, write):
    groups = group_runs([write(FEDAVG, 0, [0.1, 0.5])])
    widths = []
    for title in ("short", "a long title " * 8):
        (file,) = save_chart(accuracy_chart(groups, title), tmp_path / "a", ["svg"])
        svg = file.read_text()
        widths.append(int(svg.split('width="')[1].split('"')[0]))
        assert f'viewBox="0 0 {widths[-1]} ' in svg
        assert svg.count(f'width="{widths[-1]}"') == 2  # the picture and its background
    assert widths[0] < 800 < 1000 < widths[1]
