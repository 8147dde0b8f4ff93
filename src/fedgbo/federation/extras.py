"""Flower, which only those need who run a federation."""

from importlib.util import find_spec

from fedgbo.core.errors import MissingExtraError


def require_flower() -> None:
    """Raise unless Flower (and `cryptography`, which comes with it) is installed."""
    if find_spec("flwr") is None or find_spec("cryptography") is None:
        raise MissingExtraError("federations need Flower; install it with: pip install 'fedgbo[flower]'")
