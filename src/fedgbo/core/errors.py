"""Everything that a user can cause to go wrong, with messages that say what, what is allowed and what to do."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any

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


class FedGBOError(Exception):
    """Base class of all errors of fedgbo; `exit_code` is the exit code of the command line."""

    exit_code = 1


class ConfigError(FedGBOError, ValueError):
    """A setting is invalid: an unknown name, a wrong value or an unsupported combination."""

    exit_code = 2


class DataError(FedGBOError, ValueError):
    """The data, the labels or the model do not fit together."""

    exit_code = 3


class RunFolderError(FedGBOError):
    """A run folder or a checkpoint cannot be used."""

    exit_code = 4


class FolderBusyError(RunFolderError):
    """A run folder that another process is writing into."""


class DivergenceError(FedGBOError, ArithmeticError):
    """A loss, a parameter or a statistic is not finite."""

    exit_code = 5

    def __str__(self) -> str:
        return f"{super().__str__()}; try a smaller lr, fewer local steps or, for RMSProp and Adam, a larger eps"


class RankError(FedGBOError):
    """Another process of a run under torchrun died, stopped, does not answer, or computed a different model."""

    exit_code = 6


class FederationError(FedGBOError):
    """A federation cannot continue: too few clients or valid updates, or no connection to the server."""

    exit_code = 7


class StopRun(FedGBOError):  # noqa: N818 (a signal such as StopIteration, not an error)
    """Stops the run after this round when a callback raises it; `Progress.stop` raises it."""


class RunWarning(UserWarning):
    """A resumed run whose result may differ from that of an uninterrupted one, or that has lost records."""


class MissingExtraError(FedGBOError, ImportError):
    """An optional dependency that is not installed."""

    exit_code = 2


def optional(module: str, extra: str, need: str) -> Any:
    """Import an optional dependency, or raise an error that says which extra of ours installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(f"{need}: pip install 'fedgbo[{extra}]'") from error


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Say that `name` is not one of `known`, with the nearest guess.

    >>> unknown("optimiser", "adma", ["adam", "sgd"])
    "unknown optimiser 'adma'; did you mean 'adam'? (known: adam, sgd)"
    """
    names = {entry.lower(): entry for entry in sorted(known)}
    close = get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    guess = f"; did you mean '{names[close[0]]}'?" if close else ""
    return f"unknown {kind} '{name}'{guess} (known: {', '.join(names.values()) or 'none'})"


def wanted(items: Sequence[Mapping[str, Any]]) -> str:
    """Return what a setting must be, by pydantic's errors about it, and what it is.

    >>> wanted([{"type": "int_type", "input": "ten"}, {"type": "dict_type", "input": "ten"}])
    "must be a whole number or a table, not 'ten'"
    >>> wanted([{"type": "missing", "input": {}}])
    'is missing'
    """
    if items[0]["type"] == "missing":
        return "is missing"
    kinds = [WANTED[item["type"]].format(**item.get("ctx", {})) for item in items if item["type"] in WANTED]
    must = f"must be {' or '.join(dict.fromkeys(kinds))}" if kinds else f"is wrong: {items[0]['msg'].lower()}"
    return f"{must}, not {items[0]['input']!r}"
