"""How a run learnt, from its metrics.jsonl, and how classes are confused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trifold.look.figures import COLOURS

INK, PALE = "#08519c", "#9aa5b1"  # of what is ours, and of what it stands beside


def curve(run: Path, key: str) -> tuple[list[int], list[float]]:
    """Steps and values of one key, such as `train/loss` or `valid/accuracy`."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    found = [(int(line["step"]), float(line[key])) for line in lines if key in line]
    return [step for step, _ in found], [value for _, value in found]


def smooth(values: Sequence[float], memory: float = 0.9) -> list[float]:
    """A running mean, whose first values are means of what there is (Kingma & Ba 2015, section 3)."""
    total, weight, means = 0.0, 0.0, []
    for value in values:
        total, weight = memory * total + (1 - memory) * value, memory * weight + (1 - memory)
        means.append(total / weight)
    return means


def draw_curve(axis: Any, run: Path, beside: Mapping[str, float]) -> None:
    """The loss of training and validation, in nats a token; `beside` are other models' losses on the validation set."""
    steps, losses = curve(run, "train/loss")
    axis.plot(steps, smooth(losses), color=INK, linewidth=1.2, alpha=0.45, label="training")
    axis.plot(*curve(run, "valid/loss"), color=INK, linewidth=1.8, marker="o", markersize=4, label="held out")
    for name, value in beside.items():
        axis.axhline(value, color=PALE, linestyle="--", linewidth=1.2)
        axis.annotate(
            f"{name}, held out", (1, value), xycoords=("axes fraction", "data"), xytext=(-4, 3),
            textcoords="offset points", ha="right", fontsize=8, color="0.35",
        )  # fmt: skip
    axis.set(xlabel="step", ylabel="loss, nats a token")
    axis.legend(frameon=False, fontsize=8)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def draw_confusion(axis: Any, table: NDArray[np.int64], names: Sequence[str]) -> None:
    """table (C, C): rows are what texts are, columns what they are told to be; shares of a row as colour."""
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    axis.imshow(shares, cmap=COLOURS, vmin=0, vmax=1)
    for (row, column), count in np.ndenumerate(table):
        if count:
            colour = "white" if shares[row, column] > 0.55 else "0.25"
            axis.text(column, row, str(count), ha="center", va="center", fontsize=7, color=colour)
    axis.set_xticks(range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor", fontsize=8)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set(xlabel="told to be from", ylabel="is from")
    axis.tick_params(length=0)


def draw_bars(axis: Any, values: Mapping[str, float], ours: str) -> None:
    """Percentages by name, one of them in ink."""
    colours = [INK if name == ours else PALE for name in values]
    bars = axis.barh(list(values), list(values.values()), color=colours, height=0.6)
    axis.bar_label(bars, fmt="%.1f %%", padding=4, fontsize=9)
    axis.invert_yaxis()
    axis.set_xlim(0, 112)
    axis.set_xticks([])
    axis.tick_params(length=0, labelsize=9)
    for side in ("top", "right", "bottom"):
        axis.spines[side].set_visible(False)
