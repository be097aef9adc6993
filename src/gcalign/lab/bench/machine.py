"""What a figure was measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch


def machine() -> dict[str, Any]:
    """CPU, cores, threads, memory and versions; `load` is how many processes were running before the first figure."""
    return {
        "cpu": _cpu(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gb": _memory_gb(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def described(found: dict[str, Any]) -> str:
    """The same in one line."""
    memory = "" if found["memory_gb"] is None else f", {found['memory_gb']:g} GB"
    return (
        f"{found['cpu']} ({found['capability']}), cores: {found['cores']}, threads: {found['threads']}{memory}, "
        f"{found['system']}, Python {found['python']}, torch {found['torch']}"
    )


def busy(found: dict[str, Any]) -> str | None:
    """A warning where other processes were running."""
    load, cores = found["load"], found["cores"] or 1
    if load is None or load <= 0.3 * cores:
        return None
    return f"load {load:g} on {cores} cores before the first figure: others were running, so trust ratios, not seconds"


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, OSError, ValueError):  # no sysconf on Windows
        return None
