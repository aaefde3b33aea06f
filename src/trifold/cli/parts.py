"""The parts of a text-to-text model that files of rows belong to: those that were trained or
validated with the files, else the one whose columns they have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trifold.data.files import FORMATS, ROW_FORMATS, find_files, is_dataset, list_files
from trifold.data.lines import expand_path, inner_suffix
from trifold.data.settings import DataSettings, Source
from trifold.data.tables import object_keys, open_table
from trifold.errors import UsageError

if TYPE_CHECKING:
    from trifold.objectives.text_to_text import PartSettings
    from trifold.recipe import Recipe

PART = "task.part="  # among the arguments of a command
Parts = Mapping[str, "PartSettings"]


def parts_of_recipe(recipe: Recipe | None) -> Parts:
    """The parts of a text-to-text recipe by name; none of another one."""
    return {} if recipe is None else getattr(recipe.task.evaluated, "parts", {})


def parts_trained_with(files: Sequence[str], parts: Parts) -> Parts:
    """The parts whose training or validation data is these files, by name."""

    def resolved(source: Source) -> list[str]:
        return [str(expand_path(file).resolve()) for file in list_files(source, ROW_FORMATS)]

    named = resolved([*files])
    return {
        name: part
        for name, part in parts.items()
        if named and named in (resolved(part.train), resolved(part.valid))
    }


def part_error(file: str, fitting: Sequence[str], known: Sequence[str]) -> UsageError:
    """The error for a file that has the columns of several parts, or of none."""
    problem = f"no part of this model ({', '.join(known)})"
    if fitting:
        problem = f"several parts of this model ({', '.join(fitting)})"
    return UsageError(
        f"{file}: has the columns of {problem}; add {PART}NAME, or rename the columns"
    )


def check_part(name: str, known: Sequence[str]) -> None:
    """Raises UsageError for a name that is none of the known ones."""
    if name not in known:
        names = ", ".join(filter(None, known)) or "none"
        raise UsageError(f"{PART}{name}: not a part of this model; known: {names}")


def parts_to_measure(arguments: Sequence[str], parts: Parts) -> dict[str, PartSettings]:
    """The parts that the named files belong to, with these files as their data; without a file, all
    parts with their validation rows.

    Two files of lines are the sources and the targets of a part, and other files are one or several
    tables. `task.part=NAME` among the arguments chooses the part. Raises UsageError for a file of
    no part or of several ones, and for two files of one part.
    """
    names = [text.removeprefix(PART) for text in arguments if text.startswith(PART)]
    files = [text for text in arguments if not text.startswith(PART)]
    for name in names:
        check_part(name, [*parts])
    if not files:  # the data to measure also stands in for the training data
        chosen = names[-1:] or parts
        return {
            name: parts[name].model_copy(update={"train": parts[name].valid}) for name in chosen
        }
    groups = [[file] for file in files]
    if len(files) == 2 and not any(map(_row_format, files)):
        groups = [files]  # of aligned lines
    measured: dict[str, PartSettings] = {}
    for group in groups:
        for name in names[-1:] or _names_of_parts(group, parts):
            if name in measured:
                raise UsageError(
                    f"{group[0]}: another file is data of the part {name!r} too; score them one "
                    "after the other"
                )
            measured[name] = parts[name].model_copy(update=_data_of_group(group))
    return measured


def _data_of_group(group: list[str]) -> dict[str, Any]:
    """The settings of a part that is measured on these files."""
    source = group[0] if len(group) == 1 else group
    settings: dict[str, Any] = {"train": source, "valid": source}
    if _row_format(group[0]):
        settings["format"] = "auto"
    return settings


def _row_format(file: str) -> str | None:
    """The format of rows that the suffix of a file stands for, if it is one."""
    return ROW_FORMATS.get(inner_suffix(file))


def _names_of_parts(group: Sequence[str], parts: Parts) -> Sequence[str]:
    if trained := parts_trained_with(group, parts):
        return [*trained]
    fitting = [name for name, part in parts.items() if _has_columns(group, part)]
    if len(fitting) != 1:
        raise part_error(" + ".join(group), fitting, [*parts])
    return fitting


def _has_columns(group: Sequence[str], part: PartSettings) -> bool:
    """Whether files have what the template and the target of a part name."""
    from trifold.text.prompts import split_template

    columns = {*split_template(part.input)[1::2]}  # each between two literal texts
    if len(group) == 2:  # of lines
        return len(columns) == 1
    if is_dataset(group[0]):
        return True
    first = _first_row(group[0], part, {column.casefold() for column in columns})
    known = {*first, *map(str, range(len(first)))}  # a column has a name, a number, or both
    return {*columns, str(part.target)} <= known


def _first_row(source: str, part: PartSettings, names: set[str]) -> Mapping[str, Any]:
    """The first row of a table, with the keys of all rows; empty for a file of lines."""
    (file, *_), _ = find_files(source, ROW_FORMATS)
    settings = DataSettings.parse({"header": part.header})
    kind = FORMATS.get(inner_suffix(file), part.format)
    if kind in ("auto", "text"):
        return {}
    rows = (row for _, _, row in open_table(file, kind, settings, names).rows if row is not None)
    return {**object_keys(file, kind, settings).names, **next(rows, {})}
