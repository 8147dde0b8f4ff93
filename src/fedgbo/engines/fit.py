"""Checks, before the first round: do a task's model, loss and data fit together, and which code of ours fits them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fedgbo.core import ConfigError, DataError, Term
from fedgbo.data.samples import IGNORED
from fedgbo.data.tree import kind_of, leaves, map_tensors, samples_in
from fedgbo.engines.flat import FAILURES, FlatModel
from fedgbo.engines.generators import Generators
from fedgbo.engines.layers import LEVELS, STOCK, Level
from fedgbo.engines.layers.conv import FastConv2d
from fedgbo.tasks.task import Batch, Task, logits_of

ALIKE = 1e-5  # of the largest number of a tensor: by so much two may differ by rounding
UNITS = 4  # of the type's precision, if that is more
TINY = 1e-5  # of the gradient's largest number: the same for parameters without an effect, as a bias before BatchNorm
SHAKEN = 0.1  # of a parameter's mean size: a model may hide a mistake behind zeros
JITTER = 1e-6  # of a parameter's mean size: what this changes, rounding may change as well, in a BatchNorm for example
TIMES = 20  # so many times
MASKED = 1e8  # outputs beyond this stand for infinity
Found = tuple[list[Tensor], list[Tensor], list[Tensor]]


def check_mode() -> None:
    """Raise in a context of torch that would change what training computes."""
    if torch.is_autocast_enabled("cpu"):
        raise ConfigError("a run does not train within torch.autocast; use it in the model's forward instead")
    if not torch.is_grad_enabled():
        raise ConfigError("a run needs gradients; start it outside of torch.no_grad() and torch.inference_mode()")


def fastest(build: Callable[[], nn.Module], task: Task, batch: Batch, terms: Sequence[Term]) -> Level:
    """Return the fastest level at which a model has the outputs and the gradients that torch's own layers have.

    A user's model may see more of a layer than its outputs: its type, its place in a Sequential, or the layout of its
    images in memory. Copies are tried, because a `forward` may write into buffers and attributes.
    """
    generators, shaken, norms = Generators(), SHAKEN, _GroupNorms()

    def computed(level: Level, jitter: float = 0.0) -> Found:
        return _computed(FlatModel(build(), task.loss, level), batch, terms, shaken, jitter)

    with generators.kept():
        try:
            with norms:
                expected = computed(STOCK)
            if not all(x.isfinite().all() for x in (*expected[0], *expected[1])):  # other parameters may not be allowed
                shaken = 0.0
                expected = computed(STOCK)
            rounded = computed(STOCK, JITTER)
        except Exception:  # whatever a user's module raises: training will raise it again
            return STOCK
        for level in LEVELS[:-1]:
            if norms.crash and nn.Conv2d in level.layers:
                continue
            try:
                if _alike(computed(level), expected, rounded):
                    return level
            except Exception:  # such as of a `view`: this level is not for this module
                continue
    return STOCK


class _GroupNorms(TorchFunctionMode):
    """Looks for images without gradients in group_norm: if they are channels-last, torch's backward pass crashes."""

    crash = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (functional.group_norm, torch.group_norm, torch.native_group_norm) and torch.is_grad_enabled():
            x = args[0] if args else (kwargs or {})["input"]
            self.crash |= not x.requires_grad
        return func(*args, **(kwargs or {}))


def _computed(model: FlatModel, batch: Batch, terms: Sequence[Term], shaken: float, jitter: float) -> Found:
    """Return the parts of the gradient at other parameters, then the loss, then the outputs in evaluation."""
    inputs, targets = map_tensors(torch.clone, batch[0]), batch[1]  # a model may change its inputs in place
    model.specialise(inputs, terms)
    for layer in model.module.modules():
        if isinstance(layer, FastConv2d):
            layer.always_last = True
    params, start = model.params.clone(), Generators().start
    for part in model.parts(params):
        size = part.abs().mean() or 1.0
        for seed, noise in enumerate((shaken, jitter)):
            random = torch.Generator().manual_seed(seed)
            part.add_(size * noise * torch.randn(part.shape, generator=random).to(part))
    start(0)
    gradient, loss = model.gradient(params, (inputs, targets), terms)
    start(0)
    outputs = [x for x in leaves(model.outputs(params, inputs)) if isinstance(x, Tensor) and x.is_floating_point()]
    return model.parts(gradient), [loss], outputs


def _alike(ours: Found, theirs: Found, rounded: Found) -> bool:
    """Return whether numbers are the same but for rounding; outputs that are masked have to be equal."""
    least = TINY * max(map(_size, theirs[0]))

    def same(one: Tensor, other: Tensor, changed: Tensor, least: float = 0.0) -> bool:
        most = max(ALIKE, UNITS * torch.finfo(other.dtype).eps) * _size(other) + TIMES * _size(changed - other)
        return one.shape == other.shape and _size(one - other) <= max(most, least)

    def same_outputs(one: Tensor, other: Tensor, changed: Tensor) -> bool:
        masked = ~other.isfinite() | (other.abs() > MASKED)
        equal = (one == other) | (one.isnan() & other.isnan())
        return bool(equal[masked].all()) and same(one[~masked], other[~masked], changed[~masked])

    gradients, losses, outputs = (list(zip(*found, strict=True)) for found in zip(ours, theirs, rounded, strict=True))
    alike = all(same(*found, least) for found in gradients) and all(same(*found) for found in losses)
    return alike and all(same_outputs(*found) for found in outputs)


def _size(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def check_fit(model: FlatModel, task: Task, inputs: Any, targets: Any) -> None:
    """Raise unless the model takes these inputs, and its outputs fit the targets and the loss."""
    params = model.params.clone()
    try:
        outputs = model.outputs(params, inputs)
    except FAILURES as error:
        raise DataError(f"the model fails on a batch of inputs ({kind_of(inputs)}): {error}") from error
    model.check_values(params)
    samples = samples_in(inputs, targets)
    if isinstance(outputs, Tensor):
        _check_outputs(outputs, targets, task, samples)
    elif task.loss is functional.cross_entropy:
        _check_outputs(logits_of(outputs), targets, task, samples)
    try:
        loss = model.loss_of(outputs, targets)
    except FAILURES as error:
        raise DataError(
            f"the loss fails on outputs ({kind_of(outputs)}) and targets ({kind_of(targets)}): {error}"
        ) from error
    if not isinstance(loss, Tensor) or loss.ndim != 0:
        raise DataError("the loss must return one number, the mean over the batch, as a tensor; or a pair (sum, count)")


def _check_outputs(outputs: Tensor, targets: Any, task: Task, samples: int) -> None:
    if outputs.ndim == 0 or len(outputs) != samples:
        raise DataError(
            f"the model must return one row for each sample: {samples} samples went in, {tuple(outputs.shape)} came out"
        )
    if task.loss is functional.cross_entropy and isinstance(targets, Tensor) and targets.ndim == 1:
        _check_classes(outputs, task)
    elif isinstance(targets, Tensor) and outputs.shape != targets.shape and _is_broadcast(outputs, targets, task):
        raise DataError(
            f"outputs of shape {tuple(outputs.shape)} would be broadcast against targets of shape "
            f"{tuple(targets.shape)}; make them the same shape"
        )


def _is_broadcast(outputs: Tensor, targets: Tensor, task: Task) -> bool:
    """Return whether a loss would pair each output with several targets, or each target with several outputs."""
    elementwise = (functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, functional.huber_loss)
    return outputs.numel() == targets.numel() or task.loss in elementwise


def _check_classes(outputs: Tensor, task: Task) -> None:
    if outputs.ndim != 2:
        raise DataError(
            f"the model must return (samples, classes) scores for cross-entropy, not shape {tuple(outputs.shape)}"
        )
    classes = outputs.shape[1]
    for where, samples in task.data.all_samples().items():
        labels = samples.label_range()
        if labels is None:
            raise DataError(
                f"the {where} targets are not whole numbers, which cross-entropy over classes needs; "
                "for regression give the task loss=torch.nn.functional.mse_loss"
            )
        if (labels[0] < 0 and labels[0] != IGNORED) or labels[1] >= classes:
            raise DataError(
                f"the {where} labels go from {labels[0]} to {labels[1]}, but the model has {classes} outputs; "
                f"labels must be 0 ... {classes - 1}"
            )
