from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trifold.look.canvas import Canvas, table

CELLS = st.text(st.characters(categories=["L", "N"]), max_size=8)


@given(st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=5))
def test_columns_stand_below_each_other(rows):
    heading, rule, *rest = table(rows, " r ").split("\n")
    assert len(rest) == len(rows) - 1
    starts = [0, *(i + 2 for i in range(len(rule)) if rule[i : i + 2] == "  ")]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    assert [len(part) for part in rule.split("  ")] == widths
    for line, row in zip([heading, *rest], rows, strict=True):
        expected = [row[0].ljust(widths[0]), row[1].rjust(widths[1]), row[2].ljust(widths[2])]
        assert line == "  ".join(expected).rstrip()
    assert len(starts) >= 1


def test_what_is_written_later_stands_on_top():
    canvas = Canvas()
    canvas.box(0, 1, 6, 3, "a")
    canvas.write(1, 3, "bc")
    assert str(canvas) == " ┌─ a ┐\n │ bc │\n └────┘"


def test_an_empty_canvas_is_empty():
    assert str(Canvas()) == ""
