"""What the families of decoders share: special tokens, heads, GPT-2's keys, and the tensors around the stack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

from trifold.hub.family import below, either_prefix, ignored, modules
from trifold.hub.rows import ACTIVATIONS, Entry, Fields, Row, fixed, ids
from trifold.hub.rules import SAME, AnyRule, Copy, Renamed, Rule, Transform, chain, dealt
from trifold.nn import ModelConfig

# --- config.json ---------------------------------------------------------------------------------------

DECODER: Fields = {"shape": "decoder", "norm_placement": "pre", "scale_embeddings": False}

CLASSES: dict[str, Fields] = {
    "ForCausalLM": {"heads": ("lm",)},
    "Model": {"heads": ()},
    "ForSequenceClassification": {
        "heads": ("sequence",),
        "classifier_input": "last",
        "classifier_bias": False,
        "classifier_dropout": 0.0,
    },
    "ForTokenClassification": {"heads": ("token",)},
    "ForQuestionAnswering": {"heads": ("span",), "classifier_dropout": 0.0},
}


def classes(*without: str, lm: str = "ForCausalLM") -> dict[str, Fields]:
    """The classes of a family that lacks some; `lm` is the ending of the one that generates."""
    table = {lm if name == "ForCausalLM" else name: fields for name, fields in CLASSES.items()}
    return {name: fields for name, fields in table.items() if name not in without}


def default_dropout(value: float | None, fields: Fields) -> float:
    """The dropout before the classes of tokens."""
    return 0.1 if value is None else value


def feed_forward_width(value: int | None, fields: Fields) -> int:
    """The width of a feed-forward network, four times that of the model if it is missing."""
    return value or 4 * int(fields["d_model"])


# Keys that every family has.
COMMON: tuple[Entry, ...] = (
    Row("tie_word_embeddings", "tie_lm_head", True),
    Row("classifier_dropout", "classifier_dropout", None, load=default_dropout, heads=("token",)),
    fixed(is_encoder_decoder=False, add_cross_attention=False),
)


# GPT-2's keys and defaults, which other families took over.
GPT: tuple[Entry, ...] = (
    Row("vocab_size", "vocab_size", 50257),
    Row("n_positions", "max_positions", 1024),
    Row("n_embd", "d_model", 768),
    Row("n_layer", "n_layers", 12),
    Row("n_head", "n_heads", 12),
    Row("n_inner", "d_ff", None, load=feed_forward_width),
    Row("activation_function", "activation", "gelu_new", map=ACTIVATIONS),
    Row("resid_pdrop", "dropout", 0.1),
    Row("embd_pdrop", "embedding_dropout", 0.1),
    Row("attn_pdrop", "attention_dropout", 0.1),
    Row("layer_norm_epsilon", "norm_epsilon", 1e-5),
    ids(bos=50256, eos=50256),
    *COMMON,
)
SCALED: dict[bool, float | None] = {True: None, False: 1.0}  # scale_attn_weights -> attention_scale
# Keys of a second head, which is not read.
GPT_IGNORED = """
    summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout summary_last_dropout
"""

# --- tensors -------------------------------------------------------------------------------------------

BLOCK = "decoder.blocks.{i}."


def grouped(config: ModelConfig) -> Transform:
    """For each head of keys: its heads of queries, then the keys, then the values."""
    return dealt(config.kv_heads, (config.n_heads // config.kv_heads, 1, 1))


@dataclass(frozen=True)
class DecoderRules:
    """The tensor rules of a decoder.

    prefix: the beginning of their names below the heads, which bare models lack.
    layer: the beginning of the names in layer {i}, below the prefix.
    names: our module of a block -> theirs.
    tokens, positions, final_norm: their modules around the stack, below the prefix.
    token_head, lm_head: their modules of these heads.
    qkv: their matrix of queries, keys and values in this `order`, if there is one; `split` takes it apart.
    matrix: the transform of their matrices, if they are stored differently from ours.
    buffers: tensors of a layer that some files hold and that can be computed.
    """

    prefix: str
    layer: str
    names: dict[str, str]
    _: KW_ONLY
    tokens: str
    positions: str = "-"
    final_norm: str = "-"
    token_head: str = "classifier"
    lm_head: str = "lm_head"
    qkv: str | None = None
    order: str = "qkv"
    split: Callable[[ModelConfig], Transform] = grouped
    matrix: Transform = SAME
    buffers: str = ""

    def __call__(self, config: ModelConfig) -> list[AnyRule]:
        base = below(config, self.prefix)
        table, layer = f"{base}{self.tokens}.weight", base + self.layer
        around = {
            "decoder_embeddings.positions": base + self.positions,
            "decoder.final_norm": base + self.final_norm,
            "heads.token.out_proj": self.token_head,
            "heads.sequence.out_proj": "score",
            "heads.span.out_proj": "qa_outputs",
        }
        rules: list[AnyRule] = [
            Rule("decoder_embeddings.tokens.weight", table),
            *modules(around),
            *modules(self.names, BLOCK, layer, self.matrix),
            *ignored(layer, self.buffers),
            either_prefix(config, self.prefix),
        ]
        if self.qkv is not None:
            split = self.split(config)
            for part, transform in (("weight", chain(split, self.matrix)), ("bias", split)):
                ours = tuple(f"{BLOCK}self_attention.sublayer.{p}_proj.{part}" for p in self.order)
                rules.append(Rule(ours, f"{layer}{self.qkv}.{part}", transform))
        if "lm" not in config.chosen_heads:
            return rules
        rules.append(Rule("lm_head.bias", f"{self.lm_head}.bias"))
        if not config.tie_lm_head:
            return [*rules, Rule("lm_head.weight", f"{self.lm_head}.weight")]
        return [*rules, Copy(f"{self.lm_head}.weight", of=table), Renamed(f"{self.lm_head}.weight", table)]
