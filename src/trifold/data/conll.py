"""Sentences in columns (CoNLL): one token per line, a blank line between sentences."""

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import PurePath

from trifold.data.lines import iter_lines
from trifold.data.settings import DataSettings
from trifold.data.tables import NumberedRow
from trifold.errors import DataError

_COMMENT = re.compile(r"# ?(?:(?:id|newdoc|newpar)\b|[\w.]+ = )|#\thttp|#\S+$")
_NO_WORD = re.compile(
    r"\d+[-.]\d+\t"
)  # CoNLL-U: a range of words, or a word that is not in the text


def iter_conll(file: str, settings: DataSettings) -> Iterator[NumberedRow]:
    """The sentences of a file, numbered by their first lines.

    A row has the list of "words" (the first column), that of "tags" (the last), and that of each
    column by its number ("0", "1", …). Columns are separated by tabs, or by spaces in a line
    without tabs; `-DOCSTART-` lines and comments (`# id …`, `# text = …`) are skipped. In CoNLL-U
    (`.conllu`), words are in column 1, parts of speech in column 3. Raises DataError for a line
    with another number of columns than the first.
    """
    width = 0
    is_universal = ".conllu" in PurePath(file).suffixes
    words, tags = (1, 3) if is_universal else (0, -1)
    lines = enumerate(iter_lines(file, settings.max_line_bytes), start=1)
    for _, sentence in groupby(lines, key=lambda line: not line[1].strip()):
        first, tokens = 0, list[list[str]]()
        for number, line in sentence:
            if not line.strip() or line.startswith("-DOCSTART-") or _COMMENT.match(line):
                continue
            if is_universal and _NO_WORD.match(line):
                continue
            fields = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
            fields = [field.strip(" ") for field in fields]
            width = width or len(fields)
            if len(fields) != width or width < 2 or not all(fields):
                found = f"{len(fields)} columns" if all(fields) else "an empty column"
                short = len(fields) == width
                expected = (
                    "a word and its tag are required" if short else f"the first line has {width}"
                )
                raise DataError(
                    f"{file}:{number}: {found}, but {expected}; separate columns by tabs or "
                    "spaces, and sentences by "
                    "a blank line"
                )
            first = first or number
            tokens.append(fields)
        if tokens:
            columns = [list(column) for column in zip(*tokens, strict=True)]
            numbered = {str(number): column for number, column in enumerate(columns)}
            yield (
                first,
                f"{file}:{first}",
                {"words": columns[words], "tags": columns[tags], **numbered},
            )
