"""Imports point one way, rooms stay large and plain, and nothing inspects or hides what runs."""

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedgbo
from fedgbo.runs.round import Rounds
from tests.conftest import make_task

ROOT = Path(fedgbo.__file__).parent
PARTS = {"core", "optimisers", "algorithms", "native", "pipeline", "models", "data", "tasks", "costs"}
MAY_IMPORT = {
    "core": set(),
    "optimisers": {"core"},
    "algorithms": {"core", "optimisers"},
    "native": {"core"},
    "pipeline": {"core", "native"},
    "models": {"core"},
    "data": {"core"},
    "tasks": {"core", "data", "models"},
    "costs": {"core", "algorithms", "optimisers", "data"},
    "engines": {"core", "native", "pipeline", "costs", "data", "models", "tasks"},
    "runs": {*PARTS, "engines"},
    "reports": {"core", "data", "tasks", "runs", "costs"},
    "trackers": {"core", "runs", "reports"},
    "experiments": {"core", "engines", "runs", "costs", "tasks", "models", "algorithms", "optimisers", "reports"},
    "bench": {*PARTS, "engines", "runs", "experiments", "reports"},
    "flower": {"core", "pipeline", "costs", "data", "tasks", "engines", "runs", "experiments"},
    "federation": {"core", "runs", "flower"},
    "cli": {
        "core",
        "bench",
        "data",
        "flower",
        "federation",
        "tasks",
        "engines",
        "runs",
        "costs",
        "experiments",
        "reports",
    },
}


def rooms_imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            if name.startswith("fedgbo."):
                yield name.split(".")[1]


def test_every_room_is_listed():
    assert {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(MAY_IMPORT)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_point_one_way(room):
    for path in (ROOT / room).rglob("*.py"):
        wrong = set(rooms_imported(path)) - MAY_IMPORT[room] - {room}
        assert not wrong, f"{path} imports {wrong}"


@pytest.mark.parametrize("script", sorted((ROOT.parents[1] / "scripts").glob("*.py")), ids=lambda path: path.name)
def test_scripts_import_what_exists(script):
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fedgbo"):
            module = importlib.import_module(node.module)
            missing = [
                alias.name
                for alias in node.names
                if not hasattr(module, alias.name) and importlib.util.find_spec(f"{node.module}.{alias.name}") is None
            ]
            assert not missing, f"{script.name}: {node.module} has no {', '.join(missing)}"


def test_only_the_cli_prints():
    for path in ROOT.rglob("*.py"):
        if path.is_relative_to(ROOT / "cli"):
            continue
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        assert not [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "print"], path


def test_only_the_flower_room_and_the_bench_know_flowers_messages():
    for path in ROOT.rglob("*.py"):
        if path.is_relative_to(ROOT / "flower") or path.is_relative_to(ROOT / "bench"):
            continue
        for module in ("flwr.app", "flwr.serverapp", "flwr.clientapp"):
            assert f"from {module}" not in path.read_text(), f"{path}: {module}"
            assert f"import {module}" not in path.read_text(), f"{path}: {module}"


def test_modules_can_be_imported_on_windows():
    """Modules that Windows does not have are imported inside functions, or where an ImportError is caught."""
    for path in ROOT.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            missing = {"fcntl", "grp", "pty", "pwd", "resource", "termios"}.intersection(names)
            assert not missing, f"{path} imports {missing}"


def test_nothing_untrusted_is_unpickled():
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        for banned in ("pickle.load", "torch.load(", "allow_pickle=True", "yaml.load("):
            assert banned not in text, f"{path}: {banned}"


def test_the_inside_stays_small():
    catalogued = {"algorithms", "optimisers", "tasks"}  # one file each, as many as there are
    files = [path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0] not in catalogued]
    assert len(files) <= 190
    long = {path.name: lines for path in ROOT.rglob("*.py") if (lines := len(path.read_text().splitlines())) > 320}
    assert not long


@pytest.mark.parametrize("room", ["core", "algorithms", "optimisers", "pipeline", "runs"])
def test_no_class_is_inspected_and_no_module_keeps_state(room):
    """No `__mro__`, no `vars(type(...))`, no `global`, no memo: what a formula does depends on its arguments alone."""
    for path in (ROOT / room).rglob("*.py"):
        text = path.read_text()
        for banned in ("__mro__", "vars(type", "__init_subclass__", "lru_cache", "functools.cache"):
            assert banned not in text, f"{path}: {banned}"
        assert not [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Global)], path


def test_a_round_runs_through_the_ten_files_of_the_documentation(monkeypatch):
    page = (ROOT.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.search(r"read these ten files:(.*?)\n\n`pipeline", page, flags=re.DOTALL)[1]
    expected = set(re.findall(r"`(\w+/\w+\.py)`", named)) - {"costs/operations.py"}  # which only passes the call on
    called, next_round = set(), Rounds.next

    def watched(self, progress):
        sys.setprofile(lambda frame, event, arg: called.add(Path(frame.f_code.co_filename)))
        try:
            return next_round(self, progress)
        finally:
            sys.setprofile(None)

    monkeypatch.setattr(Rounds, "next", watched)
    fedgbo.run(make_task(batch_size=4), fedgbo.FedGBO(fedgbo.SGDm(0.1, 0.9)), rounds=2, engine="plain")
    assert len(expected) == 10
    assert expected <= {path.relative_to(ROOT).as_posix() for path in called if path.is_relative_to(ROOT)}


def test_a_run_in_one_process_needs_neither_torchrun_nor_torchs_compiler():
    """A look at the environment (engines/torchrun/join.py) tells that there is one process; the compiler takes 2 s."""
    program = (
        "import sys, torch, fedgbo; from tests.conftest import make_task; "
        "fedgbo.run(make_task(), fedgbo.FedGBO(fedgbo.SGDm(0.1, 0.9)), rounds=2); "
        "names = [n for n in sys.modules if 'torchrun' in n or n == 'fedgbo.runs.ranks']; "
        "assert names == ['fedgbo.engines.torchrun', 'fedgbo.engines.torchrun.join'], names; "
        "assert not torch.distributed.is_initialized(); assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[1])
