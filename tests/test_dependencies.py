"""Known vulnerabilities of the pinned dependencies, by pip-audit."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("pip_audit") is None, reason="needs pip-audit; `make dependencies` installs it")
def test_no_pinned_dependency_has_a_known_vulnerability():
    command = [
        sys.executable,
        "-m",
        "pip_audit",
        "-r",
        str(CONSTRAINTS),
        "--no-deps",
        "--disable-pip",
        "--format",
        "json",
    ]
    run = subprocess.run([*command, "--progress-spinner", "off"], capture_output=True, text=True, check=False)
    if not run.stdout.strip():
        pytest.skip(f"pip-audit cannot reach its database: {run.stderr.strip().splitlines()[-1][:200]}")
    found = json.loads(run.stdout)["dependencies"]
    # a package that the database does not know is no clean package, though pip-audit ends without an error
    unknown = [item["name"] for item in found if "skip_reason" in item]
    if len(unknown) == len(found):
        pytest.skip(f"pip-audit cannot reach its database: none of {len(found)} packages was found there")
    bad = {f"{item['name']} {item['version']}": item["vulns"] for item in found if item.get("vulns")}
    assert not bad, json.dumps(bad, indent=1)
    assert not unknown, f"not audited: {', '.join(unknown)}"
