"""What a model attends to while it reads and writes: the weights, the alignment of words, and
pictures of both.
"""

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from trifold.errors import DataError, UsageError
from trifold.generate.decoding import eval_mode, refuse_non_finite
from trifold.look.plots import COLORMAP, Figure, new_figure, pixel_bytes
from trifold.memory import require_memory
from trifold.nn import Inputs, capture
from trifold.nn.parts import AttentionPart, part_of
from trifold.pipeline import Pipeline
from trifold.predict.trace import check_activations
from trifold.predict.trace_example import name_queries, read_ids
from trifold.text import Tokenizer

# Kind -> title of its picture, in the order in which they are shown.
KINDS = {
    "encoder": "encoder self-attention: each source token attends to the source",
    "decoder": "decoder self-attention: each token attends to itself and the tokens before it",
    "cross": "cross-attention: each generated token attends to the source",
}
HOOKS = {
    "encoder": "encoder.blocks.{}.self_attention.sublayer.pattern",
    "decoder": "decoder.blocks.{}.self_attention.sublayer.pattern",
    "cross": "decoder.blocks.{}.cross_attention.sublayer.pattern",
}
# Kind -> the side whose positions are its queries, and the one whose positions are its keys.
QUERY_SIDES = {"encoder": "encoder", "decoder": "decoder", "cross": "decoder"}
KEY_SIDES = {"encoder": "encoder", "decoder": "decoder", "cross": "encoder"}
_WORD = re.compile(r"[^\s.,;:!?…«»\"()]+|[.,;:!?…«»\"()]")
MAX_CELLS = 2**21  # of a picture, which takes half a minute
CELL_BYTES = 120  # of a picture: corners and colors
_INCHES_PER_TOKEN = 0.17  # for a label of 7.5 points
_INCHES_PER_TITLE_LETTER = 0.095  # bold, 11 points

Weights = NDArray[np.float32]


class Words(NamedTuple):
    """The words of a text, and for each of its tokens the index of its word; None for special
    tokens.
    """

    texts: list[str]
    of_token: list[int | None]


@dataclass(frozen=True)
class AttentionMaps:
    """Attention weights by kind, each (layers, heads, queries, keys) with rows that sum to 1 (to
    less in an encoder with summaries of blocks), and the tokens.

    source: tokens of the encoder. given: input tokens of the decoder (start token, or the prompt).
    written: the tokens that follow them: row t of a decoder's pattern, and of cross-attention,
    reads given[t] and writes written[t]. output: the generated text. Fields of a part that the
    model does not have are empty.
    """

    text: str
    output: str
    source: list[str]
    given: list[str]
    written: list[str]
    patterns: Mapping[str, Weights]
    source_words: Words
    written_words: Words

    def labels(self, kind: str) -> tuple[list[str], list[str]]:
        """The tokens of the rows and columns of that kind."""
        if kind == "cross":
            return name_queries(self.given, self.written), self.source
        tokens = self.given if kind == "decoder" else self.source
        return tokens, tokens


# --- weights --------------------------------------------------------------------------------------


def read_attention(pipeline: Pipeline, text: str, target: str | None = None) -> AttentionMaps:
    """Run the model on `text` and `target` (default: its own output), and record every head.

    Raises DataError for a text without tokens or with too many, UsageError for a target of an
    encoder.
    """
    if pipeline.config.n_patches:
        return _read_image_attention(pipeline, text, target)
    reader = pipeline.reader
    writer = pipeline.writer
    if not reader.encode([text])[0]:
        raise DataError(f"{text!r} has no tokens: pass another text")
    ids = read_ids(pipeline, text, target)
    length = max(len(ids.source), len(ids.given))
    limit = pipeline.config.max_positions
    if length > limit:
        raise DataError(
            f"{length:,} tokens, and the model reads at most {limit:,} (max_positions): shorten "
            "the text"
        )
    check_activations(pipeline.model, len(ids.source), len(ids.given))
    inputs = [
        Inputs(torch.tensor([row], device=pipeline.device))
        for row in (ids.source, ids.given)
        if row
    ]
    with torch.no_grad(), eval_mode(pipeline.model), capture(pipeline.model, "pattern") as captured:
        pipeline.model(*inputs)
    if not captured:
        label = part_of(AttentionPart, pipeline.config).label(pipeline.config)
        raise UsageError(f"this model has no attention weights to show ({label})")
    return AttentionMaps(
        text=text,
        output=writer.decode([ids.output])[0],
        source=reader.pieces(ids.source),
        given=writer.pieces(ids.given),
        written=writer.pieces(ids.written),
        patterns=stacked_weights({name: x[0] for name, x in captured.items()}),
        source_words=split_words(reader, ids.source),
        written_words=split_words(writer, ids.written),
    )


def _read_image_attention(pipeline: Pipeline, image: Any, target: str | None) -> AttentionMaps:
    if target is not None:
        raise UsageError("a model of images writes no text: leave the target out")
    trace = pipeline.trace(image)
    return AttentionMaps(
        text=str(image),
        output="",
        source=trace.tokens["encoder"],
        given=[],
        written=[],
        patterns=stacked_weights(trace),
        source_words=Words([], []),
        written_words=Words([], []),
    )


def stacked_weights(activations: Mapping[str, torch.Tensor]) -> dict[str, Weights]:
    """Kind -> weights (layers, heads, queries, keys), from those of each layer (heads, queries,
    keys) by hook point.
    """
    weights_of_kind = {}
    for kind, name in HOOKS.items():
        hooks = takewhile(activations.__contains__, map(name.format, count()))
        layers = [activations[hook].float().cpu() for hook in hooks]
        if layers:
            weights = torch.stack(layers)
            refuse_non_finite(weights)
            weights_of_kind[kind] = weights.numpy()
    return weights_of_kind


# --- alignment of words ---------------------------------------------------------------------------


def split_words(tokenizer: Tokenizer, ids: Sequence[int]) -> Words:
    """The words and punctuation marks of the decoded text; each token belongs to the word in which
    it ends, or before which it is a space. Special tokens belong to none.
    """
    if not ids:
        return Words([], [])
    *prefixes, text = tokenizer.decode([ids[:n] for n in range(1, len(ids) + 1)])
    words = list(_WORD.finditer(text))
    ends = [word.end() for word in words]
    of_token = list[int | None]()
    end_before = 0
    for token, prefix in zip(ids, [*prefixes, text], strict=True):
        end = len(prefix.rstrip())
        number = bisect_left(ends, max(end, end_before + 1))
        end_before = end
        is_in_word = number < len(words) and not _is_special(tokenizer, token)
        of_token.append(number if is_in_word else None)
    return Words([word.group() for word in words], of_token)


def _is_special(tokenizer: Tokenizer, token: int) -> bool:
    """Whether a token has a text only if special tokens are kept."""
    if tokenizer.decode([[token]])[0]:
        return False
    return bool(tokenizer.decode([[token]], keep_special=True)[0])


def align_words(maps: AttentionMaps) -> NDArray[np.float64]:
    """(written words, source words): cross-attention averaged over layers and heads.

    The weights of the tokens of a source word are added, those of the tokens of a written word
    averaged. Special tokens are left out, and the rows are normalized to sum to 1.
    """
    weights = maps.patterns["cross"].mean(axis=(0, 1), dtype=np.float64)
    rows = maps.written_words
    columns = maps.source_words
    aligned = _one_hot(rows).T @ weights @ _one_hot(columns)
    return np.asarray(aligned / np.maximum(aligned.sum(1, keepdims=True), 1e-12))


def _one_hot(words: Words) -> NDArray[np.float64]:
    """(tokens, words): 1 at the word of each token, 0 elsewhere."""
    indices = np.arange(len(words.texts))
    return np.array([indices == word for word in words.of_token], np.float64).reshape(
        -1, len(indices)
    )


def draw_alignment(maps: AttentionMaps) -> Figure:
    """The alignment of a translation: source words across, translated words down; without words,
    all heads.
    """
    columns = maps.source_words.texts
    rows = maps.written_words.texts
    if not rows or not columns:
        return draw_heads(maps, ["cross"])
    weights = align_words(maps)
    width = 2.6 + 0.62 * len(columns)
    height = 2.0 + 0.42 * len(rows)
    figure = new_figure(max(width, 5.4), max(height, 3.4))
    axis = figure.subplots()
    image = _draw_cells(axis, weights, vmax=max(0.5, float(weights.max())))
    figure.suptitle("Attention of a translation model", fontsize=13, fontweight="bold")
    axis.set_title(
        "cross-attention, averaged over all layers and heads", fontsize=9, color="0.35", pad=8
    )
    style: dict[str, Any] = {"fontsize": 11}
    if max(map(len, columns)) > 6:
        style |= {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
    _label_ticks(axis.xaxis, columns, **style)
    _label_ticks(axis.yaxis, rows, fontsize=11)
    axis.set_xlabel("source sentence (read)", fontsize=10)
    axis.set_ylabel("translation (written)", fontsize=10)
    bar = _color_bar(figure, image, axis, 8, aspect=18, pad=0.02)
    bar.set_label("attention weight", fontsize=9)
    return figure


# --- pictures of every head -----------------------------------------------------------------------


@dataclass(frozen=True)
class Panel:
    """All heads of one kind of attention: patterns (L, H, T, S) and the labels of the axes."""

    patterns: NDArray[np.floating]
    row_labels: Sequence[str]
    column_labels: Sequence[str]
    title: str
    layers: Sequence[int]  # from 1
    heads: Sequence[int]

    def layout(self) -> tuple[float, float, str]:
        """Inches (width, height), and the wrapped title: a cell per token, labels left and below,
        the title on top.
        """
        rows, columns = self.patterns.shape[:2]
        width = columns * max(1.3, _INCHES_PER_TOKEN * len(self.column_labels) + 0.15)
        height = rows * max(1.1, _INCHES_PER_TOKEN * len(self.row_labels) + 0.4)
        sides = self.row_labels, self.column_labels
        left, bottom = (0.3 + 0.075 * max(map(len, labels), default=0) for labels in sides)
        width = max(4.0, width + left + 0.7)
        title = fill(self.title, int(width / _INCHES_PER_TITLE_LETTER))
        return width, height + bottom + 0.5 + 0.18 * title.count("\n"), title


def draw_heads(
    maps: AttentionMaps,
    kinds: Sequence[str] = tuple(KINDS),
    layer: int | None = None,
    head: int | None = None,
) -> Figure:
    """One cell grid per layer and head, for each of the kinds; `layer` and `head` (from 1) select
    one.
    """
    panels = []
    for kind in kinds:
        if kind in maps.patterns:
            patterns = maps.patterns[kind]
            layers = numbered(layer, patterns.shape[0], "layer")
            heads = numbered(head, patterns.shape[1], "head")
            part = patterns[np.ix_([n - 1 for n in layers], [n - 1 for n in heads])]
            panels.append(Panel(part, *maps.labels(kind), KINDS[kind], layers, heads))
    return draw_panels(panels)


def draw_panels(panels: Sequence[Panel]) -> Figure:
    """The panels below each other. Raises UsageError for too many weights."""
    cells = sum(panel.patterns.size for panel in panels)
    if cells > MAX_CELLS:
        raise UsageError(
            f"{cells:,} attention weights are too many for a picture (at most {MAX_CELLS:,}); "
            "choose a layer and a head, or shorten the text"
        )
    widths, heights, titles = zip(*(panel.layout() for panel in panels), strict=True)
    figure = new_figure(max(widths), sum(heights))
    require_memory(
        CELL_BYTES * cells + pixel_bytes(figure),
        torch.device("cpu"),
        f"a picture of {cells:,} attention weights",
        "choose a layer and a head, or shorten the text",
    )
    parts = figure.subfigures(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, panel, title in zip(parts, panels, titles, strict=True):
        part.suptitle(title, fontsize=11, fontweight="bold")
        rows, columns = panel.patterns.shape[:2]
        axes = part.subplots(rows, columns, squeeze=False)
        for (row, column), axis in np.ndenumerate(axes):
            image = _draw_cells(axis, panel.patterns[row, column], vmax=1)
            axis.set_title(
                f"layer {panel.layers[row]} head {panel.heads[column]}", fontsize=8, pad=3
            )
            is_lowest = row == rows - 1
            is_leftmost = column == 0
            _label_ticks(axis.xaxis, panel.column_labels if is_lowest else [], rotation=90)
            _label_ticks(axis.yaxis, panel.row_labels if is_leftmost else [])
        shrink = min(1.0, 1.6 / rows)
        _color_bar(part, image, axes, 7, shrink=shrink, aspect=16, pad=0.01, ticks=[0, 0.5, 1])
    return figure


def numbered(number: int | None, available: int, what: str) -> list[int]:
    """The number, or all of them, from 1. Raises UsageError for one that the model lacks."""
    if number is None:
        return list(range(1, available + 1))
    if not 1 <= number <= available:
        raise UsageError(f"{what} {number}: the model has {what}s 1 to {available}")
    return [number]


def _draw_cells(axis: Any, weights: NDArray[np.floating], vmax: float) -> Any:
    """Cells with pale edges, the first row on top."""
    image = axis.pcolormesh(
        weights,
        cmap=COLORMAP,
        vmin=0,
        vmax=vmax,
        edgecolors="0.92",
        linewidth=0.3,
        antialiased=True,
    )
    axis.invert_yaxis()
    axis.spines[:].set(color="0.8", linewidth=0.6)
    return image


def _color_bar(figure: Figure, image: Any, axes: Any, fontsize: float, **more: Any) -> Any:
    bar = figure.colorbar(image, ax=axes, **more)
    bar.ax.tick_params(labelsize=fontsize, length=0)
    bar.outline.set_visible(False)
    return bar


def _label_ticks(axis: Any, labels: Sequence[str], fontsize: float = 7.5, **more: Any) -> None:
    """A label of at most 40 letters at the middle of every cell; dollar signs are not parsed as
    formulas.
    """
    labels = [label if len(label) <= 40 else f"{label[:39]}…" for label in labels]
    axis.set_ticks(
        np.arange(len(labels)) + 0.5, labels, fontsize=fontsize, parse_math=False, **more
    )
    axis.set_tick_params(length=0, pad=2)
