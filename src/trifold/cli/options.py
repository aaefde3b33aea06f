"""Options that several commands share, and the options that are derived from GenerationConfig."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin

import typer

Function = TypeVar("Function", bound=Callable[..., Any])

Model: TypeAlias = Annotated[
    str, typer.Argument(metavar="MODEL", help="A run, a model folder, or a hub id.", show_default=False)
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Device: TypeAlias = Annotated[
    str | None, typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:1 or mps.", show_default="auto")
]
Dtype: TypeAlias = Annotated[
    Literal["float32", "bfloat16", "float16"], typer.Option(help="Precision of the computation.")
]
Weights: TypeAlias = Annotated[
    Literal["int8"] | None,
    typer.Option(help="Store matrices as int8: faster, slightly less exact.", show_default="as --dtype"),
]
Beams: TypeAlias = Annotated[int | None, typer.Option(metavar="N", help="Beam search with N beams.")]
BatchSize: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", help="Texts per batch; default: by memory.", min=1)
]
Out: TypeAlias = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Write the results to this file.")
]

METAVARS: dict[Any, str] = {int: "N", float: "X", str: "TEXT"}


def given(**options: Any) -> dict[str, Any]:
    """The options that were given; typer passes an empty list for a repeatable option that was not."""
    return {name: value for name, value in options.items() if value is not None and value != []}


def with_generation_options(command: Function) -> Function:
    """Decorator: replace `**options` in the signature of a command by an option for each generation setting.

    Settings that hold several token ids have no option.
    """
    from trifold.generate.config import GenerationConfig

    signature = inspect.signature(command, eval_str=True)
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    derived = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, field in GenerationConfig.model_fields.items()
        if (annotation := _option(name, field.annotation, str(field.description))) is not None
    ]
    where = next((i for i, each in enumerate(own) if each.kind is each.KEYWORD_ONLY), len(own))
    parameters = [*own[:where], *derived, *own[where:]]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return command


def generation_settings(options: dict[str, Any]) -> dict[str, Any]:
    """The generation settings among the options that were given; `true` and `false` become booleans."""
    booleans = {"true": True, "false": False}
    return {
        name: booleans.get(value, value) if isinstance(value, str) else value
        for name, value in given(**options).items()
    }


def _option(name: str, annotation: Any, description: str) -> Any:
    """The annotation of a typer option for a setting of that type; None for a type without an option."""
    help = f"{description[0].upper()}{description[1:]}."
    flag = f"--{name.replace('_', '-')}"
    types = _plain_types(annotation)
    choices = [choice for each in types if get_origin(each) is Literal for choice in get_args(each)]
    if choices:
        choices = ["true", "false", *choices] if bool in types else choices
        return Annotated[Literal[tuple(choices)] | None, typer.Option(flag, help=help)]
    if len(types) > 1:
        return None
    if types[0] is bool:
        flags = f"{flag}/--no-{flag.removeprefix('--')}"
        return Annotated[bool | None, typer.Option(flags, help=help, show_default=False)]
    if types[0] in METAVARS:
        return Annotated[types[0] | None, typer.Option(flag, metavar=METAVARS[types[0]], help=help)]
    if get_origin(types[0]) is list and _plain_types(get_args(types[0])[0]) == [str]:
        help = f"{help.removesuffix('.')}; repeatable."
        return Annotated[list[str] | None, typer.Option(flag, metavar="TEXT", help=help)]
    return None


def _plain_types(annotation: Any) -> list[Any]:
    """The members of a union except None, without their constraints."""
    if get_origin(annotation) is Annotated:
        return _plain_types(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [each for member in get_args(annotation) for each in _plain_types(member)]
    return [] if annotation is NoneType else [annotation]
