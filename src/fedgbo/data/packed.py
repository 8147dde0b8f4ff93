"""What a reader makes of public files: arrays for the store, and what they are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedgbo.data.store import Array


@dataclass(frozen=True, eq=False)
class Packed:
    """Arrays by name, and the meta data that goes into store.json."""

    arrays: Mapping[str, Array]
    meta: Mapping[str, Any]
