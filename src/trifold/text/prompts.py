r"""Prompts: texts with names in braces, such as "{source}\nTL;DR:", that stand before what a model
writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trifold.text.vocabulary import SPACE

if TYPE_CHECKING:
    from trifold.text.tokenizer import Tokenizer

_FIELD = re.compile(r"\{([^{}]+)\}")
# A command line has no other way to write these.
_ESCAPES = {r"\n": "\n", r"\t": "\t"}
TARGET = "{target}"  # may stand at the end of a prompt, where the target is anyway
QUESTION = ("question", "context")  # what a prompt about a text names

# --- templates ------------------------------------------------------------------------------------


def split_template(text: str) -> list[str]:
    """The texts of a template and the names in its braces, which alternate."""
    return _FIELD.split(text)


def fill_template(pieces: Sequence[str], values: Mapping[str, str]) -> str:
    """The text of the pieces of `split_template`. values: by name."""
    filled = list(pieces)
    filled[1::2] = [values[name] for name in pieces[1::2]]
    return "".join(filled)


@dataclass(frozen=True)
class Prompt:
    """A template that is filled with the texts that a model reads; its output follows.

    Space at its end belongs to the output: tokenizers put it into the first token of a word.
    """

    text: str

    @classmethod
    def parse(cls, value: Any, names: Sequence[str] = ()) -> Prompt:
        """The prompt in a setting. names: those that it has to have; none: one name of any kind, or
        those of a question. Raises ValueError, which says what to write.
        """
        if isinstance(value, Mapping) and [*value.values()] == [None]:
            value = "{" + str(next(iter(value))) + "}"  # as YAML reads {source} without quotes
        if not isinstance(value, str):
            raise ValueError(f"{value!r:.60} is no text; write one, such as {_example(names)!r}")
        for written, meant in _ESCAPES.items():
            value = value.replace(written, meant)
        prompt = cls(value.removesuffix(TARGET).rstrip(" "))
        prompt.check(names)
        return prompt

    def check(self, names: Sequence[str]) -> None:
        """Raises ValueError if the template has other names than these."""
        found = [*self.names]
        wanted = [*names]
        if not names:
            wanted = [*QUESTION] if len(found) > 1 else found
        if "target" in found and "target" not in wanted:
            raise ValueError(
                f"{self.text!r:.60} has {TARGET} before its end, but the model writes the target "
                f"after the prompt; put it last, or leave it out, as in {_example(names)!r}"
            )
        if found and sorted(found) == sorted(wanted):
            return
        listed = " and ".join(f"{{{name}}}" for name in names or ("source",))
        named = ", ".join(f"{{{name}}}" for name in found) or "no text in braces"
        raise ValueError(
            f"{self.text!r:.60} names {named}; name {listed} once, as in {_example(names)!r}"
        )

    @cached_property
    def pieces(self) -> list[str]:
        """Those of `split_template`."""
        return split_template(self.text)

    @property
    def names(self) -> Sequence[str]:
        """The names in braces, in their order."""
        return self.pieces[1::2]

    @property
    def is_question(self) -> bool:
        """Whether it is filled with a question and its context."""
        return sorted(self.names) == sorted(QUESTION)

    @property
    def shortened(self) -> str:
        """The name of the text that is cut if a prompt is too long."""
        return "context" if self.is_question else self.names[0]

    def values(self, text: str, context: str = "") -> dict[str, str]:
        """What fills the prompt for a text, or for a question about a context."""
        if self.is_question:
            return {"question": text, "context": context}
        return {self.names[0]: text}

    def fill(self, values: Mapping[str, str]) -> str:
        """The text of the prompt. values: by name."""
        return fill_template(self.pieces, values)

    def ids_of_target(self, tokenizer: Tokenizer, targets: Sequence[str]) -> list[list[int]]:
        """The ids of what follows the prompt: after a space, unless the prompt ends with a line or
        the tokenizer begins each text with one.
        """
        space = ""
        if not self.text[-1:].isspace() and _keeps_space(tokenizer):
            space = " "
        return tokenizer.encode([space + target for target in targets])


def _example(names: Sequence[str]) -> str:
    """A prompt with these names."""
    if sorted(names) == sorted(QUESTION):
        return "{context} Question: {question} Answer:"
    return f"{{{(*names, 'source')[0]}}} TL;DR:"


def _keeps_space(tokenizer: Tokenizer) -> bool:
    """Whether a space at the beginning of a text is part of its tokens, and not there without."""
    alone, after_space = tokenizer.encode(["a", " a"])
    if alone == after_space or not alone:
        return False
    first = str(tokenizer.library.id_to_token(alone[0]))
    return not first.startswith(SPACE)


# --- ids ------------------------------------------------------------------------------------------


class EncodedPrompts(NamedTuple):
    """Filled prompts with their ids, and the number of tokens by which each was shortened."""

    texts: list[str]
    rows: list[list[int]]
    dropped: list[int]


def encode_prompts(
    prompt: Prompt,
    values: Sequence[Mapping[str, str]],
    sizes: Sequence[int],
    tokenizer: Tokenizer,
    encode: Callable[[list[str]], list[list[int]]],
) -> EncodedPrompts:
    """Fill and encode prompts of at most `sizes` tokens: the end of one of the texts is cut, never
    the template. A prompt that is too long without this text stays so.

    encode: the ids of filled prompts, with the special tokens around them.
    """
    left = [dict(one) for one in values]
    texts = [prompt.fill(one) for one in left]
    rows = encode(texts)
    whole = np.array([*map(len, rows)], dtype=np.int64)
    name = prompt.shortened
    while True:
        long = [n for n, row in enumerate(rows) if len(row) > sizes[n] and left[n][name]]
        if not long:
            break
        for n in long:
            left[n][name] = _without_end(tokenizer, left[n][name], len(rows[n]) - sizes[n])
            texts[n] = prompt.fill(left[n])
        for n, row in zip(long, encode([texts[n] for n in long]), strict=True):
            rows[n] = row
    dropped = whole - np.array([*map(len, rows)], dtype=np.int64)
    return EncodedPrompts(texts, rows, np.maximum(dropped, 0).tolist())


def _without_end(tokenizer: Tokenizer, text: str, count: int) -> str:
    """The text without its last tokens, at least `count` of them, if it has as many."""
    (encoding,) = tokenizer.encodings([text])
    kept = len(encoding.ids) - count
    if kept <= 0:
        return ""
    end = len(text) * kept // len(encoding.ids)
    if tokenizer.has_offsets:
        end = encoding.offsets[kept - 1][1]
    return text[: min(end, len(text) - 1)].rstrip()
