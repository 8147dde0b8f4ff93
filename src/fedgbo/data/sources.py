"""Where the tasks' public files can be had: the table in sources.toml."""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from urllib.parse import urlsplit

from fedgbo.core.errors import ConfigError, unknown


@dataclass(frozen=True)
class Source:
    """A public file: its addresses in order of preference, its name here, and what is documented of its content."""

    name: str
    urls: tuple[str, ...]
    file: str
    about: str = ""
    sha256: str | None = None
    md5: str | None = None
    size: int | None = None  # in bytes

    def __post_init__(self) -> None:
        if not self.urls:
            raise ConfigError(f"source {self.name}: it needs an address")
        for url in self.urls:
            if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
                raise ConfigError(f"source {self.name}: '{url}' is no http or https address")
        if re.fullmatch(r"[\w-][\w.-]*", self.file) is None:
            raise ConfigError(f"source {self.name}: '{self.file}' must be a plain file name, without folders")

    @property
    def digest(self) -> tuple[str, str] | None:
        """The kind of the best digest that is known, and its value."""
        if self.sha256 is not None:
            return "sha256", self.sha256.lower()
        return ("md5", self.md5.lower()) if self.md5 is not None else None


@cache
def sources() -> dict[str, tuple[Source, ...]]:
    """Return all sources by task, those of a task in order of preference."""
    table = tomllib.loads(files("fedgbo.data").joinpath("sources.toml").read_text(encoding="utf-8"))
    return {
        task: tuple(Source(**entry | {"urls": tuple(entry["urls"])}) for entry in entries)
        for task, entries in table.items()
    }


def source(task: str, name: str | None = None) -> Source:
    """Return a task's source, by default the first.

    >>> source("femnist").file
    'fed_emnist.tar.bz2'
    """
    if task not in sources():
        raise ConfigError(unknown("task with public files", task, sources()))
    known = {entry.name: entry for entry in sources()[task]}
    if name is not None and name not in known:
        raise ConfigError(unknown(f"source of {task}", name, known))
    return next(iter(known.values())) if name is None else known[name]
