"""Metrics of sampled predictors agree with hand computation, fairlearn and scikit-learn."""

import warnings

import numpy as np
import pytest
from scipy.stats import binomtest

from ogradient import evaluation
from ogradient.evaluation import binomial_interval, evaluate

HAND = {  # two samples of four rows
    "probability": np.array([[0.9, 0.8, 0.1, 0.3], [0.7, 0.4, 0.6, 0.4]]),
    "label": np.array([1, 1, 0, 0]),
    "sensitive": np.array([0, 1, 0, 1]),
    "rule": np.array([0, 2, 1, 1]),
}


def random_data(seed=0, shape=(3, 4), rows=200):
    rng = np.random.default_rng(seed)
    data = {"probability": rng.random((*shape, rows)), "label": rng.integers(0, 2, rows)}
    return data | {"sensitive": rng.random(rows) < 0.3, "rule": rng.choice(3, rows, p=[0.8, 0.15, 0.05])}


def test_by_hand():
    result = evaluate(**HAND, bins=2)
    expected = {
        "accuracy": [1, 0.5],  # the second predicts 1, 0, 1, 0
        "log_likelihood": [np.log([0.9, 0.8, 0.9, 0.7]).mean(), np.log([0.7, 0.4, 0.4, 0.6]).mean()],
        "calibration_error": [(0.3 + 0.4) / 4, (0.3 + 0.2) / 4],  # |1.7 − 2| and |0.4 − 0|; |1.3 − 1| and |0.8 − 1|
        "cv_score": [0, 1],
        "equalized_odds_difference": [0, 1],
        "covariance": [(-0.9 + 0.8 - 0.1 + 0.3) / 8, (-0.7 + 0.4 - 0.6 + 0.4) / 8],
        "rule_1_violation": [0, 0.5],
        "rule_2_violation": [0, 1],
        "rule_violation": [0, 0.75],
    }
    assert list(result.per_sample) == list(result.model_average) == list(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(result.per_sample[name], value, atol=1e-15, err_msg=name)


def test_against_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    data = random_data()
    data["probability"][0, 0, :2] = 0, 1  # where the logarithm needs clipping
    result = evaluate(**data)
    for index in np.ndindex(3, 4):
        p = data["probability"][index]
        assert result.per_sample["accuracy"][index] == metrics.accuracy_score(data["label"], p > 0.5)
        np.testing.assert_allclose(result.per_sample["log_likelihood"][index], -metrics.log_loss(data["label"], p))


@pytest.mark.parametrize("seed", range(5))
def test_against_fairlearn(seed):
    metrics = pytest.importorskip("fairlearn.metrics")
    data = random_data(seed)
    result = evaluate(**data, threshold=0.3 + 0.1 * seed)
    for index in np.ndindex(3, 4):
        predicted = (data["probability"][index] > 0.3 + 0.1 * seed).astype(int)
        for name, function in (
            ("cv_score", metrics.demographic_parity_difference),
            ("equalized_odds_difference", metrics.equalized_odds_difference),
        ):
            theirs = function(data["label"], predicted, sensitive_features=data["sensitive"])
            np.testing.assert_allclose(result.per_sample[name][index], theirs, atol=1e-14)


def test_definitions_on_random_data():
    data = random_data()
    result, s, rule = evaluate(**data).per_sample, data["sensitive"], data["rule"]
    for index in np.ndindex(3, 4):
        p = data["probability"][index]
        bin_of = np.minimum(np.floor(15 * p), 14)
        gaps = [(bin_of == b).mean() * abs((p - data["label"])[bin_of == b].mean()) for b in np.unique(bin_of)]
        np.testing.assert_allclose(result["calibration_error"][index], sum(gaps))
        np.testing.assert_allclose(result["covariance"][index], np.cov(s, p, ddof=0)[0, 1])
        assert result["rule_1_violation"][index] == (p > 0.5)[rule == 1].mean()
        np.testing.assert_allclose(result["rule_2_violation"][index], (p <= 0.5)[rule == 2].mean(), atol=1e-15)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 3), (2, 3, 2)])
def test_leading_axes_are_samples(shape, monkeypatch):
    data = random_data(1, shape)
    whole = evaluate(**data)
    monkeypatch.setattr(evaluation, "BLOCK", 500)  # two samples at a time
    blocked = evaluate(**data)
    for name, value in whole.per_sample.items():
        assert value.shape == blocked.per_sample[name].shape == shape
        np.testing.assert_allclose(value, blocked.per_sample[name], atol=1e-15)
    mean = data["probability"].reshape(-1, 200).mean(axis=0)
    alone = evaluate(**data | {"probability": mean})
    assert whole.model_average == alone.model_average == {k: float(v) for k, v in alone.per_sample.items()}


def test_the_model_average_is_not_the_mean_of_the_samples():
    result = evaluate([[0.9, 0.2], [0.4, 0.3]], [1, 0])
    assert result.per_sample["accuracy"].mean() == 0.75
    assert result.model_average["accuracy"] == 1
    assert result.model_average["log_likelihood"] > result.per_sample["log_likelihood"].mean()  # Jensen


def test_precision_follows_the_probability():
    for dtype in (np.float32, np.float64):
        result = evaluate(np.array([0.0, 1.0], dtype), [1, 1])
        np.testing.assert_allclose(result.model_average["log_likelihood"], np.log(np.finfo(dtype).eps) / 2, rtol=1e-6)
    tiny = evaluate([1e-12], [1]).model_average["log_likelihood"]
    np.testing.assert_allclose(tiny, np.log(1e-12), rtol=1e-14)
    data = random_data()
    single = evaluate(**data | {"probability": data["probability"].astype(np.float32)})
    for name, value in evaluate(**data).per_sample.items():
        np.testing.assert_allclose(single.per_sample[name], value, rtol=1e-5, atol=1e-6)
        assert single.per_sample[name].dtype == np.float64


def test_the_threshold_itself_predicts_0():
    assert evaluate([0.5, 0.25], [0, 0]).model_average["accuracy"] == 1
    assert evaluate([0.5, 0.25], [1, 1], threshold=0.2).model_average["accuracy"] == 1


def test_hard_predictions_and_pandas_columns():
    import pandas as pd

    hard = evaluate(pd.Series([True, False, True]), pd.Series([1, 0, 0]), sensitive=pd.Series([True, False, False]))
    assert hard.model_average["accuracy"] == 2 / 3
    assert hard.model_average["cv_score"] == 0.5


def test_undefined_rates_are_nan():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = evaluate([[0.9, 0.8, 0.1]] * 2, [1, 1, 0], sensitive=[0, 1, 1], rule=[1, 0, 1])
        table = result.table()
    for name in ("equalized_odds_difference", "rule_2_violation"):
        assert np.isnan(result.per_sample[name]).all()
        assert np.isnan(result.model_average[name])
        assert table.loc[name].isna().all()
    assert result.model_average["cv_score"] == 0.5
    assert result.model_average["rule_violation"] == result.model_average["rule_1_violation"] == 0.5


def test_table():
    result = evaluate(**HAND)
    table = result.table()
    assert list(table.columns) == ["mean", "sd", "worst", "model average"]
    assert list(table.index) == list(result.per_sample)
    np.testing.assert_allclose(table.loc["accuracy"], [0.75, np.sqrt(0.125), 0.5, 1])
    assert table.loc["log_likelihood", "worst"] == result.per_sample["log_likelihood"].min()
    assert table.loc["cv_score", "worst"] == 1
    np.testing.assert_allclose(table.loc["covariance", "worst"], -0.0625)  # the other is 0.0125
    assert np.isnan(evaluate([0.3], [1]).table().loc["accuracy", "sd"])


def test_text():
    text = str(evaluate(**random_data()))
    assert text.startswith("Evaluation of 3 × 4 samples\n")
    assert "rule_2_violation" in text
    assert repr(evaluate([0.3], [1])).startswith("Evaluation of one predictor\n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"probability": np.full((2, 4), 1.5)},
            r"probability must lie in \[0, 1\]; got values from 1.5 to 1.5.*sigmoid",
        ),
        ({"probability": np.full(4, -0.1)}, r"probability must lie in \[0, 1\]"),
        ({"probability": [[0.5, 0.5, 0.5, np.nan], [0.5] * 4]}, "probability has NaN in 1 of 2 samples"),
        ({"probability": 0.5}, r"probability needs at least one sample and one row.*got shape \(\)"),
        ({"probability": []}, r"at least one sample and one row.*got shape \(0,\)"),
        ({"probability": np.zeros((0, 4))}, r"at least one sample and one row.*got shape \(0, 4\)"),
        ({"probability": ["high"] * 4}, "probability is no array of numbers"),
        ({"probability": [[0.5], [0.5, 0.5]]}, "probability is no array of numbers"),
        ({"label": [0, 1, 1]}, r"label must have shape \(4,\).*got \(3,\)"),
        ({"label": np.zeros((4, 1))}, r"label must have shape \(4,\).*got \(4, 1\)"),
        ({"label": [-1, 1, 1, -1]}, r"label must hold only the values \(0, 1\); 2 of 4 .* the first is -1"),
        ({"label": [0, 1, np.nan, 1]}, "label must hold only .* the first is nan"),
        ({"label": ["no", "yes", "yes", "no"]}, "label must hold numbers"),
        ({"sensitive": [0, 1]}, r"sensitive must have shape \(4,\)"),
        ({"sensitive": [1, 2, 1, 2]}, r"sensitive must hold only the values \(0, 1\)"),
        ({"sensitive": [1, 1, 1, 1]}, "sensitive has one value: a difference between groups needs two"),
        ({"rule": [0, 0, 0, 0]}, "rule touches no row"),
        ({"rule": [0, 1, 2, 3]}, r"rule must hold only the values \(0, 1, 2\); 1 of 4 entries .* the first is 3"),
        ({"rule": [1]}, r"rule must have shape \(4,\)"),
        ({"threshold": 0.0}, "threshold must lie strictly between 0 and 1; got 0.0"),
        ({"threshold": 1}, "threshold must lie strictly between 0 and 1; got 1"),
        ({"bins": 0}, "bins must be a whole number, at least 1; got 0"),
        ({"bins": 2.5}, "bins must be a whole number"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        evaluate(**HAND | change)


def test_binomial_interval():
    np.testing.assert_allclose(binomial_interval(0, 10), (0, 0.2775328), atol=1e-7)
    np.testing.assert_allclose(binomial_interval(81, 263), (0.2553, 0.3662), atol=5e-5)  # Newcombe (1998), method 3
    for k, n, level in ((0, 1, 0.95), (1, 1, 0.95), (3, 7, 0.5), (7, 7, 0.99), (12, 15060, 0.9)):
        expected = binomtest(k, n).proportion_ci(level, method="wilson")
        np.testing.assert_allclose(binomial_interval(k, n, level), expected, atol=1e-12)
    assert binomial_interval(0, 3)[0] == 0
    assert binomial_interval(3, 3)[1] == 1
    assert binomial_interval(np.float64(2.0), np.int64(10)) == binomial_interval(2, 10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 0), "rows must be at least 1"),
        ((-1, 3), "violations must lie between 0 and rows = 3; got -1"),
        ((4, 3), "violations must lie between 0 and rows = 3; got 4"),
        ((0.3, 10), "violations and rows must be whole; got 0.3 and 10. Pass counts, not shares"),
        ((2.5, 10), "must be whole; got 2.5 and 10"),
        ((1, 2.5), "must be whole; got 1 and 2.5"),
        ((1, float("inf")), "must be whole"),
        ((1, float("nan")), "violations must lie between"),
        ((1, 3, 95), "level must lie strictly between 0 and 1"),
    ],
)
def test_binomial_interval_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        binomial_interval(*arguments)
