"""GPT (Radford et al. 2018): the decoder of 2017 without cross-attention, post-norm, with learned positions."""

from __future__ import annotations

from dataclasses import replace

from trifold.hub.decoders import GPT, GPT_IGNORED, classes
from trifold.hub.families import gpt2
from trifold.hub.family import Family, Row, below, ids, ignored, revise

ACTIVATIONS = {"gelu": "gelu-tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
NAMES = {ours.replace("enter", "after"): theirs for ours, theirs in gpt2.RULES.names.items()}

RULES = replace(
    gpt2.RULES,
    names=NAMES,
    tokens="tokens_embed",
    positions="positions_embed",
    final_norm="-",
    buffers="attn.bias",
)
FAMILY = Family(
    "openai-gpt",
    "OpenAIGPT",
    classes=classes("ForTokenClassification", "ForQuestionAnswering", lm="LMHeadModel"),
    entries=(
        *revise(GPT, ids(), without="n_inner activation_function", vocab_size=40478, n_positions=512),
        Row("afn", "activation", "gelu", map=ACTIVATIONS),
    ),
    constants=gpt2.FAMILY.constants
    | {"norm_placement": "post", "d_ff": lambda fields: 4 * fields["d_model"]},
    rules=lambda config: [*RULES(config), *ignored(below(config, "transformer"), "position_ids")],
    ignored=GPT_IGNORED,
)
