"""The vectors that clients keep from round to round, on disk: one file for each client and round that changed it.

A file is never overwritten by a later round. A checkpoint says which version of each client's file it goes with, so
that a run that is resumed from it sees exactly the vectors of that round, whatever was written after it.
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import safetensors
from safetensors.torch import save as to_bytes
from torch import Tensor

from fedgbo.core import RunFolderError, Stats
from fedgbo.core.files import write_atomic
from fedgbo.runs.checkpoint import digest

KEY = "fedgbo"


class ClientMemory:
    """A folder of client states, made when the first is saved. `rounds` has the round of each client's current version.

    With `keep_from`, versions that no checkpoint after so many rounds needs are removed with every save; without it,
    `prune` removes them. A `temporary` memory is for a run without checkpoints: only current versions are kept.
    """

    def __init__(
        self,
        folder: Path,
        rounds: Mapping[int, int] | None = None,
        keep_from: int | None = None,
        temporary: bool = False,
    ) -> None:
        self.folder, self.rounds = folder, dict(rounds or {})
        self._keep_from, self._temporary = keep_from, temporary
        self._written: list[Path] = []  # since the last flush
        self._versions: dict[int, set[int]] = {}  # rounds of all files of a client
        for path in folder.glob("*.safetensors"):
            client, _, t = path.stem.partition("-")
            if client.isdigit() and t.isdigit():
                self._versions.setdefault(int(client), set()).add(int(t))

    def load(self, client: int, initial: Stats) -> dict[str, Tensor]:
        if client not in self.rounds:
            return {name: x.clone() for name, x in initial.items()}
        return self._read(client, self.rounds[client], initial)

    def save(self, client: int, t: int, state: Stats) -> None:
        tensors = {name: x.detach().cpu().contiguous().clone() for name, x in state.items()}  # none shares memory
        header = {"client": client, "round": t, "digest": digest(tensors)}
        path = self._path(client, t)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(path, to_bytes(tensors, metadata={KEY: json.dumps(header)}), durable=False)
        except OSError as error:
            raise RunFolderError(f"cannot write {path}: {error.strerror or error}") from error
        self._versions.setdefault(client, set()).add(t)
        if not self._temporary:
            self._written.append(path)
        if self._keep_from is not None:
            self.flush()
            self._prune(client, self._keep_from)

    def commit(self, clients: Iterable[int], t: int) -> None:
        """Make the versions of round t current: the round is complete."""
        self.rounds.update(dict.fromkeys(clients, t))
        if self._temporary:
            self.prune(t + 1)

    def flush(self) -> None:
        """Make sure that all files are on disk, before a checkpoint that needs them."""
        for path in self._written:
            if path.exists():
                descriptor = os.open(path, os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)
        self._written = []

    def prune(self, oldest: int) -> None:
        """Remove the versions that no checkpoint needs; `oldest` is the number of rounds of the oldest one."""
        for client in self._versions:
            self._prune(client, oldest)

    def _prune(self, client: int, oldest: int) -> None:
        versions = self._versions[client]
        needed = max((t for t in versions if t < oldest), default=-1)  # the current one at that checkpoint
        for t in [t for t in versions if t < needed]:
            self._path(client, t).unlink(missing_ok=True)
            versions.discard(t)

    def _path(self, client: int, t: int) -> Path:
        return self.folder / f"{client}-{t}.safetensors"

    def _read(self, client: int, t: int, initial: Stats) -> dict[str, Tensor]:
        path = self._path(client, t)
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                header = json.loads((file.metadata() or {})[KEY])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if (header["client"], header["round"], header["digest"]) != (client, t, digest(tensors)):
                raise ValueError("its contents do not match its header")
        except FileNotFoundError as error:
            raise RunFolderError(
                f"the state of client {client} after round {t + 1} is missing: {path}; start the run again"
            ) from error
        except (OSError, safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
            raise RunFolderError(f"the state of client {client} in {path} is damaged: {error}") from error
        shapes = {name: (x.shape, x.dtype) for name, x in tensors.items()}
        if shapes != {name: (x.shape, x.dtype) for name, x in initial.items()}:
            raise RunFolderError(f"{path} does not hold the vectors that the algorithm declares in client_state")
        return {name: x.to(initial[name].device) for name, x in tensors.items()}
