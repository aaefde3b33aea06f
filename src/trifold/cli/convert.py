"""`trifold convert`: write a model in another format, precision or shard size."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trifold import disk
from trifold.cli.options import DTYPES, Codec, Json, Overwrite, argument, dtype_option, value
from trifold.cli.progress import byte_progress
from trifold.cli.terminal import print_json, print_note
from trifold.errors import UsageError, check_utf8

if TYPE_CHECKING:
    from trifold.hub.gguf.save import Saved

EXAMPLES = (
    "trifold convert gpt2 gpt2-native --to native",
    "trifold convert EleutherAI/gpt-j-6b gpt-j --dtype bfloat16 --shard-size 2GB",
    "trifold convert old-folder new-folder --trust-pickle",
    "trifold convert gpt2 gpt2.gguf --weights q8_0",
)


def run(
    old: Annotated[str, argument("OLD", "A run, a model folder, or a hub id.")],
    new: Annotated[
        Path,
        argument("NEW", "The folder to create; NAME.gguf: a GGUF file for llama.cpp and Ollama."),
    ],
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
        str | None,
        value("SIZE", "Largest weight file: 500MB, 2GiB, or bytes.", show_default="5GB"),
    ] = None,
    weights: Annotated[
        Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_k_m"] | None,
        typer.Option(
            help="Of a GGUF file: the type of matrices, of 32, 16, 16, 8.5, 4.5 or about 4.9 bits "
            "per weight.",
            show_default="f16, bf16 or f32, as in OLD",
        ),
    ] = None,
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

    A GGUF file holds the weights with tokenizer and chat template; NAME.Modelfile beside it is for
    `ollama create`. Quantized weights are those of llama.cpp.
    """
    check_utf8(old, "OLD")
    check_utf8(str(new), "NEW")

    is_file = new.suffix.lower() == ".gguf"
    given = {"--to": to, "--dtype": dtype, "--shard-size": shard_size}
    _check_options(given, weights, is_file=is_file)
    disk.check_free(new.expanduser(), overwrite=overwrite, is_folder=not is_file)

    import torch
    from rich.filesize import decimal

    from trifold.hub import read_config, resolve
    from trifold.hub.convert import convert
    from trifold.hub.gguf.save import save_gguf
    from trifold.hub.weights import MAX_SHARD
    from trifold.pipeline import read_fitting_tokenizers

    folder = resolve(old, pickled=trust_pickle)
    tokenizer_folder = None
    if tokenizer is not None:
        tokenizer_folder = resolve(tokenizer)
        read_fitting_tokenizers(tokenizer, read_config(folder), old)
    if is_file:
        with byte_progress("converting") as advance:
            saved = save_gguf(
                folder,
                new.expanduser(),
                weights=weights,
                trust_pickle=trust_pickle,
                tokenizer=tokenizer_folder,
                overwrite=overwrite,
                on_written=advance,
            )
        if json:
            print_json({"old": old, "new": str(new), **saved._asdict()})
        else:
            _print_saved(new, saved)
        return
    with byte_progress("converting") as advance:
        done = convert(
            folder,
            new.expanduser(),
            to=to,
            dtype=None if dtype is None else getattr(torch, dtype),
            max_shard_size=shard_size or MAX_SHARD,
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


def _check_options(given: Mapping[str, str | None], weights: str | None, *, is_file: bool) -> None:
    """Raise UsageError for options of a folder with a file, or the reverse."""
    if weights is not None and not is_file:
        raise UsageError("--weights: only GGUF files have it; name the new file NAME.gguf")
    for option, chosen in given.items():
        if is_file and chosen is not None:
            raise UsageError(f"{option}: a GGUF file has none; leave it out, or give --weights")


def _print_saved(new: Path, saved: "Saved") -> None:
    from rich.filesize import decimal

    print(f"{new}: {saved.architecture}, {saved.tensors:,} tensors, {decimal(saved.bytes)}")
    print("  " + ", ".join(f"{count:,} {kind}" for kind, count in saved.types.items()))
    print(f"  {saved.files[1]}: for ollama create NAME -f {new.with_suffix('.Modelfile')}")
    if saved.unused:
        print_note(f"unused tensors, not written: {len(saved.unused):,}; --json lists them")
    for note in saved.notes:
        print_note(note)
