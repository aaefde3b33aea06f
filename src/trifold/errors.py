"""Everything that a user can mend is raised as one of these; the command line prints it as `error: …`.

A message names the value, the place (file:line:byte for data, dotted key for settings) and the remedy.
Mistakes of our own stay `AssertionError`s and tracebacks.
"""

from __future__ import annotations


class TrifoldError(Exception):
    """Something failed that a user can mend (exit code 1)."""

    exit_code = 1


class UsageError(TrifoldError):
    """The command line or the arguments do not make sense (exit code 2)."""

    exit_code = 2


class SettingsError(UsageError):
    """A recipe or a config holds an unknown key, a value of the wrong type, or a contradiction."""


class DataError(TrifoldError):
    """A data file is missing, broken, empty or does not fit its partner."""


class CheckpointError(TrifoldError):
    """A model folder or a checkpoint is missing, damaged or foreign."""


class Elsewhere(TrifoldError):
    """Another process of the same run has failed, and this one leaves with it.

    told: the other says itself why, so that this one is silent.
    """

    def __init__(self, message: str, exit_code: int = 1, *, told: bool = True) -> None:
        super().__init__(message)
        self.exit_code, self.told = exit_code, told
