"""What a run reports while it trains: on standard error, since standard output is for results."""

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TextIO

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from trifold.baselines.comparison import Comparison
from trifold.errors import wrapped
from trifold.scores import DIGITS, score_text

WIDTH = 80  # columns of lines for files and pipes
ROOM = 3  # columns after the progress bar
MIN_WIDTH = 79  # columns that the progress bar needs
LONG = 60.0  # seconds, after which a line a minute is enough
SHOWN_SAMPLES = 3  # per validation; the run folder has all of them
SHOWN_LINES = 5  # of a continuation
SHOWN_PROMPT = 2  # lines of its prompt, the last ones
NOTHING = "(nothing)"  # an output without words
AT_ONCE = "(ends at once)"  # a continuation without a token
BLANK = "(only spaces and line breaks)"

StoppedBy = Literal["steps", "minutes", "patience", "signal"]


class Snapshot(NamedTuple):
    """The state after an update; loss: the mean since the last snapshot; seconds_left: infinite
    while unknown.
    """

    step: int
    total: int
    epoch: int
    loss: float
    learning_rate: float
    tokens_per_second: float
    seconds_left: float
    token_name: str = "tokens"


class FoldScores(NamedTuple):
    """The means of the scores of `folds` folds, and their standard deviations (n - 1), of several.
    parts: how many folds the rows have.
    """

    folds: int
    scores: dict[str, float]
    deviations: dict[str, float]
    parts: int

    @property
    def has_all_rows(self) -> bool:
        """Whether each row has been held out."""
        return self.folds == self.parts

    def describe(self) -> str:
        """`mean ± deviation of 5 folds: accuracy 78.1 ± 2.0, macro F1 77.9 ± 2.2`, or `a
        held-out fold: accuracy 78.1`.
        """
        if self.folds == 1:
            scores = (score_text(name, value) for name, value in self.scores.items())
            return f"a held-out fold: {', '.join(scores)}"
        listed = ", ".join(
            f"{score_text(name, value)} ± {self.deviations[name]:.{DIGITS.get(name, 1)}f}"
            for name, value in self.scores.items()
        )
        of_parts = f" of {self.parts}" * (not self.has_all_rows)
        return f"mean ± deviation of {self.folds}{of_parts} folds: {listed}"


class Validated(NamedTuple):
    """The result of a validation; samples are (source, reference, output), or (prompt, None,
    output).
    """

    step: int
    loss: float
    scores: dict[str, float]
    best: bool
    samples: Sequence[tuple[str, str | None, str]]
    # An error message for each checkpoint that was left out of the average.
    damaged: Sequence[str] = ()
    # How the weights were chosen, if it is unusual.
    remark: str = ""
    # The score of each baseline that selects the best weights, by the name of the baseline.
    baselines: Mapping[str, float] = MappingProxyType({})
    # Of a model of all rows: the folds whose mean scores these are.
    folds: FoldScores | None = None


class Outcome(NamedTuple):
    """How a training ended. `exit_code` is 130 or 143 after a signal.

    scores: those of the validation at `best_step`, whose weights are in model/; best_step is 0
    without a validation. advice: lines about a weak result. comparison: the scores with their
    intervals, and those of the baselines; None without a validation. folds: of a run on all rows,
    whose scores are those of folds.
    """

    folder: Path
    steps: int
    seconds: float
    scores: dict[str, float]
    stopped_by: StoppedBy
    exit_code: int
    best_step: int = 0
    advice: Sequence[str] = ()
    comparison: Comparison | None = None
    folds: FoldScores | None = None

    @property
    def finished(self) -> bool:
        """Whether training ended without a signal."""
        return self.stopped_by != "signal"


# --- views ----------------------------------------------------------------------------------------


class View:
    """Receives all events of a training. This base class ignores them."""

    def say(self, line: str) -> None:
        """Report a message."""

    def begin(self, total: int, done: int = 0) -> None:
        """Report that training of `total` steps starts at step `done`."""

    def step(self, snapshot: Snapshot) -> None:
        """Report an update; called every `train.log_every` steps, and in between if they are
        slow.
        """

    def validating(self, step: int) -> None:
        """Report that a validation is running; called often."""

    def validated(self, result: Validated) -> None:
        """Report the result of a validation."""

    def end(self) -> None:
        """Report that training has ended, for any reason; also called if it did not begin."""


class OutcomeView(View):
    """Passes warnings, and how a run ended, on to another view: of a run that has all its steps."""

    def __init__(self, view: View) -> None:
        self._view = view

    def say(self, line: str) -> None:
        if line.startswith(("warning:", "nothing to do:", "stopped at")):
            self._view.say(line)

    def end(self) -> None:
        self._view.end()


class PlainView(View):
    """Lines for files and pipes: at most a step in `every` seconds, or a minute once training has
    taken a minute; validations, announced if they take longer.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        every: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._every = every
        self._clock = clock
        self._start = math.inf
        self._next = -math.inf
        self._validating = 0  # the step
        self._announcement = math.inf  # when to announce the validation

    def say(self, line: str) -> None:
        # sys.stderr is looked up here, so that it can be redirected later.
        print(wrapped(line), file=self._stream or sys.stderr, flush=True)

    def step(self, snapshot: Snapshot) -> None:
        now = self._clock()
        self._start = min(self._start, now)
        if now < self._next and snapshot.step < snapshot.total:
            return
        self._next = now + self._every
        if now - self._start >= LONG:
            self._next = now + max(self._every, LONG)
        for line in fold([f"step {snapshot.step}/{snapshot.total}", *_format(snapshot).values()]):
            self.say(line)

    def validating(self, step: int) -> None:
        now = self._clock()
        if step != self._validating:
            self._validating = step
            self._announcement = now + self._every
        elif now >= self._announcement:
            self._announcement = math.inf
            self.say(f"step {step}: validating …")

    def validated(self, result: Validated) -> None:
        for line in validation_lines(result):
            self.say(line)


class _TrainingBar(Progress):
    """A progress bar with room at its end for the ^C that a terminal shows, which would otherwise
    begin a new line, below which the bar is drawn again.
    """

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from map(_WithRoom, super().get_renderables())


class _WithRoom:
    """A part of the screen that leaves the last columns free."""

    def __init__(self, content: RenderableType) -> None:
        self.content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from console.render(self.content, options.update(width=options.max_width - ROOM))


class LiveView(View):
    """A progress bar at the bottom of a terminal; messages and validations scroll above it."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._progress: Progress | None = None
        self._left = ""  # the text of the time left

    def say(self, line: str) -> None:
        self._console.print(Text(wrapped(line, self._console.width)), soft_wrap=True)

    def begin(self, total: int, done: int = 0) -> None:
        columns = [
            TextColumn("step [bold]{task.completed:.0f}[/]/{task.total:.0f}"),
            BarColumn(bar_width=None),
            *(
                TextColumn(f"{{task.fields[{name}]}}", style=style)
                for name, style in _STYLES.items()
            ),
        ]
        self._progress = _TrainingBar(
            *columns, console=self._console, expand=True, refresh_per_second=4
        )
        blank: dict[str, Any] = dict.fromkeys(_STYLES, "")
        self._progress.add_task("training", total=total, completed=done, **blank)
        self._progress.start()

    def step(self, snapshot: Snapshot) -> None:
        texts = _format(snapshot)
        self._left = texts["left"]
        self._update(completed=snapshot.step, **texts)

    def _update(self, **values: Any) -> None:
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], **values)

    def validating(self, step: int) -> None:
        self._update(completed=step, left="validating …")

    def validated(self, result: Validated) -> None:
        self._update(left=self._left)
        first, *samples = validation_lines(result)
        self._print(first, "bold green" if result.best else "bold")
        for line in samples:
            self._print(line, "dim")

    def _print(self, line: str, style: str) -> None:
        text = Text(wrapped(line, self._console.width), style=style)
        self._console.print(text, soft_wrap=True)

    def end(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
        self._console.file.write("\r")  # over the ^C that the terminal shows


def choose_view() -> View:
    """A progress bar on a terminal that is wide enough, plain lines otherwise."""
    console = Console(stderr=True)
    if console.is_terminal and not console.is_dumb_terminal and console.width >= MIN_WIDTH:
        return LiveView(console)
    return PlainView()


def validation_lines(result: Validated) -> list[str]:
    """The scores in one line, then a few samples: source, output, and the reference if it differs.

    Without a reference, a sample is a prompt and its continuation.
    """
    if result.folds is not None:
        return [f"step {result.step}, of all rows; {result.folds.describe()}"]
    parts = [f"step {result.step}: validation loss {result.loss:.4f}"]
    parts += [score_text(name, value) for name, value in result.scores.items()]
    if result.best:
        parts.append("best so far")
    lines = fold(parts)
    if result.remark:
        lines += wrapped(f"    {result.remark}", WIDTH).splitlines()
    for source, reference, output in result.samples[:SHOWN_SAMPLES]:
        if reference is None:
            lines += _continuation_lines(source, output)
        else:
            lines += _comparison_lines(source, reference, output)
    return lines


def shown_continuation(output: str) -> str:
    """The text of a continuation, or what it is if nothing of it can be seen."""
    if not output:
        return AT_ONCE
    if not output.strip():
        return BLANK
    return output


def _continuation_lines(prompt: str, output: str) -> list[str]:
    """A sample without a reference: the end of the prompt, an arrow, and the continuation; in one
    line if it fits.
    """
    given = prompt.splitlines() or [""]
    written = shown_continuation(output).strip("\n").splitlines()
    line = f"    {prompt}  →  {written[0]}"
    if len(given) == len(written) == 1 and len(line) <= WIDTH:
        return [line]
    first, *others = written[:SHOWN_LINES]
    shown = [f"    {text}" for text in given[-SHOWN_PROMPT:]]
    return [*shown, f"      →  {first}", *(f"         {text}" for text in others)]


def _comparison_lines(source: str, reference: str, output: str) -> list[str]:
    """A sample with a reference: in one line if it fits, else in two if the output is right, and in
    three if it differs.
    """
    verdict = f"(reference: {reference})"
    shown = output or NOTHING
    lines = [f"    {source}", f"      →  {shown}", f"      {verdict}"]
    if output == reference:
        verdict = "✓"
        lines = [f"    {source}", f"      →  {shown}  {verdict}"]
    line = f"    {source}  →  {shown}  {verdict}"
    if len(line) <= WIDTH:
        return [line]
    return lines


def fold(parts: Sequence[str]) -> list[str]:
    """The parts, separated by dots, in lines of at most 80 columns, which end with a dot if another
    one follows; all but the first line are indented.
    """
    lines = [parts[0]]
    for number, part in enumerate(parts[1:], start=2):
        longer = f"{lines[-1]} · {part}"
        room = WIDTH
        if number < len(parts):
            room -= len(" ·")
        if len(longer) <= room:
            lines[-1] = longer
        else:
            lines[-1] += " ·"
            lines.append(f"    {part}")
    return lines


def clock_time(seconds: float) -> str:
    """`1:05`, `2:03:04`, or `?` if unknown."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes}:{rest:02}"
    return f"{hours}:{minutes:02}:{rest:02}"


_STYLES = {"loss": "bold", "rate": "dim", "speed": "cyan", "left": "green"}


def _format(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "loss": f"loss {snapshot.loss:.3f}",
        "rate": f"lr {snapshot.learning_rate:.2e}",
        "speed": f"{snapshot.tokens_per_second:,.0f} {snapshot.token_name}/s",
        "left": f"{clock_time(snapshot.seconds_left)} left",
    }
