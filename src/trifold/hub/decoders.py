"""What the families of decoders share: classes, heads, and GPT-2's keys."""

from __future__ import annotations

from trifold.hub.rows import ACTIVATIONS, Entry, Fields, Row, fixed, ids

DECODER: Fields = {"shape": "decoder", "norm_placement": "pre", "scale_embeddings": False}

CLASSES: dict[str, Fields] = {
    "ForCausalLM": {"heads": ("lm",)},
    "Model": {"heads": ()},
    "ForSequenceClassification": {
        "heads": ("sequence",),
        "classifier_input": "last",
        "classifier_bias": False,
        "classifier_dropout": 0.0,
    },
    "ForTokenClassification": {"heads": ("token",)},
    "ForQuestionAnswering": {"heads": ("span",), "classifier_dropout": 0.0},
}


def classes(*without: str, lm: str = "ForCausalLM") -> dict[str, Fields]:
    """The classes of a family that lacks some; `lm` is the ending of the one that generates."""
    table = {lm if name == "ForCausalLM" else name: fields for name, fields in CLASSES.items()}
    return {name: fields for name, fields in table.items() if name not in without}


def four_times(fields: Fields) -> int:
    """The width of a feed-forward network if it is missing."""
    return 4 * int(fields["d_model"])


# Keys that every family has.
COMMON: tuple[Entry, ...] = (
    Row("tie_word_embeddings", "tie_lm_head", True),
    Row("classifier_dropout", "classifier_dropout", None, otherwise=lambda fields: 0.1, heads=("token",)),
    fixed(is_encoder_decoder=False, add_cross_attention=False),
)


# GPT-2's keys and defaults, which other families took over.
GPT: tuple[Entry, ...] = (
    Row("vocab_size", "vocab_size", 50257),
    Row("n_positions", "max_positions", 1024),
    Row("n_embd", "d_model", 768),
    Row("n_layer", "n_layers", 12),
    Row("n_head", "n_heads", 12),
    Row("n_inner", "d_ff", None, otherwise=four_times),
    Row("activation_function", "activation", "gelu_new", map=ACTIVATIONS),
    Row("resid_pdrop", "dropout", 0.1),
    Row("embd_pdrop", "embedding_dropout", 0.1),
    Row("attn_pdrop", "attention_dropout", 0.1),
    Row("layer_norm_epsilon", "norm_epsilon", 1e-5),
    ids(bos=50256, eos=50256),
    *COMMON,
)
SCALED: dict[bool, float | None] = {True: None, False: 1.0}  # scale_attn_weights -> attention_scale
# Keys of a second head, which is not read.
GPT_IGNORED = """
    summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout summary_last_dropout
"""

HEADS = {
    "heads.token.out_proj": "classifier",
    "heads.sequence.out_proj": "score",
    "heads.span.out_proj": "qa_outputs",
}
