"""The tensors of a model in one or several GGUF files, by their names there and by those of the
family. Quantized ones are decoded when they are read.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trifold.hub.gguf.blocks import dequantize
from trifold.hub.gguf.file_format import GGUFFile, TensorEntry
from trifold.hub.gguf.matrices import StoredMatrix, stored_matrices
from trifold.hub.rules import Conversion, ParameterRule, Route, as_tuple, fill_name, matches, routes
from trifold.hub.tensors import (
    TransformedTensors,
    lazy_tensors,
    list_problems,
    mapped_bytes,
    shape_only,
    shapes_of,
)
from trifold.hub.transforms import SAME, Tensors


class _Place(NamedTuple):
    """A tensor, and the file that has it."""

    file: GGUFFile
    entry: TensorEntry


def open_tensors(files: Sequence[GGUFFile]) -> Mapping[str, Tensor]:
    """The tensors of the parts of a model, by their names in the files, each made when it is read.

    Quantized tensors are float32; others share memory with the file and may not be written.
    """
    places = {name: _Place(file, entry) for file in files for name, entry in file.tensors.items()}
    shapes = {name: _shape(place.entry) for name, place in places.items()}
    return TransformedTensors(places, lambda name, place: _read(place), shapes)


def open_matrices(files: Sequence[GGUFFile]) -> Mapping[str, StoredMatrix]:
    """The quantized tensors of the parts of a model, by their names in the files."""
    places = {name: _Place(file, entry) for file in files for name, entry in file.tensors.items()}
    entries = {name: place.entry for name, place in places.items()}
    return stored_matrices(entries, lambda name: _shared_bytes(places[name]))


def _shape(entry: TensorEntry) -> Tensor:
    return shape_only(entry.shape, entry.kind.dtype or torch.float32)


def _read(place: _Place) -> Tensor:
    entry = place.entry
    kind = entry.kind
    raw = _bytes(place)
    if kind.dtype is None:
        return dequantize(raw, kind).view(entry.shape)
    if entry.start % kind.dtype.itemsize:  # the alignment of a file may be 1
        raw = raw.clone()
    return raw.view(kind.dtype).view(entry.shape)


def _shared_bytes(place: _Place) -> Tensor:
    """The bytes of a tensor in the memory of the file, which keep all of it."""
    view = memoryview(place.file.memory)[place.entry.start : place.entry.end]
    return torch.frombuffer(view, dtype=torch.uint8)


def _bytes(place: _Place) -> Tensor:
    """The bytes of a tensor, which share memory with the file."""
    return mapped_bytes(place.file.memory, place.entry.start, place.entry.end)


# --- names of the family --------------------------------------------------------------------------


class TranslatedTensors:
    """The tensors of a file by the names of the family, and in its form.

    unread: names that no rule needs. Raises CheckpointError listing every tensor that no rule
    knows, that another one needs, or whose shape does not fit.
    """

    def __init__(
        self,
        rules: Sequence[ParameterRule],
        tensors: Mapping[str, Tensor],
        unread: Sequence[str],
        place: str,
    ) -> None:
        self._groups, problems = _groups(rules, tensors, unread)
        shapes: dict[str, Tensor] = {}
        # Layers are alike, and operators for shapes are slow.
        known: dict[tuple[Any, ...], Tensors] = {}
        for group in self._groups:
            theirs = [_shape_in(tensors, name) for name in group.theirs]
            key = (group.transform, *((each.shape, each.dtype) for each in theirs))
            try:
                if key not in known:
                    known[key] = group.transform.load(theirs)
                shapes |= zip(group.ours, known[key], strict=True)
            except (RuntimeError, ValueError, IndexError):
                found = ", ".join(f"{name} {_shape_text(tensors, name)}" for name in group.theirs)
                problems.append(f"wrong shape: {found}")
        if problems:
            raise list_problems(f"{place}: the tensors do not fit the metadata", problems)
        self._shapes = shapes

    @property
    def routes(self) -> dict[str, Route]:
        """How each tensor of the family is made of those of the file."""
        return routes(self._groups)

    @property
    def changed(self) -> frozenset[str]:
        """The names in the file of the tensors that rules change."""
        changed = [group.theirs for group in self._groups if group.transform is not SAME]
        return frozenset(name for names in changed for name in names)

    def of(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """These tensors, by the names of the file, each made when it is read."""
        makers: dict[tuple[str, ...], Callable[[], Tensors]] = {
            group.ours: partial(_make, group, tensors) for group in self._groups
        }
        made = lazy_tensors(makers)
        return TransformedTensors(self._shapes, lambda name, shape: made[name], self._shapes)


def _make(group: Conversion, tensors: Mapping[str, Tensor]) -> Tensors:
    return group.transform.load([tensors[name] for name in group.theirs])


def _shape_in(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    return shapes_of(tensors)[name]


def _shape_text(tensors: Mapping[str, Tensor], name: str) -> str:
    return str(tuple(_shape_in(tensors, name).shape))


def _groups(
    rules: Sequence[ParameterRule], names: Mapping[str, Tensor], unread: Sequence[str]
) -> tuple[list[Conversion], list[str]]:
    """The rules with their placeholders filled from the names of the file, and what is wrong."""
    groups: list[Conversion] = []
    problems: list[str] = []
    left = dict.fromkeys(name for name in names if name not in unread)
    for rule in rules:
        patterns = as_tuple(rule.theirs)
        for _, values in matches(patterns[0], names):
            theirs = tuple(fill_name(pattern, values) for pattern in patterns)
            problems += [f"missing: {each}" for each in theirs if each not in names]
            for each in theirs:
                left.pop(each, None)
            ours = tuple(fill_name(pattern, values) for pattern in as_tuple(rule.ours))
            groups.append(Conversion(ours, theirs, rule.transform))
    problems += [f"not known: {name!r}" for name in left]
    complete = [group for group in groups if all(name in names for name in group.theirs)]
    return complete, problems
