"""Metrics of classifiers against scikit-learn's, and against sums by hand."""

import numpy as np
import pytest
from scipy.special import log_softmax as scipy_log_softmax
from scipy.special import logsumexp
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

import ogradient as og
from ogradient.classes import auroc, entropy, log_softmax, reliability, softmax

RNG = np.random.default_rng(0)
LABEL = RNG.integers(0, 4, 300)
LOGITS = (RNG.normal(size=(2, 3, 300, 4)) + 1.5 * np.eye(4)[LABEL]).astype(np.float32)
OUTSIDE = 0.7 * RNG.normal(size=(2, 3, 200, 4)).astype(np.float32)


def by_hand(logits, outside, mean_logits, mean_outside):
    p, q = logits, outside
    ece = 0.0
    for low in np.arange(15) / 15:
        inside = (p.max(1) >= low) & (p.max(1) < low + 1 / 15)
        if inside.any():
            ece += inside.mean() * abs(np.mean(p.argmax(1)[inside] == LABEL[inside]) - p.max(1)[inside].mean())
    truth = np.r_[np.ones(len(p)), np.zeros(len(q))]
    return {
        "accuracy": np.mean(p.argmax(1) == LABEL),
        "log_likelihood": -log_loss(LABEL, p, labels=range(4)),
        "calibration_error": ece,
        "brier": brier_score_loss(LABEL, p, labels=range(4), scale_by_half=False),
        "auroc_probability": roc_auc_score(truth, np.r_[p.max(1), q.max(1)]),
        "auroc_entropy": roc_auc_score(truth, -np.r_[entropy(p), entropy(q)]),
        "auroc_logit": roc_auc_score(truth, np.r_[mean_logits.max(1), mean_outside.max(1)]),
    }


def test_every_sample_and_the_average_are_as_scikit_learn_has_them():
    result = og.evaluate_classes(LOGITS, LABEL, outside=OUTSIDE)
    for i in np.ndindex(2, 3):
        for name, value in by_hand(softmax(LOGITS[i]), softmax(OUTSIDE[i]), LOGITS[i], OUTSIDE[i]).items():
            assert result.per_sample[name][i] == pytest.approx(value, abs=1e-6), name
    p, q = softmax(LOGITS).mean((0, 1)), softmax(OUTSIDE).mean((0, 1))
    expected = by_hand(p, q, LOGITS.mean((0, 1)), OUTSIDE.mean((0, 1)))
    assert result.model_average == pytest.approx(expected, abs=1e-6)
    assert set(result.table().columns) == {"mean", "sd", "worst", "model average"}
    assert "2 × 3 samples" in str(result)


@pytest.mark.parametrize("size", [1.0, 1e2, 1e4, 1e30])
def test_log_likelihoods_of_sure_and_wrong_samples_are_those_of_scipy(size):
    """Probabilities underflow at logits of −745; the mean's logarithm is that of the best sample."""
    logits = (size * RNG.normal(size=(5, 300, 4))).astype(np.float32)
    logits[0, :10] = 0.0
    exact = scipy_log_softmax(logits.astype(np.float64), axis=-1)
    np.testing.assert_allclose(log_softmax(logits), exact, rtol=1e-12, atol=1e-12)
    hit = exact[:, np.arange(300), LABEL]
    result = og.evaluate_classes(logits, LABEL)
    np.testing.assert_allclose(result.per_sample["log_likelihood"], hit.mean(axis=1), rtol=1e-12)
    average = (logsumexp(hit, axis=0) - np.log(5)).mean()
    assert result.model_average["log_likelihood"] == pytest.approx(average, rel=1e-12)
    assert size < 1e4 or hit.mean(axis=1).max() < -1000


def test_ties_count_half():
    inside, outside = np.array([1.0, 1.0, 2.0]), np.array([1.0, 0.0])
    assert auroc(inside, outside) == pytest.approx((0.5 + 1 + 0.5 + 1 + 1 + 1) / 6)
    assert auroc(np.ones(5), np.ones(3)) == 0.5


def test_bins_of_reliability_hold_all_rows_and_the_sure_ones_too():
    p = np.array([[1.0, 0.0], [0.5, 0.5], [0.2, 0.8]])
    confidence, share, count = reliability(p, np.array([0, 1, 1]), 10)
    assert count.sum() == 3
    assert (count[9], count[5], count[8]) == (1, 1, 1)
    assert (confidence[9], share[9], share[5], share[8]) == (1, 1, 0, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"logits": LOGITS[0, 0, 0]}, r"logits needs numbers of shape \(..., rows, classes\)"),
        ({"logits": np.full((2, 300, 4), np.nan)}, "logits has NaN"),
        ({"label": LABEL[:5]}, r"label must be whole numbers of shape \(300,\)"),
        ({"label": LABEL.astype(float)}, "label must be whole numbers"),
        ({"label": LABEL + 1}, "label must lie between 0 and 3"),
        ({"outside": OUTSIDE[0]}, "outside must have the samples and classes of logits"),
        ({"bins": 0}, "bins must be"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        og.evaluate_classes(**({"logits": LOGITS, "label": LABEL} | arguments))
