"""Numbers for people."""


def quantity(value: float, unit: str, base: int = 1000) -> str:
    """Return a number with a prefix.

    >>> quantity(1536, "B", base=1024), quantity(2.5e9, "FLOP"), quantity(12, "B", base=1024)
    ('1.50 KiB', '2.50 GFLOP', '12 B')
    """
    prefixes = ["", "Ki", "Mi", "Gi", "Ti"] if base == 1024 else ["", "k", "M", "G", "T", "P"]
    i = 0
    while value >= base and i < len(prefixes) - 1:
        value, i = value / base, i + 1
    number = f"{value:.0f}" if i == 0 else f"{value:.3g}" if value >= 100 else f"{value:#.3g}"
    return f"{number} {prefixes[i]}{unit}"
