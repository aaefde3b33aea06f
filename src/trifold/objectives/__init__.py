"""Objectives: what a model learns. Read each as settings -> rows -> examples -> batch -> loss terms -> scores."""

from typing import TypeAlias

from trifold.objectives.causal import CausalSettings
from trifold.objectives.classify import ClassifySettings
from trifold.objectives.denoise import DenoiseSettings, SpansSettings
from trifold.objectives.distill import DistillSettings
from trifold.objectives.masked import MaskedSettings
from trifold.objectives.objective import LossTerm
from trifold.objectives.permutation import PermutationSettings
from trifold.objectives.sentence_pairs import SentencePairSettings
from trifold.objectives.text_to_text import TextToTextSettings
from trifold.objectives.translate import Translate, TranslateSettings

# The settings of a recipe's task; `kind` selects the class.
TaskSettings: TypeAlias = (
    TranslateSettings
    | CausalSettings
    | MaskedSettings
    | PermutationSettings
    | SentencePairSettings
    | DenoiseSettings
    | SpansSettings
    | TextToTextSettings
    | DistillSettings
    | ClassifySettings
)
DEFAULT_KIND = "translate"

__all__ = ["DEFAULT_KIND", "LossTerm", "TaskSettings", "Translate", "TranslateSettings"]
