from __future__ import annotations

from collections.abc import Callable

import torch

from trifold.nn import Inputs, Transformer, capture
from trifold.nn.hooks import hooked

Make = Callable[..., Transformer]


@torch.no_grad()
def test_all_attention_weights_are_captured_and_their_rows_sum_to_1(make_model: Make) -> None:
    model = make_model()
    real = torch.arange(7) < torch.tensor([7, 4])[:, None]
    source, target = (
        Inputs(torch.randint(3, 17, (2, 7)), real),
        Inputs(torch.randint(3, 17, (2, 5))),
    )
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


def test_captured_tensors_are_detached_and_capturing_ends_with_its_context(
    make_model: Make,
) -> None:
    model = make_model(shape="encoder")
    tokens = Inputs(torch.randint(3, 17, (1, 4)))
    with capture(model) as seen:
        model(tokens)
    before = dict(seen)
    assert not any(tensor.requires_grad for tensor in seen.values())
    model(Inputs(torch.randint(3, 17, (1, 4))))
    assert all(seen[name] is before[name] for name in before)


@torch.no_grad()
def test_hook_points_give_the_numbers_of_equation_1(make_model: Make) -> None:
    model = make_model(shape="decoder", n_kv_heads=2, norm_placement="pre")
    with capture(model, "") as seen:
        hidden = model(Inputs(torch.randint(3, 17, (2, 6))))
    at = {
        name.rpartition(".")[2]: x
        for name, x in seen.items()
        if "blocks.1.self_attention.sublayer" in name
    }
    keys, values = (at[name].repeat_interleave(2, dim=1) for name in ("keys", "values"))
    future = torch.ones(6, 6, dtype=torch.bool).triu(1)
    scores = (at["queries"] @ keys.mT / 2).masked_fill(future, float("-inf"))
    torch.testing.assert_close(scores, at["scores"])
    torch.testing.assert_close(scores.softmax(-1), at["pattern"])
    torch.testing.assert_close(at["pattern"] @ values, at["heads"])
    block = model.decoder.blocks[1]
    merged = at["heads"].transpose(1, 2).flatten(2)
    part = "decoder.blocks.1.self_attention"
    torch.testing.assert_close(block.self_attention.sublayer.o_proj(merged), seen[f"{part}.output"])
    torch.testing.assert_close(seen["decoder.states.0"] + seen[f"{part}.output"], seen[part])
    part = "decoder.blocks.1.feed_forward"
    torch.testing.assert_close(
        block.feed_forward.sublayer.out_proj(seen[f"{part}.sublayer.inner"]), seen[f"{part}.output"]
    )
    assert torch.equal(seen["decoder.blocks.1.feed_forward"], seen["decoder.states.1"])
    assert torch.equal(seen["decoder.final_norm"], hidden)


@torch.no_grad()
def test_layers_that_share_a_block_have_hook_points_of_their_own(make_model: Make) -> None:
    model = make_model(shape="encoder", n_layers=3, block_of_layer=(0, 1, 0))
    tokens = Inputs(torch.randint(3, 17, (1, 4)))
    with capture(model) as seen:
        model(tokens)
    for layer in range(3):
        assert torch.equal(
            seen[f"encoder.blocks.{layer}.feed_forward"], seen[f"encoder.states.{layer}"]
        )

    def zero(name: str, x: torch.Tensor) -> torch.Tensor:
        return x * 0 if name == "encoder.blocks.2.feed_forward.output" else x

    with hooked(model, zero, "feed_forward.output"), capture(model) as edited:
        model(tokens)
    point = "encoder.blocks.{}.feed_forward.output"
    assert torch.equal(edited[point.format(0)], seen[point.format(0)])
    assert not edited[point.format(2)].any() and seen[point.format(2)].any()


@torch.no_grad()
def test_every_hook_point_sees_every_step_of_cached_decoding(make_model: Make) -> None:
    """The compiled step does not run, and the steps together pass what a whole pass does."""
    model = make_model(shape="decoder", norm_placement="pre", positions="rotary")
    tokens = torch.randint(3, 17, (1, 5))
    with capture(model) as whole:
        model(Inputs(tokens))
    steps: dict[str, list[torch.Tensor]] = {}
    with hooked(model, lambda name, x: steps.setdefault(name, []).append(x)):
        cache = model.new_cache()
        for column in range(5):
            model.decode(Inputs(tokens[:, column : column + 1]), None, cache)
    assert steps.keys() == whole.keys()
    for name, parts in steps.items():
        if not name.endswith(("keys", "values", "scores", "pattern")):  # those grow with the cache
            torch.testing.assert_close(torch.cat(parts, -2), whole[name], msg=name)
        assert len(parts) == 5


@torch.no_grad()
def test_watching_ends_with_its_context_also_if_contexts_are_nested(make_model: Make) -> None:
    model = make_model(shape="encoder")
    attention = model.encoder.blocks[0].self_attention.sublayer
    with capture(model):
        with capture(model, "pattern"):
            assert attention.watched
        assert attention.watched and attention.pattern.watched
    assert not any(getattr(module, "watched", False) for module in model.modules())
