"""Compare decoding, reading a prompt and the first token of trifold and llama.cpp on GGUF files.

Both read the same file, which `trifold convert` writes. The runners alternate. Every decode row has
the ratio to llama.cpp and the share of the bandwidth at which the same threads read memory."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from setting import MODELS, WEIGHTS, WORKS, gguf_file

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SMOLLM2 = "SmolLM2-135M-Instruct"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="smollm2,gpt2", help=",".join(MODELS))
    parser.add_argument("--weights", default=",".join(WEIGHTS))
    parser.add_argument("--works", default=",".join(WORKS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=3, help="of each work in a round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="bfloat16", help="in which trifold computes")
    parser.add_argument("--real", type=Path, help="folder of the published models")
    parser.add_argument(
        "--llama-python", default=sys.executable, help="interpreter that has llama-cpp-python"
    )
    parser.add_argument("--trifold-python", default=sys.executable)
    parser.add_argument("--cache", type=Path, default=HERE.parent / ".cache" / "decode")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    args.cache.mkdir(parents=True, exist_ok=True)
    table = []
    for model in args.models.split(","):
        for weights in args.weights.split(","):
            file = prepare(model, weights, args)
            found: dict[tuple[str, str], list[float]] = {}
            rates: dict[str, list[float]] = {}
            for _ in range(args.rounds):
                for each in measured(file, args):
                    found.setdefault((each["name"], each["work"]), []).append(each["seconds"])
                    if "read" in each:
                        rates.setdefault(each["work"], []).append(each["read"])
            for work in args.works.split(","):
                pair = [median(found[name, work]) for name in ("trifold", "llama.cpp")]
                rate = median(rates[work]) if work in rates else None
                table.append(row(model, weights, work, pair, file.stat().st_size / 1e9, rate))
                print(table[-1], file=sys.stderr)
    titles = ("model", "weights", "work", "trifold", "llama.cpp", "ratio", "of bandwidth")
    print("| " + " | ".join(titles) + " |\n|---|---|---|---:|---:|---:|---:|")
    print("\n".join(table))
    return 0


def row(
    model: str, weights: str, name: str, pair: list[float], gigabytes: float, rate: float | None
) -> str:
    """A row of the table: tokens/s, or seconds of the first token."""
    work = WORKS[name]
    ours, theirs = pair
    ratio = f"{theirs / ours:.2f}×"
    share = ""
    if name == "first-token":
        shown = [f"{seconds:.3f} s" for seconds in pair]
        ratio = f"{ours / theirs:.2f}× the time"
    else:
        decodes = work.new > 1
        steps = work.new - 1 if decodes else 1
        tokens = work.rows * (steps if decodes else work.prompt)
        shown = [f"{tokens / seconds:,.1f}" for seconds in pair]
        if decodes and rate is not None:
            share = f"{gigabytes * steps / ours / rate:.0%} of {rate:.0f} GB/s"
    return "| " + " | ".join((model, weights, name, *shown, ratio, share)) + " |"


def measured(file: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """A round of both runners on a file, each in a process of its own."""
    options = [args.works, "--calls", str(args.calls), "--threads", str(args.threads)]
    lines = []
    for python, runner, own in (
        (args.trifold_python, "trifold_runner.py", ["--dtype", args.dtype]),
        (args.llama_python, "llama_cpp_runner.py", []),
    ):
        done = subprocess.run(
            [python, HERE / runner, file, *options, *own],
            env=os.environ | {"OMP_NUM_THREADS": str(args.threads)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        lines += [json.loads(each) for each in done.stdout.splitlines()]
    return lines


def prepare(model: str, weights: str, args: argparse.Namespace) -> Path:
    """The GGUF file of a model, written once."""
    file = gguf_file(args.cache, model, weights)
    if not file.exists():
        source: Path = args.cache / model
        if MODELS[model] is None:
            real = args.real or Path(sys.prefix) / "real"
            source = next((real / SMOLLM2).glob("*.gguf"))
        elif not source.exists():
            subprocess.run(
                [args.trifold_python, HERE / "random_model.py", model, source], check=True
            )
        convert = [args.trifold_python, "-m", "trifold", "convert", source, file]
        subprocess.run([*convert, "--weights", weights], check=True, stdout=sys.stderr)
    return file


if __name__ == "__main__":
    sys.exit(main())
