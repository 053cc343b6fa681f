"""Networks for the experiment on images, as plain functions of a dict of arrays: a ResNet-18 for 32 × 32 pixels, a small one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ogradient.problem.functions import Position

STAGES = ((1, 1), (2, 2), (4, 2), (8, 2))  # channels over those of the first layer, stride
BLOCKS = 2  # in each stage: 1 + 4 · 2 · 2 + 1 = 18 layers with weights, and three shortcuts
EPSILON = 1e-5  # added to variances before their root
Averages = list[tuple[Array, Array]]  # means and variances of every normalisation


class Network(NamedTuple):
    """A classifier of images. Weights are float32; products are computed in `dtype`."""

    start: Callable[[Array], Position]
    logits: Callable[..., Array]  # (weights, images, averages=None): None takes those of the batch
    averages: Callable[[Position, Array], Averages]  # of a batch


def resnet18(mean: np.ndarray, sd: np.ndarray, classes: int = 10, *, width: int = 64, dtype: Any = None) -> Network:
    """ResNet-18 as it is built for CIFAR: 3 × 3 first, no pooling before the end. Eleven million weights at width 64.

    Batch normalisation takes the mean and variance of the batch at hand, so that the weights are all there is to sample. For
    predictions they are computed once for the weights, over training images, and passed as `averages`.

    Args:
        mean: of the training images, a number for each channel, 0 to 255.
        sd: likewise.
        classes: how many.
        width: channels of the first stage.
        dtype: of the products; None is bfloat16 on accelerators, and float32 on a CPU.
    """
    chosen = dtype or (jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16)

    def start(key: Array) -> Position:
        return _resnet_weights(key, classes, width)

    def forward(p: Any, images: Array, averages: Averages | None) -> tuple[Array, Averages]:
        norm = _Normalisation(averages)
        h = ((images.astype(jnp.float32) - mean) / sd).astype(chosen)
        h = jax.nn.relu(norm(_convolve(h, p["first"]["conv"]), p["first"]))
        for name, stride in _block_names():
            block = p[name]
            inner = jax.nn.relu(norm(_convolve(h, block["one"]["conv"], stride), block["one"]))
            inner = norm(_convolve(inner, block["two"]["conv"]), block["two"])
            if "short" in block:
                h = norm(_convolve(h, block["short"]["conv"], stride), block["short"])
            h = jax.nn.relu(inner + h)
        pooled = jnp.mean(h.astype(jnp.float32), axis=(1, 2))
        return pooled @ p["last"]["w"] + p["last"]["b"][None], norm.seen

    return Network(
        start, lambda p, images, averages=None: forward(p, images, averages)[0], lambda p, x: forward(p, x, None)[1]
    )


def small(inputs: int, classes: int, *, hidden: int = 32, scale: float = 16.0) -> Network:
    """A network of two layers for small images of one channel, with batch normalisation between: for a CPU."""

    def start(key: Array) -> Position:
        first, last = jax.random.split(key)
        weights = {"conv": jax.random.normal(first, (inputs, hidden)) * (2 / inputs) ** 0.5}
        return {"first": weights | _affine(hidden), "last": _dense(last, hidden, classes)}

    def forward(p: Any, images: Array, averages: Averages | None) -> tuple[Array, Averages]:
        norm = _Normalisation(averages)
        h = images.reshape(images.shape[0], -1).astype(jnp.float32) / scale
        h = jax.nn.relu(norm((h @ p["first"]["conv"])[:, None, None], p["first"]))[:, 0, 0]
        return h @ p["last"]["w"] + p["last"]["b"][None], norm.seen

    return Network(
        start, lambda p, images, averages=None: forward(p, images, averages)[0], lambda p, x: forward(p, x, None)[1]
    )


def averages_over(network: Network, p: Position, images: Array, batch: int) -> Averages:
    """Means and variances of every normalisation over images, batch by batch."""
    parts = images[: len(images) // batch * batch].reshape(-1, batch, *images.shape[1:])
    found = lax.map(lambda part: network.averages(p, part), parts)
    return [(jnp.mean(mean, axis=0), jnp.mean(variance, axis=0)) for mean, variance in found]


def crop_and_flip(key: Array, images: Array, by: int = 4) -> Array:
    """Images (n, h, w, c) moved by up to `by` pixels each way, with black behind, half of them mirrored."""
    n, height, width, channels = images.shape
    shift_key, flip_key = jax.random.split(key)
    shifts = jax.random.randint(shift_key, (n, 2), 0, 2 * by + 1)
    flips = jax.random.bernoulli(flip_key, shape=(n,))
    padded = jnp.pad(images, ((0, 0), (by, by), (by, by), (0, 0)))

    def one(image: Array, shift: Array, flip: Array) -> Array:
        cut = lax.dynamic_slice(image, (shift[0], shift[1], 0), (height, width, channels))
        return jnp.where(flip, cut[:, ::-1], cut)

    return jax.vmap(one)(padded, shifts, flips)


class _Normalisation:
    """Batch normalisation, in the order in which it is called: by the batch, or by given averages."""

    def __init__(self, averages: Averages | None) -> None:
        self.given, self.seen = averages, list[tuple[Array, Array]]()

    def __call__(self, h: Array, affine: Any) -> Array:
        if self.given is None:
            values = h.astype(jnp.float32)
            mean = jnp.mean(values, axis=(0, 1, 2))
            variance = jnp.mean(values**2, axis=(0, 1, 2)) - mean**2
        else:
            mean, variance = self.given[len(self.seen)]
        self.seen.append((mean, variance))
        factor = affine["scale"] * lax.rsqrt(jnp.maximum(variance, 0) + EPSILON)
        shift = affine["shift"] - mean * factor
        return h * factor.astype(h.dtype)[None, None, None] + shift.astype(h.dtype)[None, None, None]


def _convolve(h: Array, w: Array, stride: int = 1) -> Array:
    return lax.conv_general_dilated(
        h,
        w.astype(h.dtype),
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "OHWI", "NHWC"),
        precision=lax.Precision.DEFAULT,  # what bfloat16 has is all there is
    )


def _block_names() -> list[tuple[str, int]]:
    return [
        (f"stage{stage}_block{block}", stride if block == 0 else 1)
        for stage, (_, stride) in enumerate(STAGES, 1)
        for block in range(BLOCKS)
    ]


def _resnet_weights(key: Array, classes: int, width: int) -> Position:
    keys = iter(jax.random.split(key, 64))

    def layer(size: int, inside: int, outside: int) -> dict[str, Array]:
        spread = (2 / (size * size * inside)) ** 0.5
        return {"conv": spread * jax.random.normal(next(keys), (outside, size, size, inside))} | _affine(outside)

    weights: dict[str, Any] = {"first": layer(3, 3, width)}
    before = width
    for (factor, _), names in zip(STAGES, np.reshape([n for n, _ in _block_names()], (-1, BLOCKS)), strict=True):
        channels = factor * width
        for name in names:
            block = {"one": layer(3, before, channels), "two": layer(3, channels, channels)}
            if before != channels:
                block["short"] = layer(1, before, channels)
            weights[str(name)], before = block, channels
    weights["last"] = _dense(next(keys), before, classes)
    return weights


def _affine(channels: int) -> dict[str, Array]:
    return {"scale": jnp.ones(channels), "shift": jnp.zeros(channels)}


def _dense(key: Array, inside: int, outside: int) -> dict[str, Array]:
    return {"w": jax.random.normal(key, (inside, outside)) / inside**0.5, "b": jnp.zeros(outside)}
