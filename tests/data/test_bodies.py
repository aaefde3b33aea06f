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
    "several idle ones": '"""Text."""\n    pass\n    return None',
}
DOES = {
    "a call": "close()",
    "an assignment": "self.a = b",
    "return of an attribute": "return self._parser",
    "return of a sum": "return a + 1",
    "return of a call": "return len(self)",
    "return of a tuple": "return (0, 0)",
    "an error of its own": "raise ValueError(a)",
    "the error at hand": "raise",
    "a loop": "for each in self:\n        pass",
    "a condition": "if a:\n        return None",
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
