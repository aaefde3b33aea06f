"""Compare how trifold and its peers keep their speed next to other processes on the same cores.

Each runner of the benchmarks `generate`, `train` and `decoder` runs alone, next to one endless
process of the same command, and next to two. A share is the speed divided by the speed alone in the
same round. If all processes get equal parts of the cores and lose nothing, the shares are 1/2 and
1/3."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
FOLDERS = {"generate": "--folder", "train_translation": "--data", "train_decoder": None}
SPEEDS = {
    "generate": "middle",
    "train_translation": "target_tokens_per_s",
    "train_decoder": "tokens_per_s",
}
# name -> benchmark, toolkit, precision, further arguments
RUNNERS = {
    f"{toolkit}-{task}-{precision}": (benchmark, toolkit, precision, more)
    for benchmark, task, more, toolkits in (
        (
            "generate",
            "greedy-1",
            ("--works", "greedy-1"),
            ("trifold int8", "ctranslate2 int8", "transformers fp32"),
        ),
        (
            "generate",
            "beam-5",
            ("--works", "beam-5"),
            ("trifold int8", "ctranslate2 int8", "transformers fp32"),
        ),
        ("train_translation", "translator", (), ("trifold bf16", "torch bf16")),
        ("train_decoder", "decoder", (), ("trifold bf16", "torch bf16")),
    )
    for toolkit, precision in (name.split() for name in toolkits)
}


def main() -> int:
    """Print a table and write it to the folder of results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="timed window of each run")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--beside", default="0,1,2", help="numbers of other processes, starting with 0"
    )
    parser.add_argument(
        "--only", default=",".join(RUNNERS), help="comma-separated: " + ",".join(RUNNERS)
    )
    parser.add_argument(
        "--trifold-python", default=sys.executable, help="interpreter with trifold's requirements"
    )
    args = parser.parse_args()
    names, others = args.only.split(","), [int(number) for number in args.beside.split(",")]
    if unknown := [name for name in names if name not in RUNNERS]:
        parser.error(f"--only: unknown runner {', '.join(unknown)}; runners: {', '.join(RUNNERS)}")

    speeds: dict[tuple[str, int], list[float]] = {}
    failed: list[str] = []
    for number in range(1, args.rounds + 1):
        for name in list(names):
            try:
                for beside in others:
                    speeds.setdefault((name, beside), []).append(speed := run(name, beside, args))
                    print(
                        f"round {number} {name} beside {beside}: {speed:,.0f} tokens/s",
                        file=sys.stderr,
                    )
            except RuntimeError as error:
                print(f"round {number} {error}", file=sys.stderr)
                names.remove(name)
                failed.append(name)
    rows = [
        f"Speed beside other processes, {date.today().isoformat()}: {args.rounds} interleaved "
        "rounds on "
        f"{os.cpu_count()} cores with {args.threads} threads each, median.\n",
        "| runner | tokens/s alone |" + "".join(f" share beside {n} |" for n in others[1:]),
        "|---|---:|" + "---:|" * len(others[1:]),
    ]
    for name in names:
        alone = speeds[name, others[0]]
        shares = [
            median(speed / base for speed, base in zip(speeds[name, n], alone, strict=True))
            for n in others[1:]
        ]
        rows.append(
            f"| {name} | {median(alone):,.0f} |" + "".join(f" {share:.2f} |" for share in shares)
        )
    block = "\n".join(rows)
    print(block)
    (HERE / "results").mkdir(exist_ok=True)
    record = HERE / "results" / f"contention-{date.today().isoformat()}.md"
    record.write_text(block + "\n", encoding="utf-8", newline="\n")
    return 1 if failed else 0


def run(name: str, beside: int, args: argparse.Namespace) -> float:
    """The tokens per second of a runner while `beside` endless processes of the same command
    run.
    """
    with ExitStack() as stack:
        for _ in range(beside):
            other = start(name, 1e9, args)
            stack.callback(other.communicate)
            stack.callback(other.kill)
        time.sleep(12 if beside else 0)  # until they have loaded
        output, errors = start(name, args.seconds, args).communicate()
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"{name}: no result\n" + "\n".join(errors.splitlines()[-5:]))
    return float(lines[-1][SPEEDS[RUNNERS[name][0]]])


def start(name: str, seconds: float, args: argparse.Namespace) -> subprocess.Popen[str]:
    """Start a runner. It prints a line of JSON after `seconds`."""
    benchmark, toolkit, precision, more = RUNNERS[name]
    python = args.trifold_python if toolkit == "trifold" else sys.executable
    words: list[Any] = [
        python,
        HERE / benchmark / f"{toolkit}_runner.py",
        "--precision",
        precision,
        *more,
    ]
    words += ["--seconds", seconds, "--threads", args.threads]
    if option := FOLDERS[benchmark]:
        words += [option, prepared(benchmark)]
    environment = {"OMP_NUM_THREADS": str(args.threads), "PYTHONPATH": str(HERE.parent / "src")}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([str(word) for word in words], env=os.environ | environment, **pipes)


def prepared(benchmark: str) -> str:
    """The folder of a benchmark's data, which is created at the first call."""
    code = "import sys, pathlib, prepare; print(prepare.prepare(pathlib.Path(sys.argv[1])))"
    command = [sys.executable, "-c", code, str(HERE / ".cache" / benchmark)]
    done = subprocess.run(
        command, cwd=HERE / benchmark, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout.splitlines()[-1]


if __name__ == "__main__":
    sys.exit(main())
