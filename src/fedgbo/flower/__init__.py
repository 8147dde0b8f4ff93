"""Federations on Flower (flwr): every algorithm, with the rounds, records and checkpoints of `fedgbo run`.

app = fedgbo.flower.client_app(my_task)  # client_app.py
app = fedgbo.flower.server_app(my_task)  # server_app.py

The only package that knows Flower's messages. Optional dependency: pip install 'fedgbo[flower]'.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedgbo.core import MissingExtraError

if TYPE_CHECKING:
    from fedgbo.flower.node import client_app
    from fedgbo.flower.options import Options
    from fedgbo.flower.strategy import Strategy, server_app

__all__ = ["Options", "Strategy", "client_app", "server_app"]
_MODULES = {"Options": "options", "Strategy": "strategy", "client_app": "node", "server_app": "strategy"}


def __getattr__(name: str) -> Any:
    """Import Flower at the first use: the options and the registry, which the command line needs, do without it."""
    if name not in _MODULES:
        raise AttributeError(f"module 'fedgbo.flower' has no attribute {name!r}")
    try:
        import flwr  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("federations need Flower; install it with: pip install 'fedgbo[flower]'") from error
    return getattr(import_module(f"fedgbo.flower.{_MODULES[name]}"), name)
