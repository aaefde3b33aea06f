"""A language model from left to right (Shannon 1948; Bengio et al. 2003; Radford et al. 2018).

rows -> example    a document [<s> +] tokens [+ </s>], in pieces or windows of the model's width
example -> batch   all but the last token of each piece, one piece behind the other; all but its first are asked for
loss               - Σ log P(t_i | t_<i) over the tokens asked for
prediction         what continues the beginning of a document
scores             perplexity, bits per byte, accuracy, over the whole set

Pieces are packed: no padding, and none sees another. A piece begins at position 0 with the last token of the piece
before it, so that every token but a document's first is asked for exactly once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from trifold.data import TokenCache
from trifold.generate import GenerationConfig
from trifold.nn import Inputs, Transformer
from trifold.nn.losses import judge, linear_cross_entropy
from trifold.nn.packing import Packing
from trifold.objectives.measuring import every_batch, value_of
from trifold.objectives.streams import Stream
from trifold.objectives.task import Evaluation, Looking, Sample
from trifold.objectives.terms import Term
from trifold.predict.writing import write
from trifold.ragged import Ragged
from trifold.settings import Settings
from trifold.text import Tokenizer
from trifold.text.annotation import count_unknown
from trifold.text.decoding import BYTE_ALPHABET

Cut = Literal["pieces", "windows", "drop"]

PROMPT = 16  # tokens of a document that a sample goes on from, where the recipe names no prompts
WRITTEN = 128  # tokens of a sample, where the recipe does not say
_BYTE = re.compile("<0x[0-9A-F]{2}>")  # a piece that stands for a byte


class CausalSettings(Settings):
    """A language model that writes from left to right."""

    kind: Literal["causal"] = "causal"
    best_by: Literal["loss", "accuracy"] = Field(
        "loss", description="a score of the validation set, or loss, by which the best weights are chosen"
    )
    begin: bool = Field(
        True, description="<s> before each document, so that its first token is asked for too"
    )
    end: bool = Field(True, description="</s> behind each document, so that the model learns to end")
    prompts: tuple[str, ...] = Field(
        (),
        strict=False,
        description="texts that a validation continues; beginnings of validation documents unless given",
    )


class Corpus(NamedTuple):
    """Documents as tokens, each with what stands around it.

    bytes: of the UTF-8 text that the tokens asked for stand for.
    """

    tokens: Ragged
    bytes: int


@dataclass(frozen=True)
class Pieces:
    """Stretches of a corpus: piece n reads `sizes[n]` tokens from `starts[n]` on, and is asked for one token later."""

    ids: NDArray[np.int32]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N, 1) tokens read, and as many asked for."""
        return self.sizes[:, None]

    def chosen(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the chosen pieces begin among the ids, and how many tokens each reads."""
        return self.starts[rows], self.sizes[rows]


@dataclass(frozen=True)
class Batch:
    """Packed pieces: `wanted` (N,) is what follows each place of the long row, -1 where nothing is asked."""

    inputs: Inputs
    wanted: Tensor
    tokens: int

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return Batch(self.inputs.to(device), self.wanted.to(device, non_blocking=True), self.tokens)


class Causal:
    """The task. width: tokens that the model reads at once. cut: what becomes of longer documents."""

    row_name, read_name, token_name = "pieces", "tokens", "tokens"
    packs = True

    def __init__(
        self, settings: CausalSettings, tokenizer: Tokenizer, width: int, cut: Cut = "pieces"
    ) -> None:
        self.settings, self.tokenizer, self.width, self.cut = settings, tokenizer, width, cut

    # rows -> examples

    def read(self, texts: Sequence[str]) -> Corpus:
        """Documents as tokens, with <s> and </s> around each as the settings say."""
        before = [self.tokenizer.required("bos")] if self.settings.begin else []
        behind = [self.tokenizer.required("eos")] if self.settings.end else []
        encoded = self.tokenizer.encode(texts)
        # Some tokenizers lose capitals or repeated spaces, which nobody guesses then; some put spaces between.
        held = self.tokenizer.decode(encoded)
        size = sum(min(len(each.encode("utf-8")) for each in pair) for pair in zip(texts, held, strict=True))
        if not before:  # nothing says how likely the first token of a document is
            alone = self.tokenizer.decode([ids[:1] for ids in encoded])
            for text, ids, first in zip(texts, encoded, alone, strict=True):
                if ids:
                    size -= _bytes_of_first(text, str(self.tokenizer.library.id_to_token(ids[0])), first)
        return Corpus(Ragged.of([[*before, *ids, *behind] for ids in encoded]), size)

    def examples(self, rows: Corpus | TokenCache, draw: int | None = None) -> Pieces | Stream:
        """Pieces; with `draw`, and where windows are asked for, the cuts fall at other places with each draw."""
        if isinstance(rows, TokenCache):
            return Stream.of(rows, self.width, draw)
        return pieces(rows.tokens, self.width, self.cut, draw)

    # examples -> batch

    def batch(
        self, examples: Pieces | Stream, rows: NDArray[np.int64], width: int | None = None, *, draw: int = 0
    ) -> Batch:
        """Pack the chosen pieces, cut at `width` tokens where that is given. Nothing in it is random."""
        starts, sizes = examples.chosen(rows)
        sizes = sizes if width is None else np.minimum(sizes, width)
        packing = Packing.of(torch.from_numpy(sizes), spare=False)
        real = packing.real
        places = np.repeat(starts - np.cumsum(sizes) + sizes, sizes) + np.arange(real)
        read = np.full(packing.filled, self.tokenizer.pad_id or 0, dtype=np.int64)
        wanted = np.full(packing.filled, -1, dtype=np.int64)
        read[:real], wanted[:real] = examples.ids[places], examples.ids[places + 1]
        return Batch(Inputs(torch.from_numpy(read)[None], packing=packing), torch.from_numpy(wanted), real)

    def counts(self, batch: Batch) -> dict[str, int]:
        """What each term will be divided by, known before the forward pass."""
        return {"tokens": batch.tokens}

    # batch -> loss

    def loss(self, model: Transformer, batch: Batch) -> dict[str, Term]:
        """Cross-entropy over the tokens asked for, in nats."""
        hidden, head = model(batch.inputs)[0], model.lm_head
        assert head is not None
        sums = linear_cross_entropy(head.features(hidden), head.weight, head.bias, batch.wanted)
        return {"tokens": Term(sums.loss, batch.tokens, nll=sums.nll)}

    # scores

    @torch.no_grad()
    def measure(self, model: Transformer, rows: Corpus, looking: Looking) -> tuple[float, dict[str, float]]:
        """Loss in nats a token, and the scores, over all tokens of the rows, however long a row is."""
        head = model.lm_head
        assert head is not None
        nll, right, count = 0.0, 0, 0
        for batch in every_batch(self, model, pieces(rows.tokens, self.width), looking):
            hidden = model(batch.inputs)[0]
            found = judge(head.features(hidden), head.weight, head.bias, batch.wanted)
            nll, right, count = nll + float(found.nll), right + int(found.right), count + batch.tokens
        loss = nll / max(count, 1)
        scores = {"perplexity": math.exp(min(loss, 700.0))}
        if not count_unknown(self.tokenizer, rows.tokens.ids):  # else nobody guessed what those bytes were
            scores["bits_per_byte"] = nll / math.log(2) / max(rows.bytes, 1)
        return loss, scores | {"accuracy": 100 * right / max(count, 1)}

    def evaluate(self, model: Transformer, rows: Corpus, examples: Pieces, looking: Looking) -> Evaluation:
        """Measure, and continue some beginnings."""
        loss, scores = self.measure(model, rows, looking)
        return Evaluation(
            loss, scores, value_of(self.settings.best_by, loss, scores), self.samples(model, rows, looking)
        )

    # prediction

    def samples(self, model: Transformer, rows: Corpus, looking: Looking) -> list[Sample]:
        """Drawn continuations of the recipe's prompts, or of beginnings of the rows; functions of the seed."""
        prompts = self._prompts(rows, looking.samples)
        if not len(prompts):
            return []
        config = _sampling(looking.generation, looking.seed)
        found = write(
            model, prompts, config, codec=self.tokenizer, on_step=lambda _tokens, _open: looking.poll()
        )
        starts = [prompts.ids[a:b].tolist() for a, b in zip(prompts.starts, prompts.starts[1:], strict=False)]
        said = self.tokenizer.decode(starts)
        # Decoded together: between two pieces of a text there may be a space that neither has alone.
        whole = self.tokenizer.decode(
            [start + best[0].tokens for start, best in zip(starts, found, strict=True)]
        )
        return [Sample(text, None, full[len(text) :]) for text, full in zip(said, whole, strict=True)]

    def _prompts(self, rows: Corpus, count: int) -> Ragged:
        """What is continued: tokens of the recipe's prompts, or the beginnings of `count` documents or pieces."""
        begin = [self.tokenizer.required("bos")] if self.settings.begin else []
        if self.settings.prompts:
            encoded = self.tokenizer.encode(self.settings.prompts[:count])
            return Ragged.of([[*begin, *ids][: self.width] for ids in encoded if begin or ids])
        found = pieces(rows.tokens, self.width)
        starts, sizes = found.starts, found.sizes
        if len(rows.tokens) >= count:
            whole = np.isin(starts, rows.tokens.starts)
            starts, sizes = starts[whole], sizes[whole]
        count = min(count, len(starts))
        chosen = np.arange(count) * len(starts) // max(count, 1)
        most = max(1, min(PROMPT, self.width // 2))
        return Ragged.of(
            [rows.tokens.ids[starts[n] : starts[n] + min(sizes[n], most)].tolist() for n in chosen]
        )

    # disk

    def save(self, folder: Path) -> None:
        """Write the tokenizer; other programs that read it begin a text as this task does."""
        folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer.save(folder, prepend_bos=self.settings.begin)


def pieces(tokens: Ragged, width: int, cut: Cut = "pieces", draw: int | None = None) -> Pieces:
    """Documents in pieces of at most `width` tokens, so that every token but each document's first is asked for once.

    A longer document has its first piece of a length drawn from `draw` where the cut is "windows", and is left out
    where it is "drop".
    """
    asked = np.maximum(tokens.lengths - 1, 0)
    first = np.minimum(asked, width)
    if cut == "windows" and draw is not None:
        # Raw bits, which numpy promises to keep; of 64 of them the remainder is as good as even.
        drawn = np.random.Philox(key=[draw, 0]).random_raw(len(asked)) % np.uint64(width)
        first = np.where(asked > width, drawn.astype(np.int64) + 1, first)
    if cut == "drop":
        first = np.where(asked > width, 0, first)
        asked = first
    count = np.where(first > 0, 1, 0) - (first - asked) // width  # the rest, rounded up
    document = np.repeat(np.arange(len(asked)), count)
    number = np.arange(len(document)) - np.repeat(np.cumsum(count) - count, count)
    begins = np.where(number == 0, 0, first[document] + (number - 1) * width)
    ends = np.minimum(first[document] + number * width, asked[document])
    return Pieces(tokens.ids, tokens.starts[document] + begins, ends - begins)


def _bytes_of_first(text: str, piece: str, alone: str) -> int:
    """Of the UTF-8 of a text, how many bytes its first token stands for, a piece which alone is decoded to `alone`."""
    size = len(alone.encode("utf-8"))
    if "\ufffd" in alone:  # half a character
        if _BYTE.fullmatch(piece):
            size = 1
        elif BYTE_ALPHABET.keys() >= set(piece):
            size = len(piece)
    return size - (alone.startswith(" ") and not text.startswith(" "))  # a space that the tokenizer put there


def _sampling(config: GenerationConfig, seed: int) -> GenerationConfig:
    """What the recipe says of generation; where it says nothing of how, by chance: the likeliest text is a dull one."""
    said = config.model_dump(exclude_unset=True)
    searches = config.num_beams > 1 or config.penalty_alpha is not None or config.do_sample is False
    if not searches:
        said |= {"do_sample": True, "seed": seed if config.seed is None else config.seed}
    if config.max_new_tokens is None and config.max_length is None:
        said["max_new_tokens"] = WRITTEN
    return GenerationConfig.parse(said)
