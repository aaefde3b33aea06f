"""What a person sees while a model learns: a live line on a terminal, plain lines elsewhere, or nothing.

Everything goes to standard error, so that standard output keeps to results.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

NARROWEST = 76  # columns that the live line needs
SHOWN_SAMPLES = 3  # of a validation; the run folder keeps them all
SHOWN_LINES = 6  # of a sample


class Snapshot(NamedTuple):
    """Where training stands after an update; `seconds_left` may be infinite while nobody knows."""

    step: int
    total: int
    epoch: int
    loss: float
    learning_rate: float
    tokens_per_second: float
    seconds_left: float
    token_name: str = "tokens"


class Validated(NamedTuple):
    """What a validation found; samples are (source, reference, ours), or (prompt, None, ours)."""

    step: int
    loss: float
    scores: dict[str, float]
    best: bool
    samples: Sequence[tuple[str, str | None, str]]


class View(Protocol):
    """Hears of everything that happens in a training."""

    def say(self, line: str) -> None:
        """One line of news."""

    def begin(self, total: int, done: int = 0) -> None:
        """Training of `total` steps starts at step `done`."""

    def step(self, shot: Snapshot) -> None:
        """Some updates later."""

    def validated(self, result: Validated) -> None:
        """The model has been looked at on validation data."""

    def end(self) -> None:
        """Training is over, for whatever reason; also called where it never began."""


class Silent(View):
    """Shows nothing."""

    def say(self, line: str) -> None:
        """Unheard."""

    def begin(self, total: int, done: int = 0) -> None:
        """Unseen."""

    def step(self, shot: Snapshot) -> None:
        """Unseen."""

    def validated(self, result: Validated) -> None:
        """Unseen."""

    def end(self) -> None:
        """Unseen."""


class Plain(View):
    """Lines for files and pipes: every validation, and a step at most every `every` seconds."""

    def __init__(
        self, stream: TextIO | None = None, every: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._every = every
        self._clock = clock
        self._due = -math.inf

    def say(self, line: str) -> None:
        """A line."""
        # Looked up when used: who redirects standard error later still gets the lines.
        print(line, file=self._stream or sys.stderr, flush=True)

    def begin(self, total: int, done: int = 0) -> None:
        """The first step is shown at once."""
        self._due = -math.inf

    def step(self, shot: Snapshot) -> None:
        """A line, where it is time for one."""
        now = self._clock()
        if now < self._due and shot.step < shot.total:
            return
        self._due = now + self._every
        facts = [f"step {shot.step}/{shot.total}", f"epoch {shot.epoch}", *_figures(shot).values()]
        self.say(" · ".join(facts))

    def validated(self, result: Validated) -> None:
        """Always shown."""
        for line in validation_lines(result):
            self.say(line)

    def end(self) -> None:
        """Lines need no end."""


class Live(View):
    """A progress bar at the bottom of a terminal; news and validations scroll above it."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._progress: Progress | None = None

    def say(self, line: str) -> None:
        """A line above the bar."""
        self._console.print(Text(line))

    def begin(self, total: int, done: int = 0) -> None:
        """The bar appears."""
        columns = [
            TextColumn("step [bold]{task.completed:.0f}[/]/{task.total:.0f}"),
            BarColumn(bar_width=None),
            *(TextColumn(f"{{task.fields[{name}]}}", style=style) for name, style in _STYLES.items()),
        ]
        self._progress = Progress(*columns, console=self._console, expand=True, refresh_per_second=4)
        blank: dict[str, Any] = dict.fromkeys(_STYLES, "")
        self._progress.add_task("training", total=total, completed=done, **blank)
        self._progress.start()

    def step(self, shot: Snapshot) -> None:
        """The bar moves."""
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=shot.step, **_figures(shot))

    def validated(self, result: Validated) -> None:
        """Stays above the bar, green where it is the best so far."""
        first, *samples = validation_lines(result)
        self._console.print(Text(first, style="bold green" if result.best else "bold"))
        for line in samples:
            self._console.print(Text(line, style="dim"))

    def end(self) -> None:
        """The bar stays where it was."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def choose_view() -> View:
    """Live where a person sits at a terminal wide enough for the bar, plain lines otherwise."""
    console = Console(stderr=True)
    lives = console.is_terminal and not console.is_dumb_terminal and console.width >= NARROWEST
    return Live(console) if lives else Plain()


def validation_lines(result: Validated) -> list[str]:
    """The scores in one line, then a few samples: source, ours, and the reference where ours differs from it; where
    there is no reference, the prompt and what was written behind it, in as many lines as it has.
    """
    scores = [score_text(name, value) for name, value in result.scores.items()]
    facts = [
        f"step {result.step}: validation loss {result.loss:.4f}",
        *scores,
        *(["best so far"] if result.best else []),
    ]
    lines = [" · ".join(facts)]
    for source, reference, ours in result.samples[:SHOWN_SAMPLES]:
        if reference is None:
            lines += ["    ·", *(f"    {line}" for line in f"{source}{ours}".splitlines()[:SHOWN_LINES])]
            continue
        verdict = "✓" if ours == reference else f"(reference: {reference})"
        lines.append(f"    {source}  →  {ours}  {verdict}")
    return lines


def score_text(key: str, value: float) -> str:
    """`BLEU 41.20`, `bits per byte 2.3812`."""
    return f"{score_name(key)} {value:.{DIGITS.get(key, 2)}f}"


def score_name(key: str) -> str:
    """As it is written in a sentence: `exact_match` -> `exact match`, `bleu` -> `BLEU`."""
    return {"bleu": "BLEU", "chrf": "chrF2"}.get(key, key.replace("_", " "))


# Scores of a language model differ in the third digit; the others are percentages.
DIGITS = {"bits_per_byte": 4, "perplexity": 3}


def clock_time(seconds: float) -> str:
    """`1:05`, `2:03:04`, or `?` where nobody knows."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


_STYLES = {"loss": "bold", "rate": "dim", "speed": "cyan", "left": "green"}


def _figures(shot: Snapshot) -> dict[str, Any]:
    return {
        "loss": f"loss {shot.loss:.3f}",
        "rate": f"lr {shot.learning_rate:.2e}",
        "speed": f"{shot.tokens_per_second:,.0f} {shot.token_name}/s",
        "left": f"{clock_time(shot.seconds_left)} left",
    }
