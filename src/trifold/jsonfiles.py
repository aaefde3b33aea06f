"""JSON from a stranger's folder, read with suspicion: bounded, no key twice, no number that others would round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trifold.errors import CheckpointError

LARGEST_JSON = 10 * 2**20  # bytes; the largest config or index in use is below 1 MB
LARGEST_INTEGER = 2**53  # beyond it, other readers of JSON round


def read_json(path: Path, limit: int = LARGEST_JSON, *, largest: int = LARGEST_INTEGER) -> dict[str, Any]:
    """The object in a JSON file of at most `limit` bytes.

    Raises CheckpointError where the file is missing, too large, not UTF-8 or not JSON, where a key stands twice,
    and where a number is not finite or beyond `largest`.
    """
    return parse_json(read_bytes(path, limit), str(path), largest=largest)


def read_bytes(path: Path, limit: int) -> bytes:
    """The content of a file of at most `limit` bytes.

    Raises CheckpointError where it is missing or larger, and as `check_inside` does.
    """
    check_inside(path)
    try:
        if not path.is_file() and path.exists():
            raise CheckpointError(f"{path}: is no regular file")
        with path.open("rb") as file:
            content = file.read(limit + 1)
        if len(content) > limit:
            size = path.stat().st_size
            raise CheckpointError(f"{path}: {size:,} bytes is too large; at most {limit:,} are read")
        return content
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; is this the folder of a model?") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None


def check_inside(path: Path) -> None:
    """Raises CheckpointError for a link that leads out of its folder: a stranger's could show any file of this machine.

    The files of the hub's cache are links to `blobs` beside their `snapshots`, and may be.
    """
    if not path.is_symlink():
        return
    folder = path.parent.resolve()
    caches = [up.parent / "blobs" for up in (folder, *folder.parents) if up.name == "snapshots"]
    try:
        end = path.resolve(strict=True)
    except (OSError, RuntimeError):  # a circle is a RuntimeError to some versions of Python
        raise CheckpointError(f"{path}: a link that leads nowhere; copy the file itself") from None
    if not any(end.is_relative_to(place) for place in (folder, *caches)):
        raise CheckpointError(f"{path}: a link that leads out of its folder; copy the file itself")


def parse_json(content: bytes, place: str, *, largest: int = LARGEST_INTEGER) -> dict[str, Any]:
    """As `read_json`, of bytes; `place` is named in the error."""

    def integer(text: str) -> int:
        if len(text) > 40 or abs(int(text)) > largest:
            raise ValueError(f"{text[:20]} is beyond the largest integer read, {_power(largest)}")
        return int(text)

    try:
        value = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_no_key_twice,
            parse_constant=_finite,
            parse_float=_finite,
            parse_int=integer,
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
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice!r} stands twice; keep one of them")
    return result


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise ValueError(f"{text} is not a finite number")
    return value


def _power(largest: int) -> str:
    return "2^53" if largest == LARGEST_INTEGER else f"{largest:.0e}"
