"""trifold on a GGUF file: the seconds of each work, and the memory bandwidth of its threads."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from setting import WORKS, line, prompts

import trifold
from trifold import fast
from trifold.cli.speed import read_rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("works")
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="bfloat16", help="of the computation")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    load = trifold.load  # imports it
    fast.prepare()
    fast.compiled_interpreter()
    start = time.perf_counter()
    pipe = load(args.file, dtype=args.dtype, weights="file")
    loaded = time.perf_counter() - start

    def seconds(rows: list[list[int]], new: int) -> float:
        options = {"max_new_tokens": new, "min_new_tokens": new}
        begin = time.perf_counter()
        pipe.generate_tokens(torch.tensor(rows), **options)
        return time.perf_counter() - begin

    for name in args.works.split(","):
        work = WORKS[name]
        rows = prompts(work)
        if name == "first-token":
            print(line("trifold", name, loaded + seconds(rows, 1), loaded=loaded), flush=True)
            continue
        # The time of the prompt is measured by itself and subtracted.
        found = []
        for _ in range(args.calls + 1):
            before = seconds(rows, 1)
            found.append(before if work.new == 1 else seconds(rows, work.new) - before)
        rate = read_rate(args.threads, 0.4)
        print(line("trifold", name, min(found[1:]), read=rate), flush=True)


if __name__ == "__main__":
    main()
