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
from trifold.hub.rows import ACTIVATIONS, SIZE, Ends, Entry, Fields, ids, resized, row, rows, same
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
    return {"shape": "encoder", "sliding_window": None if window is None else window // 2 + 1}


def _save_direction(config: ModelConfig) -> Fields:
    window = config.sliding_window
    encodes = config.shape == "encoder"
    both = {"sliding_window": max(1, 2 * (window - 1))} if encodes and window is not None else {}
    return {"use_bidirectional_attention": encodes, **both}


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
        raise SettingsError(f"{side}.{error}") from None


def _load_stacks(file: Any, fields: Fields) -> Fields:
    encoder = _read_stack(file, "encoder")
    decoder = _read_stack(file, "decoder")
    decodes = fields["shape"] == "encoder-decoder"
    if file.is_encoder_decoder not in (None, decodes):  # the class decides
        raise SettingsError(
            f"is_encoder_decoder: {file.is_encoder_decoder} is not supported for this class"
        )
    decoder = decoder if decodes else encoder
    keys = MODULE.write(encoder)
    others = MODULE.write(decoder)
    scale = (
        encoder.attention_scale or decoder.attention_scale
    )  # None: by the width of the own heads
    own = {*OWN, *IDS} | ({"query_pre_attn_scalar"} if scale is None else set())
    own |= {"max_position_embeddings"} if encoder.rotary_scaling is None else set()
    for key, value in keys.items():
        if key not in own and others[key] != value:
            raise SettingsError(
                f"decoder.{key}: {others[key]} differs from that of the encoder, {value}; this "
                "is not supported"
            )
    window = encoder.sliding_window
    decoder_window = decoder.sliding_window
    if any(
        one != other for one, other in zip(keys["layer_types"], others["layer_types"], strict=False)
    ):
        if window is None or decoder_window is not None:
            raise SettingsError(
                "decoder.layer_types: differs from that of the encoder; this is not supported"
            )
        decoder_window = 0
        pattern = encoder.window_pattern
    else:
        window, decoder_window = window or decoder_window, decoder_window or window
        pattern = max(encoder, decoder, key=lambda stack: stack.n_layers).window_pattern
    found = {name: value for name, value in encoder if name not in fields}
    found |= {
        "n_kv_heads": encoder.kv_heads,
        "d_head": encoder.head_width,
        "attention_scale": scale,
        # The encoder's tokens also attend to keys at that distance.
        "sliding_window": None if window is None else window + 1,
        "window_pattern": pattern,
        "logit_soft_cap": decoder.logit_soft_cap,
        **{ours: getattr(decoder, ours) for ours in IDS.values()},
    }
    for key, ours in IDS.items():
        if (given := getattr(file, key)) is not None:
            found[ours] = given[0] if isinstance(given, list) else given
    if not decodes:
        return found
    explicit = with_defaults(decoder)
    found |= {own: getattr(explicit, ours) for own, ours in DECODER_SIZES.items()}
    return found | {"target_vocab_size": decoder.vocab_size, "decoder_window": decoder_window}


def _save_stacks(config: ModelConfig) -> Fields:
    decodes = config.shape == "encoder-decoder"
    window = config.sliding_window
    alone: Fields = {"shape": "decoder", "heads": (), **dict.fromkeys(DECODER_SIZES)}
    encoder = config.model_copy(
        update=alone | {"sliding_window": None if window is None else window - 1}
    )
    decoder = config.decoder_side.model_copy(
        update=alone | {"vocab_size": config.output_vocab_size}
    )
    sides = {"encoder": encoder, "decoder": decoder if decodes else encoder}
    kind = {"model_type": MODULE.model_type}
    keys = {
        side: MODULE.write(own) | kind | {"is_decoder": side == "decoder"}
        for side, own in sides.items()
    }
    keys |= {key: getattr(config, ours) for key, ours in IDS.items()}
    return keys | {"vocab_size": config.output_vocab_size, "is_encoder_decoder": decodes}


ENCODER: Fields = {"shape": "encoder"}
T5GEMMA = Family(
    model_type="t5gemma",
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
