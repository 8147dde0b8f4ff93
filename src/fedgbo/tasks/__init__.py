"""Tasks, one a file, and their catalogue."""

from collections.abc import Callable

from fedgbo.tasks.digits import digits
from fedgbo.tasks.sent140 import sent140, sent140_synthetic
from fedgbo.tasks.shakespeare import shakespeare, shakespeare_synthetic
from fedgbo.tasks.task import Task

TASKS: dict[str, Callable[..., Task]] = {
    "digits": digits,
    "sent140": sent140,
    "sent140-synthetic": sent140_synthetic,
    "shakespeare": shakespeare,
    "shakespeare-synthetic": shakespeare_synthetic,
}

__all__ = ["TASKS", "Task"]
