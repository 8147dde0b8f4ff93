"""The progress bar, in a real pseudo-terminal, in a real Jupyter kernel, and in a log file."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from jupyter_client.manager import start_new_kernel
from rich.console import Console

import fedgbo
from fedgbo.runs import bar as bar_module
from tests.conftest import make_task

ROOT = Path(__file__).parents[2]
GBO = fedgbo.FedGBO(fedgbo.SGDm(lr=0.3, beta=0.9))
PROGRAM = (
    "import fedgbo; from tests.conftest import make_task; "
    "fedgbo.run(make_task(), fedgbo.FedGBO(fedgbo.SGDm(lr=0.3, beta=0.9)), rounds=5{});"
)


def in_a_terminal(program):
    """Run a program whose standard error is a terminal; return what that showed."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen([sys.executable, "-c", program], stderr=theirs, cwd=ROOT, env=env)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 4096):
            shown += part
    except OSError:  # the other end was closed
        pass
    os.close(ours)
    assert process.wait() == 0
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())


def test_in_a_terminal_a_bar_is_shown_unless_it_is_not_wanted():
    shown = in_a_terminal(PROGRAM.format(""))
    assert "fedgbo-sgdm" in shown
    assert "5/5" in shown
    assert "accuracy" in shown
    assert in_a_terminal(PROGRAM.format(", progress=False")) == ""


def test_in_a_pipe_nothing_is_shown_by_default(capfd):
    fedgbo.run(make_task(), GBO, rounds=2)
    assert capfd.readouterr() == ("", "")


def test_in_a_log_file_lines_are_printed_if_wanted(capfd, monkeypatch):
    monkeypatch.setattr(bar_module, "PLAIN_SECONDS", 0.0)
    fedgbo.run(make_task(), GBO, rounds=2, progress=True)
    assert "fedgbo-sgdm: round 2 of 2, accuracy" in capfd.readouterr().err


def test_a_run_that_fails_closes_the_bar(tmp_path):
    def fail(progress):
        raise ArithmeticError

    with (tmp_path / "terminal").open("w") as file:
        console = Console(file=file, force_terminal=True)
        with pytest.raises(ArithmeticError), bar_module.run_bar("x", console) as show:
            fedgbo.run(make_task(), GBO, rounds=2, callbacks=[show, fail])
        assert not console._live_stack


@pytest.mark.slow
def test_in_a_notebook_a_line_is_updated():
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(ROOT))
    try:
        said = []
        client.execute_interactive(PROGRAM.format(""), timeout=120, output_hook=said.append)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    texts = [m["content"]["data"]["text/plain"] for m in said if "display_data" in m["msg_type"]]
    kinds = [m["msg_type"] for m in said if "display" in m["msg_type"]]
    assert (kinds[0], {*kinds[1:]}) == ("display_data", {"update_display_data"})
    assert "█" * 24 + " 5/5" in texts[-1]
    assert "accuracy" in texts[-1]
