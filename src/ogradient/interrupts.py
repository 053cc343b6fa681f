"""Ctrl-C that comes at a bad moment waits for a good one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Interrupts:
    """Inside `with Interrupts() as interrupts:` Ctrl-C is held back; inside `interrupts.allowed()` the first one raises.

    After the first, further ones are held back again, so that no `except` or `finally` is broken off. `waiting` is how many
    were held back and have raised nothing yet. Signal handlers belong to the main thread: in other threads, and where a
    program has a handler of its own, nothing is changed. With `terminate` SIGTERM, by which schedulers end a job, is as Ctrl-C.
    """

    def __init__(self, *, terminate: bool = False) -> None:
        self.waiting, self._open = 0, False
        self._usual: dict[int, Any] = {signal.SIGINT: signal.default_int_handler}
        if terminate:
            self._usual[signal.SIGTERM] = signal.SIG_DFL

    def __enter__(self) -> Interrupts:
        main = threading.current_thread() is threading.main_thread()
        self._usual = {k: usual for k, usual in self._usual.items() if main and signal.getsignal(k) is usual}
        for which in self._usual:
            signal.signal(which, self._note)
        return self

    def __exit__(self, *_: Any) -> None:
        for which, usual in self._usual.items():
            signal.signal(which, usual)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Where Ctrl-C raises KeyboardInterrupt, at once if one is waiting."""
        try:
            self._open = True
            self._raise()
            yield
        finally:
            self._open = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """A part of what is allowed that must not be broken off: Ctrl-C raises at its end."""
        was, self._open = self._open, False
        try:
            yield
        finally:
            self._open = was
        self._raise()

    def _note(self, *_: Any) -> None:
        self.waiting += 1
        self._raise()

    def _raise(self) -> None:
        if self._open and self.waiting:
            self.waiting, self._open = self.waiting - 1, False
            raise KeyboardInterrupt
