"""Tables as text, whatever is in their cells."""

import csv
import json
from io import StringIO

import pytest

from fedgbo.reports.table import FILES, Cell, Table, latex, markdown, numbers_csv, tex, to_csv, to_json

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
        "1 of 2 values agree with the printed ones (in brackets); these differ: b \\|x\\|.",
        "",
        "A remark.",
        "",
        r"[^1]: b \|x\|: typo",
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
    assert content["rows"][1]["|x|"] == {
        "ours": "2",
        "published": "3",
        "note": "typo",
        "differs": True,
        "exact": None,
        "strong": False,
    }
    assert content["rows"][0]["|x|"]["exact"] == 1.01
    assert content["footnotes"] == [{"number": 1, "places": ["b |x|"], "text": "typo"}]
    assert content["columns"] == ["Task", "|x|", "Free"]
    assert content["remarks"] == ["A remark."]


def test_latex_compiles_into_rows_and_escapes_what_it_must():
    lines = latex(TABLE).splitlines()
    assert r"\begin{tabular}{lrr}" in lines
    assert r"Task & $|$x$|$ & Free \\" in lines
    assert r"b & \textbf{2} (3) [1] & q \\" in lines
    assert "[1] b $|$x$|$: typo" in next(line for line in lines if line.startswith(r"\caption{"))
    assert tex(r"100% {\x} #1 & a_b ~ ± β₁") == (
        r"100\% \{\textbackslash{}x\} \#1 \& a\_b \textasciitilde{} $\pm$ $\beta$$_1$"
    )


def test_a_measured_table_claims_no_agreement_and_every_file_has_its_title():
    measured = Table("t", "Scale 0.1", ("A", "B"), ((Cell("a"), Cell("1", "2", strong=True)),), measured=True)
    assert measured.summary() == "Our runs; the paper's values are in brackets."
    assert "| a | **1** (2) |" in markdown(measured)
    assert r"a & \textbf{1} (2) \\" in latex(measured)
    assert all("Scale 0.1" in render(measured) for render in FILES.values())
    free = Table("t", "T", ("A", "B"), ((Cell("a"), Cell("1")),), measured=True)
    assert free.summary() == ""
    assert markdown(free).splitlines()[-1] == "| a | 1 |"


HOSTILE = Table(
    "t", "50% of \\this & that", ("algorithm", "a_b"),
    ((Cell("x|y"), Cell("1.0 ± 0.2 %")), (Cell("line\nbreak"), Cell("{$^~#}<b>"))),
    measured=True,
)  # fmt: skip


def test_markdown_of_names_from_anywhere():
    assert markdown(HOSTILE).splitlines() == [
        r"**50% of \\this &amp; that**",
        "",
        r"| algorithm | a\_b |",
        "| --- | --- |",
        r"| x\|y | 1.0 ± 0.2 % |",
        "| line break | {$^~#}&lt;b&gt; |",
    ]


def test_latex_of_names_from_anywhere():
    lines = latex(HOSTILE).splitlines()
    assert r"\caption{50\% of \textbackslash{}this \& that.}" in lines
    assert r"x$|$y & 1.0 $\pm$ 0.2 \% \\" in lines
    assert r"line break & \{\$\textasciicircum{}\textasciitilde{}\#\}$<$b$>$ \\" in lines


@pytest.mark.parametrize(("name", "line"), [("[x]", r"{}[x] & 1 \\"), ("*x", r"{}*x & 1 \\"), ("x[*]", r"x[*] & 1 \\")])
def test_a_row_of_latex_is_not_taken_for_what_belongs_to_the_line_before(name, line):
    r"""\\ takes [...], and *, for its own, also from the next line."""
    table = Table("t", "T", ("A", "B"), ((Cell("first"), Cell("0")), (Cell(name), Cell("1"))), measured=True)
    assert latex(table).splitlines()[-4] == line


@pytest.mark.parametrize("text", ["a,b", 'say "x"', "two\nlines"])
def test_numbers_come_back_from_csv(text):
    rows = list(csv.DictReader(StringIO(numbers_csv([{"name": text, "x": 1.5}, {"name": "b", "y": 2}]))))
    assert rows == [{"name": text, "x": "1.5", "y": ""}, {"name": "b", "x": "", "y": "2"}]
