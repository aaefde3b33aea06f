"""GPT-J (Wang & Komatsuzaki 2021): parallel attention and feed-forward on one norm, rotary positions."""

from __future__ import annotations

from trifold.hub.decoders import DECODER, GPT, GPT_IGNORED, DecoderRules, classes
from trifold.hub.family import Family, Row, revise

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
FAMILY = Family(
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
