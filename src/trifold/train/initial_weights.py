"""The initial weights of a run: drawn from the seed, copied from the model of `start_from`, or set
by the objective; with adapters that are new.
"""

from collections.abc import Callable
from contextlib import suppress
from textwrap import shorten

import torch
from torch import Tensor

from trifold.errors import SettingsError, TrifoldError
from trifold.hub import load_model, resolve
from trifold.hub.peft import adaptable_modules, adapter_tensors
from trifold.nn import ModelConfig, Transformer
from trifold.nn.config import REGRESSION
from trifold.nn.lora import LoRASettings
from trifold.objectives.labels import class_names
from trifold.text import make_tokenizer
from trifold.text.folder import read_tokenizer
from trifold.train.data import TrainingData
from trifold.train.parameters import (
    ADAPTED,
    add_adapters,
    default_targets,
    quantize_blocks,
)

HEADS = ("heads.", "lm_head.")  # these parameters may be missing on either side
# These have a row for each class.
CLASS_TABLES = ("heads.sequence.out_proj.", "heads.token.out_proj.")
# The names of these end so, and they have a row for each token.
TOKEN_TABLES = ("_embeddings.tokens.weight", "lm_head.weight", "lm_head.bias")
MOST_LISTED = 8  # parameters in an error message
LEAVE_OUT = "leave out model and tokenizer, because start_from has both"


def new_model(data: TrainingData) -> Transformer:
    """The model that a run begins with. Raises SettingsError if the weights of `start_from` do not
    fit, CheckpointError if they cannot be read.
    """
    recipe = data.recipe
    _check_tokenizer(data)
    torch.manual_seed(recipe.train.seed)
    model = Transformer(data.config)
    fresh = set[str]()
    if recipe.start_from is not None:
        fresh = _copy_from(recipe.start_from, model, data)
    if data.bundle.initialize is not None:
        data.bundle.initialize(model)
    if recipe.train.lora is not None:
        if recipe.start_from is None:
            raise SettingsError("train.lora: adapters need a base model; set start_from")
        _adapt(model, recipe.train.lora, recipe.start_from, fresh, data.report)
    if data.objective.adds_modules:
        _add_modules(data, model)
    return model


def _add_modules(data: TrainingData, model: Transformer) -> None:
    """Add the further modules of the objective, which start from those of `start_from`, if it has
    them. Raises SettingsError for ways of training that need every parameter in the model itself.
    """
    recipe = data.recipe
    if recipe.train.lora is not None or recipe.train.sharding != "none":
        key = "lora" if recipe.train.lora is not None else "sharding"
        raise SettingsError(
            f"train.{key}: not supported by task.kind: {recipe.task.kind}, which trains a second "
            "model; remove it"
        )
    folder = None if recipe.start_from is None else resolve(recipe.start_from)
    data.objective.add_modules(model, folder)


def _copy_from(folder: str, model: Transformer, data: TrainingData) -> set[str]:
    """Copy the weights of `start_from` and report it. Returns the names of the weights that have
    new values.
    """
    line, fresh = start_from(
        folder,
        model,
        _added_tokens(data),
        data.objective.trained_weights,
        are_named=data.recipe.model.label_names is not None,
    )
    data.report(line)
    return fresh


def _check_tokenizer(data: TrainingData) -> None:
    """Raises SettingsError if a new tokenizer was trained that gives other numbers to tokens than
    that of start_from, whose table of tokens would be read by wrong numbers.
    """
    recipe = data.recipe
    if recipe.start_from is None or recipe.tokenizer.file is not None:
        return
    theirs = None
    with suppress(TrifoldError):  # a model without a tokenizer
        theirs = read_tokenizer(resolve(recipe.start_from))
    if theirs is None or theirs.library.get_vocab() == data.objective.tokenizer.library.get_vocab():
        return
    raise SettingsError(
        f"start_from: {recipe.start_from} has another tokenizer than the one that was trained "
        f"now; {LEAVE_OUT}, or set tokenizer.file={recipe.start_from}"
    )


def _added_tokens(data: TrainingData) -> range:
    """The ids of the tokens of `tokenizer.add` and `tokenizer.extract`, which are reported."""
    tokenizer = data.recipe.tokenizer
    keys = [key for key in ("add", "extract") if getattr(tokenizer, key)]
    if tokenizer.file is None or not keys:
        return range(0)
    total = data.objective.tokenizer.vocab_size
    before = tokenizer.model_copy(update={"add": (), "extract": False})
    known = make_tokenizer([], before).vocab_size
    new = f"{total - known:,} new tokens"
    names = " and ".join(f"tokenizer.{key}" for key in keys)
    data.report(f"{names}: {new}; their rows begin as the mean of the others")
    return range(known, total)


def _adapt(
    model: Transformer,
    settings: LoRASettings,
    base: str,
    fresh: set[str],
    report: Callable[[str], None],
) -> None:
    """Add the adapters; only they, heads and `fresh` weights are trained. Raises SettingsError if
    they could not be saved for the base model.
    """
    folder = resolve(base)
    if settings.targets is None:
        names = dict(model.named_parameters())
        targets = default_targets(model, adaptable_modules(folder, model.config, names))
        kinds = dict.fromkeys(name.rpartition(".")[2] for name in targets)
        if kinds.keys().isdisjoint(ADAPTED):
            listed = ", ".join(kinds)
            report(f"train.lora: adapters of {listed}; peft has none of the queries and values")
        settings = settings.model_copy(update={"targets": targets or None})
    add_adapters(model, settings, fresh)
    weights = dict(model.named_parameters())
    adapter_tensors(folder, model.config, weights, fresh)  # raises if it cannot be saved
    if settings.int8:
        quantize_blocks(model)


# --- the weights of another model -----------------------------------------------------------------


def start_from(
    folder: str,
    model: Transformer,
    new: range = range(0),
    convert: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict,
    *,
    are_named: bool = False,
) -> tuple[str, set[str]]:
    """Copy the weights of the model in `folder` (or hub id) to `model`. Heads that are missing, or
    have other sizes or labels, keep their initial values. The rows of `new` tokens become the mean
    of those before them (Hewitt 2021, https://nlp.stanford.edu/~johnhew/vocab-expansion.html).

    convert: makes the weights to train from those of the folder. are_named: whether the recipe
    names the labels, also those of a folder that only numbers its own. Returns a line about the
    weights that are new or not used, and the names of those with new values. Raises CheckpointError
    if the folder cannot be read, SettingsError listing the parameters that do not fit.
    """
    source, _ = load_model(resolve(folder), heads=model.config.chosen_heads)
    theirs = convert(dict(source.named_parameters()))
    ours = dict[str, Tensor](model.named_parameters())
    note = _order_classes(theirs, ours, source.config, model.config, are_named=are_named)
    with_new_rows = set[str]()
    if new:
        with_new_rows = _add_token_rows(theirs, ours, new)
    _check_tables(folder, theirs, ours)
    _check_shapes(folder, theirs, ours)
    copied = {
        name for name in ours.keys() & theirs.keys() if ours[name].shape == theirs[name].shape
    }
    model.load_state_dict({name: theirs[name] for name in copied}, strict=False)
    unset = ours.keys() - copied
    unused = {name for name, _ in source.named_parameters()} - copied
    counts = f"{_count('new', unset)}, {_count('not used', unused)}"
    line = f"start_from: {len(copied):,} weights copied, {counts}{note}"
    if any(".path." in name for name in unused):
        line += "; its linear path is of other rows, so that the Transformer continues alone"
    return line, unset | (with_new_rows & copied)


def _order_classes(
    theirs: dict[str, Tensor],
    ours: dict[str, Tensor],
    their_config: ModelConfig,
    our_config: ModelConfig,
    *,
    are_named: bool,
) -> str:
    """Bring the rows of the head in `theirs` into the order of our classes, or remove the head if
    its classes are others. Returns the end of a message, which says why the head is new.
    """
    names = [name for name in ours.keys() & theirs.keys() if name.startswith(CLASS_TABLES)]
    if not names:
        return ""
    tables = {name: theirs.pop(name) for name in names}
    order = _rows_of_classes(their_config, our_config, are_named=are_named)
    if order is None:
        return f"; {_describe_labels(their_config, our_config)}"
    for name, table in tables.items():
        theirs[name] = table[order]
    return ""


def _rows_of_classes(
    theirs: ModelConfig, ours: ModelConfig, *, are_named: bool
) -> list[int] | None:
    """The rows of our classes in their head; None if it has other classes. A regression has one
    row, whatever its name.
    """
    if theirs.n_labels != ours.n_labels:
        return None
    if ours.problem_type == REGRESSION or (are_named and theirs.label_names is None):
        return [*range(ours.n_labels)]
    for names in class_names(theirs):
        if {*names} == {*ours.labels}:
            return [names.index(name) for name in ours.labels]
    return None


def _describe_labels(theirs: ModelConfig, ours: ModelConfig) -> str:
    """Why the head is new."""
    there, here = (
        shorten(", ".join(map(repr, config.labels)), 60, placeholder=" …")
        for config in (theirs, ours)
    )
    remedy = "give the data the same ones to keep it"
    if theirs.label_names is None and theirs.n_labels == ours.n_labels:
        remedy = "name them in that order in model.label_names, with model.n_labels, to keep it"
    return f"the head is new, because its labels are {there}, and here {here}; {remedy}"


def _add_token_rows(theirs: dict[str, Tensor], ours: dict[str, Tensor], new: range) -> set[str]:
    """Give their tables of tokens as many rows as ours have, and set those of `new` tokens to the
    mean of the rows before them. Returns the names of the tables.
    """
    names = {name for name in ours.keys() & theirs.keys() if name.endswith(TOKEN_TABLES)}
    for name in names:
        table = theirs[name].detach()
        missing = max(0, len(ours[name]) - len(table))
        mean = table[: new.start].mean(0, keepdim=True)
        theirs[name] = torch.cat([table, mean.expand(missing, *mean.shape[1:])])
        theirs[name][new.start : new.stop] = mean
    return names


def _check_tables(folder: str, theirs: dict[str, Tensor], ours: dict[str, Tensor]) -> None:
    """Raises SettingsError if their tables of tokens lack rows for tokens of our tokenizer."""
    for name in sorted(ours.keys() & theirs.keys()):
        needed = len(ours[name])
        if name.endswith(TOKEN_TABLES) and len(theirs[name]) < needed:
            raise SettingsError(
                f"start_from: {folder}: the model has {len(theirs[name]):,} tokens, but the "
                f"tokenizer {needed:,}; {LEAVE_OUT}, or remove the tokens that were added to it"
            )


def _check_shapes(folder: str, theirs: dict[str, Tensor], ours: dict[str, Tensor]) -> None:
    """Raises SettingsError listing the parameters, other than those of heads, that are missing on
    one side or have another shape.
    """
    common = {name for name in theirs.keys() | ours.keys() if not name.startswith(HEADS)}
    wrong = sorted(name for name in common if _shape(theirs, name) != _shape(ours, name))
    if not wrong:
        return
    listed = ", ".join(
        f"{name} ({_shape(theirs, name)} there, {_shape(ours, name)} here)"
        for name in wrong[:MOST_LISTED]
    )
    if len(wrong) > MOST_LISTED:
        listed += f" and {len(wrong) - MOST_LISTED} more"
    raise SettingsError(
        f"start_from: {folder}: the model of the recipe has other parameters: {listed}; {LEAVE_OUT}"
    )


def _count(what: str, names: set[str]) -> str:
    """`2 new (a, b)`: the number of these parameters, and the first three."""
    if not names:
        return f"0 {what}"
    listed = ", ".join(sorted(names)[:3])
    if len(names) > 3:
        listed += ", …"
    return f"{len(names):,} {what} ({listed})"


def _shape(parameters: dict[str, Tensor], name: str) -> str:
    """`3x5`, or "missing"."""
    if name not in parameters:
        return "missing"
    return "x".join(map(str, parameters[name].shape))
