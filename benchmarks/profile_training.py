"""Where the time of training goes, by operator: updates of a recipe on one thread.

    TRIFOLD_DATA=… python benchmarks/profile_training.py multi30k-en-de bfloat16 [KEY=VALUE …]

An update is profiled by PyTorch on one worker; compiled loops are named by their function. The
floor of matmuls is their multiply-adds at the fastest matmul of this machine, measured before on
the same thread. The table has the share of the time of each operator without those it calls; the
rest of the time is Python's.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from machine import peak_rate
from torch.profiler import ProfilerActivity, profile, record_function

from trifold import fast
from trifold.fast import matmul
from trifold.recipe import load_recipe
from trifold.train.data import iterate_batches, load_data
from trifold.train.device import Machine, choose_precision, find_device, keep_freed_memory
from trifold.train.initial_weights import new_model
from trifold.train.monitor import View
from trifold.train.prefetch import prefetch
from trifold.train.trainer import Trainer

WARMUP = 5  # updates
LEAST = 0.008  # share of the time from which an operator has a line
WEIGHT_GRADIENT = "gradients weight_gradient"
OF_LOOPS = Counter[str]()  # operations of matmuls in compiled loops, while they are profiled
MATMULS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "mkldnn::_linear_pointwise")


def new_update(name: str, precision: str, changes: Sequence[str]) -> Callable[[], int]:
    """A function that trains a recipe for one update and returns the number of its tokens."""
    recipe = load_recipe(name, [f"train.precision={precision}", *changes])
    prepared = load_data(recipe, Path(tempfile.mkdtemp()), View())
    device = find_device("cpu")
    machine = Machine(device, choose_precision(precision, device), workers=1)
    trainer = Trainer(new_model(prepared), prepared.objective, recipe.train, machine)
    batches = prefetch(iterate_batches(prepared, 1))
    steps = iter(range(1, 10**9))
    return lambda: trainer.update(next(batches).micro_batches, next(steps)).tokens


def name_loops() -> None:
    """Let the profiler see the compiled loops."""
    for kind in ("loops", "attention", "gradients"):
        module = getattr(fast, f"compiled_{kind}")()
        for name, function in list(vars(module).items()):
            if type(getattr(function, "_cache", None)).__name__ == "FunctionCache":
                setattr(module, name, _named(f"{kind} {name}", function))


def _named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function, updated=())
    def named(*arguments: Any) -> Any:
        if name == WEIGHT_GRADIENT:
            g, x = arguments[:2]
            OF_LOOPS[name] += 2 * g.size * x.shape[1]
        with record_function(name):
            return function(*arguments)

    return named


def multiply_adds(name: str, shapes: Sequence[Sequence[int]]) -> int:
    """Those of one matmul, from the shapes of its inputs."""
    if name == "mkldnn::_linear_pointwise":
        return math.prod(shapes[0]) * shapes[1][0]
    first, second = shapes[1:3] if name in ("aten::addmm", "aten::baddbmm") else shapes[:2]
    return math.prod(first) * second[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("precision", choices=("float32", "bfloat16"))
    parser.add_argument("changes", nargs="*")
    parser.add_argument("--updates", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    fast.enable()
    keep_freed_memory()
    peak = peak_rate(getattr(torch, args.precision))
    update = new_update(args.recipe, args.precision, args.changes)
    for _ in range(WARMUP):
        update()
    start = time.perf_counter()
    tokens = sum(update() for _ in range(args.updates))
    seconds = time.perf_counter() - start
    name_loops()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        start = time.perf_counter()
        for _ in range(args.updates):
            update()
        profiled = time.perf_counter() - start
    times, calls = Counter[str](), Counter[str]()
    operations = OF_LOOPS.total()
    for event in profiler.key_averages(group_by_input_shape=True):
        times[event.key] += event.self_cpu_time_total / 1e6
        calls[event.key] += event.count
        if event.key in MATMULS:
            operations += 2 * event.count * multiply_adds(event.key, event.input_shapes)
    floor = operations / (peak * 1e9)
    print(
        f"{args.recipe}, {args.precision}, fp32 matmuls: {matmul.library()}; "
        f"{tokens / seconds:,.0f} tokens/s, {seconds / args.updates * 1e3:.0f} ms an update "
        f"({profiled / args.updates * 1e3:.0f} profiled); peak {peak:.0f} GFLOP/s, "
        f"matmuls {floor / profiled:.1%} of the time at least"
    )
    print("| operator | calls an update | ms an update | share |\n|---|---:|---:|---:|")
    for name, value in times.most_common():
        if value >= LEAST * profiled:
            print(
                f"| {name} | {calls[name] / args.updates:.0f} | "
                f"{value / args.updates * 1e3:.1f} | {value / profiled:.1%} |"
            )
    others = sum(value for value in times.values() if value < LEAST * profiled)
    print(f"| other operators | | {others / args.updates * 1e3:.1f} | {others / profiled:.1%} |")
    rest = profiled - sum(times.values())
    print(f"| Python | | {rest / args.updates * 1e3:.1f} | {rest / profiled:.1%} |")


if __name__ == "__main__":
    main()
