"""Scores of a model without a run: as it is, for each client, or after each client has trained it further."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedgbo.algorithms import MFL
from fedgbo.core import ConfigError, Optimiser, State, whole
from fedgbo.core.schedule import at_round
from fedgbo.costs.operations import Meter
from fedgbo.engines.device import cores, device_of
from fedgbo.engines.engine import LocalEngine, Round
from fedgbo.engines.evaluate import Chunk, OwnModels, Piece, Scores, check_local, chunks_of
from fedgbo.engines.generators import reproducible
from fedgbo.engines.select import local_engine
from fedgbo.optimisers import SGD
from fedgbo.pipeline import Pipeline
from fedgbo.pipeline.samplers import FixedSize
from fedgbo.runs.result import Result
from fedgbo.runs.warm_start import starting_from
from fedgbo.tasks.task import Task


def evaluate(
    params: Any,
    task: Task,
    *,
    buffers: Tensor | None = None,
    per_client: bool = False,
    personalise: int | None = None,
    optimiser: Optimiser | None = None,
    seed: int = 0,
    workers: int | None = None,
    device: str = "cpu",
) -> Scores:
    """Return the loss and the metrics of a model on a task's test set and validation part.

    `params` is a run's result, its `params` or its `state`; or a module, a state_dict or a safetensors file. A model
    with buffers that training changes, such as BatchNorm's, also needs these: pass `result.state`, or `buffers`.

    `per_client` adds the scores on each client's own test samples. With the result of a personalised algorithm, each
    client's own model is scored, and the test scores are over all clients' test samples, as in the run.

    With `personalise`, each client first takes that many local steps of `optimiser` on its training samples, from the
    given parameters. The test scores are then computed over all clients' test samples, each with its own client's
    model. `seed` determines the minibatches of these steps.
    """
    if personalise is not None:
        whole("personalise", personalise)
    if (personalise is None) != (optimiser is None):
        raise ConfigError(
            "personalise=, a number of local steps, and optimiser=, such as SGD(lr=0.1), must be given together"
        )
    if (per_client or personalise is not None) and task.data.client_tests is None:
        raise ConfigError("clients are scored on their own test samples; give FederatedData.from_clients client_tests=")
    algorithm = at_round(MFL(SGD(lr=1.0) if optimiser is None else optimiser), 0)  # whose clients take plain steps
    if isinstance(params, Mapping | nn.Module | str | Path):
        task, params = starting_from(task, params), None
    where = device_of(device)
    with reproducible(where):
        engine = local_engine(task, algorithm, seed, cores() if workers is None else workers, where)
        state = _state(params, buffers, engine).on(where)
        if personalise is None:
            scores = engine.evaluate(state, _own_models(params) if per_client else None)
            return scores if per_client else replace(scores, clients={})
        return _personalised(engine, algorithm, state, personalise)


def _own_models(params: Any) -> OwnModels | None:
    """Return the models of the clients of a personalised run."""
    if not isinstance(params, Result):
        return None
    if params.personalised and params.own_models is None:
        raise ConfigError(
            "clients have models of their own, which this result does not hold; run with out=FOLDER, or give "
            "result.state to score the global model on each client's samples"
        )
    return params.own_models


def _state(params: Any, buffers: Tensor | None, engine: LocalEngine) -> State:
    """Return the model to score as a server state; raise unless it is complete."""
    origin = engine.origin
    if params is None:  # the task's model has them
        return State(origin.params, {}, origin.buffers)
    given: Any = params.state if isinstance(params, Result) else params
    if isinstance(given, State):
        buffers = given.buffers if buffers is None else buffers
        given = given.params
    if not isinstance(given, Tensor | np.ndarray):
        raise ConfigError(
            "params must be a result, a State, a flat vector, a module, a state_dict or the path of a safetensors "
            f"file, not {type(params).__name__}"
        )
    flat = torch.as_tensor(given).detach().to(origin.params.dtype)
    if flat.shape != origin.params.shape:
        raise ConfigError(
            f"params must be a flat vector of {origin.params.numel()} numbers, in the order of model.parameters(), "
            f"not of shape {tuple(flat.shape)}"
        )
    if origin.buffers is None:
        return State(flat)
    if buffers is None or buffers.shape != origin.buffers.shape:
        raise ConfigError(
            f"the model has buffers that training changes ({', '.join(origin.moving[:3])}); give result.state "
            f"instead of result.params, or buffers= with {origin.buffers.numel()} numbers"
        )
    return State(flat, {}, buffers.detach().to(origin.buffers.dtype))


def _personalised(engine: LocalEngine, algorithm: MFL, start: State, steps: int) -> Scores:
    """Train each client from `start`, and score it on its own test samples."""
    data = engine.task.data
    if engine.origin.local_buffers is not None:
        check_local(data, None)
    chunks = chunks_of(replace(data, test=None, validation=None))
    down = algorithm.init(start.params).with_buffers(start.buffers)
    work = Round(0, algorithm, down, [], [], Pipeline(FixedSize(1)), Meter(algorithm))

    def pieces() -> Iterator[Piece]:
        for client in dict.fromkeys(chunk.client for chunk in chunks if chunk.client is not None):
            (upload,) = engine.uploads(replace(work, cohort=[client], steps=[steps]), [(client, steps)])
            own: list[Chunk] = [chunk for chunk in chunks if chunk.client == client]
            yield from engine.pieces(_moved(start, upload.state), own)

    return engine.scorer.scores(chunks, pieces())


def _moved(start: State, up: State) -> State:
    """Return the model that a client reached, from the difference that it sends."""
    buffers = None if start.buffers is None or up.buffers is None else start.buffers - up.buffers
    return State(start.params - up.params, {}, buffers)
