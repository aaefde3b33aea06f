"""From a recipe to a language model: its documents, its tokenizer, its task."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from trifold.batches.blocks import Offsets
from trifold.data import DocumentSplits, Side, TokenCache, read_document_splits, read_documents
from trifold.errors import DataError, SettingsError
from trifold.nn import ModelConfig
from trifold.objectives.causal import Causal, CausalSettings, Corpus
from trifold.objectives.streams import cached, in_memory, sample
from trifold.objectives.task import Asked, Material
from trifold.objectives.tokenizers import tokenizer_of
from trifold.text import Tokenizer
from trifold.text.annotation import count_unknown

_BUNCH = 1 << 20
UNGUESSED = "so no bits per byte, for nobody guesses what that was"


def causal(settings: CausalSettings, asked: Asked) -> Material:
    """Read the documents, train or load the tokenizer, encode. Raises SettingsError or DataError."""
    asked.refuse_other_shapes(settings.kind, "decoder")
    if asked.model.logit_soft_cap is not None:
        raise SettingsError(
            "model.logit_soft_cap: logits are never whole in training, and their cap is not known there; leave it out"
        )
    train: Corpus | TokenCache
    if asked.data.cache is not None:
        task, train, valid = _from_disk(settings, asked)
        name = str(asked.data.valid or "held out")
    else:
        task, train, valid, name = _from_memory(settings, asked)
    if not (valid.tokens.lengths > 1).any():
        raise DataError(f"{name}: no validation document has two tokens: nothing is asked for")
    long = sum(len(ids) + settings.begin > task.width for ids in task.tokenizer.encode(settings.prompts))
    if long:
        asked.say(
            f"task.prompts: {long:,} have more than {task.width:,} tokens: their beginnings are continued"
        )
    config = with_tokens_of(asked.model, task.tokenizer)
    anew = asked.data.cut == "windows"
    return Material(task, config, train, valid, f"{task.tokenizer.vocab_size:,}", lambda epoch: anew)


def _from_memory(settings: CausalSettings, asked: Asked) -> tuple[Causal, Corpus, Corpus, str]:
    """The task, the training text, the validation text and its name."""
    splits = documents_of(asked)
    assert splits.valid is not None
    task = _task(settings, asked, lambda: splits.train.texts)
    train, valid = task.read(splits.train.texts), task.read(splits.valid.texts)
    name = splits.train.report.name
    if empty := int(np.count_nonzero(train.tokens.lengths == 0)):
        asked.say(f"{name}: {empty:,} documents without a token: left out")
    for fate in (*_cut(task, train), *_never_asked(task, train.tokens.starts), *_unknown(task, train)):
        asked.say(f"{name}: {fate}")
    for fate in _unknown(task, valid):
        asked.say(f"{splits.valid.report.name}: {fate}; {UNGUESSED}")
    return task, train, valid, splits.valid.report.name


def _from_disk(settings: CausalSettings, asked: Asked) -> tuple[Causal, TokenCache, Corpus]:
    """The task, the training text as a cache, and the validation text, which is held in memory."""
    data = asked.data
    _refuse_missing(asked)
    assert data.train is not None
    if data.cut == "drop":
        raise SettingsError(
            "data.cut: text in a cache is cut, not dropped; set data.cut to pieces or windows"
        )
    side: Side = "train" if data.holdout else "all"
    task = _task(settings, asked, lambda: sample(asked, side))
    key = f"causal begin={settings.begin} end={settings.end} bytes=3"  # how bytes are counted has changed
    train = cached(asked, data.train, task.tokenizer, key, task.read, side)
    for fate in _never_asked(task, train.starts):
        asked.say(f"{train.report.name}: {fate}")
    if data.valid is not None:
        documents = read_documents(data.valid, data.model_copy(update={"cache": None}), split="valid")
        asked.say(str(documents.report))
        valid, name = task.read(documents.texts), documents.report.name
    else:
        held = cached(asked, data.train, task.tokenizer, key, task.read, "valid")
        valid, name = Corpus(in_memory(held), held.bytes), held.report.name
    for fate in _unknown(task, valid):
        asked.say(f"{name}: {fate}; {UNGUESSED}")
    return task, train, valid


def _task(settings: CausalSettings, asked: Asked, texts: Callable[[], list[str]]) -> Causal:
    tokenizer = tokenizer_of(asked, texts, lambda own: own.save(asked.folder, prepend_bos=settings.begin))
    return Causal(settings, tokenizer, asked.width, asked.data.cut)


def documents_of(asked: Asked) -> DocumentSplits:
    """The raw text of a recipe, said as it is read. Raises SettingsError where train or valid is missing."""
    _refuse_missing(asked)
    splits = read_document_splits(asked.data, asked.seed)
    for documents in (splits.train, splits.valid):
        if documents is not None:
            asked.say(str(documents.report))
    return splits


def _refuse_missing(asked: Asked) -> None:
    """Raises SettingsError where the recipe names no text to train on, or none to validate on."""
    if asked.data.train is None:
        raise SettingsError(
            "data.train: no training data; set data.train=FILE, a folder or a pattern of files"
        )
    if asked.data.valid is None and not asked.data.holdout:
        raise SettingsError(
            "data.valid: no validation data; set data.valid=FILE, or data.holdout=0.1 to hold out a tenth of the text"
        )


def with_tokens_of(config: ModelConfig, tokenizer: Tokenizer) -> ModelConfig:
    """The config with what the one tokenizer of a task decides."""
    return config.model_copy(
        update={
            "vocab_size": tokenizer.vocab_size,
            "pad_id": tokenizer.required("pad"),
            "bos_id": tokenizer.required("bos"),
            "eos_id": tokenizer.required("eos"),
        }
    )


def _cut(task: Causal, corpus: Corpus) -> Iterator[str]:
    """What becomes of documents that are longer than the model reads at once."""
    lengths = corpus.tokens.lengths
    long = lengths - 1 > task.width
    if long.any():
        fate = {
            "pieces": f"cut into pieces of {task.width:,}",
            "windows": f"cut into pieces of {task.width:,}, at other places each epoch",
            "drop": f"left out, with {int(lengths[long].sum()):,} tokens",
        }[task.cut]
        yield f"{int(long.sum()):,} of {len(lengths):,} documents are longer than {task.width:,} tokens: {fate}"


def _unknown(task: Causal, corpus: Corpus) -> Iterator[str]:
    if lost := count_unknown(task.tokenizer, corpus.tokens.ids):
        yield f"{lost:,} of {len(corpus.tokens.ids):,} tokens are unknown: read and asked for as <unk>"


def _never_asked(task: Causal, starts: Offsets) -> Iterator[str]:
    """What of documents that begin there is asked of nobody, however they are cut."""
    begin, end = task.settings.begin, task.settings.end
    if not begin:
        yield (
            f"the first token of each of {len(starts) - 1:,} documents is read and never asked for "
            "(task.begin=true asks for it)"
        )
    # With a token before it and one behind it every document has two: no starts need be read from the disk for that.
    if short := 0 if begin and end else _short(starts):
        yield f"{short:,} documents of a single token: nothing is asked for there"


def _short(starts: Offsets) -> int:
    """Documents of one token, counted a bunch at a time: starts may be more than memory holds."""
    bunches = (starts[first : first + _BUNCH + 1] for first in range(0, len(starts) - 1, _BUNCH))
    return sum(int(np.count_nonzero(np.diff(bunch) == 1)) for bunch in bunches)
