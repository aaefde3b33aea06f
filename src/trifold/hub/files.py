"""Files of a model folder: JSON read with suspicion, everything written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from trifold import disk
from trifold.errors import CheckpointError
from trifold.jsonfiles import check_inside, parse_json, read_bytes, read_json

# The readers are below, in rank: text needs them too.
__all__ = ["check_inside", "new_folder", "parse_json", "read_bytes", "read_json", "replacing", "write_json"]


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
        disk.flush_path(temporary)
        disk.rename(temporary, path)
        disk.flush_folder(path.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(
            f"{path}: cannot be written ({reason}); free the disk or choose another folder"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder beside `path` to write into, which takes its place, synced to disk, when the block ends well.

    Raises CheckpointError where something is there already, but for an empty folder, and where the disk refuses; then
    nothing of what was written is left.
    """
    whole = path.resolve()  # "." has no name that another could be made of
    aside = whole.with_name(f".{whole.name}.{os.getpid()}.tmp")
    try:
        _refuse_taken(path)
        whole.parent.mkdir(parents=True, exist_ok=True)
        disk.remove(aside)
        aside.mkdir()
        yield aside
        for file in aside.rglob("*"):
            disk.flush_folder(file) if file.is_dir() else disk.flush_path(file)
        disk.flush_folder(aside)
        _refuse_taken(path)
        if path.is_dir():
            path.rmdir()  # not everywhere may a folder take the place of an empty one
        disk.rename(aside, whole)
        disk.flush_folder(whole.parent)
    except CheckpointError as error:  # of one of its files, by the name that it has for now
        raise CheckpointError(str(error).replace(str(aside), str(path))) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(
            f"{path}: cannot be written ({reason}); free the disk or choose another folder"
        ) from None
    finally:
        disk.remove(aside)


def _refuse_taken(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        if not any(path.iterdir()):
            return
        what = "a folder that is not empty"
    elif path.exists() or path.is_symlink():
        what = "something that is no folder"
    else:
        return
    raise CheckpointError(f"{path}: there is {what} already; name one that is not there yet")
