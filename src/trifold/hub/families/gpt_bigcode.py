"""GPT-BigCode (StarCoder; Li et al. 2023): GPT-2 whose heads may all share one pair of keys and values."""

from __future__ import annotations

from dataclasses import replace

from trifold.hub.decoders import GPT, GPT_IGNORED, SCALED, classes, grouped
from trifold.hub.families import gpt2
from trifold.hub.family import Family, Group, Row, revise
from trifold.hub.rules import SAME

MULTI_QUERY = Group(
    {"multi_query": (bool, True)},
    lambda file, fields: {"n_kv_heads": 1 if file.multi_query else None},
    lambda config: {"multi_query": config.kv_heads == 1},
)
FAMILY = Family(
    "gpt_bigcode",
    "GPTBigCode",
    classes=classes("ForQuestionAnswering"),
    entries=(
        *revise(GPT, activation_function="gelu_pytorch_tanh"),
        Row("scale_attn_weights", "attention_scale", True, map=SCALED),
        MULTI_QUERY,
    ),
    constants=gpt2.FAMILY.constants,
    rules=replace(gpt2.RULES, split=grouped, matrix=SAME),
    # The precision of softmax, and the settings of an inference server.
    ignored=f"""
    {GPT_IGNORED} attention_softmax_in_fp32 scale_attention_softmax_in_fp32 inference_runner max_batch_size
    max_sequence_length num_key_value_heads pad_key_length pre_allocate_kv_cache validate_runner_input
    """,
)
