"""What the models of this folder share: the text, the training loop, the score and the samples.

A window has 128 characters: 64 that a model reads, then 64 that it predicts, each from all
characters before it. A model is an object with

    log_probabilities(windows (B, 128) of ids) -> (B, 64, V)
                                                          log P of each predicted character, in nats
    size                                                         counts or parameters that it keeps

The score is the mean of -log2 P over the characters of the held-out text in bits per character: the
length of that text when it is compressed with the model (Shannon 1948). The uniform distribution
has log2 V."""

from __future__ import annotations

import gzip
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from trifold.data.embedded import load_rows
from trifold.errors import DataError

READ, PREDICTED = 64, 64
WINDOW = READ + PREDICTED


class Text(NamedTuple):
    """The alphabet, and the ids of the training and of the held-out characters."""

    alphabet: str
    train: Tensor
    held_out: Tensor

    def decode(self, ids: list[int]) -> str:
        return "".join(self.alphabet[index] for index in ids)


class Model(Protocol):
    """See the head of this file."""

    size: int

    def log_probabilities(self, windows: Tensor) -> Tensor: ...


def load_text(file: str | None = None) -> Text:
    """A text file, also `.gz`, of which the last tenth is held out; by default tinyshakespeare or
    the phrasebook.

    tinyshakespeare is read from the folder $TRIFOLD_DATA; the phrasebook is part of trifold. Raises
    DataError if the text is too short."""
    shakespeare = Path(os.environ.get("TRIFOLD_DATA", "")) / "tinyshakespeare" / "input.txt.gz"
    path = Path(file) if file else shakespeare
    if file or shakespeare.is_file():
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
        cut = len(text) - len(text) // 10
        train, held_out = text[:cut], text[cut:]
    else:
        train, held_out = (
            "".join(row["text"] + "\n" for row in load_rows("phrasebook", split))
            for split in ("train", "valid")
        )
    if min(len(train), len(held_out)) < WINDOW:
        raise DataError(
            f"{path}: {len(train) + len(held_out)} characters; give a text of at least "
            f"{10 * WINDOW}"
        )
    alphabet = "".join(sorted({*train, *held_out}))
    ids = {character: index for index, character in enumerate(alphabet)}
    return Text(
        alphabet,
        *(torch.tensor([ids[character] for character in part]) for part in (train, held_out)),
    )


# --- training -------------------------------------------------------------------------------------


class Budget(NamedTuple):
    """What each model with a gradient may use: seconds, or steps of 32 windows."""

    seconds: float | None = 60.0
    steps: int | None = None

    def shares(self) -> Iterator[float]:
        """The used share of the budget, from 0, once per step, until it is used up."""
        start, step, share = time.monotonic(), 0, 0.0
        while share < 1:
            yield share
            step += 1
            share = (
                step / self.steps
                if self.steps
                else (time.monotonic() - start) / (self.seconds or 60.0)
            )


class Network(nn.Module):
    """A model that is trained: `forward` returns the logits (B, n, V) of the last n characters of
    each window.
    """

    @property
    def size(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def log_probabilities(self, windows: Tensor) -> Tensor:
        with torch.no_grad():
            return self(windows)[:, -PREDICTED:].log_softmax(dim=-1)

    def fit(self, ids: Tensor, budget: Budget, *, rate: float, rows: int = 32) -> int:
        """Train with AdamW on random windows of the text; the number of steps.

        The learning rate rises during the first twentieth of the budget and falls linearly to 0 at
        its end."""
        generator = torch.Generator().manual_seed(1)
        optimizer = torch.optim.AdamW(self.parameters(), betas=(0.9, 0.99), weight_decay=0.1)
        steps = 0
        for share in budget.shares():
            optimizer.param_groups[0]["lr"] = rate * min(
                (share + 1e-3) / 0.05, (1 - share) / 0.95, 1.0
            )
            starts = torch.randint(len(ids) - WINDOW + 1, (rows, 1), generator=generator)
            windows = ids[starts + torch.arange(WINDOW)]
            logits = self(windows)
            labels = windows[:, -logits.shape[1] :]
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.parameters(), 1.0)
            optimizer.step()
            steps += 1
        return steps


# --- evaluation -----------------------------------------------------------------------------------


def bits_per_character(model: Model, ids: Tensor) -> float:
    """The score over all characters after the first 64, in whole chunks of 64."""
    windows = ids.unfold(0, WINDOW, PREDICTED)
    total = 0.0
    for some in windows.split(64):
        found = model.log_probabilities(some).gather(-1, some[:, -PREDICTED:, None])
        total -= found.double().sum().item()
    return total / (len(windows) * PREDICTED * math.log(2))


def sample(model: Model, prompt: Tensor, length: int = 80) -> list[int]:
    """Characters drawn from the model after a prompt of 64, with a fixed seed."""
    generator = torch.Generator().manual_seed(1)
    ids = prompt[-READ:].tolist()
    for position in range(length):
        place = position % PREDICTED
        window = ids[-READ - place :] + [0] * (
            PREDICTED - place
        )  # characters that follow have no influence
        probabilities = model.log_probabilities(torch.tensor([window]))[0, place].exp()
        ids.append(int(torch.multinomial(probabilities, 1, generator=generator)))
    return ids[-length:]
