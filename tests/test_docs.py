"""The pages say what the code does: the call they follow, the picture they show, the examples they give."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import gcalign
from gcalign import KL, Alignment, Columns, Cosine, Rows, methods

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "life-of-a-call.md"
FOLLOWED = """
import sys, torch, gcalign
z1, z2 = torch.randn(256, 64, requires_grad=True), torch.randn(256, 64)
criterion = gcalign.method("gca-uot", eps=0.2)
criterion(z1, z2).backward()
modules = set()
def follow(frame, event, arg):
    module = frame.f_globals.get("__name__", "")
    if event == "call" and module.startswith("gcalign."):
        modules.add(module.removeprefix("gcalign."))
sys.setprofile(follow)
criterion(z1, z2).backward()
sys.setprofile(None)
print(*modules)
"""


@pytest.fixture(scope="module")
def met():
    """The modules that one call meets."""
    done = subprocess.run([sys.executable, "-c", FOLLOWED], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def picture():
    spec = importlib.util.spec_from_file_location("life_of_a_call", ROOT / "docs" / "life_of_a_call.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_life_of_a_call_lists_the_modules_that_it_meets(met):
    listed = re.findall(r"^\| `([\w.]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(met)
    assert f"meets {len(met)} modules" in PAGE.read_text()


def test_the_picture_of_a_call_names_only_modules_that_it_meets(met, picture):
    short = {module.removeprefix("transport.") for module in met}
    named = {module for box in (*picture.FORWARD, *picture.BACKWARD) for module in box.modules}
    named |= {module for _, module, *_ in picture.OPERATORS}
    assert named <= short
    assert short - named == {"distributed", "support"}  # they only carry


def test_the_picture_of_a_call_is_drawn_the_same_each_time(tmp_path, picture):
    pytest.importorskip("matplotlib")
    for name in ("one.png", "two.png"):
        picture.draw(tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("page", ["your-own-loop", "queues-views", "audit"])
def test_the_code_of_a_page_runs(page):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / f"{page}.md").read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 3
    names: dict[str, object] = {}
    exec("\n".join(blocks), names)
    assert torch.isfinite(names["loss"])


@pytest.mark.parametrize("table", ["table-audit-brief", "table-feedback"])
def test_the_tables_of_the_audit_page_are_those_of_the_result_files(table):
    page = (ROOT / "docs" / "audit.md").read_text()
    drawn = (ROOT / "docs" / "results" / "small" / f"{table}.md").read_text()
    rows = [line for line in drawn.splitlines() if line.startswith("|")]
    assert len(rows) > 4
    assert "\n".join(rows) in page


# --- CONTRIBUTING.md ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def examples():
    """What the examples define, in a module of their own; the method is unregistered afterwards."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 8
    known, module = dict(methods._REGISTRY), ModuleType("contributing_examples")
    sys.modules[module.__name__] = module  # where a dataclass looks for its annotations
    exec("\n".join(blocks), module.__dict__)
    yield module
    del sys.modules[module.__name__]
    methods._REGISTRY.clear()
    methods._REGISTRY.update(known)


def views(n=6, dim=4):
    generator = torch.Generator().manual_seed(0)
    draw = torch.randn(2, n, dim, dtype=torch.float64, generator=generator)
    return draw[0].requires_grad_(), draw[1].requires_grad_()


def checked(criterion):
    """The plan and the loss of a criterion whose gradient is that of finite differences."""
    z1, z2 = views()
    assert torch.autograd.gradcheck(lambda x, y: criterion(x, y), (z1, z2), atol=1e-6)
    return criterion.plan(z1, z2), criterion(z1, z2)


def test_the_example_of_a_constraint_holds(examples):
    plan, _ = checked(Alignment(Cosine(0.2), (Rows(), Columns(), examples.Floor(0.05)), KL(), iterations=500))
    assert plan.matrix.min() > 0.05 * (1 - 1e-4)
    assert plan.row_error < 1e-4


def test_the_example_of_a_penalty_scales_by_half_the_gap(examples):
    plan, _ = checked(Alignment(Cosine(0.5), (Rows(examples.Halfway()),), KL(penalties=False)))
    sums = (plan.log - plan.log_u[:, None]).exp().sum(1)
    torch.testing.assert_close(plan.u, sums**-0.5)


def test_the_examples_of_divergences_are_what_their_docstrings_say(examples):
    plan, loss = checked(Alignment(Cosine(0.5), (Rows(), Columns()), examples.Margin(0.9)))
    expected = (torch.tensor(0.9, dtype=torch.float64).log() - plan.log.diagonal()).clamp(min=0).mean()
    torch.testing.assert_close(loss, expected)
    plan, loss = checked(Alignment(Cosine(0.5), (Rows(0.2), Columns(0.2)), examples.RowMass()))
    torch.testing.assert_close(loss, (plan.matrix.sum(1) - 1).square().mean())
    each = Alignment(Cosine(0.5), (Rows(0.2), Columns(0.2)), examples.RowMass(), reduction="none")(*views())
    torch.testing.assert_close(each.mean(), loss)


def test_the_example_of_a_target_is_smoothed_pairs(examples):
    plan, loss = checked(Alignment(Cosine(0.5), (Rows(), Columns()), KL(), examples.Smoothed(0.3)))
    target = 0.7 * torch.eye(6, dtype=torch.float64) + 0.3 / 6
    torch.testing.assert_close(plan.target.dense(), target)
    torch.testing.assert_close(loss, (target * (target.log() - plan.log)).sum() / 6 + (plan.mass - 6) / 6)


def test_the_example_of_a_kernel_has_its_cost(examples):
    z1, z2 = views()
    plan, _ = checked(Alignment(examples.Laplace(0.5), (Rows(),), KL()))
    log_k = -(z1[:, None] - z2).abs().sum(2) / 0.5
    torch.testing.assert_close(plan.log, log_k.log_softmax(1))


def test_the_example_of_a_method_has_its_name_and_its_bound(examples):
    plan, _ = checked(gcalign.method("capped", eps=0.2, bound=0.4, iterations=500))
    assert plan.matrix.max() < 0.4 * (1 + 1e-4)
