"""Adapters of the library peft, merged into their base when they are read.

Their tensors have the names of `transformers`: PREFIX, the module, and one of PARTS; or PREFIX and
a parameter that replaces that of the base, such as a new head. A parameter that two modules of the
base share, as embeddings and output layer often do, is shared no longer if the adapter changes only
one of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trifold.errors import CheckpointError
from trifold.folders import UntrustedPath
from trifold.hub import rules
from trifold.hub.families import FAMILIES
from trifold.hub.family import Family
from trifold.hub.model_config import infer_config, meta_parameters, parse_config
from trifold.hub.names import ADAPTER, CONFIG
from trifold.hub.peft_config import PREFIX, TENSORS, WHOLE, AdapterConfig, read_adapter_config
from trifold.hub.tensors import TensorFile, TransformedTensors, list_problems
from trifold.hub.weights import read_weights
from trifold.jsonfiles import read_json
from trifold.nn import ModelConfig
from trifold.nn.lora import adapted
from trifold.settings import warn

CLASSES = {
    "SEQ_CLS": "SequenceClassification",
    "TOKEN_CLS": "TokenClassification",
    "QUESTION_ANS": "QuestionAnswering",
}
# Ends of names after a module -> the part that they hold. A and B of embeddings have names of their
# own; "rows" replace rows of a table.
PARTS = {
    "lora_A.weight": "A",
    "lora_B.weight": "B",
    "lora_B.bias": "bias",
    "lora_magnitude_vector": "magnitude",
    "lora_embedding_A": "embedding_A",
    "lora_embedding_B": "embedding_B",
    "token_adapter.trainable_tokens_delta": "rows",
}
# Values before training, and copies of modules that the file also has under their own name.
UNUSED = (".token_adapter.trainable_tokens_original", ".original_module.", ".modules_to_save.")
WRAPPERS = (".token_adapter.base_layer.", ".base_layer.")  # around a parameter of the base


class Changes(NamedTuple):
    """What the file of an adapter changes. whole: parameters that it replaces -> their names there;
    parts: the weights of modules -> part -> its name there. theirs: all of these -> their names in
    the model of peft, which the settings mean.
    """

    whole: dict[str, str]
    parts: dict[str, dict[str, str]]
    theirs: dict[str, str]

    def module(self, name: str) -> str:
        """The module of peft that has a parameter."""
        return self.theirs.get(name, name).rpartition(".")[0]


def read_adapter(folder: UntrustedPath) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
    """The content of config.json and the weights of the base, with the adapter merged. Raises
    CheckpointError.
    """
    keys, base = read_adapter_config(folder)
    file = TensorFile(folder / TENSORS)
    changes = _read_changes(file)
    weights = read_weights(base)
    values, place = _settings(folder, base, keys, file, changes.whole)
    family, config = parse_config(values, place)
    config, parameters = infer_config(family, config, weights, place)
    table = family.rules(config)
    tied = rules.copies(table)
    expected = rules.saving(table, parameters)
    changes = _with_current_names(changes, table, {*expected, *tied})
    tensors = rules.renamed(table, weights, expected)
    _check_modules(folder, base, changes, {*tensors, *tied})
    conversions = rules.conversions(table, parameters)
    adapter = Adapter(
        folder,
        keys,
        file,
        _without_others(changes, keys, tied, folder),
        tensors,
        tied,
        heads=_output_weights(family, config, tied),
        transposed={
            name
            for conversion in conversions
            if conversion.transform.transposed
            for name in conversion.theirs
        },
        states_tying=place.name == WHOLE,
    )
    merged_config = _merged_config(adapter, family, config, conversions)
    if merged_config is not config:
        before = family.write(config)
        after = family.write(merged_config)
        values |= {key: value for key, value in after.items() if value != before.get(key)}
    parameters = meta_parameters(merged_config, place)
    return values, adapter.merged(rules.saving(family.rules(merged_config), parameters))


def _merged_config(
    adapter: Adapter,
    family: Family,
    config: ModelConfig,
    conversions: Iterable[rules.Conversion],
) -> ModelConfig:
    """The config after the merge, in which vocabularies may have other sizes and the output layer
    may be untied. Raises CheckpointError if the family has no such model.
    """
    separated = adapter.separated()
    changed = _table_sizes(adapter, config, conversions)
    if separated:
        changed["tie_lm_head"] = False
    if not changed:
        return config
    merged = config.model_copy(update=changed)
    if separated - adapter.heads or not family.fits(merged):
        raise CheckpointError(
            f"{adapter.folder / TENSORS}: changes only some of the tensors that are one in "
            f"{family.model_type}: {', '.join(sorted(separated))} differ; train all of them"
        )
    return merged


def _output_weights(family: Family, config: ModelConfig, tied: Mapping[str, str]) -> set[str]:
    """The tied tensors that models of the family with untied embeddings have."""
    untied = rules.copies(family.rules(config.model_copy(update={"tie_lm_head": False})))
    return {name for name in tied if name not in untied and name.endswith(".weight")}


def _table_sizes(
    adapter: Adapter, config: ModelConfig, conversions: Iterable[rules.Conversion]
) -> dict[str, Any]:
    """The fields of the config for the sizes of the vocabularies that the adapter changes."""
    sizes: dict[str, Any] = {}
    for conversion in conversions:
        table = conversion.ours[0]
        if not table.endswith("_embeddings.tokens.weight"):
            continue
        field = "vocab_size"
        if table.startswith("decoder") and config.target_vocab_size is not None:
            field = "target_vocab_size"
        rows = adapter.table_rows(conversion.theirs[0])
        if rows is not None:
            sizes[field] = rows
    return sizes


def _read_changes(file: Mapping[str, Tensor]) -> Changes:
    """What the tensors of a file change, under the names of the file."""
    changes = Changes({}, {}, {})
    for name in file:
        theirs = name.removeprefix(PREFIX)
        end = next((end for end in PARTS if theirs.endswith(f".{end}")), None)
        if end is not None:
            weight = f"{theirs.removesuffix(end)}weight"
            changes.parts.setdefault(weight, {})[PARTS[end]] = name
        elif not any(unused in f"{theirs}." for unused in UNUSED):
            for wrapper in WRAPPERS:
                theirs = theirs.replace(wrapper, ".")
            changes.whole[theirs] = name
    return changes


def _settings(
    folder: UntrustedPath,
    base: UntrustedPath,
    keys: AdapterConfig,
    file: TensorFile,
    whole: Mapping[str, str],
) -> tuple[dict[str, Any], UntrustedPath]:
    """The content of config.json of the whole model, and its place: that of the folder, or that of
    the base with the head of the adapter.
    """
    if (folder / WHOLE).exists():
        return read_json(folder / WHOLE), folder / WHOLE
    values = read_json(base / CONFIG)
    if keys.task_type in CLASSES and values.get("model_type") in FAMILIES:
        rows = [len(file[name]) for name in whole.values() if file[name].dim() == 2]
        named = [f"{FAMILIES[values['model_type']].stem}For{CLASSES[keys.task_type]}"]
        values |= {"architectures": named, "num_labels": min(rows, default=None), "id2label": None}
    return values, base / CONFIG


def _with_current_names(
    changes: Changes, table: Sequence[rules.AnyRule], known: Collection[str]
) -> Changes:
    """The changes under the names that the model has now. A file may have a tensor under the names
    of several versions, as `peft.adapter_tensors` writes it; one of them is kept.
    """
    # New name -> old name.
    whole, parts = (
        rules.current_names(table, old, known) for old in (changes.whole, changes.parts)
    )
    repeated = {other for name in (*whole, *parts) for other in rules.other_names(table, name)}
    return Changes(
        {name: changes.whole[old] for name, old in whole.items() if name not in repeated},
        {name: changes.parts[old] for name, old in parts.items() if name not in repeated},
        theirs=whole | parts,
    )


def _check_modules(
    folder: UntrustedPath, base: UntrustedPath, changes: Changes, known: Collection[str]
) -> None:
    """Raise CheckpointError for parts of modules that the base does not have."""
    if unknown := sorted(
        f"{name.removesuffix('.weight')!r}" for name in changes.parts if name not in known
    ):
        raise list_problems(
            f"{folder / TENSORS}: adapters of modules that {base} does not have", unknown
        )


def _without_others(
    changes: Changes, keys: AdapterConfig, tied: Mapping[str, str], folder: UntrustedPath
) -> Changes:
    """The changes of the modules that the settings select, as peft reads them. Reports the
    others.
    """
    modules = {name: changes.module(name) for name in changes.parts}
    selected = keys.select(modules.values())
    if keys.ensure_weight_tying:
        names = {name for name, module in modules.items() if module in selected}
        selected |= {modules[name] for name in modules if tied.get(name) in names}
    kept = {
        name: parts
        for name, parts in changes.parts.items()
        if modules[name] in selected or parts.keys() == {"rows"}
    }
    if others := len(changes.parts) - len(kept):
        warn(
            f"{folder / TENSORS}: the tensors of {others:,} of {len(changes.parts):,} modules are "
            f"left out, because {ADAPTER} does not select these modules (target_modules, "
            "exclude_modules, layers_to_transform); correct it to use them"
        )
    return changes._replace(parts=kept)


def _prefix_of_parts(*, of_table: bool) -> str:
    """The beginning of the names of A and B in PARTS."""
    if of_table:
        return "embedding_"
    return ""


@dataclass(frozen=True)
class Adapter:
    """An adapter on the tensors of its base.

    tied: tensors that are one with an original -> that. heads: those of them that may be tensors of
    their own. transposed: matrices that the base stores as (in, out). states_tying: the config says
    what is tied, and the file may lack the copies.
    """

    folder: UntrustedPath
    keys: AdapterConfig
    file: Mapping[str, Tensor]
    changes: Changes
    base: Mapping[str, Tensor]
    tied: Mapping[str, str]
    heads: set[str]
    transposed: Collection[str]
    states_tying: bool

    # --- what is tied -----------------------------------------------------------------------------

    def separated(self) -> set[str]:
        """The tied weights that differ after the merge."""
        pairs = {name: self._reader(original) for name, original in self.tied.items()}
        return {
            name
            for name, reader in pairs.items()
            if name.endswith(".weight")
            and any(map(self._is_changed, (name, reader)))
            and not torch.equal(self.value(name), self.value(reader))
        }

    def table_rows(self, name: str) -> int | None:
        """The rows of a table of embeddings that the adapter replaces."""
        if not self.changes.whole.keys() & self._group(name):
            return None
        return len(self._replaced(self._reader(name)))

    def _group(self, name: str) -> list[str]:
        """All tensors that are one with this one, which is the last."""
        original = self.tied.get(name, name)
        copies = (copy for copy, of in self.tied.items() if of == original)
        return [*(other for other in (original, *copies) if other != name), name]

    def _reader(self, name: str) -> str:
        """The tensor that the model computes with. Beside a module with a copy of it, that is the
        copy, except for the output layer's weight.
        """
        copies = [copy for copy, of in self.tied.items() if of == name and copy not in self.heads]
        if copies and any(map(self._is_changed, self._group(name))):
            return copies[0]
        return name

    def _is_changed(self, name: str) -> bool:
        """Whether the file has this tensor, or parts for it."""
        return name in self.changes.whole or name in self.changes.parts

    # --- merging ----------------------------------------------------------------------------------

    def merged(self, expected: Iterable[str]) -> Mapping[str, Tensor]:
        """The expected tensors that there are, and those of the file that are not known."""
        known = {*self.base, *self.changes.whole}
        names = {name: self._reader(name) for name in expected if known & {*self._group(name)}}
        for weight, parts in self.changes.parts.items():
            if "bias" in parts and f"{weight.removesuffix('weight')}bias" not in names:
                raise self._error(
                    weight, "has no bias in the base, to which lora_bias would add one"
                )
        others = (name for name in self.changes.whole if name not in names.keys() | self.tied)
        return TransformedTensors(names | {name: name for name in others}, self._value)

    def value(self, name: str) -> Tensor:
        """A tensor after the merge."""
        return self._with_adapter(name, self._with_rows(name, self._replaced(name)))

    def _value(self, _: str, reader: str) -> Tensor:
        return self.value(reader)

    def _replaced(self, name: str) -> Tensor:
        """The tensor of the base, or the one that replaces it. A module that the adapter has a copy
        of shares no tensor; otherwise the shared tensor is replaced.
        """
        group = self._group(name)
        whole = self.changes.whole
        separate = {member for member in group if self._is_own(member)}
        if name in separate and name in whole:
            return self.file[whole[name]]
        if shared := [member for member in group if member in whole and member not in separate]:
            return self.file[whole[shared[-1]]]
        return self.base[next(member for member in reversed(group) if member in self.base)]

    def _is_own(self, name: str) -> bool:
        """Whether a tensor is in a module that the adapter has a copy of; never if the config
        states that it is tied.
        """
        stated = self.states_tying and len(self._group(name)) > 1
        return self.keys.replaces(self.changes.theirs.get(name, name)) and not stated

    def _with_rows(self, name: str, table: Tensor) -> Tensor:
        """The table with the rows that the adapter replaces, also in the other tied ones."""
        tables = (name, self.tied.get(name, name))
        holders = [other for other in tables if "rows" in self.changes.parts.get(other, {})]
        if not holders:
            return table
        holder = holders[0]
        rows = self.file[self.changes.parts[holder]["rows"]]
        indices = self.keys.rows(self.changes.module(holder)) or []
        if tuple(rows.shape) != (len(indices), *table.shape[1:]):
            raise self._error(holder, f"has {len(rows)} rows, of {len(indices)} in {ADAPTER}")
        if outside := [index for index in indices if not 0 <= index < len(table)]:
            raise self._error(holder, f"has no row {outside[0]} (trainable_token_indices)")
        return table.index_copy(0, torch.tensor(indices, dtype=torch.int64), rows.to(table.dtype))

    def _with_adapter(self, name: str, tensor: Tensor) -> Tensor:
        """A weight or a bias with what the adapter of its module adds."""
        module, _, end = name.rpartition(".")
        weight = self._adapted(f"{module}.weight")
        parts = {
            part: self.file[stored].float()
            for part, stored in self.changes.parts.get(weight, {}).items()
            if part != "rows"
        }
        if not parts or end not in ("weight", "bias"):
            return tensor
        lora = self.keys.lora(self.changes.module(weight))
        if end == "bias":
            added = parts.get("bias", torch.zeros(()))
            return (tensor.float() + lora.scale * added).to(tensor.dtype)
        of_table = any(part.startswith("embedding") for part in parts)
        flipped = of_table or name in self.transposed
        matrix = tensor.mT if flipped else tensor
        self._check_shapes(name, matrix, parts, lora.rank, of_table=of_table)
        prefix = _prefix_of_parts(of_table=of_table)
        changed = adapted(
            matrix.float(),
            parts[f"{prefix}A"],
            parts[f"{prefix}B"],
            lora.scale,
            parts.get("magnitude"),
        )
        if flipped:
            changed = changed.mT
        return changed.to(tensor.dtype)

    def _adapted(self, name: str) -> str:
        """The weight whose adapter changes this one: with `ensure_weight_tying`, that of the table,
        unless lengths of rows are trained, which differ.
        """
        kept = self.keys.ensure_weight_tying and not self.keys.use_dora
        original = self.tied.get(name, name)
        if kept and original in self.changes.parts:
            return original
        return name

    def _check_shapes(
        self, name: str, matrix: Tensor, parts: Mapping[str, Tensor], rank: int, *, of_table: bool
    ) -> None:
        """Raise CheckpointError for missing parts, for others, and for those of another shape."""
        outputs, inputs = matrix.shape
        prefix = _prefix_of_parts(of_table=of_table)
        shapes: dict[str, tuple[int, ...]] = {
            f"{prefix}A": (rank, inputs),
            f"{prefix}B": (outputs, rank),
        }
        if self.keys.use_dora:
            shapes["magnitude"] = (outputs,)
        if self.keys.lora_bias:
            shapes["bias"] = (outputs,)
        if {part: tuple(tensor.shape) for part, tensor in parts.items()} != shapes:
            ends = {part: end for end, part in PARTS.items()}
            wanted = ", ".join(f"{ends[part]} {shape}" for part, shape in shapes.items())
            raise self._error(name, f"lacks the tensors {wanted} of {ADAPTER}")

    def _error(self, name: str, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.folder / TENSORS}: {name.removesuffix('.weight')} {problem}")
