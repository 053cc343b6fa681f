"""What a run shows while it goes on."""

from __future__ import annotations

from types import TracebackType
from typing import Any


class ProgressBar:
    """A bar on the terminal, for runs over a second."""

    def __init__(self, total: int, done: int, name: str, step_size: Any, *, show: bool) -> None:
        from tqdm.auto import tqdm

        label = name if step_size is None or callable(step_size) else f"{name}({step_size:.3g})"
        self.bar = tqdm(total=total, initial=done, desc=label, unit="step", disable=not show, delay=1.0, leave=False)
        self.bar.set_postfix_str("compiling")

    def update(self, steps: int, *, warmup: bool, largest: float | None, non_finite: int) -> None:
        """So many steps more, and how they went. `largest` is the largest |g| of the rows just kept."""
        self.bar.set_postfix_str(
            ("warm-up" if warmup else "sampling")
            + ("" if largest is None else f", max |g| {largest:.2g}")
            + (f", {non_finite} non-finite" if non_finite else "")
        )
        self.bar.update(steps)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.bar.close()


class TuningBar:
    """What tuning shows while it goes on, over a second: transitions of all chains, and with which settings."""

    def __init__(self, name: str, *, show: bool) -> None:
        from tqdm.auto import tqdm

        self.bar = tqdm(desc=f"tuning {name}", unit="transition", disable=not show, delay=1.0, leave=False)
        self.bar.set_postfix_str("compiling")

    def update(self, transitions: int, settings: str) -> None:
        """So many transitions more, with these settings."""
        self.bar.set_postfix_str(settings, refresh=False)
        self.bar.update(transitions)

    def __enter__(self) -> TuningBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.bar.close()
