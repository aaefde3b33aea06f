"""Compare the speed and the memory of this source tree with another commit: training and decoding,
in alternating runs.

    python benchmarks/compare_commits.py                        against 15829777, seven runs each
    python benchmarks/compare_commits.py --reference HEAD~1    another commit, or a folder with src/
    python benchmarks/compare_commits.py --only train-demo      chosen measures; --list names them

The two trees run in turn, and their order changes from run to run. The first run of each is not
counted, because Numba compiles the kernels in it. A training run is a process of its own, and its
figure is the median rate of the logged intervals after the first. In a decoding run two new
processes load the model and generate in turn; its figure is the median of twelve calls after two
uncounted ones. Memory is the largest resident set of the process. A ratio is the median of the
ratios of the pairs, here / reference, with the lowest and the highest in brackets: of speed, below
1, this tree is slower."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
from compare_reference import REFERENCE, sources_of  # noqa: E402
from reference_cases import STACKS, TRAINING as MODELS, write_files  # noqa: E402

SHORT = (
    "train.steps={0} train.warmup=1 train.validate_every={0} train.save_every={0} "
    "train.log_every={1}"
)
# Rows of 1,024 tokens, in which queries read few keys.
LONG = (
    "tiny.yaml data.documents=file model.max_positions=1024 model.d_model=128 model.n_heads=4 "
    "model.d_ff=512 batch.tokens=4096 " + SHORT.format(12, 2)
)
TRAINING = {
    "train-demo": "demo generate.max_new_tokens=1 " + SHORT.format(96, 12),
    "train-demo-bf16": "demo generate.max_new_tokens=1 train.precision=bfloat16 "
    + SHORT.format(96, 12),
    "train-decoder": "decoder.yaml " + SHORT.format(42, 6),
    "train-characters": "shakespeare-char-tiny " + SHORT.format(96, 12),  # needs TRIFOLD_DATA
    "train-window": f"{LONG} {STACKS['decoder']} model.sliding_window=32",
    "train-blocks": f"{LONG} {STACKS['encoder']} model.sparse_blocks.size=64 "
    "model.sparse_blocks.random=1",
}
# The case of reference_cases.py that trains the model, the options of `load`, the options of
# `generate_tokens`, the rows of the batch.
DECODING = {
    "decode-fp32": ("decoder", {}, {}, 1),
    "decode-bf16": ("decoder", {"dtype": "bfloat16"}, {}, 1),
    "decode-int8": ("decoder", {"dtype": "bfloat16", "weights": "int8"}, {}, 1),
    "decode-batch": ("decoder", {}, {}, 16),
    "decode-window": ("decoder-window", {}, {}, 1),
    "decode-window-batch": ("window", {}, {}, 16),
    "translate-greedy": ("demo", {}, {"num_beams": 1}, 16),
    "translate-beams": ("demo", {}, {"num_beams": 5}, 4),
}
DECODE = """
import json, sys, time, torch, trifold
model, loading, options, rows = json.loads(sys.argv[1])
pipe = trifold.load(model, **loading)
tokens = torch.randint(4, 16, (rows, 12), generator=torch.Generator().manual_seed(1))
for _ in sys.stdin:
    start = time.perf_counter()
    pipe.generate_tokens(tokens, max_new_tokens=96, min_new_tokens=96, **options)
    print(rows * 96 / (time.perf_counter() - start), flush=True)
"""
CALLS_PER_RUN = 12

Run = tuple[list[float], list[float]]
"""The tokens per second, and the MB of memory, of both trees."""


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
            write_files(each)
        columns = "".join(f"{unit:>10}{'here':>9}{'ratio':>22}" for unit in ("tokens/s", "MB"))
        print(f"{'medians':20}{columns}", flush=True)
        for measure in measures:
            run = _train if measure in TRAINING else _decode
            _, *pairs = run(measure, [*trees.values()], [*folders.values()], chosen.runs)
            figures = (_compared(kind) for kind in zip(*pairs, strict=True))
            print(f"{measure:20}{''.join(figures)}", flush=True)


def _compared(pairs: Sequence[list[float]]) -> str:
    """The medians of both trees, and their ratio."""
    before, after = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratios = [here / reference for reference, here in pairs]
    spread = f"[{min(ratios):.3f} {max(ratios):.3f}]"
    return f"{before:10.0f}{after:9.0f}{statistics.median(ratios):7.3f} {spread}"


def _train(measure: str, trees: list[Path], folders: list[Path], runs: int) -> Iterator[Run]:
    """Training runs of both trees, the uncounted one first."""
    for run in range(runs + 1):
        rates, memory = [0.0, 0.0], [0.0, 0.0]
        for tree in _order(run):
            out = folders[tree] / f"{measure}-{run}"
            words = f"train {TRAINING[measure]} --out {out}"
            memory[tree] = _trifold(trees[tree], folders[tree], words)
            lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
            intervals = [line["train/tokens_per_second"] for line in lines if "train/loss" in line]
            rates[tree] = statistics.median(intervals[1:])
        yield rates, memory


def _decode(measure: str, trees: list[Path], folders: list[Path], runs: int) -> Iterator[Run]:
    """Decoding runs of both trees, the uncounted one first."""
    model, *options = DECODING[measure]
    for tree, folder in zip(trees, folders, strict=True):
        if not (folder / model).exists():
            _trifold(tree, folder, f"train {MODELS[model]} --out {model}")
    for _ in range(runs + 1):
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
            process.stdin.close()
        yield [statistics.median(calls[2:]) for calls in rates], [*map(_memory, processes)]


def _order(run: int) -> tuple[int, int]:
    return (0, 1) if run % 2 else (1, 0)


def _environment(source: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(source), "TOKENIZERS_PARALLELISM": "false"}


def _trifold(source: Path, folder: Path, words: str) -> float:
    """Run a command of a tree in a folder, and return its memory in MB."""
    with (folder / "errors").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "trifold", *words.split()],
            cwd=folder,
            env=_environment(source),
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        memory = _memory(process)
    if process.returncode:
        found = (folder / "errors").read_text()
        raise SystemExit(f"{words} failed in {source}:\n{found[-3000:]}")
    return memory


def _memory(process: subprocess.Popen) -> float:
    """Wait for the end of a process; its largest resident set in MB."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


if __name__ == "__main__":
    main()
