"""Sentence embeddings: texts that belong together get vectors with a high cosine.

rows -> example    two or three texts, and a score of the first two, if any
example -> batch   packed texts
loss               of the pooled vectors of all rows of an update: ranking, cosent; or of each row:
                   cosine, triplet
scores             Pearson and Spearman of the cosine; accuracy of triplets; or recall at 1 and mean
                   reciprocal rank
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
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
from trifold.data.roles import MISSING, check_text
from trifold.data.settings import Source
from trifold.errors import DataError, SettingsError
from trifold.hub.sentence_transformers import SentenceModules, write_modules
from trifold.nn import ModelConfig, Transformer
from trifold.nn.precision import widened
from trifold.objectives.batch import Batch, LossTerm
from trifold.objectives.labelled import LabelledObjective, LabelledSettings, TextExamples
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


# --- settings -> rows -----------------------------------------------------------------------------


class EmbedSettings(LabelledSettings):
    """Settings of embeddings; `data.columns` names the columns of text, pair, negative and label (a
    score).
    """

    pipeline_tag = "sentence-similarity"
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
        config = super().with_heads(config)
        if config.shape == "encoder" and config.n_token_types > 0:
            return config
        return config.model_copy(update={"heads": ()})

    def build(self, context: BuildContext) -> TaskBundle:
        train, valid = context.read(_read_rows)
        filled = {
            role
            for role, values in train.columns.items()
            if any(value is not None for value in values)
        }
        has_scores = "label" in filled
        loss = self._choose_loss(filled)
        context.report(f"loss: {loss}")
        context.report(f"pooling: {self.pooling}{', normalized' * self.normalise}")
        roles = ["text", "pair"]
        if "negative" in filled and NEEDED[loss] != "label":
            roles.append("negative")
        _texts(train, roles)
        tokenizer = context.load_or_train_tokenizer(
            lambda: chain(*(train.columns[role] for role in roles))
        )
        config = context.config_for(tokenizer)
        prompts = self._prompts(train, roles, context.report)
        if loss == "ranking":
            _report_shared(context, train, roles)
        top = None
        if has_scores:
            top = float(max(1, *abs(read_numbers(train))))
            check_commas(train)
        best_by = self._choose_score(roles, has_scores=has_scores)
        objective = Embed(
            self.model_copy(update={"loss": loss, "best_by": best_by}),
            tokenizer,
            config,
            context.text_width,
            context.report,
            roles=roles,
            prompts=prompts,
            top=top,
        )
        return objective.bundle(context, train, valid)

    def _choose_loss(self, filled: Collection[str]) -> str:
        """The loss for rows with these roles. Raises SettingsError if they lack one that it
        requires.
        """
        loss: str = self.loss
        if loss == "auto":
            loss = "cosent" if "label" in filled else "ranking"
        needed = NEEDED[loss]
        if needed not in filled:
            raise SettingsError(f"task.loss: {loss} requires a column; set data.columns.{needed}")
        return loss

    def _choose_score(self, roles: Sequence[str], *, has_scores: bool) -> str:
        """What selects the best weights: the score of such rows, or the loss."""
        if self.best_by != "auto":
            return self.best_by
        if has_scores:
            return "pearson"
        return "accuracy" if len(roles) == 3 else "mrr"

    def _prompts(
        self, rows: Rows, roles: Sequence[str], report: Callable[[str], None]
    ) -> dict[str, str]:
        """Role -> text before its texts. Raises SettingsError for unknown names."""
        known = ", ".join(self.prompts) or "none; set task.prompts"
        named = {f"prompt_of.{column}": name for column, name in self.prompt_of.items()}
        if self.default_prompt is not None:
            named = {"default_prompt": self.default_prompt, **named}
        for key, name in named.items():
            if name not in self.prompts:
                raise SettingsError(f"task.{key}: {name!r} is no prompt; known: {known}")
        role_of = {rows.report.columns.get(role): role for role in roles}
        role_of |= {role: role for role in roles}
        for key in self.prompt_of:
            if key not in role_of:
                raise SettingsError(
                    f"task.prompt_of.{key}: no column of texts{nearest(key, [*roles])}"
                )
        prompts = {role_of[key]: self.prompts[name] for key, name in self.prompt_of.items()}
        if prompts:
            used = ", ".join(f"{role} {text!r}" for role, text in prompts.items())
            report(f"prompts: {used}")
        elif unused := [name for name, text in self.prompts.items() if text]:
            report(
                f"prompts of the model, not used in training: {', '.join(unused)}; set "
                f"task.prompt_of.text={unused[0]} to use one"
            )
        return prompts


def _read_rows(source: Source, data: DataSettings, split: str) -> Rows:
    """The rows. Raises SettingsError if their labels are classes of inference."""
    rows = read_records(source, data, COLUMNS, split)
    text, label = (rows.report.columns.get(role, "").casefold() for role in ("text", "label"))
    if text == "premise" and label in CLASSES and "label" not in data.columns:
        raise SettingsError(
            f"data.columns.label: {label!r} of a premise and a hypothesis is a class, not a "
            "score; name a column of scores, or keep the rows of entailment and set "
            "data.columns.label=null"
        )
    return rows


def _texts(rows: Rows, roles: Sequence[str]) -> list[str]:
    """The texts of each row in turn. Raises DataError for a missing one."""
    texts = [*chain(*zip(*(rows.columns[role] for role in roles), strict=True))]
    if None in texts:
        place = f"{rows.report.name}:{rows.lines[texts.index(None) // len(roles)]}"
        raise DataError(f"{place}: a text is missing; give all rows the same columns")
    return texts


def _numbered(texts: list[str], roles: Sequence[str]) -> Ids:
    """(N, sides) a number for each text, equal for texts that differ in case and space only."""
    numbers: dict[str, int] = {}
    numbered = [numbers.setdefault(normalized(text), len(numbers)) for text in texts]
    return np.array(numbered, dtype=np.int64).reshape(-1, len(roles))


def _report_shared(context: BuildContext, rows: Rows, roles: Sequence[str]) -> None:
    """Report how many rows have a text that is no negative of another row."""
    shared = _count_shared(_numbered(_texts(rows, roles), roles))
    if shared:
        context.report(
            f"{shared:,} of {len(rows):,} rows share a text with another row: in a batch, "
            "equal texts are no negatives of each other"
        )


def _count_shared(numbers: Ids) -> int:
    """The rows of which a text is no negative of another row: that has the same first or second
    text, or its first text as second one.
    """
    first = numbers[:, 0]
    second = numbers[:, 1]
    firsts, seconds = (np.bincount(side, minlength=numbers.max() + 1) for side in (first, second))
    others = seconds[first] - (first == second)
    return int(((firsts[first] > 1) | (seconds[second] > 1) | (others > 0)).sum())


# --- examples, batches ----------------------------------------------------------------------------


@dataclass(frozen=True)
class RelatedTextExamples(TextExamples):
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


class Embed(LabelledObjective):
    """Embeddings. roles: the columns of texts. prompts: role -> text before its texts. top: the
    largest score of training, which becomes 1; None: no scores.
    """

    token_name = row_name = "rows"
    loss_unit = "per row"

    def __init__(
        self,
        settings: EmbedSettings,
        *parts: Any,
        roles: Sequence[str],
        prompts: Mapping[str, str] | None = None,
        top: float | None = None,
    ) -> None:
        super().__init__(settings, *parts)
        self.gathers = settings.loss in ("ranking", "cosent")
        self.roles = roles
        self.prompts = prompts or {}
        self.top = top

    def examples(self, rows: Rows, draw: int | None = None) -> RelatedTextExamples:
        """Encode texts. Raises DataError for a missing text or score."""
        texts = _texts(rows, self.roles)
        scores = np.zeros(len(rows), np.float32)
        if self.top is not None:
            scores = read_numbers(rows) / self.top
        prompts = cycle([self.prompts.get(role, "") for role in self.roles])
        prompted = [prompt + text for prompt, text in zip(prompts, texts, strict=False)]
        tokens, types = self.tokens_and_types(self.encode(rows, prompted))
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
        real = packing.attend
        if real is None:
            real = hidden.new_ones(packing.shape, dtype=torch.bool)
        vectors = widened(POOLINGS[self.settings.pooling](hidden, real))
        if self.settings.normalise:
            vectors = F.normalize(vectors, dim=-1)
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
        positives = (others == first) | torch.isin(first * LARGEST + others, pairs)
        positives[:, : len(table)].fill_diagonal_(False)
        return positives

    def loss(self, model: Transformer, batch: RelatedTextBatch) -> dict[str, LossTerm]:
        """The loss times the rows; of a part of a global batch, a term with the same gradient."""
        table = self.table(model, batch)
        rows = batch.tokens
        if batch.gradient is None:
            return {"tokens": LossTerm(self.table_loss(table) * rows, rows)}
        total = torch.tensor(batch.value * rows, dtype=torch.float64)
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
        ranks = _rank_seconds(unit, cosines, first=table[:, 1], second=table[:, 2])
        is_first = (ranks == 1).double()
        return {
            "recall_at_1": 100 * float(is_first.mean()),
            "mrr": 100 * float((1 / ranks).mean()),
        }

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


def _rank_seconds(unit: Tensor, cosines: Tensor, *, first: Tensor, second: Tensor) -> Tensor:
    """(N,) the rank of the second text of each row, from 1, among the second texts of all rows by
    their cosine with its first text, without other texts that belong to the latter.

    unit (N, sides, E): vectors of length 1. cosines (N, 1): of the first and the second text.
    first, second (N,): numbers of the texts.
    """
    above = []
    for row, (query, cosine) in enumerate(zip(unit[:, 0], cosines, strict=True)):
        others = (second != first[row]) & ~torch.isin(second, second[first == first[row]])
        above.append(((unit[:, 1] @ query > cosine + 1e-6) & others).sum())
    return 1 + torch.stack(above).double()
