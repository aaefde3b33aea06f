"""The texts of a table for a prediction, which names no columns."""

from collections.abc import Mapping
from typing import Any

from trifold.data import image_sets
from trifold.data.frames import Frame
from trifold.data.tables import Role
from trifold.errors import UsageError
from trifold.objectives import answer, labels, summarize

# The roles that a task reads; other tasks read one text.
_SIDES: dict[str, dict[str, Role]] = {
    "answer": {role: answer.ROLES[role] for role in ("question", "context")},
    "classify": {role: labels.ROLES[role] for role in ("text", "pair")},
    "generate": {"source": summarize.ROLES["source"]},
    "images": {"image": image_sets.ROLES["image"]},
}
_SIDES["next-sentence"] = _SIDES["classify"]


def read_inputs(data: Any, task: str) -> tuple[list[Any], list[Any] | None]:
    """The inputs in the columns that the task is trained on, and the second texts, if it reads
    pairs and a column has them.

    Raises UsageError if no column has one of the usual names.
    """
    rows = [*Frame("texts", data).rows()]
    roles = _SIDES.get(task, {"text": labels.ROLES["text"]})
    keys = [*dict.fromkeys(key for row in rows for key in row)]
    columns = _find_columns(keys, roles)
    if (first := columns[0]) is None:
        known = ", ".join(map(repr, keys)) or "none"
        raise UsageError(
            f"texts: a table with the columns {known:.200}, none of which is known to have "
            f"{'images' if task == 'images' else 'texts'}; give one of them, as in frame['text'] "
            "or [row['text'] for row in rows]"
        )
    inputs = [row.get(first) for row in rows]
    second = columns[1] if len(columns) > 1 else None
    return inputs, None if second is None else [row.get(second) for row in rows]


def _find_columns(keys: list[str], roles: Mapping[str, Role]) -> list[str | None]:
    """The first column with a name of each role; None for a role without one."""
    names = {key.strip().casefold(): key for key in keys}
    found = []
    for role in roles.values():
        known = next((name for name in role.names if name in names), None)
        found.append(None if known is None else names.pop(known))
    return found
