"""Turn the results of the runners into tables and the required ratios."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

OURS, HF, CT2, LLAMA = "trifold", "Hugging Face", "CTranslate2", "llama.cpp"

Lines = Sequence[Mapping[str, Any]]
Chosen = Callable[[str, str], bool]  # (name, precision) -> is it one of these?


@dataclass(frozen=True)
class Ratio:
    """Ours must be `floor` times the best of theirs."""

    work: str
    label: str
    ours: Chosen
    theirs: Chosen
    floor: float


def _of(name: str, *precisions: str) -> Chosen:
    return lambda n, p: n == name and (not precisions or p in precisions)


RATIOS = (
    Ratio("greedy-1", "best of ours / Hugging Face fp32", _of(OURS), _of(HF, "fp32"), 5.0),
    Ratio("greedy-1", "best of ours / best of CTranslate2", _of(OURS), _of(CT2), 1.8),
    Ratio("greedy-1", "ours bf16 / llama.cpp bf16", _of(OURS, "bf16"), _of(LLAMA, "bf16"), 0.9),
    Ratio("greedy-1", "ours int8 / llama.cpp q8_0", _of(OURS, "int8"), _of(LLAMA, "q8_0"), 1.0),
    Ratio("greedy-8", "best of ours / best of Hugging Face", _of(OURS), _of(HF), 1.5),
    Ratio("beam-5", "best of ours / best of both", _of(OURS), lambda n, _: n in (HF, CT2), 1.5),
    Ratio("beam-5", "ours fp32 / CTranslate2 fp32", _of(OURS, "fp32"), _of(CT2, "fp32"), 1.1),
)


def speeds(lines: Lines, work: str) -> dict[tuple[str, str], list[float]]:
    """(name, precision) -> the best call of each round, in tokens a second."""
    found: dict[tuple[str, str], list[float]] = {}
    for line in lines:
        if line["work"] == work:
            found.setdefault((line["name"], line["precision"]), []).append(line["best"])
    return found


def ratios(lines: Lines) -> list[tuple[Ratio, float | None]]:
    """Each required ratio: best of ours over best of theirs, each the median over the rounds."""
    out = []
    for target in RATIOS:
        middle = {key: median(values) for key, values in speeds(lines, target.work).items()}
        ours = max((v for key, v in middle.items() if target.ours(*key)), default=None)
        theirs = max((v for key, v in middle.items() if target.theirs(*key)), default=None)
        out.append((target, None if ours is None or theirs is None else ours / theirs))
    return out


def tables(lines: Lines, works: Sequence[str]) -> str:
    """A Markdown table for each workload, the fastest first, then the ratios."""
    parts = []
    for work in works:
        rows = [
            (
                *(
                    name,
                    precision,
                    f"{median(values):,.0f}",
                    f"{min(values):,.0f}–{max(values):,.0f}",
                ),
                f"{median(_all(lines, work, name, precision, 'middle')):,.0f}",
                f"{median(_all(lines, work, name, precision, 'first')):,.0f}",
                f"{median(_first_shares(lines, work, name, precision)):.2f}",
                f"{max(_all(lines, work, name, precision, 'peak_rss_mb')):,.0f} MB",
            )
            for (name, precision), values in sorted(
                speeds(lines, work).items(), key=lambda item: -median(item[1])
            )
        ]
        titles = (
            "engine",
            "precision",
            "tokens/s",
            "min–max",
            "median call",
            "first call",
            "first / median",
            "peak memory",
        )
        parts.append(f"**{work}**\n\n{_table(titles, rows)}")
    rows = [
        (
            target.work,
            target.label,
            f"{target.floor}×",
            "not measured" if ratio is None else f"{ratio:.2f}×",
        )
        for target, ratio in ratios(lines)
        if target.work in works
    ]
    parts.append(_table(("work", "ratio", "floor", "measured"), rows))
    return "\n\n".join(parts)


def _all(lines: Lines, work: str, name: str, precision: str, field: str) -> list[float]:
    return [
        line[field]
        for line in lines
        if (line["work"], line["name"], line["precision"]) == (work, name, precision)
    ]


def _first_shares(lines: Lines, work: str, name: str, precision: str) -> list[float]:
    """The speed of the first call as a share of the median of later ones, of each round."""
    first = _all(lines, work, name, precision, "first")
    middle = _all(lines, work, name, precision, "middle")
    return [one / other for one, other in zip(first, middle, strict=True)]


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [titles, *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]

    def joined(line: Sequence[str]) -> str:
        shown = [
            cell.ljust(w) if i < 2 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        ]
        return "| " + " | ".join(shown) + " |"

    rule = "|".join("-" * (w + 2) if i < 2 else "-" * (w + 1) + ":" for i, w in enumerate(widths))
    return "\n".join([joined(cells[0]), f"|{rule}|", *map(joined, rows)])
