"""GenerationConfig: how logits become tokens, as plain values, and what is refused because it contradicts itself.

Precedence is argument > stored with the model (generation_config.json) > default; `resolve` applies it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from trifold.settings import Settings

SAMPLING = ("temperature", "top_k", "top_p", "min_p")
BEAMS = ("num_beams", "length_penalty", "length_penalty_form", "early_stopping")


class GenerationConfig(Settings):
    """Greedy by default; `num_beams` makes it a beam search; a temperature, top_k, top_p or min_p makes it sampling."""

    max_new_tokens: int | None = Field(
        None, gt=0, description="longest output; None: tokens of the source + 50 (a decoder: 50)"
    )
    min_new_tokens: int | None = Field(None, ge=0, description="no end before so many tokens")

    num_beams: int = Field(1, gt=0)
    length_penalty: float = Field(1.0, description="the exponent α below; larger favours longer outputs")
    length_penalty_form: Literal["power", "gnmt"] = Field(
        "power", description="score / n^α, or score / ((5 + n) / 6)^α (Wu et al. 2016, equation 14)"
    )
    early_stopping: bool | Literal["never"] = Field(
        True,
        description="true: stop at num_beams finished outputs; false: when going on looks useless; "
        "never: when going on is proved useless",
    )

    do_sample: bool | None = Field(None, description="None: whether one of the next four is given")
    temperature: float | None = None
    top_k: int | None = Field(None, gt=0, description="choose among the k likeliest tokens")
    top_p: float | None = Field(None, gt=0, le=1, description="… the fewest that hold this much probability")
    min_p: float | None = Field(
        None, ge=0, le=1, description="… those with this share of the likeliest one's"
    )
    seed: int | None = Field(None, ge=0, description="of sampling; None: a new one each time")

    repetition_penalty: float | None = Field(None, gt=0)
    no_repeat_ngram_size: int | None = Field(None, gt=0)
    num_return_sequences: int = Field(1, gt=0, description="outputs for each input, best first")

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn at random."""
        return bool(self.do_sample) or (self.do_sample is None and bool(self._sampling_keys))

    @property
    def _sampling_keys(self) -> list[str]:
        return [key for key in SAMPLING if getattr(self, key) is not None]

    @model_validator(mode="after")
    def _does_not_contradict_itself(self) -> Self:
        if self.temperature is not None and self.temperature <= 0:
            raise ValueError(
                f"temperature {self.temperature} is not above 0: for the likeliest token each time, "
                "leave temperature out and set do_sample to false"
            )
        if self.do_sample is False and self._sampling_keys:
            key = self._sampling_keys[0]
            raise ValueError(
                f"{key} {getattr(self, key)} and do_sample false contradict each other: "
                f"leave out {key}, or set do_sample to true"
            )
        if self.samples and self.num_beams > 1:
            raise ValueError(
                f"num_beams {self.num_beams} and {self._reason_to_sample} contradict each other: "
                "a beam search does not sample; set num_beams to 1, or leave out what asks for sampling"
            )
        if not self.samples and self.num_return_sequences > self.num_beams:
            raise ValueError(
                f"num_return_sequences {self.num_return_sequences} is more than num_beams {self.num_beams}: "
                "raise num_beams, or sample (do_sample true)"
            )
        if self.max_new_tokens is not None and (self.min_new_tokens or 0) > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens {self.min_new_tokens} is more than max_new_tokens {self.max_new_tokens}"
            )
        return self

    @property
    def _reason_to_sample(self) -> str:
        keys = self._sampling_keys
        return f"{keys[0]} {getattr(self, keys[0])}" if keys else "do_sample true"


def resolve(
    stored: Mapping[str, Any] | GenerationConfig, asked: Mapping[str, Any], at: str = ""
) -> GenerationConfig:
    """Argument > stored > default.

    Who asks for one way of searching does not inherit the settings of the other: asking for sampling drops the
    stored beam settings, asking for beams (or do_sample false) the stored sampling ones.
    Raises SettingsError for unknown keys, wrong types and contradictions.
    """
    if isinstance(stored, GenerationConfig):
        stored = stored.model_dump(exclude_unset=True)
    beams, sampling = asked.get("num_beams"), asked.get("do_sample")
    wants_samples = sampling is True or any(asked.get(key) is not None for key in SAMPLING)
    wants_no_samples = sampling is False or (isinstance(beams, int) and beams > 1)
    dropped = (*BEAMS, "do_sample") if wants_samples else ("do_sample", *SAMPLING) if wants_no_samples else ()
    inherited = {key: value for key, value in stored.items() if key not in dropped}
    return GenerationConfig.parse({**inherited, **asked}, at)
