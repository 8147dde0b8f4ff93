"""Does this model fit this data? Asked once before a run, so that a mistake is named and not met in mid-training."""

from torch import Tensor
from torch.nn import functional

from fedgbo.core.errors import DataError
from fedgbo.engines.flat import FlatModel
from fedgbo.tasks.task import Task


def check_fit(model: FlatModel, task: Task, inputs: Tensor, targets: Tensor) -> None:
    """Raise unless the model takes these inputs, and its outputs fit the targets and the loss."""
    kind = f"{str(inputs.dtype).removeprefix('torch.')} of shape {tuple(inputs.shape)}"
    try:
        outputs = model.outputs(model.params.clone(), inputs)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise DataError(f"the model fails on a batch of inputs ({kind}): {error}") from error
    if not isinstance(outputs, Tensor) or outputs.ndim == 0 or len(outputs) != len(inputs):
        shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise DataError(
            f"the model must return one row for each sample: {len(inputs)} samples went in, {shape} came out"
        )
    if task.loss is functional.cross_entropy and targets.ndim == 1:
        _check_classes(outputs, task)
    elif outputs.numel() == targets.numel() and outputs.shape != targets.shape:
        raise DataError(
            f"outputs of shape {tuple(outputs.shape)} would be broadcast against targets of shape "
            f"{tuple(targets.shape)}; make them the same shape"
        )
    try:
        loss = model.loss(outputs, targets)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise DataError(
            f"the loss fails on outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)}: "
            f"{error}"
        ) from error
    if not isinstance(loss, Tensor) or loss.ndim != 0:
        raise DataError("the loss must return one number, the mean over the batch")


def _check_classes(outputs: Tensor, task: Task) -> None:
    if outputs.ndim != 2:
        raise DataError(
            f"the model must return (samples, classes) scores for cross-entropy, not shape {tuple(outputs.shape)}"
        )
    classes = outputs.shape[1]
    for where, samples in (("training", task.data.train), ("test", task.data.test)):
        labels = samples.label_range()
        if labels is None:
            raise DataError(
                f"the {where} targets are not whole numbers, which cross-entropy over classes needs; "
                "for regression give the task loss=torch.nn.functional.mse_loss"
            )
        if labels[0] < 0 or labels[1] >= classes:
            raise DataError(
                f"the {where} labels go from {labels[0]} to {labels[1]}, but the model has {classes} outputs; "
                f"labels must be 0 ... {classes - 1}"
            )
