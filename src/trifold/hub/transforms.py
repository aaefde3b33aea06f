"""Invertible maps between our tensors and those of another checkpoint."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Tensors = list[Tensor]


@dataclass(frozen=True)
class Transform:
    """An invertible map between the tensors of one rule, in the order of its names.

    Both directions must also run on the meta device, where they compute the shapes. transposed:
    whether their matrices are (in, out) where ours are (out, in).
    """

    load: Callable[[Tensors], Tensors]  # theirs -> ours
    save: Callable[[Tensors], Tensors]  # ours -> theirs
    transposed: bool = False


def per_tensor(load: Callable[[Tensor], Tensor], save: Callable[[Tensor], Tensor]) -> Transform:
    """The same functions for every tensor of the rule."""
    return Transform(
        lambda theirs: [load(tensor) for tensor in theirs],
        lambda ours: [save(tensor) for tensor in ours],
    )


SAME = per_tensor(lambda theirs: theirs, lambda ours: ours)
TRANSPOSED = replace(per_tensor(Tensor.t, Tensor.t), transposed=True)
# Theirs is (1, …).
LEADING_AXIS = per_tensor(lambda theirs: theirs.squeeze(0), lambda ours: ours.unsqueeze(0))


def joined_axes(axis: int, parts: int) -> Transform:
    """Their `axis`, with `parts` entries, and the next one are a single axis of ours."""
    return per_tensor(
        lambda theirs: theirs.flatten(axis, axis + 1),
        lambda ours: ours.unflatten(axis, (parts, -1)),
    )


def permuted(order: Sequence[int], axis: int = 0) -> Transform:
    """Along `axis`, their entry j is our entry order[j]."""
    indices = torch.tensor(order)
    inverse = indices.argsort()
    return per_tensor(
        lambda theirs: theirs.index_select(axis, inverse.to(theirs.device)),
        lambda ours: ours.index_select(axis, indices.to(ours.device)),
    )


def _concatenate(tensors: Tensors, axis: int) -> Tensor:
    """torch.cat. Its version for the meta device imports PyTorch's compiler, which takes a
    second.
    """
    if not tensors[0].is_meta:
        return torch.cat(list(tensors), axis)
    shape = list(tensors[0].shape)
    shape[axis] = sum(tensor.shape[axis] for tensor in tensors)
    return torch.empty(shape, dtype=tensors[0].dtype, device="meta")


def interleaved(groups: int, shares: Sequence[int]) -> Transform:
    """Several tensors of ours are interleaved in one of theirs.

    Each of its groups holds a share of our first tensor, then of the second, … `shares` are in any
    unit: three heads of q, one of k and one of v are (3, 1, 1). In one group, tensors follow each
    other.
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

    return Transform(load, save, any(link.transposed for link in links))
