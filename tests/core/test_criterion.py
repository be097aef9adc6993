"""A criterion is what a PyTorch user expects: a module to train with, save, copy, compile, print and extend."""

from __future__ import annotations

import copy
import math
import pickle
import re
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import gcalign
from gcalign import (
    KL,
    Alignment,
    Blocks,
    Capacity,
    Columns,
    Constraint,
    Cosine,
    Divergence,
    Entropic,
    Euclidean,
    Identity,
    Kernel,
    Labels,
    LogKernel,
    NonNegative,
    Penalty,
    Robust,
    Rows,
    Soft,
    SquaredEuclidean,
    SquaredL2,
    Symmetric,
    Target,
    TotalVariation,
    Uniformity,
)
from gcalign.transport.support import Pairs

METHODS = gcalign.methods.names()
LAYOUTS = ("cross", "joint")
CONVERGED = {"iterations": 4000, "tol": 1e-14}

every_method = pytest.mark.parametrize("name", METHODS)


def views(n: int = 6, d: int = 4, *, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two noisy views of n samples, as leaves."""
    generator = torch.Generator().manual_seed(seed)
    z1, noise = torch.randn(2, n, d, generator=generator, dtype=torch.float64)
    z2 = z1 + 0.8 * noise
    return z1.to(dtype, copy=True).requires_grad_(), z2.to(dtype).requires_grad_()


def known(name: str, n: int = 6) -> dict[str, Tensor]:
    """What the method must be told of n samples beyond the embeddings."""
    return {"labels": torch.arange(n) // 2} if name == "supcon" else {}


def gradient(criterion: nn.Module, z1: Tensor, z2: Tensor, *more: Tensor, **said: object) -> Tensor:
    """The gradient in z1, z2 and any tensors after them, as one vector."""
    return torch.cat([g.flatten() for g in torch.autograd.grad(criterion(z1, z2, **said), (z1, z2, *more))])


def assert_gradients_agree(make, *, tolerance: float = 1e-6, **said: object) -> None:
    """`make(gradient=...)` gives one gradient, in the embeddings and every parameter, by hand and by autograd."""
    z1, z2 = views()
    by_hand, unrolled = make(gradient="auto"), make(gradient="unrolled")
    found = gradient(by_hand, z1, z2, *by_hand.parameters(), **said)
    expected = gradient(unrolled, z1, z2, *unrolled.parameters(), **said)
    assert (found - expected).norm() <= tolerance * expected.norm()
    assert expected.norm() > 0


# --- a module -------------------------------------------------------------------------------------------------


@every_method
@pytest.mark.parametrize("learnable", [False, True])
def test_copies_and_pickles_give_the_same_loss(name, learnable):
    criterion = gcalign.method(name)
    if learnable:
        (criterion.alignment if isinstance(criterion, Symmetric) else criterion).kernel = Cosine(0.3, learnable=True)
    loss = criterion(*views(), **known(name))
    for twin in (copy.deepcopy(criterion), pickle.loads(pickle.dumps(criterion))):
        assert torch.equal(twin(*views(), **known(name)), loss)
        assert repr(twin) == repr(criterion)


def test_compositions_with_tensors_inside_can_be_copied_and_pickled():
    mass = torch.linspace(0.5, 1.5, 6, dtype=torch.float64)
    criterion = Alignment(
        Cosine(0.5), (Rows(mass=mass), Columns(TotalVariation(0.2))), KL() + SquaredL2(), Soft(torch.ones(6, 6))
    )
    loss = criterion(*views())
    for twin in (copy.deepcopy(criterion), pickle.loads(pickle.dumps(criterion))):
        assert torch.equal(twin(*views()), loss)


@every_method
def test_only_methods_with_a_learnt_temperature_have_state(name):
    state = {
        "clip": ["alignment.kernel.log_eps", "alignment.kernel.least_log_eps"],
        "siglip": ["kernel.log_eps", "kernel.bias", "kernel.least_log_eps"],
    }
    assert list(gcalign.method(name).state_dict()) == state.get(name, [])


@pytest.mark.parametrize("step", [5.0, -5.0, 60.0, -60.0])
def test_a_learnt_temperature_stays_positive_whatever_the_step(step):
    criterion = Alignment(Cosine(0.5, learnable=True), (Rows(),), KL())
    criterion.kernel.log_eps.grad = torch.tensor(-1.0 if step > 0 else 1.0)
    torch.optim.SGD(criterion.parameters(), lr=abs(step)).step()
    # as CLIP's logit scale, 1/ε stays at 100 or less
    assert float(criterion.kernel.eps.detach()) == pytest.approx(max(0.01, 0.5 * math.exp(step)), rel=1e-4)
    assert torch.isfinite(criterion(*views(dtype=torch.float32)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_criterion_moves_to_a_dtype_and_keeps_the_dtype_of_its_embeddings(dtype):
    criterion = gcalign.method("clip").to(dtype)
    assert criterion.alignment.kernel.log_eps.dtype == dtype
    for inputs in (torch.float32, torch.float64):
        loss = criterion(*views(dtype=inputs))
        assert loss.dtype == inputs
        loss.backward()
    assert criterion.alignment.kernel.log_eps.grad.dtype == dtype
    assert torch.isfinite(criterion.alignment.kernel.log_eps.grad)


# --- repr -----------------------------------------------------------------------------------------------------

REPRS = {
    "Alignment(Cosine(eps=0.1), (Rows(), Columns()), KL(), target=Identity(), layout='cross', iterations=10, "
    "tol=1e-06, gradient='auto')": lambda: gcalign.method("gca-ince"),
    "Alignment(Cosine(eps=0.3), (Rows(penalty=0.1), Columns(penalty=0.2)), KL() + 0.02 * Robust(0.6, 0.01), "
    "target=Identity(), layout='joint', iterations=5, tol=0.0, gradient='truncated', "
    "block=64)": lambda: gcalign.method(
        "gca-uot", eps=0.3, relax=(0.1, 0.2), layout="joint", iterations=5, tol=0.0, gradient="truncated", block=64
    ),
    "Alignment(SquaredEuclidean(eps=1), (), KL(mass=False), target=Identity(), layout='cross', iterations=10, "
    "tol=1e-06, gradient='auto')": lambda: gcalign.method("byol"),
    "Symmetric(Alignment(Cosine(eps=0.07, learnable=True), (Rows(),), KL(), target=Identity(), layout='cross', "
    "iterations=10, tol=1e-06, gradient='auto'))": lambda: gcalign.method("clip"),
    "Cosine(eps=0.2, learnable=True)": lambda: Cosine(0.2, learnable=True),
    "SquaredEuclidean(eps=2, normalized=False)": lambda: SquaredEuclidean(2, normalized=False),
    "2 * KL(mass=False) + 0.5 * Robust(0.3, 0.1, scale='score') + Uniformity()": lambda: (
        2 * KL(mass=False) + 0.5 * Robust(0.3, 0.1, "score") + Uniformity()
    ),
    "0.5 * KL() + SquaredL2()": lambda: 0.5 * (KL() + 2 * SquaredL2()),
    "Rows(penalty=TotalVariation(0.1), mass=<(3,)>)": lambda: Rows(TotalVariation(0.1), mass=torch.ones(3)),
    "Columns(mass=2.0)": lambda: Columns(mass=2.0),
    "Soft(<(3, 4)>)": lambda: Soft(torch.ones(3, 4)),
    "Blocks(0.1, beta=0.2)": lambda: Blocks(0.1, 0.2),
    "Euclidean(eps=0.2)": lambda: Euclidean(0.2),
}


@pytest.mark.parametrize("text", REPRS)
def test_a_composition_prints_as_the_call_that_makes_it(text):
    assert repr(REPRS[text]()) == text


@every_method
def test_the_repr_of_every_method_makes_it_again(name):
    text = repr(gcalign.method(name))
    twin = eval(text, {key: getattr(gcalign, key) for key in dir(gcalign) if key[0].isupper()})
    assert repr(twin) == text
    assert torch.equal(twin(*views(), **known(name)), gcalign.method(name)(*views(), **known(name)))


# --- explain --------------------------------------------------------------------------------------------------

HARD, RELAXED = (Rows(), Columns()), (Rows(0.2), Columns(0.2))
FEW, ENOUGH = {"iterations": 1}, {"iterations": 500}
EXPLAINED = [
    ("envelope", "there are no constraints", ((), KL()), FEW),
    ("envelope", "converged.*P − T", ((Rows(),), KL()), FEW),
    ("envelope", "converged.*P − T", (HARD, KL()), ENOUGH),
    ("envelope", "converged.*P − T", (HARD, KL(mass=False)), ENOUGH),
    ("envelope", "converged.*P − T", (RELAXED, KL()), ENOUGH),
    ("truncated", "not converged", (HARD, KL()), FEW),
    ("truncated", "not converged", (RELAXED, KL() + Robust(0.5, 0.1)), FEW),
    ("truncated", "not converged", (HARD, KL()), {"iterations": 500, "tol": 0.0}),
    ("truncated", "requested", (HARD, KL()), {"gradient": "truncated", **ENOUGH}),
    ("implicit", "not KL.*in one step", ((Rows(),), Robust(0.5, 0.1)), ENOUGH),
    ("implicit", "not KL.*stored", (HARD, Robust(0.5, 0.1)), ENOUGH),
    ("implicit", "not KL", (RELAXED, KL() + 0.1 * SquaredL2()), ENOUGH),
    ("implicit", "not KL", (RELAXED, KL(penalties=False)), ENOUGH),
    ("implicit", "not KL", (RELAXED, KL(mass=False)), ENOUGH),
    ("implicit", "not KL.*stored", (HARD, KL(normalized=True)), ENOUGH),
    ("implicit", "marginals.*stored", ((Rows(mass=torch.linspace(0.5, 1.5, 6)), Columns()), KL()), ENOUGH),
    ("implicit", "requested", (HARD, KL()), {"gradient": "implicit", **ENOUGH}),
    ("unrolled", "requested", (HARD, KL()), {"gradient": "unrolled"}),
    ("unrolled", "not only rows and columns", ((*HARD, Capacity(0.9)), KL()), ENOUGH),
    ("unrolled", "not only rows and columns", ((*HARD, NonNegative()), SquaredL2()), {"geometry": Euclidean()}),
]


@pytest.mark.parametrize(("mode", "reason", "composition", "settings"), EXPLAINED)
def test_explain_gives_the_mode_that_runs_and_why(mode, reason, composition, settings):
    constraints, divergence = composition
    choice = Alignment(Cosine(0.5), constraints, divergence, **settings).explain(*views())
    assert choice.mode == mode
    assert re.search(reason, choice.reason)


# --- plans ----------------------------------------------------------------------------------------------------


@every_method
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("block", [None, 4])
def test_a_plan_s_diagnostics_are_those_of_its_matrix(name, layout, block):
    criterion = gcalign.method(name, layout=layout, block=block)
    z1, z2 = views()
    plan = criterion.plan(z1, z2, **known(name))
    kernel = (criterion.alignment if isinstance(criterion, Symmetric) else criterion).kernel
    x = kernel.features(torch.cat([z1, z2]) if layout == "joint" else z1)
    y = x if layout == "joint" else kernel.features(z2)
    k = kernel(x, y).detach().exp()
    if layout == "joint":
        k.fill_diagonal_(0)
    eps = plan.eps
    p = plan.u[:, None] * k * plan.v

    def same(found, expected):
        return torch.allclose(found, expected, rtol=1e-10, atol=1e-12)

    assert same(plan.matrix, p)
    assert same(plan.log, p.log())
    assert same(plan.f, eps * plan.u.log())
    assert same(plan.g, eps * plan.v.log())
    assert same(plan.mass, p.sum())
    assert same(plan.entropy, -torch.xlogy(p, p).sum())
    assert same(plan.row_sums, p.sum(1))
    assert same(plan.column_sums, p.sum(0))
    mu, nu = plan.mu, plan.nu
    assert same(plan.row_error, (p.sum(1) - mu).abs().sum() / mu.sum())
    assert same(plan.column_error, (p.sum(0) - nu).abs().sum() / nu.sum())


@pytest.mark.parametrize("plan", [
    lambda: gcalign.method("gca-uot").plan(*views()),
    lambda: gcalign.method("clip").plan(*views()),
    lambda: Alignment(Cosine(0.5), (Rows(), Capacity(0.5)), KL()).plan(*views()),
    lambda: gcalign.solve(torch.zeros(6, 6, requires_grad=True)),
])  # fmt: skip
def test_a_plan_prints_on_one_line_of_numbers(plan):
    text = repr(plan())
    assert text.startswith("Plan(6×6, mass=")
    assert "\n" not in text
    assert "tensor" not in text
    assert all(word in text for word in ("entropy=", "row_error=", "column_error=", "iterations=", "converged="))


def test_printing_a_plan_leaves_its_gradient():
    log_k = torch.zeros(3, 3, requires_grad=True)
    plan = gcalign.solve(log_k, (Rows(0.5), Columns()))
    repr(plan)
    for part in (plan.mass, plan.entropy, plan.row_error, plan.log):
        assert part.requires_grad


@pytest.mark.parametrize("gradient", ["auto", "unrolled"])
def test_a_plan_without_constraints_is_the_kernel_and_has_its_gradient(gradient):
    log_k = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    plan = gcalign.solve(log_k, (), gradient=gradient)
    assert torch.equal(plan.log, log_k)
    assert torch.equal(torch.autograd.grad(plan.log.sum(), log_k)[0], torch.ones(3, 3))


KERNELS = {
    "Cosine": lambda: Cosine(0.5),
    "learnt": lambda: Cosine(0.5, learnable=True),
    "as it is": lambda: SquaredEuclidean(2.0, normalized=False),
    "callable": lambda: LogKernel(lambda x, y: x @ y.T),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("constraints", [(Rows(), Columns()), (Rows(), Columns(), Capacity(0.8))], ids=str)
def test_a_plan_has_no_gradient(kernel, constraints):
    plan = Alignment(KERNELS[kernel](), constraints, KL()).plan(*views())
    for part in (plan.log, plan.matrix, plan.u, plan.v, plan.f, plan.g, plan.mass, plan.entropy, plan.row_error):
        assert not part.requires_grad


def test_a_plan_is_of_the_moment_it_was_made():
    # reading a plan after the optimiser's step gives the plan before it
    z1, z2 = views()
    criterion = Alignment(SquaredEuclidean(2.0, normalized=False, learnable=True), (Rows(), Columns()), KL())
    expected = criterion.plan(z1, z2).matrix
    plan = criterion.plan(z1, z2)
    with torch.no_grad():
        z1.mul_(2)
        criterion.kernel.log_eps.add_(1)
    assert torch.equal(plan.matrix, expected)


def test_numbers_given_as_floats_are_exact_in_float64():
    z1, z2 = views()
    rows = Alignment(Cosine(0.5), (Rows(mass=0.3),), KL()).plan(z1, z2)
    assert torch.allclose(rows.row_sums, torch.full((6,), 0.3, dtype=torch.float64), rtol=1e-14)
    capped = Alignment(Cosine(0.5), (Rows(), Capacity(0.3)), KL(), iterations=200).plan(z1, z2)
    assert float(capped.matrix.max()) == pytest.approx(0.3, rel=1e-14)


# --- a symbol of one's own ------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Entropy(Divergence):
    """Σ T log(T/P)², as no divergence of the library is."""

    power: float = 2.0

    def value(self, s):
        return (s.target.weight * s.log_p.abs() ** self.power).sum() / s.target.shape[0]


@dataclass(frozen=True, repr=False)
class Spread(Divergence):
    """The sum of fourth powers of rows and the squares of column sums."""

    statistics = (lambda log_p, t: (4 * log_p).exp().sum(1),)
    needs_columns = True

    def value(self, s):
        return (s.terms.sum() + (2 * s.log_columns).exp().sum()) / s.target.shape[0]


@pytest.mark.parametrize(
    "divergence", [Entropy(3.0), Spread(), KL() + 0.5 * Spread() + Uniformity() + 0.1 * Entropy()], ids=repr
)
@pytest.mark.parametrize("marginals", [(Rows(), Columns()), (Rows(),), (Rows(0.3), Columns(0.6))], ids=str)
@pytest.mark.parametrize("settings", [CONVERGED, {"iterations": 3, "tol": 0.0}, {"block": 4, **CONVERGED}], ids=str)
def test_a_divergence_of_one_s_own_gets_its_gradient(divergence, marginals, settings):
    assert_gradients_agree(lambda **mode: Alignment(Cosine(0.5), marginals, divergence, **settings, **mode))


class Plain(Divergence):
    """A user's own that is no dataclass."""

    def per_row(self, plan):
        return -plan.cross


def test_a_divergence_that_is_no_dataclass_prints_and_works():
    criterion = Alignment(Cosine(0.5), (Rows(),), Plain())
    assert "Plain()" in repr(criterion)
    assert torch.allclose(criterion(*views()), gcalign.method("ince", eps=0.5)(*views()))


class Bilinear(Kernel):
    """C = −xᵀWy."""

    def __init__(self):
        super().__init__(0.7, learnable=True)
        self.w = nn.Parameter(torch.eye(4) + 0.1)

    def cost(self, x, y):
        return -(x @ self.w @ y.T)


class Projected(Kernel):
    """The cosine cost after a learnt projection of each embedding."""

    def __init__(self):
        super().__init__(0.5)
        generator = torch.Generator().manual_seed(1)
        self.w = nn.Parameter(torch.randn(4, 3, generator=generator))

    def features(self, z):
        return nn.functional.normalize(z @ self.w, dim=1)

    def cost(self, x, y):
        return 1 - x @ y.T


class Score(nn.Module):
    """log K itself, as a module with a parameter."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.tensor(0.3))

    def forward(self, x, y):
        return -torch.cdist(x, y + self.bias)


@pytest.mark.parametrize("kernel", [Bilinear, Projected, Score])
@pytest.mark.parametrize("divergence", [KL(), KL() + Robust(0.5, 0.1)], ids=repr)
@pytest.mark.parametrize("settings", [{}, {"layout": "joint"}, {"block": 4}, {"iterations": 2}], ids=str)
def test_a_kernel_of_one_s_own_gets_its_gradient(kernel, divergence, settings):
    assert_gradients_agree(
        lambda **mode: Alignment(kernel(), (Rows(0.5), Columns()), divergence, **settings, **mode).double(),
        tolerance=1e-4,
    )


def test_a_parameter_that_the_kernel_does_not_use_has_no_gradient():
    score = Score().double()
    score.unused = nn.Parameter(torch.ones(()))
    Alignment(score, (Rows(), Columns()), KL())(*views()).backward()
    assert score.bias.grad is not None
    assert score.unused.grad is None or score.unused.grad == 0


def test_a_tensor_in_a_callable_s_closure_gets_its_gradient():
    w = torch.eye(4, dtype=torch.float64, requires_grad=True)
    auto, unrolled = (
        torch.autograd.grad(Alignment(lambda x, y: x @ w @ y.T, (Rows(), Columns()), KL(), gradient=mode)(*views()), w)[
            0
        ]
        for mode in ("auto", "unrolled")
    )
    assert torch.allclose(auto, unrolled, rtol=1e-5)
    assert auto.norm() > 0


@dataclass(frozen=True, repr=False)
class Square(Penalty):
    """u = √(μ/(K v)): the relaxation whose τ is ½ whatever ε."""

    def step(self, gap, eps):
        return gap / 2


@pytest.mark.parametrize(
    "constraints", [(Rows(Square()), Columns(Square())), (Rows(Square()),), (Rows(), Columns(Square()))], ids=str
)
@pytest.mark.parametrize("divergence", [KL(), KL(mass=False), Robust(0.5, 0.1)], ids=repr)
@pytest.mark.parametrize("settings", [CONVERGED, {"iterations": 2}], ids=str)
def test_a_penalty_of_one_s_own_gets_its_gradient(constraints, divergence, settings):
    assert_gradients_agree(
        lambda **mode: Alignment(Cosine(0.5, learnable=True), constraints, divergence, **settings, **mode).double()
    )


def test_a_penalty_of_one_s_own_is_the_relaxation_it_writes():
    z1, z2 = views()
    own = Alignment(Cosine(0.3), (Rows(Square()), Columns(Square())), KL(penalties=False), **CONVERGED)
    relaxed = Alignment(Cosine(0.3), (Rows(0.3), Columns(0.3)), KL(penalties=False), **CONVERGED)
    assert torch.allclose(own.plan(z1, z2).matrix, relaxed.plan(z1, z2).matrix)
    assert torch.allclose(gradient(own, z1, z2), gradient(relaxed, z1, z2))


@dataclass(frozen=True, repr=False, eq=False)
class TotalMass(Constraint):
    """Σ P = mass: one number taken off the mirror coordinate."""

    mass: float

    def multiplier(self, z, problem):
        return z.logsumexp((0, 1)) - math.log(self.mass)


def test_a_constraint_of_one_s_own_is_met_and_differentiated():
    criterion = Alignment(Cosine(0.5), (TotalMass(3.0), Capacity(0.2)), KL(), iterations=500, tol=1e-12)
    z1, z2 = views()
    plan = criterion.plan(z1, z2)
    assert float(plan.mass) == pytest.approx(3)
    assert plan.matrix.max() <= 0.2 + 1e-9
    assert torch.autograd.gradcheck(criterion, (z1, z2), fast_mode=True)


@dataclass(frozen=True, repr=False)
class Next(Target):
    """Each sample belongs with the next one of the batch."""

    reads = frozenset()

    def on(self, sides, dtype):
        n = len(sides.rows)
        i = torch.arange(n)
        return Pairs(i, (i + 1) % n, torch.ones(n, dtype=dtype), sides.shape)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_target_of_one_s_own_is_the_matrix_it_writes(layout):
    z1, z2 = views()
    size = 6 if layout == "cross" else 12
    matrix = torch.eye(size, dtype=torch.float64).roll(1, 1)
    for constraints in ((Rows(),), (Rows(), Columns())):
        own = Alignment(Cosine(0.5), constraints, KL(), Next(), layout=layout)
        assert torch.allclose(own(z1, z2), Alignment(Cosine(0.5), constraints, KL(), matrix, layout=layout)(z1, z2))


# --- what the layouts promise ---------------------------------------------------------------------------------


@pytest.mark.parametrize("geometry", [Entropic(0.5), Euclidean(0.5)], ids=repr)
@pytest.mark.parametrize("more", [(), (NonNegative(),)], ids=str)
def test_an_embedding_is_never_matched_with_itself(geometry, more):
    constraints = (Rows(), Columns(), *more)
    criterion = Alignment(Cosine(0.5), constraints, SquaredL2(), geometry=geometry, layout="joint", iterations=100)
    assert (criterion.plan(*views()).matrix.diagonal() == 0).all()


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.int64])
def test_labels_can_be_of_any_whole_dtype(dtype):
    z1, z2 = views(4)
    labels = torch.tensor([0, 1, 0, 1])
    expected = gcalign.method("supcon")(z1, z2, labels=labels)
    assert torch.equal(gcalign.method("supcon")(z1, z2, labels=labels.to(dtype)), expected)


# --- targets through a symmetric criterion --------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6, 6), (6, 4)])
def test_a_symmetric_criterion_turns_its_target_with_its_sides(shape):
    z1, z2 = views()[0], views()[1][: shape[1]]
    matrix = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    half = Alignment(Cosine(0.07), (Rows(),), KL())
    expected = 0.5 * (half(z1, z2, target=matrix) + half(z2, z1, target=matrix.T))
    clip = gcalign.method("clip", learnable=False)
    assert torch.allclose(clip(z1, z2, target=matrix), expected)
    assert torch.allclose(clip(z1, z2, target=Soft(matrix)), expected)
    assert torch.allclose(gcalign.method("clip", learnable=False, target=matrix)(z1, z2), expected)


def test_a_symmetric_criterion_takes_labels_of_any_kind():
    z1, z2 = views(3)
    clip = gcalign.method("clip", target=Labels())
    expected = clip(z1, z2, labels=torch.tensor([0, 0, 1]))
    assert torch.equal(clip(z1, z2, labels=[0, 0, 1]), expected)
    assert torch.equal(clip(z1, z2, labels=(0, 0, 1)), expected)
    assert torch.equal(clip(z1, z2, labels=([0, 0, 1], [0, 0, 1])), expected)


# --- registry and functional twins ----------------------------------------------------------------------------


@pytest.fixture
def registry(monkeypatch):
    """The methods' registry, put back afterwards."""
    monkeypatch.setattr(gcalign.methods, "_REGISTRY", dict(gcalign.methods._REGISTRY))


@pytest.mark.usefixtures("registry")
def test_a_method_of_one_s_own_is_known_by_its_name():
    @gcalign.register("mine")
    def mine(eps=0.5, power=2.0, **common):
        return Alignment(Cosine(eps), (Rows(), Columns()), KL() + Entropy(power), **common)

    assert gcalign.methods.names() == (*METHODS, "mine")
    assert set(gcalign.methods.options("mine")) >= {"eps", "power", "layout", "iterations", "block"}
    loss = gcalign.method("mine", power=3.0, layout="joint", iterations=20)(*views())
    assert torch.equal(loss, mine(power=3.0, layout="joint", iterations=20)(*views()))
    with pytest.raises(ValueError, match="'mine' is registered already"):
        gcalign.register("mine")(mine)
    with pytest.raises(TypeError, match=r"mine has no option 'pwer'; did you mean 'power'\?"):
        gcalign.method("mine", pwer=1.0)


TWINS = {
    "info_nce": "ince",
    **{name.replace("-", "_"): name for name in METHODS if name != "ince"},
}


def assert_same(found, expected):
    assert torch.allclose(found, expected, rtol=1e-6)  # a learnt temperature is kept in float32, a fixed one is not


@pytest.mark.parametrize("twin", TWINS)
def test_functional_twins_are_the_methods(twin):
    name = TWINS[twin]
    function = getattr(gcalign.functional, twin)
    z1, z2 = views()
    assert_same(function(z1, z2, **known(name)), gcalign.method(name)(z1, z2, **known(name)))
    assert_same(
        function(z1, z2, eps=0.3, layout="joint", **known(name)),
        gcalign.method(name, eps=0.3, layout="joint")(z1, z2, **known(name)),
    )
    said = {"ids": (torch.arange(6), torch.arange(6).flip(0))} if name != "supcon" else known(name)
    assert_same(
        function(z1, z2, weights=torch.linspace(0.5, 1.5, 6), **said),
        gcalign.method(name)(z1, z2, weights=torch.linspace(0.5, 1.5, 6), **said),
    )
    target = torch.eye(6, dtype=torch.float64) if name not in ("simclr", "iot", "iot-uni", "supcon") else None
    if target is not None:
        assert_same(function(z1, z2, target=target), function(z1, z2))


def test_every_method_has_a_functional_twin():
    assert set(TWINS.values()) == set(METHODS)
    assert all(callable(getattr(gcalign.functional, twin)) for twin in TWINS)


def test_a_geometry_s_eps_is_the_unit_of_the_relaxations():
    z1, z2 = views()
    log_k = Cosine(0.5)(Cosine().features(z1), Cosine().features(z2)).detach()
    constraints = (Rows(0.2), Columns(0.2))
    own = Alignment(Cosine(0.5), constraints, KL(), Identity(), **CONVERGED).plan(z1, z2)
    given = gcalign.solve(log_k, constraints, Entropic(0.5), **CONVERGED)
    assert torch.allclose(own.matrix, given.matrix)
