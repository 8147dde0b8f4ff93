"""Where there is no browser its tests are left out, with a word on what to install; in CI they never are."""

import os
import subprocess
import sys
from pathlib import Path

from tests.browser import INSTALL

ROOT = Path(__file__).parents[1]
PROGRAM = [
    sys.executable,
    "-m",
    "pytest",
    "--collect-only",
    "-q",
    "-p",
    "no:cacheprovider",
    "tests/reports/test_page.py",
]


def collected(folder, **more):
    """Collect the page's tests with nothing on the PATH."""
    environment = {name: value for name, value in os.environ.items() if name != "FEDGBO_CI"}
    environment |= {"PATH": str(folder), **more}
    return subprocess.run(PROGRAM, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


def test_left_out_with_a_word(tmp_path):
    said = collected(tmp_path)
    assert f"tests in a browser were left out; to run them: {INSTALL}" in said
    assert "test_the_page_in_a_browser" not in said
    assert "test_what_is_not_installed_is_named" in said


def test_not_in_continuous_integration(tmp_path):
    said = collected(tmp_path, FEDGBO_CI="1")
    assert "test_the_page_in_a_browser" in said
    assert "left out" not in said
