"""Attention to few keys: blocks of queries equal the dense definition, in values and gradients."""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from trifold import fast
from trifold.fast import sparse
from trifold.fast.attention import attend
from trifold.nn import ModelConfig, ops
from trifold.nn.masks import Mask, PairBias
from trifold.nn.stack import Stack
from trifold.nn.variants.global_tokens import GlobalTokens
from trifold.nn.variants.recurrence import Segment
from trifold.nn.variants.relative_buckets import RelativeOffsets
from trifold.nn.variants.sparse_blocks import BlockSparse
from trifold.nn.variants.windows import Window

LENGTH, HEADS, WIDTH = 83, 4, 8


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "BLOCK", 4)


def padding(*lengths: int) -> Tensor:
    return torch.arange(LENGTH) < torch.tensor(lengths)[:, None]


def some_globals(*columns: tuple[int, ...]) -> Tensor:
    chosen = torch.zeros(len(columns), LENGTH, dtype=torch.bool)
    for row, each in enumerate(columns):
        chosen[row, list(each)] = True
    return chosen


def big_bird(*lengths: int, repeat: bool = False) -> Mask:
    keys = padding(*lengths) if lengths else None
    return Mask(
        keys, rules=(BlockSparse.of(keys, LENGTH, 4, HEADS, random=2, seed=1, repeat=repeat),)
    )


LEFT = padding(83, 60).flip(1)
MASKS: dict[str, Mask] = {
    "window": Mask(rules=(Window(5),)),
    "causal window": Mask(causal=True, rules=(Window(9),)),
    "padding": Mask(padding(83, 50), rules=(Window(5),)),
    "a short and a long row": Mask(padding(83, 5), causal=True, rules=(Window(5),)),
    "padding on the left": Mask(LEFT, causal=True, rules=(Window(6),)),
    "gaps": Mask(
        torch.rand(2, LENGTH, generator=torch.Generator().manual_seed(1)) > 0.3, rules=(Window(6),)
    ),
    "globals": Mask(padding(83, 70), rules=(Window(5), GlobalTokens(some_globals((0, 40), (1,))))),
    "causal globals": Mask(causal=True, rules=(Window(5), GlobalTokens(some_globals((0, 40), ())))),
    "segments": Mask(causal=True, rules=(Segment(7, 4),)),
    "segments, padding": Mask(LEFT, causal=True, rules=(Segment(7, 0),)),
    "blocks": big_bird(),
    "blocks, padding": big_bird(83, 60),
    "blocks, a short row": big_bird(83, 13),
    "first block repeated": big_bird(83, 60, repeat=True),
}


def outputs(
    function: Callable[..., Tensor], mask: Mask, kv_heads: int = HEADS, **options: object
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (2, HEADS, LENGTH, WIDTH), (2, kv_heads, LENGTH, WIDTH), (2, kv_heads, LENGTH, WIDTH)
    inputs = [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in shapes
    ]
    weights = [x for x in options.values() if isinstance(x, Tensor)]
    out = function(*inputs, mask, **options)
    real = 1 if mask.keys is None else mask.keys[:, None, :, None]
    target = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    return [out * real, *torch.autograd.grad((out * target * real).sum(), (*inputs, *weights))]


@pytest.mark.parametrize("name", MASKS)
def test_blocks_equal_the_dense_definition(name: str) -> None:
    mask = MASKS[name]
    assert sparse.supports_sparse_attend(mask, LENGTH, LENGTH)
    for ours, theirs in zip(outputs(attend, mask), outputs(ops.PLAIN["attend"], mask), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_options_pass_to_each_block() -> None:
    sinks = torch.randn(HEADS, dtype=torch.float64).requires_grad_()
    options = {"sinks": sinks, "soft_cap": 2.0}
    mask = Mask(padding(83, 70), causal=True, rules=(Window(6),))
    ours, theirs = (outputs(each, mask, 2, **options) for each in (attend, ops.PLAIN["attend"]))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("chosen", [None, some_globals((0, 40), (1,))])
@pytest.mark.parametrize("causal", [True, False])
def test_a_learned_bias_is_computed_for_the_pairs_of_a_block(
    causal: bool, chosen: Tensor | None
) -> None:
    config = ModelConfig(
        d_model=32,
        n_heads=HEADS,
        positions="relative",
        sliding_window=6,
        relative_buckets=8,
        relative_distance=20,
    )
    offsets = RelativeOffsets(config).double()
    torch.nn.init.normal_(offsets.weight)
    mask = Mask(padding(83, 70), causal=causal)
    bias, found = offsets(mask, LENGTH, torch.device("cpu"), None), []
    for function in (attend, ops.PLAIN["attend"]):
        others = () if chosen is None else (GlobalTokens(chosen),)
        local = Mask(mask.keys, causal=causal, rules=(Window(6), *others))
        own = outputs(lambda *inputs, f=function, m=local: f(*inputs, bias=bias), local)
        offsets.weight.grad = None
        q = torch.ones(2, HEADS, LENGTH, WIDTH, dtype=torch.float64)
        (function(q, q, q.cumsum(2), local, bias=bias)[:, :, :70] ** 2).sum().backward()
        found.append([*own, offsets.weight.grad])
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other)


# --- memory ---------------------------------------------------------------------------------------

STEP = """
import json, re, sys, torch, trifold.fast
from trifold.nn import Inputs, ModelConfig, Transformer
trifold.fast.enable()
torch.manual_seed(0)
LENGTH = 2**14
sizes = {"vocab_size": 50, "d_model": 16, "n_heads": 1, "n_layers": 1, "d_ff": 16, "max_positions": LENGTH}
sizes |= {"shape": "encoder", "positions": "none", "dropout": 0.0, "heads": ()}
for name, values in json.loads(sys.argv[1]).items():
    model = Transformer(ModelConfig(**sizes, **values)).train()
    model(Inputs(torch.randint(3, 50, (1, LENGTH)))).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    print(name, re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1], sep=": ")
"""
LONG = {
    "window": {"sliding_window": 128},
    "window and global tokens": {
        **{"sliding_window": 128, "global_tokens": "first"},
        "global_projections": True,
    },
    "blocks": {"sparse_blocks": {"size": 64, "random": 3}},
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory of a process from /proc")
def test_texts_of_16_k_tokens_fit_in_memory() -> None:
    """One layer, forward and backward. The scores of its head alone would be 1 GiB. One process,
    whose peak after each model is printed: importing takes longer than the models."""
    done = subprocess.run(
        [sys.executable, "-c", STEP, json.dumps(LONG)], capture_output=True, text=True, check=True
    )
    peaks = dict(line.split(": ") for line in done.stdout.splitlines())
    assert peaks.keys() == LONG.keys()
    assert {name: peak for name, peak in peaks.items() if int(peak) * 1024 >= 8e8} == {}


@pytest.mark.slow
@pytest.mark.parametrize("keys", [None, padding(83, 30), padding(83, 7).flip(1)])
def test_summaries_of_blocks_are_read_by_all(keys: Tensor | None) -> None:
    config = ModelConfig(
        **{
            "d_model": 32,
            "n_heads": HEADS,
            "shape": "encoder",
            "positions": "relative",
            "dropout": 0.0,
        },
        **{
            "relative_buckets": 8,
            "relative_distance": 20,
            "sliding_window": 4,
            "summary_block": 10,
        },
    )
    torch.manual_seed(0)
    encoder, found = Stack(config, "encoder").double(), []
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x = torch.randn(2, LENGTH, 32, dtype=torch.float64)
    real = 1 if keys is None else keys[..., None]
    for context in (nullcontext(), fast.disabled()):
        with context:
            out = encoder(x, Mask(keys)) * real
            gradients = torch.autograd.grad((out * x).sum(), [*encoder.parameters()])
        found.append([out, *gradients])
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_learned_biases_of_layers_with_unequal_windows(side: str) -> None:
    """The bias of all pairs is never computed if all windows are shorter than the text."""
    config = ModelConfig(
        **{
            "d_model": 32,
            "n_heads": HEADS,
            "shape": side,
            "positions": "relative",
            "dropout": 0.0,
            "n_layers": 3,
        },
        **{
            "relative_buckets": 8,
            "relative_distance": 20,
            "sliding_window": 4,
            "window_pattern": ("local", 9, 20),
        },
    )
    torch.manual_seed(0)
    stack, mask = Stack(config, side).double(), Mask(padding(83, 40), causal=side == "decoder")
    for parameter in stack.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    for length, kind in ((20, Tensor), (21, PairBias)):
        assert (
            type(stack.offsets(Mask(causal=mask.causal), length, torch.device("cpu"), None)) is kind
        )
    x, found = torch.randn(2, LENGTH, 32, dtype=torch.float64), []
    for context in (nullcontext(), fast.disabled()):
        with context:
            out = stack(x, mask) * mask.keys[..., None]
            found.append([out, *torch.autograd.grad((out * x).sum(), [*stack.parameters()])])
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("causal", [True, False])
def test_rows_of_padding_do_not_widen_what_a_block_reads(causal: bool) -> None:
    """The short row is on the left and on the right."""
    for keys in (padding(83, 5), LEFT.roll(1, 0), padding(83, 5).flip(1)):
        mask = Mask(keys, causal=causal, rules=(Window(5),))
        blocks = sparse._blocks(mask, LENGTH, LENGTH, mask.positions(LENGTH, torch.device("cpu")))
        assert max(block.keys.stop - block.keys.start for block in blocks) <= 4 + (
            4 if causal else 8
        )
