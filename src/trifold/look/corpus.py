"""The lines of a corpus, and links between their words: alignments, dependencies, coreference."""

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from trifold.data.conll import iter_conll
from trifold.data.lines import iter_lines
from trifold.data.settings import DataSettings
from trifold.errors import DataError
from trifold.text import Tokenizer

_PAIR = re.compile(r"(\d{1,6})-(\d{1,6})")


class Link(NamedTuple):
    """Words, from 0: a head of `role` attends from `query` to `key`. An alignment leads from target
    to source.
    """

    role: str
    relation: str
    query: int
    key: int


class Line(NamedTuple):
    """A text and its target, None if it has none, and links between their words. place: file and
    line. words: of the text; empty: those between its spaces.
    """

    text: str
    target: str | None = None
    place: str = "line 1"
    links: tuple[Link, ...] = ()
    words: tuple[str, ...] = ()


def split_line(line: str) -> tuple[str, str | None]:
    """The text of a line, and the target after its first tab; None without one, or if it is
    blank.
    """
    text, _, target = line.rstrip("\n").partition("\t")
    return text, target if target.strip() else None


def read_corpus(
    corpus: Path,
    align: Path | None = None,
    coreference: Path | None = None,
    conllu: Path | None = None,
) -> list[Line]:
    """The lines of a corpus that are not blank, then the sentences of a CoNLL-U file.

    A line is a text, or a text, a tab and the target. Line N of `align` and `coreference` has pairs
    of word numbers for line N of the corpus: source-target (the format of Pharaoh), or
    mention-antecedent. Raises DataError with the line for a pair that does not fit, and for another
    number of lines.
    """
    lines = list(iter_lines(corpus))
    links = defaultdict[int, list[Link]](list)
    for file, role in ((align, "alignment"), (coreference, "coreference")):
        if file is not None:
            for number, link in _read_pairs(file, role, lines, corpus):
                links[number].append(link)
    filled = []
    for number, line in enumerate(lines):
        text, target = split_line(line)
        if text.strip():
            filled.append(Line(text, target, f"{corpus}:{number + 1}", tuple(links[number])))
    if conllu is not None:
        filled += _read_dependencies(conllu)
    if not filled:
        raise DataError(f"{corpus}: every line is blank; write a text on each line")
    return filled


def _read_pairs(
    file: Path, role: str, lines: Sequence[str], corpus: Path
) -> Iterator[tuple[int, Link]]:
    """Each link of a file with the number of its line, from 0; see `read_corpus`."""
    rows = list(iter_lines(file))
    if len(rows) != len(lines):
        raise DataError(
            f"{file}: {len(rows):,} lines, {corpus}: {len(lines):,}; line N of both is a pair"
        )
    for number, row in enumerate(rows):
        text, target = split_line(lines[number])
        other = text
        if role == "alignment":
            other = target or ""
        sizes = (len(text.split()), len(other.split()))
        for pair in row.split():
            words = _parse_pair(pair, sizes)
            if words is None:
                raise DataError(
                    f"{file}:{number + 1}: {pair!r:.40} is not a pair of words of "
                    f"{corpus}:{number + 1}, which has "
                    f"{sizes[0]} and {sizes[1]}; write pairs of numbers from 0: 0-0 1-2"
                )
            first, second = words
            if role == "alignment":
                yield number, Link(role, "", query=second, key=first)
            else:
                yield number, Link(role, "", query=first, key=second)


def _parse_pair(pair: str, sizes: tuple[int, int]) -> tuple[int, int] | None:
    """The numbers of a pair such as "3-4"; None if it is none, or exceeds the numbers of words."""
    match = _PAIR.fullmatch(pair)
    if match is None:
        return None
    first, second = map(int, match.groups())
    if first >= sizes[0] or second >= sizes[1]:
        return None
    return first, second


def _read_dependencies(file: Path) -> Iterator[Line]:
    """Each word attends to its head, and each head to its dependents (`relation of`)."""
    if ".conllu" not in file.suffixes:
        raise DataError(f"{file}: dependencies are read from CoNLL-U; the name ends in .conllu")
    for _, place, row in iter_conll(str(file), DataSettings()):
        if row is None or "7" not in row:
            raise DataError(
                f"{place}: fewer than 8 columns; CoNLL-U has the head in column 7, the relation "
                "in 8"
            )
        words = list[str](row["words"])
        links = list[Link]()
        for word, (head, relation) in enumerate(zip(row["6"], row["7"], strict=True)):
            if not head.isdecimal() or int(head) > len(words):
                raise DataError(
                    f"{place}: the head {head!r:.20} of word {word + 1} is not a number up to "
                    f"{len(words)}"
                )
            if int(head):
                links.append(Link("syntactic", relation, word, int(head) - 1))
                links.append(Link("syntactic", f"{relation} of", int(head) - 1, word))
        yield Line(" ".join(words), None, place, tuple(links), tuple(words))


def find_words(tokenizer: Tokenizer, ids: Sequence[int], words: Sequence[str]) -> list[int] | None:
    """The word of each token, -1 of special tokens; None if the tokens do not have as many letters
    as the words.
    """
    prefixes = tokenizer.decode([ids[:n] for n in range(1, len(ids) + 1)])
    # The number of letters, without space, up to the end of each word and of each token.
    ends = [len("".join("".join(words[: n + 1]).split())) for n in range(len(words))]
    token_ends = [len("".join(prefix.split())) for prefix in prefixes]
    if not token_ends or not ends or token_ends[-1] != ends[-1]:
        return None
    word_of_token = []
    for token_end, text in zip(
        token_ends, tokenizer.decode([[token] for token in ids]), strict=True
    ):
        is_special = not text
        word = bisect_left(ends, min(token_end, ends[-1]))
        word_of_token.append(-1 if is_special else word)
    return word_of_token
