"""Boxes and tables made of characters."""

from __future__ import annotations

from collections.abc import Sequence


class Canvas:
    """A sheet that grows as it is written on; row 0 is the top, column 0 the left."""

    def __init__(self) -> None:
        self._cells: dict[tuple[int, int], str] = {}

    def __str__(self) -> str:
        rows, columns = (1 + max((place[axis] for place in self._cells), default=-1) for axis in (0, 1))
        lines = (
            "".join(self._cells.get((row, column), " ") for column in range(columns)) for row in range(rows)
        )
        return "\n".join(line.rstrip() for line in lines)

    def write(self, row: int, column: int, text: str) -> None:
        """Put text there, over whatever stands there."""
        for offset, character in enumerate(text):
            self._cells[row, column + offset] = character

    def box(self, row: int, column: int, width: int, height: int, title: str = "") -> None:
        """A frame of that outer size, its title in the upper edge."""
        heading = f"─ {title} " if title else ""
        self.write(row, column, f"┌{heading:─<{width - 2}}┐")
        for side in range(row + 1, row + height - 1):
            self.write(side, column, f"│{'':{width - 2}}│")
        self.write(row + height - 1, column, f"└{'':─<{width - 2}}┘")


def table(rows: Sequence[Sequence[str]], right: str = "") -> str:
    """Rows in columns as wide as need be, the first row a heading; a column whose mark in `right` is `r` ends flush."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.rjust(width) if right[i : i + 1] == "r" else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return "\n".join([line(rows[0]), "  ".join("─" * width for width in widths), *map(line, rows[1:])])
