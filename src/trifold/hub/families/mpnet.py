"""MPNet (Song et al. 2020): RoBERTa without segments, whose scores also have a learned bias of the distance, as in T5.

It was pretrained on masked and permuted tokens, and is the model of many sentence embeddings.
"""

from __future__ import annotations

from dataclasses import replace

from trifold.hub.families.bert import ROBERTA, ROBERTA_RULES, TEXT_ENCODER, block_names
from trifold.hub.family import in_layer
from trifold.hub.rows import fixed, revise

LAYER = block_names(
    "attention.attn.q attention.attn.k attention.attn.v attention.attn.o attention.LayerNorm",
    "intermediate.dense output.dense output.LayerNorm",
)
FAMILY = replace(
    ROBERTA,
    model_type="mpnet",
    stem="MPNet",
    entries=(
        *revise(ROBERTA.entries, without="type_vocab_size classifier_dropout", vocab_size=30527),
        fixed(pad_token_id=1),  # positions begin after 1 in any case
        # The reference has tables of other sizes, but reads 32 rows.
        fixed(relative_attention_num_buckets=32),
    ),
    constants=TEXT_ENCODER | {"positions": "relative", "learned_positions": True},
    rules=replace(
        ROBERTA_RULES,
        prefix="mpnet",
        names=ROBERTA_RULES.names
        | {"encoder.offsets": ".encoder.relative_attention_bias"}
        | in_layer(".encoder.layer.{i}.", LAYER),
    ),
)
