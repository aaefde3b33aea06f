"""Consistency checks of a config. Each problem states what to change.

A problem is a text, or a Conflict: settings that exclude each other, with the values that resolve
it. A choice excludes settings that have no meaning or no implementation with it; where two choices
exclude each other, either can be changed. The shape and the heads belong to the task, and sizes
without a known value to the user; no conflict changes them.

Parts state what they need and exclude (`Part.needs`, `Part.excludes`, `Part.conflicts`); the checks
of the core are here.
"""

from __future__ import annotations

from itertools import chain

from trifold.nn.config import DECODER_SIZES, CoreConfig
from trifold.nn.parts import BlockPart, Part, part_of
from trifold.nn.problems import Problems, default_of, excluded, is_set, unmet
from trifold.nn.registry import registered
from trifold.settings import Conflict


def first_problem(config: CoreConfig) -> ValueError | None:
    """The first inconsistency, or None."""
    checks = (_options, _unused_keys, _sizes, _layers, _parts, _positions, _heads)
    problems = (problem for check in checks for problem in check(config))
    problem = next(chain(problems, _of_decoder(config)), None)
    if isinstance(problem, str):
        return ValueError(problem)
    return problem


# --- parts ----------------------------------------------------------------------------------------


def _options(config: CoreConfig) -> Problems:
    """Settings of parts from outside, which must be known to a part that is used."""
    used = [part for part in registered() if part.settings is not None and part.used(config)]
    for part in used:
        part.options(config)
    known = {part.value or part.key for part in used}
    for name in config.options.keys() - known:
        yield f"options.{name}: no part of that name takes settings; remove it"


def _unused_keys(config: CoreConfig) -> Problems:
    """Settings without their part."""
    for key, owners in _owners(config).items():
        if is_set(config, key) and not any(part.used(config) for part in owners):
            yield Conflict(_needed(config, key, owners), {key: default_of(config, key)})
    for key in _DECODER_KEYS:
        yield from unmet(config, key, "shape", "encoder-decoder")


def _needed(config: CoreConfig, key: str, owners: list[Part]) -> str:
    choice = owners[0].key
    values = " or ".join(part.value for part in owners)
    if not values:
        return f"{key} needs {choice}"
    return f"{key} needs {choice}: {values}, not {getattr(config, choice)}"


def _owners(config: CoreConfig) -> dict[str, list[Part]]:
    """The parts with which a setting has a meaning."""
    owners = dict[str, list[Part]]()
    for part in registered():
        for key in part.keys.split():
            owners.setdefault(key, []).append(part)
    return owners


# Settings of the decoder of an encoder-decoder. n_decoder_layers is not among them: it also counts
# the layers of a decoder alone.
_DECODER_KEYS = (
    "target_vocab_size",
    "d_decoder",
    "n_decoder_heads",
    "n_decoder_kv_heads",
    "d_decoder_head",
    "d_decoder_ff",
    "decoder_window",
    "max_decoder_positions",
    "starts_with_last",
)
# Sizes of the encoder -> those of the decoder.
_OF_DECODER = {size: decoder_size for decoder_size, size in DECODER_SIZES.items()}


def _parts(config: CoreConfig) -> Problems:
    """What the parts need and exclude."""
    used = [part for part in registered() if part.used(config)]
    yield from chain.from_iterable(_unmet_needs(config, part) for part in used)
    yield from chain.from_iterable(_of_part(config, part) for part in used)


def _unmet_needs(config: CoreConfig, part: Part) -> Problems:
    for key, values in part.needs.items():
        yield from unmet(config, part.label(config), key, *values, own=part.key)


def _of_part(config: CoreConfig, part: Part) -> Problems:
    label = part.label(config)
    yield from part.problems(config)
    yield from excluded(config, label, part.conflicts, own=part.key)
    yield from excluded(config, label, part.excludes)


def _of_decoder(config: CoreConfig) -> Problems:
    """The problems of sizes that the decoder may have too, with the keys of its own ones."""
    side = config.decoder_side
    used = (part for part in registered() if part.has_sizes and part.used(side))
    problems = chain.from_iterable(_of_part(side, part) for part in used)
    for problem in chain(problems, _positions(side)):
        if isinstance(problem, Conflict):
            ways = {_OF_DECODER.get(key, key): value for key, value in problem.ways.items()}
            yield Conflict(f"decoder: {problem.text}", ways)
        else:
            yield f"decoder: {problem}"


# --- the core -------------------------------------------------------------------------------------


def _sizes(config: CoreConfig) -> Problems:
    keys = ("n_heads", "n_kv_heads", "d_model")
    yield from _head_sizes(config, *keys)
    yield from _head_sizes(config.decoder_side, *(_decoder_key(config, key) for key in keys))
    shares = config.target_vocab_size is None and config.d_embedding is None
    if shares and config.d_decoder not in (None, config.d_model):
        yield (
            "d_decoder: stacks of two widths share no embeddings: set target_vocab_size, or "
            "d_embedding"
        )


def _head_sizes(config: CoreConfig, heads: str, kv_heads: str, width: str) -> Problems:
    """Problems of the sizes of a stack; heads, kv_heads, width: the keys that give them."""
    if config.d_head is None and config.d_model % config.n_heads:
        divisors = (n for n in range(1, min(config.d_model, 64) + 1) if config.d_model % n == 0)
        yield (
            f"{heads} {config.n_heads} does not divide {width} {config.d_model}: "
            f"choose one of {', '.join(map(str, divisors))}, or set d_head"
        )
    if config.n_kv_heads is not None and config.n_heads % config.n_kv_heads:
        yield f"{kv_heads} {config.n_kv_heads} does not divide {heads} {config.n_heads}"


def _decoder_key(config: CoreConfig, key: str) -> str:
    """The key that gives a size of the decoder: its own, if it is set."""
    decoder_key = _OF_DECODER[key]
    return decoder_key if getattr(config, decoder_key) else key


def _layers(config: CoreConfig) -> Problems:
    yield from _shared_blocks(config)
    if not config.first_norm and config.norm_placement != "pre":
        text = f"first_norm: false needs norm_placement: pre, not {config.norm_placement}"
        yield Conflict(text, {"first_norm": True})
    if config.norm_weight != "plain" and config.norm != "rms":
        text = f"norm_weight: {config.norm_weight} needs norm: rms, not {config.norm}"
        yield Conflict(text, {"norm_weight": "plain"})
    if config.gate_limit is not None and not config.gated:
        yield Conflict("gate_limit needs gated: true", {"gate_limit": None})


def _shared_blocks(config: CoreConfig) -> Problems:
    blocks = config.block_of_layer
    if blocks is None:
        return
    if {len(blocks)} != {config.encoder_layers, config.decoder_layers} - {0}:
        yield (
            f"block_of_layer has {len(blocks)} entries: give one for each of the n_layers layers"
        )
    if set(blocks) != set(range(max(blocks, default=0) + 1)):
        yield f"block_of_layer {blocks} skips a block: use each of 0, 1, … up to the largest"
    if config.attention_scale_by_layer:
        text = (
            "block_of_layer and attention_scale_by_layer exclude each other: a shared "
            "block has no single layer"
        )
        yield Conflict(text, {"attention_scale_by_layer": False, "block_of_layer": None})


def _positions(config: CoreConfig) -> Problems:
    has_table = config.positions.startswith(("sinusoidal", "learned")) or config.learned_positions
    if config.position_offset and not has_table:
        text = f"position_offset needs positions: learned or sinusoidal, not {config.positions}"
        yield Conflict(text, {"position_offset": 0})
    width = config.sum_width
    if config.positions.startswith("sinusoidal") and width % 2:
        name = "d_model" if width == config.d_model else "d_embedding"
        yield f"sinusoidal positions need an even {name}, not {width}"


def _heads(config: CoreConfig) -> Problems:
    heads = config.chosen_heads
    if len(set(heads)) < len(heads):
        yield f"heads {heads} has duplicates"
    if "next-sentence" in heads and "pooler" not in heads:
        yield "the head next-sentence reads the pooler's vector: add pooler to heads"
    if "boundary" in heads and "lm" not in heads:
        yield "the head boundary uses the table of the head lm: add lm to heads"
    yield from _classifiers(config)
    yield from _span_head(config)
    yield from _output_projection(config)


def _classifiers(config: CoreConfig) -> Problems:
    heads = config.chosen_heads
    classifies = "sequence" in heads or "choice" in heads
    if classifies and config.classifier_input == "pooler" and "pooler" not in heads:
        yield "classifier_input: pooler needs pooler in heads"
    names = config.label_names
    if names is not None and len(names) != config.n_labels:
        yield f"label_names gives {len(names)} names to n_labels {config.n_labels} classes"
    if config.transform_norm and not (config.classifier_transform or config.token_transform):
        text = "transform_norm needs classifier_transform or token_transform"
        yield Conflict(text, {"transform_norm": False})


def _span_head(config: CoreConfig) -> Problems:
    if not config.span_layer:
        return
    if "span" not in config.chosen_heads:
        yield Conflict("span_layer needs span in heads", {"span_layer": False})
    yield from unmet(config, "span_layer", "residual", "sequential")
    yield from excluded(config, "span_layer", "token_projection")


def _output_projection(config: CoreConfig) -> Problems:
    has_lm = "lm" in config.chosen_heads
    if config.lm_head_transform is not None and not has_lm:
        yield Conflict("lm_head_transform needs lm in heads", {"lm_head_transform": None})
    is_plain = has_lm and config.tie_lm_head and config.lm_head_transform is None
    table = config.output_side.embedding_width
    states = config.output_side.state_width
    if is_plain and table != states:
        widened = config.output_side.d_embedding is None
        cause = part_of(BlockPart, config).label(config) if widened else f"d_embedding: {table}"
        text = (
            f"{cause} excludes tie_lm_head: a tied head of width {table} (the embeddings) cannot "
            f"read states of width {states}"
        )
        remedy = "set lm_head_transform, or tie_lm_head: false"
        yield Conflict(text, {"tie_lm_head": False}, remedy)
    if config.token_projection and (config.d_embedding is None or config.shape != "decoder"):
        yield (
            "token_projection needs d_embedding, the width of tokens and of projected states, "
            "and shape: decoder"
        )
