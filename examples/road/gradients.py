"""How much a word far back can teach: gradients per step of recurrent networks and of attention.

    ∂h_T / ∂h_t = Π_(i=t+1..T) diag(f'(·)) U: a product of as many factors as there are steps. If
    most of them are below 1, what the loss at T says about the word at t vanishes (Hochreiter 1991;
    Bengio, Simard & Frasconi 1994). The gates of a GRU or an LSTM keep a path whose factors are
    near 1; attention has a path of one step to every word.

    python examples/road/gradients.py
    python examples/road/gradients.py runs/road/next-words/RNN runs/road/next-words/LSTM

The table has |∂ log P(next word) / ∂ x_t| by the distance of the word t, as a share of the sum over
all distances, for new networks or for runs of next_words.py; the program draws it.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path

import torch
from next_words import NETWORKS, WIDTH
from torch import Tensor
from words import RUNS, load_corpus, load_parts, print_table

import trifold
from trifold.look.plots import new_figure, save_figure
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.hooks import hooked

DISTANCES = (0, 1, 2, 4, 8, 16, 31)
LENGTH = 32


def new_model(name: str, size: int) -> Transformer:
    """A network of next_words.py with new weights."""
    settings, _ = NETWORKS[name]
    own = {"shape": "decoder", "d_model": WIDTH, "max_positions": 128, "vocab_size": size}
    return Transformer(ModelConfig.parse(own | settings)).eval()


def shares(model: Transformer, tokens: Tensor) -> Tensor:
    """tokens (B, T) -> (T,): the norm of the gradient of log P of the most probable next word with
    respect to each embedding, from the last one backwards, as shares.
    """
    kept: list[Tensor] = []

    def keep(name: str, x: Tensor) -> Tensor:
        kept.append(x.detach().requires_grad_())
        return kept[-1]

    with torch.enable_grad(), hooked(model, keep, "decoder_embeddings.output"):
        hidden = model.decode(Inputs(tokens))
        assert model.lm_head is not None
        best = model.lm_head(hidden[:, -1:]).float().log_softmax(-1).amax(-1)
        (gradient,) = torch.autograd.grad(best.sum(), kept)
    norms = gradient.norm(dim=-1).flip(1).double()
    return (norms / norms.sum(1, keepdim=True)).mean(0)


def texts(model_size: int, runs: Sequence[trifold.pipeline.Pipeline]) -> Tensor:
    """(64, T) tokens: of held-out sentences, one after the other, or random ones."""
    if not runs:
        return torch.randint(model_size, (64, LENGTH), generator=torch.Generator().manual_seed(1))
    ids = runs[0].read(load_corpus().sources["test"])
    flat = list(itertools.chain.from_iterable(ids))[: 64 * LENGTH]
    return torch.tensor(flat[: len(flat) // LENGTH * LENGTH]).view(-1, LENGTH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path, help="runs of next_words.py")
    parser.add_argument("--out", type=Path, default=RUNS, help="folder of the picture")
    options = parser.parse_args()
    load_parts()
    pipelines = [trifold.load(run) for run in options.runs]
    models = {str(run.name): each.model for run, each in zip(options.runs, pipelines, strict=True)}
    if not models:
        torch.manual_seed(1)
        models = {name: new_model(name, 1000) for name in ("RNN", "GRU", "LSTM", "Transformer")}
    tokens = texts(1000, pipelines)
    curves = {name: shares(model, tokens) for name, model in models.items()}
    print_table(
        [(name, *(f"{curve[n]:.1e}" for n in DISTANCES)) for name, curve in curves.items()],
        heads=("words before the last one", *DISTANCES),
    )
    figure = new_figure(6, 4)
    axis = figure.add_subplot()
    for name, curve in curves.items():
        axis.plot(curve, label=name)
    axis.set_yscale("log")
    axis.set_xlabel("words before the last one")
    axis.set_ylabel("share of the gradient")
    axis.legend()
    print(save_figure(figure, options.out / "gradients.png"))


if __name__ == "__main__":
    main()
