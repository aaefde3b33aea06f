"""The site of the documentation: every page is in it, links have targets, and nothing is loaded
from other hosts.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from tools import docs_site

HEAD = '<link rel="stylesheet" href="a.css"><h1 id="one">One</h1>'
PROBLEMS = [
    ('<a href="b.html#two">', "a.html: the link b.html#two leads to no heading"),
    ('<a href="#two">', "a.html: the link #two leads to no heading"),
    ('<a href="c.html">', "a.html: the link c.html leads to no file"),
    ('<img src="images/a.png">', "a.html: the link images/a.png leads to no file"),
    (
        '<script src="https://x.example/a.js">',
        "a.html: loads https://x.example/a.js from another host",
    ),
    ('<img src="//x.example/a.png">', "a.html: loads //x.example/a.png from another host"),
    (
        '<link rel="preconnect" href="https://x.example">',
        "a.html: loads https://x.example from another host",
    ),
]
ALLOWED = [
    '<a href="b.html#one">',
    '<a href="#one">',
    '<a href="https://x.example/paper">',
    '<link rel="canonical" href="https://x.example">',
    '<img src="data:image/png;base64,AA==">',
]


def site_with(folder: Path, element: str, style: str = "") -> Path:
    (folder / "a.html").write_text(HEAD + element, encoding="utf-8")
    (folder / "b.html").write_text(HEAD, encoding="utf-8")
    (folder / "a.css").write_text(style, encoding="utf-8")
    return folder


@pytest.mark.parametrize(("element", "message"), PROBLEMS)
def test_a_problem_of_a_page_is_reported(element: str, message: str, tmp_path: Path) -> None:
    assert [*docs_site.check(site_with(tmp_path, element))] == [message]


@pytest.mark.parametrize("element", ALLOWED)
def test_other_elements_are_no_problem(element: str, tmp_path: Path) -> None:
    assert not [*docs_site.check(site_with(tmp_path, element))]


@pytest.mark.parametrize("rule", ["@import 'https://x.example/f.css'", "a{src:url(//x.example/f)}"])
def test_styles_of_other_hosts_are_reported(rule: str, tmp_path: Path) -> None:
    (problem,) = docs_site.check(site_with(tmp_path, "", rule))
    assert re.fullmatch(r"a\.css: loads .*x\.example/f\S* from another host", problem)


def test_a_folder_without_pages_is_reported(tmp_path: Path) -> None:
    (problem,) = docs_site.check(tmp_path)
    assert problem.endswith("no page; run: make docs")


def test_the_navigation_has_every_page_once() -> None:
    assert sorted(docs_site.navigation()) == sorted([*docs_site.sources().values(), "api.md"])


def test_the_navigation_follows_the_links_to_the_next_page() -> None:
    """The readers of the site and of the repository are led the same way."""
    pages = docs_site.sources()
    order = [*docs_site.navigation()]
    page = "docs/index.md"
    place = order.index("index.md")
    while page.startswith("docs/"):
        link = re.search(r"Next:\s\[[^]]+\]\((\S+)\)", (docs_site.ROOT / page).read_text("utf-8"))
        target = (docs_site.ROOT / page).parent.joinpath(link[1]).resolve()
        page = target.relative_to(docs_site.ROOT).as_posix()
        before, place = place, order.index(pages[page])
        assert place > before, f"{page} is before the page that leads to it"


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("zensical"), reason="needs the extra docs")
def test_the_site_has_no_broken_link_and_loads_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """The built site is that of `make docs`. The names of the reference have their docstrings."""
    assert docs_site.main([]) == 0, capsys.readouterr().err
    reference = (docs_site.SITE / "api.html").read_text(encoding="utf-8")
    for name in ("trifold.pipeline.Pipeline.hidden_states", "trifold.errors.DataError"):
        assert f'id="{name}"' in reference
    assert "Raises TrifoldError" in re.sub(r"<[^>]*>", "", reference)
    assert (docs_site.SITE / "search.json").stat().st_size > 100_000
