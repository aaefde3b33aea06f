"""Falcon (Almazrouei et al. 2023): the 7b (one head of keys and values, one norm), the 40b (groups
of heads, two norms) and the first ones with ALiBi, whose offsets were trained in bfloat16 and
scaled with the scores.

BLOOM (Le Scao et al. 2022) has ALiBi and a norm on the embeddings.
"""

from typing import Any

from trifold.errors import SettingsError
from trifold.hub.families import gpt
from trifold.hub.families.gpt import HEADS, four_times, grouped
from trifold.hub.family import MAX_POSITIONS, TensorRules, in_layer, modules
from trifold.hub.rope import rope
from trifold.hub.rows import SIZE, Entry, Fields, fixed, ids, row, rows, same, up_to
from trifold.hub.rules import AnyRule
from trifold.nn import ModelConfig

ROPE = rope()
# Wiring of a layer -> their names of the norms before attention and before the feed-forward.
NORMS = {
    "sequential": ("input_layernorm", "post_attention_layernorm"),
    "parallel": ("input_layernorm",),
    "parallel-two-norms": ("ln_attn", "ln_mlp"),
}


def _load_layers(file: Any, fields: Fields) -> Fields:
    """Our fields for the wiring of a layer, its heads and its positions."""
    heads = fields["n_heads"]
    layers = {"residual": _wiring(file), "n_kv_heads": _kv_heads(file, heads)}
    if not file.alibi:
        return layers | ROPE.load(file, fields)
    scale = float(max(fields["d_model"] // heads, 1) ** -0.5)
    return layers | {"positions": "alibi", "alibi_rounded": True, "alibi_scale": scale}


def _wiring(file: Any) -> str:
    """Our value of `residual`. Raises SettingsError for keys that only the new architecture has,
    and for one that it does not have.
    """
    new = file.new_decoder_architecture
    if not file.parallel_attn:
        if new:
            raise SettingsError(
                "parallel_attn: false is not supported where new_decoder_architecture is true"
            )
        return "sequential"
    default = 2 if new else 1
    norms = file.num_ln_in_parallel_attn or default
    if norms == 1:
        return "parallel"
    if not new:
        raise SettingsError("num_ln_in_parallel_attn: 2 needs new_decoder_architecture: true")
    return "parallel-two-norms"


def _kv_heads(file: Any, heads: int) -> int:
    """The heads of keys and values; the two architectures have different keys for them."""
    if file.new_decoder_architecture:
        return file.num_kv_heads or heads
    if file.multi_query:
        return 1
    return heads


def _save_layers(config: ModelConfig) -> Fields:
    """The inverse of `_load_layers`."""
    new = config.residual == "parallel-two-norms" or config.kv_heads not in (1, config.n_heads)
    alibi = config.positions == "alibi"
    keys: Fields = {} if alibi else ROPE.save(config)
    return keys | {
        "alibi": alibi,
        "new_decoder_architecture": new,
        "num_ln_in_parallel_attn": len(NORMS[config.residual]) if new else None,
        "parallel_attn": config.residual != "sequential",
        "multi_query": config.kv_heads == 1,
        "num_kv_heads": config.kv_heads,
    }


# What BLOOM has too.
BASE = gpt.BASE.related(
    "",
    *rows(
        dropout=("hidden_dropout", 0.0),
        attention_dropout=0.0,
        norm_epsilon=("layer_norm_epsilon", 1e-5),
    ),
    row(
        "classifier_dropout",
        "classifier_dropout",
        None,
        otherwise=same("dropout"),
        heads=("token",),
    ),
    fixed(apply_residual_connection_post_layernorm=False),
    constants={"embedding_dropout": 0.0},
)


def _norms(config: ModelConfig, base: str) -> list[AnyRule]:
    ours = ("self_attention.enter", "feed_forward.enter")
    names = dict(zip(ours, NORMS[config.residual], strict=False))
    return modules(in_layer(f"{base}h.{{i}}.", names))


RULES = TensorRules(
    "transformer",
    ".word_embeddings",
    {
        "decoder.final_norm": ".ln_f",
        **HEADS,
        "self_attention.sublayer.o_proj": "self_attention.dense",
        "feed_forward.sublayer.in_proj": "mlp.dense_h_to_4h",
        "feed_forward.sublayer.out_proj": "mlp.dense_4h_to_h",
    },
    layer=".h.{i}.",
    lm_head="lm_head",
    qkv=".h.{i}.self_attention.query_key_value",
    split=grouped,
    more=_norms,
    buffers=".h.{i}.self_attention.{rotary:maybe_rotary|rotary_emb}.inv_freq",
)


def renamed(key: str, old: str, field: str, default: int) -> Entry:
    """A size with another name in some files, which takes precedence."""
    return Entry(
        {key: (SIZE, default), old: (SIZE | None, None)},
        lambda file, fields: {field: getattr(file, old) or getattr(file, key)},
        lambda config: {key: getattr(config, field)},
    )


FAMILY = BASE.related(
    "falcon",
    renamed("hidden_size", "n_embed", "d_model", 4544),
    *rows(
        vocab_size=65024, n_layers=("num_hidden_layers", 32), n_heads=("num_attention_heads", 71)
    ),
    *rows(
        max_positions=("max_position_embeddings", 2048),
        activation="gelu",
        attention_bias=("bias", False),
    ),
    row("ffn_hidden_size", "d_ff", None, otherwise=four_times),
    Entry(
        {
            **ROPE.keys,
            "alibi": (bool, False),
            "new_decoder_architecture": (bool, False),
            "num_ln_in_parallel_attn": (up_to(2) | None, None),
            "parallel_attn": (bool, True),
            "multi_query": (bool, True),
            "num_kv_heads": (SIZE | None, None),
        },
        _load_layers,
        _save_layers,
    ),
    ids(bos=11, eos=11),
    constants={"feed_forward_bias": same("attention_bias")},
    rules=RULES,
    ignored="auto_map",  # code that is older than the class in `transformers`; it is never loaded
)

# --- BLOOM ----------------------------------------------------------------------------------------

BLOOM = BASE.related(
    "bloom",
    *rows(
        vocab_size=250880, max_positions=("seq_length", MAX_POSITIONS)
    ),  # a length of pretraining
    renamed("hidden_size", "n_embed", "d_model", 64),
    renamed("n_layer", "num_hidden_layers", "n_layers", 2),
    renamed("n_head", "num_attention_heads", "n_heads", 8),
    ids(bos=1, eos=2),
    fixed(slow_but_exact=False),
    constants={"positions": "alibi", "embedding_norm": True, "attention_bias": True}
    | {"activation": "gelu-tanh", "d_ff": four_times},
    rules=RULES.related({"decoder_embeddings.norm": ".word_embeddings_layernorm"}, buffers=""),
    # Settings of the training program; `transformers` does not read them.
    ignored="""
    attention_softmax_in_fp32 bias_dropout_fusion masked_softmax_fusion n_inner offset_alibi
    skip_bias_add skip_bias_add_qkv unk_token_id
    """,
)
