"""What the last digits of a result may depend on: versions, the processor, the C code. run.json records all of it."""

import platform
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from fedgbo.native import compiler, kernel

FEATURES = (
    "avx",
    "avx2",
    "fma",
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512_bf16",
    "amx_tile",
    "asimd",
    "sve",
)
BITS = {  # entries of `versions` and `machine` on which bits may depend, in words
    "fedgbo": "fedgbo",
    "torch": "torch",
    "numpy": "numpy",
    "platform": "platform",
    "kernel": "kernel",
    "compiler": "C compiler",
    "torch_kernel": "torch's kernels",
    "cpu": "processor",
}


def versions() -> dict[str, str]:
    """Return the versions of what a result may depend on."""
    found = {"python": platform.python_version(), "platform": f"{sys.platform} {platform.machine()}"}
    for package in ("fedgbo", "torch", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def machine() -> dict[str, Any]:
    """Return what computes here: the level of our C code or "torch", its compiler, torch's kernels, the processor."""
    about = cpu_info()
    return {
        "kernel": kernel(),
        "compiler": compiler(),
        "torch_kernel": torch.backends.cpu.get_cpu_capability(),
        "cpu": about.get("model name") or platform.processor() or platform.machine(),
        "cpu_features": [name for name in FEATURES if name in about.get("flags", about.get("Features", "")).split()],
    }


def cpu_info() -> dict[str, str]:
    """Return what Linux says of the first processor; nothing elsewhere."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except (OSError, ValueError):
        return {}
    pairs = (line.partition(":") for line in first.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return in words what is another one now than when a run was begun; what was not recorded is passed over.

    >>> changes({"torch": "2.4.0", "cpu": "A"}, {"torch": "2.5.0", "cpu": "A", "kernel": "avx2"})
    ['torch 2.5.0 (was 2.4.0)']
    """
    both = [name for name in BITS if name in before and name in now]
    return [
        f"{BITS[name]} {now[name] or 'none'} (was {before[name] or 'none'})"
        for name in both
        if before[name] != now[name]
    ]
