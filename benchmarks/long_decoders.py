"""Bits per byte of decoders with each kind of attention by the length of what they read.

    python benchmarks/long_decoders.py --lengths 512 2048 8192

Decoders of the same size learn Python's standard library in windows of each length, from the same
number of updates of 8,192 tokens, and are scored on modules that they have not seen, in windows of
the same length. Each finished run is a line of results.jsonl in --out, and is not repeated. One
thread; the seconds are CPU time of training and score.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "examples"
TOKENS = 8192  # of an update
SEGMENTS = {
    "recurrence": {"size": 128, "reach": 128},
    "positions": "relative-sinusoidal",
}
# Changes of the model. Positions are rotary where they can be.
KINDS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "window": {"sliding_window": 128},
    "recurrence": SEGMENTS,
    "compression": SEGMENTS
    | {
        "compression": {"rate": 4, "memory": 64},
    },
    "adaptive span": {"adaptive_span": {"size": 512}},
    "convolution": {
        "attention": "dynamic-convolution",
        "dynamic_convolution": {"kernels": [15, 31]},
        "positions": "sinusoidal",
    },
    "spans": {"attention": "spans", "positions": "none"},
    "elu": {"attention": "elu"},
    "favor": {"attention": "favor", "n_features": 64},
}
MODEL = {
    "shape": "decoder",
    "positions": "rotary",
    "norm_placement": "pre",
    "scale_embeddings": False,
    "d_model": 64,
    "n_layers": 2,
    "n_heads": 2,
    "d_ff": 256,
    "dropout": 0.0,
}


def recipe(kind: str, length: int, steps: int, seed: int, text: Path) -> dict[str, Any]:
    """Settings of the recipe `causal`; the only validation is that of the last weights."""
    return {
        "data": {"train": str(text), "documents": "line", "holdout": 0.01},
        "tokenizer": {"kind": "byte-bpe", "vocab_size": 512},
        "model": MODEL | {"max_positions": length} | KINDS[kind],
        "batch": {"tokens": TOKENS},
        "train": {
            "steps": steps,
            "warmup": steps // 10,
            "schedule": "linear",
            "optimizer": "muon",
            "learning_rate": 0.005,
            "clip": 1.0,
            "seed": seed,
            "samples": 0,
            "validate_every": steps,
            "save_every": steps,
        },
    }


def measure(kind: str, length: int, steps: int, seed: int, out: Path) -> dict[str, Any]:
    """Train and score one decoder."""
    import trifold

    settings = recipe(kind, length, steps, seed, out / "stdlib.jsonl")
    folder = out / f"{kind}-{length}-{seed}".replace(" ", "-")
    before = time.process_time()
    outcome = trifold.train("causal", out=folder, resume="auto", **settings)
    if not outcome.finished:
        raise SystemExit(outcome.exit_code)
    return {
        "kind": kind,
        "length": length,
        "steps": steps,
        "seed": seed,
        "bits_per_byte": outcome.scores["bits_per_byte"],
        "seconds": round(time.process_time() - before, 1),
    }


def read_results(file: Path) -> list[dict[str, Any]]:
    """The finished runs."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def print_table(results: list[dict[str, Any]], lengths: list[int]) -> None:
    """Bits per byte, mean of the seeds, and CPU seconds, for each kind and length."""
    columns = " | ".join(f"{length:,} | s" for length in lengths)
    print(f"| kind | {columns} |")
    print("|---" + "|---:" * (2 * len(lengths)) + "|")
    for kind in KINDS:
        cells = []
        for length in lengths:
            runs = [run for run in results if (run["kind"], run["length"]) == (kind, length)]
            for key, digits in (("bits_per_byte", 3), ("seconds", 0)):
                values = [run[key] for run in runs]
                cells.append(f"{sum(values) / len(values):.{digits}f}" if values else "")
        print(f"| {kind} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--out", type=Path, default=Path("runs/long-decoders"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    text = arguments.out / "stdlib.jsonl"
    if not text.exists():
        subprocess.run([sys.executable, str(EXAMPLES / "stdlib_text.py"), str(text)], check=True)
    file = arguments.out / "results.jsonl"
    for seed in arguments.seeds:
        for length in arguments.lengths:
            for kind in arguments.kinds:
                key = {"kind": kind, "length": length, "steps": arguments.steps, "seed": seed}
                if any(key.items() <= run.items() for run in read_results(file)):
                    continue
                found = measure(**key, out=arguments.out)
                with file.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(found) + "\n")
                print(
                    f"seed {seed}  {length:6,}  {kind:14} {found['bits_per_byte']:.4f} bits per "
                    f"byte  {found['seconds']:.0f} s",
                    flush=True,
                )
    print_table(read_results(file), arguments.lengths)


if __name__ == "__main__":
    main()
