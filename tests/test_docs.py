"""The documentation's Python runs, block after block, as a reader would type it."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMES = ("tutorial", "how-to", "models", "evaluation", "algorithms", "data", "theory")
PAGES = ["README.md", *(f"docs/{name}.md" for name in NAMES)]


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run(page, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    assert blocks, f"{page} has no Python any more: take it off this list"
    names = {"__name__": "docs"}
    for block in blocks:
        exec(compile(block, page, "exec"), names)


def test_the_tutorials_commands_run(tmp_path):
    """The blocks of steps 1 and 2 and the function of step 5 are the file; the commands are typed as they stand."""
    text = (ROOT / "docs/tutorial.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    own = [
        block for block in blocks if "def recordings" in block or "class ActivityNet" in block or "def build" in block
    ]
    (tmp_path / "activities.py").write_text("\n\n".join(own))
    commands = "".join(re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)).strip().splitlines()
    assert len(commands) == 3
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in commands:
        done = subprocess.run(shlex.split(command), cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
    assert "8" in (tmp_path / "runs/first/status.json").read_text()


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))])
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text()):
        assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"
