"""The variants of the Transformer, one file each, and the config of all of them.

A variant is one or several parts (`nn.parts`) that describe themselves. Removing its file and its
lines here leaves a package that works; a new variant is a file and a line in the table.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Self, get_args

from pydantic import Field, model_validator
from pydantic.fields import FieldInfo

from trifold.nn import embeddings, stack  # noqa: F401 (they set the classical parts)
from trifold.nn.checks import first_problem
from trifold.nn.config import CoreConfig
from trifold.nn.registry import register
from trifold.nn.variants import (
    adaptive_span,
    additive,
    alibi,
    axial,
    compressive,
    convolution,
    disentangled,
    dynamic_convolution,
    experts,
    fourier,
    global_tokens,
    graph,
    latent,
    linear_attention,
    linear_path,
    low_rank,
    lsh,
    parallel,
    patches,
    recurrence,
    relative_buckets,
    relative_sinusoids,
    reversible,
    rotary_scaling,
    spans,
    sparse_blocks,
    summaries,
    two_streams,
    windows,
    word_matches,
)
from trifold.nn.variants.adaptive_span import AdaptiveSpan
from trifold.nn.variants.compressive import Compression
from trifold.nn.variants.convolution import Convolution
from trifold.nn.variants.dynamic_convolution import DynamicConvolution
from trifold.nn.variants.experts import Experts
from trifold.nn.variants.latent import Latent
from trifold.nn.variants.linear_path import LinearPath
from trifold.nn.variants.lsh import LSH
from trifold.nn.variants.recurrence import Recurrence
from trifold.nn.variants.rotary_scaling import RotaryScaling
from trifold.nn.variants.sparse_blocks import SparseBlocks
from trifold.settings import Settings

VARIANTS = (
    # Embeddings and positions
    patches,
    word_matches,
    axial,
    # Scores
    rotary_scaling,
    alibi,
    relative_buckets,
    relative_sinusoids,
    disentangled,
    # Attention
    additive,
    adaptive_span,
    dynamic_convolution,
    fourier,
    linear_attention,
    low_rank,
    spans,
    lsh,
    latent,
    # Rules, in the order in which they change a mask and describe it, with the attention and the
    # walk of each
    two_streams,
    windows,
    global_tokens,
    graph,
    sparse_blocks,
    recurrence,
    compressive,
    summaries,
    # Blocks and networks
    parallel,
    reversible,
    convolution,
    experts,
    # Logits
    linear_path,
)
for _variant in VARIANTS:
    for _part in _variant.PARTS:
        register(_part)


@cache
def _optional_groups(config: type[CoreConfig]) -> frozenset[str]:
    """The names of the fields that hold the settings of a variant, or None."""
    fields = config.model_fields.items()
    return frozenset(name for name, field in fields if _is_optional_group(field))


def _is_optional_group(field: FieldInfo) -> bool:
    """Whether a field holds the settings of a variant, or None."""
    kinds = get_args(field.annotation)
    return type(None) in kinds and any(
        isinstance(kind, type) and issubclass(kind, Settings) for kind in kinds
    )


class ModelConfig(CoreConfig):
    """Sizes and choices of one Transformer, with a group of settings for each variant that has
    several.
    """

    rotary_scaling: RotaryScaling | None = Field(None, description="extension to longer contexts")
    experts: Experts | None = Field(None, description="mixture of experts instead of the network")
    convolution: Convolution | None = Field(None, description="encoder: added to the first layer")
    dynamic_convolution: DynamicConvolution = Field(
        DynamicConvolution(), description="dynamic-convolution: taps"
    )
    lsh: LSH = Field(LSH(), description="lsh: hashing and chunks")
    latent: Latent | None = Field(None, description="multi-head latent attention")
    adaptive_span: AdaptiveSpan | None = Field(
        None, description="decoder: heads learn how far back they read"
    )
    sparse_blocks: SparseBlocks | None = Field(None, description="encoder: attend to a few blocks")
    compression: Compression | None = Field(
        None, description="recurrence: compress the states that leave the memory"
    )
    recurrence: Recurrence | None = Field(None, description="decoder: segment recurrence")
    linear_path: LinearPath | None = Field(
        None, description="classes of texts: a linear model on n-grams that is fitted first"
    )

    @model_validator(mode="before")
    @classmethod
    def _read_switches(cls, values: Any) -> Any:
        """`true` is a group with its defaults, and `false` is none."""
        if not isinstance(values, dict):
            return values
        switches: dict[bool, dict[str, Any] | None] = {True: {}, False: None}
        groups = _optional_groups(cls)
        return {
            name: switches[value] if name in groups and isinstance(value, bool) else value
            for name, value in values.items()
        }

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (problem := first_problem(self)) is not None:
            raise problem
        return self
