"""The guard of untrusted tokenizers: their regular expressions, and parts that may crash, first run
on each text in a sandbox process, which can be stopped.

`tokenizers` matches by backtracking, which can take longer than any time limit and cannot be
interrupted.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from trifold.errors import CheckpointError
from trifold.sandbox import Sandbox, SandboxError
from trifold.text.pre_tokenizers import PRE_TOKENIZERS

# Seconds; a harmless pattern takes a microsecond per character.
TIMEOUT = 2.0
TIME_PER_CHARACTER = 1e-5
_MEMORY = 1 << 29  # bytes
_SANDBOX = Sandbox(Path(__file__).with_name("pattern_handler.py"))
PARTS = ("normalizer", "pre_tokenizer", "decoder")

# Patterns of published tokenizers, and of those that are trained here, take linear time.
KNOWN = {
    *(pattern for way in PRE_TOKENIZERS.values() for pattern in way),
    r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",  # CLIP
    r" ?[^(\s|[.,!?…。，、।۔،])]+",  # BLOOM
    r"[\s\S]",
    "<",
    " {2,}",
    r"\s+",
    r"\p{N}",
    r"\p{N}{1,3}",
    "[0-9]",
    "[0-9][0-9][0-9]",
    r"[\r\n]",
}


class PatternGuard:
    """Runs the parts of a tokenizer.json on texts in a sandbox process, unless all of its patterns
    are known and no part may crash.

    decodes: whether its decoder has a pattern, or may crash.
    """

    def __init__(self, document: Mapping[str, Any], place: str) -> None:
        self._parts = {name: document.get(name) for name in PARTS}
        self._place = place
        self._added = list(document.get("added_tokens") or [])
        decoder = self._parts["decoder"]
        is_crashing = any(map(_may_crash, iter_objects(decoder)))
        self._is_needed = is_crashing or not KNOWN.issuperset(_patterns(self._parts))
        has_pattern = any(True for _ in _patterns(decoder))
        self.decodes = is_crashing or (self._is_needed and has_pattern)
        # The parts as JSON without and with the added tokens; empty if they are not needed.
        self._without_added = ""
        self._with_added = ""
        if self._is_needed:
            self._without_added = json.dumps(self._parts | {"added_tokens": []})
            self.add([])

    def add(self, tokens: Iterable[AddedToken]) -> None:
        """Split texts at these tokens too. Raises CheckpointError if a pattern is too large, or too
        slow on a token.
        """
        if self._is_needed:
            self._added += [token.__getstate__() for token in tokens]
            added = [{**token, "id": number} for number, token in enumerate(self._added)]
            self._with_added = json.dumps(self._parts | {"added_tokens": added})
            self.check([])

    def check(
        self,
        texts: Sequence[str],
        tokens: Sequence[Sequence[str]] = (),
        *,
        special: bool | None = False,
    ) -> None:
        """Raises CheckpointError if encoding the texts, or decoding the tokens, fails or exceeds
        its time or memory.

        special: whether texts are split at special tokens too; None: they are not split at any
        added token.
        """
        if not self._is_needed:
            return
        size = sum(map(len, texts)) + sum(len(token) for row in tokens for token in row)
        request = {
            "parts": self._without_added if special is None else self._with_added,
            "special": bool(special),
            "texts": list(texts),
            "tokens": list(tokens),
        }
        timeout = TIMEOUT + TIME_PER_CHARACTER * size
        memory = _MEMORY + 1000 * size
        try:
            problem = _SANDBOX.request(request, timeout=timeout, memory=memory).get("error")
        except SandboxError as error:
            problem = str(error)
        if problem is not None:
            raise CheckpointError(
                f"{self._place}: its regular expressions or its decoder cannot be run on this "
                f"text: {problem}; use another tokenizer"
            )


def _may_crash(part: Mapping[str, Any]) -> bool:
    """Whether a part of a decoder may panic: the library strips characters that a token lacks."""
    return part.get("type") == "Strip" and part.get("stop") not in (0, None)


def _patterns(part: object) -> Iterator[str]:
    """The regular expressions in a part of a tokenizer.json."""
    found = (entry.get("Regex") for entry in iter_objects(part))
    return (pattern for pattern in found if isinstance(pattern, str))


def iter_objects(part: object) -> Iterator[dict[str, Any]]:
    """The objects in nested objects and lists."""
    values: Iterable[object] = ()
    if isinstance(part, dict):
        yield part
        values = part.values()
    elif isinstance(part, list):
        values = part
    for value in values:
        yield from iter_objects(value)
