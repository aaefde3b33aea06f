"""Tagging of words: one tag per word of a sentence, such as B-PER, I-PER and O.

rows -> example    words joined by spaces, as tokens; the first token of each word has the number of
                   its tag
example -> batch   packed sentences
loss               - Σ log P(tag | sentence) over the first tokens
predictions        the classes of the first tokens of words, as `predict.tag` chooses them
scores             precision, recall and F1 of entities; accuracy of the tags
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from operator import eq
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from trifold.data import DataSettings, Role, Rows, Source, read_records
from trifold.data.roles import MISSING, check_text, is_missing, list_in
from trifold.errors import DataError, plural
from trifold.folders import AnyPath, named
from trifold.nn import ModelConfig, Transformer
from trifold.nn.config import Shape
from trifold.nn.parts import AttentionPart, part_of
from trifold.objectives.batch import Batch, pad_end
from trifold.objectives.evaluation import (
    PARTS_OF_MODEL,
    ConstantAnswer,
    EvalRun,
    Evaluation,
    Sample,
)
from trifold.objectives.labelled import UNKNOWN, LabelledObjective, LabelledSettings, TextExamples
from trifold.objectives.labels import order_labels, report_similar
from trifold.objectives.linear_path import Fitted, fit_forms, has_path, with_fitting_path
from trifold.objectives.objective import BuildContext, TaskBundle
from trifold.objectives.plans import FORMS_BY_DEFAULT
from trifold.objectives.tag_columns import (
    are_of_entities,
    check_columns,
    check_schemes,
    describe_example,
    is_tag,
    numbers_warning,
    scheme_notes,
)
from trifold.predict.tag import (
    EDGES,
    MERGE,
    choose_tags,
    first_tokens,
    word_spans,
    words_of_tokens,
)
from trifold.predict.tag_transitions import TRANSITIONS, Transitions, best_classes
from trifold.predict.word_features import WordRows
from trifold.ragged import Ragged
from trifold.scores.bootstrap import Resampled, sums_scorer
from trifold.scores.entities import (
    ENTITY_COUNTS,
    EntityScore,
    count_entities,
    entity_scores,
    find_entities,
)
from trifold.text.spans import Ids
from trifold.text.special_tokens import merge_files
from trifold.text.tokenizer import NO_LIMITS

NO_TAG = UNKNOWN  # label of the tokens that are not the first of a word, and of unknown tags

LONGEST_SENTENCE = 100  # words; a file with one longer sentence lacks blank lines


# --- columns --------------------------------------------------------------------------------------


def _read_list(value: Any, place: str) -> list[str]:
    """A list of words or tags, which may be numbers; also one that a text writes. Raises DataError
    for anything else and for empty ones.
    """
    if isinstance(value, str):
        value = list_in(value.strip()) or value
    if not isinstance(value, list):
        raise DataError(
            f"{place} is {value!r:.40}, not a list; for one word per line, set data.format=conll"
        )
    if not value:
        raise DataError(f"{place} is an empty list; remove the row")
    texts = []
    for number, item in enumerate(value):
        text = str(item) if isinstance(item, int) else item
        if not check_text(text, f"{place}[{number}]").strip():
            raise DataError(f"{place}[{number}] is blank; remove this word and its tag")
        texts.append(str(text))
    return texts


def _read_tags(value: Any, place: str) -> Any:
    """A list of tags without space around them; MISSING for none."""
    if is_missing(value):
        return MISSING
    return [tag.strip() for tag in _read_list(value, place)]


def _read_edges(value: Any, place: str) -> list[tuple[int, int]]:
    """Pairs of words, by their numbers from 0: of a list of pairs, or of the number of the head of
    each word, from 1 (0: none), as in CoNLL-U.
    """
    if isinstance(value, str):
        value = list_in(value.strip()) or value
    if not isinstance(value, list):
        raise _edges_error(value, place)
    pairs = []
    for number, item in enumerate(value):
        if isinstance(item, list) and len(item) == 2:
            one, other = (_read_number(each, f"{place}[{number}]") for each in item)
            pairs.append((one, other))
        elif head := _read_number(item, f"{place}[{number}]"):
            pairs.append((number, head - 1))
    return pairs


def _read_number(value: Any, place: str) -> int:
    """The number of a word."""
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise _edges_error(value, place)


def _edges_error(value: Any, place: str) -> DataError:
    return DataError(
        f"{place} is {value!r:.40}, not edges: write pairs of numbers of words from 0, such as "
        "[[0, 1], [1, 2]], or the number of the head of each word from 1, with 0 for the root"
    )


GRAPH_ROLES = {"edges": Role(("edges", "heads", "head"), _read_edges, identifies=False)}
ROLES = {
    "words": Role(("words", "tokens", "word", "token"), _read_list),
    "tags": Role(
        ("tags", "ner_tags", "labels", "tag", "label", "ner"), _read_tags, identifies=False
    ),
}


# --- settings -> rows -----------------------------------------------------------------------------


class TagSettings(LabelledSettings):
    """Settings of tagging; `data.columns` names the columns of words and tags; in plain text, the
    first and last.
    """

    pipeline_tag = "token-classification"
    heads = ("token",)

    kind: Literal["tag"] = "tag"
    best_by: Literal["auto", "f1", "accuracy", "loss"] = Field(
        "auto",
        description="f1: of entities; accuracy and loss: tags of any kind, such as parts of "
        "speech; auto: accuracy if no tag is O and most have no prefix, otherwise f1",
    )

    @classmethod
    def defaults_for(cls, shape: Shape | None) -> Mapping[str, Mapping[str, Any]]:
        """The usual ones, with a linear path beside a new model."""
        defaults = super().defaults_for(shape)
        return {**defaults, "model": {**defaults["model"], **FORMS_BY_DEFAULT}}

    edges: bool = Field(
        False,
        description="words attend only to those that the column `edges` names: pairs of numbers of "
        "words from 0, or the number of the head of each word from 1, as in CoNLL-U",
    )

    def model_problem(self, config: ModelConfig) -> str | None:
        attention = part_of(AttentionPart, config)
        if self.edges and config.shape != "encoder":
            return f"task.edges needs model.shape: encoder, not {config.shape}"
        if self.edges and not attention.has_scores:
            return (
                f"task.edges: {attention.label(config)} has no weight for each pair of tokens; set "
                "model.attention=softmax"
            )
        return super().model_problem(config)

    def command_for(self, name: str, model: AnyPath) -> str:
        """Texts have no edges, so only files of rows are read."""
        if self.edges:
            return f"eval {name} FILE"
        return super().command_for(name, model)

    def build(self, context: BuildContext) -> TaskBundle:
        train, valid = context.read(self._reader(context))
        if warning := numbers_warning(train):
            context.report(warning)
        tokenizer = context.load_or_train_tokenizer(lambda: map(" ".join, train.columns["words"]))
        if not tokenizer.has_offsets:
            raise DataError(
                "this tokenizer does not provide the positions of tokens, which tags require"
            )
        tokenizer.settings = {**(tokenizer.settings or NO_LIMITS), MERGE: "words"}
        tokenizer.settings.pop(TRANSITIONS, None)  # of the model that training starts from
        if self.edges:
            tokenizer.settings[EDGES] = True
        config = _with_labels(context.config_for(tokenizer), train, context.start)
        tokenizer.settings |= self._transitions(context, train, config)
        if context.model.label_names is None:
            report_similar(context, config.labels)
        context.report_labels("tags", config.labels)
        if not context.is_trained:
            config = with_fitting_path(config)
        objective = TagWords(self, tokenizer, config, context.text_width, context.report)
        bundle = objective.bundle(context, train, valid)
        if not has_path(config) or context.is_trained or context.is_counted:
            return bundle
        objective.path_rows = train
        return replace(bundle, initialize=objective.initialize)

    def _transitions(
        self, context: BuildContext, train: Rows, config: ModelConfig
    ) -> Mapping[str, Any]:
        """The setting of a tokenizer: which tags follow each other, of a trained model or in the
        training rows. None of graphs, whose words have no order.
        """
        if context.is_trained:
            settings = merge_files(named(context.folder))
            return {key: value for key, value in settings.items() if key == TRANSITIONS}
        if self.edges:
            return {}
        numbers = {name: number for number, name in enumerate(config.labels)}
        known = ([tag for tag in tags if tag in numbers] for tags in train.columns["tags"])
        found = Transitions.count(known, numbers)
        return {} if found is None else found.as_setting()

    def _reader(self, context: BuildContext) -> Callable[[Source, DataSettings, str], Rows]:
        """Reads rows. Whether their tags are of entities is decided by the labels of a trained
        model, or by the first rows that are read, those for training.
        """
        of_entities: bool | None = None
        if context.is_trained:
            of_entities = are_of_entities(context.model.labels)

        def read(source: Source, data: DataSettings, split: str) -> Rows:
            nonlocal of_entities
            rows = self._read(source, data, split, of_entities=of_entities)
            if of_entities is None:
                of_entities = _are_of_entities(rows)
            return rows

        return read

    def _read(
        self,
        source: Source,
        settings: DataSettings,
        split: str,
        *,
        of_entities: bool | None = None,
    ) -> Rows:
        """Sentences with as many tags as words. Raises DataError for others, for tags without a
        scheme, and for edges to words that a sentence does not have. of_entities: whether best_by
        `auto` means tags of entities; None: by these rows.
        """
        roles = ROLES | GRAPH_ROLES if self.edges else ROLES
        rows = read_records(source, settings, roles, split, plain="conll")
        words_of_first = rows.columns["words"][0]
        if len(rows) == 1 and len(words_of_first) > LONGEST_SENTENCE:
            raise DataError(
                f"{rows.report.name}: one sentence of {len(words_of_first):,} words; put a blank "
                "line after each sentence"
            )
        both = (rows.columns[name] for name in ROLES)
        for line, words, tags in zip(rows.lines, *both, strict=True):
            place = f"{rows.report.name}:{line}"
            if len(words) != len(tags):
                raise DataError(
                    f"{place}: {plural(len(words), 'word')} and {plural(len(tags), 'tag')}; give "
                    "each word one tag"
                )
        check_columns(rows)
        finds_entities = self.best_by == "f1"
        if self.best_by == "auto":
            finds_entities = _are_of_entities(rows) if of_entities is None else of_entities
        if finds_entities:
            check_schemes(rows)
        if self.edges:
            _check_edges(rows)
        rows.report.notes.append(describe_example(rows))
        if finds_entities:
            rows.report.notes.extend(scheme_notes(rows))
        return rows


def _are_of_entities(rows: Rows) -> bool:
    """Whether tags are of entities; also where words are in the column of tags."""
    words, tags = ({*chain(*rows.columns[name])} for name in ROLES)
    return are_of_entities(tags) or all(map(is_tag, words))


def _check_edges(rows: Rows) -> None:
    """Raises DataError for an edge to a word that the sentence does not have."""
    columns = rows.columns
    for line, words, pairs in zip(rows.lines, columns["words"], columns["edges"], strict=True):
        for pair in pairs:
            if max(pair) >= len(words):
                raise DataError(
                    f"{rows.report.name}:{line}: an edge of word {pair[0] + 1} to word "
                    f"{pair[1] + 1}, but the sentence has {plural(len(words), 'word')}"
                )


def _with_labels(config: ModelConfig, rows: Rows, start: ModelConfig | None) -> ModelConfig:
    """The config with the tags of the rows, O first or in the order of the model that training
    starts from, unless it names its labels already.
    """
    if config.label_names is not None:
        return config
    labels = sorted({*chain(*rows.columns["tags"])}, key=lambda tag: (tag != "O", tag[2:], tag))
    if len(labels) < 2:
        raise DataError(
            f"{rows.report.name}: the only tag is {labels[0]!r}; set data.columns.tags to the "
            "column of tags"
        )
    names = order_labels(start, labels)
    return config.model_copy(update={"n_labels": len(names), "label_names": names})


# --- examples, batches ----------------------------------------------------------------------------


@dataclass(frozen=True)
class TaggedExamples(TextExamples):
    """Sentences, the label of each token, and of each sentence the first tokens of its words (-1:
    none). graphs: of each sentence, which tokens attend to which (T, T); None if all do. words:
    what a linear path reads of them.
    """

    firsts: list[list[int]]
    graphs: list[NDArray[np.bool_]] | None = None
    words: WordRows | None = None


def _graph(words: Sequence[int], pairs: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """(T, T) which tokens attend to which, from the word of each token (-1: special) and the edges
    of words, in both directions. The tokens of a word attend to each other, and special tokens to
    all, as all do to them.
    """
    count = max(words, default=-1) + 1
    table = np.zeros((count + 1, count + 1), bool)  # the last row and column: special tokens
    table[-1] = table[:, -1] = True
    np.fill_diagonal(table, True)
    for one, other in pairs:
        if max(one, other) < count:  # others are truncated
            table[one, other] = table[other, one] = True
    numbers = np.array(words, np.int64)
    return table[numbers[:, None], numbers]


@dataclass(frozen=True)
class TagBatch(Batch):
    """is_first: (T,) which tokens are the first ones of words."""

    is_first: Tensor


class TagWords(LabelledObjective):
    """Tagging of words."""

    row_name = "sentences"
    token_name = "words"
    path_rows: Rows | None = None  # that the linear path is fitted on
    _fitted_path: Fitted | None = None

    def __init__(self, settings: TagSettings, *args: Any, **options: Any) -> None:
        super().__init__(settings, *args, **options)
        if settings.best_by == "auto":
            score = "f1" if are_of_entities(self.config.labels) else "accuracy"
            self.settings = settings.model_copy(update={"best_by": score})

    def examples(self, rows: Rows, draw: int | None = None) -> TaggedExamples:
        """Encode sentences and align their words with tokens. Reports truncated sentences and
        unknown tags.
        """
        sentences = rows.columns["words"]
        tags = rows.columns["tags"]
        encoded = self.encode(rows, [" ".join(words) for words in sentences])
        spans = [word_spans(words) for words in sentences]
        firsts = [first_tokens(row, words) for row, words in zip(encoded, spans, strict=True)]
        numbers = [*map(words_of_tokens, encoded, spans)]
        graphs = None
        if self.reads_edges:
            graphs = [*map(_graph, numbers, rows.columns["edges"])]
        labels = [np.full(len(row.ids), NO_TAG) for row in encoded]
        for row_labels, row_firsts, row_tags in zip(labels, firsts, tags, strict=True):
            for first, tag in zip(row_firsts, row_tags, strict=True):
                if first >= 0:
                    row_labels[first] = self.numbers.get(tag, NO_TAG)
        if lost := sum(row_firsts.count(-1) for row_firsts in firsts):
            self.report(
                f"{rows.report.name}: {plural(lost, 'word')} without a token, predicted as O"
            )
        self.report_unseen(rows, (tag for tag in chain(*tags) if tag not in self.numbers), "tags")
        labelled = Ragged.of([row_labels.tolist() for row_labels in labels])
        words = WordRows.of(self.config, sentences, numbers)
        if words is not None and rows is self.path_rows:
            words = replace(words, logits=self._fit_path(words, tags).logits)
        return TaggedExamples(*self.tokens_and_types(encoded), labelled, firsts, graphs, words)

    # --- linear path ------------------------------------------------------------------------------

    @property
    def starts_fitted(self) -> bool:
        return has_path(self.config)

    def _fit_path(self, words: WordRows, tags: Sequence[Sequence[str]]) -> Fitted:
        """The linear path of the training rows, which is fitted once."""
        if self._fitted_path is None:
            labels = [np.array([*map(self.numbers.__getitem__, names)]) for names in tags]
            self._fitted_path = fit_forms(self.config, words, labels)
            self.report(f"linear path: fitted on {plural(self._fitted_path.rows, 'sentence')}")
        return self._fitted_path

    def initialize(self, model: Transformer) -> None:
        """Begin with the fitted path."""
        assert self._fitted_path is not None, "it is fitted on the examples"
        self._fitted_path.copy_to(model)

    def batch(
        self, examples: TaggedExamples, rows: Ids, width: int | None = None, *, draw: int = 0
    ) -> TagBatch:
        """Pack the given sentences, truncated to `width` tokens if given. Not random. labels (T,):
        of the tokens.
        """
        inputs = self.pack(examples, rows, width)
        packing: Any = inputs.packing
        is_first = torch.zeros(packing.length, dtype=torch.bool)
        starts = packing.starts.tolist()
        for row, start, end in zip(rows.tolist(), starts, starts[1:], strict=False):
            firsts = [start + first for first in examples.firsts[row] if 0 <= first < end - start]
            is_first[firsts] = True
        labels = pad_end(
            examples.labels.joined(rows, np.diff(packing.starts)), packing.length, NO_TAG
        )
        if examples.graphs is not None:
            graphs = [examples.graphs[row] for row in rows.tolist()]
            inputs = replace(inputs, edges=_padded(graphs, packing.shape))
        if examples.words is not None:
            features = examples.words.features((1, packing.length), rows, np.diff(packing.starts))
            inputs = replace(inputs, features=features)
        tokens = int((labels != NO_TAG).sum())
        return TagBatch(inputs, labels, tokens, is_first)

    @property
    def reads_edges(self) -> bool:
        """Whether words attend along edges."""
        return isinstance(self.settings, TagSettings) and self.settings.edges

    # --- loss, predictions, scores ----------------------------------------------------------------

    @cached_property
    def transitions(self) -> Transitions | None:
        """Which tags follow each other."""
        return Transitions.of(self.tokenizer, len(self.config.labels))

    def logits(self, model: Transformer, batch: Batch) -> Tensor:
        """(T, C)."""
        logits: Tensor = model.heads["token"](model(batch.inputs), batch.inputs, None)
        return logits[0]

    def predictions(self, logits: Tensor, batch: TagBatch) -> dict[str, Any]:
        """The classes of the tokens of each row, and their probabilities: of first tokens those of
        the most probable tags of the sentence, of others the most probable class.
        """
        probabilities = self.split(logits.softmax(-1), batch)
        is_first = self.split(batch.is_first, batch)
        classes = [of_row.argmax(-1) for of_row in probabilities]
        of_words = best_classes(
            self.transitions,
            [of_row[firsts] for of_row, firsts in zip(probabilities, is_first, strict=True)],
        )
        for of_row, firsts, chosen in zip(classes, is_first, of_words, strict=True):
            of_row[firsts] = chosen
        confidences = [
            np.take_along_axis(of_row, chosen[:, None], 1)[:, 0]
            for of_row, chosen in zip(probabilities, classes, strict=True)
        ]
        return {"classes": [classes], "confidences": [confidences]}

    def measure(self, model: Transformer, batch: TagBatch) -> dict[str, Any]:
        logits = self.logits(model, batch)
        sums: dict[str, Any] = {"nll": float(self.nll(logits, batch)), "tokens": batch.tokens}
        sums |= self.predictions(logits, batch)
        features = batch.inputs.features
        if features is not None:
            head: Any = model.heads["token"]
            of_path = head.path(features).to(logits)
            for name, of_part in zip(PARTS_OF_MODEL, (of_path, logits - of_path), strict=True):
                sums[name] = self.predictions(of_part, batch)["classes"]
        return sums

    def split(self, values: Tensor, batch: Batch) -> list[NDArray[Any]]:
        """The values (T,) of the tokens of each row."""
        packing: Any = batch.inputs.packing
        return np.split(values.cpu().numpy(), packing.starts[1:])[:-1]  # without padding

    def constant_answer(self, examples: Any) -> ConstantAnswer | None:
        if self.settings.best_by != "f1":
            return None
        return ConstantAnswer("finding no entity", "f1", 0.0)

    def compute_scores(self, run: EvalRun) -> Evaluation:
        """Scores of the tags of all sentences, and the first sentences with their entities."""
        references = run.rows.columns["tags"]
        examples = run.examples
        predictions = self._tags(run, "classes")
        parts = {
            name: self.score_tags(references, self._tags(run, name))[0]
            for name in PARTS_OF_MODEL
            if name in run.sums
        }
        values, lines = self.score_tags(references, predictions)
        words = run.rows.columns["words"]
        probabilities = run.by_row("confidences")
        confidences = []
        samples = []
        for row in run.sample_rows:
            firsts = [first for first in examples.firsts[row] if first >= 0]
            confidences.append(float(probabilities[row][firsts].prod()))
            samples.append(self._sample(words[row], references[row], predictions[row]))
        resampled = self.resampled_tags(references, predictions)
        return Evaluation(values, samples, lines, confidences, resampled, parts=parts)

    def _tags(self, run: EvalRun, name: str) -> list[list[str]]:
        """The tags of all sentences, from the classes of their tokens."""
        return [
            choose_tags(classes, firsts, self.config.labels)
            for classes, firsts in zip(run.by_row(name), run.examples.firsts, strict=True)
        ]

    def score_tags(
        self, references: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
    ) -> tuple[dict[str, float], list[str]]:
        """The scores of the tags of sentences, and a line for each with its signature."""
        pairs = list(zip(chain(*references), chain(*predictions), strict=True))
        values = {"accuracy": 100 * sum(one == other for one, other in pairs) / len(pairs)}
        lines = [f"accuracy of {len(pairs):,} tags = {values['accuracy']:.2f}"]
        if self.settings.best_by == "f1":
            entities = EntityScore()
            entities.add(references, predictions)
            of_entities = entities.values()
            names = ("f1", "precision", "recall")
            values = {name: of_entities[name] for name in names} | values
            types = {f"entities|{entities.signature}": values} | entities.by_type()
            lines += [_describe_scores(name, scores) for name, scores in types.items()]
        return values, lines

    def resampled_tags(
        self, references: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
    ) -> Resampled:
        """The scores of some of the sentences."""
        sentences = list(zip(references, predictions, strict=True))
        matches = [sum(map(eq, *sentence)) for sentence in sentences]
        statistics = [
            {"matches": count, "tags": len(expected)}
            for count, expected in zip(matches, references, strict=True)
        ]
        if self.settings.best_by == "f1":
            statistics = [
                counts | count_entities(*sentence)
                for counts, sentence in zip(statistics, sentences, strict=True)
            ]

        def scores(sums: Mapping[str, Any]) -> dict[str, float]:
            values = {"accuracy": 100 * float(sums["matches"]) / max(float(sums["tags"]), 1)}
            if "correct" in sums:
                values |= entity_scores(*(int(sums[name]) for name in ENTITY_COUNTS))
            return values

        return Resampled(sums_scorer(statistics, scores), len(sentences), self.row_name)

    def _sample(self, words: Sequence[str], *both: Sequence[str]) -> Sample:
        """The sentence with its entities, or its tags: the reference and the prediction."""
        if self.settings.best_by != "f1":
            return Sample(" ".join(words), *(" ".join(tags) for tags in both))
        found = (
            [f"{' '.join(words[start:end])} ({name})" for name, start, end in find_entities(tags)]
            for tags in both
        )
        return Sample(" ".join(words), *(", ".join(entities) or "–" for entities in found))


def _padded(graphs: Sequence[NDArray[np.bool_]], shape: tuple[int, int]) -> Tensor:
    """The graphs of rows as one tensor (B, T, T), truncated to the width of the rows."""
    rows, width = shape
    edges = torch.zeros(rows, width, width, dtype=torch.bool)
    for row, graph in zip(edges, graphs, strict=True):
        part = torch.from_numpy(graph[:width, :width])
        row[: len(part), : len(part)] = part
    return edges


def _describe_scores(name: str, scores: Mapping[str, float]) -> str:
    return "{}: f1 = {f1:.2f}, precision = {precision:.2f}, recall = {recall:.2f}".format(
        name, **scores
    )
