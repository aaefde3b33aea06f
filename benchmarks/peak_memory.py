"""The largest resident memory of this process."""

import resource
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")


def peak_mb() -> float:
    """In MB of 2²⁰ bytes.

    Linux gives a new process the `ru_maxrss` of the one that started it, so that a small runner
    would report the memory of its parent. VmHWM counts from the start of this program.
    """
    if STATUS.exists():
        lines = STATUS.read_text(encoding="utf-8").splitlines()
        peak = next(line for line in lines if line.startswith("VmHWM"))
        return int(peak.split()[1]) / 2**10
    peak_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak_rss / (2**20 if sys.platform == "darwin" else 2**10)
