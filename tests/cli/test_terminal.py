"""What a person sees in a terminal of 80 columns: no line is longer, and no number is cut."""

import os
import pty
import re
import sys
import threading
from contextlib import suppress

import pytest
from rich.cells import cell_len
from typer.main import get_command
from typer.testing import CliRunner

from fedgbo.cli import report
from fedgbo.cli.console import err, out
from fedgbo.cli.main import app
from fedgbo.experiments.paper.from_runs import BRIEF4, COLUMNS4
from fedgbo.reports.cost_table import percent
from fedgbo.reports.table import Cell, Table
from fedgbo.reports.terminal_table import plain_table

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
RUN = ("--preset", "none", "--lr", 0.1, "--rounds", 3, "--jobs", 1)


@pytest.fixture
def terminal(monkeypatch):
    """Run a command with a real pseudo-terminal as output; return all lines that were ever on it."""

    def run(*args, columns=80):
        ours, theirs = pty.openpty()
        read = []

        def drain():
            while chunk := _read(ours):
                read.append(chunk)

        reader = threading.Thread(target=drain)
        reader.start()
        with os.fdopen(theirs, "w") as screen, monkeypatch.context() as changed:
            changed.setenv("COLUMNS", str(columns))
            changed.setenv("TERM", "xterm")
            changed.setattr(sys, "stdout", screen)
            changed.setattr(sys, "stderr", screen)
            for console in (out, err):
                changed.setattr(console, "_width", columns)  # rich reads COLUMNS once, when a console is made
            with suppress(SystemExit):
                app([str(arg) for arg in args], standalone_mode=False)
        reader.join()
        os.close(ours)
        text = ESCAPES.sub("", b"".join(read).decode())
        return [line.rstrip() for line in re.split(r"[\r\n]+", text)]

    return run


def _read(descriptor):
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the other end was closed
        return b""


def fits(lines, columns=80):
    words = [line for line in lines if not line.strip().startswith("/")]  # the path of a folder may be of any length
    assert max(map(cell_len, words)) <= columns, max(words, key=cell_len)
    assert not any("…" in line for line in lines)
    return "\n".join(lines)


def test_a_comparison_and_its_runs(terminal, my_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    args = ("compare", "fedavg", "fedgbo:sgdm", "beta=0.9", "fedgbo:sgdm", "beta=0.5", "--task", "mine.py:small", *RUN)
    planned = fits(terminal(*args, "--seeds", 3, "--dry-run"))
    assert "would run fedgbo-sgdm (beta=0.9) seeds 0-2" in planned
    assert "9 runs on small, 3 rounds each" in " ".join(planned.split())
    assert not (tmp_path / "runs").exists()
    shown = fits(terminal(*args, "--seeds", 3, "--out", "c"))
    assert "[9/9] fedgbo-sgdm (beta=0.5) seed 2: accuracy" in shown
    assert "With --wide: Upload, FLOPs" in shown
    wide = "\n".join(terminal(*args, "--seeds", 3, "--out", "c", "--wide", columns=120))
    assert "FLOPs" in wide
    assert "seed 2: was finished before" in wide
    assert "rounds/s" not in wide, "no speed of runs that were finished before"
    assert "With --wide" not in wide
    monkeypatch.setattr(report, "PATIENCE", 0.3)
    ended = fits(terminal("watch", "c", "--every", 0.1))
    assert "Ctrl-C to leave" in ended
    assert ended.strip().endswith("no run is running")
    watched = fits(terminal("watch", "c", "--once"))
    assert "3/3" in watched
    assert "algorithm" in "\n".join(terminal("watch", "c", "--once", "--wide", columns=120))
    fits(terminal("report", "c", "-o", "page.html"))


@pytest.mark.parametrize("number", [1, 2, 3, 6, 7, 8])
def test_the_papers_tables(terminal, number):
    fits(terminal("paper", f"table{number}"))


def test_table_4_with_its_longest_cells():
    printed = {"Max acc (%)": "40.2 ± 0.9", "Upload (GiB)": "112"}
    numbers = {"Max acc (%)": "40.2 ± 10.9", "Rounds to match FedAvg": "5000", "Difference from FedAvg": "-10.6 ± 21.5"}
    row = [Cell("Shakespeare"), Cell("AdaptiveFedOpt (5 seeds diverged)")]
    row += [Cell(numbers.get(column, "1234"), printed.get(column)) for column in COLUMNS4[2:]]
    table = Table("table4", "Table 4", COLUMNS4, (tuple(row), tuple(row)), 2, measured=True, brief=BRIEF4)
    text = fits(plain_table(table.shortened()).splitlines())
    assert "40.2 ± 10.9 (40.2 ± 0.9)" in text
    assert text.count("Shakespeare") == 1
    assert "With --wide: Rounds, Upload (GiB)" in text


def test_the_bound(terminal):
    fits(terminal("theory"))
    fits(terminal("theory", "measure", "--rounds", 20, "--seeds", 1, "--beta", 0.5))


def test_plans_are_printed_and_nothing_is_run(terminal, my_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = fits(terminal("run", "--task", "mine.py:small", "--lr", 0.1, "beta=.9", "--dry-run"))
    assert re.search(r"optimiser.beta +0.9", run)
    assert "nothing was run" in run
    tune = fits(terminal("tune", "lr=0.01:1", "--task", "mine.py:small", "--algorithm", "fedavg", "--dry-run"))
    assert "would search mine.py:small: fedavg" in tune
    assert re.search(r"lr +0.01 to 1", tune)
    figure = fits(terminal("paper", "figure1", "--stand-ins", "--scale", 0.01, "--tasks", "sent140", "--dry-run"))
    assert "would run sent140-synthetic fedgbo-sgdm K=10 (beta=0.3) seed" in figure
    assert not list(tmp_path.glob("runs*"))


def test_this_machine(terminal, monkeypatch):
    monkeypatch.setenv("FEDGBO_DATA", "/dev/null/data")
    shown = " ".join(fits(terminal("doctor")).split())
    assert "C code" in shown
    assert "/dev/null/data: does not exist and cannot be created" in shown
    assert "fedgbo run --explain prints the choice for your model." in shown


@pytest.mark.parametrize("command", ["run", "resume", "compare", "experiment", "tune", "report", "watch", "export"])
def test_the_help(terminal, command):
    text = fits(terminal(command, "--help"))
    for line in re.findall(r"^│ -.*$", text, flags=re.MULTILINE):
        assert re.search(r"  [A-Za-z]", line), line  # every option has a text
    if command == "compare":
        assert "fedgbo:adam" in text
        assert "or all" in " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize(("wrong", "right"), [(("comapre",), "compare"), (("data", "inof"), "info")])
def test_one_suggestion(wrong, right):
    assert CliRunner().invoke(app, list(wrong)).stderr.count(f"'{right}'") == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("fedgbo run --algorithm fedg", ["fedgbo"]),
        ("fedgbo run --task quad", ["quadratic"]),
        ("fedgbo run --optimiser sg", ["sgd", "sgdm"]),
        ("fedgbo compare al", ["all"]),
        ("fedgbo compare fedgbo:sg", ["fedgbo:sgd", "fedgbo:sgdm"]),
    ],
)
def test_shells_complete_names(words, expected):
    asked = {"_FEDGBO_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": words}
    found = CliRunner().invoke(app, [], env=asked, prog_name="fedgbo").stdout
    assert re.findall(r'"([^"\s]+)"', found.replace("\\", "")) == expected


def test_the_completion_can_be_shown():
    shown = CliRunner().invoke(app, ["--show-completion", "bash"], prog_name="fedgbo")
    assert "_FEDGBO_COMPLETE=complete_bash" in shown.stdout


def test_statistics_that_mean_nothing_are_left_out():
    assert percent(0.9, 0.0) == "90.0"  # all seeds agree
    assert percent(0.5, 0.7) == "50.0"  # two seeds far apart: wider than the scale
    assert percent(-0.0001, None) == "0.0"
    assert percent(0.5, 0.0001) == "50.0 ± <0.1"


def test_paragraphs_of_help_texts_are_not_broken_in_the_middle():
    """Typer joins the lines of the first paragraph only; those below must be lines of their own."""

    def texts(command, name):
        for below, inner in getattr(command, "commands", {}).items():
            yield from texts(inner, f"{name} {below}")
        yield name, command.help or ""

    for name, text in texts(get_command(app), "fedgbo"):
        below = text.partition("\n\n")[2].split("\n\n")
        assert not [paragraph for paragraph in below if "\n" in paragraph.strip()], name
