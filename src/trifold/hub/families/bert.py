"""BERT (Devlin et al. 2019): an encoder of tokens and segments, pretrained on masked tokens and
next sentences.

RoBERTa (Liu et al. 2019) is BERT without next sentences, whose positions begin after the padding's
id; CamemBERT (Martin et al. 2020) and XLM-RoBERTa (Conneau et al. 2020) are the same under other
names. DistilBERT (Sanh et al. 2019) has half the layers, and neither segments nor pooler. ALBERT
(Lan et al. 2020) has a narrow embedding table, and its layers share their blocks in groups.
"""

from typing import Any

from trifold.errors import SettingsError
from trifold.hub.family import Family, TensorRules
from trifold.hub.rows import Entry, Fields, fixed, ids, resized, row, rows, same, sizes, up_to
from trifold.hub.rules import AnyRule
from trifold.nn import ModelConfig
from trifold.nn.config import MAX_LAYERS

# --- what encoders share --------------------------------------------------------------------------

ENCODER: Fields = {"shape": "encoder", "positions": "learned", "scale_embeddings": False}
ENCODER |= {"embedding_norm": True, "attention_bias": True}
ENCODER_ONLY = fixed(is_decoder=False, is_encoder_decoder=False, add_cross_attention=False)

# The head of masked language models: dense layer, activation, norm, the embeddings again, and a
# bias.
MASKED_LM: Fields = {
    "heads": ("lm",),
    "lm_head_transform": same("activation"),
    "lm_head_bias": True,
}
CLASSIFIERS: dict[str, Fields] = {
    "ForSequenceClassification": {"heads": ("sequence",)},
    "ForTokenClassification": {"heads": ("token",)},
    "ForQuestionAnswering": {"heads": ("span",)},
}
CHOICE: Fields = {"heads": ("pooler", "choice"), "classifier_input": "pooler"}


def classes(**other: Fields) -> dict[str, Fields]:
    """The classes of a family without next sentences, of which some are `other`."""
    common = {
        "Model": {"heads": ()},
        "ForMaskedLM": MASKED_LM,
        **CLASSIFIERS,
        "ForMultipleChoice": CHOICE,
    }
    return common | other


EMBEDDINGS = {
    "encoder_embeddings.positions": ".embeddings.position_embeddings",
    "encoder_embeddings.token_types": ".embeddings.token_type_embeddings",
    "encoder_embeddings.norm": ".embeddings.LayerNorm",
}
BUFFERS = ".embeddings.{buffer:position_ids|token_type_ids}"
HEADS = {
    "heads.{head:sequence|token|choice}.out_proj": "classifier",
    "heads.span.out_proj": "qa_outputs",
}

# The modules of a block, in the order in which `block_names` gets theirs.
BLOCK_MODULES = """
    self_attention.sublayer.q_proj self_attention.sublayer.k_proj self_attention.sublayer.v_proj
    self_attention.sublayer.o_proj self_attention.{place:enter|after}
    feed_forward.sublayer.in_proj feed_forward.sublayer.out_proj feed_forward.{place:enter|after}
""".split()


def block_names(attention: str, feed_forward: str) -> dict[str, str]:
    """Our modules of a block -> theirs: of attention (q, k, v, o, norm) and of the feed-forward
    (in, out, norm).
    """
    return dict(zip(BLOCK_MODULES, f"{attention} {feed_forward}".split(), strict=True))


# --- BERT -----------------------------------------------------------------------------------------

CLASSES: dict[str, Fields] = {
    "Model": {"heads": ("pooler",)},
    "ForPreTraining": MASKED_LM | {"heads": ("lm", "pooler", "next-sentence")},
    "ForMaskedLM": MASKED_LM,
    "ForNextSentencePrediction": {"heads": ("pooler", "next-sentence")},
    **CLASSIFIERS,
    "ForSequenceClassification": {"heads": ("pooler", "sequence"), "classifier_input": "pooler"},
    "ForMultipleChoice": CHOICE,
}
BERT = (
    *sizes(
        vocab=30522, width=768, inner=3072, layers=12, heads=12, positions=512, activation="gelu"
    ),
    *rows(
        dropout=("hidden_dropout_prob", 0.1),
        attention_dropout=("attention_probs_dropout_prob", 0.1),
    ),
    *rows(norm_epsilon=("layer_norm_eps", 1e-12), tie_lm_head=("tie_word_embeddings", True)),
    ENCODER_ONLY,
    row("type_vocab_size", "n_token_types", 2, kind=up_to(2**16)),
    ids(0, padded=True),
    row("classifier_dropout", "classifier_dropout", None, explicit=False),
    fixed(position_embedding_type="absolute"),
)
LAYER = block_names(
    "attention.self.query attention.self.key attention.self.value attention.output.dense "
    "attention.output.LayerNorm",
    "intermediate.dense output.dense output.LayerNorm",
)
RULES = TensorRules(
    "bert",
    ".embeddings.word_embeddings",
    {
        **EMBEDDINGS,
        "heads.pooler.dense": ".pooler.dense",
        **LAYER,
        "lm_head.dense": "cls.predictions.transform.dense",
        "lm_head.norm": "cls.predictions.transform.LayerNorm",
        "heads.next_sentence.out_proj": "cls.seq_relationship",
        **HEADS,
    },
    layer=".encoder.layer.{i}.",
    lm_head="cls.predictions.decoder",
    lm_bias="cls.predictions.bias",
    buffers=BUFFERS,
    unused=".pooler.dense cls.seq_relationship",
)
FAMILY = Family(
    model_type="bert",
    stem="Bert",
    classes=CLASSES,
    entries=BERT,
    constants=ENCODER,
    rules=RULES,
    # Of the first release's pooler; `transformers` does not read them.
    ignored="""
    directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
    pooler_size_per_head pooler_type
    """,
)

# --- RoBERTa --------------------------------------------------------------------------------------


def _load_positions(file: Any, fields: Fields) -> Fields:
    """Of `max_position_embeddings`, those up to the padding's id are never used."""
    if file.pad_token_id is None:
        raise SettingsError("pad_token_id: null, but positions begin after it; name the padding")
    offset = file.pad_token_id + 1
    size = file.max_position_embeddings
    if size <= offset:
        problem = (
            f"{size} leaves no position for tokens, which begin at {offset}, after pad_token_id"
        )
        raise SettingsError(f"max_position_embeddings: {problem}")
    return {"position_offset": offset, "max_positions": size - offset}


ROBERTA_RULES = RULES.related(
    {
        "lm_head.dense": "lm_head.dense",
        "lm_head.norm": "lm_head.layer_norm",
        "heads.sequence.{layer:dense|out_proj}": "classifier.{layer}",
        "heads.{head:token|choice}.out_proj": "classifier",
    },
    without="heads.next_sentence heads.{",
    prefix="roberta",
    lm_head="lm_head.decoder",
    lm_bias="lm_head.bias",
    unused=".pooler.dense",
)
ROBERTA = FAMILY.related(
    "roberta",
    ids(1, 0, 2, padded=True),
    Entry(
        row("max_position_embeddings", "max_positions", 512).keys,
        _load_positions,
        lambda config: {"max_position_embeddings": config.max_positions + config.position_offset},
    ),
    classes=classes(
        Model={"heads": ("pooler",)},
        # The dense layer of the head always has this activation.
        ForMaskedLM=MASKED_LM | {"lm_head_transform": "gelu"},
        ForSequenceClassification={"heads": ("sequence",), "classifier_transform": "tanh"},
    ),
    rules=ROBERTA_RULES,
    ignored="",
    vocab_size=50265,
)
CAMEMBERT = ROBERTA.related("camembert", vocab_size=30522)
XLM_ROBERTA = ROBERTA.related("xlm-roberta", stem="XLMRoberta", vocab_size=30522)

# --- DistilBERT -----------------------------------------------------------------------------------

DISTILBERT = FAMILY.related(
    "distilbert",
    *rows(
        d_model=("dim", 768), d_ff=("hidden_dim", 3072), n_layers=6, n_heads=12, activation="gelu"
    ),
    *rows(dropout=0.1, attention_dropout=0.1),
    row("qa_dropout", "classifier_dropout", 0.1, heads=("span",)),
    row("seq_classif_dropout", "classifier_dropout", 0.2, heads=("sequence", "choice")),
    stem="DistilBert",
    classes=classes(
        ForSequenceClassification={"heads": ("sequence",), "classifier_transform": "relu"},
        ForMultipleChoice={"heads": ("choice",), "classifier_transform": "relu"},
    ),
    constants={"norm_epsilon": 1e-12},
    rules=TensorRules(
        "distilbert",
        ".embeddings.word_embeddings",
        {
            **EMBEDDINGS,
            **block_names(
                "attention.q_lin attention.k_lin attention.v_lin attention.out_lin sa_layer_norm",
                "ffn.lin1 ffn.lin2 output_layer_norm",
            ),
            "lm_head.dense": "vocab_transform",
            "lm_head.norm": "vocab_layer_norm",
            "heads.{head:sequence|choice}.dense": "pre_classifier",
            **HEADS,
        },
        layer=".transformer.layer.{i}.",
        lm_head="vocab_projector",
        buffers=BUFFERS,
    ),
    ignored="sinusoidal_pos_embds tie_weights_",  # the table of positions is stored in any case
    without="""
    hidden_size intermediate_size num_hidden_layers num_attention_heads hidden_act
    hidden_dropout_prob layer_norm_eps attention_probs_dropout_prob type_vocab_size
    classifier_dropout position_embedding_type
    """,
)

# --- ALBERT ---------------------------------------------------------------------------------------

# Rounds through the groups, groups, and blocks of a group.
COUNTS = {"num_hidden_layers": 12, "num_hidden_groups": 1, "inner_group_num": 1}


def order(rounds: int, groups: int, inner: int) -> tuple[int, ...]:
    """The block of each layer: each round executes one group, which is `inner` blocks in a row."""
    # Rounded as in `transformers`.
    group_of = (int(number / (rounds / groups)) for number in range(rounds))
    return tuple(group * inner + block for group in group_of for block in range(inner))


def groups_of(config: ModelConfig) -> tuple[int, int, int]:
    """(rounds, groups, inner) that give the config's layers their blocks. Raises SettingsError if
    there are none.

    Where no block is used twice there are several, which differ only in the names of their tensors.
    """
    layers = config.n_layers
    if config.block_of_layer is None:
        return layers, layers, 1
    blocks = max(config.block_of_layer) + 1
    # Without shared blocks there are inner ones, or `_load_groups` would have left block_of_layer
    # out.
    least = 2 if blocks == layers else 1
    for inner in range(least, blocks + 1):
        if blocks % inner or layers % inner:
            continue
        rounds = layers // inner
        groups = blocks // inner
        if groups <= rounds and order(rounds, groups, inner) == config.block_of_layer:
            return rounds, groups, inner
    raise SettingsError(f"block_of_layer: {config.block_of_layer} is not an order of equal groups")


def _load_groups(file: Any, fields: Fields) -> Fields:
    rounds = file.num_hidden_layers
    groups = file.num_hidden_groups
    inner = file.inner_group_num
    if groups > rounds or rounds * inner > MAX_LAYERS:
        limits = f"every group needs a layer, and {MAX_LAYERS:,} layers are the most"
        raise SettingsError(f"num_hidden_groups: {groups} of {inner} for {rounds} layers: {limits}")
    shared = (groups, inner) != (rounds, 1)
    return {
        "n_layers": rounds * inner,
        "block_of_layer": order(rounds, groups, inner) if shared else None,
    }


def _rules(config: ModelConfig) -> list[AnyRule]:
    _, groups, inner = groups_of(config)
    layer = block_names(
        "attention.query attention.key attention.value attention.dense attention.LayerNorm",
        "ffn ffn_output full_layer_layer_norm",
    )
    blocks = {
        f"encoder.blocks.{group * inner + block}.{ours}": (
            f".encoder.albert_layer_groups.{group}.albert_layers.{block}.{theirs}"
        )
        for group in range(groups)
        for block in range(inner)
        for ours, theirs in layer.items()
    }
    return RULES.related(
        {
            "encoder_embeddings.projection": ".encoder.embedding_hidden_mapping_in",
            "heads.pooler.dense": ".pooler",
            "lm_head.dense": "predictions.dense",
            "lm_head.norm": "predictions.LayerNorm",
            "heads.next_sentence.out_proj": "sop_classifier.classifier",
            **blocks,
        },
        without="attention feed_forward",
        prefix="albert",
        lm_head="predictions.decoder",
        lm_bias="predictions.bias",
        unused=".pooler sop_classifier.classifier",
    )(config)


ALBERT = FAMILY.related(
    "albert",
    Entry(
        {key: (up_to(MAX_LAYERS), n) for key, n in COUNTS.items()},
        _load_groups,
        lambda config: dict(zip(COUNTS, groups_of(config), strict=True)),
    ),
    row("embedding_size", "d_embedding", 128, kind=up_to(2**20)),
    row("classifier_dropout_prob", "classifier_dropout", 0.1, nullable=True),
    ids(0, 2, 3, padded=True),
    classes={
        name: fields for name, fields in CLASSES.items() if name != "ForNextSentencePrediction"
    },
    rules=_rules,
    # Of the first release; `transformers` does not read them.
    ignored="classifier_dropout down_scale_factor gap_size layers_to_keep net_structure_type "
    "num_memory_blocks",
    without="classifier_dropout",
    **resized(vocab=30000, width=4096, inner=16384, heads=64, hidden_act="gelu_new"),
    **resized(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
)
