"""Convert pickled weights to safetensors in the sandbox process (see `trifold.sandbox`); imports
nothing of trifold.

PyTorch's `weights_only` unpickler builds tensors itself and rejects everything else that a file
names.
"""

import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file


class PickleRefusedError(Exception):
    """The reason why a file is refused."""


def answer(request: dict[str, str]) -> dict[str, Any]:
    """Convert `file` to `output`. Returns {"tied": other names of tensors -> name} or {"error":
    …}.
    """
    try:
        return {"tied": save(read(Path(request["file"])), Path(request["output"]))}
    except PickleRefusedError as error:
        return {"error": str(error)}
    except SafetensorError as error:
        return {"error": f"its tensors cannot be converted ({error})"}
    except Exception as error:  # PyTorch raises many kinds for a broken file
        first = (str(error).strip().splitlines() or [""])[0]
        if "weights_only" in first:  # advice to run the file
            first = "PyTorch does not read it"
        if isinstance(error, MemoryError) or "allocate memory" in first:
            return {"error": "needs more memory than its size explains; do not trust this file"}
        what = f"{type(error).__name__}: {first[:300]}"
        return {"error": f"damaged, truncated or no weights ({what}); copy the file again"}


def read(file: Path) -> dict[str, torch.Tensor]:
    """The tensors of a pickle by name. Raises PickleRefusedError if it holds anything else."""
    try:
        # Files from before PyTorch 1.6 are not archives, and cannot be mapped into memory.
        content = torch.load(
            file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file)
        )
    except pickle.UnpicklingError as error:
        raise PickleRefusedError(_explain(str(error))) from None
    if not isinstance(content, dict):
        raise PickleRefusedError(f"holds a {type(content).__name__}, not tensors by name")
    for name, value in content.items():
        if not isinstance(name, str):
            raise PickleRefusedError(f"holds the name {str(name)[:60]!r}, which is not text")
        _check(name, value)
    return {name: value.detach() for name, value in content.items()}


def _explain(message: str) -> str:
    """Why the unpickler stopped, in our words: its message advises to run the file."""
    named = re.search(r"GLOBAL (\S+)", message)
    instruction = re.search(r"Unsupported operand (\d+)", message)
    reason = "it is not a pickle of tensors alone"
    if named is not None:
        reason = f"it names {named[1][:60]}, which no weights need"
    elif instruction is not None:
        reason = f"it has the pickle instruction {instruction[1]}, which no weights need"
    return f"refused, and not run: {reason}; do not trust this file"


def _check(name: str, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        raise PickleRefusedError(f"holds {name[:60]!r}, a {type(value).__name__} and not a tensor")
    if value.layout is not torch.strided or value.is_quantized or value.device.type != "cpu":
        raise PickleRefusedError(f"holds {name[:60]!r}, which is not a plain tensor")
    if value.numel() * value.itemsize > value.untyped_storage().nbytes():
        raise PickleRefusedError(
            f"holds {name[:60]!r}, which claims to be {tuple(value.shape)} and has fewer numbers"
        )


def save(tensors: dict[str, torch.Tensor], path: Path) -> dict[str, str]:
    """Write every tensor once. Returns the other names of tied tensors."""
    first: dict[tuple[Any, ...], str] = {}
    tied: dict[str, str] = {}
    saved: dict[str, torch.Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        same = (storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and first.setdefault(same, name) != name:
            tied[name] = first[same]
            continue
        saved[name] = tensor.contiguous()
        if storage in storages:  # parts of one may overlap, which the format does not allow
            saved[name] = saved[name].clone()
        storages.add(storage)
    save_file(saved, path, metadata={"format": "pt"})
    return tied
