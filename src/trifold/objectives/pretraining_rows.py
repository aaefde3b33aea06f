"""From a recipe to the tasks that guess what was taken from raw text: documents, tokenizer, task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from trifold.batches import plan_epoch
from trifold.data import Documents
from trifold.errors import DataError, SettingsError
from trifold.nn import ModelConfig
from trifold.objectives.causal_rows import documents_of, with_tokens_of
from trifold.objectives.denoise import DenoiseSettings, noise
from trifold.objectives.masked import MaskedSettings, MaskedWords
from trifold.objectives.pairs import PairsOfTexts, PairsSettings
from trifold.objectives.permutation import Permutation, PermutationSettings
from trifold.objectives.rewriting import Rewriting
from trifold.objectives.spans import SpansSettings, taken_out
from trifold.objectives.task import Asked, Material
from trifold.objectives.tokenizers import tokenizer_of
from trifold.text import Tokenizer
from trifold.text.annotation import AnnotatedTexts, annotate, count_unknown

AnyTask = TypeVar("AnyTask", MaskedWords, Permutation, PairsOfTexts, Rewriting)
# Given the tokenizer and the model's config with what that decides.
Make = Callable[[Tokenizer, ModelConfig], AnyTask]
# What becomes of documents that the task does not read as they are: a line for each fate that befalls any.
Fates = Callable[[AnyTask, AnnotatedTexts], Iterator[str]]


def masked(settings: MaskedSettings, asked: Asked) -> Material:
    """Masked words. Raises SettingsError or DataError."""
    asked.refuse_other_shapes(settings.kind, "encoder")
    return _material(
        asked, lambda own, config: MaskedWords(settings, own, config, asked.width, asked.data.cut), _cut
    )


def permutation(settings: PermutationSettings, asked: Asked) -> Material:
    """Tokens in any order. Raises SettingsError or DataError."""
    asked.refuse_other_shapes(settings.kind, "encoder")
    return _material(
        asked, lambda own, config: Permutation(settings, own, config, asked.width, asked.data.cut), _cut
    )


def pairs(settings: PairsSettings, asked: Asked) -> Material:
    """Masked words and pairs of texts. Raises SettingsError or DataError."""
    asked.refuse_other_shapes(settings.kind, "encoder")

    def make(own: Tokenizer, config: ModelConfig) -> PairsOfTexts:
        return PairsOfTexts(settings, own, config, asked.width)

    return _material(asked, make, _paired, anew=True)


def denoise(settings: DenoiseSettings, asked: Asked) -> Material:
    """BART's noises. Raises SettingsError or DataError."""
    asked.refuse_other_shapes(settings.kind, "encoder-decoder")

    def make(own: Tokenizer, config: ModelConfig) -> Rewriting:
        spoil = noise(settings, own, asked.width)
        return Rewriting(settings, own, spoil, asked.width, asked.data.cut, start_id=config.start_id)

    return _material(asked, make, _permuted if settings.noise.permute else _cut, ends=True)


def spans(settings: SpansSettings, asked: Asked) -> Material:
    """T5's spans. Raises SettingsError or DataError."""
    asked.refuse_other_shapes(settings.kind, "encoder-decoder")

    def make(own: Tokenizer, config: ModelConfig) -> Rewriting:
        spoil = taken_out(settings, own, asked.width)
        return Rewriting(settings, own, spoil, asked.width, asked.data.cut, start_id=config.start_id)

    return _material(asked, make, _cut, ends=True)


def _material(
    asked: Asked, make: Make[AnyTask], fates: Fates[AnyTask], *, ends: bool = False, anew: bool = False
) -> Material:
    """ends: texts end with </s> for who reads the tokenizer. anew: examples are cut anew each epoch, whatever
    `data.cut` says.
    """
    if asked.data.cache is not None:
        raise SettingsError(
            "data.cache: words and sentences are marked in memory, where noise is to know of them; leave it out"
        )
    splits = documents_of(asked)
    assert splits.valid is not None
    texts = splits.train.texts
    unknown_fate = "read and written as that" if ends else "read, and never asked for"
    tokenizer = tokenizer_of(asked, lambda: texts, lambda own: own.save(asked.folder, append_eos=ends))
    config = with_tokens_of(asked.model, tokenizer)
    task = make(tokenizer, config)

    def read(documents: Documents) -> AnnotatedTexts:
        name = documents.report.name
        marked = _marked(tokenizer, documents.texts, name, asked, unknown_fate)
        try:
            for fate in fates(task, marked):
                asked.say(f"{name}: {fate}")
        except DataError as error:
            raise DataError(f"{name}: {error}") from None
        return marked

    train, valid = read(splits.train), read(splits.valid)
    _check_asked(task, valid, splits.valid.report.name, asked)
    anew = anew or asked.data.cut == "windows"
    return Material(task, config, train, valid, f"{tokenizer.vocab_size:,}", lambda epoch: anew)


def _check_asked(task: AnyTask, rows: AnnotatedTexts, name: str, asked: Asked) -> None:
    """Raises DataError where a validation asks for no token, and every model would be perfect."""
    examples = task.examples(rows)
    whole = asked.batches.model_copy(update={"max_length": None, "on_overflow": "drop"})
    plan = plan_epoch(examples.lengths, whole, seed=0, epoch=0, shuffle=False)
    if not any(task.batch(examples, batch).tokens for batch in plan):
        raise DataError(
            f"{name}: no token of this validation text is asked for: its documents are too short, of unknown tokens "
            "alone, or left out by data.cut=drop; name another with data.valid, or raise data.holdout"
        )


def _marked(tokenizer: Tokenizer, texts: list[str], name: str, asked: Asked, fate: str) -> AnnotatedTexts:
    """Raises DataError where no text has a token."""
    found = annotate(tokenizer, texts)
    if empty := int((found.lengths == 0).sum()):
        if empty == len(found):
            raise DataError(f"{name}: no document has a token; is the tokenizer for this text?")
        asked.say(f"{name}: {empty:,} documents without a token: left out")
    if lost := count_unknown(tokenizer, found.ids):
        asked.say(f"{name}: {lost:,} of {len(found.ids):,} tokens are unknown (<unk>): {fate}")
    return found


def _cut(task: MaskedWords | Permutation | Rewriting, documents: AnnotatedTexts) -> Iterator[str]:
    """Of documents that are longer than the model reads at once."""
    long = documents.lengths > task.room
    if long.any():
        fate = {
            "pieces": f"cut into pieces of {task.room:,}",
            "windows": f"cut into pieces of {task.room:,}, at other places each epoch",
            "drop": f"left out, with {int(np.sum(documents.lengths[long])):,} tokens",
        }[task.cut]
        yield f"{int(long.sum()):,} of {len(documents):,} documents have more than {task.room:,} tokens: {fate}"


def _permuted(task: Rewriting, documents: AnnotatedTexts) -> Iterator[str]:
    """And of documents whose sentences cannot change places."""
    yield from _cut(task, documents)
    begun = np.concatenate([np.zeros(1, np.int64), np.cumsum(documents.sentence_starts)])
    if alone := int((np.diff(begun[documents.starts]) == 1).sum()):
        yield f"{alone:,} of {len(documents):,} documents are a single sentence: there is nothing to permute"


def _paired(task: PairsOfTexts, documents: AnnotatedTexts) -> Iterator[str]:
    """Of what is in no pair; which that is, is drawn anew each epoch, and these are the numbers of one."""
    pairs = task.examples(documents)
    single, last, cut = pairs.left
    if single.number:
        yield f"{single.number:,} documents of a single sentence: left out, with {single.tokens:,} tokens"
    if last.number:
        yield (
            f"{last.number:,} last sentences without another to make a pair with (about as many each epoch): "
            f"left out, with {last.tokens:,} tokens"
        )
    if cut.number:
        yield (
            f"{cut.number:,} of {len(pairs.of):,} pairs have more than {task.room:,} tokens (about as many each "
            f"epoch): cut, {cut.tokens:,} tokens are lost"
        )
    if task.settings.pairs == "follows":
        yield (
            "half of the pairs, drawn anew each epoch, read a second text of another document in the place of "
            "theirs, as far as it fits"
        )
