"""`trifold convert`: write a model in another format, precision or shard size."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from trifold import disk
from trifold.cli.options import DTYPES, Codec, Json, Overwrite, argument, dtype_option, value
from trifold.cli.progress import byte_progress
from trifold.cli.terminal import print_json, print_note
from trifold.errors import check_utf8

EXAMPLES = (
    "trifold convert runs/demo demo-bf16 --dtype bfloat16",
    "trifold convert gpt2 gpt2-native --to native",
    "trifold convert EleutherAI/gpt-j-6b gpt-j --shard-size 2GB",
    "trifold convert old-folder new-folder --trust-pickle",
)


def run(
    old: Annotated[str, argument("OLD", "A run, a model folder, or a hub id.")],
    new: Annotated[Path, argument("NEW", "The folder to create.")],
    to: Annotated[
        Literal["hugging-face", "native"] | None,
        typer.Option(
            help="A family that Hugging Face knows, or the native format, which can express "
            "every model.",
            show_default="hugging-face if a family fits",
        ),
    ] = None,
    dtype: Annotated[
        str | None, dtype_option(DTYPES, "Precision of the weights.", show_default="unchanged")
    ] = None,
    shard_size: Annotated[
        str, value("SIZE", "Largest weight file: 500MB, 2GiB, or bytes.")
    ] = "5GB",
    trust_pickle: Annotated[
        bool,
        typer.Option(
            "--trust-pickle",
            help="Read pickled weights (pytorch_model.bin), tensors only and in a separate "
            "process.",
        ),
    ] = False,
    tokenizer: Codec = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Write a model in another format, precision or shard size, with its tokenizer and its
    settings.

    Weights are written as safetensors, one tensor at a time. With --overwrite, a model in the
    folder is replaced, and other files never are.
    """
    check_utf8(old, "OLD")
    check_utf8(str(new), "NEW")

    disk.check_free(new.expanduser(), overwrite=overwrite, is_folder=True)

    import torch
    from rich.filesize import decimal

    from trifold.hub import read_config, resolve
    from trifold.hub.convert import convert
    from trifold.pipeline import read_fitting_tokenizers

    folder = resolve(old, pickled=trust_pickle)
    tokenizer_folder = None
    if tokenizer is not None:
        tokenizer_folder = resolve(tokenizer)
        read_fitting_tokenizers(tokenizer, read_config(folder), old)
    with byte_progress("converting") as advance:
        done = convert(
            folder,
            new.expanduser(),
            to=to,
            dtype=None if dtype is None else getattr(torch, dtype),
            max_shard_size=shard_size,
            trust_pickle=trust_pickle,
            tokenizer=tokenizer_folder,
            overwrite=overwrite,
            on_written=advance,
        )
    if json:
        print_json({"old": old, "new": str(new), **done._asdict()})
        return
    family = done.family
    if done.was != done.family:
        family = f"{done.was} → {done.family}"
    print(f"{new}: {family}, {done.tensors:,} tensors, {decimal(done.bytes)} of {done.dtype}")
    for file in done.files:
        print(f"  {file}")
    if done.unused:
        print_note(f"unused tensors, not written: {len(done.unused):,}; --json lists them")
