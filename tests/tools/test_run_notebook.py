"""The notebook of the examples works, and its stored outputs are those of its cells."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest
from tools.run_notebook import main, run

NOTEBOOK = Path(__file__).parents[2] / "examples" / "fine_tune.ipynb"


def cells(*sources):
    return {"cells": [{"cell_type": "code", "source": [source]} for source in sources]}


def test_outputs_are_what_is_printed_and_the_last_value(tmp_path):
    file = tmp_path / "a.ipynb"
    file.write_text(json.dumps(cells("print('é')\nx = 2", "x + 1", "x = 4")), encoding="utf-8")
    main(file)
    printed, value, nothing = (
        cell["outputs"] for cell in json.loads(file.read_text("utf-8"))["cells"]
    )
    assert printed == [{"output_type": "stream", "name": "stdout", "text": ["é\n"]}]
    assert (value[0]["data"], value[0]["execution_count"]) == ({"text/plain": ["3"]}, 2)
    assert nothing == []


def test_an_error_in_a_cell_is_raised():
    with pytest.raises(ZeroDivisionError):
        run(cells("1 / 0"))


@pytest.mark.slow
def test_the_notebook_prints_what_it_stores(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stored = json.loads(NOTEBOOK.read_text("utf-8"))
    again = copy.deepcopy(stored)
    variables = run(again)
    tuned, scratch = (variables[name].scores["accuracy"] for name in ("tuned", "scratch"))
    assert tuned > scratch + 20
    for before, after in zip(stored["cells"], again["cells"], strict=True):
        assert shape_of(before) == shape_of(after)


def shape_of(cell):
    """The outputs without numbers and mistakes, which depend on the processor."""
    text = json.dumps(cell.get("outputs"), ensure_ascii=False, sort_keys=True)
    return re.sub(r"-?\d+(\.\d+)?", "0", re.sub(r'"[^"]* predicted [^"]*"', "mistake", text))
