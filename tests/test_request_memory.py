"""The estimated memory of a request is near what PyTorch allocates while it runs. A process grows
by more, because the allocator does not return all at once.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from tests.laws.parts import values_of
from torch.profiler import ProfilerActivity, profile

from trifold import fast
from trifold.costs import Workload, request_memory
from trifold.generate import GenerationConfig, generate_tokens
from trifold.nn import PRESETS, Inputs, ModelConfig, Transformer, capture

ROWS, TOKENS = 2, 256
SIZES = {"d_model": 64, "d_ff": 256, "vocab_size": 500, "max_positions": 320, "dropout": 0.0}
# Classical shapes, and every part that answers for itself.
PARTS = (
    *("encoder-decoder", "encoder", "decoder", "window", "experts", "sinks"),
    *("relative", "relative sinusoids", "segment offsets", "disentangled", "recurrence"),
    *("low rank", "lsh", "latent", "spans"),
)


@contextmanager
def allocations() -> Iterator[dict[str, int]]:
    """`peak`: the largest number of bytes that were allocated and not freed meanwhile."""
    found = {"peak": 0}
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        yield found
    results: Any = profiled.profiler
    used = 0
    for event in results.kineto_results.events():
        if event.name() == "[memory]":
            used += event.nbytes()
            found["peak"] = max(found["peak"], used)


def new_model(name: str) -> Transformer:
    values = values_of((name,))
    own = {key: value for key, value in SIZES.items() if key != "max_positions"}
    config = ModelConfig.parse(values | own | {"max_positions": SIZES["max_positions"]})
    return Transformer(config).eval()


@pytest.mark.parametrize("name", PARTS)
def test_the_memory_of_a_forward_pass_is_near_its_estimate(name: str) -> None:
    model = new_model(name)
    config = model.config
    attend = torch.arange(TOKENS)[None] < torch.tensor([[TOKENS], [TOKENS // 2]])
    inputs = [Inputs(torch.randint(4, config.vocab_size, (ROWS, TOKENS)), attend)]
    if config.shape == "encoder-decoder":
        inputs.append(Inputs(torch.randint(4, config.output_vocab_size, (ROWS, TOKENS))))
    fast.enable()
    for is_watched in (False, True):
        with torch.no_grad(), allocations() as found, ExitStack() as recording:
            if is_watched:
                recording.enter_context(capture(model))
            model(*inputs)
        work = Workload(ROWS, TOKENS, TOKENS, is_watched=is_watched)
        estimate = request_memory(config, work).total
        assert 0.55 < found["peak"] / estimate < 2, (is_watched, found, estimate)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("decoder", {"num_beams": 8}),
        ("encoder-decoder", {"num_beams": 8}),
        ("decoder", {"do_sample": True, "num_return_sequences": 8, "top_p": 0.9}),
    ],
)
def test_the_memory_of_a_search_is_near_its_estimate(name: str, options: dict[str, Any]) -> None:
    model = new_model(name)
    inputs = Inputs(torch.randint(4, 500, (ROWS, 200)))
    config = GenerationConfig(max_new_tokens=100, min_new_tokens=100, seed=1, **options)
    with allocations() as found:
        generate_tokens(model, inputs, config)
    tokens = 300 if name == "decoder" else 101
    source = 0 if name == "decoder" else 200
    work = Workload(ROWS, source, 1, past=tokens, scored=1, outputs=8, cached=tokens)
    estimate = request_memory(model.config, work).total
    assert 0.55 < found["peak"] / estimate < 2, (found, estimate)


@pytest.mark.parametrize("name", PRESETS)
def test_default_batches_of_presets_fit_into_two_gib(name: str) -> None:
    config = PRESETS[name]
    for work in (
        Workload(32, 128, 128),
        Workload(4, 128, 128, is_watched=True, scored=128),
        Workload(20, 40, 1, past=100, outputs=5, scored=1, cached=100),
    ):
        assert request_memory(config, work).total < 2**31
