"""CoreConfig: the sizes and choices of a Transformer as plain values.

`nn.variants.ModelConfig` adds the groups of settings of variants. A family or a preset is one
ModelConfig; parts select themselves by these values, and nothing tests a family's name. The
defaults are the base model of "Attention Is All You Need" (Vaswani et al. 2017).
"""

from __future__ import annotations

import math
from itertools import pairwise
from math import prod
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, PositiveInt, WrapValidator

from trifold.nn.registry import allow_registered, check_loaded, chosen, registered
from trifold.settings import Settings

Value = TypeVar("Value")
Shape = Literal["encoder-decoder", "encoder", "decoder"]
Sinusoids = Literal["sinusoidal", "sinusoidal-halves", "sinusoidal-tensor2tensor"]
Learned = Literal["learned", "axial"]
Positions = Literal[
    Sinusoids, Learned, "rotary", "relative", "relative-sinusoidal", "disentangled", "alibi", "none"
]
Residual = Literal["sequential", "parallel", "parallel-two-norms", "reversible"]
AttentionKind = Literal["softmax", "elu", "favor", "low-rank", "spans", "lsh"]
OrRegistered = WrapValidator(allow_registered)
"""A choice may also be the value of a registered part from outside."""
OutsideParts = Annotated[tuple[str, ...], AfterValidator(check_loaded)]
Pair = tuple[PositiveInt, PositiveInt]
Activation = Literal["relu", "relu2", "gelu", "gelu-tanh", "quick-gelu", "silu", "tanh"]
Head = Literal[
    "lm", "pooler", "next-sentence", "sequence", "choice", "token", "span", "replaced", "boundary"
]
ProblemType = Literal["regression", "single_label_classification", "multi_label_classification"]
# What the logits of classes mean: one class, any number of classes, or a number.
SINGLE: Final = "single_label_classification"
MULTI: Final = "multi_label_classification"
REGRESSION: Final = "regression"
# Beyond any model in use: a larger number is a mistake or hostile, and costs memory.
MAX_LAYERS = 10_000
MAX_CLASSES = 2**20
# Sizes of the decoder -> those of the encoder, which are their defaults.
DECODER_SIZES = {
    "d_decoder": "d_model",
    "n_decoder_layers": "n_layers",
    "n_decoder_heads": "n_heads",
    "n_decoder_kv_heads": "n_kv_heads",
    "d_decoder_head": "d_head",
    "d_decoder_ff": "d_ff",
    "max_decoder_positions": "max_positions",
}


def _or_default(value: Value | None, default: Value) -> Value:
    """The value of a setting, or its default if it is None; 0 and False are values."""
    return default if value is None else value


class CoreConfig(Settings):
    """Sizes and choices of one Transformer. Derived numbers are properties; values are never
    overwritten.
    """

    shape: Shape = "encoder-decoder"
    parts: OutsideParts = Field(
        (),
        strict=False,
        description="parts from outside: modules, or objects of modules, that a recipe file on "
        "the command line may import",
    )
    options: dict[str, dict[str, Any]] = Field(
        {}, description="settings of parts from outside, by the value or key of the part"
    )

    # Sizes
    vocab_size: int = Field(
        37_000, gt=0, description="source vocabulary, by default also of the target"
    )
    target_vocab_size: int | None = Field(
        None, gt=0, description="separate vocabulary of the target"
    )
    max_positions: int = Field(1024, gt=0, description="longest sequence, in tokens")
    max_decoder_positions: int | None = Field(
        None, gt=0, description="of the decoder; default: max_positions"
    )
    d_model: int = Field(512, gt=0)
    d_decoder: int | None = Field(
        None, gt=0, description="d_model of the decoder; default: d_model"
    )
    d_embedding: int | None = Field(
        None, gt=0, description="width of the embeddings before a projection"
    )
    n_layers: int = Field(6, gt=0, le=MAX_LAYERS, description="layers of each stack")
    n_decoder_layers: int | None = Field(None, gt=0, le=MAX_LAYERS, description="default: n_layers")
    n_heads: int = Field(8, gt=0)
    n_decoder_heads: int | None = Field(None, gt=0, description="decoder heads; default: n_heads")
    n_kv_heads: int | None = Field(
        None, gt=0, description="heads of keys and values; default: n_heads"
    )
    n_decoder_kv_heads: int | None = Field(
        None, gt=0, description="of the decoder; default: n_kv_heads"
    )
    d_head: int | None = Field(
        None, gt=0, description="width of a head; default: d_model / n_heads"
    )
    d_decoder_head: int | None = Field(
        None, gt=0, description="d_head of the decoder; default: d_head"
    )
    d_value: int | None = Field(
        None, gt=0, description="width of a value (d_v); default: that of a head (d_k)"
    )
    d_ff: int = Field(2048, gt=0)
    d_decoder_ff: int | None = Field(None, gt=0, description="d_ff of the decoder; default: d_ff")
    token_projection: bool = Field(
        False,
        description="d_embedding: only tokens are projected, without bias, and states back to "
        "it for the heads",
    )
    block_of_layer: tuple[int, ...] | None = Field(
        None, strict=False, description="block of each layer"
    )

    # Embeddings and positions
    positions: Annotated[Positions, OrRegistered] = "sinusoidal"
    learned_positions: bool = Field(
        False, description="relative, disentangled: add learned positions too"
    )
    position_offset: int = Field(
        0, ge=0, description="learned, sinusoidal: row of the table for position 0"
    )
    scale_embeddings: bool = Field(True, description="multiply embeddings by sqrt(d_model)")
    embedding_scale: float | None = Field(None, gt=0, description="another factor of embeddings")
    embedding_scale_rounded: bool = Field(
        False, description="round the factor to the precision of the model"
    )
    embedding_norm: bool = Field(False, description="normalize the sum of the embeddings")
    n_token_types: int = Field(0, ge=0, description="kinds of segments, each with an embedding")
    separator_id: int | None = Field(
        None, ge=0, description="segments are 1 after the first such token"
    )
    word_matches: bool = Field(
        False,
        description="encoder, pairs of texts: an embedding of whether the word of a token, or its "
        "first four letters, also stands in the other text",
    )
    rotary_width: int | None = Field(
        None, gt=0, description="rotated dimensions of a head; default: all"
    )
    rotary_pairs: Literal["halves", "interleaved"] = Field(
        "halves", description="rotate dimension i with i + width / 2, or neighbours together"
    )
    rotary_theta: float = Field(10_000.0, gt=0, description="base of the frequencies")
    rotary_local_theta: float | None = Field(
        None,
        gt=0,
        description="base in layers with a window, without scaling; default: as in other layers",
    )
    rotary_pattern: tuple[Literal["rotary", "none"], ...] = Field(
        ("rotary",),
        strict=False,
        min_length=1,
        description="layers with and without positions, repeated",
    )
    relative_buckets: int = Field(
        32, gt=1, description="relative, disentangled: buckets of distances"
    )
    relative_distance: int = Field(
        128, gt=1, description="relative, disentangled: larger ones share a bucket"
    )
    relative_log: bool = Field(
        True,
        description="disentangled: far distances share buckets; else each has one, up to half "
        "of them",
    )
    relative_scores: Literal["both", "content-to-position", "position-to-content"] = Field(
        "both", description="disentangled: which scores are added to those of content"
    )
    relative_shared: bool = Field(
        False, description="disentangled: q_proj and k_proj also project distances"
    )
    relative_norm: bool = Field(
        False, description="disentangled: normalize the vectors of distances"
    )
    relative_clamp: int | None = Field(
        None,
        gt=0,
        description="relative-sinusoidal: largest distance that is distinguished; default: none",
    )
    segment_offsets: bool = Field(
        False,
        description="relative-sinusoidal: scores depend on whether query and key share a segment",
    )
    query_stream: bool = Field(
        False, description="relative-sinusoidal: learned input of a query stream"
    )
    alibi_scale: float = Field(1.0, gt=0, description="alibi: factor of the offsets")
    alibi_rounded: bool = Field(False, description="alibi: round slopes and offsets to bfloat16")
    axial_shape: Pair | None = Field(
        None, strict=False, description="axial: rows and columns of positions"
    )
    axial_widths: Pair | None = Field(
        None, strict=False, description="axial: widths of a row and a column"
    )
    image_size: tuple[int, int] | None = Field(
        None, strict=False, description="height and width in pixels"
    )
    patch_size: tuple[int, int] | None = Field(
        None, strict=False, description="patch height and width"
    )
    n_channels: int = Field(3, gt=0, description="channels of a pixel")
    stem: tuple[PositiveInt, ...] = Field(
        (),
        strict=False,
        description="channels of 3 x 3 convolutions before the patches; one with more than the "
        "one before has stride 2",
    )

    # Blocks
    residual: Annotated[Residual, OrRegistered] = Field(
        "sequential",
        description="attention, then feed-forward; parallel (one norm or two); in two streams",
    )
    norm: Literal["layer", "rms"] = "layer"
    norm_weight: Literal["plain", "plus-one", "none"] = Field(
        "plain", description="rms: the factor of normalized states is w, 1 + w, or 1"
    )
    norm_placement: Literal["post", "pre", "sandwich", "exit"] = "post"
    first_norm: bool = Field(True, description="pre: whether the first layer normalizes its input")
    residual_scale: float = Field(1.0, gt=0, description="factor of the outputs of sub-layers")
    norm_epsilon: float = Field(1e-5, gt=0)
    norm_bias: bool = Field(True, description="biases of layer norms; RMS norms have none")
    encoder_final_norm: bool | None = Field(
        None, description="whether a norm ends the encoder; default: unless norm_placement is post"
    )
    decoder_final_norm: bool | None = Field(None, description="the same for the decoder")
    activation: Activation = "relu"
    gated: bool = Field(False, description="activation(gate_proj x) times in_proj x")
    gate_limit: float | None = Field(
        None, gt=0, description="gated: clamp both factors; add 1 to in_proj x"
    )
    feed_forward_bias: bool = True

    # Attention
    attention_bias: bool = Field(False, description="biases of all projections of attention")
    attention_out_bias: bool | None = Field(
        None, description="bias of o_proj; default: attention_bias"
    )
    attention: Annotated[AttentionKind, OrRegistered] = Field(
        "softmax",
        description="weights of self-attention: softmax, or of (almost) linear cost in the length",
    )
    n_features: int = Field(128, gt=0, description="favor: random features of a head")
    rank: int = Field(256, gt=0, description="low-rank: mixtures of keys")
    span_keys: int = Field(
        16, gt=0, description="spans: keys of each level on each side of a token"
    )
    qk_norm: Literal["head", "width"] | None = Field(
        None, description="norm of queries and keys, of each head or over all of them"
    )
    attention_sinks: bool = Field(
        False, description="a learned score per head that attends to nothing"
    )
    attention_scale: float | None = Field(
        None,
        gt=0,
        description="factor of scores; default: 1/√d_head, disentangled: 1/√(n·d_head) for n "
        "products",
    )
    attention_scale_by_layer: bool = Field(False, description="divide scores by the layer number")
    score_soft_cap: float | None = Field(None, gt=0, description="scores s become c·tanh(s / c)")
    sliding_window: int | None = Field(
        None,
        gt=0,
        description="a query's keys: itself and those before it (in an encoder also after it)",
    )
    decoder_window: int | None = Field(
        None, ge=0, description="0 for none; default: sliding_window"
    )
    global_tokens: Literal["none", "first", "question", "answer"] = Field(
        "none",
        description="tokens of an encoder that attend to all and that all attend to, beside the "
        "window: the first, "
        "those before the first end-of-sentence token, or those after the second one",
    )
    global_projections: bool = Field(
        False, description="global tokens have projections of their own"
    )
    summary_block: int | None = Field(
        None,
        gt=0,
        description="encoder: tokens of a block; queries also attend to the summaries of blocks",
    )
    window_pattern: tuple[Literal["local", "global"] | int, ...] = Field(
        ("local",),
        strict=False,
        min_length=1,
        description="repeated: the window, none, or one of that size",
    )

    # Heads
    heads: tuple[Head, ...] | None = Field(
        None, strict=False, description="default: lm with a decoder"
    )
    tie_lm_head: bool = Field(True, description="the output projection shares the target embedding")
    lm_head_bias: bool = False
    lm_head_transform: Activation | None = Field(None, description="dense layer, activation, norm")
    logits_scale: float = Field(
        1.0, gt=0, description="factor of states before the output projection"
    )
    logit_soft_cap: float | None = Field(None, gt=0, description="logits z become c·tanh(z / c)")
    pooler_activation: Activation = Field("tanh", description="after the dense layer of the pooler")
    pooler_width: int | None = Field(None, gt=0, description="pooler's width; default: d_model")
    n_labels: int = Field(2, gt=0, le=MAX_CLASSES, description="classes of sequences or tokens")
    label_names: tuple[str, ...] | None = Field(
        None, strict=False, description="default: LABEL_0, …"
    )
    problem_type: ProblemType | None = Field(
        None,
        description="meaning of class logits: a number, one class (default), or any number of "
        "classes",
    )
    classifier_input: Literal["pooler", "first", "last", "eos", "mean", "mean-logits"] = Field(
        "first",
        description="state that represents the sequence: of a token, the pooler's vector, or "
        "the mean; or the mean of "
        "the logits of all tokens",
    )
    starts_with_last: bool = Field(
        False, description="without a target, the decoder reads the source after its last token"
    )
    classifier_transform: Activation | None = Field(
        None, description="dense layer and activation before it"
    )
    token_transform: Activation | None = Field(
        None, description="dense layer and activation before the classes of tokens and spans"
    )
    span_layer: bool = Field(
        False, description="a feed-forward sub-layer before the scores of spans"
    )
    transform_norm: bool = Field(False, description="a norm after the dense layer of classifiers")
    transform_bias: bool = Field(True, description="bias of the dense layer before logits")
    classifier_bias: bool = Field(True, description="bias of the sequence classifier")
    boundary_positions: int = Field(
        20, gt=0, description="boundary: distinct positions in a masked span"
    )
    boundary_width: int = Field(200, gt=0, description="boundary: width of position embeddings")

    # Dropout
    dropout: float = Field(0.1, ge=0, lt=1, description="on embedding sums and sub-layer outputs")
    embedding_dropout: float | None = Field(None, ge=0, lt=1, description="default: dropout")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="on attention weights")
    activation_dropout: float = Field(0.0, ge=0, lt=1, description="inside the feed-forward")
    classifier_dropout: float | None = Field(
        None, ge=0, lt=1, description="of heads; default: dropout"
    )

    # Special tokens
    pad_id: int = Field(0, ge=0)
    bos_id: int = Field(1, ge=0)
    eos_id: int = Field(2, ge=0)
    decoder_start_id: int | None = Field(
        None, ge=0, description="first decoder token; default: bos_id"
    )

    @property
    def head_width(self) -> int:
        return self.d_head or self.d_model // self.n_heads

    @property
    def value_width(self) -> int:
        return self.d_value or self.head_width

    @property
    def kv_heads(self) -> int:
        return self.n_kv_heads or self.n_heads

    @property
    def embedding_width(self) -> int:
        return self.d_embedding or self.d_model

    @property
    def embedding_factor(self) -> float:
        """The factor of embeddings."""
        if self.embedding_scale is not None:
            return self.embedding_scale
        if self.scale_embeddings:
            return math.sqrt(self.d_model)
        return 1.0

    @property
    def has_embedding_projection(self) -> bool:
        """Whether embeddings are projected to d_model, even if both have the same width."""
        return self.d_embedding is not None

    @property
    def sum_width(self) -> int:
        """The width in which embeddings, positions and segments are added."""
        return self.d_model if self.token_projection else self.embedding_width

    @property
    def stream_width(self) -> int:
        """The width of the states between blocks, which may pass on several."""
        return chosen("block", self).streams * self.d_model

    @property
    def state_width(self) -> int:
        """The width of the states that heads read."""
        return self.embedding_width if self.token_projection else self.stream_width

    @property
    def pooled_width(self) -> int:
        """The width of the pooler's vector."""
        return self.pooler_width or self.d_model

    @property
    def output_width(self) -> int:
        """The width of the rows of the output projection: of embeddings, if it is their table or
        if a transform turns states into such vectors.
        """
        if self.tie_lm_head or self.lm_head_transform is not None:
            return self.embedding_width
        return self.state_width

    @property
    def rotated_width(self) -> int:
        """Dimensions of a head that are rotated; 0 if positions are not rotary."""
        return chosen("attention", self).rotated_width(self)

    @property
    def position_terms(self) -> int:
        """Products with vectors of distances that are added to a score."""
        return chosen("scores", self).terms(self)

    @property
    def out_bias(self) -> bool:
        return _or_default(self.attention_out_bias, self.attention_bias)

    @property
    def encoder_layers(self) -> int:
        return 0 if self.shape == "decoder" else self.n_layers

    @property
    def decoder_layers(self) -> int:
        if self.shape == "encoder":
            return 0
        return self.n_decoder_layers or self.n_layers

    @property
    def expert_layers(self) -> int:
        """Layers of all stacks with experts."""
        return chosen("feed_forward", self).recorded_layers(self)

    @property
    def output_vocab_size(self) -> int:
        return self.target_vocab_size or self.vocab_size

    @property
    def start_id(self) -> int:
        return _or_default(self.decoder_start_id, self.bos_id)

    @property
    def chosen_heads(self) -> tuple[Head, ...]:
        """`heads`, or the default: lm if there is a decoder."""
        if self.heads is not None:
            return self.heads
        if self.decoder_layers:
            return ("lm",)
        return ()

    @property
    def head_dropout(self) -> float:
        """The probability of dropout in heads of classes."""
        return _or_default(self.classifier_dropout, self.dropout)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.label_names or tuple(f"LABEL_{number}" for number in range(self.n_labels))

    @property
    def patch_grid(self) -> tuple[int, int] | None:
        """Rows and columns of the patches of an image; None for text."""
        if self.image_size is None or self.patch_size is None:
            return None
        (height, width), (patch_height, patch_width) = self.image_size, self.patch_size
        return height // patch_height, width // patch_width

    @property
    def n_patches(self) -> int:
        """Patches of an image; 0 for text."""
        return prod(self.patch_grid or (0,))

    @property
    def reads_segments(self) -> bool:
        """Whether states depend on the kinds of segments of tokens."""
        return self.n_token_types > 1 or chosen("scores", self).reads_segments(self)

    @property
    def stem_layers(self) -> list[tuple[int, int, int]]:
        """Input channels, output channels and stride of each convolution."""
        strides = [1, *(1 + (before < after) for before, after in pairwise(self.stem))]
        return list(zip((self.n_channels, *self.stem), self.stem, strides, strict=False))

    @property
    def patch_shape(self) -> tuple[int, ...]:
        """Channels, height and width of a patch after the stem."""
        channels = (self.n_channels, *self.stem)[-1]
        stride = prod(stride for *_, stride in self.stem_layers)
        height, width = self.patch_size or (0, 0)
        return channels, height // stride, width // stride

    @property
    def decoder_side(self) -> Self:
        """The config with the decoder's sizes in place of the encoder's (DECODER_SIZES), and its
        sliding_window.
        """
        changes = {
            size: getattr(self, decoder_size) or getattr(self, size)
            for decoder_size, size in DECODER_SIZES.items()
        }
        window = _or_default(self.decoder_window, self.sliding_window)
        changes["sliding_window"] = window or None  # decoder_window: 0 means none
        return self.model_copy(update=changes | self._encoder_choices())

    def _encoder_choices(self) -> dict[str, Any]:
        """The settings that only encoders have, with their defaults: those that choose a part which
        needs a shape with an encoder. Settings with a value for each of several parts stay.
        """
        fields = type(self).model_fields
        choices = {}
        for part in registered():
            is_for_encoders = "shape" in part.needs and "decoder" not in part.needs["shape"]
            if is_for_encoders and not part.value and part.key in fields:
                choices[part.key] = fields[part.key].default
        return choices

    @property
    def stacks(self) -> dict[str, Self]:
        """The stacks of this shape, "encoder" and "decoder", each with its sizes."""
        stacks = {}
        if self.encoder_layers:
            stacks["encoder"] = self
        if self.decoder_layers:
            stacks["decoder"] = self.decoder_side
        return stacks

    @property
    def output_side(self) -> Self:
        """The config with the sizes of the last stack, whose states heads read."""
        return self.decoder_side if self.decoder_layers else self

    def has_final_norm(self, side: Literal["encoder", "decoder"]) -> bool:
        """Whether a stack ends with a norm; by default it does if its layers do not."""
        settings = {"encoder": self.encoder_final_norm, "decoder": self.decoder_final_norm}
        return _or_default(settings[side], self.norm_placement != "post")

    def window(self, layer: int) -> int | None:
        """The size w of the window of that layer: a query attends to w keys, or to w - 1 on each
        side of itself without causality. None: all.
        """
        own = self.window_pattern[layer % len(self.window_pattern)]
        if self.sliding_window is None or own == "global":
            return None
        if own == "local":
            return self.sliding_window
        return own

    def rotates(self, layer: int) -> bool:
        """Whether queries and keys of that layer are rotated, if positions are rotary."""
        return self.rotary_pattern[layer % len(self.rotary_pattern)] == "rotary"
