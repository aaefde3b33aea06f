"""Is a translator better that learnt to denoise the same text before? The same recipe with and without, seed by seed.

    TRIFOLD_DATA=… python benchmarks/pretrain/paired.py [--seeds 1,2,3] [--out runs/paired] [KEY=VALUE …]

First `multi30k-denoise` (--pretraining KEY=VALUE changes it), once. Then of each seed `multi30k-en-de-pretrained`
twice, from the weights of that and from nothing: one tokenizer, the same batches in the same order, the same steps.
KEY=VALUE changes both alike. The best weights of each, chosen on the validation text, translate test2016. What is
finished in --out is not done again, and what was stopped goes on.
"""

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
        "changes", nargs="*", metavar="KEY=VALUE", help="settings of the translators, of both alike"
    )
    parser.add_argument(
        "--pretraining", action="append", default=[], metavar="KEY=VALUE", help="of the denoising"
    )
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--out", type=Path, default=Path("runs/paired"))
    asked = parser.parse_args()
    learnt = trained("multi30k-denoise", asked.out / "denoise", asked.pretraining) / "model"
    changes = [f"tokenizer.file={learnt}", *asked.changes]
    print("| seed | from nothing | after denoising | gain |\n|---|---:|---:|---:|")
    gains = []
    for seed in map(int, asked.seeds.split(",")):
        scores = [
            bleu(
                trained(
                    TASK,
                    asked.out / f"{name}-{seed}",
                    [*changes, f"train.seed={seed}", f"train.start_from={start}"],
                )
            )
            for name, start in (("alone", "null"), ("pretrained", learnt))
        ]
        gains.append(scores[1] - scores[0])
        print(f"| {seed} | {scores[0]:.2f} | {scores[1]:.2f} | {gains[-1]:+.2f} |", flush=True)
    if len(gains) > 1:
        print(f"| mean | | | {mean(gains):+.2f} (standard error {stdev(gains) / len(gains) ** 0.5:.2f}) |")


def trained(recipe: str, out: Path, changes: list[str]) -> Path:
    """The run in `out`, finished."""
    trifold("train", recipe, *changes, "--out", out, "--resume", "auto")
    return out


def bleu(run: Path) -> float:
    """On the recipe's test text, as the recipe searches and tokenises; of these weights once."""
    with (run / "model" / "model.safetensors").open("rb") as file:
        scores = run / f"test-{hashlib.file_digest(file, 'sha256').hexdigest()[:12]}.json"
    if not scores.is_file():
        scores.write_text(trifold("eval", run, "--json"), encoding="utf-8", newline="\n")
    return float(json.loads(scores.read_text("utf-8"))["scores"]["bleu"]["value"])


def trifold(*words: object) -> str:
    """What the command prints; what it says of its progress is seen on standard error."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "trifold", *map(str, words)]
    done = subprocess.run(
        command, check=False, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment
    )
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


if __name__ == "__main__":
    main()
