"""Reformer (Kitaev et al. 2020): an encoder or a decoder (`is_decoder`) with LSH attention and
reversible blocks.

Without `hash_seed` the reference draws new rotations at each call; in evaluation ours are those of
`hash_seed: 0`. If `num_buckets` is null, the reference keeps the number that suits the first text;
ours is that of each text. In a batch, the states of the reference depend on the padding; ours are
those of the row alone, up to rounding.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from trifold.errors import SettingsError
from trifold.hub.families import bert
from trifold.hub.family import STACK, TensorRules
from trifold.hub.rope import repeated
from trifold.hub.rows import Entry, Fields, fixed, group_of, ids, nested, resized, row, rows, same
from trifold.hub.rules import AnyRule, ParameterRule, Unused
from trifold.hub.transforms import LEADING_AXIS, per_tensor
from trifold.nn import ModelConfig
from trifold.nn.config import MAX_LAYERS

LAYERS = Annotated[list[Literal["lsh", "local"]], Field(min_length=1, max_length=MAX_LAYERS)]
Bucket = Annotated[int, Field(gt=0, le=2**20, multiple_of=2)]
BUCKETS = Bucket | Annotated[list[Bucket], Field(min_length=1)] | None
# Theirs is (n, 1, …).
MIDDLE_AXIS = per_tensor(lambda theirs: theirs.squeeze(1), lambda ours: ours.unsqueeze(1))


def _load_layers(file: Any, fields: Fields) -> Fields:
    buckets = file.num_buckets
    layers = file.attn_layers
    if isinstance(buckets, int):
        buckets = (buckets,)
    lsh = fields["lsh"] | {"buckets": buckets, "layers": repeated(layers)}
    return {"lsh": lsh, "n_layers": len(layers)}


def _save_layers(config: ModelConfig) -> Fields:
    """The inverse of `_load_layers`."""
    lsh = group_of(config, "lsh")
    buckets = lsh.buckets or (None,)
    return {
        "num_buckets": buckets[0] if len(buckets) == 1 else list(buckets),
        "attn_layers": ["lsh" if lsh.sorts(layer) else "local" for layer in range(config.n_layers)],
    }


def _shape(is_decoder: bool | None, fields: Fields) -> str:
    of_class = fields.get("shape")
    shape: str = {True: "decoder", False: "encoder", None: of_class or "encoder"}[is_decoder]
    if of_class not in (None, shape):
        raise SettingsError(
            f"is_decoder: {is_decoder} contradicts the class, which is for {of_class}s"
        )
    return shape


def _more(config: ModelConfig, base: str) -> list[AnyRule]:
    positions = f"{STACK}_embeddings.positions"
    tables = f"{base}embeddings.position_embeddings.weights"
    rules: list[AnyRule] = [
        ParameterRule(f"{positions}.rows", f"{tables}.0", MIDDLE_AXIS),
        ParameterRule(f"{positions}.columns", f"{tables}.1", LEADING_AXIS),
    ]
    for layer in range(config.n_layers):
        ours = f"{STACK}.blocks.{{i:{layer}}}.self_attention.sublayer"
        theirs = f"{base}encoder.layers.{{i}}.attention.self_attention"
        names = {"q_proj": "query", "k_proj": "key"}
        if group_of(config, "lsh").sorts(layer):
            names = {"q_proj": "query_key"}
        rules += [
            ParameterRule(f"{ours}.{our_name}.weight", f"{theirs}.{their_name}.weight")
            for our_name, their_name in names.items()
        ]
    if "lm" in config.chosen_heads:  # the reference does not add its bias to the logits
        table = "lm_head.decoder.weight"
        rules.append(Unused("lm_head.bias", table, lambda weight: weight.new_zeros(len(weight))))
    return rules


RULES = TensorRules(
    "reformer",
    ".embeddings.word_embeddings",
    {
        "self_attention.enter": "attention.layer_norm",
        "self_attention.sublayer.v_proj": "attention.self_attention.value",
        "self_attention.sublayer.o_proj": "attention.output.dense",
        "feed_forward.enter": "feed_forward.layer_norm",
        "feed_forward.sublayer.in_proj": "feed_forward.dense.dense",
        "feed_forward.sublayer.out_proj": "feed_forward.output.dense",
        f"{STACK}.final_norm": ".encoder.layer_norm",
        "heads.sequence.{layer:dense|out_proj}": "classifier.{layer}",
        "heads.span.out_proj": "qa_outputs",
    },
    layer=".encoder.layers.{i}.",
    more=_more,
    lm_head="lm_head.decoder",
)
FAMILY = bert.FAMILY.related(
    "reformer",
    *rows(d_ff=("feed_forward_size", 512), d_head=("attention_head_size", 64)),
    row("axial_pos_shape", "axial_shape", (64, 64), save=lambda sizes: list(sizes or ())),
    row("axial_pos_embds_dim", "axial_widths", (64, 192), save=lambda sizes: list(sizes or ())),
    row("lsh_attention_probs_dropout_prob", "attention_dropout", 0.0),
    nested(
        "lsh",
        chunk=("lsh_attn_chunk_length", 64),
        hashes=("num_hashes", 1),
        seed=("hash_seed", None),
        local_chunk=("local_attn_chunk_length", 64),
        local_dropout=("local_attention_probs_dropout_prob", 0.05),
    ),
    Entry(
        {"num_buckets": (BUCKETS, None), "attn_layers": (LAYERS, ["local", "lsh"] * 3)},
        _load_layers,
        _save_layers,
    ),
    row("is_decoder", "shape", None, kind=bool, load=_shape, save=lambda shape: shape == "decoder"),
    row("classifier_dropout", "classifier_dropout", None, heads=("sequence",), explicit=False),
    ids(0, None, 2, padded=True),
    fixed(tie_word_embeddings=False, is_encoder_decoder=False, add_cross_attention=False),
    fixed(sinusoidal_pos_embds=False, axial_pos_embds=True),
    fixed(lsh_num_chunks_before=1, lsh_num_chunks_after=0),
    fixed(local_num_chunks_before=1, local_num_chunks_after=0),
    classes={
        "ForMaskedLM": {"heads": ("lm",), "shape": "encoder"},
        "ModelWithLMHead": {"heads": ("lm",), "shape": "decoder"},
        "Model": {"heads": ()},
        "ForSequenceClassification": {"heads": ("sequence",), "classifier_transform": "tanh"},
        "ForQuestionAnswering": {"heads": ("span",), "classifier_dropout": 0.0},
    },
    constants={
        "shape": same("shape"),
        "norm_placement": "pre",
        "residual": "reversible",
        "attention": "lsh",
    }
    | {"positions": "axial", "embedding_norm": False, "attention_bias": False, "tie_lm_head": False}
    | {"activation_dropout": same("dropout")},
    rules=RULES,
    # Of initialization and of the computation in parts; and keys of older versions, which nothing
    # reads.
    ignored="""
    axial_norm_std chunk_size_lm_head attention_probs_dropout_prob intermediate_size
    num_chunks_after num_chunks_before num_hidden_layers seed
    """,
    without="""
    intermediate_size num_hidden_layers attention_probs_dropout_prob type_vocab_size
    position_embedding_type
    """,
    **resized(
        vocab=320, width=256, heads=12, positions=4096, hidden_act="relu", hidden_dropout_prob=0.05
    ),
)
