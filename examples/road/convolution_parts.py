"""Convolutions as parts of trifold: a window of words, and a network for texts.

    window     y_t = tanh(W [x_(t−n+1); …; x_t] + b), which reads n words and no others: the hidden
               layer of a neural language model         (Bengio et al. 2003, section 2, equation 1)
    text_cnn   c_it = relu(w_i · [x_t; …; x_(t+n−1)] + b_i),   ĉ_i = max_t c_it, for several n
                                                        (Kim 2014, section 2, equations 2 and 3)

Both take the place of a whole block: there is no attention, no residual connection and no
feed-forward network. The second one writes ĉ to every token, so the head of a classifier reads it
anywhere. A recipe names this file in `model.parts` and chooses one in `model.options`. Shapes:
B batch, T tokens, E width, n words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.nn.cache import GrowingKeys, LayerCache, RunningState
from trifold.nn.config import CoreConfig
from trifold.nn.formulas import FormulaRow
from trifold.nn.layers import Dropout, Linear
from trifold.nn.parts import BlockPart, FeedForwardPart, UnscoredPart
from trifold.nn.problems import Problems
from trifold.nn.walk import LayerInputs
from trifold.settings import Settings


class WindowSettings(Settings):
    """words: n, the last one among them."""

    words: int = Field(5, ge=1)


class TextCnnSettings(Settings):
    """words: n of each group of filters; d_model is divided among the groups."""

    words: Annotated[tuple[int, ...], Field(strict=False, min_length=1)] = (3, 4, 5)


class LastWords(RunningState):
    """The last n − 1 inputs (B, n − 1, E)."""


class WindowBlock(nn.Module):
    """The window in a decoder. Padding before a text counts as no word, with a state of 0."""

    wiring = "window"

    def __init__(self, config: CoreConfig, options: WindowSettings) -> None:
        super().__init__()
        self.words = options.words
        self.hidden = Linear(options.words * config.d_model, config.d_model)
        self.drop = Dropout(config.dropout)

    def forward(self, x: Tensor, inputs: LayerInputs, cache: LayerCache | None = None) -> Tensor:
        """x (B, T, E) -> (B, T, E)."""
        x = inputs.mask.grid(x)
        count = x.shape[1]
        if inputs.mask.real is not None:
            x = x * inputs.mask.real[:, -count:, None]
        stored = None if cache is None else cache.past
        before = x.new_zeros(len(x), self.words - 1, x.shape[2])
        if isinstance(stored, LastWords):
            if stored.state is not None:
                before = stored.state
            stored.add(torch.cat((before, x), 1)[:, count:], count)
        windows = torch.cat((before, x), 1).unfold(1, self.words, 1)  # (B, T, E, n)
        out = torch.tanh(self.hidden(windows.mT.flatten(2)))
        return inputs.mask.flat(self.drop(out))


class TextCnnBlock(nn.Module):
    """Filters and their maxima in an encoder."""

    wiring = "text-cnn"

    def __init__(self, config: CoreConfig, options: TextCnnSettings) -> None:
        super().__init__()
        filters = config.d_model // len(options.words)
        self.groups = nn.ModuleList(
            Linear(words * config.d_model, filters) for words in options.words
        )
        self.words = options.words
        self.drop = Dropout(config.dropout)

    def forward(self, x: Tensor, inputs: LayerInputs, cache: LayerCache | None = None) -> Tensor:
        """x (B, T, E) -> (B, T, E), the same for each token of a row."""
        x = inputs.mask.grid(x)
        count = x.shape[1]
        real = inputs.mask.real_keys(count, x.device)
        x = x * real[..., None]
        maxima = []
        for words, filters in zip(self.words, self.groups, strict=True):
            windows = F.pad(x, (0, 0, 0, words - 1)).unfold(1, words, 1).mT.flatten(2)
            values = F.relu(filters(windows)) * real[..., None]
            maxima.append(values.amax(1, keepdim=True))
        out = self.drop(torch.cat(maxima, -1)).expand(-1, count, -1)
        return inputs.mask.flat(out)


# --- what they answer -----------------------------------------------------------------------------


class NoAttention(UnscoredPart):
    """No attention; the block reads other tokens itself."""

    can_truncate = False
    has_vectors = False

    def new_keys(self, usual: Callable[[], GrowingKeys]) -> GrowingKeys:
        return LastWords()

    def parameters(self, config: CoreConfig, side: str, blocks: int) -> FormulaRow:
        return FormulaRow(f"{side} attention", "0")

    def matrices(self, config: CoreConfig) -> int:
        return 0

    def score_elements(self, config: CoreConfig, side: str, keys: int, read: Sequence[int]) -> int:
        return 0

    def cached_elements(self, config: CoreConfig, tokens: int) -> int:
        return 0


class NoFeedForward(FeedForwardPart):
    """No network after the block."""

    def new(self, config: CoreConfig, layer: int) -> nn.Module:
        return nn.Identity()

    def parameters(self, config: CoreConfig, side: str, blocks: int) -> Iterator[FormulaRow]:
        yield from ()

    def elements(self, config: CoreConfig, layer: int) -> int:
        return 0

    def saved(self, config: CoreConfig) -> tuple[int, int]:
        return 0, 1


class WindowPart(BlockPart):
    """Layers of one window each, in a decoder."""

    key = "window"
    settings = WindowSettings
    needs = {"shape": ("decoder",)}  # noqa: RUF012 (as the base class declares it)

    def new(self, config: CoreConfig, layer: int, memory_width: int | None) -> nn.Module:
        return WindowBlock(config, self.options(config))

    def norms(self, config: CoreConfig, *, crosses: bool) -> int:
        return 0

    def parameters(self, config: CoreConfig, side: str) -> Iterator[FormulaRow]:
        yield FormulaRow("window", f"L·({self.options(config).words}·E·E + E)", _layers(config))

    def elements(self, config: CoreConfig) -> int:
        return config.n_layers * self.options(config).words * config.d_model**2

    def phrase(self, config: CoreConfig) -> str:
        return f"a window of {self.options(config).words} words"

    def equations(self, config: CoreConfig) -> Iterator[str]:
        yield "every block:  x ← dropout(tanh(W [x_(t−n+1); …; x_t] + b))"


class TextCnnPart(BlockPart):
    """Layers of filters and maxima, in an encoder."""

    key = "text_cnn"
    settings = TextCnnSettings
    needs = {"shape": ("encoder",)}  # noqa: RUF012 (as the base class declares it)

    def new(self, config: CoreConfig, layer: int, memory_width: int | None) -> nn.Module:
        return TextCnnBlock(config, self.options(config))

    def problems(self, config: CoreConfig) -> Problems:
        groups = len(self.options(config).words)
        if config.d_model % groups:
            yield f"d_model {config.d_model} is no multiple of the {groups} groups of filters"

    def norms(self, config: CoreConfig, *, crosses: bool) -> int:
        return 0

    def parameters(self, config: CoreConfig, side: str) -> Iterator[FormulaRow]:
        words = self.options(config).words
        yield FormulaRow("filters", f"L·({sum(words)}·E·E//{len(words)} + E)", _layers(config))

    def elements(self, config: CoreConfig) -> int:
        words = self.options(config).words
        return config.n_layers * sum(words) * config.d_model**2 // len(words)

    def phrase(self, config: CoreConfig) -> str:
        return f"filters of {', '.join(map(str, self.options(config).words))} words"

    def equations(self, config: CoreConfig) -> Iterator[str]:
        yield "every block:  x ← dropout(max over tokens of relu(w · window + b))"


def _layers(config: CoreConfig) -> dict[str, int]:
    return {"L": config.n_layers}


def _without_others(block: BlockPart) -> tuple[BlockPart, NoAttention, NoFeedForward]:
    """The block, and the parts that the same options choose in the other places."""
    attention = NoAttention()
    feed_forward = NoFeedForward()
    attention.key = feed_forward.key = block.key
    return block, attention, feed_forward


PARTS = (*_without_others(WindowPart()), *_without_others(TextCnnPart()))
