"""Compare the speed of generation of trifold and its peers; then measure loading and the accuracy
of smaller weights.

Every runner is a separate process. The rounds are interleaved (A B C A B C), so that changes in the
machine's speed affect all toolkits."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from prepare import prepare
from report import ratios, tables
from setting import WORKS

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
LLAMA = ("llama-cpp-python==0.3.36", "gguf==0.17.1")


@dataclass(frozen=True)
class Runner:
    name: str
    file: str
    precision: str
    works: tuple[str, ...]


ALL = tuple(WORKS)
RUNNERS = (
    Runner("trifold-bf16", "trifold_runner.py", "bf16", ALL),
    Runner("trifold-int8", "trifold_runner.py", "int8", ALL),
    Runner("trifold-fp32", "trifold_runner.py", "fp32", ALL),
    Runner("transformers-fp32", "transformers_runner.py", "fp32", ALL),
    Runner("transformers-bf16", "transformers_runner.py", "bf16", ALL),
    Runner("ctranslate2-fp32", "ctranslate2_runner.py", "fp32", ALL),
    Runner("ctranslate2-int8", "ctranslate2_runner.py", "int8", ALL),
    Runner("llama.cpp-bf16", "llama_cpp_runner.py", "bf16", ("greedy-1",)),
    Runner("llama.cpp-q8_0", "llama_cpp_runner.py", "q8_0", ("greedy-1",)),
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=6.0, help="of warm calls, for each runner and workload"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--works", default=",".join(ALL), help="comma-separated: " + ",".join(ALL))
    parser.add_argument(
        "--only", help="comma-separated: " + ",".join(runner.name for runner in RUNNERS)
    )
    parser.add_argument(
        "--llama", action="store_true", help="measure llama.cpp too; building it takes ten minutes"
    )
    parser.add_argument("--no-loading", action="store_true", help="do not measure loading")
    parser.add_argument(
        "--no-cost", action="store_true", help="do not measure the accuracy of smaller weights"
    )
    parser.add_argument(
        "--trifold-python",
        default=sys.executable,
        help="interpreter that has trifold's requirements",
    )
    parser.add_argument("--results", type=Path, default=HERE.parent / "results")
    args = parser.parse_args()
    args.works = args.works.split(",")
    for given, known in (
        (args.works, ALL),
        ((args.only or "").split(","), [r.name for r in RUNNERS]),
    ):
        if unknown := [name for name in given if name and name not in known]:
            parser.error(f"not known: {', '.join(unknown)}; there are {', '.join(known)}")
    return args


def main() -> int:
    args = arguments()
    folder = prepare(HERE.parent / ".cache" / "generate")
    chosen = [runner for runner in RUNNERS if not args.only or runner.name in args.only.split(",")]
    if args.llama and find_spec("llama_cpp") is None:
        say("Building llama.cpp (once, ten minutes) …")
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "-qq", *LLAMA],
            check=True,
            env=os.environ | {"CMAKE_ARGS": "-DGGML_NATIVE=ON"},
        )
    if find_spec("llama_cpp") is None:
        chosen = [runner for runner in chosen if not runner.name.startswith("llama.cpp")]
        say("llama.cpp is skipped: its build takes ten minutes; --llama includes it.")

    lines: list[dict[str, Any]] = []
    machine: list[dict[str, Any]] = []
    failed: set[str] = set()
    for number in range(1, args.rounds + 1):
        machine += run_json(
            [args.trifold_python, HERE.parent / "machine.py", "--threads", args.threads], args
        )
        for runner in chosen:
            works = [work for work in runner.works if work in args.works]
            if not works:
                continue
            try:
                found = run_json(command(runner, works, folder, args), args)
            except RuntimeError as error:
                failed.add(runner.name)
                say(f"round {number} {runner.name}: {error}")
                continue
            for line in found:
                lines.append({"round": number, **line})
                say(
                    f"round {number} {runner.name} {line['work']}: {line['best']:,.0f} tokens/s "
                    f"(first call {line['first']:,.0f})"
                )
    if not lines:
        say("No runner finished.")
        return 1

    today = date.today().isoformat()
    read = [figures["read"] for figures in machine]
    parts = [
        f"Generation, {today}: {args.rounds} interleaved rounds on {args.threads} threads; of "
        "each round the best "
        f"warm call, and the median over the rounds. {machine[0]['processor']}, torch "
        f"{machine[0]['torch']}; memory "
        f"{min(read):.0f}–{max(read):.0f} GB/s read by two threads.",
        tables(lines, args.works),
    ]
    record: dict[str, Any] = {
        "date": today,
        "threads": args.threads,
        "machine": machine,
        "lines": lines,
    }
    if not args.no_loading:
        record["loading"], text = loading(folder, args)
        parts.append(text)
    if not args.no_cost:
        record["cost"], text = cost(folder, args)
        parts.append(text)
    record["failed"] = sorted(failed)
    block = "\n\n".join(parts)
    print(block)
    for target, ratio in ratios(lines):
        if ratio is not None and ratio < target.floor and target.work in args.works:
            say(f"BELOW THE FLOOR: {target.work}, {target.label}: {ratio:.2f}× < {target.floor}×")

    args.results.mkdir(parents=True, exist_ok=True)
    stem = args.results / f"generate-{today}"
    stem.with_suffix(".json").write_text(
        json.dumps(record, indent=2) + "\n", encoding="utf-8", newline="\n"
    )
    stem.with_suffix(".md").write_text(block + "\n", encoding="utf-8", newline="\n")
    say(f"Written: {stem}.json, {stem.name}.md")
    return 1 if failed else 0


def loading(folder: Path, args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Time to the first logits, alternating with reading the file once."""
    found: dict[str, list[dict[str, Any]]] = {"read": [], "load": []}
    for _ in range(args.rounds + 2):
        for what, figures in found.items():
            runner = [HERE / "loading_runner.py", "--folder", folder / "gpt2", "--what", what]
            figures += run_json([args.trifold_python, *runner, "--threads", args.threads], args)
    read = median(line["seconds"] for line in found["read"])
    load = median(line["seconds"] for line in found["load"])
    size = found["load"][0]["megabytes"]
    peak = median(line["peak_mb_above_import"] for line in found["load"])
    text = (
        f"Loading {size:,.0f} MB from the page cache: reading the file once {read * 1e3:,.0f} "
        "ms, from the call to "
        f"the first logits {load * 1e3:,.0f} ms: {load / read:.2f}× (target at most 1.5×). Peak "
        "memory above the "
        f"import {peak:,.0f} MB: {peak / size:.2f}× the weights (target at most 1.2×)."
    )
    return {"read": found["read"], "load": found["load"]}, text


def cost(folder: Path, args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Accuracy of smaller weights: logits and perplexity."""
    runner = [HERE / "cost_runner.py", "--folder", folder, "--threads", args.threads]
    (found,) = run_json([args.trifold_python, *runner], args)
    text = ["What smaller weights cost, against fp32:"]
    for model, rows in found.items():
        text += [
            f"- {model}, {row['precision']}: KL {row['kl']:.1e} nats a token, largest change of "
            "a logit "
            f"{row['largest']:.2g} (their deviation is {row['deviation']:.2g}), the same best "
            "token "
            f"{row['same_best']:.2%}, perplexity {row['perplexity_fp32']:.4f} → "
            f"{row['perplexity']:.4f}"
            for row in rows
        ]
    return found, "\n".join(text)


def command(
    runner: Runner, works: list[str], folder: Path, args: argparse.Namespace
) -> list[object]:
    python = args.trifold_python if runner.name.startswith("trifold") else sys.executable
    return [
        *(python, HERE / runner.file, "--folder", folder, "--precision", runner.precision),
        *("--works", ",".join(works), "--seconds", args.seconds, "--threads", args.threads),
    ]


def run_json(command: list[object], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Run to the end and parse the lines of JSON; RuntimeError with the end of stderr without
    one.
    """
    environment = os.environ | {
        "OMP_NUM_THREADS": str(args.threads),
        "PYTHONPATH": str(ROOT / "src"),
    }
    done = subprocess.run(
        [str(part) for part in command],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError(
            f"exit code {done.returncode}: " + "\n".join(done.stderr.strip().splitlines()[-5:])
        )
    return lines


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
