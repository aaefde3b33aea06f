"""trifold in the benchmark setting: the trainer of `trifold train` on the prepared tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import torch
from measure import Clock, arguments, print_line, setting_of
from numpy.typing import NDArray
from prepare import BOS, EOS, PAD

from trifold import fast
from trifold.batches import BatchSettings, plan_epoch, split_batch
from trifold.nn import ModelConfig, Transformer
from trifold.nn.packing import Packing
from trifold.objectives.translate import (
    SourceTargetBatch,
    SourceTargetExamples,
    Translate,
    TranslateSettings,
)
from trifold.ragged import Ragged
from trifold.recipe import TrainSettings
from trifold.train.device import Machine, choose_workers, keep_freed_memory
from trifold.train.prefetch import prefetch
from trifold.train.trainer import Trainer


class Ids:
    """Replaces the tokenizer, because the text is already tokenized for all toolkits."""

    pad_id, bos_id, eos_id = PAD, BOS, EOS
    padding_id = PAD

    def required(self, role: str) -> int:
        """The id of a special token: "pad", "bos" or "eos"."""
        return {"pad": PAD, "bos": BOS, "eos": EOS}[role]


def positions(batch: list[SourceTargetBatch]) -> int:
    """Tokens of both sides, including the padding of packed rows."""
    packings = [side.packing for share in batch for side in (share.inputs, share.target)]
    return sum(packing.length for packing in packings if isinstance(packing, Packing))


def main() -> None:
    args = arguments(__doc__)
    setting = setting_of(args.data)
    fast.enable()
    keep_freed_memory()
    pairs = json.loads((args.data / "pairs.json").read_text(encoding="utf-8"))
    sources, targets = ([[*ids, EOS] for ids in pairs[side]] for side in ("source", "target"))
    examples = SourceTargetExamples(Ragged.of(sources), Ragged.of(targets))
    task = Translate(TranslateSettings(label_smoothing=setting.label_smoothing), Ids(), Ids())
    config = ModelConfig(
        vocab_size=setting.vocab_size,
        d_model=setting.d_model,
        n_layers=setting.n_layers,
        n_heads=setting.n_heads,
        d_ff=setting.d_ff,
        dropout=setting.dropout,
        attention_dropout=setting.attention_dropout,
        norm_placement="pre",
    )
    train = TrainSettings(learning_rate=setting.learning_rate, warmup=0, schedule="constant")
    dtype = torch.bfloat16 if args.precision == "bf16" else torch.float32
    cpu = torch.device("cpu")
    workers = choose_workers(None, cpu, setting.batch_tokens)
    trainer = Trainer(Transformer(config), task, train, Machine(cpu, dtype, workers))
    lengths = examples.lengths

    def batches() -> Iterator[tuple[NDArray[np.int64], list[SourceTargetBatch]]]:
        for epoch in range(1_000_000):
            for rows in plan_epoch(
                lengths, BatchSettings(tokens=setting.batch_tokens), seed=1, epoch=epoch
            ):
                yield (
                    rows,
                    [task.batch(examples, share) for share in split_batch(lengths, rows, workers)],
                )

    clock = Clock("trifold", args)
    for step, (rows, batch) in enumerate(prefetch(batches()), start=1):
        update = trainer.update(batch, step)
        if not clock.step(
            loss=update.loss,
            source_tokens=int(lengths[rows, 0].sum()),
            target_tokens=update.tokens,
            positions=positions(batch),
        ):
            print_line(clock.line())
            return


if __name__ == "__main__":
    main()
