from __future__ import annotations

from collections.abc import Callable

import torch

from trifold.nn import Inputs, Transformer, capture

Make = Callable[..., Transformer]


@torch.no_grad()
def test_all_attention_weights_are_captured_and_their_rows_sum_to_1(make_model: Make) -> None:
    model = make_model()
    real = torch.arange(7) < torch.tensor([7, 4])[:, None]
    source, target = Inputs(torch.randint(3, 17, (2, 7)), real), Inputs(torch.randint(3, 17, (2, 5)))
    with capture(model, "pattern") as seen:
        model(source, target)
    shapes = {
        f"{stack}.blocks.{i}.{attention}.sublayer.pattern": shape
        for i in range(2)
        for stack, attention, shape in (
            ("encoder", "self_attention", (2, 4, 7, 7)),
            ("decoder", "self_attention", (2, 4, 5, 5)),
            ("decoder", "cross_attention", (2, 4, 5, 7)),
        )
    }
    assert {name: tuple(pattern.shape) for name, pattern in seen.items()} == shapes
    for name, pattern in seen.items():
        torch.testing.assert_close(pattern.sum(-1), torch.ones(pattern.shape[:-1]), msg=name)
        if "decoder.blocks.0.self" in name:
            assert not pattern.triu(1).any()
        else:
            assert not name.startswith("encoder") or not pattern[1, :, :, 4:].any()


def test_captured_tensors_are_detached_and_capturing_ends_with_its_context(make_model: Make) -> None:
    model = make_model(shape="encoder")
    tokens = Inputs(torch.randint(3, 17, (1, 4)))
    with capture(model) as seen:
        model(tokens)
    before = dict(seen)
    assert not any(tensor.requires_grad for tensor in seen.values())
    model(Inputs(torch.randint(3, 17, (1, 4))))
    assert all(seen[name] is before[name] for name in before)
