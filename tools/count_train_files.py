"""Count the files of trifold in which a function runs before the first optimizer step of `trifold
train smoke`.

    python tools/count_train_files.py               this source tree
    python tools/count_train_files.py PATH/TO/src   another one
    python tools/count_train_files.py --list        with the names, in order of first use

A profiler (`sys.setprofile`, in every thread) records each file on its first function call, until a
function named `step` of a file with `optim` or `muon` in its path is called. Module-level code and
class bodies do not count.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PROBE = """
import os, sys, tempfile, threading

source, *command = sys.argv[1:]
seen = {}


def profile(frame, event, argument):
    if event != "call":
        return
    code = frame.f_code
    if not code.co_filename.startswith(source) or code.co_name in ("<module>", "<lambda>"):
        return
    if code.co_flags & 2 == 0:  # CO_NEWLOCALS is not set: a class body
        return
    name = os.path.relpath(code.co_filename, source)
    is_step = code.co_name == "step" and any(part in name for part in ("optim", "muon", "adam"))
    if is_step:
        finish()
    seen.setdefault(f"{name} {code.co_name}", None)


def finish():
    sys.setprofile(None)
    print("\\n".join(seen), flush=True)
    os._exit(0)


import torch._dynamo  # slow to import, and twice as slow with a profiler

from trifold.cli import main

os.chdir(tempfile.mkdtemp())
threading.setprofile(profile)
sys.setprofile(profile)
main(command)
print("the optimizer was never reached", file=sys.stderr)
os._exit(1)
"""
SMOKE = ("train", "smoke", "train.workers=1", "train.steps=2", "train.warmup=1")


def trace_calls(command: Sequence[str], source: Path) -> list[str]:
    """The functions that a training command of the tree `source` runs until the first optimizer
    step, as "FILE FUNCTION" in order of first use. Raises RuntimeError if the command fails.
    """
    environment = os.environ | {"PYTHONPATH": str(source), "TOKENIZERS_PARALLELISM": "false"}
    program = [sys.executable, "-c", PROBE, str(source), *command]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [line for line in done.stdout.splitlines() if ".py " in line]


def main() -> int:
    """Print the number of files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "source", nargs="?", type=Path, default=Path(__file__).resolve().parents[1] / "src"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the files")
    chosen = parser.parse_args()
    calls = trace_calls(SMOKE, chosen.source.resolve())
    files = list(dict.fromkeys(call.split()[0] for call in calls))
    if chosen.list:
        print("\n".join(files))
    print(f"{len(files)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
