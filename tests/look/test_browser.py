"""The page in a browser: every view of a model of each shape, offline and live."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from trifold.look import read_attention
from trifold.look.page import write_page
from trifold.look.session import Session

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
VIEWS = {"architecture": "ul.tree button", "attention": "button.thumbnail"}


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=BROWSER, args=FLAGS.split())
        yield opened
        opened.close()


@pytest.fixture
def tab(browser):
    """A page that fails the test for a message on the console and for a request to the network."""
    page, problems = browser.new_page(), list[str]()
    page.on("console", lambda message: problems.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: problems.append(str(error)))
    local = ("file:", "data:", "blob:", "about:", "http://127.0.0.1:")
    page.on("request", lambda sent: sent.url.startswith(local) or problems.append(f"request: {sent.url}"))
    yield page
    page.close()
    assert problems == []


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_view_is_drawn_and_accessible(tab, pipeline, tmp_path, view, theme):
    file = write_page(Session(pipeline), TEXT, None, tmp_path / "page.html")
    tab.goto(f"{file.as_uri()}#view={view}&theme={theme}")
    tab.wait_for_selector(VIEWS[view])
    axe = WEB / "node_modules" / "axe-core" / "axe.min.js"
    if axe.is_file():
        tab.evaluate(axe.read_text(encoding="utf-8"))
        found = tab.evaluate("axe.run()")["violations"]
        assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []


def test_a_model_of_one_stack_has_every_view(tab, one_stack, tmp_path):
    file = write_page(Session(one_stack), TEXT, None, tmp_path / "page.html")
    for view, drawn in VIEWS.items():
        tab.goto("about:blank")
        tab.goto(f"{file.as_uri()}#view={view}")
        tab.wait_for_selector(drawn)
    assert tab.locator("button.thumbnail").count() == 2 * 4


def test_a_cell_shows_the_weight_of_the_model(tab, pipeline, tmp_path):
    file = write_page(Session(pipeline), TEXT, None, tmp_path / "page.html")
    tab.goto(f"{file.as_uri()}#kind=encoder&layer=1&head=2")
    tab.wait_for_selector("svg.figure image")
    weights = read_attention(pipeline, TEXT).patterns["encoder"][1, 2]
    box = tab.locator("svg.figure image").bounding_box()
    size = box["width"] / weights.shape[1]
    for row, column in [(0, 0), (3, 5), (len(weights) - 1, 1)]:
        tab.mouse.move(box["x"] + (column + 0.5) * size, box["y"] + (row + 0.5) * size)
        tab.wait_for_function(
            f"document.querySelector('.readout').textContent.endsWith('{round_trip(weights[row, column])}')"
        )


def round_trip(weight: float) -> str:
    return f"{round(float(weight) * 255) / 255:.3f}"


def test_keys_move_the_selection_and_the_address_keeps_it(tab, pipeline, tmp_path):
    file = write_page(Session(pipeline), TEXT, None, tmp_path / "page.html")
    tab.goto(f"{file.as_uri()}#kind=encoder")
    tab.wait_for_selector("button.thumbnail")
    for pressed in ("ArrowRight", "ArrowRight", "ArrowDown", "k"):
        tab.keyboard.press(pressed)
    tab.wait_for_function("location.hash.includes('head=2')")
    assert {"kind=decoder", "layer=1", "head=2"} <= set(tab.evaluate("location.hash.slice(1)").split("&"))
    tab.reload()
    tab.wait_for_selector("button.thumbnail[aria-pressed=true]")
    assert tab.locator("button.thumbnail[aria-pressed=true]").get_attribute("aria-label") == "Layer 2, head 3"


def test_markup_in_texts_stays_text(tab, pipeline, tmp_path):
    text = "<img src=x onerror=\"document.title='ran'\"></script>"
    tab.goto(write_page(Session(pipeline), text, None, tmp_path / "page.html").as_uri())
    tab.wait_for_selector("button.thumbnail")
    assert tab.title() == "trifold look" and tab.locator("main img[onerror]").count() == 0


@pytest.mark.parametrize("kind", ["SVG", "PNG", "JSON"])
def test_a_figure_is_saved(tab, pipeline, tmp_path, kind):
    tab.goto(write_page(Session(pipeline), TEXT, None, tmp_path / "page.html").as_uri())
    tab.wait_for_selector("svg.figure image")
    with tab.expect_download() as download:
        tab.get_by_role("button", name=kind).click()
    content = Path(download.value.path()).read_bytes()
    assert content.startswith({"SVG": b"<svg", "PNG": b"\x89PNG", "JSON": b"{"}[kind]) and len(content) > 300


def test_the_built_page_is_that_of_the_sources(tmp_path):
    if not (WEB / "node_modules").is_dir() or shutil.which("node") is None:
        pytest.skip("requires Node and `npm ci` in web/")
    subprocess.run(["node", WEB / "build.mjs", tmp_path / "page.html"], check=True, capture_output=True)
    built = WEB.parent / "src" / "trifold" / "look" / "page.html"
    assert (tmp_path / "page.html").read_bytes() == built.read_bytes()
