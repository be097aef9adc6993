"""The scikit-learn estimator."""

from __future__ import annotations

import re

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from gcalign import GCAEncoder

DIGITS, CLASSES = load_digits(return_X_y=True)
QUICK = {"epochs": 3, "hidden": 64, "dim": 16, "random_state": 0}


@pytest.mark.filterwarnings("ignore")
def test_the_estimator_passes_the_checks_of_scikit_learn():
    results = check_estimator(GCAEncoder(epochs=2, hidden=16), on_fail="raise")
    status = {result["check_name"]: result["status"] for result in results}
    assert status["check_fit_score_takes_y"] == "passed"
    assert list(status.values()).count("passed") >= 40


def test_a_table_as_y_is_refused_and_not_a_second_view():
    with pytest.raises(ValueError, match="a second view is X2="):
        GCAEncoder(**QUICK).fit(DIGITS[:50], DIGITS[:50])


def test_the_estimator_learns_and_says_so():
    model = GCAEncoder(**{**QUICK, "epochs": 10}).fit(DIGITS[:800])
    assert model.losses_[-1] < 0.9 * model.losses_[0]
    z = model.transform(DIGITS)
    assert z.shape == (len(DIGITS), 16)
    np.testing.assert_allclose(np.linalg.norm(z, axis=1), 1)
    score = LogisticRegression(max_iter=1000).fit(z[:800], CLASSES[:800]).score(z[800:], CLASSES[800:])
    assert score > 0.7
    assert len(model.get_feature_names_out()) == 16


def test_the_second_argument_is_classes_if_it_has_one_dimension():
    one, two = GCAEncoder(**QUICK).fit(DIGITS, CLASSES), GCAEncoder(**QUICK).fit(DIGITS, y=CLASSES)
    np.testing.assert_array_equal(one.transform(DIGITS), two.transform(DIGITS))
    without = GCAEncoder(**QUICK).fit(DIGITS)
    assert not np.allclose(one.transform(DIGITS), without.transform(DIGITS))


def test_classes_help():
    scores = []
    for y in (None, CLASSES[:800]):
        encoder = GCAEncoder(**{**QUICK, "epochs": 10})
        z = encoder.fit_transform(DIGITS[:800], y=y), encoder.transform(DIGITS[800:])
        scores.append(LogisticRegression(max_iter=1000).fit(z[0], CLASSES[:800]).score(z[1], CLASSES[800:]))
    pipeline = make_pipeline(GCAEncoder(**{**QUICK, "epochs": 10}), LogisticRegression(max_iter=1000))
    assert pipeline.fit(DIGITS[:800], CLASSES[:800]).score(DIGITS[800:], CLASSES[800:]) == scores[1]
    assert scores[1] > scores[0] + 0.03


def test_partners_with_other_columns_get_a_network_of_their_own():
    left, right = DIGITS[:, :32], DIGITS[:, 24:]
    model = GCAEncoder(**{**QUICK, "epochs": 30, "eps": 0.1}).fit(left[:1500], X2=right[:1500])
    a, b = model.transform(left[1500:]), model.transform_second(right[1500:])
    found = (a @ b.T).argsort(1)[:, -10:]
    hits = (found == np.arange(len(a))[:, None]).any(1).mean()
    assert hits > 3 * 10 / len(a)  # three times chance
    with pytest.raises(ValueError, match="40 in fit"):
        model.transform_second(left)
    with pytest.raises(ValueError, match="use transform"):
        GCAEncoder(**QUICK).fit(left, X2=left[::-1].copy()).transform_second(left)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "gca-out"}, "did you mean 'gca-uot'"),
        ({"corruption": 1.5}, "between 0 and 1"),
        ({"dim": 0}, "dim=0 must be at least 1"),
        ({"batch_size": 1}, "batch_size=1 must be at least 2"),
        ({"eps": -1.0}, "eps=-1 must be > 0"),
    ],
)
def test_a_wrong_estimator_is_refused_when_it_is_fitted(options, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        GCAEncoder(**{**QUICK, **options}).fit(DIGITS[:50])


def test_partners_must_be_as_many():
    with pytest.raises(ValueError, match="X2 has 40 rows and X 50"):
        GCAEncoder(**QUICK).fit(DIGITS[:50], X2=DIGITS[:40])
    with pytest.raises(ValueError, match="one class for each of the 50 rows"):
        GCAEncoder(**QUICK).fit(DIGITS[:50], y=CLASSES[:40])
