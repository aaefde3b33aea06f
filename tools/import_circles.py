"""Count import circles: sets of modules of which each imports, directly or not, all others.

    python tools/import_circles.py          print the circles of src/; exit code 1 if there is one
    python tools/import_circles.py PATH     of another folder with the package

All imports count: at the top of a file, in functions, and those for type checkers only. A package's
`__init__` is left out, because it imports the modules of its package for users. An import of a name
from a package counts as one of the module that it stands for.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
Graph = Mapping[str, set[str]]


def modules_in(folder: Path) -> dict[str, Path]:
    """The modules of the package: dotted name -> file."""
    found = {}
    for file in sorted(folder.rglob("*.py")):
        parts = file.relative_to(folder.parent).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = file
    return found


def imported_names(file: Path) -> Iterator[str]:
    """The dotted names of modules and of what is imported from them."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{each.name}" for each in node.names)


def import_graph(folder: Path) -> Graph:
    """Module -> the modules that it imports, without packages."""
    modules = modules_in(folder)
    files = {name: file for name, file in modules.items() if file.name != "__init__.py"}
    graph = {}
    for name, file in files.items():
        found = {_module_of(each, files) for each in imported_names(file)}
        graph[name] = {each for each in found if each is not None} - {name}
    return graph


def _module_of(name: str, files: Mapping[str, Path]) -> str | None:
    """The module that a dotted name is, or is a name of."""
    if name in files:
        return name
    parent = name.rpartition(".")[0]
    return parent if parent in files else None


def circles(graph: Graph) -> list[list[str]]:
    """The strongly connected components with several modules."""
    reached = {name: _reachable(graph, name) for name in graph}
    found = {
        frozenset(each for each in reached[name] if name in reached[each])
        for name in graph
        if name in reached[name]
    }
    return sorted(sorted(circle) for circle in found)


def _reachable(graph: Graph, start: str) -> set[str]:
    """What a module imports, directly or not."""
    seen = set[str]()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - seen
        seen |= new
        waiting.extend(new)
    return seen


def main() -> int:
    """Print the circles; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "src" / "trifold")
    graph = import_graph(parser.parse_args().folder)
    found = circles(graph)
    for circle in found:
        print("circle:", ", ".join(circle))
    print(f"{len(graph)} modules, {len(found)} import circles")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
