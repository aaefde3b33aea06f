"""trifold with the recipe `shakespeare-char`, including its windows, learning rate, warm-up,
clipping and decay.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch
from measure import arguments, run_timed
from torch import Tensor
from wide import WIDE, random_windows

from trifold import fast
from trifold.fast.int8_training import int8_training_obstacle
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.packing import Packing
from trifold.objectives.batch import Batch
from trifold.objectives.causal import Causal, CausalSettings
from trifold.recipe import TrainSettings, load_recipe
from trifold.train.data import iterate_batches, load_data
from trifold.train.device import (
    Machine,
    choose_precision,
    choose_workers,
    find_device,
    keep_freed_memory,
)
from trifold.train.initial_weights import new_model
from trifold.train.monitor import View
from trifold.train.prefetch import prefetch
from trifold.train.trainer import Trainer

Precision: TypeAlias = Literal["float32", "bfloat16", "int8"]
PRECISIONS: dict[str, Precision] = {"fp32": "float32", "bf16": "bfloat16", "int8": "int8"}


def main() -> None:
    args = arguments(__doc__, list(PRECISIONS), optimizers=("muon", "adamw"))
    fast.enable()
    keep_freed_memory()
    device = find_device("cpu")
    precision = PRECISIONS[args.precision]
    optimizer = "adamw" if args.wide else args.optimizer or "muon"
    if args.precision == "int8" and (why := int8_training_obstacle(device)):
        raise SystemExit(f"no products of bytes here, {why}")
    trainer, batches, _ = (
        wide(device, precision) if args.wide else as_the_recipe(device, precision, optimizer)
    )

    coming = prefetch(batches)
    number = 0

    def step() -> tuple[float, int]:
        nonlocal number
        number += 1
        update = trainer.update(next(coming), number)
        return update.loss, update.tokens

    run_timed("trifold" if optimizer == "muon" else f"trifold, {optimizer}", args, step)
    coming.close()


def as_the_recipe(
    device: torch.device, precision: Precision, optimizer: str
) -> tuple[Trainer, Iterator[list[Batch]], int]:
    changes: dict[str, object] = {"train.precision": precision}
    if optimizer != "muon":  # the recipe's
        changes |= {
            "train.optimizer": optimizer,
            "train.muon_iterations": 5,
            "train.muon_polynomial": "jordan",
        }
    recipe = load_recipe("shakespeare-char", changes)
    prepared = load_data(recipe, Path(tempfile.mkdtemp()), View())
    workers = choose_workers(None, device, recipe.batch.tokens)
    trainer = Trainer(
        new_model(prepared),
        prepared.objective,
        recipe.train,
        Machine(device, choose_precision(precision, device), workers, int8=precision == "int8"),
    )
    return trainer, (dealt.micro_batches for dealt in iterate_batches(prepared, workers)), workers


def wide(device: torch.device, precision: Precision) -> tuple[Trainer, Iterator[list[Batch]], int]:
    """The model of wide.py; its windows are packed, as the task packs them."""
    config = ModelConfig.parse(
        load_recipe("shakespeare-char").model.model_dump()
        | {
            "vocab_size": WIDE.vocab_size,
            "d_model": WIDE.d_model,
            "d_ff": 4 * WIDE.d_model,
            "n_layers": WIDE.n_layers,
            "n_heads": WIDE.n_heads,
            "max_positions": WIDE.context,
            "dropout": WIDE.dropout,
        }
    )
    settings = TrainSettings(
        learning_rate=WIDE.learning_rate,
        warmup=0,
        schedule="constant",
        weight_decay=WIDE.weight_decay,
        precision=precision,
    )
    task = Causal(CausalSettings(begin=False, end=False), _NoTokenizer(), WIDE.context)  # type: ignore[arg-type]
    workers = choose_workers(None, device, WIDE.rows * WIDE.context)
    trainer = Trainer(
        Transformer(config),
        task,
        settings,
        Machine(device, choose_precision(precision, device), workers, int8=precision == "int8"),
    )

    def packed(tokens: Tensor, wanted: Tensor) -> Batch:
        packing = Packing.of(torch.from_numpy(np.full(len(tokens), WIDE.context)), always_pad=False)
        return Batch(
            Inputs(tokens.reshape(1, -1), packing=packing), wanted.reshape(-1), wanted.numel()
        )

    batches = (
        [packed(*pair) for pair in zip(read.chunk(workers), wanted.chunk(workers), strict=True)]
        for read, wanted in random_windows()
    )
    return trainer, batches, workers


class _NoTokenizer:
    pad_id = 0


if __name__ == "__main__":
    main()
