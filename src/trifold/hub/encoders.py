"""What the families of encoders share: BERT's keys, special tokens, and the names of BERT's modules."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from trifold.hub.family import below, either_prefix, ignored, modules
from trifold.hub.rows import Entry, Fields, Row, fixed, ids, same, sizes, up_to
from trifold.hub.rules import AnyRule, Copy, Dead, Renamed, Rule
from trifold.nn import ModelConfig

# --- config.json ---------------------------------------------------------------------------------------

ENCODER: Fields = {"shape": "encoder", "positions": "learned", "scale_embeddings": False}
TEXT_ENCODER: Fields = ENCODER | {"embedding_norm": True, "attention_bias": True}

# The head of masked language models: dense layer, activation, norm, the embeddings again, and a bias.
MASKED_LM: Fields = {"lm_head_transform": same("activation"), "lm_head_bias": True}
CLASSIFIERS: dict[str, Fields] = {
    "ForSequenceClassification": {"heads": ("sequence",)},
    "ForTokenClassification": {"heads": ("token",)},
    "ForQuestionAnswering": {"heads": ("span",)},
}


ENCODER_ONLY = fixed(is_decoder=False, is_encoder_decoder=False, add_cross_attention=False)
BERT: tuple[Entry, ...] = (
    *sizes(vocab=30522, width=768, inner=3072, layers=12, heads=12, positions=512, activation="gelu"),
    Row("hidden_dropout_prob", "dropout", 0.1),
    Row("attention_probs_dropout_prob", "attention_dropout", 0.1),
    Row("layer_norm_eps", "norm_epsilon", 1e-12),
    ENCODER_ONLY,
    Row("type_vocab_size", "n_token_types", 2, type=up_to(2**16)),
    ids(0, padded=True),
    Row("tie_word_embeddings", "tie_lm_head", True),
    Row("classifier_dropout", "classifier_dropout", None, optional=True),
    fixed(position_embedding_type="absolute"),
)
# Of these, encoders of images lack:
TEXT_KEYS = """
    vocab_size max_position_embeddings type_vocab_size pad_token_id tie_word_embeddings classifier_dropout
    position_embedding_type
"""

# --- tensors -------------------------------------------------------------------------------------------

BLOCK = "encoder.blocks.{i}."
EMBEDDINGS = {
    "encoder_embeddings.tokens": "embeddings.word_embeddings",
    "encoder_embeddings.positions": "embeddings.position_embeddings",
    "encoder_embeddings.token_types": "embeddings.token_type_embeddings",
    "encoder_embeddings.norm": "embeddings.LayerNorm",
}
BERT_LAYER = {
    "self_attention.sublayer.q_proj": "attention.self.query",
    "self_attention.sublayer.k_proj": "attention.self.key",
    "self_attention.sublayer.v_proj": "attention.self.value",
    "self_attention.sublayer.o_proj": "attention.output.dense",
    "self_attention.after": "attention.output.LayerNorm",
    "feed_forward.sublayer.in_proj": "intermediate.dense",
    "feed_forward.sublayer.out_proj": "output.dense",
    "feed_forward.after": "output.LayerNorm",
}


@dataclass(frozen=True)
class EncoderRules:
    """The tensor rules of an encoder.

    prefix: the beginning of their names below the heads, which bare models lack.
    layer: the beginning of the names in layer {i}, below the prefix.
    names: our module of a block -> theirs.
    heads, inner: our other modules -> theirs; `inner` are below the prefix.
    output: the output layer of masked language models, and the name of the bias beside it.
    unused: modules that pretraining left in files whose class has no pooler.
    """

    prefix: str
    layer: str
    names: dict[str, str]
    _: KW_ONLY
    heads: dict[str, str]
    inner: dict[str, str]
    output: tuple[str, str] | None = None
    unused: str = ""

    def __call__(self, config: ModelConfig) -> list[AnyRule]:
        base, heads = below(config, self.prefix), config.chosen_heads
        rules = [
            *modules(self.inner, theirs=base),
            *ignored(f"{base}embeddings.", "position_ids token_type_ids"),
            # Names of 2018, and files that were saved with another prefix.
            Renamed("{*path}.gamma", "{*path}.weight"),
            Renamed("{*path}.beta", "{*path}.bias"),
            either_prefix(config, self.prefix),
            *modules(self.names, BLOCK, base + self.layer),
            *modules(self.heads),
        ]
        if "lm" in heads and self.output is not None:
            rules += output_layer(config, self.prefix, *self.output)
        unused = "" if "pooler" in heads else self.unused
        return rules + [rule for name in unused.split() for rule in ignored(f"{name}.", "weight bias")]


def output_layer(config: ModelConfig, prefix: str, layer: str, bias: str) -> list[AnyRule]:
    """Rules for the output layer of a masked language model: their linear `layer`, and a `bias` beside it.

    Tied, the layer's weight is a copy of the embeddings and its bias a copy of `bias`. Untied, the layer's own are
    used and nothing reads `bias`.
    """
    if not config.tie_lm_head:
        return [*modules({"lm_head": layer}), Dead(bias, like=f"{layer}.bias")]
    table = f"{below(config, prefix)}embeddings.word_embeddings.weight"
    return [
        Rule("lm_head.bias", bias),
        Copy(f"{layer}.weight", of=table),
        Copy(f"{layer}.bias", of=bias),
        Renamed(f"{layer}.weight", table),
        Renamed(f"{layer}.bias", bias),
    ]
