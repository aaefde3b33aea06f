"""Train the same decoder with trifold and its peers, and compare speed and memory.

Every runner is a separate process. The rounds are interleaved (A B C A B C), so that changes in the
machine's speed affect all toolkits."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from setting import Setting, flops_per_token

HERE = Path(__file__).parent
RUNNERS = {
    f"{name}-{precision}": (f"{file}_runner.py", "--precision", precision, *more)
    for name, file, precisions, *more in (
        ("trifold", "trifold", ("int8", "bf16", "fp32")),  # int8 is what the recipe says
        (
            "trifold-adamw",
            "trifold",
            ("int8", "bf16", "fp32"),
            "--optimizer",
            "adamw",
        ),  # as the peers have it
        ("torch", "torch", ("bf16", "fp32")),
        ("gpt2", "gpt2", ("bf16", "fp32")),
    )
    for precision in precisions
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="timed window of each run")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--only", default=",".join(RUNNERS), help="comma-separated: " + ",".join(RUNNERS)
    )
    parser.add_argument(
        "--no-memory", action="store_true", help="do not measure memory with 50,257 words"
    )
    parser.add_argument(
        "--trifold-python",
        default=sys.executable,
        help="interpreter that has trifold's requirements",
    )
    parser.add_argument("--results", type=Path, default=HERE.parent / "results")
    args = parser.parse_args()
    if unknown := [name for name in args.only.split(",") if name not in RUNNERS]:
        parser.error(f"--only: no runner {', '.join(unknown)}; there are {', '.join(RUNNERS)}")
    return args


def main() -> int:
    args = arguments()
    machine, lines, memory = [], [], []
    for number in range(1, args.rounds + 1):
        machine.append(
            run_json(
                [args.trifold_python, HERE.parent / "machine.py", "--threads", args.threads], args
            )
        )
        for name in args.only.split(","):
            lines.append(line := run_json(command(name, args, "--seconds", args.seconds), args))
            say(
                f"round {number} {name}: {line['tokens_per_s']:,.0f} tokens/s, loss "
                f"{line['loss_last']:.2f}"
            )
    for name in () if args.no_memory else args.only.split(","):
        if name.startswith("trifold-") and "adamw" not in name:
            continue  # that step always learns by AdamW
        memory.append(
            line := run_json(command(name, args, "--wide", "--seconds", 1, "--warmup", 1), args)
        )
        say(
            f"50,257 words, 16,384 tokens a step, {name}: {line['above_import_mb']:,.0f} MB "
            "above import"
        )
    today = date.today().isoformat()
    block = "\n\n".join([heading(args, machine, today), speeds(lines, machine), *memories(memory)])
    print(block)
    args.results.mkdir(parents=True, exist_ok=True)
    stem = args.results / f"train_decoder-{today}"
    record = {"date": today, "machine": machine, "lines": lines, "memory": memory}
    stem.with_suffix(".json").write_text(
        json.dumps(record, indent=2) + "\n", encoding="utf-8", newline="\n"
    )
    stem.with_suffix(".md").write_text(block + "\n", encoding="utf-8", newline="\n")
    say(f"Written: {stem}.json, {stem.name}.md")
    return 0


def command(name: str, args: argparse.Namespace, *more: object) -> list[object]:
    file, *how = RUNNERS[name]
    python = args.trifold_python if name.startswith("trifold") else sys.executable
    return [python, HERE / file, *how, "--threads", args.threads, *more]


def run_json(command: Sequence[object], args: argparse.Namespace) -> dict[str, Any]:
    """Run to the end and parse the last line of output; raises RuntimeError with the end of stderr
    without one.
    """
    environment = os.environ | {
        "OMP_NUM_THREADS": str(args.threads),
        "PYTHONPATH": str(HERE.parent.parent / "src"),
    }
    done = subprocess.run(
        [str(part) for part in command],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )
    if done.returncode or not done.stdout.strip():
        tail = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise RuntimeError(f"{command[1]}: exit code {done.returncode}: {tail}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def heading(args: argparse.Namespace, machine: Sequence[Mapping[str, Any]], today: str) -> str:
    return (
        f"Training a decoder of 10.6 M parameters, {today}: {args.rounds} interleaved rounds of "
        f"{args.seconds:.0f} s "
        f"on {args.threads} threads, median. {machine[0]['processor']}, torch "
        f"{machine[0]['torch']}, matrix peak in "
        f"GFLOP/s {peak(machine, 'fp32'):,.0f} fp32 and {peak(machine, 'bf16'):,.0f} bf16. By "
        "formula "
        f"{flops_per_token(Setting()) / 1e6:.1f} MFLOP a token."
    )


def peak(machine: Sequence[Mapping[str, Any]], precision: str) -> float:
    return max(
        value
        for figures in machine
        for name, value in figures.items()
        if name.startswith(f"{precision} ")
    )


def speeds(lines: Sequence[Mapping[str, Any]], machine: Sequence[Mapping[str, Any]]) -> str:
    """A table from the fastest to the slowest; all toolkits but trifold are peers."""
    runs: dict[tuple[str, str], list[float]] = {}
    for line in lines:
        runs.setdefault((line["name"], line["precision"]), []).append(line["tokens_per_s"])
    best = {
        precision: max(
            (median(v) for (n, p), v in runs.items() if "trifold" not in n and p == precision),
            default=float("nan"),
        )
        for precision in ("bf16", "fp32")
    }
    rows = [
        "| toolkit | precision | tokens/s | min–max | to best bf16 peer | to best fp32 peer | "
        "of bf16 peak |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for (name, precision), values in sorted(runs.items(), key=lambda item: -median(item[1])):
        speed = median(values)
        share = speed * flops_per_token(Setting()) / 1e9 / peak(machine, "bf16")
        rows.append(
            f"| {name} | {precision} | {speed:,.0f} | {min(values):,.0f}–{max(values):,.0f} | "
            f"{speed / best['bf16']:.2f}× | {speed / best['fp32']:.2f}× | {share:.1%} |"
        )
    return "\n".join(rows)


def memories(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table of the peak memory above import for steps of 16,384 tokens and 50,257 words, if it
    was measured.
    """
    if not lines:
        return []
    rows = [
        "| 50,257 words, 16,384 tokens a step | precision | peak above import |",
        "|---|---|---:|",
    ]
    rows += [
        f"| {line['name']} | {line['precision']} | {line['above_import_mb']:,.0f} MB |"
        for line in lines
    ]
    return ["\n".join(rows)]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
