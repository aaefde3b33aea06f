"""MPNet (Song et al. 2020): RoBERTa without segments, whose scores also have a learned bias of the distance, as in T5.

It was pretrained on masked and permuted tokens, and is the model of many sentence embeddings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trifold.errors import SettingsError
from trifold.hub.families.bert import (
    EMBEDDINGS,
    ROBERTA,
    ROBERTA_HEADS,
    ROBERTA_RULES,
    TEXT_ENCODER,
    block_names,
)
from trifold.hub.family import in_layer
from trifold.hub.rows import Entry, Fields, fixed, revise

PAD = 1  # in any case, positions begin after it


def _check_padding(file: Any, fields: Fields) -> Fields:
    if file.pad_token_id != PAD:
        raise SettingsError(
            f"pad_token_id: {file.pad_token_id} is not supported; positions begin after {PAD}"
        )
    return {}


LAYER = block_names(
    "attention.attn.q attention.attn.k attention.attn.v attention.attn.o attention.LayerNorm",
    "intermediate.dense output.dense output.LayerNorm",
)
FAMILY = replace(
    ROBERTA,
    model_type="mpnet",
    stem="MPNet",
    entries=(
        Entry({"pad_token_id": (int | None, PAD)}, _check_padding),
        *revise(ROBERTA.entries, without="type_vocab_size classifier_dropout", vocab_size=30527),
        # The reference has tables of other sizes, but reads 32 rows.
        fixed(relative_attention_num_buckets=32),
    ),
    constants=TEXT_ENCODER | {"positions": "relative", "learned_positions": True},
    rules=replace(
        ROBERTA_RULES,
        prefix="mpnet",
        names={
            **{ours: theirs for ours, theirs in EMBEDDINGS.items() if "token_types" not in ours},
            "encoder.offsets": ".encoder.relative_attention_bias",
            "heads.pooler.dense": ".pooler.dense",
            **in_layer(".encoder.layer.{i}.", LAYER),
            **ROBERTA_HEADS,
        },
    ),
)
