"""Options that several verbs share, so that they mean the same and are said in the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

Model: TypeAlias = Annotated[str, typer.Argument(metavar="MODEL", help="A run, a model folder, or a hub id.")]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for a program to read.")]
Device: TypeAlias = Annotated[
    str | None, typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:1 or mps.", show_default="auto")
]
Dtype: TypeAlias = Annotated[
    Literal["float32", "bfloat16", "float16"], typer.Option(help="The precision to compute in.")
]
Weights: TypeAlias = Annotated[
    Literal["int8"] | None,
    typer.Option(
        help="Keep the matrices in one byte a weight: quicker, and a little off.", show_default="as --dtype"
    ),
]
Beams: TypeAlias = Annotated[int | None, typer.Option(metavar="N", help="Beam search with N beams.")]
BatchSize: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", help="Texts at once; by memory unless given.", min=1)
]
Out: TypeAlias = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="Write the results there instead of to the terminal."),
]
