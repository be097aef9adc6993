"""Draws docs/figures/*.png: the idea in six pictures, and a picture of each target. All plans are the library's own.

python docs/figures.py [FOLDER]
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

import gcalign

HERE = Path(__file__).resolve().parent
BLUE, ORANGE, GREEN, PINK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC0077", "0.45"
GROUPS = torch.tensor([0] * 5 + [1] * 4 + [2] * 3)
NAMES = ("cats", "dogs", "birds")
STYLE = {
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "savefig.facecolor": "white",
}


def batch(n_dim: int = 2) -> tuple[Tensor, Tensor]:
    """Two views of twelve samples in three groups, on the unit circle."""
    generator = torch.Generator().manual_seed(3)
    angle = 2 * math.pi * GROUPS / 3 + 0.45 * torch.randn(12, generator=generator, dtype=torch.float64)
    other = angle + 0.16 * torch.randn(12, generator=generator, dtype=torch.float64)
    z1, z2 = (torch.stack([a.cos(), a.sin()], 1) for a in (angle, other))
    if n_dim > 2:
        more = torch.randn(12, n_dim - 2, generator=generator, dtype=torch.float64)
        noise = torch.randn(12, n_dim - 2, generator=generator, dtype=torch.float64)
        z1, z2 = torch.cat([z1, 0.5 * more], 1), torch.cat([z2, 0.5 * more + 0.1 * noise], 1)
    return normalize(z1, dim=1), normalize(z2, dim=1)


def heat(axes: Any, matrix: Tensor, title: str = "", most: float | None = None) -> None:
    axes.imshow(matrix.sqrt(), cmap="viridis", vmin=0, vmax=math.sqrt(most or float(matrix.max())))
    axes.set_title(title)
    axes.set_xticks([])
    axes.set_yticks([])


def sums(figure: Any, axes: Any, plan: gcalign.Plan) -> None:
    """Bars beside a heat map: row sums on the right, column sums below; lines at the target's mass."""
    from mpl_toolkits.axes_grid1 import make_axes_locatable

    divider = make_axes_locatable(axes)
    right = divider.append_axes("right", size="22%", pad=0.06)
    below = divider.append_axes("bottom", size="22%", pad=0.06)
    n, m = plan.shape
    most = 1.15 * max(float(plan.row_sums.max()), float(plan.column_sums.max()), float(plan.mu.max()))
    right.barh(range(n), plan.row_sums, color=GREY, height=0.8)
    right.axvline(1, color=PINK, linewidth=1.2)
    right.set(ylim=(n - 0.5, -0.5), xlim=(0, most))
    below.bar(range(m), plan.column_sums, color=GREY, width=0.8)
    below.axhline(1, color=PINK, linewidth=1.2)
    below.set(xlim=(-0.5, m - 0.5), ylim=(most, 0))
    for side in (right, below):
        side.set_xticks([])
        side.set_yticks([])
        for edge in side.spines.values():
            edge.set_visible(False)


def views(figure: Any) -> None:
    """1: a batch: two views of each sample, and which belong together."""
    z1, z2 = batch()
    axes = figure.subplots()
    for k, colour in enumerate((BLUE, ORANGE, GREEN)):
        own = k == GROUPS
        axes.scatter(*(1.0 * z1[own]).T, color=colour, s=70, label=f"{NAMES[k]}, view 1", zorder=3)
        axes.scatter(*(1.14 * z2[own]).T, color="white", edgecolors=colour, marker="s", s=60, linewidths=2, zorder=3)
    circle = torch.linspace(0, 2 * math.pi, 200)
    axes.plot(circle.cos(), circle.sin(), color="0.85", linewidth=1, zorder=0)
    for a, b in zip(z1, 1.14 * z2, strict=True):
        axes.plot(*torch.stack([a, b]).T, color="0.5", linewidth=1)
    axes.set(aspect="equal", xlim=(-1.35, 2.4), ylim=(-1.3, 1.3))
    axes.axis("off")
    axes.text(
        1.3, 0.45, "● view 1\n□ view 2\n— a pair\n\ncolours are groups;\nthe encoder does not\nsee them", va="top"
    )


def kernels(figure: Any) -> None:
    """2: the kernel at three temperatures."""
    z1, z2 = batch(6)
    for axes, eps in zip(figure.subplots(1, 3), (0.05, 0.2, 1.0), strict=True):
        heat(axes, gcalign.Cosine(eps)(z1, z2).exp(), f"K at ε = {eps:g}", 1.0)


def rows(figure: Any) -> None:
    """3: InfoNCE: each row is scaled to a sum of one; columns are left as they come."""
    z1, z2 = batch(6)
    plan = gcalign.method("ince", eps=0.2).plan(z1, z2)
    left, right = figure.subplots(1, 2)
    heat(left, gcalign.Cosine(0.2)(z1, z2).exp(), "kernel K")
    heat(right, plan.matrix, "plan of InfoNCE: rows scaled")
    sums(figure, right, plan)


def both(figure: Any) -> None:
    """4: GCA-INCE: rows and columns in turn; the loss falls with every step."""
    z1, z2 = batch(6)
    plan = gcalign.method("gca-ince", eps=0.2, iterations=100, tol=1e-9).plan(z1, z2)
    left, right = figure.subplots(1, 2)
    heat(left, plan.matrix, "plan of GCA-INCE: both scaled")
    sums(figure, left, plan)
    losses, v = [], torch.zeros(12, dtype=torch.float64)
    log_k = gcalign.Cosine(0.2)(z1, z2)
    for _ in range(3):
        u = -(log_k + v).logsumexp(1)
        losses.append(_kl(log_k + u[:, None] + v))
        v = -(log_k + u[:, None]).logsumexp(0)
        losses.append(_kl(log_k + u[:, None] + v))
    right.plot(range(1, 7), losses, "o-", color=BLUE)
    right.set(title="loss after each scaling", xlabel="rows, columns, rows, columns, …", xticks=range(1, 7))
    right.annotate("InfoNCE", (1, losses[0]), (1.7, losses[0]), va="center", arrowprops={"arrowstyle": "->"})
    right.annotate("GCA-INCE", (6, losses[-1]), (4.6, 0.5 * (losses[0] + losses[-1])), arrowprops={"arrowstyle": "->"})


def _kl(log_p: Tensor) -> float:
    return float(-log_p.diagonal().mean() - 1 + log_p.exp().sum() / len(log_p))


def relaxed(figure: Any) -> None:
    """5: two samples got a foreign view 2; in a relaxed plan their rows and columns have less mass."""
    z1, z2 = batch(6)
    z2 = z2.clone()
    z2[[4, 10]] = normalize(-z1.sum(0) - torch.tensor([0.0, 0, 0, 0, 0, 3], dtype=torch.float64), dim=0)
    for axes, lam in zip(figure.subplots(1, 3), (math.inf, 0.3, 0.05), strict=True):
        criterion = gcalign.Alignment(
            gcalign.Cosine(0.1), (gcalign.Rows(lam), gcalign.Columns(lam)), gcalign.KL(), iterations=500
        )
        plan = criterion.plan(z1, z2)
        heat(axes, plan.matrix, "λ = ∞: sums are exact" if lam == math.inf else f"λ = {lam:g}", 1.0)
        for k in (4, 10):
            axes.add_patch(_square(k))
        sums(figure, axes, plan)


def _square(k: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((k - 0.5, k - 0.5), 1, 1, fill=False, edgecolor="#FF4FB0", linewidth=2)


def pull(figure: Any) -> None:
    """6: plan, target, and their difference: what is pulled together and what is pushed apart."""
    z1, z2 = batch(6)
    plan = gcalign.method("gca-ince", eps=0.2).plan(z1, z2)
    p, t = plan.matrix, plan.target.dense()
    one, two, three = figure.subplots(1, 3)
    heat(one, p, "plan P", 1.0)
    heat(two, t, "target T", 1.0)
    size = float((p - t).abs().max())
    three.imshow(p - t, cmap="PuOr_r", vmin=-size, vmax=size)
    three.set(title="gradient P − T", xticks=[], yticks=[])
    three.text(5.5, 12.4, "purple pulls together,\norange pushes apart", ha="center", va="top", size=9)


def overview(figure: Any) -> None:
    """The picture of the README: kernel, plan and target, and what leads from one to the next."""
    z1, z2 = batch(6)
    plan = gcalign.method("gca-ince", eps=0.2).plan(z1, z2)
    shown = (
        (gcalign.Cosine(0.2)(z1, z2).exp(), "kernel K", "how similar two\nembeddings are"),
        (plan.matrix, "plan P", "rows and columns\nscaled to given sums"),
        (plan.target.dense(), "target T", "which items\nbelong together"),
    )
    for k, (axes, (matrix, title, said)) in enumerate(zip(figure.subplots(1, 3), shown, strict=True)):
        heat(axes, matrix, title, 1.0)
        axes.text(5.5, 12.4, said, ha="center", va="top", size=9)
        if k < 2:
            step = ("scale", "compare:\nthe loss")[k]
            axes.annotate("", (1.32, 0.5), (1.04, 0.5), xycoords="axes fraction", arrowprops={"arrowstyle": "->"})
            axes.text(1.18, 0.55, step, ha="center", va="bottom", size=9, transform=axes.transAxes)


IDEA: dict[str, tuple[Callable[[Any], None], tuple[float, float]]] = {
    "overview": (overview, (7.6, 2.9)),
    "idea-1-views": (views, (5.4, 3.6)),
    "idea-2-kernel": (kernels, (6.6, 2.5)),
    "idea-3-rows": (rows, (6.2, 3.0)),
    "idea-4-both": (both, (6.6, 3.0)),
    "idea-5-relaxed": (relaxed, (7.2, 2.7)),
    "idea-6-gradient": (pull, (6.8, 3.2)),
}


def targets() -> dict[str, Tensor]:
    """Each target on a batch of eight samples."""
    z, y = torch.eye(8), torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
    levels = torch.stack([torch.tensor([0, 0, 0, 0, 0, 0, 1, 1]), y], 1)
    soft = (1 - (torch.arange(8)[:, None] - torch.arange(8)).abs() / 3).clamp(min=0)

    def on(target: gcalign.Target, **known: Any) -> Tensor:
        return gcalign.method("gca-ince", target=target).plan(z, z, **known).target.dense()

    return {
        "identity": on(gcalign.Identity()),
        "views": on(gcalign.Identity(), ids=[0, 0, 1, 1, 2, 2, 3, 3]),
        "labels": on(gcalign.Labels(), labels=y),
        "blocks": on(gcalign.Blocks(alpha=0.3, beta=0.05), domains=y),
        "hierarchy": on(gcalign.Hierarchy((0.1, 0.4)), labels=levels),
        "soft": on(gcalign.Soft(soft)),
        "weighted": on(gcalign.Weighted(), weights=torch.linspace(0.2, 1, 8)),
        "joint": gcalign.method("simclr").plan(z[:4], z[:4]).target.dense(),
    }


def draw(folder: Path) -> None:
    """Write the pictures; the same bytes each time."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    folder.mkdir(exist_ok=True)
    with mpl.rc_context(STYLE):
        for name, (drawing, size) in IDEA.items():
            figure = Figure(figsize=size, layout="constrained")
            drawing(figure)
            figure.savefig(folder / f"{name}.png", dpi=110, metadata={"Software": None})
        for name, matrix in targets().items():
            figure = Figure(figsize=(1.5, 1.5))
            axes = figure.add_axes((0.02, 0.02, 0.96, 0.96))
            heat(axes, matrix, most=1.0)
            axes.set_xticks([k - 0.5 for k in range(1, 8)], minor=True)
            axes.set_yticks([k - 0.5 for k in range(1, 8)], minor=True)
            axes.grid(which="minor", color="white", linewidth=0.6, alpha=0.5)
            axes.tick_params(which="minor", length=0)
            figure.savefig(folder / f"target-{name}.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "figures")
