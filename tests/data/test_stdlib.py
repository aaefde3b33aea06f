"""Functions and docstrings of a library: of a small one made here, and (slow) of the real one."""

from __future__ import annotations

import ast
import textwrap
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trifold.data import embedded, stdlib
from trifold.data.bodies import judge
from trifold.errors import DataError

FILES = {
    "alone.py": '''
        """A module by itself, with some words."""
        import os

        @decorated(1)
        def first( a,b = 2 ):
            """What it does, in five words."""
            # a comment
            return a+b   # another

        def idle(self):
            """Does nothing at all, but says so."""
            pass

        class Thing:
            """A thing that has two methods."""

            async def second(self, *, key: int = 3) -> str:
                def inner():
                    """An inner function says this much."""
                    return self.close()
                await inner()

        if os.name == "nt":
            def conditional(path): return os.path.join(path, 'a')
        ''',
    "package/__init__.py": '"""What the package is all about."""\n',
    "package/module.py": '''
        def third(a):
            """Words that only this package has."""
            return [each for each in a]

        def again( a, b=2 ):
            return a + b
        ''',
    "package/shared.py": 'def f(a):\n    """These five words are shared."""\n    return a()\n',
    "other/shared.py": 'def f(a):\n    """These five words are shared."""\n    return a()\n',
    "other/short.py": 'def g(a):\n    """Too short."""\n    return a(1)\n',
    "package/tests/test_it.py": "def in_a_test(a):\n    return a + 1\n",
    "site-packages/theirs/a.py": "def theirs(a):\n    return a + 1\n",
    "broken.py": "def broken(:\n",
    "binary.py": "\0",
    "text.txt": "def text(a): return a + 1",
}


@pytest.fixture
def library(tmp_path, monkeypatch):
    for name, content in FILES.items():
        path = tmp_path / "python" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(content), encoding="utf-8")
    monkeypatch.setattr(stdlib, "FEWEST", 1)
    return tmp_path / "python"


def test_functions_are_bare_and_each_is_there_once(library):
    found = {function.signature: function for function in stdlib.functions(library)}
    assert set(found) == {
        "def first(a, b=2):",
        "async def second(self, *, key: int=3) -> str:",
        "def conditional(path):",
        "def third(a):",
        "def again(a, b=2):",
        "def f(a):",
        "def g(a):",
    }
    assert found["def first(a, b=2):"].text == "def first(a, b=2):\n    return a + b"
    assert '"""' not in found["async def second(self, *, key: int=3) -> str:"].text
    assert found["def f(a):"].module == "other.shared"  # the first in the order of names


def test_every_text_is_a_function_that_does_something_and_begins_with_its_signature(library):
    for function in stdlib.functions(library):
        assert judge(function.text) == (True, True)
        assert function.text.startswith(function.signature + "\n")


def test_docstrings_know_their_package_unless_several_have_them(library):
    assert {(one.package, one.text) for one in stdlib.docstrings(library)} == {
        (None, "A module by itself, with some words."),
        (None, "What it does, in five words."),
        (None, "Does nothing at all, but says so."),
        (None, "A thing that has two methods."),
        (None, "An inner function says this much."),
        ("package", "What the package is all about."),
        ("package", "Words that only this package has."),
        (None, "These five words are shared."),
    }


def test_the_packages_with_most_docstrings():
    counts = {f"p{number:02}": number for number in range(1, 20)}
    found = [stdlib.Docstring(name, f"{name} {n}") for name, count in counts.items() for n in range(count)]
    assert stdlib.packages([*found, *[stdlib.Docstring(None, "a")] * 50]) == [
        f"p{n:02}" for n in range(8, 20)
    ]


@given(
    st.lists(st.text("abcé", min_size=1), min_size=1, max_size=6),
    st.data(),
)
def test_docstrings_that_differ_in_case_space_and_punctuation_are_on_one_side(said, data):
    between = st.text(" \n\t.,:;()'*0123456789_", max_size=4)
    texts = [
        "".join(data.draw(st.sampled_from([word, word.upper()])) + data.draw(between) for word in said)
        for _ in range(2)
    ]
    assert stdlib.side(stdlib.Docstring("a", texts[0])) == stdlib.side(stdlib.Docstring("b", texts[1]))


def test_a_side_is_drawn_by_the_letters():
    drawn = Counter(stdlib.side(stdlib.Docstring(None, "word" * n)) for n in range(2000))
    assert [round(drawn[part] / 100) for part in ("train", "valid", "test")] == [16, 1, 3]


def test_modules_are_held_out_whole_and_their_signatures_are_not_known():
    found = [
        stdlib.Function(
            f"m{number}", f"def f{number % 150}(a):", f"def f{number % 150}(a):\n    return a({number})"
        )
        for number in range(400)
    ]
    parts = stdlib.divided(found)
    modules = {name: {one.module for one in part} for name, part in parts.items()}
    assert all(modules.values())
    assert not modules["train"] & modules["test"]
    assert not modules["train"] & modules["valid"]
    assert not {one.signature for one in parts["train"]} & {one.signature for one in parts["test"]}
    again = stdlib.divided(found[::-1])
    assert {name: sorted(part) for name, part in again.items()} == {
        n: sorted(part) for n, part in parts.items()
    }


@pytest.mark.parametrize("collect", [stdlib.functions, stdlib.docstrings])
def test_an_installation_without_sources_is_told_so(collect, tmp_path):
    with pytest.raises(DataError, match="libpython3-stdlib") as told:
        collect(tmp_path)
    assert str(tmp_path) in str(told.value)


@pytest.mark.slow
def test_the_real_library_is_enough_for_the_demos():
    functions = embedded.splits("functions")
    modules = {name: {row["module"] for row in rows} for name, rows in functions.items()}
    assert not modules["test"] & (modules["train"] | modules["valid"])
    assert not {row["signature"] for row in functions["train"]} & {
        row["signature"] for row in functions["test"]
    }
    assert len(functions["train"]) > 5000
    assert len({row["signature"] for row in functions["test"]}) >= 100
    assert all(judge(row["text"]).does for row in functions["test"])

    raw, labelled = embedded.splits("docstrings"), embedded.splits("packages")
    texts = {name: {row["text"] for row in rows} for name, rows in raw.items()}
    plain = {
        name: {"".join(filter(str.isalpha, text.lower())) for text in part} for name, part in texts.items()
    }
    assert not plain["train"] & plain["test"]
    assert all({row["text"] for row in rows} <= texts[name] for name, rows in labelled.items())
    labels = {name: {row["package"] for row in rows} for name, rows in labelled.items()}
    assert len(labels["train"]) == stdlib.PACKAGES
    assert labels["test"] <= labels["train"]


def test_what_is_written_is_what_the_tree_says():
    (function,) = ast.parse("def f(a):\n    '''Text.'''\n    return  a").body
    assert ast.unparse(stdlib._bare(function)) == "def f(a):\n    return a"
