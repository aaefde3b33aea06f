"""The kinds of tasks: the settings that choose among them by `kind`, and what is known of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from trifold.errors import SettingsError
from trifold.objectives.causal import CausalSettings
from trifold.objectives.causal_rows import causal
from trifold.objectives.classify import ClassifySettings
from trifold.objectives.classify_rows import classification
from trifold.objectives.denoise import DenoiseSettings
from trifold.objectives.distill import DistillSettings
from trifold.objectives.distill_rows import distillation
from trifold.objectives.masked import MaskedSettings
from trifold.objectives.pairs import PairsSettings
from trifold.objectives.permutation import PermutationSettings
from trifold.objectives.pretraining_rows import denoise, masked, pairs, permutation, spans
from trifold.objectives.spans import SpansSettings
from trifold.objectives.streams import refuse_cache
from trifold.objectives.task import Asked, Material
from trifold.objectives.text_to_text import TextToTextSettings
from trifold.objectives.text_to_text_rows import text_to_text
from trifold.objectives.translate import TranslateSettings
from trifold.objectives.translate_rows import translation

# Told apart by their `kind`; a recipe that says none is one of translation.
TaskSettings: TypeAlias = (
    TranslateSettings
    | CausalSettings
    | MaskedSettings
    | PermutationSettings
    | PairsSettings
    | DenoiseSettings
    | SpansSettings
    | TextToTextSettings
    | DistillSettings
    | ClassifySettings
)
USUAL = "translate"

_MERGES = ("tokenizer.dropout", "tokenizer.dropout_epochs")

# Pairs of texts, raw text, or the rows of parts that each name their own.
Reads = Literal["pairs", "documents", "parts"]


class Kind(NamedTuple):
    """What is known of a kind of task.

    build: from its settings and the rest of the recipe to all that is learnt from. reads: what it learns from and is
    measured on. cached: whether it reads text from the disk as it needs it, where a recipe says data.cache. measured:
    the settings of the task whose validation is its own. use: the command that shows what such a model can do. unread:
    keys of the recipe that this kind has no use for, and refuses.
    """

    build: Callable[[Any, Asked], Material]
    reads: Reads = "documents"
    cached: bool = False
    measured: Callable[[Any], TaskSettings] = lambda settings: settings
    use: str = 'generate {folder} "your text"'
    unread: tuple[str, ...] = _MERGES


# A row of a text-to-text task may have more than two columns, so it is no pair, and no document.
_NO_PARTS = ("cut", "documents", "duplicates", "field", "holdout", "source", "target", "format", "header")

FILL = 'predict {folder} "a text with a <mask>"'
FOLLOW = 'predict {folder} "a text" --pair "another" --task next-sentence'

KINDS: dict[str, Kind] = {
    "translate": Kind(translation, reads="pairs", unread=()),
    "causal": Kind(causal, cached=True),
    "masked": Kind(masked, use=FILL),
    "permutation": Kind(permutation, use=FILL),
    "pairs": Kind(pairs, use=FOLLOW, unread=(*_MERGES, "data.cut")),
    "denoise": Kind(denoise),
    "spans": Kind(spans),
    "text-to-text": Kind(
        text_to_text, reads="parts", unread=(*_MERGES, *(f"data.{key}" for key in _NO_PARTS))
    ),
    "distill": Kind(distillation, measured=lambda settings: settings.of),  # the student, by itself
    "classify": Kind(classification, use='predict {folder} "your text"'),
}


def measured(settings: TaskSettings) -> TaskSettings:
    """The task whose validation is that of these settings: of one that wraps another, the one inside."""
    return KINDS[settings.kind].measured(settings)


def use(settings: TaskSettings, folder: Path) -> str:
    """The command that uses what has learnt by these settings."""
    return f"trifold {KINDS[measured(settings).kind].use.format(folder=folder)}"


def reads(settings: TaskSettings) -> Reads:
    """What a model that has learnt by these settings is measured on."""
    return KINDS[measured(settings).kind].reads


def build(settings: TaskSettings, asked: Asked) -> Material:
    """Read the data, train or load the tokenizers. What is left out is counted and said.

    Raises SettingsError or DataError before anything is learnt.
    """
    kind = KINDS[settings.kind]
    if not kind.cached:
        refuse_cache(asked, settings.kind)
    return kind.build(settings, asked)


def refuse_unread(settings: TaskSettings, asked: Asked) -> None:
    """Raises SettingsError for what a recipe says, and a task of this kind would not look at."""
    kind = KINDS[settings.kind]
    for room, _, key in (key.partition(".") for key in kind.unread):
        part = asked.data if room == "data" else asked.tokenizer
        if getattr(part, key) != type(part).model_fields[key].get_default():
            raise SettingsError(
                f"{room}.{key}: a task of kind {settings.kind} has no use for it; leave it out, or choose another task"
            )
