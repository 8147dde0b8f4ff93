"""A device that is not the CPU, on any machine: its tensors live in memory, but torch takes them for another device's.

As with a GPU, an operation on tensors of two devices is an error, and only `.to()` and `copy_` go between them.
Run as a program it trains on that device and on the CPU, and prints how the results compare.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import fedgbo
from fedgbo.data.samples import Subset
from fedgbo.engines import generators
from fedgbo.engines.plain import PlainEngine
from fedgbo.runs import loop
from fedgbo.tasks.digits import digits
from tests.conftest import make_task
from tests.engines.rounds import EXAMPLES

GOES_BETWEEN = (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)


class Pretend(torch.Tensor):
    """A tensor of the device; `raw` has its numbers."""

    @staticmethod
    def __new__(cls, raw):
        made = torch.Tensor._make_wrapper_subclass(
            cls, raw.size(), strides=raw.stride(), dtype=raw.dtype, device="pretend:0", requires_grad=raw.requires_grad
        )
        made.raw = raw
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func == torch.Tensor.data.__set__:  # torch swaps the storage, which here is an attribute
            args[0].raw = args[1].raw
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})


def compute(func, args, kwargs):
    """Do the operation on the numbers, if all tensors with any dimension are on one device."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    if func not in GOES_BETWEEN and len({tensor.device for tensor in tensors if tensor.ndim}) > 1:
        raise RuntimeError(f"{func} got tensors of two devices: {[str(tensor.device) for tensor in tensors]}")
    out = func(*tree_map(raw, args), **tree_map(raw, kwargs))
    if func._schema.name.endswith("_"):  # in place
        return args[0]
    if func is torch.ops.aten._to_copy.default and torch.device(kwargs.get("device") or args[0].device).type == "cpu":
        return out
    return tree_map(lambda leaf: Pretend(leaf) if isinstance(leaf, torch.Tensor) else leaf, out)


def raw(leaf):
    if isinstance(leaf, Pretend):
        return leaf.raw
    return torch.device("cpu") if isinstance(leaf, torch.device) else leaf


def compared(task, algorithm, out):
    """Train on the device, resuming half-way from a checkpoint, and on the CPU."""
    calls = []
    train_client = PlainEngine.train_client

    def watched(self, model, work, *rest, **more):
        result = train_client(self, model, work, *rest, **more)
        tensors = [*work.down.tensors().values(), *result.state.tensors().values(), model.params]
        calls.append({tensor.device for tensor in [*tensors, *model.module.parameters()]})
        return result

    PlainEngine.train_client = watched
    settings = {"rounds": 4, "local_steps": 3}
    try:
        fedgbo.run(task, algorithm, **(settings | {"rounds": 2}), out=out, device="pretend")
        there = fedgbo.run(task, algorithm, **settings, out=out, device="pretend", resume=True)
        everywhere = set().union(*calls)
        here = fedgbo.run(task, algorithm, **settings)
    finally:
        PlainEngine.train_client = train_client
    moved = (here.params - PlainEngine(task, algorithm, 0).origin.params).norm()
    return {
        "devices": [str(device) for device in everywhere],
        "result": str(there.params.device),
        "error": float((there.params - here.params).norm() / moved),
        "accuracies": [there.accuracy, here.accuracy],
    }


def drifts(task, algorithm):
    """Measure clients' drift on the device and on the CPU."""
    runs = [fedgbo.run(task, algorithm, rounds=2, device=device, metrics="drift") for device in ("pretend", "cpu")]
    return [run.history[-1].drift for run in runs]


def main():
    _setup_privateuseone_for_python_backend("pretend")
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda func, *args, **kwargs: compute(func, args, kwargs), dispatch_key="PrivateUse1")
    cpu = loop.device_of
    loop.device_of = lambda name: torch.device("pretend", 0) if name == "pretend" else cpu(name)
    generators.generator_of = lambda device: torch.default_generator
    folder, results = Path(sys.argv[1]), {}
    for name in ("fedgbo", "fedmax", "mfl", "mimelite", "adaptivefedopt", "fedprox", "scaffold"):
        results[name] = compared(make_task(batch_size=5), EXAMPLES[name], folder / name)
    results["drift"] = drifts(make_task(batch_size=5), EXAMPLES["fedprox"])
    small = digits()
    small = replace(small, data=replace(small.data, test=Subset(small.data.test, torch.arange(50).numpy())))
    results["digits"] = compared(small, fedgbo.FedAvg(fedgbo.SGD(0.1)), folder / "digits")
    try:
        torch.zeros(2).to("pretend:0") + torch.zeros(2)
    except RuntimeError as error:
        results["mixed"] = str(error)
    (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
