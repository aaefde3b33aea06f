"""A rule that no kernel knows has its effect everywhere: each kernel leaves its masks to the plain
definition. The sizes are those from which a kernel runs without the rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.models import randomize
from torch import Tensor

from trifold import fast
from trifold.fast import attention
from trifold.fast.compiled_decoder import CompiledDecoder
from trifold.nn import Mask, ModelConfig, Transformer, ops
from trifold.nn.attention import Attention
from trifold.nn.config import CoreConfig
from trifold.nn.masks import MaskPart, Rule
from trifold.nn.packing import Packing
from trifold.nn.parts import RulePart
from trifold.nn.variants.windows import Window

pytest.importorskip("numba", reason="the compiled loops need numba: `make setup` installs it")


class EveryThird(Rule):
    """A query attends to every third key, its own among them."""

    sentence = "every third key"

    def allowed(self, part: MaskPart) -> Tensor:
        return (part.key_numbers - part.query_numbers) % 3 == 0


RULE = EveryThird()


def tensors(queries: int, keys: int, heads: int = 8, width: int = 64) -> list[Tensor]:
    return [torch.randn(2, heads, length, width) for length in (queries, keys, keys)]


def attends(queries: int, keys: int, mask: Callable[..., Mask]) -> Callable[..., Tensor]:
    q, k, v = tensors(queries, keys)

    def compute(*rules: Rule) -> Tensor:
        with torch.no_grad():
            return ops.attend(q, k, v, mask(*rules))

    return compute


def packed() -> Callable[..., Tensor]:
    layer = randomize(Attention(ModelConfig(d_model=32, n_heads=4)), 0.3)
    packing = Packing.of(torch.tensor([7, 4, 9]))
    x = torch.randn(1, packing.length, 32, requires_grad=True)
    return lambda *rules: layer(x, mask=Mask(packing.attend, packing=packing, rules=rules))[
        :, : packing.n_real
    ]


def decoder() -> Callable[..., Tensor]:
    sizes = {"d_model": 512, "n_heads": 8, "d_ff": 2048, "n_layers": 2, "vocab_size": 9}
    model = Transformer(ModelConfig.parse(sizes | {"shape": "decoder"})).eval()
    x = torch.randn(2, 7, 512)

    def compute(*rules: Rule) -> Tensor:
        cache, outs = model.new_cache(), []
        with torch.no_grad():
            for start, stop in ((0, 5), (5, 6), (6, 7)):
                mask = Mask(causal=True, offset=start, rules=rules)
                outs.append(model.decoder(x[:, start:stop], mask, cache=cache))
        return torch.cat(outs, 1)

    return compute


class EveryThirdPart(RulePart):
    """The part whose rule of every layer it is."""

    key = "every_third"

    def used(self, config: CoreConfig) -> bool:
        return True

    def of_layer(
        self, config: CoreConfig, layer: int, mask: Mask, queries: int, *, training: bool
    ) -> Rule:
        return RULE


def decoder_with_rules_of_layers(**window: int) -> Callable[..., Tensor]:
    sizes = {"d_model": 512, "n_heads": 8, "d_ff": 2048, "n_layers": 2, "vocab_size": 9}
    model = Transformer(ModelConfig.parse(sizes | window | {"shape": "decoder"})).eval()
    x, usual = torch.randn(2, 7, 512), model.decoder.rules

    def compute(*rules: Rule) -> Tensor:
        model.decoder.rules = (*usual, *(EveryThirdPart() for _ in rules))
        cache, outs = model.new_cache(), []
        with torch.no_grad():
            for start, stop in ((0, 5), (5, 6), (6, 7)):
                mask = Mask(causal=True, offset=start)
                outs.append(model.decoder(x[:, start:stop], mask, cache=cache))
        return torch.cat(outs, 1)

    return compute


PATHS: dict[str, tuple[tuple[object, str], Callable[[], Callable[..., Tensor]]]] = {
    "sparse_attend": (
        (attention, "sparse_attend"),
        lambda: attends(300, 300, lambda *rules: Mask(rules=(Window(5), *rules))),
    ),
    "attend_one_query": (
        (attention, "attend_one_query"),
        lambda: attends(1, 9, lambda *rules: Mask(causal=True, offset=8, rules=rules)),
    ),
    "the causal flag of PyTorch's kernel": (
        (attention, "fused_attention"),
        lambda: attends(15, 15, lambda *rules: Mask(causal=True, rules=rules)),
    ),
    "prompt_attention": (
        (attention, "prompt_attention"),
        lambda: attends(20, 29, lambda *rules: Mask(causal=True, offset=9, rules=rules)),
    ),
    "packed_attention": ((attention, "packed_attention"), packed),
    "compiled decoding step": ((CompiledDecoder, "run"), decoder),
    "compiled decoding step, rules of layers": (
        (CompiledDecoder, "run"),
        decoder_with_rules_of_layers,
    ),
    "compiled decoding step, windows and rules of layers": (
        (CompiledDecoder, "run"),
        lambda: decoder_with_rules_of_layers(sliding_window=6),
    ),
}


@pytest.mark.parametrize("path", PATHS)
def test_a_rule_that_no_kernel_knows(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (owner, name), make = PATHS[path]
    compute, calls = make(), list[str]()
    kernel = getattr(owner, name)

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        return kernel(*arguments, **options)

    monkeypatch.setattr(owner, name, counted)
    without = compute()
    assert calls, "the sizes are too small for this kernel"
    got = compute(RULE)
    with fast.disabled():
        expected = compute(RULE)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(got, without, atol=1e-2)


def test_the_rule_is_what_it_says() -> None:
    q, k, v = tensors(6, 6)
    weights = torch.softmax(q @ k.mT / 8, -1)
    numbers = torch.arange(6)
    allowed = (numbers[:, None] - numbers) % 3 == 0
    weights = torch.where(allowed, weights, 0.0)
    expected = weights / weights.sum(-1, keepdim=True) @ v
    torch.testing.assert_close(ops.attend(q, k, v, Mask(rules=(RULE,))), expected)
