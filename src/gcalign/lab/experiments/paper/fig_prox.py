"""fig:proximal: what a proximal operator does, on a surface, on a line and on plans. There is nothing to measure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcalign.lab.experiments.engine.drawing import DOUBLE, letter, page
from gcalign.lab.experiments.engine.experiment import Experiment

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from torch import Tensor

# the toy: two images on a circle, angles of their first and second views in degrees
FIRST, SECOND, EPS = (0.0, 101.0), (-63.0, 47.0), 0.2
SIDE, V1, V2 = 1.2, (0.76, 0.76, 1.16), (1.5, 1.5, 6.0)  # fig:proximal's domain and points
PAPER_PROX = (0.85, 0.85, 1.45)  # what fig:proximal says V2 goes to
RELAXED = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)


def draw(records: pd.DataFrame, folder: Path) -> list[Path]:
    """What a proximal operator does."""
    with page(folder, "fig-prox", DOUBLE, 5.6) as made:
        surface = made.figure.add_subplot(2, 2, 1, projection="3d")
        _surface(surface)
        letter(surface, 0, "nearest point of a surface")
        line, plane, fall = (made.figure.add_subplot(2, 2, k) for k in (2, 3, 4))
        _on_a_line(line)
        letter(line, 1, "on a line")
        steps = projections(12)
        _share_plane(plane, steps)
        letter(plane, 2, "on plans: alternating Bregman projections")
        _fall(fall, steps)
        letter(fall, 3, "each projection lowers the loss")
        made.caption(
            None,
            f"A: h(x, y) = x² + y² on |x|, |y| ≤ {SIDE}; the paper puts prox(v₂) at {PAPER_PROX}, which is on the "
            "surface but not nearest. B: prox of h(x) = x² at v = 2. C, D: a 2 × 2 kernel "
            f"K = exp(−C/ε), ε = {EPS:g}, of two images on a circle; every point is computed by gcalign.solve. "
            "InfoNCE stops after the first row projection, GCA-INCE goes on to the limit, and a relaxation λ (UOT) "
            "lies on the curve between K and that limit.",
        )
    return made.paths


def _surface(axes: Any) -> None:
    import numpy as np

    grid = np.linspace(-SIDE, SIDE, 61)
    x, y = np.meshgrid(grid, grid)
    z = x**2 + y**2
    axes.plot_surface(x, y, z, cmap="Blues", alpha=0.55, linewidth=0, rcount=40, ccount=40)
    for name, v in (("$v_1$", V1), ("$v_2$", V2)):
        nearest = np.argmin((x - v[0]) ** 2 + (y - v[1]) ** 2 + (z - v[2]) ** 2)
        p = (x.flat[nearest], y.flat[nearest], z.flat[nearest])
        axes.plot(*zip(v, p, strict=True), color="#D55E00", linestyle="--", linewidth=0.9)
        axes.plot(*([c] for c in p), "o", color="#D55E00", markersize=4)
        axes.plot(*([c] for c in v), "D", color="black", markersize=4)
        axes.text(*v, f"{name}  ", ha="right", va="top")
        axes.text(*p, f"   prox({name})", va="center", color="#D55E00")
    axes.plot(*([c] for c in PAPER_PROX), "x", color="black", markersize=4)
    axes.text(PAPER_PROX[0] - 0.1, PAPER_PROX[1], PAPER_PROX[2] + 0.6, "paper: prox($v_2$)", ha="right", size=6)
    axes.set(xlabel="x", ylabel="y", zlabel="h", xticks=(-1, 0, 1), yticks=(-1, 0, 1), zticks=(0, 2, 4, 6))
    axes.view_init(16, -62)
    axes.set_box_aspect((1, 1, 0.9), zoom=1.05)


def _on_a_line(axes: Axes) -> None:
    import numpy as np

    v, x = 2.0, np.linspace(-1, 3, 201)
    prox = v / 3  # where 2x + (x − v) = 0
    axes.plot(x, x**2, "--", color="#0072B2", label="$h(x) = x^2$")
    axes.plot(x, (x - v) ** 2 / 2, "-.", color="#E69F00", label=r"$\frac{1}{2}(x - v)^2$")
    axes.plot(x, x**2 + (x - v) ** 2 / 2, "-", color="#009E73", label="their sum")
    axes.plot(v, 0, "D", color="black", label="$v = 2$")
    axes.plot(prox, prox**2 + (prox - v) ** 2 / 2, "o", color="#D55E00", label=rf"prox$_h(v)$ = {prox:.2f}")
    axes.vlines(prox, 0, prox**2 + (prox - v) ** 2 / 2, color="#D55E00", linestyle=":", linewidth=0.8)
    axes.set(xlabel="x", ylabel="value", ylim=(-0.25, 5.5))
    axes.legend(loc="upper center")


def kernel() -> Tensor:
    """log K of the toy."""
    import torch

    first, second = (torch.deg2rad(torch.tensor(angles, dtype=torch.float64)) for angles in (FIRST, SECOND))
    return (torch.cos(first[:, None] - second) - 1) / EPS


def projections(n: int) -> list[Tensor]:
    """K, then the plan after each of n projections, on rows and columns in turn."""
    from gcalign.constraints import Columns, Rows
    from gcalign.functional import solve

    log_p = kernel()
    steps = [log_p]
    for k in range(n):
        log_p = solve(log_p, (Rows(),) if k % 2 == 0 else (Columns(),), iterations=1, tol=0.0).log
        steps.append(log_p)
    return [step.exp() for step in steps]


def shares(plan: Tensor) -> tuple[float, float]:
    """What share of the mass lies in row 1, and in column 1."""
    return float(plan[0].sum() / plan.sum()), float(plan[:, 0].sum() / plan.sum())


def _share_plane(axes: Axes, steps: Sequence[Tensor]) -> None:
    from gcalign.constraints import Columns, Rows
    from gcalign.functional import solve
    from gcalign.geometry import Entropic

    plans = [solve(kernel(), (Rows(lam), Columns(lam)), Entropic(EPS), iterations=5000, tol=1e-9) for lam in RELAXED]
    uot = [shares(plan.matrix) for plan in plans]
    x, y = zip(*map(shares, steps), strict=True)
    axes.axvline(0.5, color="#0072B2", linewidth=1.4)
    axes.axhline(0.5, color="#009E73", linewidth=1.4)
    axes.plot(
        *zip((x[0], y[0]), *uot, (0.5, 0.5), strict=True), color="black", linestyle=":", label="UOT, λ from 0 to ∞"
    )
    axes.plot(*uot[RELAXED.index(0.2)], "D", color="black", label="UOT, λ = 0.2")
    axes.plot(x, y, color="#D55E00", linewidth=0.8, marker=".", markersize=3, label="projections")
    for k, (name, shift, align) in enumerate((("K", (6, 2), "left"), ("InfoNCE", (-6, -3), "right"))):
        style: dict[str, Any] = {"color": "#0072B2", "markerfacecolor": "white"} if k else {"color": "#D55E00"}
        axes.plot(x[k], y[k], "o", **style)
        axes.annotate(name, (x[k], y[k]), shift, textcoords="offset points", ha=align)
    axes.plot(0.5, 0.5, "o", color="#0072B2")
    axes.annotate("GCA-INCE", (0.5, 0.5), (-6, 4), textcoords="offset points", ha="right")
    axes.annotate("$C_1$: rows equal", (0.5, 0.75), (-4, 0), textcoords="offset points", ha="right", color="#0072B2")
    axes.annotate("$C_2$: columns equal", (0.94, 0.5), (0, -9), textcoords="offset points", ha="right", color="#009E73")
    axes.set(xlabel="share of the mass in row 1", ylabel="share in column 1", xlim=(0.25, 0.95), ylim=(0, 0.85))
    axes.legend(loc="upper right")


def _fall(axes: Axes, steps: Sequence[Tensor]) -> None:
    """KL(I ‖ P), mass terms included, in the mean over rows."""
    from gcalign.functional import solve

    shown = [*steps, solve(kernel(), tol=1e-9).matrix]
    *loss, limit = (float(plan.sum() - len(plan) - plan.diagonal().log().sum()) / len(plan) for plan in shown)
    kinds = (("rows", "#0072B2", "o"), ("columns", "#009E73", "s"))
    axes.plot(range(len(loss)), loss, color="#D55E00", linewidth=0.8)
    axes.plot(0, loss[0], "D", color="#D55E00", label="K")
    for start, (name, colour, marker) in enumerate(kinds, 1):
        axes.plot(range(start, len(loss), 2), loss[start::2], marker, color=colour, label=f"{name} projected")
    axes.axhline(limit, color="#0072B2", linewidth=0.8, linestyle="--")
    axes.annotate("InfoNCE", (1, loss[1]), (6, 3), textcoords="offset points")
    axes.annotate("GCA-INCE: the limit", (len(loss) - 1, limit), (0, 8), textcoords="offset points", ha="right")
    axes.set(xlabel="projections done", ylabel="KL(T ‖ P), T = I")
    axes.legend(loc="upper right")


EXPERIMENTS = (Experiment("fig-prox", draw, place=14),)
