"""`trifold show`: how a model is built, in what it differs from the Transformer of 2017, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trifold.cli.options import Json
from trifold.cli.streams import print_json

if TYPE_CHECKING:
    from trifold.nn.config import ModelConfig
    from trifold.recipe import Recipe
    from trifold.train.memory_estimate import TrainingMemory

Precision = Literal["float32", "bfloat16"]
EXAMPLES = (
    "trifold show transformer-big",
    "trifold show llama2-7b",
    "trifold show runs/demo",
    "trifold show multi30k-en-de --batch-tokens 8192 --length 30 --precision bfloat16",
)


def run(
    what: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|PRESET|RECIPE", help="A run, a model folder, a hub id, a preset or a recipe."
        ),
    ],
    batch_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Tokens of a training batch, on each side.", show_default="4096"
        ),
    ] = None,
    length: Annotated[int, typer.Option(metavar="N", min=1, help="Tokens of a sequence.")] = 32,
    precision: Annotated[
        Precision | None,
        typer.Option(help="Of the arithmetic.", show_default="the recipe's on this machine, else float32"),
    ] = None,
    json: Json = False,
) -> None:
    """Draw the architecture and compare it with the Transformer of 2017, part by part; count its parameters, arithmetic
    and memory. Allocates nothing.
    """
    subject = find(what)
    tokens = batch_tokens or subject.batch_tokens
    if json:
        print_json(facts(subject, tokens, length, precision))
    else:
        print(report(subject, tokens, length, precision))


@dataclass(frozen=True)
class Subject:
    """What is shown: its name, its config, and what should be known about the two."""

    name: str
    config: ModelConfig
    batch_tokens: int = 4096
    remark: str = ""
    recipe: Recipe | None = None


def find(what: str) -> Subject:
    """A preset, a recipe (shipped or a file), or a model. Raises UsageError or CheckpointError where it is none."""
    from pathlib import Path

    from trifold.hub.presets import PRESETS as PUBLISHED
    from trifold.nn.config import PRESETS
    from trifold.recipe import load_recipe, recipe_names

    if what in PRESETS:
        return Subject(what, PRESETS[what])
    if what in PUBLISHED and not Path(what).is_dir():
        return _published(what)
    if Path(what).suffix in (".yaml", ".yml") or (what in recipe_names() and not Path(what).is_dir()):
        recipe = load_recipe(what)
        remark = "vocabulary: as large as the recipe allows"
        return Subject(recipe.name, _as_trained(recipe), recipe.batch.tokens, remark, recipe)
    return Subject(what, _config_of(what))


def _published(what: str) -> Subject:
    """As announced, where that is another number than the one that there is."""
    from trifold.hub.presets import PRESETS
    from trifold.look.parameters import count

    preset, config = PRESETS[what], PRESETS[what].config
    said = "" if preset.agrees(count(config)) else f"announced as {preset.announced}"
    return Subject(what, config, remark=said)


def _as_trained(recipe: Recipe) -> ModelConfig:
    """The tokenizer, which is trained first, decides how large the vocabulary is."""
    size = recipe.tokenizer.vocab_size
    sizes = {"vocab_size": size, "target_vocab_size": None if recipe.tokenizer.joint else size}
    config: ModelConfig = recipe.model.model_copy(update=sizes)
    return config


def _config_of(what: str) -> ModelConfig:
    from trifold.hub import read_config, resolve

    return read_config(resolve(what))


def facts(subject: Subject, tokens: int, length: int, asked: Precision | None) -> dict[str, Any]:
    """Everything that the report says, as numbers: parameters, FLOPs, bytes."""
    from trifold.look import costs, differences, parameters

    config = subject.config
    if config.n_patches:  # a picture has as many tokens as it has
        length = config.max_positions
    flops = costs.forward_flops(config, length, length)
    training, precision, workers = to_train(subject, tokens, length, asked)
    inference = costs.inference_memory(config, precision)
    return {
        "name": subject.name,
        "remark": subject.remark,
        "shape": config.shape,
        "config": config.model_dump(),
        "compared_with_2017": [part._asdict() for part in differences.compare(config)],
        "parameters": parameters.count(config),
        "parts": [part._asdict() for part in parameters.parameter_table(config)],
        "length": length,
        "flops_per_token": {
            "forward": flops._asdict(),
            "training": dict(zip(flops._fields, flops.training, strict=True)),
        },
        "training_bytes": {
            **training._asdict(),
            "total": training.total,
            "batch_tokens": tokens,
            "precision": precision,
            "workers": workers,
        },
        "inference_bytes": {**inference._asdict(), "precision": precision},
    }


def to_train(
    subject: Subject, tokens: int, length: int, asked: Precision | None
) -> tuple[TrainingMemory, str, int]:
    """Bytes to learn on this machine, in which precision, by how many workers; of a recipe, with its optimiser and all
    that it keeps, as `trifold train` checks before it begins.
    """
    from trifold.look import costs
    from trifold.train.device import choose_precision, choose_workers, find_device
    from trifold.train.memory import estimate_memory

    device, recipe = find_device(), subject.recipe
    on_cpu = device.type == "cpu"
    if recipe is None:
        precision, workers = asked or "float32", choose_workers(None, device, tokens)
        memory = costs.training_memory(
            subject.config, tokens, length, precision, workers=workers, on_cpu=on_cpu
        )
        return memory, precision, workers
    dtype = choose_precision(asked or recipe.train.precision, device)
    workers = choose_workers(recipe.train.worker_count, device, tokens)
    recipe = recipe.model_copy(update={"batch": recipe.batch.model_copy(update={"tokens": tokens})})
    need = estimate_memory(recipe, subject.config, length, dtype, workers, on_cpu=on_cpu)
    return need.memory, str(dtype).removeprefix("torch."), workers


def report(subject: Subject, tokens: int, length: int, asked: Precision | None) -> str:
    """The drawing and the tables, for a person."""
    from trifold.look.drawing import drawing

    told = facts(subject, tokens, length, asked)
    precision = told["training_bytes"]["precision"]
    heading = f"{subject.name}: {told['shape']}, {told['parameters']:,} parameters"
    return "\n\n".join(
        [
            heading + (f" ({subject.remark})" if subject.remark else ""),
            drawing(subject.config),
            _compared(told),
            _parameters(told),
            f"floating-point operations for a token, in sequences of {told['length']} tokens\n\n"
            + _flops(told),
            f"memory to train in {precision}, {tokens:,} tokens a batch\n\n" + _training(told),
            f"memory to use in {precision}\n\n" + _inference(told),
        ]
    )


def _compared(told: dict[str, Any]) -> str:
    from trifold.look.canvas import table

    rows = [
        (part["part"], part["size"], part["verdict"], part["what"]) for part in told["compared_with_2017"]
    ]
    return table([("part", "size", "as in 2017", "what it is"), *rows])


def _parameters(told: dict[str, Any]) -> str:
    from trifold.look.canvas import table

    total = told["parameters"]
    rows = [
        (
            part["name"],
            part["formula"],
            f"{part['parameters']:,}",
            f"{100 * part['parameters'] / total:.1f} %",
        )
        for part in told["parts"]
    ]
    return table(
        [("part", "formula", "parameters", "share"), *rows, ("total", "", f"{total:,}", "100.0 %")], "  rr"
    )


def _flops(told: dict[str, Any]) -> str:
    from trifold.look.canvas import table

    both = told["shape"] == "encoder-decoder"
    rows = []
    for side in ("source", "target"):
        forward, training = (told["flops_per_token"][way][side] for way in ("forward", "training"))
        if forward:
            rows.append((f"{side} token" if both else "token", _short(forward), _short(training)))
    return table([("", "forward", "training"), *rows], " rr")


def _training(told: dict[str, Any]) -> str:
    from trifold.look.canvas import table
    from trifold.train.memory_estimate import TrainingMemory

    names = (*TrainingMemory._fields, "total")
    return table([("", "memory"), *((name, _size(told["training_bytes"][name])) for name in names)], " r")


def _inference(told: dict[str, Any]) -> str:
    from trifold.look.canvas import table

    names = {
        "weights": "weights",
        "cache_per_source_token": "cache, a source token",
        "cache_per_target_token": "cache, a target token and beam",
    }
    rows = [
        (title, _size(told["inference_bytes"][name]))
        for name, title in names.items()
        if told["inference_bytes"][name]
    ]
    return table([("", "memory"), *rows], " r")


def _short(number: float) -> str:
    for letter in ("", "k", "M", "G"):
        if number < 1000:
            return f"{number:.4g} {letter}".rstrip()
        number /= 1000
    return f"{number:,.4g} T"


def _size(number: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.4g} {unit}"
        number /= 1024
    return f"{number:,.4g} TiB"
