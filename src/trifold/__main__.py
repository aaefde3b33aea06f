"""Entry point of `python -m trifold` and of `torchrun --nproc-per-node 2 -m trifold train
RECIPE`.
"""

import os
import sys

from trifold.cli import main

if __name__ == "__main__":
    code = main()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # All files are written and all ranks have left the process group. The exit handlers of
        # native libraries race with their threads and sometimes abort the process, which would look
        # like a failed rank.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
