"""Regular expressions of untrusted tokenizers run on every text in a sandbox process first, which can be stopped.

`tokenizers` matches by backtracking, which can take longer than any time limit and cannot be interrupted.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from trifold.errors import CheckpointError
from trifold.sandbox import Sandbox, SandboxError

TIMEOUT, TIME_PER_CHARACTER = 2.0, 1e-5  # seconds; a harmless pattern takes a microsecond per character
_MEMORY = 1 << 29  # bytes
PARTS = ("normalizer", "pre_tokenizer", "decoder")

# Patterns of published tokenizers, and of those that are trained here, take linear time.
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASES = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KNOWN = {
    *(rf"{_WORDS}{digits}{_REST}" for digits in (r"\p{N}", r"\p{N}{1,3}")),  # Qwen 2, LLaMA 3
    _CASES,  # o200k
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2
    r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",  # CLIP
    r" ?[^(\s|[.,!?…。，、।۔،])]+",  # BLOOM
    *(r"[\s\S]", "<", " {2,}", r"\s+", r"\p{N}", r"\p{N}{1,3}", "[0-9]", "[0-9][0-9][0-9]", r"[\r\n]"),
}


@cache
def _sandbox(process: int) -> Sandbox:
    """The sandbox of a process; a forked one needs its own."""
    sandbox = Sandbox(Path(__file__).with_name("pattern_handler.py"))
    atexit.register(sandbox.stop)
    return sandbox


class PatternGuard:
    """Runs the parts of a tokenizer on texts in a sandbox process. decodes: whether its decoder has a pattern."""

    def __init__(self, document: Mapping[str, Any], place: str) -> None:
        self._parts = json.dumps({name: document.get(name) for name in PARTS})
        self._place = place
        self.decodes = any(iter_patterns(document.get("decoder")))
        self.check([])  # a pattern may be too large

    def check(self, texts: Sequence[str], tokens: Sequence[Sequence[str]] = ()) -> None:
        """Raises CheckpointError if encoding the texts, or decoding the tokens, takes too much time or memory."""
        size = sum(map(len, texts)) + sum(len(token) for row in tokens for token in row)
        request = {"parts": self._parts, "texts": list(texts), "tokens": list(tokens)}
        try:
            timeout = TIMEOUT + TIME_PER_CHARACTER * size
            _sandbox(os.getpid()).request(request, timeout=timeout, memory=_MEMORY + 1000 * size)
        except SandboxError as error:
            raise CheckpointError(
                f"{self._place}: its regular expressions cannot be run on this text: {error}; use another tokenizer"
            ) from None


def check_patterns(guard: PatternGuard | None, texts: Sequence[str]) -> None:
    """Raises CheckpointError if there is a guard and it does."""
    if guard is not None:
        guard.check(texts)


def pattern_guard(document: Mapping[str, Any], place: str) -> PatternGuard | None:
    """The guard of a tokenizer.json, or None if all of its patterns are known. Raises CheckpointError like `check`."""
    found = {pattern for name in PARTS for pattern in iter_patterns(document.get(name))}
    return None if found <= KNOWN else PatternGuard(document, place)


def iter_patterns(part: object) -> Iterator[str]:
    """The regular expressions in a part of a tokenizer.json."""
    if isinstance(part, dict):
        if isinstance(part.get("Regex"), str):
            yield part["Regex"]
        part = [*part.values()]
    if isinstance(part, list):
        for entry in part:
            yield from iter_patterns(entry)
