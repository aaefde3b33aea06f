"""Replaced-token detection (Clark et al. 2020, ELECTRA): a small generator fills in masks, and the
model learns which tokens are not the original ones.

rows -> example    chunks of documents, with the tokenizer's special tokens
example -> batch   15 % of the tokens masked, others in each epoch, each with a random number
loss               of the generator: - Σ log P(w_i | the unmasked tokens) over the masked tokens
                   + 50 · - Σ log P(original or replaced | the filled-in text) over all tokens
scores             accuracy; precision, recall, F1 and area under the ROC curve of the replaced
                   tokens; accuracy and perplexity of the generator

The generator is a masked language model that is trained beside the model and shares its embeddings.
Its tokens are sampled, so that no gradient passes through them. A sampled token that equals the
original one counts as original.
Shapes: N tokens of the packed row, n real ones, M masked ones, E width of the generator, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from trifold.errors import CheckpointError, SettingsError
from trifold.folders import AnyPath, named
from trifold.hub import load_model, save_model
from trifold.hub.folder import families_for
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.checks import first_problem
from trifold.nn.embeddings import Embeddings
from trifold.objectives.batch import LossTerm
from trifold.objectives.documents import Cut, DocumentChunks
from trifold.objectives.evaluation import EvalRun, Evaluation, Sample
from trifold.objectives.masked import MaskedBatch, MaskedLM, MaskingSettings
from trifold.scores.correlation import area_under_curve
from trifold.scores.counts import f1
from trifold.text import Tokenizer
from trifold.text.spans import Ids, example_rng

GENERATOR = "generator"  # the module of a model in training, and its folder in that of the model
FAMILY = "electra"  # in which the generator is saved, if it fits
SAMPLING = 2**62  # added to the number of an example, whose masks have other random numbers
SHARED = ("tokens", "positions", "token_types", "norm")  # modules of the embeddings

# --- settings -> rows -----------------------------------------------------------------------------


class ReplacedSettings(MaskingSettings):
    """Settings of replaced-token detection. Of the masked tokens, all become the mask token."""

    command = 'predict {folder} "your text" --task embed'
    heads = ("replaced",)
    boundary: ClassVar[float] = 0.0

    kind: Literal["replaced"] = "replaced"
    masked: float = Field(1.0, ge=0, le=1, description="share of these replaced by the mask token")
    random: float = Field(
        0.0, ge=0, le=1, description="share of these replaced by a random token; others stay"
    )
    generator_size: float = Field(
        0.25,
        gt=0,
        le=1,
        description="width, heads and feed-forward width of the generator, as a share of the "
        "model's; both have the same number of layers",
    )
    weight: float = Field(
        50.0, gt=0, description="weight of the detection (λ of the paper); the generator has 1"
    )
    best_by: Literal["loss", "accuracy", "f1", "auc"] = Field(
        "loss",
        description="loss: of the generator. The scores of the model fall where the generator "
        "improves, so they do not rank its weights",
    )

    @classmethod
    def with_heads(cls, config: ModelConfig) -> ModelConfig:
        """The config with the head, and without the settings of one for masked tokens."""
        if "lm" not in config.chosen_heads:
            return super().with_heads(config)
        update: dict[str, Any] = {"lm_head_transform": None, "lm_head_bias": False}
        return config.model_copy(update=update | {"heads": cls.heads})

    def model_problem(self, config: ModelConfig) -> str | None:
        problem = super().model_problem(config)
        if problem is None and (found := first_problem(generator_config(config, self))):
            problem = f"task.generator_size: {self.generator_size} gives no generator: {found}"
        return problem

    def create(
        self, tokenizer: Tokenizer, config: ModelConfig, width: int, cut: Cut
    ) -> ReplacedTokens:
        return ReplacedTokens(self, tokenizer, config, width, cut)


def generator_config(config: ModelConfig, settings: ReplacedSettings) -> ModelConfig:
    """The config of the generator of a model: narrower layers on embeddings of the same width."""
    size = settings.generator_size
    heads = max(1, round(size * config.n_heads))
    pairs = max(1, round(size * config.d_model / (2 * heads)))  # in a head, of rotated dimensions
    d_model = 2 * pairs * heads
    sizes: dict[str, Any] = {
        "d_model": d_model,
        "n_heads": heads,
        "n_kv_heads": None,
        "d_head": None,
        "d_value": None,
        "d_ff": max(1, round(size * config.d_ff)),
        "d_embedding": None if config.embedding_width == d_model else config.embedding_width,
    }
    if config.scale_embeddings:  # by the factor of the model, not by that of the generator's width
        sizes["embedding_scale"] = config.embedding_factor
    head = {"lm_head_transform": "gelu", "lm_head_bias": True, "tie_lm_head": True}
    return config.model_copy(update={**sizes, **head, "heads": ("lm",)})


# --- examples -> batch ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ReplacedBatch(MaskedBatch):
    """Packed rows with masked tokens. uniforms (M,): for each, a number in [0, 1) that selects the
    sampled token.
    """

    uniforms: Tensor


class ReplacedTokens(MaskedLM):
    """Replaced-token detection. The logged loss is that of the generator."""

    adds_modules = True

    def batch(
        self, examples: DocumentChunks, rows: Ids, width: int | None = None, *, draw: int = 0
    ) -> ReplacedBatch:
        """As of a masked language model; the sampled tokens, too, are a function of (draw, number
        of the example).
        """
        masked = [self.mask(examples, int(row), width, draw) for row in rows]
        uniforms = [
            example_rng(draw, SAMPLING + int(row)).random(len(one.positions), np.float32)
            for row, one in zip(rows, masked, strict=True)
        ]
        batch = self.pack(masked)
        numbers = torch.from_numpy(np.concatenate(uniforms))
        padding = len(batch.positions) - batch.tokens
        return ReplacedBatch(**vars(batch), uniforms=F.pad(numbers, (0, padding)))

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        return super().counts(batch) | {"replaced": _count_real(batch.inputs)}

    # --- generator --------------------------------------------------------------------------------

    def add_modules(
        self, model: Transformer, folder: AnyPath | None = None, *, required: bool = False
    ) -> None:
        """Add the generator, whose embeddings, up to their norm, are those of the model."""
        generator = Transformer(generator_config(model.config, self.settings))
        ours, theirs = model.encoder_embeddings, generator.encoder_embeddings
        assert isinstance(ours, Embeddings) and isinstance(theirs, Embeddings)
        for name in SHARED:
            setattr(theirs, name, getattr(ours, name))
        head = generator.lm_head
        assert head is not None
        head.weight = ours.tokens.weight
        if folder is not None:
            _load_generator(folder, generator, model, required=required)
        generator.to(ours.tokens.weight).train(model.training)  # its device and type
        model.add_module(GENERATOR, generator)

    def save_model(
        self, folder: Path, model: Transformer, generation: Mapping[str, object]
    ) -> None:
        """Write the model without its generator, and the generator as a model of its own to a
        folder in that of the model.
        """
        generator = _generator(model)
        delattr(model, GENERATOR)
        try:
            super().save_model(folder, model, generation)
        finally:
            model.add_module(GENERATOR, generator)
        generator.family = next(families_for(generator.config, FAMILY)).model_type
        save_model(folder / GENERATOR, generator)
        self.save(folder / GENERATOR)

    def fill_in(
        self, generator: Transformer, states: Tensor, batch: ReplacedBatch
    ) -> tuple[Inputs, Tensor]:
        """The batch with a sampled token at each mask, and whether each of its n real tokens is
        another one than in the original text. states (N, E): of the generator.
        """
        count = batch.tokens
        positions = batch.positions[:count]
        head = generator.lm_head
        assert head is not None
        with torch.no_grad():
            logits = head(states.index_select(0, positions))
        sampled = sample(logits, batch.uniforms[:count])
        tokens = batch.inputs.tokens
        original = tokens.index_copy(1, positions, batch.labels[None, :count])
        filled = tokens.index_copy(1, positions, sampled[None])
        replaced = (filled != original)[0, : _count_real(batch.inputs)]
        return replace(batch.inputs, tokens=filled), replaced

    # --- loss, scores -----------------------------------------------------------------------------

    def logits(self, model: Transformer, inputs: Inputs) -> Tensor:
        """(n,) of the real tokens; positive: replaced."""
        logits: Tensor = model.heads["replaced"](model(inputs), inputs, None)
        return logits[0, : _count_real(inputs), 0]

    def loss(
        self, model: Transformer, batch: Any, states: Tensor | None = None
    ) -> dict[str, LossTerm]:
        """Cross-entropy of the masked tokens, and of original or replaced over all tokens (Clark
        et al. 2020, section 2), in nats. states (N, E): the last ones of the generator, if they are
        known.
        """
        states, logits, replaced = self._detect(model, batch, states)
        total = F.binary_cross_entropy_with_logits(logits, replaced.to(logits), reduction="sum")
        detection = LossTerm(total, len(replaced), self.settings.weight)
        return super().loss(_generator(model), batch, states) | {"replaced": detection}

    def measure(
        self, model: Transformer, batch: Any, states: Tensor | None = None
    ) -> dict[str, Any]:
        """Those of the generator; the numbers of read tokens, right decisions, replaced tokens,
        found ones, and found ones that are replaced; and of each token its logit, and whether it is
        replaced.
        """
        states, logits, replaced = self._detect(model, batch, states)
        found = logits > 0
        statistics = {
            "read": len(found),
            "right": int((found == replaced).sum()),
            "replaced": int(replaced.sum()),
            "found": int(found.sum()),
            "hits": int((found & replaced).sum()),
            "logits": [logits.cpu().numpy()],
            "labels": [replaced.cpu().numpy()],
        }
        return super().measure(_generator(model), batch, states) | statistics

    def _detect(
        self, model: Transformer, batch: ReplacedBatch, states: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The last states (N, E) of the generator, and of each token of the filled-in text its
        logit (n,) and whether it is replaced (n,).
        """
        generator = _generator(model)
        if states is None:
            states = generator(batch.inputs)[0]
        inputs, replaced = self.fill_in(generator, states, batch)
        return states, self.logits(model, inputs), replaced

    def scores_of_sums(self, sums: Mapping[str, Any]) -> dict[str, float]:
        shares = {
            "accuracy": (sums["right"], sums["read"]),
            "precision": (sums["hits"], sums["found"]),
            "recall": (sums["hits"], sums["replaced"]),
            "generator_accuracy": (sums["correct"], sums["tokens"]),
        }
        scores = {name: 100 * part / max(whole, 1) for name, (part, whole) in shares.items()}
        return scores | {"f1": 100 * f1(sums["hits"], sums["replaced"], sums["found"])}

    def compute_scores(self, run: EvalRun) -> Evaluation:
        """Every validation masks the same tokens, and samples with the same random numbers."""
        logits, labels = (np.concatenate(run.sums[name]) for name in ("logits", "labels"))
        area = area_under_curve(logits, labels)
        scores = {**self.scores_of_sums(run.sums), "auc": area, "perplexity": run.perplexity}
        return Evaluation(scores, self.samples(run))

    def samples(self, run: EvalRun) -> list[Sample]:
        """Filled-in texts, the original texts, and the filled-in texts without the tokens that the
        model takes for replaced.
        """
        rows = run.sample_rows
        if not len(rows):
            return []
        generator = _generator(run.model)
        batch = self.batch(run.examples, rows).to(run.device)
        inputs, _ = self.fill_in(generator, generator(batch.inputs)[0], batch)
        found = (self.logits(run.model, inputs) > 0).cpu().numpy()
        filled = inputs.tokens[0, : len(found)].cpu().numpy()
        originals = [self.mask(run.examples, int(row)).original for row in rows]
        ends = np.cumsum([len(row) for row in originals])[:-1]
        kept = np.split(np.where(found, -1, filled), ends)
        return [
            self.special.sample(self.tokenizer, *texts)
            for texts in zip(np.split(filled, ends), originals, kept, strict=True)
        ]


def sample(logits: Tensor, uniforms: Tensor) -> Tensor:
    """For each row of logits (M, V), the first token whose cumulative probability exceeds the
    number in uniforms (M,).
    """
    cumulative = logits.softmax(-1).cumsum(-1)
    thresholds = uniforms[:, None] * cumulative[:, -1:]  # the last one is 1 up to rounding
    sampled = torch.searchsorted(cumulative, thresholds, right=True)[:, 0]
    return sampled.clamp_max(logits.shape[1] - 1)


def _count_real(inputs: Inputs) -> int:
    """The number of tokens of packed rows without padding."""
    packing: Any = inputs.packing
    count: int = packing.n_real
    return count


def _generator(model: Transformer) -> Transformer:
    """The generator that was added to the model."""
    generator = model.get_submodule(GENERATOR)
    assert isinstance(generator, Transformer)
    return generator


def _load_generator(
    folder: AnyPath, generator: Transformer, model: Transformer, *, required: bool
) -> None:
    """Copy the weights of the generator in the folder of a model, if there is one, except for those
    that it shares with the model.
    """
    path = named(folder) / GENERATOR
    if not (path / "config.json").exists():
        if required:
            raise CheckpointError(
                f"{path}: the generator that replaces tokens is missing; name the run of the model"
            )
        return
    source, _ = load_model(path)
    shared = {id(parameter) for parameter in model.parameters()}
    saved = dict(source.named_parameters())
    for name, parameter in generator.named_parameters():
        if id(parameter) in shared:
            continue
        if name not in saved or saved[name].shape != parameter.shape:
            raise SettingsError(
                f"task.generator_size: the generator in {path} has other sizes; set the value that "
                "it was trained with, or remove that folder for a new generator"
            )
        parameter.data.copy_(saved[name])
