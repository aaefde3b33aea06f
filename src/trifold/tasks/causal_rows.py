"""From a recipe to a language model: its documents, its tokenizer, its task."""

from __future__ import annotations

import numpy as np

from trifold.data import DocumentSplits, read_document_splits
from trifold.errors import DataError, SettingsError
from trifold.nn import ModelConfig
from trifold.tasks.causal import Causal, CausalSettings, Corpus
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
    splits = documents_of(asked)
    assert splits.valid is not None
    train_texts = splits.train.texts
    tokenizer = tokenizer_of(
        asked, lambda: train_texts, lambda own: own.save(asked.folder, prepend_bos=settings.begin)
    )
    task = Causal(settings, tokenizer, asked.width, asked.data.cut)
    train, valid = task.read(train_texts), task.read(splits.valid.texts)
    _report(task, train, splits.train.report.name, asked)
    if not (valid.tokens.lengths > 1).any():
        raise DataError(
            f"{splits.valid.report.name}: no validation document has two tokens: nothing is asked for"
        )
    config = with_tokens_of(asked.model, tokenizer)
    anew = asked.data.cut == "windows"
    return Material(task, config, train, valid, f"{tokenizer.vocab_size:,}", lambda epoch: anew)


def documents_of(asked: Asked) -> DocumentSplits:
    """The raw text of a recipe, said as it is read. Raises SettingsError where train or valid is missing."""
    if asked.data.train is None:
        raise SettingsError(
            "data.train: no training data; set data.train=FILE, a folder or a pattern of files"
        )
    if asked.data.valid is None and not asked.data.holdout:
        raise SettingsError(
            "data.valid: no validation data; set data.valid=FILE, or data.holdout=0.1 to hold out a tenth of the text"
        )
    splits = read_document_splits(asked.data, asked.seed)
    for documents in (splits.train, splits.valid):
        if documents is not None:
            asked.say(str(documents.report))
    return splits


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
