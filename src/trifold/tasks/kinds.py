"""The kinds of tasks: the settings that choose among them by `kind`, and what builds each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from trifold.tasks.causal import CausalSettings
from trifold.tasks.causal_rows import causal
from trifold.tasks.classify import ClassifySettings
from trifold.tasks.classify_rows import classification
from trifold.tasks.denoise import DenoiseSettings
from trifold.tasks.distill import DistillSettings
from trifold.tasks.distill_rows import distillation
from trifold.tasks.masked import MaskedSettings
from trifold.tasks.pairs import PairsSettings
from trifold.tasks.permutation import PermutationSettings
from trifold.tasks.pretraining_rows import denoise, masked, pairs, permutation, spans
from trifold.tasks.spans import SpansSettings
from trifold.tasks.streams import refuse_cache
from trifold.tasks.task import Asked, Material
from trifold.tasks.text_to_text import TextToTextSettings
from trifold.tasks.text_to_text_rows import text_to_text
from trifold.tasks.translate import TranslateSettings
from trifold.tasks.translate_rows import translation

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

# From a kind's settings and the rest of the recipe to all that is learnt from.
KINDS: dict[str, Callable[[Any, Asked], Material]] = {
    "translate": translation,
    "causal": causal,
    "masked": masked,
    "permutation": permutation,
    "pairs": pairs,
    "denoise": denoise,
    "spans": spans,
    "text-to-text": text_to_text,
    "distill": distillation,
    "classify": classification,
}

# Those that read text from the disk as they need it, where a recipe says data.cache.
CACHED = {"causal"}


def build(settings: TaskSettings, asked: Asked) -> Material:
    """Read the data, train or load the tokenizers. What is left out is counted and said.

    Raises SettingsError or DataError before anything is learnt.
    """
    if settings.kind not in CACHED:
        refuse_cache(asked, settings.kind)
    return KINDS[settings.kind](settings, asked)
