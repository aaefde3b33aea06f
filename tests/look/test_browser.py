"""The page in a browser: every view of a model of each shape, offline and live."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import pytest
import torch
from tests.look.conftest import SIZES, new_translator
from tests.look.test_roles import planted_model, repeated_lines
from tests.predict.test_trace import new_pipeline

from trifold.data.images import ImageSettings
from trifold.errors import TrifoldError
from trifold.look import read_attention
from trifold.look.figures import neighbours, positions
from trifold.look.page import page, write_page
from trifold.look.requests import answer
from trifold.look.roles import head_roles
from trifold.look.search import search
from trifold.look.session import Session
from trifold.look.walkthrough import walkthrough
from trifold.nn import ModelConfig, Transformer
from trifold.pipeline import Pipeline

playwright = pytest.importorskip("playwright.sync_api")
BROWSER = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="requires Debian's chromium"),
]
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
WEB = Path(__file__).parents[2] / "web"
TEXT = "the quick fox."
# View -> an element that shows that it is drawn.
VIEWS = {
    "architecture": "ul.tree button",
    "attention": "button.thumbnail",
    "neuron": "table.data .share",
    "walkthrough": "ol.steps",
    "lens": "button.token.wide",
    "changes": "div.tokens button[style]",
    "search": "svg.figure circle",
    "figures": "svg.figure circle",
}


def short_translator():
    """`new_translator` with short outputs, of which a page is an eighth as large."""
    own = new_translator()
    return Pipeline(own.model, own.reader, own.writer, generation={"max_new_tokens": 6})


@pytest.fixture
def pipeline():
    return short_translator()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=BROWSER, args=FLAGS.split())
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The address of a page about TEXT, without a server; tests share it."""
    folder = tmp_path_factory.mktemp("page")
    return write_page(Session(short_translator()), TEXT, None, folder / "page.html").as_uri()


@pytest.fixture(scope="module")
def window(browser):
    """One page of the browser for all tests: each page starts processes of its own."""
    return browser.new_page()


@pytest.fixture
def tab(window):
    """The empty page, which fails the test for a message on the console and for a request to the
    network.

    A request that the model refuses has status 400, which the console reports.
    """
    problems = list[str]()
    refused = "the server responded with a status of 400"
    local = ("file:", "data:", "blob:", "about:", "http://127.0.0.1:")

    def on_console(sent):
        if refused not in sent.text:
            problems.append(f"{sent.type}: {sent.text}")

    def on_error(error):
        problems.append(str(error))

    def on_request(sent):
        if not sent.url.startswith(local):
            problems.append(f"request: {sent.url}")

    handlers = {"console": on_console, "pageerror": on_error, "request": on_request}
    window.set_default_timeout(10_000)
    window.set_viewport_size({"width": 1280, "height": 720})
    window.mouse.move(0, 0)
    for event, handler in handlers.items():
        window.on(event, handler)
    yield window
    window.goto("about:blank")  # first: a request on its way needs its route
    window.unroute_all()
    for event, handler in handlers.items():
        window.remove_listener(event, handler)
    assert problems == []


def wait_until(tab, condition):
    """Wait for an expression; `wait_for_function` needs `eval`, which the policy of the page
    forbids.
    """
    for _ in range(200):
        if tab.evaluate(condition):
            return
        tab.wait_for_timeout(50)
    pytest.fail(f"never true: {condition}")


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_view_is_drawn_and_accessible(tab, written, view, theme):
    tab.goto(f"{written}#view={view}&theme={theme}")
    tab.wait_for_selector(VIEWS[view])
    axe = WEB / "node_modules" / "axe-core" / "axe.min.js"
    if axe.is_file():
        tab.evaluate(axe.read_text(encoding="utf-8"))
        rules = "" if theme == "light" else "{runOnly: ['color-contrast']}"  # only colors differ
        found = tab.evaluate(f"axe.run({rules})")["violations"]
        assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []


def test_a_model_of_one_stack_has_every_view(tab, one_stack, tmp_path):
    file = write_page(Session(one_stack), TEXT, None, tmp_path / "page.html")
    lacks = {"search"} if one_stack.config.shape == "encoder" else set()
    for view in VIEWS.keys() - lacks:
        tab.goto("about:blank")
        tab.goto(f"{file.as_uri()}#view={view}")
        tab.wait_for_selector(VIEWS[view])
        assert view != "attention" or tab.locator("button.thumbnail").count() == 2 * 4


def test_a_model_of_images_has_every_view(tab, tmp_path):
    image = pytest.importorskip("PIL.Image")
    file = tmp_path / "image.png"
    image.frombytes("RGB", (8, 8), bytes(range(192))).save(file)
    pipeline = new_pipeline("vit")
    pipeline.pictures = ImageSettings(size=(8, 8))
    session = Session(pipeline)
    written = write_page(session, str(file), None, tmp_path / "page.html")
    for view in VIEWS.keys() - {"search"}:
        tab.goto("about:blank")
        tab.goto(f"{written.as_uri()}#view={view}")
        tab.wait_for_selector("svg.figure image" if view == "figures" else VIEWS[view])
    tab.goto(f"{written.as_uri()}#view=attention&layer=1&head=2")
    playwright.expect(tab.locator("button.thumbnail")).to_have_count(8)


def test_a_cell_shows_the_weight_of_the_model(tab, written, pipeline):
    tab.goto(f"{written}#kind=encoder&layer=1&head=2")
    tab.wait_for_selector("svg.figure image")
    weights = read_attention(pipeline, TEXT).patterns["encoder"][1, 2]
    box = tab.locator("svg.figure image").bounding_box()
    size = box["width"] / weights.shape[1]
    for row, column in [(0, 0), (3, 5), (len(weights) - 1, 1)]:
        tab.mouse.move(box["x"] + (column + 0.5) * size, box["y"] + (row + 0.5) * size)
        shown = re.compile(f": {re.escape(in_file(weights[row, column]))}$")
        playwright.expect(tab.locator(".readout")).to_have_text(shown)


def test_views_show_the_numbers_of_the_model(tab, pipeline, tmp_path):
    session, target = Session(pipeline), "Fuchs"
    trace = session.trace(TEXT, target)
    address = write_page(session, TEXT, target, tmp_path / "page.html").as_uri()

    def shown(fragment: str, cells: str) -> list[str]:
        tab.goto("about:blank")
        tab.goto(f"{address}#{fragment}")
        tab.wait_for_selector(cells)
        return [each.strip() for each in tab.locator(cells).all_inner_texts()]

    cells = shown("view=neuron&kind=cross&layer=2&head=1&row=3", "table.data .share")
    weights = trace["decoder.blocks.2.cross_attention.sublayer.pattern"][1, 3]
    assert cells == [f"{weight:.4f}" for weight in weights.tolist()]

    shown("view=lens", "button.token.wide")
    titles = tab.locator("button.token.wide").evaluate_all(
        "cells => cells.map((cell) => cell.title)"
    )
    probabilities = trace.lens(1)[0].flip(0).flatten().tolist()
    assert titles == [f"{each:.4f}" for each in probabilities]

    tab.goto("about:blank")
    tab.goto(f"{address}#view=walkthrough&side=decoder")
    tab.wait_for_selector("ol.steps")
    steps = list(walkthrough(trace, "decoder", len(trace.tokens["decoder"]) - 1))
    results = tab.locator("ol.steps tr.result .numbers:first-child").all_text_contents()
    assert len(results) == len(steps) > 20
    for step, result in zip(steps, results, strict=True):
        row = (
            step.result.reshape(-1, step.result.shape[-1])[0]
            if step.result.dim()
            else step.result[None]
        )
        numbers = [float(each) for each in result.replace("−∞", "-inf").removesuffix("…").split()]
        assert numbers == pytest.approx(row[:12].tolist(), abs=6e-5)


def in_file(weight: float) -> str:
    """As the page writes the float16 of a file."""
    value = float(np.float16(weight))
    return f"{value:.4f}" if value >= 1e-4 or not value else f"{value:.2e}".replace("e-0", "e-")


def test_keys_move_the_selection_and_the_address_keeps_it(tab, written):
    tab.goto(f"{written}#kind=encoder")
    tab.wait_for_selector("button.thumbnail")
    for pressed in ("ArrowRight", "ArrowRight", "ArrowDown", "k"):
        tab.keyboard.press(pressed)
    playwright.expect(tab).to_have_url(re.compile("head=2"))
    assert {"kind=decoder", "layer=1", "head=2"} <= set(
        tab.evaluate("location.hash.slice(1)").split("&")
    )
    tab.reload()
    tab.wait_for_selector("button.thumbnail[aria-pressed=true]")
    assert (
        tab.locator("button.thumbnail[aria-pressed=true]").get_attribute("aria-label")
        == "Layer 2, head 3"
    )


def test_the_selection_ends_at_the_last_token_layer_and_head(tab, written, pipeline):
    tab.goto(f"{written}#kind=encoder&layer=99&head=99")
    playwright.expect(tab.locator("h2").first).to_have_text(
        "encoder attention, layer 2 · blocks.1, head 4"
    )
    chosen = tab.locator("button.thumbnail[aria-pressed=true]")
    playwright.expect(chosen).to_have_attribute("aria-label", "Layer 2, head 4")
    tokens = len(Session(pipeline).trace(TEXT).tokens["encoder"])
    for _ in range(tokens + 30):
        tab.keyboard.press("]")
    playwright.expect(tab).to_have_url(re.compile(f"row={tokens - 1}(&|$)"))
    tab.keyboard.press("[")
    playwright.expect(tab).to_have_url(re.compile(f"row={tokens - 2}(&|$)"))
    tab.keyboard.press("ArrowRight")
    playwright.expect(tab.locator("h2").first).to_have_text(
        "encoder attention, layer 2 · blocks.1, head 1"
    )


@pytest.mark.parametrize("width", [320, 420])
def test_a_narrow_window_does_not_scroll_sideways(tab, written, width):
    tab.set_viewport_size({"width": width, "height": 700})
    for view, drawn in VIEWS.items():
        tab.goto("about:blank")
        tab.goto(f"{written}#view={view}")
        tab.wait_for_selector(drawn)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, view


def test_the_keys_of_views_are_the_same_for_every_model(tab, written):
    tab.goto(written)
    tab.wait_for_selector("button.thumbnail")
    shown = tab.locator("nav button").all_text_contents()
    table = re.findall(
        r"^\| (\d) \| ([A-Z][a-z ]+?) +\|", (WEB.parent / "docs/look.md").read_text("utf-8"), re.M
    )
    lacking = {"Roles", "Training run"}
    assert shown == [f"{number} {title}" for number, title in table if title not in lacking]
    tab.keyboard.press("9")
    playwright.expect(tab.locator("nav button[aria-current]")).to_have_text("9 Figures")
    tab.keyboard.press("7")
    playwright.expect(tab.locator("nav button[aria-current]")).to_have_text("9 Figures")


def test_the_tree_has_the_probabilities_of_the_search(tab, written, pipeline):
    tab.goto(f"{written}#view=search")
    tab.wait_for_selector("svg.figure circle")
    nodes = search(Session(pipeline), TEXT)["nodes"]
    assert tab.locator("svg.figure circle").count() == len(nodes)
    tab.get_by_text("Table of all").click()
    tab.wait_for_selector("[aria-label=Candidates] tbody tr")
    cells = tab.locator("[aria-label=Candidates] tbody tr").all_text_contents()
    for node, text in zip(nodes[1:], cells, strict=True):
        assert number(node["probability"]) + number(node["adjusted"]) in text
        assert (node["reason"] or "continued") in text
    assert tab.locator("[aria-label=Candidates] button:enabled").count() == 0


def number(size: float) -> str:
    return f"{size:.4f}" if size >= 1e-4 or not size else f"{size:.2e}".replace("e-0", "e-")


def test_the_tree_shows_what_temperature_changes(tab, pipeline):
    options = {"samples": 2, "max_new_tokens": 2}
    for temperature in (0.3, 2):
        chosen = options | {"temperature": temperature}
        tab.goto("about:blank")
        open_live(
            tab, Session(pipeline), urlencode({"view": "search", "search": json.dumps(chosen)})
        )
        node = search(Session(pipeline), TEXT, **chosen)["nodes"][1]
        before, after = (f"{100 * node[each]:.1f}%" for each in ("probability", "adjusted"))
        assert before != after
        tab.get_by_text(f"{before} → {after}").first.wait_for()
        tab.unroute_all()


def open_live(tab, session, fragment, text=TEXT, models=("model",)):
    """Open the live page; the test answers its requests in place of the server. session: one, or
    one of each model.
    """
    address = "http://127.0.0.1:9/"

    def respond(route):
        name = route.request.url.removeprefix(f"{address}api/")
        if route.request.url.startswith(f"{address}api/"):
            params = json.loads(route.request.post_data)
            try:
                route.fulfill(json=answer(session, name, params))
            except TrifoldError as error:
                route.fulfill(status=400, json={"error": str(error)})
        else:
            start = {"text": text, "target": None, "models": models}
            html = page({"model {}": answer(session, "model", {})}, start, live=True)
            route.fulfill(body=html, content_type="text/html")

    tab.route("**/*", respond)
    tab.goto(f"{address}#{fragment}")


def test_an_edit_shows_its_effect_on_the_text_and_over_lines(tab, pipeline):
    session = Session(pipeline)
    open_live(tab, session, "view=changes&kind=cross&layer=1&head=2")
    tab.get_by_role("button", name="Apply").click()
    name = "decoder.blocks.1.cross_attention.sublayer.heads"
    edits = [{"name": name, "op": "zero", "heads": [2]}]
    rows = tab.locator("[aria-label='Effect at each position'] tbody tr")
    rows.first.wait_for()
    found = answer(session, "effect", {"text": TEXT, "edits": edits})
    assert rows.count() == found["before"]["loss"]["shape"][0]
    _, _, change = session.trace(TEXT).effect(edits)
    assert f"{float(change[0]):.4f}" in rows.first.text_content()
    lines = "the quick fox.\tFuchs\nbrown\tder"
    tab.get_by_label("Lines", exact=True).fill(lines)
    tab.get_by_role("button", name="Measure").click()
    over = answer(session, "lines_effect", {"lines": lines, "edits": edits})
    table = tab.locator("[aria-label='Effect over lines'] tbody tr")
    table.first.wait_for()
    for row, score in zip(table.all_text_contents(), ("loss", "accuracy", "bleu"), strict=True):
        assert row == score + "".join(
            f"{value:.4f}" for value in (*over[score], over[score][1] - over[score][0])
        )
    tab.get_by_role("button", name="Remove all").click()
    assert "edits" not in tab.evaluate("location.hash")


def test_a_search_that_fails_can_be_corrected(tab, pipeline):
    open_live(tab, Session(pipeline), 'view=search&search={"num_beams":0}')
    playwright.expect(tab.get_by_role("alert")).to_contain_text("num_beams")
    number = tab.get_by_label("number")
    playwright.expect(number).to_have_value("0")
    for typed, beams in (("3", 3), ("0", 3), ("2", 2)):  # beside an error: the former outputs
        number.fill(typed)
        number.press("Enter")
        playwright.expect(tab.get_by_role("alert")).to_have_count(0 if int(typed) else 1)
        rows = tab.locator("[aria-label='List of outputs'] tbody tr")
        playwright.expect(rows).to_have_count(beams)
        playwright.expect(number).to_have_value(typed)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=ascii)
def test_an_edit_keeps_the_line_breaks_of_the_text(tab, pipeline, end):
    session, text = Session(pipeline), f"the{end}{end}quick"
    open_live(tab, session, "view=neuron&kind=encoder", text)
    buttons = tab.locator("div.tokens button")
    playwright.expect(buttons).to_have_count(len(session.trace(text).tokens["encoder"]))
    field = tab.get_by_label("Text", exact=True)
    assert field.input_value() == "the\n\nquick"
    field.press("End")
    field.press("ControlOrMeta+End")
    field.type("!")
    edited = f"{text}!"
    wait_until(tab, f"location.hash.includes('{urlencode({'text': edited})}')")
    playwright.expect(buttons).to_have_count(len(session.trace(edited).tokens["encoder"]))


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=ascii)
def test_a_second_text_may_have_lines(tab, pipeline, end):
    open_live(tab, Session(pipeline), "kind=encoder", f"the{end}fox")
    second = tab.get_by_label("second text")
    second.fill("quick\nfox")
    second.press("Enter")
    wait_until(tab, "location.hash.includes('other=quick%0Afox')")


def test_every_view_names_a_row_of_cross_attention_alike(tab, written, pipeline):
    names = Session(pipeline).trace(TEXT).queries["cross"]
    assert names[1].startswith("reads ") and " → writes " in names[1]
    tab.goto(f"{written}#view=attention&kind=cross&row=1")
    tab.wait_for_selector("svg.figure image")
    assert tab.locator(".readout").text_content() == names[1]
    ticks = tab.locator("svg.figure text[text-anchor=end]").all_text_contents()
    assert ticks == names
    for view in ("neuron", "changes"):
        tab.goto("about:blank")
        tab.goto(f"{written}#view={view}&kind=cross&row=1")
        tab.wait_for_selector(VIEWS[view])
        shown = tab.locator("div.tokens").first.locator("button").all_text_contents()
        assert shown == names, view
    tab.goto("about:blank")
    tab.goto(f"{written}#view=neuron&kind=cross&row=1&layer=2")
    title = tab.get_by_role("heading", name="layer 3 · blocks.2, head 1")
    playwright.expect(title).to_have_text(f"layer 3 · blocks.2, head 1: query {names[1]}")


def test_the_precision_and_the_sums_of_rows_are_stated(tab, written, pipeline):
    tab.goto(f"{written}#kind=encoder")
    tab.get_by_text(
        "Weights in float16 in this page, computed in float32; each row sums to 1.000."
    ).wait_for()
    tab.goto("about:blank")
    open_live(tab, Session(pipeline), "kind=encoder")
    tab.get_by_text("Weights in float32; each row sums to 1.000.").wait_for()
    weights = read_attention(pipeline, TEXT).patterns["encoder"]
    for button, expected in (("average of layers", weights.mean((0, 1))), ("map", weights[0, 0])):
        if button == "map":
            tab.get_by_role("button", name="average of layers").click()
            tab.get_by_text("encoder attention, layer 1").wait_for()
        else:
            tab.get_by_role("button", name=button).click()
            tab.get_by_text("average of all layers").wait_for()
        with tab.expect_download() as download:
            tab.get_by_role("button", name="JSON").click()
        saved = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
        np.testing.assert_allclose(saved["values"], expected.flatten(), atol=1e-6)
        assert saved["precision"] == "float32"
    tab.get_by_role("button", name="whole words").click()
    tab.get_by_text("each row sums to 1.000").wait_for()


def test_layers_count_from_one_beside_their_hook_points(tab, written):
    shown = {
        "view=architecture&component=decoder.blocks.2": "layer 3 · decoder.blocks.2",
        "view=walkthrough&side=decoder": "layer 3 · blocks.2",
        "view=lens": "layer 3 · states.2",
        "view=changes&kind=cross&layer=2": "· blocks.2",
    }
    for fragment, name in shown.items():
        tab.goto("about:blank")
        tab.goto(f"{written}#{fragment}")
        tab.get_by_text(name, exact=True).first.wait_for()


def test_a_file_shows_both_compared_models(tab, pipeline, tmp_path):
    torch.manual_seed(4)
    vocabularies = {
        name: getattr(pipeline.config, name) for name in ("vocab_size", "target_vocab_size")
    }
    model = Transformer(ModelConfig(**SIZES, **vocabularies)).eval()
    other = Pipeline(model, pipeline.reader, pipeline.writer)
    sessions = [Session(pipeline), Session(other)]
    file = write_page(sessions, "fox", "F", tmp_path / "page.html", "one", "two")
    tab.goto(f"{file.as_uri()}#kind=encoder&layer=1&head=2")
    second = tab.locator("section", has_text="two:")
    second.locator("svg.figure").wait_for()
    second.locator("rect[fill=transparent]").hover(position={"x": 3, "y": 3})
    expected = in_file(read_attention(other, "fox", "F").patterns["encoder"][1, 2, 0, 0])
    playwright.expect(second.locator(".readout")).to_have_text(
        re.compile(f": {re.escape(expected)}$")
    )
    tab.get_by_role("button", name="average of layers").click()
    second.get_by_text("average of all layers").wait_for()
    assert tab.locator(".error").count() == 0


@pytest.mark.parametrize("shown", ["Class", "Unmasked text"])
def test_the_target_of_an_encoder_can_be_edited(tab, shown, tmp_path):
    pipeline = new_pipeline("vit" if shown == "Class" else "bert")
    text, target = "<mask>he fox", "the fox"
    if shown == "Class":
        pipeline.pictures = ImageSettings(size=(8, 8))
        text, target = str(tmp_path / "image.png"), "good"
        pytest.importorskip("PIL.Image").frombytes("RGB", (8, 8), bytes(range(192))).save(text)
    session = Session(pipeline)
    open_live(tab, session, "view=changes", text)
    tab.get_by_role("button", name="Apply").click()
    sums = tab.locator("section[aria-label=Effect] > p")
    playwright.expect(sums).to_have_text("loss, sum over positions: – → –; change –")
    field = tab.get_by_role("combobox" if shown == "Class" else "textbox", name=shown, exact=True)
    if shown == "Class":
        assert field.locator("option").all_text_contents() == ["none", *pipeline.config.labels]
        field.select_option(target)
        assert (
            tab.get_by_label("Lines", exact=True)
            .get_attribute("placeholder")
            .startswith("image file,")
        )
        tab.get_by_role("heading", name="Gradient × input of the best class").wait_for()
    else:
        field.fill(target)
        tab.get_by_role(
            "heading", name="Gradient × input of the best prediction at position"
        ).wait_for()
    loss = float(session.trace(text, target).loss.nansum())
    playwright.expect(sums).to_contain_text(f"loss, sum over positions: {loss:.4f} → ")


def test_figures_side_by_side_stay_in_one_row(tab, pipeline):
    tab.set_viewport_size({"width": 700, "height": 700})
    open_live(tab, Session(pipeline), "kind=encoder")
    second = tab.get_by_label("second text")
    second.fill("quick.")
    second.press("Enter")
    maps = tab.locator("svg.figure")
    playwright.expect(maps).to_have_count(2)
    first, other = (tab.locator(".beside > section").nth(n).bounding_box() for n in range(2))
    assert first["y"] == other["y"] and other["x"] >= first["x"] + first["width"]
    assert tab.evaluate("document.documentElement.scrollWidth") <= 700


def test_a_compared_model_with_fewer_layers_and_heads_is_not_drawn_in_their_place(tab, pipeline):
    torch.manual_seed(4)
    sizes = SIZES | {"n_layers": 1, "n_heads": 2}
    vocabularies = {
        name: getattr(pipeline.config, name) for name in ("vocab_size", "target_vocab_size")
    }
    model = Transformer(ModelConfig(**sizes, **vocabularies)).eval()
    other = Session(Pipeline(model, pipeline.reader, pipeline.writer))
    sessions, models = [Session(pipeline), other], ("one", "two")
    open_live(tab, sessions, "kind=encoder&layer=1&head=0", models=models)
    second = tab.locator("section", has_text="two:")
    second.get_by_text("two has 1 layer.").wait_for()
    second.locator("svg.figure").wait_for(state="detached")
    tab.keyboard.press("ArrowUp")
    second.locator("svg.figure").wait_for()
    tab.keyboard.press("ArrowLeft")
    second.get_by_text("two has 2 heads.").wait_for()
    second.locator("svg.figure").wait_for(state="detached")
    tab.get_by_role("button", name="average of layers").click()
    second.locator("svg.figure").wait_for()
    mean = read_attention(other.pipeline, TEXT).patterns["encoder"][0].mean(0)
    second.locator("rect[fill=transparent]").hover(position={"x": 3, "y": 3})
    second.get_by_text("attends to").wait_for()
    shown = float(second.locator(".readout").text_content().split()[-1])
    assert shown == pytest.approx(float(mean[0, 0]), abs=6e-5)


@pytest.mark.parametrize("view", sorted(VIEWS.keys() - {"architecture", "figures"}))
def test_views_follow_the_text(tab, pipeline, view):
    open_live(tab, Session(pipeline), f"view={view}")
    tab.wait_for_selector(VIEWS[view])
    field = tab.get_by_label("Text", exact=True)
    for text in ("fox", "the quick brown fox.", "a fox"):
        field.fill(text)
        wait_until(tab, f"location.hash.includes('{urlencode({'text': text})}')")
        tab.wait_for_selector(VIEWS[view])
    field.fill("  ")
    tab.get_by_text("Enter a text.").wait_for()
    assert tab.locator(VIEWS[view]).count() == 0


def test_an_error_stays_beside_the_former_value_of_the_same_text_only(tab, pipeline):
    session = Session(pipeline)
    open_live(tab, session, "view=search")
    tab.wait_for_selector(VIEWS["search"])
    refused = "new Response(JSON.stringify({error: 'refused'}), {status: 400})"
    tab.evaluate(f"() => {{ window.fetch = async () => {refused}; }}")
    tab.get_by_label("length").fill("3")
    tab.get_by_label("length").press("Enter")
    tab.get_by_text("refused").wait_for()
    assert tab.locator(VIEWS["search"]).count() > 0
    tab.get_by_label("Text", exact=True).fill("fox")
    wait_until(tab, "document.querySelectorAll('svg.figure circle').length == 0")
    tab.get_by_text("refused").wait_for()


@pytest.mark.parametrize(
    "edits",
    [
        '[{"name":"encoder.states.0","op":"zero","positions":3}]',
        "[null]",
        "{bad",
        '[{"op":"zero"}]',
        "7",
    ],
)
def test_edits_in_the_address_are_checked(tab, pipeline, edits):
    open_live(tab, Session(pipeline), urlencode({"view": "changes", "edits": edits}))
    tab.get_by_text("The edits in the address of the page are not valid.").wait_for()
    tab.wait_for_selector(VIEWS["changes"])
    tab.get_by_role("button", name="Remove all").click()
    wait_until(tab, "!location.hash.includes('edits')")
    assert tab.locator(".error").count() == 0


def test_numbers_in_the_address_are_checked(tab, written):
    tab.goto(f"{written}#kind=encoder&layer=0.7&head=-9&row=x")
    tab.get_by_text("encoder attention, layer 2 · blocks.1, average of the heads").wait_for()


def test_arrows_scroll_where_no_head_is_shown(tab, written):
    tab.goto(f"{written}#view=figures&figure=positions")
    tab.wait_for_selector("svg.figure image")
    wait_until(tab, "document.documentElement.scrollHeight > innerHeight")
    tab.keyboard.press("ArrowDown")
    wait_until(tab, "scrollY > 0")
    tab.goto("about:blank")
    tab.goto(f"{written}#view=neuron")
    tab.locator(".scroll").first.focus()
    tab.keyboard.press("ArrowRight")
    tab.evaluate("document.activeElement.blur()")
    tab.keyboard.press("ArrowDown")
    wait_until(tab, "location.hash.includes('layer=1')")
    assert "head" not in tab.evaluate("location.hash")


def test_the_page_fits_a_narrow_screen(tab, pipeline, tmp_path):
    name = "a-long-name-of-a-model" * 5
    file = write_page(Session(pipeline), TEXT, None, tmp_path / "page.html", name)
    tab.set_viewport_size({"width": 360, "height": 700})
    tab.goto(f"{file.as_uri()}#view=figures&figure=positions")
    tab.wait_for_selector(".curve canvas")
    assert tab.evaluate("document.documentElement.scrollWidth") == 360


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_an_example_of_a_role_opens_the_attention_of_its_head(tab, theme, tmp_path):
    planted = planted_model()
    lines = repeated_lines()[:12]
    session = Session(planted, roles=head_roles(planted, lines))
    address = write_page(session, lines[0].text, None, tmp_path / "page.html").as_uri()
    tab.goto(f"{address}#view=roles&role=induction&theme={theme}")
    rows = tab.locator("section[aria-label='Heads with a role'] tbody tr")
    rows.first.wait_for()
    shown = next(
        each for each in session.roles["heads"] if each["role"] == "induction" and each["found"]
    )
    assert (
        "decoder 2.1" in rows.first.text_content()
        and f"{shown['share']:.4f}" in rows.first.text_content()
    )
    axe = WEB / "node_modules" / "axe-core" / "axe.min.js"
    if axe.is_file():
        tab.evaluate(axe.read_text(encoding="utf-8"))
        found = tab.evaluate("axe.run()")["violations"]
        assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []
    rows.first.locator("td:last-child button").nth(1).click()
    tab.wait_for_selector("svg.figure image")
    assert tab.locator("header textarea").first.input_value() == shown["examples"][1]["text"]
    fragment = tab.evaluate("location.hash")
    assert f"row={shown['examples'][1]['row']}" in fragment and "layer=1" in fragment


def test_a_selected_head_without_the_role_is_marked(tab, tmp_path):
    planted = planted_model()
    lines = repeated_lines()[:12]
    session = Session(planted, roles=head_roles(planted, lines))
    found = {each["role"] for each in session.roles["heads"] if each["found"]}
    role = next(each["role"] for each in session.roles["heads"] if each["role"] not in found)
    address = write_page(session, lines[0].text, None, tmp_path / "page.html").as_uri()
    tab.goto(f"{address}#{urlencode({'view': 'roles', 'role': role})}")
    tab.get_by_text("No head has this role.").wait_for()
    rows = tab.locator("section[aria-label='Heads with a role'] tbody tr").all_text_contents()
    assert all(row.startswith(f"{role}: not found in the selected head") for row in rows)


def test_a_click_forces_a_token_on_the_live_page(tab, pipeline):
    session = Session(pipeline)
    open_live(tab, session, "view=search")
    tab.wait_for_selector("svg.figure circle")
    token = search(session, TEXT)["nodes"][6]
    tab.locator("svg.figure g.link").nth(5).click(force=True)
    tab.get_by_text("Every output begins with").wait_for()
    forced = search(session, TEXT, [token["id"]])
    first = tab.locator("[aria-label='List of outputs'] tbody tr").first
    first.filter(has_text=forced["outputs"][0]["text"]).wait_for()
    assert "forced" in tab.evaluate("location.hash")


@pytest.mark.parametrize("figure", ["positions", "masks", "schedules"])
def test_figures_have_the_numbers_of_the_real_code(tab, written, pipeline, figure):
    tab.goto(f"{written}#view=figures")
    rows = tab.locator("[aria-label='Nearest neighbours'] tbody tr")
    rows.first.wait_for()
    last = max(Session(pipeline).trace(TEXT).example.ids["decoder"])
    found = neighbours(Session(pipeline), "decoder", last)
    for text, token, value in zip(
        rows.all_text_contents(), found["tokens"], found["similarity"], strict=True
    ):
        assert text.endswith(f"{float(value):.4f}") and text.startswith(token.strip() or "␣")
    tab.get_by_role("button", name=figure, exact=True).click()
    tab.wait_for_selector(".curve canvas" if figure == "schedules" else "svg.figure image")
    if figure == "positions":
        box = tab.locator("section[aria-label=Sinusoids] image").bounding_box()
        size = box["height"] / 64
        tab.mouse.move(box["x"] + 2.5 * size, box["y"] + 7.5 * size)
        expected = f"7 → 2: {float(positions(Session(pipeline))['sinusoids'][7, 2]):.4f}"
        tab.get_by_text(expected).wait_for()


def test_markup_in_texts_stays_text(tab, pipeline, tmp_path):
    text = "<img src=x onerror=\"document.title='ran'\"></script>"
    tab.goto(write_page(Session(pipeline), text, None, tmp_path / "page.html").as_uri())
    tab.wait_for_selector("button.thumbnail")
    assert tab.title() == "trifold look" and tab.locator("main img[onerror]").count() == 0


@pytest.mark.parametrize(
    ("kind", "fragment", "drawn"),
    [(kind, "", "svg.figure image") for kind in ("SVG", "PNG", "JSON")]
    + [("SVG", "view=lens", VIEWS["lens"]), ("PNG", "view=lens", VIEWS["lens"])]
    + [("PNG", "view=figures&figure=schedules", ".curve canvas")],
)
def test_a_figure_is_saved(tab, written, kind, fragment, drawn):
    tab.goto(f"{written}#{fragment}")
    tab.wait_for_selector(drawn)
    with tab.expect_download() as download:
        tab.get_by_role("button", name=kind).first.click()
    content = Path(download.value.path()).read_bytes()
    assert (
        content.startswith({"SVG": b"<svg", "PNG": b"\x89PNG", "JSON": b"{"}[kind])
        and len(content) > 300
    )


def test_the_built_page_is_that_of_the_sources(tmp_path):
    if not (WEB / "node_modules").is_dir() or shutil.which("node") is None:
        pytest.skip("requires Node and `npm ci` in web/")
    subprocess.run(
        ["node", WEB / "build.mjs", tmp_path / "page.html"], check=True, capture_output=True
    )
    built = WEB.parent / "src" / "trifold" / "look"
    for name in ("page.html", "THIRD_PARTY_LICENSES.txt"):
        assert (tmp_path / name).read_bytes() == (built / name).read_bytes()
