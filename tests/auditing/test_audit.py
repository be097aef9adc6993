"""`gcalign.audit`: the scores agree with plain loops, POT and numpy; shares and thresholds hold on data made for it."""

from __future__ import annotations

import dataclasses
import importlib
import math

import numpy as np
import ot
import pytest
import torch

import gcalign
from gcalign.auditing import calibration, plans
from gcalign.auditing.embeddings import Embeddings, Pairs, nearest
from gcalign.auditing.fits import Neighbours, best_others, cosine, csls, softmax
from gcalign.auditing.plans import plan, solved


def made(n=300, d=12, wrong=0, noise=0.4, seed=0, dtype=torch.float64):
    """Paired Gaussians; the first `wrong` pairs are shuffled among themselves."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(n, d, generator=generator, dtype=dtype)
    b = a + noise * torch.randn(n, d, generator=generator, dtype=dtype)
    b[:wrong] = b[:wrong].roll(1, 0)
    return a, b


def sides(a, b):
    return Embeddings("a", a, torch.float64), Embeddings("b", b, torch.float64)


def unit(x):
    return x.numpy() / np.linalg.norm(x.numpy(), axis=1, keepdims=True)


def everywhere(n):
    i, j = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    return i.flatten(), j.flatten()


# --- scores -----------------------------------------------------------------------------------------------------


def test_the_plan_is_pots():
    a, b = made(40)
    s = torch.from_numpy(unit(a) @ unit(b).T)
    for eps in (0.1, 0.3):
        f, g = solved(s, eps, tol=1e-10)
        log_p = s / eps + f[:, None] + g
        masses = np.full(40, 1 / 40)
        theirs = 40 * ot.sinkhorn(
            masses, masses, 1 - s.numpy(), eps, method="sinkhorn_log", stopThr=1e-10, numItermax=20_000
        )
        np.testing.assert_allclose(log_p.exp().numpy(), theirs, rtol=1e-6, atol=1e-12)


def test_the_relaxed_plan_is_pots():
    a, b = made(30)
    s = torch.from_numpy(unit(a) @ unit(b).T)
    f, g = solved(s, 0.1, relax=0.4, tol=1e-10)
    ones = np.ones(30)
    theirs = ot.unbalanced.sinkhorn_unbalanced(ones, ones, 1 - s.numpy(), 0.1, 0.4, stopThr=1e-13, numItermax=20_000)
    # POT's entropy is relative to the product of the masses, which are 1 here
    np.testing.assert_allclose((s / 0.1 + f[:, None] + g).exp().numpy(), theirs, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("relax", [math.inf, 0.5])
def test_passes_over_all_pairs_reach_the_plan_of_all_pairs(relax, monkeypatch):
    a, b = made(120)
    monkeypatch.setattr("gcalign.auditing.embeddings.ENTRIES", 120 * 7)  # blocks of 7 rows
    monkeypatch.setattr(plans, "TOL", 1e-10)
    x, y = sides(a, b)
    s = torch.from_numpy(unit(a) @ unit(b).T)
    f, g = solved(s, 0.2, relax, tol=1e-10)
    options = {"batch": 30, "generator": torch.Generator().manual_seed(1), "progress": False}
    fit, best = plan(x, y, 0.2, relax, passes=60, **options)
    whole = s / 0.2 + f[:, None] + g
    # the balanced plan fixes f and g up to a constant that cancels in their sum
    torch.testing.assert_close(fit.f[:, None] + fit.g, f[:, None] + g, rtol=1e-6, atol=1e-6)
    whole.fill_diagonal_(-math.inf)
    assert torch.equal(best, whole.argmax(1))


def test_batches_are_plans_of_their_own():
    a, b = made(40)
    x, y = sides(a, b)
    fit, best = plan(
        x, y, 0.2, math.inf, batch=20, passes=0, generator=torch.Generator().manual_seed(3), progress=False
    )
    for part in torch.randperm(40, generator=torch.Generator().manual_seed(3)).chunk(2):
        s = torch.from_numpy(unit(a)[part] @ unit(b)[part].T)
        f, g = solved(s, 0.2)
        torch.testing.assert_close(fit.f[part], f)
        torch.testing.assert_close(fit.g[part], g)
        log_p = (s / 0.2 + f[:, None] + g).fill_diagonal_(-math.inf)
        assert torch.equal(best[part], part[log_p.argmax(1)])


def test_csls_is_two_cosines_less_the_means_of_ten_neighbours(monkeypatch):
    a, b = made(50)
    monkeypatch.setattr("gcalign.auditing.embeddings.ENTRIES", 50 * 8)
    s = unit(a) @ unit(b).T
    pairs = Pairs.of(*sides(a, b), *everywhere(50))
    found = csls(*sides(a, b)).of(pairs).view(50, 50).numpy()
    for i in range(0, 50, 7):
        for j in range(0, 50, 5):
            row, column = np.sort(s[i])[-10:].mean(), np.sort(s[:, j])[-10:].mean()
            assert found[i, j] == pytest.approx(2 * s[i, j] - row - column, abs=1e-12)


def test_softmax_is_the_product_of_both_probabilities(monkeypatch):
    a, b = made(30)
    monkeypatch.setattr("gcalign.auditing.embeddings.ENTRIES", 30 * 4)
    s = unit(a) @ unit(b).T / 0.1
    found = softmax(*sides(a, b), 0.1).of(Pairs.of(*sides(a, b), *everywhere(30))).view(30, 30).numpy()
    for i in range(30):
        for j in range(30):
            rows = math.exp(s[i, j]) / sum(math.exp(v) for v in s[i])
            columns = math.exp(s[i, j]) / sum(math.exp(v) for v in s[:, j])
            assert found[i, j] == pytest.approx(math.log(rows * columns), abs=1e-9)


@pytest.mark.parametrize("kept", [4096, 0])
def test_neighbours_are_those_of_lemon(kept, monkeypatch):
    monkeypatch.setattr("gcalign.auditing.fits.LOOKED_UP", kept)
    a, b = made(60, wrong=10)
    x, y = unit(a), unit(b)
    i, j = torch.arange(60), torch.arange(60).roll(3)
    found = Neighbours(*sides(a, b), k=7).of(Pairs.of(*sides(a, b), i, j)).numpy()

    def side(u, v, p, q):  # of the item u_p; its partner is v_q
        order = [m for m in np.argsort(-(u @ u[p])) if m != p][:7]
        terms = [
            (1 - v[q] @ v[m]) * math.exp(-0.1 * (1 - u[p] @ u[m])) * math.exp(-5 * (1 - x[m] @ y[m])) for m in order
        ]
        return sum(terms) / 7

    for p, q, value in zip(i.tolist(), j.tolist(), found.tolist(), strict=True):
        expected = 1 - x[p] @ y[q] + 5 * side(x, y, p, q) + 5 * side(y, x, q, p)
        assert value == pytest.approx(-expected, abs=1e-10)


def test_the_best_other_is_never_the_pair_itself():
    a, b = made(50, noise=0.0)
    fit = cosine(*sides(a, b))
    s = unit(a) @ unit(b).T
    np.fill_diagonal(s, -9)
    assert best_others(fit).tolist() == s.argmax(1).tolist()


def test_near_misses_leave_copies_out():
    a, _ = made(20)
    x = Embeddings("a", torch.cat([a, 3 * a]), torch.float64)
    everyone = torch.arange(40)
    near = nearest(x, everyone, 3, everyone)
    assert not (near % 20 == (everyone % 20)[:, None]).any()


# --- what is expected of the pairs ------------------------------------------------------------------------------


def test_p_values_count_the_null():
    null = torch.tensor([0.0, 1.0, 2.0, 3.0])
    fit = torch.tensor([-1.0, 1.0, 2.5, 9.0])
    assert calibration.p_values(fit, null).tolist() == [(1 + sum(n >= f for n in null)) / 5 for f in fit]


def test_separation_is_the_area_under_the_roc_curve():
    from sklearn.metrics import roc_auc_score

    generator = torch.Generator().manual_seed(0)
    fit, null = torch.randn(80, generator=generator).round(decimals=1) + 0.5, torch.randn(120, generator=generator)
    null = null.round(decimals=1)
    labels = [1] * 80 + [0] * 120
    assert calibration.separation(fit, null) == pytest.approx(roc_auc_score(labels, torch.cat([fit, null])), abs=1e-12)


def test_decreasing_is_scikit_learns_isotonic_regression():
    from sklearn.isotonic import IsotonicRegression

    rng = np.random.default_rng(0)
    values, weights = rng.random(50), rng.random(50)
    theirs = IsotonicRegression(increasing=False).fit(np.arange(50), values, weights).predict(np.arange(50))
    np.testing.assert_allclose(calibration._decreasing(values.tolist(), weights.tolist()), theirs, atol=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 1.0])
def test_the_share_of_uniform_p_values_is_found(share):
    generator = torch.Generator().manual_seed(1)
    n = 4000
    wrong = int(share * n)
    null = torch.randn(20_000, generator=generator, dtype=torch.float64)
    fit = torch.randn(n, generator=generator, dtype=torch.float64)
    fit[wrong:] += 3
    found = calibration.calibrated(fit, null)
    assert found.share == pytest.approx(share, abs=0.035)
    if 0 < share < 1:
        # two Gaussians three apart: the AUROC is Φ(3/√2), and the posterior follows from Bayes
        assert found.auroc == pytest.approx(0.983, abs=0.015)
        posterior = share / (share + (1 - share) * torch.exp(3 * fit - 4.5))
        assert float((found.probability - posterior).abs().mean()) < 0.04
        flagged = found.probability >= 0.5
        precision = float((torch.arange(n) < wrong)[flagged].double().mean())
        assert float(found.probability[flagged].mean()) == pytest.approx(precision, abs=0.08)


# --- the whole ----------------------------------------------------------------------------------------------------


def test_shuffled_pairs_come_first_and_are_counted():
    a, b = made(1500, wrong=300, dtype=torch.float32)
    found = gcalign.audit(a, b)
    wrong = torch.arange(1500) < 300
    assert calibration.separation(found.suspicion[wrong], found.suspicion[~wrong]) > 0.995
    assert found.share == pytest.approx(0.2, abs=0.03)
    assert found.share_at_most >= found.share
    assert found.auroc > 0.99
    assert float(wrong[found.flagged].double().mean()) == pytest.approx(found.precision, abs=0.05)
    assert float(found.flagged[wrong].double().mean()) > 0.9
    # the right partner of a shuffled item is the next one
    right = found.other[:299] == torch.arange(1, 300)
    assert float(right.double().mean()) > 0.9
    torch.testing.assert_close(found.similarity, torch.cosine_similarity(a, b), atol=1e-5, rtol=0)
    chosen = torch.cosine_similarity(a, b[found.other])
    torch.testing.assert_close(found.other_similarity, chosen, atol=1e-5, rtol=0)


def test_a_hub_does_not_hide_a_mismatch():
    """An item that is similar to everything fits nobody in particular: the plan sees it, the cosine does not."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(400, 16, generator=generator) + 1.0
    b = a + 0.8 * torch.randn(400, 16, generator=generator)
    hubs = torch.arange(0, 400, 40)
    b[hubs] = 1.0 + 0.05 * torch.randn(10, 16, generator=generator)
    wrong = torch.zeros(400, dtype=torch.bool)
    wrong[hubs] = True
    plan_, plain = gcalign.audit(a, b), gcalign.audit(a, b, score="cosine")
    told = [calibration.separation(x.suspicion[wrong], x.suspicion[~wrong]) for x in (plan_, plain)]
    assert told[0] > 0.9 > told[1]


@pytest.mark.parametrize("score", ["plan", "cosine", "csls", "softmax", "neighbours"])
def test_every_score_takes_arrays_and_tensors_alike(score):
    a, b = made(80, wrong=10)
    first = gcalign.audit(a, b, score=score)
    second = gcalign.audit(a.numpy(), b.float(), score=score)
    torch.testing.assert_close(first.suspicion, second.suspicion, atol=1e-3, rtol=1e-3)
    assert first.score == score


def test_length_of_an_embedding_does_not_matter():
    a, b = made(100, wrong=10)
    first, second = gcalign.audit(a, b), gcalign.audit(5 * a, b * torch.arange(1, 101)[:, None])
    torch.testing.assert_close(first.suspicion, second.suspicion, atol=1e-3, rtol=1e-3)


def test_the_same_seed_gives_the_same_audit():
    a, b = made(200, wrong=30)
    first, second = gcalign.audit(a, b, batch=60, passes=2), gcalign.audit(a, b, batch=60, passes=2)
    assert torch.equal(first.suspicion, second.suspicion)
    assert first.share == second.share


def test_folds_are_audited_apart_and_ranked_together():
    """Each fold has a space of its own: a rotation that only it knows."""
    a, b = made(600, wrong=60, dtype=torch.float32)
    folds = torch.arange(600) % 3
    turned = a.clone(), b.clone()
    for k in range(3):
        q = torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(k))).Q
        for x in turned:
            x[folds == k] = x[folds == k] @ q
    found = gcalign.audit(*turned, folds=folds)
    wrong = torch.arange(600) < 60
    assert calibration.separation(found.suspicion[wrong], found.suspicion[~wrong]) > 0.99
    assert (folds[found.other] == folds).all()
    assert found.settings["folds"] == 3
    spread = 1 / math.sqrt(12)  # of the cosine of two random directions
    alone = gcalign.audit(a[folds == 1], b[folds == 1], eps=found.settings["eps"])
    assert found.settings["eps"] == pytest.approx(0.06 * spread, rel=0.05)
    assert torch.corrcoef(torch.stack([found.suspicion[folds == 1], alone.suspicion]))[0, 1] > 0.999
    assert float((found.probability[folds == 1] - alone.probability).abs().mean()) < 0.02


def test_folds_that_are_too_small_or_of_another_length_are_refused():
    a, b = made(30)
    with pytest.raises(ValueError, match=r"folds of shape \(29,\).* must be \[30\]"):
        gcalign.audit(a, b, folds=torch.zeros(29, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"fold 1 has 5 pairs.*use fewer folds"):
        gcalign.audit(a, b, folds=(torch.arange(30) >= 25).long())


def test_arrays_on_disk_are_audited_where_they_are(tmp_path, monkeypatch):
    a, b = made(150, wrong=20, dtype=torch.float32)
    for name, x in (("a", a), ("b", b)):
        np.save(tmp_path / f"{name}.npy", x.numpy())
    on_disk = [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "ab"]
    expected = gcalign.audit(a, b)
    monkeypatch.setattr("gcalign.auditing.embeddings.KEPT", 0)
    found = gcalign.audit(*on_disk)
    torch.testing.assert_close(found.suspicion, expected.suspicion, atol=1e-4, rtol=1e-4)


def test_batches_and_passes_follow_from_the_number_of_pairs():
    assert plans.sizes(5000, None, None) == (5000, 0)
    assert plans.sizes(100_000, None, None) == (4096, 2)
    assert plans.sizes(1_000_000, None, None) == (16_384, 0)
    assert plans.sizes(1_000_000, None, 1) == (4096, 1)
    assert plans.sizes(100, 1000, 0) == (100, 0)


def test_the_table_is_a_ranking_that_pandas_reads():
    pandas = pytest.importorskip("pandas")
    a, b = made(120, wrong=20)
    found = gcalign.audit(a, b)
    frame = pandas.DataFrame(found.table())
    assert list(frame["pair"]) == found.ranking.tolist()
    assert frame["suspicion"].is_monotonic_decreasing
    assert frame["expected_precision"][9] == pytest.approx(found.precision_at(10))
    assert frame["expected_precision"].iloc[-1] == pytest.approx(found.probability.mean().item(), abs=1e-6)
    assert int(frame["flagged"].sum()) == found.summary()["flagged"]


def test_weights_go_into_a_criterion():
    a, b = made(64, wrong=8, dtype=torch.float32)
    weights = gcalign.audit(a, b).weights
    assert float(weights.max()) <= 1
    assert gcalign.method("gca-ince")(a, b, weights=weights).isfinite()
    surely_wrong = dataclasses.replace(gcalign.audit(a, b), probability=torch.ones(64))
    assert surely_wrong.weights.tolist() == pytest.approx([1e-3] * 64)  # a criterion refuses 0


def test_near_misses_are_in_the_larger_of_the_two_shares():
    """Half of the pairs are exchanged within clusters of ten: they fit far better than random ones."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(40, 12, generator=generator).repeat_interleave(10, 0)
    a = a + 0.3 * torch.randn(400, 12, generator=generator)
    b = a + 0.1 * torch.randn(400, 12, generator=generator)
    b[:200] = b[:200].view(20, 10, 12).roll(1, 1).reshape(200, 12)
    found = gcalign.audit(a, b)
    assert found.share < 0.1
    assert found.share_at_most == pytest.approx(0.5, abs=0.1)


def test_it_prints_its_summary_and_the_worst_pairs():
    a, b = made(120, wrong=20)
    found = gcalign.audit(a, b)
    text = str(found)
    assert f"expected share of mismatches: {found.share:.1%}" in text
    assert text.splitlines()[-5].split()[0] == str(int(found.ranking[0]))
    clean = gcalign.audit(*made(400, noise=0.05))
    assert clean.threshold == math.inf
    assert math.isnan(clean.precision)
    assert "no pair is more likely wrong than right" in str(clean)
    assert clean.summary()["threshold"] is None


def test_the_public_name_is_the_function_whatever_was_imported_before():
    importlib.import_module("gcalign.auditing.pairs")
    assert callable(gcalign.audit)
    assert gcalign.audit.__name__ == "audit"


# --- bad input -----------------------------------------------------------------------------------------------------


def _bad():
    a, b = made(30)
    broken = b.clone()
    broken[7, 3] = math.nan
    empty = b.clone()
    empty[4] = 0
    return [
        (a, b[:29], ValueError, "a has 30 rows and b has 29.*give arrays of the same length"),
        (a, b[:, :5], ValueError, "a has 12 columns and b has 5"),
        (a, broken, ValueError, r"b\[7\] has values that are not finite.*leave"),
        (empty, b, ValueError, r"a\[4\] is zero.*leave its pair out"),
        (a[:9], b[:9], ValueError, "there are 9 pairs.*at least 10"),
        (a[:, 0], b, ValueError, r"a of shape \(30,\) must be"),
        (a[:, :0], b[:, :0], ValueError, "not empty"),
        (a.tolist(), b, TypeError, "a of type list must be a tensor or an array"),
        (a.to(torch.complex64), b, TypeError, "must hold real numbers"),
        (np.array([["x", "y"]] * 30), b, TypeError, "must hold real numbers"),
        (np.array([[None, "y"]] * 30), b, TypeError, "must hold real numbers"),
        (torch.ones(30, 4), torch.ones(30, 4), ValueError, "all embeddings point the same way"),
    ]


@pytest.mark.parametrize("case", range(12))
def test_bad_embeddings_are_refused_with_the_row_and_a_remedy(case):
    a, b, error, words = _bad()[case]
    with pytest.raises(error, match=words):
        gcalign.audit(a, b)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"score": "plam"}, "did you mean 'plan'"),
        ({"eps": -1.0}, "eps=-1 must be > 0"),
        ({"relax": 0.0}, "relax=0 must be > 0"),
        ({"batch": 3}, "batch=3 must be at least 10"),
        ({"passes": -1}, "passes=-1 must be at least 0"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        gcalign.audit(*made(30), **options)
