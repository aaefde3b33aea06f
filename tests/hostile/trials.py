"""A trial: a valid folder, one to three mutations, and an entry point that opens it under watch; a
trial is a function of the seed and its number."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.hostile import entries, mutations
from tests.hostile.json_values import CANARY
from tests.hostile.mutations import Tree
from tests.hostile.valid import GROUPS, KINDS, File
from tests.hostile.watch import CRASHED, Outcome, Place, watched

SECONDS = 10.0  # of processor time
BYTES = 2**30  # above the memory at the start
OUTPUT = 20_000  # characters on standard error
MUTATED = 3  # at most

# Output of others than trifold.
FOREIGN = re.compile(
    r"Traceback|panicked|RUST_BACKTRACE|memory allocation|terminate called|Segmentation|core dumped|site-packages|"
    r"\w+Warning\b|^\s*File \"|^OMP|^\[[WE]\d|_mm_|weights_only|add_safe_globals|thread '|"
    r"(?:Index|Key|Type|Value|Attribute|Runtime|Assertion|Overflow|ZeroDivision|Recursion|Memory|Unicode\w*)Error",
    re.MULTILINE,
)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]")
NUMBERS = re.compile(
    r"(?<![\w'\"])[-+]?(?:nan|inf|NaN|Infinity)(?![\w'\"])|(?:\"score\": |[\[,] ?)null"
)


class Plan(NamedTuple):
    """What a trial does. keep: the numbers of the mutations that are made; all by default."""

    seed: int
    number: int
    kinds: tuple[str, ...] = ()
    keep: tuple[int, ...] | None = None

    @property
    def command(self) -> str:
        """The command that repeats it."""
        kinds = "".join(f" --kind '{kind}'" for kind in self.kinds)
        kept = "".join(f" --keep {number}" for number in self.keep or ())
        return f"python -m tests.hostile --seed {self.seed} --only {self.number}{kinds}{kept}"


class Trial(NamedTuple):
    """A trial that was made. faults: kinds of what is wrong; none if all is well."""

    plan: Plan
    kind: str
    entry: str
    mutations: tuple[str, ...]
    faults: tuple[str, ...]
    outcome: Outcome


def run_trial(plan: Plan, made: Mapping[str, Mapping[str, File]], root: Path) -> Trial:
    """Make the folder of a trial below `root`, and open it. made: valid folders, by kind."""
    shutil.rmtree(root, ignore_errors=True)
    place = Place(root)
    for folder in (place.tree, place.outside, place.out):
        folder.mkdir(parents=True)
    draw = Random(f"{plan.seed} {plan.number}")
    kind = kind_of(draw, plan.kinds)
    valid = KINDS[kind]
    entry = draw.choice(valid.uses)
    text = entries.draw_text(draw)
    tree = Tree({**entries.BESIDE, **made[kind]}, valid.opened)
    done = []
    for number in range(draw.choice((1, 1, 1, 2, 2, 3))):
        if plan.keep is None or number in plan.keep:
            done.append(mutations.apply(Random(f"{plan.seed} {plan.number} {number}"), tree))
    mutations.write(tree, root)
    outcome = watched(
        lambda: entries.ENTRIES[entry](valid.opened, text, "../out"), place, limit=SECONDS
    )
    return Trial(
        plan, kind, f"{entry} {text[:20]!r}", tuple(done), faults_of(outcome, entry), outcome
    )


def kind_of(draw: Random, kinds: Sequence[str]) -> str:
    if kinds:
        return draw.choice(kinds)
    group = draw.choices(list(GROUPS), [weight for weight, _ in GROUPS.values()])[0]
    return draw.choice(GROUPS[group][1])


# --- verdict --------------------------------------------------------------------------------------


def faults_of(
    outcome: Outcome, entry: str, *, seconds: float = SECONDS, memory: int = BYTES
) -> tuple[str, ...]:
    """The kinds of faults of an outcome. seconds, memory: the limits."""
    code, out, err = outcome.code, outcome.out, outcome.err
    last = err.rstrip().splitlines()[-1:] or [""]
    found = {
        "traceback": code == CRASHED,
        "signal": code < 0 and not outcome.stopped,
        "time": outcome.stopped == "time" or outcome.processor > seconds,
        "memory": outcome.stopped == "memory" or outcome.memory > memory or "MemoryError" in err,
        "foreign output": code != CRASHED and bool(FOREIGN.search(err)),
        "no message": code in (1, 2) and not any(map(_is_message, err.splitlines())),
        "exit code": code not in (0, 1, 2, CRASHED) and code >= 0,
        "control characters": bool(
            CONTROL.search(err) or (CONTROL.search(out) and entry.startswith("show"))
        ),
        "long output": len(err) > OUTPUT,
        "secret quoted": CANARY in out or CANARY in err,
        "non-finite": code == 0
        and (entries.SILENT in out or bool(_non_finite(out, entry)))
        and not last[0],
    }
    return (*(name for name, is_found in found.items() if is_found), *_events(outcome.events))


def _is_message(line: str) -> bool:
    return line.startswith("error: ")


def _non_finite(out: str, entry: str) -> bool:
    """Whether the output of a command that prints numbers has some that are none."""
    prints_numbers = entry in ("predict", "embed", "eval", "answer", "pairs", "search", "picture")
    return prints_numbers and bool(NUMBERS.search(out))


def _events(events: Sequence[str]) -> list[str]:
    return sorted({f"did: {event.split(' (')[0].split(': ')[0]}" for event in events})
