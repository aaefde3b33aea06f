"""Mixtures of experts.

Mixtral (Jiang et al. 2024) is Mistral with experts. Qwen 3 MoE (Yang et al. 2025) has norms of
queries and keys, and narrow experts. gpt-oss (OpenAI 2025) has biases, attention sinks, windows in
every second layer and a clamped gate; its files hold all experts of a layer in one tensor.

DeepSeek V3 (2024) has latent attention, groups of experts and a shared one; the first layers have a
network instead. YaRN also scales its scores, by the square of a magnitude that `mscale_all_dim`
gives. Published files contain a layer for the prediction of further tokens, which is not read.
"""

import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from trifold.errors import SettingsError
from trifold.hub.families.gpt import classes
from trifold.hub.families.llama import BASE, MISTRAL, QK_NORMS, RULES, UNBIASED, by_head
from trifold.hub.family import BLOCK, modules
from trifold.hub.rope import rope, rope_place, windows
from trifold.hub.rows import (
    SIZE,
    Entry,
    Fields,
    fixed,
    group_of,
    ids,
    nested,
    repeats,
    resized,
    row,
    solution,
)
from trifold.hub.rules import AnyRule, Ignored, ParameterRule
from trifold.hub.transforms import Tensors, Transform
from trifold.nn import ModelConfig

MOE = "feed_forward.sublayer."
# Settings of training; `transformers` adds the losses.
IGNORED = "output_router_logits router_aux_loss_coef"

# --- Mixtral and Qwen 3 ---------------------------------------------------------------------------


def network(ours: str, theirs: str, names: str = "gate_proj up_proj down_proj") -> dict[str, str]:
    """The matrices of an expert."""
    matrices = zip(("gate_proj", "in_proj", "out_proj"), names.split(), strict=True)
    return {f"{MOE}{ours}.{our}": f"{theirs}.{name}" for our, name in matrices}


MIXTRAL = MISTRAL.related(
    "mixtral",
    rope(base=1e6),
    nested("experts", count=("num_local_experts", 8), per_token=("num_experts_per_tok", 2)),
    rules=RULES.related(
        {f"{MOE}router": "block_sparse_moe.gate"}
        | network("experts.{e}", "block_sparse_moe.experts.{e}", "w1 w3 w2")
    ),
    ignored=f"{IGNORED} router_jitter_noise",
    rms_norm_eps=1e-5,
    sliding_window=None,
)

QWEN3_NAMES = {f"{MOE}router": "mlp.gate"} | network("experts.{e}", "mlp.experts.{e}")


def _load_qwen(file: Any, fields: Fields) -> Fields:
    if dense := file.mlp_only_layers:
        raise SettingsError(f"mlp_only_layers: {dense} is not supported; all layers have experts")
    count = file.num_local_experts
    window = file.sliding_window if file.use_sliding_window else None
    if count not in (None, file.num_experts) and "num_experts" in file.model_fields_set:
        raise SettingsError(
            f"num_local_experts: {count} contradicts num_experts {file.num_experts}"
        )
    experts = fields["experts"].copy()
    if count is not None:
        experts["count"] = count
    return {"experts": experts, "sliding_window": window}


QWEN3_MOE = UNBIASED.related(
    "qwen3_moe",
    ids(),
    nested(
        "experts",
        count=("num_experts", 128),
        per_token=("num_experts_per_tok", 8),
        d_ff=("moe_intermediate_size", 768),
        normalize=("norm_topk_prob", False),
    ),
    Entry(
        {
            "num_local_experts": (int | None, None),  # another name of num_experts
            "mlp_only_layers": (list[int] | None, None),
            "use_sliding_window": (bool, False),
            "sliding_window": (SIZE | None, 4096),
        },
        _load_qwen,
        lambda c: {
            "use_sliding_window": bool(c.sliding_window),
            "sliding_window": c.sliding_window,
        },
    ),
    fixed(decoder_sparse_step=1),
    constants={"qk_norm": "head"},
    rules=by_head(RULES.related(QK_NORMS | QWEN3_NAMES)),
    ignored=f"{IGNORED} max_window_layers",
    **resized(vocab=151936, width=2048, inner=6144, layers=24, kv_heads=4, positions=32768),
)

# --- gpt-oss --------------------------------------------------------------------------------------


def fused(count: int, parts: int = 1) -> Transform:
    """All tensors of `count` experts, `parts` of each, in one of theirs: its first axis is the
    expert, its other axes are transposed, and along the last one the parts alternate.
    """

    def load(theirs: Tensors) -> Tensors:
        experts: Iterator[Tensor] = (expert.unflatten(-1, (-1, parts)) for expert in theirs[0])
        return [part.t() for expert in experts for part in expert.unbind(-1)]

    def save(ours: Tensors) -> Tensors:
        whole = ours[0].new_empty(count, *ours[0].t().shape, parts)
        for number, tensor in enumerate(ours):
            whole[number // parts, ..., number % parts] = tensor.t()
        return [whole.flatten(-2)]

    return Transform(load, save)


def _fused_rules(config: ModelConfig, base: str) -> list[AnyRule]:
    experts = group_of(config, "experts")
    assert experts is not None
    count = experts.count
    rules = list[AnyRule]()
    layer = f"{base}layers.{{i}}."
    for names, theirs in ((("gate_proj", "in_proj"), "gate_up_proj"), (("out_proj",), "down_proj")):
        for part, ending in (("weight", ""), ("bias", "_bias")):
            ours = (
                f"{BLOCK}{MOE}experts.{n}.{name}.{part}" for n in range(count) for name in names
            )
            rules.append(
                ParameterRule(
                    (*ours,), f"{layer}mlp.experts.{theirs}{ending}", fused(count, len(names))
                )
            )
    return [
        *rules,
        ParameterRule(f"{BLOCK}self_attention.sublayer.sinks", f"{layer}self_attn.sinks"),
    ]


YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}
GPT_OSS = BASE.related(
    "gpt_oss",
    rope(base=150000.0, scaling=YARN),
    ids(),
    windows(128, every=2),
    row("swiglu_limit", "gate_limit", 7.0),
    fixed(swiglu_alpha=1.702),
    nested(
        "experts", count=("num_local_experts", 128), per_token=("num_experts_per_tok", 4), bias=True
    ),
    classes=classes("ForQuestionAnswering"),
    constants={"activation": "quick-gelu", "attention_sinks": True},
    rules=RULES.related({f"{MOE}router": "mlp.router"}, more=_fused_rules),
    # The experts do not read hidden_act. The others are those of the first release.
    ignored=f"{IGNORED} hidden_act experts_per_token initial_context_length",
    without="mlp_bias hidden_act",
    **resized(
        vocab=201088, width=2880, inner=2880, layers=36, heads=64, kv_heads=8, positions=131072
    ),
    **resized(head_dim=64, rms_norm_eps=1e-5, attention_bias=True),
)

# --- DeepSeek V3 ----------------------------------------------------------------------------------

ROPE = rope()
INNER_EPSILON = 1e-6  # of the norms in attention, which have no key


def _scale(fields: Fields, factor: float, share: float) -> float:
    """The factor of scores; share: `mscale_all_dim`."""
    magnitude = 1.0
    if factor > 1:
        magnitude += 0.1 * share * math.log(factor)
    return float((fields["d_head"] + fields["latent"]["d_rotary"]) ** -0.5 * magnitude * magnitude)


def _load_deepseek(file: Any, fields: Fields) -> Fields:
    if not fields["experts"]["shared"]:
        raise SettingsError("n_shared_experts: 0 is not supported; set at least 1")
    loaded = ROPE.load(file, fields)
    scaling = loaded["rotary_scaling"]
    keys = getattr(file, rope_place(file))
    if scaling is not None and keys is not None and keys.mscale_all_dim:
        loaded["attention_scale"] = _scale(fields, scaling["factor"], keys.mscale_all_dim)
    epsilon = None if fields["norm_epsilon"] == INNER_EPSILON else INNER_EPSILON
    return loaded | {"latent": fields["latent"] | {"norm_epsilon": epsilon}}


def _save_deepseek(config: ModelConfig) -> Fields:
    keys = ROPE.save(config) | {"num_key_value_heads": config.n_heads}
    if config.attention_scale is None:
        return keys
    scaling = group_of(config, "rotary_scaling")
    latent = group_of(config, "latent")
    if latent is None or scaling is None or scaling.factor == 1:
        raise SettingsError("attention_scale: only supported together with rotary_scaling")
    factor = scaling.factor
    fields = {"d_head": config.head_width, "latent": {"d_rotary": latent.d_rotary}}
    magnitude = math.sqrt(config.attention_scale / _scale(fields, 1.0, 0.0))
    guess = (magnitude - 1) / (0.1 * math.log(factor))
    share = solution(guess, lambda share: _scale(fields, factor, share), config.attention_scale)
    keys["rope_parameters"]["mscale_all_dim"] = share
    return keys


ATTENTION = {
    "q_down": "q_a_proj",
    "q_norm": "q_a_layernorm",
    "kv_down": "kv_a_proj_with_mqa",
    "kv_norm": "kv_a_layernorm",
    "o_proj": "o_proj",
}


def _more(config: ModelConfig, base: str) -> list[AnyRule]:
    """Queries, parameters that are not weights of modules, and the layer that predicts further
    tokens.
    """
    layer = f"{base}layers.{{i}}."
    latent = group_of(config, "latent")
    queries = "q_b_proj"
    if latent is None or latent.query_width is None:
        queries = "q_proj"
    return [
        *modules({f"{BLOCK}self_attention.sublayer.q_proj": f"{layer}self_attn.{queries}"}),
        ParameterRule(
            f"{BLOCK}self_attention.sublayer.kv_proj", f"{layer}self_attn.kv_b_proj.weight"
        ),
        ParameterRule(f"{BLOCK}{MOE}router.correction", f"{layer}mlp.gate.e_score_correction_bias"),
        Ignored(f"{base}layers.{config.n_layers}.{{*path}}"),
    ]


def _check_widths(file: Any, fields: Fields) -> Fields:
    """Raise SettingsError for widths of a head that are not those of its parts."""
    widths = {
        "head_dim": file.qk_rope_head_dim,
        "qk_head_dim": file.qk_nope_head_dim + file.qk_rope_head_dim,
    }
    for key, width in widths.items():
        value = getattr(file, key)
        if value not in (None, width):
            raise SettingsError(
                f"{key}: {value} contradicts {width}, which follows from other keys"
            )
    return {}


DEEPSEEK_V3 = UNBIASED.related(
    "deepseek_v3",
    row("qk_nope_head_dim", "d_head", 128),
    row("rope_interleave", "rotary_pairs", True, map={True: "interleaved", False: "halves"}),
    nested(
        "experts",
        count=("n_routed_experts", 256),
        per_token=("num_experts_per_tok", 8),
        d_ff=("moe_intermediate_size", 2048),
        shared=("n_shared_experts", 1),
        normalize=("norm_topk_prob", True),
        scale=("routed_scaling_factor", 2.5),
        groups=("n_group", 8),
        groups_per_token=("topk_group", 4),
        dense_layers=("first_k_dense_replace", 3),
        score="sigmoid",
        correction=True,
    ),
    nested(
        "latent",
        width=("kv_lora_rank", 512),
        query_width=("q_lora_rank", 1536),
        d_rotary=("qk_rope_head_dim", 64),
        d_value=("v_head_dim", 128),
    ),
    Entry(ROPE.keys, _load_deepseek, _save_deepseek, explicit=False, groups=ROPE.groups),
    Entry(dict.fromkeys(("head_dim", "qk_head_dim"), (int | None, None)), _check_widths),
    repeats("num_key_value_heads", "num_attention_heads", 128),
    ids(bos=0, eos=1),
    fixed(scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1),
    classes=classes("ForQuestionAnswering"),
    rules=RULES.related(
        {
            f"self_attention.sublayer.{ours}": f"self_attn.{theirs}"
            for ours, theirs in ATTENTION.items()
        }
        | QWEN3_NAMES
        | network("shared", "mlp.shared_experts"),
        without="q|k|v",
        more=_more,
    ),
    # Settings of training, and of the layer that predicts further tokens.
    ignored="""
    output_router_logits aux_loss_alpha seq_aux ep_size num_nextn_predict_layers num_mtp_layers
    auto_map
    """,
    without="head_dim",
    **resized(vocab=129280, width=7168, inner=18432, layers=61, heads=128, positions=4096),
)
