"""Render chat templates in the sandbox process (see `trifold.sandbox`); imports nothing of trifold.

A template is an untrusted program. Jinja's sandbox keeps it from files, modules and attributes, but
not from running forever or exhausting the memory, so it runs in a process that can be stopped.
"""

import json
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_LENGTH = 1 << 24  # entries of any string or list multiplied or concatenated


class MessagesRejectedError(Exception):
    """The template rejects the messages (`raise_exception`)."""


class Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with bounded operators."""

    intercepted_binops = frozenset({"*", "**", "+", "%", "//"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        left_length = _length(left)
        right_length = _length(right)
        if operator == "*" and left_length:
            _check_length(max(left_length, right_length) * max(int(right), 0))
        elif operator == "*" and right_length:
            _check_length(right_length * max(int(left), 0))
        elif operator == "+":
            _check_length(left_length + right_length)
        elif operator == "%" and isinstance(left, str):
            raise SecurityError("formatting with % is not allowed; use ~ or the format filter")
        elif operator == "**" and (abs(left) > 1_000_000 or abs(right) > 64):
            raise SecurityError("a power that is too large")
        return super().call_binop(context, operator, left, right)


def _length(value: Any) -> int:
    """The entries of a text or a list; 0 for other values."""
    return len(value) if isinstance(value, str | list | tuple) else 0


def _check_length(size: int) -> None:
    if size > MAX_LENGTH:
        raise SecurityError(
            f"a text or list of {size:,} entries; at most {MAX_LENGTH:,} are allowed"
        )


class Generation(jinja2.ext.Extension):
    """`{% generation %}` … `{% endgeneration %}` marks text of the model; it does not change the
    output.
    """

    tags = {"generation"}  # noqa: RUF012 (the name and type are jinja's)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_inside"), [], [], body).set_lineno(line)

    def _inside(self, caller: Callable[[], str]) -> str:
        return caller()


class PublicNamespace(Namespace):
    """Jinja's namespace without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        names = dict(*args[1:], **kwargs)
        for name in names:
            _check_public(name)
        Namespace.__init__(args[0], names)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_public(name)
        super().__setitem__(name, value)


def _check_public(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"{name!r}: names that begin with _ are not allowed")


def _raise_exception(message: object) -> None:
    raise MessagesRejectedError(str(message))


def _tojson(
    value: Any,
    ensure_ascii: Any = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: Any = False,
) -> str:
    if isinstance(indent, int) and indent > 16:
        raise SecurityError("tojson: an indent of at most 16 is allowed")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(pattern: str) -> str:
    if len(pattern) > 200:
        raise SecurityError("strftime_now: a pattern that is too long")
    return datetime.now().strftime(pattern)


@lru_cache(maxsize=1)
def _compile(template: str) -> jinja2.Template:
    """A template with the functions, block trimming and loop controls that those of the ecosystem
    expect.
    """
    env = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = _tojson
    env.globals.update(
        raise_exception=_raise_exception,
        strftime_now=_strftime_now,
        namespace=PublicNamespace,
        dict=dict,
    )
    env.globals.pop("lipsum")
    return env.from_string(template)


def answer(request: dict[str, Any]) -> dict[str, str]:
    """{"text": …}, {"refused": …} if the template rejects the messages, or {"error": …}; most: the
    characters of the text.
    """
    most = request["most"]
    try:
        parts: list[str] = []
        length = 0
        for part in _compile(request["template"]).generate(**request["values"]):
            length += len(part)
            if length > most:
                raise SecurityError(
                    f"it writes more than {most:,} characters for these messages; shorten what it "
                    "adds to them"
                )
            parts.append(part)
        return {"text": "".join(parts)}
    except MessagesRejectedError as error:
        return {"refused": str(error)[:2000]}
    except (Exception, RecursionError, MemoryError) as error:
        message = f"{type(error).__name__}: {error}"
        if line_number := getattr(error, "lineno", None):
            message = f"line {line_number}: {message}"
        return {"error": message[:2000]}
