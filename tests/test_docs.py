"""The documentation's Python runs, block after block, as a reader would type it."""

import re
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


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))])
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text()):
        assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"
