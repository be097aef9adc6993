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
from gcalign.auditing import calibration, pairs, plans
from gcalign.auditing.embeddings import Embeddings, Pairs, nearest
from gcalign.auditing.fits import Neighbours, best_others, cosine, csls, margins, softmax
from gcalign.auditing.nulls import p_values
from gcalign.auditing.plans import chosen_eps, conditional, plan, solved


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


def conditionals(s, eps):
    """√(P(b | a) P(a | b)) of the whole relaxed plan, from its rows and columns."""
    f, g = solved(s, eps, tol=1e-10)
    p = ((s - 1) / eps + f[:, None] + g).exp()
    return p / (p.sum(1, keepdim=True) * p.sum(0)).sqrt()


def test_the_plan_is_pots():
    a, b = made(30)
    s = torch.from_numpy(unit(a) @ unit(b).T)
    for eps in (0.1, 0.3):
        f, g = solved(s, eps, tol=1e-10)
        ones = np.ones(30)
        theirs = ot.unbalanced.sinkhorn_unbalanced(
            ones, ones, 1 - s.numpy(), eps, plans.RELAX * eps, stopThr=1e-13, numItermax=20_000
        )
        # POT's entropy is relative to the product of the masses, which are 1 here
        np.testing.assert_allclose(((s - 1) / eps + f[:, None] + g).exp().numpy(), theirs, rtol=1e-6, atol=1e-12)


def test_the_score_is_the_conditional_probability_in_both_directions():
    a, b = made(30)
    s = torch.from_numpy(unit(a) @ unit(b).T)
    f, g = (conditional(x, 0.1) for x in solved(s, 0.1, tol=1e-10))
    torch.testing.assert_close((s / 0.1 + f[:, None] + g).exp(), conditionals(s, 0.1), rtol=1e-6, atol=1e-12)


def test_the_suspicion_is_the_mean_of_two_plans_in_units_of_the_cosine():
    a, b = made(30)
    s = torch.from_numpy(unit(a) @ unit(b).T)
    expected = -(0.2 * conditionals(s, 0.2).diag().log() + 0.1 * conditionals(s, 0.1).diag().log()) / 2 / 0.2
    torch.testing.assert_close(gcalign.audit(a, b, eps=0.2).suspicion.double(), expected, rtol=1e-2, atol=1e-2)


def test_passes_over_all_pairs_reach_the_plan_of_all_pairs(monkeypatch):
    a, b = made(120)
    monkeypatch.setattr("gcalign.auditing.embeddings.ENTRIES", 120 * 7)  # blocks of 7 rows
    monkeypatch.setattr(plans, "TOL", 1e-10)
    x, y = sides(a, b)
    s = torch.from_numpy(unit(a) @ unit(b).T)
    whole = conditionals(s, 0.2)
    options = {"batch": 30, "generator": torch.Generator().manual_seed(1), "progress": False}
    fit, best = plan(x, y, 0.2, passes=60, **options)
    torch.testing.assert_close((s / 0.2 + fit.f[:, None] + fit.g).exp(), whole, rtol=1e-5, atol=1e-9)
    p = s / 0.2 + solved(s, 0.2, tol=1e-10)[1]
    assert torch.equal(best, p.fill_diagonal_(-math.inf).argmax(1))


@pytest.mark.parametrize(("batch", "passes", "rtol"), [(60, 0, 1e-2), (20, 80, 1e-5)])
def test_copies_count_as_one_item_and_share_its_mass(batch, passes, rtol):
    a, b = made(40)
    at_a, at_b = np.arange(60) % 40, np.where(np.arange(60) < 40, np.arange(60), 3)  # b_3 occurs 21 times
    s = torch.from_numpy(unit(a) @ unit(b).T)
    expected = conditionals(s, 0.2)[at_a][:, at_b] / torch.tensor(np.bincount(at_a)[at_a][:, None]).sqrt()
    expected = expected / torch.tensor(np.bincount(at_b, minlength=40)[at_b]).sqrt()
    x, y = sides(a[at_a], b[at_b])
    generator = torch.Generator().manual_seed(1)
    fit, _ = plan(x, y, 0.2, batch=batch, passes=passes, generator=generator, progress=False)
    found = (s[at_a][:, at_b] / 0.2 + fit.f[:, None] + fit.g).exp()
    torch.testing.assert_close(found, expected, rtol=rtol, atol=1e-9)


def test_batches_are_plans_of_their_own():
    a, b = made(40)
    x, y = sides(a, b)
    fit, best = plan(x, y, 0.2, batch=20, passes=0, generator=torch.Generator().manual_seed(3), progress=False)
    for part in torch.randperm(40, generator=torch.Generator().manual_seed(3)).chunk(2):
        s = torch.from_numpy(unit(a)[part] @ unit(b)[part].T)
        f, g = (conditional(z, 0.2) for z in solved(s, 0.2))
        torch.testing.assert_close(fit.f[part], f)
        torch.testing.assert_close(fit.g[part], g)
        log_p = (s / 0.2 + solved(s, 0.2)[1]).fill_diagonal_(-math.inf)
        assert torch.equal(best[part], part[log_p.argmax(1)])


def test_eps_grows_with_the_noise_of_the_pairs_and_not_with_mismatches():
    eps = [chosen_eps([sides(*made(300, noise=noise))]) for noise in (0.2, 0.8)]
    assert eps[0] < eps[1] / 2
    wrong = chosen_eps([sides(*made(300, noise=0.8, wrong=120))])
    assert wrong == pytest.approx(eps[1], rel=0.6)  # one step of the grid


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


def test_a_margin_is_the_cosine_less_the_means_of_four_others_of_both_items():
    a, b = made(30)
    s = unit(a) @ unit(b).T
    found = margins(*sides(a, b), 30, torch.Generator().manual_seed(0))
    for i in range(30):
        row, column = (np.sort(np.delete(x, i))[-4:].mean() for x in (s[i], s[:, i]))
        assert float(found[i]) == pytest.approx(s[i, i] - (row + column) / 2, abs=1e-12)


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


def test_p_values_count_random_partners_that_fit_better_and_no_copies():
    a, b = made(25, wrong=6)
    b[20:] = b[3]
    x, y = sides(a, b)
    own = Pairs.of(x, y, torch.arange(25), torch.arange(25)).cosine
    found = p_values(x, y, own, torch.Generator().manual_seed(0))  # 24 shifts: every other item once
    s = unit(a) @ unit(b).T
    s = s - s.mean(1, keepdims=True) - s.mean(0)  # beyond what an item has with all others
    for i in range(25):
        for side, others in enumerate((np.delete(s[i], i), np.delete(s[:, i], i))):
            others = others[abs(others - s[i, i]) > 1e-6]
            expected = ((others > s[i, i]).sum() + 0.5) / (len(others) + 1)
            assert float(found[side][i]) == pytest.approx(expected, abs=1e-12)


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
    null = torch.randn(20_000, generator=generator, dtype=torch.float64).sort().values
    fit = torch.randn(n, generator=generator, dtype=torch.float64)
    fit[wrong:] += 4
    p = 1 - torch.searchsorted(null, fit) / 20_001
    found, probability = calibration.fitting_at_random(p)
    assert found == pytest.approx(share, abs=0.02)
    if 0 < share < 1:  # two Gaussians four apart: the posterior follows from Bayes
        posterior = share / (share + (1 - share) * torch.exp(4 * fit - 8))
        assert float((probability - posterior).abs().mean()) < 0.02


def test_a_tail_of_right_pairs_is_not_taken_for_random_ones():
    """Right translations of rare words fit no better than random ones: 5 in 1,000 in Finnish."""
    u = torch.rand(4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    shuffled = torch.where(torch.arange(4000) < 800, u, 1e-3 * u)
    assert calibration.without_tail(shuffled) > 0.95
    assert calibration.without_tail((0.01 / u).clamp(max=1)) < calibration.GAP  # falls like 1/p²
    assert calibration.without_tail(1e-3 * u) == 0  # none fits at random


def test_the_share_is_not_biased():
    """It was the smallest of ten estimates: 0.077 for 0.10 of 500."""
    shares = []
    for seed in range(60):
        p = torch.rand(500, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        p[50:] /= 50
        shares.append(calibration.share_of(p))
    assert np.mean(shares) == pytest.approx(0.1, abs=0.006)


def test_exchanges_with_neighbours_have_the_share_of_largest_likelihood():
    generator = torch.Generator().manual_seed(0)
    own = torch.rand(400, 1, generator=generator, dtype=torch.float64)
    near = (1 - own)[:, :, None]
    weight = torch.ones(400)
    found, gain = calibration.exchanged_with_neighbours(own, near, weight)
    grid = torch.linspace(0, 1, 2001, dtype=torch.float64)
    likelihood = ((1 - grid) * own + grid * near[:, 0]).log().sum(0)
    best = grid[likelihood.argmax()]
    assert float(found.mean()) == pytest.approx(float(best), abs=2e-3)
    assert gain == pytest.approx(float(likelihood.max() - likelihood[0]), abs=1e-3)


def test_probabilities_that_grow_with_suspicion_are_scikit_learns():
    from sklearn.isotonic import IsotonicRegression

    generator = torch.Generator().manual_seed(0)
    suspicion = torch.randn(200, generator=generator).round(decimals=1)
    raw = torch.sigmoid(suspicion + torch.randn(200, generator=generator))
    theirs = IsotonicRegression().fit_transform(suspicion.double().numpy(), raw.double().numpy())
    np.testing.assert_allclose(calibration.monotone(raw, suspicion).numpy(), theirs, atol=1e-5)


def test_the_expected_auroc_is_that_of_labels_drawn_from_the_probabilities():
    from sklearn.metrics import roc_auc_score

    generator = torch.Generator().manual_seed(0)
    suspicion = torch.randn(20_000, generator=generator)
    probability = torch.sigmoid(2 * suspicion)
    labels = torch.rand(20_000, generator=generator) < probability
    expected = calibration.expected_auroc(probability, suspicion)
    assert expected == pytest.approx(roc_auc_score(labels, suspicion), abs=0.01)


# --- real mistakes are not shuffles: each figure here was wrong when the null was random pairs alone ---------------


def near_swaps(a, b, wrong):
    """Exchange `wrong` of b with the nearest that is not yet exchanged."""
    s = torch.from_numpy(unit(b) @ unit(b).T).fill_diagonal_(-2)
    moved = torch.zeros(len(b), dtype=torch.bool)
    for i in range(len(b)):
        if not moved[i] and moved.sum() < wrong:
            j = int(torch.where(moved, -2, s[i]).argmax())
            b[[i, j]] = b[[j, i]]
            moved[[i, j]] = True
    return moved


def mistakes(kind, n=400, share=0.3):
    a, b = made(2 * n, noise=0.5, d=16, dtype=torch.float32)
    m = round(share * n)
    wrong = torch.arange(n) < m
    if kind == "one text for many images":
        b[:m] = b[n - 1].clone()
    elif kind == "one image for many texts":
        a[:m] = a[n - 1].clone()
    elif kind == "missing partners":
        b[:m] = b[n : n + m]
    elif kind == "shifted by a line":
        b[:m] = b[:m].roll(1, 0)
    a, b = a[:n], b[:n]
    return a, b, near_swaps(a, b, m) if kind == "nearest exchanged" else wrong


KINDS = (
    "one text for many images",
    "one image for many texts",
    "missing partners",
    "shifted by a line",
    "nearest exchanged",
)


@pytest.mark.parametrize("share", [0.1, 0.6])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_mistake_is_counted_and_flagged(kind, share):
    a, b, wrong = mistakes(kind, share=share)
    found = gcalign.audit(a, b)
    assert not found.warnings
    assert found.share_at_least <= share <= found.share_at_most
    assert found.share == pytest.approx(share, abs=0.06 if kind != "nearest exchanged" else 0.2)
    assert calibration.separation(found.suspicion[wrong], found.suspicion[~wrong]) > 0.95
    assert float(found.flagged[wrong].double().mean()) > 0.5
    assert float(wrong[found.flagged].double().mean()) > found.precision - 0.1
    assert 0.5 <= found.auroc <= 1
    assert bool((found.probability[found.ranking].diff() <= 0).all())


def hub_for_many(side, n=600):
    """One item of a side, similar to everything, is the partner of 60 % of the items of the other."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(15, 8, generator=generator)[torch.randint(15, (n,), generator=generator)]
    a = a + 0.5 * torch.randn(n, 8, generator=generator)
    b = a + 0.3 * torch.randn(n, 8, generator=generator)
    both = [a, b]
    both[side][:360] = torch.nn.functional.normalize(both[1 - side], dim=1).mean(0)
    return both


def fitting_at_random(a, b):
    return pairs.Paired.of(Embeddings("a", a), Embeddings("b", b), torch.Generator().manual_seed(0)).share


@pytest.mark.parametrize("side", [0, 1])
def test_a_hub_for_many_items_is_counted(side):
    a, b = hub_for_many(side)
    assert fitting_at_random(a, b) == pytest.approx(0.6, abs=0.04)
    assert gcalign.audit(a, b).share == pytest.approx(0.6, abs=0.04)


@pytest.mark.parametrize("side", [0, 1])
def test_p_values_of_one_side_alone_would_be_noticed(side, monkeypatch):
    """A mutation of the audit: the null of one side only counts hubs of the other wrongly."""
    both = pairs.p_values
    monkeypatch.setattr(pairs, "p_values", lambda *args: (both(*args)[side],) * 2)
    assert fitting_at_random(*hub_for_many(1 - side)) != pytest.approx(0.6, abs=0.04)


@pytest.mark.parametrize("d", [2, 8, 64])
def test_nothing_is_flagged_where_nothing_is_wrong(d):
    found = gcalign.audit(*made(500, d=d, noise=0.05 * d**0.5))
    assert float(found.flagged.double().mean()) <= 0.005
    assert found.share_at_least == 0
    assert found.share < 0.01
    assert 0.5 <= found.auroc <= 1


# --- it says no ---------------------------------------------------------------------------------------------------


def says(found, words):
    """No flags, and a warning with value, rule and remedy."""
    text = "\n".join(found.warnings)
    assert all(word in text for word in words), text
    assert not found.flagged.any()
    assert found.share_at_least == 0
    assert found.share_at_most == 1
    assert found.summary()["share"] is None
    assert found.threshold == math.inf
    assert f"cannot tell which pairs are wrong: {found.warnings[0]}" in str(found)
    assert 0.5 <= found.auroc <= 1
    assert float(found.weights.min()) == 1


def test_spaces_that_do_not_belong_together_are_noticed():
    """97.6 % of the pairs were "wrong", with an expected precision of 0.97."""
    a, b = made(400)
    turned = b @ torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(5), dtype=b.dtype)).Q
    says(gcalign.audit(a, turned, fit="never"), ("must be clearly below 50 %", "one space"))
    learnt = gcalign.audit(a, turned)  # encoders are trained, and map both sides into one space
    assert not learnt.warnings
    assert "encoders" in learnt.settings
    assert learnt.share < 0.05


def test_views_of_one_image_are_not_audited():
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(16, generator=generator)
    a, b = (image + 0.1 * torch.randn(300, 16, generator=generator) for _ in range(2))
    says(gcalign.audit(a, b), ("agree no better than chance",))


def test_few_pairs_are_ranked_and_not_judged():
    a, b = made(40, wrong=4)
    found = gcalign.audit(a, b)
    says(found, ("there are 40 pairs", "at least 50"))
    assert set(found.ranking[:4].tolist()) == {0, 1, 2, 3}


def test_one_item_on_all_pairs_is_noticed():
    a, b = made(300)
    b[:295] = b[0].clone()
    says(gcalign.audit(a, b), ("b has 6 different items in 300 pairs", "leave repeated items out"))


def test_a_fold_that_cannot_be_judged_says_so_for_all():
    a, b = made(200)
    says(gcalign.audit(a, b, folds=(torch.arange(200) >= 160).long()), ("40 pairs in a fold and 200 in all",))


# --- the whole ----------------------------------------------------------------------------------------------------


def test_shuffled_pairs_come_first_and_are_counted():
    a, b = made(1500, wrong=300, dtype=torch.float32)
    found = gcalign.audit(a, b)
    wrong = torch.arange(1500) < 300
    assert calibration.separation(found.suspicion[wrong], found.suspicion[~wrong]) > 0.995
    assert found.share == pytest.approx(0.2, abs=0.03)
    assert found.share_at_least <= 0.2 <= found.share_at_most
    assert found.auroc > 0.99
    assert float(wrong[found.flagged].double().mean()) == pytest.approx(found.precision, abs=0.1)
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
    alone = gcalign.audit(a[folds == 1], b[folds == 1], eps=found.settings["eps"])
    assert torch.corrcoef(torch.stack([found.suspicion[folds == 1], alone.suspicion]))[0, 1] > 0.999
    assert float((found.probability[folds == 1] - alone.probability).abs().mean()) < 0.03


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
    assert found.share_at_least <= 0.5 <= found.share_at_most
    assert found.share > 0.1


def test_it_prints_its_summary_and_the_worst_pairs():
    a, b = made(120, wrong=20)
    found = gcalign.audit(a, b)
    text = str(found)
    assert f"expected share of mismatches: {found.share:.1%}, between {found.share_at_least:.1%} and" in text
    assert text.splitlines()[-5].split()[0] == str(int(found.ranking[0]))
    clean = gcalign.audit(*made(400, noise=0.05))
    assert clean.threshold == math.inf
    assert math.isnan(clean.precision)
    assert "no pair is clearly wrong" in str(clean)
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


@pytest.mark.parametrize("case", range(11))
def test_bad_embeddings_are_refused_with_the_row_and_a_remedy(case):
    a, b, error, words = _bad()[case]
    with pytest.raises(error, match=words):
        gcalign.audit(a, b)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"score": "plam"}, "did you mean 'plan'"),
        ({"eps": -1.0}, "eps=-1 must be > 0"),
        ({"batch": 3}, "batch=3 must be at least 10"),
        ({"passes": -1}, "passes=-1 must be at least 0"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        gcalign.audit(*made(30), **options)


# --- pairs of anything -----------------------------------------------------------------------------------------------

WORDS = ["red", "blue", "green", "big", "small", "cat", "dog", "house", "tree", "car", "sky", "sun", "moon", "river"]
OTHERS = ["rot", "blau", "grün", "groß", "klein", "Katze", "Hund", "Haus", "Baum", "Auto", "Himmel", "Sonne", "Mond"]
OTHERS += ["Fluss"]


def sentences(n: int, wrong: int) -> tuple[list[str], list[str]]:
    draw = torch.randint(len(WORDS), (n, 4), generator=torch.Generator().manual_seed(0)).tolist()
    first, second = ([" ".join(words[k] for k in row) for row in draw] for words in (WORDS, OTHERS))
    second[:wrong] = second[1:wrong] + second[: min(1, wrong)]
    return first, second


def auroc(found: gcalign.Audit, wrong: int) -> float:
    return float((found.suspicion[:wrong, None] > found.suspicion[None, wrong:]).double().mean())


def test_two_columns_of_texts_are_learnt_and_audited():
    first, second = sentences(300, 30)
    found = gcalign.audit({"en": first, "de": second, "id": range(300)}, "en", "de")
    assert auroc(found, 30) > 0.95
    assert found.share_at_least <= 0.1 <= found.share_at_most
    again = gcalign.audit(first, second)
    assert torch.equal(again.suspicion, found.suspicion)


def test_pandas_and_a_column_that_is_not_there():
    pd = pytest.importorskip("pandas")
    first, second = sentences(60, 0)
    frame = pd.DataFrame({"en": first, "de": second})
    with pytest.raises(ValueError, match=r"no column 'den'.*de, en"):
        gcalign.audit(frame, "en", "den")
    frame.loc[7, "de"] = None
    with pytest.raises(ValueError, match=r"'de' is empty in row 7"):
        gcalign.audit(frame, "en", "de")
    frame.loc[7, "de"] = " "
    with pytest.raises(ValueError, match=r"'de' is empty in row 7"):
        gcalign.audit(frame, "en", "de")
    with pytest.raises(TypeError, match="the other column"):
        gcalign.audit(frame, "en")
    with pytest.raises(TypeError, match=r"read the table first, e.g. pandas.read_csv\('pairs.csv'\)"):
        gcalign.audit("pairs.csv", "en", "de")


def test_columns_of_arrays_and_series_of_texts():
    pd = pytest.importorskip("pandas")
    a, b = (z.numpy() for z in made(100))
    frame = pd.DataFrame({"a": list(a), "b": list(b)})
    assert gcalign.audit(frame, "a", "b").suspicion.equal(gcalign.audit(*map(np.float32, (a, b))).suspicion)
    first, second = sentences(300, 30)
    assert gcalign.audit(pd.Series(first), pd.Series(second)).suspicion.equal(gcalign.audit(first, second).suspicion)


@pytest.mark.parametrize("size", [1e25, 1e-30])
def test_numbers_whose_squares_overflow_or_vanish_are_audited_as_any_others(size):
    a, b = made(100, wrong=10, dtype=torch.float32)
    torch.testing.assert_close(gcalign.audit(a * size, b).suspicion, gcalign.audit(a, b).suspicion, atol=1e-3, rtol=0)


def test_embeddings_of_two_spaces_are_learnt_and_audited():
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    x = draw(400, 8)
    a, b = x @ draw(8, 12) + 0.2 * draw(400, 12), x @ draw(8, 20) + 0.2 * draw(400, 20)
    b[:40] = b[:40].roll(1, 0)
    found = gcalign.audit(a, b.numpy())
    assert auroc(found, 40) > 0.99
    with pytest.raises(ValueError, match="fit='never'"):
        gcalign.audit(a, b, fit="never")
    with pytest.raises(ValueError, match="there are 20 pairs"):
        gcalign.audit(a[:20], b[:20])


def test_pairs_that_share_a_text_are_in_one_fold():
    from gcalign.auditing.crossfit import folds_of

    first, second = sentences(120, 0)
    second[60:90] = second[:30]
    fold = folds_of(first, second)
    assert torch.equal(fold[:30], fold[60:90])
    with pytest.raises(ValueError, match="120 of 120 pairs share texts"):
        folds_of(first, ["the same"] * 120)


def test_real_near_misses_stand_out_from_a_bulk_of_right_pairs():
    """The partner is missing, and a near miss stands in its place: the old audit said that nothing is wrong."""
    a, b = made(800, noise=0.3)
    near = (b @ b.T).fill_diagonal_(-math.inf).topk(4, dim=1).indices[:, 3]
    wrong = b.clone()
    wrong[:160] = b[near[:160]]
    clean, found = gcalign.audit(a, b), gcalign.audit(a, wrong)
    assert float(clean.flagged.double().mean()) <= 0.005
    assert found.share > 0.05
    assert found.share_at_least <= 0.2 <= found.share_at_most
    assert not found.flagged.any()  # right pairs can stand out, too
    assert float((found.suspects.nonzero() < 160).double().mean()) > 0.5
    assert "which stand out but may be right" in str(found)
