"""Tiny models of every family: sizes, classes, and the options that are compared with the reference.

`make("gpt2", "LMHeadModel", n_inner=48)` gives the reference's model with random parameters of natural size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Options = dict[str, Any]
Cases = dict[str, tuple[str, Options]]


class Tiny(NamedTuple):
    """stem: the beginning of their class names. prefix: of the tensors below the heads. buffer: a tensor of a layer
    in old files. cases: description -> (end of the class name, options); the first class is the usual one.
    """

    stem: str
    sizes: Options
    prefix: str
    cases: Cases
    buffer: str = ""


IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GPT = {"vocab_size": 40, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 4, **IDS}
TEXT = {
    "vocab_size": 40,
    "max_position_embeddings": 24,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
}
HIDDEN = TEXT | {"max_position_embeddings": 16, **IDS}
GROUPED = HIDDEN | {"num_key_value_heads": 2}
FALCON = {key: value for key, value in HIDDEN.items() if key != "intermediate_size"}
FALCON_RW = {"multi_query": False, "parallel_attn": False, "alibi": True, "bias": True}
NEO = {
    "vocab_size": 40,
    "max_position_embeddings": 16,
    "hidden_size": 16,
    "num_layers": 2,
    "num_heads": 4,
    "attention_types": [[["global", "local"], 1]],
    "window_size": 3,
    **IDS,
}
DISTIL = {"vocab_size": 40, "max_position_embeddings": 24, "dim": 16, "n_layers": 2, "n_heads": 4}
IMAGES = {key: TEXT[key] for key in (*TEXT,) if key not in ("vocab_size", "max_position_embeddings")}
XLNET = {"vocab_size": 40, "d_model": 16, "n_layer": 2, "n_head": 4, "d_inner": 24, "pad_token_id": 5}
T5 = {
    "vocab_size": 40,
    "d_model": 16,
    "d_kv": 4,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "decoder_start_token_id": 0,
}
BART = {
    "vocab_size": 40,
    "d_model": 16,
    "max_position_embeddings": 24,
    **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 24 for side in ("encoder", "decoder")},
}
FACTORS = {"short_factor": [1.0, 1.5], "long_factor": [2.0, 5.0]}  # of heads that are four wide
SCALINGS: dict[str, Options] = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 4},
    "yarn, all keys": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 4,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
        "truncate": False,
    },
    "yarn, magnitude": {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 8,
        "attention_factor": 1.3,
    },
    "llama3": {
        "factor": 8.0,
        "original_max_position_embeddings": 8,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "longrope": {"original_max_position_embeddings": 12, **FACTORS},
    "longrope, all keys": {
        "rope_type": "longrope",
        "factor": 8.0,
        "attention_factor": 1.4,
        "original_max_position_embeddings": 4,
        **FACTORS,
    },
    # Positions beyond those of the first training.
    "dynamic, late": {"rope_type": "dynamic", "factor": 2.0, "max": 6},
    "longrope, late": {
        "rope_type": "longrope",
        "factor": 2.0,
        "original_max_position_embeddings": 6,
        "max": 6,
        **FACTORS,
    },
}


def _scaled(name: str) -> tuple[str, Options]:
    rope = {"rope_type": name, "rope_theta": 500.0} | SCALINGS[name]
    limit = {"max_position_embeddings": rope.pop("max")} if "max" in rope else {}
    return "ForCausalLM", limit | {"rope_parameters": rope}


SEQUENCE, TOKEN, SPAN = "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"
ROBERTA: Cases = {
    "masked tokens": ("ForMaskedLM", {"layer_norm_eps": 1e-5}),
    "padding 4, relu inside": ("ForMaskedLM", {"pad_token_id": 4, "hidden_act": "relu"}),
    "bare": ("Model", {"type_vocab_size": 2}),
    "sequence": (SEQUENCE, {"num_labels": 4, "classifier_dropout": 0.0}),
    "token": (TOKEN, {"num_labels": 3}),
    "span": (SPAN, {"pad_token_id": 0}),
}

FAMILIES: dict[str, Tiny] = {
    "openai-gpt": Tiny(
        "OpenAIGPT",
        {key: value for key, value in GPT.items() if key not in IDS},
        "transformer",
        {
            "plain": ("LMHeadModel", {}),
            "relu": ("LMHeadModel", {"afn": "relu", "n_head": 2, "layer_norm_epsilon": 1e-3}),
            "silu, ids": ("LMHeadModel", {"afn": "silu", **IDS}),
            "bare": ("Model", {"embd_pdrop": 0.0}),
            "sequence": (SEQUENCE, {"num_labels": 3, "pad_token_id": 0}),
        },
        "h.0.attn.bias",
    ),
    "gpt2": Tiny(
        "GPT2",
        GPT,
        "transformer",
        {
            "plain": ("LMHeadModel", {"eos_token_id": 2, "bos_token_id": 2, "pad_token_id": None}),
            "scaled by layer, reordered": (
                "LMHeadModel",
                {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True, "n_inner": 48},
            ),
            "unscaled, untied, relu": (
                "LMHeadModel",
                {
                    "scale_attn_weights": False,
                    "tie_word_embeddings": False,
                    "activation_function": "relu",
                    "embd_pdrop": 0.2,
                },
            ),
            "no ends": (
                "LMHeadModel",
                {"bos_token_id": None, "eos_token_id": None, "layer_norm_epsilon": 1e-3},
            ),
            "bare": ("Model", {"activation_function": "gelu"}),
            "sequence": (SEQUENCE, {"num_labels": 5}),
            "token": (TOKEN, {"num_labels": 3, "classifier_dropout": 0.2}),
            "span": (SPAN, {}),
        },
        "h.0.attn.bias",
    ),
    "gpt_bigcode": Tiny(
        "GPTBigCode",
        GPT,
        "transformer",
        {
            "one head of keys": ("ForCausalLM", {}),
            "all heads": ("ForCausalLM", {"multi_query": False, "n_inner": 48}),
            "unscaled, untied": (
                "ForCausalLM",
                {"scale_attn_weights": False, "tie_word_embeddings": False, "activation_function": "gelu"},
            ),
            "bare": ("Model", {"n_head": 1}),
            "sequence": (SEQUENCE, {"num_labels": 3}),
            "token": (TOKEN, {"multi_query": False}),
        },
        "h.0.attn.bias",
    ),
    "gptj": Tiny(
        "GPTJ",
        GPT | {"rotary_dim": 2},
        "transformer",
        {
            "partly rotary": ("ForCausalLM", {}),
            "all rotary, relu": (
                "ForCausalLM",
                {"rotary_dim": 4, "n_inner": 48, "activation_function": "relu"},
            ),
            "tied": ("ForCausalLM", {"tie_word_embeddings": True, "layer_norm_epsilon": 1e-3}),
            "bare": ("Model", {"n_head": 2}),
            "sequence": (SEQUENCE, {"num_labels": 3}),
            "span": (SPAN, {"n_head": 2, "rotary_dim": 6}),
        },
        "h.0.attn.masked_bias",
    ),
    "codegen": Tiny(
        "CodeGen",
        GPT | {"rotary_dim": 2},
        "transformer",
        {
            "a head per machine": ("ForCausalLM", {}),
            "two heads per machine": (
                "ForCausalLM",
                {"n_head": 8, "n_inner": 48, "activation_function": "gelu"},
            ),
            "all rotary, tied": ("ForCausalLM", {"rotary_dim": 4, "tie_word_embeddings": True}),
            "bare": ("Model", {}),
        },
        "h.0.attn.causal_mask",
    ),
    "gpt_neo": Tiny(
        "GPTNeo",
        NEO,
        "transformer",
        {
            "global and local": ("ForCausalLM", {}),
            "uneven": (
                "ForCausalLM",
                {
                    "num_layers": 4,
                    "attention_types": [[["local"], 1], [["global", "local", "local"], 1]],
                    "intermediate_size": 48,
                },
            ),
            "all global, untied": (
                "ForCausalLM",
                {
                    "attention_types": [[["global"], 2]],
                    "tie_word_embeddings": False,
                    "embed_dropout": 0.1,
                },
            ),
            "bare": ("Model", {"attention_types": [[["local"], 2]], "activation_function": "gelu"}),
            "sequence": (SEQUENCE, {"num_labels": 3}),
            "token": (TOKEN, {"attention_types": [[["local", "global"], 1]]}),
            "span": (SPAN, {}),
        },
        "h.0.attn.attention.masked_bias",
    ),
    "gpt_neox": Tiny(
        "GPTNeoX",
        HIDDEN | {"rotary_pct": 0.5},
        "gpt_neox",
        {
            "parallel": ("ForCausalLM", {}),
            "sequential, a quarter rotary": (
                "ForCausalLM",
                {"use_parallel_residual": False, "num_attention_heads": 2, "rotary_pct": 0.25},
            ),
            "no biases, all rotary, tied": (
                "ForCausalLM",
                {
                    "attention_bias": False,
                    "rotary_pct": 1.0,
                    "tie_word_embeddings": True,
                    "rotary_emb_base": 500.0,
                },
            ),
            "scaled": (
                "ForCausalLM",
                {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "hidden_act": "gelu_new"},
            ),
            "bare": ("Model", {"layer_norm_eps": 1e-3}),
            "sequence": (SEQUENCE, {"num_labels": 3}),
            "token": (TOKEN, {"classifier_dropout": 0.3}),
            "span": (SPAN, {}),
        },
        "layers.0.attention.bias",
    ),
    "llama": Tiny(
        "Llama",
        HIDDEN,
        "model",
        {
            "first": ("ForCausalLM", {}),
            "few heads of keys, biases": (
                "ForCausalLM",
                {
                    "num_key_value_heads": 2,
                    "attention_bias": True,
                    "mlp_bias": True,
                    "hidden_act": "gelu",
                },
            ),
            "tied, wide heads": (
                "ForCausalLM",
                {
                    "tie_word_embeddings": True,
                    "head_dim": 6,
                    "num_key_value_heads": 1,
                    "rms_norm_eps": 1e-3,
                },
            ),
            "bare": ("Model", {"attention_bias": True}),
            "sequence": (SEQUENCE, {"num_labels": 3}),
            "token": (TOKEN, {"mlp_bias": True}),
            "span": (SPAN, {}),
            **{f"scaled: {name}": _scaled(name) for name in SCALINGS},
        },
        "layers.0.self_attn.rotary_emb.inv_freq",
    ),
    "mistral": Tiny(
        "Mistral",
        GROUPED,
        "model",
        {
            "window": ("ForCausalLM", {"sliding_window": 3}),
            "no window, tied": ("ForCausalLM", {"sliding_window": None, "tie_word_embeddings": True}),
            "wide heads, scaled": (
                "ForCausalLM",
                {
                    "head_dim": 6,
                    "num_key_value_heads": 4,
                    "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1000.0},
                },
            ),
            "bare": ("Model", {"sliding_window": 4}),
            "sequence": (SEQUENCE, {"num_labels": 3}),
            "token": (TOKEN, {}),
            "span": (SPAN, {}),
        },
        "layers.0.self_attn.rotary_emb.inv_freq",
    ),
    "starcoder2": Tiny(
        "Starcoder2",
        GROUPED,
        "model",
        {
            "window": ("ForCausalLM", {"sliding_window": 3, "residual_dropout": 0.1}),
            "no biases, untied": ("ForCausalLM", {"use_bias": False, "tie_word_embeddings": False}),
            "one head of keys, gelu": (
                "ForCausalLM",
                {
                    "num_key_value_heads": 1,
                    "hidden_act": "gelu",
                    "rope_parameters": {"rope_theta": 999.5, "rope_type": "default"},
                },
            ),
            "bare": ("Model", {"norm_epsilon": 1e-3}),
            "sequence": (SEQUENCE, {"num_labels": 3}),
            "token": (TOKEN, {"num_key_value_heads": 4}),
        },
        "layers.0.self_attn.rotary_emb.inv_freq",
    ),
    "falcon": Tiny(
        "Falcon",
        FALCON,
        "transformer",
        {
            "7b": ("ForCausalLM", {}),
            "40b": (
                "ForCausalLM",
                {
                    "new_decoder_architecture": True,
                    "num_kv_heads": 2,
                    "ffn_hidden_size": 48,
                    "tie_word_embeddings": False,
                },
            ),
            "11b: groups on one norm": (
                "ForCausalLM",
                {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
            ),
            "rw: ALiBi": ("ForCausalLM", FALCON_RW),
            "ALiBi, six heads": ("ForCausalLM", FALCON_RW | {"num_attention_heads": 6, "hidden_size": 24}),
            "ALiBi on one head of keys": ("ForCausalLM", {"alibi": True, "activation": "gelu_new"}),
            "sequential, rotary": ("ForCausalLM", FALCON_RW | {"alibi": False, "hidden_dropout": 0.1}),
            "all heads of keys": ("ForCausalLM", {"multi_query": False, "bias": True}),
            "bare": ("Model", {"new_decoder_architecture": True, "num_kv_heads": 4}),
            "sequence": (SEQUENCE, {"num_labels": 3}),
            "token": (TOKEN, {"bias": True}),
            "span": (SPAN, FALCON_RW),
        },
        "h.0.self_attention.rotary_emb.inv_freq",
    ),
    "bert": Tiny(
        "Bert",
        TEXT,
        "bert",
        {
            "masked tokens": ("ForMaskedLM", {}),
            "masked tokens, relu, padding at the end": (
                "ForMaskedLM",
                {"hidden_act": "relu", "pad_token_id": 39, "layer_norm_eps": 1e-5, "num_attention_heads": 2},
            ),
            "both pretraining tasks": ("ForPreTraining", {"hidden_act": "gelu_new", "type_vocab_size": 3}),
            "next sentence": ("ForNextSentencePrediction", {"num_hidden_layers": 1}),
            "bare, with a pooler": ("Model", {"hidden_act": "silu", "type_vocab_size": 1}),
            "sequence": (SEQUENCE, {"num_labels": 5, "classifier_dropout": 0.3}),
            "one number per sequence": (SEQUENCE, {"num_labels": 1}),
            "token": (TOKEN, {"num_labels": 3, "attention_probs_dropout_prob": 0.0}),
            "span": (SPAN, {"hidden_dropout_prob": 0.2}),
        },
    ),
    "roberta": Tiny("Roberta", TEXT | {"type_vocab_size": 1}, "roberta", ROBERTA),
    "camembert": Tiny(
        "Camembert",
        TEXT | {"type_vocab_size": 1},
        "roberta",
        {"masked tokens": ("ForMaskedLM", {}), "token": (TOKEN, {"num_hidden_layers": 3})},
    ),
    "xlm-roberta": Tiny(
        "XLMRoberta",
        TEXT | {"type_vocab_size": 1},
        "roberta",
        {
            "masked tokens": ("ForMaskedLM", {"hidden_act": "gelu_new"}),
            "sequence": (SEQUENCE, {}),
            "bare": ("Model", {}),
        },
    ),
    "distilbert": Tiny(
        "DistilBert",
        DISTIL | {"hidden_dim": 24},
        "distilbert",
        {
            "masked tokens": ("ForMaskedLM", {"n_layers": 3}),
            "masked tokens, untied, relu": (
                "ForMaskedLM",
                {"tie_word_embeddings": False, "activation": "relu"},
            ),
            "bare, sinusoidal": ("Model", {"sinusoidal_pos_embds": True, "n_heads": 2}),
            "sequence": (SEQUENCE, {"num_labels": 4, "seq_classif_dropout": 0.4}),
            "token": (TOKEN, {"num_labels": 3, "pad_token_id": 5}),
            "span": (SPAN, {"qa_dropout": 0.0, "attention_dropout": 0.0}),
        },
    ),
    "albert": Tiny(
        "Albert",
        TEXT | {"embedding_size": 8, "num_hidden_layers": 3},
        "albert",
        {
            "masked tokens, one block": ("ForMaskedLM", {}),
            "two groups of two": (
                "ForMaskedLM",
                {
                    "num_hidden_layers": 4,
                    "num_hidden_groups": 2,
                    "inner_group_num": 2,
                    "hidden_act": "gelu",
                },
            ),
            "groups of two sizes": ("ForMaskedLM", {"num_hidden_layers": 5, "num_hidden_groups": 3}),
            "a block per layer": ("ForMaskedLM", {"num_hidden_groups": 3}),
            "no block twice": (
                "Model",
                {"num_hidden_layers": 2, "num_hidden_groups": 2, "inner_group_num": 2},
            ),
            "embeddings as wide as the model": ("ForMaskedLM", {"embedding_size": 16}),
            "embeddings wider than the model": ("ForMaskedLM", {"embedding_size": 24, "hidden_act": "relu"}),
            "both pretraining tasks": ("ForPreTraining", {"classifier_dropout_prob": 0.0}),
            "bare": ("Model", {"type_vocab_size": 1}),
            "sequence": (SEQUENCE, {"num_labels": 5}),
            "token": (TOKEN, {"num_labels": 3, "hidden_dropout_prob": 0.1}),
            "span": (SPAN, {"pad_token_id": 3}),
        },
    ),
    "xlnet": Tiny(
        "XLNet",
        XLNET,
        "transformer",
        {
            "any order": ("LMHeadModel", {}),
            "clamped distances, relu": (
                "LMHeadModel",
                {"clamp_len": 3, "ff_activation": "relu", "layer_norm_eps": 1e-5, "n_head": 2},
            ),
            "untied": ("LMHeadModel", {"tie_word_embeddings": False, "mem_len": 7, "same_length": True}),
            "bare": ("Model", {"ff_activation": "silu", "dropout": 0.3}),
            "sequence": (SEQUENCE, {"num_labels": 5, "summary_last_dropout": 0.4}),
            "sequence, first, relu": (
                SEQUENCE,
                {"num_labels": 3, "summary_type": "first", "summary_activation": "relu"},
            ),
            "sequence, no layer before": (
                SEQUENCE,
                {"num_labels": 3, "summary_use_proj": False, "summary_activation": ""},
            ),
            "token": (TOKEN, {"num_labels": 3}),
            "span": ("ForQuestionAnsweringSimple", {"n_layer": 1}),
        },
    ),
    "vit": Tiny(
        "ViT",
        IMAGES | {"image_size": 12, "patch_size": 4},
        "vit",
        {
            "classes": ("ForImageClassification", {"num_labels": 5}),
            "no biases of queries, wide images": (
                "ForImageClassification",
                {"qkv_bias": False, "image_size": [8, 12], "patch_size": [4, 2], "num_labels": 10},
            ),
            "grey, tanh-gelu": (
                "ForImageClassification",
                {"num_channels": 1, "hidden_act": "gelu_new", "layer_norm_eps": 1e-6, "num_labels": 3},
            ),
            "bare": ("Model", {"num_hidden_layers": 1}),
            "bare, narrow relu pooler": ("Model", {"pooler_output_size": 12, "pooler_act": "relu"}),
        },
    ),
    "bart": Tiny(
        "Bart",
        BART,
        "model",
        {
            "as published": ("ForConditionalGeneration", {}),
            "scaled embeddings, relu": (
                "ForConditionalGeneration",
                {"scale_embedding": True, "activation_function": "relu"},
            ),
            "two sides of different sizes": (
                "ForConditionalGeneration",
                {
                    "decoder_layers": 3,
                    "encoder_layers": 1,
                    "decoder_attention_heads": 2,
                    "decoder_ffn_dim": 40,
                    "activation_function": "silu",
                },
            ),
            "other special tokens": (
                "ForConditionalGeneration",
                {
                    "pad_token_id": 0,
                    "bos_token_id": 2,
                    "eos_token_id": 1,
                    "decoder_start_token_id": 0,
                    "forced_eos_token_id": 1,
                    "activation_function": "gelu_new",
                },
            ),
            "bare": ("Model", {}),
            "sequence": (SEQUENCE, {}),
            "sequence, five labels": (SEQUENCE, {"num_labels": 5}),
            "span": (SPAN, {}),
        },
    ),
    "t5": Tiny(
        "T5",
        T5,
        "",
        {
            "1.0: tied and scaled": ("ForConditionalGeneration", {}),
            "1.0: wide heads, three decoder layers": (
                "ForConditionalGeneration",
                {"d_kv": 6, "num_decoder_layers": 3},
            ),
            "1.0: many buckets, exact gelu, one decoder layer": (
                "ForConditionalGeneration",
                {
                    "relative_attention_num_buckets": 32,
                    "relative_attention_max_distance": 128,
                    "feed_forward_proj": "gelu",
                    "num_decoder_layers": 1,
                },
            ),
            "1.1: gated, tied": (
                "ForConditionalGeneration",
                {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
            ),
            "Flan: gated, an output table of its own": (
                "ForConditionalGeneration",
                {
                    "feed_forward_proj": "gated-gelu",
                    "tie_word_embeddings": False,
                    "own_head": True,
                    "d_kv": 5,
                },
            ),
            "an output table of its own, scaled": (
                "ForConditionalGeneration",
                {"own_head": True, "layer_norm_epsilon": 1e-5},
            ),
            "gated silu": ("ForConditionalGeneration", {"feed_forward_proj": "gated-silu", "num_heads": 2}),
            "bare": ("Model", {"feed_forward_proj": "gated-gelu"}),
            "encoder": ("EncoderModel", {"feed_forward_proj": "gated-gelu"}),
            "token": (TOKEN, {"feed_forward_proj": "gated-gelu", "num_labels": 5}),
            "span": (SPAN, {"feed_forward_proj": "gated-gelu"}),
            "sequence": (SEQUENCE, {"num_labels": 2}),
            "sequence, five labels": (SEQUENCE, {"num_labels": 5}),
        },
    ),
    "mt5": Tiny(
        "MT5",
        T5,
        "",
        {
            "gated": ("ForConditionalGeneration", {}),
            "relu, an output table of its own": (
                "ForConditionalGeneration",
                {"feed_forward_proj": "relu", "own_head": True},
            ),
            "encoder": ("EncoderModel", {"feed_forward_proj": "gated-gelu"}),
        },
    ),
}
