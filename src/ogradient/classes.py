"""Metrics of classifiers with several classes, per posterior sample and for the model average: errors, calibration, strangers."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ogradient.evaluation import Evaluation

SCORES = ("auroc_probability", "auroc_entropy", "auroc_logit")


def evaluate_classes(
    logits: ArrayLike, label: ArrayLike, *, outside: ArrayLike | None = None, bins: int = 15
) -> Evaluation:
    """Metrics of classifiers, for every posterior sample and for the model average.

    The model average predicts with the mean of the probabilities p = softmax(logits) over all samples. With n rows, ŷ the most
    probable class and q its probability:

    - `accuracy`: share of rows with ŷ = y.
    - `log_likelihood`: (1/n) Σ log p_y; minus this is the NLL.
    - `calibration_error`: ECE, Σ_b (n_b/n) |share of ŷ = y − mean q within bin b|, over bins of q of width 1/bins.
    - `brier`: (1/n) Σ Σ_c (p_c − [y = c])².

    With `outside`, logits of rows that belong to no class, the area under the ROC curve when rows are told apart by

    - `auroc_probability`: q; `auroc_entropy`: −Σ p log p; `auroc_logit`: the largest logit (of the average: of the mean logits).

    It is the probability that a row of the classes scores as surer than one from outside; ½ is no better than chance.

    Args:
        logits: of shape (..., rows, classes), as in the (chain, draw, rows, classes) of `trace.apply`: samples first.
        label: y of shape (rows,), whole numbers from 0 to classes − 1.
        outside: logits of other rows, (..., other rows, classes).
        bins: of the calibration error.

    >>> import numpy as np, ogradient as og
    >>> logits = np.log([[[0.8, 0.1, 0.1], [0.2, 0.5, 0.3]], [[0.6, 0.3, 0.1], [0.2, 0.2, 0.6]]])     # 2 samples, 2 rows
    >>> result = og.evaluate_classes(logits, [0, 1], outside=np.zeros((2, 4, 3)))
    >>> result.per_sample["accuracy"].tolist(), result.model_average["accuracy"]
    ([1.0, 0.5], 0.5)
    >>> result.model_average["auroc_entropy"]
    1.0
    """
    z = _logits("logits", logits)
    rows, classes = z.shape[-2:]
    y = np.asarray(label)
    if y.shape != (rows,) or not np.issubdtype(y.dtype, np.integer):
        raise ValueError(f"label must be whole numbers of shape ({rows},), one per row; got {y.dtype} {y.shape}.")
    if y.min() < 0 or y.max() >= classes:
        raise ValueError(
            f"label must lie between 0 and {classes - 1}, the classes of logits; got {y.min()} to {y.max()}."
        )
    if bins < 1 or bins != int(bins):
        raise ValueError(f"bins must be a whole number, at least 1; got {bins}.")
    other = None if outside is None else _logits("outside", outside)
    if other is not None and (other.shape[:-2] != z.shape[:-2] or other.shape[-1] != classes):
        raise ValueError(f"outside must have the samples and classes of logits, {z.shape}; got {other.shape}.")

    lead = z.shape[:-2]
    z = z.reshape(-1, *z.shape[-2:])
    other = None if other is None else other.reshape(-1, *other.shape[-2:])
    samples, strangers = _Mean(), _Mean()
    metrics, hits = [], []
    for i, mine in enumerate(z):
        hits.append(log_softmax(mine)[np.arange(rows), y])
        found = _metrics(samples.add(mine), hits[-1], y, int(bins))
        if other is not None:
            found |= _strangers(softmax(mine), strangers.add(other[i]), mine, other[i])
        metrics.append(found)
    mean_hit = np.logaddexp.reduce(hits, axis=0) - np.log(len(hits))
    average = _metrics(samples.probability, mean_hit, y, int(bins))
    if other is not None:
        average |= _strangers(samples.probability, strangers.probability, samples.logit, strangers.logit)
    return Evaluation({name: np.reshape([m[name] for m in metrics], lead) for name in average}, average)


class _Mean:
    """Means of probabilities and of logits over samples, one after the other: all of them at once may not fit in memory."""

    def __init__(self) -> None:
        self.count, self._probability, self._logit = 0, np.zeros(()), np.zeros(())

    def add(self, logits: np.ndarray) -> np.ndarray:
        """One more sample; its probabilities."""
        p = softmax(logits)
        self.count, self._probability, self._logit = self.count + 1, self._probability + p, self._logit + logits
        return p

    @property
    def probability(self) -> np.ndarray:
        return self._probability / self.count

    @property
    def logit(self) -> np.ndarray:
        return self._logit / self.count


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities of the last axis, in double precision."""
    z = np.asarray(logits, np.float64)
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Logarithms of the probabilities, in double precision: finite where the probabilities themselves underflow."""
    z = np.asarray(logits, np.float64)
    z = z - z.max(axis=-1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def auroc(inside: np.ndarray, outside: np.ndarray) -> float:
    """The probability that a number of `inside` is larger than one of `outside`, ties counting half."""
    values, index, counts = np.unique(np.concatenate([inside, outside]), return_inverse=True, return_counts=True)
    del values
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[index.ravel()]  # from 1, the mean over ties
    n, m = len(inside), len(outside)
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * m))


def reliability(
    probability: np.ndarray, label: np.ndarray, bins: int = 15
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bin by bin of the largest probability: mean confidence, share of right answers, number of rows."""
    confidence, right = probability.max(axis=-1), probability.argmax(axis=-1) == label
    cell = np.minimum((confidence * bins).astype(np.intp), bins - 1)
    count = np.bincount(cell, minlength=bins)
    size = np.maximum(count, 1)
    return np.bincount(cell, confidence, bins) / size, np.bincount(cell, right, bins) / size, count


def entropy(probability: np.ndarray) -> np.ndarray:
    """−Σ p log p over the last axis."""
    return -np.sum(probability * np.log(np.maximum(probability, np.finfo(float).tiny)), axis=-1)


def _metrics(p: np.ndarray, log_hit: np.ndarray, y: np.ndarray, bins: int) -> dict[str, float]:
    """Metrics of one predictor: its probabilities, and the logarithms of those of the right classes."""
    confidence, share, count = reliability(p, y, bins)
    hit = p[np.arange(len(y)), y]
    return {
        "accuracy": float(np.mean(p.argmax(axis=1) == y)),
        "log_likelihood": float(log_hit.mean()),
        "calibration_error": float(np.sum(count * np.abs(share - confidence)) / len(y)),
        "brier": float((np.sum(p**2, axis=1) - 2 * hit + 1).mean()),
    }


def _strangers(p: np.ndarray, p_other: np.ndarray, z: np.ndarray, z_other: np.ndarray) -> dict[str, float]:
    sure = (lambda p, z: p.max(axis=1), lambda p, z: -entropy(p), lambda p, z: z.max(axis=1))
    return {name: auroc(score(p, z), score(p_other, z_other)) for name, score in zip(SCORES, sure, strict=True)}


def _logits(name: str, given: ArrayLike) -> np.ndarray:
    z = np.asarray(given)
    if z.ndim < 2 or z.size == 0 or z.shape[-1] < 2 or z.dtype.kind not in "fiu":
        raise ValueError(
            f"{name} needs numbers of shape (..., rows, classes), of at least two classes; got {z.dtype} {z.shape}."
        )
    if not np.isfinite(z).all():
        raise ValueError(f"{name} has NaN or infinite numbers; find out why, or drop those samples.")
    return z
