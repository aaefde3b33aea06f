"""A linear model on counted features, whose logits are added to those of a text, image or token.

    logits = head(h) + s · (Σ_k x_k W_k + b)

x_k are the features of block k: n-grams of words, n-grams of characters, or numbers that are given.
Counts c of n-grams become TF-IDF of length 1, x = c · idf / ‖c · idf‖, in each block for itself.
Of two texts, x are 12 or 20 numbers of what they share, one block. Of an image, x are the numbers
of its patches (`nn.patch_filters`). Of a token, x are the forms of its word and of its neighbors
(`linear.forms`), weighted as n-grams are.
W, b and idf are fitted before training and stay as they are; the scale s is learned. N-grams that
the training texts lack have idf 0. Shapes: B rows, K blocks, F features, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.nn.config import CoreConfig
from trifold.nn.formulas import FormulaRow
from trifold.nn.inputs import Inputs, RowFeatures
from trifold.nn.overlap import NUMBERS, overlap_numbers
from trifold.nn.parts import AnyConfig, FeatureColumns, LogitsPart, used_group
from trifold.nn.patch_filters import NUMBERS as NUMBERS_OF_FILTER, filter_side, image_numbers
from trifold.nn.problems import Problems
from trifold.settings import Conflict, Settings, as_yaml

MOST_BUCKETS = 10_000_000
MOST_FILTERS = 10_000
ALONE = ("compared", "filters", "forms")  # columns that exclude all others


class LinearPath(Settings):
    """A linear model on features of the text or the image, whose logits are added."""

    words: int = Field(2**16, ge=0, le=MOST_BUCKETS, description="buckets of words and word pairs")
    characters: int = Field(
        2**16, ge=0, le=MOST_BUCKETS, description="buckets of 2 to 5 characters of a word"
    )
    given: int = Field(0, ge=0, le=MOST_BUCKETS, description="numbers that are used as they are")
    compared: int = Field(
        0, ge=0, le=MOST_BUCKETS, description="instead: buckets of words of two texts"
    )
    filters: int = Field(
        0, ge=0, le=MOST_FILTERS, description="instead, of images: patches to compare with"
    )
    forms: int = Field(
        0, ge=0, le=MOST_BUCKETS, description="instead, of a tagger: buckets of the forms of words"
    )
    order_numbers: Literal[0, 8] = Field(
        0, description="beside compared: numbers of the order of words, and of lengths"
    )

    @model_validator(mode="before")
    @classmethod
    def _leave_out_ngrams(cls, values: Any) -> Any:
        """Columns that exclude all others have no n-grams beside them by default."""
        if isinstance(values, dict) and any(values.get(name) for name in ALONE):
            return {"words": 0, "characters": 0, **values}
        return values

    @property
    def ngrams(self) -> int:
        """The columns of n-grams, which come first."""
        return self.words + self.characters

    @property
    def columns(self) -> int:
        """F."""
        return self.ngrams + self.given

    @property
    def shared_numbers(self) -> int:
        """The numbers of what two texts share."""
        return NUMBERS + self.order_numbers

    @property
    def counted_blocks(self) -> int:
        """The blocks of n-grams."""
        return (self.words > 0) + (self.characters > 0)

    @property
    def blocks(self) -> int:
        """K: those of n-grams, and then the given numbers; blocks without columns do not count."""
        return self.counted_blocks + (self.given > 0)


class LinearLogits(nn.Module):
    """s · (x W + b): weight (F, C), bias (C,), idf of the n-grams, and the scale s (1,)."""

    def __init__(self, settings: LinearPath, classes: int) -> None:
        super().__init__()
        self.settings = settings
        self.weight = _fixed(settings.columns, classes)
        self.bias = _fixed(classes)
        self.idf = _fixed(settings.ngrams)
        self.scale = nn.Parameter(torch.empty(1))

    @torch.no_grad()
    def reset(self) -> None:
        """A path that adds nothing until it is fitted."""
        for parameter in (self.weight, self.bias, self.idf):
            parameter.zero_()
        self.scale.fill_(1.0)

    def given(self, inputs: Inputs) -> RowFeatures | None:
        """What the path reads of the inputs; None if they have nothing for it."""
        return inputs.features

    def forward(self, features: RowFeatures) -> Tensor:
        """(B, C)."""
        if features.logits is not None:
            return self.scale * features.logits.to(self.scale)
        return self.scale * self.logits(features)

    def logits(self, features: RowFeatures) -> Tensor:
        """x W + b (B, C), in float32 or float64."""
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        blocks = self.settings.blocks
        values, ids, starts = features.values.to(wide), features.ids, features.starts[:-1]
        if self.settings.ngrams:
            values = self._weighted(values, ids)
        sums = F.embedding_bag(
            ids, self.weight.to(wide), starts, mode="sum", per_sample_weights=values
        ).view(-1, blocks, self.bias.shape[0])
        if self.settings.ngrams:
            sums = sums / self._lengths(values, starts).view(-1, blocks, 1)
        return sums.sum(1) + self.bias.to(wide)

    def _weighted(self, values: Tensor, ids: Tensor) -> Tensor:
        """The values (N,) of n-grams times their idf; given numbers stay."""
        idf = self.idf.to(values.dtype)
        if not self.settings.given:
            return values * idf[ids]
        return values * F.pad(idf, (0, self.settings.given), value=1.0)[ids]

    def _lengths(self, values: Tensor, starts: Tensor) -> Tensor:
        """(B·K,) the length of the vector of each block; 1 where it is 0, and of given numbers."""
        places = torch.arange(len(values), device=values.device)
        squares = F.embedding_bag(places, (values * values)[:, None], starts, mode="sum")
        lengths = squares.view(-1, self.settings.blocks).sqrt()
        lengths = lengths.where(lengths > 0, 1.0)
        if self.settings.given:
            lengths[:, -1] = 1.0
        return lengths


class OverlapLogits(LinearLogits):
    """s · (x W + b) of the numbers x (B, F) of what two texts share: weight (F, C), bias (C,), F
    being 12 or 20.

    idf: (N + 1,) of the words by bucket, 0 of buckets without words; the last one is that of a word
    that no training text has.
    """

    def __init__(self, settings: LinearPath, classes: int) -> None:
        nn.Module.__init__(self)
        self.settings = settings
        self.weight = _fixed(settings.shared_numbers, classes)
        self.bias = _fixed(classes)
        self.idf = _fixed(settings.compared + 1)
        self.scale = nn.Parameter(torch.empty(1))

    def logits(self, features: RowFeatures) -> Tensor:
        """x W + b (B, C), in float32 or float64."""
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        numbers = overlap_numbers(features, self.idf.to(wide), self.settings.order_numbers)
        return numbers @ self.weight.to(wide) + self.bias.to(wide)


class FilterLogits(nn.Module):
    """s · (x W + b) of the numbers x (B, F) of an image, F being 18·K: weight (F, C), bias (C,),
    filters (K, channels, s, s) and offsets (K,). The Transformer learns without it.
    """

    def __init__(self, config: CoreConfig, settings: LinearPath) -> None:
        super().__init__()
        self.settings = settings
        count = settings.filters
        self.weight = _fixed(NUMBERS_OF_FILTER * count, config.n_labels)
        self.bias = _fixed(config.n_labels)
        self.filters = _fixed(count, *_filter_shape(config))
        self.offsets = _fixed(count)
        self.scale = nn.Parameter(torch.empty(1))

    @torch.no_grad()
    def reset(self) -> None:
        """A path that adds nothing until it is fitted."""
        for parameter in (self.weight, self.bias, self.filters, self.offsets):
            parameter.zero_()
        self.scale.fill_(1.0)

    def given(self, inputs: Inputs) -> Tensor | None:
        """The pixels; None in training."""
        return None if self.training else inputs.pixels

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, C) of pixels (B, channels, H, W)."""
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        weight, bias, filters, offsets = (
            each.to(wide) for each in (self.weight, self.bias, self.filters, self.offsets)
        )
        return self.scale * (image_numbers(pixels.to(wide), filters, offsets) @ weight + bias)


def _filter_shape(config: CoreConfig) -> tuple[int, int, int]:
    """Channels, height and width of a filter."""
    side = filter_side(*(config.image_size or (1, 1)))
    return config.n_channels, side, side


def _fixed(*shape: int) -> nn.Parameter:
    """A parameter that is not trained."""
    return nn.Parameter(torch.empty(*shape), requires_grad=False)


class LinearPathPart(LogitsPart):
    """Logits of a linear model on n-grams, given numbers or patches of images."""

    key = "linear_path"

    def new(self, config: CoreConfig) -> nn.Module:
        settings = _settings(config)
        if settings.filters:
            return FilterLogits(config, settings)
        if settings.forms:
            return LinearLogits(LinearPath(words=settings.forms, characters=0), config.n_labels)
        kind = OverlapLogits if settings.compared else LinearLogits
        return kind(settings, config.n_labels)

    def columns(self, config: CoreConfig) -> FeatureColumns:
        settings = _settings(config)
        return FeatureColumns(
            settings.words,
            settings.characters,
            settings.given,
            settings.compared,
            settings.filters,
            settings.forms,
            settings.order_numbers,
        )

    def with_columns(self, config: AnyConfig, columns: FeatureColumns) -> AnyConfig:
        settings = LinearPath(**columns._asdict()) if any(columns) else None
        return config.model_copy(update={self.key: settings})

    def parameters(self, config: CoreConfig) -> Iterator[FormulaRow]:
        settings = _settings(config)
        if settings.filters:
            numbers, pixels = NUMBERS_OF_FILTER * settings.filters, prod(_filter_shape(config))
            letters = {"N": numbers, "K": settings.filters, "pixels": pixels}
            yield FormulaRow("linear path", "N·C + C + K·pixels + K + 1", letters)
            return
        letters = {"N": settings.columns, "n": settings.ngrams}
        if settings.compared:
            letters = {"N": settings.shared_numbers, "n": settings.compared + 1}
        if settings.forms:
            letters = {"N": settings.forms, "n": settings.forms}
        yield FormulaRow("linear path", "N·C + C + n + 1", letters)

    def problems(self, config: CoreConfig) -> Problems:
        """It needs columns of one kind, and classes of texts, images or tokens."""
        settings = _settings(config)
        alone = [name for name in ALONE if getattr(settings, name)]
        head = "token" if settings.forms else "sequence"
        text = ""
        if len(alone) + (settings.columns > 0) > 1:
            text = f"linear_path.{alone[0]} excludes its other columns"
        elif settings.order_numbers and not settings.compared:
            text = "linear_path.order_numbers is of two texts and needs linear_path.compared"
        elif not alone and not settings.columns:
            text = "linear_path has no columns"
        elif config.n_patches and not settings.filters:
            text = "linear_path reads texts, and the model reads images"
        elif settings.filters and not config.n_patches:
            text = "linear_path.filters reads images, and the model reads texts"
        elif head not in config.chosen_heads:
            text = f"linear_path needs {head} in heads"
        if text:
            yield Conflict(text, {self.key: None}, _remedy(config))

    def phrase(self, config: CoreConfig) -> str:
        settings = _settings(config)
        sizes = {
            "buckets of words": settings.words,
            "buckets of characters": settings.characters,
            "given numbers": settings.given,
            "buckets of words that two texts share": settings.compared,
            "patches of images": settings.filters,
            "buckets of the forms of words": settings.forms,
        }
        listed = " and ".join(f"{size:,} {name}" for name, size in sizes.items() if size)
        return f"logits of a linear model added, on {listed}"


def _remedy(config: CoreConfig) -> str:
    """How a model gets the path that fits it, or none."""
    fitting: Any = None
    if config.n_patches:
        fitting = {"filters": 100}
    elif "token" in config.chosen_heads:
        fitting = {"forms": 2**16}
    elif "sequence" in config.chosen_heads:
        fitting = True
    if fitting is None:
        return "set linear_path: null"
    return f"set linear_path: {as_yaml(fitting)} or null"


def _settings(config: CoreConfig) -> LinearPath:
    return used_group(config, "linear_path", LinearPath)


PARTS = (LinearPathPart(),)
