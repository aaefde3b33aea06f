"""An estimate of the time that a run takes, before its first step."""

from collections.abc import Iterable

import torch

from trifold.batches import Blocks
from trifold.costs import forward_flops
from trifold.train.data import TrainingData
from trifold.train.run_folder import RunPart
from trifold.train.work_time import WorkTime, time_work

# Share of the speed of large products that training reaches on a CPU, with its validations.
EFFICIENCY = 0.35
# Seconds of the small operations of a layer in an update, whatever its size is.
LAYER_SECONDS = 0.008
SMALL = 1e11  # floating-point operations for which the speed is not measured: seconds
ASSUMED = 5e10  # their number per second, of large products
SIZE = 384  # of the matrices that are timed
PRODUCTS = 10
GROUPS = 8


def describe_duration(
    data: TrainingData, steps: int, dtype: torch.dtype, part: RunPart | None = None
) -> str:
    """`about 7 minutes on the idle machine`, for this many steps on this CPU if no other program
    uses it. dtype: of the matrix products. part: of another run, whose time is described.
    """
    if part is not None:
        steps = round(steps * part.runs)
    total = steps * step_flops(data)
    products = list[WorkTime]()
    speed = ASSUMED
    if total >= SMALL:
        products = time_products(dtype)
        speed = _speed(products)
    small = steps * data.recipe.train.accumulate * _layers(data) * LAYER_SECONDS
    minutes = (total / (EFFICIENCY * speed) + small) / 60
    limit = data.recipe.train.minutes
    if limit is not None:
        minutes = min(minutes, limit)
    text = in_words(minutes)
    if products:
        text += " on the idle machine"
    if any(product.is_busy for product in products):
        text += ", which is busy now"
    if part is not None:
        text += " for the folds and the run on all rows"
    return text


def _layers(data: TrainingData) -> int:
    """The layers of the encoder and of the decoder."""
    config = data.config
    if config.shape != "encoder-decoder":
        return config.n_layers
    return config.n_layers + (config.n_decoder_layers or config.n_layers)


def in_words(minutes: float) -> str:
    """`about 20 seconds`, `about 7 minutes`, `about 35 minutes` or `about 3.5 hours`."""
    seconds = 60 * minutes
    if seconds < 10:
        return "a few seconds"
    if seconds < 50:
        return f"about {10 * round(seconds / 10)} seconds"
    if minutes < 1.5:
        return "about a minute"
    if minutes < 10:
        return f"about {minutes:.0f} minutes"
    if minutes < 90:
        return f"about {5 * round(minutes / 5)} minutes"
    return f"about {minutes / 60:.1f} hours"


def step_flops(data: TrainingData) -> float:
    """The floating-point operations of an update, without validations."""
    plan = data.plan(data.train, 0)
    if isinstance(data.train, Blocks):
        length = data.train.width
        tokens = data.train.tokens
        sides = [(length, tokens), (length, tokens)]
    else:
        lengths = data.train.lengths
        sides = [(int(side.mean()), int(side.sum())) for side in lengths.T]
    (source_length, source), (target_length, target) = sides[0], sides[-1]
    flops = forward_flops(data.config, source_length, target_length).training
    of_epoch = flops.source * source + flops.target * target
    return of_epoch / len(plan) * data.recipe.train.accumulate


def time_products(dtype: torch.dtype) -> list[WorkTime]:
    """The times of groups of products of matrices of this type, in one thread: several would wait
    for each other while other programs run.
    """
    a, b = (torch.ones(SIZE, SIZE, dtype=dtype) for _ in range(2))

    def multiply() -> None:
        for _ in range(PRODUCTS):
            a @ b

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [time_work(multiply, 1) for _ in range(GROUPS)]
    finally:
        torch.set_num_threads(threads)


def _speed(groups: Iterable[WorkTime]) -> float:
    """Floating-point operations per second of all threads, from the fastest of groups of
    products.
    """
    fastest = min(group.idle for group in groups)
    return PRODUCTS * 2 * SIZE**3 / fastest * torch.get_num_threads()
