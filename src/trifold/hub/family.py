"""Checkpoint families: tables that translate config.json and tensor names in both directions.

Reading, writing, and whether a family can represent a config follow from its rows (their key, our
field, default), the fields that its classes fix, and the rules of its tensors. Shared ones are in
rope.py, gpt.py, bert.py and bart.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

from pydantic import create_model
from torch import Tensor

from trifold.errors import SettingsError
from trifold.hub.generation import GENERATION_KEYS
from trifold.hub.labels import labels_to_ours, labels_to_theirs
from trifold.hub.quantized import KEYS as QUANTIZATION_KEYS
from trifold.hub.rows import Entry, Fields, group_of, revise
from trifold.hub.rules import AnyRule, Copy, Ignored, ParameterRule, Renamed, Unused
from trifold.hub.transforms import SAME, Transform, chain, interleaved
from trifold.hub.unknown_keys import UnknownKeys, model_keys
from trifold.nn import ModelConfig
from trifold.nn.config import DECODER_SIZES, Head
from trifold.settings import Settings

# Keys that do not change what a model computes, unless its family has an entry for them.
HARMLESS = """
    _attn_implementation_autoset _commit_hash _name_or_path _num_labels architectures
    chunk_size_feed_forward dtype finetuning_task gradient_checkpointing id2label init_std
    initializer_factor initializer_range is_decoder label2id model_type n_ctx n_special name_or_path
    num_labels output_attentions output_cross_attentions output_hidden_states output_past
    predict_special_tokens prefix pretraining_tp problem_type pruned_heads return_dict sep_token_id
    task_specific_params tf_legacy_loss tokenizer_class torch_dtype torchscript
    transformers.js_config transformers_version use_bfloat16 use_cache use_return_dict
""".split()
# Tokens: the default of max_positions in families whose positions have no limit. It only rejects
# implausible texts.
MAX_POSITIONS = 2**15
LABELED: frozenset[Head] = frozenset({"sequence", "token"})  # heads with classes


@dataclass(frozen=True)
class Family:
    """How checkpoints of one `model_type` are read and written.

    stem: the beginning of their class names.
    classes: the rest of each class name -> the fields of ours that the class fixes, its heads among
        them. The first class is used where a file names none.
    entries: the keys of config.json, in the order in which they are read.
    constants: fields of ours with one value in this family. Values here and in `classes` may be
        functions of the fields that are read.
    rules: which of our parameters are which of their tensors.
    ignored: keys that change nothing, besides `HARMLESS`.
    n_labels: the number of classes if a file gives none.
    infer: completes the config from the tensors, where config.json is ambiguous.
    nested: keys that hold the config.json of another family.
    """

    model_type: str
    stem: str
    classes: Mapping[str, Fields]
    entries: Sequence[Entry]
    constants: Fields
    rules: Callable[[ModelConfig], Sequence[AnyRule]]
    ignored: str = ""
    n_labels: int = 2
    infer: Callable[[ModelConfig, Mapping[str, Tensor]], ModelConfig] | None = None
    nested: Mapping[str, Family] = field(default_factory=dict)

    def related(
        self,
        model_type: str,
        *entries: Entry,
        stem: str = "",
        classes: Mapping[str, Fields] | None = None,
        constants: Fields | None = None,
        rules: Callable[[ModelConfig], Sequence[AnyRule]] | None = None,
        ignored: str | None = None,
        without: str = "",
        n_labels: int = 2,
        **defaults: Any,
    ) -> Family:
        """A family that is this one, except for what is given, and for `n_labels`.

        stem: by default `model_type` in camel case. constants: besides those of this family, or
            instead of some.
        entries, without, defaults: as in `revise`.
        """
        replaced: Fields = {"classes": classes, "rules": rules, "ignored": ignored}
        return replace(
            self,
            model_type=model_type,
            stem=stem or "".join(map(str.capitalize, re.split("[_-]", model_type))),
            entries=revise(self.entries, *entries, without=without, **defaults),
            constants=self.constants | (constants or {}),
            n_labels=n_labels,
            **{name: value for name, value in replaced.items() if value is not None},
        )

    @cached_property
    def architectures(self) -> dict[str, Fields]:
        """Their classes -> the fields of ours that are fixed."""
        default = {"shape": "encoder-decoder"} | self.constants
        return {self.stem + ending: default | fields for ending, fields in self.classes.items()}

    @cached_property
    def keys(self) -> type[Settings]:
        """A settings class of all keys: it checks their types and fills in their defaults.

        A field's name has no leading underscores.
        """
        keys: Any = {
            key.lstrip("_"): value for entry in self.entries for key, value in entry.keys.items()
        }
        return create_model(f"{self.stem}Keys", __base__=Settings, **keys)

    def architecture(self, config: ModelConfig) -> str:
        """The class with the config's heads and shape (keys may decide the stack). Raises
        StopIteration without one.
        """
        return next(
            name
            for name, fields in self.architectures.items()
            if fields["heads"] == config.chosen_heads and config.shape in _shapes(fields)
        )

    def read(self, values: Mapping[str, Any]) -> ModelConfig:
        """The content of a config.json as our config. Raises SettingsError for unsupported keys;
        those that nothing reads are ignored, see `unknown_keys`.
        """
        constants = self.architectures[self._read_architecture(values)]
        file = self._parse_keys(values)
        fields = {name: value for name, value in constants.items() if not callable(value)}
        for entry in self.entries:
            fields |= entry.load(file, fields)
        fields |= {name: value(fields) for name, value in constants.items() if callable(value)}
        if LABELED.intersection(fields["heads"]):
            fields |= labels_to_ours(values, self.n_labels)
        return without_defaults(ModelConfig.parse(fields))

    def _read_architecture(self, values: Mapping[str, Any]) -> str:
        """The class that a file names, or else the first one. Raises SettingsError for an unknown
        class.
        """
        named = values.get("architectures") or [*self.architectures][:1]
        if not isinstance(named, list) or named[0] not in [*self.architectures]:
            known = ", ".join(self.architectures)
            raise SettingsError(f"architectures: {named!r} is not known; known: {known}")
        return str(named[0])

    def _parse_keys(self, values: Mapping[str, Any]) -> Settings:
        """The values of all keys that the family has. Raises SettingsError for other keys that the
        reference reads.
        """
        unknown = self.unknown_keys(values)
        unknown.check()
        known = self._known
        return self.keys.parse(
            {key.lstrip("_"): value for key, value in values.items() if key in known}
        )

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(key for entry in self.entries for key in entry.keys)

    def unknown_keys(self, values: Mapping[str, Any], at: str = "") -> UnknownKeys:
        """The keys of the group `at` of a config.json that the family lacks."""
        unknown = UnknownKeys()
        harmless = {*HARMLESS, *GENERATION_KEYS, *QUANTIZATION_KEYS, *self.ignored.split()}
        read = model_keys(self.model_type)
        for key, value in values.items():
            if value is not None and key not in self._known and key not in harmless:
                unknown.add(key, value, read.get(key), at)
        for entry in self.entries:
            for group, inside in entry.groups.items():
                unknown.add_rope(values.get(group), inside, f"{at}{group}.")
        for key, family in self.nested.items():
            if isinstance(values.get(key), Mapping):
                inner = family.unknown_keys(values[key], f"{at}{key}.")
                unknown.ignored += inner.ignored
        return unknown

    def missing_keys(self, values: Mapping[str, Any]) -> frozenset[str]:
        """The keys of the family that a config.json lacks."""
        return self._known.difference(values)

    def write(self, config: ModelConfig) -> Fields:
        """Our config as their keys, without `model_type` and `architectures`."""
        explicit = with_defaults(config)
        theirs: Fields = {}
        for entry in self.entries:
            theirs |= entry.save(explicit if entry.explicit else config)
        if LABELED.intersection(config.chosen_heads):
            theirs |= labels_to_theirs(config)
        return theirs

    def fits(self, config: ModelConfig) -> bool:
        """Whether this family can represent the config: reading what it writes gives an equal
        config.
        """
        return self.changes(config) == {}

    def changes(self, config: ModelConfig) -> Fields | None:
        """The fields that change if the config is written and read, with the new values; None if
        writing fails.
        """
        try:
            reread = self.read({"architectures": [self.architecture(config)], **self.write(config)})
        except (SettingsError, StopIteration):
            return None
        # All end ids beyond the vocabulary mean the same: no end token.
        before, after = (
            with_defaults(each, eos_id=min(each.eos_id, each.output_vocab_size))
            for each in (config, reread)
        )
        changed = [name for name, value in after if value != getattr(before, name)]
        # A field with the same value in both, such as None, follows another one.
        explicit = [name for name in changed if getattr(reread, name) != getattr(config, name)]
        return {name: getattr(reread, name) for name in explicit or changed}


def _shapes(fields: Fields) -> tuple[str, ...]:
    """The stacks that models of a class may have; where its shape is a function, keys decide."""
    shape = fields["shape"]
    if callable(shape):
        return ("encoder", "decoder")
    return (shape,)


def _scale_of_scores(config: ModelConfig) -> float:
    latent = group_of(config, "latent")
    rotary = 0 if latent is None else latent.d_rotary
    return float(((config.head_width + rotary) * (1 + config.position_terms)) ** -0.5)


def _of_both(value: Callable[[ModelConfig], Any]) -> Callable[[ModelConfig], Any]:
    """A function that returns the value that all stacks of a config have; None if they differ."""

    def shared(config: ModelConfig) -> Any:
        first, *others = map(value, config.stacks.values())
        if all(other == first for other in others):
            return first
        return None

    return shared


def _scale_of_embeddings(side: ModelConfig) -> float:
    if not side.scale_embeddings:
        return 1.0
    return math.sqrt(side.d_model)


def _default_head(side: ModelConfig) -> int | None:
    """The width of a head; None if the heads do not divide that of the model."""
    if side.d_model % side.n_heads:
        return None
    return side.d_model // side.n_heads


def _default_heads(config: ModelConfig) -> tuple[Head, ...]:
    if config.decoder_layers:
        return ("lm",)
    return ()


# What None stands for in a field of ModelConfig.
NONE_MEANS: dict[str, Callable[[ModelConfig], Any]] = {
    "n_kv_heads": lambda config: config.n_heads,
    "d_head": _default_head,
    "d_value": _of_both(lambda side: side.head_width),
    **{of_decoder: attrgetter(shared) for of_decoder, shared in DECODER_SIZES.items()},
    "n_decoder_kv_heads": lambda config: config.n_kv_heads or config.decoder_side.n_heads,
    "d_decoder_head": lambda config: config.d_head or _default_head(config.decoder_side),
    "decoder_window": lambda config: config.sliding_window,
    "rotary_width": _of_both(lambda side: side.head_width),
    "attention_scale": _of_both(_scale_of_scores),
    "embedding_scale": _of_both(_scale_of_embeddings),
    "attention_out_bias": lambda config: config.attention_bias,
    "heads": _default_heads,
    "label_names": lambda config: tuple(f"LABEL_{number}" for number in range(config.n_labels)),
    "pooler_width": lambda config: config.output_side.d_model,
    "embedding_dropout": lambda config: config.dropout,
    "classifier_dropout": lambda config: config.dropout,
    "decoder_start_id": lambda config: config.bos_id,
}


def with_defaults(config: ModelConfig, **more: Any) -> ModelConfig:
    """The config with each None replaced by the value that it stands for, and with `more`
    values.
    """
    missing = {
        name: value(config) for name, value in NONE_MEANS.items() if getattr(config, name) is None
    }
    return _expert_width(config, None, config.d_ff).model_copy(update=missing | more)


def without_defaults(config: ModelConfig) -> ModelConfig:
    """The inverse of `with_defaults`: None for each value that it stands for, except the dropout of
    a head.
    """
    config = _expert_width(config, config.d_ff, None)
    # One after the other: None in n_kv_heads changes the next fields.
    for name, value in NONE_MEANS.items():
        if name != "classifier_dropout" and getattr(config, name) == value(config):
            config = config.model_copy(update={name: None})
    return config


def _expert_width(config: ModelConfig, old: int | None, new: int | None) -> ModelConfig:
    """The config with another inner width of its experts, if it is the old one."""
    experts = group_of(config, "experts")
    if experts is None or experts.d_ff != old:
        return config
    return config.model_copy(update={"experts": experts.model_copy(update={"d_ff": new})})


# --- tensors --------------------------------------------------------------------------------------

STACK = "{stack:encoder|decoder}"
BLOCK = f"{STACK}.blocks.{{i}}."
PART = "{part:weight|bias}"
SUBLAYERS = ("self_attention.", "cross_attention.", "feed_forward.")  # how names in a block begin


def in_layer(layer: str, names: Mapping[str, str]) -> dict[str, str]:
    """Full names, ours -> theirs: in a block ours begin with BLOCK, theirs with `layer`; others are
    full names.
    """
    full: dict[str, str] = {}
    for ours, theirs in names.items():
        if ours.startswith(SUBLAYERS):
            full[BLOCK + ours] = layer + theirs
        else:
            full[ours] = theirs
    return full


def modules(names: Mapping[str, str], matrix: Transform = SAME) -> list[AnyRule]:
    """Rules for the weight and bias of each module, ours -> theirs; `matrix` transforms projections
    in blocks.
    """
    rules: list[AnyRule] = []
    for ours, theirs in names.items():
        if matrix is SAME or not (ours.startswith(BLOCK) and "_proj" in ours):
            rules.append(ParameterRule(f"{ours}.{PART}", f"{theirs}.{{part}}"))
        else:
            rules.append(ParameterRule(f"{ours}.weight", f"{theirs}.weight", matrix))
            rules.append(ParameterRule(f"{ours}.bias", f"{theirs}.bias"))
    return rules


def tied(module: str, table: str) -> list[AnyRule]:
    """Rules for files that repeat the table of embeddings in this module, or have it only there."""
    return [Copy(f"{module}.weight", of=table), Renamed(f"{module}.weight", table)]


@dataclass(frozen=True)
class TensorRules:
    """The tensor rules of a family. Their names that begin with a dot are below `prefix`.

    prefix: the beginning of their names below the heads; models without heads, or with a pooler
        only, lack it.
    tokens: their table of token embeddings.
    names: our other modules -> theirs. In a block, ours begin with the sub-layer and theirs are
        below `layer`.
    matrix: the transform of their matrices in blocks, if they are stored differently from ours.
    qkv: their matrix of queries, keys and values in this `order`, if there is one.
    split: takes that matrix apart, by default into thirds.
    more: rules that depend on the config; its second argument is the beginning of their names below
        the prefix.
    lm_head: their output layer, unless `names` or `more` have it; tied, its weight is a copy of
        `tokens`.
    lm_bias: a tensor beside that layer: if tied, the bias, of which the layer's is a copy; if not,
        nothing reads it.
    buffers: tensors that some files hold and that can be computed.
    unused: modules of pretraining, which are ignored in files whose class has none.
    """

    prefix: str
    tokens: str
    names: dict[str, str]
    _: KW_ONLY
    layer: str = ""
    matrix: Transform = SAME
    qkv: str = ""
    order: str = "qkv"
    split: Callable[[ModelConfig], Transform] = lambda config: interleaved(1, (1, 1, 1))
    more: Callable[[ModelConfig, str], Sequence[AnyRule]] = lambda config, base: ()
    lm_head: str = ""
    lm_bias: str = ""
    buffers: str = ""
    unused: str = ""

    def related(
        self, names: dict[str, str] | None = None, *, without: str = "", **changes: Any
    ) -> TensorRules:
        """These rules with more names, without those of ours that contain a word of `without`, and
        with changes.
        """
        dropped = [ours for ours in self.names for word in without.split() if word in ours]
        kept = {ours: theirs for ours, theirs in self.names.items() if ours not in dropped}
        return replace(self, names=kept | (names or {}), **changes)

    def __call__(self, config: ModelConfig) -> list[AnyRule]:
        """The rules for a model of this config."""
        base = ""
        if self.prefix and config.chosen_heads not in ((), ("pooler",)):
            base = f"{self.prefix}."
        rules = [
            *self._module_rules(base),
            *self._old_name_rules(base),
            *self._qkv_rules(config, base),
            *self.more(config, base),
        ]
        if self.lm_head and "lm" in config.chosen_heads:
            rules += self._lm_head_rules(config, base)
        return rules

    def _module_rules(self, base: str) -> list[AnyRule]:
        """The table of embeddings, the modules in `names`, and what is not read."""
        names = in_layer(self.layer, self.names)
        return [
            ParameterRule(f"{STACK}_embeddings.tokens.weight", self._table(base)),
            *modules({ours: _below(base, theirs) for ours, theirs in names.items()}, self.matrix),
            *(Ignored(_below(base, name)) for name in self.buffers.split()),
            *(Ignored(f"{_below(base, name)}.{PART}") for name in self.unused.split()),
        ]

    def _old_name_rules(self, base: str) -> list[AnyRule]:
        """Names of 2018, and files that were saved with the prefix where it is not expected, or
        without it.
        """
        anything = "{*path}"
        rules: list[AnyRule] = [
            Renamed(f"{anything}.gamma", f"{anything}.weight"),
            Renamed(f"{anything}.beta", f"{anything}.bias"),
        ]
        if base:
            rules.append(Renamed(anything, base + anything))
        elif self.prefix:
            rules.append(Renamed(f"{self.prefix}.{anything}", anything))
        return rules

    def _qkv_rules(self, config: ModelConfig, base: str) -> list[AnyRule]:
        """Queries, keys and values in one matrix, and its bias."""
        if not self.qkv:
            return []
        theirs = _below(base, self.qkv)
        split = self.split(config)
        rules: list[AnyRule] = []
        for part, transform in (("weight", chain(split, self.matrix)), ("bias", split)):
            ours = tuple(f"{BLOCK}self_attention.sublayer.{p}_proj.{part}" for p in self.order)
            rules.append(ParameterRule(ours, f"{theirs}.{part}", transform))
        return rules

    def _lm_head_rules(self, config: ModelConfig, base: str) -> list[AnyRule]:
        """The output layer and the tensor beside it."""
        layer = self.lm_head
        bias = self.lm_bias or f"{layer}.bias"
        rules: list[AnyRule]
        if config.tie_lm_head:
            table = self._table(base).replace("{stack}", "decoder")
            rules = [ParameterRule("lm_head.bias", bias), *tied(layer, table)]
            if self.lm_bias:
                rules += [Copy(f"{layer}.bias", of=bias), Renamed(f"{layer}.bias", bias)]
            return rules
        # The order in shards.
        parts = ("weight", "bias") if config.shape == "encoder" else ("bias", "weight")
        rules = [ParameterRule(f"lm_head.{part}", f"{layer}.{part}") for part in parts]
        if self.lm_bias:
            rules.append(Unused(bias, like=f"{layer}.bias"))
        return rules

    def _table(self, base: str) -> str:
        """Their name of the token embeddings."""
        return f"{_below(base, self.tokens)}.weight"


def _below(base: str, name: str) -> str:
    """The full name: one that begins with a dot is below `base`."""
    if not name.startswith("."):
        return name
    return base + name[1:]
