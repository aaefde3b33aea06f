"""`trifold predict`: classify, tag, answer, fill in masks, embed texts or pictures, or search."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trifold.cli.batch import (
    BATCH,
    Progress,
    in_batches,
    load_pipeline,
    one_line,
    reads_stdin,
    warn_unknown,
)
from trifold.cli.eval import find_recipe
from trifold.cli.names import CONTENT, check_no_files, is_path, is_pattern
from trifold.cli.options import (
    AsText,
    BatchSize,
    Codec,
    Device,
    Dtype,
    Json,
    Model,
    Out,
    given,
    option,
    with_options,
)
from trifold.cli.table_output import RECORDS, SUFFIXES, Format, write_table
from trifold.cli.tables import (
    Input,
    image_inputs,
    is_table,
    open_table,
)
from trifold.cli.terminal import check_not_read, open_output, print_note, print_result
from trifold.data.files import TABLE_FORMATS, list_files
from trifold.errors import DataError, UsageError, check_utf8, printable
from trifold.jsonfiles import json_line

if TYPE_CHECKING:
    from trifold.nn import ModelConfig
    from trifold.pipeline import Pipeline
    from trifold.predict.classify import Label
    from trifold.recipe import Recipe

EXAMPLES = (
    'trifold predict bert-base-uncased "Paris is the [MASK] of France."',
    "trifold predict runs/reviews - --json < reviews.txt",
    "trifold predict runs/spam mails.csv --out found.csv --threshold spam=0.9",
    "trifold predict google/vit-base-patch16-224 cat.jpg dog.png",
)
SMALL_BATCH = (
    64  # pictures, or texts of a generation model, that are read before the first prediction
)

# Options of the tasks.
OPTIONS = {
    "top_k": option(
        int, "The K most likely results.", metavar="K", min=1, show_default="5; answer: 1"
    ),
    "threshold": option(
        list[str],
        "classify, next-sentence: the least probability of a label; LABEL=X for one label, "
        "repeatable.",
        metavar="X|LABEL=X",
        show_default="none; of several labels in a table 0.5",
    ),
    "choices": option(list[str], "choose: a choice; repeat it for each."),
    "merge": option(
        Literal["none", "simple", "first", "average", "max", "words"],
        "tag: how tokens become words and spans.",
        show_default="words; WordPiece: first",
    ),
    "max_answer_length": option(int, "answer: maximum tokens.", min=1, show_default="15"),
    "impossible": option(bool, "answer: the text may contain none.", "--impossible"),
    "max_length": option(
        int, "answer: tokens of a window over a long context.", min=1, show_default="384"
    ),
    "stride": option(int, "answer: tokens that windows share.", min=0, show_default="128"),
    "pooling": option(
        Literal["mean", "cls", "last", "max", "pooler"],
        "embed: which states.",
        show_default="mean, or that of the folder",
    ),
    "normalise": option(bool, "embed: vectors of length 1.", "--normalise/--no-normalise"),
    "prompt": option(str, "embed, search: a text before each text or query."),
    "prompt_name": option(
        str,
        "The same: the prompt of this name in the folder.",
        metavar="NAME",
        show_default="the folder's",
    ),
    "corpus": option(str, "search: the file whose lines are searched.", metavar="FILE"),
    "parse_special": option(
        bool,
        "Read special tokens that are written in a text, such as [SEP], as tokens.",
        "--parse-special/--no-parse-special",
        show_default="fill-mask, embed, search: as transformers; else no",
    ),
    "on_overflow": option(
        Literal["error", "truncate"],
        "For a text that is too long for the model.",
        show_default="error",
    ),
}


@with_options(OPTIONS)
def run(
    model: Model,
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT|TABLE|-",
            help="Texts, or picture files; a file of rows (.csv, .tsv, .jsonl, .parquet, .json, "
            ".conll) or a folder of pictures, as in training, and data.columns.text=COLUMN if its "
            "header has no known name; `-` (or a pipe) reads lines from standard input.",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="TASK",
            help="fill-mask, classify, choose, tag, answer, next-sentence, embed or search.",
            show_default="by the heads of the model",
        ),
    ] = None,
    pair: Annotated[
        list[str] | None,
        typer.Option(
            "--pair",
            "--context",
            metavar="TEXT",
            help="The second text, or the context of a question: one for all texts, or repeated "
            "for each.",
        ),
    ] = None,
    tsv: Annotated[
        bool,
        typer.Option(
            "--tsv", help="Inputs are two texts separated by a tab, for classify and embed too."
        ),
    ] = False,
    *,
    probabilities: Annotated[
        bool,
        typer.Option(
            "--probabilities",
            help="classify, next-sentence: the probability of every class; of a table, columns.",
        ),
    ] = False,
    batch_size: BatchSize = None,
    device: Device = None,
    dtype: Dtype = "float32",
    tokenizer: Codec = None,
    as_text: AsText = False,
    json: Json = False,
    out: Out = None,
    **options: Any,
) -> None:
    """Fill in masks, classify, tag, answer or embed: one output line for each text, or for each
    line of input.
    """
    # An output that stops at a text that is too long can continue with texts truncated.
    command = repr({**locals(), "options": {**options, "on_overflow": None}})
    texts = text or []
    pairs = pair or []
    recipe = find_recipe(model)
    is_rows = not as_text and (is_table(texts, recipe) or _is_image_set(texts, recipe))
    if is_rows:
        out = _check_out(out, texts[0])
        check_not_read(out, *(texts[:1] if is_table(texts, recipe) else ()))
    is_piped = not is_rows and reads_stdin(texts)
    _check_pairs(pairs, tsv, 1 if is_piped else len(texts), is_rows=is_rows)

    pipeline = load_pipeline(model, device=device, dtype=dtype, tokenizer=tokenizer)
    is_picture = bool(pipeline.config.n_patches)
    if not (as_text or is_rows or is_piped or is_picture):
        check_no_files([*texts, *(options["choices"] or ())], f"predict {model}")
        check_no_files(pairs, f"predict {model} TEXT --pair", CONTENT)
    options["threshold"] = _parse_threshold(options["threshold"])
    corpus = options.pop("corpus")
    if out is not None and corpus is not None:
        check_not_read(out, corpus)
    name = _choose_task(pipeline.config, recipe, task, corpus, is_rows=is_rows)
    _check_options(pipeline.config, name, given(**options, pair=pairs), probabilities)
    predictor = Predictor(pipeline, name, options, recipe, corpus, every=probabilities)
    # A person who types expects an output after each line.
    is_typed = is_piped and sys.stdin.isatty()
    is_slow = is_picture or predictor.generates
    size = 1 if is_typed else batch_size or (SMALL_BATCH if is_slow else BATCH)
    if is_rows:
        assert out is not None
        read: Callable[[], Iterator[Input]] = partial(image_inputs, texts[0])
        dialect = None
        if not is_picture:
            table = open_table(texts, predictor.task, recipe, pairs)
            read = table.inputs
            dialect = table.dialect()
        key = command + repr(_digests(texts[0], model, out))
        _predict_rows(predictor, read, out, Format.of(out, texts[0], dialect), key, size)
    else:
        is_split = tsv or (predictor.needs_pairs and not pairs)
        lines = _lines() if is_piped else texts
        if options["threshold"] is not None and name == "classify":
            options["top_k"] = options["top_k"] or _most_labels(predictor, 5)
        count = None if is_piped else len(texts)
        inputs = _inputs(lines, count, pairs, is_split=is_split)
        as_json = json or (out is not None and out.suffix == ".jsonl")
        with open_output(out) as results:
            predict = partial(predictor, Progress(), 0)
            blank = partial(predictor.contents, is_piped=is_piped)
            for one, found in in_batches(inputs, size, blank, predict):
                print_result(_format(one, predictor, found, as_json), results)
    warn_unknown(pipeline, predictor.unknown)


# --- arguments ------------------------------------------------------------------------------------


def _check_out(out: Path | None, table: str) -> Path:
    """The output of a table. Raises UsageError for another format, for a folder, and if there is
    none.
    """
    if out is None and not (is_path(Path.exists, table) or is_pattern(table)):
        raise UsageError(f"{table}: no such file; check the path, or add --text if it is a text")
    if out is None or out.suffix not in RECORDS:
        raise UsageError(
            f"--out: name a file ({SUFFIXES}) for the rows of the table {table} with predictions"
            + "; --text takes its name as a text" * (out is None)
        )
    if out.is_dir():
        raise UsageError(f"--out {out}: is a folder; name a file")
    return out


def _check_pairs(pairs: Sequence[str], tsv: bool, count: int, *, is_rows: bool) -> None:
    """Raises UsageError for another number of second texts than one or `count`."""
    if pairs and tsv:
        raise UsageError("--pair and --tsv both set the second text: leave one of them out")
    allowed = (0, 1) if is_rows else (0, 1, count)
    if len(pairs) not in allowed:
        raise UsageError(
            f"--pair: {len(pairs)} second texts for {count} texts; pass one for each, or "
            "one for all"
        )
    for second in pairs:
        check_utf8(second, "--pair")


def _is_image_set(texts: Sequence[str], recipe: Recipe | None) -> bool:
    """Whether the only argument is a source of pictures, and the recipe is trained on such ones."""
    if recipe is None or recipe.task.evaluated.data_kind != "images" or len(texts) != 1:
        return False
    path = Path(texts[0])
    is_archive = not {".tar", ".tgz", ".zip"}.isdisjoint(path.suffixes)
    return is_path(Path.is_dir, texts[0]) or "idx3" in path.name or is_archive


def _parse_threshold(values: list[str] | None) -> float | dict[str, float] | None:
    """The threshold of `classify`: a number, or numbers by label. Raises UsageError."""
    if not values:
        return None
    split = [value.rpartition("=") for value in values]
    try:
        numbers = {label: float(number) for label, _, number in split}
    except ValueError:
        raise UsageError(
            f"--threshold {values[0]!r:.60}: expected a probability such as 0.7, or LABEL=0.7"
        ) from None
    if "" not in numbers:
        return numbers
    if len(values) > 1:
        raise UsageError("--threshold: one number for all labels, or LABEL=X for each")
    return numbers[""]


def _lines() -> Iterator[str]:
    from trifold.data import iter_lines

    return iter_lines("-")


def _digests(table: str, model: str, out: Path) -> Any:
    """What tells the table and the model of an interrupted output from others; the output may grow
    in a folder of pictures.
    """
    from trifold.data import compute_digests, expand_path
    from trifold.hub import resolve

    path = expand_path(table)
    own = out.resolve().parent
    names = (out.name, f".{out.name}")
    files: list[Any] = list_files(table, TABLE_FORMATS) or [table]
    if path.is_dir():
        files = [
            file
            for file in sorted(path.rglob("*"))
            if file.resolve().parent != own or not file.name.startswith(names)
        ]
    return compute_digests([*map(str, files), *map(str, sorted(resolve(model).iterdir()))])


# --- prediction -----------------------------------------------------------------------------------


@dataclass
class Predictor:
    """A task of a model with the options of the command.

    corpus: the file that `search` reads. every: whether to give the probability of every class.
    unknown: words of the inputs that the tokenizer does not know.
    """

    pipeline: Pipeline
    task: str
    options: dict[str, Any]
    recipe: Recipe | None = None
    corpus: str | None = None
    every: bool = False
    unknown: list[str] = field(default_factory=list)

    @property
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
        from trifold.predict.predict import TASKS

        return self.task in TASKS and TASKS[self.task].pairs == "must"

    def contents(self, batch: Sequence[Input], *, is_piped: bool = False) -> list[object]:
        """Whether there is something to read in each input. A text of the command line is read as
        it is; a row, only with a letter, a digit or a token in each of its texts.
        """
        if self.pipeline.tokenizer is None or not batch[0].row:
            return [not is_piped or bool(one.text.strip()) for one in batch]
        return [all(map(self._has_content, _texts_of(one))) for one in batch]

    def _has_content(self, text: str) -> bool:
        return any(map(str.isalnum, text)) or any(self.pipeline.reader.encode([text]))

    def __call__(
        self, progress: Any, first: int, read: int, indices: list[int], batch: list[Input]
    ) -> Any:
        """The predictions of a batch, of which `read` inputs after number `first` were read."""
        if not self.config.n_patches and len(self.unknown) < 10_000:
            from trifold.text.annotation import unknown_words

            texts = (" ".join(_texts_of(one)) for one in batch)
            self.unknown.extend(unknown_words(self.pipeline.reader, texts))
        if self.generates:
            return self._generate(progress, first + read, batch)
        sources = [one.text for one in batch]
        pairs = _second_texts(batch)
        options: dict[str, Any] = {"places": [one.place for one in batch], "on_done": progress}
        options |= {"on_cut": print_note, **given(**self.options)}
        if self.task == "similarity":
            return self._compare(sources, pairs, options)
        if self.task == "choose" and any(one.choices for one in batch):
            options["choices"] = [one.choices for one in batch]
            options["questions"] = [one.question for one in batch]
        if self.every:
            options.pop("threshold", None)  # see `chosen`
            if self.task == "classify":
                options["top_k"] = self.config.n_labels
        if self.corpus is not None:
            options["corpus"] = self._read_corpus(self.corpus)
        return self.pipeline.predict(sources, pairs or None, task=self.task, **options)

    def chosen(self, found: Any) -> Any:
        """What a threshold leaves of a prediction that has every class."""
        from trifold.nn.config import MULTI
        from trifold.predict.classify import apply_threshold

        threshold = self.options.get("threshold")
        if not self.every or threshold is None or found is None:
            return found
        if self.task == "next-sentence":
            return found.choose(threshold)
        several = self.config.problem_type == MULTI
        return apply_threshold(found, threshold, several=several)[: self.options["top_k"]]

    def probabilities(self, found: Any) -> dict[str, float]:
        """The probability of each class in a prediction that has every class."""
        labels = found.labels if self.task == "next-sentence" else found
        return {each.label: each.score for each in labels or ()}

    def _generate(self, progress: Any, first: int, batch: list[Input]) -> Any:
        from trifold.cli.batch import check_lengths, generate_outputs

        positions = self.config.max_positions
        longest = min(positions, getattr(self.recipe and self.recipe.task, "max_source", positions))
        is_cut = self.options["on_overflow"] == "truncate"
        remedy = None if is_cut else "shorten it, or truncate it (--on-overflow truncate)"
        sources = [one.text for one in batch]
        places = [one.place for one in batch]
        parse_special = self.options["parse_special"]
        check_lengths(self.pipeline, sources, places, longest, remedy, parse_special)
        generation = {"on_done": progress, "first": first, "max_source": longest}
        settings = given(parse_special=parse_special)
        return generate_outputs(self.pipeline, sources, settings, **generation)

    def _compare(self, sources: list[str], pairs: list[str], options: dict[str, Any]) -> list[Any]:
        """The cosine of the vectors of two texts; the vectors, if there are no second texts."""
        if not pairs:
            return list(self.pipeline.embed(sources, **options))
        left, right = (
            self.pipeline.embed(texts, normalise=True, **options) for texts in (sources, pairs)
        )
        return [float(a @ b) for a, b in zip(left, right, strict=True)]

    def _read_corpus(self, file: str) -> Iterator[str]:
        from trifold.data import iter_lines

        if not is_table([file]):
            return iter_lines(file)
        return (one.text for one in open_table([file], "search", self.recipe).inputs())


def _texts_of(one: Input) -> list[str]:
    """The texts of an input; words are joined by spaces."""
    text = one.text if isinstance(one.text, str) else " ".join(one.text)
    return [text] if one.pair is None else [text, one.pair]


def _second_texts(batch: Sequence[Input]) -> list[str]:
    """The second texts, if the inputs have one. Raises DataError if only some have."""
    pairs = [one.pair for one in batch if one.pair is not None]
    if 0 < len(pairs) < len(batch):
        place = next(one.place for one in batch if one.pair is None)
        raise DataError(f"{place}: the second text is missing, which other rows have; add it")
    return pairs


def _choose_task(
    config: ModelConfig,
    recipe: Recipe | None,
    task: str | None,
    corpus: str | None,
    *,
    is_rows: bool,
) -> str:
    """The task of the command: of `predict.TASKS`; for rows also `generate`, and `similarity` of a
    model that learned it.
    """
    from trifold.predict.predict import choose_task

    if is_rows and task is None and corpus is None:
        if config.shape != "encoder" and config.chosen_heads == ("lm",):
            return "generate"
        if recipe is not None and recipe.task.evaluated.kind == "embed":
            return "similarity"
    return choose_task(config, task if corpus is None else task or "search")


def _check_options(
    config: ModelConfig, task: str, options: dict[str, Any], probabilities: bool
) -> None:
    """Raises UsageError for an option that the task does not have; the functions of the tasks check
    the others.
    """
    from trifold.predict.classify import check_threshold

    unused = [name for name in options if name not in ("on_overflow", "parse_special")]
    if task == "generate" and unused:
        raise UsageError(f"{unused[0]}: not an option of a model that generates text")
    classes = _classes(config, task)
    if probabilities and not classes:
        raise UsageError("--probabilities: this model does not predict classes")
    if probabilities and "threshold" in options:
        check_threshold(options["threshold"], classes)


def _classes(config: ModelConfig, task: str) -> Sequence[str]:
    """The names of the classes that a task chooses from, if it has a fixed set."""
    from trifold.nn.config import REGRESSION
    from trifold.predict.classify import ANSWERS

    if task == "next-sentence":
        return [*ANSWERS.values()]
    return config.labels if task == "classify" and config.problem_type != REGRESSION else []


# --- rows of a table ------------------------------------------------------------------------------


def _predict_rows(
    predictor: Predictor, read: Any, out: Path, form: Format, key: str, size: int
) -> None:
    """Write the rows with their predictions."""
    from trifold.nn.config import MULTI, REGRESSION

    config = predictor.config
    is_class = predictor.task in ("classify", "choose")
    has_score = is_class and config.problem_type not in (MULTI, REGRESSION)
    added = ["prediction", "score"] if has_score else ["prediction"]
    classes = _classes(config, predictor.task) if predictor.every else []
    columns = [*added, *(f"p_{label}" for label in classes)]
    if predictor.task == "classify":
        predictor.options["top_k"] = predictor.options["top_k"] or _most_labels(predictor, 1)

    def rows(inputs: Iterator[Input], first: int, advance: Any) -> Iterator[tuple[Input, Any]]:
        predict = partial(predictor, advance, first)
        for one, found in in_batches(inputs, size, predictor.contents, predict):
            advance(found is None)
            values = _values(predictor, one, found)[: len(added)]
            scores = predictor.probabilities(found) if classes and found is not None else {}
            values += [scores.get(label) for label in classes]
            yield one, dict(zip(columns, values, strict=True))

    write_table(read, out, form, columns, key, size, rows)


def _most_labels(predictor: Predictor, usual: int) -> int:
    """The most labels of an input: the `usual` number, and all if it may have several."""
    from trifold.nn.config import MULTI

    return predictor.config.n_labels if predictor.config.problem_type == MULTI else usual


# --- lines of text -------------------------------------------------------------------------------


def _inputs(
    lines: Iterable[str], count: int | None, pairs: list[str], *, is_split: bool
) -> Iterator[Input]:
    """The texts, or with `count` None the lines of standard input, of which blank ones are never
    split at a tab.
    """
    for number, line in enumerate(lines, start=1):
        place = f"line {number}" if count is None else f"text {number} of {count}"
        pair = pairs[0 if len(pairs) == 1 else number - 1] if pairs else None
        if is_split and (line.strip() or count is not None):
            parts = line.split("\t")
            if len(parts) != 2:
                remedy = "pass two texts with one tab between them, or the second by --pair"
                raise DataError(f"{place}: {len(parts) - 1} tabs; {remedy}")
            line, pair = parts
        yield Input(place, line, pair)


# --- output ---------------------------------------------------------------------------------------


def _format(one: Input, predictor: Predictor, found: Any, json: bool) -> str:
    """One line: JSON, or the results separated by tabs, each with its probability last."""
    if json:
        return _format_json(one, predictor, found)
    if found is None:
        return ""
    text = _format_text(predictor.task, found)
    chosen = predictor.chosen(found)
    if not predictor.every:
        return text
    if predictor.task == "next-sentence":
        text = _format_text("classify", found.labels)
    if predictor.options["threshold"] is None:
        return text
    # What is predicted stands before all classes.
    return f"{'' if chosen is None else _format_text(predictor.task, chosen)} / {text}"


def _format_json(one: Input, predictor: Predictor, found: Any) -> str:
    pair = {} if one.pair is None else {"pair": one.pair}
    chosen = predictor.chosen(found)
    outputs = [] if chosen is None else to_json(chosen)
    values = {"source": one.text, **pair, "task": predictor.task, "outputs": outputs}
    if predictor.every:
        values["probabilities"] = {} if found is None else predictor.probabilities(found)
    return json_line(values)


def to_json(value: Any) -> Any:
    """Predictions as JSON values: an object for a named tuple, a list of numbers for a vector."""
    if hasattr(value, "_asdict"):
        return {key: to_json(item) for key, item in value._asdict().items()}
    if isinstance(value, list):
        return [to_json(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _format_text(task: str, found: Any) -> str:
    match task:
        case "fill-mask":
            masks = [
                [f"{printable(one_line(one.text))} {one.score:.4f}" for one in mask]
                for mask in found
            ]
            return " / ".join(map("\t".join, masks))
        case "classify" | "choose":
            parts = [f"{printable(one_line(one.label))} {one.score:.4f}" for one in found]
        case "tag":
            parts = [
                f"{printable(one_line(one.label))} {one.start}:{one.end} {one_line(one.text)} "
                f"{one.score:.4f}"
                for one in found
            ]
        case "answer":
            parts = [f"{one.start}:{one.end} {one_line(one.text)} {one.score:.4f}" for one in found]
        case "search":
            return "\n".join(
                f"{one.number}\t{one.score:.4f}\t{one_line(one.text)}" for one in found
            )
        case "next-sentence":
            parts = [f"{found.label} {found.score:.4f}"]
        case _:
            return " ".join(f"{number:.6g}" for number in found.tolist())
    return "\t".join(parts)


def _values(predictor: Predictor, one: Input, found: Any) -> list[Any]:
    """The prediction for a row and its score, None without one.

    The prediction is the label of a class or of several, the number of a regression, the tag of
    each word, or the output for a text; else JSON.
    """
    task = predictor.task
    problem = predictor.config.problem_type
    if task == "generate":
        return [found[0].text if found else ""]
    found = predictor.chosen(found)
    if found is None:
        return [None, None]
    if task == "tag" and not isinstance(one.text, str):
        return [[tag.label for tag in found]]
    if task == "choose":
        return [*found[0]]
    if task == "classify":
        return _class_values(predictor, problem, found)
    return [to_json(found)]


def _class_values(predictor: Predictor, problem: str | None, found: list[Label]) -> list[Any]:
    """The prediction of a classification and its score."""
    from trifold.nn.config import MULTI, REGRESSION

    if problem == REGRESSION:
        return [found[0].score]
    threshold = predictor.options["threshold"]
    if problem == MULTI:
        least = 0.5 if threshold is None else 0.0
        return [to_json([one for one in found if one.score > least])]
    if predictor.options["top_k"] > 1:
        return [to_json(found[: predictor.options["top_k"]]), None]
    return [*found[0]] if found else [None, None]
