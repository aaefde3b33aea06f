"""`trifold show MODEL --text TEXT`: the tokens of a text, and the steps that split it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trifold.cli.names import is_recipe
from trifold.cli.terminal import print_json, print_table
from trifold.errors import UsageError, check_utf8, escape, plural, wrapped

if TYPE_CHECKING:
    from trifold.text import Tokenizer
    from trifold.text.segmentation import Segmentation, Word

LONGEST = 100_000  # characters of a text; the tokens of a longer one are no table to read
# How each kind of model splits a word.
RULES = {
    "BPE": "BPE: of all neighbours, the pair with the least rank is merged first",
    "Unigram": "Unigram: the pieces with the largest sum of log-probabilities",
    "WordPiece": "WordPiece: the longest piece of the vocabulary from the left, then the next",
    "WordLevel": "whole words or characters: each is a token, or unknown",
    "pieces": "the pieces of a SentencePiece or fastBPE model; its steps are not shown",
}


def show_text(what: str, text: str, *, as_json: bool) -> None:
    """Print the tokens of a text with their ids, and the steps. Raises UsageError for a text that
    is empty or too long, and for a name without a tokenizer.
    """
    from trifold.text.segmentation import segment

    check_utf8(text, "--text")
    if not text:
        raise UsageError("--text: the text is empty; pass one in quotes")
    if len(text) > LONGEST:
        raise UsageError(
            f"--text: {len(text):,} characters; at most {LONGEST:,} are shown, so pass a part"
        )
    tokenizer = find_tokenizer(what)
    segmentation = segment(tokenizer, text, special_in_text=tokenizer.parses_special)
    if as_json:
        print_json(_report(segmentation))
    else:
        _print_segmentation(segmentation)


def find_tokenizer(what: str) -> Tokenizer:
    """The tokenizer of a run, a model folder, a hub id, a recipe that names one, or a file
    tokenizer.json. Raises UsageError if there is none.
    """
    from trifold.hub import resolve
    from trifold.hub.presets import PRESETS as PUBLISHED
    from trifold.nn.presets import PRESETS
    from trifold.recipe import load_recipe
    from trifold.text import Tokenizer, make_tokenizer
    from trifold.text.folder import read_tokenizers

    path = Path(what)
    if path.is_file() and path.suffix == ".json":
        return Tokenizer.load(path)
    if is_recipe(what):
        settings = load_recipe(what, (), imports_parts=True).tokenizer
        if settings.file is None:
            raise UsageError(
                f"{what}: a recipe trains its tokenizer with the model; name a run of it"
            )
        return make_tokenizer([], settings)
    if what.casefold() in {*PRESETS, *PUBLISHED} and not path.is_dir():
        raise UsageError(f"{what}: a preset has no tokenizer; name a run, a folder or a hub id")
    tokenizer, _ = read_tokenizers(resolve(what))
    if tokenizer is None:
        raise UsageError(f"{what}: the folder has no tokenizer; name one that has")
    return tokenizer


def _report(segmentation: Segmentation) -> dict[str, Any]:
    """The segmentation for programs."""
    row = segmentation.row
    tokens = [
        {"id": number, "token": piece, "bytes": span and [*span], "special": text is None}
        for number, piece, span, text in zip(
            row.ids, segmentation.pieces, segmentation.byte_offsets(), row.texts, strict=True
        )
    ]
    return {
        "text": segmentation.text,
        "model": segmentation.model,
        "tokens": tokens,
        "words": [_word_report(word) for word in segmentation.words],
    }


def _word_report(word: Word) -> dict[str, Any]:
    """A word for programs: its tokens by their positions, and what led to them."""
    report: dict[str, Any] = {"tokens": [word.first, word.last], "pieces": word.pieces}
    if word.merges is not None:
        merges = [
            {"pair": [*one.pair], "rank": one.rank, "pieces": one.pieces} for one in word.merges
        ]
        report |= {"start": word.start, "merges": merges}
    if word.scores:
        report["scores"] = word.scores
    return report


def _print_segmentation(segmentation: Segmentation) -> None:
    """Print the table of tokens, how words are split, and the merges of each word."""
    heading: tuple[str, ...] = ("", "id", "token", "bytes", "of the text")
    rows = [*_token_rows(segmentation)]
    scores = _scores(segmentation)
    if scores:
        heading += ("log-probability",)
        rows = [(*row, scores.get(number, "")) for number, row in enumerate(rows)]
    print_table([heading, *rows], "rr r r")
    n_bytes = len(segmentation.text.encode("utf-8"))
    counts = (plural(len(rows), "token"), plural(len(segmentation.text), "character"))
    print(f"\n{', '.join(counts)}, {plural(n_bytes, 'byte')}\n")
    print(wrapped(RULES[segmentation.model]))
    for steps in dict.fromkeys(map(_steps, segmentation.words)):
        if steps:
            print()
            print_table([("", "merge", "rank", "pieces"), *steps], "r r")


def _token_rows(segmentation: Segmentation) -> Iterator[tuple[str, ...]]:
    """The number, the id, the piece, the bytes and the part of the text of each token."""
    row = segmentation.row
    raw = segmentation.text.encode("utf-8")
    columns = zip(row.ids, segmentation.pieces, segmentation.byte_offsets(), strict=True)
    for number, (token, piece, span) in enumerate(columns, start=1):
        place = ""
        content = ""
        if span is not None:
            first, last = span
            place = f"{first}–{last}"
            content = json.dumps(raw[first:last].decode("utf-8"), ensure_ascii=False)
        yield str(number), str(token), escape(piece), place, escape(content)


def _scores(segmentation: Segmentation) -> dict[int, str]:
    """The log-probability of the tokens that have one, by their position."""
    return {
        word.first + number: f"{score:.3f}"
        for word in segmentation.words
        for number, score in enumerate(word.scores)
    }


def _steps(word: Word) -> tuple[tuple[str, str, str, str], ...]:
    """The rows of the table of a word with merges."""
    if not word.merges:
        return ()
    rows = [("0", "", "", " ".join(map(escape, word.start)))]
    for number, one in enumerate(word.merges, start=1):
        left, right = map(escape, one.pair)
        pieces = " ".join(map(escape, one.pieces))
        rows.append((str(number), f"{left} + {right}", f"{one.rank:,}", pieces))
    return tuple(rows)
