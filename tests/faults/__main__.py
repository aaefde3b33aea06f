"""Fault injection: kill, damage and starve tiny training runs, and count what survives.

python -m tests.faults                              every promise, minutes
python -m tests.faults --size full                  every promise, hours
python -m tests.faults --only kills --only damage   chosen promises
python -m tests.faults --plant all                put in one bug after the other; each must be found
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.faults import PLANTS, PROMISES, Verdict, plant_all, planted, try_all, warm
from tests.faults.runs import Reference

from trifold.cli import main

# One thread, because the harness forks this process.
SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def run() -> int:
    """Parse the command line and run the trials; 0 if every promise was kept and every planted bug
    found.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument(
        "--size", choices=("sample", "short", "full"), default="short", help="number of trials"
    )
    parser.add_argument(
        "--only", action="append", choices=list(PROMISES), help="this promise; repeatable"
    )
    parser.add_argument("--trials", type=int, help="trials of each promise")
    parser.add_argument("--plant", choices=["all", *PLANTS], help="put this bug into the code")
    parser.add_argument(
        "--then-plant-all", action="store_true", help="after the promises, as with --plant all"
    )
    parser.add_argument(
        "--where", type=Path, help="a folder on the disk to test; default: the temporary folder"
    )
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    chosen = parser.parse_args()
    if os.name != "posix":
        parser.error("the harness forks processes, which this system does not support")
    if any(os.environ.get(name) != value for name, value in SINGLE_THREADED.items()):
        command = [sys.executable, "-m", "tests.faults", *sys.argv[1:]]
        return subprocess.run(command, env=os.environ | SINGLE_THREADED, check=False).returncode

    every = chosen.plant == "all"
    verdicts = []
    temporary = tempfile.TemporaryDirectory(prefix="trifold-faults-", dir=chosen.where)
    with temporary as folder, planted(None if every else chosen.plant):
        for verdict in _trials(chosen, Path(folder)):
            verdicts.append(verdict)
            if not chosen.json:
                _print(verdict)
    found = [verdict.is_found for verdict in verdicts if verdict.name in PLANTS]
    kept = [verdict.is_kept for verdict in verdicts if verdict.name not in PLANTS]
    if chosen.json:
        print(json.dumps([verdict._asdict() for verdict in verdicts]))
    else:
        print(_summary(verdicts))
        print(f"{sum(kept)} of {len(kept)} promises kept, {sum(found)} of {len(found)} bugs found")
    return 0 if all(kept + found) else 1


def _trials(chosen: argparse.Namespace, folder: Path) -> Iterator[Verdict]:
    """The promises, or one with its bug, and then the bugs; all of them share their references."""
    warm(folder)
    references: dict[str, Reference] = {}
    names = chosen.only or list(PROMISES)
    if chosen.plant != "all":
        tried = [PLANTS[chosen.plant].breaks] if chosen.plant and not chosen.only else names
        yield from try_all(
            tried, chosen.size, folder, main, references, trials=chosen.trials, trying=_progress
        )
    if chosen.plant == "all" or chosen.then_plant_all:
        plants = [name for name, plant in PLANTS.items() if plant.breaks in names]
        yield from plant_all(plants, folder / "planted", main, references)


def _progress(name: str, number: int, trials: int) -> None:
    """Overwrite one line. A progress bar would need a thread, and this process is forked all the
    time.
    """
    if sys.stderr.isatty():
        print(
            f"\r\033[K{name} {number + 1:,} of {trials:,} … ", end="", file=sys.stderr, flush=True
        )


def _print(verdict: Verdict) -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    count = (
        f"{verdict.trials:6,} trials {len(verdict.failures):4} failures "
        f"{len(verdict.errors):2} errors {verdict.seconds:7.1f} s"
    )
    print(f"{verdict.name:17}{verdict.about:76}{count}", flush=True)
    for message in (verdict.failures + verdict.errors)[:3]:
        print(f"  {message}", file=sys.stderr)


def _summary(verdicts: Sequence[Verdict]) -> str:
    """The numbers of all trials, the longest one, and the largest memory of a process."""
    slowest = max(verdicts, key=lambda verdict: verdict.slowest)
    memory = max(
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    kib = 1 if sys.platform == "linux" else 1024
    return (
        f"{sum(verdict.trials for verdict in verdicts):,} trials, "
        f"{sum(len(verdict.failures) for verdict in verdicts):,} failures, "
        f"{sum(len(verdict.errors) for verdict in verdicts):,} errors in "
        f"{sum(verdict.seconds for verdict in verdicts):,.0f} s; the longest trial "
        f"{slowest.slowest:.1f} s ({slowest.name}); the largest process "
        f"{memory / kib / 1024:,.0f} MiB"
    )


if __name__ == "__main__":
    sys.exit(run())
