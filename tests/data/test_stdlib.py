"""Functions of a small library written by the tests, and (slow) of the real standard library."""

from __future__ import annotations

import ast
import textwrap
from functools import cache
from zlib import crc32

import pytest

from trifold.data import embedded, stdlib
from trifold.data.stdlib import FunctionCheck, check_function
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
    monkeypatch.setattr(stdlib, "MIN_FUNCTIONS", 1)
    return tmp_path / "python"


def test_functions_are_stripped_and_unique(library):
    found = {function["signature"]: function for function in stdlib.read_functions(library)}
    assert set(found) == {
        "def first(a, b=2):",
        "async def second(self, *, key: int=3) -> str:",
        "def conditional(path):",
        "def third(a):",
        "def again(a, b=2):",
        "def f(a):",
        "def g(a):",
    }
    assert found["def first(a, b=2):"]["text"] == "def first(a, b=2):\n    return a + b"
    assert '"""' not in found["async def second(self, *, key: int=3) -> str:"]["text"]
    assert found["def f(a):"]["module"] == "other.shared"  # the first by path


def test_every_function_does_something_and_starts_with_its_signature(library):
    for function in stdlib.read_functions(library):
        assert check_function(function["text"]) == (True, True)
        assert function["text"].startswith(function["signature"] + "\n")


def test_whole_modules_with_unknown_signatures_are_held_out():
    found = [
        {"module": f"m{number}", "signature": f"def f{number % 150}(a):", "text": str(number)}
        for number in range(400)
    ]
    parts = stdlib.split_functions(found)
    modules = {name: {one["module"] for one in part} for name, part in parts.items()}
    assert all(modules.values())
    assert not modules["train"] & modules["test"]
    assert not modules["train"] & modules["valid"]
    assert not {one["signature"] for one in parts["train"]} & {
        one["signature"] for one in parts["test"]
    }
    again = stdlib.split_functions(found[::-1])
    assert {name: part[::-1] for name, part in again.items()} == parts


def test_an_installation_without_sources_is_an_error(tmp_path):
    with pytest.raises(DataError, match="libpython3-stdlib") as error:
        stdlib.read_functions(tmp_path)
    assert str(tmp_path) in str(error.value)


@pytest.mark.slow
def test_splits_of_a_third_of_the_real_library(monkeypatch):
    @cache
    def parse(path, original=stdlib._parse):
        return None if crc32(path.name.encode()) % 3 else original(path)

    monkeypatch.setattr(stdlib, "_parse", parse)
    monkeypatch.setattr(stdlib, "MIN_FUNCTIONS", 300)
    embedded.load_splits.cache_clear()
    functions = embedded.load_splits("functions")
    modules, signatures = (
        {name: {row[column] for row in rows} for name, rows in functions.items()}
        for column in ("module", "signature")
    )
    assert not modules["test"] & (modules["train"] | modules["valid"])
    assert not signatures["train"] & signatures["test"]
    assert len(functions["train"]) > 2000
    assert len(signatures["test"]) >= 50
    assert all(check_function(row["text"]).does_something for row in functions["test"])
    embedded.load_splits.cache_clear()


def test_a_stripped_function_has_no_docstring():
    (function,) = ast.parse("def f(a):\n    '''Text.'''\n    return  a").body
    assert ast.unparse(stdlib._strip(function)) == "def f(a):\n    return a"


# --- does a function do something? ---

NO_EFFECT = {
    "pass": "pass",
    "a docstring": '"""Says much."""',
    "an ellipsis": "...",
    "a number": "42",
    "a bare name": "self",
    "a bare attribute": "self.tk",
    "an unused comparison": "a == b",
    "return": "return",
    "return None": "return None",
    "return of a constant": "return True",
    "return of a bare name": "return self",
    "an import": "import os",
    "global": "global a",
    "not implemented": "raise NotImplementedError",
    "not implemented, with a message": "raise NotImplementedError('later')",
    "return of a negative number": "return -1",
    "return of an empty list": "return []",
    "return of an empty dictionary": "return {}",
    "return of constants": "return (None, [0, -1], {'a': {}}, {1})",
    "return of an empty f-string": "return f''",
    "unreachable code after a return": "return a\n    return close()",
    "an assignment to itself": "a = a",
    "an assignment of an attribute to itself": "self.a = self.a",
    "a bare annotation": "a: int",
    "assert True": "assert True",
    "a condition": "if a:\n        pass\n    elif b:\n        ...\n    else:\n        a",
    "a condition with one exit": "if a:\n        return None",
    "a loop": "for each in self:\n        continue",
    "an endless loop": "while True:\n        pass",
    "with": "with a as c:\n        pass",
    "try": "try:\n        pass\n    except OSError:\n        pass\n    finally:\n        return",
    "match": "match a:\n        case [1, *_]:\n            pass",
    "an inner function": "def g():\n        pass",
    "an inner function with one exit": "def g():\n        return 1\n    return 2",
    "an inner class": "class A:\n        def g(self):\n            return []",
    "a block in a block": "for each in a:\n        if each:\n            with b:\n                pass",
    "several of them": '"""Text."""\n    pass\n    return None',
}
EFFECT = {
    "a call": "close()",
    "an assignment": "self.a = b",
    "return of an attribute": "return self._parser",
    "return of a sum": "return a + 1",
    "return of a call": "return len(self)",
    "return of a tuple": "return (a, b)",
    "return of a list": "return [*a]",
    "return of a dictionary": "return {**a}",
    "return of an f-string": "return f'{a}'",
    "return of a negative": "return -a",
    "return of a function": "return lambda: f()",
    "assignment of another": "a = b = a",
    "an annotation with a value": "a: int = b",
    "assert False": "assert False",
    "a call after a block without effect": "if a:\n        pass\n    close()",
    "a call in a condition": "if f(a):\n        pass",
    "a call in a loop": "while self.step():\n        pass",
    "a call in a block": "if a:\n        pass\n    else:\n        close()",
    "with a call": "with open(a):\n        pass",
    "a call in an except block": "try:\n        pass\n    except OSError:\n        close()",
    "a call in match": "match a:\n        case 1 if f():\n            pass",
    "an inner function with a call": "def g():\n        return close()\n    return g",
    "a default": "def g(c=f()):\n        pass",
    "raise of another error": "raise ValueError(a)",
    "yield": "yield a",
    "del": "del self[a]",
    "assert": "assert a",
    "one of several": "pass\n    return self.close()",
}
BROKEN = {
    "an open bracket": "return len(self",
    "two brackets too many": "return len(self)))",
    "no body": "",
    "no indentation": "\nreturn 1",
    "else without if": "else:\n        pass",
    "an unterminated string": "return 'a",
    "an invalid character": "return a $ b",
    "a null": "return \0",
}


@pytest.mark.parametrize("body", NO_EFFECT.values(), ids=NO_EFFECT)
def test_bodies_without_effect(body):
    assert check_function(f"def f(self, a, b=None):\n    {body}") == (True, False)


@pytest.mark.parametrize("body", EFFECT.values(), ids=EFFECT)
def test_bodies_that_do_something(body):
    assert check_function(f"def f(self, a, b=None):\n    {body}") == (True, True)
    assert check_function(f"async def f(self, a, b=None):\n    {body}") == (True, True)


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
def test_invalid_python(body):
    assert check_function(f"def f(self, a, b=None):\n    {body}") == (False, False)


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    g()\ng()",
        "f()",
        "def f():\n    g()\n\ndef g():\n    f()",
        "def f():\n    return " + "(" * 5000,
    ],
)
def test_only_a_single_function_parses(text):
    assert check_function(text) == (False, False)


@pytest.mark.parametrize(
    "body", ["return " + "-" * 2000 + "1", "if a:\n  b()\n " + "elif a:\n  b()\n " * 1500]
)
def test_deep_nesting_does_not_crash(body):
    assert isinstance(check_function(f"def f(a):\n {body}"), FunctionCheck)
