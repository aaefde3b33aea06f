"""The task of a model with the options of `trifold predict`: which one it is, and predictions for
batches of inputs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from trifold.cli.batch import check_lengths, generate_outputs
from trifold.cli.options import given
from trifold.cli.tables import Input, is_table, open_table
from trifold.data import iter_lines
from trifold.errors import DataError, UsageError
from trifold.nn import ModelConfig
from trifold.nn.config import MULTI, REGRESSION
from trifold.pipeline import Pipeline
from trifold.predict.classify import ANSWERS, Label, apply_threshold, check_threshold
from trifold.predict.predict import TASKS, choose_task
from trifold.recipe import Recipe
from trifold.text import Truncation
from trifold.text.annotation import unknown_words

MAX_UNKNOWN = 10_000  # words from which no more are looked for
MAX_KNOWN = 100_000  # words that are remembered
SMALL_MODEL = 2**22  # weights of layers, which take about a millisecond per text
MAX_WORKERS = 4


@dataclass(frozen=True)
class Predictor:
    """A task of a model with the options of the command.

    corpus: the file that `search` reads, and its settings. every: whether to give the probability
    of every class.
    unknown: words of the inputs that the tokenizer does not know; known: some that it knows.
    truncation: of all inputs.
    """

    pipeline: Pipeline
    task: str
    options: Mapping[str, Any]
    recipe: Recipe | None = None
    corpus: Sequence[str] = ()
    every: bool = False
    unknown: list[str] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    truncation: Truncation = field(default_factory=Truncation)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def config(self) -> ModelConfig:
        """That of the model."""
        return self.pipeline.config

    @property
    def generates(self) -> bool:
        """Whether the model writes a text for each input."""
        return self.task == "generate"

    @property
    def needs_pairs(self) -> bool:
        """Whether an input is two texts."""
        if self.generates:
            return reads_questions(self.pipeline)
        return self.task in TASKS and TASKS[self.task].pairs == "must"

    @property
    def classes(self) -> Sequence[str]:
        """The names of the classes that the task chooses from, if it has a fixed set."""
        return _classes(self.config, self.task)

    @cached_property
    def has_several_labels(self) -> bool:
        """Whether an input may have several labels."""
        return self.config.problem_type == MULTI

    @cached_property
    def is_regression(self) -> bool:
        """Whether the prediction is a number."""
        return self.config.problem_type == REGRESSION

    @cached_property
    def has_score(self) -> bool:
        """Whether a prediction is one label with a probability."""
        chooses = self.task in ("classify", "choose")
        return chooses and not self.has_several_labels and not self.is_regression

    def workers(self) -> int:
        """The number of batches to compute at once, in threads that share the cores.

        A small model takes less time than reading and writing, which one thread does. A large one
        uses all cores for each batch.
        """
        import torch

        stacks = (getattr(self.pipeline.model, side) for side in self.config.stacks)
        weights = sum(weight.numel() for stack in stacks for weight in stack.parameters())
        is_alone = self.generates or self.config.n_patches or self.task == "features"
        if is_alone or weights > SMALL_MODEL or self.pipeline.device.type != "cpu":
            return 1
        return min(torch.get_num_threads(), MAX_WORKERS)

    # --- inputs -----------------------------------------------------------------------------------

    def contents(self, batch: Sequence[Input], *, is_piped: bool = False) -> list[object]:
        """Whether there is something to read in each input. A text of the command line is read as
        it is; a row, only with a letter, a digit or a token in each of its texts. Notes words that
        the tokenizer does not know.
        """
        self._note_unknown_words(batch)
        if self.pipeline.tokenizer is None or not batch[0].row:
            return [not is_piped or bool(item.text.strip()) for item in batch]
        return [all(map(self._has_content, _texts_of(item))) for item in batch]

    def _has_content(self, text: str) -> bool:
        return any(map(str.isalnum, text)) or any(self.pipeline.reader.encode([text]))

    # --- predictions ------------------------------------------------------------------------------

    def predict(
        self, batch: Sequence[Input], first: int, on_done: Callable[[int], None]
    ) -> Sequence[Any]:
        """The predictions of a batch, which `first` inputs precede. on_done: called with the number
        of inputs that were finished.
        """
        if self.generates:
            return self._generate(batch, first, on_done)
        texts = [item.text for item in batch]
        second_texts = _second_texts(batch)
        options = self._options_for(batch, on_done)
        if self.task == "similarity":
            return self._compare(texts, second_texts, options)
        predictions: Sequence[Any] = self.pipeline.predict(
            texts, second_texts or None, task=self.task, **options
        )
        return predictions

    def _note_unknown_words(self, batch: Sequence[Input]) -> None:
        if self.config.n_patches or len(self.unknown) >= MAX_UNKNOWN:
            return
        if len(self.known) > MAX_KNOWN:
            self.known.clear()
        texts = (" ".join(_texts_of(item)) for item in batch)
        self.unknown.extend(unknown_words(self.pipeline.reader, texts, self.known))

    def _count_cut(self, truncation: Truncation) -> None:
        with self._lock:
            self.truncation.merge(truncation)

    def _options_for(
        self, batch: Sequence[Input], on_done: Callable[[int], None]
    ) -> dict[str, Any]:
        """The options of `Pipeline.predict` for a batch."""
        options: dict[str, Any] = {"places": [item.place for item in batch], "on_done": on_done}
        options |= {"on_cut": self._count_cut, **given(**self.options)}
        if self.task == "choose" and any(item.choices for item in batch):
            options["choices"] = [item.choices for item in batch]
            options["questions"] = [item.question for item in batch]
        if self.every:
            options.pop("threshold", None)  # see `chosen`
        if self.every and self.task == "classify":
            options["top_k"] = self.config.n_labels
        if self.corpus:
            options["corpus"] = self._read_corpus()
        return options

    def _generate(
        self, batch: Sequence[Input], first: int, on_done: Callable[[int], None]
    ) -> Sequence[Any]:
        """The outputs for each input."""
        texts = [item.text for item in batch]
        places = [item.place for item in batch]
        reading = {"parse_special": self.options["parse_special"]}
        if self.needs_pairs:
            reading["contexts"] = _second_texts(batch)
        longest = self._longest_source()
        remedy: str | None = "shorten it, or truncate it (--on-overflow truncate)"
        if self.options["on_overflow"] == "truncate":
            remedy = None
        excess = check_lengths(self.pipeline, texts, places, longest, remedy, **reading)
        self.truncation.add(excess)
        settings = given(parse_special=reading.pop("parse_special"))
        return generate_outputs(
            self.pipeline,
            texts,
            settings,
            on_done=on_done,
            first=first,
            max_source=longest,
            **reading,
        )

    def _longest_source(self) -> int:
        """The number of tokens of the longest text: that of the training, or of the model."""
        positions = self.config.max_positions
        if self.recipe is not None:
            positions = min(positions, getattr(self.recipe.task, "max_source", positions))
        return self.pipeline.longest_source(positions)

    def _compare(
        self, texts: list[Any], second_texts: list[str], options: dict[str, Any]
    ) -> list[Any]:
        """The cosine of the vectors of two texts; the vectors, if there are no second texts."""
        if not second_texts:
            return list(self.pipeline.embed(texts, **options))
        left = self.pipeline.embed(texts, normalise=True, **options)
        right = self.pipeline.embed(second_texts, normalise=True, **options)
        return [float(a @ b) for a, b in zip(left, right, strict=True)]

    def _read_corpus(self) -> Iterator[str]:
        """The texts of a file of lines, or of a table. Raises UsageError for settings of lines."""
        file, *settings = self.corpus
        if is_table(self.corpus):
            table = open_table(self.corpus, "search", self.recipe, is_other=True)
            return (item.text for item in table.inputs())
        if settings:
            raise UsageError(
                f"{settings[0].partition('=')[0]}: the corpus {file} has lines and no columns; "
                "leave the setting out"
            )
        return iter_lines(file)

    # --- every class ------------------------------------------------------------------------------

    def chosen(self, prediction: Any) -> Any:
        """What a threshold leaves of a prediction that has every class."""
        threshold = self.options["threshold"]
        if not self.every or threshold is None or prediction is None:
            return prediction
        if self.task == "next-sentence":
            return prediction.choose(threshold)
        labels = apply_threshold(prediction, threshold, several=self.has_several_labels)
        return labels[: self.options["top_k"]]

    def labels_of(self, prediction: Any) -> list[Label]:
        """Every class of a prediction with its probability; empty for a blank input."""
        if prediction is None:
            return []
        labels: list[Label] = prediction
        if self.task == "next-sentence":
            labels = prediction.labels
        return labels

    def probabilities(self, prediction: Any) -> dict[str, float]:
        """The probability of each class in a prediction that has every class."""
        return {label.label: label.score for label in self.labels_of(prediction)}


def reads_questions(pipeline: Pipeline) -> bool:
    """Whether the model writes answers to questions about a text, for which it has a prompt."""
    prompt = pipeline.prompt
    return prompt is not None and prompt.is_question


def make_predictor(
    pipeline: Pipeline,
    recipe: Recipe | None,
    task: str | None,
    options: Mapping[str, Any],
    *,
    has_pairs: bool,
    is_rows: bool,
    every: bool,
) -> Predictor:
    """The predictor for a task, by default the one that the model's heads are for.

    options: those of the tasks, and `corpus`. Raises UsageError for a task that the model does not
    have, and for an option that the task does not have.
    """
    others = dict(options)
    corpus = others.pop("corpus")
    writes_answers = reads_questions(pipeline) and not corpus and task in (None, "answer")
    if writes_answers:
        name = "generate"
    else:
        name = _choose_task(
            pipeline.config, recipe, task, corpus, is_rows=is_rows, has_pairs=has_pairs
        )
    extra = has_pairs and not writes_answers and name != "similarity"
    _check_options(pipeline.config, name, given(**others), has_pairs=extra, every=every)
    if name == "classify":
        others["top_k"] = _number_of_labels(pipeline.config, others, is_rows=is_rows)
    return Predictor(pipeline, name, others, recipe, corpus, every)


def _choose_task(
    config: ModelConfig,
    recipe: Recipe | None,
    task: str | None,
    corpus: Sequence[str],
    *,
    is_rows: bool,
    has_pairs: bool,
) -> str:
    """The task of the command: of `predict.TASKS`; for rows also `generate`, and for rows and pairs
    `similarity` of a model that learned it.
    """
    if corpus:
        return choose_task(config, task or "search")
    writes = config.shape != "encoder" and config.chosen_heads == ("lm",)
    compares = recipe is not None and recipe.task.evaluated.kind == "embed"
    if is_rows and task is None and writes:
        return "generate"
    if (is_rows or has_pairs) and task is None and compares:
        return "similarity"
    return choose_task(config, task)


def _check_options(
    config: ModelConfig, task: str, options: Mapping[str, Any], *, has_pairs: bool, every: bool
) -> None:
    """Raises UsageError for an option that the task does not have; the functions of the tasks check
    the others.
    """
    unused = [name for name in options if name not in ("on_overflow", "parse_special")]
    if has_pairs:
        unused.append("pair")
    if task == "generate" and unused:
        raise UsageError(f"{unused[0]}: not an option of a model that generates text")
    if not every:
        return
    classes = _classes(config, task)
    if not classes:
        raise UsageError("--probabilities: this model does not predict classes")
    if "threshold" in options:
        check_threshold(options["threshold"], classes)


def _classes(config: ModelConfig, task: str) -> Sequence[str]:
    """The names of the classes that a task chooses from, if it has a fixed set."""
    if task == "next-sentence":
        return [*ANSWERS.values()]
    if task == "classify" and config.problem_type != REGRESSION:
        return config.labels
    return []


def _number_of_labels(
    config: ModelConfig, options: Mapping[str, Any], *, is_rows: bool
) -> int | None:
    """The number of labels of each input that `classify` gives; None for its default.

    A row has one label, and a text five of those that reach a threshold; if an input may have
    several labels, it has all of them.
    """
    if options["top_k"] is not None:
        number: int = options["top_k"]
        return number
    if not is_rows and options["threshold"] is None:
        return None
    if config.problem_type == MULTI:
        return config.n_labels
    return 1 if is_rows else 5


def _texts_of(item: Input) -> list[str]:
    """The texts of an input; words are joined by spaces."""
    text = item.text if isinstance(item.text, str) else " ".join(item.text)
    return [text] if item.pair is None else [text, item.pair]


def _second_texts(batch: Sequence[Input]) -> list[str]:
    """The second texts, if the inputs have one. Raises DataError if only some have."""
    second_texts = [item.pair for item in batch if item.pair is not None]
    if 0 < len(second_texts) < len(batch):
        place = next(item.place for item in batch if item.pair is None)
        raise DataError(f"{place}: the second text is missing, which other rows have; add it")
    return second_texts
