"""Federations on Flower (flwr): every algorithm, with the rounds, records and checkpoints of `fedgbo run`.

app = fedgbo.flower.client_app(my_task)  # client_app.py
app = fedgbo.flower.server_app(my_task)  # server_app.py

The only package that knows Flower's messages. Optional dependency: pip install 'fedgbo[flower]'.
"""

from fedgbo.core import MissingExtraError

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise MissingExtraError("federations need Flower; install it with: pip install 'fedgbo[flower]'") from error

from fedgbo.flower.node import client_app
from fedgbo.flower.options import Options
from fedgbo.flower.strategy import Strategy, server_app

__all__ = ["Options", "Strategy", "client_app", "server_app"]
