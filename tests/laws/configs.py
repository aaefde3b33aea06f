"""The table of configs, which together have every allowed pair of parts and every variant.

`python -m tests.laws.pairs` proposes lines for a new part. Laws that a part breaks by definition are
in BREAKS.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product

import pytest
from tests.laws.parts import (
    INSIDE,
    OUTSIDE,
    SHAPES,
    VARIANTS,
    Values,
    are_alternatives,
    values_of,
)

from trifold.errors import SettingsError
from trifold.nn import ModelConfig

# name -> parts, and variants of them
CONFIGS: dict[str, tuple[str, str]] = {
    # Three classical ones, whose parts all have kernels; they need no file of nn/variants.
    "encoder-decoder: 2017": ("encoder-decoder", ""),
    "encoder: BERT": (
        "encoder, learned positions, token types, classes",
        "activation gelu, biases of projections, pooled classes",
    ),
    "decoder: GPT": ("decoder, learned positions", "pre, activation relu2"),
    "encoder-decoder: two widths": (
        "encoder-decoder, two widths, rotary by length, sandwich",
        "activation gelu-tanh, biases of projections, bias of outputs, norms without bias",
    ),
    "encoder-decoder: two widths, relative": (
        "encoder-decoder, two widths, narrow embeddings, token types, relative, score cap, shared keys, norm of heads, global tokens, rms, gated",
        "pre, scaled residuals, final norms, learned and relative, wide values",
    ),
    "encoder-decoder: two widths, alibi": (
        "encoder-decoder, two widths, alibi, scale by layer, norm of queries, global tokens, sandwich",
        "activation quick-gelu, no first norm, window of the decoder, capped logits",
    ),
    "encoder-decoder: learned positions": (
        "encoder-decoder, learned positions, sparse blocks",
        "activation tanh, axial positions, repeated first block, biases of projections",
    ),
    "encoder-decoder: two widths, learned positions": (
        "encoder-decoder, two widths, shared blocks, narrow embeddings, token types, learned positions, sinks, norm of heads, window, window pattern, global tokens, summaries, rms, gated",
        "segments after a separator, no window in the decoder, norms without weight, pre",
    ),
    "encoder-decoder: two widths, rotary": (
        "encoder-decoder, two widths, shared blocks, narrow embeddings, token types, rotary, rotary pattern, local theta, lsh, sandwich, rms, gated, gate limit, experts, untied, classes",
        "linear scaling, rotated neighbours, only lsh, norms without weight",
    ),
    "encoder-decoder: two widths, learned positions, global projections": (
        "encoder-decoder, two widths, shared blocks, learned positions, global projections, sandwich, experts",
        "window of the decoder, global answer, activation quick-gelu, exit",
    ),
    "encoder-decoder: two widths, relative sinusoids": (
        "encoder-decoder, two widths, relative sinusoids, sparse blocks, sandwich",
        "activation relu2, own distances, repeated first block",
    ),
    "encoder-decoder: two widths, no positions": (
        "encoder-decoder, two widths, shared blocks, no positions, latent, sandwich",
        "wide queries",
    ),
    "encoder-decoder: two widths, learned positions, elu": (
        "encoder-decoder, two widths, learned positions, elu, norm of queries, sandwich, gate limit",
        "favor",
    ),
    "encoder-decoder: no positions": (
        "encoder-decoder, no positions, norm of queries, sparse blocks",
        "activation gelu",
    ),
    "encoder-decoder: two widths, additive": (
        "encoder-decoder, two widths, token types",
        "additive, wide values, biases of projections",
    ),
    "encoder-decoder: dynamic convolution": (
        "encoder-decoder, learned positions",
        "dynamic convolution, pre",
    ),
    "encoder: elu, fourier": (
        "encoder, token types, word matches, elu, classes",
        "fourier, activation gelu",
    ),
    "encoder: relative sinusoids": (
        "encoder, word matches, relative sinusoids, segment offsets, score cap, scale by layer, shared keys, norm of queries, window, convolution, classes",
        "own distances, pooled classes, activation gelu, scaled residuals, wide values",
    ),
    "encoder: patches": (
        "encoder, shared blocks, patches, rotary, rotary by length, rotary pattern, local theta, sinks, score cap, norm of heads, sparse blocks, reversible",
        "stem, mean of classes, activation quick-gelu, dynamic scaling",
    ),
    "encoder: rotary": (
        "encoder, narrow embeddings, token types, word matches, rotary, rotary by length, rotary pattern, local theta, latent, window, window pattern, global tokens, rms, gated, gate limit, experts, convolution, untied, classes",
        "softmax of experts, final norms, unscaled embeddings, rounded scale",
    ),
    "encoder: relative sinusoids, segment offsets": (
        "encoder, shared blocks, narrow embeddings, token types, relative sinusoids, segment offsets, two streams, sinks, shared keys, norm of heads, window pattern, global tokens, sandwich, rms, gated, gate limit, experts, untied",
        "exit, own distances, segments after a separator, softmax of experts",
    ),
    "encoder: no positions": (
        "encoder, narrow embeddings, token types, word matches, no positions, scale by layer, window, window pattern, global tokens, global projections, rms, reversible, gated, gate limit, untied, classes",
        "global answer, pooled classes, activation gelu-tanh, biases of projections",
    ),
    "encoder: disentangled": (
        "encoder, narrow embeddings, token types, word matches, disentangled, sinks, score cap, scale by layer, norm of queries, sparse blocks, rms, parallel, gated, gate limit, untied, classes",
        "shared distances, one relative score, two parallel norms, learned and relative, wide values",
    ),
    "encoder: patches, learned positions": (
        "encoder, patches, learned positions, low rank, scale by layer, shared keys, norm of queries, rms, reversible, gated, gate limit, untied, classes",
        "axial positions, stem, mean of classes, bias of outputs",
    ),
    "encoder: patches, relative": (
        "encoder, patches, relative, sinks, score cap, scale by layer, norm of queries, window, window pattern, summaries, sandwich, gate limit, experts, untied, classes",
        "exit, norms without bias, scaled residuals, learned and relative",
    ),
    "encoder: patches, no positions": (
        "encoder, patches, no positions, spans, scale by layer, shared keys, norm of heads, rms, parallel, gated, gate limit, untied, classes",
        "two parallel norms, stem, pooled classes, path of images",
    ),
    "encoder: alibi": (
        "encoder, word matches, alibi, sinks, norm of heads, sparse blocks, gate limit, experts, convolution, classes",
        "rounded alibi, repeated first block, final norms, unscaled embeddings, wide values, linear path",
    ),
    "encoder: rotary, low rank": (
        "encoder, shared blocks, narrow embeddings, token types, rotary, rotary pattern, local theta, low rank, norm of heads, sandwich, experts",
        "yarn scaling, activation relu2, rotated neighbours, no first norm",
    ),
    "encoder: no positions, elu": (
        "encoder, token types, no positions, elu, scale by layer, norm of heads, experts, convolution",
        "favor, activation gelu, softmax of experts",
    ),
    "encoder: patches, relative sinusoids": (
        "encoder, patches, relative sinusoids, segment offsets, sparse blocks, parallel",
        "activation tanh, mean of classes",
    ),
    "encoder: two streams": (
        "encoder, two streams, score cap, scale by layer, norm of queries, window, classes",
        "pre, wide values",
    ),
    "encoder: learned positions": (
        "encoder, word matches, learned positions, lsh, scale by layer, convolution",
        "only lsh, axial positions",
    ),
    "encoder: no positions, global tokens": (
        "encoder, word matches, no positions, global tokens, summaries, parallel",
        "",
    ),
    "encoder: patches, lsh": (
        "encoder, patches, lsh, parallel",
        "sinusoids of tensor2tensor",
    ),
    "encoder: relative": (
        "encoder, word matches, relative, sparse blocks, convolution",
        "wide values",
    ),
    "encoder: patches, alibi": (
        "encoder, patches, alibi, reversible",
        "rounded alibi, additive",
    ),
    "encoder: patches, rotary": (
        "encoder, patches, rotary, rotary pattern, local theta, elu, rms, reversible, gated, untied, classes",
        "llama3 scaling, rotated neighbours",
    ),
    "encoder: no positions, low rank": (
        "encoder, no positions, low rank, parallel",
        "wide values",
    ),
    "encoder: disentangled, global tokens": (
        "encoder, disentangled, window, global tokens, experts, convolution",
        "shared distances, one relative score",
    ),
    "encoder: patches, disentangled": (
        "encoder, shared blocks, patches, disentangled, norm of heads, window pattern, sandwich",
        "shared distances, one relative score",
    ),
    "encoder: low rank": (
        "encoder, word matches, low rank, convolution",
        "halves of sinusoids",
    ),
    "encoder: spans": (
        "encoder, shared blocks, word matches, spans, sandwich",
        "sinusoids of tensor2tensor, wide values",
    ),
    "encoder: learned positions, global projections": (
        "encoder, learned positions, global projections, parallel",
        "global answer",
    ),
    "encoder: learned positions, summaries": (
        "encoder, learned positions, score cap, summaries, reversible",
        "wide values",
    ),
    "encoder: global projections": (
        "encoder, global projections, convolution",
        "halves of sinusoids",
    ),
    "encoder: patches, latent": (
        "encoder, patches, latent",
        "yarn scaling, wide queries",
    ),
    "decoder: rotary": (
        "decoder, rotary, rotary by length, rotary pattern, local theta, scale by layer, shared keys, norm of queries, parallel",
        "activation gelu, two parallel norms, dynamic scaling, unscaled embeddings, wide values",
    ),
    "decoder: alibi": (
        "decoder, shared blocks, narrow embeddings, token types, alibi, score cap, shared keys, window, window pattern, rms, parallel, gated, untied",
        "wide heads, norms without weight, rounded alibi, rounded scale",
    ),
    "decoder: elu": (
        "decoder, shared blocks, narrow embeddings, elu, shared keys, parallel",
        "activation relu2, halves of sinusoids, projected tokens, favor, wide values",
    ),
    "decoder: relative": (
        "decoder, shared blocks, relative, parallel",
        "activation gelu-tanh, bias of outputs, wide heads, norms without bias",
    ),
    "decoder: no positions": (
        "decoder, narrow embeddings, token types, no positions, sinks, score cap, scale by layer, norm of heads, recurrence, sandwich, rms, gated, gate limit, untied, classes",
        "no first norm, projected tokens, capped logits, wide heads, wide values",
    ),
    "decoder: learned positions": (
        "decoder, shared blocks, narrow embeddings, token types, learned positions, spans, norm of queries, reversible",
        "activation tanh, rounded scale, segments after a separator, capped logits",
    ),
    "decoder: relative sinusoids": (
        "decoder, shared blocks, relative sinusoids, norm of queries, recurrence",
        "",
    ),
    "decoder: no positions, lsh": (
        "decoder, no positions, lsh, reversible",
        "only lsh",
    ),
    "decoder: shared blocks, dynamic convolution": (
        "decoder, shared blocks, reversible",
        "dynamic convolution",
    ),
    "decoder: compression": (
        "decoder, shared blocks, relative sinusoids, recurrence",
        "compression, wide values",
    ),
    "decoder: pooled compression": (
        "decoder, no positions, recurrence, classes",
        "pooled compression, pre",
    ),
    "decoder: adaptive span": (
        "decoder, rotary, sinks, shared keys, norm of heads",
        "adaptive span, wide values",
    ),
    "decoder: relative, additive": (
        "decoder, relative, shared keys",
        "additive",
    ),
    "decoder: latent": (
        "decoder, latent, experts",
        "linear scaling, wide queries",
    ),
}


def _with_outside() -> Iterator[str]:
    """The names of every part beside which a part from outside is allowed."""
    for own, other in product(OUTSIDE, INSIDE):
        if are_alternatives(own, other):
            continue
        try:
            values_of([other, own])
        except SettingsError:
            continue
        yield f"{other}, {own}"


if OUTSIDE:  # the option --part
    CONFIGS = {names: (names, "") for names in _with_outside()}

# (law, part or variant) -> why the part breaks the law by definition. A law is a file without
# test_, or what its test passes to `cases`.
BREAKS: dict[tuple[str, str], str] = {
    ("cache", "lsh"): "later tokens change how earlier ones are sorted, and so their states",
    ("cache", "rotary by length"): "later tokens change the rotations of earlier ones",
    ("future", "lsh"): "later tokens change how earlier ones are sorted",
    ("future", "rotary by length"): "rotations depend on the length of the text",
    **{
        ("order", part): "an order of tokens is for softmax attention to all tokens"
        for part in (
            *("patches", "elu", "low rank", "spans", "lsh", "convolution", "sparse blocks"),
            *("summaries", "global tokens", "global projections"),
        )
    },
    ("truncation", "lsh"): "a removed token has changed the states of others",
    ("truncation", "elu"): "a sum of keys cannot be divided into them",
    ("truncation", "favor"): "a sum of keys cannot be divided into them",
    ("padding on the left", "sparse blocks"): "blocks consist of columns",
    ("packing", "patches"): "images have one length",
    ("padding", "patches"): "images have one length",
    ("finite differences", "recurrence"): "gradients end at segments",
    ("compile", "experts"): "their shapes depend on values, so blocks.py leaves them out",
    ("compile", "lsh"): "its shapes depend on values, so blocks.py leaves it out",
    **{
        ("flops", part): "the formula counts the keys that are read; plain kernels compute all"
        for part in (
            "window",
            "local theta",
            "window pattern",
            "global tokens",
            "global projections",
            "summaries",
            "sparse blocks",
            "recurrence",
            "spans",
        )
    },
    **{
        (
            "flops",
            part,
        ): "the vectors of distances are projected once per batch, which is not counted"
        for part in ("relative sinusoids", "segment offsets", "two streams", "disentangled")
    },
    **{
        ("states", part): "hook points see segment after segment"
        for part in ("compression", "pooled compression")
    },
    ("flops", "adaptive span"): "plain kernels compute all keys within the largest span",
    ("flops", "fourier"): "the counter counts no transform",
    ("compile", "fourier"): "its shapes depend on values, so blocks.py leaves it out",
    ("flops", "lsh"): "short texts have fewer chunks",
    ("fast bf16", "experts"): "rounding changes which experts a token passes",
    ("fast bf16", "lsh"): "rounding changes how tokens are sorted",
    ("fast int8 training", "experts"): "rounding changes which experts a token passes",
    ("fast int8 training", "lsh"): "rounding changes how tokens are sorted",
}


def parts_of(name: str) -> list[str]:
    """The parts of a config."""
    return CONFIGS[name][0].split(", ")


def variants_of(name: str) -> list[str]:
    """The variants of a config."""
    return [variant for variant in CONFIGS[name][1].split(", ") if variant]


def config_values(name: str) -> Values:
    """The values of a config."""
    more: Values = {}
    for variant in variants_of(name):
        more |= VARIANTS[variant]
    return values_of(parts_of(name), more)


def cases(
    *laws: str,
    shapes: Sequence[str] = SHAPES,
    parts: Sequence[str] = (),
    every: int = 1,
    alone: bool = False,
    fast_alone: bool = False,
) -> pytest.MarkDecorator:
    """The configs of these shapes, and with one of these parts, as cases of a test, except those
    with a part that breaks one of the laws. every: only every so many. alone: few, which together
    have every part and every variant, and not every pair.

    fast_alone: all with the plain operations, and few with the fast ones, which test_fast.py
    compares with the plain ones for every pair.
    """
    names = [
        name
        for name in CONFIGS
        if not any(breaks(law, name) for law in laws)
        and shape_of(name) in shapes
        and (not parts or {*parts} & {*parts_of(name)})
    ]
    if alone:
        names = _with_every_part(names)
    if fast_alone:
        both = [("plain", name) for name in names]
        both += [("fast", name) for name in _with_every_part(names)]
        return pytest.mark.parametrize(("operations", "name"), both, indirect=["operations"])
    return pytest.mark.parametrize("name", names[::every])


def _with_every_part(names: Sequence[str]) -> list[str]:
    """Of these configs, one after the other the one with most parts and variants that no earlier
    one has.
    """
    has = {name: {*parts_of(name), *variants_of(name)} for name in names}
    missing = set[str]().union(*has.values())
    chosen = list[str]()
    while missing:
        chosen.append(max(names, key=lambda name: len(has[name] & missing)))
        missing -= has[chosen[-1]]
    return chosen


def shape_of(name: str) -> str:
    """The shape of a config, which nearly all name; so a case of a variant that a package does not
    have is an error only if it runs.
    """
    named = [part for part in parts_of(name) if part in SHAPES]
    return named[0] if named else config_of(name).shape


def breaks(law: str, name: str) -> bool:
    """Whether a part of the config breaks the law."""
    return any((law, each) in BREAKS for each in (*parts_of(name), *variants_of(name)))


@cache
def config_of(name: str) -> ModelConfig:
    """The config."""
    return ModelConfig.parse(config_values(name))
