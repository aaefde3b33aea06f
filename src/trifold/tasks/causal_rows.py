"""From a recipe to a language model: its documents, its tokenizer, its task."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trifold.data import DocumentSplits, Side, TokenCache, read_document_splits, read_documents
from trifold.errors import DataError, SettingsError
from trifold.nn import ModelConfig
from trifold.tasks.causal import Causal, CausalSettings, Corpus
from trifold.tasks.streams import cached, in_memory, sample
from trifold.tasks.task import Asked, Material
from trifold.tasks.tokenizers import tokenizer_of
from trifold.text import Tokenizer


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
    config = with_tokens_of(asked.model, task.tokenizer)
    anew = asked.data.cut == "windows"
    return Material(task, config, train, valid, f"{task.tokenizer.vocab_size:,}", lambda epoch: anew)


def _from_memory(settings: CausalSettings, asked: Asked) -> tuple[Causal, Corpus, Corpus, str]:
    """The task, the training text, the validation text and its name."""
    splits = documents_of(asked)
    assert splits.valid is not None
    task = _task(settings, asked, lambda: splits.train.texts)
    train, valid = task.read(splits.train.texts), task.read(splits.valid.texts)
    _report(task, train, splits.train.report.name, asked)
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
    key = f"causal begin={settings.begin} end={settings.end}"
    train = cached(asked, data.train, task.tokenizer, key, task.read, side)
    if data.valid is not None:
        documents = read_documents(data.valid, data.model_copy(update={"cache": None}), split="valid")
        asked.say(str(documents.report))
        return task, train, task.read(documents.texts)
    held = cached(asked, data.train, task.tokenizer, key, task.read, "valid")
    return task, train, Corpus(in_memory(held), held.bytes)


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


def _report(task: Causal, corpus: Corpus, name: str, asked: Asked) -> None:
    """How documents are cut, and what of them is never asked for."""
    lengths = corpus.tokens.lengths
    long = lengths - 1 > task.width
    if long.any():
        fate = {
            "pieces": f"cut into pieces of {task.width:,}",
            "windows": f"cut into pieces of {task.width:,}, at other places each epoch",
            "drop": f"left out, with {int(lengths[long].sum()):,} tokens",
        }[task.cut]
        asked.say(
            f"{name}: {int(long.sum()):,} of {len(lengths):,} documents are longer than {task.width:,} tokens: {fate}"
        )
    if not task.settings.begin:
        asked.say(
            f"{name}: the first token of each of {len(lengths):,} documents is read and never asked for "
            "(task.begin=true asks for it)"
        )
    if short := int(np.count_nonzero(lengths < 2)):
        asked.say(f"{name}: {short:,} documents of a single token: nothing is asked for there")
