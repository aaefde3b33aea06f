"""Rows of a dataset of the Hugging Face hub, by their `datasets` library (an extra)."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from trifold.errors import DataError, SettingsError

_FORM = re.compile(r"hub:(?P<name>[^@:]+)(?:@(?P<config>[^:]+))?:(?P<split>.+)")


def places(source: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows that `hub:NAME@CONFIG:SPLIT` means, each with what a message calls it. Raises SettingsError."""
    if not (match := _FORM.fullmatch(source)):
        raise SettingsError(f"data: {source!r} is not of the form hub:NAME:SPLIT or hub:NAME@CONFIG:SPLIT")
    for number, row in enumerate(rows(match["name"], match["config"], match["split"]), start=1):
        yield f"{source}, row {number}", row


def rows(name: str, config: str | None, split: str) -> Iterator[Mapping[str, Any]]:
    """The rows of one split, downloaded and cached by the library; code from the hub is never run.

    Raises DataError when the library is not installed or gives no such dataset.
    """
    place = f"hub:{name}{f'@{config}' if config else ''}:{split}"
    try:
        datasets = importlib.import_module("datasets")
    except ModuleNotFoundError:
        remedy = 'install it with `pip install "trifold[datasets]"`'
        raise DataError(f"{place}: hub datasets need the `datasets` library; {remedy}") from None
    try:
        return iter(datasets.load_dataset(name, config, split=split))
    except Exception as error:  # the library raises a dozen unrelated classes, network errors among them
        reason = str(error).partition("\n")[0]
        remedy = "check name, configuration, split and network, or give files instead"
        raise DataError(f"{place}: cannot be loaded ({type(error).__name__}: {reason}); {remedy}") from error
