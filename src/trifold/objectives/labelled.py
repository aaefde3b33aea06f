"""What the objectives of labelled texts share: settings, encoding with its reports, examples and
batches.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from textwrap import shorten
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from trifold.data import Rows
from trifold.data.holdout import normalized
from trifold.nn import Inputs, ModelConfig, Transformer, ops
from trifold.nn.config import Shape
from trifold.nn.heads import LanguageModelHead
from trifold.nn.losses import linear_cross_entropy
from trifold.objectives.batch import LossTerm, pack_rows
from trifold.objectives.linear_path import PairRows, PathRows
from trifold.objectives.objective import (
    ENCODER,
    BuildContext,
    Objective,
    ObjectiveSettings,
    TaskBundle,
)
from trifold.ragged import Ragged
from trifold.text import Encoded, Tokenizer
from trifold.text.encoded import token_types
from trifold.text.spans import Ids

UNKNOWN = -100  # label of what is not in the loss


class LabelledSettings(ObjectiveSettings):
    """Base of the settings of a task on labelled texts. `data.columns` names the columns of its
    roles.

    reads_whole: whether the head has one output for a text, not for a token.
    """

    reads_whole: ClassVar[bool] = False
    data_kind = "table"
    command = 'predict {folder} "your text"'
    shapes: ClassVar[tuple[Shape, ...]] = ("encoder", "decoder")
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **ENCODER,
        "batch": {"on_overflow": "truncate"},
    }

    @classmethod
    def with_heads(cls, config: ModelConfig) -> ModelConfig:
        """The config, with the heads of the task and without parts of a language-model head if it
        lacks one of them.

        A head for the whole text reads what BERT's reads, or the last state of a decoder.
        """
        complete = super().with_heads(config)
        if complete is config or "lm" in cls.heads_for(config.shape):
            return complete
        update: dict[str, Any] = {"lm_head_transform": None, "lm_head_bias": False}
        if cls.reads_whole and config.shape == "decoder":
            update |= {"heads": cls.heads, "classifier_input": "last"}
        elif cls.reads_whole:
            update |= {"heads": ("pooler", *cls.heads), "classifier_input": "pooler"}
        return complete.model_copy(update=update)


# The field of each settings class whose decoders may also learn the texts.
LM_LOSS: float = Field(
    0.0,
    ge=0,
    description="decoders: weight of the loss of the next tokens of the texts, 0.5 in GPT's "
    "fine-tuning",
)


class TextLossSettings(LabelledSettings):
    """Base of the settings of tasks with one output for a text, which have a field `lm_loss`."""

    def model_problem(self, config: ModelConfig) -> str | None:
        if getattr(self, "lm_loss", 0):
            is_tied = config.tie_lm_head and config.embedding_width == config.state_width
            if config.shape != "decoder":
                return (
                    f"task.lm_loss: needs a decoder, and the model is of shape {config.shape}; "
                    "remove it"
                )
            if not is_tied:
                return (
                    "task.lm_loss: needs a language-model head that shares the table of tokens "
                    "(model.tie_lm_head); remove it"
                )
        return super().model_problem(config)


@dataclass(frozen=True)
class TextExamples:
    """Texts as tokens, with their token types and word matches, if the model reads them, and
    labels. path: what a linear path reads of the texts.
    """

    texts: Ragged
    types: Ragged | None
    labels: Any
    matches: Ragged | None = field(default=None, kw_only=True)
    path: PathRows | PairRows | None = field(default=None, kw_only=True)

    @property
    def lengths(self) -> Ids:
        """(N, 1) tokens, including special tokens."""
        return self.texts.lengths[:, None]


def report_bare_pairs(context: BuildContext, tokenizer: Tokenizer) -> None:
    """Report if a decoder reads two texts as one, because no token stands between them."""
    (row,) = tokenizer.rows(["a"], ["a"])
    texts = [text for text in row.texts if text is not None]
    if context.model.shape == "decoder" and row.texts[row.texts.index(0) :][: len(texts)] == texts:
        context.report(
            "no token stands between the two texts of a pair; tokenizer.extract=true adds a "
            "delimiter"
        )


class LabelledObjective(Objective):
    """Base of the objectives of labelled texts.

    config: names the labels. width: texts are truncated to it, unless None. report: receives what
        is left out.
    logits: of the head, for a batch. predictions: what the scores are computed from, as statistics
    of `measure`.
    """

    logits: Callable[[Transformer, Any], Tensor]
    predictions: Callable[[Tensor, Any], dict[str, Any]]

    def __init__(
        self,
        settings: LabelledSettings,
        tokenizer: Tokenizer,
        config: ModelConfig,
        width: int | None = None,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.settings = settings
        self.tokenizer = tokenizer
        self.config = config
        self.width = width
        self.report = report
        self.numbers = {name: number for number, name in enumerate(config.labels)}

    def bundle(self, context: BuildContext, train: Rows, valid: Rows) -> TaskBundle:
        """The objective and its rows, without validation rows that are too long for the model."""
        if self.width is None:
            remedy = ", or set batch.on_overflow=truncate"
            valid = context.select_readable(valid, self.examples(valid), self.row_name, remedy)
        return TaskBundle(self, self.config, train, valid)

    def encode(
        self, rows: Rows, texts: Sequence[str], pairs: Sequence[str] | None = None
    ) -> list[Encoded]:
        """The texts or pairs of the rows, whose words are compared if the model reads that."""
        compares = self.config.word_matches
        encoded = self.tokenizer.rows(texts, pairs, max_length=self.width, compares=compares)
        self.truncation.add(row.dropped for row in encoded)
        return encoded

    def pack(self, examples: TextExamples, rows: Ids, width: int | None) -> Inputs:
        """The given texts, truncated to `width` tokens if given, as one packed row."""
        types, matches = examples.types, examples.matches
        inputs, _ = pack_rows(examples.texts, rows, width, self.tokenizer, types, matches)
        if examples.path is None:
            return inputs
        return replace(inputs, features=examples.path.features(self.config, rows))

    def nll(self, logits: Tensor, batch: Any) -> Tensor:
        """The sum of - log P(label), in nats, without the labels UNKNOWN."""
        return F.cross_entropy(logits, batch.labels, ignore_index=UNKNOWN, reduction="sum")

    def loss(self, model: Transformer, batch: Any) -> dict[str, LossTerm]:
        return {"tokens": LossTerm(self.nll(self.logits(model, batch), batch), batch.tokens)}

    # --- the language model of a decoder ----------------------------------------------------------

    @property
    def lm_weight(self) -> float:
        """The weight of the loss of the texts themselves."""
        weight: float = getattr(self.settings, "lm_loss", 0.0)
        return weight

    def lm_counts(self, batch: Any) -> dict[str, int]:
        """The count of the loss of the texts: all tokens but the first of each row."""
        if not self.lm_weight:
            return {}
        packing = batch.inputs.packing
        return {"lm": packing.n_real - (len(packing.starts) - 1)}

    def output_and_lm(
        self, model: Transformer, batch: Any, head: str
    ) -> tuple[Tensor, dict[str, LossTerm]]:
        """The output of a head, and the loss of the texts if it has a weight."""
        if not self.lm_weight:
            return ops.head_output(model, batch.inputs, head), {}
        hidden = model(batch.inputs)
        output = model.apply_heads(hidden, batch.inputs, [head])[head]
        return output, self.lm_terms(model, hidden, batch)

    def lm_terms(self, model: Transformer, hidden: Tensor, batch: Any) -> dict[str, LossTerm]:
        """The loss of the texts: - Σ log P(t_i | t_<i), with the table of tokens as output layer.
        hidden (1, N, E): the states of the packed row.
        """
        inputs = batch.inputs
        packing = inputs.packing
        labels = inputs.tokens[0].roll(-1)
        labels[packing.n_real :] = -1
        labels[packing.starts[1:] - 1] = -1  # the last token of a row predicts nothing
        embeddings: Any = model.decoder_embeddings
        head = LanguageModelHead(self.config, embeddings.tokens.weight)
        sums = linear_cross_entropy(head.features(hidden[0]), head.weight, None, labels)
        return {"lm": LossTerm(sums.loss, self.lm_counts(batch)["lm"], self.lm_weight)}

    def measure(self, model: Transformer, batch: Any) -> dict[str, Any]:
        logits = self.logits(model, batch)
        sums = {"nll": float(self.nll(logits, batch)), "tokens": batch.tokens}
        return sums | self.predictions(logits, batch)

    def tokens_and_types(self, encoded: Sequence[Encoded]) -> tuple[Ragged, Ragged | None]:
        """The arguments of `TextExamples`."""
        texts = Ragged.of([row.ids for row in encoded])
        reads_types = self.tokenizer.has_token_types and self.config.reads_segments
        if not reads_types or not any(any(row.types) for row in encoded):
            return texts, None
        return texts, token_types(encoded, self.config.n_token_types)

    def report_unseen(
        self, rows: Rows, names: Iterable[str], noun: str, count: int | None = None
    ) -> None:
        """Report labels that the model does not have. count: of what they are, by default of the
        labels.
        """
        unseen = Counter(names)
        if not unseen:
            return
        number = count or unseen.total()
        if number == 1:
            noun = noun.replace("s", "", 1)  # 1 tag, 1 row with labels
        listed = shorten(", ".join(sorted(unseen)), 60, placeholder=" …")
        self.report(
            f"{rows.report.name}: {number:,} {noun} not seen in training, counted as wrong: "
            f"{listed}{self._describe_similar(sorted(unseen))}"
        )

    def _describe_similar(self, names: Sequence[str]) -> str:
        """The first name that differs from a label of the model only in case or space, with it."""
        known = {normalized(label): label for label in self.config.labels}
        for name in names:
            label = known.get(normalized(name))
            if label is not None:
                return f"; {name!r} is not {label!r}"
        return ""
