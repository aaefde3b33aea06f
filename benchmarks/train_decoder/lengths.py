"""Training memory by length: one forward and backward pass for each length, each in its own
process.

    python benchmarks/train_decoder/lengths.py [--lengths 4096,8192,16384,32768] [--precision bf16]

Attention weights alone would be heads × length² numbers per layer: 17 GB in bf16 at 32,768 tokens
and 8 heads."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from measure import peak_mb, say


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--lengths", default="4096,8192,16384,32768", help="numbers of tokens")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        measure(args.one, args.precision)
        return 0
    print("| tokens | peak above import, MB | MB a thousand tokens |\n|---:|---:|---:|")
    for length in map(int, args.lengths.split(",")):
        command = [
            sys.executable,
            Path(__file__),
            "--one",
            str(length),
            "--precision",
            args.precision,
        ]
        done = subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE)
        peak = json.loads(done.stdout)["above_import_mb"]
        print(f"| {length:,} | {peak:,.0f} | {peak / length * 1000:.1f} |", flush=True)
    return 0


def measure(length: int, precision: str) -> None:
    """Train a GPT of 2 layers and 8 heads on one text of `length` tokens."""
    import torch

    from trifold import fast
    from trifold.nn import Inputs, ModelConfig, Transformer
    from trifold.nn.losses import linear_cross_entropy
    from trifold.nn.packing import Packing
    from trifold.recipe import load_recipe
    from trifold.train.device import keep_freed_memory

    fast.enable()
    keep_freed_memory()
    config = ModelConfig.parse(
        load_recipe("shakespeare-char").model.model_dump()
        | {"vocab_size": 64, "d_model": 256, "n_layers": 2, "n_heads": 8, "d_ff": 1024}
        | {"max_positions": length, "dropout": 0.0}
    )
    before = peak_mb()
    model = Transformer(config).to(torch.bfloat16 if precision == "bf16" else torch.float32).train()
    tokens = torch.randint(0, 64, (1, length))
    hidden = model(Inputs(tokens, packing=Packing.of(torch.tensor([length]), always_pad=False)))[0]
    linear_cross_entropy(hidden, model.lm_head.weight, None, tokens[0]).loss.backward()
    say(above_import_mb=round(peak_mb() - before, 1))


if __name__ == "__main__":
    sys.exit(main())
