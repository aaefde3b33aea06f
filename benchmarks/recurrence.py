"""Segment recurrence (Transformer-XL) on Python's standard library: bits per byte with and without
it.

    python benchmarks/recurrence.py --steps 600

Decoders of the same size, with the positions of Transformer-XL, read the same batches: rows of
1,024 tokens in segments of 128. `recurrent` also attends to the 128 states before a segment, in
every layer; `without` does not. `short` reads as many tokens in rows of 128, so that a batch has
eight times as many documents. The results are those of held-out modules."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"
ROWS = {
    "recurrent": ["model.max_positions=1024", "model.recurrence={size: 128, reach: 128}"],
    "without": ["model.max_positions=1024", "model.recurrence={size: 128, reach: 0}"],
    "short": ["model.max_positions=128"],
}
SETTINGS = """
data.documents=line data.holdout=0.01 tokenizer.kind=byte-bpe tokenizer.vocab_size=512
batch.rows=null
model.positions=relative-sinusoidal train.samples=0 train.save_every=1000000
train.validate_every=1000000
""".split()


def train(name: str, folder: Path, steps: int, seed: int) -> dict[str, float]:
    """Train one decoder; its last validation, and the seconds of the run."""
    out, start = folder / f"{name}-{seed}", time.perf_counter()
    values = [f"data.train={folder / 'stdlib.jsonl'}", f"train.steps={steps}", f"train.seed={seed}"]
    values += ["batch.tokens=4096", *SETTINGS, *ROWS[name]]
    command = [
        sys.executable,
        "-m",
        "trifold",
        "train",
        "shakespeare-char-tiny",
        *values,
        "--out",
        str(out),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text("utf-8").splitlines()]
    found = next(record for record in reversed(records) if "valid/bits_per_byte" in record)
    return {"bits_per_byte": found["valid/bits_per_byte"], "seconds": time.perf_counter() - start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--kinds", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--out", type=Path, default=Path("recurrence"))
    arguments = parser.parse_args()
    arguments.out.mkdir(exist_ok=True)
    text = arguments.out / "stdlib.jsonl"
    if not text.exists():
        subprocess.run([sys.executable, str(EXAMPLES / "stdlib_text.py"), str(text)], check=True)
    for seed in arguments.seeds:
        for name in arguments.kinds:
            found = train(name, arguments.out, arguments.steps, seed)
            print(
                f"seed {seed}  {name:10} {found['bits_per_byte']:.4f} bits per byte  "
                f"{found['seconds']:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
