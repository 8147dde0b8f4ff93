"""Tables as text, whatever is in their cells."""

import csv
from io import StringIO

import pytest

from fedgbo.reports.render import latex, markdown, to_csv
from fedgbo.reports.tables import Grid

GRID = Grid("50% of \\this & that", ("algorithm", "a_b"), (("x|y", "1.0 ± 0.2 %"), ("line\nbreak", "{$^~#}<b>")))


def test_markdown():
    assert markdown(GRID).splitlines() == [
        r"**50% of \\this &amp; that**",
        "",
        r"| algorithm | a\_b |",
        "| --- | ---: |",
        r"| x\|y | 1.0 ± 0.2 % |",
        "| line break | {$^~#}&lt;b&gt; |",
    ]


def test_latex():
    lines = latex(GRID).splitlines()
    assert r"\caption{50\% of \textbackslash{}this \& that}" in lines
    assert r"\begin{tabular}{lr}" in lines
    assert r"algorithm & a\_b \\" in lines
    assert r"x\textbar{}y & 1.0 $\pm$ 0.2 \% \\" in lines
    escaped = r"\{\$\textasciicircum{}\textasciitilde{}\#\}\textless{}b\textgreater{}"
    assert rf"line break & {escaped} \\" in lines


@pytest.mark.parametrize("text", ["a,b", 'say "x"', "two\nlines"])
def test_csv_comes_back(text):
    rows = list(csv.DictReader(StringIO(to_csv([{"name": text, "x": 1.5}, {"name": "b", "y": 2}]))))
    assert rows == [{"name": text, "x": "1.5", "y": ""}, {"name": "b", "x": "", "y": "2"}]
