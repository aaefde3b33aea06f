"""Turn the results of the runners into a table: medians over rounds, ratios to the best peer,
shares of the peak.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

OURS = "trifold"


@dataclass(frozen=True)
class Row:
    """One toolkit in one precision; speeds in real target tokens per second."""

    name: str
    precision: str
    speed: float
    slowest: float
    fastest: float
    ratio: float  # to the best peer
    padding_share: float
    peak_rss_mb: float
    bf16_share: float  # of the machine's bf16 matrix peak, by formula
    fp32_share: float
    loss_first: float
    loss_last: float
    rounds: int


def summarise(
    lines: Sequence[Mapping[str, Any]],
    machine: Sequence[Mapping[str, Any]],
    flops_per_target_token: float,
) -> list[Row]:
    """Rows from the fastest to the slowest; the best peer is the fastest that is not trifold.

    `lines` are the runners' JSON lines of all rounds, `machine` the figures of machine.py, one a
    round; a peak is the highest figure of any shape in any round."""
    runs: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for line in lines:
        runs.setdefault((line["name"], line["precision"]), []).append(line)

    speeds = {key: [line["target_tokens_per_s"] for line in of_key] for key, of_key in runs.items()}
    peers = [median(values) for (name, _), values in speeds.items() if not name.startswith(OURS)]
    best_peer = max(peers, default=float("nan"))
    peaks = {precision: peak_flops(machine, precision) for precision in ("bf16", "fp32")}

    rows = []
    for (name, precision), of_key in runs.items():
        values = speeds[name, precision]
        flops = median(values) * flops_per_target_token
        rows.append(
            Row(
                name=name,
                precision=precision,
                speed=median(values),
                slowest=min(values),
                fastest=max(values),
                ratio=median(values) / best_peer,
                padding_share=median(line["padding_share"] for line in of_key),
                peak_rss_mb=max(line["peak_rss_mb"] for line in of_key),
                bf16_share=flops / peaks["bf16"],
                fp32_share=flops / peaks["fp32"],
                loss_first=of_key[-1]["loss_first"],
                loss_last=of_key[-1]["loss_last"],
                rounds=len(values),
            )
        )
    return sorted(rows, key=lambda row: -row.speed)


def peak_flops(machine: Sequence[Mapping[str, Any]], precision: str) -> float:
    return 1e9 * max(
        value
        for figures in machine
        for name, value in figures.items()
        if name.startswith(f"{precision} ")
    )


COLUMNS = (
    ("toolkit", lambda row: row.name),
    ("precision", lambda row: row.precision),
    ("target tokens/s", lambda row: f"{row.speed:,.0f}"),
    ("min–max", lambda row: f"{row.slowest:,.0f}–{row.fastest:,.0f}"),
    ("to best peer", lambda row: f"{row.ratio:.2f}×"),
    ("padding", lambda row: f"{row.padding_share:.1%}"),
    ("peak memory", lambda row: f"{row.peak_rss_mb:,.0f} MB"),
    ("of bf16 peak", lambda row: f"{row.bf16_share:.1%}"),
    ("of fp32 peak", lambda row: f"{row.fp32_share:.1%}"),
    ("loss", lambda row: f"{row.loss_first:.2f} → {row.loss_last:.2f}"),
)


def markdown_table(rows: Sequence[Row]) -> str:
    """A Markdown table with columns aligned in plain text."""
    cells = [[title for title, _ in COLUMNS]] + [[show(row) for _, show in COLUMNS] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]

    def joined(line: Sequence[str]) -> str:
        left, right = line[:2], line[2:]
        shown = [cell.ljust(width) for cell, width in zip(left, widths[:2], strict=True)]
        shown += [cell.rjust(width) for cell, width in zip(right, widths[2:], strict=True)]
        return "| " + " | ".join(shown) + " |"

    rule = (
        "|"
        + "|".join(
            "-" * (width + 2) if i < 2 else "-" * (width + 1) + ":"
            for i, width in enumerate(widths)
        )
        + "|"
    )
    return "\n".join([joined(cells[0]), rule, *(joined(line) for line in cells[1:])])


def machine_line(machine: Sequence[Mapping[str, Any]]) -> str:
    """One sentence about the machine: peak speeds, and the range of memory bandwidth over the
    rounds.
    """
    read = [figures["read"] for figures in machine]
    return (
        f"{machine[0]['processor']}, torch {machine[0]['torch']}, matrix peak in GFLOP/s "
        f"{peak_flops(machine, 'fp32') / 1e9:,.0f} fp32 and "
        f"{peak_flops(machine, 'bf16') / 1e9:,.0f} bf16, "
        f"memory {min(read):.0f}–{max(read):.0f} GB/s read by two threads"
    )
