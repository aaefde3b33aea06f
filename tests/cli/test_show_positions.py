"""`trifold show MODEL --positions`."""

from __future__ import annotations

import json

import pytest


def test_the_parameters_of_each_scheme_and_the_relation_are_printed(trifold):
    done = trifold("show", "transformer-tiny", "--positions")
    assert done.code == 0, done.err
    lines = [line.split() for line in done.out.splitlines()]
    assert max(map(len, done.out.partition("\n* ")[0].splitlines())) <= 80
    assert any(line[:3] == ["sinusoidal", "*", "0"] for line in lines)
    assert ["1", "1.000000", "6.28", "0.5403", "0.8415", "-0.8415", "0.5403"] in lines
    assert "P·E + P·E" in done.out and "(k = 100)" in done.out
    report = json.loads(trifold("show", "transformer-tiny", "--positions", "--json").out)
    rotary = next(each for each in report["schemes"] if each["name"] == "rotary")
    assert (rotary["parameters"], rotary["own"]) == (0, False)
    assert max(each["error"] for each in report["sinusoids"]["relations"]) < 1e-12


ERRORS = {
    "no model": (("--positions",), "--positions: name the MODEL"),
    "a size": (("bert", "--positions", "--length", "8"), "--length: --positions does not use it"),
    "two views": (("bert", "--positions", "--text", "a"), "--positions: --text does not use it"),
}


@pytest.mark.parametrize(("arguments", "message"), ERRORS.values(), ids=ERRORS)
def test_errors(trifold, arguments, message):
    done = trifold("show", *arguments)
    assert (done.code, done.out) == (2, "") and message in done.err
