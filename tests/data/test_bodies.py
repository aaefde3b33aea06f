"""What counts as a function whose body does something, case by case."""

from __future__ import annotations

import pytest

from trifold.data.bodies import Verdict, judge

IDLE = {
    "pass": "pass",
    "a docstring": '"""Says much."""',
    "an ellipsis": "...",
    "a number": "42",
    "a bare name": "self",
    "a bare attribute": "self.tk",
    "a comparison that nobody hears of": "a == b",
    "return": "return",
    "return None": "return None",
    "return of a constant": "return True",
    "return of a bare name": "return self",
    "an import": "import os",
    "global": "global a",
    "not implemented": "raise NotImplementedError",
    "not implemented, with words": "raise NotImplementedError('later')",
    "return of a negative number": "return -1",
    "return of an empty list": "return []",
    "return of an empty dictionary": "return {}",
    "return of constants": "return (None, [0, -1], {'a': {}}, {1})",
    "return of an empty f-string": "return f''",
    "return of a name, and what is never reached": "return a\n    return close()",
    "an assignment to itself": "a = a",
    "an attribute's to itself": "self.a = self.a",
    "a bare annotation": "a: int",
    "assert True": "assert True",
    "del of a name": "del a, b",
    "a function without a name": "lambda: f()",
    "a condition": "if a:\n        pass\n    elif b:\n        ...\n    else:\n        a",
    "a condition with one end": "if a:\n        return None",
    "a loop": "for each in self:\n        continue",
    "a loop without end": "while True:\n        pass",
    "with": "with a as c:\n        pass",
    "try": "try:\n        pass\n    except OSError:\n        pass\n    finally:\n        return",
    "match": "match a:\n        case [1, *_]:\n            pass",
    "an inner function": "def g():\n        pass",
    "an inner function with one end": "def g():\n        return 1\n    return 2",
    "an inner class": "class A:\n        def g(self):\n            return []",
    "a block in a block": "for each in a:\n        if each:\n            with b:\n                pass",
    "several idle ones": '"""Text."""\n    pass\n    return None',
}
DOES = {
    "a call": "close()",
    "an assignment": "self.a = b",
    "return of an attribute": "return self._parser",
    "return of a sum": "return a + 1",
    "return of a call": "return len(self)",
    "return of a tuple": "return (a, b)",
    "return of a list": "return [*a]",
    "return of a dictionary": "return {**a}",
    "return of a text with a value": "return f'{a}'",
    "return of a negative": "return -a",
    "return of a function": "return lambda: f()",
    "assignment of another": "a = b = a",
    "assignment of a call": "a[f()] = a[f()]",
    "an annotation with a value": "a: int = b",
    "assert False": "assert False",
    "a call behind nothing": "if a:\n        pass\n    close()",
    "a call in a condition": "if f(a):\n        pass",
    "a call in a loop": "while self.step():\n        pass",
    "a call in a block": "if a:\n        pass\n    else:\n        close()",
    "a loop that sets": "for self.a in b:\n        pass",
    "with a call": "with open(a):\n        pass",
    "a call where it fails": "try:\n        pass\n    except OSError:\n        close()",
    "a call in match": "match a:\n        case 1 if f():\n            pass",
    "an inner function that does": "def g():\n        return close()\n    return g",
    "a decorated one": "@a\n    def g():\n        pass",
    "a default": "def g(c=f()):\n        pass",
    "a choice between constants": "if a:\n        return True\n    return False",
    "a choice whether to end well": "if a:\n        raise NotImplementedError\n    return b",
    "an error of its own": "raise ValueError(a)",
    "the error at hand": "raise",
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
    "an open string": "return 'a",
    "a sign that is none": "return a $ b",
    "a null": "return \0",
}


@pytest.mark.parametrize("body", IDLE.values(), ids=IDLE)
def test_idle_bodies(body):
    assert judge(f"def f(self, a, b=None):\n    {body}") == Verdict(True, False)


@pytest.mark.parametrize("body", DOES.values(), ids=DOES)
def test_bodies_that_do_something(body):
    assert judge(f"def f(self, a, b=None):\n    {body}") == Verdict(True, True)
    assert judge(f"async def f(self, a, b=None):\n    {body}") == Verdict(True, True)


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
def test_what_is_no_python(body):
    assert judge(f"def f(self, a, b=None):\n    {body}") == Verdict(False, False)


def test_it_is_one_function_and_nothing_beside_it():
    assert judge("def f():\n    g()\ng()") == Verdict(False, False)
    assert judge("f()") == Verdict(False, False)
    assert judge("def f():\n    g()\n\ndef g():\n    f()") == Verdict(False, False)


def test_brackets_without_end_are_a_verdict_and_no_crash():
    assert judge("def f():\n    return " + "(" * 5000) == Verdict(False, False)


@pytest.mark.parametrize(
    "body", ["return " + "-" * 2000 + "1", "if a:\n  b()\n " + "elif a:\n  b()\n " * 1500]
)
def test_what_is_too_deep_is_a_verdict_too(body):
    assert isinstance(judge(f"def f(a):\n {body}"), Verdict)
