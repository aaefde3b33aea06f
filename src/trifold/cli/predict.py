"""`trifold predict`: classify, tag, answer, fill in masks, embed texts or pictures, or search."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from trifold.cli.batch import (
    BATCH,
    in_batches,
    load_pipeline,
    reads_stdin,
    warn_unknown,
)
from trifold.cli.eval import find_recipe
from trifold.cli.hints import in_quotes
from trifold.cli.names import CONTENT, Typed, check_no_files, is_path, is_pattern
from trifold.cli.options import (
    AsText,
    BatchSize,
    Codec,
    Device,
    Dtype,
    Json,
    Model,
    Out,
    Overwrite,
    Weights,
    option,
    option_words,
    with_options,
)
from trifold.cli.overlap import OnDone
from trifold.cli.panels import FIRST, in_panels
from trifold.cli.progress import TextProgress
from trifold.cli.table_output import RECORDS, SUFFIXES, Format, write_table
from trifold.cli.tables import Input, image_inputs, is_table, open_table
from trifold.cli.terminal import (
    check_output,
    is_regular_file,
    open_output,
    print_note,
    print_result,
)
from trifold.data.dialects import Dialect
from trifold.data.files import TABLE_FORMATS, list_files
from trifold.errors import DataError, UsageError, check_utf8, plural

if TYPE_CHECKING:
    from trifold.cli.predictor import Predictor
    from trifold.pipeline import Pipeline
    from trifold.recipe import Recipe

EXAMPLES = (
    'trifold predict bert-base-uncased "Paris is the [MASK] of France."',
    "trifold predict runs/reviews - --dtype bf16 --weights int8 < reviews.txt",
    "trifold predict runs/spam mails.csv --out found.csv --threshold spam=0.9",
    'trifold predict bert-base-uncased "I love dogs." "Dogs bark." --word dogs',
)
# Pictures, or texts of a generation model, that are read before the first prediction.
SMALL_BATCH = 64
MANY_WORDS = 3  # texts of a word each that are probably one text
ARRAYS = ".npz"  # the suffix of arrays
SETTING = re.compile(r"data\.[\w.]+=")  # the beginning of a setting of a table
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
    "max_answer_length": option(
        int, "answer: maximum tokens.", min=1, show_default="of training, or 15"
    ),
    "impossible": option(bool, "answer: the text may contain none.", "--impossible"),
    "max_length": option(
        int, "answer: tokens of a window over a long context.", min=1, show_default="384"
    ),
    "stride": option(int, "answer: tokens that windows share.", min=0, show_default="128"),
    "layer": option(
        int, "features: after this layer; 0: the embeddings.", min=0, show_default="the last"
    ),
    "word": option(str, "features: compare the vectors of this word in the texts.", metavar="WORD"),
    "pooling": option(
        Literal["mean", "cls", "last", "max", "pooler"],
        "embed, features: which states make the vector of a text.",
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
    "corpus": option(
        str,
        "search: the file whose lines are searched, or a table, whose settings, such as "
        "data.columns.text=COLUMN, may stand beside the texts.",
        metavar="FILE",
    ),
    "parse_special": option(
        bool,
        "Read special tokens that are written in a text, such as [SEP], as tokens.",
        "--parse-special/--no-parse-special",
        show_default="fill-mask, embed, search, features: as transformers; else no",
    ),
    "on_overflow": option(
        Literal["error", "truncate"],
        "For a text that is too long for the model.",
        show_default="error",
    ),
}
# Panels of the help.
PANELS = {
    FIRST: ("task", "pair", "top_k", "probabilities", "json", "out", "overwrite"),
    "Classification": ("threshold", "choices"),
    "Tags": ("merge",),
    "Answers": ("max_answer_length", "impossible", "max_length", "stride"),
    "Vectors and search": (
        "layer",
        "word",
        "pooling",
        "normalise",
        "prompt",
        "prompt_name",
        "corpus",
    ),
    "How texts are read": ("tsv", "as_text", "parse_special", "on_overflow"),
    "Model and machine": ("tokenizer", "device", "dtype", "weights", "batch_size"),
}


@in_panels(PANELS)
@with_options(OPTIONS)
def run(
    model: Model,
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT|TABLE|-]...",
            help="Texts, or picture files; a file of rows (.csv, .tsv, .jsonl, .parquet, .xlsx, "
            ".json, .conll) or a folder of pictures, as in training, and data.columns.text=COLUMN "
            "if its header has no known name; `-` (or a pipe) reads lines from standard input.",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="TASK",
            help="fill-mask, classify, choose, tag, answer, next-sentence, embed, search or "
            "features.",
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
    weights: Weights = "file",
    tokenizer: Codec = None,
    as_text: AsText = False,
    json: Json = False,
    out: Out = None,
    overwrite: Overwrite = False,
    **options: Any,
) -> None:
    """Fill in masks, classify, tag, answer or embed: one output line for each text, or for each
    line of input.
    """
    # An interrupted output continues only if the arguments are the same. One that stops at a text
    # that is too long may continue with another --on-overflow.
    command = repr({**locals(), "overwrite": None, "options": {**options, "on_overflow": None}})
    machine: dict[str, Any] = {"device": device, "dtype": dtype, "weights": weights}
    load = partial(load_pipeline, model, tokenizer=tokenizer, **machine)
    word = options.pop("word")
    if word is not None and task is None:
        task = "features"
    _check_features(task, out, word, as_json=json)
    texts, corpus = _split_corpus(text or [], options["corpus"])
    options["corpus"] = corpus
    request = PredictRequest(
        model, find_recipe(model), texts, pair or [], task, options, probabilities, tsv, load
    )
    are_rows = not as_text and _are_rows(request.texts, request.recipe)
    has_vectors = word is not None or (out is not None and out.suffix == ARRAYS)
    if are_rows and not has_vectors:
        out = _check_format(out, request.texts[0])
    _check_output(request, out, as_text=as_text, overwrite=overwrite)
    if has_vectors:
        opened = _open_rows(request) if are_rows else _open_lines(request, as_text=as_text)
        predictor = _predict_vectors(opened, batch_size, out, word, as_json=json)
    elif out is not None and are_rows:
        predictor = _predict_rows(request, batch_size, out, command, overwrite=overwrite)
    else:
        predictor = _predict_lines(request, batch_size, out, as_text=as_text, as_json=json)
    if predictor.truncation:
        print_note(str(predictor.truncation))
    warn_unknown(predictor.pipeline, predictor.unknown)


def _check_output(
    request: PredictRequest, out: Path | None, *, as_text: bool, overwrite: bool
) -> None:
    """Raises UsageError for an output that exists, or that is an input."""
    corpus: list[str] = request.options["corpus"]
    sources = [*corpus[:1]]
    if is_table(request.texts, request.recipe) and not as_text:
        sources.append(request.texts[0])  # pictures are a folder, which may hold the output
    check_output(out, *sources, overwrite=overwrite)


class PredictRequest(NamedTuple):
    """What to predict: a model, the recipe of its run, if any, and the arguments.

    every: whether to give the probability of every class. is_split: whether each text is two texts
    with a tab between them. load: loads the model, after the other arguments are checked.
    """

    model: str
    recipe: Recipe | None
    texts: list[str]
    pairs: list[str]
    task: str | None
    options: dict[str, Any]
    every: bool
    is_split: bool
    load: Callable[[], Pipeline]

    def check_pairs(self, *allowed: int, texts: int) -> None:
        """Raises UsageError for another number of second texts than the `allowed` ones, for this
        number of texts.
        """
        if self.pairs and self.is_split:
            raise UsageError("--pair and --tsv both set the second text: leave one of them out")
        if len(self.pairs) not in allowed:
            raise UsageError(
                f"--pair: {len(self.pairs)} second texts for {texts} texts; pass one for each, or "
                "one for all"
            )
        for second in self.pairs:
            check_utf8(second, "--pair")

    def predictor(self, pipeline: Pipeline, *, is_rows: bool) -> Predictor:
        """The predictor for these arguments. Raises UsageError for those that do not fit the
        model.
        """
        from trifold.cli.predictor import make_predictor

        threshold = _parse_threshold(self.options["threshold"])
        return make_predictor(
            pipeline,
            self.recipe,
            self.task,
            {**self.options, "threshold": threshold},
            has_pairs=bool(self.pairs),
            is_rows=is_rows,
            every=self.every,
        )


def _split_corpus(texts: Sequence[str], corpus: str | None) -> tuple[list[str], list[str]]:
    """The texts, and the corpus with its settings, which may stand before or after them. Those
    after a table are settings of the table.
    """
    if corpus is None:
        return [*texts], []
    settings = [text for text in texts if SETTING.match(text)]
    others = [text for text in texts if text not in settings]
    if len(others) == 1 and is_table(others):
        return [*texts], [corpus]
    return others, [corpus, *settings]


class Opened(NamedTuple):
    """The loaded model with its options, and what reads its inputs. dialect: of a table that is
    read. is_piped: whether the inputs are lines of standard input.
    """

    predictor: Predictor
    read_items: Callable[[], Iterator[Input]]
    dialect: Dialect | None = None
    is_piped: bool = False


def _predictions(
    opened: Opened, inputs: Iterator[Input], size: int, on_done: OnDone, *, first: int = 0
) -> Iterator[tuple[Input, Any]]:
    """Each input with its prediction, as `in_batches` yields them.

    A pipe is not read ahead: the next line may come much later.
    """
    predictor = opened.predictor

    def predict(
        n_before: int, indices: list[int], batch: list[Input], on_done: OnDone
    ) -> Sequence[Any]:
        return predictor.predict(batch, n_before, on_done)

    workers = 1
    if not opened.is_piped or is_regular_file(sys.stdin):
        workers = predictor.workers()
    contents = partial(predictor.contents, is_piped=opened.is_piped)
    yield from in_batches(inputs, size, contents, predict, on_done, first=first, workers=workers)


# --- vectors --------------------------------------------------------------------------------------


def _check_features(task: str | None, out: Path | None, word: str | None, *, as_json: bool) -> None:
    """Raises UsageError for features without a place, and for a word with another task."""
    if word is not None and (task != "features" or out is not None):
        raise UsageError("--word prints a table of features; leave --task and --out out")
    if word is not None and not word.strip():
        raise UsageError("--word: the word is empty; name one")
    is_written = out is not None and out.suffix in (ARRAYS, ".jsonl")
    if task == "features" and word is None and not (is_written or as_json):
        raise UsageError(
            "--task features gives a vector for every token: write them with --out FILE.npz, print "
            "them with --json, or compare those of a word with --word"
        )


def _predict_vectors(
    opened: Opened, batch_size: int | None, out: Path | None, word: str | None, *, as_json: bool
) -> Predictor:
    """Write the vectors of all inputs as arrays, or compare those of a word."""
    from trifold.cli.arrays_output import check_arrays, write_arrays
    from trifold.cli.word_output import print_word
    from trifold.predict.features import check_layer

    predictor = opened.predictor
    size = batch_size or SMALL_BATCH
    results = _predictions(opened, opened.read_items(), size, TextProgress())
    if out is not None:
        check_arrays(out, predictor)
        write_arrays(out, predictor, results)
    elif word is not None:
        layer = check_layer(predictor.config, predictor.options["layer"])
        print_word(word, layer, results, as_json=as_json)
    return predictor


# --- rows of a table ------------------------------------------------------------------------------


def _predict_rows(
    request: PredictRequest, batch_size: int | None, out: Path, command: str, *, overwrite: bool
) -> Predictor:
    """Write the rows of a table, or the pictures of a folder, with their predictions."""
    from trifold.cli.prediction_output import added_columns, cells

    source = request.texts[0]
    opened = _open_rows(request)
    predictor = opened.predictor
    columns = added_columns(predictor)
    size = batch_size or _usual_size(predictor)

    def rows(
        inputs: Iterator[Input], first: int, advance: Callable[[int], None]
    ) -> Iterator[tuple[Input, dict[str, Any]]]:
        for item, prediction in _predictions(opened, inputs, size, advance, first=first):
            if prediction is None:
                advance(1)
            values = cells(predictor, item, prediction)
            yield item, dict(zip(columns, values, strict=True))

    key = command + repr(_digests(source, request.model, out))
    form = Format.of(out, source, opened.dialect)
    write_table(opened.read_items, out, form, columns, key, size, rows, overwrite=overwrite)
    return predictor


def _open_rows(request: PredictRequest) -> Opened:
    """The model and the rows of a table, or the pictures of a folder."""
    texts = request.texts
    request.check_pairs(0, 1, texts=len(texts))
    pipeline = request.load()
    predictor = request.predictor(pipeline, is_rows=True)
    if pipeline.config.n_patches:
        return Opened(predictor, partial(image_inputs, texts[0]))
    table = open_table(texts, predictor.task, request.recipe, request.pairs)
    return Opened(predictor, table.inputs, table.dialect())


def _are_rows(texts: Sequence[str], recipe: Recipe | None) -> bool:
    """Whether the arguments are a source of rows, and no texts."""
    return is_table(texts, recipe) or _is_image_set(texts, recipe)


def _is_image_set(texts: Sequence[str], recipe: Recipe | None) -> bool:
    """Whether the only argument is a source of pictures, and the recipe is trained on such ones."""
    if recipe is None or recipe.task.evaluated.data_kind != "images" or len(texts) != 1:
        return False
    path = Path(texts[0])
    is_archive = not {".tar", ".tgz", ".zip"}.isdisjoint(path.suffixes)
    return is_path(Path.is_dir, texts[0]) or "idx3" in path.name or is_archive


def _check_format(out: Path | None, table: str) -> Path:
    """The output of a table. Raises UsageError for another format, and if there is none."""
    if out is None and not (is_path(Path.exists, table) or is_pattern(table)):
        raise UsageError(f"{table}: no such file; check the path, or add --text if it is a text")
    if out is None or out.suffix not in RECORDS:
        remedy = "; --text takes its name as a text" if out is None else ""
        raise UsageError(
            f"--out: name a file ({SUFFIXES}) for the rows of the table {table} with "
            f"predictions{remedy}"
        )
    return out


def _digests(table: str, model: str, out: Path) -> Any:
    """What tells the table and the model of an interrupted output from others; the output may grow
    in a folder of pictures.
    """
    from trifold.data import compute_digests, expand_path
    from trifold.folders import names_on_disk
    from trifold.hub import resolve

    def is_output(file: Path) -> bool:
        is_beside = file.resolve().parent == out.resolve().parent
        return is_beside and file.name.startswith((out.name, f".{out.name}"))

    path = expand_path(table)
    files: list[Any] = list_files(table, TABLE_FORMATS) or [table]
    if path.is_dir():
        files = [file for file in sorted(path.rglob("*")) if not is_output(file)]
    return compute_digests([*map(str, files), *names_on_disk(resolve(model))])


# --- lines of text --------------------------------------------------------------------------------


def _predict_lines(
    request: PredictRequest,
    batch_size: int | None,
    out: Path | None,
    *,
    as_text: bool,
    as_json: bool,
) -> Predictor:
    """Print the prediction for each text, or for each line of standard input."""
    from trifold.cli.prediction_output import format_json, format_line

    as_json = as_json or (out is not None and out.suffix == ".jsonl")
    are_words = all(re.fullmatch(r"\w+[,.!?]?", text) for text in request.texts)
    if len(request.texts) >= MANY_WORDS and are_words and not request.pairs:
        whole = in_quotes(" ".join(request.texts))
        print_note(
            f"{len(request.texts)} words are {len(request.texts)} texts; if they are one, put it "
            f"in quotes: `trifold predict {shlex.quote(request.model)} {whole}`"
        )
    options = {**request.options, "corpus": " ".join(request.options["corpus"][:1]) or None}
    words = option_words(**options, json=as_json or None, out=out)
    opened = _open_lines(request, as_text=as_text, words=words)
    predictor = opened.predictor
    # A person who types expects an output after each line.
    is_typed = opened.is_piped and sys.stdin.isatty()
    size = 1 if is_typed else batch_size or _usual_size(predictor)
    predictions = _predictions(opened, opened.read_items(), size, TextProgress())
    with open_output(out) as results:
        for item, prediction in predictions:
            if as_json:
                line = format_json(item, predictor, prediction)
            else:
                line = format_line(predictor, prediction)
            print_result(line, results)
    return predictor


def _open_lines(request: PredictRequest, *, as_text: bool, words: str = "") -> Opened:
    """The model and the texts, or the lines of standard input. words: the options of the command as
    they are typed.
    """
    texts = request.texts
    pairs = request.pairs
    is_piped = reads_stdin(texts)
    n_texts = 1 if is_piped else len(texts)
    request.check_pairs(0, 1, n_texts, texts=n_texts)
    if not (as_text or is_piped):
        _check_texts(request, words)
    pipeline = request.load()
    predictor = request.predictor(pipeline, is_rows=False)
    is_split = request.is_split or (predictor.needs_pairs and not pairs)
    if is_piped:
        read_items = partial(_inputs_of_lines, pairs, is_split=is_split)
    else:
        read_items = partial(_inputs_of_texts, texts, pairs, is_split=is_split)
    return Opened(predictor, read_items, is_piped=is_piped)


def _check_texts(request: PredictRequest, words: str) -> None:
    """Raises UsageError for a text, a second text or a choice that is the name of a file, unless
    the model reads images. The model is not loaded.
    """
    from trifold.hub import read_config, resolve

    command = f"predict {request.model}"
    choices = request.options["choices"] or ()
    try:
        check_no_files([*request.texts, *choices], Typed(command, words))
        check_no_files(request.pairs, Typed(f"{command} TEXT --pair", words, CONTENT))
    except UsageError:
        if not read_config(resolve(request.model)).n_patches:
            raise


def _usual_size(predictor: Predictor) -> int:
    """The number of inputs that are read before the first prediction."""
    is_slow = predictor.config.n_patches or predictor.generates
    return SMALL_BATCH if is_slow else BATCH


def _inputs_of_lines(pairs: Sequence[str], *, is_split: bool) -> Iterator[Input]:
    """The lines of standard input, of which blank ones are never split at a tab."""
    from trifold.data import iter_lines

    for number, line in enumerate(iter_lines("-"), start=1):
        place = f"line {number}"
        if is_split and line.strip():
            yield _split_input(place, line)
        else:
            yield Input(place, line, pairs[0] if pairs else None)


def _inputs_of_texts(
    texts: Sequence[str], pairs: Sequence[str], *, is_split: bool
) -> Iterator[Input]:
    """The texts with their second texts: one for all, or one for each."""
    if len(pairs) == 1:
        pairs = [*pairs] * len(texts)
    for index, text in enumerate(texts):
        place = f"text {index + 1} of {len(texts)}"
        if is_split:
            yield _split_input(place, text)
        else:
            yield Input(place, text, pairs[index] if pairs else None)


def _split_input(place: str, line: str) -> Input:
    """Two texts with a tab between them. Raises DataError for another number of tabs."""
    texts = line.split("\t")
    if len(texts) != 2:
        remedy = "pass two texts with one tab between them, or the second by --pair"
        raise DataError(f"{place}: {plural(len(texts) - 1, 'tab')}; {remedy}")
    first, second = texts
    return Input(place, first, second)


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
