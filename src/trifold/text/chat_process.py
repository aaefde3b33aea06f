"""The process in which chat templates run: a line of JSON in, a line of JSON out, nothing of trifold within.

A template is a program from a stranger's folder. Jinja's sandbox keeps it from files, modules and attributes, but
not from computing for ever or filling the memory; so it runs here, where it can be stopped (see `chat.py`).
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MEMORY = 1 << 30  # bytes of address space, where the system can bound it
LONGEST = 1 << 24  # characters of a result, and of any string or list multiplied or added up on the way


class Refused(Exception):
    """The template itself says that the messages do not fit it."""


class Environment(ImmutableSandboxedEnvironment):
    """The sandbox, without the operators that make much of little."""

    intercepted_binops = frozenset({"*", "**", "+", "%", "//"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(v) if isinstance(v, (str, list, tuple)) else 0 for v in (left, right)]
        if operator == "*" and any(sizes):
            times = right if sizes[0] else left
            _bounded(max(sizes) * max(int(times), 0))
        elif operator == "+":
            _bounded(sum(sizes))
        elif operator == "%" and isinstance(left, str):
            raise jinja2.exceptions.SecurityError(
                "formatting with % is not allowed; use ~ or the format filter"
            )
        elif operator == "**" and (abs(left) > 1_000_000 or abs(right) > 64):
            raise jinja2.exceptions.SecurityError("a power that is too large")
        return super().call_binop(context, operator, left, right)


def _bounded(size: int) -> None:
    if size > LONGEST:
        raise jinja2.exceptions.SecurityError(
            f"a text or list of {size:,} entries; at most {LONGEST:,} are allowed"
        )


class Generation(jinja2.ext.Extension):
    """`{% generation %}` … `{% endgeneration %}` marks what the model wrote; the text is the same without it."""

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
            _public(name)
        Namespace.__init__(args[0], names)

    def __setitem__(self, name: str, value: Any) -> None:
        _public(name)
        super().__setitem__(name, value)


def _public(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"{name!r}: names that begin with _ are not allowed")


def _raise_exception(message: object) -> None:
    raise Refused(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    if isinstance(indent, int) and indent > 16:
        raise jinja2.exceptions.SecurityError("tojson: an indent of at most 16 is allowed")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(pattern: str) -> str:
    if len(pattern) > 200:
        raise jinja2.exceptions.SecurityError("strftime_now: a pattern that is too long")
    return datetime.now().strftime(pattern)


def environment() -> Environment:
    """What templates of the ecosystem expect: these functions, trimmed blocks, `break` and `continue`."""
    made = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    made.filters["tojson"] = _tojson
    made.globals.update(
        raise_exception=_raise_exception, strftime_now=_strftime_now, namespace=PublicNamespace, dict=dict
    )
    made.globals.pop("lipsum")
    return made


def answer(templates: dict[str, jinja2.Template], line: str) -> dict[str, str]:
    """{"text": …}, or {"refused": …} by the template, or {"error": …} in it."""
    try:
        request = json.loads(line)
        source = request["template"]
        if source not in templates:
            templates.clear()
            templates[source] = environment().from_string(source)
        written: list[str] = []
        length = 0
        for part in templates[source].generate(**request["values"]):
            length += len(part)
            _bounded(length)
            written.append(part)
        return {"text": "".join(written)}
    except Refused as error:
        return {"refused": str(error)[:2000]}
    except (Exception, RecursionError, MemoryError) as error:
        line_number = getattr(error, "lineno", None)
        where = f"line {line_number}: " if line_number else ""
        return {"error": f"{where}{type(error).__name__}: {error}"[:2000]}


def main() -> None:
    """Answer requests until there are no more."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # not everywhere
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    templates: dict[str, jinja2.Template] = {}
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(templates, line)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
