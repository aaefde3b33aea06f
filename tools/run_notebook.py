"""Run the code cells of a notebook and store their outputs in it: python -m tools.run_notebook
FILE.ipynb

The cells are plain Python and run in this process, in an empty folder. An output is what a cell
prints on standard output, and the value of its last line.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """Run the cells in the current folder and replace their outputs. Returns the variables of the
    cells.
    """
    variables: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, start=1):
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        printed, place, value = io.StringIO(), f"cell {number}", None
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, place, "exec"), variables)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), place, "eval"), variables)
        cell |= {"execution_count": number, "outputs": []}
        if printed.getvalue():
            text = printed.getvalue().splitlines(keepends=True)
            cell["outputs"].append({"output_type": "stream", "name": "stdout", "text": text})
        if value is not None:
            shown = {"data": {"text/plain": repr(value).splitlines(keepends=True)}, "metadata": {}}
            cell["outputs"].append(
                {"output_type": "execute_result", "execution_count": number, **shown}
            )
    return variables


def main(file: Path) -> None:
    """Run the notebook in a temporary folder and write it with its outputs."""
    notebook = json.loads(file.read_text("utf-8"))
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        run(notebook)
    file.write_text(
        json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n",
        encoding="utf-8",
        newline="\n",
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
