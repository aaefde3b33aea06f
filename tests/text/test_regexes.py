"""Patterns that could run for ever are refused, quickly; those in use are not."""

from __future__ import annotations

import time

import pytest

from trifold.text.validation import Rejected, check_regex

IN_USE = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama 3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "deepseek": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*",
    "han": r"[一-龥\u3040-\u309f゠-ヿ]+",
    "spaces": r" {2,}",
    "any": r"[\s\S]",
    "bloom": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "starcoder": r"\p{N}",
    "falcon": r"[0-9][0-9][0-9]",
}
EXPLODING = {
    "nested": r"(a+)+b",
    "nested, lazy": r"(?:a+?)*?b",
    "alternatives": r"(a|a)*b",
    "deep": r"((a?){30}){30}b",
    "optional": r"(x?y?)*z",
    "back": r"(a*)\1b",
    "named back": r"(?<n>a)\k<n>",
    "recursion": r"(?<n>a\g<n>?b)",
    "counted": r"a{100000}",
    "of a repetition": r"(?:a{2,3}){5,}c",
    "conditional": r"(a)?(?(1)b|c)",
    "absent": r"(?~a)",
    "five in a row": r"\s*\s*\s*\s*\s*x",
    "cubic": r"a*a*a*b",
    "eight in a row": r"\s*" * 8 + "x",
    "fifty in a row": r"a*" * 50 + "b",
    "optional in a row": "a?" * 40 + "a" * 40,
    "open": r"(a",
    "closed": r"a)",
    "class": r"[a",
    "depth": "(" * 99 + "a" + ")" * 99,
    "length": "a" * 20_000,
}


@pytest.mark.parametrize("name", IN_USE)
def test_patterns_in_use_are_accepted(name: str) -> None:
    check_regex(IN_USE[name])


@pytest.mark.parametrize("name", EXPLODING)
def test_patterns_that_explode_are_refused_quickly(name: str) -> None:
    before = time.process_time()
    with pytest.raises(Rejected):
        check_regex(EXPLODING[name])
    assert time.process_time() - before < 2
