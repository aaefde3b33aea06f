"""tools/import_circles.py finds circles of all kinds of imports, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.import_circles import circles, import_graph

FILES = {
    "__init__.py": "from pack.a import x\nfrom pack.sub import y\n",
    "a.py": "def f():\n    from pack.b import g\n",
    "b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pack import a\n",
    "c.py": "import pack.a\nfrom pack.sub.d import y\n",
    "sub/__init__.py": "from pack.sub.d import y\n",
    "sub/d.py": "from pack.sub import e\n",
    "sub/e.py": "import os\nfrom pack import x\n",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / "pack" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return tmp_path / "pack"


def test_lazy_imports_and_those_for_types_count(package: Path) -> None:
    graph = import_graph(package)
    assert graph["pack.a"] == {"pack.b"} and graph["pack.b"] == {"pack.a"}
    assert graph["pack.c"] == {"pack.a", "pack.sub.d"}
    assert circles(graph) == [["pack.a", "pack.b"]]


def test_no_circle(package: Path) -> None:
    (package / "a.py").write_text("", encoding="utf-8")
    assert circles(import_graph(package)) == []
