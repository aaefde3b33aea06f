"""How fast it goes, and how long it will take."""

from __future__ import annotations

import time


class Meter:
    """Wall time of the whole run, and tokens a second of training alone."""

    def __init__(self, steps: int, seconds: float, step: int) -> None:
        self._steps, self._first_step = steps, step
        self._before, self._start = seconds, time.perf_counter()
        self._mark, self._tokens = self._start, 0
        self._paused = 0.0
        self._last = self._start

    def seconds(self) -> float:
        """Since the beginning of the run, over all its sittings."""
        return self._before + time.perf_counter() - self._start

    def count(self, tokens: int) -> None:
        """An update with so many tokens is done."""
        self._tokens += tokens
        self._last = time.perf_counter()

    def pause(self) -> None:
        """The time since the last update went elsewhere (validation, saving)."""
        now = time.perf_counter()
        self._paused += now - self._last
        self._last = now

    def read(self, step: int, minutes: float | None) -> tuple[float, float]:
        """Tokens a second since the last reading, and seconds left at the mean pace so far."""
        now = time.perf_counter()
        speed = self._tokens / max(now - self._mark - self._paused, 1e-9)
        self._mark, self._tokens, self._paused, self._last = now, 0, 0.0, now
        pace = (now - self._start) / max(step - self._first_step, 1)
        left = pace * (self._steps - step)
        return speed, left if minutes is None else min(left, minutes * 60 - self.seconds())
