"""XLNet (Yang et al. 2019): an encoder whose scores depend on distances and segments, trained on
permuted tokens.

Bidirectional (`attn_type: bi`). Keys of the recurrent memory of earlier texts are ignored: a single
text needs none. Its matrices have an axis for the heads; texts may be padded on either side.
"""

from typing import Any, Literal

from trifold.errors import SettingsError
from trifold.hub.families.bert import BUFFERS, ENCODER_ONLY
from trifold.hub.family import BLOCK, MAX_POSITIONS, PART, Family, TensorRules
from trifold.hub.rows import Entry, Fields, fixed, ids, lookup, name_of, row, rows, same, up_to
from trifold.hub.rules import AnyRule, Ignored, ParameterRule
from trifold.hub.transforms import LEADING_AXIS, TRANSPOSED, chain, joined_axes
from trifold.nn import ModelConfig


def _load_width(value: int | None, fields: Fields) -> None:
    width = fields["d_model"]
    heads = fields["n_heads"]
    if width % heads == 0 and value not in (None, width // heads):
        raise SettingsError(f"d_head: {value} is not d_model {width} / n_head {heads}")


def _load_clamp(value: int, fields: Fields) -> int | None:
    """The largest distance; a number that is not positive means no limit."""
    if value <= 0:
        return None
    return value


def _load_summary(file: Any, fields: Fields) -> Fields:
    """What is applied to the state of a sequence before it is classified."""
    name = file.summary_activation or None
    if "sequence" not in fields["heads"]:
        return {}
    if file.summary_use_proj != (name is not None):
        given = f"{file.summary_activation!r} with summary_use_proj: {file.summary_use_proj}"
        raise SettingsError(f"summary_activation: {given}: a layer and its activation go together")
    return {"classifier_transform": name and lookup("summary_activation", name)}


def _save_summary(config: ModelConfig) -> Fields:
    if "sequence" not in config.chosen_heads:
        return {}
    transform = config.classifier_transform
    name = name_of(transform) if transform else ""
    return {"summary_use_proj": transform is not None, "summary_activation": name}


# Their matrices have an axis for the heads: (width, heads, head size), also that of the output
# projection.
MATRICES = {"{p:q|k|v}_proj.weight": "{p}", "relative.r_proj.weight": "r"}
OUTPUTS = {"o_proj.weight": "o", "relative.segments": "seg_embed"}
VECTORS = {"content": "r_w_bias", "distance": "r_r_bias", "segment": "r_s_bias"}


def _more(config: ModelConfig, base: str) -> list[AnyRule]:
    ours = f"{BLOCK}self_attention.sublayer."
    theirs = f"{base}layer.{{i}}.rel_attn."
    out = joined_axes(1, config.n_heads)
    vector = joined_axes(0, config.n_heads)
    into = chain(TRANSPOSED, out)
    rules: list[AnyRule] = [
        ParameterRule("encoder_embeddings.query", f"{base}mask_emb", LEADING_AXIS),
        *(ParameterRule(ours + mine, theirs + name, into) for mine, name in MATRICES.items()),
        *(ParameterRule(ours + mine, theirs + name, out) for mine, name in OUTPUTS.items()),
        *(
            ParameterRule(f"{ours}relative.{mine}", theirs + name, vector)
            for mine, name in VECTORS.items()
        ),
    ]
    if "lm" not in config.chosen_heads:
        rules.append(Ignored(f"lm_loss.{PART}"))
    return rules


ENTRIES = (
    row("vocab_size", "vocab_size", 32000, kind=up_to(2**31)),
    *rows(d_model=1024, d_ff=("d_inner", 4096), n_layers=("n_layer", 24), n_heads=("n_head", 16)),
    *rows(max_positions=MAX_POSITIONS, activation=("ff_activation", "gelu"), dropout=0.1),
    *rows(norm_epsilon=("layer_norm_eps", 1e-12), tie_lm_head=("tie_word_embeddings", True)),
    row("summary_last_dropout", "classifier_dropout", 0.1, heads=("sequence",)),
    ids(5, 1, 2, padded=True),
    row("d_head", "d_head", None, load=_load_width),
    row("clamp_len", "relative_clamp", -1, kind=int, load=_load_clamp, save=lambda n: n or -1),
    row(
        "summary_type",
        "classifier_input",
        "last",
        kind=Literal["last", "first"],
        heads=("sequence",),
    ),
    Entry(
        {"summary_use_proj": (bool, True), "summary_activation": (str | None, "tanh")},
        _load_summary,
        _save_summary,
    ),
    fixed(attn_type="bi", bi_data=False, untie_r=True),
    ENCODER_ONLY,
)
FAMILY = Family(
    model_type="xlnet",
    stem="XLNet",
    classes={
        "Model": {"heads": ()},
        "LMHeadModel": {"heads": ("lm",), "lm_head_bias": True},
        "ForSequenceClassification": {"heads": ("sequence",)},
        "ForTokenClassification": {"heads": ("token",)},
        "ForQuestionAnsweringSimple": {"heads": ("span",)},
    },
    entries=ENTRIES,
    constants={
        "shape": "encoder",
        "positions": "relative-sinusoidal",
        "segment_offsets": True,
        "query_stream": True,
        "scale_embeddings": False,
        "attention_dropout": same("dropout"),
        "activation_dropout": same("dropout"),
    },
    rules=TensorRules(
        "transformer",
        ".word_embedding",
        {
            "self_attention.after": "rel_attn.layer_norm",
            "feed_forward.sublayer.in_proj": "ff.layer_1",
            "feed_forward.sublayer.out_proj": "ff.layer_2",
            "feed_forward.after": "ff.layer_norm",
            "heads.sequence.dense": "sequence_summary.summary",
            "heads.sequence.out_proj": "logits_proj",
            "heads.token.out_proj": "classifier",
            "heads.span.out_proj": "qa_outputs",
        },
        layer=".layer.{i}.",
        more=_more,
        lm_head="lm_loss",
        buffers=BUFFERS,
    ),
    # Of the recurrent memory, causal attention, the search for answers, and pretraining.
    ignored="mem_len reuse_len use_mems_eval use_mems_train same_length start_n_top end_n_top "
    "perm_size",
)
