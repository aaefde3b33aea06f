"""`trifold show MODEL --time`: the time for one text beside arithmetic, memory traffic and the peak
of the machine.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from trifold.cli.terminal import print_json, print_note, print_table, short_number
from trifold.errors import plural, wrapped

if TYPE_CHECKING:
    from trifold.nn import ModelConfig
    from trifold.pipeline import Pipeline

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def show_time(
    name: str, config: ModelConfig, length: int, precision: str, *, has_weights: bool, as_json: bool
) -> None:
    """Measure and print the times. has_weights: whether the name is that of a folder; else the
    weights are random. Raises UsageError for a text that is too long.
    """
    import torch

    from trifold.cli.latency import check_length, measure_latency, measure_peak, report
    from trifold.cli.speed import LEAST_SHARE

    length = check_length(config, length)
    pipeline = _load(name, config, precision, has_weights=has_weights)
    used, begin = time.process_time(), time.perf_counter()
    timings = measure_latency(pipeline, length)
    peak = measure_peak(pipeline.device, getattr(torch, precision))
    share = (time.process_time() - used) / (time.perf_counter() - begin)
    facts: dict[str, Any] = {
        "name": name,
        "device": pipeline.device.type,
        "threads": torch.get_num_threads(),
        "precision": precision,
        "random_weights": not has_weights,
        "parameters": pipeline.model.count_parameters(),
        "length": length,
        "peak": peak._asdict(),
        "times": report(timings, peak),
    }
    if as_json:
        print_json(facts)
    else:
        _print_times(facts)
    if pipeline.device.type == "cpu" and share < LEAST_SHARE:
        print_note(
            f"warning: this process got {share:.0%} of the time of a core: end other programs and "
            "repeat it, because the times are too long"
        )


def _load(name: str, config: ModelConfig, precision: str, *, has_weights: bool) -> Pipeline:
    """The model, or one with random weights; raises NotEnoughMemoryError if it does not fit."""
    import torch

    from trifold import fast
    from trifold.cli.batch import load_pipeline
    from trifold.costs import inference_memory
    from trifold.memory import find_device, require_memory
    from trifold.nn import Transformer
    from trifold.pipeline import Pipeline

    if has_weights:
        return load_pipeline(name, reads_text=False, dtype=precision)
    fast.enable()
    device = find_device()
    need = inference_memory(config).weights  # they are drawn in float32
    require_memory(need, device, f"the weights of {name}", "name a smaller model")
    model = Transformer(config).to(device, getattr(torch, precision))
    return Pipeline(model.eval())


def _print_times(facts: dict[str, Any]) -> None:
    machine = f"{facts['device']}, {plural(facts['threads'], 'thread')}, {facts['precision']}"
    if facts["random_weights"]:
        machine += ", random weights"
    print(f"{facts['name']}: {facts['parameters']:,} parameters; one text at a time\n{machine}\n")
    rows = [
        (
            each["step"],
            _duration(each["seconds"]),
            _duration(each["fastest"], each["slowest"]),
            short_number(each["flops"]),
            _share(each["peak_share"]),
            short_number(each["bytes"]),
            _share(each["bandwidth_share"]),
        )
        for each in facts["times"]
    ]
    heading = ("tokens", "median", "range", "FLOPs", "of peak", "bytes", "of peak")
    print_table([heading, *rows], " rrrrrr")
    peak = facts["peak"]
    memory = ""
    if peak["bytes"] is not None:
        memory = f", reading {short_number(peak['bytes'])}B/s"
    matmul = f"matmul {short_number(peak['flops'])}FLOP/s"
    print(
        "\n"
        + wrapped(
            f"peak of this machine, measured: {matmul}{memory}; a model that fits into the caches "
            "of the processor may read faster"
        )
    )


def _duration(*seconds: float) -> str:
    """A time, or the first and the last of a range, in the unit of the last."""
    size, unit = next((each for each in UNITS if seconds[-1] >= each[0]), UNITS[-1])
    return f"{'–'.join(f'{each / size:.3g}' for each in seconds)} {unit}"


def _share(share: float | None) -> str:
    """A share in percent."""
    return "–" if share is None else f"{100 * share:.2g} %"
