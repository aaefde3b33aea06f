"""GPT, GPT-2 and GPT-BigCode.

GPT (Radford et al. 2018) is the decoder of 2017 without cross-attention, post-norm, with learned positions. GPT-2
(Radford et al. 2019) is pre-norm; DistilGPT2 is one of six layers. Their matrices are stored as (in, out), and one of
them holds queries, keys and values. GPT-BigCode (StarCoder; Li et al. 2023) is GPT-2 whose heads may all share one
pair of keys and values.
"""

from __future__ import annotations

from dataclasses import replace

from trifold.hub.decoders import DECODER, GPT, GPT_IGNORED, SCALED, DecoderRules, classes, grouped
from trifold.hub.family import Family, below, ignored
from trifold.hub.rows import Group, Row, ids, revise
from trifold.hub.rules import SAME, TRANSPOSED, stacked

GPT2_RULES = DecoderRules(
    "transformer",
    "h.{i}.",
    {
        "self_attention.enter": "ln_1",
        "self_attention.sublayer.o_proj": "attn.c_proj",
        "feed_forward.enter": "ln_2",
        "feed_forward.sublayer.in_proj": "mlp.c_fc",
        "feed_forward.sublayer.out_proj": "mlp.c_proj",
    },
    tokens="wte",
    positions="wpe",
    final_norm="ln_f",
    qkv="attn.c_attn",
    split=lambda config: stacked(3),
    matrix=TRANSPOSED,
    buffers="attn.bias attn.masked_bias",
)
GPT2 = Family(
    "gpt2",
    "GPT2",
    classes=classes(lm="LMHeadModel"),
    entries=(
        *GPT,
        Row("scale_attn_weights", "attention_scale", True, map=SCALED),
        Row("scale_attn_by_inverse_layer_idx", "attention_scale_by_layer", False),
    ),
    constants=DECODER | {"positions": "learned", "attention_bias": True},
    rules=GPT2_RULES,
    ignored=f"{GPT_IGNORED} reorder_and_upcast_attn",  # the same numbers, rounded later
)

MULTI_QUERY = Group(
    {"multi_query": (bool, True)},
    lambda file, fields: {"n_kv_heads": 1 if file.multi_query else None},
    lambda config: {"multi_query": config.kv_heads == 1},
)
BIGCODE = Family(
    "gpt_bigcode",
    "GPTBigCode",
    classes=classes("ForQuestionAnswering"),
    entries=(
        *revise(GPT, activation_function="gelu_pytorch_tanh"),
        Row("scale_attn_weights", "attention_scale", True, map=SCALED),
        MULTI_QUERY,
    ),
    constants=GPT2.constants,
    rules=replace(GPT2_RULES, split=grouped, matrix=SAME),
    # The precision of softmax, and the settings of an inference server.
    ignored=f"""
    {GPT_IGNORED} attention_softmax_in_fp32 scale_attention_softmax_in_fp32 inference_runner max_batch_size
    max_sequence_length num_key_value_heads pad_key_length pre_allocate_kv_cache validate_runner_input
    """,
)

OPENAI_ACTIVATIONS = {"gelu": "gelu-tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
OPENAI_RULES = replace(
    GPT2_RULES,
    names={ours.replace("enter", "after"): theirs for ours, theirs in GPT2_RULES.names.items()},
    tokens="tokens_embed",
    positions="positions_embed",
    final_norm="-",
    buffers="attn.bias",
)
OPENAI = Family(
    "openai-gpt",
    "OpenAIGPT",
    classes=classes("ForTokenClassification", "ForQuestionAnswering", lm="LMHeadModel"),
    entries=(
        *revise(GPT, ids(), without="n_inner activation_function", vocab_size=40478, n_positions=512),
        Row("afn", "activation", "gelu", map=OPENAI_ACTIVATIONS),
    ),
    constants=GPT2.constants | {"norm_placement": "post", "d_ff": lambda fields: 4 * fields["d_model"]},
    rules=lambda config: [*OPENAI_RULES(config), *ignored(below(config, "transformer"), "position_ids")],
    ignored=GPT_IGNORED,
)
