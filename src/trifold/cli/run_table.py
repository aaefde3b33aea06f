"""The table of `trifold runs` in the columns of the terminal: what all runs share is stated once,
and what differs between them is shown whole. Settings have their dotted keys and are not broken, so
that they can be pasted into a command.
"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple, Protocol

from trifold.errors import escape

CHANGED = "changed"
HEADING = ("run", "recipe", CHANGED, "best (step)", "min", "state")
GAP = "   "  # between columns
NAME_WIDTH = 24  # of names whose equal beginnings and ends are left out
SEPARATORS = "-_=/\\ "
DOTS = "…"
SHORT = 8  # characters that are not worth leaving out
# Characters of longer texts, which lose their middle.
LONGEST_NAME = 72
LONGEST_RECIPE = 24
LONGEST_VALUE = 48
LONGEST_CHANGES = 400


class ListedRun(Protocol):
    """What the table shows of a run."""

    run: str
    recipe: str
    changed: dict[str, Any]
    score: str
    value: float | None
    best_step: int
    step: int
    seconds: float
    state: Any


class RunTable(NamedTuple):
    """Lines above the table, and its rows, of which the first is the heading."""

    notes: list[str]
    rows: list[tuple[str, ...]]


def make_table(runs: Sequence[ListedRun]) -> RunTable:
    """The table of these runs."""
    notes = list[str]()
    names = [_one_line(facts.run) for facts in runs]
    before, after = shared_ends(names)
    if before or after:
        notes.append(f"runs are named {before}{DOTS}{after}")
        names = [name[len(before) : len(name) - len(after)] for name in names]
    sound = [facts for facts in runs if facts.state != "damaged"]
    shared = _shared_settings([facts.changed for facts in sound])
    if shared:
        notes.append(f"all have {_settings(shared)}")
    rows: list[tuple[str, ...]] = [
        (
            _without_middle(name, LONGEST_NAME),
            _without_middle(_one_line(facts.recipe), LONGEST_RECIPE),
            _settings(facts.changed, without=shared),
            escape(_best(facts)),
            f"{facts.seconds / 60:.1f}",
            _state(facts),
        )
        for name, facts in zip(names, runs, strict=True)
    ]
    recipes = {_one_line(facts.recipe) for facts in sound}
    heading: tuple[str, ...] = HEADING
    if len(sound) > 1 and len(recipes) == 1:
        notes.append(f"all are of the recipe {recipes.pop()}")
        heading, *rows = [(row[0], *row[2:]) for row in (HEADING, *rows)]
    return RunTable(notes, [heading, *rows])


def split_table(rows: Sequence[tuple[str, ...]], columns: int) -> list[list[tuple[str, ...]]]:
    """The table, or if it does not fit into these columns, one without the changed settings, and
    one of these.
    """
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    place = rows[0].index(CHANGED)
    fits = sum(widths) + len(GAP) * (len(widths) - 1) <= columns
    if fits or not any(row[place] for row in rows[1:]):
        return [[*rows]]
    others = [(*row[:place], *row[place + 1 :]) for row in rows]
    changed: list[tuple[str, ...]] = [(row[0], row[place]) for row in rows if row[place]]
    return [others, changed]


# --- names ----------------------------------------------------------------------------------------


def shared_ends(names: Sequence[str]) -> tuple[str, str]:
    """The beginning and the end that all names share, if some name is long; each ends at a
    separator, and is empty if it is short.
    """
    if len(names) < 2 or max(map(len, names)) <= NAME_WIDTH:
        return "", ""
    before = _shared_beginning(names)
    after = _shared_beginning([name.removeprefix(before)[::-1] for name in names])[::-1]
    if any(not name[len(before) : len(name) - len(after)] for name in names):
        after = ""
    if any(not name.removeprefix(before) for name in names):
        before = ""
    return before, after


def _shared_beginning(names: Sequence[str]) -> str:
    """What all names begin with, up to its last separator; nothing if that is short."""
    shared = takewhile(lambda signs: len({*signs}) == 1, zip(*names, strict=False))
    text = "".join(signs[0] for signs in shared)
    last = max(text.rfind(sign) for sign in SEPARATORS)
    return text[: last + 1] if last + 1 > SHORT else ""


# --- settings -------------------------------------------------------------------------------------


def _shared_settings(changes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The settings that several runs have changed to the same values."""
    if len(changes) < 2:
        return {}
    first, *others = changes
    return {
        key: value
        for key, value in first.items()
        if all(key in each and each[key] == value for each in others)
    }


def _settings(changed: Mapping[str, Any], without: Mapping[str, Any] | None = None) -> str:
    """The changed settings, except those in `without`."""
    words = [
        shlex.quote(
            f"{_one_line(key)}={_without_middle(_one_line(_as_yaml(value)), LONGEST_VALUE)}"
        )
        for key, value in _flat(changed)
        if key not in (without or {})
    ]
    return _without_middle(" ".join(words), LONGEST_CHANGES)


def _flat(changed: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted key and the value of each setting; a program may give a whole group."""
    for key, value in changed.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _as_yaml(value: Any) -> str:
    """A value as a command line takes it."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


# --- other cells ----------------------------------------------------------------------------------


def _one_line(text: str) -> str:
    return escape(text).replace("\n", "\\n")


def _without_middle(text: str, size: int) -> str:
    """The text in at most `size` characters. Its end, which differs more often, keeps more."""
    if len(text) <= size:
        return text
    before = size // 4
    return text[:before] + DOTS + text[before + 1 - size :]


def _best(facts: ListedRun) -> str:
    """The best score with its step; empty without a validation."""
    from trifold.scores import score_text

    if facts.value is None:
        return ""
    return f"{score_text(facts.score, facts.value)} ({facts.best_step})"


def _state(facts: ListedRun) -> str:
    state = str(facts.state)
    if state in ("stopped", "running"):
        state += f" at {facts.step}"
    return state
