"""BART's objective: a text is written again from what noise has left of it (Lewis et al. 2020, section 2.2).

    permute   0 … 1   share of the sentences that change places
    rotate    0 … 1   probability that the text begins in its middle
    delete    0 … 1   share of the tokens that are left out
    mask      0 … 1   share of the tokens that become the mask
    infill    0 … ½   share of the tokens in spans (lengths: Poisson 3) that become one mask each

The authors' model: infill 0.3 and permute 1. Everything else is in rewriting.py.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from trifold.errors import SettingsError
from trifold.objectives.rewriting import RewritingSettings, Spoil
from trifold.settings import Settings
from trifold.text import Tokenizer
from trifold.text.annotation import special_flags
from trifold.text.corruption import NoiseInput, apply_noises
from trifold.text.spans import MAX_SPAN_RATE, Flags, Ids, Rng


class Noise(Settings):
    """Rates of the five noises; 0 leaves one out."""

    permute: float = Field(1.0, ge=0, le=1, description="share of the sentences that change places")
    rotate: float = Field(0.0, ge=0, le=1, description="probability that a text begins in its middle")
    delete: float = Field(0.0, ge=0, lt=1, description="share of the tokens that are left out")
    mask: float = Field(0.0, ge=0, lt=1, description="share of the tokens that become the mask")
    infill: float = Field(
        0.3, ge=0, le=MAX_SPAN_RATE, description="share of the tokens in spans that become one mask"
    )

    @model_validator(mode="after")
    def _spoils_something(self) -> Self:
        if not any(self.model_dump().values()):
            raise ValueError("every rate is 0: a text would only be copied; set infill=0.3, say")
        return self


class DenoiseSettings(RewritingSettings):
    """Writing a text again from what noise has left of it."""

    kind: Literal["denoise"] = "denoise"
    noise: Noise = Field(Noise(), description="what is done to a text, and to how much of it")


def noise(settings: DenoiseSettings, tokenizer: Tokenizer, width: int) -> Spoil:
    """The noises as one function. Raises SettingsError where masks are asked for and the tokenizer has none."""
    rates = settings.noise.model_dump()
    if tokenizer.mask_id is None and (rates["mask"] or rates["infill"]):
        raise SettingsError(
            "tokenizer.special: the tokenizer has no mask token; set tokenizer.special=[mask]"
        )
    special, mask = special_flags(tokenizer), -1 if tokenizer.mask_id is None else tokenizer.mask_id

    def spoil(ids: Ids, words: Flags, sentences: Flags, rng: Rng) -> tuple[Ids, Ids]:
        row = NoiseInput(ids, ~special[ids], sentences, max_length=width - 1)
        found = apply_noises(row, rng, rates, mask)
        return found.inputs, found.targets

    return spoil
