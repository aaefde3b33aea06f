"""What a model costs: arithmetic a token, and memory in training and in use.

A product of (m, k) and (k, n) takes 2·m·k·n floating-point operations; nothing else is counted. For one token

    a matrix with P elements   2·P
    attention to S keys        2·(2·S·H·D): the scores q·k, and the weighted sum of v     (Kaplan et al. 2020, table 1)
    backward                   twice the forward: each product has two gradients      (Kaplan et al. 2020, section 2.1)

S counts every key of the batch's width, because the kernels compute masked ones too. Look-ups, norms, softmax and
dropout are left out: they cost memory traffic, not products.
"""

from __future__ import annotations

from typing import NamedTuple

from trifold.look.parameters import attention_matrices, count, feed_forward_matrices, sides
from trifold.nn.config import ModelConfig
from trifold.nn.kernels import loops

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class Flops(NamedTuple):
    """Floating-point operations of a forward pass, for each source token and each target token."""

    source: int
    target: int

    @property
    def training(self) -> tuple[int, int]:
        """Forward and backward: three times the forward."""
        return 3 * self.source, 3 * self.target


class TrainingMemory(NamedTuple):
    """Bytes while a batch is learnt from."""

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """All of it, in bytes."""
        return sum(self)


class InferenceMemory(NamedTuple):
    """Bytes in use: the weights, and the keys and values kept for each token read or written, for each beam."""

    weights: int
    cache_per_source_token: int
    cache_per_target_token: int


def forward_flops(config: ModelConfig, source_length: int, target_length: int) -> Flops:
    """A source token's share (encoder, and its keys and values in cross-attention) and a target token's.

    Sequences are `source_length` and `target_length` tokens wide; a model of one stack has tokens of one kind, and
    they stand at the side of the stack it has.
    """
    lengths = {"encoder": source_length, "decoder": target_length}
    met = {side: _layer_elements(sized, lengths[side]) for side, sized in sides(config).items()}
    source = met.get("encoder", 0) + _embedding_elements(config) * bool(config.encoder_layers)
    target = met.get("decoder", 0) + _embedding_elements(config) * bool(config.decoder_layers)
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
    """Elements met for each key: scores, then values."""
    return 2 * config.n_heads * config.head_width


def _layer_elements(config: ModelConfig, keys: int) -> int:
    """Elements of matrices that a token meets in all layers of a stack, without what it reads of another."""
    own = attention_matrices(config) + feed_forward_matrices(config) + _per_key(config) * keys
    if (
        config.positions == "relative-sinusoidal"
    ):  # scores of the distances, of which there are twice as many as keys
        own += 2 * config.n_heads * config.head_width * keys
    return config.n_layers * own


def _embedding_elements(config: ModelConfig) -> int:
    """Elements of the matrix that widens a narrow embedding."""
    return config.embedding_width * config.d_model if config.factorised else 0


def _head_elements(config: ModelConfig) -> int:
    """Elements that a token meets in the language-model head; heads of whole sequences weigh nothing beside it."""
    if "lm" not in config.chosen_heads:
        return 0
    if config.lm_head_transform:
        return config.embedding_width * (config.d_model + config.output_vocab_size)
    return config.d_model * config.output_vocab_size


def training_memory(
    config: ModelConfig, tokens: int, length: int, precision: str = "float32"
) -> TrainingMemory:
    """Bytes to learn from batches of `tokens` source and as many target tokens in rows of `length`.

    weights      4 bytes a parameter, and 2 more for the bfloat16 copy that computes
    gradients    4 bytes a parameter
    optimizer    8: Adam's two averages
    activations  what the backward pass needs again, by `saved_elements`, in the precision of the arithmetic
    """
    parameters, width = count(config), BYTES[precision]
    copy = 0 if precision == "float32" else width * parameters
    return TrainingMemory(
        weights=4 * parameters + copy,
        gradients=4 * parameters,
        optimizer=8 * parameters,
        activations=width * saved_elements(config, tokens, length),
    )


def saved_elements(config: ModelConfig, tokens: int, length: int) -> int:
    """Elements that the forward pass leaves for the backward pass, `tokens` on each side in rows of `length`.

    For each token, with E the width, A = H·D and F the feed-forward width, a sub-layer leaves its input, what its norms
    read (an RMS norm: also what it scaled) and the dropout's mask (E each; once for both where they work in parallel);
    an attention also q, k, v and its output twice, by heads and merged (A each), and H·S weights unless a fused kernel
    computes them anew; the feed-forward its F activations. An estimate: small tensors, copies of weights and the
    allocator's own share are left out.
    """
    layers = 0
    for side, sized in sides(config).items():
        crosses = side == "decoder" and config.shape == "encoder-decoder"
        layers += sized.n_layers * _saved_by_block(sized, length, attentions=2 if crosses else 1)
    mask = _masks(config)
    stacks = len(sides(config))
    # The stacks' outputs, and what their last norms read.
    ends = stacks + (_READ[config.norm] * stacks if config.norm_placement != "post" else 0)
    return tokens * (layers + config.d_model * (ends + stacks * mask))


_READ = {"layer": 1, "rms": 2}  # tensors of width E that a norm leaves


def _masks(config: ModelConfig) -> int:
    """Masks that a dropout leaves: the compiled loops draw theirs again."""
    return 1 if config.dropout and loops() is None else 0


def _saved_by_block(config: ModelConfig, length: int, attentions: int) -> int:
    """For one token: what its residuals leave, and what stands in its sub-layers."""
    merged, mask = config.n_heads * config.head_width, _masks(config)
    read = _READ[config.norm]
    each = 1 + read * {"post": 1, "pre": 1, "sandwich": 2}[config.norm_placement] + mask
    residuals = {
        "sequential": (attentions + 1) * each,
        "parallel": 1 + read + mask,
        "parallel-two-norms": 2 + read + mask,
    }[config.residual]
    attention = 5 * merged + config.n_heads * _weights_per_key(config, length) * length
    inner = 1 if config.activation == "relu" else 2  # relu's gradient needs its output only
    feed_forward = config.d_ff * (inner + 2 if config.gated else inner)
    return config.d_model * residuals + attentions * attention + feed_forward


def _weights_per_key(config: ModelConfig, length: int) -> int:
    """How many tensors of attention weights stay: the softmax, and with dropout on it a mask and the product."""
    if config.attention_dropout:
        return 3
    return 1 if length <= 128 else 0


def inference_memory(config: ModelConfig, precision: str = "float32") -> InferenceMemory:
    """Bytes of the weights, and of the cache for each token: keys and values, 2·L·G·D elements over the decoder."""
    sized = config.decoder_side
    kept = 2 * config.decoder_layers * sized.kv_heads * sized.head_width * BYTES[precision]
    crosses = config.shape == "encoder-decoder"
    return InferenceMemory(BYTES[precision] * count(config), kept if crosses else 0, kept)
