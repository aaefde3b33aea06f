"""`trifold convert`: a model folder in another form, precision or number of files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trifold.cli.options import Json
from trifold.cli.streams import bar, clean, print_json

if TYPE_CHECKING:
    from trifold.hub.convert import Converted

EXAMPLES = (
    "trifold convert runs/demo demo-bf16 --dtype bfloat16",
    "trifold convert gpt2 gpt2-native --to native",
    "trifold convert EleutherAI/gpt-j-6b gpt-j --dtype bfloat16 --shard-size 2GB",
    "trifold convert old-folder new-folder --trust-pickle",
)


def run(
    old: Annotated[str, typer.Argument(metavar="OLD", help="A run, a model folder, or a hub id.")],
    new: Annotated[
        Path, typer.Argument(metavar="NEW", help="The folder to make; it must not hold anything.")
    ],
    to: Annotated[
        Literal["hugging-face", "native"] | None,
        typer.Option(
            help="The form of a family that others know, or our own, which can say everything.",
            show_default="hugging-face where a family fits",
        ),
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        typer.Option(help="The precision of the weights.", show_default="as it is"),
    ] = None,
    shard_size: Annotated[
        str, typer.Option(metavar="SIZE", help="The largest file of weights: 500MB, 2GiB, or bytes.")
    ] = "5GB",
    trust_pickle: Annotated[
        bool,
        typer.Option(
            "--trust-pickle",
            help="Open pickled weights (pytorch_model.bin), as tensors only and in a process of its own.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Write a model in another form, precision or size of file, with its tokenizer and its settings.

    Weights become safetensors, tensor by tensor; a folder that holds something already is never written to.
    """
    clean(old, "OLD")
    clean(str(new), "NEW")

    import torch

    from trifold.hub import resolve
    from trifold.hub.convert import convert

    folder = resolve(old, pickled=trust_pickle)
    with bar("converting") as advance:
        done = convert(
            folder,
            new.expanduser(),
            to=to,
            dtype=None if dtype is None else getattr(torch, dtype),
            max_shard_size=shard_size,
            trust_pickle=trust_pickle,
            on_written=advance,
        )
    if json:
        print_json({"old": old, "new": str(new), **done._asdict()})
    else:
        print(report(new, done))


def report(new: Path, done: Converted) -> str:
    """What was written, for a person."""
    family = done.family if done.family == done.was else f"{done.was} → {done.family}"
    size = next(
        f"{done.bytes / unit:,.1f} {name}"
        for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "bytes"))
        if done.bytes >= unit or unit == 1
    )
    return "\n".join(
        [
            f"{new}: {family}, {done.tensors:,} tensors, {size} of {done.dtype}",
            *(f"  {file}" for file in done.files),
        ]
    )
