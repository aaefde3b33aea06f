"""A query stream sees neither its target nor tokens of a higher rank."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.laws.configs import cases
from tests.laws.models import Example, assert_close, limit_of, model_in, padded, rows_of
from torch import Tensor

from trifold.nn import Inputs, Transformer


def targets_of(example: Example, count: int) -> Tensor:
    """(B, count) the real tokens of the highest ranks."""
    order, attend = example.source.order, example.source.attend
    assert order is not None
    real = order if attend is None else order.masked_fill(~attend, -1)
    return real.argsort(1, descending=True)[:, :count]


def streams(model: Transformer, inputs: Inputs, targets: Tensor, *, trains: bool) -> Tensor:
    from trifold.nn.variants.two_streams import query_states

    with torch.set_grad_enabled(trains):
        return query_states(model, inputs, targets).detach()


@pytest.mark.parametrize("trains", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("count", [1, 2])
@cases("query stream", parts=["two streams"])
def test_a_query_does_not_see_its_target(
    name: str, count: int, trains: bool, operations: str
) -> None:
    model = model_in(operations, name)
    example = padded([rows_of(model.config, seed, ordered=True)[0] for seed in range(2)])
    inputs, targets = replace(example.source, attend=None), targets_of(example, count)
    states = streams(model, inputs, targets, trains=trains)
    last = targets[:, :1]  # the one of the highest rank: no query may see it
    changed = replace(
        inputs, tokens=inputs.tokens.scatter(1, last, inputs.tokens.gather(1, last) % 20 + 7)
    )
    assert_close(streams(model, changed, targets, trains=trains), states, limit_of(operations))
    assert inputs.order is not None
    first = inputs.order.argmin(1, keepdim=True)  # all others see the first one
    changed = replace(
        inputs, tokens=inputs.tokens.scatter(1, first, inputs.tokens.gather(1, first) % 20 + 7)
    )
    assert not torch.allclose(streams(model, changed, targets, trains=trains), states)


@pytest.mark.parametrize("trains", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("count", [1, 2])
@cases("query stream", parts=["two streams"])
def test_queries_of_a_row_do_not_depend_on_its_batch_and_padding(
    name: str, count: int, trains: bool, operations: str
) -> None:
    model = model_in(operations, name)
    rows = rows_of(model.config, ordered=True)
    for left in (False, True):
        example = padded(rows, left=left)
        together = streams(model, example.source, targets_of(example, count), trains=trains)
        for number, row in enumerate(rows):
            alone = streams(model, row.source, targets_of(row, count), trains=trains)
            assert_close(together[number, None], alone, limit_of(operations))
