"""Attention to blocks (Zaheer et al. 2020): BigBird is BERT with it, BigBirdPegasus a Pegasus with
such an encoder.

Both choose random blocks in training only; outside of it the first block counts in place of each.
BigBird's files hold a pooler for every class. BigBirdPegasus has learned positions, and BERT's
names of projections in the encoder.
"""

from typing import Any, Literal

from trifold.hub.families import bart, bert
from trifold.hub.family import PART, STACK
from trifold.hub.rows import SIZE, Entry, Fields, fixed, group_of, ids, resized, row, rows, same
from trifold.hub.rules import AnyRule, Ignored, Unused
from trifold.nn import ModelConfig


def _load_blocks(file: Any, fields: Fields) -> Fields:
    if file.attention_type != "block_sparse":
        return {"sparse_blocks": None}
    blocks = {"size": file.block_size, "random": file.num_random_blocks, "only_in_training": True}
    return {"sparse_blocks": blocks}


def _save_blocks(config: ModelConfig) -> Fields:
    if (blocks := group_of(config, "sparse_blocks")) is None:
        return {"attention_type": "original_full"}
    return {
        "attention_type": "block_sparse",
        "block_size": blocks.size,
        "num_random_blocks": blocks.random,
    }


BLOCKS = Entry(
    {
        "attention_type": (Literal["block_sparse", "original_full"], "block_sparse"),
        "block_size": (SIZE, 64),
        "num_random_blocks": (SIZE, 3),
    },
    _load_blocks,
    _save_blocks,
)

# --- BigBird --------------------------------------------------------------------------------------


def _pooler(config: ModelConfig, base: str) -> list[AnyRule]:
    """The pooler of a class that does not use it; those of answers do not hold it."""
    square = f"{base}encoder.layer.0.attention.output.dense"
    if "span" in config.chosen_heads:
        return [Ignored(f"{base}pooler.{PART}")]
    if "pooler" in config.chosen_heads:
        return []
    parts = ("weight", "bias")
    return [Unused(f"{base}pooler.{part}", like=f"{square}.{part}") for part in parts]


CLASSES = {name: bert.CLASSES[name] for name in ("Model", "ForPreTraining", "ForMaskedLM")}
CLASSES |= {name: bert.CLASSES[name] for name in ("ForTokenClassification", "ForMultipleChoice")}
CLASSES["ForSequenceClassification"] = {
    "heads": ("sequence",),
    "classifier_transform": same("activation"),
}
CLASSES["ForQuestionAnswering"] = {"heads": ("span",), "span_layer": True}
BIG_BIRD = bert.FAMILY.related(
    "big_bird",
    BLOCKS,
    # In answers, `transformers` excludes what is before this token: the question, as
    # `predict.answer` does.
    row("sep_token_id", "separator_id", 66, heads=("span",)),
    ids(0, 1, 2, padded=True),
    *rows(attention_bias=("use_bias", True), scale_embeddings=("rescale_embeddings", False)),
    row(
        "classifier_dropout",
        "classifier_dropout",
        None,
        explicit=False,
        heads=("sequence", "token"),
    ),
    classes=CLASSES,
    constants={"attention_out_bias": True},
    rules=bert.RULES.related(
        {
            "heads.pooler.dense": ".pooler",
            "heads.sequence.{layer:dense|out_proj}": "classifier.{layer}",
            "heads.{head:token|choice}.out_proj": "classifier",
            "heads.span.layer.sublayer.in_proj": "qa_classifier.intermediate.dense",
            "heads.span.layer.sublayer.out_proj": "qa_classifier.output.dense",
            "heads.span.layer.after": "qa_classifier.output.LayerNorm",
            "heads.span.out_proj": "qa_classifier.qa_outputs",
        },
        without="heads.{ heads.span",
        more=_pooler,
        unused="cls.seq_relationship",
    ),
    ignored="",
    **resized(vocab=50358, positions=4096, hidden_act="gelu_new"),
)

# --- BigBirdPegasus -------------------------------------------------------------------------------

ENCODER = {"q": "self.query", "k": "self.key", "v": "self.value", "o": "output"}
BIGBIRD_PEGASUS = bart.BART.related(
    "bigbird_pegasus",
    BLOCKS,
    row("use_bias", "attention_bias", False),
    fixed(encoder_layerdrop=0.0, decoder_layerdrop=0.0),
    stem="BigBirdPegasus",
    constants={"position_offset": 0, "embedding_norm": False, "norm_placement": "pre"},
    rules=bart.RULES.related(
        {f"{STACK}.final_norm": ".{stack}.layernorm_embedding"}
        | bart.two_stacks(
            {f"self_attention.sublayer.{p}_proj": f"self_attn.{q}" for p, q in ENCODER.items()}
        ),
        without="attention feed_forward",
    ),
    without="normalize_embedding",
    **resized(
        vocab=96103, positions=4096, encoder_layers=16, decoder_layers=16, scale_embedding=True
    ),
    **resized(activation_function="gelu_new", pad_token_id=0, bos_token_id=2, eos_token_id=1),
)
