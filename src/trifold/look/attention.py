"""Pictures of attention: one panel a layer and head, queries down, keys across, dark where the model looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trifold.errors import UsageError
from trifold.look.figures import COLOURS, Figure, new_figure
from trifold.look.seen import KINDS, Seen

_INCHES_A_TOKEN = 0.17  # what a label of 7.5 points needs


@dataclass(frozen=True)
class Panel:
    """All heads of one kind of attention, ready to draw: patterns (L, H, T, S) and what stands at the axes."""

    patterns: NDArray[np.floating]
    row_labels: Sequence[str]
    column_labels: Sequence[str]
    title: str
    layers: Sequence[int]  # numbers to print, from 1
    heads: Sequence[int]

    @property
    def size(self) -> tuple[float, float]:
        """Inches (width, height): a cell a token, labels at the left and the bottom, a title on top."""
        rows, columns = self.patterns.shape[:2]
        width = columns * max(1.3, _INCHES_A_TOKEN * len(self.column_labels) + 0.15)
        height = rows * max(1.1, _INCHES_A_TOKEN * len(self.row_labels) + 0.4)
        return max(4.0, width + _room(self.row_labels) + 0.7), height + _room(self.column_labels) + 0.5


def grid(
    patterns: NDArray[np.floating], row_labels: Sequence[str], column_labels: Sequence[str], title: str
) -> Figure:
    """Every layer and head of patterns (L, H, T, S) in one figure: shares of 1, one colour scale for all."""
    layers, heads = patterns.shape[:2]
    panel = Panel(patterns, row_labels, column_labels, title, range(1, layers + 1), range(1, heads + 1))
    return _stacked([panel])


def picture(
    seen: Seen, kinds: Sequence[str] = tuple(KINDS), layer: int | None = None, head: int | None = None
) -> Figure:
    """The chosen kinds of attention one above the other; `layer` and `head` (from 1) choose one of each."""
    return _stacked([_panel(seen, kind, layer, head) for kind in kinds if kind in seen.patterns])


def _panel(seen: Seen, kind: str, layer: int | None, head: int | None) -> Panel:
    patterns = seen.patterns[kind]
    layers, heads = (
        _chosen(*choice) for choice in zip((layer, head), patterns.shape, ("layer", "head"), strict=False)
    )
    rows, columns = seen.labels(kind)
    part = patterns[np.ix_([n - 1 for n in layers], [n - 1 for n in heads])]
    return Panel(part, rows, columns, KINDS[kind], layers, heads)


def _chosen(number: int | None, available: int, what: str) -> list[int]:
    if number is None:
        return list(range(1, available + 1))
    if not 1 <= number <= available:
        raise UsageError(f"{what} {number}: the model has {what}s 1 to {available}")
    return [number]


def _stacked(panels: Sequence[Panel]) -> Figure:
    widths, heights = zip(*(panel.size for panel in panels), strict=True)
    figure = new_figure(max(widths), sum(heights))
    parts = figure.subfigures(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, panel in zip(parts, panels, strict=True):
        _draw(part, panel)
    return figure


def _draw(figure: Figure, panel: Panel) -> None:
    rows, columns = panel.patterns.shape[:2]
    figure.suptitle(panel.title, fontsize=11, fontweight="bold")
    axes = figure.subplots(rows, columns, squeeze=False)
    for (row, column), axis in np.ndenumerate(axes):
        # Drawn as cells with pale edges, which lead the eye to the labels.
        image = axis.pcolormesh(
            panel.patterns[row, column],
            cmap=COLOURS,
            vmin=0,
            vmax=1,
            edgecolors="0.92",
            linewidth=0.3,
            antialiased=True,
        )
        axis.invert_yaxis()
        axis.set_title(f"layer {panel.layers[row]} head {panel.heads[column]}", fontsize=8, pad=3)
        _label(axis.xaxis, panel.column_labels if row == rows - 1 else [], rotation=90)
        _label(axis.yaxis, panel.row_labels if column == 0 else [], rotation=0)
        for side in axis.spines.values():
            side.set(color="0.8", linewidth=0.6)
    bar = figure.colorbar(image, ax=axes, shrink=min(1.0, 1.6 / rows), aspect=16, pad=0.01, ticks=[0, 0.5, 1])
    bar.ax.tick_params(labelsize=7, length=0)
    bar.outline.set_visible(False)


def _label(axis: Any, labels: Sequence[str], rotation: int) -> None:
    """A token at the middle of every cell."""
    # Tokens are text: a dollar sign in one starts no formula.
    axis.set_ticks(np.arange(len(labels)) + 0.5, labels, fontsize=7.5, rotation=rotation, parse_math=False)
    axis.set_tick_params(length=0, pad=2)


def _room(labels: Sequence[str]) -> float:
    """Inches that the longest label takes."""
    return 0.3 + 0.075 * max((len(label) for label in labels), default=0)
