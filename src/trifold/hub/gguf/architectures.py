"""Architectures of GGUF files: which family of `hub.families` each one is, where the keys of its
config.json come from, and the names of its tensors.

A row translates to the keys and names of Hugging Face files. What these mean is stated by the
families alone. The rules of tensors work in both directions.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from trifold.errors import CheckpointError
from trifold.hub.gguf.metadata import ARCHITECTURE, REQUIRED, Metadata
from trifold.hub.rules import ParameterRule
from trifold.hub.transforms import SAME, TRANSPOSED, Tensors, Transform, per_tensor

Keys: TypeAlias = dict[str, Any]
BLOCK = "blk.{i}."


@dataclass(frozen=True)
class Architecture:
    """How models of one `general.architecture` are read.

    family: their `model_type`. class_name: their class. sizes, numbers: a key of config.json -> the
    key of the metadata, which may be missing if it ends with "?". more: further keys, from the file
    and those before.
    names: a module or a tensor of the file -> that of the family; {a|b} is a list of words.
    transforms: a module of the file, without its block -> the map to the family.
    experts: a tensor of all experts -> the tensors of the family, {e}.
    fused: rules of tensors of the family that are several in the file.
    """

    family: str
    class_name: str
    sizes: Mapping[str, str]
    numbers: Mapping[str, str]
    names: Mapping[str, str] | Callable[[Keys], Mapping[str, str]]
    more: Callable[[Metadata, Keys], Keys]
    transforms: Callable[[Keys], Mapping[str, Transform]] = lambda keys: {}
    _: KW_ONLY
    experts: Mapping[str, str] = field(default_factory=dict)
    fused: tuple[ParameterRule, ...] = ()

    def config(self, file: Metadata) -> Keys:
        """The content of config.json. Raises CheckpointError."""
        keys: Keys = {"model_type": self.family, "architectures": [self.class_name]}
        for read, table in ((file.size, self.sizes), (file.number, self.numbers)):
            for name, key in table.items():
                default = None if key.endswith("?") else REQUIRED
                keys[name] = read(key.removesuffix("?"), default)
        keys = {name: value for name, value in keys.items() if value is not None}
        return keys | self.more(file, keys)

    def rules(self, keys: Keys) -> list[ParameterRule]:
        """The rules of tensors: "theirs" are those of the file, "ours" those of the family.

        keys: the content of config.json.
        """
        names = self.names(keys) if callable(self.names) else self.names
        transforms = self.transforms(keys)
        rules = [*self.fused]
        for theirs, ours in _with_words(names):
            transform = transforms.get(theirs.removeprefix(BLOCK), SAME)
            if theirs.endswith(".weight"):  # the family's has another ending
                rules.append(ParameterRule(ours, theirs, transform))
                continue
            rules.append(ParameterRule(f"{ours}.weight", f"{theirs}.weight", transform))
            of_bias = SAME if transform is TRANSPOSED else transform
            rules.append(ParameterRule(f"{ours}.bias", f"{theirs}.bias", of_bias))
        for theirs, ours in self.experts.items():
            numbers = range(keys.get("num_local_experts") or keys["num_experts"])
            each = tuple(ours.replace("{e}", str(number)) for number in numbers)
            rules.append(ParameterRule(each, theirs, STACKED))
        return rules


def _with_words(names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The names with each word of their lists."""
    for theirs, ours in names.items():
        found = re.search(r"\{([a-z|]+\|[a-z|]+)\}", theirs)
        for word in found[1].split("|") if found else [""]:
            yield (
                theirs.replace(found[0], word) if found else theirs,
                ours.replace("{word}", word),
            )


# --- transforms: `load` leads from the file to the family -----------------------------------------

# Shapes are computed on the meta device, where PyTorch imports its compiler for additions and
# torch.stack: two seconds and 60 MB.


def _plus(tensor: Tensor, number: int) -> Tensor:
    """A sum in fp32."""
    return tensor.to(torch.float32, copy=True).add_(number)


# Gemma's norms multiply by 1 + weight, and files hold the sum.
PLUS_ONE = per_tensor(lambda theirs: _plus(theirs, -1), lambda ours: _plus(ours, 1))


def _stack(tensors: Tensors, axis: int) -> Tensor:
    """torch.stack."""
    shape = [*tensors[0].shape]
    shape.insert(axis, len(tensors))
    whole = tensors[0].new_empty(shape)
    for number, tensor in enumerate(tensors):
        whole.select(axis, number).copy_(tensor)
    return whole


STACKED = Transform(lambda theirs: [*theirs[0]], lambda ours: [_stack(ours, 0)])


def _join_pairs(heads: int) -> Transform:
    """The rows of a head in the order of LLaMA's reference, in which neighbours are rotated
    together; in the family's order they are half a head apart.
    """

    def apart(theirs: Tensor) -> Tensor:
        rows: Tensor = theirs.unflatten(0, (heads, -1, 2))
        return rows.transpose(1, 2).flatten(0, 2)

    def together(ours: Tensor) -> Tensor:
        rows: Tensor = ours.unflatten(0, (heads, 2, -1))
        return rows.transpose(1, 2).flatten(0, 2)

    return per_tensor(apart, together)


def _rotated_in_pairs(keys: Keys) -> dict[str, Transform]:
    """The transforms of the queries and keys."""
    return {
        "attn_q": _join_pairs(keys["num_attention_heads"]),
        "attn_k": _join_pairs(keys["num_key_value_heads"]),
    }


def _gemma_norms(keys: Keys) -> dict[str, Transform]:
    names = (
        "output_norm attn_norm ffn_norm attn_q_norm attn_k_norm post_attention_norm post_ffw_norm"
    )
    return dict.fromkeys(names.split(), PLUS_ONE)


def _gpt2_matrices(keys: Keys) -> dict[str, Transform]:
    return dict.fromkeys(("attn_qkv", "attn_output", "ffn_up", "ffn_down"), TRANSPOSED)


# --- keys -----------------------------------------------------------------------------------------

DECODER_SIZES = {
    "hidden_size": ".embedding_length",
    "num_hidden_layers": ".block_count",
    "intermediate_size": ".feed_forward_length",
    "num_attention_heads": ".attention.head_count",
    "max_position_embeddings": ".context_length",
}
RMS = {"rms_norm_eps": ".attention.layer_norm_rms_epsilon"}


def _vocabulary(file: Metadata) -> Keys:
    """The rows of the table of tokens, and whether the output layer has its own."""
    return {
        "vocab_size": file.rows("token_embd.weight"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }


def _special_tokens(file: Metadata, vocab_size: int) -> Keys:
    """The ids of special tokens; null for one that the file does not name."""
    keys: Keys = {}
    for role, theirs in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        key = f"tokenizer.ggml.{theirs}_token_id"
        number = file.size(key, None, least=0)
        if number is not None and number >= vocab_size:
            raise file.error(key, f"{number:,} is no token of {vocab_size:,}")
        keys[f"{role}_token_id"] = number
    return keys


def _heads(file: Metadata, keys: Keys) -> Keys:
    """The heads of keys and values, and the width of a head."""
    heads = keys["num_attention_heads"]
    groups = file.size(".attention.head_count_kv", heads)
    if heads % groups:
        raise file.error(".attention.head_count_kv", f"{groups} does not divide {heads} heads")
    width = file.size(".attention.key_length", keys["hidden_size"] // heads)
    if file.size(".attention.value_length", width) != width:
        raise file.error(".attention.value_length", f"differs from key_length, {width}")
    found: Keys = {"num_key_value_heads": groups}
    if width != keys["hidden_size"] // heads:
        found["head_dim"] = width
    return found


def _head_width(keys: Keys) -> int:
    return int(keys.get("head_dim") or keys["hidden_size"] // keys["num_attention_heads"])


SCALINGS = ("none", "linear", "yarn", "longrope")


def _rope(file: Metadata, keys: Keys) -> Keys:
    """The keys below `rope_parameters`. Raises CheckpointError for rotations of a part of a head,
    which only some families have.
    """
    width = _head_width(keys)
    rotated = file.size(".rope.dimension_count", width)
    if rotated > width:
        raise file.error(".rope.dimension_count", f"{rotated} is more than {width}, a head")
    found: Keys = {"rope_type": "default", "rope_theta": file.number(".rope.freq_base", 1e4)}
    if rotated != width:
        found["partial_rotary_factor"] = rotated / width
    kind = file.choice(".rope.scaling.type", SCALINGS, "none")
    old = file.number(".rope.scale_linear", 0.0)
    if kind == "none" and old not in (0.0, 1.0):
        return found | {"rope_type": "linear", "factor": old}
    if (divisors := file.tensors.get("rope_freqs.weight")) is not None:
        found |= _llama3_scaling(file, divisors, found["rope_theta"])
    if kind in ("none", "longrope"):  # the latter is in tensors
        return found
    found |= {"rope_type": kind, "factor": file.number(".rope.scaling.factor")}
    original = file.size(".rope.scaling.original_context_length", None)
    if kind == "yarn":
        found |= _yarn(file, original)
    return found


def _yarn(file: Metadata, original: int | None) -> Keys:
    keys: Keys = {} if original is None else {"original_max_position_embeddings": original}
    for name, key in (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")):
        value = file.number(f".rope.scaling.{key}", None)
        if value is not None:
            keys[name] = value
    if file.number(".rope.scaling.yarn_log_multiplier", 0.0):
        raise file.error(".rope.scaling.yarn_log_multiplier", "is not supported")
    return keys


def _llama3_scaling(file: Metadata, divisors: Tensor, theta: float) -> Keys:
    """The keys of LLaMA 3's scaling, of which a file holds the divisor of each frequency.

    The divisor is 1 for short waves and `factor` for long ones; between them, the inverse falls
    along a line over 1 / wavelength.
    """
    values = divisors.double()
    waves_per_token = _waves_per_token(len(values), theta)
    factor = float(values.max())
    between = (values > 1.0001) & (values < factor * 0.9999)
    if factor > 1 and int(between.sum()) >= 2:
        share = (1 / values[between] - 1 / factor) / (1 - 1 / factor)
        first, last = waves_per_token[between][[0, -1]]
        slope = float((share[0] - share[-1]) / (first - last))  # original / (high − low)
        offset = float(share[0] - slope * first)  # −low / (high − low), and low is 1
        original = round(slope / -offset) if offset < 0 else 0
        high = 1 - 1 / offset if offset < 0 else 0.0
        keys = {
            "rope_type": "llama3",
            "factor": float(f"{factor:.6g}"),
            "low_freq_factor": 1.0,
            "high_freq_factor": float(f"{high:.4g}"),
            "original_max_position_embeddings": original,
        }
        expected = llama3_divisors(len(values), keys | {"rope_theta": theta})
        if original > 0 and torch.allclose(expected.double(), values, rtol=1e-4):
            return keys
    raise file.error("rope_freqs.weight", "not the frequencies of LLaMA 3")


def _waves_per_token(count: int, theta: float) -> Tensor:
    """The frequencies of `count` pairs, in turns."""
    inverse: Tensor = theta ** -(torch.arange(count, dtype=torch.float64) / count)
    return inverse / (2 * math.pi)


def llama3_divisors(count: int, rope: Keys) -> Tensor:
    """The divisors of `count` frequencies that the keys of LLaMA 3's scaling stand for."""
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    waves = _waves_per_token(count, rope["rope_theta"]) * rope["original_max_position_embeddings"]
    share = ((waves - low) / (high - low)).clamp(0, 1)
    return torch.reciprocal((1 - share) / rope["factor"] + share).float()


def _decoder(file: Metadata, keys: Keys) -> Keys:
    """The keys of decoders with rotary positions."""
    found = _vocabulary(file)
    found |= _special_tokens(file, found["vocab_size"])
    found |= _heads(file, keys)
    return found | {"rope_parameters": _rope(file, keys | found)}


def _experts(file: Metadata, keys: Keys) -> tuple[int, int]:
    """The number of experts, and that of each token."""
    count = file.size(".expert_count")
    used = file.size(".expert_used_count")
    if used > count:
        raise file.error(".expert_used_count", f"{used} is more than {count} experts")
    if file.size(".expert_gating_func", 1, least=0) not in (0, 1):
        raise file.error(".expert_gating_func", "only softmax, 1, is supported")
    return count, used


def _llama(file: Metadata, keys: Keys) -> Keys:
    has = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"}
    biases = {key: name in file.tensors for key, name in has.items()}
    return _decoder(file, keys) | biases


def _mixtral(file: Metadata, keys: Keys) -> Keys:
    count, used = _experts(file, keys)
    found = {"num_local_experts": count, "num_experts_per_tok": used}
    return _decoder(file, keys) | found


def _qwen3_moe(file: Metadata, keys: Keys) -> Keys:
    count, used = _experts(file, keys)
    found = {"num_experts": count, "num_experts_per_tok": used, "norm_topk_prob": True}
    return _decoder(file, keys) | found | _explicit_width(file, keys)


def _explicit_width(file: Metadata, keys: Keys) -> Keys:
    """The width of a head, in families whose default does not depend on other sizes."""
    heads = keys["num_attention_heads"]
    return {"head_dim": file.size(".attention.key_length", keys["hidden_size"] // heads)}


def _with_width(file: Metadata, keys: Keys) -> Keys:
    return _decoder(file, keys) | _explicit_width(file, keys)


def _gemma2(file: Metadata, keys: Keys) -> Keys:
    found = _with_width(file, keys) | {"tie_word_embeddings": True}
    # Scores are divided by the root of this; the models of 27 B divide by that of another width.
    found["query_pre_attn_scalar"] = found["head_dim"]
    if keys["num_hidden_layers"] == LAYERS_OF_27B[file.architecture]:
        found["query_pre_attn_scalar"] = keys["hidden_size"] // keys["num_attention_heads"]
    found["sliding_window"] = file.size(".attention.sliding_window", 4096)
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        found[key] = file.number(f".{key}", None)
    return found


LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}


def _gemma3(file: Metadata, keys: Keys) -> Keys:
    found = _gemma2(file, keys)
    del found["attn_logit_softcapping"]
    every = file.size(".attention.sliding_window_pattern", 6)
    layers = range(1, keys["num_hidden_layers"] + 1)
    kinds = ["sliding_attention" if layer % every else "full_attention" for layer in layers]
    local = {
        "rope_type": "default",
        "rope_theta": file.number(".rope.freq_base_swa", 1e4),
    }
    return found | {
        "layer_types": kinds,
        "rope_parameters": {
            "full_attention": found["rope_parameters"],
            "sliding_attention": local,
        },
    }


def _phi3(file: Metadata, keys: Keys) -> Keys:
    found = _decoder(file, keys)
    if window := file.size(".attention.sliding_window", 0, least=0):
        found["sliding_window"] = window
    original = file.size(".rope.scaling.original_context_length", None)
    if original is not None:
        found["original_max_position_embeddings"] = original
    factors = {
        "long_factor": "rope_factors_long.weight",
        "short_factor": "rope_factors_short.weight",
    }
    if all(name in file.tensors for name in factors.values()):
        rope = found["rope_parameters"] | {"rope_type": "longrope"}
        rope |= {key: file.tensors[name].tolist() for key, name in factors.items()}
        magnitude = file.number(".rope.scaling.attn_factor", None)
        if magnitude is not None:
            rope["attention_factor"] = magnitude
        found["rope_parameters"] = rope
    return found


def _gpt2(file: Metadata, keys: Keys) -> Keys:
    found = _vocabulary(file)
    return found | _special_tokens(file, found["vocab_size"])


def _starcoder2(file: Metadata, keys: Keys) -> Keys:
    return _decoder(file, keys) | {"use_bias": "blk.0.attn_q.bias" in file.tensors}


def _gpt_oss(file: Metadata, keys: Keys) -> Keys:
    count, used = _experts(file, keys)
    found = _with_width(file, keys)
    found["rope_parameters"]["truncate"] = False
    inner = file.size(".expert_feed_forward_length", keys["intermediate_size"])
    return found | {
        "num_local_experts": count,
        "num_experts_per_tok": used,
        "intermediate_size": inner,
        "sliding_window": file.size(".attention.sliding_window", 128),
    }


def _bert(file: Metadata, keys: Keys) -> Keys:
    found = _vocabulary(file)
    found |= _special_tokens(file, found["vocab_size"])
    del found["bos_token_id"], found["eos_token_id"]
    return found | {
        "tie_word_embeddings": True,
        "embedding_size": keys["hidden_size"],
        "type_vocab_size": file.rows("token_types.weight"),
        "max_position_embeddings": file.rows("position_embd.weight"),
    }


def _t5(file: Metadata, keys: Keys) -> Keys:
    found = _vocabulary(file)
    tokens = _special_tokens(file, found["vocab_size"])
    gated = "enc.blk.0.ffn_gate.weight" in file.tensors
    keys = {name: value for name, value in tokens.items() if value is not None}
    return (
        found
        | keys
        | {
            "decoder_start_token_id": file.size(".decoder_start_token_id", 0, least=0),
            "feed_forward_proj": "gated-gelu" if gated else "relu",
        }
    )


# --- names ----------------------------------------------------------------------------------------

OUTER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
ATTENTION = {
    f"{BLOCK}attn_{{q|k|v}}": "model.layers.{i}.self_attn.{word}_proj",
    f"{BLOCK}attn_output": "model.layers.{i}.self_attn.o_proj",
}
QK_NORMS = {f"{BLOCK}attn_{{q|k}}_norm": "model.layers.{i}.self_attn.{word}_norm"}
PRE_NORMS = {
    f"{BLOCK}attn_norm": "model.layers.{i}.input_layernorm",
    f"{BLOCK}ffn_norm": "model.layers.{i}.post_attention_layernorm",
}
FEED_FORWARD = {f"{BLOCK}ffn_{{gate|up|down}}": "model.layers.{i}.mlp.{word}_proj"}
LLAMA_NAMES = OUTER | ATTENTION | PRE_NORMS | FEED_FORWARD
POST_NORMS = {
    f"{BLOCK}post_attention_norm": "model.layers.{i}.post_attention_layernorm",
    f"{BLOCK}post_ffw_norm": "model.layers.{i}.post_feedforward_layernorm",
}
SANDWICH = {
    f"{BLOCK}attn_norm": "model.layers.{i}.input_layernorm",
    f"{BLOCK}ffn_norm": "model.layers.{i}.pre_feedforward_layernorm",
} | POST_NORMS


MLP = "model.layers.{i}.mlp"
MIXTRAL_MODULE = "model.layers.{i}.block_sparse_moe"


def _expert_names(module: str, names: str) -> dict[str, str]:
    """The tensors of gates, of the other factors and of outputs; names: those of the family."""
    parts = zip(("gate", "up", "down"), names.split(), strict=True)
    return {
        f"{BLOCK}ffn_{part}_exps.weight": f"{module}.experts.{{e}}.{name}.weight"
        for part, name in parts
    }


def _alternate(tensors: Tensors) -> Tensors:
    """Gate and other factor of all experts, (E, inner, …), row by row in one: (E, …, 2 · inner)."""
    rows = _stack(tensors, 2).flatten(1, 2)
    return [rows.transpose(1, 2) if rows.dim() == 3 else rows]


def _separate(tensors: Tensors) -> Tensors:
    """The inverse of `_alternate`."""
    rows = tensors[0].transpose(1, 2) if tensors[0].dim() == 3 else tensors[0]
    return [*rows.unflatten(1, (-1, 2)).unbind(2)]


_ALTERNATED = Transform(_alternate, _separate)
_LAST_AXES_SWAPPED = per_tensor(
    lambda theirs: theirs.transpose(1, 2), lambda ours: ours.transpose(1, 2)
)


def _gate_and_up(part: str) -> tuple[str, str]:
    return f"{BLOCK}ffn_gate_exps.{part}", f"{BLOCK}ffn_up_exps.{part}"


GPT_OSS_EXPERTS = (
    ParameterRule(f"{MLP}.experts.gate_up_proj", _gate_and_up("weight"), _ALTERNATED),
    ParameterRule(f"{MLP}.experts.gate_up_proj_bias", _gate_and_up("bias"), _ALTERNATED),
    ParameterRule(f"{MLP}.experts.down_proj", f"{BLOCK}ffn_down_exps.weight", _LAST_AXES_SWAPPED),
    ParameterRule(f"{MLP}.experts.down_proj_bias", f"{BLOCK}ffn_down_exps.bias", SAME),
)


def _t5_names(keys: Keys) -> dict[str, str]:
    gated = keys["feed_forward_proj"].startswith("gated")
    names = {
        "token_embd": "shared",
        "output": "lm_head",
        "enc.output_norm": "encoder.final_layer_norm",
        "dec.output_norm": "decoder.final_layer_norm",
    }
    for short, stack, inner in (("enc", "encoder", 1), ("dec", "decoder", 2)):
        layer = f"{stack}.block.{{i}}.layer"
        attention = f"{layer}.0.SelfAttention"
        network = f"{layer}.{inner}.DenseReluDense"
        names |= {
            f"{short}.blk.{{i}}.attn_{{q|k|v|o}}": f"{attention}.{{word}}",
            f"{short}.blk.{{i}}.attn_rel_b": f"{attention}.relative_attention_bias",
            f"{short}.blk.{{i}}.attn_norm": f"{layer}.0.layer_norm",
            f"{short}.blk.{{i}}.ffn_norm": f"{layer}.{inner}.layer_norm",
            f"{short}.blk.{{i}}.ffn_down": f"{network}.wo",
            f"{short}.blk.{{i}}.ffn_gate": f"{network}.wi_0",
            f"{short}.blk.{{i}}.ffn_up": f"{network}.wi_1" if gated else f"{network}.wi",
        }
    cross = "decoder.block.{i}.layer.1"
    return names | {
        "dec.blk.{i}.cross_attn_{q|k|v|o}": f"{cross}.EncDecAttention.{{word}}",
        "dec.blk.{i}.cross_attn_norm": f"{cross}.layer_norm",
    }


LLAMA = Architecture(
    "llama", "LlamaForCausalLM", DECODER_SIZES, RMS, LLAMA_NAMES, _llama, _rotated_in_pairs
)
MIXTRAL = replace(
    LLAMA,
    family="mixtral",
    class_name="MixtralForCausalLM",
    more=_mixtral,
    names=OUTER | ATTENTION | PRE_NORMS | {f"{BLOCK}ffn_gate_inp": f"{MIXTRAL_MODULE}.gate"},
    experts=_expert_names(MIXTRAL_MODULE, "w1 w3 w2"),
)
QWEN2 = Architecture("qwen2", "Qwen2ForCausalLM", DECODER_SIZES, RMS, LLAMA_NAMES, _decoder)
QWEN3 = replace(
    QWEN2,
    family="qwen3",
    class_name="Qwen3ForCausalLM",
    names=LLAMA_NAMES | QK_NORMS,
    more=_with_width,
)
QWEN3_MOE = replace(
    QWEN3,
    family="qwen3_moe",
    class_name="Qwen3MoeForCausalLM",
    sizes=DECODER_SIZES | {"moe_intermediate_size": ".expert_feed_forward_length"},
    more=_qwen3_moe,
    names=OUTER | ATTENTION | PRE_NORMS | QK_NORMS | {f"{BLOCK}ffn_gate_inp": f"{MLP}.gate"},
    experts=_expert_names(MLP, "gate_proj up_proj down_proj"),
)
GEMMA = Architecture(
    "gemma", "GemmaForCausalLM", DECODER_SIZES, RMS, LLAMA_NAMES, _with_width, _gemma_norms
)
GEMMA2 = replace(
    GEMMA,
    family="gemma2",
    class_name="Gemma2ForCausalLM",
    names=OUTER | ATTENTION | FEED_FORWARD | SANDWICH,
    more=_gemma2,
)
GEMMA3 = replace(
    GEMMA2,
    family="gemma3_text",
    class_name="Gemma3ForCausalLM",
    names=OUTER | ATTENTION | FEED_FORWARD | SANDWICH | QK_NORMS,
    more=_gemma3,
)
PHI3 = Architecture(
    "phi3",
    "Phi3ForCausalLM",
    DECODER_SIZES,
    RMS,
    OUTER
    | PRE_NORMS
    | {
        f"{BLOCK}attn_qkv": "model.layers.{i}.self_attn.qkv_proj",
        f"{BLOCK}attn_output": "model.layers.{i}.self_attn.o_proj",
        f"{BLOCK}ffn_up": f"{MLP}.gate_up_proj",
        f"{BLOCK}ffn_down": f"{MLP}.down_proj",
    },
    _phi3,
)
GPT2 = Architecture(
    "gpt2",
    "GPT2LMHeadModel",
    {
        "n_embd": ".embedding_length",
        "n_layer": ".block_count",
        "n_head": ".attention.head_count",
        "n_inner": ".feed_forward_length",
        "n_positions": ".context_length",
    },
    {"layer_norm_epsilon": ".attention.layer_norm_epsilon"},
    {
        "token_embd": "transformer.wte",
        "position_embd": "transformer.wpe",
        "output_norm": "transformer.ln_f",
        "output": "lm_head",
        f"{BLOCK}attn_norm": "transformer.h.{i}.ln_1",
        f"{BLOCK}attn_qkv": "transformer.h.{i}.attn.c_attn",
        f"{BLOCK}attn_output": "transformer.h.{i}.attn.c_proj",
        f"{BLOCK}ffn_norm": "transformer.h.{i}.ln_2",
        f"{BLOCK}ffn_up": "transformer.h.{i}.mlp.c_fc",
        f"{BLOCK}ffn_down": "transformer.h.{i}.mlp.c_proj",
    },
    _gpt2,
    _gpt2_matrices,
)
STARCODER2 = Architecture(
    "starcoder2",
    "Starcoder2ForCausalLM",
    DECODER_SIZES,
    {"norm_epsilon": ".attention.layer_norm_epsilon"},
    OUTER
    | ATTENTION
    | PRE_NORMS
    | {f"{BLOCK}ffn_up": f"{MLP}.c_fc", f"{BLOCK}ffn_down": f"{MLP}.c_proj"},
    _starcoder2,
)
SMOLLM3 = replace(LLAMA, family="smollm3", class_name="SmolLM3ForCausalLM")
OLMO2 = Architecture(
    "olmo2",
    "Olmo2ForCausalLM",
    DECODER_SIZES,
    RMS,
    OUTER | ATTENTION | FEED_FORWARD | POST_NORMS | QK_NORMS,
    _decoder,
)
GPT_OSS = Architecture(
    "gpt_oss",
    "GptOssForCausalLM",
    DECODER_SIZES,
    RMS,
    OUTER
    | ATTENTION
    | {
        f"{BLOCK}attn_norm": "model.layers.{i}.input_layernorm",
        f"{BLOCK}post_attention_norm": "model.layers.{i}.post_attention_layernorm",
        f"{BLOCK}attn_sinks.weight": "model.layers.{i}.self_attn.sinks",
        f"{BLOCK}ffn_gate_inp": f"{MLP}.router",
    },
    _gpt_oss,
    fused=GPT_OSS_EXPERTS,
)
BERT = Architecture(
    "electra",  # which is BERT without a pooler, as files have none
    "ElectraModel",
    DECODER_SIZES,
    {"layer_norm_eps": ".attention.layer_norm_epsilon"},
    {
        "token_embd": "embeddings.word_embeddings",
        "token_types": "embeddings.token_type_embeddings",
        "position_embd": "embeddings.position_embeddings",
        "token_embd_norm": "embeddings.LayerNorm",
        f"{BLOCK}attn_q": "encoder.layer.{i}.attention.self.query",
        f"{BLOCK}attn_k": "encoder.layer.{i}.attention.self.key",
        f"{BLOCK}attn_v": "encoder.layer.{i}.attention.self.value",
        f"{BLOCK}attn_output": "encoder.layer.{i}.attention.output.dense",
        f"{BLOCK}attn_output_norm": "encoder.layer.{i}.attention.output.LayerNorm",
        f"{BLOCK}ffn_up": "encoder.layer.{i}.intermediate.dense",
        f"{BLOCK}ffn_down": "encoder.layer.{i}.output.dense",
        f"{BLOCK}layer_output_norm": "encoder.layer.{i}.output.LayerNorm",
    },
    _bert,
)
T5 = Architecture(
    "t5",
    "T5ForConditionalGeneration",
    {
        "d_model": ".embedding_length",
        "num_layers": ".block_count",
        "num_decoder_layers": ".decoder_block_count?",
        "num_heads": ".attention.head_count",
        "d_kv": ".attention.key_length",
        "d_ff": ".feed_forward_length",
        "relative_attention_num_buckets": ".attention.relative_buckets_count",
    },
    {"layer_norm_epsilon": ".attention.layer_norm_rms_epsilon"},
    _t5_names,
    _t5,
)

ARCHITECTURES = {
    "llama": LLAMA,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "qwen3moe": QWEN3_MOE,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "phi3": PHI3,
    "gpt2": GPT2,
    "starcoder2": STARCODER2,
    "smollm3": SMOLLM3,
    "olmo2": OLMO2,
    "gpt-oss": GPT_OSS,
    "bert": BERT,
    "t5": T5,
}
# Tensors that config.json has, or that can be computed.
UNREAD = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def find_architecture(file: Metadata) -> Architecture:
    """The row of a file. Raises CheckpointError for an architecture that is not read."""
    name: str = file.text(ARCHITECTURE)
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise CheckpointError(
            f"{file.place}: {ARCHITECTURE}: {name!r:.60} is not supported; known: {known}"
        )
    if name == "llama" and file.size(".expert_count", 0, least=0):
        return MIXTRAL
    return ARCHITECTURES[name]
