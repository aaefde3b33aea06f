"""How long a model takes for one text at a time, beside its arithmetic and its memory traffic.

A product of a matrix with N elements and one vector takes 2·N floating-point operations and reads
N numbers. A single token therefore waits for the memory, and many tokens at once for arithmetic.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from trifold.cli.speed import MATMUL, matmul_rate, read_rate, wait
from trifold.costs import BYTES, forward_flops, inference_memory
from trifold.dtypes import dtype_name
from trifold.errors import UsageError
from trifold.generate.decoding import eval_mode
from trifold.nn import Inputs, ModelConfig
from trifold.nn.parts import EmbeddingsPart, part_of
from trifold.pipeline import Pipeline

SECONDS = 1.0  # of each measurement
LEAST, MOST = 3, 100  # repetitions, after one that is not counted
PEAK_SECONDS = 0.5  # of the products, and of reading


class Timing(NamedTuple):
    """The time of one step for one text. seconds: the median of the repetitions; fastest and
    slowest of them. flops, bytes: what it computes, and the weights and the cache that it reads.
    """

    step: str
    seconds: float
    fastest: float
    slowest: float
    flops: int
    bytes: int


class Peak(NamedTuple):
    """What this machine reaches: floating-point operations per second in a type, and bytes per
    second that are read, None for a GPU.
    """

    flops: float
    bytes: float | None


def generates(config: ModelConfig) -> bool:
    """Whether a model writes text, token by token."""
    return "lm" in config.chosen_heads and config.shape != "encoder"


def check_length(config: ModelConfig, length: int) -> int:
    """The tokens of a text; of a picture, its patches. Raises UsageError for more than the model
    has positions for, of a decoder twice as many.
    """
    if config.n_patches:
        return config.n_patches + 1
    most = config.max_positions
    if config.shape == "decoder" and generates(config):
        most //= 2  # it reads and writes as many
    if length > most:
        raise UsageError(f"--length {length}: this model has positions for {most:,} such tokens")
    return length


def measure_peak(device: torch.device, dtype: torch.dtype) -> Peak:
    """The peak of this machine with as many threads as now; see `trifold doctor`."""
    flops = 1e9 * matmul_rate(MATMUL, dtype, device, PEAK_SECONDS)
    if device.type != "cpu":
        return Peak(flops, None)
    return Peak(flops, 1e9 * read_rate(torch.get_num_threads(), PEAK_SECONDS))


def measure_latency(pipeline: Pipeline, length: int) -> list[Timing]:
    """The times for a text of random tokens: the whole of it; of a model that writes, also one more
    token, and a sentence as long.
    """
    if not generates(pipeline.config):
        return [_time_forward(pipeline, length)]
    return _time_generation(pipeline, length)


def _time_forward(pipeline: Pipeline, length: int) -> Timing:
    """The time of the states and the heads of a text, or of a picture."""
    model = pipeline.model
    config = pipeline.config
    inputs = _random_inputs(pipeline, length)
    heads = [head for head in config.chosen_heads if head not in ("boundary", "choice")]

    def run() -> None:
        if heads:
            model.head_outputs(inputs, heads=heads)
        else:
            model(inputs)

    flops = forward_flops(config, length, length)
    total = length * (flops.source + flops.target)
    name = "one picture" if config.n_patches else f"{length:,} in"
    with torch.no_grad(), eval_mode(model):
        return _timing(name, _times(run, pipeline.device), total, _weights(pipeline))


def _time_generation(pipeline: Pipeline, length: int) -> list[Timing]:
    """The times until the first token, for another token, and for as many as are read."""
    tokens = _random_inputs(pipeline, length).tokens
    writer = Pipeline(pipeline.model)  # without the settings and stop strings of the folder

    def times(count: int) -> list[float]:
        def write() -> None:
            writer.generate_tokens(tokens, max_new_tokens=count, min_new_tokens=count, num_beams=1)

        return _times(write, pipeline.device)

    config = pipeline.config
    first, *others = _flops_of_tokens(config, length)
    reading = times(1)
    writing = times(length)
    start = statistics.median(reading)
    total = first + sum(others)
    reads = _timing(f"{length:,} in, 1 out", reading, first, _weights(pipeline))
    if not others:
        return [reads]
    each = [(seconds - start) / len(others) for seconds in writing]
    read = _bytes_of_token(config, length, dtype_of(pipeline))
    total_bytes = _weights(pipeline) + len(others) * read
    return [
        reads,
        _timing("1 more out", each, sum(others) // len(others), read),
        _timing(f"{length:,} in, {length:,} out", writing, total, total_bytes),
    ]


def _bytes_of_token(config: ModelConfig, length: int, dtype: str) -> int:
    """The bytes that a token reads which follows `length` tokens and half of those that are
    written: the matrices that it passes, and the cache.
    """
    matrices = forward_flops(config, 1, 1).target // 2 * BYTES[dtype]
    memory = inference_memory(config, dtype)
    past = length // 2
    if config.shape == "decoder":
        past += length
    kept = length * memory.cache_per_source_token
    return matrices + kept + past * memory.cache_per_target_token


def _flops_of_tokens(config: ModelConfig, length: int) -> list[int]:
    """The operations until the first token is written, and for each other one. The logits of the
    text are computed for its last token only.
    """
    states = config.model_copy(update={"heads": ()})
    read = forward_flops(states, length, length)
    head = forward_flops(config, 1, 1).target - forward_flops(states, 1, 1).target
    past = 0
    first = length * read.source + head
    if config.shape == "decoder":
        past = length
        first = length * read.target + head
    else:
        first += forward_flops(states, length, 1).target
    others = [forward_flops(config, length, past + n).target for n in range(2, length + 1)]
    return [first, *others]


def _random_inputs(pipeline: Pipeline, length: int) -> Inputs:
    """A text of random tokens, or a picture of noise."""
    config = pipeline.config
    generator = torch.Generator().manual_seed(0)
    if config.n_patches:
        size = part_of(EmbeddingsPart, config).image_size(config) or (0, 0)
        pixels = torch.randn(1, config.n_channels, *size, generator=generator)
        dtype = next(pipeline.model.parameters()).dtype
        return Inputs(pixels=pixels.to(pipeline.device, dtype))
    tokens = torch.randint(config.vocab_size, (1, length), generator=generator)
    return Inputs(tokens.to(pipeline.device))


def dtype_of(pipeline: Pipeline) -> str:
    """The name of the type of the weights."""
    return dtype_name(str(next(pipeline.model.parameters()).dtype))


def _weights(pipeline: Pipeline) -> int:
    """The bytes of the weights."""
    return inference_memory(pipeline.config, dtype_of(pipeline)).weights


def _times(call: Callable[[], object], device: torch.device) -> list[float]:
    """The seconds of several calls, after one that is not counted."""
    call()
    wait(device)
    seconds = list[float]()
    end = time.perf_counter() + SECONDS
    while len(seconds) < LEAST or (time.perf_counter() < end and len(seconds) < MOST):
        start = time.perf_counter()
        call()
        wait(device)
        seconds.append(time.perf_counter() - start)
    return seconds


def _timing(step: str, seconds: list[float], flops: int, read: int) -> Timing:
    return Timing(step, statistics.median(seconds), min(seconds), max(seconds), flops, read)


def report(timings: list[Timing], peak: Peak) -> list[dict[str, Any]]:
    """The times for programs, with the shares of the peak and of the bandwidth."""
    return [
        {
            **timing._asdict(),
            "peak_share": timing.flops / timing.seconds / peak.flops,
            "bandwidth_share": peak.bytes and timing.bytes / timing.seconds / peak.bytes,
        }
        for timing in timings
    ]
