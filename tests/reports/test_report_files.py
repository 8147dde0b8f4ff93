"""Files for a paper and for TensorBoard."""

import csv
import json
import struct
from dataclasses import replace

import numpy as np
import pytest

from fedgbo.reports.charts import live_chart
from fedgbo.reports.curves import SCORES, cost_axes, points
from fedgbo.reports.label_skew import Skew
from fedgbo.reports.palette import Palette
from fedgbo.reports.report_files import build_page, cost_table, write_figures
from fedgbo.reports.sections import sections_of
from fedgbo.reports.tensorboard import scalar_event, version_event, write_events
from tests.reports.runs import FEDAVG, FEDGBO


@pytest.fixture
def sections(write):
    runs = [write(FEDAVG, seed, [0.1, 0.5]) for seed in range(3)]
    return sections_of([*runs, write(FEDGBO, 0, [0.1, 0.6])])


def test_figures_and_tables(sections, tmp_path):
    out = tmp_path / "new" / "figures"
    files = write_figures(sections, [Skew((0, 3), np.array([[2, 0], [1, 1]]))], out)
    assert sorted(files) == sorted(out.iterdir())
    figures = {path.stem.removeprefix("digits-K-10-") for path in files if path.suffix == ".pdf"}
    against = {f"accuracy-{cost}" for cost in ("round", "upload", "download", "flops", "seconds")}
    assert figures == against | {"loss-round", "train_loss-round", "labels"}
    begins = {".png": b"\x89PNG", ".svg": b"<svg", ".pdf": b"%PDF"}
    for path in files:
        if path.suffix in begins:
            assert path.read_bytes().startswith(begins[path.suffix]), path
    svg = (out / "digits-K-10-accuracy-upload.svg").read_text()
    assert all(text in svg for text in ("FedGBO", "upload of all clients (B)", "test accuracy (%)"))
    for name in ("costs", "settings", "runs"):
        assert {path.suffix for path in out.glob(f"digits-K-10-{name}.*")} == {".md", ".tex", ".csv"}

    and_the_csv_has_plain_numbers(out)


def and_the_csv_has_plain_numbers(out):
    costs = list(csv.DictReader((out / "digits-K-10-costs.csv").open()))
    assert (costs[1]["label"], costs[1]["accuracy"], costs[1]["match_upload_bytes"]) == ("fedgbo-sgdm", "0.6", "1000.0")
    curves = list(csv.DictReader((out / "digits-K-10-curves.csv").open()))
    assert [row["round"] for row in curves] == ["0", "10", "0", "10"]
    assert (curves[1]["accuracy"], curves[1]["accuracy_low"], curves[3]["accuracy_low"]) == ("50.0", "50.0", "")


def test_events_are_the_bytes_that_tensorboard_writes():
    """The bytes are from tensorboard 2.21's RecordWriter and its Event message."""
    ours = version_event(1700000000.5)
    ours += scalar_event(1700000001.25, 300, {"score/accuracy": 0.75, "drift/error": -1.5})
    assert ours.hex() == (
        "1800000000000000a37f4b220900002040fc54d9411a0d627261696e2e4576656e743a322b35311039000000000000008b0737f1"
        "0900005040fc54d94110ac022a2b0a150a0e73636f72652f6163637572616379150000403f0a120a0b64726966742f6572726f72"
        "150000c0bfd2a3b318"
    )


def test_a_file_of_events_for_each_run(sections, tmp_path):
    files = write_events(sections, tmp_path / "tb")
    assert [str(file.parent.relative_to(tmp_path / "tb")) for file in files] == [
        "digits-K-10/fedavg-seed0",
        "digits-K-10/fedavg-seed1",
        "digits-K-10/fedavg-seed2",
        "digits-K-10/fedgbo-sgdm-seed0",
    ]
    content, events = files[3].read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        events.append(content[12 : 12 + length])
        content = content[16 + length :]
    assert len(events) == 3  # the version, and two evaluations
    assert b"score/accuracy" + b"\x15" + struct.pack("<f", 0.6) in events[2]
    assert b"\x10\x0a" in events[2]  # step 10


def uncounted(run):
    """The run with FLOPs that could not be counted."""
    return replace(run, records=tuple(replace(record, flops=None, counted_flops=None) for record in run.records))


def test_flops_that_no_run_counted_are_left_out(write, tmp_path):
    sections = sections_of([uncounted(write(FEDAVG, 0, [0.1, 0.5])), uncounted(write(FEDGBO, 0, [0.1, 0.6]))])
    assert [cell.ours for cell in cost_table(sections[0]).rows[1]][4:8] == [
        "not counted",
        "10",
        "1000 B",
        "not counted",
    ]
    files = {file.name for file in write_figures(sections, ["no labels"], tmp_path / "figures")}
    assert "digits-K-10-accuracy-upload.svg" in files
    assert not [name for name in files if "flops" in name]
    assert "flops" not in (tmp_path / "figures" / "digits-K-10-curves.csv").read_text()
    assert "flops" not in (tmp_path / "figures" / "digits-K-10-costs.csv").read_text()
    assert "(FLOPs)" not in build_page(sections, ["no labels"], [])
    assert not [file for file in write_events(sections, tmp_path / "tb") if b"cost/flops" in file.read_bytes()]


def test_flops_that_some_runs_counted_are_drawn_for_these(write):
    """One seed of FedGBO was counted and one was not, so it has no mean."""
    counted = [write(FEDAVG, 0, [0.1, 0.5]), write(FEDGBO, 0, [0.1, 0.6])]
    section = sections_of([*counted, uncounted(write(FEDGBO, 1, [0.1, 0.6]))])[0]
    assert [row[4].ours for row in cost_table(section).rows] == ["10.0 M", "not counted"]
    rows = points(section.lines, cost_axes(section.lines), SCORES)
    assert {row["algorithm"] for row in rows if "flops" in row} == {"fedavg"}
    assert {row["algorithm"] for row in rows if "upload_bytes" in row} == {"fedavg", "fedgbo-sgdm"}
    told = json.dumps(
        live_chart(rows, Palette({"fedavg": "fedavg", "fedgbo-sgdm": "fedgbo"}), cost_axes(section.lines), SCORES[0])
    )
    assert "upload_bytes" in told
    assert "flops" not in told  # in the tooltip of a line without them it would be NaN
