"""The encoder that the peers export, and its batches: text or image -> vector of length 1."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from setting import LONGEST, ROWS
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

Run = Callable[..., np.ndarray]  # inputs of a batch -> its vectors (B, E)
Batch = tuple[np.ndarray, tuple[np.ndarray, ...]]  # numbers of the inputs, and the inputs


class TextEncoder(nn.Module):
    """The mean of the states of real tokens, divided by its length."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.model(input_ids=input_ids, attention_mask=attention_mask)[0]
        real = attention_mask.unsqueeze(-1).to(states.dtype)
        return F.normalize((states * real).sum(1) / real.sum(1), dim=-1)


class ImageEncoder(nn.Module):
    """The mean of the states of the class token and all patches, divided by its length."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> Tensor:
        return F.normalize(self.model(pixel_values)[0].mean(1), dim=-1)


def text_batches(folder: Path, texts: list[str]) -> Iterator[Batch]:
    """Token ids and masks (B, T) of texts, the longest first."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(LONGEST)
    tokenizer.no_padding()
    rows = [row.ids for row in tokenizer.encode_batch(texts)]
    order = np.argsort([-len(row) for row in rows], kind="stable")
    for start in range(0, len(order), ROWS):
        chosen = order[start : start + ROWS]
        ids = np.zeros((len(chosen), len(rows[chosen[0]])), np.int64)
        mask = np.zeros_like(ids)
        for place, number in enumerate(chosen):
            ids[place, : len(rows[number])] = rows[number]
            mask[place, : len(rows[number])] = 1
        yield chosen, (ids, mask)


def image_batches(folder: Path, images: list[np.ndarray]) -> Iterator[Batch]:
    """Pixels (B, 3, height, width) from -1 to 1 of images (height, width, 3) of bytes."""
    for start in range(0, len(images), ROWS):
        pixels = np.stack(images[start : start + ROWS]).transpose(0, 3, 1, 2)
        yield np.arange(start, start + len(pixels)), (pixels.astype(np.float32) / 127.5 - 1,)


BATCHES: dict[str, Callable[[Path, list[Any]], Iterator[Batch]]] = {
    "texts": text_batches,
    "images": image_batches,
}
ENCODERS = {"texts": TextEncoder, "images": ImageEncoder}


def encode(run: Run, batches: Iterable[Batch]) -> np.ndarray:
    """The vectors (N, E) of all batches in the order of the inputs."""
    done = [(chosen, run(*arrays)) for chosen, arrays in batches]
    numbers = np.concatenate([chosen for chosen, _ in done])
    return np.concatenate([vectors for _, vectors in done])[np.argsort(numbers)]


def torch_run(encoder: nn.Module) -> Run:
    """The function that runs an encoder of PyTorch, in its precision, on arrays."""
    dtype = next(encoder.parameters()).dtype

    @torch.inference_mode()
    def run(*arrays: np.ndarray) -> np.ndarray:
        tensors = [torch.from_numpy(array) for array in arrays]
        vectors = encoder(*(x.to(dtype) if x.is_floating_point() else x for x in tensors))
        return (vectors.float() if dtype is torch.bfloat16 else vectors).numpy()

    return run
