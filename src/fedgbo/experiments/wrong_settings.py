"""Messages about settings that are wrong or missing, from a file or from the command line."""

import re
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from fedgbo.core import unknown

WANTED = {  # by pydantic's type of error
    "bool_type": "true or false",
    "dict_type": "a table",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a whole number of at least {ge}",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "less_than": "a number below {lt}",
    "list_type": "a list",
    "literal_error": "{expected}",
    "string_type": "a text",
}
EXAMPLES = {
    "lr": 0.1, "server_lr": 0.1, "beta": 0.9, "beta1": 0.9, "beta2": 0.99, "eps": 0.001, "mu": 0.1, "alpha": 0.1,
    "rho": 0.05, "q": 1, "lam": 0.1, "tau": 10,
}  # fmt: skip


def explain(
    error: ValidationError, file: Path | None, text: str, model: type[BaseModel], given: Container[str] = ()
) -> str:
    """Return a message that names every wrong setting, with its line unless it was `given` on the command line."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for item in error.errors():  # one for every member of a union
        found.setdefault(str(item["loc"][0]), []).append(item)
    messages = []
    for key, items in found.items():
        forbidden = items[0]["type"] == "extra_forbidden"
        message = unknown("setting", key, model.model_fields) if forbidden else f"{key} {wanted(items)}"
        line = None if key in given else line_of(text, key)
        messages.append(f"{file}, line {line}: {message}" if file and line else message)
    return "; ".join(messages)


def wanted(items: Sequence[Mapping[str, Any]]) -> str:
    """Return what a setting must be, by pydantic's errors about it, and what it is.

    >>> wanted([{"type": "int_type", "input": "ten"}, {"type": "dict_type", "input": "ten"}])
    "must be a whole number or a table, not 'ten'"
    """
    kinds = [WANTED[item["type"]].format(**item.get("ctx", {})) for item in items if item["type"] in WANTED]
    must = f"must be {' or '.join(dict.fromkeys(kinds))}" if kinds else f"is wrong: {items[0]['msg'].lower()}"
    return f"{must}, not {items[0]['input']!r}"


def missing(kind: str, name: str, keys: Sequence[str]) -> str:
    """Say which settings are missing, and how they are given.

    >>> missing("optimiser", "sgdm", ["lr", "beta"])
    'optimiser sgdm needs lr, beta; for example: lr=0.1 beta=0.9'
    """
    examples = " ".join(f"{key}={EXAMPLES[key]}" for key in keys if key in EXAMPLES)
    return f"{kind} {name} needs {', '.join(keys)}" + (f"; for example: {examples}" if examples else "")


def line_of(text: str, word: str) -> int | None:
    """Return the number of the first line with `word` as a key or a value."""
    pattern = re.compile(rf"(^|[\s\[{{.,\"'=]){re.escape(word)}($|[\s\]}}.,\"'=])")
    return next((n for n, line in enumerate(text.splitlines(), 1) if pattern.search(line)), None)
