"""The settings of parts that have several: scaling of rotary positions, experts, latent attention,
hashing.
"""

from typing import Annotated, Literal

from pydantic import Field

from trifold.settings import Settings

Factors = tuple[Annotated[float, Field(gt=0)], ...]
Bucket = Annotated[int, Field(gt=0, le=2**20, multiple_of=2)]
# Sizes of the decoder -> those of the encoder, which are their defaults.
DECODER_SIZES = {
    **{"d_decoder": "d_model", "n_decoder_layers": "n_layers", "n_decoder_heads": "n_heads"},
    **{"n_decoder_kv_heads": "n_kv_heads", "d_decoder_head": "d_head", "d_decoder_ff": "d_ff"},
    "max_decoder_positions": "max_positions",
}
MAX_LAYERS = (
    10_000  # beyond any model in use: a larger number is a mistake or hostile, and costs memory
)


class RotaryScaling(Settings):
    """How rotary frequencies are scaled to extend the context beyond that of pretraining,
    `original_positions`.

    The unit of frequencies is turns over the original positions.
    """

    kind: Literal["linear", "dynamic", "yarn", "llama3", "longrope"] = Field(
        description="method of scaling"
    )
    factor: float = Field(ge=1, description="how many times longer the context is")
    original_positions: int = Field(gt=0, description="context length of pretraining")
    low_frequency: float = Field(
        1.0, gt=0, description="llama3: lower frequencies are divided by factor"
    )
    high_frequency: float = Field(4.0, gt=0, description="llama3: higher frequencies are unchanged")
    beta_fast: float = Field(32.0, gt=0, description="yarn: higher frequencies are unchanged")
    beta_slow: float = Field(1.0, gt=0, description="yarn: lower frequencies are divided by factor")
    round_bounds: bool = Field(True, description="yarn: the bounds of the ramp are whole numbers")
    short_factors: Factors | None = Field(
        None, strict=False, description="longrope: divisors of frequencies"
    )
    long_factors: Factors | None = Field(
        None, strict=False, description="longrope: divisors in longer texts"
    )
    magnitude: float | None = Field(
        None, gt=0, description="factor of cos and sin; default: by kind"
    )


class Experts(Settings):
    """A mixture of experts instead of the feed-forward network: a router chooses a few of them for
    each token.
    """

    count: int = Field(gt=1, le=MAX_LAYERS, description="experts of a layer")
    per_token: int = Field(gt=0, description="experts that a token passes")
    d_ff: int | None = Field(None, gt=0, description="inner width of an expert; default: d_ff")
    shared: int = Field(
        0, ge=0, description="experts that every token passes, as one of their total width"
    )
    score: Literal["softmax", "sigmoid"] = Field(
        "softmax", description="weight of an expert from its logit"
    )
    normalize: bool = Field(True, description="the weights of a token sum to 1")
    scale: float = Field(1.0, gt=0, description="factor of the weights")
    groups: int = Field(1, gt=0, description="groups of experts")
    groups_per_token: int = Field(1, gt=0, description="groups that a token's experts come from")
    correction: bool = Field(False, description="a bias that affects the choice of experts only")
    bias: bool = Field(False, description="bias of the router")
    dense_layers: int = Field(
        0, ge=0, description="first layers with a feed-forward network of width d_ff"
    )


class SparseBlocks(Settings):
    """Attention to a few blocks of keys (BigBird): the query's own, those beside it, the first, the
    last, random ones.

    The queries of the first and the last block attend to all.
    """

    size: int = Field(64, gt=0, description="tokens of a block")
    random: int = Field(3, ge=0, description="random blocks of a block of queries")
    only_in_training: bool = Field(
        False, description="outside of training, the first block counts in place of each random one"
    )


class Recurrence(Settings):
    """Attention to the own segment, and to keys before it as constants (Transformer-XL)."""

    size: int = Field(gt=0, description="tokens of a segment")
    reach: int = Field(ge=0, description="keys before the segment that its queries attend to")


class Latent(Settings):
    """Multi-head latent attention: keys and values are projections of one narrow vector per token,
    which is cached.
    """

    width: int = Field(gt=0, description="of the vector of keys and values")
    query_width: int | None = Field(
        None, gt=0, description="of such a vector of queries; default: none"
    )
    d_rotary: int = Field(
        gt=0, description="rotated dimensions beside d_head, shared by the keys of heads"
    )
    d_value: int = Field(gt=0, description="width of a value")
    norm_epsilon: float | None = Field(
        None, gt=0, description="of the norms inside; default: norm_epsilon"
    )


class Convolution(Settings):
    """A convolution over the embeddings of near tokens, added to the output of the first layer
    (DeBERTa v2).
    """

    kernel: int = Field(3, gt=0, lt=1024, description="tokens that it reads, an odd number")
    groups: int = Field(1, gt=0, description="groups of channels")
    activation: Literal["gelu", "relu", "silu", "tanh"] = Field("gelu", description="of its output")


class LSH(Settings):
    """LSH attention: tokens are sorted by hash and divided into chunks, which read themselves and
    the one before.
    """

    chunk: int = Field(64, gt=0, description="tokens of a chunk; shorter texts have full attention")
    hashes: int = Field(
        4, gt=0, le=1024, description="rounds of hashing, each with its own rotations"
    )
    buckets: tuple[Bucket, ...] | None = Field(
        None,
        strict=False,
        min_length=1,
        description="of a round, or factors; default: twice as many as chunks",
    )
    seed: int | None = Field(
        None, ge=0, lt=2**63, description="of rotations; default: a new one in training"
    )
    layers: tuple[Literal["lsh", "local"], ...] = Field(
        ("lsh",),
        strict=False,
        min_length=1,
        description="kinds of layers, repeated; local ones do not sort",
    )
    local_chunk: int = Field(64, gt=0, description="chunk of local layers")
    local_dropout: float = Field(0.0, ge=0, lt=1, description="attention_dropout of local layers")

    def sorts(self, layer: int) -> bool:
        """Whether that layer sorts the tokens."""
        return self.layers[layer % len(self.layers)] == "lsh"

    def size(self, layer: int) -> int:
        """The tokens of a chunk of that layer."""
        return self.chunk if self.sorts(layer) else self.local_chunk
