"""The YAML dialect of recipes: plain values only, with the differences from YAML 1.1 listed in
`_Loader`.

A text may come from others, so its characters, values and nesting are limited, far beyond any
recipe; the largest text that is accepted takes less than a second. Aliases and merges count as the
values that they stand for.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import yaml
from yaml import YAMLError

from trifold.errors import SettingsError

__all__ = ["MAX_CHARACTERS", "LimitError", "YAMLError", "dump", "load", "parse"]

MAX_CHARACTERS = 2**19
MAX_VALUES = 20_000  # keys and values, aliases counted as what they stand for
MAX_NESTING = 100
_LARGEST = "a recipe has at most"


class LimitError(yaml.MarkedYAMLError):
    """A text that is larger than any recipe."""


def load(text: str) -> Any:
    """Parse a value. Raises YAMLError; LimitError for a text that is too large."""
    if len(text) > MAX_CHARACTERS:
        problem = f"{len(text):,} characters; {_LARGEST} {MAX_CHARACTERS:,}"
        raise LimitError(problem=problem)
    try:
        return yaml.load(text, _Loader)
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        # A number of thousands of digits, !!int x, or !!int of nothing.
        raise YAMLError(str(error)) from None


def dump(values: Mapping[str, Any]) -> str:
    """Text that `load` parses to the same values, in the same order."""
    text = ""
    for dumper in _DUMPERS:
        # The emitter in C refuses lone surrogates, and escapes signs beyond 16 bits.
        with suppress(UnicodeEncodeError):
            text = yaml.dump(values, Dumper=dumper, sort_keys=False, allow_unicode=True)
            if "\\U" not in text:
                break
    return text


def parse(text: str, place: str, what: str = "a recipe") -> dict[str, Any]:
    """Parse the mapping of the file named `place`; what: it should be. Raises SettingsError."""
    try:
        values = load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{place}:{mark.line + 1}:{mark.column + 1}" if mark else place
        if isinstance(error, LimitError):
            raise SettingsError(f"{where}: {error.problem}") from None
        raise SettingsError(f"{where}: not valid YAML: {error.problem or error.context}") from None
    except (YAMLError, RecursionError) as error:
        raise SettingsError(f"{place}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise SettingsError(f"{place}: {what} is a mapping of keys to values")
    return values


# Strings that YAML 1.1 reads as numbers to the base 60 (1:30 is 90) or 8 (010 is 8).
_OLD_NUMBER = (
    "tag:yaml.org,2002:str",
    re.compile(r"^[-+]?(?:[0-9_]+(?::[0-9]+)+(?:\.[0-9_]*)?|0[0-9_]+)$"),
)


class _Loader(yaml.SafeLoader):
    """YAML 1.1 except that 5e-4 is a number, `no`, 1:30 and 010 are strings, and duplicate keys are
    errors.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 (declared like this in the library)
        first: [
            _OLD_NUMBER,
            *((tag, form) for tag, form in known if not tag.endswith((":bool", ":timestamp"))),
        ]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        # So far, with those that aliases stand for; and by the id of a node, those in it.
        self._values = 0
        self._values_in: dict[int, int] = {}
        self._nesting = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        before = self._values
        self._nesting += 1
        self._count(1, event)
        node = super().compose_node(parent, index)
        if isinstance(event, yaml.AliasEvent):
            if id(node) not in self._values_in:
                problem = f"the alias *{event.anchor} stands for a value that contains it"
                place: Any = event.start_mark
                raise yaml.composer.ComposerError(None, None, problem, place)
            self._count(self._values_in[id(node)], event)
        else:
            self._values_in[id(node)] = self._values - before
        self._nesting -= 1
        return node

    def _count(self, values: int, event: Any) -> None:
        """Raise LimitError at the event that makes the text too large."""
        self._values += values
        problem = ""
        if self._values > MAX_VALUES:
            problem = f"too many keys and values; {_LARGEST} {MAX_VALUES:,}"
        elif self._nesting > MAX_NESTING:
            problem = f"nested too deeply; {_LARGEST} {MAX_NESTING} levels"
        if problem:
            raise LimitError(problem=problem, problem_mark=event.start_mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = set[str]()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # which has no hash, and is reported below
            if key.value in keys:
                problem = f"duplicate key {str(key.value)!r:.100}; keep one of them"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            keys.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > 1_000:
            problem = "an integer of thousands of digits"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        value: int = super().construct_yaml_int(node)
        return value


def _represent_str(dumper: Any, text: str) -> yaml.ScalarNode:
    """Quote strings that `_Loader` would not read back unchanged."""
    # YAML 1.1 treats these as line breaks, unless they are escaped.
    style = '"' if any(sign in text for sign in "\x85\u2028\u2029") else None
    # The emitter in C refuses subclasses of str.
    plain = str.__str__(text)
    scalar: yaml.ScalarNode = dumper.represent_scalar("tag:yaml.org,2002:str", plain, style)
    return scalar


# The emitter in C, which some builds of PyYAML lack, is four times as fast.
_NAMES = [name for name in ("CSafeDumper", "SafeDumper") if hasattr(yaml, name)]
_DUMPERS: list[Any] = [type("_Dumper", (getattr(yaml, name),), {}) for name in _NAMES]

_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
for _class in _DUMPERS:
    _class.add_representer(str, _represent_str)
    _class.add_multi_representer(str, _represent_str)  # of its subclasses

_BOOLEAN = re.compile("^(?:true|True|false|False)$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", _BOOLEAN, list("tTfF"))
_EXPONENT = re.compile(r"^[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+$")
for _class in (_Loader, *_DUMPERS):
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))
