"""Sentence embeddings: texts that belong together get vectors with a high cosine.

rows -> example    two or three texts, and a score of the first two, if any
example -> batch   packed texts
loss               of the pooled vectors of all rows of an update: ranking, cosent; or of each row:
                   cosine, triplet
scores             Pearson and Spearman of the cosine; accuracy of triplets; or recall at 1 and mean
                   reciprocal rank
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from trifold.data import DataSettings, Records, Role, read_records
from trifold.data.settings import Source
from trifold.data.tables import MISSING, check_text
from trifold.errors import DataError, SettingsError
from trifold.hub.sentence_transformers import SentenceModules, write_modules
from trifold.nn import ModelConfig, Transformer
from trifold.objectives import labelled
from trifold.objectives.batch import Batch as BaseBatch, LossTerm
from trifold.objectives.labels import NUMBERS, ROLES, check_commas, read_label, read_numbers
from trifold.objectives.objective import BuildContext, TaskBundle
from trifold.predict.embed import POOLINGS
from trifold.scores.correlation import CorrelationScore
from trifold.text.spans import Ids

CLASSES = ("label", "gold_label")  # of a premise and a hypothesis, no scores
COLUMNS = {
    "text": Role(("anchor", "query", *ROLES["text"].names), check_text),
    "pair": Role(("positive", *ROLES["pair"].names), check_text),
    "negative": Role(("negative", "hard_negative", "negative_1"), check_text, required=False),
    "label": Role(
        (*NUMBERS, *CLASSES, "is_duplicate", "quality"),
        read_label,
        required=False,
        identifies=False,
        absent=MISSING,
    ),
}
NEEDED = {"cosent": "label", "cosine": "label", "triplet": "negative", "ranking": "pair"}


class EmbedSettings(labelled.LabelledSettings):
    """Settings of embeddings; `data.columns` names the columns of text, pair, negative and label (a
    score).
    """

    heads = ("pooler",)

    kind: Literal["embed"] = "embed"
    loss: Literal["auto", "ranking", "cosent", "cosine", "triplet"] = Field(
        "auto", description="auto: cosent if rows have a score, else ranking"
    )
    scale: float = Field(20.0, gt=0, description="ranking and cosent: factor of the cosine")
    margin: float = Field(5.0, ge=0, description="triplet: of the Euclidean distances")
    pooling: Literal["mean", "cls", "last", "max"] = Field(
        "mean", description="which states make the vector"
    )
    normalise: bool = Field(False, description="make the vectors of length 1")
    best_by: Literal["auto", "loss"] = Field(
        "auto",
        description="auto: Pearson; without scores, accuracy of triplets or mean reciprocal rank",
    )

    @classmethod
    def with_heads(cls, config: ModelConfig) -> ModelConfig:
        """The config with BERT's pooler, which is not trained; families without token types and
        decoders have none.
        """
        has_pooler = config.shape == "encoder" and config.n_token_types > 0
        return super().with_heads(config).model_copy(update={} if has_pooler else {"heads": ()})

    def build(self, context: BuildContext) -> TaskBundle:
        train, valid = context.read(_read_rows)
        has = {
            role
            for role, values in train.columns.items()
            if any(value is not None for value in values)
        }
        loss = self.loss if self.loss != "auto" else "cosent" if "label" in has else "ranking"
        if (needed := NEEDED[loss]) not in has:
            raise SettingsError(f"task.loss: {loss} requires a column; set data.columns.{needed}")
        context.report(f"loss: {loss}")
        context.report(f"pooling: {self.pooling}{', normalized' * self.normalise}")
        roles = ["text", "pair"] + ["negative"] * ("negative" in has and needed != "label")
        _texts(train, roles)
        score = "pearson" if "label" in has else "accuracy" if len(roles) == 3 else "mrr"
        chosen = {"loss": loss, "best_by": score if self.best_by == "auto" else self.best_by}
        tokenizer = context.load_or_train_tokenizer(
            lambda: chain(*(train.columns[role] for role in roles))
        )
        config, width = context.config_for(tokenizer), context.text_width
        objective = Embed(self.model_copy(update=chosen), tokenizer, config, width, context.report)
        objective.roles, objective.gathers = roles, loss in ("ranking", "cosent")
        objective.top = float(max(1, *abs(read_numbers(train)))) if "label" in has else None
        if "label" in has:
            check_commas(train)
        return objective.bundle(context, train, valid)


def _read_rows(source: Source, data: DataSettings, split: str) -> Records:
    """The rows. Raises SettingsError if their labels are classes of inference."""
    rows = read_records(source, data, COLUMNS, split)
    text, label = (rows.report.columns.get(role, "").casefold() for role in ("text", "label"))
    if text == "premise" and label in CLASSES and "label" not in data.columns:
        raise SettingsError(
            f"data.columns.label: {label!r} of a premise and a hypothesis is a class, not a "
            "score; name a column of "
            "scores, or keep the rows of entailment and set data.columns.label=null"
        )
    return rows


def _texts(rows: Records, roles: list[str]) -> list[str]:
    """The texts of each row in turn. Raises DataError for a missing one."""
    texts = [*chain(*zip(*(rows.columns[role] for role in roles), strict=True))]
    if None in texts:
        place = f"{rows.report.name}:{rows.lines[texts.index(None) // len(roles)]}"
        raise DataError(f"{place}: a text is missing; give all rows the same columns")
    return texts


@dataclass(frozen=True)
class Examples(labelled.TextExamples):
    """The texts of each row in turn. labels (N,): scores."""

    @property
    def lengths(self) -> Ids:
        """(N, 2) tokens of the first text, and of the longest other one."""
        lengths = self.texts.lengths.reshape(len(self.labels), -1)
        return np.stack([lengths[:, 0], lengths[:, 1:].max(1)], 1)


@dataclass(frozen=True)
class Batch(BaseBatch):
    """Packed texts. labels (B,): scores; gradient: of the loss of the global batch, `value`, by
    this part's table.
    """

    gradient: Tensor | None = None
    value: float = 0.0


class Embed(labelled.LabelledObjective):
    """Embeddings. roles: the columns of texts. top: the largest score of training, which becomes 1;
    None: no scores.
    """

    token_name = row_name = "rows"
    loss_unit = "per row"
    roles: list[str]
    top: float | None

    def examples(self, rows: Records, draw: int | None = None) -> Examples:
        """Encode texts. Raises DataError for a missing text or score."""
        texts = _texts(rows, self.roles)
        scores = (
            np.zeros(len(rows), np.float32) if self.top is None else read_numbers(rows) / self.top
        )
        return Examples(*self.tokens_and_types(self.encode(rows, texts)), scores)

    def batch(
        self, examples: Examples, rows: Ids, width: int | None = None, *, draw: int = 0
    ) -> Batch:
        sides = np.arange(len(self.roles))
        texts = (rows[:, None] * len(sides) + sides).ravel()
        labels = torch.from_numpy(examples.labels[rows])
        return Batch(self.pack(examples, texts, width), labels, len(rows))

    # --- loss, scores -----------------------------------------------------------------------------

    def table(self, model: Transformer, batch: Batch) -> Tensor:
        """(B, 1 + sides · E) the score and the vectors of each row, of which the loss is a
        function.
        """
        packing: Any = batch.inputs.packing
        hidden = packing.grid(model(batch.inputs))
        real = (
            hidden.new_ones(packing.shape, dtype=torch.bool)
            if packing.attend is None
            else packing.attend
        )
        vectors = POOLINGS[self.settings.pooling](hidden, real).float()
        vectors = F.normalize(vectors, dim=-1) if self.settings.normalise else vectors
        return torch.cat([batch.labels[:, None], vectors.reshape(batch.tokens, -1)], 1)

    def table_loss(self, table: Tensor) -> Tensor:
        """The mean loss of the rows of a table, whose other rows are the negatives of a row.

        ranking: -log softmax of scale · cosine of the first and the second text, among the other
        texts of all rows (Henderson et al. 2017). cosent: log(1 + Σ exp(scale · (cosine i - cosine
        j))) over score i < score j (Su 2022).
        cosine: squared error. triplet: max(0, margin + distance of the second text - distance of
        the third).
        """
        scores, vectors, scale = table[:, 0], self._vectors(table), self.settings.scale
        unit = F.normalize(vectors, dim=-1)
        cosines = (unit[:, 0] * unit[:, 1]).sum(-1)
        if self.settings.loss == "ranking":
            logits = scale * unit[:, 0] @ unit[:, 1:].transpose(0, 1).flatten(0, 1).T
            return F.cross_entropy(logits, torch.arange(len(unit), device=unit.device))
        if self.settings.loss == "cosent":
            wrong = (cosines[:, None] - cosines)[scores[:, None] < scores]
            return F.pad(scale * wrong, (1, 0)).logsumexp(0)
        if self.settings.loss == "cosine":
            return F.mse_loss(cosines, scores)
        near, far = (F.pairwise_distance(vectors[:, 0], vectors[:, side]) for side in (1, 2))
        return F.relu(near - far + self.settings.margin).mean()

    def _vectors(self, table: Tensor) -> Tensor:
        return table[:, 1:].view(len(table), len(self.roles), -1)

    def loss(self, model: Transformer, batch: Batch) -> dict[str, LossTerm]:
        """The loss times the rows; of a part of a global batch, a term with the same gradient."""
        table, rows = self.table(model, batch), batch.tokens
        if batch.gradient is None:
            return {"tokens": LossTerm(self.table_loss(table) * rows, rows)}
        total = torch.tensor(batch.value * rows)
        return {"tokens": LossTerm((table * batch.gradient).sum(), rows, nll=total)}

    def measure(self, model: Transformer, batch: Batch) -> dict[str, Any]:
        """The loss among the rows of the batch, and their table."""
        table = self.table(model, batch)
        nll = float(self.table_loss(table)) * len(table)
        return {"nll": nll, "tokens": len(table), "tables": [table.cpu().numpy()]}

    def scores_of_sums(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """Correlations; or in percent: accuracy of triplets, or ranks of second texts among those
        of all rows.
        """
        table = torch.from_numpy(np.concatenate(sums["tables"]))
        unit = F.normalize(self._vectors(table), dim=-1)
        cosines = (unit[:, :1] * unit[:, 1:]).sum(-1)
        if self.top is not None:
            score = CorrelationScore()
            score.add(table[:, 0], cosines[:, 0])
            return score.values()
        if len(self.roles) == 3:
            return {"accuracy": 100 * float((cosines[:, 0] > cosines[:, 1]).double().mean())}
        queries = zip(unit[:, 0], cosines, strict=True)
        ranks = torch.stack(
            [1 + (unit[:, 1] @ query > own + 1e-6).sum() for query, own in queries]
        ).double()
        recall, mrr = (100 * float(values.mean()) for values in ((ranks == 1).double(), 1 / ranks))
        return {"recall_at_1": recall, "mrr": mrr}

    def save(self, folder: Path) -> None:
        """Write the tokenizer, and the pooling as sentence-transformers does."""
        super().save(folder)
        modules = SentenceModules(self.settings.pooling, self.settings.normalise, self.width)
        write_modules(folder, modules, self.config.d_model, self.config.max_positions)
