"""Text as a model wrote it, a sign a cell: the darker a cell, the less sure the model was of that token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from trifold.pipeline import Pipeline

DOUBT = "Oranges"
DARKEST = 1.6  # signs stay readable on the darkest cell that there can be


class Piece(NamedTuple):
    """What a token adds to the text, and its probability; None of what was given."""

    text: str
    probability: float | None


@torch.no_grad()
def pieces(pipeline: Pipeline, prompt: Sequence[int], written: Sequence[int]) -> list[Piece]:
    """A prompt (with the special tokens before it) and what was written behind it, token by token."""
    ids = [*prompt, *written]
    likely = pipeline.logits(torch.tensor([ids])).softmax(-1)[0]
    texts = pipeline.writer.decode([ids[:end] for end in range(1, len(ids) + 1)])
    found = []
    for place, text in enumerate(texts):
        before = texts[place - 1] if place else ""
        sure = float(likely[place - 1, ids[place]]) if place >= len(prompt) else None
        found.append(Piece(text.removeprefix(before), sure))
    return found


def draw(axis: Any, texts: Sequence[Sequence[Piece]], lines: int, columns: int) -> None:
    """Texts one below the other, a blank line between, on a sheet of so many lines and columns."""
    doubts = np.full((lines, columns), np.nan)
    row, column = 0, 0
    for text in texts:
        for piece in text:
            for sign in piece.text:
                if sign == "\n":
                    row, column = row + 1, 0
                elif row < lines and column < columns:
                    if piece.probability is not None:
                        doubts[row, column] = 1 - piece.probability
                    axis.text(
                        column + 0.5, row + 0.5, sign, ha="center", va="center", fontsize=7,
                        family="monospace", weight="bold" if piece.probability is None else "normal",
                        parse_math=False,
                    )  # fmt: skip
                    column += 1
        row, column = row + 2, 0
    axis.pcolormesh(np.ma.masked_invalid(doubts), cmap=DOUBT, vmin=0, vmax=DARKEST, zorder=0)
    axis.set(xlim=(0, columns), ylim=(lines, 0))
    axis.set_axis_off()


def size(texts: Sequence[Sequence[Piece]]) -> tuple[int, int]:
    """Lines and columns that they need."""
    plain = ["".join(piece.text for piece in text).split("\n") for text in texts]
    lines = sum(len(text) + 1 for text in plain) - 1
    return lines, max(len(line) for text in plain for line in text)
