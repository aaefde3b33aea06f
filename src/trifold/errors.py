"""Errors that a user can fix; the command line prints them as `error: …`.

A message states the value, the place (file:line:byte for data, dotted key for settings) and the remedy.
Internal errors stay `AssertionError`s with a traceback.
"""

from __future__ import annotations


class TrifoldError(Exception):
    """An error that a user can fix (exit code 1)."""

    exit_code = 1


class UsageError(TrifoldError):
    """The command line or the arguments are invalid (exit code 2)."""

    exit_code = 2


class SettingsError(UsageError):
    """A recipe or a config has an unknown key, a value of the wrong type, or a contradiction."""


class DataError(TrifoldError):
    """A data file is missing, invalid, empty or inconsistent with another one."""


class CheckpointError(TrifoldError):
    """A model folder or a checkpoint is missing, damaged or of an unknown format."""


class OtherRankError(TrifoldError):
    """Another process of the same run has failed, and this one exits with it.

    reported: whether the other process reports the error itself, so that this one does not.
    """

    def __init__(self, message: str, exit_code: int = 1, *, reported: bool = True) -> None:
        super().__init__(message)
        self.exit_code, self.reported = exit_code, reported
