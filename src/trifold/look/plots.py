"""Plots for training runs and generated text, and the interface to matplotlib, which is
optional.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trifold import disk
from trifold.errors import TrifoldError, UsageError
from trifold.folders import named
from trifold.installation import install_command
from trifold.jsonfiles import finite, iter_metrics

if TYPE_CHECKING:
    from trifold.pipeline import Pipeline
    from trifold.train.power_law import Law

Figure: TypeAlias = Any  # matplotlib.figure.Figure; matplotlib is optional, and so are its types

FORMATS = (".png", ".svg", ".pdf")
COLORMAP = "Blues"  # white is 0, dark is 1
DOTS_PER_INCH = 130
MAX_SIDE = 2**15  # pixels of a picture; matplotlib draws less than 2^16
MAX_PIXELS = 2**25  # of a picture; each takes 4 bytes, and as many while it is written
MAX_VECTOR_CELLS = 100_000  # of .svg and .pdf; each takes 240 bytes in the file and 1 KB of memory
HIGHLIGHT = "#08519c"
MUTED = "#9aa5b1"
UNCERTAINTY_COLORMAP = "Oranges"
MAX_UNCERTAINTY = 1.6  # above 1, so that characters stay readable on the darkest cell


# --- figures --------------------------------------------------------------------------------------


def check_picture(path: Path) -> None:
    """Raises UsageError for another file format, TrifoldError if matplotlib is not installed."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"{path}: not a picture format; use {', '.join(FORMATS)}")
    new_figure(1, 1)


def new_figure(width: float, height: float) -> Figure:
    """A figure of `width` x `height` inches. Raises TrifoldError if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure  # without pyplot: no window system, no global state
    except ModuleNotFoundError:
        raise TrifoldError(
            f"pictures need matplotlib; install it with `{install_command('plots')}`"
        ) from None
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def _resolution(figure: Figure, wanted: int) -> float:
    """Dots per inch of a figure: fewer for a large one."""
    width, height = figure.get_size_inches()
    return float(min(wanted, MAX_SIDE / max(width, height), (MAX_PIXELS / width / height) ** 0.5))


def pixel_bytes(figure: Figure) -> int:
    """Bytes of the pixels of a picture while it is written."""
    width, height = figure.get_size_inches()
    return int(2 * 4 * width * height * _resolution(figure, DOTS_PER_INCH) ** 2)


def _check_cells(figure: Figure, path: Path) -> None:
    """Raises UsageError for more cells than a vector format can hold."""
    from matplotlib.collections import QuadMesh

    cells = sum(mesh.get_array().size for mesh in figure.findobj(QuadMesh))
    if path.suffix.lower() != ".png" and cells > MAX_VECTOR_CELLS:
        raise UsageError(
            f"{path}: {cells:,} cells are too many for this format (at most "
            f"{MAX_VECTOR_CELLS:,}); write a .png, or choose a layer and a head"
        )


def save_figure(figure: Figure, path: Path, dots_per_inch: int = DOTS_PER_INCH) -> Path:
    """Write the figure in the format of the file name, create its folder if needed, and return the
    path. A large figure gets fewer dots per inch. Raises UsageError for another file format, and
    for more cells than a vector format can hold.
    """
    check_picture(path)
    _check_cells(figure, path)
    try:
        disk.make_folder(path.parent)
        content = BytesIO()
        figure.savefig(
            content, format=path.suffix[1:].lower(), dpi=_resolution(figure, dots_per_inch)
        )
        with disk.exclusive(path):
            disk.replace_bytes(path, content.getvalue())
    except OSError as error:
        raise TrifoldError(
            f"{path}: cannot be written ({error.strerror}); choose another place"
        ) from None
    return path


# --- metrics of a run -----------------------------------------------------------------------------


def read_metric(run: Path, key: str) -> tuple[list[int], list[float]]:
    """Steps and values of one key of metrics.jsonl, such as `train/loss` or `valid/accuracy`."""
    lines = iter_metrics(named(run) / "metrics.jsonl")
    values = {line["step"]: finite(line.get(key)) for line in lines if key in line}
    points = {step: value for step, value in values.items() if value is not None}
    return [*points], [*points.values()]


def smooth(values: Sequence[float], decay: float = 0.9) -> list[float]:
    """Exponential moving average with bias correction (Kingma & Ba 2015, section 3)."""
    total = 0.0
    weight = 0.0
    means = []
    for value in values:
        total = decay * total + (1 - decay) * value
        weight = decay * weight + (1 - decay)
        means.append(total / weight)
    return means


def draw_loss(axis: Any, run: Path) -> None:
    """Training loss and validation loss in nats per token."""
    steps, losses = read_metric(run, "train/loss")
    axis.plot(steps, smooth(losses), color=HIGHLIGHT, linewidth=1.2, alpha=0.45, label="training")
    steps, losses = read_metric(run, "valid/loss")
    axis.plot(
        steps, losses, color=HIGHLIGHT, linewidth=1.8, marker="o", markersize=4, label="validation"
    )
    axis.set(xlabel="step", ylabel="loss, nats per token")
    low, high = axis.get_ylim()
    axis.set_ylim(low, high + 0.12 * (high - low))  # space for the legend above the curves
    axis.legend(frameon=False, fontsize=8, loc="upper right", ncols=2)
    axis.spines[["top", "right"]].set_visible(False)


def draw_law(
    law: Law, points: Sequence[tuple[int, int]], losses: Sequence[float], file: Path
) -> None:
    """Write a picture of the losses at points (N, D) and of their law; each panel has a color per
    other value.
    """
    data = np.array(points, float)
    measured = np.array(losses)
    names = ("parameters without embeddings", "tokens")
    figure = new_figure(10, 4)
    for variable, axis in enumerate(figure.subplots(1, 2)):
        x = data[:, variable]
        others = data[:, 1 - variable]
        line = np.geomspace(x.min(), x.max())
        for other in np.unique(others):
            chosen = others == other
            (dots,) = axis.plot(x[chosen], measured[chosen], "o", label=f"{other:,.0f}")
            if names[variable] == "tokens":
                values = law.loss(other, line)
            else:
                values = law.loss(line, other)
            axis.plot(line, values, color=dots.get_color())
        axis.set(xscale="log", xlabel=names[variable], ylabel="validation loss, nats per token")
        axis.legend(frameon=False, fontsize=8, title=names[1 - variable], title_fontsize=8)
    save_figure(figure, file)


def draw_confusion(axis: Any, table: NDArray[np.int64], names: Sequence[str]) -> None:
    """table (C, C): rows are true classes, columns predicted ones; the color is the share of the
    row.
    """
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    axis.imshow(shares, cmap=COLORMAP, vmin=0, vmax=1)
    for (row, column), count in np.ndenumerate(table):
        if count:
            color = "white" if shares[row, column] > 0.55 else "0.25"
            axis.text(column, row, str(count), ha="center", va="center", fontsize=7, color=color)
    axis.set_xticks(
        range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor", fontsize=8
    )
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set(xlabel="predicted", ylabel="true")
    axis.tick_params(length=0)


def draw_calibration(axis: Any, table: NDArray[np.float64]) -> None:
    """Accuracy by confidence, from `scores.classification.reliability_table`; on the diagonal they
    are equal.
    """
    filled = np.flatnonzero(table[:, 0])
    count, confidence, correct = table[filled].T
    width = 1 / len(table)
    axis.bar(filled * width, correct / count, width, align="edge", color=MUTED, edgecolor="white")
    axis.plot([0, 1], [0, 1], color="0.25", linewidth=1)
    axis.plot(confidence / count, correct / count, color=HIGHLIGHT, marker="o", markersize=4)
    axis.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))


# --- text with the model's uncertainty ------------------------------------------------------------


class TokenText(NamedTuple):
    """The text that a token adds, and its probability; None for tokens of the prompt."""

    text: str
    probability: float | None


def token_probabilities(
    pipeline: Pipeline, prompt: Sequence[int], written: Sequence[int]
) -> list[TokenText]:
    """The tokens of a prompt (with its special tokens) and of the text after it."""
    import torch

    ids = [*prompt, *written]
    with torch.no_grad():
        probabilities = pipeline.logits(torch.tensor([ids])).softmax(-1)[0]
    texts = ["", *pipeline.writer.decode([ids[:end] for end in range(1, len(ids) + 1)])]
    parts = [longer.removeprefix(text) for text, longer in pairwise(texts)]
    known = [float(probabilities[n - 1, ids[n]]) for n in range(len(prompt), len(ids))]
    return list(map(TokenText, parts, [*[None] * len(prompt), *known]))


class Cell(NamedTuple):
    """A character at a row and a column, and the probability of its token."""

    row: int
    column: int
    character: str
    probability: float | None


def arrange(texts: Sequence[Sequence[TokenText]], columns: int) -> list[Cell]:
    """The characters of texts below each other, a blank row between them; longer lines are
    wrapped.
    """
    cells = list[Cell]()
    row = 0
    for text in texts:
        column = 0
        for token in text:
            for character in token.text:
                if character == "\n" or column == columns:
                    row = row + 1
                    column = 0
                if character != "\n":
                    cells.append(Cell(row, column, character, token.probability))
                    column += 1
        row += 2
    return cells


def draw_probabilities(axis: Any, cells: Sequence[Cell], rows: int, columns: int) -> None:
    """The characters of the first `rows`, those of the prompt bold; the darker a cell, the less
    likely its token.
    """
    uncertainty = np.full((rows, columns), np.nan)
    style = {
        "ha": "center",
        "va": "center",
        "fontsize": 7,
        "family": "monospace",
        "parse_math": False,
    }
    for row, column, character, probability in cells:
        if row >= rows:
            continue
        weight = "bold"
        if probability is not None:
            weight = "normal"
            uncertainty[row, column] = 1 - probability
        axis.text(column + 0.5, row + 0.5, character, weight=weight, **style)
    masked = np.ma.masked_invalid(uncertainty)
    axis.pcolormesh(masked, cmap=UNCERTAINTY_COLORMAP, vmin=0, vmax=MAX_UNCERTAINTY, zorder=0)
    axis.set(xlim=(0, columns), ylim=(rows, 0))
    axis.set_axis_off()
