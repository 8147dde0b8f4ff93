import csv
import json

from fedgbo.experiments.paper.render import markdown, to_csv, to_json
from fedgbo.experiments.paper.table import Cell, Table

TABLE = Table(
    name="t",
    title="T",
    columns=("Task", "|x|", "Free"),
    rows=(
        (Cell("a"), Cell.compared("1", "1", exact=1.01), Cell("p")),
        (Cell("b"), Cell.compared("2", "3", note="typo"), Cell("q")),
        (Cell("c"), Cell("4"), Cell("r")),
    ),
    remarks=("A remark.",),
)


def test_markdown():
    assert markdown(TABLE).splitlines() == [
        "**T**",
        "",
        r"| Task | \|x\| | Free |",
        "| --- | --- | --- |",
        "| a | 1 (1) | p |",
        "| b | **2** (3)[^1] | q |",
        "| c | 4 | r |",
        "",
        "1 of 2 values agree with the printed ones (in brackets); these differ: b |x|.",
        "",
        "A remark.",
        "",
        "[^1]: b |x|: typo",
    ]


def test_csv_has_the_printed_value_in_a_column_of_its_own():
    assert list(csv.reader(to_csv(TABLE).splitlines())) == [
        ["Task", "|x|", "|x| (printed)", "Free", "Notes"],
        ["a", "1", "1", "p", ""],
        ["b", "2", "3", "q", "typo"],
        ["c", "4", "", "r", ""],
    ]


def test_json_has_everything():
    content = json.loads(to_json(TABLE))
    assert content["rows"][1]["|x|"] == {"ours": "2", "published": "3", "note": "typo", "differs": True, "exact": None}
    assert content["rows"][0]["|x|"]["exact"] == 1.01
    assert content["footnotes"] == [{"number": 1, "places": ["b |x|"], "text": "typo"}]
    assert content["columns"] == ["Task", "|x|", "Free"]
    assert content["remarks"] == ["A remark."]
