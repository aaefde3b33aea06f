"""Compare the speed of encoders of trifold and its peers: texts or images to vectors.

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
from importlib.metadata import version
from pathlib import Path
from typing import Any

from report import speeds, table
from setting import MEASURED, SHAPES

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
LIBRARIES = ("sentence-transformers", "openvino", "nncf", "onnxruntime")


@dataclass(frozen=True)
class Runner:
    name: str
    precisions: tuple[str, ...]

    @property
    def file(self) -> Path:
        return HERE / f"{self.name.replace('-', '_')}_runner.py"


RUNNERS = (
    Runner("trifold", ("fp32", "bf16", "int8")),
    Runner("openvino", ("fp32", "bf16", "int8")),
    Runner("onnxruntime", ("fp32", "int8")),
    Runner("sentence-transformers", ("fp32", "bf16")),
)
ALL = {
    f"{runner.name}-{precision}": (runner, precision)
    for precision in ("fp32", "bf16", "int8")
    for runner in RUNNERS
    if precision in runner.precisions
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--model", choices=list(SHAPES), default="minilm")
    parser.add_argument("--count", type=int, default=MEASURED, help="sentences or images of a call")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="of warm calls, for each runner")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default=",".join(ALL), help="comma-separated: " + ",".join(ALL))
    parser.add_argument(
        "--add", action="store_true", help="add the rounds to those of today's earlier runs"
    )
    parser.add_argument(
        "--trifold-python",
        default=sys.executable,
        help="interpreter that has trifold's requirements",
    )
    parser.add_argument("--results", type=Path, default=HERE.parent / "results")
    args = parser.parse_args()
    args.only = args.only.split(",")
    if unknown := [name for name in args.only if name not in ALL]:
        parser.error(f"not known: {', '.join(unknown)}; there are {', '.join(ALL)}")
    return args


def main() -> int:
    args = arguments()
    folder = HERE.parent / ".cache" / "encode" / args.model
    if not (folder / f"reference-{args.count}.npy").is_file():
        from prepare import prepare

        say(f"Preparing {folder} (once) …")
        prepare(folder, args.model, args.count)
    stem = args.results / f"encode-{args.model}-{args.count}-{date.today().isoformat()}"
    record: dict[str, Any] = {"machine": [], "lines": []}
    if args.add and stem.with_suffix(".json").is_file():
        record = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
    failed = False
    for _ in range(args.rounds):
        record["machine"] += run_json(
            [args.trifold_python, HERE.parent / "machine.py", "--threads", args.threads], args
        )
        for name in args.only:
            try:
                (line,) = run_json(command(name, folder, args), args)
            except RuntimeError as error:
                failed = True
                say(f"{name}: {error}")
                continue
            record["lines"].append(line)
            write(stem, record, args)
            say(
                f"{name}: {line['best']:,.0f} per second (first call {line['first']:,.0f}), "
                f"least cosine {line['least_cosine']:.4f}"
            )
    if not record["lines"]:
        say("No runner finished.")
        return 1

    print(stem.with_suffix(".md").read_text(encoding="utf-8"), end="")
    say(f"Written: {stem}.json, {stem.name}.md")
    return int(failed)


def write(stem: Path, record: dict[str, Any], args: argparse.Namespace) -> None:
    """Write the record and its table, after each runner: an interrupted run keeps its lines."""
    rounds = max(map(len, speeds(record["lines"]).values()))
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    block = (
        f"{args.model}, {args.count:,} {SHAPES[args.model].reads} to vectors, "
        f"{date.today().isoformat()}: {rounds} interleaved round(s) on {args.threads} threads; of "
        "each round the best warm call, and the median over the rounds. "
        f"{record['machine'][0]['processor']}, torch {record['machine'][0]['torch']}, {libraries}."
        f"\n\n{table(record['lines'])}"
    )
    stem.parent.mkdir(parents=True, exist_ok=True)
    stem.with_suffix(".json").write_text(
        json.dumps(record, indent=2) + "\n", encoding="utf-8", newline="\n"
    )
    stem.with_suffix(".md").write_text(block + "\n", encoding="utf-8", newline="\n")


def command(name: str, folder: Path, args: argparse.Namespace) -> list[object]:
    runner, precision = ALL[name]
    python = args.trifold_python if runner.name == "trifold" else sys.executable
    return [
        *(python, runner.file, "--folder", folder, "--model", args.model, "--count", args.count),
        *("--precision", precision, "--seconds", args.seconds, "--threads", args.threads),
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
