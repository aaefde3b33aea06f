"""Sentences whose words are in rows: columns with one token per line and a blank line between
sentences (CoNLL), and tables with one word per row.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice
from pathlib import PurePath
from typing import Self

from trifold.data.formats import NumberedRow
from trifold.data.lines import iter_lines
from trifold.data.settings import DataSettings
from trifold.data.tables import Table
from trifold.errors import DataError, plural

# Comments have no column of tags: "# text = …", "# newdoc", "#\thttp://…", "###MEDLINE:95369245".
# "#newdoc" before columns is a word.
_COMMENT = re.compile(
    r"# (?:id|newdoc|newpar)\b|# ?(?:[\w.]+ ){1,2}= |#(?:id|newdoc|newpar) [\w.:-]*\d$|"
    r"#\thttp|#\S+$"
)
_PROSE = re.compile(r"# |#(?:id|newdoc|newpar)\b")  # a comment, if it has other columns than words
# CoNLL-U: a range of words, or a word that is not in the text.
_NO_WORD = re.compile(r"\d+[-.]\d+\t")
_HEADS = 6  # the column of CoNLL-U with the number of the head of each word
_OPENING_LINES = 1000  # of comments at most, above the first token
_SENTENCE = re.compile(r"#?sent(?:ence)?s?[ _.]?(?:#|id|idx|no|num|number|index)?", re.IGNORECASE)
_WORDS = ("word", "words", "token", "tokens")
# Of these names, those of columns that may also hold the list of the words of a sentence.
_PLURAL_WORDS = ("words", "tokens")
_SEVERAL_WORDS = re.compile(r"\s*\[.+\]\s*|.*\S\s+\S.*", re.DOTALL)
_LONGEST_SENTENCE = 1000  # words; more of them are not one sentence


@dataclass
class _Layout:
    """The columns of a CoNLL file.

    words, tags: the numbers of the columns that are read. width: how many there are, 0 before the
    first token. has_tabs: whether tabs separate them. is_universal: whether it is CoNLL-U.
    """

    words: int
    tags: int
    width: int
    has_tabs: bool
    is_universal: bool

    @classmethod
    def of(cls, file: str, opening: Iterable[str]) -> Self:
        """The layout of a file with these first lines."""
        example = next(filter(_is_token, opening), "")
        width = len(_fields(example)) if example else 0
        is_universal = ".conllu" in PurePath(file).suffixes
        words, tags = (1, 3) if is_universal else (0, -1)
        return cls(words, tags, width, "\t" in example, is_universal)

    def skips(self, line: str) -> bool:
        """Whether a line is no token, whatever its columns are."""
        if line.startswith("-DOCSTART-") or _COMMENT.match(line):
            return True
        return self.is_universal and (line.startswith("#") or _NO_WORD.match(line) is not None)

    def is_prose(self, line: str, fields: list[str]) -> bool:
        """Whether a line above the first token of a sentence is a comment, which has other columns
        than words.
        """
        has_other_width = self.width not in (0, len(fields))
        lacks_tabs = self.has_tabs and "\t" not in line
        return (has_other_width or lacks_tabs) and _PROSE.match(line) is not None

    def row_of(self, tokens: list[list[str]]) -> dict[str, list[str]]:
        """The columns of a sentence by their names and numbers."""
        columns = [list(column) for column in zip(*tokens, strict=True)]
        numbered = {str(number): column for number, column in enumerate(columns)}
        named = {"words": columns[self.words], "tags": columns[self.tags]}
        if self.is_universal and len(columns) > _HEADS:
            named["heads"] = columns[_HEADS]
        return named | numbered


def iter_conll(file: str, settings: DataSettings) -> Iterator[NumberedRow]:
    """The sentences of a file, numbered by their first lines.

    A row has the list of "words" (the first column), that of "tags" (the last), and that of each
    column by its number ("0", "1", …). Columns are separated by tabs, or by spaces in a line
    without tabs; `-DOCSTART-` lines and comments, which begin with `#` and have other columns than
    words, are skipped. In CoNLL-U (`.conllu`), words are in column 1, parts of speech in column 3,
    "heads" in column 6, and every line with `#` is a comment. Raises DataError for a line with
    another number of columns than the first.
    """
    numbered = enumerate(iter_lines(file, settings.max_line_bytes), start=1)
    opening = list(islice(numbered, _OPENING_LINES))
    layout = _Layout.of(file, (line for _, line in opening))
    for is_blank, lines in groupby(chain(opening, numbered), key=lambda line: not line[1].strip()):
        if is_blank:
            continue
        first, tokens = _read_sentence(lines, layout, file)
        if tokens:
            yield first, f"{file}:{first}", layout.row_of(tokens)


def _read_sentence(
    lines: Iterable[tuple[int, str]], layout: _Layout, file: str
) -> tuple[int, list[list[str]]]:
    """The number of the first token's line, and the columns of each token. The first token of a
    file decides about the width.
    """
    first = 0
    tokens = list[list[str]]()
    for number, line in lines:
        if layout.skips(line):
            continue
        fields = _fields(line)
        if not tokens and layout.is_prose(line, fields):
            continue
        layout.width = layout.width or len(fields)
        if len(fields) != layout.width or layout.width < 2 or not all(fields):
            raise _columns_error(f"{file}:{number}", fields, layout.width)
        first = first or number
        tokens.append(fields)
    return first, tokens


def _is_token(line: str) -> bool:
    return bool(line.strip()) and not line.startswith(("#", "-DOCSTART-"))


def _fields(line: str) -> list[str]:
    fields = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
    return [field.strip(" ") for field in fields]


def _columns_error(place: str, fields: list[str], width: int) -> DataError:
    found = plural(len(fields), "column") if all(fields) else "an empty column"
    short = len(fields) == width
    expected = "a word and its tag are required" if short else f"the first line has {width}"
    return DataError(
        f"{place}: {found}, but {expected}; separate columns by tabs or spaces, and sentences by "
        "a blank line"
    )


# --- tables ---------------------------------------------------------------------------------------


def join_words(table: Table, settings: DataSettings) -> Table:
    """A table of sentences, each with the lists of its columns, of a table with one word per row.

    A column such as "Sentence #" numbers the sentences; its cell may be empty below the first word.
    Without it, blank rows are between sentences. Other tables are not changed.
    """
    opening = list[NumberedRow]()
    for numbered in table.rows:
        opening.append(numbered)
        if numbered[2] is not None:
            break
    table = replace(table, rows=chain(opening, table.rows))
    first = opening[-1][2] if opening else None
    if first is None:
        return table
    by_name = {name.strip().casefold(): name for name in first}
    known = (str(settings.columns.get("words")).casefold(), *_WORDS)
    word = next((name for name in known if name in by_name), None)
    if word is None or _SEVERAL_WORDS.fullmatch(first[by_name[word]]):
        return table
    sentence = next((name for name in first if _SENTENCE.fullmatch(name.strip())), None)
    if sentence is not None:
        notes = [*table.notes, f"sentences by {sentence!r}"]
        return replace(table, rows=_sentences(table.rows, sentence), notes=notes)
    if word in _PLURAL_WORDS:
        return table
    return replace(table, rows=_sentences(table.rows, None))


def _sentences(rows: Iterable[NumberedRow], sentence: str | None) -> Iterator[NumberedRow]:
    words = list[NumberedRow]()
    divided = False
    for numbered in chain(_mark_sentences(rows, sentence), [None]):
        if numbered is not None:
            words.append(numbered)
            if len(words) > _LONGEST_SENTENCE and not divided:
                raise DataError(
                    f"{words[0][1]}: {_LONGEST_SENTENCE:,} words without the end of a sentence; "
                    "number the sentences in a column 'Sentence #', or put blank lines between them"
                )
        elif words:
            divided = True
            number, place, _ = words[0]
            columns = [row for _, _, row in words if row is not None]
            names = [name for name in columns[0] if name != sentence]
            yield number, place, {name: [row[name] for row in columns] for name in names}
            words = []


def _mark_sentences(
    rows: Iterable[NumberedRow], sentence: str | None
) -> Iterator[NumberedRow | None]:
    """The rows of words, and None at the end of each sentence."""
    last = ""
    is_filled = False
    for number, place, row in rows:
        if row is None or not any(row.values()):
            yield None
            continue
        if sentence is not None and (name := row[sentence].strip()):
            # In a column that is filled at first words only, each name begins a sentence.
            if name != last or not is_filled:
                yield None
            last = name
        is_filled = sentence is not None and bool(row[sentence].strip())
        yield number, place, row
