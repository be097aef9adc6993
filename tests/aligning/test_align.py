"""`gcalign.align`: two frozen encoders and a few pairs in one space; what is wrong with the input is said."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

import gcalign
from gcalign import Aligner
from gcalign.aligning import matching
from gcalign.aligning.closed import CLOSED, Moments, cca, closed_form, procrustes, ridge_regression
from gcalign.aligning.doubts import probabilities
from gcalign.aligning.inputs import Items, folds_of, groups_of, kept_together
from gcalign.aligning.matching import EPS, Matches
from gcalign.aligning.report import AlignmentReport, expected
from gcalign.aligning.retrieval import both_ways, nearest, ranks, recall, wilson
from gcalign.aligning.search import crossfit
from gcalign.aligning.training import Examples, Settings, fit, plan_loss

FAST = {"budget": 0, "steps": 10, "dim": 12}


def spaces(n=300, shared=8, dims=(24, 16), noise=0.3, seed=0):
    """Two views of the same points, in spaces of their own."""
    g = torch.Generator().manual_seed(seed)
    s = torch.randn(n, shared, generator=g)
    return tuple(s @ torch.randn(shared, d, generator=g) + noise * torch.randn(n, d, generator=g) for d in dims)


def first(n):
    return torch.arange(n)[:, None].expand(-1, 2)


# --- closed forms ---------------------------------------------------------------------------------------------------


def moments(n=400):
    x, y = (z.double() for z in spaces(n))
    return x - x.mean(0), y - y.mean(0), Moments.of(x, y, torch.ones(n))


def test_cca_directions_are_uncorrelated_and_their_correlations_those_of_scikit_learn():
    from sklearn.cross_decomposition import CCA

    x, y, m = moments()
    a, b = cca(m, 1e-9, 3)
    za, zb = x @ a, y @ b
    correlations = torch.corrcoef(torch.cat((za, zb), 1).T)[:3, 3:]
    torch.testing.assert_close(correlations - correlations.diag().diag(), torch.zeros(3, 3).double(), atol=1e-6, rtol=0)
    u, v = CCA(3, max_iter=2000).fit_transform(x.numpy(), y.numpy())
    theirs = torch.tensor([np.corrcoef(u[:, k], v[:, k])[0, 1] for k in range(3)])
    torch.testing.assert_close(correlations.diag(), theirs, atol=1e-3, rtol=0)


def test_procrustes_is_the_rotation_that_scipy_finds():
    from scipy.linalg import orthogonal_procrustes

    x = torch.randn(200, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = x - x.mean(0)
    y = x @ torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))[0]
    a, b = procrustes(Moments.of(x, y, torch.ones(200)), 0.0, 6)
    rotation, _ = orthogonal_procrustes(x.numpy(), y.numpy())
    torch.testing.assert_close(a @ b.T, torch.tensor(rotation))


def test_ridge_predicts_as_scikit_learn_does():
    from sklearn.linear_model import Ridge

    x, y, m = moments()
    a, b = ridge_regression(m, 0.5, 16)
    level = 0.5 * float((x**2).mean()) * len(x)
    theirs = Ridge(alpha=level, fit_intercept=False).fit(x.numpy(), y.numpy()).predict(x.numpy())
    torch.testing.assert_close(x @ a @ b.T, torch.tensor(theirs))


def test_a_pair_of_weight_two_is_that_pair_twice():
    x, y = (z.double() for z in spaces(30))
    twice = Moments.of(torch.cat((x, x[:5])), torch.cat((y, y[:5])), torch.ones(35))
    weighted = Moments.of(x, y, torch.ones(30) + (torch.arange(30) < 5))
    torch.testing.assert_close(weighted.xy, twice.xy)
    torch.testing.assert_close(weighted.xx, twice.xx)


@pytest.mark.parametrize("name", CLOSED)
def test_with_fewer_pairs_than_numbers_a_closed_form_is_the_same(name):
    """In the space that the pairs span, and in the whole space."""
    x, y = (z.double() for z in spaces(12))
    w = torch.ones(12).double()
    here, there = closed_form(name, x, y, w, 0.5, 6), CLOSED[name](Moments.of(x, y, w), 0.5, 6)
    torch.testing.assert_close(x @ here[0] @ here[1].T @ y.T, x @ there[0] @ there[1].T @ y.T)


# --- matches of unpaired items --------------------------------------------------------------------------------------


def test_matches_are_each_others_best_in_the_plan(monkeypatch):
    """Against plain Sinkhorn iterations and a loop over all items."""
    g = torch.Generator().manual_seed(0)
    zb = normalize(torch.randn(14, 3, generator=g, dtype=torch.float64), dim=1)
    za = normalize(zb[:9].roll(2, 0) + 0.3 * torch.randn(9, 3, generator=g, dtype=torch.float64), dim=1)
    monkeypatch.setattr(matching, "ITERATIONS", 5000)
    monkeypatch.setattr(matching, "TOL", 1e-9)
    k = (za @ zb.T / EPS).exp()
    v = torch.ones(14, dtype=torch.float64)
    for _ in range(20_000):
        u = 1 / (k @ v)
        v = 9 / 14 / (k.T @ u)
    plan = u[:, None] * k * v
    best = [(i, int(plan[i].argmax())) for i in range(9)]
    expected = [(i, j) for i, j in best if int(plan[:, j].argmax()) == i]
    found = Matches.of(za, zb)
    assert len(expected) > 3
    assert expected == list(zip(found.i.tolist(), found.j.tolist(), strict=True))


def test_matches_lift_the_cca_where_the_pools_have_partners():
    a, b = spaces(900, shared=16, dims=(48, 40), noise=2.0)
    data, held = examples(a, b, 40), slice(600, 900)
    scores = {}
    for method in ("cca", "matching"):
        heads = fit(data, Settings(method=method, dim=24, matched=3.0), 0)
        za, zb = heads[0](normalize(a[held], dim=1)), heads[1](normalize(b[held], dim=1))
        scores[method] = float((both_ways(za, zb, torch.arange(300), (za[:0], zb[:0])) < 1).double().mean())
    assert scores["matching"] > scores["cca"] + 0.05


def test_without_a_pool_matching_is_the_closed_form():
    data = examples(*spaces(60), 60)
    here, there = (fit(data, Settings(method=method, dim=8), 0) for method in ("matching", "cca"))
    torch.testing.assert_close(here[0](data.x), there[0](data.x), atol=1e-5, rtol=1e-5)


def test_items_that_are_classes_do_not_hold_whole_classes_out():
    pairs = torch.stack((torch.arange(60), torch.arange(60) % 4), 1)
    together = kept_together(pairs, groups_of(pairs))
    assert len(together.unique()) == 60
    captions, images = torch.randn(4, 12), torch.randn(60, 16)
    images = images + 3 * captions[pairs[:, 1]] @ torch.randn(12, 16)
    aligner = gcalign.align(images, captions, pairs, **FAST)
    assert (aligner.match(images, captions)[0][:, 0] == pairs[:, 1]).float().mean() > 0.8


# --- retrieval ------------------------------------------------------------------------------------------------------


def test_ranks_are_those_of_a_loop_and_partners_of_one_group_do_not_count():
    g = torch.Generator().manual_seed(0)
    za, zb = (normalize(torch.randn(20, 5, generator=g), dim=1) for _ in range(2))
    more = normalize(torch.randn(7, 5, generator=g), dim=1)
    group = torch.arange(20) // 2
    result = both_ways(za, zb, group, (more, more))
    for k in range(20):
        own = za[k] @ zb[k]
        ahead = sum(bool(za[k] @ zb[j] > own) for j in range(20) if group[j] != group[k])
        assert result[0, k] == ahead + sum(bool(za[k] @ z > own) for z in more)


def test_equal_candidates_are_half_ahead():
    z = torch.ones(4, 1)
    assert ranks(z, z, torch.arange(4), torch.arange(4), torch.arange(4)).tolist() == [1.5] * 4


def test_intervals_are_those_of_scipy():
    from scipy.stats import binomtest

    low, high = wilson(0.3, 50)
    theirs = binomtest(15, 50).proportion_ci(method="wilson")
    assert (low / 100, high / 100) == pytest.approx((theirs.low, theirs.high))
    assert recall(torch.zeros(2, 10), 10).at_1 == 100


def test_the_nearest_of_a_gallery_in_parts_are_those_of_the_whole():
    g = torch.Generator().manual_seed(0)
    q, z = torch.randn(5, 4, generator=g), torch.randn(40, 4, generator=g)
    where, near = nearest(q, z.split(7), 3)
    whole = (q @ z.T).topk(3)
    assert (where == whole.indices).all()
    torch.testing.assert_close(near, whole.values)


def test_more_pairs_raise_r_at_1_along_a_line_in_log_odds():
    odds = [(100, 100 / 5), (200, 100 / 3), (400, 50.0)]  # 1/4, 1/2, 1: doubled with the number of pairs
    assert expected(odds, 400) == pytest.approx(50)
    assert expected(odds, 800) == pytest.approx(200 / 3)
    assert expected([(100, 90.0), (200, 98.0)], 10_000) < 100
    assert expected([(100, 10.0), (200, 5.0)], 400) == pytest.approx(5)  # more pairs do no harm


# --- training -------------------------------------------------------------------------------------------------------


def test_the_loss_on_unpaired_items_is_the_kl_divergence_of_two_plans():
    """Against a plain loop of Sinkhorn iterations, with other numbers of rows and columns."""
    settings = Settings(eps=0.2, sharpen=2)
    g = torch.Generator().manual_seed(0)
    z, w = (normalize(torch.randn(n, 5, generator=g, dtype=torch.float64), dim=1) for n in (7, 9))
    t, s = (normalize(torch.randn(n, 4, generator=g, dtype=torch.float64), dim=1) for n in (7, 9))

    def plan(x, y, eps, mu, nu):
        k = (x @ y.T / eps).exp()
        v = torch.ones(9, dtype=torch.float64)
        for _ in range(2000):
            u = mu / (k @ v)
            v = nu / (k.T @ u)
        return u[:, None] * k * v

    criterion = plan_loss(settings)
    criterion.tol, criterion.iterations = 1e-12, 2000
    criterion.target = gcalign.Teacher(0.1, iterations=2000, tol=1e-12)
    target = criterion.plan(z, w, teacher=(t, s)).target.dense()
    expected = plan(t, s, 0.1, target.sum(1), target.sum(0))
    torch.testing.assert_close(target, expected, atol=1e-8, rtol=1e-6)
    student = plan(z, w, 0.2, target.sum(1), target.sum(0))
    kl = (target * (target.log() - student.log())).sum() / 7
    torch.testing.assert_close(criterion(z, w, teacher=(t, s)), kl, atol=1e-8, rtol=1e-6)


def examples(a, b, n):
    a, b = normalize(a, dim=1), normalize(b, dim=1)
    return Examples(a[:n], b[:n], torch.ones(n), torch.arange(n), a[n:], b[n:])


def test_training_starts_from_the_teacher_and_no_step_is_the_teacher():
    data = examples(*spaces(), 60)
    closed = fit(data, Settings(method="cca", dim=8), 0)
    started = fit(data, Settings(method="plan", dim=8, steps=1, lr=0.0), 0)
    torch.testing.assert_close(started[0](data.x), closed[0](data.x))


def test_the_plan_of_a_teacher_lifts_infonce_where_pairs_are_few():
    a, b = spaces(1200, shared=16, dims=(48, 40), noise=3.0)
    data, held = examples(a, b, 60), slice(700, 1200)
    scores = {}
    for method in ("infonce", "plan"):
        heads = fit(data, Settings(method=method, dim=24, steps=60), 0)
        za, zb = heads[0](normalize(a[held], dim=1)), heads[1](normalize(b[held], dim=1))
        scores[method] = float((both_ways(za, zb, torch.arange(500), (za[:0], zb[:0])) < 10).double().mean())
    assert scores["plan"] > scores["infonce"] + 0.02


def test_a_pair_is_never_embedded_by_heads_that_saw_it():
    data = examples(*spaces(), 60)
    folds = torch.arange(60) % 3
    result = crossfit(data, folds, Settings(method="cca", dim=8), 0)
    heads = fit(data.take((folds != 1).nonzero().flatten()), Settings(method="cca", dim=8), 0)
    torch.testing.assert_close(result.za[folds == 1], heads[0](data.x[folds == 1]))


def test_wrong_pairs_are_found_and_weigh_less():
    a, b = spaces(400, noise=0.2)
    pairs = torch.arange(300)[:, None].repeat(1, 2)
    pairs[:60, 1] = pairs[:60, 1].roll(1)
    aligner = gcalign.align(a, b, pairs, **FAST)
    assert aligner.report.weighted
    assert 0.03 < aligner.report.wrong < 0.3
    assert sum(i < 60 for i, _, _ in aligner.report.suspects[:40]) >= 38
    plain = gcalign.align(a, b, pairs, audit=False, **FAST)
    assert plain.report.wrong is None
    assert aligner.score(a[300:], b[300:]) >= plain.score(a[300:], b[300:])


def test_folds_too_small_to_audit_are_not():
    z = torch.randn(30, 4)
    assert probabilities(z, z, torch.arange(30) % 3).isnan().all()


def test_pairs_that_say_nothing_are_named_and_no_share_is_claimed():
    a, _ = spaces(300)
    _, b = spaces(300, seed=1)
    with pytest.warns(UserWarning, match="a random item is nearer .*rows of a and rows of b"):
        report = gcalign.align(a, b, **FAST).report
    assert report.wrong is None
    assert "expected share of wrong pairs: not known" in str(report)
    assert AlignmentReport.from_dict(report.as_dict()) == report


# --- the aligner ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted():
    a, b = spaces()
    return gcalign.align(a, b, first(100), budget=6, steps=10, dim=12), a, b


def test_partners_are_found(fitted):
    aligner, a, b = fitted
    found, near = aligner.match(a[100:], b[100:], k=3)
    assert found.shape == near.shape == (200, 3)
    assert (found[:, 0] == torch.arange(200)).float().mean() > 0.9
    assert (near[:, 0] >= near[:, 1]).all()


def test_without_evaluation_the_heads_are_the_same_and_nothing_is_measured():
    a, b = spaces()
    brief, whole = (gcalign.align(a, b, first(60), **FAST, evaluate=evaluate) for evaluate in (False, True))
    assert torch.equal(brief.embed_a(a), whole.embed_a(a))
    assert not brief.report.retrieval
    assert "too few" not in str(brief.report)


def test_the_report_says_how_good_it_is_and_what_more_pairs_would_give(fitted):
    report = fitted[0].report
    assert list(report.retrieval) == ["aligner", "cca", "procrustes", "infonce"]
    recall = report.retrieval["aligner"]
    assert recall.interval_1[0] <= recall.at_1 <= recall.interval_1[1]
    assert recall.pairs == 20
    assert [n for n, _ in report.curve] == [20, 40, 80]
    assert "100 more pairs would" in str(report)
    assert report.fits == 6


def test_saved_and_loaded_it_is_the_same(fitted, tmp_path):
    aligner, a, b = fitted
    aligner.save(tmp_path / "saved")
    loaded = gcalign.load(tmp_path / "saved")
    assert torch.equal(loaded.embed_a(a), aligner.embed_a(a))
    assert torch.equal(loaded.embed_b(b), aligner.embed_b(b))
    assert str(loaded.report) == str(aligner.report)
    assert loaded.get_params() == aligner.get_params()
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["aligner.json", "aligner.safetensors"]


@pytest.mark.parametrize("name", ["aligner.json", "aligner.safetensors"])
def test_a_damaged_file_is_an_error_that_names_it(fitted, tmp_path, name):
    fitted[0].save(tmp_path)
    (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(ValueError, match="again"):
        gcalign.load(tmp_path)


def test_options_in_a_file_are_checked(fitted, tmp_path):
    fitted[0].save(tmp_path)
    about = json.loads((tmp_path / "aligner.json").read_text())
    about["options"]["method"] = "os.system"
    (tmp_path / "aligner.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match="unknown"):
        gcalign.load(tmp_path)


def test_an_array_gives_an_array_and_a_tensor_a_tensor(fitted):
    aligner, a, _ = fitted
    assert isinstance(aligner.embed_a(a.numpy()), np.ndarray)
    torch.testing.assert_close(torch.tensor(aligner.embed_a(a.numpy())), aligner.embed_a(a))


def test_the_same_seed_gives_the_same_heads():
    a, b = spaces()
    one, two = (gcalign.align(a, b, first(60), **FAST) for _ in range(2))
    assert torch.equal(one.embed_a(a), two.embed_a(a))


def test_it_is_a_scikit_learn_estimator():
    from sklearn.base import clone
    from sklearn.exceptions import NotFittedError
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils.validation import check_is_fitted

    a, b = (z.numpy() for z in spaces(120))
    aligner = gcalign.Aligner("cca", dim=4, audit=False)
    assert clone(aligner).get_params() == aligner.get_params()
    with pytest.raises(NotFittedError):
        check_is_fitted(aligner)
    search = GridSearchCV(aligner, {"dim": [2, 8]}, cv=2).fit(a, b)
    assert search.best_params_ == {"dim": 8}
    assert make_pipeline(StandardScaler(), aligner).fit(a, b).transform(a).shape == (120, 4)
    assert repr(aligner) == "Aligner(method='cca', dim=4, audit=False)"
    with pytest.raises(ValueError, match="did you mean 'dim'"):
        aligner.set_params(dims=3)


def test_a_memory_mapped_file_gives_what_its_array_gives(tmp_path):
    a, b = (z.numpy() for z in spaces())
    np.save(tmp_path / "a.npy", a)
    mapped = gcalign.align(np.load(tmp_path / "a.npy", mmap_mode="r"), b, first(60).numpy(), **FAST)
    assert np.array_equal(mapped.embed_a(a), gcalign.align(a, b, first(60).numpy(), **FAST).embed_a(a))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_unpaired_items(tmp_path):
    to = np.lib.format.open_memmap(tmp_path / "a.npy", "w+", np.float32, (800_000, 128))
    for start in range(0, len(to), 50_000):
        to[start : start + 50_000] = np.random.default_rng(start).normal(size=(50_000, 128))
    del to
    code = """
import resource, sys
import numpy as np, torch, gcalign
torch.set_num_threads(1)
a = np.load("a.npy", mmap_mode="r")[: int(sys.argv[1])]
gcalign.align(a, a, [[k, k] for k in range(100)], budget=0, steps=5)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    peaks = [
        int(subprocess.run([sys.executable, "-c", code, n], cwd=tmp_path, capture_output=True, check=True).stdout)
        for n in ("20200", "800000")
    ]
    assert peaks[1] < peaks[0] + 100_000  # KB; the file has 400,000


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda a, b, p: (a.index_fill(0, torch.tensor([7]), torch.nan), b, p),
            r"a\[7\] has values that are not",
        ),
        (lambda a, b, p: (a, b, p + 250), r"names row 300 of a, which has rows 0 to 299.*counted from 0"),
        (lambda a, b, p: (a, b, p - 1), r"names row -1 of a"),
        (lambda a, b, p: (a[:80], b, p.flip(0) + torch.tensor([60, 0])), "exchange a and b, or the columns"),
        (lambda a, b, p: (a, b[:200], None), "a has 300 rows and b has 200.*give pairs"),
        (lambda a, b, p: (a, b, p.float()), r"must be \[P, 2\] whole numbers"),
        (lambda a, b, p: (a, b, p[:, :1]), r"must be \[P, 2\]"),
        (lambda a, b, p: (a, b, p[:3]), "3 different pairs; heads cannot be fitted to fewer than 5"),
        (lambda a, b, p: (a[0], b, p), r"must be \[n, D\]"),
        (lambda a, b, p: (a[:1], b[:1], None), "1 different pairs; heads cannot be fitted"),
        (lambda a, b, p: (torch.ones_like(a), b, p), "the rows of a that are paired all point the same way"),
        (lambda a, b, p: (a, b, torch.stack((p[:, 0], 0 * p[:, 1]), 1)), "the rows of b that are paired all point"),
        (lambda a, b, p: (a, b, (p[:, 0], p[:5, 1])), "columns of 60 and 5 rows"),
        (lambda a, b, p: (a, b.index_fill(0, torch.tensor([9]), torch.inf), p), r"b\[9\] has values that are not"),
    ],
)
def test_what_is_wrong_is_said_with_value_rule_and_remedy(change, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        gcalign.align(*change(*spaces(), first(60)), **FAST)


@pytest.mark.parametrize("values", [[[1.0, 2.0]], np.array([["a", "b"]]), torch.ones(3, 2, dtype=torch.complex64)])
def test_what_are_not_numbers_is_refused(values):
    with pytest.raises(TypeError, match=r"must be a tensor|must hold real numbers"):
        Items("a", values)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "planned"}, "did you mean 'plan'"),
        ({"head": "deep"}, "known: linear, mlp"),
        ({"dim": 1}, "at least 2"),
        ({"eps": 0.0}, "0.1 is usual"),
        ({"budget": -1}, "at least 0"),
        ({"weight": -1.0}, "must be ≥ 0"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        gcalign.align(*spaces(), first(60), **{**FAST, **options})
    with pytest.raises(TypeError, match="did you mean 'eps'"):
        gcalign.align(*spaces(), epss=0.1)


def test_rows_of_zeros_are_left_out_and_said():
    a, b = spaces()
    a[3] = a[200] = 0
    with pytest.warns(UserWarning, match=r"2 rows of a are zero, first a\[3\].*their 1 pairs are left out"):
        aligner = gcalign.align(a, b, first(60), **FAST)
    assert aligner.report.pairs == 59


def test_a_row_of_zeros_stays_zero_in_the_common_space(fitted):
    aligner, a, _ = fitted
    assert aligner.embed_a(torch.zeros(2, a.shape[1])).equal(torch.zeros(2, FAST["dim"]))


@pytest.mark.parametrize("size", [1e25, 1e-30])
def test_numbers_whose_squares_overflow_or_vanish_align_as_any_others(size):
    a, b = spaces(100)
    usual, odd = (gcalign.align(x, b, method="cca", evaluate=False, **FAST) for x in (a, a * size))
    torch.testing.assert_close(odd.embed_a(a * size), usual.embed_a(a), atol=1e-4, rtol=0)


def test_a_data_frame_is_an_array():
    pd = pytest.importorskip("pandas")
    a, b = (z.numpy() for z in spaces(100))
    given, frames = (
        Aligner("cca", evaluate=False, **FAST).fit(*sides) for sides in ((a, b), map(pd.DataFrame, (a, b)))
    )
    assert np.allclose(given.embed_a(a), frames.embed_a(pd.DataFrame(a)), atol=1e-5)


def test_fewer_than_20_pairs_say_what_to_expect():
    with pytest.warns(UserWarning, match=r"12 pairs are few: expect .* 100 pairs are a start"):
        gcalign.align(*spaces(), first(12), **FAST)


def test_an_item_in_two_pairs_is_allowed_and_its_pairs_stay_in_one_fold():
    pairs = torch.cat((first(60), torch.tensor([[0, 1], [0, 2]])))
    group = groups_of(pairs)
    assert group[0] == group[1] == group[2] == group[60] == group[61]
    assert len(group.unique()) == 58
    folds = folds_of(group, 3, torch.Generator().manual_seed(0))
    assert len({int(folds[k]) for k in (0, 1, 2, 60, 61)}) == 1
    assert gcalign.align(*spaces(), pairs, **FAST).report.pairs == 62


@pytest.mark.parametrize("kind", ["float16", "float64", ">f4", "int64"])
def test_sides_may_have_unequal_dtypes(kind):
    a, b = (z.numpy() for z in spaces())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        aligner = gcalign.align((8 * a).astype(kind), b, first(60).numpy(), **FAST)
    assert aligner.embed_a((8 * a).astype(kind)).dtype == np.float32


def test_sides_that_are_exchanged_when_embedding_are_named(fitted):
    aligner, _, b = fitted
    with pytest.raises(ValueError, match=r"a has 16 columns, and this aligner was fitted to 24.*exchange the sides"):
        aligner.embed_a(b)


def test_nothing_is_embedded_before_a_fit():
    with pytest.raises(ValueError, match=r"call fit"):
        gcalign.Aligner().embed_a(torch.ones(2, 2))
