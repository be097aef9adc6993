"""Every mistake is refused with the value, the rule and the remedy, and a near name is suggested."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

import gcalign
from gcalign import (
    KL,
    Alignment,
    Blocks,
    BlockSums,
    Capacity,
    Columns,
    Cosine,
    Entropic,
    Euclidean,
    Hard,
    Hierarchy,
    Identity,
    Labels,
    LogKernel,
    NonNegative,
    Relaxed,
    Robust,
    Rows,
    Soft,
    SquaredEuclidean,
    SquaredL2,
    TotalVariation,
    Uniformity,
    Weighted,
)

B = 4
Z = torch.arange(1.0, 1 + B * 3).reshape(B, 3).sin()
EYE = torch.eye(B)


def balanced(**options):
    return Alignment(Cosine(0.5), (Rows(), Columns()), KL(), **options)


KINDS = {"ValueError": ValueError, "TypeError": TypeError}


def refused(call, expected):
    """`call` raises what `expected` says, "Kind: value / rule / remedy": these parts, in this order."""
    kind, message = expected.split(": ", 1)
    with pytest.raises(KINDS[kind], match="(?s)" + ".*".join(map(re.escape, message.split(" / ")))):
        call()


def table(*rows):
    """Pairs (the mistake, the message) as test parameters, named by the message."""
    return pytest.mark.parametrize(("mistake", "expected"), [pytest.param(*row, id=row[1]) for row in rows])


# --- embeddings -----------------------------------------------------------------------------------------------


@table(
    (lambda: balanced()(Z[0], Z), "ValueError: z1 of shape (3,) / must be [B, D] / flatten"),
    (lambda: balanced()(Z, Z[None]), "ValueError: z2 of shape (1, 4, 3) / must be [B, D] / flatten"),
    (lambda: balanced()(Z[:0], Z[:0]), "ValueError: z1 of shape (0, 3) / B, D ≥ 1"),
    (lambda: balanced()(Z[:, :0], Z[:, :0]), "ValueError: z1 of shape (4, 0) / B, D ≥ 1"),
    (lambda: balanced()(Z, Z[:, :2]), "ValueError: z1 has 3 dimensions and z2 2 / project both"),
    (lambda: balanced()(Z, Z.double()), "TypeError: float32 / float64 / one dtype / z2.to(z1.dtype)"),
    (lambda: balanced()(Z, Z.to("meta")), "ValueError: z1 is on cpu and z2 on meta / one device"),
    (lambda: balanced()(Z.int(), Z.int()), "TypeError: z1 has dtype torch.int32 / float / z1.float()"),
    (lambda: balanced()(Z.cfloat(), Z.cfloat()), "TypeError: z1 has dtype torch.complex64 / real"),
    (lambda: balanced()(Z.tolist(), Z), "TypeError: z1 is a list / must be a tensor [B, D]"),
    (lambda: balanced()(Z, Z[:3]), "ValueError: z1 has 4 rows and z2 3 / ids=(ids1, ids2) / target=T"),
    (lambda: gcalign.method("clip")(Z, Z[:3]), "ValueError: z1 has 4 rows and z2 3 / ids="),
    (lambda: balanced()(Z, Z / Z.new_tensor([[1], [1], [0], [1]])), "ValueError: z2[2] / check_finite=False"),
)
def test_embeddings_must_be_two_finite_real_matrices(mistake, expected):
    refused(mistake, expected)


@pytest.mark.parametrize("layout", ["cross", "joint"])
@pytest.mark.parametrize("name", gcalign.methods.names())
def test_every_method_checks_its_embeddings(name, layout):
    refused(lambda: gcalign.method(name, layout=layout)(Z, Z[:, :2]), "ValueError: z1 has 3 dimensions and z2 2")


# --- ids, labels, domains, weights ----------------------------------------------------------------------------


@table(
    (
        lambda: balanced()(Z, Z, ids=([0, 1, 2, 3], [0, 1, 2, 9])),
        "ValueError: row 3 / (3) / no positive / drop single",
    ),
    (lambda: balanced(layout="joint")(Z, Z, ids=([0, 1, 2, 3], [0, 1, 2, 9])), "ValueError: row 3 / no positive"),
    (lambda: balanced()(Z, Z, ids=[0, 1, 2]), "ValueError: ids of shape (3,) / each of the 4 rows of z1"),
    (
        lambda: balanced()(Z, Z[:2], ids=[0, 1, 2, 3]),
        "ValueError: ids of shape (4,) / 2 rows of z2 / ids=(for z1, for z2)",
    ),
    (lambda: balanced()(Z, Z, ids=EYE.long()), "ValueError: ids of shape (4, 4) / one value for each"),
    (
        lambda: balanced()(Z, Z, ids=torch.rand(B)),
        "TypeError: ids has dtype torch.float32 / whole numbers / ids.long()",
    ),
    (lambda: balanced()(Z, Z, ids=["a", "b", "c", "d"]), "TypeError: ids / whole numbers"),
    (lambda: balanced()(Z, Z, ids=torch.arange(B) * 1j), "TypeError: ids has dtype torch.complex64 / whole numbers"),
    (
        lambda: balanced(target=Labels())(Z, Z, labels=([0, 0, 1, 7], [0, 0, 1, 1])),
        "ValueError: row 3 / (7) / sample batches by labels",
    ),
    (lambda: gcalign.method("supcon")(Z, Z), "ValueError: reads labels / none were given / labels=..."),
    (
        lambda: gcalign.method("supcon")(Z, Z, labels=torch.rand(B)),
        "TypeError: labels has dtype torch.float32 / labels.long()",
    ),
    (
        lambda: gcalign.method("supcon", layout="cross")(Z, Z, labels=EYE.long()),
        "ValueError: labels of shape (4, 4) / [B] / Hierarchy",
    ),
    (
        lambda: balanced(target=Hierarchy((0.1, 0.5)))(Z, Z, labels=[0, 1, 2, 3]),
        "ValueError: labels of shape (4,) / [B, 2] / torch.stack",
    ),
    (lambda: balanced(target=Blocks(0.1))(Z, Z), "ValueError: reads domains / none were given / domains=..."),
    (
        lambda: balanced()(Z, Z, labels=[0, 0, 1, 1]),
        "ValueError: labels were given / Identity() / target=gcalign.Labels()",
    ),
    (lambda: balanced()(Z, Z, domains=[0, 0, 1, 1]), "ValueError: domains were given / Identity() / gcalign.Blocks"),
    (lambda: gcalign.method("clip")(Z, Z, labels=[0, 0, 1, 1]), "ValueError: labels were given / Labels()"),
    (lambda: balanced()(Z, Z, weights=[1.0, -2.0, 1, 1]), "ValueError: weights[1]=-2 / > 0 and finite / drop"),
    (lambda: balanced()(Z, Z, weights=[1.0, 1, 1, 0]), "ValueError: weights[3]=0 / > 0 and finite / drop"),
    (lambda: balanced()(Z, Z, weights=[1.0, 1, math.inf, 1]), "ValueError: weights[2]=inf / > 0 and finite"),
    (lambda: balanced()(Z, Z, weights=[1.0, math.nan, 1, 1]), "ValueError: weights[1]=nan / > 0 and finite"),
    (lambda: balanced()(Z, Z, weights=[1.0]), "ValueError: weights of shape (1,) / 4 rows of z1"),
    (lambda: balanced()(Z, Z, weights=torch.ones(B, requires_grad=True)), "ValueError: weights / gradient / detach()"),
    (lambda: balanced(target=Weighted())(Z, Z), "ValueError: reads weights / weights=..."),
    (lambda: balanced().plan(Z, Z, lables=[0, 0, 1, 1]), "TypeError: lables= / did you mean 'labels'?"),
    (lambda: balanced().explain(Z, Z, id=[0, 1, 2, 3]), "TypeError: id= / did you mean 'ids'?"),
    (lambda: balanced()(Z, Z, lables=[0, 0, 1, 1]), "TypeError: lables"),
)
def test_what_is_known_of_the_samples_must_fit_them(mistake, expected):
    refused(mistake, expected)


# --- targets --------------------------------------------------------------------------------------------------

EMPTY_ROW = torch.tensor([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]])
EMPTY_COLUMN = torch.tensor([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]])


@table(
    (lambda: balanced()(Z, Z, target=EMPTY_ROW), "ValueError: row 2 of the target has no positive / drop the row"),
    (lambda: balanced()(Z, Z, target=EMPTY_ROW.to_sparse()), "ValueError: row 2 of the target has no positive"),
    (lambda: balanced()(Z, Z, target=torch.eye(3)), "ValueError: target of shape (3, 3) must be (4, 4) / cross layout"),
    (
        lambda: balanced(layout="joint")(Z, Z, target=EYE),
        "ValueError: target of shape (4, 4) must be (8, 8) / joint layout",
    ),
    (lambda: balanced(target=EYE - 0.1), "ValueError: negative or non-finite / ≥ 0 and finite"),
    (lambda: balanced(target=EYE / 0), "ValueError: negative or non-finite / ≥ 0 and finite"),
    (lambda: balanced()(Z, Z, target=-EYE.to_sparse()), "ValueError: negative or non-finite"),
    (
        lambda: balanced()(Z, Z, target=EYE.clone().requires_grad_()),
        "ValueError: target requires a gradient / target.detach()",
    ),
    (lambda: balanced()(Z, Z, target=torch.ones(B)), "ValueError: target=(4,) / matrix [n, m]"),
    (lambda: balanced(target="labels"), "TypeError: target='labels' / Target or a matrix / gcalign.Identity()"),
    (lambda: balanced(target=Labels), "TypeError: must be a Target"),
    (
        lambda: balanced(layout="joint")(Z, Z, target=torch.ones(8, 8)),
        "ValueError: with itself / diagonal to 0 / layout='cross'",
    ),
    (lambda: balanced(layout="joint")(Z, Z, target=torch.eye(8).to_sparse()), "ValueError: with itself"),
    (
        lambda: balanced()(Z, torch.cat([Z, Z]), ids=(range(B), range(2 * B))),
        "ValueError: columns [4, 5, 6, 7] have no positive / Columns(mass=...) / constrain rows only",
    ),
    (lambda: balanced()(Z, Z, target=EMPTY_COLUMN), "ValueError: columns [2] have no positive / Columns(mass=...)"),
    (
        lambda: balanced(target=Labels())(Z, Z, labels=([0, 0, 1, 1], [0, 0, 1, 2])),
        "ValueError: columns [3] have no positive / Columns(mass=...)",
    ),
    (lambda: Blocks(-0.1), "ValueError: alpha=-0.1 / ≥ 0 / within a domain"),
    (lambda: Blocks(0.1, math.nan), "ValueError: beta=nan / ≥ 0 / across domains"),
    (lambda: Hierarchy(()), "ValueError: weights=() / each level / try Hierarchy"),
    (lambda: Hierarchy((0.1, -1.0)), "ValueError: weights=-1 / ≥ 0 / one value per level"),
)
def test_targets_are_plans_without_empty_rows(mistake, expected):
    refused(mistake, expected)


@pytest.mark.parametrize("name", ["ince", "rince", "simclr", "byol"])
def test_columns_without_positive_are_negatives_where_columns_are_free(name):
    alone = gcalign.method(name, layout="cross")(Z, Z)
    among_more = gcalign.method(name, layout="cross")(Z, torch.cat([Z, -Z]), target=torch.eye(B, 2 * B))
    assert among_more >= alone


# --- methods and their options --------------------------------------------------------------------------------


@table(
    (lambda: gcalign.method("gca-uto"), "ValueError: 'gca-uto' is unknown / did you mean 'gca-uot'? / known: "),
    (lambda: gcalign.method("gca_ince"), "ValueError: 'gca_ince' is unknown / did you mean 'gca-ince'?"),
    (lambda: gcalign.method("zzzzzz"), "ValueError: 'zzzzzz' is unknown / known:  / simclr"),
    (lambda: gcalign.method(None), "ValueError: None is unknown / known: "),
    (lambda: gcalign.method("ince", esp=0.5), "TypeError: ince has no option 'esp' / did you mean 'eps'?"),
    (lambda: gcalign.method("gca-ince", iteratons=5), "TypeError: 'iteratons' / did you mean 'iterations'?"),
    (lambda: gcalign.functional.info_nce(Z, Z, esp=0.5), "TypeError: 'esp' / did you mean 'eps'?"),
    (lambda: gcalign.method("ince", q=0.5), "TypeError: ince has no option 'q' / known: "),
    (lambda: gcalign.method("ince", layout="crss"), "ValueError: layout='crss' / did you mean 'cross'?"),
    (lambda: gcalign.method("ince", gradient="implict"), "ValueError: gradient='implict' / did you mean 'implicit'?"),
    (lambda: gcalign.method("rince", scale="scor"), "ValueError: scale='scor' / did you mean 'score'?"),
    (lambda: gcalign.method("rince", scale=None), "ValueError: scale=None / known: kernel, score"),
    (lambda: gcalign.method("gca-ince", tol=-1e-3), "ValueError: tol=-0.001 / ≥ 0 / 0 never stops early"),
    (lambda: gcalign.method("gca-ince", tol=math.nan), "ValueError: tol=nan / ≥ 0"),
    (lambda: gcalign.method("gca-ince", iterations=0), "ValueError: iterations=0 / at least 1 / the paper uses"),
    (lambda: gcalign.method("gca-ince", iterations=2.5), "TypeError: iterations=2.5 / whole number"),
    (lambda: gcalign.method("gca-ince", block=0), "ValueError: block=0 / at least 1 / None stores it whole"),
    (lambda: gcalign.method("gca-ince", block=True), "TypeError: block=True / whole number"),
    (lambda: gcalign.method("gca-uot", relax=0.2), "ValueError: relax=0.2 / two penalties / (0.2, 0.2)"),
    (lambda: gcalign.method("gca-uot", relax=(1, 2, 3)), "ValueError: relax=(1, 2, 3) / two penalties"),
    (lambda: gcalign.method("gca-uot", relax=(0.2, 0.0)), "ValueError: penalty=0 / > 0 / inf is the hard"),
    (lambda: gcalign.method("gca-uot", relax=(math.nan, 0.2)), "ValueError: penalty=nan / > 0"),
    (lambda: gcalign.method("rince", q=0), "ValueError: q=0 / > 0 / InfoNCE"),
    (lambda: gcalign.method("rince", q=1.5), "ValueError: q=1.5 / (0, 1] / 1 is W₁"),
    (lambda: gcalign.method("rince", q=math.nan), "ValueError: q=nan / > 0"),
    (lambda: gcalign.method("rince", lam=-0.1), "ValueError: lam=-0.1 / ≥ 0 / the paper uses 0.01"),
    (lambda: gcalign.method("rince", lam=math.inf), "ValueError: lam=inf / finite"),
    (lambda: gcalign.method("gca-uot", w_kl=-1.0), "ValueError: weight=-1 / ≥ 0"),
    (lambda: gcalign.method("iot-uni", weight=math.nan), "ValueError: weight=nan / ≥ 0"),
    (
        lambda: gcalign.register("ince")(Identity),
        "ValueError: 'ince' is registered already / gcalign.methods / another name",
    ),
)
def test_options_are_checked_where_they_are_given(mistake, expected):
    refused(mistake, expected)


HAVE_EPS = {
    "Cosine": Cosine,
    "SquaredEuclidean": SquaredEuclidean,
    "LogKernel": lambda eps: LogKernel(torch.cdist, eps),
    "Entropic": Entropic,
    "Euclidean": Euclidean,
    "method": lambda eps: gcalign.method("clip", eps=eps),
}


@pytest.mark.parametrize("make", HAVE_EPS.values(), ids=HAVE_EPS)
@pytest.mark.parametrize("eps", [0, -1, math.nan, math.inf, -math.inf])
def test_eps_must_be_positive_and_finite(make, eps):
    refused(lambda: make(eps), f"ValueError: eps={eps:g} must be > 0 and finite / the paper uses 0.5")


@pytest.mark.parametrize("eps", ["0.5", None, True, torch.tensor(0.5)])
def test_eps_must_be_a_number(eps):
    refused(lambda: Cosine(eps), f"TypeError: eps={eps!r} must be a number / the paper uses 0.5")


# --- compositions ---------------------------------------------------------------------------------------------

HALF = torch.full((B,), 0.5)


@table(
    (lambda: Alignment(Cosine, (Rows(),), KL()), "TypeError: must be a Kernel or a callable / Cosine(0.5)"),
    (lambda: Alignment(0.5, (Rows(),), KL()), "TypeError: kernel=0.5 / try gcalign.Cosine(0.5)"),
    (
        lambda: Alignment(lambda x, y: x, (Rows(),), KL())(Z, Z),
        "ValueError: the kernel gave (4, 3) / must give log K of shape (4, 4)",
    ),
    (lambda: Alignment(lambda x, y: 1, (Rows(),), KL())(Z, Z), "ValueError: the kernel gave int / must give log K"),
    (lambda: Alignment(Cosine(), ("rows",), KL()), "TypeError: 'rows' is not a Constraint / gcalign.Rows()"),
    (lambda: Alignment(Cosine(), Rows(), KL()), "TypeError: Rows() / constraints=(gcalign.Rows(),"),
    (lambda: Alignment(Cosine(), (Rows,), KL()), "TypeError: is not a Constraint / gcalign.Rows()"),
    (lambda: Alignment(Cosine(), (Rows(),), KL), "TypeError: is not a Divergence / gcalign.KL()"),
    (
        lambda: Alignment(Cosine(), (Rows(),), KL(), geometry="entropic"),
        "TypeError: geometry='entropic' / gcalign.Entropic",
    ),
    (lambda: KL() + 1.0, "TypeError: unsupported operand"),
    (lambda: -1 * KL(), "ValueError: weight=-1 / ≥ 0"),
    (lambda: Rows(0.0), "ValueError: penalty=0 / > 0 / inf is the hard constraint"),
    (lambda: Columns(-0.2), "ValueError: penalty=-0.2 / > 0"),
    (lambda: Rows("hard"), "TypeError: penalty='hard' / must be a number / inf is the hard constraint"),
    (lambda: Relaxed(-1.0), "ValueError: lam=-1 / > 0 and finite"),
    (lambda: TotalVariation(0.0), "ValueError: lam=0 / > 0 and finite"),
    (lambda: Rows(mass=torch.tensor([1.0, -1.0])), "ValueError: mass= / positive / None follows the target"),
    (lambda: Rows(mass=EYE + 1), "ValueError: mass= / one positive number, or one for each"),
    (
        lambda: Alignment(Cosine(), (Rows(mass=torch.ones(3)),), KL())(Z, Z),
        "ValueError: 3 masses for a plan 4×4 / give 4",
    ),
    (
        lambda: Alignment(Cosine(), (Rows(mass=HALF), Columns()), KL())(Z, Z),
        "ValueError: rows must sum to 2 / columns must sum to 4 / one total, or relax one side",
    ),
    (
        lambda: Alignment(Cosine(), (Rows(Hard(), mass=1.0), Columns(Hard(), mass=3.0)), KL())(Z, Z),
        "ValueError: rows must sum to 4 / columns must sum to 12 / relax one side",
    ),
    (lambda: Capacity(0.0), "ValueError: bound=0.0 / > 0 / −∞"),
    (
        lambda: Alignment(Cosine(), (Rows(), Capacity(EYE + 1)), KL())(Z[:3], Z[:3]),
        "ValueError: bound of shape (4, 4) / (3, 3)",
    ),
    (
        lambda: Alignment(Cosine(), (BlockSums(),), KL())(Z, Z),
        "ValueError: a group for each of 4 rows, got none / rows= or domains=",
    ),
    (
        lambda: Alignment(Cosine(), (Rows(), BlockSums()), KL())(Z, Z, domains=[0, 0, 1, 1]),
        "ValueError: BlockSums / no mass / [0, 1] / give mass=",
    ),
    (
        lambda: Alignment(Cosine(), (Rows(0.2), NonNegative()), KL(), geometry=Euclidean())(Z, Z),
        "ValueError: Rows(penalty=0.2)",
    ),
    (
        lambda: Alignment(Cosine(), (Rows(), Columns()), SquaredL2(), gradient="envelope", iterations=99)(Z, -Z),
        "ValueError: gradient='envelope' would be wrong / no dual / 'implicit' or 'auto'",
    ),
    (
        lambda: gcalign.method("rince", gradient="envelope")(Z, Z),
        "ValueError: gradient='envelope' would be wrong / no dual",
    ),
    (
        lambda: Alignment(Cosine(), (Rows(),), KL() + Uniformity(), gradient="envelope")(Z, Z),
        "ValueError: gradient='envelope' would be wrong",
    ),
    (
        lambda: Alignment(Cosine(), (Rows(mass=HALF),), KL(), gradient="envelope")(Z, Z),
        "ValueError: gradient='envelope' would be wrong / marginals / 'implicit' or 'auto'",
    ),
    (
        lambda: Alignment(Cosine(), (Rows(), Capacity(0.9)), KL(), gradient="implicit")(Z, Z),
        "ValueError: gradient='implicit' / row and column marginals / 'unrolled'",
    ),
    (lambda: Robust(2.0, 0.1), "ValueError: q=2 / (0, 1]"),
    (lambda: Soft([[1.0]]), "ValueError: target=list / matrix [n, m]"),
)
def test_compositions_that_cannot_work_are_refused(mistake, expected):
    refused(mistake, expected)


# --- solve ----------------------------------------------------------------------------------------------------

ZERO = torch.zeros(3, 4)


def without(row=None, column=None):
    log_k = ZERO.clone()
    if row is not None:
        log_k[row] = -math.inf
    if column is not None:
        log_k[:, column] = -math.inf
    return log_k


@table(
    (lambda: gcalign.solve(torch.zeros(3)), "ValueError: log_k=(3,) / matrix [n, m] / −cost/eps"),
    (lambda: gcalign.solve([[0.0]]), "ValueError: log_k=list / matrix [n, m]"),
    (lambda: gcalign.solve(torch.zeros(3, 3, dtype=torch.long)), "ValueError: log_k / real matrix"),
    (lambda: gcalign.solve(torch.zeros(0, 3)), "ValueError: log_k=(0, 3)"),
    (lambda: gcalign.solve(ZERO / 0), "ValueError: NaN or +inf / −inf for a forbidden pair"),
    (lambda: gcalign.solve(ZERO + math.inf), "ValueError: NaN or +inf / −inf for a forbidden pair"),
    (lambda: gcalign.solve(without(row=1)), "ValueError: forbids a whole row or column / leave it out"),
    (lambda: gcalign.solve(without(column=2)), "ValueError: forbids a whole row or column / leave it out"),
    (lambda: gcalign.solve(ZERO, target=torch.eye(3)), "ValueError: target of shape (3, 3) must be (3, 4)"),
    (lambda: gcalign.solve(ZERO, target=ZERO - 1), "ValueError: target has a negative or non-finite entry / ≥ 0"),
    (lambda: gcalign.solve(ZERO, target=ZERO), "ValueError: target has no positive"),
    (lambda: gcalign.solve(ZERO, iterations=0), "ValueError: iterations=0 / at least 1"),
    (lambda: gcalign.solve(ZERO, tol=-1.0), "ValueError: tol=-1 / ≥ 0"),
    (lambda: gcalign.solve(ZERO, gradient="envelop"), "ValueError: did you mean 'envelope'?"),
    (lambda: gcalign.solve(ZERO, gradient="envelope"), "ValueError: gradient='envelope' would be wrong"),
    (
        lambda: gcalign.solve(ZERO, (Rows(mass=1.0), Columns(mass=1.0))),
        "ValueError: rows must sum to 3 / columns must sum to 4",
    ),
    (lambda: gcalign.solve(ZERO, ("rows",)), "TypeError: 'rows' is not a Constraint / gcalign.Rows()"),
    (lambda: gcalign.solve(ZERO, Rows()), "TypeError: Rows() / constraints=(gcalign.Rows(),"),
    (lambda: gcalign.solve(ZERO, geometry="entropic"), "TypeError: geometry='entropic' / gcalign.Entropic"),
    (lambda: gcalign.solve(ZERO, geometry=Entropic(torch.tensor(-1.0))), "ValueError: eps=-1 / > 0"),
    (
        lambda: gcalign.solve(ZERO, (BlockSums(torch.tensor([0, 0, 1]), torch.tensor([0, 0, 1, 1])),)),
        "ValueError: follows the target, and there is none / give mass=",
    ),
)
def test_solve_refuses_what_is_no_problem(mistake, expected):
    refused(mistake, expected)


# --- metrics --------------------------------------------------------------------------------------------------


@table(
    (lambda: gcalign.metrics.alignment(Z[0], Z[0]), "ValueError: z1 of shape (3,) / [n, D]"),
    (lambda: gcalign.metrics.alignment(Z, Z[:2]), "ValueError: (4, 3) / (2, 3) / pairs"),
    (lambda: gcalign.metrics.uniformity(Z[:1]), "ValueError: 1 embedding / at least 2"),
    (lambda: gcalign.metrics.uniformity(Z, t=-1.0), "ValueError: t=-1 / > 0 / 2 is the usual"),
    (lambda: gcalign.metrics.compactness(Z, torch.zeros(3)), "ValueError: labels of shape (3,) / (4,)"),
)
def test_metrics_check_their_arguments(mistake, expected):
    refused(mistake, expected)


def test_unknown_public_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="Cosin"):
        _ = gcalign.Cosin


@pytest.mark.parametrize("option", ["iterations", "block"])
def test_a_number_that_torch_cannot_hold_is_refused(option):
    with pytest.raises(ValueError, match=rf"{option}=9+ must be below 2\^63"):
        gcalign.method("gca-uot", **{option: 99999999999999999999})


def test_a_switch_is_true_or_false():
    for value in ("x", 1, -0.5, [1]):
        with pytest.raises(TypeError, match=r"learnable=.* must be True or False"):
            gcalign.method("clip", learnable=value)


def test_numpy_scalars_are_numbers(batch):
    z1, z2 = batch()
    for make in (np.float64, np.float32, np.float16):
        eps = make(0.5)
        assert torch.equal(gcalign.method("gca-ince", eps=eps)(z1, z2), gcalign.method("gca-ince", eps=0.5)(z1, z2))
        criterion = gcalign.method("gca-uot", eps=eps, relax=(eps, eps), iterations=np.int64(7), tol=make(0.0))
        assert torch.equal(
            criterion(z1, z2), gcalign.method("gca-uot", eps=0.5, relax=(0.5, 0.5), iterations=7, tol=0.0)(z1, z2)
        )
    assert repr(gcalign.Capacity(np.float32(0.5))) == repr(gcalign.Capacity(0.5))
    assert repr(gcalign.Rows(np.float64(0.2))) == "Rows(penalty=0.2)"
    gcalign.Blocks(np.float64(0.5), np.int32(0))
    pairs = torch.randn(2, 60, 8, generator=torch.Generator().manual_seed(0))
    audits = [gcalign.audit(*pairs, seed=seed) for seed in (3, np.int64(3))]
    assert torch.equal(audits[0].suspicion, audits[1].suspicion)
    with pytest.raises(TypeError, match="must be a number"):
        gcalign.method("gca-ince", eps=np.bool_(True))
