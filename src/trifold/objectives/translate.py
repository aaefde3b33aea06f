"""Translation, or any learning of one text from another, with teacher forcing.

rows -> example    source ids + </s>;  target ids + </s>
example -> batch   source;  <s> + target without its last token;  target
loss               - Σ log P(y_t | y_<t, X) over the real target tokens, label-smoothed
prediction         beam search
scores             BLEU and kin, on text
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, field_validator
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor

from trifold.data import Pairs
from trifold.errors import DataError
from trifold.generate import GenerationConfig, Hypothesis
from trifold.nn import Inputs, Transformer
from trifold.nn.losses import linear_cross_entropy
from trifold.nn.packing import Packing
from trifold.objectives.measuring import mean_loss, value_of
from trifold.objectives.task import Evaluation, Looking, Sample
from trifold.objectives.terms import Term
from trifold.objectives.tokenizers import TARGET_FILE
from trifold.predict.writing import write
from trifold.ragged import Ragged
from trifold.scores import SCORES, Score
from trifold.settings import Settings, nearest
from trifold.text import Tokenizer


class TranslateSettings(Settings):
    """What is asked of the model, and by which score its best weights are chosen."""

    kind: Literal["translate"] = "translate"
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    best_by: Literal["bleu", "chrf", "exact_match", "loss"] = Field(
        "bleu", description="a score of the validation set, or loss"
    )
    tokenize: str = Field(
        "13a", description="sacreBLEU's tokenizer; none where the text is tokenised already"
    )
    lowercase: bool = False

    @field_validator("tokenize")
    @classmethod
    def _is_a_tokenizer(cls, name: str) -> str:
        if name not in BLEU.TOKENIZERS:
            raise ValueError(f"sacreBLEU has no tokenizer {name!r}{nearest(name, list(BLEU.TOKENIZERS))}")
        return name


@dataclass(frozen=True)
class Examples:
    """Encoded rows; each side ends with </s>."""

    sources: Ragged
    targets: Ragged

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N, 2) tokens of source and target, </s> included."""
        return np.stack([self.sources.lengths, self.targets.lengths], axis=1)


@dataclass(frozen=True)
class Batch:
    """Packed rows: `wanted` (N,) is the target of each place of the decoder's long row, -1 where nothing is asked."""

    source: Inputs
    target: Inputs
    wanted: Tensor
    tokens: int

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        wanted = self.wanted.to(device, non_blocking=True)
        return Batch(self.source.to(device), self.target.to(device), wanted, self.tokens)


class Translate:
    """The task: it knows the tokenizers and the settings, and nothing of the loop."""

    row_name, read_name, token_name = "pairs", "target tokens", "target tokens"
    packs = True

    def __init__(
        self,
        settings: TranslateSettings,
        source: Tokenizer,
        target: Tokenizer,
        *,
        start_id: int | None = None,
    ) -> None:
        self.settings, self.source, self.target = settings, source, target
        self.start_id = target.required("bos") if start_id is None else start_id

    # rows -> examples

    def examples(self, pairs: Pairs, draw: int | None = None) -> Examples:
        """Encode; both sides get their </s>. With `draw`, merges drop out as the tokenizers say, keyed by it."""
        key = None if draw is None else draw & 0xFFFF_FFFF
        return Examples(_ended(self.source, pairs.sources, key), _ended(self.target, pairs.targets, key))

    # examples -> batch

    def batch(
        self, examples: Examples, rows: NDArray[np.int64], width: int | None = None, *, draw: int = 0
    ) -> Batch:
        """Pack the chosen rows, cut at `width` tokens where that is given. Nothing in it is random."""
        source, _ = _packed(examples.sources, rows, width, self.source.required("pad"))
        target, ends = _packed(examples.targets, rows, width, self.target.required("pad"))
        assert target.packing is not None
        real, ids = target.packing.real, target.tokens[0]
        wanted = torch.full_like(ids, -1)
        wanted[:real] = ids[:real]
        # Teacher forcing: each place reads the token before the one it is asked for; a row begins with the start token.
        shifted = ids.roll(1)
        shifted[0], shifted[ends[:-1]] = self.start_id, self.start_id
        return Batch(source, Inputs(shifted[None], packing=target.packing), wanted, real)

    def counts(self, batch: Batch) -> dict[str, int]:
        """What each term will be divided by, known before the forward pass."""
        return {"tokens": batch.tokens}

    # batch -> loss

    def loss(self, model: Transformer, batch: Batch) -> dict[str, Term]:
        """Label-smoothed cross-entropy over the real target tokens, in nats."""
        hidden = model(batch.source, batch.target)[0]
        assert model.lm_head is not None
        head = model.lm_head
        sums = linear_cross_entropy(
            head.features(hidden), head.weight, head.bias, batch.wanted, self.settings.label_smoothing
        )
        return {"tokens": Term(sums.loss, batch.tokens, nll=sums.nll)}

    # prediction

    def predict(
        self,
        model: Transformer,
        texts: Sequence[str],
        config: GenerationConfig,
        *,
        batch_tokens: int = 4096,
        first: int = 0,
        on_done: Callable[[int], None] | None = None,
        on_step: Callable[[int, int], None] | None = None,
        draft: Transformer | None = None,
    ) -> list[list[Hypothesis]]:
        """Hypotheses for each text, best first. Texts of like length go together; the order of the answer is theirs.

        Raises DataError for a text without a token.
        """
        sources = _ended(self.source, texts)
        if len(empty := np.flatnonzero(sources.lengths == 1)):
            raise DataError(
                f"text {empty[0] + 1} of {len(texts)} has no tokens: there is nothing to translate"
            )
        return write(
            model,
            sources,
            config,
            batch_tokens=batch_tokens,
            first=first,
            on_done=on_done,
            on_step=on_step,
            codec=self.target,
            draft=draft,
        )

    def translate(self, model: Transformer, texts: Sequence[str], config: GenerationConfig) -> list[str]:
        """The best hypothesis of each text, as text."""
        best = [hypotheses[0].tokens for hypotheses in self.predict(model, texts, config)]
        return self.target.decode(best)

    # scores

    def scores(self, hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Score]:
        """Every score of the room, by name."""
        settings = self.settings
        options = {"bleu": {"tokenize": settings.tokenize}}
        return {
            name: score(hypotheses, references, lowercase=settings.lowercase, **options.get(name, {}))
            for name, score in SCORES.items()
        }

    def evaluate(self, model: Transformer, rows: Pairs, examples: Examples, looking: Looking) -> Evaluation:
        """Loss, and the scores of greedy translations: a validation is about the weights, not the search."""
        loss = mean_loss(self, model, examples, looking)
        greedy = GenerationConfig(max_new_tokens=looking.generation.max_new_tokens)
        answers = self.predict(model, rows.sources, greedy, on_step=lambda _tokens, _open: looking.poll())
        outputs = self.target.decode([hypotheses[0].tokens for hypotheses in answers])
        scores = self.scores(outputs, rows.targets)
        values = {name: score.value for name, score in scores.items()}
        return Evaluation(
            loss,
            values,
            value_of(self.settings.best_by, loss, values),
            [Sample(*each) for each in zip(rows.sources, rows.targets, outputs, strict=True)],
            [str(score) for score in scores.values()],
        )

    # disk

    def save(self, folder: Path) -> None:
        """Write the tokenizers."""
        save_tokenizers(folder, self.source, self.target)


def save_tokenizers(folder: Path, source: Tokenizer, target: Tokenizer) -> None:
    """tokenizer.json, and target_tokenizer.json where the target has its own."""
    folder.mkdir(parents=True, exist_ok=True)
    if target is not source:
        target.save(folder, TARGET_FILE)
    source.save(folder, append_eos=True)


def _packed(texts: Ragged, rows: NDArray[np.int64], width: int | None, pad: int) -> tuple[Inputs, Tensor]:
    """The chosen rows as one long row, and where each of them ends in it."""
    lengths = texts.lengths[rows] if width is None else np.minimum(texts.lengths[rows], width)
    packing = Packing.of(torch.from_numpy(lengths))
    tokens = np.full(packing.filled, pad, dtype=np.int64)
    tokens[: packing.real] = texts.joined(rows, lengths)
    return Inputs(torch.from_numpy(tokens)[None], packing=packing), torch.from_numpy(np.cumsum(lengths))


def _ended(tokenizer: Tokenizer, texts: Sequence[str], draw: int | None = None) -> Ragged:
    encoded = tokenizer.encode(texts) if draw is None else tokenizer.sample(texts, draw)
    end = tokenizer.required("eos")
    return Ragged.of([[*ids, end] for ids in encoded])
