"""What a model reads in the rows of a table, for each task of prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from trifold.data import image_sets
from trifold.data.frames import Frame
from trifold.data.roles import Role, Roles, check_text
from trifold.data.tables import Keys
from trifold.errors import UsageError
from trifold.objectives import choose, labels, questions, summarize, tag
from trifold.objectives.answer import AnswerSettings
from trifold.objectives.objective import ObjectiveSettings
from trifold.objectives.text_to_text import TextToTextSettings
from trifold.text.prompts import fill_template, split_template

# --- layouts --------------------------------------------------------------------------------------


class Layout(NamedTuple):
    """What the rows of a task consist of.

    inputs: what the model reads. labels: what it predicts, which may be missing. read: from the
    values of the inputs by role, the `text`, and the `pair` or the `choices` that belong to it.
    fits: whether a first row has this layout.
    """

    inputs: Roles
    labels: Roles
    read: Callable[[Mapping[str, Any]], dict[str, Any]]
    fits: Callable[[Mapping[str, Any]], bool] = lambda first: True

    @classmethod
    def of(cls, roles: Roles, inputs: Sequence[str], *read: Any) -> Layout:
        """The layout of a task with these roles, of which the model reads the `inputs`."""
        chosen = {name: roles[name] for name in inputs}
        return cls(chosen, {name: roles[name] for name in roles if name not in chosen}, *read)

    def without_pair(self) -> Layout:
        """The layout if the command has the second text; a column of it may be missing."""
        pair = {name: role for name, role in self.inputs.items() if name in ("pair", "context")}
        inputs = {name: role for name, role in self.inputs.items() if name not in pair}
        return self._replace(inputs=inputs, labels={**self.labels, **pair})


def _read_texts(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"text": values["text"], "pair": values.get("pair")}


def _read_question(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"text": values["question"], "pair": values.get("context")}


def _read_choices(values: Mapping[str, Any]) -> dict[str, Any]:
    choices = choose.choices_of(values)
    question = values["question"]
    return {"text": values["text"], "choices": choices, "question": question}


def _has_words(first: Mapping[str, Any]) -> bool:
    names = tag.ROLES["words"].names
    return any(isinstance(value, list) and key.casefold() in names for key, value in first.items())


def _template_layout(pieces: Sequence[str]) -> Layout:
    """The layout of a part of a text-to-text task, whose texts and columns alternate."""
    inputs = {column: Role((column.casefold(),), check_text) for column in pieces[1::2]}

    def read(values: Mapping[str, Any]) -> dict[str, Any]:
        return {"text": fill_template(pieces, values)}

    return Layout(inputs, {}, read, lambda first: {*inputs} <= {*first})


def find_layouts(task: str, trained: ObjectiveSettings | None = None) -> dict[str, Layout]:
    """The layouts of the tables of a prediction task, by name.

    trained: the settings of the objective that trained the model, if it has a run. Those of a
    text-to-text task have a layout for each part.
    """
    if task == "generate" and isinstance(trained, TextToTextSettings):
        parts = trained.parts.items()
        return {name: _template_layout(split_template(part.input)) for name, part in parts}
    if task == "generate" and isinstance(trained, AnswerSettings):
        task = "answer"
    one = Layout.of(labels.ROLES, ("text",), _read_texts)
    two = Layout.of(labels.ROLES, ("text", "pair"), _read_texts)
    needed = {**labels.ROLES, "pair": labels.ROLES["pair"]._replace(required=True)}
    both = Layout.of(needed, ("text", "pair"), _read_texts)
    choices = [role for role in choose.ROLES if role != "label"]
    image = Layout.of(image_sets.ROLES, ("image",), lambda values: {"text": values["image"]})
    source = Layout.of(summarize.ROLES, ("source",), lambda values: {"text": values["source"]})
    words = Layout.of(tag.ROLES, ("words",), lambda values: {"text": values["words"]}, _has_words)
    layouts = {
        "answer": {"": Layout.of(questions.ROLES, ("question", "context"), _read_question)},
        "choose": {"": Layout.of(choose.ROLES, choices, _read_choices)},
        "classify": {"": two},
        "generate": {"": source},
        "images": {"": image},
        "next-sentence": {"": both},
        "similarity": {"": two},
        "tag": {"words": words, "text": one},
    }
    return layouts.get(task, {"": one})


# --- tables in memory -----------------------------------------------------------------------------


def read_inputs(data: Any, task: str) -> tuple[list[Any], list[Any] | None]:
    """The inputs in the columns that the task is trained on, and the second texts, if it reads
    pairs and a column has them.

    Raises UsageError if no column has one of the usual names.
    """
    written = [*Frame("texts", data).rows()]
    all_keys = Keys.of(written)
    rows = [*map(all_keys.respell, written)]
    first_row = rows[0] if rows else {}
    layout = next(layout for layout in find_layouts(task).values() if layout.fits(first_row))
    keys = [*all_keys.names]
    columns = _find_columns(keys, layout.inputs)
    if (first := columns[0]) is None:
        known = ", ".join(map(repr, keys)) or "none"
        noun = "images" if task == "images" else "texts"
        raise UsageError(
            f"texts: a table with the columns {known:.200}, none of which is known to have "
            f"{noun}; give one of them, as in frame['text'] or [row['text'] for row in rows]"
        )
    inputs = [row.get(first) for row in rows]
    reads_pairs = not {"pair", "context"}.isdisjoint(layout.inputs)
    if not reads_pairs or columns[1] is None:
        return inputs, None
    return inputs, [row.get(columns[1]) for row in rows]


def _find_columns(keys: list[str], roles: Mapping[str, Role]) -> list[str | None]:
    """The first column with a name of each role; None for a role without one."""
    names = {key.strip().casefold(): key for key in keys}
    columns: list[str | None] = []
    for role in roles.values():
        known = [name for name in role.names if name in names]
        columns.append(names.pop(known[0]) if known else None)
    return columns
