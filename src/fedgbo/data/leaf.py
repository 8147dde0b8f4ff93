"""LEAF's JSON: users, num_samples and user_data in one object a file; train and test in separate files.

`num_samples` is not read: in public files of split data it counts samples that the split left out.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from fedgbo.core.errors import DataError
from fedgbo.data.archives import SourceFile, source_files
from fedgbo.data.jsonscan import JsonScanner

ROLE = re.compile(r"(?:^|[/_.-])(train|test)(?=[/_.-])")


@dataclass(frozen=True)
class LeafUser:
    """One user's samples in one file; `where` names both for messages."""

    name: str
    x: list[Any]
    y: list[Any]
    where: str


@dataclass(frozen=True)
class LeafFiles:
    """The files of a data set."""

    train: list[SourceFile]
    test: list[SourceFile]


def leaf_files(path: Path, instead: str) -> LeafFiles:
    """Find the train and test files: by their folder, or by their names (all_data_..._train_9.json).

    Of one file alone, the other half is looked for beside it. `instead` says what else the task could be read from.
    """
    found: dict[str, list[SourceFile]] = {"train": [], "test": []}
    for half in _halves(path):
        for source in source_files(half):
            roles = ROLE.findall(source.name)
            if source.name.endswith(".json") and roles:
                found[roles[-1]].append(source)
    if not any(found.values()):
        raise DataError(f"{path} has neither LEAF's JSON (train and test files) nor {instead}; give the folder of one")
    for role, files in found.items():
        if not files:
            raise DataError(
                f"{path} has no LEAF JSON files for {role}; they lie in folders train/ and test/, "
                "or have _train_ and _test_ in their names: give the folder that holds both"
            )
    return LeafFiles(**found)


def users(sources: Iterable[SourceFile]) -> Iterator[LeafUser]:
    """Read the users of the files one by one, in the files' order, with one of them in memory."""
    seen: dict[str, str] = {}
    for source in sources:
        for user in _users(source):
            if user.name in seen:
                raise DataError(f"{user.where} is there a second time, first in {seen[user.name]}; remove one")
            seen[user.name] = source.where
            yield user
    if not seen:
        raise DataError("the LEAF JSON files have no users; get them again")


def check_same_users(train: Iterable[str], test: Iterable[str], path: Path) -> None:
    """Raise unless the test files have exactly the users of the train files."""
    ours, theirs = set(train), set(test)
    for names, has, lacks in ((ours - theirs, "train", "test"), (theirs - ours, "test", "train")):
        if names:
            raise DataError(
                f"{path}: user {min(names)!r} has {has} samples but no {lacks} samples ({len(names)} such users); "
                "train and test files must be of the same draw"
            )


def _halves(path: Path) -> list[Path]:
    """Return the path, or, where it is one half of a pair of files, both."""
    role = ROLE.findall(path.name)
    if not path.is_file() or not role:
        return [path]
    other = {"train": "test", "test": "train"}[role[-1]]
    at = path.name.rindex(role[-1])
    twin = path.with_name(path.name[:at] + other + path.name[at + len(role[-1]) :])
    return [path, twin] if twin.is_file() else [path]


def _users(source: SourceFile) -> Iterator[LeafUser]:
    listed: list[Any] | None = None
    given: set[str] = set()
    found = False
    with source.open() as stream:
        scanner = JsonScanner(stream, source.where)
        for key in scanner.members("at the top"):
            if key != "user_data":
                value = scanner.value(f"in {key!r}")
                listed = value if key == "users" else listed
                continue
            found = True
            for name in scanner.members("in 'user_data'"):
                yield _user(name, scanner.value(f"in user {name!r}"), source.where)
                given.add(name)
        scanner.finish()
    if not found:
        raise DataError(f"{source.where} has no 'user_data'; LEAF's JSON has users, num_samples and user_data")
    for name in listed if isinstance(listed, list) else []:
        if name not in given:
            raise DataError(
                f"{source.where}: user {name!r} is listed in 'users' but has no samples; get the file again"
            )


def _user(name: str, data: Any, file: str) -> LeafUser:
    where = f"user {name!r} in {file}"

    def fail(problem: str) -> NoReturn:
        raise DataError(f"{where} {problem}")

    if not isinstance(data, dict) or not isinstance(data.get("x"), list) or not isinstance(data.get("y"), list):
        fail('must be {"x": [...], "y": [...]}; this is not LEAF\'s JSON')
    x, y = data["x"], data["y"]
    if len(x) != len(y):
        fail(f"has {len(x)} x but {len(y)} y; each sample needs one of each")
    if not x:
        fail("has no samples; remove the user, or get the file again")
    return LeafUser(name, x, y, where)
