"""Tiny GGUF files, written with the `gguf` package from models of transformers.

The names of tensors are those of the package, and the transforms are written here as llama.cpp's
converter has them, so that both are independent of trifold's tables.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from trifold.hub.gguf.blocks import TYPES
from trifold.hub.gguf.quantize import quantize

Types = gguf.GGMLQuantizationType


@dataclass(frozen=True)
class Case:
    """A tiny model: its class in transformers, the options of its config, and how a file differs
    from its state.

    keys: names in the package's writer or full names -> values. state: from that of transformers to
    tensors with names that the package knows.
    """

    architecture: gguf.MODEL_ARCH
    class_name: str
    options: Mapping[str, Any]
    keys: Callable[[Any], Mapping[str, Any]]
    state: Callable[[Any, dict[str, Tensor]], dict[str, Tensor]] = lambda config, state: state

    @property
    def name(self) -> str:
        return str(gguf.MODEL_ARCH_NAMES[self.architecture])

    def model(self) -> PreTrainedModel:
        """The model with random weights, of which norms and biases are not the usual ones."""
        torch.manual_seed(0)
        stem = self.class_name
        for ending in ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "Model"):
            stem = stem.removesuffix(ending)
        config_name = {"Gemma3": "Gemma3TextConfig"}.get(stem, f"{stem}Config")
        config: PretrainedConfig = getattr(transformers, config_name)(**self.options)
        model: PreTrainedModel = getattr(transformers, self.class_name)(config).float()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        return model.eval()

    def write(self, path: Path, model: PreTrainedModel, kind: Types = Types.F32) -> Path:
        """The model as a file; matrices are of this type."""
        config = model.config
        writer = gguf.GGUFWriter(path, self.name)
        for key, value in ({"vocab_size": config.vocab_size} | self.keys(config)).items():
            _add(
                writer,
                key if key.startswith(("tokenizer.", "general.")) else f"{self.name}.{key}",
                value,
            )
        state = dict(model.state_dict())
        # Of a T5 that is not tied, transformers keeps the second key only.
        is_tied = getattr(config, "scale_decoder_outputs", config.tie_word_embeddings)
        if is_tied:
            state.pop("lm_head.weight", None)
        state = self.state(config, {name: tensor.float() for name, tensor in state.items()})
        counts = ("num_hidden_layers", "num_decoder_layers")
        layers = max(getattr(config, count, 0) or 0 for count in counts)
        names = gguf.get_tensor_name_map(self.architecture, layers)
        for name, tensor in state.items():
            theirs = names.get_name(name, try_suffixes=(".weight", ".bias")) or name
            _add_tensor(writer, theirs, tensor.numpy(), kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        (writer.add_uint32 if value >= 0 else writer.add_int32)(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif key.endswith("charsmap"):
        writer.add_array(key, bytes(value))
    else:
        writer.add_array(key, value)


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray, kind: Types) -> None:
    stays = values.ndim == 1 or "norm" in name or "rel_b" in name or kind == Types.F32
    if stays or values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
        writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))
        return
    values = np.ascontiguousarray(values)
    try:
        blocks = gguf.quants.quantize(values, kind)
    except NotImplementedError:  # the package only reads this type
        blocks = quantize(torch.from_numpy(values), TYPES[kind]).reshape(*values.shape[:-1], -1)
    writer.add_tensor(name, blocks, raw_dtype=kind)


# --- how states differ ----------------------------------------------------------------------------


def permuted(config: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Queries and keys in the order of LLaMA's reference."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    found = {}
    for name, tensor in state.items():
        count = next((heads[part] for part in heads if f"{part}." in name), None)
        if count is not None:
            rows = tensor.reshape(count, 2, tensor.shape[0] // count // 2, *tensor.shape[1:])
            tensor = rows.swapaxes(1, 2).reshape(tensor.shape)
        found[name] = tensor
    return found


def plus_one(config: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Norms with 1 added."""
    return {
        name: tensor + 1 if name.endswith("norm.weight") else tensor
        for name, tensor in state.items()
    }


def transposed(config: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The matrices of GPT-2's Conv1D."""
    ends = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
    return {name: t.t() if name.endswith(ends) else t for name, t in state.items()}


def stacked(*names: str) -> Callable[[Any, dict[str, Tensor]], dict[str, Tensor]]:
    """The matrices of experts, in one tensor of each kind and layer.

    transformers 5 holds them as `experts.gate_up_proj` (E, 2 · inner, width) and `down_proj`.
    """

    def stack(config: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for name, tensor in state.items():
            if name.endswith("experts.gate_up_proj"):
                layer = name.split(".")[2]
                gate, up = tensor.chunk(2, 1)
                found[f"blk.{layer}.ffn_gate_exps.weight"] = gate
                found[f"blk.{layer}.ffn_up_exps.weight"] = up
            elif name.endswith("experts.down_proj"):
                found[f"blk.{name.split('.')[2]}.ffn_down_exps.weight"] = tensor
            else:
                found[name] = tensor
        return found

    return stack


def oss_experts(config: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """gpt-oss: gates and other factors alternate, and matrices are transposed."""
    found = {}
    for name, tensor in state.items():
        layer = name.split(".")[2] if name.startswith("model.layers.") else ""
        if name.endswith("experts.gate_up_proj"):
            found[f"blk.{layer}.ffn_gate_exps.weight"] = tensor[..., ::2].transpose(1, 2)
            found[f"blk.{layer}.ffn_up_exps.weight"] = tensor[..., 1::2].transpose(1, 2)
        elif name.endswith("experts.gate_up_proj_bias"):
            found[f"blk.{layer}.ffn_gate_exps.bias"] = tensor[..., ::2]
            found[f"blk.{layer}.ffn_up_exps.bias"] = tensor[..., 1::2]
        elif name.endswith("experts.down_proj"):
            found[f"blk.{layer}.ffn_down_exps.weight"] = tensor.transpose(1, 2)
        elif name.endswith("experts.down_proj_bias"):
            found[f"blk.{layer}.ffn_down_exps.bias"] = tensor
        elif name.endswith("self_attn.sinks"):
            found[f"blk.{layer}.attn_sinks.weight"] = tensor
        elif name.endswith("post_attention_layernorm.weight"):
            found[f"blk.{layer}.post_attention_norm.weight"] = tensor
        else:
            found[name] = tensor
    return found


def with_frequencies(config: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """LLaMA 3: the divisors of frequencies, as llama.cpp's converter computes them."""
    rope = config.rope_parameters
    original = rope["original_max_position_embeddings"]
    low, high, factor = (rope[k] for k in ("low_freq_factor", "high_freq_factor", "factor"))
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    divisors = []
    for frequency in 1.0 / (rope["rope_theta"] ** steps):
        wavelength = 2 * math.pi / frequency
        if wavelength < original / high:
            divisors.append(1.0)
        elif wavelength > original / low:
            divisors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return permuted(config, state) | {"rope_freqs.weight": torch.tensor(divisors)}


def with_long_factors(config: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Phi-3: the divisors of frequencies for short and long texts."""
    rope = config.rope_parameters
    return state | {
        f"rope_factors_{kind}.weight": torch.tensor(rope[f"{kind}_factor"])
        for kind in ("long", "short")
    }


def without_copies(config: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """T5: the table of tokens once."""
    return {name: t for name, t in state.items() if not name.endswith("embed_tokens.weight")}


def bert_state(config: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    dropped = ("pooler.", "embeddings.position_ids")
    return {name: t for name, t in state.items() if not name.startswith(dropped)}


# --- keys --------------------------------------------------------------------------------------------


def decoder_keys(config: Any) -> dict[str, Any]:
    keys = {
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "context_length": config.max_position_embeddings,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": getattr(config, "rms_norm_eps", 1e-6),
    }
    rope = config.rope_parameters
    if "full_attention" in rope:
        keys["rope.freq_base_swa"] = float(rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    keys["rope.freq_base"] = float(rope["rope_theta"])
    if getattr(config, "head_dim", None):
        keys |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
    return keys


def moe_keys(config: Any) -> dict[str, Any]:
    count = getattr(config, "num_local_experts", None) or config.num_experts
    keys = {"expert_count": count, "expert_used_count": config.num_experts_per_tok}
    if inner := getattr(config, "moe_intermediate_size", None):
        keys["expert_feed_forward_length"] = inner
    return decoder_keys(config) | keys


def gemma_keys(config: Any) -> dict[str, Any]:
    keys = decoder_keys(config) | {"attention.sliding_window": config.sliding_window}
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if getattr(config, key, None) is not None:
            keys[key] = float(getattr(config, key))
    return keys


def oss_keys(config: Any) -> dict[str, Any]:
    rope = config.rope_parameters
    return moe_keys(config) | {
        "attention.sliding_window": config.sliding_window,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": float(rope["factor"]),
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        "rope.scaling.yarn_beta_fast": float(rope["beta_fast"]),
        "rope.scaling.yarn_beta_slow": float(rope["beta_slow"]),
    }


def starcoder_keys(config: Any) -> dict[str, Any]:
    return decoder_keys(config) | {"attention.layer_norm_epsilon": config.norm_epsilon}


def gpt2_keys(config: Any) -> dict[str, Any]:
    return {
        "embedding_length": config.n_embd,
        "block_count": config.n_layer,
        "feed_forward_length": 4 * config.n_embd,
        "context_length": config.n_positions,
        "attention.head_count": config.n_head,
        "attention.layer_norm_epsilon": config.layer_norm_epsilon,
    }


def bert_keys(config: Any) -> dict[str, Any]:
    return {
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "context_length": config.max_position_embeddings,
        "attention.head_count": config.num_attention_heads,
        "attention.layer_norm_epsilon": config.layer_norm_eps,
        "attention.causal": False,
        "pooling_type": 1,
    }


def t5_keys(config: Any) -> dict[str, Any]:
    return {
        "embedding_length": config.d_model,
        "block_count": config.num_layers,
        "decoder_block_count": config.num_decoder_layers,
        "feed_forward_length": config.d_ff,
        "context_length": 512,
        "attention.head_count": config.num_heads,
        "attention.key_length": config.d_kv,
        "attention.value_length": config.d_kv,
        "attention.layer_norm_rms_epsilon": config.layer_norm_epsilon,
        "attention.relative_buckets_count": config.relative_attention_num_buckets,
        "decoder_start_token_id": 0,
    }


# --- the cases ---------------------------------------------------------------------------------------

_SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
_SIZES |= {"num_attention_heads": 4, "max_position_embeddings": 64}
_GROUPED = _SIZES | {"num_key_value_heads": 2, "pad_token_id": 0}
_WIDE = _GROUPED | {"head_dim": 16}
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip
_YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
    "truncate": False, "original_max_position_embeddings": 16,
}  # fmt: skip
_LAYERED = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
_LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.0, 2.0, 3.0, 4.0],
}  # fmt: skip
_A = gguf.MODEL_ARCH

CASES: dict[str, Case] = {
    "llama": Case(_A.LLAMA, "LlamaForCausalLM", _GROUPED, decoder_keys, permuted),
    "llama, tied, biases": Case(
        _A.LLAMA,
        "LlamaForCausalLM",
        _GROUPED | {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
        decoder_keys,
        permuted,
    ),
    "llama, wide heads": Case(_A.LLAMA, "LlamaForCausalLM", _WIDE, decoder_keys, permuted),
    "llama 3": Case(
        _A.LLAMA,
        "LlamaForCausalLM",
        _GROUPED | {"head_dim": 64, "rope_parameters": _LLAMA3},
        decoder_keys,
        with_frequencies,
    ),
    "mixtral": Case(
        _A.LLAMA,
        "MixtralForCausalLM",
        _GROUPED | {"num_local_experts": 3},
        moe_keys,
        lambda config, state: stacked()(config, permuted(config, state)),
    ),
    "qwen2": Case(_A.QWEN2, "Qwen2ForCausalLM", _GROUPED, decoder_keys),
    "qwen3": Case(_A.QWEN3, "Qwen3ForCausalLM", _WIDE, decoder_keys),
    "qwen3moe": Case(
        _A.QWEN3MOE,
        "Qwen3MoeForCausalLM",
        _WIDE | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        | {"norm_topk_prob": True},
        moe_keys,
        stacked(),
    ),
    "gemma": Case(_A.GEMMA, "GemmaForCausalLM", _WIDE, decoder_keys, plus_one),
    "gemma2": Case(
        _A.GEMMA2,
        "Gemma2ForCausalLM",
        _WIDE | {"sliding_window": 8, "query_pre_attn_scalar": 16},
        gemma_keys,
        plus_one,
    ),
    "gemma3, scaled": Case(
        _A.GEMMA3,
        "Gemma3ForCausalLM",
        _WIDE
        | {"sliding_window": 8, "query_pre_attn_scalar": 16, "num_hidden_layers": 6}
        | {"rope_parameters": _LAYERED},
        lambda config: gemma_keys(config) | {
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
        plus_one,
    ),
    "gemma3": Case(
        _A.GEMMA3,
        "Gemma3ForCausalLM",
        _WIDE | {"sliding_window": 8, "query_pre_attn_scalar": 16, "num_hidden_layers": 7},
        gemma_keys,
        plus_one,
    ),
    "phi3": Case(_A.PHI3, "Phi3ForCausalLM", _GROUPED, decoder_keys),
    "phi3, long": Case(
        _A.PHI3,
        "Phi3ForCausalLM",
        _GROUPED | {"original_max_position_embeddings": 8, "rope_parameters": _LONGROPE},
        lambda config: decoder_keys(config) | {
            "rope.scaling.original_context_length": 8,
            "rope.scaling.attn_factor": math.sqrt(1 + math.log(8) / math.log(8)),
        },
        with_long_factors,
    ),
    "gpt2": Case(
        _A.GPT2,
        "GPT2LMHeadModel",
        {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
        gpt2_keys,
        transposed,
    ),
    "starcoder2": Case(
        _A.STARCODER2, "Starcoder2ForCausalLM", _GROUPED, starcoder_keys
    ),
    "smollm3": Case(
        _A.SMOLLM3,
        "SmolLM3ForCausalLM",
        _GROUPED | {"num_hidden_layers": 5},
        decoder_keys,
        permuted,
    ),
    "olmo2": Case(_A.OLMO2, "Olmo2ForCausalLM", _GROUPED, decoder_keys),
    "gpt-oss": Case(
        _A.GPT_OSS,
        "GptOssForCausalLM",
        _WIDE
        | {"num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": 8}
        | {"rope_parameters": _YARN},
        oss_keys,
        oss_experts,
    ),
    "bert": Case(_A.BERT, "BertModel", _SIZES, bert_keys, bert_state),
    "t5": Case(
        _A.T5,
        "T5ForConditionalGeneration",
        {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
        | {"decoder_start_token_id": 0},
        t5_keys,
        without_copies,
    ),
    "t5, gated, untied": Case(
        _A.T5,
        "T5ForConditionalGeneration",
        {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
        | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
        | {"num_decoder_layers": 3, "decoder_start_token_id": 0},
        t5_keys,
        without_copies,
    ),
}  # fmt: skip
