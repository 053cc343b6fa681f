"""What networks on images are worth: their records, the table, reliability diagrams and how sure they are of strange images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import Array, lax

from ogradient.classes import evaluate_classes, reliability, softmax
from ogradient.experiments.networks import Network, averages_over
from ogradient.experiments.training import digits as shortened
from ogradient.images import ImageDataset
from ogradient.plots import COLOURS, new_figure
from ogradient.problem.functions import Position

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = {  # its table of CIFAR-10: test error, calibration error, AUROC, in percent
    "sgld": (15.00, 2.21, 89.41),
    "tempered_sgld": (4.73, 0.83, 97.63),
    "o_langevin": (4.46, 0.87, 98.68),
    "svgd": (6.11, 0.93, 93.55),
    "o_svgd": (4.92, 0.77, 94.69),
}
PAPER_DIFFERS = (
    "The paper's numbers are not of the same algorithm. Its released code projects each parameter tensor by itself, does not "
    "divide the pull by ‖∇g‖², and adds what the projection leaves of the potential's gradient where it should subtract it. So "
    "its O-Langevin is SGD with a rate of ηα = 1e-4 · 1000 = 0.1 and weight decay, without momentum, plus noise; batches of 64, "
    "200 epochs. Here it is the method as written, without second derivatives, with a bound on the pull and a memory of moves."
)
AVERAGED = 10_000  # training images over which the averages of batch normalisation are taken
TOGETHER = 500  # images whose predictions are computed together
BINS = 15
FEW = 10  # images


def judge(dataset: ImageDataset, network: Network, networks: Position) -> dict[str, Any]:
    """What networks are worth, each and together, on the test images and against those from outside."""
    known = dataset.train.image[: min(AVERAGED, len(dataset.train))]
    batch = min(TOGETHER, len(known))

    @jax.jit
    def predict(p: Position, known: Array, images: Array) -> Array:
        averages = averages_over(network, p, known, batch)
        return lax.map(lambda image: network.logits(p, image[None], averages)[0], images, batch_size=TOGETHER)

    assert dataset.outside is not None
    count = len(jax.tree.leaves(networks)[0])
    one = lambda i: jax.tree.map(lambda leaf: leaf[i], networks)
    logits, strange = (
        np.stack([np.asarray(predict(one(i), known, part.image)) for i in range(count)])
        for part in (dataset.test, dataset.outside)
    )
    found = evaluate_classes(logits, dataset.test.label, outside=strange, bins=BINS)
    mean = softmax(logits).mean(axis=0)
    edges = np.linspace(0, 1, 41)
    shares = {
        name: (np.histogram(p.max(axis=1), edges)[0] / len(p)).tolist()
        for name, p in (("inside", mean), ("outside", softmax(strange).mean(axis=0)))
    }
    return {
        "particles": {name: shortened(values) for name, values in found.per_sample.items()},
        "average": found.model_average,
        "reliability": [shortened(part) for part in reliability(mean, dataset.test.label, BINS)],
        "confidence": shares,
    }


def row(name: str, records: Sequence[Mapping[str, Any]], *, paper: bool) -> dict[str, Any]:
    """One line of the table, in percent: the average of all particles, and the range of single ones.

    Of several records, one for each seed, a cell has their mean and their range.
    """
    values = lambda key: np.asarray([record["average"][key] for record in records])
    single = lambda key: 100 * np.concatenate([record["particles"][key] for record in records])
    spread = lambda found: f"{found.min():.2f}–{found.max():.2f}"
    speeds = [record["images per second"] for record in records if record["images per second"] is not None]
    line = {
        "sampler": name,
        "error": _over_seeds(100 * (1 - values("accuracy"))),
        "ECE": _over_seeds(100 * values("calibration_error")),
        "AUROC": _over_seeds(100 * values("auroc_probability")),
        "by entropy": _over_seeds(100 * values("auroc_entropy")),
        "by logit": _over_seeds(100 * values("auroc_logit")),
        "NLL": _over_seeds(-values("log_likelihood"), 3),
        "Brier": _over_seeds(values("brier"), 3),
        "single: error": spread(100 - single("accuracy")),
        "single: AUROC": spread(single("auroc_probability")),
        "images/s": max(speeds, default=None),
    }
    if paper:
        line["paper: error, ECE, AUROC"] = " / ".join(f"{v:.2f}" for v in PAPER[name]) if name in PAPER else "–"
    return line


def _over_seeds(values: np.ndarray, places: int = 2) -> float | str:
    """A number, or the mean of several and their range."""
    if len(values) == 1:
        return float(values[0])
    return f"{values.mean():.{places}f} ({values.min():.{places}f}–{values.max():.{places}f})"


def draw(records: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Reliability of the model average above, and how sure it is of test images and of strange ones below.

    The share of right answers among a few images is mostly chance: those bars are hollow.
    """
    figure, axes = new_figure(2, len(records), width=2.6, height=2.4)
    least = min(min(v for v in values if v > 0) for r in records.values() for values in r["confidence"].values())
    for column, (name, record) in enumerate(records.items()):
        above, below = axes[:, column]
        confidence, share, count = (np.asarray(part, float) for part in record["reliability"])
        above.plot([0, 1], [0, 1], color="0.6", linewidth=1)
        for used, filled in ((count >= FEW, True), ((count > 0) & (count < FEW), False)):
            style: dict[str, Any] = {"color": COLOURS[0], "alpha": 0.35}
            style = style if filled else style | {"fill": False, "linewidth": 0.8}
            above.bar((np.arange(BINS)[used] + 0.5) / BINS, share[used], width=0.9 / BINS, **style)
        many = count >= FEW
        above.plot(confidence[many], share[many], "o-", color=COLOURS[0], markersize=3, linewidth=1)
        above.set_title(name, fontsize=9)
        above.set_xlabel("confidence", fontsize=8)
        edges = np.linspace(0, 1, len(record["confidence"]["inside"]) + 1)
        for label, colour in (("inside", COLOURS[0]), ("outside", COLOURS[1])):
            below.stairs(record["confidence"][label], edges, color=colour, fill=True, alpha=0.4, label=label)
        below.set_yscale("log")
        below.set_ylim(0.7 * least, 1.3)
        below.set_xlabel("largest probability", fontsize=8)
        if column == 0:
            above.set_ylabel("share of right answers", fontsize=8)
            below.set_ylabel("share of images", fontsize=8)
            below.legend(fontsize=7, frameon=False)
    return figure
