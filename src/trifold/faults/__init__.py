"""Faults, made on purpose: promises about training that can be tried on any machine, and tried to be broken.

A promise is a law of a tiny but real run (`promises.py`); a trial breaks something at random and looks whether the law
holds. A plant (`plants.py`) is a bug that one of them forbids: put in, it must be found, else the harness is worthless.
`trifold doctor --faults` runs them.
"""

from trifold.faults.harness import Verdict, try_promise
from trifold.faults.plants import PLANTS
from trifold.faults.promises import PROMISES

__all__ = ["PLANTS", "PROMISES", "Verdict", "try_promise"]
