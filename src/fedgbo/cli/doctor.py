"""`fedgbo doctor`: what is installed here, what will be fast, and why."""

import os
import shutil
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape

from fedgbo.cli import options as opt
from fedgbo.cli.console import out, print_json, print_whole, simple_table
from fedgbo.data.store import data_home
from fedgbo.engines.device import cores
from fedgbo.runs.environment import machine, versions

EXTRAS: Mapping[str, tuple[tuple[str, ...], str]] = {  # modules, and what they are for
    "charts": (("altair", "jinja2", "vl_convert"), "pictures and report pages"),
    "data": (("h5py",), "TensorFlow Federated's data files"),
    "flower": (("flwr",), "federations of real devices"),
    "frames": (("pandas",), "results as DataFrames"),
    "mlflow": (("mlflow",), "the tracker for MLflow"),
    "onnx": (("onnx", "onnxscript"), "fedgbo export to ONNX"),
    "tune": (("optuna",), "fedgbo tune"),
    "wandb": (("wandb",), "the tracker for Weights & Biases"),
}


def doctor(as_json: opt.Json = False) -> None:
    """Show versions, processor, C code, folders and extras, and which models train fast on this machine."""
    about: dict[str, Any] = {
        "versions": versions(),
        "machine": {
            **machine(),
            "cores": cores(),
            "gpus": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        },
        "compiler_here": _compiler_here(),
        "folders": {"data": _folder(data_home(None)), "temporary": _folder(Path(tempfile.gettempdir()))},
        "extras": {name: all(find_spec(module) for module in modules) for name, (modules, _) in EXTRAS.items()},
    }
    if as_json:
        print_json(about)
        return
    print_whole(simple_table(None, ("this machine", ""), _facts(about)))
    rows = [
        (
            name,
            "yes" if there else "no",
            EXTRAS[name][1] if there else f"pip install 'fedgbo[{name}]': {EXTRAS[name][1]}",
        )
        for name, there in about["extras"].items()
    ]
    out.print()
    print_whole(simple_table(None, ("extra", "installed", "for"), [tuple(map(escape, row)) for row in rows]))
    out.print()
    for line in _speed(about["machine"]):
        out.print(escape(line))


def _facts(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    own, here = about["versions"], about["machine"]
    built = here["compiler"] or "not built, or switched off by FEDGBO_NATIVE=0"
    facts = {
        "fedgbo": f"{own['fedgbo']}, Python {own['python']}, {own['platform']}",
        "torch": f"{own['torch']}, kernels for {here['torch_kernel']}, numpy {own['numpy']}",
        "processor": f"{here['cpu']}, {here['cores']} cores",
        "features": " ".join(here["cpu_features"]) or "unknown",
        "GPUs": str(here["gpus"]),
        "C code": f"{here['kernel']}, built by {built}" if here["compiler"] else built,
        "C compiler": about["compiler_here"] or "none found (set CC, or install gcc or clang)",
        **{f"{name} folder": text for name, text in about["folders"].items()},
    }
    return [(name, escape(text)) for name, text in facts.items()]


def _compiler_here() -> str | None:
    """Return the C compiler that an installation would use."""
    return shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")


def _folder(path: Path) -> str:
    """Return a folder with whether this process can write into it."""
    nearest = next((place for place in (path, *path.parents) if place.exists()), path)
    usable = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    if usable:
        return f"{path}{'' if path.exists() else ' (created when it is first needed)'}"
    return f"{path}: {'not writable' if path.exists() else 'does not exist and cannot be created'}"


def _speed(here: Mapping[str, Any]) -> list[str]:
    """Say what will be fast, and why."""
    if here["kernel"] == "torch":
        return [
            "speed: there is no C code in use, so all models train at the speed of PyTorch's own layers.",
            "Install a C compiler, then fedgbo again: pip install --force-reinstall --no-deps fedgbo (or make setup).",
        ]
    return [
        f"speed: C code for {here['kernel']} is in use.",
        "Fast (all local steps of a client in one C call): an nn.Sequential of convolutions, pooling, activations and "
        "linear layers; linear models on sparse samples.",
        "Partly fast (single layers are replaced by faster ones): other models that contain such layers.",
        "At the speed of PyTorch: other layers, GPUs, and optimisers that are not affine, such as Lion.",
        "fedgbo run --explain prints the choice for your model.",
    ]
