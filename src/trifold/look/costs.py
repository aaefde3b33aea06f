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

from trifold.look.parameters import attention_matrices, count, feed_forward_matrices
from trifold.nn.config import ModelConfig
from trifold.train import memory_estimate
from trifold.train.memory_estimate import BYTES, TrainingMemory


class Flops(NamedTuple):
    """Floating-point operations of a forward pass, for each source token and each target token."""

    source: int
    target: int

    @property
    def training(self) -> tuple[int, int]:
        """Forward and backward: three times the forward."""
        return 3 * self.source, 3 * self.target


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
    met = {side: _layer_elements(sized, lengths[side]) for side, sized in config.stacks.items()}
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
    """Elements of the matrix that widens a narrow embedding; or of the one that patches of pictures go through, to
    which the class token beside them does not.
    """
    if config.patch_size is not None:
        tall, wide = config.patch_size
        pixels = config.n_channels * tall * wide
        return pixels * config.d_model * config.n_patches // (config.n_patches + 1)
    return config.embedding_width * config.d_model if config.has_embedding_projection else 0


def _head_elements(config: ModelConfig) -> int:
    """Elements that a token meets in the language-model head; heads of whole sequences weigh nothing beside it."""
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
    """Bytes to learn by Adam from batches of `tokens` source and as many target tokens in rows of `length`, on a CPU by
    so many workers.
    """
    parameters = count(config)
    return memory_estimate.training_memory(
        config, parameters, tokens, length, precision, workers=workers, on_cpu=on_cpu
    )


def inference_memory(config: ModelConfig, precision: str = "float32") -> InferenceMemory:
    """Bytes of the weights, and of the cache for each token: keys and values, 2·L·G·D elements over the decoder."""
    sized = config.decoder_side
    kept = 2 * config.decoder_layers * sized.kv_heads * sized.head_width * BYTES[precision]
    crosses = config.shape == "encoder-decoder"
    return InferenceMemory(BYTES[precision] * count(config), kept if crosses else 0, kept)
