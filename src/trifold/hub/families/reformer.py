"""Reformer (Kitaev et al. 2020): an encoder or a decoder (`is_decoder`) with LSH attention and reversible blocks.

Without `hash_seed` the reference draws new rotations at each call; ours are a function of the layer in evaluation. If
`num_buckets` is null, the reference keeps the number that suits the first text; ours is that of each text. In a batch,
the states of the reference depend on the padding; ours are those of the row alone.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from trifold.errors import SettingsError
from trifold.hub.family import STACK, Family, TensorRules, in_layer
from trifold.hub.rope import repeated
from trifold.hub.rows import ACTIVATIONS, SIZE, Entry, Fields, fixed, ids, nested, row, same, up_to
from trifold.hub.rules import AnyRule, Rule, Unused
from trifold.hub.transforms import LEADING_AXIS, each
from trifold.nn import ModelConfig
from trifold.nn.config_parts import MAX_LAYERS, Bucket

Layers = Annotated[list[Literal["lsh", "local"]], Field(min_length=1, max_length=MAX_LAYERS)]
Pair = Annotated[list[SIZE], Field(min_length=2, max_length=2)]
HASHING = nested(
    "lsh",
    chunk=("lsh_attn_chunk_length", 64),
    before=("lsh_num_chunks_before", 1),
    after=("lsh_num_chunks_after", 0),
    hashes=("num_hashes", 1),
    seed=("hash_seed", None),
    local_chunk=("local_attn_chunk_length", 64),
    local_before=("local_num_chunks_before", 1),
    local_after=("local_num_chunks_after", 0),
    local_dropout=("local_attention_probs_dropout_prob", 0.05),
)


def _load_layers(file: Any, fields: Fields) -> Fields:
    buckets, layers = file.num_buckets, file.attn_layers
    own = {"buckets": (buckets,) if isinstance(buckets, int) else buckets, "layers": repeated(layers)}
    return {"lsh": fields["lsh"] | own, "n_layers": len(layers)}


def _save_layers(config: ModelConfig) -> Fields:
    buckets, layers = config.lsh.buckets, [config.lsh.kind(layer) for layer in range(config.n_layers)]
    factors = None if buckets is None else buckets[0] if len(buckets) == 1 else list(buckets)
    return {"num_buckets": factors, "attn_layers": layers, "num_hidden_layers": len(layers)}


def _load_shape(file: Any, fields: Fields) -> Fields:
    of_class = fields.get("shape")
    shape = {True: "decoder", False: "encoder", None: of_class or "encoder"}[file.is_decoder]
    if of_class not in (None, shape):
        raise SettingsError(f"is_decoder: {file.is_decoder} contradicts the class, which is for {of_class}s")
    return {"shape": shape}


def _load_positions(file: Any, fields: Fields) -> Fields:
    if not file.axial_pos_embds:
        return {"positions": "learned"}
    sizes = {"axial_shape": file.axial_pos_shape, "axial_widths": file.axial_pos_embds_dim}
    return {"positions": "axial", **sizes}


def _save_positions(config: ModelConfig) -> Fields:
    if config.positions != "axial" or not config.axial_shape or not config.axial_widths:
        return {"axial_pos_embds": False}
    shape, widths = list(config.axial_shape), list(config.axial_widths)
    return {"axial_pos_embds": True, "axial_pos_shape": shape, "axial_pos_embds_dim": widths}


LAYER = {
    "self_attention.enter": "attention.layer_norm",
    "self_attention.sublayer.v_proj": "attention.self_attention.value",
    "self_attention.sublayer.o_proj": "attention.output.dense",
    "feed_forward.enter": "feed_forward.layer_norm",
    "feed_forward.sublayer.in_proj": "feed_forward.dense.dense",
    "feed_forward.sublayer.out_proj": "feed_forward.output.dense",
}
# Queries and keys, by the kind of a layer.
KEYS = {"lsh": {"q_proj": "query_key"}, "local": {"q_proj": "query", "k_proj": "key"}}


MIDDLE_AXIS = each(lambda theirs: theirs.squeeze(1), lambda ours: ours.unsqueeze(1))  # theirs is (n, 1, …)


def _more(config: ModelConfig, base: str) -> list[AnyRule]:
    positions, tables = f"{STACK}_embeddings.positions", f"{base}embeddings.position_embeddings"
    rules: list[AnyRule] = [
        Rule(f"{positions}.rows", f"{tables}.weights.0", MIDDLE_AXIS),
        Rule(f"{positions}.columns", f"{tables}.weights.1", LEADING_AXIS),
        Rule(f"{positions}.weight", f"{tables}.embedding.weight"),
    ]
    for layer in range(config.n_layers):
        block, theirs = (
            f"{STACK}.blocks.{{i:{layer}}}",
            f"{base}encoder.layers.{{i}}.attention.self_attention",
        )
        for name, key in KEYS[config.lsh.kind(layer)].items():
            rules.append(Rule(f"{block}.self_attention.sublayer.{name}.weight", f"{theirs}.{key}.weight"))
    if "lm" in config.chosen_heads:  # the reference does not add its bias to the logits
        rules.append(
            Unused("lm_head.bias", "lm_head.decoder.weight", lambda weight: weight.new_zeros(len(weight)))
        )
    return rules


ANY_SHAPE: Fields = {"shape": same("shape")}
FAMILY = Family(
    model_type="reformer",
    stem="Reformer",
    classes={
        "ForMaskedLM": {"heads": ("lm",), "shape": "encoder"},
        "ModelWithLMHead": {"heads": ("lm",), "shape": "decoder"},
        "Model": {"heads": (), **ANY_SHAPE},
        "ForSequenceClassification": {"heads": ("sequence",), "classifier_transform": "tanh", **ANY_SHAPE},
        "ForQuestionAnswering": {"heads": ("span",), "classifier_dropout": 0.0, **ANY_SHAPE},
    },
    entries=(
        row("vocab_size", "vocab_size", 320, kind=up_to(2**31)),
        row("hidden_size", "d_model", 256),
        row("feed_forward_size", "d_ff", 512),
        row("num_attention_heads", "n_heads", 12),
        row("attention_head_size", "d_head", 64),
        row("max_position_embeddings", "max_positions", 4096),
        row("hidden_act", "activation", "relu", map=ACTIVATIONS),
        row("layer_norm_eps", "norm_epsilon", 1e-12),
        row("hidden_dropout_prob", "dropout", 0.05),
        row("lsh_attention_probs_dropout_prob", "attention_dropout", 0.0),
        HASHING,
        Entry(
            {
                "num_buckets": (Bucket | Annotated[list[Bucket], Field(min_length=1)] | None, None),
                "attn_layers": (Layers, ["local", "lsh"] * 3),
                "num_hidden_layers": (SIZE | None, None),  # the length of the list
            },
            _load_layers,
            _save_layers,
        ),
        Entry(
            {
                "axial_pos_embds": (bool, True),
                "axial_pos_shape": (Pair, [64, 64]),
                "axial_pos_embds_dim": (Pair, [64, 192]),
            },
            _load_positions,
            _save_positions,
        ),
        Entry(
            {"is_decoder": (bool | None, None)},
            _load_shape,
            lambda config: {"is_decoder": config.shape == "decoder"},
        ),
        ids(0, None, 2, padded=True),
        row("classifier_dropout", "classifier_dropout", None, heads=("sequence",), explicit=False),
        fixed(tie_word_embeddings=False, is_encoder_decoder=False, add_cross_attention=False),
        fixed(sinusoidal_pos_embds=False),
    ),
    constants={
        "norm_placement": "pre",
        "residual": "reversible",
        "attention": "lsh",
        "scale_embeddings": False,
        "tie_lm_head": False,
        "activation_dropout": same("dropout"),
    },
    rules=TensorRules(
        "reformer",
        ".embeddings.word_embeddings",
        {
            **in_layer(".encoder.layers.{i}.", LAYER),
            f"{STACK}.final_norm": ".encoder.layer_norm",
            "heads.sequence.dense": "classifier.dense",
            "heads.sequence.out_proj": "classifier.out_proj",
            "heads.span.out_proj": "qa_outputs",
        },
        more=_more,
        lm_head="lm_head.decoder",
    ),
    # Of initialization and of the computation in parts; and keys of older versions, which nothing reads.
    ignored="""
    axial_norm_std chunk_size_lm_head attention_probs_dropout_prob intermediate_size num_chunks_after num_chunks_before
    seed
    """,
)
