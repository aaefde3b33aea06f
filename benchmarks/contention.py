"""Compare how trifold and its peers keep their speed next to other processes on the same cores.

Each runner of the benchmarks `generate`, `train` and `decoder` runs alone, next to one endless
process of the same command, and next to two, in short windows in turn: the other processes are
stopped and continued. A share is the speed divided by the speed alone in the same round. If all
processes get equal parts of the cores and lose nothing, the shares are 1/2 and 1/3. A window in
which further programs used a twentieth of the cores is measured again."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import progress
from progress import steps

HERE = Path(__file__).parent
FOLDERS = {"generate": "--folder", "train_translation": "--data", "train_decoder": None}
FIRST_STEPS = 4  # not counted
SETTLE_SECONDS = 1.5  # after other processes are stopped or continued
MAX_FOREIGN_LOAD = 0.05  # of the cores
TRIES = 3  # of a window
TICKS = os.sysconf("SC_CLK_TCK")
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
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each window")
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

    speeds: dict[str, list[list[float]]] = {}
    failed: list[str] = []
    for name in names:
        try:
            speeds[name] = measure(name, others, args)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            failed.append(name)
    rows = [
        f"Speed beside other processes, {date.today().isoformat()}: {args.rounds} rounds of "
        f"windows of {args.seconds:g} seconds on "
        f"{os.cpu_count()} cores with {args.threads} threads each, median.\n",
        "| runner | tokens/s alone |" + "".join(f" share beside {n} |" for n in others[1:]),
        "|---|---:|" + "---:|" * len(others[1:]),
    ]
    for name, rounds in speeds.items():
        alone, *shares = (
            median(speed / one[0] for speed, one in zip(column, rounds, strict=True))
            for column in zip(*rounds, strict=True)
        )
        assert alone == 1, "the first number of other processes is 0"
        rows.append(
            f"| {name} | {median(one[0] for one in rounds):,.0f} |"
            + "".join(f" {share:.2f} |" for share in shares)
        )
    block = "\n".join(rows)
    print(block)
    (HERE / "results").mkdir(exist_ok=True)
    record = HERE / "results" / f"contention-{date.today().isoformat()}.md"
    record.write_text(block + "\n", encoding="utf-8", newline="\n")
    return 1 if failed else 0


def measure(name: str, others: list[int], args: argparse.Namespace) -> list[list[float]]:
    """The tokens per second of a runner, of each round and number of other processes."""
    rounds: list[list[float]] = []
    with TemporaryDirectory() as folder, ExitStack() as stack:
        processes = []
        for number in range(max(others) + 1):
            for process in processes:
                process.stop()
            processes.append(stack.enter_context(Runner(name, Path(folder) / str(number), args)))
            processes[-1].wait(FIRST_STEPS)
        measured = processes.pop()
        for number in range(1, args.rounds + 1):
            rounds.append([window(measured, processes, n, args.seconds) for n in others])
            figures = ", ".join(f"{speed:,.0f}" for speed in rounds[-1])
            print(f"round {number} {name}: {figures} tokens/s", file=sys.stderr)
    return rounds


def window(measured: Runner, processes: list[Runner], beside: int, seconds: float) -> float:
    """The tokens per second of a runner while `beside` of the other processes run."""
    for process in processes[:beside]:
        process.resume()
    for process in processes[beside:]:
        process.stop()
    for _ in range(TRIES):
        time.sleep(SETTLE_SECONDS)
        begin = measured.next_step(time.monotonic())
        before = foreign_seconds([measured, *processes])
        end = measured.next_step(begin + seconds)
        used = foreign_seconds([measured, *processes]) - before
        load = used / (end - begin) / (os.cpu_count() or 1)
        if load < MAX_FOREIGN_LOAD:
            break
        print(f"further programs used {load:.0%} of the cores", file=sys.stderr)
    tokens = sum(tokens for ended, tokens in steps(measured.progress) if begin < ended <= end)
    return tokens / (end - begin)


def foreign_seconds(processes: list[Runner]) -> float:
    """The CPU time that programs besides these have used; 0 where the system does not tell."""
    statistics = Path("/proc/stat")
    if not statistics.exists():
        return 0.0
    user, nice, system, _, _, *interrupts = map(int, statistics.read_text().split()[1:9])
    return (user + nice + system + sum(interrupts)) / TICKS - sum(
        p.cpu_seconds() for p in processes
    )


class Runner:
    """A running process of a benchmark, which never ends by itself."""

    def __init__(self, name: str, progress: Path, args: argparse.Namespace) -> None:
        self.name = name
        self.progress = progress
        self.errors = progress.with_suffix(".errors")
        self.process = self._start(args)

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def _start(self, args: argparse.Namespace) -> subprocess.Popen[bytes]:
        benchmark, toolkit, precision, more = RUNNERS[self.name]
        python = args.trifold_python if toolkit == "trifold" else sys.executable
        words: list[Any] = [python, HERE / benchmark / f"{toolkit}_runner.py"]
        words += ["--precision", precision, *more, "--seconds", 1e9, "--threads", args.threads]
        if option := FOLDERS[benchmark]:
            words += [option, prepared(benchmark)]
        environment = {
            "OMP_NUM_THREADS": str(args.threads),
            "PYTHONPATH": str(HERE.parent / "src"),
            progress.FILE: str(self.progress),
        }
        with self.errors.open("wb") as errors:
            return subprocess.Popen(
                [str(word) for word in words],
                env=os.environ | environment,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def wait(self, count: int) -> None:
        """Wait until so many steps have ended."""
        while len(steps(self.progress)) < count:
            self._sleep()

    def next_step(self, moment: float) -> float:
        """The time at which the first step ends after a moment."""
        while True:
            for ended, _ in steps(self.progress):
                if ended >= moment:
                    return ended
            self._sleep()

    def _sleep(self) -> None:
        time.sleep(0.02)
        if self.process.poll() is not None:
            end = self.errors.read_text(encoding="utf-8").splitlines()[-5:]
            raise RuntimeError(f"{self.name}: ended\n" + "\n".join(end))

    def cpu_seconds(self) -> float:
        """The CPU time that the process has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


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
