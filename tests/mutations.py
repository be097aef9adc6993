"""Fifty small faults, planted one at a time: the quick tests named beside each must fail.

    python tests/mutations.py               # all of them, about 20 minutes
    python tests/mutations.py sinkhorn      # those of files with this word in their path

A fault is planted in a copy of `src`. One that no test notices shows a promise without a test; one whose text is no
longer in its file must be written anew.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SECONDS = 600  # a fault may also make a test run for ever

CRITERION = "core/test_methods.py core/test_criterion.py"
TARGETS = "core/test_methods.py core/test_groups.py core/test_criterion.py"
SOLVERS = "transport/test_solvers.py core/test_properties.py"
GRADIENTS = "transport/test_gradients.py"
OPERATORS = "transport/test_operators.py"
NUMERICS = "core/test_numerics.py core/test_found.py"
INPUTS = "core/test_errors.py core/test_criterion.py"
AUDIT = "auditing"
RUNS = "lab/training/test_training.py lab/training/test_stream.py"
DURABLE = "lab/training/test_faults.py"


class Mutation(NamedTuple):
    """A fault: a text that stands once in a file, what replaces it, and the tests that must notice."""

    file: str  # below src/gcalign
    old: str
    new: str
    tests: str  # below tests


MUTATIONS = (
    # the symbols
    Mutation("constraints.py", "return gap * (self.lam / (self.lam + eps))", "return gap * (self.lam / (1 + eps))", SOLVERS),
    Mutation("constraints.py", "torch.xlogy(mass, mass) - mass * log_sums - mass + log_sums.exp()",
             "torch.xlogy(mass, mass) - mass * log_sums + mass - log_sums.exp()", CRITERION),
    Mutation("constraints.py", "torch.maximum(torch.minimum(gap, bound), -bound)", "torch.minimum(gap, bound)", SOLVERS),
    Mutation("divergences.py", "total = plan.log_rows.exp() - cross - mu", "total = plan.log_rows.exp() - cross", CRITERION),
    Mutation("divergences.py", "total = total + columns.sum() / len(total)", "total = total + columns.mean()", GRADIENTS),
    Mutation("divergences.py", "shift = plan.log_u + plan.log_v.mean()", "shift = plan.log_u", CRITERION),
    Mutation("divergences.py", "shift = shift - 1 / plan.eps", "shift = shift + 0 / plan.eps", CRITERION),
    Mutation("divergences.py", "return mass and penalties and not self.normalized", "return penalties and not self.normalized", GRADIENTS),
    Mutation("divergences.py", "off = plan.shape[1] - int(plan.kernel.exclude_self) - count.detach()",
             "off = plan.shape[1] - count.detach()", CRITERION),
    Mutation("targets.py", "left=1 / torch.where(support.mu > 0, support.mu, 1)", "left=1 / torch.where(support.mu > 1, support.mu, 2)", TARGETS),
    Mutation("targets.py", "(self.beta, self.alpha - self.beta)", "(self.beta, self.alpha)", TARGETS),
    Mutation("targets.py", "g, h = shared_codes(codes[-1][0] * many + g, codes[-1][1] * many + h)", "g, h = g, h", TARGETS),
    Mutation("targets.py", "return support.scaled(w.sqrt(), other.sqrt())", "return support.scaled(w, other)", "core/test_criterion.py core/test_properties.py"),
    Mutation("kernels.py", "norm.masked_fill_(norm < info.tiny / info.eps, 1)", "norm.masked_fill_(norm <= 0, 1)", NUMERICS),
    Mutation("kernels.py", "torch.addcmul(grad, unit, within, value=-1)", "torch.addcmul(grad, unit, within, value=-0.9)", CRITERION),
    Mutation("batch.py", "if not bool(finite.all()):", "if not bool(finite.any()):", INPUTS),
    Mutation("batch.py", "if column.requires_grad:", "if False:", INPUTS),
    Mutation("batch.py", "partner=len(first) if first.ids is None else None", "partner=1 if first.ids is None else None", CRITERION),
    Mutation("entries.py", "within = allowed & allowed.T", "within = allowed | allowed.T", "core/test_entries.py"),
    Mutation("entries.py", "bound = own * (1 - margin) if relative else own - margin", "bound = own * (1 - margin) if relative else own", "core/test_entries.py interop"),
    Mutation("queue.py", "first += len(mine) - len(kept)", "first += 0", "core/test_queue.py"),
    Mutation("caching.py", "torch.set_rng_state(self._cpu)", "pass", "core/test_caching.py"),
    Mutation("caching.py", "if last[module] != n", "if last[module] == n", "core/test_caching.py"),
    Mutation("symmetric.py", "return 0.5 * (there + back)", "return there", CRITERION),
    Mutation("multi.py", "/ (k - 1) for a, b", "/ k for a, b", "core/test_multi.py"),
    # the engine
    Mutation("transport/support.py", "return values.roll(self.shift, 0) if self.shift else values", "return values", CRITERION),
    Mutation("transport/support.py", "after = (before + self.pairs.weight).clamp(min=0)", "after = before", TARGETS),
    Mutation("transport/support.py", "+ (mass - p.sum()).clamp_(min=0)", "", "transport core/test_properties.py"),
    Mutation("transport/sinkhorn.py", "if self.error <= enough and change <= self.most:", "if self.error <= enough:", NUMERICS),
    Mutation("transport/sinkhorn.py", "if not self.error < math.inf:\n            return False", "if not self.error < math.inf:\n            return True", NUMERICS),
    Mutation("transport/sinkhorn.py", "side.mass.pow(tau) * ((1 - tau) * offset).exp()", "side.mass.pow(tau)", "transport/test_operators.py core/test_methods.py"),
    Mutation("transport/sinkhorn.py", "log_columns = None if sweep.back is None else b + sweep.back", "log_columns = None if sweep.back is None else sweep.before + sweep.back", "transport core/test_numerics.py"),
    Mutation("transport/acceleration.py", "if not rate <= 2:", "if rate > 1e9:", "transport/test_solvers.py core/test_numerics.py core/test_found.py transport/test_operators.py"),
    Mutation("transport/gradients.py", "weight if problem.total is None else weight * problem.total / s.log_rows.exp().sum()", "weight", GRADIENTS),
    Mutation("transport/gradients.py", "return -weight * torch.autograd.grad(price, eps)[0]", "return 0 * weight", GRADIENTS),
    Mutation("transport/gradients.py", "y = rho / kxs[end]", "y = rho / kxs[0]", GRADIENTS),
    Mutation("transport/gradients.py", "if requested == \"envelope\" and not enveloped:", "if False:", GRADIENTS),
    Mutation("transport/conjugate.py", "direction = residual + size / before * direction", "direction = residual", GRADIENTS),
    Mutation("transport/dykstra.py", "z = y + multipliers[k]", "z = y", SOLVERS),
    Mutation("transport/operators/blocked.py", "out += b + self.c", "out += b", OPERATORS),
    Mutation("transport/operators/blocked.py", "return all(top <= self._most and low >= top + self._least", "return all(top <= self._most and low >= -math.inf", f"{OPERATORS} {NUMERICS}"),
    Mutation("transport/distributed.py", "return ctx.world * grad", "return grad", "transport/test_distributed.py"),
    # the audit
    Mutation("auditing/calibration.py", "(len(null) - below + 1).double() / (len(null) + 1)", "(len(null) - below).double() / len(null)", AUDIT),
    Mutation("auditing/calibration.py", "(separation(fit, null) - share / 2) / (1 - share)", "separation(fit, null)", AUDIT),
    Mutation("auditing/calibration.py", "while pools and pools[-1][0] < mean:", "while False:", AUDIT),
    Mutation("auditing/fits.py", "return Potentials(a, b, 2.0, -torch.cat(rows), -top.mean(0))", "return Potentials(a, b, 1.0, -torch.cat(rows), -top.mean(0))", AUDIT),
    Mutation("auditing/fits.py", "columns = torch.logaddexp(columns, torch.logsumexp(s, 0))", "columns = torch.logsumexp(s, 0)", AUDIT),
    Mutation("auditing/embeddings.py", "s[s > SAME] = -2", "pass", AUDIT),
    Mutation("auditing/plans.py", ".add_(g[part]).fill_diagonal_(-math.inf)", ".fill_diagonal_(-math.inf)", AUDIT),
    Mutation("auditing/result.py", "clamp(min=LEAST)", "clamp(min=0)", AUDIT),
    Mutation("auditing/pairs.py", "max(expected.share, share_of(p_values(own, fit.of(paired.near))))", "expected.share", AUDIT),
    # training
    Mutation("lab/training/stream.py", "seed_of(self.seed, \"order\", epoch)", "seed_of(self.seed, \"order\")", RUNS),
    Mutation("lab/training/stream.py", "seed_of(self.seed, \"view\", step, k, self.rank)", "seed_of(self.seed, \"view\", step, self.rank)", RUNS),
    Mutation("lab/training/stream.py", "partners[where] = where.roll(1)", "partners[where] = where", RUNS),
    Mutation("lab/training/optimizers.py", "return o.lr * (step + 1) / warm", "return o.lr * step / warm", RUNS),
    Mutation("lab/training/optimizers.py", "if w.dim() > 1:", "if w.dim() > 0:", RUNS),
    Mutation("lab/training/checkpoints.py", "tensors |= {f\"optimizer.{index}.{name}\": _whole(v) for name, v in slots.items() if v is not None}", "pass", RUNS),
    Mutation("lab/training/module.py", "torch.manual_seed(seed_of(self.config.seed, \"model\", batch.step, self.global_rank))", "pass", RUNS),
    Mutation("lab/training/runs.py", "if r.get(\"step\", 0) <= step", "if True", DURABLE),
    Mutation("lab/files.py", "os.ftruncate(descriptor, size)", "pass", DURABLE),
    Mutation("lab/files.py", "data = b\"\\n\" + data", "pass", DURABLE),
    Mutation("lab/files.py", "        part.replace(path)", "        shutil.copy(part, path)", DURABLE),
)  # fmt: skip


def survives(mutation: Mutation, source: Path) -> str | None:
    """Why a fault counts as unnoticed; None if its tests fail."""
    path = source / "gcalign" / mutation.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutation.old) != 1:
        return f"its text is there {text.count(mutation.old)} times"
    path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
    try:
        return "no test fails" if passes(mutation.tests, source) else None
    finally:
        path.write_text(text, encoding="utf-8")


def passes(tests: str, source: Path) -> bool:
    """Whether quick tests pass with this source."""
    files = [str(ROOT / "tests" / name) for name in tests.split()]
    command = [sys.executable, "-m", "pytest", "-x", "-n", "0", "-m", "not slow", "-p", "no:cacheprovider", *files]
    env = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    try:
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, timeout=SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("word", nargs="?", default="", help="only files with this word in their path")
    word = parser.parse_args(argv).word
    chosen = [mutation for mutation in MUTATIONS if word in mutation.file]
    unnoticed = 0
    with tempfile.TemporaryDirectory(prefix="gcalign-mutations-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        for mutation in chosen:
            start = time.perf_counter()
            reason = survives(mutation, source)
            unnoticed += reason is not None
            verdict = "killed" if reason is None else f"SURVIVED ({reason})"
            print(f"{verdict:9} {time.perf_counter() - start:4.0f} s  {mutation.file}: {mutation.new}", flush=True)
    print(f"{len(chosen) - unnoticed} of {len(chosen)} killed")
    return min(unnoticed, 1)


if __name__ == "__main__":
    sys.exit(main())
