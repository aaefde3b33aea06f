"""Denoising with an encoder-decoder: the encoder reads a corrupted text, the decoder writes what is
missing.

rows -> example    chunks of documents
example -> batch   corrupted, differently in each epoch: source and target, each with </s>; then as
                   in translation
loss               - Σ log P(y_t | y_<t, X) over the target tokens
scores             perplexity; exact match of greedy outputs for the first validation texts

Two corruptions:

    denoise   BART: the target is the original text (Lewis et al. 2020, section 2.2). The authors'
              model uses infill 0.3 and permute 1
    spans     T5: sentinels replace spans, and the target lists the spans (Raffel et al. 2020,
              section 3.1.4). 15 % of the tokens, in spans of 3 on average
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from trifold.errors import SettingsError
from trifold.generation_config import GenerationConfig
from trifold.nn import ModelConfig, Transformer
from trifold.objectives.batch import LossTerm
from trifold.objectives.documents import (
    Cut,
    DocumentChunks,
    DocumentObjective,
    DocumentObjectiveSettings,
)
from trifold.objectives.evaluation import EvalRun, Evaluation, Sample
from trifold.objectives.objective import ObjectiveSettings
from trifold.objectives.translate import (
    SourceTargetBatch,
    SourceTargetExamples,
    Translate,
    with_end,
)
from trifold.predict.generate_texts import generate_rows
from trifold.scores import exact_match
from trifold.settings import Settings
from trifold.text import Tokenizer
from trifold.text.annotation import AnnotatedTexts, sentinel_ids, special_flags
from trifold.text.corruption import NoiseInput, apply_noises, corrupt_spans, max_spans
from trifold.text.spans import MAX_SPAN_RATE, Flags, Ids, Rng, example_rng

# Ids, and flags at the first tokens of sentences -> source and target.
Corruption = Callable[[Ids, Flags, Rng], tuple[Ids, Ids]]

# --- settings -------------------------------------------------------------------------------------


class DenoisingSettings(DocumentObjectiveSettings):
    """Settings of both corruptions."""

    shapes = ("encoder-decoder",)
    defaults = ObjectiveSettings.defaults
    append_eos = True

    label_smoothing: float = Field(0.0, ge=0, lt=1)
    written: int = Field(
        100, ge=0, description="validation texts generated greedily to measure exact_match"
    )
    best_by: Literal["loss", "exact_match"] = "loss"

    def corruption(self, tokenizer: Tokenizer, width: int) -> Corruption:
        """The corruption of texts of at most `width` tokens, with </s>."""
        raise NotImplementedError

    def create(self, tokenizer: Tokenizer, config: ModelConfig, width: int, cut: Cut) -> Denoise:
        return Denoise(self, tokenizer, width, cut, start_id=config.start_id)


class Noise(Settings):
    """Rates of BART's five noises; 0 disables one."""

    permute: float = Field(1.0, ge=0, le=1, description="share of the sentences that are permuted")
    rotate: float = Field(
        0.0, ge=0, le=1, description="probability that a text is rotated to a random token"
    )
    delete: float = Field(0.0, ge=0, lt=1, description="share of the tokens that are deleted")
    mask: float = Field(
        0.0, ge=0, lt=1, description="share of the tokens that become the mask token"
    )
    infill: float = Field(
        0.3,
        ge=0,
        le=MAX_SPAN_RATE,
        description="share of the tokens in spans that become one mask token each",
    )

    @model_validator(mode="after")
    def _check_rates(self) -> Self:
        if not any(self.model_dump().values()):
            raise ValueError(
                "all rates are 0, so texts would only be copied; set infill=0.3, for example"
            )
        return self


class DenoiseSettings(DenoisingSettings):
    """Settings of BART's denoising."""

    pipeline_tag = "text2text-generation"
    special = {"special": ["mask"]}  # noqa: RUF012
    command = 'generate {folder} "a text with a {mask}"'

    kind: Literal["denoise"] = "denoise"
    noise: Noise = Field(Noise(), description="how texts are corrupted")

    def corruption(self, tokenizer: Tokenizer, width: int) -> Corruption:
        """Raises SettingsError if masks are required and the tokenizer has none."""
        rates = self.noise.model_dump()
        mask = -1
        if rates["mask"] or rates["infill"]:
            mask = self.required_mask(tokenizer)
        special = special_flags(tokenizer)

        def corrupt(ids: Ids, sentences: Flags, rng: Rng) -> tuple[Ids, Ids]:
            text = NoiseInput(ids, ~special[ids], sentences, max_length=width - 1)
            return apply_noises(text, rng, rates, mask).inputs, ids

        return corrupt


class SpansSettings(DenoisingSettings):
    """Settings of T5's span corruption."""

    pipeline_tag = "text2text-generation"
    special = {"sentinels": 100}  # noqa: RUF012
    command = 'generate {folder} "a text with a <extra_id_0>"'

    kind: Literal["spans"] = "spans"
    rate: float = Field(0.15, gt=0, le=0.5, description="share of the tokens that are removed")
    mean_span: float = Field(3.0, ge=1, description="mean length of a span, in tokens")

    def corruption(self, tokenizer: Tokenizer, width: int) -> Corruption:
        """Raises SettingsError if the tokenizer has too few sentinels."""
        sentinels = sentinel_ids(tokenizer)
        special = special_flags(tokenizer)
        needed = max_spans(width, self.rate, self.mean_span)
        if len(sentinels) < needed:
            raise SettingsError(
                f"tokenizer.sentinels: texts of {width} tokens have up to {needed} spans, and "
                f"the tokenizer has {len(sentinels)} sentinels; set "
                f"tokenizer.sentinels={needed}, or lower model.max_positions"
            )

        def corrupt(ids: Ids, sentences: Flags, rng: Rng) -> tuple[Ids, Ids]:
            # An unknown word is special, but would split a span: it is removed like other tokens.
            free = ~special[ids] | (ids == tokenizer.unk_id)
            corrupted = corrupt_spans(ids, free, rng, sentinels, self.rate, self.mean_span)
            return corrupted.inputs, corrupted.targets

        return corrupt


# --- objective ------------------------------------------------------------------------------------


class Denoise(DocumentObjective):
    """Denoising. width: tokens that the model reads or writes at once. start_id: first token of the
    decoder.
    """

    token_name = "target tokens"
    save_options = {"append_eos": True, "parse_special": True}  # noqa: RUF012

    def __init__(
        self, settings: Any, tokenizer: Tokenizer, width: int, cut: Cut = "pieces", *, start_id: int
    ) -> None:
        self.corrupt = settings.corruption(tokenizer, width)
        if settings.best_by == "exact_match" and not settings.written:
            raise SettingsError(
                "task.best_by: exact_match requires generated texts; set task.written=100"
            )
        super().__init__(settings, tokenizer, width, cut)
        self._translate = Translate(settings, tokenizer, tokenizer, start_id=start_id)

    def describe(self, documents: AnnotatedTexts) -> Iterator[str]:
        """Lines about documents that are split or left out, or that permutation does not change."""
        yield from super().describe(documents)
        if isinstance(self.settings, DenoiseSettings) and self.settings.noise.permute:
            sentences = np.cumsum(np.append(0, documents.sentence_starts))
            if single := int((np.diff(sentences[documents.starts]) == 1).sum()):
                yield (
                    f"{single:,} of {len(documents):,} documents are a single sentence: "
                    "nothing to permute"
                )

    def corrupt_rows(
        self, examples: DocumentChunks, rows: Ids, width: int | None = None, *, draw: int = 0
    ) -> SourceTargetExamples:
        """Sources and targets of the given examples, each a function of (draw, number of the
        example).
        """
        pairs = []
        for row in rows.tolist():
            ids, _, sentences = examples[row]
            room = len(ids)
            if width is not None:
                room = width - 1  # and </s>
            pairs.append(self.corrupt(ids[:room], sentences[:room], example_rng(draw, row)))
        return SourceTargetExamples(
            *(with_end(self.tokenizer, side) for side in zip(*pairs, strict=True))
        )

    def batch(
        self, examples: DocumentChunks, rows: Ids, width: int | None = None, *, draw: int = 0
    ) -> SourceTargetBatch:
        pairs = self.corrupt_rows(examples, rows, width, draw=draw)
        return self._translate.batch(pairs, np.arange(len(rows)))

    def loss(self, model: Transformer, batch: SourceTargetBatch) -> dict[str, LossTerm]:
        return self._translate.loss(model, batch)

    def compute_scores(self, run: EvalRun) -> Evaluation:
        """Perplexity and exact match. Every validation corrupts the texts in the same way."""
        scores = {"perplexity": run.perplexity}
        count = min(self.settings.written, len(run.examples))
        if not count:
            return Evaluation(scores)
        pairs = self.corrupt_rows(run.examples, np.arange(count))
        greedy = GenerationConfig(max_new_tokens=int(pairs.targets.lengths.max()) + 8)
        outputs = generate_rows(
            run.model, pairs.sources, greedy, codec=self.tokenizer, poll=run.context.poll
        )
        sources = self._decode(pairs.sources.tolist())
        targets = self._decode(pairs.targets.tolist())
        ours = self._decode([best[0].tokens for best in outputs])
        score = exact_match(ours, targets)
        samples = [Sample(*each) for each in zip(sources, targets, ours, strict=True)]
        return Evaluation(scores | {"exact_match": score.value}, samples, [str(score)])

    def _decode(self, rows: list[list[int]]) -> list[str]:
        """Text with masks and sentinels, without </s>."""
        end = self.tokenizer.required("eos")
        plain = [[token for token in row if token != end] for row in rows]
        return self.tokenizer.decode(plain, keep_special=True)
