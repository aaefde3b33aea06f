"""What a model costs: parameters by formula, arithmetic per token, and memory for inference.

Letters of the formulas: V vocabulary, E width (d_model), F feed-forward width, H heads, G key/value
heads, D head size, L blocks, P positions; W embedding width where it differs, C classes. Experts: X
of width J, K shared ones. Latent attention: widths R of keys and values, Q of queries, Z of rotated
dimensions, Y of a value. U width of the memory that cross-attention reads, if it is not E.

A product of (m, k) and (k, n) takes 2·m·k·n floating-point operations; nothing else is counted. For
one token

    a matrix with P elements   2·P
    attention to S keys        2·(2·S·H·D): the scores q·k, and the weighted sum of v
                                                                   (Kaplan et al. 2020, table 1)
    backward                   twice the forward: each product has two gradients
                                                                 (Kaplan et al. 2020, section 2.1)

S counts every key of the batch's width, because the kernels compute masked keys too; with windows,
segments and sparse blocks it counts the keys that a query may read. Look-ups, norms, softmax and
dropout are not counted: they cost memory traffic, not products.
"""

from collections.abc import Iterator
from functools import partial
from itertools import chain
from math import prod
from typing import NamedTuple

from trifold.nn.config import ModelConfig
from trifold.nn.linear_attention import CHUNK
from trifold.nn.lsh import default_buckets
from trifold.nn.rotary import SCALINGS_BY_LENGTH
from trifold.nn.spans import level_starts, offset_rows

SINUSOIDAL = ("sinusoidal", "sinusoidal-halves", "sinusoidal-tensor2tensor")
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}

# --- parameters -----------------------------------------------------------------------------------


class Part(NamedTuple):
    """A row of the table: name, formula, number of parameters."""

    name: str
    formula: str
    parameters: int


def parameter_table(config: ModelConfig) -> list[Part]:
    """Every part with parameters; shared parameters count once."""
    stacks = (_stack(side, sized, config.d_model) for side, sized in config.stacks.items())
    parts = chain(_embeddings(config), *stacks, _heads(config.output_side))
    return [part for part in parts if part.parameters]


def count_parameters(config: ModelConfig) -> int:
    """The number of parameters of the model; allocates nothing."""
    return sum(part.parameters for part in parameter_table(config))


def position_table(config: ModelConfig) -> int:
    """Elements of the table of sinusoidal positions, which is computed and not stored; 0 for other
    positions.
    """
    return config.max_positions * config.sum_width if config.positions in SINUSOIDAL else 0


def _part(config: ModelConfig, name: str, formula: str, **letters: int) -> Part:
    """A part with the value of its formula; `letters` are added to those of the config."""
    sizes = {
        "V": config.vocab_size, "E": config.d_model, "F": config.d_ff,
        "H": config.n_heads, "G": config.kv_heads, "D": config.head_width,
        "P": config.max_positions, "W": config.embedding_width, "C": config.n_labels,
    }  # fmt: skip
    if (experts := config.experts) is not None:
        sizes |= {"X": experts.count, "J": experts.d_ff or config.d_ff, "K": experts.shared}
    if (latent := config.latent) is not None:
        sizes |= {
            "R": latent.width,
            "Q": latent.query_width or 0,
            "Z": latent.d_rotary,
            "Y": latent.d_value,
        }
    return Part(name, formula, eval(formula.replace("·", "*"), {}, sizes | letters))


def _times(number: int, letter: str) -> str:
    return letter if number == 1 else f"{number}·{letter}"


def _norm(config: ModelConfig, letter: str) -> str:
    """The vectors of a norm: a weight, if it has one, and the bias of a layer norm."""
    if config.norm == "layer":
        return _times(2 if config.norm_bias else 1, letter)
    return "0" if config.norm_weight == "none" else letter


def _embeddings(config: ModelConfig) -> Iterator[Part]:
    letter = "W" if config.has_embedding_projection else "E"
    if config.patch_size is not None:
        for inputs, outputs, _ in config.stem_layers:
            yield _part(config, f"convolution to {outputs}", "9·c·K + 3·K", c=inputs, K=outputs)
        yield _part(config, "patches", "pixels·E + E", pixels=prod(config.patch_shape))
        yield _part(config, "class token", "E")
    elif config.target_vocab_size is None:
        yield _part(config, "embeddings", f"V·{letter}")
    else:
        yield _part(config, "source embeddings", f"V·{letter}")
        yield _part(
            config.decoder_side, "target embeddings", f"V·{letter}", V=config.target_vocab_size
        )
    projection = "2·W·E" if config.token_projection else "W·E + E"  # of states too
    for side, sized in config.stacks.items():
        letter = "E" if sized.sum_width == sized.d_model else "W"
        if config.positions == "learned" or config.learned_positions:
            places = f"(P+{config.position_offset})" if config.position_offset else "P"
            yield _part(sized, f"{side} positions", f"{places}·{letter}")
        if config.axial_shape and config.axial_widths:
            terms = (
                f"{n}·{w}" for n, w in zip(config.axial_shape, config.axial_widths, strict=True)
            )
            yield _part(config, f"{side} positions", " + ".join(terms))
        yield _part(sized, f"{side} token types", f"{config.n_token_types}·{letter}")
        if config.query_stream:
            yield _part(config, f"{side} query stream", "E")
        if config.embedding_norm:
            yield _part(sized, f"{side} embedding norm", _norm(config, letter))
        if config.has_embedding_projection:
            yield _part(sized, f"{side} embedding projection", projection)


def _stack(side: str, config: ModelConfig, memory_width: int) -> Iterator[Part]:
    """The blocks of a stack, with its sizes in the config; memory_width: of the states that
    cross-attention reads.
    """
    blocks = max(config.block_of_layer or (config.n_layers - 1,)) + 1
    crosses = side == "decoder" and config.shape == "encoder-decoder"
    if config.positions == "relative":
        tables = 2 if config.summary_block else 1
        yield _part(
            config, f"{side} relative offsets", _times(tables, "b·H"), b=config.relative_buckets
        )
    if config.positions == "relative-sinusoidal":
        # A matrix for the distance encodings, a vector each for content and distance; three for
        # segments.
        vectors = 5 if config.segment_offsets else 2
        yield _part(config, f"{side} relative scores", f"L·(E·H·D + {vectors}·H·D)", L=blocks)
    if config.positions == "disentangled":
        norm = f" + {_norm(config, 'E')}" if config.relative_norm else ""
        yield _part(config, f"{side} relative vectors", f"b·E{norm}", b=config.relative_buckets)
        if not config.relative_shared:
            each = f"(E·H·D{' + H·D' if config.attention_bias else ''})"
            yield _part(
                config, f"{side} relative scores", f"L·{config.position_terms}·{each}", L=blocks
            )
    own = f"L·{_attention(config) if config.latent is None else _latent_attention(config)}"
    if config.attention == "lsh":  # M layers lack a projection
        own += f" - M·{'(E·H·D + H·D)' if config.attention_bias else 'E·H·D'}"
    yield _part(
        config, f"{side} self-attention", own, L=blocks, M=sum(map(config.lsh.sorts, range(blocks)))
    )
    if crosses:
        cross = _attention(config, reads="E" if memory_width == config.d_model else "U")
        yield _part(config, "decoder cross-attention", f"L·{cross}", L=blocks, U=memory_width)
    dense = blocks
    if (experts := config.experts) is not None:
        dense = min(blocks, experts.dense_layers)
        router = f"E·X{' + X' * (experts.bias + experts.correction)}"
        every = _feed_forward(config, "J")
        shared = f" + {_feed_forward(config, 'K·J')}" if experts.shared else ""
        yield _part(
            config, f"{side} experts", f"L·({router} + X·{every}{shared})", L=blocks - dense
        )
    yield _part(config, f"{side} feed-forward", f"L·{_feed_forward(config)}", L=dense)
    if (part := config.convolution) is not None:
        letters = {"k": part.kernel, "c": config.d_model // part.groups}
        yield _part(config, f"{side} convolution", f"k·c·E + E + {_norm(config, 'E')}", **letters)
    norms = {"parallel": 1, "parallel-two-norms": 2, "reversible": 2}.get(config.residual)
    if norms is None:
        norms = (3 if crosses else 2) * (2 if config.norm_placement == "sandwich" else 1)
    norm = _norm(config, "E")
    formula = f"L·{norms}·{norm}{'' if config.first_norm else f' - {norm}'}"
    if config.has_final_norm("decoder" if side == "decoder" else "encoder"):
        formula += f" + {_norm(config, '2·E' if config.residual == 'reversible' else 'E')}"
    yield _part(config, f"{side} norms", formula, L=blocks)


def _attention(config: ModelConfig, reads: str = "E") -> str:
    """Four projections: E·H·D for q and o, E·G·D for k and v; biases of q, k and v, and of o; and
    further parts.

    reads: the letter of the width that k and v read.
    """
    grouped = config.kv_heads != config.n_heads
    terms = [
        (reads == "E", "2·E·D·(H+G)" if grouped else "4·E·H·D"),
        (reads != "E", f"2·D·(E·H+{reads}·G)"),
        (config.attention_bias, "D·(H+2·G)" if grouped else "3·H·D"),
        (config.out_bias, "E"),
        (config.qk_norm == "head", f"2·{_norm(config, 'D')}"),
        (config.qk_norm == "width", _norm(config, "D·(H+G)")),
        (config.attention_sinks, "H"),
        (config.attention == "low-rank", f"2·{config.rank}·P"),
        (config.attention == "spans", f"{offset_rows(config)}·H"),
        (config.summary_block, _norm(config, "E")),
        (config.global_projections, f"3·E·H·D{' + 3·H·D' if config.attention_bias else ''}"),
    ]
    chosen = [term for is_present, term in terms if is_present]
    return f"({' + '.join(chosen)})" if len(chosen) > 1 else chosen[0]


def _latent_attention(config: ModelConfig, *, vectors: bool = True) -> str:
    """Matrices of queries, of the latent vector, of keys and values from it, and of the output;
    norms and biases.
    """
    narrow = config.latent is not None and config.latent.query_width
    terms = ["E·Q + Q·H·(D+Z)" if narrow else "E·H·(D+Z)", "E·(R+Z) + R·H·(D+Y) + H·Y·E"]
    if vectors:
        terms += [_norm(config, letter) for letter in ("QR" if narrow else "R")]
        terms += ["Q + R + Z"] * config.attention_bias + ["E"] * config.out_bias
    return f"({' + '.join(terms)})"


def _feed_forward(config: ModelConfig, width: str = "F") -> str:
    inner = 2 if config.gated else 1  # layers into the inner width
    biases = f" + {_times(inner, width)} + E" if config.feed_forward_bias else ""
    return f"({inner + 1}·E·{width}{biases})" if biases else f"{inner + 1}·E·{width}"


def _heads(config: ModelConfig) -> list[Part]:
    part, states = partial(_part, config, E=config.state_width), config.state_width
    pooled, vocabulary = config.pooler_width or config.d_model, config.output_vocab_size
    dense = _transform(config) if config.classifier_transform else ""
    reads = pooled if config.classifier_input == "pooler" else states
    if dense and config.d_model < reads == config.stream_width:  # the layer joins both streams
        dense, reads = f"E·E + {dense}", config.d_model
    classifier = f"{dense}C·E{' + C' if config.classifier_bias else ''}"
    dense = _transform(config) if config.token_transform else ""
    norms = "2·" if config.norm_placement == "sandwich" else ""
    layer = f"{_feed_forward(config)} + {norms}{_norm(config, 'E')} + " if config.span_layer else ""
    # p positions of width q; from the states at both boundaries and a position to the width W; the
    # bias.
    boundary = f"p·q + (2·E + q)·W + W + W·W + W + 2·{_norm(config, 'W')} + V"
    width = config.embedding_width if config.tie_lm_head or config.lm_head_transform else states
    places = {"p": config.boundary_positions, "q": config.boundary_width, "W": width}
    parts = {
        "lm": part("language-model head", _lm_head(config), V=vocabulary),
        "pooler": part("pooler", "E·E + E" if pooled == states else "E·W + W", W=pooled),
        "next-sentence": part("next-sentence head", "2·E + 2", E=pooled),
        "sequence": part("sequence head", classifier, E=reads),
        "choice": part("choice head", classifier, E=reads, C=1),
        "token": part("token head", f"{dense}C·E + C"),
        "span": part("span head", f"{layer}{dense}2·E + 2"),
        "replaced": part("replaced head", f"{_transform(config)}E + 1"),
        "boundary": part("boundary head", boundary, V=vocabulary, **places),
    }
    return [row for head, row in parts.items() if head in config.chosen_heads]


def _transform(config: ModelConfig) -> str:
    """The dense layer of a classifier, and its norm."""
    norm = f"{_norm(config, 'E')} + " if config.transform_norm else ""
    return f"E·E + {'E + ' if config.transform_bias else ''}{norm}"


def _lm_head(config: ModelConfig) -> str:
    """The transform, the matrix if it is not tied, and the bias."""
    letter = "W" if config.embedding_width != config.state_width else "E"
    bias = f" + {letter}" if config.transform_bias else ""
    terms = [f"E·{letter}{bias}", _norm(config, letter)] if config.lm_head_transform else []
    if not config.tie_lm_head:
        terms.append(f"V·{letter if config.lm_head_transform else 'E'}")
    if config.lm_head_bias:
        terms.append("V")
    return " + ".join(terms) or "0"


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
        side: _layer_elements(sized, lengths[side], side) + _embedding_elements(sized)
        for side, sized in config.stacks.items()
    }
    if config.shape == "encoder-decoder":
        sized = config.decoder_side.model_copy(update={"latent": None})  # of self-attention only
        queries = attention_matrices(sized) - _keys_values(sized) + _per_key(sized) * source_length
        keys_values = (
            _keys_values(sized) * config.d_model // sized.d_model
        )  # they read states of the encoder
        elements["encoder"] += config.decoder_layers * keys_values
        elements["decoder"] += config.decoder_layers * queries
    elements["decoder" if config.decoder_layers else "encoder"] += _head_elements(
        config.output_side
    )
    return Flops(2 * elements["encoder"], 2 * elements["decoder"])


def attention_matrices(config: ModelConfig) -> int:
    """Elements of the projections of one attention that every token passes; of the global ones,
    keys and values.
    """
    if config.latent is not None:
        return _part(config, "", _latent_attention(config, vectors=False)).parameters
    heads = config.n_heads + config.kv_heads + (config.n_heads if config.global_projections else 0)
    return 2 * config.d_model * config.head_width * heads


def _keys_values(config: ModelConfig) -> int:
    """Elements of the projections of keys and values, without latent attention."""
    return 2 * config.d_model * config.kv_heads * config.head_width


def _per_key(config: ModelConfig) -> int:
    """Elements used for each key: scores, then values."""
    if config.latent is not None:
        return config.n_heads * (config.head_width + config.latent.d_rotary + config.latent.d_value)
    return 2 * config.n_heads * config.head_width


def feed_forward_elements(config: ModelConfig, layer: int) -> int:
    """Elements of the matrices that a token passes in the network of a layer: of its experts only,
    and the router.
    """
    experts, matrices = config.experts, (3 if config.gated else 2) * config.d_model
    if experts is None or layer < experts.dense_layers:
        return matrices * config.d_ff
    width = (experts.per_token + experts.shared) * (experts.d_ff or config.d_ff)
    return matrices * width + config.d_model * experts.count


def keys_read(config: ModelConfig, layer: int, keys: int, side: str) -> int:
    """How many of the keys a query may read in self-attention, without single global tokens. Of
    blocks in training: its own, two beside it, the first, the last and random ones; the queries of
    two blocks read all keys.
    """
    if (blocks := config.sparse_blocks) is not None and side == "encoder":
        is_full = keys <= (5 + 2 * blocks.random) * blocks.size
        return keys if is_full else min(keys, (7 + blocks.random) * blocks.size)
    if (recurrence := config.recurrence) is not None:
        return min(keys, recurrence.size + recurrence.reach)
    if (
        config.attention == "spans"
    ):  # itself, k of each level and side; every other level reads it once
        levels = len(level_starts(keys, config.span_keys)) - 1
        return (
            min(keys, (2 if side == "encoder" else 1) * levels * config.span_keys + 1) + levels - 1
        )
    if config.attention == "lsh" and keys > (
        chunk := config.lsh.size(layer)
    ):  # two chunks in each round
        return 2 * chunk * (config.lsh.hashes if config.lsh.sorts(layer) else 1)
    window = config.window(layer) or keys
    summaries = keys // config.summary_block if config.summary_block else 0
    return min(keys, 2 * window - 1 if side == "encoder" else window) + summaries


def _layer_elements(config: ModelConfig, keys: int, side: str) -> int:
    """Elements of the matrices that a token passes in all layers of a stack, without
    cross-attention.
    """
    read = [keys_read(config, layer, keys, side) for layer in range(config.n_layers)]
    feed_forward = sum(feed_forward_elements(config, layer) for layer in range(config.n_layers))
    # Relative and disentangled scores: products of queries, and of keys, with the vectors of at
    # most so many distances. Each batch projects these vectors once, which is not counted.
    terms, distances = config.position_terms, config.relative_buckets
    if config.positions == "relative-sinusoidal":
        terms, distances = (
            1,
            2 * (keys if config.relative_clamp is None else config.relative_clamp) + 1,
        )
    terms *= sum(min(2 * each - 1, distances) for each in read)
    scores = _per_key(config) * sum(read) + terms * config.n_heads * config.head_width
    if config.summary_block:
        scores += config.n_layers * _keys_values(config) // config.summary_block
    matrices = config.n_layers * attention_matrices(config) + feed_forward
    if (part := config.convolution) is not None:
        matrices += part.kernel * config.d_model**2 // part.groups
    if config.attention == "spans":
        matrices = matrices * level_starts(keys, config.span_keys)[-1] // keys
    elif config.attention == "lsh":
        matrices += sum(
            _hashing(config, keys) for layer in range(config.n_layers) if config.lsh.sorts(layer)
        )
    elif config.attention != "softmax":
        scores = config.n_layers * _linear_attention(
            config, min(keys, CHUNK) if side == "decoder" else 0
        )
    return matrices + scores


def _hashing(config: ModelConfig, keys: int) -> int:
    """Elements of the rotations that a token passes in a layer, instead of a projection of keys."""
    lsh = config.lsh
    buckets = lsh.buckets or default_buckets(keys, lsh.chunk, config.max_positions)
    rotations = lsh.hashes * sum(buckets) // 2 if keys > lsh.chunk else 0
    return config.n_heads * config.head_width * (rotations - config.d_model)


def _linear_attention(config: ModelConfig, chunk: int) -> int:
    """Elements that a token uses in attention of linear cost, besides its projections; chunk: the
    keys of its chunk.
    """
    if config.attention == "low-rank":  # mixtures of keys and values, and attention to them
        return 2 * config.rank * config.head_width * (config.kv_heads + config.n_heads)
    features = config.n_features if config.attention == "favor" else config.head_width
    maps = 2 * config.n_features * config.head_width if config.attention == "favor" else 0
    # Into the sums, and out of them; the products of the chunk, and their sums of values.
    return config.n_heads * (
        maps + (2 * features + chunk) * (config.head_width + 1) + chunk * features
    )


def _embedding_elements(config: ModelConfig) -> int:
    """Elements of the projections of a factorized embedding, or a token's share of the stem and of
    the projection of patches, which the class token does not pass.
    """
    if config.patch_size is not None:
        patches = prod(config.patch_shape) * config.d_model * config.n_patches
        return (_stem_elements(config) + patches) // (config.n_patches + 1)
    projections = 2 if config.token_projection else 1 if config.has_embedding_projection else 0
    return projections * config.embedding_width * config.d_model


def _stem_elements(config: ModelConfig) -> int:
    """Elements that an image passes in the 3 × 3 convolutions of a stem."""
    height, width = config.image_size or (0, 0)
    total = 0
    for inputs, outputs, stride in config.stem_layers:
        height, width = -(-height // stride), -(-width // stride)
        total += 9 * inputs * outputs * height * width
    return total


def _head_elements(config: ModelConfig) -> int:
    """Elements that a token passes in the language-model head or the layer of spans; other heads
    are negligible.
    """
    if "lm" not in config.chosen_heads:
        return (3 if config.gated else 2) * config.d_model * config.d_ff * config.span_layer
    if config.lm_head_transform:
        return config.embedding_width * (config.state_width + config.output_vocab_size)
    return config.state_width * config.output_vocab_size


def cached_elements(config: ModelConfig, tokens: int = 1) -> int:
    """Elements of the keys and values of a row of `tokens` tokens in the decoder; windows limit
    them. Linear attention stores sums, whose size does not depend on the tokens.
    """
    sized, layers = config.decoder_side, range(config.decoder_layers)
    if config.attention in ("elu", "favor"):
        features = config.n_features if config.attention == "favor" else sized.head_width
        return config.decoder_layers * sized.n_heads * features * (sized.head_width + 1)
    if config.attention == "lsh":  # the inputs of the stack
        return tokens * sized.d_model * bool(config.decoder_layers)
    kept = sum(min(tokens, sized.window(layer) or tokens) for layer in layers)
    if config.attention == "spans":
        kept = 2 * tokens * config.decoder_layers
    scaling = config.rotary_scaling
    inputs = (
        tokens * sized.d_model if scaling is not None and scaling.kind in SCALINGS_BY_LENGTH else 0
    )
    each = 2 * sized.kv_heads * sized.head_width
    return inputs + kept * (
        each if config.latent is None else config.latent.width + config.latent.d_rotary
    )


def inference_memory(config: ModelConfig, precision: str = "float32") -> InferenceMemory:
    """Bytes of the weights, and of the cache per token: keys and values, 2·L·G·D elements in the
    decoder.
    """
    side, size = config.decoder_side, BYTES[precision]
    crosses = (
        2
        * config.decoder_layers
        * side.kv_heads
        * side.head_width
        * (config.shape == "encoder-decoder")
    )
    return InferenceMemory(
        size * count_parameters(config), size * crosses, size * cached_elements(config)
    )
