"""Checks, before the first round, that a task's model, loss and data fit together."""

from typing import Any

from torch import Tensor
from torch.nn import functional

from fedgbo.core import DataError
from fedgbo.data.samples import IGNORED
from fedgbo.data.tree import kind_of, samples_in
from fedgbo.engines.flat import FAILURES, FlatModel
from fedgbo.tasks.task import Task, logits_of


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
