"""Inputs of `trifold predict` from files of rows, in every format that a task is trained with."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trifold.cli.terminal import print_note
from trifold.data.lines import inner_suffix
from trifold.data.records import RECORD_FORMATS, open_rows
from trifold.data.settings import DataSettings
from trifold.data.tables import Role, Roles, choose_columns, object_keys, read_roles
from trifold.errors import DataError, UsageError

if TYPE_CHECKING:
    from trifold.recipe import Recipe

print_once = cache(print_note)
# The settings of a source of rows, which are set after its name: `data.columns.text=review`.
READING = ("columns", "source", "target", "format", "delimiter", "header", "max_line_bytes")
PART = "task.part="  # of a text-to-text model


class Input(NamedTuple):
    """What a model reads, its place for messages, and its row in a table.

    text: a text; the words of a sentence; or a picture, by its path or opened. pair: its second
    text. choices: of this text.
    """

    place: str
    text: Any
    pair: str | None = None
    row: Mapping[str, Any] = {}
    choices: Sequence[str] = ()


# --- arguments ------------------------------------------------------------------------------------


def is_table(texts: Sequence[str], recipe: "Recipe | None" = None) -> bool:
    """Whether the first text is the name of a file of rows, and the others are settings of it.

    A file whose suffix is none of a table is one if a setting, or the recipe, names its format.
    """
    name, settings = (texts[0], texts[1:]) if texts else ("", ())
    if not all(text.startswith(("data.", PART)) for text in settings):
        return False
    if _suffix_format(name) is not None:
        return " " not in name or Path(name).is_file()
    formats = [text for text in settings if text.startswith("data.format=")]
    is_named = recipe is not None and recipe.data.format not in ("auto", "text")
    return (bool(formats) or is_named) and _is_file(name)


def _suffix_format(name: str) -> str | None:
    """The format of rows that the suffix of a file name stands for, if it is one."""
    found = RECORD_FORMATS.get(inner_suffix(name))
    return None if found == "text" else found


def _is_file(name: str) -> bool:
    with suppress(OSError, ValueError):  # too long for a name, or not one
        return Path(name).is_file()
    return False


def check_no_files(texts: Sequence[str], command: str) -> None:
    """Raises UsageError for a text that is the name of a file, with the command that reads it.

    command: of lines of text, such as "generate runs/demo".
    """
    for text in filter(_is_file, texts):
        file = shlex.quote(text)
        use = f"`trifold {command} - < {file}` reads its lines"
        if is_table([text]):
            model = command.partition(" ")[2]
            use = f"`trifold predict {model} {file} --out FILE.csv` reads its rows"
        raise UsageError(f"{text}: is a file; {use}, and --text takes its name as a text")


def reading_settings(
    files: Sequence[str], recipe: "Recipe | None", given: Mapping[str, Any]
) -> DataSettings:
    """How files are read: as the recipe reads its own, except for the settings that are `given`.

    The format is that of the recipe only if the suffix of a file names none. Raises SettingsError
    for an unknown or invalid setting.
    """
    values: dict[str, Any] = {}
    if recipe is not None:
        values = {key: getattr(recipe.data, key) for key in READING}
        if len(files) > 1 or _suffix_format(files[0]) is not None:
            del values["format"]
    columns = {**values.get("columns", {}), **given.get("columns", {})}
    return DataSettings.parse({**values, **given, "columns": columns})


def split_settings(texts: Sequence[str]) -> tuple[dict[str, Any], str | None]:
    """The data settings among arguments such as `data.header=false`, and the name of the part."""
    from trifold.recipe import set_key, split_override

    values: dict[str, Any] = {"data": {}}
    part = None
    for text in texts:
        if text.startswith(PART):
            part = text.removeprefix(PART)
        else:
            set_key(values, *split_override(text))
    unknown = sorted({*values["data"]}.difference(READING))
    if unknown:
        raise UsageError(
            f"data.{unknown[0]}: not a setting of a table; known: "
            f"{', '.join(f'data.{key}' for key in READING)}"
        )
    return values["data"], part


# --- layouts --------------------------------------------------------------------------------------


class Layout(NamedTuple):
    """What the rows of a task consist of.

    inputs: what the model reads. labels: what it predicts, which may be missing. read: the fields
    of an Input, from the values of the inputs by role. fits: whether a first row has this layout.
    """

    inputs: Roles
    labels: Roles
    read: Callable[[Mapping[str, Any]], dict[str, Any]]
    fits: Callable[[Mapping[str, Any]], bool] = lambda first: True

    @classmethod
    def of(cls, roles: Roles, inputs: Sequence[str], *read: Any) -> "Layout":
        """The layout of a task with these roles, of which the model reads the `inputs`."""
        chosen = {name: roles[name] for name in inputs}
        return cls(chosen, {name: roles[name] for name in roles if name not in chosen}, *read)

    def without_pair(self) -> "Layout":
        """The layout if the command has the second text; a column of it may be missing."""
        pair = {role: each for role, each in self.inputs.items() if role in ("pair", "context")}
        inputs = {role: each for role, each in self.inputs.items() if role not in pair}
        return self._replace(inputs=inputs, labels={**self.labels, **pair})


def _read_texts(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"text": values["text"], "pair": values.get("pair")}


def _read_question(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"text": values["question"], "pair": values.get("context")}


def _read_choices(values: Mapping[str, Any]) -> dict[str, Any]:
    from trifold.objectives.choose import full_choices

    return {"text": values["text"], "choices": full_choices(values)}


def _has_words(first: Mapping[str, Any]) -> bool:
    from trifold.objectives.tag import ROLES

    names = ROLES["words"].names
    return any(isinstance(value, list) and key.casefold() in names for key, value in first.items())


def _template_layout(pieces: Sequence[str]) -> Layout:
    """The layout of a part of a text-to-text task, whose texts and columns alternate."""
    from trifold.data.tables import check_text

    inputs = {column: Role((column.casefold(),), check_text) for column in pieces[1::2]}

    def read(values: Mapping[str, Any]) -> dict[str, Any]:
        filled = (values[piece] if at % 2 else piece for at, piece in enumerate(pieces))
        return {"text": "".join(filled)}

    return Layout(inputs, {}, read, lambda first: {*inputs} <= {*first})


def find_layouts(task: str, recipe: "Recipe | None") -> dict[str, Layout]:
    """The layouts of the tables of a task, by name; those of a text-to-text task are its parts."""
    from trifold.objectives import answer, choose, labels, summarize, tag
    from trifold.objectives.text_to_text import TextToTextSettings, split_template

    evaluated = None if recipe is None else recipe.task.evaluated
    if task == "generate" and isinstance(evaluated, TextToTextSettings):
        parts = evaluated.parts.items()
        return {name: _template_layout(split_template(part.input)) for name, part in parts}
    one = Layout.of(labels.ROLES, ("text",), _read_texts)
    two = Layout.of(labels.ROLES, ("text", "pair"), _read_texts)
    choices = [role for role in choose.ROLES if role != "label"]
    source = Layout.of(summarize.ROLES, ("source",), lambda values: {"text": values["source"]})
    words = Layout.of(tag.ROLES, ("words",), lambda values: {"text": values["words"]}, _has_words)
    layouts = {
        "answer": {"": Layout.of(answer.ROLES, ("question", "context"), _read_question)},
        "choose": {"": Layout.of(choose.ROLES, choices, _read_choices)},
        "classify": {"": two},
        "generate": {"": source},
        "next-sentence": {"": two},
        "similarity": {"": two},
        "tag": {"words": words, "text": one},
    }
    return layouts.get(task, {"": one})


# --- rows -----------------------------------------------------------------------------------------


class TableReader(NamedTuple):
    """A file of rows that a task reads.

    settings: how the file is read. named: the roles whose column the command names. pairs: the
    second text of all rows, instead of a column, if the command has one.
    """

    file: str
    layouts: Mapping[str, Layout]
    settings: DataSettings
    is_trained: bool = False  # the model has a recipe, whose files have labels
    named: Sequence[str] = ()
    pairs: Sequence[str] = ()

    def inputs(self) -> Iterator[Input]:
        """The rows; a blank line is one if there is a single column.

        Raises DataError for a row that cannot be read, and if a column is missing.
        """
        roles = {
            role: each
            for layout in self.layouts.values()
            for role, each in {**layout.inputs, **layout.labels}.items()
        }
        # A header may have a single name of a text.
        texts = {name: name for each in self.layouts.values() for name in _names(each.inputs)}
        columns = {**texts, **self.settings.columns}
        named = self.settings.model_copy(update={"columns": columns})
        kind, table = open_rows(self.file, named, roles, Counter(), plain="conll")
        keys = object_keys(self.file, kind, self.settings)
        found, first = dict[str, str](), dict[str, Any]()
        for _, place, row in table.rows:
            if row is None and len(first) != 1:
                continue
            row = dict.fromkeys(first, "") if row is None else row
            if not first:
                first = {**keys, **row}
                layout = self._choose_layout(first)
                found = self._columns(layout, first, place, is_table=kind in ("csv", "tsv"))
            # A null is an empty text.
            filled = {key: "" if value is None else value for key, value in row.items()}
            values = read_roles(filled, layout.inputs, found, place)
            fields = layout.read(dict(zip(layout.inputs, values, strict=True)))
            pair = {"pair": self.pairs[0]} if self.pairs else {}
            yield Input(place, **{**fields, **pair}, row=_without_copies(row))

    def _choose_layout(self, first: Mapping[str, Any]) -> Layout:
        """The first layout that fits the row. Raises UsageError unless the part of a text-to-text
        task is clear.
        """
        fitting = [name for name, layout in self.layouts.items() if layout.fits(first)]
        if not fitting or (len(fitting) > 1 and "text" not in fitting):
            what = "several parts" if fitting else "no part"
            names = ", ".join(fitting or self.layouts)
            raise UsageError(
                f"{self.file}: has the columns of {what} of this model ({names}); add {PART}NAME, "
                "or rename the columns"
            )
        layout = self.layouts[fitting[0]]
        return layout.without_pair() if self.pairs else layout

    def _columns(
        self, layout: Layout, first: Mapping[str, Any], place: str, *, is_table: bool
    ) -> dict[str, str]:
        """The column of each role, as in training if the table has the labels; prints those that
        are read.
        """
        settings = self._settings_for(layout, first)
        found: dict[str, str] | None = None
        if self.is_trained:
            with suppress(DataError):
                roles = {**layout.inputs, **layout.labels}
                found = choose_columns(first, roles, settings, place, is_table=is_table)
        if found is None:
            labels = layout.labels.items()
            optional = {role: each._replace(required=False) for role, each in labels}
            roles = {**layout.inputs, **optional}
            found = choose_columns(first, roles, settings, place, is_table=is_table)
        shown = ", ".join(f"{role} {column!r:.40}" for role, column in found.items())
        print_once(f"{self.file}: {shown}")
        return found

    def _settings_for(self, layout: Layout, first: Mapping[str, Any]) -> DataSettings:
        """The settings without columns of the recipe that are no input and not in the table."""
        columns = {
            role: column
            for role, column in self.settings.columns.items()
            if role in self.named
            or role in layout.inputs
            or (role in layout.labels and str(column) in first)
        }
        target = self.settings.target if str(self.settings.target) in first else "target"
        return self.settings.model_copy(update={"columns": columns, "target": target})


def open_table(
    texts: Sequence[str], task: str, recipe: "Recipe | None", pairs: Sequence[str] = ()
) -> TableReader:
    """The table of the first text, with the settings in the others."""
    given, part = split_settings(texts[1:])
    layouts = find_layouts(task, recipe)
    if part is not None:
        if part not in layouts:
            known = ", ".join(filter(None, layouts)) or "none"
            raise UsageError(f"{PART}{part}: not a part of this model; known: {known}")
        layouts = {part: layouts[part]}
    settings = reading_settings(texts[:1], recipe, given)
    named = [*given.get("columns", {})]
    return TableReader(texts[0], layouts, settings, recipe is not None, named, pairs)


def _names(roles: Roles) -> Iterator[str]:
    for each in roles.values():
        yield from each.names


def _without_copies(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row of CoNLL without the columns by number that it also has by name."""
    named = [id(row[key]) for key in ("words", "tags") if isinstance(row.get(key), list)]
    return {key: value for key, value in row.items() if not (key.isdigit() and id(value) in named)}


def image_inputs(source: str) -> Iterator[Input]:
    """The pictures of a folder, an archive or an IDX file, as they train a model."""
    from trifold.data.image_sets import iter_images

    for name, label, image in iter_images(source, Counter()):
        yield Input(name, image, row={"image": name, "label": label})
