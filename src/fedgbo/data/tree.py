"""Batches of any form: a tensor, or tuples, lists and mappings of such; and how a module is called with one."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
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
        parts = [map_tensors(change, part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return tree


def joined(trees: Sequence[Any]) -> Any:
    """Concatenate batches or outputs of the same form along the first dimension, on the CPU.

    Raise TypeError or RuntimeError where a part has no such dimension, or shapes differ.

    >>> joined([(torch.zeros(2, 3), None), (torch.ones(1, 3), None)])[0].shape
    torch.Size([3, 3])
    """
    first = trees[0]
    if first is None:
        return None
    if isinstance(first, Tensor):
        return torch.cat([tree.detach().cpu() for tree in trees])
    if isinstance(first, Mapping):
        parts = {key: joined([tree[key] for tree in trees]) for key in first}
        return type(first)(parts) if type(first) is dict else type(first)(**parts)
    if isinstance(first, tuple | list):
        made = [joined(parts) for parts in zip(*trees, strict=True)]
        return type(first)(*made) if hasattr(first, "_fields") else type(first)(made)
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in dataclasses.fields(first)]
        return type(first)(**{name: joined([getattr(tree, name) for tree in trees]) for name in names})
    raise TypeError(f"{type(first).__name__} cannot be concatenated")


def kind_of(tree: Any) -> str:
    """Describe a batch: the types and shapes of its tensors."""
    if isinstance(tree, Tensor):
        return f"{str(tree.dtype).removeprefix('torch.')} of shape {tuple(tree.shape)}"
    if isinstance(tree, Mapping):
        return ", ".join(f"{key}: {kind_of(part)}" for key, part in tree.items())
    if isinstance(tree, tuple | list):
        return ", ".join(map(kind_of, tree))
    return type(tree).__name__


def kind_of_first(tree: Any) -> str:
    """Describe the first sample of a batch."""
    return kind_of(map_tensors(lambda x: x[0], tree))


def digest_of(tree: Any) -> str:
    """Return the SHA-256 of tensors, arrays, numbers and texts, and tuples, lists and mappings of such."""
    sha = hashlib.sha256()
    for part in leaves(tree):
        if isinstance(part, Tensor):
            sha.update(f"{part.dtype} {tuple(part.shape)}\n".encode())
            sha.update(part.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        elif isinstance(part, np.ndarray):  # as a tensor would be
            sha.update(f"torch.{part.dtype} {tuple(part.shape)}\n".encode())
            sha.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
        else:
            sha.update(f"{type(part).__name__} {part!r}\n".encode())
    return sha.hexdigest()


def leaves(tree: Any) -> Iterator[Any]:
    """Yield keys, lengths and leaves of a tree, which tell it from others."""
    if isinstance(tree, Mapping):
        for key, part in tree.items():
            yield key
            yield from leaves(part)
    elif isinstance(tree, tuple | list):
        yield len(tree)
        for part in tree:
            yield from leaves(part)
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
        parts = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, tuple | list) else ()
        for part in parts:
            if count := samples_in(part):
                return count
    return 0
