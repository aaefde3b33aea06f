"""`python -m trifold` is `trifold`, and so `torchrun -m trifold train …` trains on many processes."""

from __future__ import annotations

import sys

from trifold.cli import main

if __name__ == "__main__":
    sys.exit(main())
