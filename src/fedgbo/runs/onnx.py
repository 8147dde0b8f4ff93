"""A trained model as an ONNX file, for runtimes without torch (extra `onnx`)."""

import logging
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedgbo.core import ConfigError, optional
from fedgbo.data.tree import map_tensors


def to_onnx(model: nn.Module, inputs: Any) -> bytes:
    """Return a model in evaluation mode as ONNX; `inputs` is a batch, of whose first dimension the file has any size.

    A tuple's or list's parts are positional arguments, a mapping's entries keyword arguments, as in training.
    """
    optional("onnxscript", "onnx", "an ONNX file needs onnx and onnxscript")
    arguments = () if isinstance(inputs, Mapping) else tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    named = dict(inputs) if isinstance(inputs, Mapping) else {}
    any_size = map_tensors(_any_batch, named if named else arguments)
    quiet = logging.getLogger("torch.onnx"), logging.getLogger("onnxscript")
    levels = [log.level for log in quiet]
    try:
        for log in quiet:
            log.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program: Any = torch.onnx.export(
                model, arguments, kwargs=named, dynamo=True, dynamic_shapes=any_size, verbose=False
            )
    except Exception as error:  # whatever torch raises for a model that ONNX cannot express
        raise ConfigError(f"torch cannot write this model as ONNX: {str(error).splitlines()[0]}") from error
    finally:
        for log, level in zip(quiet, levels, strict=True):
            log.setLevel(level)
    return bytes(program.model_proto.SerializeToString())


def _any_batch(x: Tensor) -> Any:
    return {0: torch.export.Dim.DYNAMIC} if x.ndim else {}
