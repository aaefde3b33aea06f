"""The rule engine: translate the tensors of one checkpoint to those of another, in both directions.

A family's table maps our parameters to their tensors:

    Rule("encoder.blocks.{i}.feed_forward.sublayer.in_proj.weight", "model.encoder.layers.{i}.fc1.weight")

A placeholder {i} matches one part of a dotted name, {p:q|k|v} one of the given words, {*path} anything. A rule may map
several of ours to several of theirs (q, k and v to one stacked matrix) through an invertible transform. Loading and
saving are the two directions of the same table, so they always agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor

from trifold.hub.tensors import LazyTensors, RenamedTensors, list_problems

# --- transforms ----------------------------------------------------------------------------------------


Tensors = list[Tensor]


@dataclass(frozen=True)
class Transform:
    """An invertible map between the tensors of one rule, in the order of its names.

    Both directions must also run on the meta device, where they compute the shapes.
    """

    load: Callable[[Tensors], Tensors]  # theirs -> ours
    save: Callable[[Tensors], Tensors]  # ours -> theirs


def each(load: Callable[[Tensor], Tensor], save: Callable[[Tensor], Tensor]) -> Transform:
    """The same functions for every tensor of the rule."""
    return Transform(lambda theirs: [load(t) for t in theirs], lambda ours: [save(t) for t in ours])


SAME = each(lambda theirs: theirs, lambda ours: ours)
TRANSPOSED = each(Tensor.t, Tensor.t)  # their matrices are (in, out) where ours are (out, in)
LEADING_AXIS = each(lambda theirs: theirs.squeeze(0), lambda ours: ours.unsqueeze(0))  # theirs is (1, …)


def joined_axes(axis: int, parts: int) -> Transform:
    """Their `axis`, with `parts` entries, and the next one are a single axis of ours."""
    return each(lambda theirs: theirs.flatten(axis, axis + 1), lambda ours: ours.unflatten(axis, (parts, -1)))


def permuted(order: Sequence[int], axis: int = 0) -> Transform:
    """Along `axis`, their entry j is our entry order[j]."""
    indices = torch.tensor(order)
    inverse = indices.argsort()
    return each(
        lambda theirs: theirs.index_select(axis, inverse.to(theirs.device)),
        lambda ours: ours.index_select(axis, indices.to(ours.device)),
    )


def _concatenate(tensors: Tensors, axis: int) -> Tensor:
    """torch.cat. Its version for the meta device imports PyTorch's compiler, which takes a second."""
    if not tensors[0].is_meta:
        return torch.cat(list(tensors), axis)
    shape = list(tensors[0].shape)
    shape[axis] = sum(tensor.shape[axis] for tensor in tensors)
    return torch.empty(shape, dtype=tensors[0].dtype, device="meta")


def interleaved(groups: int, shares: Sequence[int]) -> Transform:
    """Several tensors of ours are interleaved in one of theirs.

    Each of its groups holds a share of our first tensor, then of the second, … `shares` are in any unit: three heads
    of q, one of k and one of v are (3, 1, 1). In one group, tensors follow each other.
    """

    def load(theirs: Tensors) -> Tensors:
        whole = theirs[0].unflatten(0, (groups, -1))
        unit = whole.shape[1] // sum(shares)
        return [part.flatten(0, 1) for part in whole.split([share * unit for share in shares], 1)]

    def save(ours: Tensors) -> Tensors:
        return [_concatenate([part.unflatten(0, (groups, -1)) for part in ours], 1).flatten(0, 1)]

    return Transform(load, save)


def chain(*links: Transform) -> Transform:
    """Several transforms in sequence, starting from ours."""

    def load(theirs: Tensors) -> Tensors:
        for link in reversed(links):
            theirs = link.load(theirs)
        return theirs

    def save(ours: Tensors) -> Tensors:
        for link in links:
            ours = link.save(ours)
        return ours

    return Transform(load, save)


# --- rules ---------------------------------------------------------------------------------------------

Names = str | tuple[str, ...]
# Supported types; shorter ones would need scales.
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Rule:
    """Our parameters that correspond to their tensors, through a transform."""

    ours: Names
    theirs: Names
    transform: Transform = SAME


@dataclass(frozen=True)
class Zeros:
    """A tensor of theirs that we do not have: one for each of our parameters `beside`, which determines its shape.

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
            f"not zero: {name}, which this model does not have; {self.remedy}" if bool(tensor.any()) else None
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
    """A tied tensor that some files repeat: it may be missing, must be equal, and is not written."""

    theirs: str
    of: str


@dataclass(frozen=True)
class Ignored:
    """A tensor in some files that can be computed: neither read nor written. shape: the shape that it must have."""

    theirs: str
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Renamed:
    """An old name of a tensor in some files.

    It applies if the old name is not known and the new one is expected and not taken; several may apply in sequence,
    each once. The new name is written.
    """

    old: str
    new: str


@dataclass(frozen=True)
class Unused:
    """A tensor of theirs that nothing uses: it may be missing or hold anything. Without it, a copy is written."""

    theirs: str
    like: str


AnyRule = Rule | Zeros | Computed | Copy | Ignored | Renamed | Unused


@lru_cache(maxsize=4096)
def _expression(pattern: str) -> re.Pattern[str]:
    """The pattern as a regular expression."""
    parts = re.split(r"\{(\*?)(\w+)(?::([\w|]+))?\}", pattern)
    text = re.escape(parts[0])
    for star, name, words, literal in zip(parts[1::4], parts[2::4], parts[3::4], parts[4::4], strict=True):
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


# --- a table, expanded for one model -------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """Our parameters and their tensors with the transform between them."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    transform: Transform


def steps(rules: Iterable[AnyRule], names: Collection[str]) -> list[Step]:
    """Every rule with its placeholders filled from our names. Each name must have exactly one rule."""
    steps: list[Step] = []
    unfilled = dict.fromkeys(names)
    for rule in (rule for rule in rules if isinstance(rule, Rule)):
        ours, theirs = _as_tuple(rule.ours), _as_tuple(rule.theirs)
        for name in names:
            if (values := _match(ours[0], name)) is None:
                continue
            step = Step(
                tuple(_fill(pattern, values) for pattern in ours),
                tuple(_fill(pattern, values) for pattern in theirs),
                rule.transform,
            )
            for taken in step.ours:
                assert taken in unfilled, f"two rules, or none, for {taken}: {rule}"
                del unfilled[taken]
            steps.append(step)
    assert not unfilled, f"no rule for {', '.join(unfilled)}"
    return steps


def constants(rules: Iterable[AnyRule], ours: Iterable[str]) -> dict[str, tuple[Zeros | Computed, str]]:
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
    found = (r for r in rules if isinstance(r, Ignored | Unused) and _match(r.theirs, name) is not None)
    return next(found, None)


def saving(
    rules: Sequence[AnyRule], ours: Mapping[str, Tensor], kept: Mapping[str, Tensor] | None = None
) -> Mapping[str, Tensor]:
    """Our parameters under their names and in their form, each made on demand; kept: from `unused`."""

    def constant(rule: Zeros | Computed, beside: str) -> Tensors:
        return [rule.make(ours[beside])]

    def copy(rule: Unused) -> Tensors:
        return [kept[rule.theirs] if kept and rule.theirs in kept else used[rule.like].clone()]

    makers: dict[tuple[str, ...], Callable[[], Tensors]] = {
        step.theirs: partial(_run, step.transform.save, ours, step.ours) for step in steps(rules, ours)
    }
    makers |= {(name,): partial(constant, *entry) for name, entry in constants(rules, ours).items()}
    used = LazyTensors(makers)
    return LazyTensors(makers | {(r.theirs,): partial(copy, r) for r in rules if isinstance(r, Unused)})


def loading(
    rules: Sequence[AnyRule], theirs: Mapping[str, Tensor], ours: Collection[str]
) -> Mapping[str, Tensor]:
    """Our parameters from their tensors, as returned by `checked`, each made on demand."""
    return LazyTensors(
        {step.ours: partial(_run, step.transform.load, theirs, step.theirs) for step in steps(rules, ours)}
    )


def _run(
    transform: Callable[[Tensors], Tensors], tensors: Mapping[str, Tensor], names: Iterable[str]
) -> Tensors:
    return transform([tensors[name] for name in names])


def checked(
    rules: Sequence[AnyRule], theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor], place: str
) -> Mapping[str, Tensor]:
    """Their tensors under current names; `ours` gives the expected names and shapes, on any device.

    Raises CheckpointError listing every tensor that is missing, unknown, of a wrong shape or type, not zero although it
    must be, or not equal to the tensor it is tied to.
    """
    shapes = {name: torch.empty(t.shape, dtype=t.dtype, device="meta") for name, t in ours.items()}
    fixed, expected = constants(rules, ours), dict(saving(rules, shapes))
    theirs = renamed(rules, theirs, expected)
    tied = _copies(rules, theirs)
    unread = {rule.theirs for rule in rules if isinstance(rule, Unused)}
    optional = unread | fixed.keys()
    problems = [f"missing: {name}" for name in expected if name not in theirs and name not in optional]
    for name in theirs:
        if name in unread:
            continue
        if name not in expected and name not in tied:
            if (rule := ignored(rules, name)) is None:
                problems.append(f"not known: {name!r}")
            elif isinstance(rule, Ignored) and rule.shape is not None:
                problems += _wrong_shape(name, theirs[name], rule.shape)
            continue
        tensor, original = theirs[name], tied.get(name, name)
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


def _copies(rules: Sequence[AnyRule], theirs: Iterable[str]) -> dict[str, str]:
    """Their tied tensors that are present, each with the name of its original."""
    return {
        name: _fill(rule.of, values)
        for rule in rules
        if isinstance(rule, Copy)
        for name in theirs
        if (values := _match(rule.theirs, name)) is not None
    }


# --- old names -----------------------------------------------------------------------------------------


def renamed(
    rules: Sequence[AnyRule], theirs: Mapping[str, Tensor], expected: Collection[str]
) -> Mapping[str, Tensor]:
    """Their tensors under current names."""
    renames = [rule for rule in rules if isinstance(rule, Renamed)]
    if not renames:
        return theirs
    names: dict[str, str] = {}

    def is_known(name: str) -> bool:
        known = name in expected or ignored(rules, name) is not None
        return known or _copies(rules, [name]).get(name) in names

    # Current names first, then old ones; copies last, because one whose original is missing may replace it.
    for old in sorted(theirs, key=lambda name: 2 if _copies(rules, [name]) else not is_known(name)):
        later = (name for name in _later_names(old, renames) if name not in names and is_known(name))
        names[old if is_known(old) else next(later, old)] = old
    return RenamedTensors({name: (theirs, old) for name, old in names.items()})


def _later_names(name: str, renames: Sequence[Renamed]) -> Iterator[str]:
    """The names that the rules turn a name into, those after the fewest renames first."""
    reached: list[tuple[str, tuple[Renamed, ...]]] = [(name, ())]
    for current, used in reached:
        for rule in renames:
            if rule not in used and (values := _match(rule.old, current)) is not None:
                reached.append((_fill(rule.new, values), (*used, rule)))
                yield reached[-1][0]
