"""Datasets of the Hugging Face hub, and the names of the classes that they store as numbers."""

import importlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from trifold.data.formats import NumberedRow
from trifold.errors import DataError, SettingsError
from trifold.installation import install_command

_HUB_SOURCE = re.compile(r"hub:(?P<name>[^@:]+)(?:@(?P<config>[^:]+))?:(?P<split>.+)")


def iter_hub(source: str) -> Iterator[NumberedRow]:
    """The rows of `hub:NAME@CONFIG:SPLIT`; code from the hub is never executed.

    Raises SettingsError for another form, DataError if `datasets` is not installed or cannot load
    the dataset.
    """
    if not (match := _HUB_SOURCE.fullmatch(source)):
        raise SettingsError(
            f"data: {source!r} is not of the form hub:NAME:SPLIT or hub:NAME@CONFIG:SPLIT"
        )
    datasets = import_library("datasets", f"{source}: hub datasets need the `datasets` library")
    try:
        rows = datasets.load_dataset(match["name"], match["config"], split=match["split"])
    except (
        Exception
    ) as error:  # the library raises many unrelated classes, network errors among them
        reason = str(error).partition("\n")[0]
        remedy = "check name, configuration, split and network, or give files instead"
        raise DataError(
            f"{source}: cannot be loaded ({type(error).__name__}: {reason}); {remedy}"
        ) from error
    for number, row in enumerate(named_rows(rows), start=1):
        yield number, f"{source}, row {number}", row


def named_rows(dataset: Any) -> Iterator[Mapping[str, Any]]:
    """The rows of a dataset of the library `datasets`, with the names of classes."""
    names = {}
    for key, feature in (getattr(dataset, "features", None) or {}).items():
        of_classes = getattr(getattr(feature, "feature", feature), "names", None)
        if of_classes:
            names[key] = of_classes
    for row in dataset:
        yield with_names(row, names)


def import_library(name: str, need: str) -> Any:
    """A library of the extra `datasets`. Raises DataError with this need if it is missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise DataError(f"{need}; install it with `{install_command('datasets')}`") from None


# --- classes that are given by number -------------------------------------------------------------


def names_in_metadata(metadata: Mapping[bytes, bytes]) -> dict[str, Sequence[str]]:
    """The names of the classes in each column, from the metadata that the library `datasets` writes
    into Parquet files.
    """
    with suppress(ValueError, LookupError, TypeError, AttributeError):
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        names = {key: _names_of_feature(feature) for key, feature in features.items()}
        return {key: of_classes for key, of_classes in names.items() if of_classes}
    return {}


def _names_of_feature(feature: Any) -> Sequence[str] | None:
    """The names of a ClassLabel, or of a list of them, which has one of two forms."""
    if isinstance(feature, list) and feature:
        return _names_of_feature(feature[0])
    if not isinstance(feature, Mapping) or "_type" not in feature:
        return None
    if feature["_type"] == "ClassLabel":
        return [str(name) for name in feature.get("names") or ()]
    return _names_of_feature(feature.get("feature"))


def with_names(row: Mapping[str, Any], names: Mapping[str, Sequence[str]]) -> Mapping[str, Any]:
    """The row with the names of its classes. A negative number, which stands for no class, is
    None.
    """
    return {**row, **{key: _class_names(row[key], names[key]) for key in names if key in row}}


def _class_names(value: Any, names: Sequence[str]) -> Any:
    if isinstance(value, list):
        return [_class_names(each, names) for each in value]
    if not isinstance(value, int) or value >= len(names):
        return value
    if value < 0:
        return None
    return names[value]
