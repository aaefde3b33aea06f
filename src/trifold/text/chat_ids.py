"""Chat templates as ids: the special tokens of the template are parsed, those of a user are text.

Both look alike in the rendered text. So the names that a user wrote are hidden while the template
runs, the names that remain are replaced by secret ones, and a copy of the tokenizer knows only
these.
"""

import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer as Library

from trifold.text.library import tokens_by_id, with_parts

TRUSTED = ("system", "developer", "assistant")  # roles whose special tokens are parsed
_SECRET = secrets.token_hex(8)  # no text contains it by chance or on purpose


def hide_names(
    messages: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> list[Mapping[str, Any]]:
    """The messages, with placeholders for the names of special tokens that a user or a tool
    wrote.
    """

    def hide(match: re.Match[str]) -> str:
        return f"{_SECRET}n{names.index(match[0])}e"

    pattern = _any_of(names)

    def hidden(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub(hide, value)
        if isinstance(value, Mapping):
            return {key: hidden(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [hidden(item) for item in value]
        return value

    def hidden_in(message: Mapping[str, Any]) -> Mapping[str, Any]:
        if message.get("role") in TRUSTED:
            return message
        return {key: item if key == "role" else hidden(item) for key, item in message.items()}

    return [hidden_in(message) for message in messages]


def has_placeholders(text: str) -> bool:
    """Whether a rendered text has names that a user wrote."""
    return _SECRET in text


class TemplateTokens:
    """Encodes rendered templates. Special tokens of `library` have secret names in a copy."""

    def __init__(self, library: Library, names: Sequence[str]) -> None:
        self._names = names
        self._secret = {name: f"{_SECRET}s{number}e" for number, name in enumerate(names)}
        tokens = tokens_by_id(library)
        for token in tokens.values():
            token.content = self._secret.get(token.content, token.content)
        self._library = with_parts(library, library.model, tokens.values())
        self._library.post_processor = None
        # The copy numbers its added tokens in its own way.
        self._ids = {
            self._library.token_to_id(token.content): number for number, token in tokens.items()
        }

    def encode(self, text: str, run: Callable[[Library, str], Any]) -> tuple[list[int], list[int]]:
        """The ids of a text with placeholders, and those of them that do not stand for an added
        token.
        """
        text = _any_of(self._names).sub(lambda match: self._secret[match[0]], text)
        text = re.sub(rf"{_SECRET}n(\d+)e", lambda match: self._names[int(match[1])], text)
        ids = run(self._library, text).ids
        of_text = [one for one in ids if one not in self._ids]
        return [self._ids.get(one, one) for one in ids], of_text


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Matches the longest of the names, as the library does; nothing if there are none."""
    longest = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest)) or "(?!)")
