"""Tables of the measured cells: mean and deviation over seeds, and CPU seconds."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from setting import SETS

FRACTION = {"pearson": 3}  # digits; others have one


class Measured(NamedTuple):
    """A system on a set and a number of rows: a score and the CPU seconds of each seed."""

    name: str
    scores: tuple[float, ...]
    seconds: tuple[float, ...]

    @property
    def mean(self) -> float:
        return mean(self.scores)

    @property
    def deviation(self) -> float:
        return stdev(self.scores) if len(self.scores) > 1 else 0.0

    @property
    def error(self) -> float:
        """The standard error of the mean over seeds."""
        return self.deviation / len(self.scores) ** 0.5


def read_cells(folder: Path) -> list[dict[str, Any]]:
    """The cells in a folder, by the order of the sets."""
    cells = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]
    order = [*SETS]
    return sorted(cells, key=lambda cell: (order.index(cell["set"]), cell["rows"], cell["seed"]))


def tables(cells: Sequence[dict[str, Any]], split: str) -> str:
    """The table of models from scratch, and that of models that begin with MiniLM."""
    measured = [cell for cell in cells if split in cell or "systems" in cell]
    blocks = [_from_scratch(measured, split), _started(measured, split)]
    return "\n\n".join(filter(None, blocks))


def _from_scratch(cells: Sequence[dict[str, Any]], split: str) -> str:
    lines = [
        "| set | rows | score | default | best baseline | | difference ± error | says so "
        "| CPU seconds |",
        "|---|---:|---|---:|---:|---|---:|---|---:|",
    ]
    ahead = compared = 0
    for (name, rows), group in grouped(cells):
        group = of_common_seeds(group, ("trifold", "baselines"))
        ours = measure([cell for cell in group if cell["system"] == "trifold"], split)
        best = best_baseline([cell for cell in group if cell["system"] == "baselines"], split)
        if ours is None or best is None:
            continue
        compared += 1
        ahead += ours.mean >= best.mean
        digits = FRACTION.get(SETS[name].score, 1)
        difference = f"{ours.mean - best.mean:+.{digits}f}"
        if len(ours.scores) > 1:
            difference += f" ± {(ours.error**2 + best.error**2) ** 0.5:.{digits}f}"
        lines.append(
            f"| {SETS[name].title} | {rows:,} | {SETS[name].score} "
            f"| {describe(ours, digits)} | {describe(best, digits)} | {best.name} "
            f"| {difference} | {_said(group)} "
            f"| {mean(ours.seconds):.0f} |"
        )
    if not compared:
        return ""
    return "\n".join([*lines, "", f"Ahead or equal in {ahead} of {compared}."])


def _started(cells: Sequence[dict[str, Any]], split: str) -> str:
    lines = [
        "| set | rows | score | trifold | Trainer | CPU seconds | ratio |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for (name, rows), group in grouped(cells):
        ours, peer = (
            measure([cell for cell in group if cell["system"] == system], split)
            for system in ("trifold-minilm", "trainer-minilm")
        )
        if ours is None or peer is None:
            continue
        digits = FRACTION.get(SETS[name].score, 1)
        ratio = mean(ours.seconds) / mean(peer.seconds)
        lines.append(
            f"| {SETS[name].title} | {rows:,} | {SETS[name].score} | {describe(ours, digits)} "
            f"| {describe(peer, digits)} | {mean(ours.seconds):.0f}, {mean(peer.seconds):.0f} "
            f"| {ratio:.2f}× |"
        )
    return "\n".join(lines) if len(lines) > 2 else ""


def grouped(
    cells: Iterable[dict[str, Any]],
) -> Iterable[tuple[tuple[str, int], list[dict[str, Any]]]]:
    """The cells of each set and number of rows."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for cell in cells:
        groups[cell["set"], cell["rows"]].append(cell)
    return groups.items()


def of_common_seeds(cells: list[dict[str, Any]], systems: Sequence[str]) -> list[dict[str, Any]]:
    """The cells of the seeds that each of the systems has: a seed draws the rows."""
    seeds = [{cell["seed"] for cell in cells if cell["system"] == system} for system in systems]
    common = set.intersection(*seeds)
    return [cell for cell in cells if cell["seed"] in common]


def measure(cells: Sequence[dict[str, Any]], split: str) -> Measured | None:
    """A system over its seeds; None without a cell."""
    scored = [cell for cell in cells if split in cell]
    if not scored:
        return None
    columns = zip(*((cell[split], cell["cpu_s"]) for cell in scored), strict=True)
    return Measured(scored[0]["system"], *columns)


def best_baseline(cells: Sequence[dict[str, Any]], split: str) -> Measured | None:
    """The baseline with the highest mean score."""
    kinds = dict.fromkeys(name for cell in cells for name in cell["systems"])
    found = []
    for name in kinds:
        each = [{"system": name, **cell["systems"][name]} for cell in cells]
        measured = measure(each, split)
        if measured is not None:
            found.append(measured)
    return max(found, key=lambda measured: measured.mean, default=None)


def describe(measured: Measured, digits: int) -> str:
    """`72.4 ± 1.9`: mean and deviation; of one seed, the score."""
    value = f"{measured.mean:.{digits}f}"
    if len(measured.scores) < 2:
        return value
    return f"{value} ± {measured.deviation:.{digits}f}"


def _said(cells: Sequence[dict[str, Any]]) -> str:
    """In how many of the runs training said that a simpler model is not behind."""
    runs = [cell for cell in cells if cell["system"] == "trifold"]
    said = sum(any(" ahead of " in line for line in cell["said"]) for cell in runs)
    return f"{said} of {len(runs)}"
