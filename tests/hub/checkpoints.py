"""Read and edit the files of a model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from trifold.nn import Transformer


def settings(folder: Path, name: str = "config.json") -> dict[str, Any]:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def edit(folder: Path, name: str = "config.json", **values: object) -> None:
    """Change keys of a JSON file; "absent" removes a key."""
    kept = {
        key: value for key, value in (settings(folder, name) | values).items() if value != "absent"
    }
    (folder / name).write_text(json.dumps(kept), encoding="utf-8")


def read(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def write(folder: Path, tensors: dict[str, Tensor]) -> None:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def equal(one: Transformer, other: Transformer) -> bool:
    """Whether the models have the same parameters, bit by bit."""
    pairs = zip(one.named_parameters(), other.named_parameters(), strict=True)
    return all(name == other_name and torch.equal(a, b) for (name, a), (other_name, b) in pairs)
