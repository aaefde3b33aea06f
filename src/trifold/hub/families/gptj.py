"""GPT-J (Wang & Komatsuzaki 2021): parallel attention and feed-forward on one norm, rotary positions.

CodeGen (Nijkamp et al. 2022) is GPT-J whose queries, values and keys are stored in four shares, one per machine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trifold.errors import SettingsError
from trifold.hub.decoders import DECODER, GPT, GPT_IGNORED, DecoderRules, classes
from trifold.hub.family import Family
from trifold.hub.rows import Fields, Group, Row, revise
from trifold.hub.rules import dealt

RULES = DecoderRules(
    "transformer",
    "h.{i}.",
    {
        "self_attention.enter": "ln_1",
        "self_attention.sublayer.{p:q|k|v}_proj": "attn.{p}_proj",
        "self_attention.sublayer.o_proj": "attn.out_proj",
        "feed_forward.sublayer.in_proj": "mlp.fc_in",
        "feed_forward.sublayer.out_proj": "mlp.fc_out",
    },
    tokens="wte",
    final_norm="ln_f",
    buffers="attn.bias attn.masked_bias attn.causal_mask attn.embed_positions",
)
GPTJ = Family(
    "gptj",
    "GPTJ",
    classes=classes("ForTokenClassification"),
    entries=(
        *revise(
            GPT,
            vocab_size=50400,
            n_positions=2048,
            n_embd=4096,
            n_layer=28,
            n_head=16,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            tie_word_embeddings=False,
        ),
        Row("rotary_dim", "rotary_width", 64),
    ),
    constants=DECODER
    | {
        "positions": "rotary",
        "rotary_pairs": "interleaved",
        "residual": "parallel",
        "lm_head_bias": True,
    },
    rules=RULES,
    ignored=f"{GPT_IGNORED} rotary scale_attn_weights",
)

MACHINES = 4


def _check_heads(file: Any, fields: Fields) -> Fields:
    if file.n_head % MACHINES:
        raise SettingsError(f"n_head: {file.n_head} is not a multiple of {MACHINES}, as CodeGen requires")
    return {}


CODEGEN = replace(
    GPTJ,
    model_type="codegen",
    stem="CodeGen",
    classes=classes("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"),
    entries=(*GPTJ.entries, Group({}, _check_heads)),
    rules=replace(
        RULES,
        names={ours: theirs for ours, theirs in RULES.names.items() if "{p" not in ours},
        qkv="attn.qkv_proj",
        order="qvk",
        split=lambda config: dealt(MACHINES, (1, 1, 1)),
    ),
    general=1,
)
