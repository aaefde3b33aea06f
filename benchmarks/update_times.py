"""CPU time of training updates by this source tree and by another commit, on one thread, in turn.

    TRIFOLD_DATA=… python benchmarks/update_times.py multi30k-en-de bfloat16 --reference HEAD~1

Both trees train a recipe on the same batches. Other processes change the CPU time of an update less
than its duration, so a busy machine gives a ratio too: the median of those of all updates but the
first three, reference / here, with the lowest and the highest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
from compare_reference import sources_of  # noqa: E402

NOT_COUNTED = 3  # updates
CHILD = """
import sys, time, torch
from profile_training import keep_freed_memory, new_update
from trifold import fast
torch.set_num_threads(1)
fast.enable()
keep_freed_memory()
update = new_update(*sys.argv[1:3], sys.argv[3:])
for _ in sys.stdin:
    start = time.thread_time()
    update()
    print(time.thread_time() - start, flush=True)
"""


def start(source: Path, words: list[str]) -> subprocess.Popen[str]:
    """A process that trains an update for each line that it reads, and prints its CPU seconds."""
    paths = os.pathsep.join(map(str, (source, Path(__file__).parent)))
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, *words],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )


def seconds(process: subprocess.Popen[str]) -> float:
    """The CPU time of the next update."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    return float(process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("precision", choices=("float32", "bfloat16"))
    parser.add_argument("changes", nargs="*")
    parser.add_argument("--reference", required=True, help="a commit, or a folder with src/")
    parser.add_argument("--updates", type=int, default=12)
    args = parser.parse_args()
    words = [args.recipe, args.precision, *args.changes]
    with tempfile.TemporaryDirectory() as folder:
        trees = (sources_of(args.reference, Path(folder)), ROOT / "src")
        processes = [start(tree, words) for tree in trees]
        pairs: list[list[float]] = []
        for update in range(args.updates):
            order = (0, 1) if update % 2 else (1, 0)
            found = {index: seconds(processes[index]) for index in order}
            pairs.append([found[0], found[1]])
        for process in processes:
            process.communicate()
    before, here = zip(*pairs[NOT_COUNTED:], strict=True)
    ratios = [one / other for one, other in zip(before, here, strict=True)]
    print(
        f"{args.recipe}, {args.precision}: {median(before) * 1e3:.0f} and "
        f"{median(here) * 1e3:.0f} ms of CPU time an update, ratio {median(ratios):.3f} "
        f"({min(ratios):.3f}-{max(ratios):.3f})"
    )


if __name__ == "__main__":
    main()
