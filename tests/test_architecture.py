"""Imports point one way: core <- parts <- tasks, engines <- runs <- experiments, reports <- cli."""

import ast
from pathlib import Path

import pytest

import fedgbo

ROOT = Path(fedgbo.__file__).parent
MAY_IMPORT = {
    "core": {"core"},
    "optimisers": {"core", "optimisers"},
    "algorithms": {"core", "optimisers", "algorithms"},
    "models": {"core", "models"},
    "data": {"core", "data"},
    "tasks": {"core", "data", "models", "tasks"},
    "costs": {"core", "costs"},
    "engines": {"core", "costs", "data", "models", "tasks", "engines"},
    "runs": {"core", "optimisers", "algorithms", "data", "tasks", "engines", "costs", "runs"},
    "reports": {"core", "data", "tasks", "runs", "costs", "reports"},
    "experiments": {"core", "runs", "costs", "tasks", "models", "algorithms", "optimisers", "experiments", "reports"},
    "flower": {"core", "data", "tasks", "engines", "runs", "experiments", "flower"},
    "bench": {"core", "algorithms", "optimisers", "models", "data", "tasks", "engines", "costs", "runs", "bench"},
    "federation": {"core", "runs", "flower", "federation"},
    "cli": {"core", "bench", "data", "federation", "tasks", "runs", "costs", "experiments", "reports", "cli"},
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
        wrong = set(rooms_imported(path)) - MAY_IMPORT[room]
        assert not wrong, f"{path} imports {wrong}"


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


def test_nothing_untrusted_is_unpickled():
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        for banned in ("pickle.load", "torch.load(", "allow_pickle=True", "yaml.load("):
            assert banned not in text, f"{path}: {banned}"
