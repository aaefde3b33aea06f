"""Mutations of JSON values: a value of a document, or a key, becomes hostile."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

CANARY = "CANARY7f3a"  # content of files that may not be quoted
_RAW = re.compile(r'"@@raw (\d+)@@"')
# Text of JSON that Python's writer does not produce.
RAW = (
    "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "0x10", "01", "1.", "9" * 5000, "1e-400", "-0", "-0.0",
    "9007199254740993", "18446744073709551616", "[" * 5000 + "]" * 5000, '{"a":' * 3000 + "1" + "}" * 3000,
    '{"a": 1, "a": 2}', "'x'", "undefined", "True", "// x", '"\\ud800"', '"\\x00"', '"\\u0000"', '"a\nb"', "1 2", "",
)  # fmt: skip
NUMBERS = (
    0, 1, 2, 3, 5, 7, 8, 15, 16, 17, 39, 40, 41, 64, 100, 255, 256, 1000, 65_535, 65_536, 10**6, 10**9, 2**31 - 1,
    2**31, 2**32 - 1, 2**32, 2**40, 2**52, 2**53 - 1, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, -1, -2, -16, -(2**31),
    -(2**53), 0.0, -0.0, 0.5, 1.0, 1.5, 2.0, 1e-5, 1e-45, 1e-320, 1e30, 1e38, 1e39, 1e300, -0.5, -1.0, -1e-5, -1e300,
)  # fmt: skip
STRINGS = (
    "", " ", "a", "0", "2", "-1", "1e3", "true", "None", "null", "nan", "NaN", "gelu", "mean", "float16", "cuda",
    "auto", "float8_e4m3fn", "\0", "\x1b[2J\x1b[31m", "\x9b2J", "\u202eevil", "\ud800", "\U0001f600", "é" * 300,
    "x" * 100_000, "a\n" * 5000, "%s%n{0}{x}", "../../outside/secret.txt", "../outside", "/etc/passwd", "/dev/zero",
    "/proc/self/environ", "file:///etc/passwd", "http://127.0.0.1:9/x", "a/b", "..", ".", "~", "$HOME", "-o", "con",
    "os.system", "evil.Evil", "__import__('os').system('true')", "{{ 1 }}", "{% for a in range(9999999) %}{% endfor %}",
    "(a+)+$", "(?:a|a)*b", "[", ".*.*.*=", "[MASK]", "</s>", "<unk>", "the", "e" * 300,
)  # fmt: skip
KEYS = (
    "_name_or_path", "auto_map", "quantization_config", "trust_remote_code", "unsloth_version", "torch_dtype", "dtype",
    "evil", "\x1b[2J", "", "a.b", "max_length", "num_beams", "vocab_size", "use_cache", "rope_scaling", "pad_token_id",
    "attention_dropout", "architectures", "is_decoder", "tie_word_embeddings", "id2label", "num_labels", "chat_template",
    "post_processor", "normalizer", "added_tokens", "begin_suppress_tokens", "forced_bos_token_id", "task_specific_params",
    "decoder_start_token_id", "eos_token_id", "bad_words_ids", "model_max_length", "tokenizer_class", "x" * 10_000,
)  # fmt: skip


def dumps(document: Any, raws: list[str]) -> bytes:
    """The document as JSON, with text instead of the marks of `raw`."""
    text = json.dumps(document, ensure_ascii=True)
    return _RAW.sub(lambda found: raws[int(found[1])], text).encode("utf-8", "surrogatepass")


class Values:
    """Hostile values for a document; `raws` are texts of JSON that a mark stands for."""

    def __init__(self, draw: Random, document: Any) -> None:
        self.draw = draw
        self.document = document
        self.raws: list[str] = []

    def raw(self, text: str) -> str:
        self.raws.append(text)
        return f"@@raw {len(self.raws) - 1}@@"

    def value(self, old: Any) -> tuple[Any, str]:
        """A value instead of `old`, and its description."""
        kind = self.draw.choice(
            ("number", "number", "near", "near", "near", "string", "string", "empty", "raw", "wrapped", "other",
             "large", "part", "part", "type")
        )  # fmt: skip
        new = getattr(self, f"_{kind}")(old)
        return new, f"{_short(old)} -> {_short(self._shown(new))}"

    def _shown(self, new: Any) -> Any:
        if isinstance(new, str) and new.startswith("@@raw "):
            return self.raws[int(new[6:-2])]
        return new

    def _number(self, old: Any) -> Any:
        return self.draw.choice(NUMBERS)

    def _string(self, old: Any) -> Any:
        return self.draw.choice(STRINGS)

    def _empty(self, old: Any) -> Any:
        return self.draw.choice(
            (None, [], {}, "", [[]], [None], {"": None}, [{}], True, False, [0], [-1])
        )

    def _raw(self, old: Any) -> Any:
        return self.raw(self.draw.choice(RAW))

    def _wrapped(self, old: Any) -> Any:
        return self.draw.choice(([old], [[old]], {"a": old}, [old, old], {"0": old}, [old] * 1000))

    def _other(self, old: Any) -> Any:
        """Another value of the document."""
        return pick(self.draw, self.document)[1]

    def _large(self, old: Any) -> Any:
        number = self.draw.choice((300, 5000, 100_000))
        return self.draw.choice(
            ([0] * number, list(range(number)), ["a"] * number, [[0, 1]] * number, "ab" * number,
             {str(n): n for n in range(number)}, {f"k{n}": [n] for n in range(number)}, "e " * number)
        )  # fmt: skip

    def _near(self, old: Any) -> Any:
        """A value of the same type that is a little wrong."""
        if isinstance(old, bool):
            return not old
        if isinstance(old, (int, float)):
            return self.draw.choice(
                (old + 1, old - 1, -old, old * 2, old // 2, old + 0.5, old * 1000, old / 3)
            )
        if isinstance(old, str):
            changed = (old.upper(), old[:-1], old + "x", old + old, old[::-1], f" {old}", old.replace("a", "\0"),
                       old.replace("_", "-"), old * 50, old + "\u0301")  # fmt: skip
            return self.draw.choice(changed)
        return self._part(old)

    def _part(self, old: Any) -> Any:
        """A list or an object with one part less or more, or in another order."""
        if isinstance(old, list) and old:
            spot = self.draw.randrange(len(old))
            return self.draw.choice(
                (old[:spot] + old[spot + 1 :], [*old, old[spot]], old[::-1], old[:1], [*old, None],
                 [*old[:spot], self._string(None), *old[spot + 1 :]], old * 3)
            )  # fmt: skip
        if isinstance(old, dict) and old:
            key = self.draw.choice(list(old))
            less = {name: value for name, value in old.items() if name != key}
            return self.draw.choice(
                (less, {**less, key.upper(): old[key]}, {**old, f"{key}x": old[key]}, list(old.items()), list(old),
                 dict(reversed(old.items())), dict.fromkeys(old, old[key]))
            )  # fmt: skip
        return self._number(old)

    def _type(self, old: Any) -> Any:
        """The same value as another type."""
        if isinstance(old, bool):
            return self.draw.choice((str(old), int(old)))
        if isinstance(old, (int, float)):
            return self.draw.choice((str(old), bool(old), float(old), [old]))
        return self.draw.choice((json.dumps(old)[:2000], bool(old), 1))


def _short(value: Any) -> str:
    text = repr(value) if not isinstance(value, str) or len(value) < 60 else repr(value[:60])
    return text if len(text) < 70 else f"{text[:60]}… ({len(text):,})"


def pick(draw: Random, document: Any) -> tuple[list[Any], Any]:
    """The path to a value of the document, and the value; values near the root are more likely."""
    path: list[Any] = []
    value = document
    while isinstance(value, (dict, list)) and value and (not path or draw.random() < 0.7):
        key = draw.choice(list(value)) if isinstance(value, dict) else draw.randrange(len(value))
        path.append(key)
        value = value[key]
    return path, value


def mutate(draw: Random, document: Any) -> tuple[bytes, str]:
    """The document with one mutation, as JSON, and its description."""
    values = Values(draw, document)
    path, old = pick(draw, document)
    kind = draw.choice(("value",) * 8 + ("delete", "rename", "key", "twice", "swap", "add"))
    if not path:
        kind = "value"
    document, what = _CHANGES[kind](values, document, path, old)
    return dumps(document, values.raws), what


def replaced(document: Any, path: list[Any], change: Callable[[Any, Any], Any]) -> Any:
    """A copy in which `change(parent, key)` is the parent of the value at the path."""
    if len(path) == 1:
        return change(document, path[0])
    part = replaced(document[path[0]], path[1:], change)
    if isinstance(document, dict):
        return {**document, path[0]: part}
    return [*document[: path[0]], part, *document[path[0] + 1 :]]


def _dotted(path: list[Any]) -> str:
    return ".".join(_short(key).strip("'") for key in path)


def _set(parent: Any, key: Any, value: Any) -> Any:
    if isinstance(parent, dict):
        return {**parent, key: value}
    return [*parent[:key], value, *parent[key + 1 :]]


def _delete_at(parent: Any, key: Any) -> Any:
    if isinstance(parent, dict):
        return {name: value for name, value in parent.items() if name != key}
    return [*parent[:key], *parent[key + 1 :]]


def _value(values: Values, document: Any, path: list[Any], old: Any) -> tuple[Any, str]:
    new, what = values.value(old)
    if not path:
        return new, f"the document: {what}"
    changed = replaced(document, path, lambda parent, key: _set(parent, key, new))
    return changed, f"{_dotted(path)}: {what}"


def _delete(values: Values, document: Any, path: list[Any], old: Any) -> tuple[Any, str]:
    return replaced(document, path, _delete_at), f"{_dotted(path)}: deleted"


def _rename(values: Values, document: Any, path: list[Any], old: Any) -> tuple[Any, str]:
    name = str(path[-1])
    draw = values.draw
    new = draw.choice((name.upper(), f"{name}s", f"_{name}", name[:-1], f"n_{name}", f" {name}"))
    changed = replaced(
        document,
        path,
        lambda parent, key: (
            {new if one == key else one: value for one, value in parent.items()}
            if isinstance(parent, dict)
            else _delete_at(parent, key)
        ),
    )
    return changed, f"{_dotted(path)}: renamed to {new!r}"


def _key(values: Values, document: Any, path: list[Any], old: Any) -> tuple[Any, str]:
    """A key more beside the value."""
    key = values.draw.choice(KEYS)
    new = values.value(None)[0]
    changed = replaced(
        document,
        path,
        lambda parent, place: {**parent, key: new} if isinstance(parent, dict) else [*parent, new],
    )
    return changed, f"{_dotted(path[:-1]) or 'root'}: also {_short(key)}: {_short(new)}"


def _twice(values: Values, document: Any, path: list[Any], old: Any) -> tuple[Any, str]:
    """The key occurs twice: the mark ends the string of the first."""
    key = json.dumps(str(path[-1]))
    mark = values.raw(f"1, {key}: 2")
    changed = replaced(document, path, lambda parent, place: _set(parent, place, mark))
    return changed, f"{_dotted(path)}: twice"


def _swap(values: Values, document: Any, path: list[Any], old: Any) -> tuple[Any, str]:
    other, new = pick(values.draw, document)
    if not other or other[: len(path)] == path or path[: len(other)] == other:
        return _delete(values, document, path, old)
    changed = replaced(document, path, lambda parent, key: _set(parent, key, new))
    changed = replaced(changed, other, lambda parent, key: _set(parent, key, old))
    return changed, f"{_dotted(path)} and {_dotted(other)}: swapped"


def _add(values: Values, document: Any, path: list[Any], old: Any) -> tuple[Any, str]:
    """A value of the document at the root, under the name that it has elsewhere."""
    if not isinstance(document, dict):
        return _delete(values, document, path, old)
    return {**document, str(path[-1]): old}, f"root: also {_dotted(path)}"


_CHANGES: dict[str, Callable[[Values, Any, list[Any], Any], tuple[Any, str]]] = {
    "value": _value,
    "delete": _delete,
    "rename": _rename,
    "key": _key,
    "twice": _twice,
    "swap": _swap,
    "add": _add,
}
