"""Compare the speed of this source tree with another commit: training and decoding, in alternating
runs.

    python benchmarks/compare_commits.py                        against 909037c, seven runs each
    python benchmarks/compare_commits.py --reference HEAD~1    another commit, or a folder with src/
    python benchmarks/compare_commits.py --only train-demo      chosen measures; --list names them

The two trees run in turn, and their order changes from run to run. A training run is a process of
its own, and its figure is the median rate of the logged intervals after the first. In a decoding
run two new processes load the model and generate in turn; its figure is the median of twelve calls
after two uncounted ones. The last column is the median of the ratios of the pairs: below 1, this
tree is slower."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
from compare_reference import DECODER, REFERENCE, sources_of  # noqa: E402

SHORT = (
    "train.steps={0} train.warmup=1 train.validate_every={0} train.save_every={0} "
    "train.log_every={1}"
)
TRAINING = {
    "train-demo": "demo generate.max_new_tokens=1 " + SHORT.format(96, 12),
    "train-demo-bf16": "demo generate.max_new_tokens=1 train.precision=bfloat16 "
    + SHORT.format(96, 12),
    "train-decoder": "decoder.yaml " + SHORT.format(42, 6),
    "train-characters": "shakespeare-char-tiny " + SHORT.format(96, 12),  # needs TRIFOLD_DATA
}
# The model, the options of `load`, the options of `generate_tokens`, the rows of the batch.
DECODING = {
    "decode-fp32": ("decoder", {}, {}, 1),
    "decode-bf16": ("decoder", {"dtype": "bfloat16"}, {}, 1),
    "decode-int8": ("decoder", {"dtype": "bfloat16", "weights": "int8"}, {}, 1),
    "decode-batch": ("decoder", {}, {}, 16),
    "translate-greedy": ("demo", {}, {"num_beams": 1}, 16),
    "translate-beams": ("demo", {}, {"num_beams": 5}, 4),
}
DECODE = """
import json, sys, time, torch, trifold
model, loading, options, rows = json.loads(sys.argv[1])
pipe = trifold.load(model, **loading)
tokens = torch.randint(4, 20, (rows, 12), generator=torch.Generator().manual_seed(1))
for _ in sys.stdin:
    start = time.perf_counter()
    pipe.generate_tokens(tokens, max_new_tokens=96, min_new_tokens=96, **options)
    print(rows * 96 / (time.perf_counter() - start), flush=True)
"""
CALLS_PER_RUN = 12


def main() -> None:
    """Print one line per measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--reference", default=REFERENCE, help="a commit, or a folder with src/")
    parser.add_argument("--only", action="append", help="these measures; repeatable")
    parser.add_argument("--runs", type=int, default=7, help="runs of each tree")
    parser.add_argument("--list", action="store_true", help="list the measures")
    chosen = parser.parse_args()
    measures = chosen.only or [*TRAINING, *DECODING]
    if chosen.list:
        print("\n".join(measures))
        return
    with tempfile.TemporaryDirectory(prefix="trifold-speed-") as folder:
        trees = {"reference": sources_of(chosen.reference, Path(folder)), "here": ROOT / "src"}
        folders = {name: Path(folder) / name for name in trees}
        for each in folders.values():
            each.mkdir()
            (each / "decoder.yaml").write_text(DECODER)
        print(
            f"{'tokens per second, median':24} {'reference':>10} {'here':>10} {'ratio':>7}",
            flush=True,
        )
        for measure in measures:
            rates = _training_rates if measure in TRAINING else _decoding_rates
            pairs = list(rates(measure, list(trees.values()), list(folders.values()), chosen.runs))
            before, after = (statistics.median(column) for column in zip(*pairs, strict=True))
            ratio = statistics.median(here / reference for reference, here in pairs)
            print(f"{measure:24} {before:10.0f} {after:10.0f} {ratio:7.3f}", flush=True)


def _training_rates(
    measure: str, trees: list[Path], folders: list[Path], runs: int
) -> Iterator[list[float]]:
    """The tokens per second of each run, of both trees."""
    for run in range(runs):
        rates = [0.0, 0.0]
        for tree in _order(run):
            out = folders[tree] / f"{measure}-{run}"
            words = f"-m trifold train {TRAINING[measure]} --out {out}".split()
            _python(trees[tree], folders[tree], *words)
            lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
            intervals = [line["train/tokens_per_second"] for line in lines if "train/loss" in line]
            rates[tree] = statistics.median(intervals[1:])
        yield rates


def _decoding_rates(
    measure: str, trees: list[Path], folders: list[Path], runs: int
) -> Iterator[list[float]]:
    """The median tokens per second of each run, of both trees."""
    model, *options = DECODING[measure]
    for tree, folder in zip(trees, folders, strict=True):
        if not (folder / model).exists():
            recipe = {"decoder": "decoder.yaml", "demo": "demo"}[model]
            _python(
                tree,
                folder,
                *f"-m trifold train {recipe} {SHORT.format(6, 6)} --out {model}".split(),
            )
    for _ in range(runs):
        processes = []
        for tree, folder in zip(trees, folders, strict=True):
            command = [sys.executable, "-c", DECODE, json.dumps([str(folder / model), *options])]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 1}
            processes.append(subprocess.Popen(command, text=True, env=_environment(tree), **pipes))
        rates: list[list[float]] = [[], []]
        for call in range(CALLS_PER_RUN + 2):
            for tree in _order(call):
                processes[tree].stdin.write("\n")
                rates[tree].append(float(processes[tree].stdout.readline()))
        for process in processes:
            process.communicate()
        yield [statistics.median(calls[2:]) for calls in rates]


def _order(run: int) -> tuple[int, int]:
    return (0, 1) if run % 2 else (1, 0)


def _environment(source: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(source), "TOKENIZERS_PARALLELISM": "false"}


def _python(source: Path, folder: Path, *words: str) -> str:
    command, environment = [sys.executable, *words], _environment(source)
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed in {source}:\n{done.stderr[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
