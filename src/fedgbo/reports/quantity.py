"""Numbers for people."""


def quantity(value: float, unit: str, base: int = 1000) -> str:
    """Return a number with a prefix.

    >>> quantity(1536, "B", base=1024), quantity(2.5e9, "FLOP"), quantity(12, "B", base=1024)
    ('1.50 KiB', '2.50 GFLOP', '12 B')
    >>> quantity(1010 * 2**20, "B", base=1024), quantity(99.96e6, "FLOP"), quantity(999.6e6, "FLOP")
    ('1010 MiB', '100 MFLOP', '1.00 GFLOP')
    """
    prefixes = ["", "Ki", "Mi", "Gi", "Ti", "Pi"] if base == 1024 else ["", "k", "M", "G", "T", "P", "E"]
    i = 0
    while value >= base - 0.5 and i < len(prefixes) - 1:  # what would be rounded up to the base
        value, i = value / base, i + 1
    decimals = 0 if i == 0 or value >= 99.95 else 1 if value >= 9.995 else 2  # three digits, or all before the point
    return f"{value:.{decimals}f} {prefixes[i]}{unit}"
