"""LLaMA 1, 2 and 3 (Touvron et al. 2023, Dubey et al. 2024): RMS norms, rotary positions, a gated
feed-forward.

SmolLM 1 and 2 are LLaMA. Mistral (Jiang et al. 2023) is LLaMA with fewer heads of keys and values,
and an optional window. StarCoder 2 (Lozhkov et al. 2024) has both too, with GPT-2's norms and
activation. Phi-3 and Phi-4 (Abdin et al. 2024) store queries, keys and values in one matrix, and
both factors of the feed-forward in another; a part of each head may be rotated. In SmolLM 3
(Bakouch et al. 2025) every fourth layer has no positions. Granite (IBM 2024) multiplies embeddings,
scores, outputs of sub-layers and logits by numbers.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from trifold.errors import SettingsError
from trifold.hub.families import gpt
from trifold.hub.families.gpt import HEADS, classes
from trifold.hub.family import BLOCK, PART, STACK, TensorRules
from trifold.hub.rope import optional_windows, repeated, rope
from trifold.hub.rows import (
    SIZE,
    Entry,
    Fields,
    fixed,
    ids,
    resized,
    row,
    rows,
    same,
    sizes,
    solution,
)
from trifold.hub.rules import AnyRule, ParameterRule
from trifold.hub.transforms import interleaved
from trifold.nn import ModelConfig

LAYER = {
    "self_attention.enter": "input_layernorm",
    "self_attention.sublayer.{p:q|k|v|o}_proj": "self_attn.{p}_proj",
    "feed_forward.enter": "post_attention_layernorm",
    "feed_forward.sublayer.gate_proj": "mlp.gate_proj",
    "feed_forward.sublayer.in_proj": "mlp.up_proj",
    "feed_forward.sublayer.out_proj": "mlp.down_proj",
}
QK_NORMS = {"self_attention.sublayer.{p:q|k}_norm": "self_attn.{p}_norm"}
RULES = TensorRules(
    "model",
    ".embed_tokens",
    {f"{STACK}.final_norm": ".norm", **HEADS, "heads.token.out_proj": "score", **LAYER},
    layer=".layers.{i}.",
    lm_head="lm_head",
    buffers=".layers.{i}.self_attn.rotary_emb.inv_freq",
)


def by_head(rules: TensorRules) -> Callable[[ModelConfig], list[AnyRule]]:
    """The rules with the prefix of the class for questions."""
    of_questions = replace(rules, prefix="transformer")

    def rules_of(config: ModelConfig) -> list[AnyRule]:
        if "span" in config.chosen_heads:
            return of_questions(config)
        return rules(config)

    return rules_of


def check_width(config: ModelConfig) -> Fields:
    """Raise SettingsError for a width that `transformers` rejects."""
    if config.d_model % config.n_heads:  # `transformers` requires it even where head_dim differs
        raise SettingsError(
            f"hidden_size: {config.d_model} is not a multiple of {config.n_heads} heads"
        )
    return {}


def _check_layers(file: Any, fields: Fields) -> Fields:
    kind = "sliding_attention" if fields.get("sliding_window") else "full_attention"
    if file.layer_types not in (None, [kind] * fields["n_layers"]):
        raise SettingsError(
            f"layer_types: only {kind} in each of {fields['n_layers']} layers is supported"
        )
    return {}


# `transformers` does not read it.
LAYERS = Entry({"layer_types": (list[str] | None, None)}, _check_layers)


# What its relatives share, of which most have no bias in the feed-forward.
BASE = gpt.BASE.related(
    "",
    *sizes(
        vocab=32000, width=4096, inner=11008, layers=32, heads=32, positions=2048, activation="silu"
    ),
    *rows(n_kv_heads=("num_key_value_heads", None), norm_epsilon=("rms_norm_eps", 1e-6)),
    row("head_dim", "d_head", None, otherwise=lambda f: f["d_model"] // f["n_heads"]),
    *rows(attention_dropout=0.0, attention_bias=False, feed_forward_bias=("mlp_bias", False)),
    rope(),
    ids(bos=1, eos=2),
    constants={"norm": "rms", "gated": True, "dropout": 0.0},
    rules=RULES,
    tie_word_embeddings=False,
)
UNBIASED = BASE.related("", constants={"feed_forward_bias": False}, without="mlp_bias")
LLAMA = BASE.related(
    "llama",
    fixed(rope_interleaved=False),
    Entry({}, save=check_width),
    LAYERS,
    rules=by_head(RULES),
    ignored="is_llama_config max_sequence_length",
)
MISTRAL = UNBIASED.related(
    "mistral",
    row("sliding_window", "sliding_window", 4096, nullable=True),
    LAYERS,
    fixed(attention_bias=False, mlp_bias=False),
    ignored=LLAMA.ignored,
    **resized(kv_heads=8, inner=14336, positions=131072),
)

STARCODER2 = BASE.related(
    "starcoder2",
    *rows(norm_epsilon=1e-5, sliding_window=None, embedding_dropout=0.0),
    *rows(dropout=("residual_dropout", 0.0), attention_bias=("use_bias", True)),
    fixed(mlp_type="default", norm_type="layer_norm"),
    ids(bos=50256, eos=50256),
    classes=classes("ForQuestionAnswering"),
    constants={"norm": "layer", "gated": False, "feed_forward_bias": same("attention_bias")},
    rules=RULES.related(
        {
            "feed_forward.sublayer.in_proj": "mlp.c_fc",
            "feed_forward.sublayer.out_proj": "mlp.c_proj",
        }
    ),
    # Left over from the training program; `transformers` does not read them.
    ignored="""
    activation_function attention_softmax_in_fp32 layer_norm_epsilon scale_attention_softmax_in_fp32
    scale_attn_weights
    """,
    without="head_dim rms_norm_eps attention_bias mlp_bias",
    **resized(
        vocab=49152, width=3072, inner=12288, layers=30, heads=24, kv_heads=2, positions=4096
    ),
    **resized(hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True),
)

# --- Phi-3 ----------------------------------------------------------------------------------------


def gate_and_in(theirs: str) -> Callable[[ModelConfig, str], list[AnyRule]]:
    """The rule of a matrix that holds the gate and then the other factor of the feed-forward."""
    ours = tuple(f"{BLOCK}feed_forward.sublayer.{name}_proj.{PART}" for name in ("gate", "in"))
    rule = f"layers.{{i}}.mlp.{theirs}.{{part}}"
    return lambda config, base: [ParameterRule(ours, base + rule, interleaved(1, (1, 1)))]


PHI3 = UNBIASED.related(
    "phi3",
    *rows(dropout=("resid_pdrop", 0.0), sliding_window=None),
    rope(part="partial_rotary_factor", share=1.0, original=4096, kinds=["longrope"]),
    ids(pad=32000, bos=1, eos=32000),
    fixed(attention_bias=False, mlp_bias=False, lm_head_bias=False),
    classes=classes("ForQuestionAnswering"),
    constants={"embedding_dropout": 0.0},
    rules=RULES.related(
        {"self_attention.sublayer.o_proj": "self_attn.o_proj"},
        without="q|k|v gate_proj in_proj",
        qkv=".layers.{i}.self_attn.qkv_proj",
        split=lambda config: interleaved(1, (config.n_heads, config.kv_heads, config.kv_heads)),
        more=gate_and_in("gate_up_proj"),
    ),
    # `transformers` does not read them; auto_map names code, which is never loaded.
    ignored="auto_map embd_pdrop full_attn_mod interpolate_factor",
    **resized(vocab=32064, width=3072, inner=8192, positions=4096, rms_norm_eps=1e-5),
)

# --- SmolLM 3 -------------------------------------------------------------------------------------


def _load_rotary(file: Any, fields: Fields) -> Fields:
    layers = fields["n_layers"]
    rotates = file.no_rope_layers  # 1: the layer has positions
    if rotates is None:
        step = file.no_rope_layer_interval
        rotates = [(n + 1) % step != 0 for n in range(layers)]
    if len(rotates) < layers:
        raise SettingsError(f"no_rope_layers: has {len(rotates)} layers, but there are {layers}")
    pattern = ["rotary" if rotated else "none" for rotated in rotates[:layers]]
    return {"rotary_pattern": repeated(pattern)}


def _has_no_positions(file: Any, fields: Fields, layer: int) -> bool:
    pattern = fields["rotary_pattern"]
    return bool(pattern[layer % len(pattern)] == "none")


SMOLLM3 = BASE.related(
    "smollm3",
    rope(base=2_000_000.0),
    Entry(
        {"no_rope_layers": (list[Literal[0, 1]] | None, None), "no_rope_layer_interval": (SIZE, 4)},
        _load_rotary,
        lambda config: {"no_rope_layers": [int(config.rotates(n)) for n in range(config.n_layers)]},
    ),
    optional_windows(None, _has_no_positions),
    ids(pad=128004, bos=128000, eos=128001),
    stem="SmolLM3",
    rules=LLAMA.rules,
    ignored="max_window_layers",  # `transformers` does not read it
    tie_word_embeddings=True,
    **resized(vocab=128256, width=2048, layers=36, heads=16, kv_heads=4, positions=32768),
)

# --- Granite --------------------------------------------------------------------------------------


def inverse(number: float) -> float:
    """A number whose inverse is exactly `number`, if there is one near 1 / number."""
    return solution(1 / number, lambda inverse: 1 / inverse, number)


GRANITE = BASE.related(
    "granite",
    *rows(
        embedding_scale=("embedding_multiplier", 1.0), attention_scale=("attention_multiplier", 1.0)
    ),
    row("residual_multiplier", "residual_scale", 1.0),
    row("logits_scaling", "logits_scale", 1.0, load=lambda v, f: 1 / v, save=inverse),
    classes=classes("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"),
    ignored=LLAMA.ignored,
)
