"""From a recipe to the tasks that guess what was taken from raw text: documents, tokenizer, task."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from trifold.errors import DataError, SettingsError
from trifold.nn import ModelConfig
from trifold.tasks.causal_rows import documents_of, with_tokens_of
from trifold.tasks.denoise import DenoiseSettings, noise
from trifold.tasks.masked import MaskedSettings, MaskedWords
from trifold.tasks.pairs import PairsOfTexts, PairsSettings
from trifold.tasks.permutation import Permutation, PermutationSettings
from trifold.tasks.rewriting import Rewriting
from trifold.tasks.spans import SpansSettings, taken_out
from trifold.tasks.task import Asked, Material
from trifold.tasks.tokenizers import tokenizer_of
from trifold.text import Tokenizer
from trifold.text.marks import Marked, mark

AnyTask = TypeVar("AnyTask", MaskedWords, Permutation, PairsOfTexts, Rewriting)
# Given the tokenizer and the model's config with what that decides.
Make = Callable[[Tokenizer, ModelConfig], AnyTask]


def masked(settings: MaskedSettings, asked: Asked) -> Material:
    """Masked words. Raises SettingsError or DataError."""
    asked.refuse_other_shapes(settings.kind, "encoder")
    return _material(
        asked, lambda own, config: MaskedWords(settings, own, config, asked.width, asked.data.cut)
    )


def permutation(settings: PermutationSettings, asked: Asked) -> Material:
    """Tokens in any order. Raises SettingsError or DataError."""
    asked.refuse_other_shapes(settings.kind, "encoder")
    return _material(
        asked, lambda own, config: Permutation(settings, own, config, asked.width, asked.data.cut)
    )


def pairs(settings: PairsSettings, asked: Asked) -> Material:
    """Masked words and pairs of texts. Raises SettingsError or DataError."""
    asked.refuse_other_shapes(settings.kind, "encoder")
    return _material(
        asked, lambda own, config: PairsOfTexts(settings, own, config, asked.width), anew=True, whole=False
    )


def denoise(settings: DenoiseSettings, asked: Asked) -> Material:
    """BART's noises. Raises SettingsError or DataError."""
    asked.refuse_other_shapes(settings.kind, "encoder-decoder")

    def make(own: Tokenizer, config: ModelConfig) -> Rewriting:
        spoil = noise(settings, own, asked.width)
        return Rewriting(settings, own, spoil, asked.width, asked.data.cut, start_id=config.start_id)

    return _material(asked, make, ends=True)


def spans(settings: SpansSettings, asked: Asked) -> Material:
    """T5's spans. Raises SettingsError or DataError."""
    asked.refuse_other_shapes(settings.kind, "encoder-decoder")

    def make(own: Tokenizer, config: ModelConfig) -> Rewriting:
        spoil = taken_out(settings, own, asked.width)
        return Rewriting(settings, own, spoil, asked.width, asked.data.cut, start_id=config.start_id)

    return _material(asked, make, ends=True)


def _material(
    asked: Asked, make: Make[AnyTask], *, ends: bool = False, anew: bool = False, whole: bool = True
) -> Material:
    """ends: texts end with </s> for who reads the tokenizer. anew: examples are cut anew each epoch. whole: a document
    that is too long is cut by `data.cut`.
    """
    if asked.data.cache is not None:
        raise SettingsError(
            "data.cache: words and sentences are marked in memory, where noise is to know of them; leave it out"
        )
    splits = documents_of(asked)
    assert splits.valid is not None
    texts = splits.train.texts
    tokenizer = tokenizer_of(asked, lambda: texts, lambda own: own.save(asked.folder, append_eos=ends))
    config = with_tokens_of(asked.model, tokenizer)
    task = make(tokenizer, config)
    train = _marked(tokenizer, texts, splits.train.report.name, asked)
    valid = _marked(tokenizer, splits.valid.texts, splits.valid.report.name, asked)
    if whole:
        _report(train, task.room, splits.train.report.name, asked)
    cuts_anew = anew or (whole and asked.data.cut == "windows")
    return Material(task, config, train, valid, f"{tokenizer.vocab_size:,}", lambda epoch: cuts_anew)


def _marked(tokenizer: Tokenizer, texts: list[str], name: str, asked: Asked) -> Marked:
    """Raises DataError where no text has a token."""
    found = mark(tokenizer, texts)
    if empty := int((found.lengths == 0).sum()):
        if empty == len(found):
            raise DataError(f"{name}: no document has a token; is the tokenizer for this text?")
        asked.say(f"{name}: {empty:,} documents without a token: left out")
    return found


def _report(documents: Marked, room: int, name: str, asked: Asked) -> None:
    long = documents.lengths > room
    if long.any():
        fate = {
            "pieces": f"cut into pieces of {room:,}",
            "windows": f"cut into pieces of {room:,}, at other places each epoch",
            "drop": f"left out, with {int(np.sum(documents.lengths[long])):,} tokens",
        }[asked.data.cut]
        asked.say(
            f"{name}: {int(long.sum()):,} of {len(documents):,} documents have more than {room:,} tokens: {fate}"
        )
