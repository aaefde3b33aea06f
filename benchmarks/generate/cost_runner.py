"""Accuracy of bf16 and int8 against fp32: logits and perplexity.

The models are a random one, whose logits are close together, and one trained briefly on a
second-order Markov chain of words, on which it is then scored."""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path

import torch
from torch.nn import functional as F

import trifold
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.pipeline import Pipeline

LOADS = {
    "bf16": {"dtype": "bfloat16"},
    "int8, computed in fp32": {"weights": "int8"},
    "int8, computed in bf16": {"dtype": "bfloat16", "weights": "int8"},
}
SMALL = ModelConfig(
    **{"shape": "decoder", "vocab_size": 512, "max_positions": 128, "d_model": 256, "n_layers": 4},
    **{
        "n_heads": 4,
        "d_ff": 1024,
        "positions": "learned",
        "norm_placement": "pre",
        "activation": "gelu-tanh",
    },
    **{"scale_embeddings": False, "attention_bias": True, "dropout": 0.0},
)


def chain(generator: torch.Generator, rows: int, width: int) -> torch.Tensor:
    """(rows, width) words 3 … 511; the two words before a word determine its few candidates."""
    successors = torch.randint(3, 512, (1024, 4), generator=torch.Generator().manual_seed(7))
    tokens = torch.randint(3, 512, (rows, width), generator=generator)
    for t in range(2, width):
        state = (tokens[:, t - 1] * 31 + tokens[:, t - 2] * 17) % 1024
        # One of four candidates, half of the time the first: 1.75 bits per word.
        draw = torch.multinomial(
            torch.tensor([0.5, 0.25, 0.125, 0.125]), rows, True, generator=generator
        )
        tokens[:, t] = successors[state, draw]
    return tokens


def train_small(folder: Path, steps: int) -> torch.Tensor:
    """Train the small model briefly, save it, and return the text for scoring."""
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(1)
    model = Transformer(SMALL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        tokens = chain(generator, 32, 64)
        logits = model.lm_head(model(Inputs(tokens[:, :-1])))
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    Pipeline(model.eval()).save(folder)
    return chain(generator, 64, 64)


@torch.inference_mode()
def compared(folder: Path, tokens: torch.Tensor) -> list[dict[str, object]]:
    """For each precision: KL from fp32 (nats per token), largest logit change, perplexity, share of
    equal tokens.
    """

    def logits(**how: str) -> torch.Tensor:
        pipe = trifold.load(folder, **how)
        return torch.cat([pipe.logits(part) for part in tokens[:, :-1].split(8)]).float()

    exact = logits()
    wanted, before = tokens[:, 1:], exact.log_softmax(-1)

    def perplexity(logs: torch.Tensor) -> float:
        return float(logs.gather(-1, wanted[..., None]).mean().neg().exp())

    lines: list[dict[str, object]] = []
    for name, how in LOADS.items():
        found = logits(**how)
        logs = found.log_softmax(-1)
        lines.append(
            {
                "precision": name,
                "kl": float((before.exp() * (before - logs)).sum(-1).mean()),
                "largest": float((found - exact).abs().max()),
                "deviation": float(exact.std()),
                "same_best": float((found.argmax(-1) == exact.argmax(-1)).float().mean()),
                "perplexity": perplexity(logs),
                "perplexity_fp32": perplexity(before),
            }
        )
    return copy.deepcopy(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="folder written by prepare.py")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tokens = torch.randint(3, 50_000, (8, 64), generator=torch.Generator().manual_seed(1))
    random = compared(args.folder / "gpt2", tokens)
    small = args.folder / "trained"
    text = train_small(small, args.steps)
    print(json.dumps({"random GPT-2 124M": random, "a small trained model": compared(small, text)}))


if __name__ == "__main__":
    main()
