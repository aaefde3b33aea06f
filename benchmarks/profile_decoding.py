"""Where the time of a decoding step goes: greedy steps of a random model, by part.

    python benchmarks/profile_decoding.py gpt2|smollm2|1b [--weights bf16|int8|int4] [--rows 1]
        [--prompt 512] [--steps 40]

The parts of a step are timed in the search itself: the instructions, from tokens to logits, and
the rest, which is Python. Then each kind of instruction is executed alone, and one task for each
instruction that does next to nothing: that is what their barriers cost. Each line has the weights
and keys that it reads, and the bandwidth. The floor is the bandwidth at which the same threads add
up memory, measured in between.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import wraps
from statistics import quantiles
from typing import Any, NamedTuple

import numpy as np
import torch

from trifold import fast
from trifold.cli.speed import read_rate
from trifold.fast import instruction as ins, thread_pool, token_step
from trifold.fast.block_weight import BLOCK
from trifold.generate.decoding import DecodingState, SearchSetup
from trifold.generate.processors import processor
from trifold.generate.sampling import greedy
from trifold.generate.stopping import StoppingCriteria
from trifold.generate.token_search import token_search
from trifold.generation_config import GenerationConfig
from trifold.hub.fill import fill_model
from trifold.nn import Inputs, ModelConfig, Transformer

WARMUP = 8  # steps
READ_SECONDS = 0.5
_LLAMA = {
    **{"shape": "decoder", "norm": "rms", "positions": "rotary", "gated": True},
    **{"activation": "silu", "attention_bias": False, "feed_forward_bias": False},
    **{"norm_placement": "pre", "dropout": 0.0, "scale_embeddings": False},
    **{"vocab_size": 49152, "max_positions": 8192},
}
SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {
        **{"shape": "decoder", "positions": "learned", "activation": "gelu-tanh"},
        **{"norm_placement": "pre", "attention_bias": True, "dropout": 0.0},
        **{"scale_embeddings": False, "vocab_size": 50257, "max_positions": 1024},
        **{"d_model": 768, "n_layers": 12, "n_heads": 12, "d_ff": 3072},
    },
    "smollm2": {
        **_LLAMA,
        **{"d_model": 576, "n_layers": 30, "n_heads": 9, "n_kv_heads": 3, "d_ff": 1536},
    },
    "1b": {
        **_LLAMA,
        **{"d_model": 2048, "n_layers": 16, "n_heads": 32, "n_kv_heads": 8, "d_ff": 8192},
    },
}
# The kinds of instructions of a step.
KINDS = {
    ins.EMBED: "embedding",
    ins.BLOCK_EMBED: "embedding",
    ins.NORM: "norm",
    ins.MATMUL: "matmul",
    ins.BLOCK_MATMUL: "matmul in blocks",
    ins.ATTENTION: "attention",
    ins.SCALE: "rounding",
}
SCALE_BYTES = 2  # of a block
STORED = {"bf16": None, "int8": "int8", "int4": "int4"}


class Line(NamedTuple):
    """A part of a step: milliseconds, and megabytes that it reads."""

    name: str
    milliseconds: float
    megabytes: float = 0.0


def new_model(name: str, weights: str) -> Transformer:
    """A random model that computes in bf16, in memory as a loaded one."""
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = Transformer(ModelConfig(**SHAPES[name])).eval()
    finally:
        torch.set_default_dtype(torch.float32)
    random = [(name, parameter.detach()) for name, parameter in model.named_parameters()]
    empty = Transformer(model.config, initialize=False).eval()
    fill_model(empty, random, torch.bfloat16, "cpu", stored=STORED[weights])
    return empty


class Clock:
    """Sums the time within functions, until it is reset."""

    def __init__(self) -> None:
        self.seconds = dict[str, float]()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed under that name."""

        @wraps(function, updated=())
        def call(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                elapsed = time.perf_counter() - start
                self.seconds[name] = self.seconds.get(name, 0.0) + elapsed

        return call


def megabytes_of(op: Any) -> float:
    """The weights, or the keys and values, that an instruction reads."""
    if op["opcode"] == ins.MATMUL:
        return float(op["inputs"] * op["outputs"] * ins.ITEM_BYTES[op["dtype"]] / 1e6)
    if op["opcode"] == ins.BLOCK_MATMUL:
        block = BLOCK * ins.BLOCK_BITS[op["dtype"]] / 8 + SCALE_BYTES
        return float(op["inputs"] * op["outputs"] / BLOCK * block / 1e6)
    if op["opcode"] == ins.ATTENTION:
        keys = op["rows"] * op["kv_heads"] * (op["length"] - op["first"]) * op["width"]
        return float(2 * keys * ins.ITEM_BYTES[op["dtype"]] / 1e6)
    return 0.0


def typical(seconds: list[float]) -> float:
    """The time that a fifth of the measurements does not exceed: other processes only delay."""
    return quantiles(seconds, n=5)[0]


def milliseconds(program: Any, times: int) -> float:
    """The time of executing instructions."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        thread_pool.execute(program)
        found.append(time.perf_counter() - start)
    return 1e3 * typical(found)


def nothing(count: int, x: torch.Tensor) -> Any:
    """Instructions of two tasks, each of which normalizes one row of x (2, 16)."""
    program = np.zeros(count, ins.INSTRUCTION)
    fields = {"opcode": ins.NORM, "waits": 1, "units": 2, "inputs": 16, "heads": 1, "epsilon": 1.0}
    thread_pool.set_fields(program, slice(None), **fields, x=x, out=x, weight=x[0])
    thread_pool.divide_into_tasks(program)
    return program


def search_lines(model: Transformer, rows: int, prompt: int, steps: int) -> list[Line]:
    """The parts of a step of greedy search."""
    clock = Clock()
    token_step.execute = clock.timed("instructions", thread_pool.execute)
    config = GenerationConfig(max_new_tokens=WARMUP + steps + 1)
    tokens = torch.randint(3, 40000, (rows, prompt))
    setup = SearchSetup(
        config,
        processor(config, model.config, None),
        StoppingCriteria([], (), None),
        has_scores=False,
    )
    clocks = []
    with torch.inference_mode():
        state = DecodingState(model, Inputs(tokens), config)
        found = token_search(state, setup, greedy)
        for _ in range(WARMUP):
            next(found)
        for _ in range(steps):
            clock.seconds.clear()
            start = time.perf_counter()
            next(found)
            clocks.append({"step": time.perf_counter() - start, **clock.seconds})
    token_step.execute = thread_pool.execute
    step = token_step._steps[state.cache]
    assert isinstance(step, token_step.TokenStep), "a program computes the steps"
    python = 1e3 * typical([each["step"] - each.get("instructions", 0) for each in clocks])
    seconds = {name: typical([each.get(name, 0) for each in clocks]) for name in clocks[-1]}
    return [
        *program_lines(step.program, 1e3 * seconds["step"], 1e3 * seconds["instructions"], steps),
        Line("Python", python),
    ]


def program_lines(program: Any, whole: float, instructions: float, steps: int) -> list[Line]:
    """The lines of a step of so many milliseconds, of which its instructions take so many."""
    read = sum(map(megabytes_of, program))
    lines = [Line("a step", whole, read), Line("instructions", instructions, read)]
    layers = program[:-1]  # the last one computes the logits
    for code, kind in KINDS.items():
        chosen = layers[layers["opcode"] == code]
        if len(chosen):
            title = f"— {len(chosen)} × {kind} alone"
            size = sum(map(megabytes_of, chosen))
            lines.append(Line(title, milliseconds(chosen, steps), size))
    x = torch.zeros(2, 16)
    alone = milliseconds(nothing(len(program), x), steps)
    lines.append(Line(f"— {len(program)} barriers alone", alone))
    head = program[-1:]
    lines.append(Line("— logits alone", milliseconds(head, steps), megabytes_of(head[0])))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=SHAPES)
    parser.add_argument("--weights", choices=STORED, default="bf16")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    fast.enable()
    model = new_model(args.model, args.weights)
    before = read_rate(args.threads, READ_SECONDS)
    lines = search_lines(model, args.rows, args.prompt, args.steps)
    after = read_rate(args.threads, READ_SECONDS)
    step = lines[0].milliseconds
    print(
        f"{args.model}, {args.weights}, {args.rows} rows, prompt of {args.prompt}, "
        f"{args.threads} threads: "
        f"{1e3 * args.rows / step:,.1f} tokens/s; memory {before:.1f} and {after:.1f} GB/s"
    )
    print("| part | ms a step | share | MB | GB/s |\n|---|---:|---:|---:|---:|")
    for line in lines:
        rate = f"{line.megabytes / line.milliseconds:.1f}" if line.megabytes else ""
        size = f"{line.megabytes:,.1f}" if line.megabytes else ""
        share = f"{line.milliseconds / step:.1%}"
        print(f"| {line.name} | {line.milliseconds:.3f} | {share} | {size} | {rate} |")


if __name__ == "__main__":
    main()
