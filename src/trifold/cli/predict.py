"""`trifold predict`: classify, tag, answer, fill in masks, embed texts or pictures, or search."""

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

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
from trifold.cli.tables import Input, check_no_files, is_table, read_table, write_table
from trifold.cli.terminal import open_output, print_note, print_result
from trifold.errors import DataError, UsageError, check_utf8, printable
from trifold.jsonfiles import json_line

EXAMPLES = (
    'trifold predict bert-base-uncased "Paris is the [MASK] of France."',
    "trifold predict runs/reviews - --json < reviews.txt",
    'trifold predict runs/qa "Who wrote it?" --context "It was written by Ada."',
    "trifold predict google/vit-base-patch16-224 cat.jpg dog.png",
)
SMALL_BATCH = (
    64  # pictures, or texts of a generation model, that are read before the first prediction
)
MULTI = "multi_label_classification"

# Options of the tasks.
OPTIONS = {
    "top_k": option(
        int, "The K most likely results.", metavar="K", min=1, show_default="5; answer: 1"
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
            help="Texts, or picture files; a table (.csv, .tsv, .jsonl, .parquet), and "
            "data.columns.text=COLUMN if its "
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
    texts, pairs = text or [], pair or []
    table = not as_text and is_table(texts)
    if table and (out is None or out.suffix not in (".csv", ".tsv", ".jsonl")):
        raise UsageError(
            f"--out: name a .csv, .tsv or .jsonl file for the rows of the table {texts[0]} with "
            "predictions"
        )
    if table and out is not None and out.resolve() == Path(texts[0]).expanduser().resolve():
        raise UsageError(f"--out {out}: is the table that is read; name another file")
    is_piped = not table and reads_stdin(texts)
    if pairs and tsv:
        raise UsageError("--pair and --tsv both set the second text: leave one of them out")
    if len(pairs) not in (0, 1, 1 if is_piped else len(texts)):
        raise UsageError(
            f"--pair: {len(pairs)} second texts for {len(texts)} texts; pass one for each, or "
            "one for all"
        )
    for second in pairs:
        check_utf8(second, "--pair")

    from trifold.cli.batch import check_lengths, generate_outputs
    from trifold.data import DataSettings, compute_digests, expand_path, iter_lines
    from trifold.hub import resolve
    from trifold.predict.predict import TASKS, choose_task
    from trifold.text.annotation import unknown_words

    pipeline = load_pipeline(model, device=device, dtype=dtype, tokenizer=tokenizer)
    if not (as_text or table or is_piped or pipeline.config.n_patches):
        check_no_files([*texts, *pairs], f"predict {model}")
    corpus = options.pop("corpus")
    recipe, config = find_recipe(model), pipeline.config
    data = DataSettings() if recipe is None else recipe.data
    is_generator = config.shape != "encoder" and config.chosen_heads == ("lm",)
    generates = table and task is None and corpus is None and is_generator
    name = (
        "generate"
        if generates
        else choose_task(config, task if corpus is None else task or "search")
    )
    shared = ("on_overflow", "parse_special")
    unused = [each for each in given(**options, pair=pairs) if generates and each not in shared]
    if unused:
        raise UsageError(f"{unused[0]}: not an option of a model that generates text")
    longest = min(
        config.max_positions, getattr(recipe and recipe.task, "max_source", config.max_positions)
    )
    advice = "shorten it, or truncate it (--on-overflow truncate)"
    remedy = None if options["on_overflow"] == "truncate" else advice
    is_split = tsv or (not generates and TASKS[name].pairs == "must" and not pairs)
    count, unknown = None if is_piped else len(texts), list[str]()

    def contents(batch: list[Input]) -> list[object]:
        if not table or pipeline.tokenizer is None:
            return [one.text.strip() or not is_piped for one in batch]
        sides = [[one.text, one.text if one.pair is None else one.pair] for one in batch]
        encode = pipeline.reader.encode
        return [all(any(map(str.isalnum, x)) or any(encode([x])) for x in both) for both in sides]

    def predict(
        progress: Any, first: int, read: int, indices: list[int], batch: list[Input]
    ) -> Any:
        if not pipeline.config.n_patches and len(unknown) < 10_000:
            unknown.extend(
                unknown_words(pipeline.reader, (f"{one.text} {one.pair or ''}" for one in batch))
            )
        sources, places = [one.text for one in batch], [one.place for one in batch]
        if generates:
            parse_special = options["parse_special"]
            check_lengths(pipeline, sources, places, longest, remedy, parse_special)
            generation = {"on_done": progress, "first": first + read, "max_source": longest}
            settings = given(parse_special=parse_special)
            return generate_outputs(pipeline, sources, settings, **generation)
        others = [one.pair for one in batch if one.pair is not None] or None
        chosen = given(**options, corpus=None if corpus is None else read_corpus(corpus))
        more: dict[str, Any] = {"places": places, "on_done": progress, "on_cut": print_note}
        return pipeline.predict(sources, others, task=name, **more, **chosen)

    def read_corpus(file: str) -> Iterator[str]:
        rows = read_table([file], name, data, []) if is_table([file]) else None
        return iter_lines(file) if rows is None else (row.text for row in rows)

    # A person who types expects an output after each line.
    is_typed = is_piped and sys.stdin.isatty()
    size = (
        1
        if is_typed
        else batch_size or (SMALL_BATCH if pipeline.config.n_patches or generates else BATCH)
    )
    if table and out is not None:
        problem, added = (
            pipeline.config.problem_type,
            ["prediction", "score"][: 1 + (name == "classify")],
        )
        if name == "classify":
            options["top_k"] = options["top_k"] or (
                pipeline.config.n_labels if problem == MULTI else 1
            )
        read = partial(read_table, texts, name, data, pairs)
        files = compute_digests(
            [str(expand_path(texts[0])), *map(str, sorted(resolve(model).iterdir()))]
        )

        def rows(inputs: Iterator[Input], first: int, advance: Any) -> Iterator[tuple[Input, Any]]:
            for one, found in in_batches(inputs, size, contents, partial(predict, advance, first)):
                advance(found is None)
                yield one, dict(zip(added, _values(name, problem, found), strict=False))

        write_table(read, out, added, command + repr(files), size, rows)
        warn_unknown(pipeline, unknown)
        return
    inputs = _inputs(iter_lines("-") if is_piped else texts, count, pairs, is_split=is_split)
    json = json or (out is not None and out.suffix == ".jsonl")
    with open_output(out) as results:
        for one, found in in_batches(inputs, size, contents, partial(predict, Progress(), 0)):
            print_result(_format(one, name, found, json), results)
    warn_unknown(pipeline, unknown)


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


def _format(one: Input, task: str, found: Any, json: bool) -> str:
    """One line: JSON, or the results separated by tabs, each with its probability last."""
    if not json:
        return "" if found is None else _format_text(task, found)
    pair = {} if one.pair is None else {"pair": one.pair}
    outputs = [] if found is None else to_json(found)
    return json_line({"source": one.text, **pair, "task": task, "outputs": outputs})


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
            parts = [f"{'follows' if found.follows else 'does not follow'} {found.score:.4f}"]
        case _:
            return " ".join(f"{number:.6g}" for number in found.tolist())
    return "\t".join(parts)


def _values(task: str, problem: str | None, found: Any) -> list[Any]:
    """The label and the score of a classification, the number of a regression, an output of a text;
    else JSON.
    """
    if task == "generate":
        return [found[0].text if found else ""]
    if task == "classify" and problem == MULTI and found is not None:
        found = [one for one in found if one.score > 0.5]
    elif task == "classify" and found is not None and len(found) == 1:
        return [found[0].score, None] if problem == "regression" else [*found[0]]
    return [to_json(found), None]
