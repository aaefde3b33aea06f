"""Files of a model folder: JSON read with suspicion, everything written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trifold.errors import CheckpointError

LARGEST_JSON = 10 * 2**20  # bytes; the largest config or index in use is below 1 MB
LARGEST_INTEGER = 2**53  # beyond it, other readers of JSON round


def read_json(path: Path, limit: int = LARGEST_JSON) -> dict[str, Any]:
    """The object in a JSON file of at most `limit` bytes.

    Raises CheckpointError where the file is missing, too large, not UTF-8 or not JSON, where a key stands twice,
    and where a number is not finite or beyond 2^53.
    """
    try:
        size = path.stat().st_size
        if size > limit:
            raise CheckpointError(f"{path}: {size:,} bytes is too large; at most {limit:,} are read")
        return parse_json(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; is this the folder of a model?") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None


def parse_json(content: bytes, place: str) -> dict[str, Any]:
    """As `read_json`, of bytes; `place` is named in the error."""
    try:
        value = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_no_key_twice,
            parse_constant=_finite,
            parse_float=_finite,
            parse_int=_integer,
        )
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{place}: byte {error.start} is not UTF-8; copy the file again") from None
    except json.JSONDecodeError as error:
        where = f"{place}:{error.lineno}:{error.colno}"
        raise CheckpointError(f"{where}: not JSON ({error.msg.lower()}); copy the file again") from None
    except RecursionError:
        raise CheckpointError(f"{place}: nested too deeply to be a config") from None
    except ValueError as error:
        raise CheckpointError(f"{place}: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{place}: holds a {type(value).__name__}, not an object of keys and values")
    return value


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} stands twice; keep one of them")
    return result


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise ValueError(f"{text} is not a finite number")
    return value


def _integer(text: str) -> int:
    if len(text) > 17 or abs(int(text)) > LARGEST_INTEGER:
        raise ValueError(f"{text[:20]} is beyond the largest integer read, 2^53")
    return int(text)


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
