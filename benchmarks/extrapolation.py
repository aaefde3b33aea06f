"""Decoders trained on 128 tokens, tested on longer texts, for each kind of positions.

    python benchmarks/extrapolation.py --out runs/extrapolation --seeds 1 2 --figure
    docs/images/extrapolation.png

The text is the standard library of Python: every 20th module is held out. A model reads 128 tokens
in training. The test text is the first 4,096 tokens of held-out modules, cut into windows of each
length, so that the same tokens are predicted at each length and only their context grows. Finished
measurements in --out are reused.

`learned` has a table of 4,096 positions, of which training reaches 128 rows; the others keep their
initial values. Variants of a trained model differ at test time only: scalings of rotary positions,
and a window of 128 keys."""

from __future__ import annotations

import argparse
import json
import math
import sys
import sysconfig
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

TRAINED, LONGEST = 128, 4096
LENGTHS = [TRAINED << n for n in range(6)]
EDGES = [0, 32, 64, *LENGTHS]  # of groups of positions
RECIPE: dict[str, Any] = {
    "task": {"kind": "causal", "begin": False, "end": False},
    "tokenizer": {"kind": "byte-bpe", "vocab_size": 512},
    "batch": {"tokens": 4097, "max_length": TRAINED},
    "train.schedule": "linear",
    "train.optimizer": "muon",
    "train.muon_polynomial": "polar-express",
    "train.muon_iterations": 3,
    "train.learning_rate": 0.01,
    "train.beta2": 0.99,
    "train.weight_decay": 0.1,
    "train.clip": 1.0,
    "train.keep_last": 1,
    "train.samples": 0,
}
MODEL: dict[str, Any] = {
    "preset": "gpt2",
    "d_model": 64,
    "n_layers": 3,
    "n_heads": 4,
    "d_ff": 256,
    "max_positions": LONGEST,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
KINDS: dict[str, dict[str, Any]] = {
    "sinusoidal": {"positions": "sinusoidal", "scale_embeddings": True},
    "learned": {"positions": "learned"},
    "rotary": {"positions": "rotary"},
    "alibi": {"positions": "alibi"},
    "relative": {"positions": "relative"},
    "relative 32": {"positions": "relative", "relative_distance": 32},
    "none": {"positions": "none"},
}
"""Changes of the model. `relative` are the buckets of T5, of which the last one begins at a
distance of 113; that of `relative 32` begins at 31. """


def scaled(kind: str, length: int, factor: float | None = None) -> dict[str, Any]:
    factor = max(1.0, length / TRAINED) if factor is None else factor
    return {"rotary_scaling": {"kind": kind, "factor": factor, "original_positions": TRAINED}}


def variants(kind: str, length: int) -> dict[str, dict[str, Any]]:
    """Name -> changes of the trained model for windows of this length."""
    found: dict[str, dict[str, Any]] = {kind: {}}
    if kind == "rotary":
        found |= {f"rotary, {name}": scaled(name, length) for name in ("linear", "yarn")}
        found["rotary, dynamic"] = scaled("dynamic", length, 1.0)
    if kind in ("rotary", "relative", "none"):
        found[f"{kind}, window"] = {"sliding_window": TRAINED}
    return found


def write_text(folder: Path) -> None:
    """The modules of the standard library: every 20th in test.jsonl, a few of these in
    valid.jsonl.
    """
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    from stdlib_text import read_sources

    folder.mkdir(parents=True, exist_ok=True)
    sources = [text for text in read_sources(Path(sysconfig.get_path("stdlib"))) if text.strip()]
    held_out = sources[::20]
    splits = {
        "train": [text for n, text in enumerate(sources) if n % 20],
        "test": held_out,
        "valid": held_out[:3],
    }
    for name, texts in splits.items():
        lines = (json.dumps({"text": text}) + "\n" for text in texts)
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8", newline="\n")


def train(folder: Path, kind: str, seed: int, steps: int) -> Path:
    """Train a model, or continue; the folder of its run. All runs share the tokenizer of the first
    one.
    """
    import trifold

    run, first = folder / f"{kind}-{seed}".replace(" ", "-"), folder / "tokenizer"
    changes = {
        **RECIPE,
        "name": kind,
        "model": MODEL | KINDS[kind],
        "data": {
            "train": str(folder / "train.jsonl"),
            "valid": str(folder / "valid.jsonl"),
            "cut": "windows",
        },
        "train.seed": seed,
        "train.steps": steps,
        "train.warmup": max(1, steps // 16),
        "train.validate_every": steps,
        "train.save_every": steps,
    }
    if first.is_dir():
        changes["tokenizer"] = {"file": str(first)}
    outcome = trifold.train("shakespeare-char-tiny", out=run, resume="auto", **changes)
    if not outcome.finished:
        raise SystemExit(outcome.exit_code)
    if not first.is_dir():
        first.mkdir()
        for file in (run / "model").glob("tokenizer*"):
            (first / file.name).write_bytes(file.read_bytes())
    return run


def measure(folder: Path, kind: str, seed: int, steps: int, segments: int) -> dict[str, Any]:
    """Bits per byte by variant and length, and by variant and position in windows of 4,096
    tokens.
    """
    import torch

    import trifold
    from trifold.nn import ModelConfig, Transformer

    start = time.process_time()
    pipe = trifold.load(train(folder, kind, seed, steps))
    seconds = time.process_time() - start
    rows = [
        json.loads(line)["text"] for line in (folder / "test.jsonl").read_text("utf-8").splitlines()
    ]
    encoded = [ids[: LONGEST + 1] for ids in pipe.reader.encode(rows) if len(ids) > LONGEST][
        :segments
    ]
    tokens = torch.tensor(encoded)
    count = sum(len(text.encode()) for text in pipe.reader.decode(tokens[:, 1:].tolist()))
    bits = tokens[:, 1:].numel() / count / math.log(2)  # of a nat per token, in a byte
    by_length: dict[str, list[float]] = {}
    by_position: dict[str, list[float]] = {}
    values = pipe.config.model_dump()
    for length in LENGTHS:
        for name, changes in variants(kind, length).items():
            if length == TRAINED and name != kind:  # all variants are equal
                by_length[name] = [*by_length[kind]]
                continue
            model = Transformer(ModelConfig.parse(values | changes)).eval()
            model.load_state_dict(pipe.model.state_dict())
            losses = bits * token_losses(model, tokens, length)
            by_length.setdefault(name, []).append(losses.mean().item())
            if length == LONGEST:
                means = losses.mean(0)
                by_position[name] = [means[a:b].mean().item() for a, b in pairwise(EDGES)]
    measured = {"kind": kind, "seed": seed, "steps": steps, "segments": len(tokens), "bytes": count}
    return measured | {"seconds": seconds, "by_length": by_length, "by_position": by_position}


def token_losses(model: Any, tokens: Any, length: int) -> Any:
    """tokens (N, 4097) -> loss of each predicted token (N, 4096) in nats, read in windows of
    `length`.
    """
    import torch
    from torch.nn import functional as F

    from trifold.nn.inputs import Inputs

    found = []
    with torch.inference_mode():
        for row in tokens:
            inputs, labels = row[:-1].view(-1, length), row[1:].view(-1, length)
            logits = model.head_outputs(Inputs(inputs), heads=["lm"])["lm"]
            found.append(F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none"))
    return torch.stack(found)


def table(
    results: Iterable[dict[str, Any]], key: str, columns: list[str]
) -> dict[str, list[float]]:
    """Print the means over seeds, with the range of the seeds, and return the means."""
    found: dict[str, list[list[float]]] = {}
    for result in results:
        for name, values in result[key].items():
            found.setdefault(name, []).append(values)
    print(f"\n| positions | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")
    for name, runs in found.items():
        cells = (
            f"{mean(each):.3f} ± {(max(each) - min(each)) / 2:.3f}"
            for each in zip(*runs, strict=True)
        )
        print(f"| {name} | {' | '.join(cells)} |")
    return {name: [mean(each) for each in zip(*runs, strict=True)] for name, runs in found.items()}


def draw(by_length: dict[str, list[float]], by_position: dict[str, list[float]], file: str) -> None:
    """Curves by the length of the windows, and by the position in windows of 4,096 tokens, as
    differences from rotary positions with a window of 128 keys."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    reference = by_position["rotary, window"]
    for color, (name, values) in zip(colormaps["tab20"].colors, by_length.items(), strict=False):
        line = ":" if name.endswith("window") else "--" if " " in name else "-"
        style = {"color": color, "linestyle": line, "marker": "o", "markersize": 3, "label": name}
        left.plot(LENGTHS, values, **style)
        differences = [
            value - other for value, other in zip(by_position[name], reference, strict=True)
        ]
        right.plot([(a + b) / 2 for a, b in pairwise(EDGES)], differences, **style)
    for axis in (left, right):
        axis.axvline(TRAINED, color="gray", linewidth=0.8)
        axis.set_xscale("log", base=2)
        axis.grid(alpha=0.3)
    left.set(title="mean loss", xlabel="tokens of a window", ylabel="bits per byte")
    right.set(title="windows of 4,096: difference from rotary, window", xlabel="position")
    figure.legend(*left.get_legend_handles_labels(), loc="outside right", fontsize=8)
    figure.savefig(file, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/extrapolation"))
    parser.add_argument("--kinds", nargs="+", default=[*KINDS], choices=KINDS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, default=400, help="of 4,096 tokens")
    parser.add_argument("--segments", type=int, default=8, help="modules of the test text")
    parser.add_argument("--figure", help="file of a picture")
    options = parser.parse_args()
    if not (options.out / "test.jsonl").is_file():
        write_text(options.out)
    file = options.out / "results.jsonl"
    results = (
        [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        if file.is_file()
        else []
    )
    done = {(result["kind"], result["seed"]) for result in results}
    for seed in options.seeds:
        for kind in options.kinds:
            if (kind, seed) not in done:
                results.append(measure(options.out, kind, seed, options.steps, options.segments))
                with file.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(results[-1]) + "\n")
    results.sort(key=lambda result: [*KINDS].index(result["kind"]))
    by_length = table(results, "by_length", [f"{length:,}" for length in LENGTHS])
    columns = [f"{a:,}–{b - 1:,}" for a, b in pairwise(EDGES)]
    by_position = table(results, "by_position", columns)
    if options.figure:
        draw(by_length, by_position, options.figure)


if __name__ == "__main__":
    main()
