"""`trifold show`: the architecture of a model, its differences from the Transformer of 2017, and
its costs; or the tokens of a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trifold.cli.names import is_recipe
from trifold.cli.options import Json, Weights, argument, dtype_option, option_words, value
from trifold.cli.panels import FIRST, in_panels
from trifold.cli.terminal import print_json, print_note, print_table, short_number
from trifold.cli.train import Changes
from trifold.errors import UsageError, plural, wrapped

if TYPE_CHECKING:
    from trifold import dtypes
    from trifold.folders import AnyPath
    from trifold.nn.variants import ModelConfig
    from trifold.recipe import Recipe

PRECISIONS = ("float32", "bfloat16")
LENGTH = 32  # tokens of a sequence
# What the parts of the memory to train hold.
HELD = {
    "weights": "the model, and its copy in the type of the computation",
    "optimizer": "moments, averages, and copies to save",
    "validation": "a second model, which is validated, and its file",
    "activations": "what the backward pass reads",
    "batches": "the token ids of an update",
    "runtime": "Python, PyTorch and the compiled loops",
}
EXAMPLES = (
    "trifold show runs/demo",
    "trifold show llama2-7b --length 2048 --precision bfloat16",
    "trifold show demo model.d_model=512 --batch-tokens 8192",
    'trifold show runs/demo --text "I love dogs."',
)
PANELS = {
    FIRST: ("batch_tokens", "length", "precision", "weights", "json"),
    "Instead of the architecture": ("text", "positions", "time"),
}


@in_panels(PANELS)
def run(
    what: Annotated[
        str | None,
        argument(
            "[MODEL|PRESET|RECIPE]",
            "A run, a model folder, a hub id, a preset or a recipe.",
            show_default="list the presets",
        ),
    ] = None,
    changes: Changes = None,
    batch_tokens: Annotated[
        int | None,
        value("N", "Tokens of a training batch, on each side.", min=1, show_default="4096"),
    ] = None,
    length: Annotated[
        int | None, value("N", "Tokens of a sequence.", min=1, show_default="32")
    ] = None,
    precision: Annotated[
        str | None,
        dtype_option(
            PRECISIONS,
            "Precision of the computation.",
            "--precision",
            "--dtype",
            show_default="the recipe's, or float32",
        ),
    ] = None,
    weights: Weights = "file",
    text: Annotated[
        str | None,
        value("TEXT", "The tokens of a text, and how it is split: merges, or scores of pieces."),
    ] = None,
    positions: Annotated[
        bool,
        typer.Option(
            "--positions",
            help="What each scheme of positions adds, and the relation between sinusoids.",
        ),
    ] = False,
    time: Annotated[
        bool,
        typer.Option(
            "--time", help="Time per sentence and per token, beside the peak of this machine."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Draw the architecture, compare it with the Transformer of 2017, and count parameters, FLOPs
    and memory.

    No weights are loaded or allocated.
    """
    sizes = {"batch_tokens": batch_tokens, "length": length, "precision": precision}
    stored = {"weights": None if weights == "file" else weights}
    views = {"text": text, "positions": positions or None, "time": time or None}
    if what is None:
        _check_view(**views)
        _list_presets(json)
        return
    if text is not None:
        from trifold.cli.show_text import show_text

        _check_unused("--text", changes or (), **views | sizes | stored | {"text": None})
        show_text(what, text, as_json=json)
        return
    subject = find_subject(what, changes or ())
    if positions:
        from trifold.cli.show_positions import show_positions

        _check_unused("--positions", (), time=views["time"], **sizes, **stored)
        show_positions(subject.name, subject.config, as_json=json)
        return
    if time:
        from trifold.cli.show_time import show_time

        _check_unused("--time", (), batch_tokens=batch_tokens, **stored)
        show_time(
            subject.name,
            subject.config,
            length or LENGTH,
            precision or PRECISIONS[0],
            has_weights=subject.folder is not None,
            as_json=json,
        )
        return
    facts = collect_facts(
        subject, batch_tokens or subject.batch_tokens, length or LENGTH, precision, weights
    )
    if json:
        print_json(facts)
    else:
        _print_report(subject, facts)


def _check_view(**views: Any) -> None:
    """Raises UsageError for a view of a model, if none is named."""
    words = option_words(**views)
    if words:
        raise UsageError(f"{words.split()[0]}: name the MODEL that it is about")


def _check_unused(view: str, changes: Sequence[str], **options: Any) -> None:
    """Raises UsageError for arguments that a view does not use."""
    unused = [*changes, *option_words(**options).split()]
    if unused:
        raise UsageError(f"{unused[0]:.60}: {view} does not use it; leave one of them out")


def _list_presets(json: bool) -> None:
    from trifold.costs import count_parameters
    from trifold.hub.presets import ALIASES, PRESETS as PUBLISHED
    from trifold.nn.presets import PRESETS

    configs = PRESETS | {
        name: preset.config for name, preset in PUBLISHED.items() if name not in ALIASES
    }
    rows = [
        (name, config.shape, count_parameters(config), _other_names(name))
        for name, config in configs.items()
    ]
    if json:
        keys = ("preset", "shape", "parameters", "other_names")
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    head = ("preset", "shape", "parameters", "other names")
    shown = [
        (name, shape, short_number(count), ", ".join(names)) for name, shape, count, names in rows
    ]
    print_table([head, *shown], "  r ")


def _other_names(preset: str) -> list[str]:
    from trifold.hub.presets import ALIASES

    return [alias for alias, name in ALIASES.items() if name == preset]


@dataclass(frozen=True)
class Subject:
    """A model to show: its name and config, a remark for the report, the recipe, if any, and
    the folder or file of its weights, if it has any.
    """

    name: str
    config: ModelConfig
    batch_tokens: int = 4096
    remark: str = ""
    recipe: Recipe | None = None
    folder: AnyPath | None = None


def find_subject(what: str, changes: Sequence[str] = ()) -> Subject:
    """A preset, a recipe (by name or file), or a model; with changes the recipe, also that of a
    run. Raises UsageError or CheckpointError if it is none, and what `trifold train` raises.
    """
    from trifold.costs import count_parameters
    from trifold.hub import read_config, resolve
    from trifold.hub.presets import PRESETS as PUBLISHED
    from trifold.nn.presets import PRESETS
    from trifold.recipe import included_names, is_run, load_recipe

    is_folder = Path(what).is_dir()
    name = what.casefold()
    is_model = name in {*PRESETS, *PUBLISHED} and not is_folder
    if changes and (is_model or (is_folder and not is_run(what))):
        raise UsageError(
            f"{what}: a model, whose settings are fixed; leave out {' '.join(changes)!r:.60}, or "
            "name a recipe or a run"
        )
    if changes:
        return _subject_of_recipe(load_recipe(what, changes, imports_parts=True))
    if name in PRESETS:
        return Subject(name, PRESETS[name])
    if name in PUBLISHED and not is_folder:
        preset = PUBLISHED[name]
        config = preset.config
        if preset.agrees(count_parameters(config)):
            return Subject(name, config)
        return Subject(name, config, remark=f"announced as {preset.announced}")
    if is_recipe(what):
        return _subject_of_recipe(load_recipe(what, imports_parts=True))
    folder = resolve(what, others=[*PRESETS, *PUBLISHED, *included_names()])
    return Subject(what, read_config(folder), folder=folder)


def _subject_of_recipe(recipe: Recipe) -> Subject:
    """The model that a recipe trains, with the vocabulary of its tokenizer, if it is there."""
    from trifold.data import expand_path
    from trifold.text import make_tokenizer

    for line in [*recipe.size_notes, *recipe.notes]:
        print_note(line)
    if recipe.sized:
        print_note("these sizes are estimates; training counts the tokens, and may choose others")
    size = recipe.tokenizer.vocab_size
    remark = "with the maximum vocabulary of the recipe"
    if recipe.tokenizer.file is not None and expand_path(recipe.tokenizer.file).exists():
        size = make_tokenizer([], recipe.tokenizer).vocab_size
        remark = ""
    if recipe.pretrain is not None:
        remark += f"; pretrained first, with {recipe.pretrain}"
    # Training sets the vocabulary size to that of the tokenizer.
    sizes = {"vocab_size": size, "target_vocab_size": None}
    has_own_tokenizer = recipe.task.kind == "translate" and not recipe.tokenizer.joint
    if recipe.model.target_vocab_size or has_own_tokenizer:
        sizes["target_vocab_size"] = size
    config = recipe.model.model_copy(update=sizes)
    return Subject(recipe.name, config, recipe.batch.tokens, remark, recipe)


def collect_facts(
    subject: Subject,
    tokens: int,
    length: int,
    precision: str | None,
    weights: dtypes.Weights = "file",
) -> dict[str, Any]:
    """All numbers of the report: parameters, FLOPs, bytes."""
    from trifold import costs
    from trifold.look import comparison

    config = subject.config
    if config.n_patches:  # the length of a picture is fixed
        length = config.max_positions
    flops = costs.forward_flops(config, length, length)
    training = training_needs(subject, tokens, length, precision)
    return {
        "name": subject.name,
        "remark": subject.remark,
        "shape": config.shape,
        "config": config.model_dump(),
        "compared_with_2017": [part._asdict() for part in comparison.compare(config)],
        "parameters": costs.count_parameters(config),
        "parts": [part._asdict() for part in costs.parameter_table(config)],
        "length": length,
        "flops_per_token": {"forward": flops._asdict(), "training": flops.training._asdict()},
        "training_bytes": training,
        **stored_weights(subject, training["precision"], weights),
    }


def stored_weights(subject: Subject, precision: str, weights: dtypes.Weights) -> dict[str, Any]:
    """The bytes of the weights in the file, by type, and of what inference needs."""
    import torch

    from trifold import costs
    from trifold.hub.storage import storage_in_file, storage_in_memory

    stored = None if weights == "full" else weights
    dtype = getattr(torch, precision)
    in_memory = storage_in_memory(subject.config, dtype, stored, subject.folder)
    in_file = [] if subject.folder is None else storage_in_file(subject.folder)
    inference = costs.inference_memory(subject.config, precision)._asdict()
    inference["weights"] = sum(each.bytes for each in in_memory)
    return {
        "stored_bytes": [each._asdict() | {"bits": each.bits} for each in in_file],
        "inference_bytes": {
            **inference,
            "forms": [each._asdict() | {"bits": each.bits} for each in in_memory],
            "precision": precision,
            "stored": weights,
        },
    }


def training_needs(
    subject: Subject, tokens: int, length: int, precision: str | None
) -> dict[str, Any]:
    """Memory, precision and number of workers to train on this machine.

    For a recipe, with its optimizer and everything else it stores, as `trifold train` checks before
    it begins.
    """
    import torch

    from trifold.memory import find_device
    from trifold.recipe import TrainSettings
    from trifold.train.device import Machine, choose_precision, choose_workers
    from trifold.train.memory import estimate_memory

    device = find_device()
    if subject.recipe is None:
        train = TrainSettings()
        dtype = getattr(torch, precision or "float32")
    else:
        train = subject.recipe.train
        dtype = choose_precision(precision or train.precision, device)
    workers = choose_workers(train.worker_count, device, tokens)
    memory, _ = estimate_memory(
        train, tokens, subject.config, length, Machine(device, dtype, workers)
    )
    chosen = {
        "batch_tokens": tokens,
        "precision": str(dtype).removeprefix("torch."),
        "workers": workers,
    }
    return {**memory._asdict(), "total": memory.total, **chosen}


def _print_report(subject: Subject, facts: dict[str, Any]) -> None:
    from trifold.costs import legend
    from trifold.look.drawing import draw_architecture

    total = facts["parameters"]
    training = facts["training_bytes"]
    inference = facts["inference_bytes"]
    remark = f"({subject.remark})\n" if subject.remark else ""
    print(f"{subject.name}: {facts['shape']}, {total:,} parameters\n{remark}")
    print(f"{draw_architecture(subject.config)}\n")
    compared = [tuple(part.values())[:4] for part in facts["compared_with_2017"]]
    print_table([("part", "size", "as in 2017", "description"), *compared])

    print()
    counted = [*(tuple(part.values()) for part in facts["parts"]), ("total", "", total)]
    parts = [(name, formula, f"{n:,}", f"{100 * n / total:.1f} %") for name, formula, n in counted]
    print_table([("part", "formula", "parameters", "share"), *parts], "  rr")
    letters = f"· times; {legend(formula for _, formula, *_ in parts)}"
    print(f"\n{wrapped(letters, get_terminal_size().columns)}")

    print(f"\nfloating-point operations per token, sequences of {facts['length']} tokens\n")
    forward = facts["flops_per_token"]["forward"]
    backward = facts["flops_per_token"]["training"]
    flops = []
    for side in forward:
        name = f"{side} token" if facts["shape"] == "encoder-decoder" else "token"
        if forward[side]:
            flops.append((name, short_number(forward[side]), short_number(backward[side])))
    print_table([("", "forward", "training"), *flops], " rr")

    print(
        f"\nmemory to train in {training['precision']}, batches of {training['batch_tokens']:,} "
        "tokens\n"
    )
    settings = ("batch_tokens", "precision", "workers")
    needs = [
        (name, _size(training[name]), _held(name, training))
        for name in training
        if name not in settings
    ]
    print_table([("", "memory", "holds"), *needs], " r")

    if facts["stored_bytes"]:
        print("\nweights in the file\n")
        _print_forms("type", "size", facts["stored_bytes"])
    print(f"\nmemory for inference in {inference['precision']}\n")
    _print_forms("form", "memory", inference["forms"])
    names = {
        "cache_per_source_token": "cache per source token",
        "cache_per_target_token": "cache per target token and beam",
    }
    sizes = [(title, _size(inference[name])) for name, title in names.items() if inference[name]]
    if sizes:
        print()
        print_table([("", "memory"), *sizes], " r")


def _print_forms(title: str, size_title: str, forms: Sequence[dict[str, Any]]) -> None:
    """A table of forms of weights, and their sum."""
    rows = [
        (
            each["form"] + (" of the file" if each["is_shared"] else ""),
            f"{each['tensors']:,}",
            f"{each['weights']:,}",
            f"{each['bits']:.2f}",
            _size(each["bytes"]),
        )
        for each in forms
    ]
    tensors, weights, size = (
        sum(each[key] for each in forms) for key in ("tensors", "weights", "bytes")
    )
    total = ("total", f"{tensors:,}", f"{weights:,}", f"{8 * size / weights:.2f}", _size(size))
    head = (title, "tensors", "weights", "bits per weight", size_title)
    print_table([head, *rows, total], " rrrr")


def _held(part: str, training: dict[str, Any]) -> str:
    """What a part of the memory to train holds; nothing for a part without any."""
    if not training[part]:
        return ""
    if part == "weights" and training["precision"] == "float32":
        return "the model"  # of which there is no copy
    if part == "gradients":
        return f"those of {plural(training['workers'], 'worker')}, and their sum"
    return HELD.get(part, "")


def _size(number: float) -> str:
    return short_number(number, 1024, ("bytes", "KiB", "MiB", "GiB", "TiB"))
