"""Objectives: what a model learns. Read each as settings -> rows -> examples -> batch -> loss terms
-> scores.
"""

from importlib import import_module

from trifold.objectives.batch import LossTerm
from trifold.objectives.objective import ObjectiveSettings
from trifold.objectives.translate import Translate, TranslateSettings

# The `kind` of a recipe's task -> module and class of its settings. Only the selected module is
# imported.
KINDS = {
    "translate": "translate.TranslateSettings",
    "causal": "causal.CausalSettings",
    "masked": "masked.MaskedSettings",
    "replaced": "replaced.ReplacedSettings",
    "permutation": "permutation.PermutationSettings",
    "pairs": "sentence_pairs.SentencePairSettings",
    "denoise": "denoise.DenoiseSettings",
    "spans": "denoise.SpansSettings",
    "text-to-text": "text_to_text.TextToTextSettings",
    "distill": "distill.DistillSettings",
    "classify": "classify.ClassifySettings",
    "answer": "answer.AnswerSettings",
    "choose": "choose.ChooseSettings",
    "images": "images.ImagesSettings",
    "tag": "tag.TagSettings",
    "summarize": "summarize.SummarizeSettings",
    "embed": "embed.EmbedSettings",
}
DEFAULT_KIND = "translate"


def settings_class(kind: str) -> type[ObjectiveSettings]:
    """The settings class of a kind."""
    module, name = KINDS[kind].split(".")
    settings: type[ObjectiveSettings] = getattr(import_module(f"trifold.objectives.{module}"), name)
    return settings


__all__ = ["DEFAULT_KIND", "KINDS", "LossTerm", "Translate", "TranslateSettings", "settings_class"]
