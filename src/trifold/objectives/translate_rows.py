"""From a recipe to a translation: its pairs, its tokenizers, its task."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trifold.data import Pairs, read_splits
from trifold.errors import DataError, SettingsError
from trifold.objectives.task import Asked, Material, Say
from trifold.objectives.tokenizers import FILE, TARGET_FILE
from trifold.objectives.translate import Translate, TranslateSettings, save_tokenizers
from trifold.text import Tokenizer, TokenizerSettings, make_tokenizer


def translation(settings: TranslateSettings, asked: Asked) -> Material:
    """Read the pairs, train or load the tokenizers. Raises SettingsError or DataError."""
    asked.refuse_other_shapes(settings.kind, "encoder-decoder")
    if asked.data.train is None:
        raise SettingsError(
            "data.train: no training data; set data.train=FILE.source,FILE.target or one table"
        )
    if asked.data.valid is None and not asked.data.holdout:
        raise SettingsError(
            "data.valid: no validation data; set data.valid=…, or data.holdout=500 to hold pairs out"
        )
    splits = read_splits(asked.data, asked.seed)
    assert splits.valid is not None
    for pairs in (splits.train, splits.valid):
        asked.say(str(pairs.report))
    source, target = _tokenizers(asked, splits.train)
    joint = asked.tokenizer.joint
    config = asked.model.model_copy(
        update={
            "vocab_size": source.vocab_size,
            "target_vocab_size": None if joint else target.vocab_size,
            "pad_id": source.pad_id,
            "bos_id": source.bos_id,
            "eos_id": source.eos_id,
        }
    )
    task = Translate(settings, source, target, start_id=config.start_id)
    valid = _short_enough(splits.valid, task, config.max_positions, asked.say)
    vocabulary = f"{source.vocab_size:,}" + ("" if joint else f" + {target.vocab_size:,}")
    return Material(task, config, splits.train, valid, vocabulary, _drops_out(asked.tokenizer))


def _drops_out(settings: TokenizerSettings) -> Callable[[int], bool]:
    """Whether merges drop out in an epoch, so that its rows are tokenised anew."""

    def drops_out(epoch: int) -> bool:
        return bool(settings.dropout) and epoch < (settings.dropout_epochs or epoch + 1)

    return drops_out


def _tokenizers(asked: Asked, pairs: Pairs) -> tuple[Tokenizer, Tokenizer]:
    """Those of the run where it has them already, so that a resumed run reads as it read before."""
    settings, folder = asked.tokenizer, asked.folder
    own = folder / FILE
    if own.is_file():
        source = Tokenizer.load(own, dropout=settings.dropout)
        if settings.joint:
            return source, source
        return source, Tokenizer.load(folder / TARGET_FILE, dropout=settings.dropout)
    asked.say(f"tokenizer: {settings.kind}, {'joint' if settings.joint else 'one a side'} …")
    if settings.joint:
        source = target = make_tokenizer([*pairs.sources, *pairs.targets], settings)
    else:
        source, target = (make_tokenizer(texts, settings) for texts in (pairs.sources, pairs.targets))
    save_tokenizers(folder, source, target)
    return source, target


def _short_enough(pairs: Pairs, task: Translate, positions: int, say: Say) -> Pairs:
    """The validation pairs that the model can read; found out, and said, before hours of training."""
    fits = task.examples(pairs).lengths.max(axis=1) <= positions
    if fits.all():
        return pairs
    name = pairs.report.name
    if not fits.any():
        raise DataError(
            f"{name}: no validation pair has at most {positions} tokens; raise model.max_positions"
        )
    say(f"{name}: {int((~fits).sum()):,} of {len(fits):,} pairs are longer than {positions} tokens: left out")
    return pairs.select(np.flatnonzero(fits).tolist(), name)
