"""`trifold look`: inspect a model in the browser, or draw what it attends to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trifold.cli.names import CONTENT, check_no_files
from trifold.cli.options import AsText, Codec, Device, Json, Model, argument, value
from trifold.cli.terminal import count_progress, print_json, print_note, print_table
from trifold.errors import UsageError, check_utf8

if TYPE_CHECKING:
    from trifold.look.corpus import Line
    from trifold.pipeline import Pipeline

DECIMALS = 7  # of printed weights, which are float32
EXAMPLES = (
    'trifold look runs/demo "I love dogs." --out page.html',
    'trifold look runs/demo "I love dogs." --kind all --out heads.png',
    'trifold look runs/demo "I love dogs." --target "J\'aime les chiens." --json',
    "trifold look runs/demo --roles pairs.tsv --prune positional",
)


def run(
    model: Model,
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
    json: Json = False,
) -> None:
    """Inspect a model in the browser, or write the page or a picture of attention to a file.

    The live page is served on this machine only. With --json, print the weights, and draw only with
    --out. With --roles, print which heads are positional, rare, syntactic, …; TEXT or --out adds
    the page.
    """
    from trifold.look import read_attention
    from trifold.look.attention import draw_alignment, draw_heads
    from trifold.look.corpus import read_corpus
    from trifold.look.plots import check_picture, save_figure

    for given, name in ((text or "", "TEXT"), (target or "", "--target"), (str(out), "--out")):
        check_utf8(given, name)
    if not as_text:
        _check_texts(model, text, target)
    draws = kind is not None or layer is not None or head is not None
    is_page = out is not None and out.suffix.lower() == ".html"
    if compare == model:
        raise UsageError(
            f"--compare {compare}: the same model; name another, or a checkpoint of its run"
        )
    if is_page and roles is None and (json or draws):
        raise UsageError(
            f"{out}: a page shows every head; remove --kind, --layer, --head and --json"
        )
    if compare is not None and (json or draws or not (is_page or out is None)):
        raise UsageError(
            "--compare shows two models on a page; remove --kind, --layer, --head and --json, and "
            "write a file with --out page.html"
        )
    files = {"--align": align, "--coreference": coreference, "--conllu": conllu, "--prune": prune}
    if roles is None and (unused := [name for name, value in files.items() if value]):
        raise UsageError(f"{unused[0]} requires --roles FILE")
    if roles is not None:
        if draws or (out is not None and not is_page) or compare is not None:
            raise UsageError(
                "--roles prints a table; remove --kind, --layer, --head, --compare and pictures"
            )
        lines = read_corpus(roles, align, coreference, conllu)
        pipeline = _load(model, device=device, tokenizer=tokenizer)
        report = _measure_roles(pipeline, lines, prune or [])
        if json:
            print_json(report)
        else:
            _print_roles(report)
        if out is not None or (text is not None and not json):
            first = (lines[0].text, lines[0].target) if text is None else (text, target)
            _open_page({model: pipeline}, *first, out, port, browser, report)
        return
    if (is_page or out is None) and not json and not draws:
        names = filter(None, (model, compare))
        models = {name: _load(name, device=device, tokenizer=tokenizer) for name in names}
        _open_page(models, text, target, out, port, browser)
        return
    if text is None:
        raise UsageError(
            "TEXT is missing; without it, only the live page opens (no --out, --kind, --layer, "
            "--head, --json)"
        )
    picture = None if json and out is None else out or Path("attention.png")
    if picture is not None:
        check_picture(picture)  # before the model runs
    maps = read_attention(_load(model, device=device, tokenizer=tokenizer), text, target)
    if kind is None:
        kind = "alignment" if "cross" in maps.patterns and layer is None and head is None else "all"
    kinds = tuple(maps.patterns) if kind == "all" else ("cross" if kind == "alignment" else kind,)
    if missing := [name for name in kinds if name not in maps.patterns]:
        raise UsageError(f"--kind {missing[0]}: this model has {', '.join(maps.patterns)}")
    if picture is not None:
        figure = (
            draw_alignment(maps) if kind == "alignment" else draw_heads(maps, kinds, layer, head)
        )
        picture = save_figure(figure, picture)
    if not json:
        if maps.written:
            print_note(f"{maps.text}  →  {maps.output}")
        print(picture)
        return
    if kind == "alignment":
        kinds = tuple(maps.patterns)
    texts = {name: getattr(maps, name) for name in ("text", "output", "source", "given", "written")}
    # (layers, heads, queries, keys)
    patterns = {name: maps.patterns[name].astype(float).round(DECIMALS).tolist() for name in kinds}
    print_json(**texts, patterns=patterns, picture=None if picture is None else str(picture))


def _check_texts(model: str, text: str | None, target: str | None) -> None:
    """Raises UsageError for a text that is the name of a file, if the model reads texts."""
    from trifold.hub import read_config, resolve

    if not any((text, target)) or _is_teaching(model):
        return
    folder = _run_of_checkpoint(model) or model
    if not read_config(resolve(str(folder))).n_patches:
        check_no_files([text or ""], f"look {model}", CONTENT)
        check_no_files([target or ""], f"look {model} TEXT --target", CONTENT)


def _load(model: str, **options: Any) -> Pipeline:
    """A model, a checkpoint of a run, or the model of width 4 of the documentation if it is named
    `teaching`.
    """
    from trifold.cli.batch import load_pipeline
    from trifold.look.run_view import at_checkpoint
    from trifold.look.walkthrough import teaching_model

    if (run := _run_of_checkpoint(model)) is not None:
        return at_checkpoint(load_pipeline(str(run), **options), Path(model))
    return teaching_model() if _is_teaching(model) else load_pipeline(model, **options)


def _run_of_checkpoint(model: str) -> Path | None:
    """The run of a checkpoint; None for another model."""
    path = Path(model)
    return path.parents[1] if path.parent.name == "checkpoints" and path.is_dir() else None


def _is_teaching(model: str) -> bool:
    return model == "teaching" and not Path(model).exists()


def _open_page(
    models: dict[str, Pipeline],
    text: str | None,
    target: str | None,
    out: Path | None,
    port: int,
    browser: bool,
    roles: dict[str, Any] | None = None,
) -> None:
    """Write the page, or serve it until interrupted. roles: what they were found to be, or None."""
    import webbrowser

    from trifold.look.page import write_page
    from trifold.look.run_view import run_folder
    from trifold.look.server import serve
    from trifold.look.session import Session

    sessions = [Session(pipeline, run_folder(name), roles) for name, pipeline in models.items()]
    if out is not None:
        if text is None:
            raise UsageError("TEXT is missing; a written page shows one text")
        print(write_page(sessions, text, target, out, *models))
        return

    if text is not None:
        sessions[0].trace(text, target)  # report its errors before the page opens

    def ready(address: str) -> None:
        print_note("the page is open until Ctrl-C")
        print(address, flush=True)
        if browser:
            webbrowser.open(address)

    serve(sessions, {"text": text or "", "target": target, "models": [*models]}, port, ready)


def _measure_roles(
    pipeline: Pipeline, lines: Sequence[Line], prune: Sequence[str]
) -> dict[str, Any]:
    """The report of `head_roles`, and `pruned`: the effect of removing the heads of some roles, or
    None.
    """
    from trifold.look.effects import effect_on_bleu, effect_over_lines
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
    # Sentences of --conllu have no target; beside pairs, only the pairs have labels.
    pairs = [f"{line.text}\t{line.target}" for line in lines if line.target is not None]
    rows = pairs or [line.text for line in lines]
    with count_progress("lines without these heads", len(rows)) as on_done:
        effect = effect_over_lines(pipeline, rows, edits, on_done)
    effect["bleu"] = effect_on_bleu(pipeline, rows, edits)
    return {**report, "pruned": {"roles": list(prune), "edits": edits, **effect}}


def _print_roles(report: dict[str, Any]) -> None:
    """Heads with roles in a table of at most 80 columns, then the effect of pruning."""
    found = [each for each in report["heads"] if each["found"]]
    places = {(each["kind"], each["layer"], each["head"]) for each in report["heads"]}
    held = {(each["kind"], each["layer"], each["head"]) for each in found}
    rows = [("role", "relation", "head", "share", "95 %", "baseline", "queries")]
    for each in found:
        head = f"{each['kind']} {each['layer'] + 1}.{each['head'] + 1}"
        interval = f"{each['low']:.2f}–{each['high']:.2f}"
        numbers = f"{each['share']:.2f}", interval, f"{each['baseline']:.2f}", f"{each['trials']:,}"
        rows.append((each["role"], each["relation"], head, *numbers))
    if found:
        print_table(rows, "   rrrr", cut=2)
    counts = f"{len(held)} of {len(places)} heads have a role over {report['lines']:,} lines"
    print_note(f"{counts}; layer.head from 1")
    if report["skipped"]:
        print_note(
            f"links of {report['skipped']:,} lines are left out: their tokens do not spell the "
            "words"
        )
    if report["pruned"] is not None:
        pruned = report["pruned"]
        count = sum(len(edit["heads"]) for edit in pruned["edits"])
        print(f"without {count} heads ({', '.join(pruned['roles'])}):")
        for title, form in (("loss", ".4f"), ("accuracy", ".4f"), ("BLEU", ".2f")):
            if (effect := pruned[title.lower()]) is not None:
                before, after = effect
                print(f"  {title} {before:{form}} → {after:{form}} ({after - before:+{form}})")
