"""Labels of the part of the set that a draw is in, from the user's `component_fn`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ogradient.interrupts import Interrupts
from ogradient.problem.functions import Position, calling
from ogradient.status import warn
from ogradient.trace import Trace


def check_component(component_fn: Callable[[Position], Any], positions: Position, ensemble: bool) -> None:
    """Look at the user's function on one position, before the run."""
    position = jax.tree.map(lambda leaf: leaf[0, 0] if ensemble else leaf[0], positions)
    with calling("component_fn", position):
        label = jax.eval_shape(component_fn, position)
    if not isinstance(label, jax.ShapeDtypeStruct) or label.shape != () or label.dtype.kind not in "biuf":
        raise ValueError(f"component_fn must return one number or truth value for one position; got {label}.")


def label_components(trace: Trace, component_fn: Callable[[Position], Any], interrupts: Interrupts) -> None:
    """The component of every draw, unless the user's function fails: that costs its labels and not the draws."""
    try:
        with interrupts.allowed():
            trace.sample_stats["component"] = np.asarray(trace.apply(component_fn))
    except (Exception, KeyboardInterrupt) as error:
        warn(
            f"component_fn ended in {type(error).__name__}: {str(error) or 'no message'}. The draws are whole, without their "
            'components; trace.sample_stats["component"] = trace.apply(component_fn) adds them.',
            RuntimeWarning,
        )
