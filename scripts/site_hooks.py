"""Hooks of mkdocs.yml: run the notebooks, format docstrings, and refuse pages that load files from other servers.

A notebook docs/notebooks/NAME.ipynb is stored without outputs. Each build runs it, so the site shows the current
output, and a cell that raises an error fails the build.
"""

import re
from pathlib import Path

import griffe
import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from traitlets.config import Config

SECONDS = 600  # for one cell, which takes about a second on a quiet machine
LOCAL = Config({"ConnectionFileMixin": {"transport": "ipc"}})  # kernels listen on no port
ELSEWHERE = r"=[\"']?(?:https?:)?//[^>]*>"
LOADED = re.compile(rf"<(?:script|img|iframe|source)\b[^>]*\bsrc{ELSEWHERE}|<link\b[^>]*\bhref{ELSEWHERE}")
CODE = re.compile(
    r"^(?:>>> .*|\w+: .*)(?:\n.+)*", flags=re.MULTILINE
)  # examples, and equations such as "server: x = ..."


class Docstrings(griffe.Extension):
    """Shows the examples and the equations in docstrings as code."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        """Fence the paragraphs that are examples or equations."""
        if obj.docstring:
            obj.docstring.value = CODE.sub(lambda found: f"```python\n{found[0]}\n```", obj.docstring.value)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each notebook, beside the notebook itself."""
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        page = notebook.src_uri.removesuffix(".ipynb") + ".md"
        files.append(File.generated(config, page, content=as_page(Path(str(notebook.abs_src_path)))))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Let links to notebooks, which work on GitHub, lead to the pages made of them."""
    return re.sub(r"\]\(((?:\.\./|\w+/)*[\w-]+)\.ipynb\)", r"](\1.md)", markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Check that no page loads a file from another server: the site must work offline."""
    for page in sorted(Path(config.site_dir).rglob("*.html")):
        if found := LOADED.search(page.read_text()):
            raise PluginError(f"{page.relative_to(config.site_dir)} loads a file from another server: {found[0]}")


def executed(path: Path) -> nbformat.NotebookNode:
    """Return the notebook with the outputs of a run in a fresh kernel."""
    notebook = nbformat.read(path, as_version=4)
    try:
        NotebookClient(notebook, kernel_name="python3", timeout=SECONDS, config=LOCAL).execute()
    except (CellExecutionError, CellTimeoutError) as error:
        raise PluginError(f"{path.name} fails: {error}") from error
    return notebook


def as_page(path: Path) -> str:
    """Return a notebook as Markdown: its texts, its code, and what the code prints and draws."""
    note = f"*This page is a notebook: [download {path.name}]({path.name}){{ download={path.name} }}.*"
    parts = []
    for cell in executed(path).cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        elif cell.cell_type == "code":
            parts.append(_fenced(cell.source, "python"))
            parts += [text for output in cell.outputs if (text := _shown(output))]
    parts.insert(1, note)
    return "\n\n".join(parts) + "\n"


def _shown(output: nbformat.NotebookNode) -> str:
    if output.output_type == "stream":
        return _fenced(output.text.rstrip(), "text") if output.name == "stdout" else ""  # stderr: the progress bar
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="output of the cell above" src="data:image/png;base64,{data["image/png"].strip()}">'
    if "text/html" in data:
        table = re.sub(r"<style.*?</style>", "", data["text/html"], flags=re.DOTALL)
        return re.sub(r"<table[^>]*>", "<table>", table)  # the site's theme styles tables without a class
    return _fenced(data["text/plain"], "text") if "text/plain" in data else ""


def _fenced(text: str, language: str) -> str:
    return f"```{language}\n{text}\n```"
