"""Compare the speed of this source tree with another commit: training and decoding, in alternating runs.

    python benchmarks/compare_commits.py                        against 909037c, seven runs each
    python benchmarks/compare_commits.py --reference HEAD~1     another commit, or a folder with src/
    python benchmarks/compare_commits.py --only train-demo      chosen measures; --list names them

Each run is a process of its own. The order of the two trees changes from run to run. A training figure is the median
rate of the logged intervals after the first; a decoding figure is the best of several calls after two uncounted ones.
The last column is the median of the ratios of the pairs: below 1, this tree is slower.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
from compare_reference import DECODER, REFERENCE, sources_of  # noqa: E402

SHORT = "train.steps={0} train.warmup=1 train.validate_every={0} train.save_every={0} train.log_every={1}"
TRAINING = {
    "train-demo": "demo " + SHORT.format(96, 12),
    "train-demo-bf16": "demo train.precision=bfloat16 " + SHORT.format(96, 12),
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
seconds = []
for _ in range(9):
    start = time.perf_counter()
    pipe.generate_tokens(tokens, max_new_tokens=96, min_new_tokens=96, **options)
    seconds.append(time.perf_counter() - start)
print(rows * 96 / min(seconds[2:]))
"""


def main() -> None:
    """Print one line per measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
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
        for name in trees:
            (Path(folder) / name).mkdir()
            (Path(folder) / name / "decoder.yaml").write_text(DECODER)
        print(f"{'tokens per second, median':24} {'reference':>10} {'here':>10} {'ratio':>7}", flush=True)
        for measure in measures:
            rates: dict[str, list[float]] = {name: [] for name in trees}
            for run in range(chosen.runs):
                for name in sorted(trees, reverse=run % 2 == 1):
                    rates[name].append(_rate(measure, trees[name], Path(folder) / name, run))
            ratio = statistics.median(
                here / reference for here, reference in zip(rates["here"], rates["reference"], strict=True)
            )
            before, after = (statistics.median(rates[name]) for name in trees)
            print(f"{measure:24} {before:10.0f} {after:10.0f} {ratio:7.3f}", flush=True)


def _rate(measure: str, source: Path, folder: Path, run: int) -> float:
    """Tokens per second of one run."""
    if measure in TRAINING:
        out = folder / f"{measure}-{run}"
        _python(source, folder, "-m", "trifold", "train", *TRAINING[measure].split(), "--out", str(out))
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        return statistics.median(
            [line["train/tokens_per_second"] for line in lines if "train/loss" in line][1:]
        )
    model, *options = DECODING[measure]
    trained = folder / model
    if not trained.exists():
        recipe = {"decoder": "decoder.yaml", "demo": "demo"}[model]
        words = f"{recipe} {SHORT.format(6, 6)} --out {trained}".split()
        _python(source, folder, "-m", "trifold", "train", *words)
    return float(_python(source, folder, "-c", DECODE, json.dumps([str(trained), *options])))


def _python(source: Path, folder: Path, *words: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(source), "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed in {source}:\n{done.stderr[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
