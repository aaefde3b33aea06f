"""Train the same translator with trifold and its peers, and compare their speed.

Every runner is a separate process. The rounds are interleaved (A B C A B C), so that changes in the
machine's speed affect all toolkits."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from prepare import prepare
from report import machine_line, markdown_table, summarise
from setting import Setting

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@dataclass(frozen=True)
class Runner:
    name: str
    file: str
    precision: str


RUNNERS = (
    Runner("trifold-bf16", "trifold_runner.py", "bf16"),
    Runner("trifold-fp32", "trifold_runner.py", "fp32"),
    Runner("trifold-recipe", "recipe_runner.py", "bf16"),  # on Multi30k only
    Runner("eole-fp32", "eole_runner.py", "fp32"),
    Runner("eole-bf16", "eole_runner.py", "bf16"),
    Runner("marian-fp32", "marian_runner.py", "fp32"),
    Runner("marian-bf16", "marian_runner.py", "bf16"),
    Runner("torch-fp32", "torch_runner.py", "fp32"),
    Runner("torch-bf16", "torch_runner.py", "bf16"),
)

# glibc returns large blocks to the system and maps them again soon after; with logits of 150 MB per
# step that costs time. trifold configures glibc to keep them; the peers do not, but --keep-memory
# does it for all toolkits.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**33), "MALLOC_TRIM_THRESHOLD_": str(2**33)}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="timed window of each run")
    parser.add_argument("--warmup", type=int, default=10, help="steps before the clock starts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--keep-memory", action="store_true", help="make glibc keep freed blocks for every toolkit"
    )
    parser.add_argument(
        "--only", help="comma-separated: " + ",".join(runner.name for runner in RUNNERS)
    )
    parser.add_argument(
        "--trifold-python",
        default=sys.executable,
        help="interpreter that has trifold's requirements",
    )
    parser.add_argument("--results", type=Path, default=HERE.parent / "results")
    args = parser.parse_args()
    known = [runner.name for runner in RUNNERS]
    if unknown := [name for name in (args.only or "").split(",") if name and name not in known]:
        parser.error(f"--only: no runner {', '.join(unknown)}; there are {', '.join(known)}")
    return args


def main() -> int:
    args = arguments()
    folder = prepare(HERE.parent / ".cache" / "train_translation")
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    if meta["text"] == "synthetic":
        say("Multi30k is not under $TRIFOLD_DATA: measuring on synthetic text with the same sizes.")
    chosen = [runner for runner in RUNNERS if not args.only or runner.name in args.only.split(",")]
    if meta["text"] == "synthetic":
        chosen = [runner for runner in chosen if runner.file != "recipe_runner.py"]

    machine: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    failed: set[str] = set()
    for number in range(1, args.rounds + 1):
        machine.append(
            run_json(
                [args.trifold_python, HERE.parent / "machine.py", "--threads", args.threads], args
            )
        )
        for runner in chosen:
            try:
                line = run_json(command(runner, folder, args), args)
            except RuntimeError as error:
                failed.add(runner.name)
                say(f"round {number} {runner.name}: {error}")
                continue
            lines.append({"round": number, **line})
            say(
                f"round {number} {runner.name}: {line['target_tokens_per_s']:,.0f} target "
                "tokens/s, "
                f"{line['steps']} steps in {line['seconds']:.0f} s, "
                f"loss {line['loss_first']:.2f} → {line['loss_last']:.2f}"
            )
    if not lines:
        say("No runner finished.")
        return 1

    rows = summarise(lines, machine, meta["flops_per_target_token"])
    today = date.today().isoformat()
    block = (
        f"Training speed on {meta['text']}, {today}: {args.rounds} interleaved rounds of "
        f"{args.seconds:.0f} s "
        f"on {args.threads} threads, median. {machine_line(machine)}. "
        f"By formula {meta['flops_per_target_token'] / 1e6:.1f} MFLOP a target "
        f"token.\n\n{markdown_table(rows)}"
    )
    print(block)

    args.results.mkdir(parents=True, exist_ok=True)
    record = {
        "date": today,
        "threads": args.threads,
        "keep_memory": args.keep_memory,
        "data": meta,
        "setting": asdict(Setting(meta["vocab_size"])),
        "machine": machine,
        "lines": lines,
        "summary": [asdict(row) for row in rows],
        "failed": sorted(failed),
    }
    stem = args.results / f"train_translation-{today}"
    stem.with_suffix(".json").write_text(
        json.dumps(record, indent=2) + "\n", encoding="utf-8", newline="\n"
    )
    stem.with_suffix(".md").write_text(block + "\n", encoding="utf-8", newline="\n")
    say(f"Written: {stem}.json, {stem.name}.md")
    return 1 if failed else 0


def command(runner: Runner, folder: Path, args: argparse.Namespace) -> list[object]:
    python = args.trifold_python if runner.name.startswith("trifold") else sys.executable
    return [
        *(python, HERE / runner.file, "--data", folder, "--precision", runner.precision),
        *("--seconds", args.seconds, "--warmup", args.warmup, "--threads", args.threads),
    ]


def run_json(command: list[object], args: argparse.Namespace) -> dict[str, Any]:
    """Run to the end and parse the last line of output; RuntimeError with the end of stderr without
    one.
    """
    environment = os.environ | {
        "OMP_NUM_THREADS": str(args.threads),
        "PYTHONPATH": str(ROOT / "src"),
    }
    if args.keep_memory:
        environment |= KEEP_MEMORY
    done = subprocess.run(
        [str(part) for part in command],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )
    if done.returncode or not done.stdout.strip():
        raise RuntimeError(
            f"exit code {done.returncode}: " + "\n".join(done.stderr.strip().splitlines()[-5:])
        )
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
