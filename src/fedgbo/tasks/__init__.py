"""Tasks, one a file, and their catalogue."""

from collections.abc import Callable

from fedgbo.tasks.digits import digits
from fedgbo.tasks.task import Task

TASKS: dict[str, Callable[..., Task]] = {"digits": digits}

__all__ = ["TASKS", "Task"]
