"""Causal (left-to-right) language model (Shannon 1948; Bengio et al. 2003; Radford et al. 2018).

rows -> example    a document [<s> +] tokens [+ </s>], in chunks of the model's width
example -> batch   inputs: all tokens of a chunk but the last; labels: all but the first
loss               - Σ log P(t_i | t_<i) over the labels
scores             perplexity, bits per byte, accuracy

Chunks are packed without padding and do not attend to each other. A chunk begins at position 0 with
the last token of the chunk before it, so that every token of a document but its first is a label
exactly once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from trifold.batches import Blocks
from trifold.data import (
    DataSettings,
    Encoder,
    Side,
    TokenCache,
    open_tokens,
    read_documents,
    sample_documents,
)
from trifold.data.files import FORMATS, is_dataset
from trifold.data.lines import inner_suffix
from trifold.data.reports import DocumentReport
from trifold.errors import DataError, SettingsError
from trifold.generation_config import GenerationConfig
from trifold.nn import ModelConfig, Transformer
from trifold.nn.packing import Packing
from trifold.nn.parts import AttentionPart, part_of
from trifold.objectives.batch import Batch, LossTerm, measure_tokens, pack, pad_end, token_loss
from trifold.objectives.documents import Cut, DocumentChunks, describe_long
from trifold.objectives.evaluation import EvalContext, EvalRun, Evaluation, Sample
from trifold.objectives.objective import BuildContext, Objective, ObjectiveSettings, TaskBundle
from trifold.objectives.routers import RouterLoss
from trifold.predict.generate_texts import generate_rows
from trifold.ragged import Ragged, positions, split_into_chunks
from trifold.text import Tokenizer
from trifold.text.annotation import count_unknown
from trifold.text.spans import Ids
from trifold.text.vocabulary import BYTE_ALPHABET

PROMPT_LENGTH = 16  # tokens of a validation document that a sample continues
SAMPLE_LENGTH = 128  # new tokens of a sample by default
TRAINED_ON = 50_000_000  # characters, from all over a cached text, that a tokenizer is trained on
MANY_BLANK = 0.02  # share of blank lines from which on they seem to separate paragraphs
# Default weights (Fedus et al. 2022, Zoph et al. 2022).
ROUTERS = {"balance": 0.01, "router_z": 0.001}
_SCAN = 1 << 20  # document starts that are read at once
_BYTE = re.compile("<0x[0-9A-F]{2}>")  # a token that stands for a byte

# --- settings -> rows -----------------------------------------------------------------------------


class CausalSettings(ObjectiveSettings):
    """Settings of a causal language model."""

    pipeline_tag = "text-generation"
    supports_cache = True
    shapes = ("decoder",)
    defaults = {"model": {"preset": "gpt2"}}  # noqa: RUF012

    kind: Literal["causal"] = "causal"
    best_by: Literal["loss", "accuracy"] = "loss"
    begin: bool = Field(
        True, description="prepend <s> to each document, so that its first token is a label"
    )
    end: bool = Field(
        True, description="append </s> to each document, so that the model learns to stop"
    )
    balance_loss: float | None = Field(
        None,
        ge=0,
        description="models with experts: weight of the loss that makes experts equally "
        "frequent in each row; default: 0.01",
    )
    router_z_loss: float | None = Field(
        None,
        ge=0,
        description="models with experts: weight of the loss that keeps the logits of routers "
        "small; default: 0.001",
    )
    prompts: tuple[str, ...] = Field(
        (),
        strict=False,
        description="texts that validation samples continue; by default beginnings of "
        "validation documents",
    )

    def model_problem(self, config: ModelConfig) -> str | None:
        unused = [key for key in ("balance_loss", "router_z_loss") if getattr(self, key)]
        if unused and not config.expert_layers:
            return (
                f"model.experts: missing, and task.{unused[0]} needs layers with experts; "
                "set it, or remove the key"
            )
        return super().model_problem(config)

    def router_loss(self, config: ModelConfig) -> RouterLoss:
        """The loss of the routers of a model, with the weights of the literature where the settings
        give none.
        """
        if not config.expert_layers:
            return RouterLoss({}, 0)
        given = {"balance": self.balance_loss, "router_z": self.router_z_loss}
        weights = ROUTERS | {name: weight for name, weight in given.items() if weight is not None}
        return RouterLoss(
            {name: weight for name, weight in weights.items() if weight}, config.expert_layers
        )

    def build(self, context: BuildContext) -> TaskBundle:
        context.require_data()
        if context.data.cache is None:
            loaded = self._read_into_memory(context)
        else:
            loaded = self._open_cache(context)
        objective, train, valid, name = loaded
        tokenizer = objective.tokenizer
        width = objective.width
        redraws = context.data.cut == "windows"
        for line in _describe_unknown(tokenizer, valid):
            context.report(f"{name}: {line}; bits per byte is undefined with unknown tokens")
        if not (valid.tokens.lengths > 1).any():
            raise DataError(
                f"{name}: no validation document has two tokens, so there are no labels"
            )
        if long := sum(len(ids) + self.begin > width for ids in tokenizer.encode(self.prompts)):
            context.report(
                f"task.prompts: {long:,} have more than {width:,} tokens and are truncated"
            )
        return TaskBundle(
            objective, context.config_for(tokenizer), train, valid, lambda _epoch: redraws
        )

    def _objective(self, tokenizer: Tokenizer, context: BuildContext) -> Causal:
        config = context.model
        penalty = part_of(AttentionPart, config).penalty_weight(config)
        return Causal(self, tokenizer, context.width, self.router_loss(config), penalty)

    def _read_into_memory(self, context: BuildContext) -> LoadedTexts:
        """Training and validation text in memory."""
        train, valid = context.read(read_documents)
        tokenizer = context.load_or_train_tokenizer(lambda: train.texts, prepend_bos=self.begin)
        objective = self._objective(tokenizer, context)
        documents = objective.encode(train.texts)._replace(cut=context.data.cut)
        name = train.report.name
        lengths = documents.tokens.lengths
        if empty := int(np.count_nonzero(lengths == 0)):
            context.report(f"{name}: {empty:,} documents without a token: left out")
        held_out = objective.encode(valid.texts)
        for line in (
            *_describe_lines(context.data, train.report),
            *describe_long(lengths, lengths - 1 > objective.width, objective.width, documents.cut),
            *self._describe_unlabelled(documents.tokens.starts),
            *_describe_unknown(tokenizer, documents),
        ):
            context.report(f"{name}: {line}")
        context.report(_describe_unit(held_out, count_unknown(tokenizer, held_out.tokens.ids)))
        return LoadedTexts(objective, documents, held_out, valid.report.name)

    def _open_cache(self, context: BuildContext) -> LoadedTexts:
        """As `_read_into_memory`, with the training text in a cache on disk, which is created if it
        does not exist.
        """
        data = context.data
        if data.cut == "drop":
            raise SettingsError(
                "data.cut: drop is not supported with data.cache; use pieces or windows"
            )
        side: Side = "train" if data.holdout else "all"
        tokenizer = context.load_or_train_tokenizer(
            lambda: _sample_texts(context, side), prepend_bos=self.begin
        )
        objective = self._objective(tokenizer, context)
        train = _open_side(context, objective, side)
        for line in self._describe_unlabelled(train.starts):
            context.report(f"{train.report.name}: {line}")
        if data.valid is None:
            valid = _open_side(context, objective, "valid")
            tokens = Ragged(valid.ids[:].astype(np.int32), valid.starts[:])
            documents = EncodedDocuments(tokens, valid.bytes)
            return LoadedTexts(objective, train, documents, valid.report.name)
        in_memory = data.model_copy(update={"cache": None})
        texts = read_documents(data.valid, in_memory, split="valid")
        context.report(str(texts.report))
        return LoadedTexts(objective, train, objective.encode(texts.texts), texts.report.name)

    def _describe_unlabelled(self, starts: Any) -> Iterator[str]:
        """Lines about tokens that are never labels, however the documents are split."""
        if not self.begin:
            yield (
                f"the first token of each of {len(starts) - 1:,} documents is never a label "
                "(set task.begin=true to include it)"
            )
        # With <s> and </s> every document has two tokens, so the starts need not be read from the
        # disk.
        if not (self.begin and self.end) and (short := _count_single_tokens(starts)):
            yield f"{short:,} documents of a single token: no label in them"


def _describe_lines(data: DataSettings, report: DocumentReport) -> Iterator[str]:
    """A line about plain text whose blank lines seem to separate paragraphs, read line by line."""
    if "documents" in data.model_fields_set or not _is_plain_text(data):
        return
    if report.blank > MANY_BLANK * report.documents:
        yield (
            "each line is a document of its own, so the model learns no line breaks; for "
            "continuous text set data.documents=blank (paragraphs) or file (the whole text)"
        )


def _is_plain_text(data: DataSettings) -> bool:
    """Whether the names of the training data are those of files or folders of plain text."""
    names = [data.train] if isinstance(data.train, str) else data.train or []
    is_dataset_named = any(map(is_dataset, names))
    kinds = {FORMATS.get(inner_suffix(name), "text") for name in names}
    return data.format in ("auto", "text") and kinds == {"text"} and not is_dataset_named


def _describe_unit(documents: EncodedDocuments, unknown: int) -> str:
    """The line about what a perplexity is of, and what compares runs. unknown: tokens."""
    size = documents.bytes / max(1, int(documents.tokens.lengths.sum()))
    remedy = "by bits per byte"
    if unknown:
        remedy = "with tokenizer.kind=byte-bpe, which has no unknown tokens, by bits per byte"
    return (
        f"perplexity is per token of the vocabulary, here of {size:.1f} bytes; compare runs with "
        f"other vocabularies {remedy}"
    )


def _sample_texts(context: BuildContext, side: Side) -> list[str]:
    """Documents from all over the text of a cache, for a new tokenizer. Reports their size."""
    data = context.data
    assert data.train is not None
    texts = sample_documents(data.train, data, TRAINED_ON, side=side, seed=context.seed)
    context.report(
        f"tokenizer: trained on {sum(map(len, texts)):,} characters of {len(texts):,} documents"
    )
    return texts


def _open_side(context: BuildContext, objective: Causal, side: Side) -> TokenCache:
    """The training or the held-out side of a cache. Reports its size."""
    data = context.data
    report = context.report
    assert data.train is not None
    cache = open_tokens(
        data.train, data, objective.encoder, side=side, seed=context.seed, report=report
    )
    report(f"{cache.report}, {len(cache.ids):,} tokens in {cache.folder}")
    if cache.empty:
        report(f"{cache.report.name}: {cache.empty:,} documents without a token: left out")
    return cache


def _count_single_tokens(starts: Any) -> int:
    """Documents of one token. The starts may not fit into memory and are read in parts."""
    parts = (starts[first : first + _SCAN + 1] for first in range(0, len(starts) - 1, _SCAN))
    return sum(int(np.count_nonzero(np.diff(part) == 1)) for part in parts)


def _describe_unknown(tokenizer: Tokenizer, documents: EncodedDocuments) -> Iterator[str]:
    if count := count_unknown(tokenizer, documents.tokens.ids):
        unknown = tokenizer.names["unk_token"]
        total = len(documents.tokens.ids)
        yield f"{count:,} of {total:,} tokens are unknown: input and label are {unknown}"


# --- examples, batches ----------------------------------------------------------------------------


class EncodedDocuments(NamedTuple):
    """Encoded documents with their special tokens.

    bytes: UTF-8 bytes of the text that the labels stand for. cut: treatment of documents that are
    too long.
    """

    tokens: Ragged
    bytes: int
    cut: Cut = "pieces"


class LoadedTexts(NamedTuple):
    """The text of an experiment and the objective that reads it. train: in memory, or in a cache on
    disk. name: that of the validation text.
    """

    objective: Causal
    train: EncodedDocuments | TokenCache
    valid: EncodedDocuments
    name: str


@dataclass(frozen=True)
class TokenStream(Blocks):
    """A corpus on disk in rows of equal width. The last token of a document is no input, the first
    one no target.
    """

    ids: Any = None  # indexed like an array of integers


def chunk_documents(
    tokens: Ragged, width: int, cut: Cut = "pieces", draw: int | None = None
) -> DocumentChunks:
    """Chunks of at most `width` inputs, whose labels are one token later.

    With `draw` and windows, long documents begin with a chunk of a random size.
    """
    first = None
    if cut == "windows" and draw is not None:
        # numpy keeps raw bits the same in all versions. The bias of a remainder of 64 bits is
        # negligible.
        drawn = np.random.Philox(key=[draw, 0]).random_raw(len(tokens)) % np.uint64(width)
        first = drawn.astype(np.int64) + 1
    labels = np.maximum(tokens.lengths - 1, 0)
    chunks = split_into_chunks(tokens.starts[:-1], labels, width, first=first, drop=cut == "drop")
    return DocumentChunks(tokens, chunks)


class Causal(Objective):
    """Causal language model. width: tokens that the model reads at once. routers: the loss of its
    routers, if any. penalty: the weight of that of its attention (`AttentionPart.penalty`).
    """

    row_name = "pieces"
    predicts_tokens = True

    def __init__(
        self,
        settings: CausalSettings,
        tokenizer: Tokenizer,
        width: int,
        routers: RouterLoss | None = None,
        penalty: float = 0.0,
    ) -> None:
        self.settings: CausalSettings = settings
        self.tokenizer = tokenizer
        self.width = width
        self.routers = routers or RouterLoss({}, 0)
        self.penalty = penalty
        self.before = [tokenizer.required("bos")] if settings.begin else []
        # Other programs begin a text in the same way.
        self.save_options = {"prepend_bos": settings.begin}

    def encode(self, texts: Sequence[str]) -> EncodedDocuments:
        """Documents as tokens, with <s> and </s> as the settings specify."""
        after = [self.tokenizer.required("eos")] if self.settings.end else []
        encoded = self.tokenizer.encode(texts)
        tokens = Ragged.of([[*self.before, *ids, *after] for ids in encoded])
        return EncodedDocuments(tokens, self._count_bytes(texts, encoded))

    def _count_bytes(self, texts: Sequence[str], encoded: Sequence[Sequence[int]]) -> int:
        """UTF-8 bytes of the texts that the labels stand for."""
        # Tokenizers may lose capitals or repeated spaces, which are not predicted, or insert
        # spaces.
        decoded = self.tokenizer.decode(encoded)
        size = 0
        for text, copy in zip(texts, decoded, strict=True):
            size += min(len(text.encode()), len(copy.encode()))
        if self.before:
            return size
        # The first token of a document is not predicted.
        alone = self.tokenizer.decode([ids[:1] for ids in encoded])
        for text, ids, first in zip(texts, encoded, alone, strict=True):
            if ids:
                token = str(self.tokenizer.library.id_to_token(ids[0]))
                size -= _first_token_bytes(text, token, first)
        return size

    @property
    def encoder(self) -> Encoder:
        """How a cache encodes its text, with a key that names all that the tokens depend on."""
        settings = self.settings
        digest = self.tokenizer.encoding_digest
        # 3: version of the byte count.
        key = f"causal begin={settings.begin} end={settings.end} bytes=3 {digest}"
        return Encoder(self._encode_for_cache, key, self.tokenizer.vocab_size)

    def _encode_for_cache(
        self, texts: Sequence[str]
    ) -> tuple[NDArray[np.integer], NDArray[np.int64], int]:
        """The tokens of documents, concatenated; their lengths; and their bytes."""
        documents = self.encode(texts)
        return documents.tokens.ids, documents.tokens.lengths, documents.bytes

    def examples(
        self, rows: EncodedDocuments | TokenCache, draw: int | None = None
    ) -> DocumentChunks | TokenStream:
        """Chunks; with `draw` and a cache or windows, at other positions for each draw."""
        if isinstance(rows, TokenCache):
            return TokenStream(
                rows.starts, self.width, (draw or 0) % self.width, skip_last=1, ids=rows.ids
            )
        return chunk_documents(rows.tokens, self.width, rows.cut, draw)

    def batch(self, examples: Any, rows: Ids, width: int | None = None, *, draw: int = 0) -> Batch:
        """Pack the given chunks; labels (N,): the token after each position of the packed row, -1
        in padding.
        """
        chunks = examples.select(rows)
        sizes = chunks.sizes
        if width is not None:
            sizes = np.minimum(sizes, width)
        indices = positions(chunks.starts, sizes)
        inputs, packing = pack(
            examples.ids[indices], sizes, self.tokenizer.padding_id, always_pad=False
        )
        return Batch(inputs, pad_end(examples.ids[indices + 1], packing.length, -1), packing.n_real)

    # --- loss, scores -----------------------------------------------------------------------------

    def counts(self, batch: Batch) -> dict[str, int]:
        assert isinstance(batch.inputs.packing, Packing)
        counts = super().counts(batch) | self.routers.counts(batch.inputs.packing)
        if self.penalty:
            counts["penalty"] = batch.tokens
        return counts

    def loss(self, model: Transformer, batch: Batch) -> dict[str, LossTerm]:
        if not self.penalty:
            return self._token_loss(model, batch)
        with part_of(AttentionPart, model.config).penalty(model) as penalty:
            terms = self._token_loss(model, batch)
        # The same for every token, so that it does not depend on how a batch is divided.
        each = penalty() * batch.tokens
        return terms | {"penalty": LossTerm(each, batch.tokens, self.penalty)}

    def _token_loss(self, model: Transformer, batch: Batch) -> dict[str, LossTerm]:
        """The loss of the next tokens, and that of routers."""
        states, terms = self.routers.run(model, batch.inputs)
        return {"tokens": token_loss(model, states[0], batch)} | terms

    def token_states(self, model: Transformer, batch: Batch) -> Tensor:
        states: Tensor = model(batch.inputs)[0]
        return states

    def measure(self, model: Transformer, batch: Batch) -> dict[str, Any]:
        return measure_tokens(model, self.token_states(model, batch), batch)

    def compute_scores(self, run: EvalRun) -> Evaluation:
        scores = {"perplexity": run.perplexity}
        rows = run.rows
        if not count_unknown(self.tokenizer, rows.tokens.ids):  # whose bytes are not predicted
            scores["bits_per_byte"] = run.sums["nll"] / math.log(2) / max(rows.bytes, 1)
        scores |= self.scores_of_sums(run.sums)
        return Evaluation(scores, self.samples(run.model, rows, run.context))

    # --- samples ---------------------------------------------------------------------------------

    def samples(
        self, model: Transformer, rows: EncodedDocuments, context: EvalContext
    ) -> list[Sample]:
        """Sampled continuations of the recipe's prompts, or of beginnings of the rows; a function
        of the seed.
        """
        prompts = self._prompts(rows, context.samples)
        if not len(prompts):
            return []
        config = _sampling(context.generation, context.seed)
        continuations = generate_rows(
            model, prompts, config, codec=self.tokenizer, poll=context.poll
        )
        starts = prompts.tolist()
        texts = self.tokenizer.decode(starts)
        # Prompt and output are decoded together, because a space may join them.
        outputs = [
            start + best[0].tokens for start, best in zip(starts, continuations, strict=True)
        ]
        pairs = zip(texts, self.tokenizer.decode(outputs), strict=True)
        return [Sample(text, None, full[len(text) :]) for text, full in pairs]

    def _prompts(self, rows: EncodedDocuments, count: int) -> Ragged:
        """Tokens of the recipe's prompts, or the beginnings of `count` documents or chunks."""
        if self.settings.prompts:
            encoded = self.tokenizer.encode(self.settings.prompts[:count])
            return Ragged.of(
                [[*self.before, *ids][: self.width] for ids in encoded if self.before or ids]
            )
        chunks = chunk_documents(rows.tokens, self.width).chunks
        starts = chunks.starts
        sizes = chunks.sizes
        if len(rows.tokens) >= count:
            first = np.isin(starts, rows.tokens.starts)
            starts = starts[first]
            sizes = sizes[first]
        count = min(count, len(starts))
        chosen = np.arange(count) * len(starts) // max(count, 1)
        most = max(1, min(PROMPT_LENGTH, self.width // 2))
        ids = rows.tokens.ids
        # At most half a document, which the model continues and has not been given.
        given = [min(max(1, int(sizes[n]) // 2), most) for n in chosen]
        return Ragged.of(
            [
                ids[starts[n] : starts[n] + size].tolist()
                for n, size in zip(chosen, given, strict=True)
            ]
        )


def _first_token_bytes(text: str, token: str, decoded: str) -> int:
    """UTF-8 bytes of a text that its first token stands for; the token alone decodes to
    `decoded`.
    """
    size = len(decoded.encode())
    if "\ufffd" in decoded:  # part of a character
        if _BYTE.fullmatch(token):
            size = 1
        elif BYTE_ALPHABET.keys() >= set(token):
            size = len(token)
    inserted = decoded.startswith(" ") and not text.startswith(" ")  # a space, by the tokenizer
    return size - inserted


def _sampling(config: GenerationConfig, seed: int) -> GenerationConfig:
    """The recipe's generation options; samples by default, because greedy continuations are
    repetitive.
    """
    options = config.model_dump(exclude_unset=True)
    searches = config.num_beams > 1 or config.penalty_alpha is not None or config.do_sample is False
    if not searches:
        options["do_sample"] = True
        if config.seed is None:
            options["seed"] = seed
    if config.max_new_tokens is None and config.max_length is None:
        options["max_new_tokens"] = SAMPLE_LENGTH
    return GenerationConfig.parse(options)
