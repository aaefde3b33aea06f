"""Keys of config.json and values to draw for them: for every family the ones that its reference class reads, usual or
strange, those of old files among them, and some that no family has parts for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Options = dict[str, list[Any]]


class Drawn(NamedTuple):
    """Classes of a family, the sizes of a tiny model, and what may stand in its file instead or besides."""

    classes: list[str]
    sizes: dict[str, Any]
    options: Options


CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")


def _of(stem: str, *ends: str) -> list[str]:
    return [stem + end for end in ends]


# --- what several have ---------------------------------------------------------------------------------------

ACTIVATIONS = """
    relu gelu gelu_new gelu_fast gelu_python gelu_pytorch_tanh gelu_accurate gelu_python_tanh quick_gelu silu swish tanh
    mish relu2 gelu_10
""".split()
COMMON: Options = {
    "torch_dtype": ["float32"],
    "use_cache": [False],
    "tie_word_embeddings": [True, False],
    "id2label": [{"0": "a", "1": "b", "2": "c"}, {"1": "x", "0": "y"}],
    "num_labels": [1, 3],
    "problem_type": ["regression", "multi_label_classification"],
    "num_beams": [3],
    "no_such_key": [1],
}
IDS: Options = {
    "bos_token_id": [None, 1, 39, -1],
    "eos_token_id": [None, 2, [2, 5], -1],
    "pad_token_id": [0, 3, 39],
}
GPT_SIZES = {"vocab_size": 40, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 4, "pad_token_id": 0}
GPT: Options = {
    **{"n_embd": [24], "n_layer": [1, 3], "n_head": [1, 2], "n_inner": [None, 20, 33]},
    **{"activation_function": ACTIVATIONS, "resid_pdrop": [0, 0.3], "embd_pdrop": [0.2], "attn_pdrop": [0.1]},
    **{"layer_norm_epsilon": [1e-3], "n_ctx": [8], "summary_type": ["last"], **IDS, **COMMON},
}
SIZES = {
    **{"vocab_size": 40, "max_position_embeddings": 16, "hidden_size": 16, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "intermediate_size": 24, "pad_token_id": 0},
}
HIDDEN: Options = {
    **{
        "hidden_size": [24],
        "num_hidden_layers": [1, 3],
        "num_attention_heads": [1, 2],
        "intermediate_size": [9],
    },
    **{"hidden_act": ACTIVATIONS, "max_position_embeddings": [12, 40], **IDS, **COMMON},
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8}
_TWO = {"short_factor": [1.0, 1.5], "long_factor": [2.0, 5.0]}  # of heads that are four wide
ROPE: Options = {
    "rope_theta": [500, 3.5],
    "partial_rotary_factor": [0.5, 1.0],
    "original_max_position_embeddings": [12],
    "rope_scaling": [
        *(None, {}, {"type": "linear", "factor": 2}, {"type": "dynamic", "factor": 2.0}, _YARN),
        _YARN | {"type": "yarn", "beta_fast": 4, "beta_slow": 1, "attention_factor": 1.7},
        _LLAMA3 | {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
        _LLAMA3 | {"low_freq_factor": 4.0, "high_freq_factor": 1.0},
        {"type": "longrope", "factor": 2.0, "original_max_position_embeddings": 20, **_TWO},
        {"type": "su", "factor": 2.0},
    ],
    "rope_parameters": [
        *(None, {}, {"rope_type": "default", "rope_theta": 77.0}),
        {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
        {"rope_type": "linear", "factor": 3.0, "rope_theta": 100.0},
        _YARN | {"rope_theta": 900.0, "mscale": 0.7, "mscale_all_dim": 0.9, "truncate": False},
        _YARN | {"rope_theta": 900.0, "factor": None},
        {"rope_type": "longrope", "rope_theta": 50.0, "original_max_position_embeddings": 20, **_TWO},
        {"rope_type": "proportional", "rope_theta": 50.0, "partial_rotary_factor": 0.5},
    ],
}
TEXT: Options = {
    **HIDDEN,
    **{"hidden_dropout_prob": [0], "attention_probs_dropout_prob": [0.2], "type_vocab_size": [1, 3]},
    **{
        "layer_norm_eps": [1e-3],
        "position_embedding_type": ["absolute", "relative_key", "relative_key_query"],
    },
}
AFTER_PADDING = (
    SIZES | {"max_position_embeddings": 24, "pad_token_id": 1},
    TEXT | {"max_position_embeddings": [30], "classifier_dropout": [None, 0.3], "pad_token_id": [0, 3, None]},
)
BOTH_SIZES = {
    **{"vocab_size": 40, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 24},
    **{"decoder_ffn_dim": 24, "encoder_attention_heads": 4, "decoder_attention_heads": 4},
    **{"max_position_embeddings": 16, "decoder_start_token_id": 2, "pad_token_id": 1, "eos_token_id": 2},
}
BOTH: Options = {
    **{"encoder_layers": [1, 3], "decoder_layers": [1], "encoder_ffn_dim": [9], "decoder_ffn_dim": [11]},
    **{"encoder_attention_heads": [1], "decoder_attention_heads": [2], "encoder_layerdrop": [0.2]},
    **{"activation_function": ACTIVATIONS, "d_model": [24], "dropout": [0], "activation_dropout": [0.2]},
    **{"scale_embedding": [True, False], "decoder_start_token_id": [0, 7], "forced_eos_token_id": [2, None]},
    **{"normalize_before": [True], "static_position_embeddings": [True, False], "num_hidden_layers": [2, 3]},
    **COMMON,
    **{"eos_token_id": [[2, 5]], "pad_token_id": [0], "bos_token_id": [0, 5]},
}
T5_SIZES = {
    **{"vocab_size": 40, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4},
    **{
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 12,
        "decoder_start_token_id": 0,
    },
}
T5: Options = {
    **{"d_model": [24], "d_kv": [5, 6], "d_ff": [9], "num_layers": [1], "num_decoder_layers": [None, 1, 3]},
    **{"num_heads": [1, 3], "relative_attention_num_buckets": [32, 4, 5, 1]},
    **{"relative_attention_max_distance": [128, 5, 3], "layer_norm_epsilon": [1e-3], "dropout_rate": [0]},
    "feed_forward_proj": [
        "relu",
        "gelu",
        "gated-gelu",
        "gated-silu",
        "gelu_new",
        "gated-quick_gelu",
        "gated-mish",
    ],
    **{"dense_act_fn": ["relu", "gelu_new"], "is_gated_act": [True, False], "n_positions": [512]},
    **{"scale_decoder_outputs": [True, False], "decoder_start_token_id": [3, None], **COMMON},
    **{"eos_token_id": [[1, 5]], "pad_token_id": [3]},
}

# --- families ------------------------------------------------------------------------------------------------

DRAWN: dict[str, Drawn] = {
    "openai-gpt": Drawn(
        _of("OpenAIGPT", "LMHeadModel", "Model", CLASSIFIERS[0]),
        GPT_SIZES,
        {key: values for key, values in GPT.items() if key not in ("activation_function", "n_inner")}
        | {"afn": ["gelu", "relu", "silu", "swish", "gelu_new"]},
    ),
    "gpt2": Drawn(
        _of("GPT2", "LMHeadModel", "Model", *CLASSIFIERS),
        GPT_SIZES,
        GPT
        | {"scale_attn_weights": [False], "scale_attn_by_inverse_layer_idx": [True]}
        | {"reorder_and_upcast_attn": [True], "add_cross_attention": [True]},
    ),
    "gpt_bigcode": Drawn(
        _of("GPTBigCode", "ForCausalLM", "Model", *CLASSIFIERS[:2]),
        GPT_SIZES,
        GPT | {"scale_attn_weights": [False], "multi_query": [False], "attention_softmax_in_fp32": [False]},
    ),
    "gptj": Drawn(
        _of("GPTJ", "ForCausalLM", "Model", CLASSIFIERS[0], CLASSIFIERS[2]),
        GPT_SIZES | {"rotary_dim": 4},
        GPT | {"rotary_dim": [2, 3, 6]},
    ),
    "codegen": Drawn(
        _of("CodeGen", "ForCausalLM", "Model"),
        GPT_SIZES | {"n_embd": 32, "rotary_dim": 4},
        GPT | {"rotary_dim": [2, 3, 8], "n_embd": [64], "n_head": [8, 2]},
    ),
    "gpt_neo": Drawn(
        _of("GPTNeo", "ForCausalLM", "Model", *CLASSIFIERS),
        {
            **{
                "vocab_size": 40,
                "max_position_embeddings": 16,
                "hidden_size": 16,
                "num_layers": 2,
                "num_heads": 4,
            },
            **{"attention_types": [[["global", "local"], 1]], "pad_token_id": 0},
        },
        {
            "attention_layers": [["global", "local"]],
            "attention_types": [[[["global"], 2]], [[["local"], 1], [["global"], 1]], [[["local"], 3]]],
            **{
                "num_layers": [2, 3],
                "num_heads": [1],
                "intermediate_size": [None, 20],
                "window_size": [1, 3, 5],
            },
            **{"activation_function": ACTIVATIONS, "layer_norm_epsilon": [1e-3], "embed_dropout": [0.1]},
            **IDS,
            **COMMON,
        },
    ),
    "gpt_neox": Drawn(
        _of("GPTNeoX", "ForCausalLM", "Model", *CLASSIFIERS),
        SIZES | {"hidden_size": 32, "rotary_pct": 0.5},
        HIDDEN
        | ROPE
        | {
            "hidden_size": [64],
            "num_attention_heads": [2],
            "rotary_pct": [1.0, 0.25],
            "rotary_emb_base": [500.0],
        }
        | {"use_parallel_residual": [False], "attention_bias": [False], "layer_norm_eps": [1e-3]},
    ),
    "llama": Drawn(
        _of("Llama", "ForCausalLM", "Model", *CLASSIFIERS),
        SIZES,
        HIDDEN
        | ROPE
        | {"num_key_value_heads": [None, 1, 2, 3], "head_dim": [None, 6], "rms_norm_eps": [1e-3]}
        | {"attention_bias": [True], "mlp_bias": [True], "sliding_window": [3], "pretraining_tp": [2]},
    ),
    "mistral": Drawn(
        _of("Mistral", "ForCausalLM", "Model", *CLASSIFIERS),
        SIZES | {"num_key_value_heads": 2},
        HIDDEN
        | ROPE
        | {"num_key_value_heads": [None, 4], "head_dim": [None, 6], "sliding_window": [None, 1, 3, 9]}
        | {"attention_bias": [True], "layer_types": [["sliding_attention", "full_attention"]]},
    ),
    "starcoder2": Drawn(
        _of("Starcoder2", "ForCausalLM", "Model", *CLASSIFIERS[:2]),
        SIZES | {"num_key_value_heads": 2},
        HIDDEN
        | ROPE
        | {"num_key_value_heads": [1, 4], "norm_epsilon": [1e-3], "sliding_window": [None, 1, 3]}
        | {"use_bias": [False], "residual_dropout": [0.1], "embedding_dropout": [0.1], "head_dim": [8]},
    ),
    "falcon": Drawn(
        _of("Falcon", "ForCausalLM", "Model", *CLASSIFIERS),
        {key: size for key, size in SIZES.items() if key != "intermediate_size"},
        {key: values for key, values in HIDDEN.items() if key not in ("hidden_act", "intermediate_size")}
        | ROPE
        | {"num_kv_heads": [1, 2, 4], "alibi": [True], "new_decoder_architecture": [True, True, False]}
        | {"multi_query": [False], "parallel_attn": [False], "bias": [True], "ffn_hidden_size": [20, None]}
        | {"num_ln_in_parallel_attn": [None, 1, 2], "activation": ACTIVATIONS, "n_embed": [24]},
    ),
    "t5": Drawn(_of("T5", "ForConditionalGeneration", "Model", "EncoderModel", *CLASSIFIERS), T5_SIZES, T5),
    "mt5": Drawn(_of("MT5", "ForConditionalGeneration", "Model", "EncoderModel", *CLASSIFIERS), T5_SIZES, T5),
    "bart": Drawn(
        _of("Bart", "ForConditionalGeneration", "Model", CLASSIFIERS[0], CLASSIFIERS[2]),
        BOTH_SIZES,
        BOTH | {"normalize_embedding": [True, False], "extra_pos_embeddings": [2, 0]},
    ),
    "marian": Drawn(
        ["MarianMTModel"],
        BOTH_SIZES,
        BOTH | {"share_encoder_decoder_embeddings": [False], "decoder_vocab_size": [None, 33]},
    ),
    "bert": Drawn(
        _of("Bert", "Model", "ForPreTraining", "ForMaskedLM", "ForNextSentencePrediction", *CLASSIFIERS),
        SIZES,
        TEXT | {"classifier_dropout": [None, 0.3], "is_decoder": [True]},
    ),
    "roberta": Drawn(_of("Roberta", "Model", "ForMaskedLM", *CLASSIFIERS), *AFTER_PADDING),
    "camembert": Drawn(_of("Camembert", "Model", "ForMaskedLM", *CLASSIFIERS), *AFTER_PADDING),
    "xlm-roberta": Drawn(_of("XLMRoberta", "Model", "ForMaskedLM", *CLASSIFIERS), *AFTER_PADDING),
    "distilbert": Drawn(
        _of("DistilBert", "Model", "ForMaskedLM", *CLASSIFIERS),
        {
            **{"vocab_size": 40, "max_position_embeddings": 16, "dim": 16, "n_layers": 2, "n_heads": 4},
            "hidden_dim": 24,
        },
        {
            **{"n_layers": [1, 3], "n_heads": [1], "dim": [24], "hidden_dim": [9], "activation": ACTIVATIONS},
            **{
                "sinusoidal_pos_embds": [True],
                "qa_dropout": [0.3],
                "seq_classif_dropout": [0.3],
                **IDS,
                **COMMON,
            },
        },
    ),
    "albert": Drawn(
        _of("Albert", "Model", "ForPreTraining", "ForMaskedLM", *CLASSIFIERS),
        SIZES | {"embedding_size": 8},
        TEXT
        | {"embedding_size": [16, 5], "num_hidden_layers": [3, 4], "num_hidden_groups": [1, 2, 3]}
        | {"inner_group_num": [1, 2], "classifier_dropout_prob": [0]},
    ),
    "xlnet": Drawn(
        _of("XLNet", "Model", "LMHeadModel", "ForTokenClassification", "ForQuestionAnsweringSimple"),
        {
            **{"vocab_size": 40, "d_model": 16, "n_layer": 2, "n_head": 4, "d_inner": 24},
            **{"pad_token_id": 5, "bos_token_id": 1, "eos_token_id": 2},
        },
        {
            **{
                "n_layer": [1, 3],
                "n_head": [2],
                "d_inner": [33],
                "ff_activation": ACTIVATIONS,
                "clamp_len": [3],
            },
            **{"same_length": [True], "mem_len": [7], "attn_type": ["uni"], "bi_data": [True]},
            **{
                "layer_norm_eps": [1e-3],
                "dropout": [0.3],
                "untie_r": [False],
                "use_mems_eval": [False],
                **COMMON,
            },
        },
    ),
    "vit": Drawn(
        _of("ViT", "Model", "ForImageClassification"),
        {
            **{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24},
            **{"image_size": 8, "patch_size": 4},
        },
        {
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
    ),
}
