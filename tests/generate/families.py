"""One tiny model of transformers for every generative family."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.hub.parity import randomised

transformers = pytest.importorskip("transformers")

IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT_LIKE = {"vocab_size": 61, "n_positions": 48, "n_embd": 32, "n_layer": 2, "n_head": 4, **IDS}
LLAMA_LIKE = {
    "vocab_size": 61, "max_position_embeddings": 48, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, **IDS,
}  # fmt: skip
NEO = {"vocab_size": 61, "max_position_embeddings": 48, "hidden_size": 32, "num_heads": 4, **IDS}
GATED = {**LLAMA_LIKE, "intermediate_size": 48}
FALCON = {**LLAMA_LIKE, "num_kv_heads": 2}
OLD_FALCON = {
    **LLAMA_LIKE,
    "multi_query": False,
    "parallel_attn": False,
    "alibi": True,
    "bias": True,
}
OPT = {**LLAMA_LIKE, "ffn_dim": 48}
T5 = {
    "vocab_size": 61, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "decoder_start_token_id": 0,
}  # fmt: skip
SEQ2SEQ = {
    "vocab_size": 61, "d_model": 32, "max_position_embeddings": 48, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
}  # fmt: skip

# Class of the model, class of its config, the config. Windows are shorter than the inputs.
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "openai-gpt": ("OpenAIGPTLMHeadModel", "OpenAIGPTConfig", GPT_LIKE),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT_LIKE),
    "gpt_bigcode": ("GPTBigCodeForCausalLM", "GPTBigCodeConfig", GPT_LIKE),
    "gpt_bigcode, all heads": ("GPTBigCodeForCausalLM", "GPTBigCodeConfig", {**GPT_LIKE, "multi_query": False}),
    "gptj": ("GPTJForCausalLM", "GPTJConfig", {**GPT_LIKE, "rotary_dim": 4}),
    "codegen": ("CodeGenForCausalLM", "CodeGenConfig", {**GPT_LIKE, "rotary_dim": 4}),
    "gpt_neo": (
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {**NEO, "num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 3},
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {**GATED, "rotary_pct": 0.5}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", {**GATED, "num_key_value_heads": 2}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**GATED, "num_key_value_heads": 2, "sliding_window": 4}),
    "starcoder2": (
        "Starcoder2ForCausalLM",
        "Starcoder2Config",
        {**GATED, "num_key_value_heads": 2, "sliding_window": 5},
    ),
    "mixtral": (
        "MixtralForCausalLM",
        "MixtralConfig",
        {**GATED, "num_key_value_heads": 2, "num_local_experts": 4, "sliding_window": 5},
    ),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        {**GATED, "num_key_value_heads": 2, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    ),
    "gpt_oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        {**GATED, "num_key_value_heads": 2, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 4}
        | {"head_dim": 8},
    ),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        {**GATED, "num_key_value_heads": 4, "n_routed_experts": 8, "n_group": 4, "topk_group": 2}
        | {"num_experts_per_tok": 3, "moe_intermediate_size": 16, "first_k_dense_replace": 1, "kv_lora_rank": 12}
        | {"q_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 8},
    ),
    "falcon 7b": ("FalconForCausalLM", "FalconConfig", LLAMA_LIKE),
    "falcon 40b": ("FalconForCausalLM", "FalconConfig", {**FALCON, "new_decoder_architecture": True}),
    "falcon, ALiBi": ("FalconForCausalLM", "FalconConfig", OLD_FALCON),
    "opt": ("OPTForCausalLM", "OPTConfig", OPT),
    "opt, 350m": (
        "OPTForCausalLM", "OPTConfig", {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 24}
    ),
    "bloom": ("BloomForCausalLM", "BloomConfig", {"vocab_size": 61, "hidden_size": 32, "n_head": 4, **IDS}),
    "t5": ("T5ForConditionalGeneration", "T5Config", T5),
    "t5 1.1": (
        "T5ForConditionalGeneration",
        "T5Config",
        {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "mt5": ("MT5ForConditionalGeneration", "MT5Config", T5),
    "longt5": (
        "LongT5ForConditionalGeneration",
        "LongT5Config",
        {**T5, "local_radius": 2, "global_block_size": 3, "encoder_attention_type": "transient-global"},
    ),
    "bart": ("BartForConditionalGeneration", "BartConfig", SEQ2SEQ),
    "led": (
        "LEDForConditionalGeneration",
        "LEDConfig",
        {key: value for key, value in SEQ2SEQ.items() if key != "max_position_embeddings"}
        | {"attention_window": 4, "max_decoder_position_embeddings": 20},
    ),
    "mbart": (
        "MBartForConditionalGeneration", "MBartConfig",
        {**SEQ2SEQ, "pad_token_id": 1, "forced_eos_token_id": None},
    ),
    "pegasus": (
        "PegasusForConditionalGeneration", "PegasusConfig",
        {**SEQ2SEQ, "pad_token_id": 0, "scale_embedding": True, "forced_eos_token_id": None},
    ),
    "bigbird_pegasus": (
        "BigBirdPegasusForConditionalGeneration", "BigBirdPegasusConfig",
        {**SEQ2SEQ, "use_bias": True, "forced_eos_token_id": None},
    ),
    "m2m_100": ("M2M100ForConditionalGeneration", "M2M100Config", {**SEQ2SEQ, "pad_token_id": 1}),
    "marian": (
        "MarianMTModel",
        "MarianConfig",
        {**SEQ2SEQ, "pad_token_id": 60, "eos_token_id": 0, "decoder_start_token_id": 60, "forced_eos_token_id": 0},
    ),
}  # fmt: skip
TABLES = ("embed", "wte", "wpe", "shared", "lm_head", "relative_attention_bias", "embed_out")
DECODERS = [
    name
    for name, (_, _, config) in FAMILIES.items()
    if "n_layer" in config or "hidden_size" in config
]


def new_reference(family: str, **changes: Any) -> Any:
    """A model of transformers with random parameters and these changes of its config.

    The decoder has large weights and cross-attention small ones; otherwise most models would repeat
    one token."""
    model_class, config_class, config = FAMILIES[family]
    torch.manual_seed(0)
    settings = getattr(transformers, config_class)(**config | changes)
    model = randomised(getattr(transformers, model_class)(settings), seed=3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and not any(table in name for table in TABLES):
                parameter.mul_(0.3 if "encoder_attn" in name or "EncDecAttention" in name else 3.0)
            elif (
                family in ("t5", "longt5") and "shared" in name
            ):  # its logits are divided by √d_model
                parameter.mul_(4.0)
    return model
