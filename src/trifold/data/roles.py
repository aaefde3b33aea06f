"""Roles: what a task reads of a row (source, text, label, …), from which column, as what value."""

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from trifold.data.headers import LABELS, NUMBERS, UNNAMED, plain_name, split_words
from trifold.data.settings import DataSettings
from trifold.data.tables import Keys, Table
from trifold.errors import DataError, MissingColumnError, SettingsError
from trifold.settings import similar

# The value of a role that a row needs and does not have: the row is left out and counted.
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "MISSING"})()
# How tables write that there is no value, besides an empty cell: pandas, databases and Excel.
_NO_VALUE = {"nan", "null", "<na>", "#n/a", "n/a"}
# A list as Python writes it, with quoted texts or numbers; numpy writes no commas. Tuples and sets
# have quoted texts only, because names may be in parentheses.
_ITEM = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[-+]?[0-9][0-9.e+-]*"""
_TEXT = _ITEM.rpartition("|")[0]
_LISTS = {
    sign: re.compile(rf"\{sign}\s*(?:(?:{item})(?:(?:\s*,\s*|\s+)(?:{item}))*)?\s*,?\s*\{end}")
    for sign, item, end in (("[", _ITEM, "]"), ("(", _TEXT, ")"), ("{", _TEXT, "}"))
}
_SURROGATE = re.compile("[\ud800-\udfff]")


class Role(NamedTuple):
    """A part of a row. names: of columns that hold it, in lower case, best first.

    convert: makes the value of one from that of its column and its place. may_be_empty: whether an
    empty text is valid. identifies: whether rows with other values are different rows, which is not
    so of labels. absent: the value for a null of an optional role.
    """

    names: Sequence[str]
    convert: Callable[[Any, str], Any]
    required: bool = True
    may_be_empty: bool = False
    identifies: bool = True
    absent: Any = None


Roles: TypeAlias = Mapping[str, Role]


def choose_columns(
    row: Mapping[str, Any], roles: Roles, settings: DataSettings, place: str, *, is_table: bool
) -> dict[str, str]:
    """The column of each role: the one in the settings; else the first of its names; else, in a
    table, one of the remaining columns, if there are as many as roles without a column.

    An optional role may have none. Raises DataError if a column is missing in a table; in an
    object, `value_at` does. Raises SettingsError for a role in the settings that is not one of
    `roles`.
    """
    keys = list(row)
    requested = _requested_columns(roles, settings)
    chosen = dict[str, str]()
    for role, column in requested.items():
        if column is not None:
            chosen[role] = _numbered_column(column, keys) if is_table else column
    unrequested = {name: role for name, role in roles.items() if name not in requested}
    chosen |= _columns_by_name(unrequested, [key for key in keys if key not in chosen.values()])
    missing = [name for name, role in roles.items() if role.required and name not in chosen]
    if is_table:
        chosen |= _columns_by_last_word(roles, missing, keys, chosen)
        missing = [name for name in missing if name not in chosen]
        chosen |= _remaining_columns(row, missing, chosen)
    chosen = chosen | {role: role for role in missing if role not in chosen}
    absent = {role: key for role, key in chosen.items() if is_table and key not in keys}
    if absent:
        raise _missing_column(row, absent, place, roles)
    return {role: chosen[role] for role in roles if role in chosen}


def _numbered_column(column: str, keys: Sequence[str]) -> str:
    """The column of this name, else of this number; the name if there is neither."""
    if column not in keys and column.isdigit() and int(column) < len(keys):
        return keys[int(column)]
    return column


def _columns_by_name(roles: Roles, keys: Sequence[str]) -> dict[str, str]:
    """The column with the best of its names for each role that has one. A column that is chosen is
    not available to later roles.
    """
    by_name = {plain_name(key): key for key in keys}
    chosen = dict[str, str]()
    for role, spec in roles.items():
        name = next((name for name in spec.names if name in by_name), None)
        if name is not None:
            chosen[role] = by_name.pop(name)
    return chosen


def _columns_by_last_word(
    roles: Roles, missing: Sequence[str], keys: Sequence[str], chosen: Mapping[str, str]
) -> dict[str, str]:
    """The column whose name ends with a word of the role, such as "Review Text", for each role that
    has none, if there is one such column.
    """
    found = dict[str, str]()
    for role in missing:
        taken = {*chosen.values(), *found.values()}
        fitting = [
            key
            for key in keys
            if key not in taken and split_words(plain_name(key))[-1] in roles[role].names
        ]
        if len(fitting) == 1:
            found[role] = fitting[0]
    return found


def _remaining_columns(
    row: Mapping[str, Any], missing: Sequence[str], chosen: Mapping[str, str]
) -> dict[str, str]:
    """The columns of the roles that have none, if as many columns remain and none of several
    columns numbers the rows; labels are last.
    """
    rest = [key for key in row if key not in chosen.values()]
    if len(rest) != len(missing):
        return {}
    if len(row) > 1 and any(map(numbers_rows, rest)):
        return {}
    if len(row) == 1 and re.fullmatch(r"\w+([;\t|]\w+)+", str(*row.values())):
        return {}  # the delimiter is another one
    rest.sort(key=_is_label)
    return dict(zip(missing, rest, strict=True))


def numbers_rows(key: str) -> bool:
    """Whether the name of a column is one of those that number or identify rows."""
    return (
        plain_name(key).strip("#._ ") in NUMBERS or UNNAMED.fullmatch(plain_name(key)) is not None
    )


def _is_label(key: str) -> bool:
    """Whether the name of a column has a word for labels."""
    return not {*LABELS}.isdisjoint(split_words(key.casefold()))


def _requested_columns(roles: Roles, settings: DataSettings) -> dict[str, str | None]:
    """The columns in the settings by role; None for a role that the settings switch off."""
    requested: dict[str, str | None] = {}
    for role, column in settings.columns.items():
        if role not in roles:
            known = ", ".join(roles)
            raise SettingsError(
                f"data.columns.{role}: this task reads no {role!r}; it reads {known}"
            )
        if column is None and roles[role].required:
            raise SettingsError(
                f"data.columns.{role}: this task needs a column; name it, or remove the key"
            )
        requested[role] = None if column is None else str(column)
    # `data.source` and `data.target` also name text and label.
    for setting, role, column in (
        ("source", "text", settings.source),
        ("target", "label", settings.target),
    ):
        if column == setting:  # the default
            continue
        role = role if role in roles else setting
        if role not in roles:
            raise SettingsError(
                f"data.{setting}: this task reads no {setting!r}; set "
                f"data.columns.{next(iter(roles))}"
            )
        requested.setdefault(role, str(column))
    return requested


def _setting(role: str) -> str:
    """The settings that name the column of a role."""
    if role in ("source", "target"):
        return "data.source and data.target"
    return f"data.columns.{role}"


def _missing_column(
    row: Mapping[str, Any], absent: Mapping[str, str], place: str, roles: Roles
) -> DataError:
    """The error for the roles whose columns a row does not have. absent: role -> column."""
    column = next(iter(absent.values()))
    has_header = "0" not in row
    first = [*row.values()]
    if has_header:
        first = [*row]
        place = re.sub(r":\d+$", ":1", place)
    names = [plain_name(str(cell)) for cell in first]
    repeated = next((n for n, name in enumerate(names) if name and name in names[:n]), None)
    known_names = {column, *chain.from_iterable(spec.names for spec in roles.values())}
    if not has_header and repeated is not None and not known_names.isdisjoint(names):
        return DataError(
            f"{place}: columns {names.index(names[repeated])} and {repeated} (from 0) are both "
            f"named {first[repeated]!r:.40}, without regard to case; rename one of them, or set "
            "data.header=true and data.columns to numbers of columns"
        )
    near = ""
    if column not in roles:  # of the settings, not the default
        near = similar_name(column, [str(cell) for cell in first])
    known = f"its first row is {first}" if len(first) < 20 else f"it has {len(first)} columns"
    settings = dict.fromkeys(map(_setting, absent))
    remedy = f"set {' and '.join(settings)} to names or numbers of columns (from 0)"
    if len(first) == 1 and (sign := re.search("[;\t|,]", first[0])):
        remedy = f"{sign[0]!r} does not separate columns here; set data.delimiter"
    return MissingColumnError(f"{place}: no column {column!r}{near}; {known}; {remedy}")


def similar_name(column: str, names: Sequence[str]) -> str:
    """End of an error message: the one of the names that is probably meant, also if only the case
    differs; empty without one.
    """
    by_case = {name.casefold(): name for name in names if name}
    found = similar(column.casefold(), by_case).removeprefix("; did you mean '")
    name = by_case.get(found.removesuffix("'?"))
    return f"; did you mean {name!r}?" if name is not None else ""


def value_at(row: Mapping[str, Any], key: str, place: str, setting: str) -> Any:
    """The value under `key`; `translation.en` also means row["translation"]["en"].

    Raises DataError, which names the `setting`, if it is missing.
    """
    value: Any = row
    for part in [key] if key in row else key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            known = map(str, value) if isinstance(value, Mapping) else ()
            found = ", ".join(known) or "none"
            raise DataError(f"{place}: no value {key!r}; found: {found}; set {setting}")
        value = value[part]
    return value


def read_roles(
    row: Mapping[str, Any], roles: Roles, columns: Mapping[str, str], place: str
) -> list[Any]:
    """The value of each role; None for one without a column, and for an optional one that the row
    lacks; `absent` for an optional one that is null.
    """
    values: list[Any] = []
    for name, role in roles.items():
        key = columns.get(name)
        if key is None:
            values.append(None)
        elif role.convert is check_text and _is_simple_text(row.get(key)):
            values.append(row[key])
        # The key `a.b` may stand for the value `b` in the object `a`.
        elif role.required or row.get(key, row.get(key.partition(".")[0])) is not None:
            value = value_at(row, key, place, _setting(name))
            if value is None and role.convert is check_text:
                value = ""  # as an empty cell of a table
            values.append(role.convert(value, f"{place}: {key!r}"))
        else:
            values.append(role.absent if key in row else None)
    return values


def read_values(
    table: Table,
    keys: Keys,
    blank: list[str],
    choose: Callable[[Mapping[str, Any], str], tuple[Roles, dict[str, str]]],
) -> Iterator[tuple[int, Sequence[Any]]]:
    """The number of each row, and its values by role; `blank` for a blank line.

    keys: of all rows, if they differ. choose: the roles and their columns, from the first row, with
    the keys of all, and its place.
    """
    roles: Roles = {}
    columns = dict[str, str]()
    for number, place, row in table.rows:
        if row is None:
            yield number, blank
            continue
        row = keys.respell(row)
        if not columns:
            roles, columns = choose({**keys.names, **row}, place)
        yield number, read_roles(row, roles, columns, place)


def is_missing(value: Any) -> bool:
    """Whether a value says that there is none: null, NaN, or a text that is blank or one of
    _NO_VALUE.
    """
    if isinstance(value, str):
        return not value.strip() or value.strip().casefold() in _NO_VALUE
    return value is None or value != value  # NaN


def list_in(text: str) -> list[Any] | None:
    """The list that a text writes as JSON, Python, pandas or numpy do; None if it writes none."""
    if text == "set()":
        return []
    if text.startswith("["):
        with suppress(ValueError, RecursionError):
            listed: list[Any] = json.loads(text)
            return listed
    if text[:1] not in _LISTS or not _LISTS[text[0]].fullmatch(text):
        return None
    with suppress(ValueError, SyntaxError):
        return [ast.literal_eval(item) for item in re.findall(_ITEM, text)]
    return None


def _is_simple_text(value: Any) -> bool:
    """Whether `check_text` certainly accepts a value; asked first, because it needs no place."""
    return isinstance(value, str) and value.isascii() and "\0" not in value


def check_text(value: Any, place: str) -> str:
    """The value. Raises DataError if it is not a string, or contains a NUL character or an unpaired
    surrogate.
    """
    if value is None:
        raise DataError(f"{place} is null, expected text; give it a text, or remove the row")
    if isinstance(value, Mapping):
        column = place.rpartition(": ")[2].strip("'")
        keys = ", ".join(repr(f"{column}.{key}") for key in list(value)[:5])
        raise DataError(
            f"{place} is an object, expected text; name the value to read in data.columns: {keys}"
        )
    if not isinstance(value, str):
        raise DataError(f"{place} is a value of type {type(value).__name__}, expected text")
    if "\0" in value:
        raise DataError(f"{place} contains a NUL character; remove it")
    if not value.isascii() and _SURROGATE.search(value):
        raise DataError(f"{place} contains an unpaired surrogate, which is not a character")
    return value


def check_class(value: Any, place: str) -> str:
    """The name of a class, which may be an integer. Raises DataError as `check_text` does."""
    return check_text(str(value) if isinstance(value, int) else value, place)
