"""Errors as messages between the processes of a run: plain JSON, from which nothing but our own errors is built."""

import json

from fedgbo.core import errors
from fedgbo.core.errors import FedGBOError, RankError


def told(error: BaseException) -> bytes:
    """Return the error as a message."""
    text = str(error.args[0]) if isinstance(error, FedGBOError) and error.args else str(error)
    return json.dumps({"error": type(error).__name__, "text": text}).encode()


def rebuilt(message: bytes, rank: int) -> Exception:
    """Return the error that process `rank` raised, if it is one of ours, or one that says what happened there.

    >>> rebuilt(told(errors.ConfigError("rounds must be positive")), rank=1)
    ConfigError('rounds must be positive')
    >>> rebuilt(told(OSError("disk full")), rank=1)
    RankError('rank 1 failed: OSError: disk full')
    """
    content = json.loads(message)
    name, text = str(content["error"]), str(content["text"])
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, FedGBOError):
        return kind(text)
    return RankError(f"rank {rank} {ending(message)}")


def ending(message: bytes) -> str:
    """Say how a process ended that left this message.

    >>> ending(told(KeyboardInterrupt()))
    'was stopped (by Ctrl-C, a signal or torchrun)'
    """
    content = json.loads(message)
    if content["error"] == "KeyboardInterrupt":
        return "was stopped (by Ctrl-C, a signal or torchrun)"
    return f"failed: {content['error']}: {content['text']}"
