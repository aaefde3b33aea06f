"""EOLE's own command line, `eole train -config FILE`, with a clock around its training step.

The step is EOLE's, called by EOLE's loop over EOLE's batches; the clock only reads the batches that
pass and ends the run when the window is full. What EOLE's log says of its speed is printed beside
our own count."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import eole.bin.main
import eole.trainer
import yaml
from measure import Clock, arguments, print_line, setting_of
from setting import Setting


class WindowFull(Exception):
    """Raised inside EOLE's loop to end it; nothing is saved."""


def configuration(args: Namespace, setting: Setting, folder: Path) -> dict[str, Any]:
    """EOLE's settings for the benchmark model, with the options that are fastest on a CPU."""
    meta = json.loads((args.data / "meta.json").read_text(encoding="utf-8"))
    return {
        "seed": 1,
        "data": {
            "corpus": {
                "path_src": f"{args.data}/train.source",
                "path_tgt": f"{args.data}/train.target",
            }
        },
        "src_vocab": f"{args.data}/vocab.txt",
        "share_vocab": True,
        "save_data": str(folder),
        "report_every": 5,
        "model": {
            "architecture": "transformer",
            "layers": setting.n_layers,
            "heads": setting.n_heads,
            "hidden_size": setting.d_model,
            "word_vec_size": setting.d_model,
            "transformer_ff": setting.d_ff,
            "share_embeddings": True,
            "share_decoder_embeddings": True,
            "generator_bias": False,
            "add_ffnbias": True,
            "add_qkvbias": False,
            "embeddings": {
                "position_encoding": True,
                "position_encoding_type": "SinusoidalInterleaved",
            },
        },
        "training": {
            "model_path": str(folder / "model"),
            "compute_dtype": args.precision,
            # Without it bf16 is bf16 throughout, EOLE's fastest; fp32 would only get another
            # optimizer.
            "use_amp": args.precision == "fp32",
            "batch_type": "tokens",
            "batch_size": setting.batch_tokens,
            "bucket_size": meta["pairs"],  # a whole epoch, sorted once before the clock starts
            "num_workers": 0,  # a loader beside it would take a core from the training
            "normalization": "tokens",
            "accum_count": [1],
            "train_steps": 1_000_000,
            "save_checkpoint_steps": 0,
            "optim": "adam",
            "learning_rate": setting.learning_rate,
            "adam_beta1": setting.betas[0],
            "adam_beta2": setting.betas[1],
            "adam_eps": setting.eps,
            "max_grad_norm": 0.0,
            "dropout": [setting.dropout],
            "attention_dropout": [setting.attention_dropout],
            "dropout_steps": [0],
            "label_smoothing": setting.label_smoothing,
            "param_init_method": "xavier_uniform",
            "param_init": 0.0,
            "log_attention_entropy": False,
        },
    }


def put_clock(clock: Clock) -> None:
    """Wrap EOLE's training step: count what each batch holds, and read its loss from EOLE's
    statistics.
    """
    train_step = eole.trainer.Trainer._train_step

    def timed_step(
        trainer: Any, batches: Any, normalization: Any, total: Any, report: Any, step: int = 0
    ) -> None:
        loss, tokens = total.loss, total.n_tokens
        train_step(trainer, batches, normalization, total, report, step=step)
        going_on = clock.step(
            loss=(total.loss - loss) / (total.n_tokens - tokens),
            source_tokens=sum(int(batch["srclen"].sum()) for batch in batches),
            target_tokens=total.n_tokens - tokens,
            positions=sum(batch["src"].numel() + batch["tgt"][:, 1:].numel() for batch in batches),
        )
        if not going_on:
            raise WindowFull

    eole.trainer.Trainer._train_step = timed_step


class LogSpeeds(logging.Handler):
    """Collects the target tokens/s of EOLE's progress lines, `… source/target tok/s; …`."""

    def __init__(self) -> None:
        super().__init__()
        self.speeds: list[float] = []

    def emit(self, record: logging.LogRecord) -> None:
        if found := re.search(r"([\d.]+)\s*/\s*([\d.]+) tok/s", record.getMessage()):
            self.speeds.append(float(found.group(2)))


def main() -> None:
    args = arguments(__doc__)
    clock, log = Clock("EOLE", args), LogSpeeds()
    put_clock(clock)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        config = folder / "eole.yaml"
        chosen = configuration(args, setting_of(args.data), folder)
        config.write_text(yaml.safe_dump(chosen), encoding="utf-8", newline="\n")
        sys.argv = ["eole", "train", "-config", str(config)]
        # EOLE replaces the handlers of its logger at start; a filter stays.
        logging.getLogger("eole").addFilter(lambda record: log.emit(record) or True)
        with contextlib.suppress(WindowFull):
            eole.bin.main.main()
    print(
        f"EOLE's log: {' '.join(f'{speed:.0f}' for speed in log.speeds)} target tok/s",
        file=sys.stderr,
    )
    print_line(clock.line())


if __name__ == "__main__":
    main()
