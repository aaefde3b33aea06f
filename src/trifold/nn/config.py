"""ModelConfig: every variant of the Transformer as plain values.

A family or a preset is nothing but one of these; `nn` picks its parts by looking the values up and never
asks for a family's name. The defaults are the base model of "Attention Is All You Need" (Vaswani et al. 2017).
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from trifold.nn.contradictions import contradiction
from trifold.settings import Settings

Shape = Literal["encoder-decoder", "encoder", "decoder"]
Positions = Literal[
    "sinusoidal", "sinusoidal-halves", "learned", "rotary", "relative", "relative-sinusoidal", "alibi", "none"
]
Activation = Literal["relu", "gelu", "gelu-tanh", "quick-gelu", "silu", "tanh"]
Head = Literal["lm", "pooler", "next-sentence", "sequence", "token", "span", "boundary"]
ProblemType = Literal["regression", "single_label_classification", "multi_label_classification"]
Factors = tuple[Annotated[float, Field(gt=0)], ...]


class RotaryScaling(Settings):
    """How rotary positions were stretched to a longer text than `original_positions`, the one first trained on."""

    kind: Literal["linear", "dynamic", "yarn", "llama3", "longrope"] = Field(
        description="which waves, and by how much"
    )
    factor: float = Field(ge=1, description="how many times longer")
    original_positions: int = Field(gt=0, description="positions of the first training")
    low_frequency: float = Field(1.0, gt=0, description="llama3: turns below which a wave is stretched whole")
    high_frequency: float = Field(4.0, gt=0, description="llama3: turns above which it is left as it was")
    beta_fast: float = Field(32.0, gt=0, description="yarn: turns above which a wave is left as it was")
    beta_slow: float = Field(1.0, gt=0, description="yarn: turns below which it is stretched whole")
    round_bounds: bool = Field(True, description="yarn: the bounds between are whole numbers")
    short_factors: Factors | None = Field(
        None, strict=False, description="longrope: what each wave is divided by in texts of the first length"
    )
    long_factors: Factors | None = Field(None, strict=False, description="longrope: … and in longer ones")
    magnitude: float | None = Field(
        None,
        gt=0,
        description="yarn, longrope: waves times this; what their papers say of the factor unless given",
    )


class ModelConfig(Settings):
    """Sizes and choices of one Transformer. Derived numbers are properties; nothing is ever overwritten."""

    shape: Shape = "encoder-decoder"

    # Sizes
    vocab_size: int = Field(
        37_000, gt=0, description="source vocabulary, and the target's unless that is given"
    )
    target_vocab_size: int | None = Field(None, gt=0, description="a target vocabulary of its own")
    max_positions: int = Field(1024, gt=0, description="longest sequence, in tokens")
    d_model: int = Field(512, gt=0)
    d_embedding: int | None = Field(
        None,
        gt=0,
        description="width of the embeddings, which a matrix turns into d_model; none unless given",
    )
    n_layers: int = Field(6, gt=0, description="layers of each stack")
    n_decoder_layers: int | None = Field(None, gt=0, description="layers of the decoder, where they differ")
    n_heads: int = Field(8, gt=0)
    n_decoder_heads: int | None = Field(None, gt=0, description="heads of the decoder, where they differ")
    n_kv_heads: int | None = Field(None, gt=0, description="heads of keys and values; fewer share them")
    d_head: int | None = Field(None, gt=0, description="width of a head; d_model / n_heads unless given")
    d_ff: int = Field(2048, gt=0)
    d_decoder_ff: int | None = Field(None, gt=0, description="d_ff of the decoder, where it differs")
    block_of_layer: tuple[int, ...] | None = Field(
        None,
        strict=False,
        description="which block works in each layer; every layer has its own unless given",
    )

    # Embeddings and positions
    positions: Positions = "sinusoidal"
    position_offset: int = Field(0, ge=0, description="learned: rows of the table before that of position 0")
    scale_embeddings: bool = Field(True, description="embeddings times sqrt(d_model)")
    embedding_norm: bool = Field(False, description="a norm on the sum of the embeddings")
    n_token_types: int = Field(0, ge=0, description="kinds of segments, each with an embedding")
    rotary_width: int | None = Field(None, gt=0, description="part of a head that turns; all unless given")
    rotary_pairs: Literal["halves", "interleaved"] = Field(
        "halves", description="dimension i turns with i + width / 2, or neighbours turn together"
    )
    rotary_theta: float = Field(10_000.0, gt=0, description="base of the wave lengths")
    rotary_scaling: RotaryScaling | None = Field(
        None, description="how they were stretched to longer texts than at first"
    )
    relative_buckets: int = Field(32, gt=1, description="relative: classes of distances with an offset each")
    relative_distance: int = Field(128, gt=1, description="relative: from here on all distances are alike")
    relative_clamp: int | None = Field(
        None,
        gt=0,
        description="relative-sinusoidal: from here on all distances are alike; nowhere unless given",
    )
    segment_offsets: bool = Field(
        False, description="relative-sinusoidal: it matters whether a key is of the query's segment"
    )
    query_stream: bool = Field(
        False, description="relative-sinusoidal: a learnt vector to ask with for tokens that are not seen"
    )
    alibi_scale: float = Field(1.0, gt=0, description="alibi: offsets times this")
    alibi_rounded: bool = Field(False, description="alibi: slopes and offsets rounded to bfloat16")
    image_size: tuple[int, int] | None = Field(
        None, strict=False, description="height and width of a picture in pixels"
    )
    patch_size: tuple[int, int] | None = Field(
        None, strict=False, description="height and width of the patches that are read instead of tokens"
    )
    n_channels: int = Field(3, gt=0, description="colours of a pixel")

    # Blocks
    residual: Literal["sequential", "parallel", "parallel-two-norms"] = Field(
        "sequential", description="attention, then feed-forward; or both on one input, with one norm or two"
    )
    norm: Literal["layer", "rms"] = "layer"
    norm_placement: Literal["post", "pre", "sandwich"] = "post"
    norm_epsilon: float = Field(1e-5, gt=0)
    norm_bias: bool = Field(True, description="of layer norms; RMS norms have none")
    encoder_final_norm: bool | None = Field(
        None, description="a norm after the last layer; only where none stands behind it unless given"
    )
    decoder_final_norm: bool | None = Field(None, description="the same of the decoder")
    activation: Activation = "relu"
    gated: bool = Field(False, description="activation(x·gate) times x·in, in the feed-forward")
    feed_forward_bias: bool = True

    # Attention
    attention_bias: bool = Field(False, description="of queries, keys and values, and of the output")
    attention_out_bias: bool | None = Field(None, description="of the output alone, where it differs")
    attention_scale: float | None = Field(
        None, gt=0, description="scores times this; 1 / sqrt(d_head) unless given"
    )
    attention_scale_by_layer: bool = Field(
        False, description="… and divided by the number of the layer, from 1"
    )
    score_soft_cap: float | None = Field(None, gt=0, description="scores s become c·tanh(s / c)")
    sliding_window: int | None = Field(
        None, gt=0, description="keys that a query sees: itself and those before (an encoder: and behind) it"
    )
    window_pattern: tuple[Literal["local", "global"], ...] = Field(
        ("local",), strict=False, min_length=1, description="layers with the window and without, repeated"
    )

    # Heads
    heads: tuple[Head, ...] | None = Field(
        None, strict=False, description="what is made of the hidden states; lm where there is a decoder"
    )
    tie_lm_head: bool = Field(True, description="the output projection is the target embedding")
    lm_head_bias: bool = False
    lm_head_transform: Activation | None = Field(
        None, description="a dense layer, this activation and a norm before the output projection"
    )
    logits_scale: float = Field(
        1.0, gt=0, description="hidden states times this before the output projection"
    )
    logit_soft_cap: float | None = Field(None, gt=0, description="logits z become c·tanh(z / c)")
    pooler_activation: Activation = Field("tanh", description="after the dense layer on the first state")
    pooler_width: int | None = Field(None, gt=0, description="d_model unless given")
    n_labels: int = Field(2, gt=0, description="classes of sequences or tokens")
    label_names: tuple[str, ...] | None = Field(
        None, strict=False, description="names of the classes; LABEL_0, LABEL_1, … unless given"
    )
    problem_type: ProblemType | None = Field(
        None,
        description="what the logits of classes mean: a number, one class (unless given), or any number of classes",
    )
    classifier_input: Literal["pooler", "first", "last", "eos"] = Field(
        "first", description="which state stands for the sequence: of a token, or the pooler's"
    )
    classifier_transform: Activation | None = Field(
        None, description="a dense layer and this activation before the classes of sequences"
    )
    classifier_bias: bool = Field(True, description="of the layer that gives the classes of sequences")
    boundary_positions: int = Field(
        20,
        gt=0,
        description="boundary: places of a hidden span, from its first token on, that are told apart",
    )
    boundary_width: int = Field(200, gt=0, description="boundary: of the embeddings of these places")

    # Dropout
    dropout: float = Field(0.1, ge=0, lt=1, description="on embedding sums and sub-layer outputs")
    embedding_dropout: float | None = Field(
        None, ge=0, lt=1, description="on embedding sums, where it differs"
    )
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="on attention weights")
    activation_dropout: float = Field(0.0, ge=0, lt=1, description="inside the feed-forward")
    classifier_dropout: float | None = Field(
        None, ge=0, lt=1, description="in front of heads' layers; dropout unless given"
    )

    # Special tokens
    pad_id: int = Field(0, ge=0)
    bos_id: int = Field(1, ge=0)
    eos_id: int = Field(2, ge=0)
    decoder_start_id: int | None = Field(None, ge=0, description="first decoder token; bos_id unless given")

    @property
    def head_width(self) -> int:
        return self.d_head or self.d_model // self.n_heads

    @property
    def kv_heads(self) -> int:
        return self.n_kv_heads or self.n_heads

    @property
    def embedding_width(self) -> int:
        return self.d_embedding or self.d_model

    @property
    def has_embedding_projection(self) -> bool:
        """Whether a matrix stands between the embeddings and the first layer, even of one width with it."""
        return self.d_embedding is not None

    @property
    def rotated_width(self) -> int:
        """Dimensions of a head that turn; 0 where positions are not rotary."""
        return (self.rotary_width or self.head_width) if self.positions == "rotary" else 0

    @property
    def out_bias(self) -> bool:
        return self.attention_bias if self.attention_out_bias is None else self.attention_out_bias

    @property
    def encoder_layers(self) -> int:
        return 0 if self.shape == "decoder" else self.n_layers

    @property
    def decoder_layers(self) -> int:
        return 0 if self.shape == "encoder" else self.n_decoder_layers or self.n_layers

    @property
    def output_vocab_size(self) -> int:
        return self.target_vocab_size or self.vocab_size

    @property
    def start_id(self) -> int:
        return self.bos_id if self.decoder_start_id is None else self.decoder_start_id

    @property
    def chosen_heads(self) -> tuple[Head, ...]:
        """What `heads` says, or what goes without saying: a decoder writes."""
        return self.heads if self.heads is not None else ("lm",) if self.decoder_layers else ()

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.label_names or tuple(f"LABEL_{number}" for number in range(self.n_labels))

    @property
    def n_patches(self) -> int:
        """Patches of a picture; 0 for text."""
        if self.image_size is None or self.patch_size is None:
            return 0
        (height, width), (tall, wide) = self.image_size, self.patch_size
        return (height // tall) * (width // wide)

    @property
    def decoder_side(self) -> ModelConfig:
        """The same with the decoder's sizes in the place of the encoder's."""
        return self.model_copy(
            update={
                "n_layers": self.decoder_layers,
                "n_heads": self.n_decoder_heads or self.n_heads,
                "d_ff": self.d_decoder_ff or self.d_ff,
            }
        )

    @property
    def stacks(self) -> dict[str, ModelConfig]:
        """The stacks of this shape by name, "encoder" and "decoder", each with its sizes."""
        both = {
            "encoder": (self.encoder_layers, self),
            "decoder": (self.decoder_layers, self.decoder_side),
        }
        return {side: sized for side, (layers, sized) in both.items() if layers}

    def has_final_norm(self, side: Literal["encoder", "decoder"]) -> bool:
        """Whether that stack ends in a norm: as said, or where its layers leave their sum without one."""
        said = self.encoder_final_norm if side == "encoder" else self.decoder_final_norm
        return self.norm_placement != "post" if said is None else said

    def window(self, layer: int) -> int | None:
        """The keys that a query of that layer sees; None: all."""
        local = self.window_pattern[layer % len(self.window_pattern)] == "local"
        return self.sliding_window if local else None

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        if (problem := contradiction(self)) is not None:
            raise ValueError(problem)
        return self


# Vaswani et al. 2017, table 3; the counts by formula are in docs and tests.
PRESETS: dict[str, ModelConfig] = {
    "transformer-base": ModelConfig(),
    "transformer-big": ModelConfig(d_model=1024, n_heads=16, d_ff=4096, dropout=0.3),
    # Wu et al. 2021 ("Transformer-Tiny" of the Multi30k literature).
    "transformer-tiny": ModelConfig(
        vocab_size=9_700, d_model=128, n_layers=4, n_heads=4, d_ff=256, dropout=0.3
    ),
}
