"""What a model costs: parameters by formula, arithmetic per token, and memory for training and inference.

Letters of the formulas: V vocabulary, E width (d_model), F feed-forward width, H heads, G key/value heads, D head size,
L blocks, P positions; W embedding width where it differs, C classes.

A product of (m, k) and (k, n) takes 2·m·k·n floating-point operations; nothing else is counted. For one token

    a matrix with P elements   2·P
    attention to S keys        2·(2·S·H·D): the scores q·k, and the weighted sum of v     (Kaplan et al. 2020, table 1)
    backward                   twice the forward: each product has two gradients      (Kaplan et al. 2020, section 2.1)

S counts every key of the batch's width, because the kernels compute masked keys too. Look-ups, norms, softmax and
dropout are not counted: they cost memory traffic, not products.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from trifold.nn.config import ModelConfig
from trifold.train import memory_estimate
from trifold.train.memory_estimate import BYTES, TrainingMemory

# --- parameters ------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """A row of the table: name, formula, number of parameters."""

    name: str
    formula: str
    parameters: int


def parameter_table(config: ModelConfig) -> list[Part]:
    """Every part with parameters; shared parameters count once."""
    return [part for part in _parts(config) if part.parameters]


def count_parameters(config: ModelConfig) -> int:
    """The number of parameters of the model; allocates nothing."""
    return sum(part.parameters for part in _parts(config))


def attention_matrices(config: ModelConfig) -> int:
    """Elements of the four projections of one attention: E·H·D for q and o, E·G·D for k and v."""
    return 2 * config.d_model * config.head_width * (config.n_heads + config.kv_heads)


def feed_forward_matrices(config: ModelConfig) -> int:
    """Elements of the matrices of one feed-forward: two of E·F, or three where it is gated."""
    return (3 if config.gated else 2) * config.d_model * config.d_ff


def _parts(config: ModelConfig) -> Iterator[Part]:
    yield from _embeddings(config)
    for side, sized in config.stacks.items():
        blocks = max(config.block_of_layer or (sized.n_layers - 1,)) + 1
        crosses = side == "decoder" and config.shape == "encoder-decoder"
        if config.positions == "relative":
            yield Part(f"{side} relative offsets", "b·H", config.relative_buckets * sized.n_heads)
        if config.positions == "relative-sinusoidal":
            yield Part(f"{side} relative scores", *_relative_scores(sized, blocks))
        yield Part(f"{side} self-attention", *_attention(sized, blocks))
        if crosses:
            yield Part("decoder cross-attention", *_attention(sized, blocks))
        yield Part(f"{side} feed-forward", *_feed_forward(sized, blocks))
        yield Part(f"{side} norms", *_norms(sized, blocks, 3 if crosses else 2, closes=_closes(config, side)))
    yield from _heads(config)


def _closes(config: ModelConfig, side: str) -> bool:
    return config.has_final_norm("encoder" if side == "encoder" else "decoder")


def _norm(config: ModelConfig) -> int:
    """The number of vectors of a norm: a weight, and the bias of a layer norm."""
    return 2 if config.norm == "layer" and config.norm_bias else 1


def _times(vectors: int, letter: str) -> str:
    return letter if vectors == 1 else f"{vectors}·{letter}"


def _embeddings(config: ModelConfig) -> Iterator[Part]:
    width, letter = config.embedding_width, "W" if config.has_embedding_projection else "E"
    if config.patch_size is not None:
        pixels = config.n_channels * config.patch_size[0] * config.patch_size[1]
        yield Part("patches", "pixels·E + E", (pixels + 1) * config.d_model)
        yield Part("class token", "E", config.d_model)
    elif config.target_vocab_size is None:
        yield Part("embeddings", f"V·{letter}", config.vocab_size * width)
    else:
        yield Part("source embeddings", f"V·{letter}", config.vocab_size * width)
        yield Part("target embeddings", f"V·{letter}", config.target_vocab_size * width)
    for side in config.stacks:
        if config.positions == "learned":
            rows = config.max_positions + config.position_offset
            places = f"(P+{config.position_offset})" if config.position_offset else "P"
            yield Part(f"{side} positions", f"{places}·{letter}", rows * width)
        kinds = config.n_token_types
        yield Part(f"{side} token types", f"{kinds}·{letter}", kinds * width)
        if config.query_stream:
            yield Part(f"{side} query stream", "E", config.d_model)
        if config.embedding_norm:
            yield Part(f"{side} embedding norm", _times(_norm(config), letter), _norm(config) * width)
        if config.has_embedding_projection:
            yield Part(f"{side} embedding projection", "W·E + E", (width + 1) * config.d_model)


def _attention(config: ModelConfig, blocks: int) -> tuple[str, int]:
    grouped = config.kv_heads != config.n_heads
    formula, biases = "2·E·D·(H+G)" if grouped else "4·E·H·D", 0
    terms = [formula]
    if config.attention_bias:
        terms.append(f"D·{'(H+2G)' if grouped else '3H'}")
        biases += config.head_width * (config.n_heads + 2 * config.kv_heads)
    if config.out_bias:
        terms.append("E")
        biases += config.d_model
    formula = f"({' + '.join(terms)})" if len(terms) > 1 else formula
    return f"L·{formula}", blocks * (attention_matrices(config) + biases)


def _relative_scores(config: ModelConfig, blocks: int) -> tuple[str, int]:
    """A matrix for the distance encodings, a vector each for content and distance; three for segments."""
    vectors, inner = 5 if config.segment_offsets else 2, config.n_heads * config.head_width
    return f"L·(E·H·D + {vectors}·H·D)", blocks * (config.d_model + vectors) * inner


def _feed_forward(config: ModelConfig, blocks: int) -> tuple[str, int]:
    inner = 2 if config.gated else 1  # layers into the inner width
    biases = inner * config.d_ff + config.d_model if config.feed_forward_bias else 0
    formula = f"{inner + 1}·E·F"
    formula = f"L·({formula} + {_times(inner, 'F')} + E)" if biases else f"L·{formula}"
    return formula, blocks * (feed_forward_matrices(config) + biases)


def _norms(config: ModelConfig, blocks: int, sublayers: int, *, closes: bool) -> tuple[str, int]:
    """The norms of the sub-layers, and the norm at the end of the stack if it has one."""
    each = {
        "sequential": sublayers * (2 if config.norm_placement == "sandwich" else 1),
        "parallel": 1,
        "parallel-two-norms": 2,
    }[config.residual]
    vectors = _times(_norm(config), "E")
    formula = f"L·{each}·{vectors}{f' + {vectors}' if closes else ''}"
    return formula, (blocks * each + closes) * _norm(config) * config.d_model


def _heads(config: ModelConfig) -> Iterator[Part]:
    heads, width = config.chosen_heads, config.d_model
    pooled = config.pooler_width or width
    if "lm" in heads:
        yield Part("language-model head", *_lm_head(config))
    if "pooler" in heads:
        yield Part("pooler", "E·E + E" if pooled == width else "E·W + W", (width + 1) * pooled)
    if "next-sentence" in heads:
        yield Part("next-sentence head", "2·E + 2", 2 * pooled + 2)
    if "sequence" in heads:
        reads = pooled if config.classifier_input == "pooler" else width
        dense = (reads + 1) * reads if config.classifier_transform else 0
        bias = config.n_labels if config.classifier_bias else 0
        formula = f"{'E·E + E + ' if dense else ''}C·E{' + C' if bias else ''}"
        yield Part("sequence head", formula, dense + config.n_labels * reads + bias)
    if "token" in heads:
        yield Part("token head", "C·E + C", config.n_labels * (width + 1))
    if "span" in heads:
        yield Part("span head", "2·E + 2", 2 * width + 2)
    if "boundary" in heads:
        yield Part("boundary head", *_boundary(config))


def _boundary(config: ModelConfig) -> tuple[str, int]:
    """p positions of width q; from the states at both boundaries and a position to the width W; the bias."""
    read = config.embedding_width if config.tie_lm_head or config.lm_head_transform else config.d_model
    dense = (2 * config.d_model + config.boundary_width + 1) * read + (read + 1) * read
    norms = 2 * _norm(config) * read
    places = config.boundary_positions * config.boundary_width
    formula = f"p·q + (2·E + q)·W + W + W·W + W + 2·{_times(_norm(config), 'W')} + V"
    return formula, places + dense + norms + config.output_vocab_size


def _lm_head(config: ModelConfig) -> tuple[str, int]:
    vocabulary, width = config.output_vocab_size, config.embedding_width
    terms: list[tuple[str, int]] = []
    if config.lm_head_transform:
        terms.append(("E·W + W" if width != config.d_model else "E·E + E", (config.d_model + 1) * width))
        terms.append((_times(_norm(config), "W" if width != config.d_model else "E"), _norm(config) * width))
    if not config.tie_lm_head:
        read = width if config.lm_head_transform else config.d_model
        terms.append(("V·E" if read == config.d_model else "V·W", vocabulary * read))
    if config.lm_head_bias:
        terms.append(("V", vocabulary))
    return " + ".join(formula for formula, _ in terms), sum(count for _, count in terms)


# --- arithmetic and memory -------------------------------------------------------------------------------


class Flops(NamedTuple):
    """Floating-point operations of a forward pass, per source token and per target token."""

    source: int
    target: int

    @property
    def training(self) -> tuple[int, int]:
        """Forward and backward: three times the forward."""
        return 3 * self.source, 3 * self.target


class InferenceMemory(NamedTuple):
    """Bytes of the weights, and of the keys and values cached for each token and beam."""

    weights: int
    cache_per_source_token: int
    cache_per_target_token: int


def forward_flops(config: ModelConfig, source_length: int, target_length: int) -> Flops:
    """FLOPs per source token (encoder, and its keys and values in cross-attention) and per target token.

    Sequences have `source_length` and `target_length` tokens. A model with one stack has only the tokens of that side.
    """
    lengths = {"encoder": source_length, "decoder": target_length}
    elements = {side: _layer_elements(sized, lengths[side]) for side, sized in config.stacks.items()}
    source = elements.get("encoder", 0) + _embedding_elements(config) * bool(config.encoder_layers)
    target = elements.get("decoder", 0) + _embedding_elements(config) * bool(config.decoder_layers)
    if config.shape == "encoder-decoder":
        sized = config.decoder_side
        keys_values = 2 * config.d_model * sized.kv_heads * sized.head_width
        source += config.decoder_layers * keys_values
        target += config.decoder_layers * (
            attention_matrices(sized) - keys_values + _per_key(sized) * source_length
        )
    if config.decoder_layers:
        target += _head_elements(config)
    else:
        source += _head_elements(config)
    return Flops(2 * source, 2 * target)


def _per_key(config: ModelConfig) -> int:
    """Elements used for each key: scores, then values."""
    return 2 * config.n_heads * config.head_width


def _layer_elements(config: ModelConfig, keys: int) -> int:
    """Elements of the matrices that a token passes in all layers of a stack, without cross-attention."""
    own = attention_matrices(config) + feed_forward_matrices(config) + _per_key(config) * keys
    if (
        config.positions == "relative-sinusoidal"
    ):  # scores of the distances, of which there are twice as many as keys
        own += 2 * config.n_heads * config.head_width * keys
    return config.n_layers * own


def _embedding_elements(config: ModelConfig) -> int:
    """Elements of the projection of a factorized embedding, or of the patch projection without the class token."""
    if config.patch_size is not None:
        tall, wide = config.patch_size
        pixels = config.n_channels * tall * wide
        return pixels * config.d_model * config.n_patches // (config.n_patches + 1)
    return config.embedding_width * config.d_model if config.has_embedding_projection else 0


def _head_elements(config: ModelConfig) -> int:
    """Elements that a token passes in the language-model head; heads of whole sequences are negligible."""
    if "lm" not in config.chosen_heads:
        return 0
    if config.lm_head_transform:
        return config.embedding_width * (config.d_model + config.output_vocab_size)
    return config.d_model * config.output_vocab_size


def training_memory(
    config: ModelConfig,
    tokens: int,
    length: int,
    precision: str = "float32",
    *,
    workers: int = 1,
    on_cpu: bool = True,
) -> TrainingMemory:
    """Bytes for training with Adam, with batches of `tokens` source and `tokens` target tokens in rows of `length`."""
    parameters = count_parameters(config)
    return memory_estimate.training_memory(
        config, parameters, tokens, length, precision, workers=workers, on_cpu=on_cpu
    )


def inference_memory(config: ModelConfig, precision: str = "float32") -> InferenceMemory:
    """Bytes of the weights, and of the cache per token: keys and values, 2·L·G·D elements in the decoder."""
    sized = config.decoder_side
    kept = 2 * config.decoder_layers * sized.kv_heads * sized.head_width * BYTES[precision]
    crosses = config.shape == "encoder-decoder"
    return InferenceMemory(BYTES[precision] * count_parameters(config), kept if crosses else 0, kept)
