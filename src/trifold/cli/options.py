"""Options that several commands share, options declared in tables, and those derived from
GenerationConfig.
"""

import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import typer

from trifold import dtypes
from trifold.cli.panels import FIRST
from trifold.dtypes import dtype_name
from trifold.errors import join_or

Function = TypeVar("Function", bound=Callable[..., Any])


MAX_NUMBER = 2**31 - 1  # of options without a limit of their own, as in recipes


def check_number(number: int | None) -> int | None:
    """The number of an option. Raises BadParameter for one that is too large.

    A callback, because the help of an option shows its `max`, which says nothing here.
    """
    if number is not None and number > MAX_NUMBER:
        raise typer.BadParameter(f"{number} is too large; at most {MAX_NUMBER:,} is possible")
    return number


def argument(metavar: str, help: str, **more: Any) -> Any:
    """The declaration of an argument; `more` are arguments of typer.Argument."""
    return typer.Argument(metavar=metavar, help=help, **more)


def value(metavar: str, help: str, *flags: str, **more: Any) -> Any:
    """The declaration of an option with a value; `more` are arguments of typer.Option."""
    if metavar == "N" and "max" not in more:
        more["callback"] = check_number
    return typer.Option(*flags, metavar=metavar, help=help, **more)


Model = Annotated[str, argument("MODEL", "A run, a model folder, or a hub id.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Device = Annotated[
    str | None, value("DEVICE", "auto, cpu, cuda, cuda:1 or mps.", show_default="auto")
]


def dtype_option(choices: Sequence[str], help: str, *flags: str, **more: Any) -> Any:
    """The declaration of an option with one of these types of numbers, also by names such as bf16;
    `more` are arguments of typer.Option.
    """

    def parse(text: str) -> str:
        name = dtype_name(text)
        if name in choices:
            return name
        remedy = f"give {join_or(choices)}"
        raise typer.BadParameter(f"{text!r:.40} is not known; {remedy}")

    metavar = f"<{'|'.join(choices)}>"
    return typer.Option(*flags, parser=parse, metavar=metavar, help=help, **more)


DTYPES = ("float32", "bfloat16", "float16")
Dtype = Annotated[str, dtype_option(DTYPES, "Precision of the computation.")]
Codec = Annotated[
    str | None, value("FOLDER", "Folder of the tokenizer.", show_default="that of the model")
]
# Of commands that run a model for its predictions, and of `show`, which counts their bytes. `look`,
# which shows numbers of its computation, and commands that train it have full weights.
Weights = Annotated[
    dtypes.Weights,
    typer.Option(
        help="Matrices in memory: file (types of 16 bits and fewer as they are stored), full (all "
        "in --dtype), or int8 or int4, which are faster and less exact."
    ),
]
BatchSize = Annotated[int | None, value("N", "Texts per batch; default: by memory.", min=1)]
Out = Annotated[Path | None, value("FILE", "Write the results to this file.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace results that are already there.")
]
AsText = Annotated[
    bool, typer.Option("--text", help="Take a text that is the name of a file as a text.")
]

METAVARS: dict[Any, str] = {int: "N", float: "X", str: "TEXT", Path: "FILE"}
METAVARS |= {list[str]: "TEXT", list[int]: "N"}


def given(**options: Any) -> dict[str, Any]:
    """The options that were given; typer passes an empty list for a repeatable option that was
    not.
    """
    return {name: value for name, value in options.items() if value is not None and value != []}


def option(kind: Any, help: str, *flags: str, **more: Any) -> Any:
    """The annotation of an option of that type that may be left out; `more` are arguments of
    typer.Option.
    """
    if kind is int and "max" not in more:
        more["callback"] = check_number
    return Annotated[
        kind | None, typer.Option(*flags, help=help, **{"metavar": METAVARS.get(kind), **more})
    ]


def option_words(**options: Any) -> str:
    """The options that were given as they are typed, each after a space."""
    words = list[str]()
    for name, values in given(**options).items():
        flag = name.replace("_", "-")
        for value in values if isinstance(values, list) else [values]:
            if value is False:
                words.append(f"--no-{flag}")
            elif value is True:
                words.append(f"--{flag}")
            else:
                words += [f"--{flag}", shlex.quote(str(value))]
    return "".join(f" {word}" for word in words)


def with_options(options: Mapping[str, Any]) -> Callable[[Function], Function]:
    """Decorator: replace `**options` in the signature of a command by these, name -> annotation."""

    def decorate(command: Function) -> Function:
        signature = inspect.signature(command, eval_str=True)
        keyword_only = inspect.Parameter.KEYWORD_ONLY
        before: list[inspect.Parameter] = []
        after: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            if parameter.kind is keyword_only:
                after.append(parameter)
            elif parameter.kind is not parameter.VAR_KEYWORD:
                before.append(parameter)
        added = [
            inspect.Parameter(name, keyword_only, default=None, annotation=annotation)
            for name, annotation in options.items()
        ]
        parameters = [*before, *added, *after]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return command

    return decorate


# Settings of generation, by the panel of `trifold generate --help` that has their options.
GENERATION_PANELS: dict[str, Sequence[str]] = {
    FIRST: (
        *("max_new_tokens", "num_beams", "temperature", "top_k", "top_p", "seed"),
        "num_return_sequences",
    ),
    "Length and end": ("min_new_tokens", "max_length", "min_length", "stop_strings"),
    "Sampling": ("do_sample", "min_p", "typical_p", "top_k_form", "penalty_alpha"),
    "Beams": (
        *("length_penalty", "length_penalty_form", "early_stopping", "num_beam_groups"),
        *("diversity_penalty", "renormalize_logits"),
    ),
    "Repetition": (
        *("repetition_penalty", "presence_penalty", "frequency_penalty"),
        *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
    ),
    "Constraints": (
        *("force_words", "bad_words", "suppress_tokens", "begin_suppress_tokens"),
        "forced_bos_token_id",
    ),
    "Prompt, languages and special tokens": (
        *("prompt", "source_language", "target_language", "parse_special"),
    ),
    "Speed and memory": (
        *("num_assistant_tokens", "prompt_lookup_num_tokens", "max_matching_ngram_size"),
        *("cache", "prefill_chunk_size"),
    ),
}


def generation_options() -> dict[str, Any]:
    """An option for each generation setting except those that hold phrases of token ids."""
    from trifold.generation_config import GenerationConfig

    fields = GenerationConfig.model_fields.items()
    types = {name: _plain_types(field.annotation) for name, field in fields}
    options = {
        name: _generation_option(types[name], str(field.description)) for name, field in fields
    }
    return {name: option for name, option in options.items() if option is not None}


def generation_settings(options: dict[str, Any]) -> dict[str, Any]:
    """The generation settings among the options that were given; `true` and `false` become
    booleans.
    """
    settings = given(**options)
    for name, value in settings.items():
        if value in ("true", "false"):
            settings[name] = value == "true"
    return settings


def _generation_option(types: list[Any], description: str) -> Any:
    """The option for a setting of these types; None for types without an option."""
    help = f"{description[0].upper()}{description[1:]}."
    literals = [kind for kind in types if get_origin(kind) is Literal]
    choices = [choice for literal in literals for choice in get_args(literal)]
    if choices and bool in types:
        choices = ["true", "false", *choices]
    if choices:
        return option(Literal[tuple(choices)], help)
    if len(types) > 1:
        return None
    if get_origin(types[0]) is list:
        members = _plain_types(get_args(types[0])[0])
        if members not in ([str], [int]):
            return None
        return option(list[members[0]], f"{help.removesuffix('.')}; repeatable.")  # type: ignore[valid-type]
    if types[0] in (bool, *METAVARS):
        return option(types[0], help)
    return None


def _plain_types(annotation: Any) -> list[Any]:
    """The members of a union except None, without their constraints."""
    if get_origin(annotation) is Annotated:
        return _plain_types(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [kind for member in get_args(annotation) for kind in _plain_types(member)]
    if annotation is NoneType:
        return []
    return [annotation]
