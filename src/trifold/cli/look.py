"""`trifold look`: inspect a model in the browser, or draw what it attends to."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from trifold.cli.names import CONTENT, Typed, check_no_files
from trifold.cli.options import (
    AsText,
    Codec,
    Device,
    Json,
    Overwrite,
    argument,
    option_words,
    value,
)
from trifold.cli.panels import FIRST, in_panels
from trifold.cli.progress import count_progress
from trifold.cli.terminal import check_output, print_json, print_note, print_table
from trifold.errors import UsageError, check_utf8, plural

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trifold.look.attention import AttentionMaps
    from trifold.look.corpus import Line
    from trifold.pipeline import Pipeline

DECIMALS = 7  # of printed weights, which are float32
AXES = ("layers", "heads", "queries", "keys")  # of weights
EXAMPLES = (
    'trifold look runs/demo "I love dogs." --out page.html',
    'trifold look runs/demo "I love dogs." --kind all --out heads.png',
    'trifold look runs/demo "I love dogs." --target "J\'aime les chiens." --json',
    "trifold look runs/demo --roles pairs.tsv --prune positional",
)
PANELS = {
    FIRST: ("target", "out", "overwrite", "compare", "json"),
    "Picture": ("kind", "layer", "head"),
    "Gradients, and a worked example": ("gradients", "matrices"),
    "Roles of heads": ("roles", "align", "coreference", "conllu", "prune"),
    "Live page": ("port", "browser"),
    "Text, model and machine": ("as_text", "tokenizer", "device"),
}


@in_panels(PANELS)
def run(
    model: Annotated[
        str | None, argument("[MODEL]", "A run, a model folder, or a hub id; needed otherwise.")
    ] = None,
    text: Annotated[
        str | None, argument("[TEXT]", "The text, or the image file, that the model reads.")
    ] = None,
    target: Annotated[
        str | None, value("TEXT", "The text that it writes.", show_default="its own output")
    ] = None,
    out: Annotated[
        Path | None,
        value(
            "FILE",
            "A page that works offline (.html), or a picture (.png, .svg, .pdf).",
            show_default="open the live page",
        ),
    ] = None,
    kind: Annotated[
        Literal["alignment", "cross", "encoder", "decoder", "all"] | None,
        typer.Option(
            help="alignment: words, averaged over all heads; others: every layer and head.",
            show_default="alignment for a translation, else all",
        ),
    ] = None,
    layer: Annotated[int | None, value("N", "Only this layer, from 1.")] = None,
    head: Annotated[int | None, value("N", "Only this head, from 1.")] = None,
    compare: Annotated[
        str | None, value("MODEL", "Another model, or a checkpoint of its run, beside it.")
    ] = None,
    roles: Annotated[
        Path | None,
        value("FILE", "Find the roles of heads over these lines: text, or text, tab, target."),
    ] = None,
    align: Annotated[
        Path | None, value("FILE", "Aligned words of --roles: pairs 0-0 1-2 per line.")
    ] = None,
    coreference: Annotated[
        Path | None, value("FILE", "Mentions and antecedents of --roles: pairs per line.")
    ] = None,
    conllu: Annotated[
        Path | None, value("FILE", "Sentences with dependencies, for --roles.")
    ] = None,
    gradients: Annotated[
        bool,
        typer.Option("--gradients", help="Gradients of the loss of the text, layer by layer."),
    ] = False,
    matrices: Annotated[
        Path | None,
        value("FILE", "Attention on the matrices of a file, step by step; without a MODEL."),
    ] = None,
    prune: Annotated[
        list[str] | None,
        value("ROLE", "Measure the model without the heads of this role; repeatable."),
    ] = None,
    port: Annotated[int, value("N", "Of the live page.", min=0, max=65535)] = 0,
    browser: Annotated[
        bool,
        typer.Option("--browser/--no-browser", help="Open the live page, or print its address."),
    ] = True,
    device: Device = None,
    tokenizer: Codec = None,
    as_text: AsText = False,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Inspect a model in the browser, or write the page or a picture of attention to a file.

    The live page is served on this machine only. With --json, print the weights, and draw only with
    --out. With --roles, print which heads are positional, rare, syntactic, …; TEXT or --out adds
    the page.
    """
    if matrices is not None:
        _look_at_matrices(matrices, dict(locals()))
        return
    if model is None:
        raise UsageError("MODEL is missing: name a run, a folder or a hub id, or --matrices FILE")
    for given, name in ((text or "", "TEXT"), (target or "", "--target"), (str(out), "--out")):
        check_utf8(given, name)
    if not as_text:
        _check_texts(model, text, target)
    load = partial(_load, device=device, tokenizer=tokenizer)
    options = LookOptions(model, text, target, json, load)
    page = PageOptions(out, port, browser)
    selection = Selection(kind, layer, head)
    role_options = RoleOptions(roles, align, coreference, conllu, prune or [])
    _check_combinations(options, page, selection, role_options, compare, gradients=gradients)
    if out is None and selection.is_given and not json:
        out = Path("attention.png")
    check_output(out, overwrite=overwrite)
    if gradients:
        _look_at_gradients(options, out)
    elif roles is not None:
        _find_roles(options, page, roles, role_options)
    elif page.has_page and not json and not selection.is_given:
        models = {name: load(name) for name in filter(None, (model, compare))}
        _open_page(models, text, target, page)
    elif text is None:
        raise UsageError(
            "TEXT is missing; without it, only the live page opens (no --out, --kind, --layer, "
            "--head, --json)"
        )
    else:
        _show_attention(options, text, selection, out)


def _look_at_matrices(matrices: Path, arguments: Mapping[str, Any]) -> None:
    """See `look_matrices`; arguments: all of the command, of which most belong to a model."""
    from trifold.cli.look_matrices import check_alone, show_matrices

    of_models = (
        *("target", "kind", "layer", "head", "compare", "roles", "align", "coreference", "conllu"),
        *("gradients", "prune", "port", "device", "tokenizer"),
    )
    positional = "".join(f" {arguments[name]}" for name in ("model", "text") if arguments[name])
    check_alone(positional + option_words(**{name: arguments[name] or None for name in of_models}))
    out: Path | None = arguments["out"]
    check_output(out, str(matrices), overwrite=arguments["overwrite"])
    show_matrices(matrices, out, as_json=arguments["json"])


def _look_at_gradients(options: LookOptions, out: Path | None) -> None:
    """See `look_gradients`. Raises UsageError without a text."""
    from trifold.cli.look_gradients import show_gradients

    if options.text is None:
        raise UsageError("TEXT is missing; --gradients are those of one text")
    pipeline = options.load(options.model)
    show_gradients(pipeline, options.text, options.target, out, as_json=options.json)


# --- groups of options ----------------------------------------------------------------------------


class LookOptions(NamedTuple):
    """The model, what it reads and writes, and whether to print JSON. load: loads a model by its
    name, after the options are checked.
    """

    model: str
    text: str | None
    target: str | None
    json: bool
    load: Callable[[str], Pipeline]


class PageOptions(NamedTuple):
    """Where the page goes: to a file, or without one to a port of this machine, where it opens in
    the browser if asked.
    """

    out: Path | None
    port: int
    browser: bool

    @property
    def is_written(self) -> bool:
        """Whether the file is a page, and no picture."""
        return self.out is not None and self.out.suffix.lower() == ".html"

    @property
    def has_page(self) -> bool:
        """Whether there is a page, live or written."""
        return self.out is None or self.is_written


class Selection(NamedTuple):
    """The heads to draw: those of a kind of attention, a layer and a head, from 1."""

    kind: str | None
    layer: int | None
    head: int | None

    @property
    def is_given(self) -> bool:
        """Whether some heads are selected, which a page does not do."""
        return self != Selection(None, None, None)


class RoleOptions(NamedTuple):
    """The lines over which roles are found, what is known about their words, and the roles whose
    heads are pruned.
    """

    roles: Path | None
    align: Path | None
    coreference: Path | None
    conllu: Path | None
    prune: list[str]

    @property
    def given(self) -> list[str]:
        """The options that are given, of which all need --roles."""
        return [f"--{name}" for name, value in self._asdict().items() if value]


def _check_combinations(
    options: LookOptions,
    page: PageOptions,
    selection: Selection,
    role_options: RoleOptions,
    compare: str | None,
    *,
    gradients: bool,
) -> None:
    """Raises UsageError for options that exclude each other, of which it reports the first."""
    finds_roles = role_options.roles is not None
    no_page = options.json or selection.is_given
    draws_no_heads = finds_roles or page.is_written or compare is not None
    contradictions = [
        (
            gradients and (selection.is_given or draws_no_heads),
            "--gradients prints a table; remove --kind, --layer, --head, --roles, --compare and "
            "pages",
        ),
        (
            compare == options.model,
            f"--compare {compare}: the same model; name another, or a checkpoint of its run",
        ),
        (
            page.is_written and not finds_roles and no_page,
            f"{page.out}: a page shows every head; remove --kind, --layer, --head and --json",
        ),
        (
            compare is not None and (no_page or not page.has_page),
            "--compare shows two models on a page; remove --kind, --layer, --head and --json, and "
            "write a file with --out page.html",
        ),
        (
            bool(role_options.given) and not finds_roles,
            f"{''.join(role_options.given[:1])} requires --roles FILE",
        ),
        (
            finds_roles and (selection.is_given or not page.has_page or compare is not None),
            "--roles prints a table; remove --kind, --layer, --head, --compare and pictures",
        ),
    ]
    for is_contradiction, message in contradictions:
        if is_contradiction:
            raise UsageError(message)


def _check_texts(model: str, text: str | None, target: str | None) -> None:
    """Raises UsageError for a text that is the name of a file, if the model reads texts."""
    from trifold.hub import read_config, resolve

    if not any((text, target)) or _is_teaching(model):
        return
    folder = _run_of_checkpoint(model) or model
    if not read_config(resolve(str(folder))).n_patches:
        check_no_files([text or ""], Typed(f"look {model}", reads=CONTENT))
        check_no_files([target or ""], Typed(f"look {model} TEXT --target", reads=CONTENT))


def _load(name: str, *, device: str | None = None, tokenizer: str | None = None) -> Pipeline:
    """A model, a checkpoint of a run, or the model of width 4 of the documentation if it is named
    `teaching`.
    """
    from trifold.cli.batch import load_pipeline
    from trifold.look.run_view import at_checkpoint
    from trifold.look.walkthrough import teaching_model

    if _is_teaching(name):
        return teaching_model()
    run = _run_of_checkpoint(name)
    if run is None:
        return load_pipeline(name, device=device, tokenizer=tokenizer)
    finished = load_pipeline(str(run), device=device, tokenizer=tokenizer)
    return at_checkpoint(finished, Path(name))


def _run_of_checkpoint(model: str) -> Path | None:
    """The run of a checkpoint; None for another model."""
    path = Path(model)
    if path.parent.name != "checkpoints" or not path.is_dir():
        return None
    return path.parents[1]


def _is_teaching(model: str) -> bool:
    return model == "teaching" and not Path(model).exists()


# --- the page -------------------------------------------------------------------------------------


def _open_page(
    models: dict[str, Pipeline],
    text: str | None,
    target: str | None,
    page: PageOptions,
    roles: dict[str, Any] | None = None,
) -> None:
    """Write the page, or serve it until interrupted. roles: what they were found to be, or None."""
    import webbrowser

    from trifold.look.page import write_page
    from trifold.look.run_view import run_folder
    from trifold.look.server import serve
    from trifold.look.session import Session

    sessions = [Session(pipeline, run_folder(name), roles) for name, pipeline in models.items()]
    if page.out is not None:
        if text is None:
            raise UsageError("TEXT is missing; a written page shows one text")
        print(write_page(sessions, text, target, page.out, *models))
        return

    if text is not None:
        sessions[0].trace(text, target)  # report its errors before the page opens

    _check_readers(page)

    def ready(address: str) -> None:
        print_note("the page is open until Ctrl-C")
        print(address, flush=True)
        if page.browser:
            webbrowser.open(address)

    serve(sessions, {"text": text or "", "target": target, "models": [*models]}, page.port, ready)


def _check_readers(page: PageOptions) -> None:
    """Raises UsageError for a live page that nobody sees: a script has no terminal, and no browser
    opens. A port or --no-browser ask for it.
    """
    import webbrowser

    is_asked_for = page.port or not page.browser
    if is_asked_for or sys.stdout.isatty() or sys.stderr.isatty():
        return
    try:
        webbrowser.get()
    except webbrowser.Error:
        raise UsageError(
            "the live page would wait for ever, because there is neither a browser nor a "
            "terminal; write it to a file with --out page.html, or serve it with --no-browser"
        ) from None


# --- weights and pictures -------------------------------------------------------------------------


def _show_attention(
    options: LookOptions, text: str, selection: Selection, picture: Path | None
) -> None:
    """Draw the weights of a text, or print them as JSON and draw them if a picture is named."""
    from trifold.look import read_attention
    from trifold.look.plots import check_picture

    if picture is not None:
        check_picture(picture)  # before the model runs
    maps = read_attention(options.load(options.model), text, options.target)
    selection = _with_kind(selection, maps)
    kinds = _kinds_to_show(selection, maps)
    if picture is not None:
        picture = _draw(selection, kinds, maps, picture)
    if options.json:
        # The alignment is an average over the heads, which are printed one by one.
        printed = tuple(maps.patterns) if selection.kind == "alignment" else kinds
        _print_weights(maps, printed, selection, picture)
        return
    if maps.written:
        print_note(f"{maps.text}  →  {maps.output}")
    print(picture)


def _with_kind(selection: Selection, maps: AttentionMaps) -> Selection:
    """The selection with a kind: by default the alignment of a translation, or all heads if it
    selects some or there is none.
    """
    if selection.kind is not None:
        return selection
    shows_alignment = "cross" in maps.patterns and not selection.is_given
    return selection._replace(kind="alignment" if shows_alignment else "all")


def _kinds_to_show(selection: Selection, maps: AttentionMaps) -> tuple[str, ...]:
    """The kinds of attention to show. Raises UsageError for one that the model does not have."""
    kinds = {"all": tuple(maps.patterns), "alignment": ("cross",)}
    chosen = kinds.get(str(selection.kind), (str(selection.kind),))
    for kind in chosen:
        if kind not in maps.patterns:
            raise UsageError(f"--kind {kind}: this model has {', '.join(maps.patterns)}")
    return chosen


def _draw(selection: Selection, kinds: tuple[str, ...], maps: AttentionMaps, picture: Path) -> Path:
    """Write the picture, and return its path."""
    from trifold.look.attention import draw_alignment, draw_heads
    from trifold.look.plots import save_figure

    if selection.kind == "alignment":
        return save_figure(draw_alignment(maps), picture)
    return save_figure(draw_heads(maps, kinds, selection.layer, selection.head), picture)


def _print_weights(
    maps: AttentionMaps, kinds: Sequence[str], selection: Selection, picture: Path | None
) -> None:
    """Print the tokens and the weights of these kinds, of the selected layer and head, as JSON."""
    from trifold.jsonfiles import json_line
    from trifold.look.attention import numbered

    numbers = {}
    for kind in kinds:
        layers, heads, *_ = maps.patterns[kind].shape
        numbers[kind] = (
            numbered(selection.layer, layers, "layer"),
            numbered(selection.head, heads, "head"),
        )
    axes = {
        kind: dict(zip(AXES, (*both, *AXES[2:]), strict=True)) for kind, both in numbers.items()
    }
    fields = ("text", "output", "source", "given", "written")
    texts = json_line({name: getattr(maps, name) for name in fields})
    # Row after row: as Python numbers, all weights would take ten times their memory.
    print(f'{texts[:-1]}, "axes": {json_line(axes)}, "patterns": {{', end="")
    for number, name in enumerate(kinds):
        print(", " * bool(number) + f'"{name}": ', end="")
        layers, heads = numbers[name]
        weights = maps.patterns[name][layers[0] - 1 : layers[-1], heads[0] - 1 : heads[-1]]
        _print_array(weights)  # (layers, heads, queries, keys)
    path = None if picture is None else str(picture)
    print(f'}}, "picture": {json_line(path)}}}', flush=True)


def _print_array(array: NDArray[np.floating]) -> None:
    """Print an array as lists in lists, without a line end."""
    if array.ndim == 1:
        print(array.astype(float).round(DECIMALS).tolist(), end="")
        return
    for number, part in enumerate(array):
        print(", " if number else "[", end="")
        _print_array(part)
    print("]" if len(array) else "[]", end="")


# --- roles ----------------------------------------------------------------------------------------


def _find_roles(
    options: LookOptions, page: PageOptions, roles: Path, role_options: RoleOptions
) -> None:
    """Print the roles of heads over the lines of a file, and show them on a page if there is a text
    or a file for it.
    """
    from trifold.look.corpus import read_corpus

    known = (role_options.align, role_options.coreference, role_options.conllu)
    lines = read_corpus(roles, *known)
    pipeline = options.load(options.model)
    report = _measure_roles(pipeline, lines, role_options.prune)
    if options.json:
        print_json(report)
    else:
        _print_roles(report)
    if page.out is None and (options.text is None or options.json):
        return
    text = options.text
    target = options.target
    if text is None:
        text = lines[0].text
        target = lines[0].target
    _open_page({options.model: pipeline}, text, target, page, report)


def _measure_roles(
    pipeline: Pipeline, lines: Sequence[Line], prune: Sequence[str]
) -> dict[str, Any]:
    """The report of `head_roles`, and `pruned`: the effect of removing the heads of some roles, or
    None.
    """
    from trifold.look.roles import check_roles, head_roles, prune_edits

    check_roles(prune)
    with count_progress("lines read", len(lines)) as on_done:
        report = head_roles(pipeline, lines, on_done)
    if not prune:
        return {**report, "pruned": None}
    try:
        edits = prune_edits(report, prune)
    except UsageError as error:
        print_note(f"warning: {error}; nothing is removed")
        return {**report, "pruned": None}
    return {**report, "pruned": {"roles": list(prune), **_measure_edits(pipeline, lines, edits)}}


def _measure_edits(pipeline: Pipeline, lines: Sequence[Line], edits: list[Any]) -> dict[str, Any]:
    """The edits, and the scores of the model over the lines before and after them."""
    from trifold.look.effects import effect_on_bleu, effect_over_lines

    # Sentences of --conllu have no target; beside pairs, only the pairs have labels.
    pairs = [f"{line.text}\t{line.target}" for line in lines if line.target is not None]
    rows = pairs or [line.text for line in lines]
    with count_progress("lines without these heads", len(rows)) as on_done:
        effect = effect_over_lines(pipeline, rows, edits, on_done)
    return {"edits": edits, **effect, "bleu": effect_on_bleu(pipeline, rows, edits)}


def _print_roles(report: dict[str, Any]) -> None:
    """Heads with roles in a table of at most 80 columns, then the effect of pruning."""
    with_role = [head for head in report["heads"] if head["found"]]
    if with_role:
        heading = ("role", "relation", "head", "share", "95 %", "baseline", "queries")
        print_table([heading, *map(_role_row, with_role)], "   rrrr", cut=2)
    n_heads = len(set(map(_head_index, report["heads"])))
    n_with_role = len(set(map(_head_index, with_role)))
    counts = f"{n_with_role} of {n_heads} heads have a role over {report['lines']:,} lines"
    if with_role:
        example = with_role[0]
        counts += (
            f"; {_head_name(example)} is head {example['head'] + 1} of layer {example['layer'] + 1}"
        )
    print_note(counts)
    is_open = {_head_index(head) for head in report["heads"] if head["open"]}
    n_open = len(is_open.difference(map(_head_index, with_role)))
    if n_open:
        print_note(
            f"{plural(n_open, 'other head')} may have one, because the interval reaches the share "
            "of a role; more lines decide it"
        )
    elif not with_role:
        print_note("every interval is below the share of a role, so more lines would not help")
    if report["skipped"]:
        print_note(
            f"links of {report['skipped']:,} lines are left out: their tokens do not spell the "
            "words"
        )
    if report["pruned"] is not None:
        _print_pruned(report["pruned"])


def _head_index(head: dict[str, Any]) -> tuple[str, int, int]:
    """The kind of attention, layer and number of a head, which may have several roles."""
    return head["kind"], head["layer"], head["head"]


def _head_name(head: dict[str, Any]) -> str:
    """`encoder 2.3` for head 3 of layer 2."""
    return f"{head['kind']} {head['layer'] + 1}.{head['head'] + 1}"


def _role_row(head: dict[str, Any]) -> tuple[str, ...]:
    """The cells of a head with a role."""
    return (
        head["role"],
        head["relation"],
        _head_name(head),
        f"{head['share']:.2f}",
        f"{head['low']:.2f}–{head['high']:.2f}",
        f"{head['baseline']:.2f}",
        f"{head['trials']:,}",
    )


def _print_pruned(pruned: dict[str, Any]) -> None:
    """Print the scores before and after the heads of some roles are removed."""
    count = sum(len(edit["heads"]) for edit in pruned["edits"])
    print(f"without {count} heads ({', '.join(pruned['roles'])}):")
    for title, form in (("loss", ".4f"), ("accuracy", ".4f"), ("BLEU", ".2f")):
        effect = pruned[title.lower()]
        if effect is not None:
            before, after = effect
            print(f"  {title} {before:{form}} → {after:{form}} ({after - before:+{form}})")
