"""What a model costs: parameters by formula, arithmetic per token, and memory for inference.

`LETTERS` explains those of the formulas. A product of (m, k) and (k, n) takes 2·m·k·n
floating-point operations; nothing else is counted. For one token

    a matrix with N elements   2·N
    attention to S keys        2·(2·S·H·D): the scores q·k, and the weighted sum of v
                                                                   (Kaplan et al. 2020, table 1)
    backward                   twice the forward: each product has two gradients
                                                                 (Kaplan et al. 2020, section 2.1)

S counts every key of the batch's width, because the kernels compute masked keys too; with windows,
segments and sparse blocks it counts the keys that a query may read. Look-ups, norms, softmax and
dropout are not counted: they cost memory traffic, not products.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, get_args

import torch

from trifold.memory import require_memory
from trifold.nn import formulas
from trifold.nn.config import Sinusoids
from trifold.nn.formulas import FormulaRow, evaluate, feed_forward, norm
from trifold.nn.parts import (
    AttentionPart,
    BlockPart,
    EmbeddingsPart,
    FeedForwardPart,
    LogitsPart,
    PositionsPart,
    ScoresPart,
    cross_attention,
    part_of,
    rules_of,
)
from trifold.nn.variants import ModelConfig

SINUSOIDAL: tuple[str, ...] = get_args(Sinusoids)
# Of formulas. R, Q, Z and Y are those of latent attention, X, J and K those of experts.
LETTERS = {
    "V": "vocabulary",
    "E": "width (d_model)",
    "F": "feed-forward width",
    "H": "heads",
    "G": "key/value heads",
    "D": "head size",
    "L": "blocks",
    "P": "positions",
    "W": "embedding width",
    "C": "classes",
    "N": "columns of the linear path",
    "n": "columns of n-grams",
    "X": "experts",
    "J": "width of an expert",
    "K": "shared experts",
    "R": "width of latent keys and values",
    "Q": "width of latent queries",
    "Z": "rotated dimensions",
    "Y": "width of a value",
    "U": "width that cross-attention reads",
    "b": "buckets of distances",
}
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}


def legend(formulas: Iterable[str]) -> str:
    """The meaning of the letters of some formulas."""
    used = set(re.findall(r"\b\w\b", " ".join(formulas)))
    return ", ".join(f"{letter} {meaning}" for letter, meaning in LETTERS.items() if letter in used)


# --- parameters -----------------------------------------------------------------------------------


class ParameterRow(NamedTuple):
    """A row of the table: name, formula, number of parameters."""

    name: str
    formula: str
    parameters: int


def parameter_table(config: ModelConfig) -> list[ParameterRow]:
    """Everything that has parameters; shared parameters count once."""
    stacks = (_stack(side, sized, config.d_model) for side, sized in config.stacks.items())
    rows = chain(_embeddings(config), *stacks, _heads(config.output_side))
    return [row for row in rows if row.parameters]


def count_parameters(config: ModelConfig) -> int:
    """The number of parameters of the model; allocates nothing."""
    return sum(row.parameters for row in parameter_table(config))


def position_table(config: ModelConfig) -> int:
    """Elements of the table of sinusoidal positions, which is computed and not stored; 0 for other
    positions.
    """
    if config.positions not in SINUSOIDAL:
        return 0
    return config.max_positions * config.sum_width


def _row(config: ModelConfig, name: str, formula: str, **letters: int) -> ParameterRow:
    """A row with the value of its formula; `letters` are added to those of the config."""
    return ParameterRow(name, formula, evaluate(config, formula, letters))


def _rows(config: ModelConfig, rows: Iterator[FormulaRow]) -> Iterator[ParameterRow]:
    """The rows of a part."""
    for row in rows:
        yield _row(config, row.name, row.formula, **row.letters)


def _embeddings(config: ModelConfig) -> Iterator[ParameterRow]:
    embeddings = part_of(EmbeddingsPart, config)
    positions = part_of(PositionsPart, config)
    for table in embeddings.parameters(config):
        # The target's embeddings have the widths of the decoder.
        widths = config.decoder_side if table.name.startswith("target") else config
        yield from _rows(widths, iter([table]))
    projection = "2·W·E" if config.token_projection else "W·E + E"  # of states too
    for side, sized in config.stacks.items():
        letter = "E" if sized.sum_width == sized.d_model else "W"
        yield from _rows(sized, positions.parameters(sized, side))
        yield _row(sized, f"{side} token types", f"{config.n_token_types}·{letter}")
        yield from _rows(sized, embeddings.side_parameters(sized, side))
        if config.embedding_norm:
            yield _row(sized, f"{side} embedding norm", norm(config, letter))
        if config.has_embedding_projection:
            yield _row(sized, f"{side} embedding projection", projection)


def _stack(side: str, config: ModelConfig, memory_width: int) -> Iterator[ParameterRow]:
    """The blocks of a stack, with its sizes in the config; memory_width: of the states that
    cross-attention reads.
    """
    blocks = max(config.block_of_layer or (config.n_layers - 1,)) + 1
    crosses = side == "decoder" and config.shape == "encoder-decoder"
    block = part_of(BlockPart, config)
    yield from _rows(config, part_of(ScoresPart, config).parameters(config, side, blocks))
    attention = part_of(AttentionPart, config).parameters(config, side, blocks)
    yield from _rows(config, iter([attention]))
    if crosses:
        yield from _rows(config, block.cross_parameters(config, memory_width, blocks))
    yield from _rows(config, part_of(FeedForwardPart, config).parameters(config, side, blocks))
    yield from _rows(config, block.parameters(config, side))
    yield _row(config, f"{side} norms", _norms(config, side, crosses=crosses), L=blocks)


def _norms(config: ModelConfig, side: str, *, crosses: bool) -> str:
    """The norms of the blocks of a stack, and its last one."""
    block = part_of(BlockPart, config)
    one_norm = norm(config, "E")
    formula = f"L·{block.norms(config, crosses=crosses)}·{one_norm}"
    if not config.first_norm:
        formula += f" - {one_norm}"
    if config.has_final_norm("decoder" if side == "decoder" else "encoder"):
        formula += f" + {norm(config, formulas.times(block.streams, 'E'))}"
    return formula


def _heads(config: ModelConfig) -> list[ParameterRow]:
    """The heads of a model. E is the width of the states, and of what a classifier reads."""
    row = partial(_row, config, E=config.state_width)
    pooled = config.pooled_width
    vocabulary = config.output_vocab_size
    pooler = "E·E + E" if pooled == config.state_width else "E·W + W"
    classifier, width = _classifier(config)
    # p positions of width q; from the states at both boundaries and a position to the width W; the
    # bias.
    boundary = f"p·q + (2·E + q)·W + W + W·W + W + 2·{norm(config, 'W')} + V"
    letters = {"p": config.boundary_positions, "q": config.boundary_width, "W": config.output_width}
    rows = {
        "lm": row("language-model head", _lm_head(config), V=vocabulary),
        "pooler": row("pooler", pooler, W=pooled),
        "next-sentence": row("next-sentence head", "2·E + 2", E=pooled),
        "sequence": row("sequence head", classifier, E=width),
        "choice": row("choice head", classifier, E=width, C=1),
        "token": row("token head", _token_head(config)),
        "span": row("span head", _span_head(config)),
        "replaced": row("replaced head", _sum([*_dense_layer(config), "E", "1"])),
        "boundary": row("boundary head", boundary, V=vocabulary, **letters),
    }
    of_heads = [rows[head] for head in rows if head in config.chosen_heads]
    return [*of_heads, *_rows(config, part_of(LogitsPart, config).parameters(config))]


def _sum(terms: Sequence[str]) -> str:
    return " + ".join(terms)


def _dense_layer(config: ModelConfig) -> list[str]:
    """The dense layer before an output: its matrix, and its bias and norm, if it has them."""
    terms = ["E·E"]
    if config.transform_bias:
        terms.append("E")
    if config.transform_norm:
        terms.append(norm(config, "E"))
    return terms


def _classifier(config: ModelConfig) -> tuple[str, int]:
    """The classifier of a text, and the width E that it reads."""
    width = config.state_width
    if config.classifier_input == "pooler":
        width = config.pooled_width
    terms: list[str] = []
    if config.classifier_transform:
        terms += _dense_layer(config)
        if config.d_model < width == config.stream_width:  # the layer joins both streams
            terms = ["E·E", *terms]
            width = config.d_model
    terms.append("C·E")
    if config.classifier_bias:
        terms.append("C")
    return _sum(terms), width


def _token_head(config: ModelConfig) -> str:
    """The classifier of tokens."""
    terms = _dense_layer(config) if config.token_transform else []
    return _sum([*terms, "C·E", "C"])


def _span_head(config: ModelConfig) -> str:
    """The logits of starts and ends, after a feed-forward layer with its norms if it has one."""
    terms: list[str] = []
    if config.span_layer:
        norms = "2·" if config.norm_placement == "sandwich" else ""
        terms += [feed_forward(config), f"{norms}{norm(config, 'E')}"]
    if config.token_transform:
        terms += _dense_layer(config)
    return _sum([*terms, "2·E", "2"])


def _lm_head(config: ModelConfig) -> str:
    """The transform, the matrix if it is not tied, and the bias."""
    letter = "W" if config.embedding_width != config.state_width else "E"
    terms: list[str] = []
    if config.lm_head_transform:
        terms.append(f"E·{letter}")
        if config.transform_bias:
            terms.append(letter)
        terms.append(norm(config, letter))
    if not config.tie_lm_head:
        terms.append(f"V·{letter}" if config.lm_head_transform else "V·E")
    if config.lm_head_bias:
        terms.append("V")
    return _sum(terms) or "0"


# --- arithmetic and memory ------------------------------------------------------------------------


class Flops(NamedTuple):
    """Floating-point operations of a forward pass, per source token and per target token."""

    source: int
    target: int

    @property
    def training(self) -> "Flops":
        """Forward and backward: three times the forward."""
        return Flops(3 * self.source, 3 * self.target)


class InferenceMemory(NamedTuple):
    """Bytes of the weights, and of the keys and values cached for each token and beam."""

    weights: int
    cache_per_source_token: int
    cache_per_target_token: int


def forward_flops(config: ModelConfig, source_length: int, target_length: int) -> Flops:
    """FLOPs per source token (encoder, and its keys and values in cross-attention) and per target
    token.

    Sequences have `source_length` and `target_length` tokens. A model with one stack has only the
    tokens of that side.
    """
    lengths = {"encoder": source_length, "decoder": target_length}
    elements = dict.fromkeys(lengths, 0) | {
        side: _layer_elements(sized, lengths[side], side)
        + part_of(EmbeddingsPart, sized).elements(sized)
        for side, sized in config.stacks.items()
    }
    if config.shape == "encoder-decoder":
        sized = config.decoder_side
        block = part_of(BlockPart, sized)
        per_source, per_target = block.cross_elements(sized, config.d_model, source_length)
        elements["encoder"] += per_source
        elements["decoder"] += per_target
    side_of_head = "decoder" if config.decoder_layers else "encoder"
    elements[side_of_head] += _head_elements(config.output_side)
    return Flops(2 * elements["encoder"], 2 * elements["decoder"])


def attention_matrices(config: ModelConfig) -> int:
    """Elements of the projections of one attention that every token passes."""
    return part_of(AttentionPart, config).matrices(config)


def feed_forward_elements(config: ModelConfig, layer: int) -> int:
    """Elements of the matrices that a token passes in the network of a layer."""
    return part_of(FeedForwardPart, config).elements(config, layer)


def keys_read(config: ModelConfig, layer: int, keys: int, side: str) -> int:
    """How many of the keys a query may read in self-attention, without single global tokens."""
    rules = rules_of(config)
    near = min((rule.keys_read(config, layer, keys, side) for rule in rules), default=keys)
    keys_of_part = part_of(AttentionPart, config).keys_read(config, layer, keys, near, side)
    return keys_of_part + sum(rule.keys_added(config, keys) for rule in rules)


def _layer_elements(config: ModelConfig, keys: int, side: str) -> int:
    """Elements of the matrices that a token passes in all layers of a stack, without
    cross-attention.
    """
    attention = part_of(AttentionPart, config)
    layers = range(config.n_layers)
    keys_of_layer = [keys_read(config, layer, keys, side) for layer in layers]
    matrices = sum(feed_forward_elements(config, layer) for layer in layers)
    matrices += config.n_layers * attention.matrices(config)
    matrices += part_of(BlockPart, config).elements(config)
    scores = attention.score_elements(config, side, keys, keys_of_layer)
    return matrices * attention.rows(config, keys) // keys + scores


def _head_elements(config: ModelConfig) -> int:
    """Elements that a token passes in the language-model head or the layer of spans; other heads
    are negligible.
    """
    if "lm" not in config.chosen_heads:
        if not config.span_layer:
            return 0
        n_matrices = 3 if config.gated else 2
        return n_matrices * config.d_model * config.d_ff
    if config.lm_head_transform:
        return config.embedding_width * (config.state_width + config.output_vocab_size)
    return config.state_width * config.output_vocab_size


def cached_elements(config: ModelConfig, tokens: int = 1) -> int:
    """Elements that the cache of the decoder stores for a row of `tokens` tokens; windows limit
    them.
    """
    if not config.decoder_layers:
        return 0
    sized = config.decoder_side
    stored = part_of(AttentionPart, sized).cached_elements(sized, tokens)
    return stored + part_of(ScoresPart, sized).cached_elements(sized, tokens)


def inference_memory(config: ModelConfig, precision: str = "float32") -> InferenceMemory:
    """Bytes of the weights, and of the cache per token: keys and values, 2·L·G·D elements in the
    decoder.
    """
    side = config.decoder_side
    size = BYTES[precision]
    per_source_token = 0
    if config.shape == "encoder-decoder":
        keys_values = cross_attention(side).cached_per_token(side)
        per_source_token = config.decoder_layers * keys_values
    return InferenceMemory(
        weights=size * count_parameters(config),
        cache_per_source_token=size * per_source_token,
        cache_per_target_token=size * cached_elements(config),
    )


# --- requests -------------------------------------------------------------------------------------

GROWTH = 1.5  # the space of a cache that grows, in units of its content, on average
# Elements of a pair for the mask: its distance, whether it is allowed, what is added to its score.
MASK = 3
SEARCHED = 12  # bytes of a token of an output: its number, and random numbers


class Workload(NamedTuple):
    """What a model computes at once.

    rows: of `source` and `target` tokens; a model with one stack has only the tokens of that side.
    past: tokens in the cache that the target reads too. scored: positions of an output whose logits
    are computed. outputs: those of a row that a search follows, each with a cache for `cached`
    tokens. is_watched: whether all hook points are recorded. has_gradients: whether what the
    backward pass needs is kept.
    """

    rows: int
    source: int
    target: int
    past: int = 0
    scored: int = 0
    outputs: int = 1
    cached: int = 0
    is_watched: bool = False
    has_gradients: bool = False


class RequestMemory(NamedTuple):
    """Peak bytes of a request, besides the weights.

    block: the largest block while it runs, beyond what the cache takes later. recorded: what is
    kept of all blocks.
    """

    block: int
    recorded: int
    logits: int
    cache: int

    @property
    def total(self) -> int:
        """The sum in bytes."""
        return sum(self)


def request_memory(config: ModelConfig, work: Workload, itemsize: int = 4) -> RequestMemory:
    """The memory of a request in numbers of `itemsize` bytes; logits are float32."""
    lengths = {"encoder": work.source, "decoder": work.target}
    blocks: list[int] = []
    recorded = 0
    for side, sized in config.stacks.items():
        memory = 0
        if side == "decoder" and config.shape == "encoder-decoder":
            memory = work.source
        block = lengths[side] * _state_elements(sized, lengths[side], memory)
        block += memory * config.d_model
        block += _pair_elements(sized, side, lengths[side], memory, work)
        blocks.append(work.rows * block)
        recorded += work.rows * _recorded_elements(sized, lengths[side], memory, work)
    outputs = work.rows * work.outputs
    cached = GROWTH * outputs * cached_elements(config, work.cached) if work.cached else 0
    if work.cached and config.shape == "encoder-decoder":
        side_of_cache = config.decoder_side
        keys_values = cross_attention(side_of_cache).cached_per_token(side_of_cache)
        cached += work.rows * work.source * config.decoder_layers * keys_values
    # Those of the model; of a trace also their probabilities; of a search also a copy.
    copies = 1 + work.is_watched + 2 * bool(work.cached)
    scores = copies * outputs * work.scored * _outputs_of_head(config)
    # The blocks read all tokens before the cache has a copy for each output.
    block = max(0, max(blocks) - round(cached * (1 - 1 / work.outputs)))
    return RequestMemory(
        block=itemsize * block,
        recorded=itemsize * recorded,
        logits=BYTES["float32"] * scores,
        cache=round(itemsize * cached) + SEARCHED * outputs * work.cached,
    )


def _outputs_of_head(config: ModelConfig) -> int:
    """The logits of a position."""
    return config.output_vocab_size if "lm" in config.chosen_heads else config.n_labels


def _state_elements(config: ModelConfig, tokens: int, memory: int) -> int:
    """Elements of the states of a token while a block runs: its input, its output, what the larger
    of its sub-layers computes, and what the allocator does not return at once.
    """
    width, more = part_of(FeedForwardPart, config).saved(config)
    feed_forward = (3 + config.gated) * width + more * config.d_model // 2  # half is freed before
    widths = config.head_width + config.value_width
    vectors = (2 * config.n_heads + config.kv_heads) * widths
    streams = part_of(BlockPart, config).streams
    per_state = (4 + streams) * config.d_model + max(feed_forward, vectors)
    return per_state * part_of(AttentionPart, config).rows(config, tokens) // max(tokens, 1)


def _pair_elements(config: ModelConfig, side: str, tokens: int, memory: int, work: Workload) -> int:
    """Elements for pairs of queries and keys of a row while a block runs: scores, their offsets and
    masks.
    """
    attention = part_of(AttentionPart, config)
    keys = tokens + work.past
    mask = MASK if rules_of(config) else int(side == "decoder" and not memory and work.rows > 1)
    per_query = []
    for layer in range(config.n_layers):
        near = keys_read(config, layer, keys, side)
        if work.is_watched or 2 * near >= keys:  # otherwise blocks of queries are computed
            near = keys
        scores = attention.held_scores(config, near)
        if work.is_watched:
            scores = max(scores, config.n_heads * attention.recorded_keys(config, keys))
        offsets = part_of(ScoresPart, config).held_offsets(config, near, keys)
        per_query.append(scores + offsets + mask * near)
    if memory:
        scores = cross_attention(config).held_scores(config, memory)
        per_query.append(max(scores, config.n_heads * memory * work.is_watched))
    return tokens * max(per_query)


def _recorded_elements(config: ModelConfig, tokens: int, memory: int, work: Workload) -> int:
    """Elements of a row that hook points or a backward pass keep of all layers."""
    if not work.is_watched and not work.has_gradients:
        return 0
    attention = part_of(AttentionPart, config)
    width, _ = part_of(FeedForwardPart, config).saved(config)
    widths = config.head_width + config.value_width
    queries = config.n_heads * widths  # and the weighted sums
    keys = config.kv_heads * widths  # and the values
    streams = part_of(BlockPart, config).streams
    per_token = config.d_model * (2 + streams) + width + queries + keys
    per_layer = attention.rows(config, tokens) * per_token
    pairs = tokens * attention.recorded_keys(config, tokens)
    if memory:
        per_layer += tokens * (config.d_model + queries) + memory * keys
        pairs += tokens * memory
    if work.is_watched:
        per_layer += 2 * config.n_heads * pairs
    copies = work.is_watched + work.has_gradients
    return copies * (config.n_layers * per_layer + tokens * config.d_model)


def states_of_layers(config: ModelConfig, rows: int, source: int, target: int) -> int:
    """Elements of the embeddings and of the states after each layer, of `rows` inputs."""
    lengths = {"encoder": source, "decoder": target}
    return rows * sum(
        lengths[side] * (sized.n_layers + 1) * sized.d_model
        for side, sized in config.stacks.items()
    )


def check_request(model: Any, work: Workload, what: str, remedy: str, *, returned: int = 0) -> None:
    """Raise NotEnoughMemoryError, naming the request and the remedy, if a model needs more memory
    for it than is available on its device. returned: elements that the caller gets besides logits.
    """
    weight: torch.Tensor = next(model.parameters())
    itemsize = weight.dtype.itemsize if weight.is_floating_point() else BYTES["float32"]
    need = request_memory(model.config, work, itemsize).total + itemsize * returned
    require_memory(need, weight.device, what, remedy)
