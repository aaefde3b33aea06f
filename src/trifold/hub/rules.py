"""The rule engine: translate the tensors of one checkpoint to those of another, in both directions.

A family's table maps our parameters to their tensors:

    ParameterRule("encoder.blocks.{i}.feed_forward.sublayer.in_proj.weight",
    "model.encoder.layers.{i}.fc1.weight")

A placeholder {i} matches one part of a dotted name, {p:q|k|v} one of the given words, {*path}
anything. A rule may map several of ours to several of theirs (q, k and v to one stacked matrix)
through an invertible transform. Loading and saving are the two directions of the same table, so
they always agree.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from trifold.hub.tensors import lazy_tensors, list_problems, renamed_tensors
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
    """A tensor of theirs that we do not have: one for each of our parameters `beside`, which
    determines its shape.

    It is written as zeros and must be zero; `remedy` is the advice in the error if it is not.
    """

    theirs: str
    beside: str
    shape: Callable[[Tensor], tuple[int, ...]] = lambda tensor: (tensor.shape[0],)
    remedy: str = ""

    def make(self, beside: Tensor) -> Tensor:
        return beside.new_zeros(self.shape(beside))

    def problem(self, name: str, tensor: Tensor) -> str | None:
        return (
            f"not zero: {name}, which this model does not have; {self.remedy}"
            if tensor.any()
            else None
        )


@dataclass(frozen=True)
class Computed:
    """A tensor of theirs that can be computed: one for each of our parameters `beside`.

    It may be missing, and must have these values up to the precision of the file.
    """

    theirs: str
    beside: str
    values: Callable[[], Tensor]

    def make(self, beside: Tensor) -> Tensor:
        return self.values().to(beside)

    def problem(self, name: str, tensor: Tensor) -> str | None:
        tolerance = max(4 * torch.finfo(tensor.dtype).eps, 1e-4)
        equal = torch.allclose(tensor.double(), self.values().double(), rtol=0, atol=tolerance)
        return None if equal else f"not equal: {name} and the values that this model computes"


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
    """A tensor of theirs that nothing uses: it may be missing or hold anything. Without it, a copy
    is written, or what `make` makes of the other one.
    """

    theirs: str
    like: str
    make: Callable[[Tensor], Tensor] = Tensor.clone


AnyRule = ParameterRule | Zeros | Computed | Copy | Ignored | Renamed | Unused


@lru_cache(maxsize=4096)
def _expression(pattern: str) -> re.Pattern[str]:
    """The pattern as a regular expression."""
    parts = re.split(r"\{(\*?)(\w+)(?::([\w|]+))?\}", pattern)
    text = re.escape(parts[0])
    for star, name, words, literal in zip(
        parts[1::4], parts[2::4], parts[3::4], parts[4::4], strict=True
    ):
        text += f"(?P<{name}>{words or ('.+' if star else '[^.]+')})" + re.escape(literal)
    return re.compile(text)


def _match(pattern: str, name: str) -> dict[str, str] | None:
    """The values of the placeholders if the pattern matches the name, else None."""
    found = _expression(pattern).fullmatch(name)
    return None if found is None else found.groupdict()


def _fill(pattern: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\{\*?(\w+)(?::[\w|]+)?\}", lambda found: values[found[1]], pattern)


def _as_tuple(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


# --- a table, expanded for one model --------------------------------------------------------------


class Conversion(NamedTuple):
    """Our parameters and their tensors with the transform between them."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    transform: Transform


def conversions(rules: Iterable[AnyRule], names: Collection[str]) -> list[Conversion]:
    """Every rule with its placeholders filled from our names. Each name must have exactly one
    rule.
    """
    conversions: list[Conversion] = []
    unfilled = dict.fromkeys(names)
    for rule in (rule for rule in rules if isinstance(rule, ParameterRule)):
        ours = _as_tuple(rule.ours)
        theirs = _as_tuple(rule.theirs)
        for name in names:
            if (values := _match(ours[0], name)) is None:
                continue
            conversion = Conversion(
                tuple(_fill(pattern, values) for pattern in ours),
                tuple(_fill(pattern, values) for pattern in theirs),
                rule.transform,
            )
            for taken in conversion.ours:
                assert taken in unfilled, f"two rules, or none, for {taken}: {rule}"
                del unfilled[taken]
            conversions.append(conversion)
    assert not unfilled, f"no rule for {', '.join(unfilled)}"
    return conversions


def constants(
    rules: Iterable[AnyRule], ours: Iterable[str]
) -> dict[str, tuple[Zeros | Computed, str]]:
    """Their tensors that we do not have, each with its rule and the parameter beside it."""
    return {
        _fill(rule.theirs, values): (rule, name)
        for rule in rules
        if isinstance(rule, Zeros | Computed)
        for name in ours
        if (values := _match(rule.beside, name)) is not None
    }


def unused(rules: Sequence[AnyRule], theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their tensors that nothing uses, to be saved unchanged."""
    names = [rule.theirs for rule in rules if isinstance(rule, Unused)]
    return {name: theirs[name] for name in names if name in theirs}


def ignored(rules: Iterable[AnyRule], name: str) -> Ignored | Unused | None:
    """The rule of a tensor of theirs that nothing uses, if it is one."""
    found = (
        r for r in rules if isinstance(r, Ignored | Unused) and _match(r.theirs, name) is not None
    )
    return next(found, None)


def saving(
    rules: Sequence[AnyRule], ours: Mapping[str, Tensor], kept: Mapping[str, Tensor] | None = None
) -> Mapping[str, Tensor]:
    """Our parameters under their names and in their form, each made on demand; kept: from
    `unused`.
    """

    def constant(rule: Zeros | Computed, beside: str) -> Tensors:
        return [rule.make(ours[beside])]

    def copy(rule: Unused) -> Tensors:
        return [kept[rule.theirs] if kept and rule.theirs in kept else rule.make(used[rule.like])]

    makers: dict[tuple[str, ...], Callable[[], Tensors]] = {
        conversion.theirs: partial(_run, conversion.transform.save, ours, conversion.ours)
        for conversion in conversions(rules, ours)
    }
    makers |= {(name,): partial(constant, *entry) for name, entry in constants(rules, ours).items()}
    used = lazy_tensors(makers)
    return lazy_tensors(
        makers | {(r.theirs,): partial(copy, r) for r in rules if isinstance(r, Unused)}
    )


def loading(
    rules: Sequence[AnyRule], theirs: Mapping[str, Tensor], ours: Collection[str]
) -> Mapping[str, Tensor]:
    """Our parameters from their tensors, as returned by `checked`, each made on demand."""
    return lazy_tensors(
        {
            conversion.ours: partial(_run, conversion.transform.load, theirs, conversion.theirs)
            for conversion in conversions(rules, ours)
        }
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
    shapes = {name: torch.empty(t.shape, dtype=t.dtype, device="meta") for name, t in ours.items()}
    fixed = constants(rules, ours)
    expected = dict(saving(rules, shapes))
    theirs = renamed(rules, theirs, expected)
    tied = _copies(rules, theirs)
    unread = {rule.theirs for rule in rules if isinstance(rule, Unused)}
    optional = unread | fixed.keys()
    problems = [
        f"missing: {name}" for name in expected if name not in theirs and name not in optional
    ]
    for name in theirs:
        if name in unread:
            continue
        if name not in expected and name not in tied:
            if (rule := ignored(rules, name)) is None:
                problems.append(f"not known: {name!r}")
            elif isinstance(rule, Ignored) and rule.shape is not None:
                problems += _wrong_shape(name, theirs[name], rule.shape)
            continue
        tensor = theirs[name]
        original = tied.get(name, name)
        if wrong := _wrong_shape(name, tensor, expected[original].shape):
            problems += wrong
        elif tensor.dtype not in FLOATS:
            problems.append(f"wrong type: {name} is {tensor.dtype} and should be floating point")
        elif name in fixed and (problem := fixed[name][0].problem(name, tensor)) is not None:
            problems.append(problem)
        elif name in tied and original in theirs and not torch.equal(tensor, theirs[original]):
            problems.append(f"not equal: {name} and {original}, which are one tensor in this model")
    if problems:
        raise list_problems(f"{place}: the weights do not fit config.json", problems)
    return theirs


def _wrong_shape(name: str, tensor: Tensor, shape: Sequence[int]) -> list[str]:
    if tuple(tensor.shape) == tuple(shape):
        return []
    has = tuple(tensor.shape) if tensor.dim() < 9 else f"of {tensor.dim():,} axes"
    return [f"wrong shape: {name} is {has} and should be {tuple(shape)}"]


def copies(rules: Iterable[AnyRule]) -> dict[str, str]:
    """Every tied tensor of theirs, with the name of its original."""
    return {
        _fill(rule.theirs, values): _fill(rule.of, values)
        for rule in rules
        if isinstance(rule, Copy)
        for values in _choices(rule.theirs)
    }


def _choices(pattern: str) -> Iterator[dict[str, str]]:
    """The values of the placeholders of a pattern whose placeholders list their words."""
    words = {name: listed.split("|") for name, listed in re.findall(r"\{(\w+):([\w|]+)\}", pattern)}
    return (dict(zip(words, chosen, strict=True)) for chosen in product(*words.values()))


def _copies(rules: Sequence[AnyRule], theirs: Iterable[str]) -> dict[str, str]:
    """Their tied tensors that are present, each with the name of its original."""
    return {
        name: _fill(rule.of, values)
        for rule in rules
        if isinstance(rule, Copy)
        for name in theirs
        if (values := _match(rule.theirs, name)) is not None
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
        return known or _copies(rules, [name]).get(name) in names

    # Current names first, then old ones; copies last, because one whose original is missing may
    # replace it.
    for old in sorted(theirs, key=lambda name: 2 if _copies(rules, [name]) else not is_known(name)):
        later = (
            name for name in _later_names(old, renames) if name not in names and is_known(name)
        )
        names[old if is_known(old) else next(later, old)] = old
    return names


def other_names(rules: Sequence[AnyRule], name: str) -> list[str]:
    """The names of one of their tensors in other versions of their library."""
    tied = copies(rules)
    found = (
        _fill(rule.old, values)
        for rule in rules
        if isinstance(rule, Renamed) and "{*" not in rule.old
        if (values := _match(rule.new, name)) is not None
        and {*_expression(rule.old).groupindex} <= values.keys()
    )
    return [other for other in found if other not in tied]


def _later_names(name: str, renames: Sequence[Renamed]) -> Iterator[str]:
    """The names that the rules turn a name into, those after the fewest renames first."""
    reached: list[tuple[str, tuple[Renamed, ...]]] = [(name, ())]
    for current, used in reached:
        for rule in renames:
            if rule not in used and (values := _match(rule.old, current)) is not None:
                reached.append((_fill(rule.new, values), (*used, rule)))
                yield reached[-1][0]
