"""Count the files of trifold in which a function runs before the first optimizer step of `trifold train smoke`.

    python tools/count_train_files.py               this source tree
    python tools/count_train_files.py PATH/TO/src   another one
    python tools/count_train_files.py --list        with the names, in order of first use

A profiler (`sys.setprofile`, in every thread) records each file on its first function call, until a function named
`step` of a file with `optim` or `muon` in its path is called. Module-level code and class bodies do not count.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

PROBE = """
import os, sys, tempfile, threading
from pathlib import Path

source, seen = sys.argv[1], {}


class Reached(BaseException):
    pass


def profile(frame, event, argument):
    if event != "call":
        return
    code = frame.f_code
    if not code.co_filename.startswith(source) or code.co_name in ("<module>", "<lambda>"):
        return
    if code.co_flags & 2 == 0:  # CO_NEWLOCALS is not set: a class body
        return
    name = os.path.relpath(code.co_filename, source)
    if code.co_name == "step" and any(part in name for part in ("optim", "muon", "adam")):
        print("\\n".join(seen), flush=True)
        os._exit(0)
    seen.setdefault(name, None)


from trifold.cli import main

os.chdir(tempfile.mkdtemp())
threading.setprofile(profile)
sys.setprofile(profile)
main(["train", "smoke", "train.workers=1", "train.steps=2", "train.warmup=1"])
print("the optimizer was never reached", file=sys.stderr)
os._exit(1)
"""


def main() -> int:
    """Print the number of files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("source", nargs="?", type=Path, default=Path(__file__).resolve().parents[1] / "src")
    parser.add_argument("--list", action="store_true", help="print the names of the files")
    chosen = parser.parse_args()
    source = chosen.source.resolve()
    environment = os.environ | {"PYTHONPATH": str(source), "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-c", PROBE, str(source)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return 1
    files = [line for line in done.stdout.splitlines() if line.endswith(".py")]
    if chosen.list:
        print("\n".join(files))
    print(f"{len(files)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
