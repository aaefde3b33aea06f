"""BLOOM (Le Scao et al. 2022): a decoder with ALiBi and a norm on the embeddings."""

from __future__ import annotations

from trifold.hub.families.falcon import FALCON, LAYER, NORMS
from trifold.hub.families.gpt import DECODER, HEADS, classes, four_times, grouped
from trifold.hub.family import MAX_POSITIONS, Family, TensorRules, in_layer
from trifold.hub.rows import SIZE, Entry, fixed, ids, row, rows


def renamed(key: str, old: str, field: str, default: int) -> Entry:
    """A size with another name in some files, which takes precedence."""
    return Entry(
        {key: (SIZE, default), old: (SIZE | None, None)},
        lambda file, fields: {field: getattr(file, old) or getattr(file, key)},
        lambda config: {key: getattr(config, field)},
    )


BLOCK = LAYER | dict(zip(("self_attention.enter", "feed_forward.enter"), NORMS["sequential"], strict=True))
FAMILY = Family(
    model_type="bloom",
    stem="Bloom",
    classes=classes(),
    entries=(
        *rows(vocab_size=250880, attention_dropout=0.0),
        renamed("hidden_size", "n_embed", "d_model", 64),
        renamed("n_layer", "num_hidden_layers", "n_layers", 2),
        renamed("n_head", "num_attention_heads", "n_heads", 8),
        row("seq_length", "max_positions", MAX_POSITIONS),  # of pretraining
        row("layer_norm_epsilon", "norm_epsilon", 1e-5),
        row("hidden_dropout", "dropout", 0.0),
        ids(bos=1, eos=2),
        *FALCON,
        fixed(slow_but_exact=False),
    ),
    constants=DECODER
    | {"positions": "alibi", "embedding_norm": True, "activation": "gelu-tanh", "attention_bias": True}
    | {"d_ff": four_times, "embedding_dropout": 0.0},
    rules=TensorRules(
        "transformer",
        ".word_embeddings",
        {
            "decoder_embeddings.norm": ".word_embeddings_layernorm",
            "decoder.final_norm": ".ln_f",
            **HEADS,
            **in_layer(".h.{i}.", BLOCK),
        },
        lm_head="lm_head",
        qkv=".h.{i}.self_attention.query_key_value",
        split=grouped,
    ),
    # Settings of the training program; `transformers` does not read them.
    ignored="""
    attention_softmax_in_fp32 bias_dropout_fusion masked_softmax_fusion n_inner offset_alibi skip_bias_add
    skip_bias_add_qkv unk_token_id
    """,
)
