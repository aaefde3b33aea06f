"""Build the site of the documentation: python -m tools.docs_site [--check]

The pages in docs/ link to files anywhere in the repository, as people read them there. The site has
no repository beside it. So the pages are copied into build/docs, where each link leads to a page of
the site; a linked file of code becomes a page with its text. `zensical.toml` holds the navigation
and the appearance. The built site is checked: every link and anchor has a target, and no page loads
anything from another host. With `--check`, the site that was built before is only checked.
"""

from __future__ import annotations

import html.parser
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "zensical.toml"
PAGES = ROOT / "build" / "docs"
SITE = ROOT / "build" / "site"

# Pages outside docs/ -> their names in the site.
OTHER_PAGES = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/RESULTS.md": "results.md",
}
IMAGES = (".png", ".svg", ".jpg", ".gif")
# Endings of the files that a listing of a folder shows.
TEXTS = (".py", ".toml", ".yaml", ".ipynb", ".json", ".md")
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
FENCED = re.compile(r"^(```+).*?^\1$", re.MULTILINE | re.DOTALL)
# Attributes from which a browser loads something, by element.
LOADED = {
    "script": ["src"],
    "link": ["href"],
    "img": ["src", "srcset"],
    "iframe": ["src"],
    "source": ["src", "srcset"],
    "video": ["src", "poster"],
    "audio": ["src"],
    "object": ["data"],
    "embed": ["src"],
    "use": ["href", "xlink:href"],
}
STYLE_URL = re.compile(r"url\(\s*['\"]?((?:https?:)?//[^)'\"\s]+)|@import\s+['\"](https?:[^'\"]+)")

# Heading of the reference -> what it holds, and the documented names.
REFERENCE = {
    "Train and run": (
        "What `import trifold` offers.",
        """trifold.train.loop.train trifold.train.loop.resume trifold.pipeline.load
        trifold.pipeline.generate trifold.pipeline.Pipeline trifold.recipe.Recipe""",
    ),
    "The model": (
        "Tensors in, tensors out. The keys of a config are in [Recipes](recipes.md#model).",
        """trifold.nn.variants.ModelConfig trifold.nn.transformer.Transformer
        trifold.nn.inputs.Inputs trifold.nn.masks.Mask""",
    ),
    "Text": ("Texts to tokens and back.", "trifold.text.tokenizer.Tokenizer"),
    "Generation": ("How logits become tokens.", "trifold.generation_config.GenerationConfig"),
    "Errors": ("What a user can correct.", "trifold.errors"),
}


def main(arguments: list[str]) -> int:
    """Build and check the site; return the exit code."""
    if arguments not in ([], ["--check"]):
        print("usage: python -m tools.docs_site [--check]", file=sys.stderr)
        return 2
    if not arguments:
        write_pages(PAGES)
        build()
    problems = [*check(SITE)]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if problems:
        return 1
    files = [path for path in SITE.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    pages = sum(path.suffix == ".html" for path in files)
    print(f"docs: {pages} pages, {size / 1e6:.1f} MB in build/site")
    print("docs: to read them: python -m http.server -d build/site")
    return 0


def build() -> None:
    """Build the site from the written pages; nothing is requested from the network."""
    shutil.rmtree(SITE, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        raise SystemExit(f"error: the site could not be built\n{done.stdout}{done.stderr}")


# --- pages ----------------------------------------------------------------------------------------


def sources() -> dict[str, str]:
    """Page in the repository -> its name in the site."""
    docs = ROOT / "docs"
    pages = {
        path.relative_to(ROOT).as_posix(): path.relative_to(docs).as_posix()
        for path in sorted(docs.rglob("*.md"))
    }
    return pages | OTHER_PAGES


def navigation(entries: list[Any] | None = None) -> Iterator[str]:
    """The pages in the order of the navigation."""
    if entries is None:
        entries = tomllib.loads(CONFIG.read_text(encoding="utf-8"))["project"]["nav"]
    for entry in entries:
        for target in entry.values():
            if isinstance(target, str):
                yield target
            else:
                yield from navigation(target)


def write_pages(folder: Path) -> None:
    """Write all pages of the site, and what they show, into an emptied folder."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = sources()
    linked: set[str] = set()
    for source, name in pages.items():
        _write(folder / name, _with_links_of_the_site(source, name, pages, linked))
    for file in sorted(linked):
        if (ROOT / file).is_dir():
            _write(folder / _page_of(file), _listing(file, pages))
        elif file.endswith(IMAGES):
            _copy(ROOT / file, folder / _image_of(file))
        else:
            _write(folder / _page_of(file), _file_as_page(file))
    _write(folder / "api.md", _reference())


def _with_links_of_the_site(source: str, name: str, pages: dict[str, str], linked: set[str]) -> str:
    """The text of a page, in which links lead to pages of the site. Adds files that are linked."""
    text = (ROOT / source).read_text(encoding="utf-8")

    def replaced(match: re.Match[str]) -> str:
        target, mark, anchor = match[1].partition("#")
        if "://" in target or not target:
            return match[1]
        file = os.path.normpath(Path(source).parent / target).replace(os.sep, "/")
        if not (ROOT / file).exists():
            raise SystemExit(f"error: {source}: the link {target} leads to no file")
        if (ROOT / file).is_dir():
            within = {inner.relative_to(ROOT).as_posix() for inner in _files_in(file)}
            linked.update(within - set(pages))
        if file not in pages:
            linked.add(file)
        place = pages.get(file) or _place_of(file)
        relative = os.path.relpath(place, Path(name).parent).replace(os.sep, "/")
        return relative + mark + anchor

    parts = []
    end = 0
    for block in FENCED.finditer(text):
        parts += [LINK.sub(replaced, text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, LINK.sub(replaced, text[end:])])


def _place_of(file: str) -> str:
    if file.endswith(IMAGES):
        return _image_of(file)
    return _page_of(file)


def _image_of(file: str) -> str:
    return file.removeprefix("docs/")


def _page_of(file: str) -> str:
    return f"code/{file}.md"


def _files_in(folder: str) -> list[Path]:
    """The files of text directly in a folder."""
    inside = sorted((ROOT / folder).iterdir())
    return [file for file in inside if file.is_file() and file.suffix in TEXTS]


def _listing(folder: str, pages: dict[str, str]) -> str:
    lines = []
    for path in _files_in(folder):
        file = path.relative_to(ROOT).as_posix()
        place = pages.get(file) or _page_of(file)
        relative = os.path.relpath(place, Path(_page_of(folder)).parent)
        lines.append(f"- [{path.name}]({relative.replace(os.sep, '/')})")
    return _page(f"{folder}/", "\n".join(lines))


def _file_as_page(file: str) -> str:
    # Without colours, which would take more time than the rest of the site.
    text = (ROOT / file).read_text(encoding="utf-8").rstrip()
    return _page(file, f"``````text\n{text}\n``````")


def _page(title: str, body: str) -> str:
    """A page that is not found by the search, which would hide the documentation behind code."""
    return f"---\nsearch:\n  exclude: true\n---\n\n# `{title}`\n\n{body}\n"


def _reference() -> str:
    """The page whose directives the site replaces by signatures and docstrings."""
    text = "# API\n\nThis page describes the classes and functions for programs, as they describe "
    text += "themselves. [Python](python.md) shows them in use.\n"
    for heading, (about, names) in REFERENCE.items():
        directives = "\n\n".join(f"::: {name}" for name in names.split())
        text += f"\n## {heading}\n\n{about}\n\n{directives}\n"
    return text


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


# --- check ----------------------------------------------------------------------------------------


class _Page(html.parser.HTMLParser):
    """The anchors of a page, its links, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors = {"", "__top"}
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.anchors |= {values.get("id", ""), values.get("name", "")}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        # A canonical address, for instance, is a name: the browser does not request it.
        if tag == "link" and values.get("rel") in ("canonical", "prev", "next", "alternate"):
            return
        self.loaded += [values[name] for name in LOADED.get(tag, []) if name in values]


def check(site: Path) -> Iterator[str]:
    """What is wrong with a built site: links without a target, and what other hosts would send."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    if not pages:
        yield f"{site}: no page; run: make docs"
    for path, page in pages.items():
        place = path.relative_to(site).as_posix()
        for target in page.loaded:
            if _is_elsewhere(target):
                yield f"{place}: loads {target} from another host"
        if place == "404.html":  # its links begin at the root of a server
            continue
        for target in [*page.links, *page.loaded]:
            yield from _without_target(target, path, place, pages)
    for path in sorted(site.rglob("*.css")):
        for match in STYLE_URL.finditer(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site)}: loads {match[1] or match[2]} from another host"


def _is_elsewhere(target: str) -> bool:
    return target.startswith("//") or urlsplit(target).scheme in ("http", "https")


def _without_target(target: str, path: Path, place: str, pages: dict[Path, _Page]) -> Iterator[str]:
    parts = urlsplit(target)
    if parts.scheme or target.startswith("//"):
        return
    file = path
    if parts.path:
        file = Path(os.path.normpath(path.parent / unquote(parts.path)))
    if file.is_dir():
        file = file / "index.html"
    if not file.is_file():
        yield f"{place}: the link {target} leads to no file"
    elif file in pages and unquote(parts.fragment) not in pages[file].anchors:
        yield f"{place}: the link {target} leads to no heading"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
