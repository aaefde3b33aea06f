"""Gemma (Gemma Team 2024): LLaMA with scaled embeddings, norms times 1 + weight, wide heads and a
GELU.

Gemma 2 (Gemma Team 2024) has norms on both sides of each sub-layer, soft caps of scores and logits,
and a window in every second layer. Gemma 3 (Gemma Team 2025) has norms of queries and keys instead
of the soft cap of scores, a window in five of six layers, and there another base of positions; with
bidirectional attention it is the encoder of EmbeddingGemma (Schechter Vera et al. 2025). T5Gemma
(Zhang et al. 2025) is an encoder-decoder of two Gemma 2.
"""

from dataclasses import replace
from typing import Any, Literal

from trifold.errors import SettingsError
from trifold.hub.families import llama
from trifold.hub.families.gpt import CLASSES, classes
from trifold.hub.family import LABELED, STACK, Family, TensorRules, with_defaults
from trifold.hub.rope import layered_rope, windows
from trifold.hub.rows import (
    ACTIVATIONS,
    SIZE,
    Ends,
    Entry,
    Fields,
    first_id,
    ids,
    resized,
    row,
    rows,
    same,
)
from trifold.nn import ModelConfig
from trifold.nn.config import DECODER_SIZES

# The first files have "gelu", but the model was trained with the approximation.
GELU = {name: ours for name, ours in ACTIVATIONS.items() if name != "gelu"} | {"gelu": "gelu-tanh"}


def _check_activation(file: Any, fields: Fields) -> Fields:
    """A second key of the same meaning, in some files."""
    if (
        file.hidden_activation is not None
        and GELU.get(file.hidden_activation) != fields["activation"]
    ):
        raise SettingsError(f"hidden_activation: {file.hidden_activation!r} contradicts hidden_act")
    return {}


GEMMA = llama.UNBIASED.related(
    "gemma",
    row("hidden_act", "activation", "gelu_pytorch_tanh", map=GELU),
    Entry({"hidden_activation": (str | None, None)}, _check_activation),
    row("head_dim", "d_head", 256),
    Entry({"use_bidirectional_attention": (Literal[False] | None, None)}),
    ids(pad=0, bos=2, eos=1),
    classes=classes("ForQuestionAnswering"),
    constants={
        "scale_embeddings": True,
        "embedding_scale_rounded": True,
        "norm_weight": "plus-one",
    },
    tie_word_embeddings=True,
    **resized(
        vocab=256000, width=3072, inner=24576, layers=28, heads=16, kv_heads=16, positions=8192
    ),
)

# --- Gemma 2 --------------------------------------------------------------------------------------

WINDOWS = windows(4096, every=2)
NORMS = {
    "self_attention.exit": "post_attention_layernorm",
    "feed_forward.enter": "pre_feedforward_layernorm",
    "feed_forward.exit": "post_feedforward_layernorm",
    **llama.QK_NORMS,  # Gemma 3
}
GEMMA2 = GEMMA.related(
    "gemma2",
    row("hidden_activation", "activation", "gelu_pytorch_tanh"),
    row(
        "query_pre_attn_scalar",
        "attention_scale",
        256,
        kind=SIZE,
        load=lambda scalar, fields: float(scalar**-0.5),
        save=lambda scale: round(scale**-2),
    ),
    row("attn_logit_softcapping", "score_soft_cap", 50.0, nullable=True),
    row("final_logit_softcapping", "logit_soft_cap", 30.0, nullable=True),
    # The pattern is not a key of this family.
    replace(WINDOWS, keys=WINDOWS.keys | {"sliding_window_pattern": (Literal[2] | None, None)}),
    Entry({}, save=llama.check_width),
    constants={"norm_placement": "sandwich"},
    rules=llama.RULES.related(NORMS),
    # Of older files; `transformers` does not read them.
    ignored="hidden_act sliding_window_size _attn_implementation",
    without="hidden_act",
    **resized(width=2304, inner=9216, layers=26, heads=8, kv_heads=4),
)

# --- Gemma 3 --------------------------------------------------------------------------------------


def _load_direction(file: Any, fields: Fields) -> Fields:
    """Without causality, the key of the window counts the keys on both sides."""
    if not file.use_bidirectional_attention:
        return {"shape": "decoder"}
    window = fields.get("sliding_window")
    if window is not None:
        window = window // 2 + 1
    return {"shape": "encoder", "sliding_window": window}


def _save_direction(config: ModelConfig) -> Fields:
    """The inverse of `_load_direction`."""
    encodes = config.shape == "encoder"
    keys: Fields = {"use_bidirectional_attention": encodes}
    if encodes and config.sliding_window is not None:
        keys["sliding_window"] = max(1, 2 * (config.sliding_window - 1))
    return keys


GEMMA3 = GEMMA2.related(
    "gemma3_text",
    layered_rope(1_000_000.0, 10_000.0),
    windows(4096, every=6),
    Entry({"use_bidirectional_attention": (bool | None, False)}, _load_direction, _save_direction),
    row("final_logit_softcapping", "logit_soft_cap", None),
    stem="Gemma3",
    classes={
        "ForCausalLM": CLASSES["ForCausalLM"],
        "TextModel": CLASSES["Model"],
        "TextForSequenceClassification": CLASSES["ForSequenceClassification"],
    },
    constants={"qk_norm": "head", "shape": same("shape")},
    # `transformers` does not read them.
    ignored="attn_logit_softcapping hidden_act _sliding_window_pattern",
    without="attn_logit_softcapping",
    **resized(vocab=262208, positions=131072),
)

# --- T5Gemma --------------------------------------------------------------------------------------

MODULE = GEMMA2.related(
    "t5_gemma_module",
    classes={"Model": {"heads": ()}},
    without="attention_dropout classifier_dropout tie_word_embeddings use_bidirectional_attention",
    # Those of the model apply, or follow from the rest.
    ignored="""
    attention_dropout classifier_dropout_rate cross_attention_hidden_size dropout_rate hidden_act
    tie_word_embeddings
    """,
)
IDS = {"pad_token_id": "pad_id", "bos_token_id": "bos_id", "eos_token_id": "eos_id"}
# Keys that may differ between the stacks.
OWN = """
    vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads
    num_key_value_heads head_dim sliding_window layer_types final_logit_softcapping
""".split()


def _read_stack(file: Any, side: str) -> ModelConfig:
    try:
        return MODULE.read(getattr(file, side) or {})
    except SettingsError as error:
        lines = str(error).splitlines()
        raise SettingsError("\n".join(f"{side}.{line}" for line in lines)) from None


def _load_stacks(file: Any, fields: Fields) -> Fields:
    """Our fields for the keys of both stacks, which must agree except for a few. An encoder alone
    has both in its file.
    """
    encoder = _read_stack(file, "encoder")
    decoder = _read_stack(file, "decoder")
    decodes = fields["shape"] == "encoder-decoder"
    if file.is_encoder_decoder not in (None, decodes):  # the class decides
        raise SettingsError(
            f"is_encoder_decoder: {file.is_encoder_decoder} is not supported for this class"
        )
    if not decodes:
        decoder = encoder
    scale = encoder.attention_scale or decoder.attention_scale
    encoder_keys = MODULE.write(encoder)
    decoder_keys = MODULE.write(decoder)
    _check_agreement(encoder, encoder_keys, decoder_keys, scale)
    layers = zip(encoder_keys["layer_types"], decoder_keys["layer_types"], strict=False)
    same_layers = all(of_encoder == of_decoder for of_encoder, of_decoder in layers)
    window, decoder_window, pattern = _load_windows(encoder, decoder, same_layers=same_layers)
    loaded = {name: value for name, value in encoder if name not in fields}
    loaded |= {
        "n_kv_heads": encoder.kv_heads,
        "d_head": encoder.head_width,
        "attention_scale": scale,
        # The encoder's tokens also attend to keys at that distance.
        "sliding_window": None if window is None else window + 1,
        "window_pattern": pattern,
        "logit_soft_cap": decoder.logit_soft_cap,
        **_load_ids(file, decoder),
    }
    if decodes:
        explicit = with_defaults(decoder)
        loaded |= {ours: getattr(explicit, shared) for ours, shared in DECODER_SIZES.items()}
        loaded |= {"target_vocab_size": decoder.vocab_size, "decoder_window": decoder_window}
    return loaded


def _check_agreement(
    encoder: ModelConfig, encoder_keys: Fields, decoder_keys: Fields, scale: float | None
) -> None:
    """Raise SettingsError for a key that differs and may not. scale: of both stacks; None if each
    has that of the width of its heads.
    """
    may_differ = {*OWN, *IDS}
    if scale is None:
        may_differ.add("query_pre_attn_scalar")
    if encoder.rotary_scaling is None:
        may_differ.add("max_position_embeddings")
    for key, value in encoder_keys.items():
        if key not in may_differ and decoder_keys[key] != value:
            raise SettingsError(
                f"decoder.{key}: {decoder_keys[key]} differs from that of the encoder, {value}; "
                "this is not supported"
            )


def _load_windows(
    encoder: ModelConfig, decoder: ModelConfig, *, same_layers: bool
) -> tuple[int | None, int | None, tuple[Any, ...]]:
    """The window of the encoder, that of the decoder, and the pattern of both.

    same_layers: whether the same layers have windows. If not, only the encoder may have windows.
    """
    window = encoder.sliding_window
    decoder_window = decoder.sliding_window
    if same_layers:
        longer = max(encoder, decoder, key=lambda stack: stack.n_layers)
        return window or decoder_window, decoder_window or window, longer.window_pattern
    if window is None or decoder_window is not None:
        raise SettingsError(
            "decoder.layer_types: differs from that of the encoder; this is not supported"
        )
    return window, 0, encoder.window_pattern


def _load_ids(file: Any, decoder: ModelConfig) -> Fields:
    """The special tokens of the model, or else those of the decoder."""
    tokens: Fields = {}
    for key, ours in IDS.items():
        given = first_id(getattr(file, key))
        tokens[ours] = getattr(decoder, ours) if given is None else given
    return tokens


def _save_stacks(config: ModelConfig) -> Fields:
    """The inverse of `_load_stacks`."""
    decodes = config.shape == "encoder-decoder"
    window = config.sliding_window
    alone: Fields = {"shape": "decoder", "heads": (), **dict.fromkeys(DECODER_SIZES)}
    encoder = config.model_copy(
        update=alone | {"sliding_window": None if window is None else window - 1}
    )
    decoder = encoder
    if decodes:
        sizes = {"vocab_size": config.output_vocab_size}
        decoder = config.decoder_side.model_copy(update=alone | sizes)
    kind = {"model_type": MODULE.model_type}
    return {
        "encoder": MODULE.write(encoder) | kind | {"is_decoder": False},
        "decoder": MODULE.write(decoder) | kind | {"is_decoder": True},
        **{key: getattr(config, ours) for key, ours in IDS.items()},
        "vocab_size": config.output_vocab_size,
        "is_encoder_decoder": decodes,
    }


ENCODER: Fields = {"shape": "encoder"}
T5GEMMA = Family(
    model_type="t5gemma",
    nested={"encoder": MODULE, "decoder": MODULE},
    stem="T5Gemma",
    classes={
        "ForConditionalGeneration": {"heads": ("lm",)},
        "Model": {"heads": ()},
        "EncoderModel": ENCODER | {"heads": ()},
        "ForSequenceClassification": ENCODER | {"heads": ("sequence",), "classifier_input": "last"},
        "ForTokenClassification": ENCODER | {"heads": ("token",)},
    },
    entries=(
        Entry(
            {
                "is_encoder_decoder": (bool | None, None),
                **dict.fromkeys(("encoder", "decoder"), (dict[str, Any] | None, None)),
                "vocab_size": (SIZE, 256000),  # nothing reads it
                **dict.fromkeys(IDS, (Ends | None, None)),
            },
            _load_stacks,
            _save_stacks,
        ),
        *rows(dropout=("dropout_rate", 0.0), attention_dropout=0.0),
        row("tie_word_embeddings", "tie_lm_head", True),
        row("classifier_dropout_rate", "classifier_dropout", 0.0, heads=LABELED, everywhere=True),
    ),
    constants=GEMMA2.constants
    | {"shape": "encoder-decoder", "activation_dropout": same("dropout")},
    rules=TensorRules(
        "model",
        ".{stack}.embed_tokens",
        {
            f"{STACK}.final_norm": ".{stack}.norm",
            "heads.{head:sequence|token}.out_proj": "score.out_proj",
            **llama.LAYER,
            **NORMS,
            "self_attention.enter": "pre_self_attn_layernorm",
            "self_attention.exit": "post_self_attn_layernorm",
            "cross_attention.enter": "pre_cross_attn_layernorm",
            "cross_attention.sublayer.{p:q|k|v|o}_proj": "cross_attn.{p}_proj",
            "cross_attention.exit": "post_cross_attn_layernorm",
        },
        layer=".{stack}.layers.{i}.",
        lm_head="lm_head.out_proj",
    ),
)
