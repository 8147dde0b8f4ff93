"""What a run may measure besides its scores."""

from collections.abc import Sequence

from fedgbo.core.errors import ConfigError, unknown

METRICS = {
    "cosine": "how far the clients' models of a round are apart (Figure 1)",
    "drift": "that, and how far their gradients are off those at x_t, with the bound (equations (2) and (3))",
}


def check_metrics(metrics: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics' names, a single one as a tuple too; raise on one that is not known."""
    names = (metrics,) if isinstance(metrics, str) else tuple(metrics)
    for name in names:
        if name not in METRICS:
            raise ConfigError(unknown("metric", str(name), METRICS))
    return names
