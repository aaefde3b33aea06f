"""The numbers of what two texts share, from counts of their words.

Five of the first twelve numbers depend on the idf of words, which a model holds by buckets of
hashed words; the others are given. Shapes: B pairs, N counted words, K blocks, F numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.nn.inputs import RowFeatures

NUMBERS = 12  # of what two texts share
ORDER_NUMBERS = 8  # of the order of the words and of lengths, which may follow
# The blocks of counts of a pair: words of both texts, of each, and of one only; numbers that depend
# on no idf.
SHARED, FIRST, SECOND, UNSHARED, WITHOUT = range(5)
PAIR_BLOCKS = 5
# The places of numbers that depend on no idf, and of the others.
WITHOUT_IDF = (0, 4, 6, 7, 8, 9, 11)
WITH_IDF = (1, 2, 3, 5, 10)


def overlap_numbers(features: RowFeatures, idf: Tensor, order_numbers: int = 0) -> Tensor:
    """(B, F) what the texts of each pair share (`linear.overlap`), from counts of their words
    (`linear.shared_words`): 12 numbers, and so many of the order.
    """
    ids, starts = features.ids, features.starts
    values = features.values.to(idf.dtype)
    weights = idf[ids]
    weights = weights.where(weights > 0, idf[-1])
    sizes = starts.diff()
    blocks = torch.arange(len(sizes), device=ids.device) % PAIR_BLOCKS
    block = blocks.repeat_interleave(sizes)
    # Of TF-IDF: the value of a shared word is the product of both counts.
    squares = values.where(block == SHARED, values * values) * weights * weights
    sums = _of_blocks(torch.stack([weights, squares], 1), starts, "sum")
    shared, first, second = sums[:, [SHARED, FIRST, SECOND], 0].unbind(1)
    product, *lengths = sums[:, [SHARED, FIRST, SECOND], 1].unbind(1)
    largest = _of_blocks(weights[:, None], starts, "max")[:, UNSHARED, 0]
    with_idf = [
        _ratio(shared, first + second - shared),
        _ratio(shared, first),
        _ratio(shared, second),
        _ratio(product, (lengths[0] * lengths[1]).sqrt()),
        largest,
    ]
    given = values[block == WITHOUT].view(-1, len(WITHOUT_IDF) + order_numbers)
    numbers = values.new_empty(len(shared), NUMBERS)
    numbers[:, WITHOUT_IDF] = given[:, : len(WITHOUT_IDF)]
    numbers[:, WITH_IDF] = torch.stack(with_idf, 1)
    return torch.cat([numbers, given[:, len(WITHOUT_IDF) :]], 1)


def _of_blocks(values: Tensor, starts: Tensor, mode: str) -> Tensor:
    """(B, K, …) the sum or the largest of the values (N, …) of each block; 0 of an empty one."""
    places = torch.arange(len(values), device=values.device)
    found = F.embedding_bag(places, values, starts[:-1], mode=mode)
    return found.view(-1, PAIR_BLOCKS, values.shape[1])


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole; 0 where the whole is 0."""
    return (part / whole).where(whole > 0, 0.0)
