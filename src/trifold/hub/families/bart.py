"""BART (Lewis et al. 2020): the Transformer of 2017 with learned positions and a norm on the embeddings.

Positions begin in row 2 of their table. The reference adds to the logits a bias that is never trained and zero in
most files; where we have none, it must be zero.
"""

from __future__ import annotations

from typing import Any

from trifold.errors import SettingsError
from trifold.hub.family import Family, modules
from trifold.hub.rows import ACTIVATIONS, ENDS, Fields, Group, Row, always, first_end, fixed
from trifold.hub.rules import LEADING_AXIS, AnyRule, Copy, Ignored, Renamed, Rule, Zeros
from trifold.nn import ModelConfig
from trifold.nn.config import Head

# Keys that Marian shares.
SIDES = (
    Row("max_position_embeddings", "max_positions", 1024),
    Row("d_model", "d_model", 1024),
    Row("encoder_layers", "n_layers", 12),
    Row("decoder_layers", "n_decoder_layers", 12),
    Row("encoder_attention_heads", "n_heads", 16),
    Row("decoder_attention_heads", "n_decoder_heads", 16),
    Row("encoder_ffn_dim", "d_ff", 4096),
    Row("decoder_ffn_dim", "d_decoder_ff", 4096),
    Row("activation_function", "activation", "gelu", map=ACTIVATIONS),
    Row("scale_embedding", "scale_embeddings", False),
    Row("dropout", "dropout", 0.1),
    Row("attention_dropout", "attention_dropout", 0.0),
    fixed(is_encoder_decoder=True, tie_word_embeddings=True, is_decoder=False),
    fixed(encoder_layerdrop=0.0, decoder_layerdrop=0.0),
    fixed(normalize_before=False, add_final_layer_norm=False, add_bias_logits=False),
    # If forced_eos_token_id were missing, the reference would force its own default at the maximum length.
    always(is_encoder_decoder=True, tie_word_embeddings=True, forced_eos_token_id=None),
)


def _check_layers(file: Any, fields: Fields) -> Fields:
    if file.num_hidden_layers not in (None, file.encoder_layers):
        raise SettingsError(
            f"num_hidden_layers: {file.num_hidden_layers} contradicts encoder_layers {file.encoder_layers}"
        )
    return {}


def head_dropout(*heads: Head) -> Row:
    """The dropout before the classes of these heads; None where it is that of the model."""
    key = "classifier_dropout"

    def load(value: float, fields: Fields) -> float | None:
        return None if value == fields["dropout"] else value

    return Row(key, key, 0.0, load=load, heads=heads, everywhere=True)


LAYER = {
    "feed_forward.sublayer.in_proj": "fc1",
    "feed_forward.sublayer.out_proj": "fc2",
    "feed_forward.after": "final_layer_norm",
}
ATTENTIONS = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}
for _ours, _theirs in ATTENTIONS.items():
    LAYER |= {
        f"{_ours}.sublayer.{{p:q|k|v}}_proj": f"{_theirs}.{{p}}_proj",
        f"{_ours}.sublayer.o_proj": f"{_theirs}.out_proj",
        f"{_ours}.after": f"{_theirs}_layer_norm",
    }


def _rules(config: ModelConfig) -> list[AnyRule]:
    base = "model." if config.chosen_heads else ""
    stack, shared = "{stack:encoder|decoder}", f"{base}shared.weight"
    embeddings = {"positions": "embed_positions", "norm": "layernorm_embedding"}
    table: list[AnyRule] = [
        Rule("encoder_embeddings.tokens.weight", shared),
        Copy(f"{base}{stack}.embed_tokens.weight", of=shared),
        Renamed(f"{base}{stack}.embed_tokens.weight", shared),
        *modules(embeddings, f"{stack}_embeddings.", f"{base}{{stack}}."),
        *modules(LAYER, f"{stack}.blocks.{{i}}.", f"{base}{{stack}}.layers.{{i}}."),
        Ignored(f"{base}{stack}.version"),
    ]
    if "lm" in config.chosen_heads:
        beside = "encoder_embeddings.tokens.weight"
        return [*table, Copy("lm_head.weight", of=shared), logits_bias(config, beside)]
    return [
        *table,
        *modules({"heads.sequence.{layer:dense|out_proj}": "classification_head.{layer}"}),
        *modules({"heads.span.out_proj": "qa_outputs"}),
    ]


def logits_bias(config: ModelConfig, beside: str) -> AnyRule:
    """The bias of the logits, which must be zero where we have none; `beside` is our output embedding."""
    if config.lm_head_bias:
        return Rule("lm_head.bias", "final_logits_bias", LEADING_AXIS)
    remedy = "write lm_head_bias: true in config.json"
    return Zeros("final_logits_bias", beside, lambda weight: (1, weight.shape[0]), remedy)


FAMILY = Family(
    model_type="bart",
    stem="Bart",
    classes={
        "ForConditionalGeneration": {"heads": ("lm",)},
        "Model": {"heads": ()},
        "ForSequenceClassification": {
            "heads": ("sequence",),
            "classifier_input": "eos",
            "classifier_transform": "tanh",
        },
        "ForQuestionAnswering": {"heads": ("span",), "classifier_dropout": 0.0},
    },
    entries=(
        Row("vocab_size", "vocab_size", 50265),
        *SIDES,
        Row("activation_dropout", "activation_dropout", 0.0),
        Row("pad_token_id", "pad_id", 1),
        Row("bos_token_id", "bos_id", 0),
        Row("eos_token_id", "eos_id", 2, type=ENDS, load=first_end),
        Row("decoder_start_token_id", "decoder_start_id", 2),
        head_dropout("sequence"),
        # Ours; files of others do not have it.
        Row("lm_head_bias", "lm_head_bias", True, heads=("lm",), everywhere=True),
        Group({"num_hidden_layers": (int | None, None)}, _check_layers),
        fixed(normalize_embedding=True, static_position_embeddings=False, extra_pos_embeddings=2),
    ),
    constants={
        "positions": "learned",
        "position_offset": 2,
        "embedding_norm": True,
        "norm_epsilon": 1e-5,
        "attention_bias": True,
    },
    rules=_rules,
    # An old name beside the new one; and a key of generation that is no longer read.
    ignored="init_std classif_dropout force_bos_token_to_be_generated",
    n_labels=3,
)
