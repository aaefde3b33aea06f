"""What the objectives of labelled texts share: settings, encoding with its reports, examples and
batches.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional as F

from trifold.data import Rows
from trifold.data.holdout import normalized
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.config import Shape
from trifold.objectives.batch import LossTerm, pack_rows
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


@dataclass(frozen=True)
class TextExamples:
    """Texts as tokens, with their token types, if the model reads them, and labels."""

    texts: Ragged
    types: Ragged | None
    labels: Any

    @property
    def lengths(self) -> Ids:
        """(N, 1) tokens, including special tokens."""
        return self.texts.lengths[:, None]


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
        """The texts or pairs of the rows."""
        encoded = self.tokenizer.rows(texts, pairs, max_length=self.width)
        self.truncation.add(row.dropped for row in encoded)
        return encoded

    def pack(self, examples: TextExamples, rows: Ids, width: int | None) -> Inputs:
        """The given texts, truncated to `width` tokens if given, as one packed row."""
        return pack_rows(examples.texts, rows, width, self.tokenizer, examples.types)[0]

    def nll(self, logits: Tensor, batch: Any) -> Tensor:
        """The sum of - log P(label), in nats, without the labels UNKNOWN."""
        return F.cross_entropy(logits, batch.labels, ignore_index=UNKNOWN, reduction="sum")

    def loss(self, model: Transformer, batch: Any) -> dict[str, LossTerm]:
        return {"tokens": LossTerm(self.nll(self.logits(model, batch), batch), batch.tokens)}

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
