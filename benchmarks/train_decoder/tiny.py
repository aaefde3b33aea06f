"""nanoGPT's CPU command in a plain loop, and the recipe `shakespeare-char-tiny`, one after the
other.

    TRIFOLD_DATA=… python benchmarks/train_decoder/tiny.py

The command is that of nanoGPT's README for machines without a GPU (4 layers, 4 heads, width 128,
context 64, 12 windows per step, 2,000 steps, no biases, no dropout, cosine schedule, fp32, not
compiled), reimplemented here with its loss estimates on 20 batches every 250 steps and its
checkpoints. Both are separate processes, timed from start to end; the time of the plain one
excludes its final validation on the last tenth of the text, that of the recipe includes it."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import yaml
from measure import text
from setting import Setting
from torch import Tensor, nn
from torch.nn import functional as F
from torch_runner import GPT

TINY = Setting(
    vocab_size=65, d_model=128, n_layers=4, n_heads=4, context=64, rows=12, dropout=0.0, gelu="none"
)
STEPS, WARMUP, EVALUATE_EVERY, EVALUATED = 2000, 100, 250, 20


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=STEPS, help="of the plain loop")
    parser.add_argument(
        "--change", action="append", default=[], help="a setting of the recipe, KEY=VALUE"
    )
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.plain:
        train_plainly(args.steps)
        return
    print(
        "| what | seconds | characters read | validation, nats a character |\n|---|---:|---:|---:|"
    )
    start = time.perf_counter()
    plain = json.loads(
        ran([sys.executable, __file__, "--plain", "--steps", args.steps]).splitlines()[-1]
    )
    seconds = time.perf_counter() - start - plain["judging"]
    print(
        f"| nanoGPT's CPU command | {seconds:.0f} | {plain['read']:,} | {plain['nats']:.3f} |",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        start = time.perf_counter()
        ran(
            [
                sys.executable,
                "-m",
                "trifold",
                "train",
                "shakespeare-char-tiny",
                *args.change,
                "--out",
                out,
            ]
        )
        seconds = time.perf_counter() - start
        lines = [
            json.loads(line) for line in (out / "metrics.jsonl").read_text("utf-8").splitlines()
        ]
        recipe = yaml.safe_load((out / "recipe.yaml").read_text("utf-8"))
    nats = [line["valid/loss"] for line in lines if "valid/loss" in line][-1]
    read = recipe["train"]["steps"] * recipe["batch"]["rows"] * TINY.context
    print(f"| `trifold train shakespeare-char-tiny` | {seconds:.0f} | {read:,} | {nats:.3f} |")


def ran(command: list[object]) -> str:
    """Run a command and return its standard output; its progress goes to standard error."""
    source = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        [str(part) for part in command],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": source},
    )
    return done.stdout


def train_plainly(steps: int) -> None:
    torch.manual_seed(1337)
    letters = text()
    number = {letter: n for n, letter in enumerate(sorted(set(letters)))}
    ids = np.array([number[letter] for letter in letters], dtype=np.int64)
    train, valid = ids[: len(ids) * 9 // 10], ids[len(ids) * 9 // 10 :]
    model = as_nanogpt(GPT(TINY))
    groups = [
        {
            "params": [p for p in model.parameters() if p.dim() >= 2],
            "weight_decay": TINY.weight_decay,
        },
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=TINY.learning_rate, betas=TINY.betas)
    batches, best = drawn(train), math.inf
    for step in range(steps + 1):
        if step % EVALUATE_EVERY == 0:
            guess = [estimated(model, split) for split in (train, valid)]
            print(
                f"step {step}: loss {guess[0]:.3f} in training, {guess[1]:.3f} held out",
                file=sys.stderr,
            )
            if guess[1] < best and step > 0:
                best = guess[1]
                with tempfile.TemporaryFile() as file:
                    torch.save(
                        {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file
                    )
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps)
        loss = loss_of(model, *next(batches))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), TINY.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()  # it logs every step
    before = time.perf_counter()
    nats = judged(model, valid)
    judging = time.perf_counter() - before
    print(
        json.dumps(
            {"nats": nats, "judging": judging, "read": (steps + 1) * TINY.rows * TINY.context}
        )
    )


def as_nanogpt(model: GPT) -> GPT:
    """Without biases; weights before a residual sum are initialized smaller."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.LayerNorm):
            module.bias = None
    for block in model.blocks:
        for layer in (block.out, block.down):
            nn.init.normal_(layer.weight, std=0.02 / math.sqrt(2 * TINY.n_layers))
    return model


def rate(step: int, steps: int) -> float:
    """Warm-up, then a cosine decay to a tenth."""
    if step < WARMUP:
        return TINY.learning_rate * step / WARMUP
    done = (step - WARMUP) / max(1, steps - WARMUP)
    return TINY.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, done))))


def drawn(ids: np.ndarray) -> Iterator[tuple[Tensor, Tensor]]:
    """Random windows: characters and the next character of each, (rows, context)."""
    while True:
        places = torch.randint(len(ids) - TINY.context, (TINY.rows, 1)).numpy() + np.arange(
            TINY.context + 1
        )
        stretch = torch.from_numpy(ids[places])
        yield stretch[:, :-1], stretch[:, 1:]


def loss_of(model: nn.Module, read: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy(model(read).flatten(0, 1), wanted.flatten())


@torch.no_grad()
def estimated(model: nn.Module, ids: np.ndarray) -> float:
    """Loss on a few batches, as in nanoGPT."""
    batches = drawn(ids)
    return float(np.mean([loss_of(model, *next(batches)).item() for _ in range(EVALUATED)]))


@torch.no_grad()
def judged(model: nn.Module, ids: np.ndarray) -> float:
    """Loss on the whole text in consecutive windows."""
    model.eval()
    count = (len(ids) - 1) // TINY.context
    read = torch.from_numpy(ids[: count * TINY.context]).view(count, -1)
    wanted = torch.from_numpy(ids[1 : count * TINY.context + 1]).view(count, -1)
    parts = zip(read.split(256), wanted.split(256), strict=True)
    return sum(loss_of(model, *part).item() * len(part[0]) for part in parts) / count


if __name__ == "__main__":
    main()
