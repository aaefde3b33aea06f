"""Raw text as training data: reading, tokenizing, and splitting into chunks that a model can read
at once.

Base of the objectives that corrupt raw text: masked.py, sentence_pairs.py, permutation.py,
denoise.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trifold.batches.plan import plan_all
from trifold.data import DataSettings, Documents, read_documents
from trifold.errors import DataError, SettingsError
from trifold.nn import ModelConfig
from trifold.nn.config import Shape
from trifold.objectives.evaluation import Sample
from trifold.objectives.objective import (
    ENCODER,
    BuildContext,
    Objective,
    ObjectiveSettings,
    TaskBundle,
)
from trifold.ragged import Chunks, Ragged, split_into_chunks
from trifold.text import Tokenizer
from trifold.text.annotation import AnnotatedTexts, annotate, count_unknown, special_flags
from trifold.text.spans import Flags, Ids, example_rng

Cut = Literal["pieces", "windows", "drop"]
PLACEHOLDER = "_"  # stands for a hidden token in samples, if the tokenizer has no mask token


# --- settings -> rows -----------------------------------------------------------------------------


class DocumentObjectiveSettings(ObjectiveSettings):
    """Base of the settings of objectives that corrupt chunks of documents.

    append_eos: whether texts end with </s>. redraws: whether the examples of each epoch differ even
    if data.cut is not windows.
    """

    shapes: ClassVar[tuple[Shape, ...]] = ("encoder",)
    defaults = ENCODER
    append_eos: ClassVar[bool] = False
    redraws: ClassVar[bool] = False

    @staticmethod
    def required_mask(tokenizer: Tokenizer) -> int:
        """The id of the mask token. Raises SettingsError if there is none."""
        if tokenizer.mask_id is None:
            raise SettingsError(
                "tokenizer.special: the tokenizer has no mask token; set "
                "tokenizer.special=[cls, sep, mask], or, for a tokenizer.file, name a mask_token "
                "in the tokenizer_config.json next to it"
            )
        return tokenizer.mask_id

    def create(
        self, tokenizer: Tokenizer, config: ModelConfig, width: int, cut: Cut
    ) -> DocumentObjective:
        """The objective, for a model that reads `width` tokens at once."""
        raise NotImplementedError

    def read(self, source: Any, settings: DataSettings, split: str) -> Any:
        """The documents."""
        return read_documents(source, settings, split)

    def texts(self, rows: Any) -> Documents:
        """The documents that `read` has returned, as they are learned."""
        documents: Documents = rows
        return documents

    def build(self, context: BuildContext) -> TaskBundle:
        train, valid = map(self.texts, context.read(self.read))
        tokenizer = context.load_or_train_tokenizer(lambda: train.texts, append_eos=self.append_eos)
        config = context.config_for(tokenizer)
        objective = self.create(tokenizer, config, context.width, context.data.cut)
        rows, valid_rows = (
            self._annotate(objective, documents, context) for documents in (train, valid)
        )
        examples = objective.examples(valid_rows)
        plan = plan_all(examples.lengths, context.batches)
        if not any(objective.batch(examples, batch).tokens for batch in plan):
            # Every model would be perfect.
            raise DataError(
                f"{valid.report.name}: this validation text has no target tokens: documents are "
                "too short, have only unknown tokens, or are left out by data.cut=drop; name "
                "another text with data.valid, or raise data.holdout"
            )
        redraws = self.redraws or context.data.cut == "windows"
        return TaskBundle(objective, config, rows, valid_rows, lambda _epoch: redraws)

    def _annotate(
        self, objective: DocumentObjective, documents: Documents, context: BuildContext
    ) -> AnnotatedTexts:
        """Encode documents and report what is left out. Raises DataError if no document has a
        token.
        """
        name = documents.report.name
        tokenizer = objective.tokenizer
        annotated = annotate(tokenizer, documents.texts)
        if empty := int((annotated.lengths == 0).sum()):
            if empty == len(annotated):
                raise DataError(f"{name}: no document has a token; is the tokenizer for this text?")
            context.report(f"{name}: {empty:,} documents without a token: left out")
        if count := count_unknown(tokenizer, annotated.ids):
            unknown = tokenizer.names["unk_token"]
            total = len(annotated.ids)
            use = "inputs and targets" if self.append_eos else "inputs, but never targets"
            context.report(f"{name}: {count:,} of {total:,} tokens are unknown ({unknown}): {use}")
        try:
            for line in objective.describe(annotated):
                context.report(f"{name}: {line}")
        except DataError as error:
            raise DataError(f"{name}: {error}") from None
        return annotated


# --- chunks of annotated documents ----------------------------------------------------------------


@dataclass(frozen=True)
class DocumentChunks:
    """Examples: chunks of documents. n_special: the special tokens that are added to each."""

    documents: Ragged
    chunks: Chunks
    n_special: int = 0

    def __len__(self) -> int:
        return len(self.chunks.sizes)

    @property
    def lengths(self) -> Ids:
        """(N, 1) tokens, including special tokens."""
        return self.chunks.sizes[:, None] + self.n_special

    @property
    def ids(self) -> NDArray[np.int32]:
        """The tokens of all documents."""
        return self.documents.ids

    def select(self, rows: Ids) -> Chunks:
        return Chunks(self.chunks.starts[rows], self.chunks.sizes[rows])

    def __getitem__(self, row: int) -> tuple[Ids, Flags, Flags]:
        """Ids of one chunk of annotated documents, and flags at the first tokens of words and of
        sentences.
        """
        start = self.chunks.starts[row]
        documents = self.documents
        assert isinstance(documents, AnnotatedTexts)
        part = slice(start, start + self.chunks.sizes[row])
        ids = documents.ids[part].astype(np.int64)
        return ids, documents.word_starts[part], documents.sentence_starts[part]


class SpecialTokens(NamedTuple):
    """Special tokens before, between and after one or two texts."""

    before: Ids = np.zeros(0, np.int64)
    between: Ids = np.zeros(0, np.int64)
    after: Ids = np.zeros(0, np.int64)
    segments: tuple[int, int, int] = (0, 0, 0)  # of the second text, of `between` and of `after`

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, pair: bool = False) -> SpecialTokens:
        """Those that the tokenizer adds to a text, or to a pair of texts."""
        row = tokenizer.rows(["a"], ["a"] if pair else None)[0]
        first = [token for token, text in enumerate(row.texts) if text == 0]
        last = [token for token, text in enumerate(row.texts) if text == int(pair)]
        parts = (slice(first[0]), slice(first[-1] + 1, last[0]), slice(last[-1] + 1, None))
        before, between, after = (np.array(row.ids[part], dtype=np.int64) for part in parts)
        of_between, of_after = ((row.types[part] or [0])[-1] for part in parts[1:])
        return cls(before, between, after, (row.types[last[0]], of_between, of_after))

    @property
    def size(self) -> int:
        """Number of special tokens."""
        return len(self.before) + len(self.between) + len(self.after)

    def around(self, ids: Ids) -> Ids:
        """A text with its special tokens."""
        return np.concatenate([self.before, ids, self.after])

    def inside(self, length: int) -> slice:
        """Where the text is in a row of `length` tokens."""
        return slice(len(self.before), length - len(self.after))

    def sample(self, tokenizer: Tokenizer, *rows: Ids) -> Sample:
        """Source, reference and output as text; tokens -1 become a placeholder."""
        texts = []
        for row in rows:
            ids = row[self.inside(len(row))]
            parts = [part[part != -1].tolist() for part in np.split(ids, np.flatnonzero(ids == -1))]
            texts.append(PLACEHOLDER.join(tokenizer.decode(parts, keep_special=True)))
        return Sample(*texts)


# --- objective ------------------------------------------------------------------------------------


class DocumentObjective(Objective):
    """Base of objectives that corrupt chunks of documents.

    special: tokens added to each chunk. room: tokens of a chunk without them. is_special (V,):
        flags of the vocabulary.
    reads_pairs: whether examples are pairs of texts.
    """

    reads_pairs = False

    def __init__(
        self, settings: Any, tokenizer: Tokenizer, width: int, cut: Cut = "pieces"
    ) -> None:
        self.settings = settings
        self.tokenizer = tokenizer
        self.cut = cut
        self.special = SpecialTokens.of(tokenizer, pair=self.reads_pairs)
        if settings.append_eos:
            self.special = SpecialTokens(after=np.array([tokenizer.required("eos")]))
        self.is_special = special_flags(tokenizer)
        self.room = width - self.special.size
        if self.room < 1 + self.reads_pairs:
            texts = "two texts" if self.reads_pairs else "a text"
            raise SettingsError(
                f"model.max_positions: {width} tokens leave no room for {texts} beside special "
                "tokens; raise it"
            )

    def examples(self, rows: AnnotatedTexts, draw: int | None = None) -> Any:
        """Chunks of the documents. With `draw` and windows, the first chunk of a longer document
        has a random size, so that the boundaries change from draw to draw.
        """
        first = None
        if self.cut == "windows" and draw is not None:
            first = example_rng(draw, 2**63).integers(1, self.room + 1, size=len(rows))
        drop = self.cut == "drop"
        chunks = split_into_chunks(
            rows.starts[:-1], rows.lengths, self.room, first=first, drop=drop
        )
        return DocumentChunks(rows, chunks, self.special.size)

    def with_special(
        self, examples: DocumentChunks, row: int, width: int | None = None
    ) -> tuple[Ids, Flags]:
        """One example with special tokens, truncated to `width` tokens if given, and flags at first
        tokens of words.
        """
        ids, words, _ = examples[row]
        room = len(ids)
        if width is not None:
            room = max(0, width - self.special.size)
        whole = self.special.around(ids[:room])
        starts = np.zeros(len(whole), np.bool_)
        starts[self.special.inside(len(whole))] = words[:room]
        return whole, starts

    def describe(self, documents: AnnotatedTexts) -> Iterator[str]:
        """Lines about documents that are split or left out."""
        return describe_long(documents.lengths, documents.lengths > self.room, self.room, self.cut)


def describe_long(lengths: Ids, long: Flags, size: int, cut: Cut) -> Iterator[str]:
    """A line about the documents that are longer than the model reads at once, if there are any."""
    if long.any():
        treatment = {
            "pieces": f"split into pieces of {size:,}",
            "windows": f"split into pieces of {size:,}, at other positions in each epoch",
            "drop": f"left out, with {int(lengths[long].sum()):,} tokens",
        }[cut]
        yield (
            f"{int(long.sum()):,} of {len(lengths):,} documents have more than {size:,} "
            f"tokens: {treatment}"
        )
