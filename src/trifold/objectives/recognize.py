"""The recipe that probably reads some data, by the names and the content of its files.

A user who names a file instead of a recipe gets the command that was probably meant. The first rows
decide: columns whose names a task reads, else what the columns hold.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from trifold.data import DataSettings, Role, expand_path, iter_lines
from trifold.data.archives import is_archive
from trifold.data.files import TABLE_FORMATS, TEXT_FORMATS, find_files
from trifold.data.headers import plain_name
from trifold.data.image_sets import iter_images
from trifold.data.lines import COMPRESSED_SUFFIXES, MAX_LINE_BYTES, inner_suffix
from trifold.data.records import RECORD_FORMATS, open_rows
from trifold.data.roles import Roles, numbers_rows
from trifold.data.tables import has_header
from trifold.errors import TrifoldError
from trifold.objectives import choose, embed, labels, questions, summarize, tag
from trifold.scripts import unicode_words
from trifold.settings import as_yaml
from trifold.yaml_dialect import YAMLError, load

ROWS = 200  # of a file that are looked at
SAME_LENGTH = 0.5  # of the words of a translation, at least
FEW_SHARED = 0.2  # of the words of two languages: names, and words that both have
FEW_ROWS = 6  # in which labels may not occur again
PLAIN = DataSettings()
# Names of the columns of pairs, each of a source and a target.
PAIRS = tuple(
    tuple(pair.split(":"))
    for pair in "source:target src:tgt src:trg input:output prompt:completion prompt:response "
    "instruction:output instruction:response question:answer query:answer".split()
)
SPLITS = {"valid": ("valid", "validation", "val", "dev"), "test": ("test",)}
TAR = (".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2")
# A tag of a word: O, B-PER, or a part of speech.
_TAG = re.compile(r"O|[BIESLU]-\S+|[A-Z][A-Z0-9$:+_-]{0,9}|[.,:$'`#()\"-]{1,3}|-[LR]RB-")


@dataclass(frozen=True)
class Guess:
    """A recipe, the keys that it needs besides data.train, what the data looks like, and its
    source.
    """

    recipe: str
    reason: str
    source: str = ""
    settings: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        """The arguments of `trifold train`."""
        return [self.recipe, f"data.train={self.source}", *self.settings]


def guess_recipe(names: Sequence[str]) -> Guess | None:
    """The recipe that reads a file or a folder, or two files with the lines of a pair; None if none
    is likely. Raises DataError for a file that cannot be read.
    """
    if len(names) == 2 and all(expand_path(name).is_file() for name in names):
        if any(_is_table(name) for name in names):
            return guess_recipe(names[:1])
        return _with_source(Guess("translate", "two files of lines"), ",".join(names), names)
    name = names[0]
    path = expand_path(name)
    if path.is_dir() or is_archive(path):
        return _guess_folder(name)
    if "idx3" in path.name or path.name.lower().endswith(TAR):
        return _guess_images(name)
    if _is_table(name):
        return _guess_rows(name, PLAIN, name)
    if (other := _other_side(path)) is not None:
        both = (name, str(PurePath(name).with_name(other.name)))
        return _with_source(Guess("translate", "two files of lines"), ",".join(both), both)
    return _guess_text(name)


def _is_table(name: str) -> bool:
    return RECORD_FORMATS.get(inner_suffix(name), "text") != "text"


def _with_source(guess: Guess | None, source: str, names: Sequence[str] = ()) -> Guess | None:
    """The guess with the value of data.train; names that contain commas are a list."""
    if guess is None:
        return None
    if any("," in name for name in names or [source]):
        source = as_yaml([*(names or [source])])
    return replace(guess, source=source)


# --- folders and images ---------------------------------------------------------------------------


def _guess_folder(name: str) -> Guess | None:
    """The recipe for a folder or an archive, which may have a folder or a file for each split."""
    train = _part_of(name, ("train", "training"))
    if train is not None:
        guess = guess_recipe([train])
        if guess is None:
            return None
        parts = {key: _part_of(name, names) for key, names in SPLITS.items()}
        more = [f"data.{key}={part}" for key, part in parts.items() if part is not None]
        return replace(guess, settings=(*guess.settings, *more))
    if (guess := _guess_images(name)) is not None:
        return guess
    with suppress(TrifoldError):
        tables, _ = find_files(name, TABLE_FORMATS)
        return _with_source(_guess_rows(tables[0], PLAIN, name), name)
    with suppress(TrifoldError):
        texts, _ = find_files(name, TEXT_FORMATS)
        return Guess("causal", f"{len(texts):,} files of text", name)
    return None


def _part_of(name: str, stems: Sequence[str]) -> str | None:
    """The folder or the file of a split in a folder."""
    folder = expand_path(name)
    if not folder.is_dir():
        return None
    for path in sorted(folder.iterdir()):
        stem = path.name.lower().partition(".")[0]
        if stem in stems and (path.is_dir() or _is_table(path.name)):
            return str(PurePath(name, path.name))
    return None


def _guess_images(name: str) -> Guess | None:
    with suppress(TrifoldError, OSError):
        labels_of = {label for _, label, image in islice(iter_images(name, Counter()), 1)}
        if labels_of:
            return Guess("images", "images in folders of classes", name)
    return None


def _other_side(path: Path) -> Path | None:
    """The file beside one such as train.en that has the lines of the other language: the only other
    one of that name, with the same number of lines.
    """
    base = _base(path.name)
    others = [
        other
        for other in path.parent.glob("*")
        if other != path and other.is_file() and _base(other.name) == base
    ]
    is_language = [re.fullmatch(r"[a-z]{2,3}", _language(file.name)) for file in (path, *others)]
    if len(others) != 1 or not all(is_language):
        return None
    with suppress(TrifoldError):
        counts = {sum(1 for _ in iter_lines(file)) for file in (path, others[0])}
        if len(counts) == 1:
            return others[0]
    return None


def _base(name: str) -> str:
    """train of train.en.gz."""
    return PurePath(_uncompressed(name)).stem


def _language(name: str) -> str:
    return PurePath(_uncompressed(name)).suffix.removeprefix(".").lower().replace("txt", "")


def _uncompressed(name: str) -> str:
    ending = next((end for end in COMPRESSED_SUFFIXES if name.lower().endswith(end)), "")
    return name.removesuffix(ending)


# --- plain text -----------------------------------------------------------------------------------


def _guess_text(name: str) -> Guess | None:
    lines = list(islice(iter_lines(name, MAX_LINE_BYTES), ROWS))
    filled = [line for line in lines if line.strip()]
    if _is_conll(filled, len(filled) < len(lines)):
        settings = () if inner_suffix(name) in TEXT_FORMATS else ("data.format=conll",)
        return Guess("tag", "a word and its tag on each line", name, settings)
    tabs = {line.count("\t") for line in filled}
    if len(tabs) == 1 and tabs != {0}:
        guess = _guess_rows(name, PLAIN.model_copy(update={"format": "tsv"}), name)
        if guess is not None:
            return replace(guess, settings=("data.format=tsv", *guess.settings))
    if not filled:
        return None
    has_blocks = len(filled) < len(lines) and _longest_block(lines) > 1
    settings = ("data.documents=blank",) if has_blocks else ()
    return Guess("causal", "plain text", name, settings)


def _is_conll(lines: Sequence[str], has_blank: bool) -> bool:
    """Whether most lines end with a tag and have as many columns as the first one."""
    rows = [line.split() for line in lines if not line.startswith(("#", "-DOCSTART-"))]
    if not has_blank or not rows or len(rows[0]) < 2:
        return False
    fitting = sum(len(row) == len(rows[0]) and _TAG.fullmatch(row[-1]) is not None for row in rows)
    return fitting >= 0.9 * len(rows)


def _longest_block(lines: Iterable[str]) -> int:
    """The most lines without a blank one between them."""
    longest = length = 0
    for line in lines:
        length = length + 1 if line.strip() else 0
        longest = max(longest, length)
    return longest


# --- rows -----------------------------------------------------------------------------------------


class ColumnContent(NamedTuple):
    """What a column holds: words of a cell on average, number of different values, and whether all
    are numbers.
    """

    name: str
    words: float
    different: int
    are_numbers: bool

    @classmethod
    def of(cls, name: str, values: Sequence[str]) -> "ColumnContent":
        filled = [value for value in values if value.strip()]
        words = sum(len(value.split()) for value in filled) / max(1, len(filled))
        numbers = bool(filled) and all(map(_is_number, filled))
        return cls(name, words, len({*filled}), numbers)

    def is_label(self, rows: int) -> bool:
        """Whether values occur again, and are short."""
        return 0 < self.different <= max(2, rows // 3) < rows and self.words <= 3

    def is_text(self, rows: int) -> bool:
        return not self.are_numbers and (self.words > 3 or not self.is_label(rows))


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        float(text)
        return True
    return False


class Candidate(NamedTuple):
    """A recipe, the roles that it reads, and those that must have a column of a known name. fits:
    whether the value of each role is as the task needs it.
    """

    recipe: str
    roles: Roles
    needed: tuple[str, ...]
    fits: Callable[[Mapping[str, Any]], bool] = lambda _values: True


def _has_score(values: Mapping[str, Any]) -> bool:
    return _is_number(str(values["label"]))


SUMMARY_NAMES = ("summary", "highlights", "tldr")
SCORES = Role((*labels.NUMBERS,), labels.read_label)
POSITIVE = Role(("positive",), labels.read_label)
ANCHOR = Role(("anchor", "query"), labels.read_label)
# The first one whose columns a file has.
CANDIDATES = (
    Candidate("answer", questions.ROLES, ("question", "context", "answers")),
    Candidate("choose", choose.ROLES, ("text", "label", "choices")),
    Candidate("choose", choose.ROLES, ("text", "label", "choice1", "choice2")),
    Candidate("tag", tag.ROLES, ("words", "tags")),
    Candidate("similarity", {**embed.COLUMNS, "text": ANCHOR, "pair": POSITIVE}, ("text", "pair")),
    Candidate(
        "similarity", {**labels.ROLES, "label": SCORES}, ("text", "pair", "label"), _has_score
    ),
    Candidate(
        "summarize",
        {**summarize.ROLES, "target": Role(SUMMARY_NAMES, labels.read_label)},
        ("source", "target"),
    ),
    Candidate("classify", labels.ROLES, ("text", "label")),
)


def _guess_rows(file: str, settings: DataSettings, source: str) -> Guess | None:
    """The recipe for a file of rows."""
    rows = _first_rows(file, settings)
    if not rows:
        return None
    first = rows[0]
    if not has_header(first, settings) and settings.header is None and _is_header(rows):
        guess = _guess_rows(file, settings.model_copy(update={"header": True}), source)
        if guess is not None:
            return replace(guess, settings=("data.header=true", *guess.settings))
    kind = inner_suffix(file)
    guess = _by_names(rows) or _by_content(rows)
    has_documents = len(first) == 1 and RECORD_FORMATS.get(kind) in ("jsonl", "parquet")
    if guess is None and has_documents and all(map(_is_text, first.values())):
        (column,) = first
        key = () if column == PLAIN.field else (f"data.field={column}",)
        guess = Guess("causal", f"texts in the column {column!r}", settings=key)
    return _with_source(guess, source)


def _is_header(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the first row is no row: where the others have a number or one of few labels, it has
    another text.
    """
    first, *others = rows
    for name, cell in first.items():
        column = ColumnContent.of(name, [str(row.get(name, "")) for row in others])
        values = Counter(str(row.get(name, "")) for row in others)
        recur = column.is_label(len(others)) and min(values.values()) > 1
        is_other = str(cell) not in values and not _is_number(str(cell))
        if is_other and (column.are_numbers or recur):
            return True
    return False


def _first_rows(file: str, settings: DataSettings) -> list[Mapping[str, Any]]:
    known = {
        name for candidate in CANDIDATES for role in candidate.roles.values() for name in role.names
    }
    roles = {"any": Role((*known,), labels.read_label)}
    _, table = open_rows(file, settings, roles, Counter())
    rows = (row for _, _, row in table.rows if row is not None)
    return list(islice(rows, ROWS))


def _by_names(rows: Sequence[Mapping[str, Any]]) -> Guess | None:
    """The recipe that reads columns of these names."""
    first = rows[0]
    if (guess := _pairs_by_name(rows)) is not None:
        return guess
    for candidate in CANDIDATES:
        chosen = _columns(candidate.roles, first)
        if not chosen.keys() >= {*candidate.needed}:
            continue
        values = {role: first[column] for role, column in chosen.items()}
        if candidate.fits(values):
            return Guess(candidate.recipe, _listed([chosen[role] for role in candidate.needed]))
    return None


def _pairs_by_name(rows: Sequence[Mapping[str, Any]]) -> Guess | None:
    """The recipe for a source and a target that is a text and no label, also both in one object, as
    datasets of the hub have them.
    """
    first = rows[0]
    for key, value in first.items():
        if isinstance(value, dict) and len(value) == 2 and all(map(_is_text, value.values())):
            source, target = (f"{key}.{side}" for side in value)
            return _translate(source, target)
    names = {plain_name(key): key for key in first if key}
    if "context" in names:
        return None
    for source, target in PAIRS:
        if source not in names or target not in names:
            continue
        if isinstance(first[names[source]], list):
            return Guess("summarize", _listed([names[source], names[target]]))
        column = ColumnContent.of(target, [str(row.get(names[target], "")) for row in rows])
        if column.is_text(len(rows)):
            return _translate(names[source], names[target])
    return None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _columns(roles: Roles, row: Mapping[str, Any]) -> dict[str, str]:
    """The column of each role, by its names, as the task chooses it."""
    names = {plain_name(key): key for key in row}
    chosen = dict[str, str]()
    for role, spec in roles.items():
        found = next((name for name in spec.names if name in names), None)
        if found is not None:
            chosen[role] = names.pop(found)
    return chosen


def _by_content(rows: Sequence[Mapping[str, Any]]) -> Guess | None:
    """The recipe for columns of unknown names: texts, labels and numbers."""
    if any(isinstance(value, list | dict) for value in rows[0].values()):
        return None
    columns = _contents(rows)
    texts = _longest_texts(columns, len(rows))
    if _are_translations(texts, columns, rows):
        return _translate(texts[0].name, texts[1].name, len(columns))
    others = [column for column in columns if column not in texts and column.different > 1]
    labels = [column for column in others if column.is_label(len(rows))]
    if not labels and _has_labels(texts, len(rows)):
        labels = [texts.pop()]
    if len(texts) == 2 and not labels and len(columns) <= 4:
        return _translate(texts[0].name, texts[1].name, len(columns))
    candidates = labels or [column for column in others if column.are_numbers]
    return _of_labels(texts, candidates, len(columns))


def _of_labels(
    texts: Sequence[ColumnContent], candidates: Sequence[ColumnContent], columns: int
) -> Guess | None:
    """The recipe for one or two texts and their label, the last candidate, of so many columns."""
    if not texts or not candidates:
        return None
    label = candidates[-1]
    if len(texts) == 2 and columns == 3:
        first, second = texts
        return _of_pairs(first, second, label)
    longest = max(texts, key=lambda column: column.words)
    return _with_columns("classify", {"text": longest, "label": label})


def _are_translations(
    texts: Sequence[ColumnContent],
    columns: Sequence[ColumnContent],
    rows: Sequence[Mapping[str, Any]],
) -> bool:
    """Whether two texts of about the same length are of different languages, which share few words,
    and no other column holds scores of them.
    """
    if len(texts) != 2 or len(rows) < FEW_ROWS:
        return False
    lengths = sorted(column.words for column in texts)
    has_scores = any(
        column.are_numbers and not numbers_rows(column.name)
        for column in columns
        if column not in texts
    )
    if has_scores or lengths[0] < 2 or lengths[0] < SAME_LENGTH * lengths[1]:
        return False
    one, other = (
        [word for row in rows for word in unicode_words(str(row.get(column.name, "")).casefold())]
        for column in texts
    )
    shared = {*one} & {*other}
    return sum(word in shared for word in [*one, *other]) < FEW_SHARED * len([*one, *other])


def _has_labels(texts: Sequence[ColumnContent], rows: int) -> bool:
    """Whether the last column of texts has single words beside a longer text: labels of so few rows
    that none has occurred again.
    """
    return rows < FEW_ROWS and len(texts) == 2 and texts[1].words == 1 < texts[0].words


def _contents(rows: Sequence[Mapping[str, Any]]) -> list[ColumnContent]:
    """What the columns that have a name hold."""
    names = filter(None, rows[0])
    return [ColumnContent.of(name, [str(row.get(name, "")) for row in rows]) for name in names]


def _longest_texts(columns: Sequence[ColumnContent], rows: int) -> list[ColumnContent]:
    """The two columns of the longest texts, in their order; fewer if there are fewer texts."""
    texts = [column for column in columns if column.is_text(rows)]
    longest = sorted(texts, key=lambda column: -column.words)[:2]
    return [column for column in texts if column in longest]


def _of_pairs(text: ColumnContent, pair: ColumnContent, label: ColumnContent) -> Guess:
    """The recipe for two texts and a label, which may be a score."""
    recipe = "classify"
    if label.are_numbers and label.different > 5:
        recipe = "similarity"
    return _with_columns(recipe, {"text": text, "pair": pair, "label": label})


def _with_columns(recipe: str, roles: Mapping[str, ColumnContent]) -> Guess:
    settings = [_setting(f"data.columns.{role}", column.name) for role, column in roles.items()]
    reason = _listed([column.name for column in roles.values()])
    return Guess(recipe, reason, settings=tuple(settings))


def _translate(source: str, target: str, columns: int = 3) -> Guess:
    """The guess for pairs in these two of the columns, which are found if there are no others."""
    settings = [_setting("data.source", source), _setting("data.target", target)]
    if columns == 2 or (source, target) == PAIRS[0]:
        settings = []
    return Guess("translate", _listed([source, target]), settings=tuple(settings))


def _setting(key: str, name: str) -> str:
    """key=value for the name or number of a column."""
    value: Any = None
    with suppress(YAMLError):
        value = load(name)
    if str(value) != name:  # YAML reads #1 as a comment
        name = json.dumps(name, ensure_ascii=False)
    return f"{key}={name}"


def _listed(columns: Sequence[str]) -> str:
    *first, last = map(repr, columns)
    return f"columns {', '.join(first)} and {last}" if first else f"column {last}"
