"""Match the patterns of an adapter in the sandbox process (see `trifold.sandbox`); imports nothing
of trifold.
"""

import re
from typing import Any


def answer(request: dict[str, Any]) -> dict[str, str | None]:
    """Whether the pattern matches the beginning of the name: its group `number`, empty without such
    a group, or None; or {"error": …} for an invalid pattern.
    """
    try:
        match = re.match(request["pattern"], request["name"])
    except (re.error, OverflowError, RecursionError) as error:
        return {"error": str(error)}
    if match is None:
        return {"number": None}
    return {"number": match.groupdict().get("number", "")}
