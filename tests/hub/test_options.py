"""Any keys of config.json: the model equals the reference, or an error names a key."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, reject, settings, strategies as st
from tests.hub.parity import check, inputs_for, randomised
from tests.hub.tiny import TINY

from trifold.errors import CheckpointError
from trifold.hub.families import FAMILIES
from trifold.nn import ModelConfig

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]

# --- keys and values ----------------------------------------------------------------

Options = dict[str, list[Any]]

ACTIVATIONS = """
    relu gelu gelu_new gelu_fast gelu_python gelu_pytorch_tanh gelu_accurate gelu_python_tanh quick_gelu silu swish tanh
    mish relu2 gelu_10
""".split()
COMMON: Options = {
    **{"torch_dtype": ["float32"], "use_cache": [False], "tie_word_embeddings": [True, False]},
    **{"id2label": [{"0": "a", "1": "b", "2": "c"}, {"1": "x", "0": "y"}], "num_labels": [1, 3]},
    **{
        "problem_type": ["regression", "multi_label_classification"],
        "num_beams": [3],
        "no_such_key": [1],
    },
}
IDS: Options = {
    "bos_token_id": [None, 1, 39, -1],
    "eos_token_id": [None, 2, [2, 5], -1],
    "pad_token_id": [0, 3, 39],
}
GPT: Options = {
    **{"n_embd": [24], "n_layer": [1, 3], "n_head": [1, 2], "n_inner": [None, 20, 33]},
    **{
        "activation_function": ACTIVATIONS,
        "resid_pdrop": [0, 0.3],
        "embd_pdrop": [0.2],
        "attn_pdrop": [0.1],
    },
    **{"layer_norm_epsilon": [1e-3], "n_ctx": [8], "summary_type": ["last"], **IDS, **COMMON},
}
HIDDEN: Options = {
    **{"hidden_size": [24], "num_hidden_layers": [1, 3], "num_attention_heads": [1, 2]},
    **{"intermediate_size": [9], "hidden_act": ACTIVATIONS, "max_position_embeddings": [12, 40]},
    **IDS,
    **COMMON,
}
FACTORS = {"short_factor": [1.0, 1.5], "long_factor": [2.0, 5.0]}  # of heads of width 4
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8}
ROTARY: Options = HIDDEN | {
    "rope_theta": [500, 3.5],
    "partial_rotary_factor": [0.5, 1.0],
    "original_max_position_embeddings": [12],
    "rope_scaling": [
        *(None, {}, {"type": "linear", "factor": 2}, {"type": "dynamic", "factor": 2.0}, YARN),
        YARN | {"type": "yarn", "beta_fast": 4, "beta_slow": 1, "attention_factor": 1.7},
        LLAMA3 | {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
        LLAMA3 | {"low_freq_factor": 4.0, "high_freq_factor": 1.0},
        {"type": "longrope", "factor": 2.0, "original_max_position_embeddings": 20, **FACTORS},
        {"type": "su", "factor": 2.0},
    ],
    "rope_parameters": [
        *(None, {}, {"rope_type": "default", "rope_theta": 77.0}),
        {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
        {"rope_type": "linear", "factor": 3.0, "rope_theta": 100.0},
        YARN | {"rope_theta": 900.0, "mscale": 0.7, "mscale_all_dim": 0.9, "truncate": False},
        YARN | {"rope_theta": 900.0, "factor": None},
        {
            "rope_type": "longrope",
            "rope_theta": 50.0,
            "original_max_position_embeddings": 20,
            **FACTORS,
        },
        {"rope_type": "proportional", "rope_theta": 50.0, "partial_rotary_factor": 0.5},
    ],
}
GROUPED = ROTARY | {"num_key_value_heads": [1, 2, 3], "head_dim": [6], "rms_norm_eps": [1e-3]}
LAYER_TYPES = [
    ["sliding_attention", "full_attention"],
    ["full_attention"] * 2,
    ["sliding_attention", "full_attention", "full_attention"],
    ["chunked_attention", "full_attention"],
]
QWEN = GROUPED | {
    "use_sliding_window": [True, False],
    "sliding_window": [2, 3, None],
    "max_window_layers": [0, 1, 2],
    "layer_types": LAYER_TYPES,
}
TEXT: Options = HIDDEN | {
    **{
        "hidden_dropout_prob": [0],
        "attention_probs_dropout_prob": [0.2],
        "type_vocab_size": [1, 3],
    },
    **{"layer_norm_eps": [1e-3], "classifier_dropout": [None, 0.3], "is_decoder": [True]},
    "position_embedding_type": ["absolute", "relative_key", "relative_key_query"],
}
AFTER_PADDING = TEXT | {"max_position_embeddings": [30], "pad_token_id": [0, 3, None]}
SEQ2SEQ: Options = {
    **{
        "encoder_layers": [1, 3],
        "decoder_layers": [1],
        "encoder_ffn_dim": [9],
        "decoder_ffn_dim": [11],
    },
    **{"encoder_attention_heads": [1], "decoder_attention_heads": [2], "encoder_layerdrop": [0.2]},
    **{
        "activation_function": ACTIVATIONS,
        "d_model": [24],
        "dropout": [0],
        "activation_dropout": [0.2],
    },
    **{
        "scale_embedding": [True, False],
        "decoder_start_token_id": [0, 7],
        "forced_eos_token_id": [2, None],
    },
    **{
        "normalize_before": [True],
        "static_position_embeddings": [True, False],
        "num_hidden_layers": [2, 3],
    },
    **{**COMMON, "eos_token_id": [[2, 5]], "pad_token_id": [0], "bos_token_id": [0, 5]},
}
T5: Options = {
    **{
        "d_model": [24],
        "d_kv": [5, 6],
        "d_ff": [9],
        "num_layers": [1],
        "num_decoder_layers": [None, 1, 3],
    },
    **{"num_heads": [1, 3], "relative_attention_num_buckets": [32, 4, 5, 1], "dropout_rate": [0]},
    **{
        "relative_attention_max_distance": [128, 5, 3],
        "layer_norm_epsilon": [1e-3],
        "n_positions": [512],
    },
    "feed_forward_proj": ["relu", "gelu", "gated-gelu", "gated-silu", "gelu_new", "gated-mish"],
    **{"dense_act_fn": ["relu", "gelu_new"], "is_gated_act": [True, False], **COMMON},
    **{"scale_decoder_outputs": [True, False, None], "decoder_start_token_id": [3, None]},
    **{"eos_token_id": [[1, 5]], "pad_token_id": [3]},
}


def _without(options: Options, *keys: str) -> Options:
    return {key: values for key, values in options.items() if key not in keys}


GEMMA2: Options = _without(ROTARY, "hidden_act") | {
    **{
        "hidden_activation": ACTIVATIONS,
        "num_key_value_heads": [1, 4],
        "head_dim": [4],
        "num_hidden_layers": [1, 4],
    },
    **{
        "query_pre_attn_scalar": [6, 9],
        "attn_logit_softcapping": [None, 3.0],
        "sliding_window": [1, 2, 5],
    },
    **{"final_logit_softcapping": [None, 7.0], "attention_bias": [True], "layer_types": [None]},
}
MODULE = TINY["t5gemma"].sizes["decoder"]


OPTIONS: dict[str, Options] = {
    "openai-gpt": _without(GPT, "activation_function", "n_inner")
    | {"afn": ["gelu", "relu", "silu", "swish", "gelu_new"]},
    "gpt2": GPT
    | {"scale_attn_weights": [False], "scale_attn_by_inverse_layer_idx": [True]}
    | {"reorder_and_upcast_attn": [True], "add_cross_attention": [True]},
    "gpt_bigcode": GPT
    | {"scale_attn_weights": [False], "multi_query": [False], "attention_softmax_in_fp32": [False]},
    "gptj": GPT | {"rotary_dim": [2, 3, 6]},
    "codegen": GPT | {"rotary_dim": [2, 3, 4], "n_embd": [64], "n_head": [8, 2]},
    "gpt_neo": {
        "attention_layers": [["global", "local"]],
        "attention_types": [[[["global"], 2]], [[["local"], 1], [["global"], 1]], [[["local"], 3]]],
        **{
            "num_layers": [2, 3],
            "num_heads": [1],
            "intermediate_size": [None, 20],
            "window_size": [1, 3, 5],
        },
        **{
            "activation_function": ACTIVATIONS,
            "layer_norm_epsilon": [1e-3],
            "embed_dropout": [0.1],
        },
        **IDS,
        **COMMON,
    },
    "gpt_neox": ROTARY
    | {"hidden_size": [64], "num_attention_heads": [2], "rotary_pct": [1.0, 0.25]}
    | {"rotary_emb_base": [500.0], "layer_norm_eps": [1e-3]}
    | {"use_parallel_residual": [False], "attention_bias": [False]},
    "llama": ROTARY
    | {"num_key_value_heads": [None, 1, 2, 3], "head_dim": [None, 6], "rms_norm_eps": [1e-3]}
    | {"attention_bias": [True], "mlp_bias": [True], "sliding_window": [3], "pretraining_tp": [2]},
    "mistral": ROTARY
    | {"num_key_value_heads": [None, 4], "head_dim": [None, 6], "sliding_window": [None, 1, 3, 9]}
    | {"attention_bias": [True], "layer_types": [["sliding_attention", "full_attention"]]},
    "starcoder2": ROTARY
    | {"num_key_value_heads": [1, 4], "norm_epsilon": [1e-3], "sliding_window": [None, 1, 3]}
    | {"use_bias": [False], "residual_dropout": [0.1], "embedding_dropout": [0.1], "head_dim": [8]},
    "qwen2": QWEN | {"attention_bias": [True]},
    "qwen3": QWEN | {"attention_bias": [True], "head_dim": [4, 6, None]},
    "smollm3": GROUPED
    | {"no_rope_layers": [[1, 0, 1], [0], [1, 1, 1, 0]], "no_rope_layer_interval": [1, 3]}
    | {"sliding_window": [None, 3], "use_sliding_window": [True], "layer_types": LAYER_TYPES}
    | {"attention_bias": [True], "mlp_bias": [True]},
    "phi3": GROUPED
    | {"resid_pdrop": [0.1], "embd_pdrop": [0.1], "sliding_window": [None, 1, 3]}
    | {"rope_scaling": [None, {"type": "longrope", **FACTORS}, {"type": "su", **FACTORS}, YARN]},
    "olmo2": GROUPED | {"attention_bias": [True], "qk_norm": [False], "sliding_window": [3]},
    "olmo3": _without(GROUPED, "rope_parameters", "original_max_position_embeddings")
    | {"sliding_window": [2, 3], "layer_types": LAYER_TYPES, "attention_bias": [True]},
    "nanochat": GROUPED | {"final_logit_softcapping": [None, 4.0], "attention_bias": [True]},
    "granite": GROUPED
    | {"embedding_multiplier": [12, 3.0], "attention_multiplier": [0.5, 0.25], "mlp_bias": [True]}
    | {
        "residual_multiplier": [0.22, 0.0],
        "logits_scaling": [8, 0.3, -1.0],
        "attention_bias": [True],
    },
    "glm4": GROUPED | {"attention_bias": [False], "head_dim": [4, 6]},
    "cohere2": _without(GROUPED, "rms_norm_eps")
    | {"sliding_window": [2, 3, None], "layer_types": LAYER_TYPES, "sliding_window_pattern": [1, 2]}
    | {"logit_scale": [0.0625, 1, 2.5], "attention_bias": [True], "layer_norm_eps": [1e-3]},
    "mixtral": ROTARY
    | {"num_key_value_heads": [None, 4], "head_dim": [None, 6], "sliding_window": [None, 1, 3]}
    | {"num_local_experts": [2, 5], "num_experts_per_tok": [1, 3], "router_jitter_noise": [0.1]},
    "qwen3_moe": ROTARY
    | {
        "num_key_value_heads": [None, 4],
        "head_dim": [6],
        "sliding_window": [None, 3],
        "attention_bias": [True],
    }
    | {"use_sliding_window": [True], "num_experts": [2, 5], "num_experts_per_tok": [1, 3]}
    | {"norm_topk_prob": [True], "decoder_sparse_step": [2], "mlp_only_layers": [None, [], [1]]}
    | {"moe_intermediate_size": [24, 5]},
    "gpt_oss": _without(ROTARY, "rope_scaling")
    | {
        "num_key_value_heads": [1, 4],
        "head_dim": [4],
        "sliding_window": [1, 9],
        "attention_bias": [False],
    }
    | {
        "num_local_experts": [2, 5],
        "num_experts_per_tok": [1],
        "swiglu_limit": [0.5],
        "swiglu_alpha": [1.0],
    }
    | {"layer_types": [None, ["full_attention"] * 2, ["full_attention", "sliding_attention"]]},
    "deepseek_v3": ROTARY
    | {"q_lora_rank": [None, 7], "kv_lora_rank": [5], "v_head_dim": [9], "qk_nope_head_dim": [3]}
    | {
        "num_key_value_heads": [1, 2, 4],
        "rope_interleave": [False],
        "n_group": [1, 2],
        "topk_group": [1, 4],
    }
    | {"num_experts_per_tok": [1, 4], "first_k_dense_replace": [0, 2], "n_shared_experts": [2]}
    | {"norm_topk_prob": [False], "routed_scaling_factor": [1.0], "attention_bias": [True]},
    "falcon": _without(ROTARY, "hidden_act", "intermediate_size")
    | {"num_kv_heads": [1, 2, 4], "alibi": [True], "new_decoder_architecture": [True, True, False]}
    | {
        "multi_query": [False],
        "parallel_attn": [False],
        "bias": [True],
        "ffn_hidden_size": [20, None],
    }
    | {"num_ln_in_parallel_attn": [None, 1, 2], "activation": ACTIVATIONS, "n_embed": [24]},
    "gemma": ROTARY
    | {
        "num_key_value_heads": [1, 2],
        "head_dim": [4],
        "attention_bias": [True],
        "rms_norm_eps": [1e-3],
    }
    | {"hidden_activation": [None, "gelu"], "use_bidirectional_attention": [False, True]},
    "gemma2": GEMMA2,
    "gemma3_text": _without(GEMMA2, "rope_parameters", "rope_scaling", "partial_rotary_factor")
    | {
        "rope_local_base_freq": [300.0],
        "use_bidirectional_attention": [True],
        "sliding_window_pattern": [2],
    }
    | {"rope_scaling": [None, {"rope_type": "linear", "factor": 2.0}]},
    "t5gemma": {
        **{"dropout_rate": [0.1], "attention_dropout": [0.1], "classifier_dropout_rate": [0.2]},
        **{"is_encoder_decoder": [True, False], "pad_token_id": [3], "eos_token_id": [[2, 5]]},
        "decoder": [
            *(
                {**MODULE, **more}
                for more in ({"num_hidden_layers": 3}, {"num_key_value_heads": 4})
            ),
            *(
                {**MODULE, **more}
                for more in ({"hidden_activation": "mish"}, {"sliding_window": 5})
            ),
            *(
                {**MODULE, **more}
                for more in ({"hidden_size": 8}, {"head_dim": 4}, {"num_attention_heads": 2})
            ),
            {**MODULE, "layer_types": ["full_attention"] * 3},
        ],
        **COMMON,
    },
    "opt": _without(HIDDEN, "hidden_act", "intermediate_size")
    | {"ffn_dim": [9], "activation_function": ACTIVATIONS, "word_embed_proj_dim": [None, 8, 16, 20]}
    | {"do_layer_norm_before": [False], "_remove_final_layer_norm": [True], "enable_bias": [False]}
    | {"layer_norm_elementwise_affine": [False], "layerdrop": [0.1], "activation_dropout": [0.1]},
    "bloom": {
        **{
            "hidden_size": [24],
            "n_embed": [8],
            "n_layer": [1],
            "num_hidden_layers": [3],
            "n_head": [2, 6],
        },
        **{"num_attention_heads": [8], "layer_norm_epsilon": [1e-3], "hidden_dropout": [0.2]},
        **{
            "apply_residual_connection_post_layernorm": [True],
            "slow_but_exact": [True],
            "pretraining_tp": [2],
        },
        **{"seq_length": [64], **IDS, **COMMON},
    },
    "t5": T5,
    "mt5": T5,
    "longt5": T5
    | {"local_radius": [0, 1, 3, 20], "global_block_size": [1, 2, 3, 5, 16], "num_heads": [3]}
    | {"encoder_attention_type": ["local", "transient-global", "transient-global", "global"]},
    "bart": SEQ2SEQ | {"normalize_embedding": [True, False], "extra_pos_embeddings": [2, 0]},
    "led": SEQ2SEQ
    | {
        "attention_window": [6, 12, [4, 4], [4, 12], [4, 6], 5],
        "max_encoder_position_embeddings": [20],
    }
    | {"max_decoder_position_embeddings": [7, 30], "bos_token_id": [0, 5]},
    "mbart": SEQ2SEQ
    | {
        "classifier_dropout": [0.0, 0.2],
        "normalize_embedding": [True, False],
        "forced_bos_token_id": [3],
    },
    "pegasus": SEQ2SEQ
    | {"extra_pos_embeddings": [1, 0], "pad_token_id": [0, 3], "max_position_embeddings": [12]},
    "m2m_100": SEQ2SEQ
    | {"decoder_layerdrop": [0.0], "pad_token_id": [0, 3], "max_position_embeddings": [12]},
    "marian": SEQ2SEQ
    | {"share_encoder_decoder_embeddings": [False], "decoder_vocab_size": [None, 33]},
    "bert": TEXT,
    "roberta": AFTER_PADDING,
    "camembert": AFTER_PADDING,
    "xlm-roberta": AFTER_PADDING,
    "distilbert": {
        **{
            "n_layers": [1, 3],
            "n_heads": [1],
            "dim": [24],
            "hidden_dim": [9],
            "activation": ACTIVATIONS,
        },
        **{
            "sinusoidal_pos_embds": [True],
            "qa_dropout": [0.3],
            "seq_classif_dropout": [0.3],
            **IDS,
            **COMMON,
        },
    },
    "albert": _without(TEXT, "classifier_dropout")
    | {"embedding_size": [16, 5], "num_hidden_layers": [3, 4], "num_hidden_groups": [1, 2, 3]}
    | {"inner_group_num": [1, 2], "classifier_dropout_prob": [0]},
    "xlnet": {
        **{
            "n_layer": [1, 3],
            "n_head": [2],
            "d_inner": [33],
            "ff_activation": ACTIVATIONS,
            "clamp_len": [3],
        },
        **{
            "same_length": [True],
            "mem_len": [7],
            "attn_type": ["uni"],
            "bi_data": [True],
            "untie_r": [False],
        },
        **{"layer_norm_eps": [1e-3], "dropout": [0.3], "use_mems_eval": [False], **COMMON},
    },
    "vit": {
        **{
            "hidden_size": [24],
            "num_hidden_layers": [1],
            "intermediate_size": [9],
            "hidden_act": ACTIVATIONS,
        },
        **{
            "image_size": [16, [8, 12], 10],
            "patch_size": [2, [4, 2]],
            "num_channels": [1],
            "qkv_bias": [False],
        },
        **{
            "pooler_output_size": [None, 12],
            "pooler_act": ["tanh", "relu", "mish"],
            "layer_norm_eps": [1e-3],
        },
        **COMMON,
    },
}
BLOCKS: Options = {
    **{
        "attention_type": ["original_full", "sparse"],
        "block_size": [1, 2, 0],
        "num_random_blocks": [1, 0],
    },
    **{"use_bias": [True, False]},
}
OPTIONS |= {
    "big_bird": _without(TEXT, "position_embedding_type") | BLOCKS | {"rescale_embeddings": [True]},
    "bigbird_pegasus": SEQ2SEQ | BLOCKS | {"classifier_dropout": [0.0, 0.3], "bos_token_id": [3]},
    "modernbert": _without(HIDDEN, "hidden_act", "eos_token_id")
    | {
        "hidden_activation": ACTIVATIONS,
        "classifier_activation": ACTIVATIONS,
        "attention_dropout": [0.1],
    }
    | {"layer_types": [["full_attention", "sliding_attention"] * 2, ["sliding_attention"] * 4]}
    | {"global_attn_every_n_layers": [1, 2], "local_attention": [0, 1, 2, 5], "norm_eps": [1e-3]}
    | {
        "global_rope_theta": [500.0],
        "local_rope_theta": [30.0, 160_000.0],
        "rope_scaling": [None, YARN],
    }
    | {"norm_bias": [True], "attention_bias": [True], "mlp_bias": [True], "decoder_bias": [False]}
    | {"classifier_bias": [True], "classifier_pooling": ["mean"], "classifier_dropout": [0.3]}
    | {
        "rope_parameters": [None, {"full_attention": {"rope_type": "default", "rope_theta": 100.0}}]
    },
    "eurobert": ROTARY
    | {
        "num_key_value_heads": [None, 1, 2],
        "head_dim": [None, 6],
        "attention_bias": [True],
        "mlp_bias": [True],
    }
    | {"classifier_pooling": ["late", "bos", "mean", "max"]},
    "electra": TEXT
    | {
        "embedding_size": [16, 5],
        "summary_type": ["first", "last"],
        "summary_activation": ["gelu", "tanh"],
    },
    "mpnet": _without(AFTER_PADDING, "classifier_dropout", "is_decoder", "position_embedding_type")
    | {"relative_attention_num_buckets": [16, 32], "pad_token_id": [0, 1]},
    "longformer": _without(AFTER_PADDING, "classifier_dropout", "is_decoder")
    | {"attention_window": [4, 6, [8, 8], [4, 8], [4, 6], 3, [4]], "sep_token_id": [None, 2, 5]},
    "deberta-v2": _without(TEXT, "classifier_dropout", "is_decoder", "position_embedding_type")
    | {
        "relative_attention": [False],
        "position_biased_input": [True],
        "position_buckets": [-1, 0, 2, 8],
    }
    | {"pos_att_type": [None, "c2p", "p2c|c2p", ["c2p"], ["p2c"], []], "share_att_key": [False]}
    | {
        "norm_rel_ebd": ["none", "layer_norm"],
        "max_relative_positions": [-1, 3, 40],
        "type_vocab_size": [0, 2],
    }
    | {
        "cls_dropout": [0.2],
        "pooler_hidden_act": ["tanh", "mish"],
        "conv_kernel_size": [0, 3, 5, 4],
    }
    | {
        "conv_act": ["gelu", "relu", "silu", "mish"],
        "conv_groups": [2, 3, 16],
        "attention_head_size": [4, 5],
    }
    | {"legacy": [True], "pooler_hidden_size": [16, 24], "embedding_size": [16, 8]},
}

CHUNKS = [1, 2, 3, 6, 12, 16]
OPTIONS["reformer"] = {
    **{"attn_layers": [["lsh"], ["local"], ["local", "lsh"] * 2], "num_attention_heads": [1, 3]},
    **{
        "attention_head_size": [3],
        "hidden_act": ACTIVATIONS,
        "feed_forward_size": [9],
        "layer_norm_eps": [1e-3],
    },
    **{"lsh_attn_chunk_length": CHUNKS, "local_attn_chunk_length": CHUNKS, "num_hashes": [2, 5]},
    **{"is_decoder": [False], "hash_seed": [0, 7]},
    **{"num_buckets": [None, 2, 5, 6, [2, 2], [4, 2, 6], [8]]},
    **{
        "axial_pos_shape": [[2, 12], [5, 5], [3, 4]],
        "axial_pos_embds_dim": [[8, 8], [1, 15], [2, 3]],
    },
    **{
        "max_position_embeddings": [12, 40],
        "hidden_dropout_prob": [0.2],
        "classifier_dropout": [0.3],
    },
    **IDS,
    **COMMON,
}

# --- the law --------------------------------------------------------------------------------------


def test_the_table_has_all_families() -> None:
    assert set(OPTIONS) == set(FAMILIES) - {"trifold"}


@pytest.mark.parametrize("family", OPTIONS)
@settings(max_examples=3, phases=[Phase.generate])
@given(data=st.data())
def test_any_options_equal_the_reference_or_are_errors(family: str, data: st.DataObject) -> None:
    tiny = TINY[family]
    names = sorted({tiny.stem + ending for ending, _ in tiny.cases.values()})
    name = data.draw(st.sampled_from(names))
    keys = data.draw(st.lists(st.sampled_from(sorted(OPTIONS[family])), max_size=5, unique=True))
    drawn = {key: data.draw(st.sampled_from(OPTIONS[family][key]), label=key) for key in keys}
    file = {"model_type": family, "architectures": [name], **tiny.sizes, **drawn}
    try:
        model = make(name, file)
        inputs = inputs_for(model)
        run(model, inputs)
    except Exception:  # rejected by the reference too
        reject()
    message = ""
    try:
        check(model, file=file, **inputs)
    except CheckpointError as error:
        message = str(error)
    assert not message or any(name in message for name in names_in_errors(drawn)), (
        f"{drawn}: {message}"
    )


def names_in_errors(drawn: dict[str, Any]) -> set[str]:
    """The names that an error may contain: their keys, nested keys, or our fields."""
    inside = {key for value in drawn.values() if isinstance(value, dict) for key in value}
    return set(drawn) | inside | set(ModelConfig.model_fields)


def make(name: str, file: dict[str, Any]) -> Any:
    """The reference's model of a config.json."""
    kind = getattr(transformers, name)
    return randomised(kind(kind.config_class.from_dict(json.loads(json.dumps(file)))))


def run(model: Any, inputs: dict[str, Any]) -> None:
    """Raise what the reference raises."""
    if "pixel_values" in inputs:
        model(inputs["pixel_values"])
        return
    tokens = inputs.get("tokens", torch.ones(2, 3, dtype=torch.long))
    both = model.config.is_encoder_decoder and "tokens" not in inputs
    model(input_ids=tokens, **({"decoder_input_ids": tokens} if both else {}))
