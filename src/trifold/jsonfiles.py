"""Read untrusted JSON files: bounded in size, without duplicate keys or numbers that other readers
round.

`json_line` writes JSON that every reader accepts.
"""

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from trifold.errors import UNPRINTABLE, CheckpointError
from trifold.folders import UntrustedPath, decode, open_file, read_bytes

MAX_JSON = 10 * 2**20  # bytes; the largest config or index in use is below 1 MB
MAX_LINE = 2**20  # bytes of a line of metrics; a batch of many events has some kilobytes
MAX_INTEGER = 2**53  # larger integers are rounded by other JSON readers


def json_line(value: Any, *, ensure_ascii: bool = False) -> str:
    """The value as one line of JSON. NaN and infinity become null; control characters and marks are
    escaped.
    """
    try:
        text = json.dumps(value, ensure_ascii=ensure_ascii, allow_nan=False)
    except ValueError:
        finite = json.loads(json.dumps(value), parse_constant=lambda name: None)
        text = json.dumps(finite, ensure_ascii=ensure_ascii)
    return UNPRINTABLE.sub(lambda found: json.dumps(found[0])[1:-1], text)


def iter_metrics(file: UntrustedPath) -> Iterator[dict[str, Any]]:
    """The lines of a metrics.jsonl, if it exists, without a last one that is being written.

    Raises CheckpointError, with the number of the line, for one that training does not write,
    and for what `open_file` refuses.
    """
    with suppress(FileNotFoundError), open_file(file) as lines:
        number = 0
        while line := lines.readline(MAX_LINE):
            number += 1
            try:
                yield parse_metrics(line)
            except ValueError as error:
                if not line.endswith(b"\n") and len(line) < MAX_LINE:
                    return
                remedy = "remove the line; `trifold resume` removes it too"
                raise CheckpointError(f"{file}:{number}: {error}; {remedy}") from None


def parse_metrics(line: bytes) -> dict[str, Any]:
    """A line of metrics.jsonl: its step, and numbers (null is a number that is not finite), or an
    event with further values. Raises ValueError for anything else.
    """
    if len(line) >= MAX_LINE:
        raise ValueError(f"a line of metrics has less than {MAX_LINE:,} bytes")
    try:
        values = json.loads(line.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply to be metrics") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} is not UTF-8") from None
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from None
    if not isinstance(values, dict):
        raise ValueError(f"metrics are an object, not {values!r:.40}")
    step = values.get("step")
    if type(step) is not int or not 0 <= step <= MAX_INTEGER:
        raise ValueError(f"step is {step!r:.40}, not a whole number")
    for name, value in values.items():
        is_number = isinstance(value, float | None) or type(value) is int
        if not is_number and "event" not in values:
            raise ValueError(f"{name!r:.40} is {value!r:.40}, not a number")
    return values


def finite(value: Any) -> float | None:
    """A value of metrics as a number, or None if it is not finite or too large for one."""
    if isinstance(value, int | float) and abs(value) <= sys.float_info.max:
        return float(value)
    return None


def lone_surrogate(text: str) -> str | None:
    """A description of the first unpaired surrogate (half of a character) in a text; None if it has
    none.
    """
    surrogate = re.search("[\ud800-\udfff]", text)
    if surrogate is None:
        return None
    code = f"U+{ord(surrogate[0]):04X}"
    return f"{code}, an unpaired surrogate; remove it, or write the whole character"


def read_json(path: UntrustedPath, *, largest: int = MAX_INTEGER) -> dict[str, Any]:
    """The object in a JSON file of at most MAX_JSON bytes.

    Raises CheckpointError if the file is missing, too large, not a regular file, a link out of the
    folder that the user named, not UTF-8 or not JSON, if a key occurs twice in an object, or if a
    number is not finite or beyond `largest`.
    """
    return parse_json(read_bytes(path, MAX_JSON), str(path), largest=largest)


def read_json_or_none(path: UntrustedPath) -> Any:
    """The content of a JSON file that this program has written; None if it is missing or damaged.

    Raises CheckpointError for what `open_file` refuses: another program has put it there.
    """
    with suppress(OSError, ValueError), open_file(path) as file:
        return json.loads(file.read().decode("utf-8"))
    return None


def parse_json(content: bytes, place: str, *, largest: int = MAX_INTEGER) -> dict[str, Any]:
    """Like `read_json`, for bytes; errors name `place`."""
    limit = "2^53" if largest == MAX_INTEGER else f"{largest:.0e}"

    def parse_int(text: str) -> int:
        # Python refuses to parse integers of thousands of digits.
        if len(text) > 40 or abs(int(text)) > largest:
            raise ValueError(f"{text[:20]} is beyond the largest integer read, {limit}")
        return int(text)

    try:
        value = json.loads(
            decode(content, place),
            object_pairs_hook=_unique_keys,
            parse_constant=_parse_finite,
            parse_float=_parse_finite,
            parse_int=parse_int,
        )
        if b"\\u" in content:
            json.dumps(value, ensure_ascii=False).encode("utf-8")  # fails for an unpaired surrogate
    except json.JSONDecodeError as error:
        where = f"{place}:{error.lineno}:{error.colno}"
        raise CheckpointError(
            f"{where}: not JSON ({error.msg.lower()}); copy the file again"
        ) from None
    except UnicodeEncodeError as error:
        raise CheckpointError(
            f"{place}: a string contains {lone_surrogate(error.object)}"
        ) from None
    except RecursionError:
        raise CheckpointError(f"{place}: nested too deeply to be a config") from None
    except ValueError as error:
        raise CheckpointError(f"{place}: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{place}: holds a {type(value).__name__}, not an object of keys and values"
        )
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        duplicate, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {duplicate!r} occurs twice; keep one of them")
    return result


def _parse_finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value
