"""A run in several processes under torchrun: what they share before the first round, and which of them writes."""

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgbo.core import ConfigError, State
from fedgbo.engines.device import cores, device_of
from fedgbo.engines.engine import Origin
from fedgbo.engines.fit import check_mode
from fedgbo.engines.generators import reproducible
from fedgbo.engines.select import local_engine
from fedgbo.engines.torchrun.engine import TorchrunEngine
from fedgbo.engines.torchrun.join import join, joined, under_torchrun
from fedgbo.engines.torchrun.ranks import Ranks
from fedgbo.runs.checkpoint import best_of, best_tensors
from fedgbo.runs.config import RunConfig
from fedgbo.runs.loop import Loop
from fedgbo.runs.plan import Plan, Start, described, differ, open_folder
from fedgbo.runs.record import Ledger, Record
from fedgbo.runs.recorder import NOTHING, Recorder, client_memory
from fedgbo.runs.result import Result
from fedgbo.runs.round import Progress


def run_rank(plan: Plan) -> Result:
    """Carry out this process's part of a plan; all processes return the same result."""
    ranks = join()
    try:
        if plan.metrics:
            raise ConfigError(
                f"metrics ({', '.join(plan.metrics)}) are measured by a single process, but there are {ranks.size}; "
                "leave them out, or start the run without torchrun: its result is the same"
            )
        device = ranks.together(lambda: device_of(plan.device, ranks.local_rank, ranks.local_size))
        workers = max(1, cores() // ranks.local_size) if plan.workers is None else plan.workers
        with reproducible(device), ExitStack() as stack:
            ranks.together(check_mode)
            engine = TorchrunEngine(
                ranks.together(
                    lambda: local_engine(plan.task, plan.algorithm, plan.seed, workers, device, engine=plan.engine)
                ),
                ranks,
            )
            begin, about = plan.start(engine)
            plan = described(plan, about)
            _check_alike(ranks, about, device)
            recorder, start = _opened(stack, ranks, plan, engine.origin, begin, about)
            memory = recorder.memory if recorder is not None else None
            return Loop(plan, engine, _RankRecorder(recorder, ranks), memory).go(start, device)
    except BaseException as error:
        ranks.leave(error)
        raise


class _RankRecorder(Recorder):
    """Lets rank 0 record the run, and tells all processes whether to stop."""

    def __init__(self, recorder: Recorder | None, ranks: Ranks) -> None:
        self._recorder, self._ranks = recorder, ranks

    def tell(self, progress: Progress, *, evaluated: bool, final: bool = False) -> bool:
        def tell() -> bytes:
            stop = self._recorder is not None and self._recorder.tell(progress, evaluated=evaluated, final=final)
            return b"stop" if stop else b""

        return self._ranks.lead(tell) == b"stop"

    def end(
        self, progress: Progress, status: str, clients: Mapping[int, Mapping[str, Any]] = NOTHING, **more: Any
    ) -> None:
        if self._recorder is not None:
            self._recorder.end(progress, status, clients, **more)


def _opened(
    stack: ExitStack, ranks: Ranks, plan: Plan, origin: Origin, begin: Start, about: Mapping[str, Any]
) -> tuple[Recorder | None, Start]:
    """Let rank 0 open the run's folder and send all processes where to start."""
    recorder, found = None, begin

    def look() -> bytes:
        nonlocal recorder, found
        folder, found = open_folder(stack, plan, begin, about)
        recorder = Recorder(folder, plan, about, client_memory(stack, plan, origin, folder, found))
        told = {"ledger": found.ledger.content(), "history": [record.line() for record in found.history]}
        return json.dumps({**told, "names": {n: x.numel() for n, x in tensors_of(found).items()}}).encode()

    def tensors_of(start: Start) -> dict[str, Tensor]:
        return start.state.tensors() | best_tensors(start.best)

    told = json.loads(ranks.lead(look))
    own, like = tensors_of(found), begin.state.params
    tensors = {name: own[name] if ranks.leads else like.new_empty(size) for name, size in told["names"].items()}
    for tensor in tensors.values():
        ranks.spread(tensor)
    history = [Record.of_line(line) for line in told["history"]]
    return recorder, Start(State.of_tensors(tensors), Ledger(**told["ledger"]), history, {}, best_of(tensors))


def _check_alike(ranks: Ranks, about: Mapping[str, Any], device: torch.device) -> None:
    """Raise unless all processes are about to do the same run with the same data and the same initial model."""
    ours = {**about, "device": device.type, "torch": torch.__version__}
    theirs = json.loads(ranks.lead(lambda: json.dumps(ours).encode()))

    def compare() -> None:
        for key, value in json.loads(json.dumps(ours)).items():
            if differ(key, value, theirs.get(key)):
                raise ConfigError(
                    f"rank {ranks.rank} has a different {key} from rank 0: {value}, not {theirs.get(key)}; "
                    "give all machines the same program, settings and data"
                )

    ranks.together(compare)


def ask_rank0(make: Callable[[], tuple[RunConfig, Path]]) -> tuple[RunConfig, Path]:
    """Let rank 0 alone find out what to run and where, and return that in all processes."""
    if not under_torchrun():
        return make()

    def told() -> bytes:
        config, folder = make()
        return json.dumps([config.model_dump(), str(folder)]).encode()

    config, folder = json.loads(join().lead(told))
    return RunConfig(**config), Path(folder)


def leads() -> bool:
    """Return whether this process writes files and shows progress and results: rank 0, or the only process."""
    return not under_torchrun() or join().leads


def speaks() -> bool:
    """Return whether this process reports errors: as `leads`, but another one does if rank 0 is gone."""
    ranks = joined()
    return ranks is None or ranks.speaks


def refuse_torchrun(command: str) -> None:
    """Raise if several processes were started for a command that is for one."""
    if under_torchrun() and join() is not None:
        raise ConfigError(f"{command} is for one process; under torchrun there are `fedgbo run` and `fedgbo resume`")
