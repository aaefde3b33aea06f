"""Inputs of `trifold predict` from files of rows, in every format that a task is trained with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple

from trifold.cli.names import is_path, is_pattern
from trifold.cli.parts import (
    PART,
    check_part,
    part_error,
    parts_of_recipe,
    parts_trained_with,
)
from trifold.cli.terminal import print_note
from trifold.data.dialects import Dialect
from trifold.data.files import TABLE_FORMATS, find_files, list_files
from trifold.data.headers import COMPARED_ROWS, plain_name
from trifold.data.lines import inner_suffix
from trifold.data.records import RECORD_FORMATS, keys_of_file, open_rows
from trifold.data.roles import Role, Roles, choose_columns, read_roles
from trifold.data.settings import DataSettings
from trifold.data.tables import Table
from trifold.errors import DataError, UsageError, plural

if TYPE_CHECKING:
    from trifold.objectives.inputs import Layout
    from trifold.recipe import Recipe

print_once = cache(print_note)
# The settings of a source of rows, which are set after its name: `data.columns.text=review`.
READING = ("columns", "source", "target", "format", "delimiter", "header", "max_line_bytes")
FEW_ROWS = 20  # in which every label may be another one
# The kinds of data that consist of rows, of which a folder or an archive may have several files.
ROW_KINDS = ("table", "pairs", "parts")


class Input(NamedTuple):
    """What a model reads, its place for messages, and its row in a table.

    text: a text; the words of a sentence; or a picture, by its path or opened. pair: its second
    text. choices, question: of this text.
    """

    place: str
    text: Any
    pair: str | None = None
    row: Mapping[str, Any] = {}
    choices: Sequence[str] = ()
    question: str | None = None


# --- arguments ------------------------------------------------------------------------------------


def is_table(texts: Sequence[str], recipe: Recipe | None = None) -> bool:
    """Whether the first text is the name of a file of rows, and the others are settings of it.

    A file whose suffix is none of a table is one if a setting, or the recipe, names its format.
    """
    if not texts:
        return False
    name, *settings = texts
    if not all(text.startswith(("data.", PART)) for text in settings):
        return False
    if _suffix_format(name) is not None:
        return " " not in name or is_path(Path.is_file, name)
    if _is_collection(name):
        if recipe is None:
            return bool(list_files(name, TABLE_FORMATS))
        return recipe.task.evaluated.data_kind in ROW_KINDS
    formats = [text for text in settings if text.startswith("data.format=")]
    return is_path(Path.is_file, name) and (bool(formats) or _has_row_format(name, recipe))


def _has_row_format(name: str, recipe: Recipe | None) -> bool:
    """Whether the recipe names a format of rows for a file."""
    if recipe is None:
        return False
    parts = parts_trained_with([name], parts_of_recipe(recipe)).values()
    formats = [recipe.data.format, *(part.format for part in parts)]
    return not {*formats} <= {"auto", "text"}


def _is_collection(name: str) -> bool:
    """Whether a name is that of a folder or an archive, which may have several tables."""
    return is_path(Path.is_dir, name) or name.lower().endswith(".zip")


def files_of(source: str) -> list[str]:
    """The files of a table, or those of the tables in a folder, an archive or a pattern."""
    if _is_collection(source) or is_pattern(source):
        return find_files(source, TABLE_FORMATS)[0]
    return [source]


def _suffix_format(name: str) -> str | None:
    """The format of rows that the suffix of a file name stands for, if it is one."""
    format_of_rows = RECORD_FORMATS.get(inner_suffix(name))
    return None if format_of_rows == "text" else format_of_rows


def reading_settings(
    files: Sequence[str], recipe: Recipe | None, given: Mapping[str, Any]
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


# --- rows -----------------------------------------------------------------------------------------


class TableReader(NamedTuple):
    """A file of rows that a task reads, or a folder or an archive of such files.

    settings: how the files are read. named: the roles whose column the command names. pairs: the
    second text of all rows, instead of a column, if the command has one.
    """

    file: str
    layouts: Mapping[str, Layout]
    settings: DataSettings
    is_trained: bool = False  # the model has a recipe, whose files have labels
    named: Sequence[str] = ()
    pairs: Sequence[str] = ()
    is_other: bool = False  # than the table of the training: its columns may have other names

    def inputs(self) -> Iterator[Input]:
        """The rows of all files; see `_inputs_of_file`."""
        for file in files_of(self.file):
            yield from self._replace(file=file)._inputs_of_file()

    def dialect(self) -> Dialect | None:
        """How the first file is written, if it is CSV or TSV."""
        return self._replace(file=files_of(self.file)[0])._open()[1].dialect

    def _inputs_of_file(self) -> Iterator[Input]:
        """The rows; a blank line is one if there is a single column.

        Raises DataError for a row that cannot be read, and if a column is missing.
        """
        kind, table = self._open()
        keys = keys_of_file(self.file, kind, self.settings)
        columns = dict[str, str]()
        first = dict[str, Any]()
        for _, place, row in table.rows:
            if row is None:  # a blank line
                if len(first) != 1:
                    continue
                row = dict.fromkeys(first, "")
            if not first:
                first = {**keys.names, **keys.respell(row)}
                layout = self._choose_layout(first)
                columns = self._columns(layout, first, place, is_table=table.has_columns)
                for note in [*table.notes, *keys.notes(columns.values())]:
                    print_once(f"{self.file}: {note}")
            respelled = keys.respell(row)
            if None in respelled.values():  # an empty text
                respelled = {
                    key: "" if value is None else value for key, value in respelled.items()
                }
            values = read_roles(respelled, layout.inputs, columns, place)
            fields = layout.read(dict(zip(layout.inputs, values, strict=True)))
            if self.pairs:
                fields = {**fields, "pair": self.pairs[0]}
            yield Input(place, **fields, row=_without_copies(row))
        for what, count in table.skipped.items():
            print_once(f"{self.file}: {plural(count, what)} skipped")

    def _open(self) -> tuple[str, Table]:
        """The format and the rows of the file, whose header may have a single name of a text."""
        roles: dict[str, Role] = {}
        columns: dict[str, str | int | None] = {}
        for layout in self.layouts.values():
            roles |= {**layout.inputs, **layout.labels}
            columns |= {name: name for name in _names(layout.inputs)}
        columns |= self.settings.columns
        settings = self.settings.model_copy(update={"columns": columns})
        return open_rows(self.file, settings, roles, Counter(), plain="conll")

    def _choose_layout(self, first: Mapping[str, Any]) -> Layout:
        """The first layout that fits the row. Raises UsageError unless the part of a text-to-text
        task is clear.
        """
        fitting = [name for name, layout in self.layouts.items() if layout.fits(first)]
        if not fitting or (len(fitting) > 1 and "text" not in fitting):
            raise part_error(self.file, fitting, [*self.layouts])
        layout = self.layouts[fitting[0]]
        if self.pairs:
            return layout.without_pair()
        return layout

    def _columns(
        self, layout: Layout, first: Mapping[str, Any], place: str, *, is_table: bool
    ) -> dict[str, str]:
        """The column of each role, as in training if the table has the labels; prints those that
        are read.
        """
        settings = self._settings_for(layout, first)
        columns: dict[str, str] | None = None
        if self.is_trained:
            with suppress(DataError):
                roles = {**layout.inputs, **layout.labels}
                columns = choose_columns(first, roles, settings, place, is_table=is_table)
                if self._numbers_rows(layout, columns):
                    columns = None
        if columns is None:
            optional = {name: role._replace(required=False) for name, role in layout.labels.items()}
            roles = {**layout.inputs, **optional}
            columns = choose_columns(first, roles, settings, place, is_table=is_table)
        print_once(f"{self.file}: {_describe_columns(layout, columns, [*first])}")
        return columns

    def _numbers_rows(self, layout: Layout, columns: Mapping[str, str]) -> bool:
        """Whether a column of labels, which neither a setting nor its name says to be one, has
        another value in each of the first rows.
        """
        requested = {str(column) for column in self.settings.columns.values()}
        requested.add(str(self.settings.target))
        guessed = [
            columns[name]
            for name, role in layout.labels.items()
            if name in columns
            and plain_name(columns[name]) not in role.names
            and columns[name] not in requested
        ]
        if not guessed:
            return False
        rows = [row for _, _, row in islice(self._open()[1].rows, COMPARED_ROWS) if row is not None]
        return len(rows) >= FEW_ROWS and any(
            len({str(row.get(column)) for row in rows}) == len(rows) for column in guessed
        )

    def _settings_for(self, layout: Layout, first: Mapping[str, Any]) -> DataSettings:
        """The settings without columns of the recipe that are no input and not in the table."""
        columns = {
            role: column
            for role, column in self.settings.columns.items()
            if role in self.named
            or (role in layout.inputs and not (self.is_other and str(column) not in first))
            or (role in layout.labels and str(column) in first)
        }
        changes: dict[str, Any] = {"columns": columns}
        if str(self.settings.target) not in first:
            changes["target"] = "target"
        if self.is_other and str(self.settings.source) not in first:
            changes["source"] = "source"
        return self.settings.model_copy(update=changes)


def _describe_columns(layout: Layout, columns: Mapping[str, str], names: Sequence[str]) -> str:
    """What is read from which column, and the columns that are kept only."""
    shown = ", ".join(f"{role} {column!r:.40}" for role, column in columns.items())
    parts = [shown]
    if layout.labels and columns.keys().isdisjoint(layout.labels):
        parts.append("no labels")
    others = [name for name in names if name not in columns.values()]
    if others:
        parts.append(f"kept: {shorten(', '.join(others), 60, placeholder=' …')}")
    return "; ".join(parts)


def open_table(
    texts: Sequence[str],
    task: str,
    recipe: Recipe | None,
    pairs: Sequence[str] = (),
    *,
    is_other: bool = False,
) -> TableReader:
    """The table of the first text, with the settings in the others. is_other: whether it is another
    kind of table than that of the training, so that its columns may have other names.
    """
    from trifold.objectives.inputs import find_layouts

    given, part = split_settings(texts[1:])
    layouts = find_layouts(task, None if recipe is None else recipe.task.evaluated)
    named = [*given.get("columns", {})]
    parts = parts_of_recipe(recipe)
    if part is None and len(trained := parts_trained_with(texts[:1], parts)) == 1:
        (part,) = trained
    if part is not None:
        check_part(part, [*layouts])
        layouts = {part: layouts[part]}
    if part is not None and part in parts:
        of_part = parts[part].model_dump(include={"format", "header"}, exclude_defaults=True)
        given = {**of_part, **given}
    settings = reading_settings(texts[:1], recipe, given)
    return TableReader(texts[0], layouts, settings, recipe is not None, named, pairs, is_other)


def _names(roles: Roles) -> Iterator[str]:
    for role in roles.values():
        yield from role.names


def _without_copies(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row of CoNLL without the columns by number that it also has by name."""
    if "words" not in row and "tags" not in row:
        return row
    named = [id(row[key]) for key in ("words", "tags") if isinstance(row.get(key), list)]
    if not named:
        return row
    return {key: value for key, value in row.items() if not (key.isdigit() and id(value) in named)}


def image_inputs(source: str) -> Iterator[Input]:
    """The pictures of a folder, an archive or an IDX file, as they train a model."""
    from trifold.data.image_sets import iter_images

    for name, label, image in iter_images(source, Counter()):
        yield Input(name, image, row={"image": name, "label": label})
