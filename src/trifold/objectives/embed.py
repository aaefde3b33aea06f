"""Sentence embeddings: texts that belong together get vectors with a high cosine.

rows -> example    two or three texts, and a score of the first two, if any
example -> batch   packed texts
loss               of the pooled vectors of all rows of an update: ranking, cosent; or of each row:
                   cosine, triplet
scores             Pearson and Spearman of the cosine; accuracy of triplets; or recall at 1 and mean
                   reciprocal rank
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain, cycle
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from trifold.data import DataSettings, Role, Rows, read_records
from trifold.data.holdout import normalized
from trifold.data.settings import Source
from trifold.data.tables import MISSING, check_text
from trifold.errors import DataError, SettingsError
from trifold.hub.sentence_transformers import SentenceModules, write_modules
from trifold.nn import ModelConfig, Transformer
from trifold.objectives import labelled
from trifold.objectives.batch import Batch, LossTerm
from trifold.objectives.labels import NUMBERS, ROLES, check_commas, read_label, read_numbers
from trifold.objectives.objective import BuildContext, TaskBundle
from trifold.predict.embed import POOLINGS
from trifold.scores.correlation import CorrelationScore
from trifold.settings import nearest
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
LARGEST = 2**24  # numbers of texts below are exact in float32
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
    prompts: dict[str, str] = Field(
        {},
        description="texts by name that the saved model puts before a text, such as `{query: "
        "'query: '}`; default: those of start_from",
    )
    default_prompt: str | None = Field(
        None, description="name of the prompt of a text for which the user of the model names none"
    )
    prompt_of: dict[str, str] = Field(
        {},
        description="column -> name of the prompt before its texts in training and validation, "
        "such as `{text: query, pair: document}`",
    )
    similarity: Literal["cosine", "dot", "euclidean", "manhattan"] | None = Field(
        None, description="similarity_fn_name of the saved folder; default: that of start_from"
    )
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
        config = context.config_for(tokenizer)
        width = context.text_width
        objective = Embed(self.model_copy(update=chosen), tokenizer, config, width, context.report)
        objective.roles = roles
        objective.gathers = loss in ("ranking", "cosent")
        objective.prompts = self._prompts(train, roles, context.report)
        if loss == "ranking" and (shared := _count_shared(_numbered(_texts(train, roles), roles))):
            context.report(
                f"{shared:,} of {len(train):,} rows share a text with another row: in a batch, "
                "equal texts are no negatives of each other"
            )
        objective.top = float(max(1, *abs(read_numbers(train)))) if "label" in has else None
        if "label" in has:
            check_commas(train)
        return objective.bundle(context, train, valid)

    def _prompts(
        self, rows: Rows, roles: list[str], report: Callable[[str], None]
    ) -> dict[str, str]:
        """Role -> text before its texts. Raises SettingsError for unknown names."""
        known = ", ".join(self.prompts) or "none; set task.prompts"
        for key, name in {"default_prompt": self.default_prompt, **self.prompt_of}.items():
            if name is not None and name not in self.prompts:
                place = key if key == "default_prompt" else f"prompt_of.{key}"
                raise SettingsError(f"task.{place}: {name!r} is no prompt; known: {known}")
        role_of = {rows.report.columns.get(role): role for role in roles} | {r: r for r in roles}
        for key in self.prompt_of:
            if key not in role_of:
                raise SettingsError(
                    f"task.prompt_of.{key}: no column of texts{nearest(key, roles)}"
                )
        chosen = {role_of[key]: self.prompts[name] for key, name in self.prompt_of.items()}
        used = ", ".join(f"{role} {text!r}" for role, text in chosen.items())
        if chosen:
            report(f"prompts: {used}")
        elif named := [name for name, text in self.prompts.items() if text]:
            report(
                f"prompts of the model, not used in training: {', '.join(named)}; set "
                f"task.prompt_of.text={named[0]} to use one"
            )
        return chosen


def _read_rows(source: Source, data: DataSettings, split: str) -> Rows:
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


def _texts(rows: Rows, roles: list[str]) -> list[str]:
    """The texts of each row in turn. Raises DataError for a missing one."""
    texts = [*chain(*zip(*(rows.columns[role] for role in roles), strict=True))]
    if None in texts:
        place = f"{rows.report.name}:{rows.lines[texts.index(None) // len(roles)]}"
        raise DataError(f"{place}: a text is missing; give all rows the same columns")
    return texts


def _numbered(texts: list[str], roles: list[str]) -> Ids:
    """(N, sides) a number for each text, equal for texts that differ in case and space only."""
    numbers: dict[str, int] = {}
    found = [numbers.setdefault(normalized(text), len(numbers)) for text in texts]
    return np.array(found, dtype=np.int64).reshape(-1, len(roles))


def _count_shared(numbers: Ids) -> int:
    """The rows of which a text is no negative of another row: that has the same first or second
    text, or its first text as second one.
    """
    first = numbers[:, 0]
    second = numbers[:, 1]
    firsts, seconds = (np.bincount(side, minlength=numbers.max() + 1) for side in (first, second))
    others = seconds[first] - (first == second)
    return int(((firsts[first] > 1) | (seconds[second] > 1) | (others > 0)).sum())


@dataclass(frozen=True)
class RelatedTextExamples(labelled.TextExamples):
    """The texts of each row in turn. labels (N,): scores; numbers (N, sides): of `_numbered`."""

    numbers: Ids

    @property
    def lengths(self) -> Ids:
        """(N, 2) tokens of the first text, and of the longest other one."""
        lengths = self.texts.lengths.reshape(len(self.labels), -1)
        return np.stack([lengths[:, 0], lengths[:, 1:].max(1)], 1)


@dataclass(frozen=True)
class RelatedTextBatch(Batch):
    """Packed texts. labels (B, 1 + sides): the score and the numbers of the texts; gradient: of the
    loss of the global batch, `value`, by this part's table.
    """

    gradient: Tensor | None = None
    value: float = 0.0


class Embed(labelled.LabelledObjective):
    """Embeddings. roles: the columns of texts. prompts: role -> text before its texts. top: the
    largest score of training, which becomes 1; None: no scores.
    """

    token_name = row_name = "rows"
    loss_unit = "per row"
    roles: list[str]
    prompts: Mapping[str, str]
    top: float | None

    def examples(self, rows: Rows, draw: int | None = None) -> RelatedTextExamples:
        """Encode texts. Raises DataError for a missing text or score."""
        texts = _texts(rows, self.roles)
        scores = (
            np.zeros(len(rows), np.float32) if self.top is None else read_numbers(rows) / self.top
        )
        before = [self.prompts.get(role, "") for role in self.roles]
        read = [prompt + text for prompt, text in zip(cycle(before), texts, strict=False)]
        tokens, types = self.tokens_and_types(self.encode(rows, read))
        return RelatedTextExamples(tokens, types, scores, _numbered(texts, self.roles))

    def batch(
        self, examples: RelatedTextExamples, rows: Ids, width: int | None = None, *, draw: int = 0
    ) -> RelatedTextBatch:
        sides = np.arange(len(self.roles))
        texts = (rows[:, None] * len(sides) + sides).ravel()
        numbers = examples.numbers[rows] % LARGEST
        labels = torch.from_numpy(np.column_stack([examples.labels[rows], numbers])).float()
        return RelatedTextBatch(self.pack(examples, texts, width), labels, len(rows))

    # --- loss, scores -----------------------------------------------------------------------------

    def table(self, model: Transformer, batch: RelatedTextBatch) -> Tensor:
        """(B, 1 + sides + sides · E) the score, the numbers of the texts and the vectors of each
        row, of which the loss is a function.
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
        return torch.cat([batch.labels, vectors.reshape(batch.tokens, -1)], 1)

    def table_loss(self, table: Tensor) -> Tensor:
        """The mean loss of the rows of a table, whose other rows are the negatives of a row.

        ranking: -log softmax of scale · cosine of the first and the second text, among the other
        texts of all rows (Henderson et al. 2017), without those of `_positives`.
        cosent: log(1 + Σ exp(scale · (cosine i - cosine j))) over score i < score j (Su 2022).
        cosine: squared error. triplet: max(0, margin + distance of the second text - distance of
        the third).
        """
        scores = table[:, 0]
        vectors = self._vectors(table)
        scale = self.settings.scale
        unit = F.normalize(vectors, dim=-1)
        cosines = (unit[:, 0] * unit[:, 1]).sum(-1)
        if self.settings.loss == "ranking":
            logits = scale * unit[:, 0] @ unit[:, 1:].transpose(0, 1).flatten(0, 1).T
            if (positives := self._positives(table)).any():
                logits = logits.masked_fill(positives, -math.inf)
            return F.cross_entropy(logits, torch.arange(len(unit), device=unit.device))
        if self.settings.loss == "cosent":
            wrong = (cosines[:, None] - cosines)[scores[:, None] < scores]
            return F.pad(scale * wrong, (1, 0)).logsumexp(0)
        if self.settings.loss == "cosine":
            return F.mse_loss(cosines, scores)
        near, far = (F.pairwise_distance(vectors[:, 0], vectors[:, side]) for side in (1, 2))
        return F.relu(near - far + self.settings.margin).mean()

    def _vectors(self, table: Tensor) -> Tensor:
        sides = len(self.roles)
        return table[:, 1 + sides :].view(len(table), sides, -1)

    def _positives(self, table: Tensor) -> Tensor:
        """(B, (sides - 1) · B) which texts of other rows are no negatives of a row: its first text,
        and the second texts of all rows with the same first one.
        """
        numbers = table[:, 1 : 1 + len(self.roles)].detach().long()
        first = numbers[:, :1]
        second = numbers[:, 1:2]
        others = numbers[:, 1:].T.flatten()
        pairs = first * LARGEST + second
        found = (others == first) | torch.isin(first * LARGEST + others, pairs)
        found[:, : len(table)].fill_diagonal_(False)
        return found

    def loss(self, model: Transformer, batch: RelatedTextBatch) -> dict[str, LossTerm]:
        """The loss times the rows; of a part of a global batch, a term with the same gradient."""
        table = self.table(model, batch)
        rows = batch.tokens
        if batch.gradient is None:
            return {"tokens": LossTerm(self.table_loss(table) * rows, rows)}
        total = torch.tensor(batch.value * rows)
        return {"tokens": LossTerm((table * batch.gradient).sum(), rows, nll=total)}

    def measure(self, model: Transformer, batch: RelatedTextBatch) -> dict[str, Any]:
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
        first, second = table[:, 1], table[:, 2]  # their numbers
        above = []
        for row, (query, own) in enumerate(zip(unit[:, 0], cosines, strict=True)):
            others = (second != first[row]) & ~torch.isin(second, second[first == first[row]])
            above.append(((unit[:, 1] @ query > own + 1e-6) & others).sum())
        ranks = 1 + torch.stack(above).double()
        recall, mrr = (100 * float(values.mean()) for values in ((ranks == 1).double(), 1 / ranks))
        return {"recall_at_1": recall, "mrr": mrr}

    def save(self, folder: Path) -> None:
        """Write the tokenizer, and the pooling as sentence-transformers does."""
        super().save(folder)
        settings = self.settings
        modules = SentenceModules(
            settings.pooling,
            settings.normalise,
            self.width,
            prompts=tuple(sorted(settings.prompts.items())),
            default_prompt=settings.default_prompt,
            similarity=settings.similarity,
        )
        write_modules(folder, modules, self.config.d_model, self.config.max_positions)
