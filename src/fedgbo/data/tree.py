"""Batches of any form: a tensor, or tuples, lists and mappings of such; and how a module is called with one."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def map_tensors(change: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Return a tensor, or a tuple, list or mapping of such, with every tensor changed."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        return {key: map_tensors(change, value) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(map_tensors(change, part) for part in tree)
    return tree


def digest_of(tree: Any) -> str:
    """Return the SHA-256 of tensors, arrays, numbers and texts, and tuples, lists and mappings of such."""
    sha = hashlib.sha256()
    for part in _leaves(tree):
        if isinstance(part, Tensor | np.ndarray):
            array = torch.as_tensor(np.ascontiguousarray(part) if isinstance(part, np.ndarray) else part)
            array = array.detach().cpu().contiguous()
            sha.update(f"{array.dtype} {tuple(array.shape)}\n".encode())
            sha.update(array.view(-1).view(torch.uint8).numpy().data)
        else:
            sha.update(f"{type(part).__name__} {part!r}\n".encode())
    return sha.hexdigest()


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, Mapping):
        for key, part in tree.items():
            yield key
            yield from _leaves(part)
    elif isinstance(tree, tuple | list):
        yield len(tree)
        for part in tree:
            yield from _leaves(part)
    else:
        yield tree


def call(module: nn.Module, inputs: Any) -> Any:
    """Call a module with one tensor, with a tuple's or list's parts, or with a mapping's entries by keyword."""
    if isinstance(inputs, Mapping):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple | list) else module(inputs)


def samples_in(*trees: Any) -> int:
    """Return the number of samples of a batch: the first dimension of its first tensor."""
    for tree in trees:
        if isinstance(tree, Tensor):
            return len(tree) if tree.ndim else 0
        parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, tuple | list) else ()
        for part in parts:
            if count := samples_in(part):
                return count
    return 0
