"""What a figure was measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch


def machine() -> dict[str, Any]:
    """CPU, cores, threads and versions; `load` is how many processes were running before the first figure."""
    return {
        "cpu": _cpu(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def described(about: dict[str, Any]) -> str:
    """The same in one line."""
    return (
        f"{about['cpu']} ({about['capability']}), cores: {about['cores']}, threads: {about['threads']}, "
        f"{about['system']}, Python {about['python']}, torch {about['torch']}"
    )


def busy(about: dict[str, Any]) -> str | None:
    """A warning where other processes were running."""
    load, cores = about["load"], about["cores"] or 1
    if load is None or load <= 0.3 * cores:
        return None
    return f"load {load:g} on {cores} cores before the first figure: others were running, so trust ratios, not seconds"


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
