"""The default command of trifold on a cell, and its scores.

    python benchmarks/defaults/trifold_runner.py FOLDER SET ROWS SEED [--start MODEL] [KEY=VALUE …]

It writes the rows to FOLDER as a user has them, runs `trifold train TASK data.train=FILE`, and then
`trifold eval` on the validation and the test rows. KEY=VALUE changes a setting, for choices. A line
of JSON has the scores, the CPU seconds of training, and what it chose and said.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rows import draw, read, write
from setting import SETS

ROOT = Path(__file__).parents[2]
SAID = ("compared:", "advice:")  # lines that compare the model with simpler ones
CHOSEN = ("model.d_model", "model.n_layers", "train.steps", "train.learning_rate", "batch.tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("set", choices=[*SETS])
    parser.add_argument("rows", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--start", help="a model to begin with")
    parser.add_argument("--no-test", action="store_true", help="read no test rows")
    print(json.dumps(measure(parser.parse_intermixed_args())))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    kind = SETS[options.set]
    splits = read(options.set)
    rows = {"train": draw(splits.train, options.rows, options.seed), "valid": splits.valid}
    if not options.no_test:
        rows["test"] = splits.test
    files = {name: write(kind.made_of, part, options.folder, name) for name, part in rows.items()}
    run = options.folder / "run"
    changes = [f"data.train={files['train']}", f"train.seed={options.seed}", *options.changes]
    if options.start:
        changes.append(f"start_from={options.start}")
    before, start = children_cpu(), time.perf_counter()
    printed = trifold("train", kind.task, *changes, "--out", run)
    found: dict[str, Any] = {
        "rows": len(rows["train"]),
        "cpu_s": children_cpu() - before,
        "wall_s": time.perf_counter() - start,
        "chosen": chosen(run),
        "said": [line for line in unwrapped(printed) if line.startswith(SAID)],
    }
    for name in files.keys() - {"train"}:
        printed = trifold("eval", run / "model", files[name], "--json", lines=False)
        found[name] = value_of(json.loads(printed)["scores"][kind.score])
    return found


def value_of(score: Any) -> float:
    """A score in `--json`: a number, or a group with it and its signature."""
    return float(score["value"] if isinstance(score, dict) else score)


def chosen(run: Path) -> dict[str, Any]:
    """What the command chose for the data."""
    import yaml

    recipe = yaml.safe_load((run / "recipe.yaml").read_text("utf-8"))
    pairs = (name.split(".") for name in CHOSEN)
    return {f"{group}.{key}": recipe[group].get(key) for group, key in pairs}


def unwrapped(printed: str) -> list[str]:
    """The lines of a terminal, with those that continue one joined to it."""
    lines: list[str] = []
    for line in printed.splitlines():
        if line.startswith("    ") and lines:
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    return lines


def children_cpu() -> float:
    """CPU seconds of all commands so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def trifold(*words: object, lines: bool = True) -> str:
    """Run a command. Returns all that it prints, or its results only."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "trifold", *map(str, words)],
        check=False,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment,
    )
    if done.returncode:
        sys.exit(f"trifold {words[0]} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout + done.stderr if lines else done.stdout


if __name__ == "__main__":
    main()
