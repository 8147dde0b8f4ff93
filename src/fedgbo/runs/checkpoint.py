"""Checkpoints: the server state in one safetensors file, with the rest as JSON in its header.

The file is renamed into place at once, so that state and totals always belong together. A digest detects damage that
the format does not.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save as to_bytes
from torch import Tensor

from fedgbo.core import RunFolderError, State
from fedgbo.core.files import write_atomic
from fedgbo.runs.record import FLOPS, WHOLE, Ledger, check_numbers

FORMAT = 1
KEY = "fedgbo"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Everything needed to go on: the server's state and the totals after some rounds of the run so described."""

    state: State
    ledger: Ledger
    about: Mapping[str, Any]  # what the run is: task, algorithm, seed; must be the same to resume
    clients: Mapping[int, int] = field(default_factory=dict)  # the round of each client's state, see runs/memory.py
    best: State | None = None  # the model of the best evaluation so far, where it is kept

    def save(self, path: Path) -> None:
        """Write this, whole or not at all."""
        tensors = {name: x.cpu().contiguous().clone() for name, x in self.state.tensors().items()}  # none shares memory
        tensors |= as_tensors(self.clients) | best_tensors(self.best)
        header = {
            "format": FORMAT,
            "ledger": self.ledger.content(),
            "about": dict(self.about),
            "digest": digest(tensors),
        }
        write_atomic(path, to_bytes(tensors, metadata={KEY: json.dumps(header)}))

    @classmethod
    def load(cls, path: Path) -> "Checkpoint":
        """Read a checkpoint; raise RunFolderError, naming the file, on anything that is not a whole one of ours."""
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, safetensors.SafetensorError) as error:
            raise RunFolderError(f"checkpoint {path} is damaged or not a checkpoint: {error}") from error
        if KEY not in metadata:
            raise RunFolderError(f"{path} is a safetensors file, but not a fedgbo checkpoint")
        try:
            header = json.loads(metadata[KEY])
            if header["format"] != FORMAT:
                raise RunFolderError(f"checkpoint {path} has format {header['format']}; this version reads {FORMAT}")
            if header["digest"] != digest(tensors):
                raise RunFolderError(f"checkpoint {path} is damaged: its contents do not match its digest")
            check_numbers(header["ledger"], whole=(*WHOLE, "loss_rounds"), other=("seconds", "loss_sum"), or_none=FLOPS)
            if not isinstance(header["about"], dict):
                raise TypeError("the description of the run is not a table")
            state, ledger, best = State.of_tensors(tensors), Ledger(**header["ledger"]), best_of(tensors)
            return cls(state, ledger, header["about"], from_tensors(tensors), best)
        except (KeyError, TypeError, ValueError) as error:
            raise RunFolderError(f"checkpoint {path} is damaged: {error}") from error


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of named tensors: two states with the same digest are the same, bit for bit."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].cpu().contiguous()
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.numpy().tobytes())
    return sha.hexdigest()


def best_tensors(best: State | None) -> dict[str, Tensor]:
    """Return the best model as tensors of a checkpoint; none where it is not kept."""
    named = {} if best is None else best.tensors()
    return {f"best.{name}": x.cpu().contiguous().clone() for name, x in named.items()}


def best_of(tensors: Mapping[str, Tensor]) -> State | None:
    """Undo `best_tensors`; other tensors are passed over."""
    own = {name.removeprefix("best."): x for name, x in tensors.items() if name.startswith("best.")}
    return State.of_tensors(own) if own else None


def as_tensors(rounds: Mapping[int, int]) -> dict[str, Tensor]:
    """Return the versions of all clients' states as tensors of a checkpoint; none where there are none."""
    if not rounds:
        return {}
    clients = sorted(rounds)
    return {
        "clients.id": torch.tensor(clients, dtype=torch.int64),
        "clients.round": torch.tensor([rounds[client] for client in clients], dtype=torch.int64),
    }


def from_tensors(tensors: Mapping[str, Tensor]) -> dict[int, int]:
    """Undo `as_tensors`; other tensors are passed over."""
    if "clients.id" not in tensors:
        return {}
    return dict(zip(tensors["clients.id"].tolist(), tensors["clients.round"].tolist(), strict=True))
