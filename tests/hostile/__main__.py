"""Hostile folders: damage valid folders at random, open them, and count what is not an error
message.

python -m tests.hostile                          1,000 folders
python -m tests.hostile --folders 10000          as `make faults`
python -m tests.hostile --seed 1 --only 77       one folder again, with its output
python -m tests.hostile --kind gpt2 --kind chat  only these kinds
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Before torch is imported. One thread, because this process is forked.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "MPLBACKEND": "agg",
    "PYTHONWARNINGS": "default",
}
# Of libraries, which trials may change.
CACHES = ("HF_HOME", "TORCHINDUCTOR_CACHE_DIR", "MPLCONFIGDIR")
HOME = "TRIFOLD_HOSTILE_HOME"  # the temporary folder, which is also that of caches


def run() -> int:
    """Parse the command line and make the trials; 0 if none is faulty."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.hostile",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--folders", type=int, default=1000, help="number of folders")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first folder")
    parser.add_argument("--only", type=int, help="this folder, with its output")
    parser.add_argument("--keep", type=int, action="append", help="of --only: this mutation")
    parser.add_argument("--kind", action="append", default=[], help="a kind of folder; repeatable")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--where", type=Path, help="a folder for temporary files")
    parser.add_argument("--report", type=Path, help="write the faulty trials into this file")
    parser.add_argument("--log", type=Path, help="append each trial to this file, as JSON")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    chosen = parser.parse_args()
    if not sys.platform.startswith("linux"):
        parser.error("the harness reads /proc and forks processes, which needs Linux")
    if HOME not in os.environ:
        with tempfile.TemporaryDirectory(prefix="trifold-hostile-", dir=chosen.where) as home:
            environment = os.environ | ENVIRONMENT | {HOME: home}
            environment |= dict.fromkeys(CACHES, f"{home}/caches")
            command = [sys.executable, "-m", "tests.hostile", *sys.argv[1:]]
            return subprocess.run(command, env=environment, check=False).returncode
    from tests.hostile import runner
    from tests.hostile.trials import Plan
    from tests.hostile.valid import KINDS

    kinds = tuple(chosen.kind)
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        parser.error(f"--kind {unknown[0]}: not known; the kinds are {', '.join(KINDS)}")
    home = Path(os.environ[HOME])
    if chosen.only is not None:
        keep = None if chosen.keep is None else tuple(chosen.keep)
        return runner.run_one(Plan(chosen.seed, chosen.only, kinds, keep), home)
    numbers = range(chosen.first, chosen.first + chosen.folders)
    start = time.perf_counter()
    found = runner.run_all(
        [Plan(chosen.seed, number, kinds) for number in numbers], home, chosen.processes, chosen.log
    )
    seconds = time.perf_counter() - start
    print(json.dumps(found) if chosen.json else runner.summary(found, seconds))
    if chosen.report:
        chosen.report.write_text(runner.report(found), encoding="utf-8")
    return int(any(one["faults"] for one in found))


if __name__ == "__main__":
    sys.exit(run())
