"""The documentation's Python runs, block after block, as a reader would type it; links and anchors lead somewhere."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from markdown.extensions.toc import slugify

import fedgbo

ROOT = Path(__file__).parents[1]
NAMES = ("index", "tutorial", "how-to", "models", "evaluation", "algorithms", "data", "theory")
PAGES = ["README.md", *(f"docs/{name}.md" for name in NAMES)]
LINKED = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
HOSTED = re.compile(
    r"https://(?:github\.com/fedgbo/fedgbo/(?:blob|tree)/main|raw\.githubusercontent\.com/fedgbo/fedgbo/main)/(.+)"
)


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


def anchors(page):
    """Return the anchors of a page's headings, as the site and GitHub make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {slugify(re.sub(r"[`*]|\]\([^)]*\)", "", title), "-") for title in titles}


@pytest.mark.parametrize("page", LINKED)
def test_links_lead_somewhere(page):
    """Links to files of this repository, relative or on its host, exist, and so do their anchors."""
    for link in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text()):
        hosted = HOSTED.fullmatch(link)
        if ":" in link and not hosted:
            continue  # another site: tests have no network
        target, _, anchor = (hosted[1] if hosted else link).partition("#")
        file = ROOT / target if hosted else (ROOT / page).parent / target if target else ROOT / page
        assert file.exists(), f"{page} links to {target}"
        assert not anchor or anchor in anchors(file), f"{page} links to {link}, {file.name} has no such heading"


def test_the_readme_has_no_relative_links():
    """They would be dead on PyPI."""
    links = re.findall(r"\]\(([^)\s]+)\)", (ROOT / "README.md").read_text())
    assert links
    assert [link for link in links if not link.startswith("https://")] == []


def test_every_page_is_in_the_navigation():
    sections = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    pages = {page for entry in sections for part in entry.values() for page in leaves(part)}
    notebooks = {f"notebooks/{p.stem}.md" for p in (ROOT / "docs/notebooks").glob("*.ipynb")}
    assert pages == {p.name for p in (ROOT / "docs").glob("*.md")} | notebooks


def leaves(part):
    return [part] if isinstance(part, str) else [page for entry in part for page in entry.values()]


def test_the_api_page_has_every_public_name():
    named = re.findall(r"^::: fedgbo\.(\w+)$", (ROOT / "docs/api.md").read_text(), flags=re.MULTILINE)
    assert sorted(named) == sorted(name for name in fedgbo.__all__ if name != "__version__")


def test_notebooks_are_stored_without_outputs():
    """Each build of the site runs them; stored outputs would go stale."""
    for notebook in (ROOT / "docs/notebooks").glob("*.ipynb"):
        assert '"outputs": []' in notebook.read_text()
        assert '"output_type"' not in notebook.read_text(), f"{notebook.name}: clear its outputs"


def test_the_version_is_the_same_everywhere():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), flags=re.MULTILINE)[1] == version
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1] == version
