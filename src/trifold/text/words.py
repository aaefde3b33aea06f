"""Tokenizers whose pieces `tokenizers` cannot find itself: Marian's two SentencePiece models, BERTweet's fastBPE.

The pieces are found here, and the library only knows their ids. Such a tokenizer is saved as the files it came from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import Regex, decoders, models
from tokenizers import Tokenizer as Library

from trifold.errors import CheckpointError
from trifold.jsonfiles import read_bytes
from trifold.text.assembly import FAIRSEQ, Names, template
from trifold.text.chat import read_templates
from trifold.text.layouts import SETTINGS, read_ids, read_lines
from trifold.text.sentencepiece import LARGEST_MODEL, SPACE, Segmenter, read_model
from trifold.text.special import add, names_of
from trifold.text.tokenizer import Tokenizer

_WORD = re.compile(r"\S+\n?")
_MARIAN = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_MARIAN_FILES = ("source.spm", "target.spm", "vocab.json", "target_vocab.json")
_BERTWEET_FILES = ("vocab.txt", "bpe.codes")


def read_marian(path: Path, settings: Mapping[str, Any], target: bool) -> Tokenizer:
    """The side that a Marian model reads, or the one it writes; both know the words of the vocabulary they use."""
    names = names_of(settings, _MARIAN)
    own = target and bool(settings.get("separate_vocabs"))
    ids = read_ids(path / ("target_vocab.json" if own else "vocab.json"))
    segment = Segmenter(read_model(path / ("target.spm" if target else "source.spm")))

    def words(text: str) -> list[str]:
        end = text.find("<<") + 2 if text.startswith(">>") else 1
        code = text[:end] if end > 1 else ""  # ">>fra<<" in front says into which language
        return [code, *segment(text[len(code) :])] if code else segment(text)

    eos = names["eos_token"]
    special = dict.fromkeys(names.values())
    spaced = [decoders.Replace(Regex(f"{re.escape(name)}{SPACE}*"), f"{name} ") for name in special]
    decoder = [decoders.Fuse(), *spaced, decoders.Replace(SPACE, " ")]
    library = _library(path, settings, ids, names, (f"$A {eos}", f"$A $B {eos}"), decoder)
    return _tokenizer(path, settings, library, names, words, _MARIAN_FILES)


def read_bertweet(path: Path, settings: Mapping[str, Any]) -> Tokenizer:
    """Raises CheckpointError where tweets are to be normalised first: that is not done here."""
    if settings.get("normalization"):
        place = path / "tokenizer_config.json"
        remedy = "normalise them beforehand and set normalization to false"
        raise CheckpointError(f"{place}: normalization of tweets is not done here; {remedy}")
    names = names_of(settings, FAIRSEQ)
    first = ("bos_token", "pad_token", "eos_token", "unk_token")
    ids = {names[role]: number for number, role in enumerate(first)}
    for line in read_lines(path / "vocab.txt"):
        ids[line.strip().rpartition(" ")[0]] = len(ids)
    bos, eos = names["bos_token"], names["eos_token"]
    around = (f"{bos} $A {eos}", f"{bos} $A {eos} {eos} $B {eos}")
    decoder = [decoders.WordPiece(prefix="\0", cleanup=False), decoders.Fuse(), decoders.Replace("@@ ", "")]
    library = _library(path, settings, ids, names, around, decoder)
    return _tokenizer(path, settings, library, names, FastBPE(path / "bpe.codes"), _BERTWEET_FILES)


def _library(
    path: Path,
    settings: Mapping[str, Any],
    ids: dict[str, int],
    names: Names,
    around: tuple[str, str],
    decoder: list[Any],
) -> Library:
    if names["unk_token"] not in ids:
        unknown = names["unk_token"]
        raise CheckpointError(f"{path}: its vocabulary lacks {unknown!r}, the token for what is unknown")
    library = Library(models.WordLevel(ids, unk_token=names["unk_token"]))
    add(library, [], settings, names)
    library.decoder = decoders.Sequence(decoder)
    library.post_processor = template(library, *around)
    return library


def _tokenizer(
    path: Path,
    settings: Mapping[str, Any],
    library: Library,
    names: Names,
    words: Callable[[str], list[str]],
    files: tuple[str, ...],
) -> Tokenizer:
    there = [name for name in (*files, *SETTINGS) if (path / name).is_file()]
    return Tokenizer(
        library,
        names=names,
        complete=False,
        settings=settings,
        words=words,
        files={name: read_bytes(path / name, LARGEST_MODEL) for name in there},
        templates=read_templates(path, settings),
    )


class FastBPE:
    """BERTweet's words and merges (Nguyen et al. 2020): `@@` after every piece that does not end a word."""

    def __init__(self, codes: Path) -> None:
        pairs = [tuple(line.split()[:-1]) for line in read_lines(codes)]
        self._ranks = {pair: rank for rank, pair in enumerate(pairs)}
        self._cache: dict[str, list[str]] = {}

    def __call__(self, text: str) -> list[str]:
        """The pieces of every word; a line end right behind a word belongs to it."""
        found: list[str] = []
        for word in _WORD.findall(text):
            if word not in self._cache:
                if len(self._cache) > 100_000:
                    self._cache.clear()
                self._cache[word] = self._pieces(word)
            found += self._cache[word]
        return found

    def _pieces(self, word: str) -> list[str]:
        parts = [*word[:-1], word[-1] + "</w>"]
        while len(parts) > 1:
            best = min(pairwise(parts), key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            merged: list[str] = []
            at = 0
            while at < len(parts):
                twin = tuple(parts[at : at + 2]) == best
                merged.append("".join(parts[at : at + 1 + twin]))
                at += 1 + twin
            parts = merged
        parts[-1] = parts[-1].removesuffix("</w>")
        return [f"{part}@@" for part in parts[:-1]] + parts[-1:]
