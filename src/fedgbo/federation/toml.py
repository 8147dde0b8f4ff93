"""Tables written as TOML: the few kinds of values that settings have."""

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(table: Mapping[str, Any]) -> str:
    """Return a table as TOML, one key a line; tables in it are written inline, and what is None is left out.

    >>> print(to_toml({"rounds": 5, "algorithm": {"name": "fedavg", "optimiser": {"lr": 0.1}}, "seed": None}), end="")
    rounds = 5
    algorithm = { name = "fedavg", optimiser = { lr = 0.1 } }
    """
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in table.items() if value is not None)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(key)} = {_value(each)}" for key, each in value.items() if each is not None)
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(each) for each in value)}]"
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)  # int and float, inf and nan among them, are the same in both
