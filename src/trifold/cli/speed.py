"""The speed test of `trifold doctor`: matmuls, memory, and training steps of the demo's model, each
beside what is expected.

Expected values come from three sources, each printed with its value: arithmetic (the instructions
of the processor at its clock), a rate that the same test has measured, or the reference machine of
docs/machines.md.
"""

import math
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from trifold.batches import split_batch
from trifold.costs import forward_flops
from trifold.errors import plural
from trifold.fast.matmul import linear
from trifold.nn import ModelConfig, Transformer
from trifold.objectives.translate import SourceTargetExamples, Translate, TranslateSettings
from trifold.ragged import Ragged
from trifold.recipe import TrainSettings, load_recipe
from trifold.train.device import Machine, choose_precision, choose_workers
from trifold.train.trainer import Trainer

# Rows, inner, columns: a product takes milliseconds, so that some calls are not interrupted.
MATMUL = (512, 512, 512)
READ_BYTES = 2**28  # of each thread: beyond any cache
SECONDS = 10.0
# The share of the cores' time that a test on an idle machine gets at least; the rest is waiting.
LEAST_SHARE = 0.6
ROWS, TOKENS = 64, 16  # of a batch, on each side: as many tokens as in batches of the demo

# Operations of a core in one cycle that every 64-bit processor of the last ten years reaches: two
# multiply-adds of 256 bits, or four of 128 bits.
PER_CYCLE = 32
# What the reference machine of docs/machines.md reaches: the time of a training step, in times that
# its matmuls take, and the memory bandwidth of a thread in GB/s.
STEP_TO_MATMULS = {torch.bfloat16: 3.2, torch.float32: 2.0}
READ_PER_THREAD = 15.0
# The share of an expected speed below which it is worth a warning.
LEAST = 0.4


class Speed(NamedTuple):
    """One measured speed. expected: None if nothing is known. basis: where it comes from."""

    name: str
    value: float
    unit: str
    expected: float | None
    basis: str

    @property
    def is_low(self) -> bool:
        """Whether it is far below the expected speed."""
        return self.expected is not None and self.value < LEAST * self.expected


def best_seconds(call: Callable[[], object], budget: float) -> float:
    """Shortest time of a call within `budget` seconds, after one call that is not counted."""
    call()
    best = math.inf
    end = time.perf_counter() + budget
    while (start := time.perf_counter()) < end or math.isinf(best):
        call()
        best = min(best, time.perf_counter() - start)
    return best


class SpeedTest(NamedTuple):
    """The speeds of a device. share: of the cores' time, what this process got; None on a GPU."""

    speeds: list[Speed]
    share: float | None

    @property
    def is_disturbed(self) -> bool:
        """Whether other processes used so much of the cores that the speeds say little."""
        return self.share is not None and self.share < LEAST_SHARE


def measure(device: torch.device, seconds: float = SECONDS) -> SpeedTest:
    """All speeds, in about `seconds` and the time of the first calls."""
    used, begin = time.process_time(), time.perf_counter()
    speeds = _speeds(device, seconds / 5)
    share = None
    if device.type == "cpu":
        cores = (time.perf_counter() - begin) * torch.get_num_threads()
        share = min(1.0, (time.process_time() - used) / cores)
    return SpeedTest(speeds, share)


def _speeds(device: torch.device, part: float) -> list[Speed]:
    """The speeds; `part`: seconds of one, and half of those of training."""
    dtype = choose_precision("auto", device)
    single = matmul_speed(torch.float32, device, part)
    speeds = [single]
    if dtype is torch.bfloat16:
        half = matmul_speed(dtype, device, part)
        basis = "at least as fast as float32, measured"
        speeds.append(half._replace(expected=single.value, basis=basis))
    if device.type == "cpu":
        speeds.append(read_speed(part))
    rate = next(speed.value for speed in speeds if speed.name == _matmul_name(dtype))
    return [*speeds, training_speed(device, dtype, rate, 2 * part)]


def _matmul_name(dtype: torch.dtype) -> str:
    return f"matmul, {str(dtype).removeprefix('torch.')}"


def matmul_rate(
    shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device, budget: float
) -> float:
    """GFLOP/s of the product of two matrices with all threads. shape: rows, inner, columns."""
    rows, inner, columns = shape
    x = torch.randn(rows, inner, dtype=dtype, device=device)
    weight = torch.randn(columns, inner, dtype=dtype, device=device)

    def multiply() -> None:
        linear(x, weight)
        wait(device)

    return 2e-9 * math.prod(shape) / best_seconds(multiply, budget)


def matmul_speed(dtype: torch.dtype, device: torch.device, budget: float) -> Speed:
    """The product of two matrices of one size, beside what the clock lets expect."""
    value = matmul_rate(MATMUL, dtype, device, budget)
    expected = None
    basis = "no value for this device"
    clock = clock_gigahertz()
    if device.type == "cpu" and clock is not None:
        threads = torch.get_num_threads()
        expected = PER_CYCLE * clock * threads
        basis = f"{PER_CYCLE} operations a cycle × {clock:.1f} GHz × {plural(threads, 'thread')}"
    elif device.type == "cpu":
        basis = "the clock of this processor is not known"
    return Speed(_matmul_name(dtype), value, "GFLOP/s", expected, basis)


def read_rate(threads: int, budget: float) -> float:
    """Memory bandwidth in GB/s of threads that each read their own array."""
    arrays = [torch.ones(READ_BYTES // 8, dtype=torch.int64) for _ in range(threads)]
    outer = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            seconds = best_seconds(lambda: list(pool.map(torch.sum, arrays)), budget)
    finally:
        torch.set_num_threads(outer)
    return threads * READ_BYTES / seconds / 1e9


def read_speed(budget: float) -> Speed:
    """Memory bandwidth of all threads, beside that of the reference machine."""
    threads = torch.get_num_threads()
    value = read_rate(threads, budget)
    # Servers share their bandwidth, so more than two threads may not get more.
    expected = READ_PER_THREAD * min(threads, 2)
    basis = "the reference machine, up to 2 threads"
    return Speed("memory, reading", value, "GB/s", expected, basis)


def training_speed(device: torch.device, dtype: torch.dtype, matmul: float, budget: float) -> Speed:
    """Steps of the model of the recipe `demo` on random tokens. matmul: GFLOP/s in this type."""
    config, update = _training(device, dtype)
    seconds = best_seconds(update, budget)
    flops = forward_flops(config, TOKENS, TOKENS).training
    floor = ROWS * TOKENS * (flops.source + flops.target) / (matmul * 1e9)
    expected = None
    basis = "no value for this device"
    if device.type == "cpu":
        times = STEP_TO_MATMULS[dtype]
        expected = 1 / (times * floor)
        basis = f"{times:g} times its matmuls at the speed above, as on the reference machine"
    return Speed("training the demo's model", 1 / seconds, "steps/s", expected, basis)


class _Ids:
    """Special tokens, in place of a tokenizer."""

    padding_id = 0

    def required(self, role: str) -> int:
        return {"pad": 0, "bos": 1, "eos": 2}[role]


def _training(device: torch.device, dtype: torch.dtype) -> tuple[ModelConfig, Callable[[], None]]:
    """The config, and a function that does one step."""
    recipe = load_recipe("demo")
    values = recipe.model.model_dump(exclude_unset=True) | {"vocab_size": 4000}
    config = ModelConfig(**values)
    train = TrainSettings(**recipe.train.model_dump(exclude_unset=True))
    workers = choose_workers(None, device, 2 * ROWS * TOKENS)
    objective = Translate(TranslateSettings(), _Ids(), _Ids())  # type: ignore[arg-type]
    numbers = np.random.default_rng(0).integers(3, 4000, (2, ROWS, TOKENS))
    examples = SourceTargetExamples(*(Ragged.of(side.tolist()) for side in numbers))
    trainer = Trainer(Transformer(config), objective, train, Machine(device, dtype, workers))
    rows = np.arange(ROWS)
    batches = [
        objective.batch(examples, share) for share in split_batch(examples.lengths, rows, workers)
    ]

    def update() -> None:
        trainer.update(batches, 1)
        wait(device)

    return config, update


def wait(device: torch.device) -> None:
    """Wait until the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def clock_gigahertz() -> float | None:
    """The clock of the processor, or None if the system does not tell."""
    for path, scale in (
        ("/sys/devices/system/cpu/cpu0/cpufreq/base_frequency", 1e6),
        ("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", 1e6),
    ):
        try:
            return float(Path(path).read_text("ascii")) / scale
        except (OSError, ValueError):
            continue
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return None
    found = [float(number) for number in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", text, re.MULTILINE)]
    return max(found) / 1e3 if found else None
