"""`python -m trifold`, which is also what torchrun starts: `torchrun --nproc-per-node 2 -m trifold train RECIPE`."""

from __future__ import annotations

import os
import sys

from trifold.cli import main

if __name__ == "__main__":
    code = main()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # All is written, and all ranks have left their group. What native libraries then do at the end of a process
        # races with their own threads, and now and then ends it with an abort: that would look like a failed rank.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
