"""The Modelfile with which Ollama runs a GGUF file: `ollama create NAME -f FILE`.

Ollama has templates of its own language. One is derived from the chat template of the model if it
puts fixed texts between messages; otherwise the Modelfile says that there is none.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from trifold.errors import TrifoldError
from trifold.hub.gguf.metadata import Metadata
from trifold.hub.gguf.tokenizer import ends
from trifold.text import Tokenizer

# Generation settings -> Ollama's parameters.
PARAMETERS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repeat_penalty",
    "max_new_tokens": "num_predict",
}
ROLES = ("system", "user", "assistant")
_TURNS = ("user", "assistant", "user", "assistant", "user")


def modelfile(
    file: Metadata, name: str, tokenizer: Tokenizer | None, generation: Mapping[str, object]
) -> str:
    """The content. file, name: of the GGUF file."""
    tokens = file.texts("tokenizer.ggml.tokens", [])
    lines = [f"FROM ./{name}"]
    lines += _template(tokenizer)
    for key, parameter in PARAMETERS.items():
        if (value := generation.get(key)) is not None:
            lines.append(f"PARAMETER {parameter} {value}")
    if tokenizer is not None and tokenizer.templates:
        lines += [f"PARAMETER stop {json.dumps(tokens[number])}" for number in ends(file)]
    return "\n".join(lines) + "\n"


def _template(tokenizer: Tokenizer | None) -> Iterator[str]:
    """The lines of the template."""
    if tokenizer is None or "default" not in tokenizer.templates:
        yield 'TEMPLATE """{{ .Prompt }}"""'
        return
    parts = chat_parts(tokenizer)
    if parts is None or any("{{" in text or '"""' in text for text in parts.texts()):
        yield "# The chat template puts more than fixed texts between messages: write a TEMPLATE."
        return
    yield f'TEMPLATE """{parts.as_go()}"""'
    if parts.system:
        yield f'SYSTEM """{parts.system}"""'


class ChatParts(NamedTuple):
    """Fixed texts of a chat template: before the first message, before those of each role, and
    after each message.
    """

    opening: str
    prefixes: Mapping[str, str]
    suffix: str
    system: str = ""  # the message that stands for a missing one of the system

    def texts(self) -> list[str]:
        return [self.opening, *self.prefixes.values(), self.suffix, self.system]

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The messages, and the beginning of an answer."""
        middle = "".join(
            self.prefixes[message["role"]] + message["content"] + self.suffix
            for message in messages
        )
        return self.opening + middle + self.prefixes["assistant"]

    def as_go(self) -> str:
        """The template in Ollama's language."""
        system, user, assistant = (
            f"{self.prefixes[role]}{{{{ .Content }}}}{self.suffix}" for role in ROLES
        )
        return (
            f'{self.opening}{{{{ range .Messages }}}}{{{{ if eq .Role "system" }}}}{system}'
            f'{{{{ else if eq .Role "user" }}}}{user}{{{{ else }}}}{assistant}{{{{ end }}}}'
            f"{{{{ end }}}}{self.prefixes['assistant']}"
        )


def chat_parts(tokenizer: Tokenizer) -> ChatParts | None:
    """The fixed texts of the chat template; None if it has others."""
    messages = [_message(number, role) for number, role in enumerate(("system", *_TURNS))]
    last = messages[-1:]
    try:
        whole = tokenizer.chat(messages, add_generation_prompt=True)
        alone = tokenizer.chat(last, add_generation_prompt=True)
    except TrifoldError:  # of templates that refuse messages
        return None
    parts = _split(whole, alone, messages)
    if parts is None or parts.render(messages) != whole:
        return None
    first = last
    if parts.system:
        first = [{"role": "system", "content": parts.system}, *last]
    if parts.render(first) != alone:
        return None
    bos = tokenizer.names.get("bos_token", "")
    if bos and tokenizer.rows([""])[0].ids[:1] == [tokenizer.bos_id]:  # which Ollama adds itself
        return parts._replace(opening=parts.opening.removeprefix(bos))
    return parts


def _message(number: int, role: str) -> dict[str, Any]:
    return {"role": role, "content": f"Text{number}of{role}"}


def _split(whole: str, alone: str, messages: Sequence[Mapping[str, str]]) -> ChatParts | None:
    """The fixed texts of a conversation that begins with a system message; alone: the last message
    without the others.
    """
    between = []
    rest = whole
    for message in messages:
        before, found, rest = rest.partition(message["content"])
        if not found:
            return None
        between.append(before)
    first, *others = between
    suffix = _common_beginning([*others, rest])
    before = alone.partition(messages[-1]["content"])[0]
    user = others[0].removeprefix(suffix)
    opening = before.removesuffix(user)
    system = ""
    if not first.startswith(opening):  # the template puts a system message of its own
        opening = next(first[:n] for n in range(len(first), -1, -1) if suffix.endswith(first[:n]))
        system = before.removeprefix(first).removesuffix(suffix + user)
    prefixes = {
        "system": first.removeprefix(opening),
        "user": user,
        "assistant": rest.removeprefix(suffix),
    }
    return ChatParts(opening, prefixes, suffix, system)


def _common_beginning(texts: Sequence[str]) -> str:
    """The longest beginning of all texts."""
    same = takewhile(lambda letters: len({*letters}) == 1, zip(*texts, strict=False))
    return "".join(letters[0] for letters in same)
