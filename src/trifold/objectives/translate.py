"""Translation, or any learning of one text from another, with teacher forcing.

rows -> example    source ids + </s>;  target ids + </s>
example -> batch   source;  <s> + target without its last token;  target
loss               - Σ log P(y_t | y_<t, X) over the target tokens, label-smoothed
scores             BLEU, chrF and exact match of greedy translations
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor

from trifold.data import Rows, read_pairs
from trifold.errors import SettingsError
from trifold.generation_config import GenerationConfig
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.packing import Packing
from trifold.objectives.batch import Batch, LossTerm, pack_rows, token_loss
from trifold.objectives.evaluation import EvalRun, Evaluation, Sample
from trifold.objectives.objective import BuildContext, Objective, TaskBundle
from trifold.objectives.prompted import (
    PROMPT,
    Prompted,
    PromptSettings,
    bundle_prompted,
    load_tokenizer,
)
from trifold.objectives.scheduled_sampling import ScheduledSampling
from trifold.predict.generate_texts import generate_rows
from trifold.ragged import Ragged
from trifold.scores import SCORES, Score
from trifold.scores.bleu import (
    AUTO,
    TOKENIZERS,
    missing_libraries,
    text_scorer,
    tokenizer_note,
)
from trifold.scores.bootstrap import Resampled, Scorer
from trifold.settings import nearest
from trifold.text import Tokenizer
from trifold.text.spans import Ids, example_rng
from trifold.text.tokenizer import TARGET_TOKENIZER_FILE

# --- settings -> rows -----------------------------------------------------------------------------


class TranslateSettings(PromptSettings):
    """Settings of translation."""

    pipeline_tag = "translation"
    data_kind = "pairs"
    shapes = ("encoder-decoder", "decoder")
    default_prompt = "{source} ="
    defaults = {  # noqa: RUF012
        "model": {"preset": "transformer-base"},
    }
    unused_keys = ()

    kind: Literal["translate"] = "translate"
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    scheduled_sampling: ScheduledSampling = Field(
        ScheduledSampling(), description="how many decoder inputs are predictions of the model"
    )
    best_by: Literal["bleu", "chrf", "exact_match", "loss"] = "bleu"
    tokenize: str = Field(
        AUTO,
        description="sacreBLEU's tokenizer; auto: by the script of the references; none if the "
        "text is tokenized already",
    )
    lowercase: bool = False
    prompt: str | None = PROMPT

    @field_validator("tokenize")
    @classmethod
    def _check_tokenize(cls, name: str) -> str:
        if name not in TOKENIZERS:
            raise ValueError(f"sacreBLEU has no tokenizer {name!r}{nearest(name, [*TOKENIZERS])}")
        return name

    def read(self, source: Any, data: Any, split: str) -> Any:
        return read_pairs(source, data, split)

    @property
    def prompted(self) -> type[Prompted]:
        """The objective of a decoder."""
        return TranslatePrompts

    def create(self, context: BuildContext, *parts: Any, **options: Any) -> Translate:
        return Translate(self, *parts, **options)

    def build(self, context: BuildContext) -> TaskBundle:
        if problem := missing_libraries(self.tokenize):
            raise SettingsError(f"task.tokenize: {problem}")
        train, valid = context.read(self.read)
        if context.model.shape == "decoder":
            return self._build_prompted(context, train, valid)
        source, target = _load_or_train_tokenizers(context, train)
        config = context.config_for(source)
        if not context.tokenizer.joint:
            config = config.model_copy(update={"target_vocab_size": target.vocab_size})
        objective = self.create(context, source, target, start_id=config.start_id)
        valid = context.select_readable(valid, objective.examples(valid), "pairs")
        if note := self.script_note(valid):
            context.report(note)
        dropout = context.tokenizer.dropout
        epochs = context.tokenizer.dropout_epochs

        def redraws(epoch: int) -> bool:
            """Whether merges are dropped at random in this epoch."""
            return bool(dropout) and epoch < (epochs or epoch + 1)

        return TaskBundle(objective, config, train, valid, redraws)

    def _build_prompted(self, context: BuildContext, train: Any, valid: Any) -> TaskBundle:
        """The task of a decoder, which reads the source in a prompt."""
        tokenizer, config = load_tokenizer(
            context,
            self.chosen_prompt,
            lambda: [{"source": source} for source in train.sources],
            train.targets,
        )
        objective = self.prompted(self, tokenizer, context.text_width)
        bundle = bundle_prompted(context, objective, config, train, valid)
        if note := self.script_note(bundle.valid):
            context.report(note)
        return bundle

    def model_problem(self, config: ModelConfig) -> str | None:
        if config.shape == "decoder" and self.scheduled_sampling.share:
            return (
                "task.scheduled_sampling: needs a decoder that reads an encoder; remove it, or set "
                "model.shape=encoder-decoder"
            )
        return super().model_problem(config)

    def script_note(self, rows: Any) -> str | None:
        """What the script of the references changes in the scores, if anything."""
        if self.tokenize != AUTO:
            return None
        return tokenizer_note(rows.targets)

    def scores(self, hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Score]:
        """All scores of texts, by name."""
        return {
            name: score(hypotheses, references, **self._options(name))
            for name, score in SCORES.items()
        }

    def scorer(self, hypotheses: Sequence[str], references: Sequence[str]) -> Scorer:
        """The values of `scores` for some of the texts."""
        scorers = [
            text_scorer(name, hypotheses, references, **self._options(name)) for name in SCORES
        ]

        def score(rows: Ids) -> dict[str, float]:
            values = dict[str, float]()
            for scorer in scorers:
                values |= scorer(rows)
            return values

        return score

    def _options(self, name: str) -> dict[str, Any]:
        """The options of the score of this name."""
        options: dict[str, Any] = {"lowercase": self.lowercase}
        if name == "bleu":
            options["tokenize"] = self.tokenize
        return options


def _load_or_train_tokenizers(context: BuildContext, pairs: Rows) -> tuple[Tokenizer, Tokenizer]:
    load = context.load_or_train_tokenizer
    if context.tokenizer.joint:
        joint = load(
            lambda: [*pairs.sources, *pairs.targets], note=", one for both sides", append_eos=True
        )
        return joint, joint
    target = load(lambda: pairs.targets, TARGET_TOKENIZER_FILE, note=", target side")
    return load(lambda: pairs.sources, note=", source side", append_eos=True), target


# --- examples, batches ----------------------------------------------------------------------------


@dataclass(frozen=True)
class SourceTargetExamples:
    """Encoded rows; both sides end with </s>."""

    sources: Ragged
    targets: Ragged

    @property
    def lengths(self) -> Ids:
        """(N, 2) tokens of source and target, including </s>."""
        return np.stack([self.sources.lengths, self.targets.lengths], axis=1)

    def select(self, rows: Ids) -> SourceTargetExamples:
        """The given examples."""
        return SourceTargetExamples(self.sources.select(rows), self.targets.select(rows))


@dataclass(frozen=True)
class SourceTargetBatch(Batch):
    """Packed rows: inputs of the encoder; target, those of the decoder; labels (N,): the token to
    predict at each position of the decoder's packed row, -1 in padding.

    chances: with scheduled sampling, (N,) numbers in [0, 1); where one is below the share of the
    step, `sampled` is true and the decoder reads its own prediction.
    """

    target: Inputs
    chances: Tensor | None = None
    sampled: Tensor | None = None


class Translate(Objective):
    """Translation. source, target: the tokenizers of the sides, which may be the same.
    start_id: the first token that the decoder reads; <s> by default.
    """

    row_name = "pairs"
    read_name = "target tokens"
    token_name = "target tokens"
    predicts_tokens = True
    save_options = {"append_eos": True}  # noqa: RUF012

    def __init__(
        self, settings: Any, source: Tokenizer, target: Tokenizer, *, start_id: int | None = None
    ) -> None:
        self.settings = settings
        self.tokenizer = source
        self.source = source
        self.target = target
        if start_id is None:
            start_id = target.required("bos")
        self.start_id = start_id

    def examples(self, rows: Any, draw: int | None = None) -> SourceTargetExamples:
        """See `encode_rows`."""
        return self.encode_rows(rows, draw)

    def encode_rows(self, pairs: Rows, draw: int | None = None) -> SourceTargetExamples:
        """Encode both sides. With `draw`, merges are dropped at random as the tokenizers
        specify.
        """
        return SourceTargetExamples(
            _encode(self.source, pairs.sources, draw), _encode(self.target, pairs.targets, draw)
        )

    def batch(
        self, examples: SourceTargetExamples, rows: Ids, width: int | None = None, *, draw: int = 0
    ) -> SourceTargetBatch:
        """Pack the given rows, truncated to `width` tokens if given. Random only with scheduled
        sampling.
        """
        source, _ = pack_rows(examples.sources, rows, width, self.source)
        target, packing = pack_rows(examples.targets, rows, width, self.target)
        ids = target.tokens[0]
        labels = torch.full_like(target.tokens[0], -1)
        labels[: packing.n_real] = ids[: packing.n_real]
        # Teacher forcing: each position reads the token before its label; a row begins with the
        # start token.
        shifted = ids.roll(1)
        shifted[packing.starts[:-1]] = self.start_id
        batch = SourceTargetBatch(
            source, labels, packing.n_real, Inputs(shifted[None], packing=packing)
        )
        if not self._sampling.share:
            return batch
        return replace(batch, chances=_draw_chances(packing, rows, draw))

    @property
    def _sampling(self) -> ScheduledSampling:
        """The schedule of sampling, which is a setting of translation only."""
        none = ScheduledSampling()
        return getattr(self.settings, "scheduled_sampling", none)

    def at_step(self, batch: SourceTargetBatch, step: int) -> SourceTargetBatch:
        share = self._sampling.share_at(step)
        if not share or batch.chances is None:
            return batch
        return replace(batch, sampled=batch.chances < share)

    # --- loss, scores -----------------------------------------------------------------------------

    def token_states(self, model: Transformer, batch: SourceTargetBatch) -> Tensor:
        states: Tensor = model(batch.inputs, batch.target)[0]
        return states

    def loss(self, model: Transformer, batch: SourceTargetBatch) -> dict[str, LossTerm]:
        target = batch.target
        smoothing = self.settings.label_smoothing
        if batch.sampled is not None:  # two passes: Mihaylova & Martins 2019
            assert model.lm_head is not None
            with torch.no_grad():
                parts = model(batch.inputs, target)[0].split(1024)
                predicted = torch.cat([model.lm_head(part).argmax(-1) for part in parts])
            target = replace(
                target, tokens=torch.where(batch.sampled, predicted.roll(1), target.tokens)
            )
        states = model(batch.inputs, target)[0]
        return {"tokens": token_loss(model, states, batch, smoothing)}

    def compute_scores(self, run: EvalRun) -> Evaluation:
        outputs = self.outputs(run, run.examples.sources)
        rows = run.rows
        scores = self.settings.scores(outputs, rows.targets)
        samples = [Sample(*each) for each in zip(rows.sources, rows.targets, outputs, strict=True)]
        values = {name: score.value for name, score in scores.items()}
        resampled = Resampled(
            self.settings.scorer(outputs, rows.targets), len(outputs), self.row_name
        )
        signatures = [str(score) for score in scores.values()]
        return Evaluation(values, samples, signatures, resampled=resampled)

    def outputs(
        self, run: EvalRun, sources: Ragged, search: GenerationConfig | None = None
    ) -> list[str]:
        """The output of each source, as text; by default the greedy one, which measures the weights
        and no search.
        """
        search = search or GenerationConfig(max_new_tokens=run.context.generation.max_new_tokens)
        found = generate_rows(run.model, sources, search, codec=self.target, poll=run.context.poll)
        return self.target.decode([best[0].tokens for best in found])

    def save(self, folder: Path) -> None:
        """Write tokenizer.json, and target_tokenizer.json if the target side has its own."""
        super().save(folder)
        if self.target is not self.source:
            self.target.save(folder, TARGET_TOKENIZER_FILE, overwrite=True)


class TranslatePrompts(Prompted, Translate):  # type: ignore[misc]
    """Translation by a decoder."""


def _encode(tokenizer: Tokenizer, texts: Sequence[str], draw: int | None) -> Ragged:
    if draw is None:
        encoded = tokenizer.encode(texts)
    else:
        encoded = tokenizer.sample(texts, draw & 0xFFFF_FFFF)
    return with_end(tokenizer, encoded)


def _draw_chances(packing: Packing, rows: Ids, draw: int) -> Tensor:
    """(N,) uniform numbers in [0, 1), a function of draw and example; 1 at the start of a row and
    in padding, which are never sampled.
    """
    chances = torch.ones(packing.length, dtype=torch.float64)
    bounds = pairwise(packing.starts.tolist())
    for row, (start, end) in zip(rows.tolist(), bounds, strict=True):
        drawn = example_rng(draw, row).random(end - start - 1)
        chances[start + 1 : end] = torch.from_numpy(drawn)
    return chances


def with_end(tokenizer: Tokenizer, encoded: Sequence[Sequence[int]]) -> Ragged:
    """Token sequences with </s> appended."""
    end = tokenizer.required("eos")
    return Ragged.of([[*ids, end] for ids in encoded])
