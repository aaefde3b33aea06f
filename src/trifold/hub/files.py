"""Files of a model folder: JSON read with suspicion, everything written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from trifold.errors import CheckpointError
from trifold.jsonfiles import parse_json, read_json

__all__ = [
    "parse_json",
    "read_json",
    "replacing",
    "write_json",
]  # the readers are below, in rank: text needs them too


def write_json(path: Path, values: Mapping[str, object]) -> None:
    """Write `values` in one step, keys in order, as the reference library lays them out."""
    text = json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, which takes its place, synced to disk, when the block ends well.

    Raises CheckpointError where the disk is full or the folder may not be written to; then `path` is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(
            f"{path}: cannot be written ({reason}); free the disk or choose another folder"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    if path.is_dir() and os.name == "nt":
        return  # there, folders cannot be opened
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
