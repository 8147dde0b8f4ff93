"""Which unit suits an axis."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """What values are divided by, and its name."""

    size: float
    name: str


def unit_for(largest: float, kind: str) -> Unit:
    """Return the unit in which `largest` bytes, FLOPs or seconds is a number of a few digits.

    >>> unit_for(3e6, "bytes").name, unit_for(2e12, "flops").name, unit_for(500, "seconds").name
    ('MiB', 'TFLOPs', 'minutes')
    """
    fitting = [unit for unit in UNITS[kind] if unit.size <= largest]
    return fitting[-1] if fitting else UNITS[kind][0]


UNITS: dict[str, tuple[Unit, ...]] = {
    "bytes": tuple(Unit(1024.0**i, f"{prefix}B") for i, prefix in enumerate(["", "Ki", "Mi", "Gi", "Ti", "Pi"])),
    "flops": tuple(Unit(1000.0**i, f"{prefix}FLOPs") for i, prefix in enumerate(["", "k", "M", "G", "T", "P", "E"])),
    "seconds": (Unit(1, "seconds"), Unit(60, "minutes"), Unit(3600, "hours")),
    "count": (Unit(1, ""),),
}
