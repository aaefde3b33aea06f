"""The plain training loop of both peers: forward pass under autocast, full logits, clipping, fused
AdamW.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from measure import run_timed, windows
from setting import Setting
from torch import Tensor, nn
from torch.nn import functional as F
from wide import random_windows


def train_plainly(
    name: str,
    args: argparse.Namespace,
    setting: Setting,
    model: nn.Module,
    logits: Callable[[Tensor], Tensor],
) -> None:
    """Train `model`, whose `logits` are (rows, context, V), until the timed window ends; print the
    result.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(),
        setting.learning_rate,
        setting.betas,
        weight_decay=setting.weight_decay,
        fused=True,
    )
    batches = random_windows() if args.wide else windows(setting)

    def step() -> tuple[float, int]:
        read, wanted = next(batches)
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
            loss = F.cross_entropy(logits(read).flatten(0, 1), wanted.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), setting.clip)
        optimizer.step()
        return loss.item(), wanted.numel()

    run_timed(name, args, step)
