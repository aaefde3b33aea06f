"""Turn the lines of the runners into a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

OURS = "trifold"
PRECISIONS = ("fp32", "bf16", "int8")
TITLES = (
    *("toolkit", "precision", "per second", "min–max", "to best peer", "first call"),
    *("loading", "peak memory", "cosine, mean", "least"),
)

Lines = Sequence[Mapping[str, Any]]


def speeds(lines: Lines) -> dict[tuple[str, str], list[float]]:
    """(precision, name) -> the best call of each round, in inputs per second."""
    found: dict[tuple[str, str], list[float]] = {}
    for line in lines:
        found.setdefault((line["precision"], line["name"]), []).append(line["best"])
    return found


def best_peers(lines: Lines) -> dict[str, float]:
    """precision -> the highest median of a toolkit other than trifold."""
    best: dict[str, float] = {}
    for (precision, name), values in speeds(lines).items():
        if name != OURS:
            best[precision] = max(best.get(precision, 0.0), median(values))
    return best


def table(lines: Lines) -> str:
    """A Markdown table: medians over rounds, by precision, the fastest first."""
    found = speeds(lines)
    best = best_peers(lines)
    rows = []
    for precision, name in sorted(
        found, key=lambda key: (PRECISIONS.index(key[0]), -median(found[key]))
    ):
        values = found[precision, name]
        own = [line for line in lines if (line["precision"], line["name"]) == (precision, name)]
        ratio = f"{median(values) / best[precision]:.2f}×" if precision in best else "–"
        rows.append(
            (
                name,
                precision,
                _speed(median(values)),
                f"{_speed(min(values))}–{_speed(max(values))}",
                f"**{ratio}**" if name == OURS else ratio,
                _speed(median(line["first"] for line in own)),
                f"{median(line['load_s'] for line in own):.2f} s",
                f"{max(line['peak_rss_mb'] for line in own):,.0f} MB",
                f"{min(line['cosine'] for line in own):.4f}",
                f"{min(line['least_cosine'] for line in own):.4f}",
            )
        )
    rule = "|".join("---" if title in TITLES[:2] else "---:" for title in TITLES)
    return "\n".join([_joined(TITLES), f"|{rule}|", *map(_joined, rows)])


def _speed(value: float) -> str:
    """At least two digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _joined(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
