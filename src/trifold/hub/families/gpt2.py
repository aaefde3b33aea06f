"""GPT-2 (Radford et al. 2019): a pre-norm decoder with learned positions. DistilGPT2 is one of six layers.

Its matrices are stored as (in, out), and one of them holds queries, keys and values.
"""

from __future__ import annotations

from trifold.hub.decoders import DECODER, GPT, GPT_IGNORED, SCALED, DecoderRules, classes
from trifold.hub.family import Family, Row
from trifold.hub.rules import TRANSPOSED, stacked

RULES = DecoderRules(
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
FAMILY = Family(
    "gpt2",
    "GPT2",
    classes=classes(lm="LMHeadModel"),
    entries=(
        *GPT,
        Row("scale_attn_weights", "attention_scale", True, map=SCALED),
        Row("scale_attn_by_inverse_layer_idx", "attention_scale_by_layer", False),
    ),
    constants=DECODER | {"positions": "learned", "attention_bias": True},
    rules=RULES,
    ignored=f"{GPT_IGNORED} reorder_and_upcast_attn",  # the same numbers, rounded later
)
