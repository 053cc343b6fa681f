"""How well sampled binary predictors predict, and how far they break a fairness or a logic constraint."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    import pandas as pd

BLOCK = 2**20  # probabilities held in float64 at a time: 8 MiB per temporary; larger blocks are no faster
# Of every other metric 0 is best.
HIGHER_IS_BETTER = ("accuracy", "log_likelihood", "auroc_probability", "auroc_entropy", "auroc_logit")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What `evaluate` found; print it. Both dicts have the same names, which `evaluate` explains.

    `per_sample` has one array per metric, of the leading shape of the probabilities; `model_average` one number.
    """

    per_sample: dict[str, np.ndarray]
    model_average: dict[str, float]

    def table(self) -> pd.DataFrame:
        """One row per metric: mean, sd and worst over the samples, and the value of the model average.

        `sd` divides by samples − 1, and is NaN for one sample. `worst` is the lowest accuracy and log likelihood, and of
        every other metric the value farthest from 0, with its sign.

        >>> from ogradient.evaluation import evaluate
        >>> print(evaluate([[0.9, 0.2], [0.4, 0.3]], [1, 0]).table().loc["accuracy"].round(3).to_dict())
        {'mean': 0.75, 'sd': 0.354, 'worst': 0.5, 'model average': 1.0}
        """
        import pandas as pd

        rows = {}
        for name, values in self.per_sample.items():
            badness = -values if name in HIGHER_IS_BETTER else np.abs(values)
            rows[name] = {
                "mean": values.mean(),
                "sd": values.std(ddof=1) if values.size > 1 else np.nan,
                "worst": values.flat[badness.argmax()],
                "model average": self.model_average[name],
            }
        return pd.DataFrame.from_dict(rows, orient="index")

    def __str__(self) -> str:
        shape = self.per_sample["accuracy"].shape
        who = f"{' × '.join(map(str, shape))} samples" if shape else "one predictor"
        return f"Evaluation of {who}\n{self.table().to_string(float_format='{:.4g}'.format)}"

    __repr__ = __str__


def evaluate(
    probability: ArrayLike,
    label: ArrayLike,
    *,
    sensitive: ArrayLike | None = None,
    rule: ArrayLike | None = None,
    threshold: float = 0.5,
    bins: int = 15,
) -> Evaluation:
    """Metrics of binary predictors, for every posterior sample and for the model average.

    The model average predicts with the mean of the probabilities over all samples. Its metrics are not the means of the
    samples' metrics. With n rows, p = p(y = 1), ŷ = 1 where p > threshold and else 0:

    - `accuracy`: share of rows with ŷ = y.
    - `log_likelihood`: (1/n) Σ [y log p + (1 − y) log(1 − p)], with p clipped to [ε, 1 − ε], ε the machine precision of
      the dtype of `probability`. It is minus scikit-learn's `log_loss`.
    - `calibration_error`: Σ_b (n_b/n) |mean p − mean y within bin b|, over bins of p of width 1/bins on [0, 1]; a bin
      holds its lower edge, the last one also p = 1. It bins p(y = 1), not the probability of the predicted class.

    With `sensitive` s:

    - `cv_score`: |p(ŷ = 1 | s = 0) − p(ŷ = 1 | s = 1)|, of Calders and Verwer (2010). For two groups this is the
      demographic parity difference.
    - `equalized_odds_difference`: max over y = 0, 1 of |p(ŷ = 1 | y, s = 0) − p(ŷ = 1 | y, s = 1)|. NaN where a group has
      no row of one label, since its rate is then undefined.
    - `covariance`: (1/n) Σ (s − mean s) p, with its sign: the soft form of demographic parity.

    With `rule`:

    - `rule_1_violation`, `rule_2_violation`: share of the rows of that rule predicted against it; NaN for a rule without
      rows. `binomial_interval` gives its uncertainty where rows are few.
    - `rule_violation`: the mean of the two, over rules that have rows.

    Args:
        probability: p(y = 1), of shape (..., rows); all axes before the last are samples, as in the (chain, draw, rows)
            of `trace.apply`. A 1-d array is one predictor.
        label: y of shape (rows,), 0 or 1.
        sensitive: s of shape (rows,), 0 or 1, both present.
        rule: shape (rows,): 0 for no rule, 1 for "must be predicted 0" (reject), 2 for "must be predicted 1" (approve).
        threshold: above which probability 1 is predicted.
        bins: of the calibration error.

    >>> from ogradient.evaluation import evaluate
    >>> probability = [[0.9, 0.8, 0.1, 0.2], [0.7, 0.4, 0.6, 0.4]]
    >>> result = evaluate(probability, [1, 1, 0, 0], sensitive=[0, 1, 0, 1], rule=[0, 2, 1, 0])
    >>> result.per_sample["accuracy"].tolist(), result.model_average["accuracy"]
    ([1.0, 0.5], 1.0)
    >>> result.per_sample["cv_score"].tolist(), result.per_sample["rule_violation"].tolist()
    ([0.0, 1.0], [0.0, 1.0])
    """
    p = _probabilities(probability)
    rows = p.shape[-1]
    if not 0 < threshold < 1:
        raise ValueError(f"threshold must lie strictly between 0 and 1; got {threshold}.")
    if bins < 1 or bins != int(bins):
        raise ValueError(f"bins must be a whole number, at least 1; got {bins}.")
    y = _column("label", label, rows, (0, 1))
    s = None if sensitive is None else _column("sensitive", sensitive, rows, (0, 1))
    rules = None if rule is None else _column("rule", rule, rows, (0, 1, 2))
    if s is not None and np.ptp(s) == 0:
        why = f"sensitive has one value: a difference between groups needs two; all {rows} rows are {s[0]:g}."
        raise ValueError(f"{why} Evaluate on rows of both groups, or leave sensitive out.")
    if rules is not None and not rules.any():
        raise ValueError(f"rule touches no row: all {rows} entries are 0. Mark rows with 1 or 2, or leave rule out.")

    metrics = partial(_metrics, y, s, rules, threshold, int(bins), float(np.finfo(p.dtype).eps))
    samples, step = p.reshape(-1, rows), max(1, BLOCK // rows)
    blocks = [metrics(samples[i : i + step].astype(np.float64)) for i in range(0, len(samples), step)]
    average = metrics(samples.mean(axis=0, keepdims=True, dtype=np.float64))
    return Evaluation(
        {name: np.concatenate([block[name] for block in blocks]).reshape(p.shape[:-1]) for name in average},
        {name: float(value[0]) for name, value in average.items()},
    )


def binomial_interval(violations: int, rows: int, level: float = 0.95) -> tuple[float, float]:
    """The Wilson score interval of a share: how far few rows determine a rate of violations.

    With k violations in n rows, r = k/n and z the normal quantile at (1 + level)/2, the ends are
    (r + z²/2n ± z √(r(1 − r)/n + z²/4n²)) / (1 + z²/n). It stays in [0, 1] and has a width also where k = 0.
    Both are counts, so whole numbers. A mean of counts over draws has to be rounded first, and the interval is then that of
    one predictor with that count; the spread over draws is not in it.

    >>> from ogradient.evaluation import binomial_interval
    >>> low, high = binomial_interval(0, 10)
    >>> round(low, 4), round(high, 4)
    (0.0, 0.2775)
    """
    if rows < 1:
        raise ValueError(f"rows must be at least 1; got {rows}. Without rows a share is undefined.")
    if not 0 <= violations <= rows:
        raise ValueError(f"violations must lie between 0 and rows = {rows}; got {violations}. Pass counts, not shares.")
    if not (float(violations).is_integer() and float(rows).is_integer()):
        raise ValueError(f"violations and rows must be whole; got {violations} and {rows}. Pass counts, not shares.")
    if not 0 < level < 1:
        raise ValueError(f"level must lie strictly between 0 and 1, e.g. 0.95; got {level}.")
    z, r = NormalDist().inv_cdf((1 + level) / 2), violations / rows
    center, scale = r + z**2 / (2 * rows), 1 + z**2 / rows
    half = z * math.sqrt(r * (1 - r) / rows + z**2 / (4 * rows**2))
    # Exact at the ends, where rounding would show.
    low = 0.0 if violations == 0 else (center - half) / scale
    high = 1.0 if violations == rows else (center + half) / scale
    return low, high


def _metrics(
    y: np.ndarray,
    s: np.ndarray | None,
    rule: np.ndarray | None,
    threshold: float,
    bins: int,
    smallest: float,
    p: np.ndarray,
) -> dict[str, np.ndarray]:
    """All metrics of p, of shape (samples, rows) and float64: arrays of shape (samples,)."""
    samples, rows = p.shape
    positive = (p > threshold).astype(np.float64)

    def rate(mask: np.ndarray) -> np.ndarray:
        """p(ŷ = 1 | mask), counted exactly, since sums of 0 and 1 do not round."""
        size = mask.sum()
        return _dot(positive, mask.astype(np.float64)) / size if size else np.full(samples, np.nan)

    cell = np.minimum((p * bins).astype(np.intp), bins - 1) + bins * np.arange(samples)[:, None]
    gap = np.bincount(cell.ravel(), (p - y).ravel(), minlength=samples * bins).reshape(samples, bins)
    metrics = {
        "accuracy": (_dot(positive, 2 * y - 1) + (rows - y.sum())) / rows,  # Σ [ŷ y + (1 − ŷ)(1 − y)] / n
        "log_likelihood": np.log(np.clip(np.abs(p + (y - 1)), smallest, 1 - smallest)).mean(axis=1),
        "calibration_error": np.abs(gap).sum(axis=1) / rows,
    }
    if s is not None:
        odds = [np.abs(rate((y == value) & (s == 0)) - rate((y == value) & (s == 1))) for value in (0, 1)]
        metrics["cv_score"] = np.abs(rate(s == 0) - rate(s == 1))
        # In a maximum NaN stays NaN.
        metrics["equalized_odds_difference"] = np.maximum(*odds)
        metrics["covariance"] = _dot(p, s - s.mean()) / rows
    if rule is not None:
        broken = [rate(rule == 1), 1 - rate(rule == 2)]
        metrics |= {"rule_1_violation": broken[0], "rule_2_violation": broken[1]}
        metrics["rule_violation"] = np.nanmean(broken, axis=0)
    return metrics


def _dot(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Matrix times vector on one thread: BLAS threads wait for cores that a sampler keeps busy, and take four times longer."""
    return np.einsum("ij,j->i", matrix, vector)


def _probabilities(probability: ArrayLike) -> np.ndarray:
    """The probabilities as a floating-point array of their own precision, checked."""
    try:
        p = np.asarray(probability)
        p = p if np.issubdtype(p.dtype, np.floating) else p.astype(np.float64)
    except (TypeError, ValueError) as error:
        what = f"probability is no array of numbers: {error}"
        raise ValueError(f"{what}. Pass p(label = 1), shape (..., rows).") from error
    if p.ndim == 0 or p.size == 0:
        raise ValueError(f"probability needs at least one sample and one row, shape (..., rows); got shape {p.shape}.")
    # These are NaN if any probability is.
    low, high = p.min(), p.max()
    if np.isnan(low):
        bad = np.isnan(p).any(axis=-1)
        raise ValueError(f"probability has NaN in {bad.sum()} of {bad.size} samples; find out why, or drop those.")
    if low < 0 or high > 1:
        got = f"got values from {low} to {high}"
        raise ValueError(f"probability must lie in [0, 1]; {got}. Pass logits through a sigmoid first.")
    return p


def _column(name: str, value: ArrayLike, rows: int, allowed: tuple[int, ...]) -> np.ndarray:
    """One entry per row, checked, as float64."""
    try:
        column = np.asarray(value).astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must hold numbers, one of {allowed} per row: {error}.") from error
    if column.shape != (rows,):
        raise ValueError(f"{name} must have shape ({rows},), one entry per row of probability; got {column.shape}.")
    strange = column[~np.isin(column, allowed)]
    if strange.size:
        others = f"{strange.size} of {rows} entries are others, the first is {strange[0]:g}"
        raise ValueError(f"{name} must hold only the values {allowed}; {others}. Recode or drop them.")
    return column
