"""Vectors of words from their neighbours in text: CBOW and skip-gram with negative sampling.

    skip-gram   log σ(u_c · v_w) + Σ_n log σ(−u_n · v_w) for each word w and each word c near it,
                with a few words n drawn from P(n) ∝ count^¾
                                                      (Mikolov et al. 2013b, equation 4)
    CBOW        the same with the mean of the v of all words near a word in place of v_w
                                                                          (Mikolov et al. 2013a)

A word then is a row of v, and words with similar neighbours have similar rows. GloVe (Pennington et
al. 2014) fits the same products to the logarithms of counts of neighbours; FastText (Bojanowski et
al. 2017) adds the vectors of the letters' n-grams, so that an unknown word has a vector, too.

    python examples/road/word_vectors.py --epochs 3
    python examples/road/word_vectors.py my-novel.txt

The score is how often a word of a held-out sentence is found among 100 words, by the words near it:
the mean reciprocal rank of the word. Analogies (king − man + woman) need a hundred times more text
than the captions have.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from words import RUNS, Vocabulary, load_corpus, print_table

from trifold.look.plots import new_figure, save_figure

NEAR = 4  # words on each side
NEGATIVES = 10
SHOWN = ("man", "woman", "dog", "red", "running", "street", "two", "guitar")


class WordVectors(nn.Module):
    """v and u (V, E); is_cbow: whether the words near a word predict it, or it predicts each."""

    def __init__(self, size: int, width: int, *, is_cbow: bool) -> None:
        super().__init__()
        self.is_cbow = is_cbow
        self.v = nn.Parameter(torch.randn(size, width) / width**0.5)
        self.u = nn.Parameter(torch.zeros(size, width))

    def loss(self, words: Tensor, near: Tensor, negatives: Tensor) -> Tensor:
        """words (B,), near (B, 2·NEAR) with −1 outside of a sentence, negatives (B, N) -> mean."""
        real = (near >= 0).float()
        near = near.clamp_min(0)
        if self.is_cbow:
            inputs = self.context(near, real)  # (B, E)
            positive = (inputs * self.u[words]).sum(-1)
            weight = (real.sum(1) > 0).float()
        else:
            inputs = self.v[words]
            positive = torch.einsum("be,bne->bn", inputs, self.u[near])
            weight = real
        negative = torch.einsum("be,bne->bn", inputs, self.u[negatives])
        losses = -F.logsigmoid(positive)
        others = -F.logsigmoid(-negative).sum(-1)
        if not self.is_cbow:
            others = others[:, None]
        return ((losses + others) * weight).sum() / weight.sum()

    def context(self, near: Tensor, real: Tensor) -> Tensor:
        """The mean vector (B, E) of the words near a word."""
        sums = (self.v[near] * real[..., None]).sum(1)
        return sums / real.sum(1, keepdim=True).clamp_min(1)

    @torch.no_grad()
    def scores(self, near: Tensor, candidates: Tensor) -> Tensor:
        """near (B, 2·NEAR), candidates (B, C) -> how well each fits in between (B, C)."""
        context = self.context(near.clamp_min(0), (near >= 0).float())
        return torch.einsum("be,bce->bc", context, self.u[candidates])

    @torch.no_grad()
    def neighbours(self, word: int, count: int) -> list[int]:
        """The words whose v have the largest cosine with that of the word."""
        rows = F.normalize(self.v, dim=1)
        return (rows @ rows[word]).topk(count + 1).indices[1:].tolist()


def examples(sentences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Each word (N,) and the words near it (N, 2·NEAR)."""
    words: list[int] = []
    near: list[list[int]] = []
    for ids in sentences:
        padded = [-1] * NEAR + list(ids) + [-1] * NEAR
        for place, word in enumerate(ids, NEAR):
            words.append(word)
            near.append(padded[place - NEAR : place] + padded[place + 1 : place + 1 + NEAR])
    return torch.tensor(words), torch.tensor(near)


def fit(model: WordVectors, words: Tensor, near: Tensor, epochs: int, rows: int = 512) -> None:
    """Adam on all words in random order; negatives are drawn from P(n) ∝ count^¾."""
    generator = torch.Generator().manual_seed(1)
    weights = torch.bincount(words, minlength=len(model.v)).double() ** 0.75
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(epochs):
        for some in torch.randperm(len(words), generator=generator).split(rows):
            drawn = torch.multinomial(
                weights, NEGATIVES * len(some), replacement=True, generator=generator
            )
            loss = model.loss(words[some], near[some], drawn.view(len(some), NEGATIVES))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def reciprocal_rank(model: WordVectors, words: Tensor, near: Tensor, learned: Tensor) -> float:
    """Mean of 1 / rank of each word among itself and 99 drawn ones, by the words near it."""
    generator = torch.Generator().manual_seed(2)
    weights = torch.bincount(learned, minlength=len(model.v)).double()
    drawn = torch.multinomial(weights, 99 * len(words), replacement=True, generator=generator)
    candidates = torch.cat((words[:, None], drawn.view(-1, 99)), 1)
    scores = model.scores(near, candidates)
    # Half of the words with an equal score are before it; the same word, drawn again, is not.
    before = (scores > scores[:, :1]).double() + (scores == scores[:, :1]) / 2
    before *= candidates != words[:, None]
    return (1 / (1 + before.sum(1))).mean().item()


def plane(rows: Tensor) -> Tensor:
    """(N, E) -> (N, 2): the two directions of largest variance."""
    centered = rows - rows.mean(0)
    return centered @ torch.linalg.svd(centered, full_matrices=False).Vh[:2].T


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, help="a text, one sentence per line")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--width", type=int, default=100)
    parser.add_argument("--out", type=Path, default=RUNS, help="folder of the picture")
    options = parser.parse_args()
    if options.file:
        lines = [line for line in options.file.read_text(encoding="utf-8").splitlines() if line]
        cut = max(1, len(lines) // 10)
        learn, test = lines[:-cut], lines[-cut:]
    else:
        corpus = load_corpus()
        learn, test = corpus.sources["train"], corpus.sources["test"]
    vocabulary = Vocabulary(learn)
    words, near = examples(vocabulary.encode(learn))
    test_words, test_near = examples(vocabulary.encode(test))
    print(f"{len(words):,} words to learn, {vocabulary.size:,} of them different")
    table: list[tuple[str, str]] = []
    neighbours: dict[str, list[str]] = {}
    for name, is_cbow in (("before training", False), ("skip-gram", False), ("CBOW", True)):
        torch.manual_seed(1)
        model = WordVectors(vocabulary.size, options.width, is_cbow=is_cbow)
        if name != "before training":
            fit(model, words, near, options.epochs)
        score = reciprocal_rank(model, test_words, test_near, words)
        table.append((name, f"{score:.3f}"))
        for word in SHOWN:
            if (index := vocabulary.index(word)) is not None:
                found = [vocabulary.word(n) for n in model.neighbours(index, 3)]
                neighbours.setdefault(word, []).append(" ".join(found))
    print_table(table, heads=("vectors", "mean reciprocal rank"))
    print()
    print_table(
        [(word, *found[1:]) for word, found in neighbours.items()],
        heads=("word", "nearest by skip-gram", "nearest by CBOW"),
    )
    special = vocabulary.tokenizer.library.token_to_id("<unk>")
    common = [
        n for n, _ in Counter(words.tolist()).most_common(80) if n not in (special, vocabulary.end)
    ]
    points = plane(model.v.detach()[common])
    figure = new_figure(7, 7)
    axis = figure.add_subplot()
    axis.scatter(*points.T.tolist(), s=4)
    for n, point in zip(common, points.tolist(), strict=True):
        axis.annotate(vocabulary.word(n), point, fontsize=8)
    print(save_figure(figure, options.out / "vectors.png"))


if __name__ == "__main__":
    main()
