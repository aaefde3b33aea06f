"""GPT-NeoX and Pythia (Black et al. 2022): parallel attention and feed-forward on two norms, partly rotary.

Queries, keys and values are in one matrix, head by head.
"""

from __future__ import annotations

from trifold.hub.decoders import COMMON, DECODER, DecoderRules, classes
from trifold.hub.family import Family
from trifold.hub.rope import rope
from trifold.hub.rows import Row, ids, revise, sizes
from trifold.hub.rules import Renamed

RESIDUALS = {True: "parallel-two-norms", False: "sequential"}
RULES = DecoderRules(
    "gpt_neox",
    "layers.{i}.",
    {
        "self_attention.enter": "input_layernorm",
        "self_attention.sublayer.o_proj": "attention.dense",
        "feed_forward.enter": "post_attention_layernorm",
        "feed_forward.sublayer.in_proj": "mlp.dense_h_to_4h",
        "feed_forward.sublayer.out_proj": "mlp.dense_4h_to_h",
    },
    tokens="embed_in",
    final_norm="final_layer_norm",
    lm_head="embed_out",
    qkv="attention.query_key_value",
    buffers="attention.bias attention.masked_bias attention.rotary_emb.inv_freq",
)
FAMILY = Family(
    model_type="gpt_neox",
    stem="GPTNeoX",
    classes=classes(),
    entries=(
        *sizes(vocab=50432, width=6144, inner=24576, layers=44, heads=64, positions=2048, activation="gelu"),
        Row("attention_dropout", "attention_dropout", 0.0),
        Row("hidden_dropout", "dropout", 0.0),
        Row("layer_norm_eps", "norm_epsilon", 1e-5),
        Row("use_parallel_residual", "residual", True, map={True: "parallel-two-norms", False: "sequential"}),
        Row("attention_bias", "attention_bias", True),
        rope(part="rotary_pct", theta="rotary_emb_base"),
        ids(bos=0, eos=2),
        *revise(COMMON, tie_word_embeddings=False),
    ),
    constants=DECODER,
    rules=lambda config: [*RULES(config), Renamed("lm_head.weight", "embed_out.weight")],
    ignored="attention_probs_dropout_prob hidden_dropout_prob",  # the reference does not read them
)
