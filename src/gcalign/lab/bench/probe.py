"""Forward plus backward once in a process of its own: what peak memory can be measured in.

`python -m gcalign.lab.bench.probe SPEC` reads a JSON object and prints one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gcalign.lab.bench.batches import eager_info_nce, pairs
from gcalign.lab.timing import threads
from gcalign.methods import method

METHOD = (
    "extra memory is the peak resident size during forward plus backward less the resident size just before, in a "
    "fresh process after the same call at n = 64; nothing else is subtracted"
)


def probed(spec: dict[str, Any]) -> dict[str, Any]:
    """Run a spec {method | None, options, eps, n, dim, seed, threads} in a fresh process: {seconds, extra_bytes}."""
    done = subprocess.run(
        [sys.executable, "-m", "gcalign.lab.bench.probe", json.dumps(spec)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        hint = "; out of memory? try a smaller --n" if done.returncode < 0 else ""
        raise OSError(f"the measuring process failed at {spec}: {last[0]}{hint}")
    return json.loads(done.stdout)


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """The same in this process."""
    eps = spec["eps"]
    criterion = None if spec["method"] is None else method(spec["method"], eps=eps, **spec["options"])

    def run(n: int) -> dict[str, Any]:
        z1, z2 = pairs(n, spec["dim"], spec["seed"])
        before, start = reset_peak(), time.perf_counter()
        loss = eager_info_nce(z1, z2, eps) if criterion is None else criterion(z1, z2)
        loss.backward()
        return {"seconds": time.perf_counter() - start, "extra_bytes": max(peak() - before, 0)}

    with threads(spec["threads"]):
        run(64)
        return run(spec["n"])


def reset_peak() -> int:
    """Make the peak the present, where the system can, and give the present resident size in bytes."""
    status = Path("/proc/self/status")
    if not status.exists():
        return peak()  # the peak so far: what was used before the call hides as much of its need
    Path("/proc/self/clear_refs").write_text("5")
    return _kilobytes(status, "VmRSS") * 1024


def peak() -> int:
    """The largest resident size so far (since the reset, where there was one) in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        return _kilobytes(status, "VmHWM") * 1024
    import resource  # not on Windows

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _kilobytes(status: Path, key: str) -> int:
    lines = status.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
