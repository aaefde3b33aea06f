"""Time and memory from the call to the first logits, compared with reading the file once.

The file is in the page cache. Each measurement is a separate process, so that only imports are
warm."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path


def resident(field: str) -> float:
    """Memory of this process in MB: VmRSS now, VmHWM the peak since the last reset."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024 / 1e6
    return float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--what", choices=("read", "load"), required=True)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    file = args.folder / "model.safetensors"
    out: dict[str, object] = {"what": args.what, "megabytes": file.stat().st_size / 1e6}
    if args.what == "read":
        file.read_bytes()
        start = time.perf_counter()
        file.read_bytes()
        out["seconds"] = time.perf_counter() - start
    else:
        import torch

        import trifold.pipeline

        torch.set_num_threads(args.threads)
        tokens = torch.arange(100, 132)[None]
        before = resident("VmRSS")
        start = time.perf_counter()
        pipe = trifold.pipeline.load(args.folder)
        loaded = time.perf_counter()
        with torch.inference_mode():
            pipe.logits(tokens)[0, -1].argmax().item()
        end = time.perf_counter()
        out |= {"seconds": end - start, "loaded": loaded - start}
        out |= {"peak_mb_above_import": resident("VmHWM") - before}
        out |= {"resident_mb_above_import": resident("VmRSS") - before}
    print(json.dumps(out))


if __name__ == "__main__":
    main()
