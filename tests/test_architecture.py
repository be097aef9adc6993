"""Modules import only modules below them, stay readable, and cost nothing until they are used."""

from __future__ import annotations

import ast
import contextlib
import graphlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

import gcalign

PACKAGE = Path(gcalign.__file__).parent
# from the ground up; a module may import modules on earlier lines (and, in a folder, its own)
STOREYS = [
    ("errors",),
    ("kernels", "geometry", "batch", "transport", "transport.support"),
    ("transport.distributed",),
    ("metrics", "constraints", "transport.operators"),
    ("transport.problem", "plan"),
    ("divergences", "transport.sinkhorn"),
    ("multi",),
    ("transport.gradients",),
    ("transport.operator",),
    ("targets",),
    ("entries",),
    ("objective",),
    ("alignment",),
    ("methods",),
    ("functional", "interop"),
    ("auditing",),
    ("aligning",),
    ("public",),
    ("__init__",),
    ("lab",),
    ("lab.words", "lab.paper", "lab.limits", "lab.outside"),
    ("lab.files", "lab.provenance", "lab.terminal"),
    ("lab.commands", "lab.arrays", "lab.pictures", "lab.timing"),
    ("lab.verify", "lab.completion"),
    ("lab.data", "lab.models", "lab.pages"),
    ("lab.evaluation", "lab.estimator"),
    ("lab.training",),
    ("lab.audit",),
    ("lab.align",),
    ("lab.experiments",),
    ("lab.report",),
    ("lab.bench", "lab.demo"),
    ("lab.arguments",),
    ("cli",),
    ("__main__",),
]
HEIGHT = {module: k for k, modules in enumerate(STOREYS) for module in modules}
TRAINING_STACK = (
    "lightning",
    "hydra",
    "datasets",
    "kornia",
    "torchmetrics",
    "sklearn",
    "scipy",
    "matplotlib",
    "plotly",
)


def module_of(path: Path) -> str:
    return named(path.relative_to(PACKAGE).with_suffix("").parts)


def named(parts: Sequence[str]) -> str:
    """`alignment`, `transport.operators`, `lab.training`: the module or folder that has a storey."""
    parts = [part for part in parts if part != "__init__"] or ["__init__"]
    return ".".join(parts[: 2 if parts[0] in ("lab", "transport") else 1])


def runtime_tree(path: Path) -> ast.Module:
    """Without what is imported for type checkers alone, which is no dependency."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    return tree


def imported_modules(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(runtime_tree(path)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively; write gcalign.… in full"
            whole = node.module in ("gcalign", "gcalign.lab", "gcalign.transport", "gcalign.transport.operators")
            names = [f"{node.module}.{alias.name}" for alias in node.names] if whole else [node.module]
        for name in names:
            parts = (name or "").split(".")
            if parts[0] == "gcalign":
                found.add(named(parts[1:]))
    return found


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_downward(path):
    here = module_of(path)
    assert here in HEIGHT, f"{here} is a new module: give it a storey in this test"
    if here == "__init__":
        return  # opens `public` lazily, and nothing else
    for other in imported_modules(path) - {here}:
        assert HEIGHT[other] < HEIGHT[here], f"{here} imports {other}, which stands above it or beside it"


def lab_modules() -> dict[str, set[str]]:
    """Every module of the lab and those of the lab that it imports, inside functions too."""
    paths = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (PACKAGE / "lab").rglob("*.py")
    }
    arrows: dict[str, set[str]] = {}
    for name, path in paths.items():
        found = set()
        for node in ast.walk(runtime_tree(path)):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                whole = {f"{node.module}.{alias.name}" for alias in node.names} & paths.keys()
                found |= whole or {str(node.module)}
        arrows[name] = (found & paths.keys()) - {name}
    return arrows


def test_no_two_modules_of_the_lab_import_each_other():
    order = list(graphlib.TopologicalSorter(lab_modules()).static_order())  # a cycle is an error that names it
    assert order.index("gcalign.lab.files") < order.index("gcalign.lab.experiments.engine.command")


def test_a_name_is_one_class_in_the_lab_and_none_of_the_library():
    library, lab = Counter(), Counter()
    for path in MODULES:
        names = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
        (lab if "lab" in path.relative_to(PACKAGE).parts else library).update(n for n in names if n[0] != "_")
    assert [name for name, count in lab.items() if count > 1 or name in library] == []


def test_the_house_names_every_module():
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"[a-z_]+", text.partition("```text")[2].partition("```")[0]))
    parts = [path.relative_to(PACKAGE).with_suffix("").parts for path in MODULES]
    known = {
        part[1] if part[0] == "lab" else part[0] if part[0] in ("auditing", "aligning", "interop") else part[-1]
        for part in parts
        if len(part) > 1
    }
    known |= {part[0] for part in parts}
    assert {name for name in known if name[0] != "_"} <= named


def test_the_files_of_the_sample_changes_exist():
    text = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text()
    table = text.partition("## Which file would you open?")[2].partition("## ")[0]
    named = re.findall(r"`([a-z_/]+\.py)`", table)
    assert len(table.splitlines()) >= 12
    assert len(named) >= 10
    assert [name for name in named if not (PACKAGE / name).is_file()] == []


def fresh(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_library_costs_little_more_than_torch_and_none_of_the_training_stack():
    code = f"""
import sys, time
import torch
start = time.process_time()
import gcalign
gcalign.method("gca-uot")
print(time.process_time() - start)
print(*(m for m in {TRAINING_STACK} if m in sys.modules))
"""
    times, pulled = [], ""
    for _ in range(3):
        seconds, _, pulled = fresh(code).partition("\n")
        times.append(float(seconds))
    assert min(times) < 0.5  # 0.27 on idle cores
    assert pulled == ""


def test_the_library_works_with_torch_and_rich_alone():
    """Every method, its gradient and the audit, where nothing else can be imported: not numpy either."""
    code = f"""
import sys, warnings
sys.modules.update(dict.fromkeys({installed_beside("torch", "rich")}))
warnings.filterwarnings("ignore", "Failed to initialize NumPy")
import torch, gcalign
z1, z2 = torch.randn(2, 16, 4).requires_grad_().unbind()
for name in gcalign.methods.names():
    known = dict(labels=torch.arange(16) // 2) if name == "supcon" else dict()
    gcalign.method(name)(z1, z2, **known).backward(retain_graph=True)
for gradient in ("implicit", "truncated", "unrolled"):
    gcalign.method("gca-uot", gradient=gradient)(z1, z2).backward(retain_graph=True)
print(gcalign.method("gca-uot").plan(z1, z2), gcalign.audit(z1, z2), gcalign.metrics.uniformity(z1))
"""
    assert "Audit of 16 pairs" in fresh(code)


def installed_beside(*names: str) -> list[str]:
    """Top-level modules that are installed, but not because these distributions need them."""
    needed, left = set(), list(names)
    while left:
        name = re.split(r"[^\w.-]", left.pop())[0].lower().replace("_", "-")
        if name not in needed:
            needed.add(name)
            with contextlib.suppress(PackageNotFoundError):
                left += [line for line in requires(name) or () if "extra ==" not in line]
    owners = packages_distributions()
    return sorted(
        module
        for module, found in owners.items()
        if module != "gcalign" and not needed & {each.lower().replace("_", "-") for each in found}
    )


@pytest.mark.slow
def test_the_demo_needs_no_more_than_make_demo_installs(tmp_path):
    beside = ("datasets", "hydra", "omegaconf", "ot", "pandas", "pyarrow")  # what `train` and `dev` add
    code = f"""
import sys
from concurrent.futures import ThreadPoolExecutor
sys.modules.update(dict.fromkeys({beside}))
from gcalign.lab import demo
demo.ProcessPoolExecutor = lambda *_, **__: ThreadPoolExecutor(1)
demo.METHODS, demo.NOISE = ("ince",), (0.5,)
demo.SETTINGS = (*demo.SETTINGS, "epochs=1", "data.limit=128", "model.width=0.25")
print(demo.demo({str(tmp_path)!r}))
"""
    assert fresh(code).endswith("report.html")


def test_a_training_meets_few_modules_of_the_lab():
    code = """
import sys, tempfile
from gcalign.lab.training.config import configured
from gcalign.lab.training.train import train
words = ["data=scenes", "data.limit=64", "epochs=1", "batch_size=32", "logger=none", "model.width=0.25"]
train(configured([*words, f"runs={tempfile.mkdtemp()}"]), quiet=True)
print(sum(name.startswith("gcalign.lab") for name in sys.modules))
"""
    assert int(fresh(code)) <= 40


def test_nothing_is_imported_before_it_is_used():
    assert fresh("import sys, gcalign; print('torch' in sys.modules)") == "False"


def test_every_public_name_is_there_and_no_other():
    for name in gcalign.__all__:
        assert getattr(gcalign, name) is not None
    assert set(gcalign.__all__) <= set(dir(gcalign))
    with pytest.raises(AttributeError, match="no attribute 'Kernle'"):
        _ = gcalign.Kernle


def test_one_call_meets_few_modules_types_and_borders():
    """`criterion(z1, z2).backward()` of GCA-UOT, followed by the profiler: a reader can walk it."""
    code = """
import sys, torch, gcalign
z1, z2 = torch.randn(256, 64, requires_grad=True), torch.randn(256, 64)
criterion = gcalign.method("gca-uot", eps=0.2)
criterion(z1, z2).backward()
modules, functions, types, crossings, last = set(), set(), set(), 0, None
def follow(frame, event, arg):
    global crossings, last
    module = frame.f_globals.get("__name__", "")
    if event != "call" or not module.startswith("gcalign"):
        return
    modules.add(module)
    functions.add((module, frame.f_code.co_firstlineno, frame.f_code.co_name))
    crossings, last = crossings + (module != last), module
    owner = frame.f_locals.get("self")
    if type(owner).__module__.startswith("gcalign"):
        types.add(type(owner).__name__)
sys.setprofile(follow)
criterion(z1, z2).backward()
sys.setprofile(None)
print(len(modules), len(functions), len(types), crossings)
"""
    modules, functions, types, crossings = map(int, fresh(code).split())
    assert modules <= 15
    assert functions <= 130
    assert types <= 18
    assert crossings <= 90
