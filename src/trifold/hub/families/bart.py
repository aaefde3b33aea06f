"""BART (Lewis et al. 2020), and the Transformer of 2017 as `transformers` implements it: Marian.

BART has learned positions, which begin in row 2 of their table, and a norm on the embeddings. Both
add to the logits a bias that is never trained and zero in most files; where we have none, it must
be zero.

Marian writes all sines of the positions before all cosines where the paper interleaves them. One
permutation of the model width, applied to every tensor with that axis, converts between the two and
does not change the logits. Marian always has biases in attention; where we have none they are
zeros. Keys of ours in config.json, which `transformers` ignores, record the original form.
"""

from typing import Any

from trifold.hub.family import LABELED, PART, STACK, Family, TensorRules, in_layer, modules, tied
from trifold.hub.rows import SIZE, Entry, Fields, end, fixed, repeats, resized, row, rows, same
from trifold.hub.rules import AnyRule, Copy, Ignored, ParameterRule, Zeros
from trifold.hub.transforms import LEADING_AXIS, SAME, permuted
from trifold.nn import ModelConfig

# If forced_eos_token_id were missing, `transformers` would force its own default at the maximum
# length.
WRITTEN: Fields = {
    "is_encoder_decoder": True,
    "tie_word_embeddings": True,
    "forced_eos_token_id": None,
}
# Keys that Marian shares.
ENTRIES = (
    *rows(
        vocab_size=50265, pad_id=("pad_token_id", 1), decoder_start_id=("decoder_start_token_id", 2)
    ),
    end(2),
    *rows(d_model=1024, max_positions=("max_position_embeddings", 1024)),
    *rows(n_layers=("encoder_layers", 12), n_decoder_layers=("decoder_layers", 12)),
    *rows(n_heads=("encoder_attention_heads", 16), n_decoder_heads=("decoder_attention_heads", 16)),
    *rows(d_ff=("encoder_ffn_dim", 4096), d_decoder_ff=("decoder_ffn_dim", 4096)),
    *rows(activation=("activation_function", "gelu"), scale_embeddings=("scale_embedding", False)),
    *rows(dropout=0.1, attention_dropout=0.0),
    fixed(
        is_encoder_decoder=True, tie_word_embeddings=True, is_decoder=False, add_bias_logits=False
    ),
    fixed(
        encoder_layerdrop=0.0,
        decoder_layerdrop=0.0,
        normalize_before=False,
        add_final_layer_norm=False,
    ),
    Entry({}, save=lambda config: WRITTEN),
)


def _dropout(value: float, fields: Fields) -> float | None:
    """The dropout before the classes; None where it is that of the model."""
    if value == fields["dropout"]:
        return None
    return value


DROPOUT = row(
    "classifier_dropout", "classifier_dropout", 0.0, load=_dropout, heads=LABELED, everywhere=True
)
CLASSES: dict[str, Fields] = {
    "ForConditionalGeneration": {"heads": ("lm",)},
    "Model": {"heads": ()},
    "ForSequenceClassification": {
        "heads": ("sequence",),
        "classifier_input": "eos",
        "classifier_transform": "tanh",
    },
    "ForQuestionAnswering": {"heads": ("span",), "classifier_dropout": 0.0},
}
HEADS = {
    "heads.sequence.{layer:dense|out_proj}": "classification_head.{layer}",
    "heads.span.out_proj": "qa_outputs",
}
LAYER = {  # norms come before or after
    "feed_forward.sublayer.in_proj": "fc1",
    "feed_forward.sublayer.out_proj": "fc2",
    "feed_forward.{place:enter|after}": "final_layer_norm",
    "self_attention.sublayer.{p:q|k|v}_proj": "self_attn.{p}_proj",
    "self_attention.sublayer.o_proj": "self_attn.out_proj",
    "self_attention.{place:enter|after}": "self_attn_layer_norm",
    "cross_attention.sublayer.{p:q|k|v}_proj": "encoder_attn.{p}_proj",
    "cross_attention.sublayer.o_proj": "encoder_attn.out_proj",
    "cross_attention.{place:enter|after}": "encoder_attn_layer_norm",
}


def more(config: ModelConfig, base: str) -> list[AnyRule]:
    """The shared table of embeddings, and the bias of the logits."""
    shared = f"{base}shared.weight"
    rules = tied(f"{base}{STACK}.embed_tokens", shared)
    if "lm" not in config.chosen_heads:
        return rules
    return [
        *rules,
        *tied("lm_head", shared),
        _logits_bias(config, "encoder_embeddings.tokens.weight"),
    ]


def _logits_bias(config: ModelConfig, beside: str) -> AnyRule:
    """The bias of the logits, which must be zero where we have none; `beside` is our output
    embedding.
    """
    if config.lm_head_bias:
        return ParameterRule("lm_head.bias", "final_logits_bias", LEADING_AXIS)
    remedy = "write lm_head_bias: true in config.json"
    return Zeros("final_logits_bias", beside, lambda weight: (1, weight.shape[0]), remedy)


NAMES = {
    f"{STACK}_embeddings.positions": ".{stack}.embed_positions",
    f"{STACK}_embeddings.norm": ".{stack}.layernorm_embedding",
    **LAYER,
    **HEADS,
}


def two_stacks(encoder: dict[str, str]) -> dict[str, str]:
    """Full names in blocks where the projections of self-attention in the encoder have other
    names.
    """
    others = {ours: theirs for ours, theirs in LAYER.items() if "attention.sublayer" not in ours}
    layers = {"encoder": others | encoder, "decoder": LAYER}
    return {
        f"{side}.blocks.{{i}}.{ours}": f".{side}.layers.{{i}}.{theirs}"
        for side, names in layers.items()
        for ours, theirs in names.items()
    }


RULES = TensorRules(
    "model", ".shared", NAMES, layer=".{stack}.layers.{i}.", more=more, buffers=f".{STACK}.version"
)
BASE = Family("", "", CLASSES, ENTRIES, {"norm_epsilon": 1e-5}, RULES)
BART = BASE.related(
    "bart",
    *rows(activation_dropout=0.0, bos_id=("bos_token_id", 0)),
    DROPOUT,
    # Ours; files of others do not have it.
    row("lm_head_bias", "lm_head_bias", True, heads=("lm",), everywhere=True),
    repeats("num_hidden_layers", "encoder_layers"),
    fixed(normalize_embedding=True, static_position_embeddings=False, extra_pos_embeddings=2),
    constants={
        "attention_bias": True,
        "positions": "learned",
        "position_offset": 2,
        "embedding_norm": True,
    },
    # Old names of keys, and a key of generation that is no longer read.
    ignored="init_std classif_dropout force_bos_token_to_be_generated",
    n_labels=3,
)

# --- Marian ---------------------------------------------------------------------------------------

LAYOUTS = {"halves": "sinusoidal-halves", "interleaved": "sinusoidal"}


def _load_target(file: Any, fields: Fields) -> Fields:
    if file.share_encoder_decoder_embeddings:
        return {"target_vocab_size": None}
    return {"target_vocab_size": file.decoder_vocab_size or file.vocab_size}


def _rules(config: ModelConfig) -> list[AnyRule]:
    outputs = inputs = SAME
    if config.positions != "sinusoidal-halves":
        order = (*range(0, config.d_model, 2), *range(1, config.d_model, 2))
        outputs = permuted(order, 0)
        inputs = permuted(order, 1)
    names = in_layer("model.{stack}.layers.{i}.", LAYER)
    # Modules that read the width of the model; all others write it.
    readers = {ours: theirs for ours, theirs in names.items() if "in_proj" in ours or "{p:" in ours}
    rules: list[AnyRule] = [
        *modules(readers, inputs),
        *(
            ParameterRule(f"{ours}.{PART}", f"{names[ours]}.{{part}}", outputs)
            for ours in names
            if ours not in readers
        ),
        Ignored(f"model.{STACK}.embed_positions.weight", (config.max_positions, config.d_model)),
    ]
    if not config.attention_bias:
        remedy = "write attention_bias: true in config.json"
        rules += [
            Zeros(f"{theirs}.bias", beside=f"{ours}.weight", remedy=remedy)
            for ours, theirs in names.items()
            if "attention.sublayer" in ours
        ]
    if config.target_vocab_size is None:
        side = "encoder"
        table = "model.shared.weight"
        rules.append(Copy(f"model.{STACK}.embed_tokens.weight", of=table))
    else:
        side = "decoder"
        table = "model.{stack}.embed_tokens.weight"
    return [
        *rules,
        ParameterRule("{stack}_embeddings.tokens.weight", table, inputs),
        Copy("lm_head.weight", of=table.format(stack=side)),
        _logits_bias(config, f"{side}_embeddings.tokens.weight"),
    ]


MARIAN = BASE.related(
    "marian",
    Entry(
        {
            "decoder_vocab_size": (SIZE | None, None),
            "share_encoder_decoder_embeddings": (bool, True),
        },
        _load_target,
        lambda config: {
            "decoder_vocab_size": config.output_vocab_size,
            "share_encoder_decoder_embeddings": config.target_vocab_size is None,
        },
    ),
    row("bos_token_id", "bos_id", None, otherwise=same("decoder_start_id")),
    fixed(activation_dropout=0.0, normalize_embedding=False, static_position_embeddings=True),
    Entry({}, save=lambda config: {"activation_dropout": 0.0}),
    # Ours; files of others have none of these.
    row("position_layout", "positions", "halves", map=LAYOUTS),
    *rows(attention_bias=True, lm_head_bias=True),
    classes={"MTModel": {"heads": ("lm",)}},
    rules=_rules,
    ignored="classifier_dropout classif_dropout init_std",
    **resized(vocab=58101, pad_token_id=58100, eos_token_id=0, decoder_start_token_id=58100),
)
