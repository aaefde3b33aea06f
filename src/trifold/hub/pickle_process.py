"""The process in which pickled weights are opened: names of files in, safetensors out, and a line of JSON for each.

    python -P pickle_process.py SCRATCH FILE…

Nothing of trifold is imported here, and nothing that a file asks for: PyTorch's unpickler of `weights_only` builds
tensors by itself and refuses all else.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

HEADROOM = 512 * 2**20  # bytes above what is in use before the first file is opened, and three times its size


class Refused(Exception):
    """Why a file is not taken."""


def bound_memory(file: Path) -> None:
    """What the file's size does not explain cannot be had, where the system can bound it."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        now = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
        most = now + 3 * file.stat().st_size + HEADROOM
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def read(file: Path) -> dict[str, torch.Tensor]:
    """The tensors of a pickle by name. Raises Refused where it holds anything else."""
    try:
        # Files of before PyTorch 1.6 are no archives, and cannot be mapped into memory.
        held = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except pickle.UnpicklingError as error:
        raise Refused(_why(str(error))) from None
    if not isinstance(held, dict):
        raise Refused(f"holds a {type(held).__name__}, not tensors by name")
    for name, value in held.items():
        if not isinstance(name, str):
            raise Refused(f"holds the name {str(name)[:60]!r}, which is no text")
        _check(name, value)
    return {name: value.detach() for name, value in held.items()}


def _why(said: str) -> str:
    asked = re.search(r"GLOBAL (\S+)", said)
    if asked is not None:
        return (
            f"refused, and nothing in it was run: it asks for {asked[1]}, which no weights need; "
            "do not trust this file"
        )
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    blamed = [line.partition("WeightsUnpickler error:")[2].strip() for line in lines]
    return f"refused, and nothing in it was run: {next(filter(None, blamed), lines[0] if lines else '')}"


def _check(name: str, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        raise Refused(f"holds {name[:60]!r}, a {type(value).__name__} and no tensor")
    if value.layout is not torch.strided or value.is_quantized or value.device.type != "cpu":
        raise Refused(f"holds {name[:60]!r}, which is no plain tensor")
    if value.numel() * value.itemsize > value.untyped_storage().nbytes():
        raise Refused(f"holds {name[:60]!r}, which claims to be {tuple(value.shape)} and has fewer numbers")


def hand_over(tensors: dict[str, torch.Tensor], path: Path) -> dict[str, str]:
    """Write the tensors, each once; gives the other names of those that are tied."""
    first: dict[tuple[Any, ...], str] = {}
    tied: dict[str, str] = {}
    whole: dict[str, torch.Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        same = (storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and first.setdefault(same, name) != name:
            tied[name] = first[same]
            continue
        # Parts of one storage may overlap, which the format does not allow.
        whole[name] = tensor.contiguous().clone() if storage in storages else tensor.contiguous()
        storages.add(storage)
    save_file(whole, path, metadata={"format": "pt"})
    return tied


def answer(file: Path, path: Path) -> dict[str, Any]:
    """{"tied": …}, or {"error": …}."""
    try:
        bound_memory(file)
        return {"tied": hand_over(read(file), path)}
    except Refused as error:
        return {"error": _printable(str(error))}
    except SafetensorError as error:
        return {"error": f"its tensors cannot be handed over ({_printable(str(error))})"}
    except Exception as error:  # whatever PyTorch makes of a broken file
        first = (str(error).strip().splitlines() or [""])[0]
        if isinstance(error, MemoryError) or "allocate memory" in first:
            return {"error": "asks for more memory than its size explains; do not trust this file"}
        what = _printable(f"{type(error).__name__}: {first[:300]}")
        return {"error": f"damaged, truncated or no weights ({what}); copy the file again"}


def _printable(text: str) -> str:
    """Names from a stranger's file do not get to command the terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def main() -> None:
    """Answer for each file, until one fails."""
    scratch, *files = (Path(word) for word in sys.argv[1:])
    print(json.dumps({"ready": True}), flush=True)
    for number, file in enumerate(files):
        said = answer(file, scratch / f"{number:05d}.safetensors")
        print(json.dumps(said), flush=True)
        if "error" in said:
            return


if __name__ == "__main__":
    main()
