"""Time and memory of one layer by the length of the text, for each kind of attention.

    python benchmarks/long_attention.py --lengths 1024 4096 16384 --out long.png

Each measurement runs in a process of its own, all kinds one after the other, twice; the smaller
time counts. The model has one layer, with a feed-forward network of width 8. `step` is the CPU time
of forward and backward pass, `token` that of one generated token after a text of that length, and
MB the growth of the peak memory of a step. `dense` is the plain definition of softmax attention,
`softmax` the version that trifold uses. `projections` is a layer without attention: the four matrix
products that all kinds share. The cache of `lsh` stores inputs: a token costs as much as the
forward pass of the text. The spans of `adaptive span` are those of new weights, 42 of 512 tokens.
Kinds of encoders come last, after full attention in both directions."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from peak_memory import peak_mb

ENCODER = {"shape": "encoder"}
KINDS: dict[str, dict[str, Any]] = {
    "dense": {},
    "softmax": {},
    "window": {"sliding_window": 512},
    "recurrence": {"recurrence": {"size": 512, "reach": 512}},
    "compression": {
        "recurrence": {"size": 512, "reach": 512},
        "compression": {"rate": 4, "memory": 128},
    },
    "adaptive span": {"adaptive_span": {"size": 512}},
    "convolution": {"attention": "dynamic-convolution", "dynamic_convolution": {"kernels": [31]}},
    "additive": {"attention": "additive"},
    "lsh": {"attention": "lsh"},
    "spans": {"attention": "spans"},
    "elu": {"attention": "elu"},
    "favor": {"attention": "favor"},
    "projections": {},
    "both ways": ENCODER,
    "globals": ENCODER | {"sliding_window": 256, "global_tokens": "first"},
    "blocks": ENCODER | {"sparse_blocks": {"size": 64, "random": 3}},
    "low-rank": ENCODER | {"attention": "low-rank"},
    "fourier": ENCODER | {"attention": "fourier"},
}
# Tokens up to which the weights of all pairs, or their hidden states, fit into memory.
LARGEST = {"dense": 4096, "additive": 2048}


def measure(kind: str, length: int, width: int, threads: int) -> dict[str, float]:
    """One measurement, in this process."""
    import torch

    from trifold import fast
    from trifold.nn import Inputs, ModelConfig, Transformer

    torch.set_num_threads(threads)
    if kind != "dense":
        fast.enable()
    values = {
        "shape": "decoder",
        "max_positions": length + 64,
        "positions": "none",
        "heads": [],
        "dropout": 0.0,
    }
    values |= {"vocab_size": 10, "d_model": width, "n_layers": 1, "n_heads": width // 64, "d_ff": 8}
    torch.manual_seed(0)
    model = Transformer(ModelConfig.parse(values | KINDS[kind]))
    if kind == "projections":
        assert model.decoder is not None, "a decoder"
        model.decoder.blocks[0].self_attention.sublayer.weigh = lambda q, k, v, *_: q + k + v
    tokens = torch.randint(3, 10, (1, length))
    model(Inputs(tokens[:, :64])).square().sum().backward()  # loads compiled code
    before, start = peak_mb(), time.process_time()
    model(Inputs(tokens)).square().sum().backward()
    found = {"step": time.process_time() - start}
    found["MB"] = peak_mb() - before
    if model.decoder is None or kind == "projections":
        return found
    cache = model.eval().new_cache("sliding" if kind == "window" else "growing")
    with torch.no_grad():
        model.decode(Inputs(tokens), cache=cache)
        times = []
        for _ in range(3 if kind == "lsh" else 21):  # the first one compiles
            start = time.process_time()
            model.decode(Inputs(tokens[:, :1]), cache=cache)
            times.append(time.process_time() - start)
    found["token"] = median(times)
    return found


def draw(rows: list[dict[str, Any]], file: str) -> None:
    """Curves of time and memory by length."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    titles = {
        "step": "training step, CPU seconds",
        "MB": "peak memory of a step, MB",
        "token": "one token, CPU seconds",
    }
    for axis, (name, title) in zip(figure.subplots(1, 3), titles.items(), strict=True):
        for number, (kind, options) in enumerate(KINDS.items()):
            points = [
                (row["length"], row[name]) for row in rows if row["kind"] == kind and name in row
            ]
            is_encoder = options.get("shape") == "encoder"
            style = "--" if is_encoder else ("-", ":", "-.")[number // 7]
            if points:
                axis.loglog(
                    *zip(*points, strict=True),
                    marker="o",
                    label=kind,
                    color=f"C{number % 7}",
                    linestyle=style,
                )
        axis.set(title=title, xlabel="tokens")
        axis.grid(alpha=0.3)
    figure.legend(
        *figure.get_axes()[0].get_legend_handles_labels(), loc="outside right", fontsize=8
    )
    figure.savefig(file, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument(
        "--width", type=int, default=512, help="of the model; heads have 64 dimensions"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--results", type=Path, help="file of results, whose measurements are not repeated"
    )
    parser.add_argument("--out", help="file of a picture")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(
            json.dumps(
                measure(arguments.one[0], int(arguments.one[1]), arguments.width, arguments.threads)
            )
        )
        return
    rows: list[dict[str, Any]] = []
    if arguments.results and arguments.results.exists():
        rows = [json.loads(line) for line in arguments.results.read_text("utf-8").splitlines()]
    print(f"{'kind':14} {'tokens':>7} {'step s':>9} {'MB':>7} {'token ms':>9}")
    for length in arguments.lengths:
        for kind in arguments.kinds:
            done = any((row["kind"], row["length"]) == (kind, length) for row in rows)
            if done or length > LARGEST.get(kind, length):
                continue
            command = [
                sys.executable,
                __file__,
                "--one",
                kind,
                str(length),
                "--width",
                str(arguments.width),
            ]
            command += ["--threads", str(arguments.threads)]
            runs = [
                json.loads(
                    subprocess.run(command, check=True, capture_output=True, text=True).stdout
                )
                for _ in range(arguments.rounds)
            ]
            best = {name: min(run[name] for run in runs) for name in runs[0]}
            rows.append({"kind": kind, "length": length, **best})
            if arguments.results:
                with arguments.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
            token = f"{1000 * best['token']:9.2f}" if "token" in best else ""
            print(
                f"{kind:14} {length:7,} {best['step']:9.3f} {best['MB']:7.0f} {token}", flush=True
            )
    if arguments.out:
        draw(rows, arguments.out)


if __name__ == "__main__":
    main()
