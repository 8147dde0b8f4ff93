"""What all charts share: altair draws, in these colours and dashes; vl-convert writes PNG, SVG and PDF."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedgbo.core.errors import ConfigError, MissingExtraError

# Okabe and Ito's colours for the colour-blind, and dashes so that black-and-white print works too.
COLOURS = ["#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D00"]
DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [8, 2, 2, 2, 2, 2], [10, 4], [4, 2, 1, 2], [3, 5]]

SUFFIXES = (".png", ".svg", ".pdf")
PADDING = {"left": 5, "top": 5, "bottom": 5, "right": 30}  # a font wider than that measured must not cut the legend


def altair() -> Any:
    """Import altair, or say how to get it."""
    try:
        import altair as alt
    except ImportError as error:
        raise MissingExtraError("charts need altair: pip install 'fedgbo[charts]'") from error
    return alt


def save_chart(chart: Any, path: Path, kinds: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Write the chart in several formats (png, svg, pdf) beside each other; return the files.

    `path` may end in one of them, as a user would write it; any other full stop is part of the name.
    """
    stem = path.with_suffix("") if path.suffix.lower() in SUFFIXES else path
    files = [stem.with_name(f"{stem.name}.{kind}") for kind in kinds]
    try:
        for file in files:
            chart.save(file, scale_factor=2 if file.suffix == ".png" else 1)
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}; choose another place") from error
    except (ImportError, ValueError) as error:
        raise MissingExtraError(f"charts need vl-convert: pip install 'fedgbo[charts]' ({error})") from error
    return files


def titled(chart: Any, title: str, subtitle: str | Sequence[str]) -> Any:
    """Give a chart of lines its title, and all of them the same grid and legend."""
    return (
        chart.properties(title=altair().Title(title, subtitle=subtitle, anchor="start"), padding=PADDING)
        .configure_axis(grid=True, gridOpacity=0.4)
        .configure_legend(labelFontSize=12, labelLimit=260, symbolSize=400, symbolStrokeWidth=2.5)
    )


def bands(seeds: int) -> str:
    """Say what lines and bands are.

    >>> bands(1)
    'one seed'
    """
    return f"mean of {seeds} seeds, bands: 95% confidence interval" if seeds > 1 else "one seed"
