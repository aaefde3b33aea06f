"""The rule engine: translate the tensors of one checkpoint to those of another, in both directions.

A family's table maps our parameters to their tensors:

    ParameterRule(
        "encoder.blocks.{i}.feed_forward.sublayer.in_proj.weight",
        "model.encoder.layers.{i}.fc1.weight",
    )

A placeholder {i} matches one part of a dotted name, {p:q|k|v} one of the given words, {*path}
anything. A rule may map several of ours to several of theirs (q, k and v to one stacked matrix)
through an invertible transform. Loading and saving are the two directions of the same table, so
they always agree.
"""

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from trifold.hub.tensors import (
    lazy_tensors,
    list_problems,
    renamed_tensors,
    shape_only,
    shapes_of,
)
from trifold.hub.transforms import SAME, Tensors, Transform

# --- rules ----------------------------------------------------------------------------------------

Names = str | tuple[str, ...]
# Supported types; shorter ones would need scales.
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class ParameterRule:
    """Our parameters that correspond to their tensors, through a transform."""

    ours: Names
    theirs: Names
    transform: Transform = SAME


@dataclass(frozen=True)
class Zeros:
    """A tensor of theirs that we do not have: one for each of our parameters that match `beside`,
    which determines its shape.

    It is written as zeros. It may be missing, and must be zero; `remedy` is the advice in the error
    if it is not.
    """

    theirs: str
    beside: str
    shape: Callable[[Tensor], tuple[int, ...]] = lambda tensor: (tensor.shape[0],)
    remedy: str = ""

    def make(self, beside: Tensor) -> Tensor:
        return beside.new_zeros(self.shape(beside))

    def problem(self, name: str, tensor: Tensor) -> str | None:
        """The message if the tensor is not zero."""
        if not tensor.any():
            return None
        return f"not zero: {name}, which this model does not have; {self.remedy}"


@dataclass(frozen=True)
class Computed:
    """A tensor of theirs that can be computed: one for each of our parameters that match `beside`,
    which determines its type and device.

    It may be missing, and must have these values up to the precision of the file.
    """

    theirs: str
    beside: str
    values: Callable[[], Tensor]

    def make(self, beside: Tensor) -> Tensor:
        return self.values().to(beside)

    def problem(self, name: str, tensor: Tensor) -> str | None:
        """The message if the tensor has other values."""
        tolerance = max(4 * torch.finfo(tensor.dtype).eps, 1e-4)
        if torch.allclose(tensor.double(), self.values().double(), rtol=0, atol=tolerance):
            return None
        return f"not equal: {name} and the values that this model computes"


@dataclass(frozen=True)
class Copy:
    """A tied tensor that some files repeat: it may be missing, must be equal, and is not
    written.
    """

    theirs: str
    of: str


@dataclass(frozen=True)
class Ignored:
    """A tensor in some files that can be computed: neither read nor written. shape: the shape that
    it must have.
    """

    theirs: str
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Renamed:
    """An old name of a tensor in some files.

    It applies if the old name is not known and the new one is expected and not taken; several may
    apply in sequence, each once. The new name is written.
    """

    old: str
    new: str


@dataclass(frozen=True)
class Unused:
    """A tensor of theirs that nothing uses: it may be missing or hold anything. A model that was
    loaded with it keeps it; otherwise a copy of their tensor `like` is written, or what `make`
    makes of that.

    The names have no placeholders.
    """

    theirs: str
    like: str
    make: Callable[[Tensor], Tensor] = Tensor.clone


AnyRule = ParameterRule | Zeros | Computed | Copy | Ignored | Renamed | Unused

_PLACEHOLDER = re.compile(r"\{(\*?)(\w+)(?::([\w|]+))?\}")


@lru_cache(maxsize=4096)
def _expression(pattern: str) -> re.Pattern[str]:
    """The pattern as a regular expression."""
    # A literal text, then groups of four: star, name and words of a placeholder, a literal text.
    parts = _PLACEHOLDER.split(pattern)
    text = re.escape(parts[0])
    for star, name, words, literal in zip(
        parts[1::4], parts[2::4], parts[3::4], parts[4::4], strict=True
    ):
        any_text = ".+" if star else "[^.]+"
        text += f"(?P<{name}>{words or any_text})" + re.escape(literal)
    return re.compile(text)


def match_name(pattern: str, name: str) -> dict[str, str] | None:
    """The values of the placeholders if the pattern matches the name, else None."""
    _, values = next(iter(matches(pattern, [name])), ("", None))
    return values


def matches(pattern: str, names: Iterable[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """The names that the pattern matches, each with the values of the placeholders."""
    head, *placeholders = _PLACEHOLDER.split(pattern)
    match placeholders:
        case []:
            return ((name, {}) for name in names if name == pattern)
        case "", key, None, tail:
            return _matches_of_part(head, key, tail, names)
    match_whole = _expression(pattern).fullmatch
    return ((name, found.groupdict()) for name in names if (found := match_whole(name)))


def _matches_of_part(
    head: str, key: str, tail: str, names: Iterable[str]
) -> Iterator[tuple[str, dict[str, str]]]:
    """The same of the pattern head{key}tail. It takes a fraction of the time in which a regular
    expression is compiled.
    """
    for name in names:
        if name.startswith(head) and name.endswith(tail):
            part = name[len(head) : len(name) - len(tail)]
            if part and "." not in part:
                yield name, {key: part}


def fill_name(pattern: str, values: Mapping[str, str]) -> str:
    """The pattern with its placeholders replaced by values."""
    texts, names = _texts_and_names(pattern)
    filled = texts[0]
    for name, text in zip(names, texts[1:], strict=True):
        filled += values[name] + text
    return filled


@lru_cache(maxsize=4096)
def _texts_and_names(pattern: str) -> tuple[list[str], list[str]]:
    """The literal texts of a pattern, and the names of the placeholders between them."""
    parts = _PLACEHOLDER.split(pattern)
    return parts[::4], parts[2::4]


def as_tuple(names: Names) -> tuple[str, ...]:
    """One name or several as a tuple."""
    return (names,) if isinstance(names, str) else names


# --- a table, expanded for one model --------------------------------------------------------------


class Conversion(NamedTuple):
    """Our parameters and their tensors with the transform between them."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    transform: Transform


class Route(NamedTuple):
    """The tensors of theirs that one of ours is made of, and the way in which it is made: tensors
    of equal shapes give equal results in equal ways.
    """

    theirs: tuple[str, ...]
    way: Hashable


def routes(conversions: Iterable[Conversion]) -> dict[str, Route]:
    """The route of each of our tensors."""
    return {
        name: Route(each.theirs, (each.transform, place))
        for each in conversions
        for place, name in enumerate(each.ours)
    }


def joined_routes(last: Mapping[str, Route], first: Mapping[str, Route]) -> dict[str, Route]:
    """The routes whose steps are these; the tensors between them are "ours" of the first."""
    found = {}
    for name, route in last.items():
        before = [first[each] for each in route.theirs if each in first]
        if len(before) == len(route.theirs):
            theirs = tuple(each for one in before for each in one.theirs)
            ways = [(one.way, len(one.theirs)) for one in before]
            found[name] = Route(theirs, (route.way, *ways))
    return found


def conversions(rules: Iterable[AnyRule], names: Iterable[str]) -> Sequence[Conversion]:
    """Every rule with its placeholders filled from our names. Each name must have exactly one
    rule.
    """
    return _conversions(
        tuple(rule for rule in rules if isinstance(rule, ParameterRule)), tuple(names)
    )


@lru_cache(maxsize=1)  # the names of a model are checked and then loaded
def _conversions(rules: Sequence[ParameterRule], names: Sequence[str]) -> Sequence[Conversion]:
    filled: list[Conversion] = []
    unfilled = dict.fromkeys(names)
    for rule in rules:
        ours = as_tuple(rule.ours)
        theirs = as_tuple(rule.theirs)
        for _, values in matches(ours[0], names):
            conversion = Conversion(
                tuple(fill_name(pattern, values) for pattern in ours),
                tuple(fill_name(pattern, values) for pattern in theirs),
                rule.transform,
            )
            for taken in conversion.ours:
                assert taken in unfilled, f"two rules, or none, for {taken}: {rule}"
                del unfilled[taken]
            filled.append(conversion)
    assert not unfilled, f"no rule for {', '.join(unfilled)}"
    return filled


def constants(
    rules: Iterable[AnyRule], ours: Collection[str]
) -> dict[str, tuple[Zeros | Computed, str]]:
    """Their tensors that we do not have, each with its rule and the parameter beside it."""
    return {
        fill_name(rule.theirs, values): (rule, name)
        for rule in rules
        if isinstance(rule, Zeros | Computed)
        for name, values in matches(rule.beside, ours)
    }


def unused(rules: Sequence[AnyRule], theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their tensors with a rule `Unused`, to be saved unchanged."""
    names = [rule.theirs for rule in rules if isinstance(rule, Unused)]
    return {name: theirs[name] for name in names if name in theirs}


def ignored(rules: Iterable[AnyRule], name: str) -> Ignored | Unused | None:
    """The rule by which a tensor of theirs is not read, if there is one."""
    for rule in rules:
        if isinstance(rule, Ignored | Unused) and match_name(rule.theirs, name) is not None:
            return rule
    return None


def saving(
    rules: Sequence[AnyRule], ours: Mapping[str, Tensor], kept: Mapping[str, Tensor] | None = None
) -> Mapping[str, Tensor]:
    """Our parameters under their names and in their form, each made on demand; kept: from
    `unused`.
    """

    def constant(rule: Zeros | Computed, beside: str) -> Tensors:
        return [rule.make(ours[beside])]

    makers: dict[tuple[str, ...], Callable[[], Tensors]] = {
        conversion.theirs: partial(_run, conversion.transform.save, ours, conversion.ours)
        for conversion in conversions(rules, ours)
    }
    makers |= {
        (name,): partial(constant, rule, beside)
        for name, (rule, beside) in constants(rules, ours).items()
    }
    used = lazy_tensors(makers)

    def kept_or_made(rule: Unused) -> Tensors:
        if kept and rule.theirs in kept:
            return [kept[rule.theirs]]
        return [rule.make(used[rule.like])]

    unused_makers: dict[tuple[str, ...], Callable[[], Tensors]] = {
        (rule.theirs,): partial(kept_or_made, rule) for rule in rules if isinstance(rule, Unused)
    }
    return lazy_tensors(makers | unused_makers)


def loading(
    rules: Sequence[AnyRule], theirs: Mapping[str, Tensor], ours: Collection[str]
) -> Mapping[str, Tensor]:
    """Our parameters from their tensors, as returned by `checked`, each made on demand."""
    return converted(conversions(rules, ours), theirs)


def converted(
    conversions: Iterable[Conversion], theirs: Mapping[str, Tensor]
) -> Mapping[str, Tensor]:
    """Our tensors from theirs, each made on demand."""
    return lazy_tensors(
        {each.ours: partial(_run, each.transform.load, theirs, each.theirs) for each in conversions}
    )


def _run(
    transform: Callable[[Tensors], Tensors], tensors: Mapping[str, Tensor], names: Iterable[str]
) -> Tensors:
    return transform([tensors[name] for name in names])


def checked(
    rules: Sequence[AnyRule], theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor], place: str
) -> Mapping[str, Tensor]:
    """Their tensors under current names; `ours` gives the expected names and shapes, on any device.

    Raises CheckpointError listing every tensor that is missing, unknown, of a wrong shape or type,
    not zero although it must be, or not equal to the tensor it is tied to.
    """
    # Saving on the meta device gives the names and shapes of their tensors.
    shapes = {name: shape_only(t.shape, t.dtype) for name, t in ours.items()}
    expected = dict(saving(rules, shapes))
    constant = constants(rules, ours)
    theirs = renamed(rules, theirs, expected)
    tied = _copies_among(rules, theirs)
    unread = {rule.theirs for rule in rules if isinstance(rule, Unused)}
    optional = unread | constant.keys()
    missing = [name for name in expected if name not in theirs and name not in optional]
    problems = [f"missing: {name}" for name in missing]
    for name in theirs:
        if name in unread:
            continue
        original = tied.get(name, name)
        if original in expected:
            rule, _ = constant.get(name, (None, ""))
            problem = _problem_of_expected(
                theirs, name, original, expected[original].shape, constant=rule
            )
        else:
            problem = _problem_of_extra(rules, theirs, name)
        if problem is not None:
            problems.append(problem)
    if problems:
        raise list_problems(f"{place}: the weights do not fit config.json", problems)
    return theirs


def _problem_of_expected(
    theirs: Mapping[str, Tensor],
    name: str,
    original: str,
    shape: Sequence[int],
    *,
    constant: Zeros | Computed | None,
) -> str | None:
    """What is wrong with a tensor that the model has, or with a copy of its `original`: its shape,
    type or values. constant: the rule that gives its values, if there is one.
    """
    tensor = shapes_of(theirs)[name]
    if (problem := _wrong_shape(name, tensor, shape)) is not None:
        return problem
    if tensor.dtype not in FLOATS:
        return f"wrong type: {name} is {tensor.dtype} and should be floating point"
    if constant is not None and (problem := constant.problem(name, theirs[name])) is not None:
        return problem
    is_copy = name != original and original in theirs
    if is_copy and not torch.equal(theirs[name], theirs[original]):
        return f"not equal: {name} and {original}, which are one tensor in this model"
    return None


def _problem_of_extra(
    rules: Sequence[AnyRule], theirs: Mapping[str, Tensor], name: str
) -> str | None:
    """What is wrong with a tensor that the model does not have: no rule ignores it, or its shape is
    not that of the rule.
    """
    rule = ignored(rules, name)
    if rule is None:
        return f"not known: {name!r}"
    if isinstance(rule, Ignored) and rule.shape is not None:
        return _wrong_shape(name, shapes_of(theirs)[name], rule.shape)
    return None


def _wrong_shape(name: str, tensor: Tensor, shape: Sequence[int]) -> str | None:
    """The message for a wrong shape; one with many axes is not printed."""
    if tuple(tensor.shape) == tuple(shape):
        return None
    actual = tuple(tensor.shape) if tensor.dim() < 9 else f"of {tensor.dim():,} axes"
    return f"wrong shape: {name} is {actual} and should be {tuple(shape)}"


def copies(rules: Iterable[AnyRule]) -> dict[str, str]:
    """Every tied tensor that a file may have, with the name of its original."""
    return {
        fill_name(rule.theirs, values): fill_name(rule.of, values)
        for rule in rules
        if isinstance(rule, Copy)
        for values in _choices(rule.theirs)
    }


def _choices(pattern: str) -> Iterator[dict[str, str]]:
    """The values of the placeholders of a pattern whose placeholders list their words."""
    words = {name: listed.split("|") for name, listed in re.findall(r"\{(\w+):([\w|]+)\}", pattern)}
    return (dict(zip(words, chosen, strict=True)) for chosen in product(*words.values()))


def _copies_among(rules: Sequence[AnyRule], theirs: Collection[str]) -> dict[str, str]:
    """The tied tensors among these names of theirs, each with the name of its original."""
    return {
        name: fill_name(rule.of, values)
        for rule in rules
        if isinstance(rule, Copy)
        for name, values in matches(rule.theirs, theirs)
    }


# --- old names ------------------------------------------------------------------------------------


def renamed(
    rules: Sequence[AnyRule], theirs: Mapping[str, Tensor], expected: Collection[str]
) -> Mapping[str, Tensor]:
    """Their tensors under current names."""
    names = current_names(rules, theirs, expected)
    return renamed_tensors({name: (theirs, old) for name, old in names.items()})


def current_names(
    rules: Sequence[AnyRule], theirs: Collection[str], expected: Collection[str]
) -> dict[str, str]:
    """Current name -> name in the file."""
    renames = [rule for rule in rules if isinstance(rule, Renamed)]
    if not renames:
        return {name: name for name in theirs}
    names: dict[str, str] = {}

    def is_known(name: str) -> bool:
        known = name in expected or ignored(rules, name) is not None
        return known or _copies_among(rules, [name]).get(name) in names

    def turn(name: str) -> int:
        """Current names first, then old ones; copies last, because one whose original is missing
        may replace it.
        """
        if _copies_among(rules, [name]):
            return 2
        return int(not is_known(name))

    for old in sorted(theirs, key=turn):
        if is_known(old):
            names[old] = old
            continue
        later = (
            name for name in _later_names(old, renames) if name not in names and is_known(name)
        )
        names[next(later, old)] = old
    return names


def other_names(rules: Sequence[AnyRule], name: str) -> list[str]:
    """The names of one of their tensors in other versions of their library."""
    tied = copies(rules)
    # Of the rules whose old name has no placeholder that the new one lacks.
    older = (
        fill_name(rule.old, values)
        for rule in rules
        if isinstance(rule, Renamed) and "{*" not in rule.old
        if (values := match_name(rule.new, name)) is not None
        and {*_expression(rule.old).groupindex} <= values.keys()
    )
    return [other for other in older if other not in tied]


def _later_names(name: str, renames: Sequence[Renamed]) -> Iterator[str]:
    """The names that the rules turn a name into, those after the fewest renames first."""
    reached: list[tuple[str, tuple[Renamed, ...]]] = [(name, ())]
    for current, used in reached:  # which grows meanwhile
        for rule in renames:
            if rule not in used and (values := match_name(rule.old, current)) is not None:
                reached.append((fill_name(rule.new, values), (*used, rule)))
                yield reached[-1][0]
