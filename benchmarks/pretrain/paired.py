"""The effect of denoising pretraining on translation: the same recipe with and without it, for
several seeds.

    TRIFOLD_DATA=… python benchmarks/pretrain/paired.py [--seeds 1,2,3] [--out runs/paired]
    [KEY=VALUE …]

`multi30k-denoise` is trained once (--pretraining KEY=VALUE changes it). Then
`multi30k-en-de-pretrained` is trained twice per seed, from those weights and from random ones, with
the same tokenizer, batches and steps. KEY=VALUE changes both. The weights with the best validation
score translate test2016. Finished runs in --out are reused, and interrupted ones continue."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import mean, stdev

ROOT = Path(__file__).parents[2]
TASK = "multi30k-en-de-pretrained"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "changes", nargs="*", metavar="KEY=VALUE", help="settings of both translation runs"
    )
    parser.add_argument(
        "--pretraining",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="settings of the pretraining run",
    )
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--out", type=Path, default=Path("runs/paired"))
    options = parser.parse_args()
    pretrained = train("multi30k-denoise", options.out / "denoise", options.pretraining) / "model"
    changes = [f"tokenizer.file={pretrained}", *options.changes]
    print("| seed | from scratch | after denoising | gain |\n|---|---:|---:|---:|")
    gains = []
    for seed in map(int, options.seeds.split(",")):
        scores = [
            bleu(
                train(
                    TASK,
                    options.out / f"{name}-{seed}",
                    [*changes, f"train.seed={seed}", f"train.start_from={start}"],
                )
            )
            for name, start in (("alone", "null"), ("pretrained", pretrained))
        ]
        gains.append(scores[1] - scores[0])
        print(f"| {seed} | {scores[0]:.2f} | {scores[1]:.2f} | {gains[-1]:+.2f} |", flush=True)
    if len(gains) > 1:
        print(
            f"| mean | | | {mean(gains):+.2f} (standard error "
            f"{stdev(gains) / len(gains) ** 0.5:.2f}) |"
        )


def train(recipe: str, out: Path, changes: list[str]) -> Path:
    """Train a recipe, or continue its run. Returns the run folder."""
    trifold("train", recipe, *changes, "--out", out, "--resume", "auto")
    return out


def bleu(run: Path) -> float:
    """BLEU on the recipe's test set; the result is stored per digest of the weights."""
    with (run / "model" / "model.safetensors").open("rb") as file:
        scores = run / f"test-{hashlib.file_digest(file, 'sha256').hexdigest()[:12]}.json"
    if not scores.is_file():
        scores.write_text(trifold("eval", run, "--json"), encoding="utf-8", newline="\n")
    return float(json.loads(scores.read_text("utf-8"))["scores"]["bleu"]["value"])


def trifold(*words: object) -> str:
    """Run a command. Returns its standard output; progress goes to standard error."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "trifold", *map(str, words)]
    process = subprocess.run(
        command, check=False, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment
    )
    if process.returncode:
        sys.exit(process.returncode)
    return process.stdout


if __name__ == "__main__":
    main()
