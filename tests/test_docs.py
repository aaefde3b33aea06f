"""The commands in the documentation work: every block runs, in order, in its own folder.

A ```bash block is run. A ```console block is run and must print the text shown (… matches
anything). A ```python block is run. A ```yaml block is a recipe, or a part of one; with `<!-- file:
NAME -->` before it, it is saved; with `<!-- study: NAME -->`, it is saved as a study. `<!-- not
run: REASON -->` skips a block; its commands must still be well formed. `make` lines are not run,
but their targets exist. Long training is shortened by the table below."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from tests.faults.groups import ranked
from tests.hub.gguf.vocabularies import write_model

from trifold.cli import COMMANDS, main
from trifold.cli.show import find_subject
from trifold.costs import count_parameters
from trifold.hub.gguf.architectures import ARCHITECTURES
from trifold.hub.gguf.blocks import TYPES
from trifold.hub.gguf.tokenizer import BUILDERS
from trifold.hub.presets import PRESETS
from trifold.nn import registry
from trifold.nn.presets import PRESETS as PAPERS
from trifold.recipe import load_recipe, recipe_names
from trifold.train.resume import FREE, FREE_WITHOUT_AVERAGING
from trifold.train.study import load_study, plan_runs

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
DOCS = sorted(ROOT.glob("docs/**/*.md"))
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "benchmarks" / "README.md"])

RANKED = re.compile(r"torchrun --nproc-per-node (\d) (?:--max-restarts \d )?-m trifold ")
# Machines with one rank each, simulated on one.
SIMULATED = re.compile(
    r"for node in 0 1; do torchrun --nnodes (2) .*? -m trifold (.*) & done; wait"
)
# Start of a command -> arguments that make it fast.
SMALL = "model.d_model=32 model.n_layers=1 train.steps=4"
TINY = "model.d_model=16 train.steps=4 train.warmup=2 train.validate_every=4 train.save_every=4"
SHORTENED = {
    "trifold doctor": "--no-speed",
    "trifold resume runs/two": "train.steps=8",
    "trifold train fr-en.yaml": f"{SMALL} data.holdout=8 train.validate_every=4 train.save_every=2 train.average=2",
    "trifold resume runs/fr-en train.steps": "train.steps=8",
    "trifold resume runs/fr-en": "train.steps=6",
    "trifold train smoke": f"{SMALL} train.warmup=2",
    "trifold train mine.yaml": f"{SMALL} train.warmup=2",
    "trifold train teacher.yaml": TINY,
    "trifold train recurrent.yaml": TINY,
    "trifold train writer.yaml": TINY,
    "trifold train similarity data.train=scored": TINY.removeprefix("model.d_model=16 "),
    "trifold train images": TINY.removeprefix("model.d_model=16 "),
    "trifold train choose": TINY.removeprefix("model.d_model=16 "),
    "trifold train classify data.train=reviews.csv data.valid=reviews.csv pretrain": f"{TINY} pretrain.train.steps=4",
    "trifold train classify data.train=reviews": TINY,
    "trifold train classify data.train=pairs": TINY.removeprefix("model.d_model=16 "),
    "trifold train classify data.train=films": TINY.removeprefix("model.d_model=16 "),
    "trifold train translate data.train=phrases": TINY.removeprefix("model.d_model=16 "),
    "trifold train translate model.shape": TINY.removeprefix("model.d_model=16 "),
    "trifold train electra": TINY,
    "trifold train causal data.train=novel": TINY,
    "trifold train causal start_from=runs/novel": TINY.removeprefix("model.d_model=16 "),
    "trifold train causal data.train=stories": TINY.removeprefix("model.d_model=16 "),
    "trifold train summarize start_from": TINY.removeprefix("model.d_model=16 "),
    "trifold train gpt-classify": TINY.removeprefix("model.d_model=16 "),
    "trifold train answer start_from": TINY.removeprefix("model.d_model=16 "),
    "trifold train answer": TINY,
    "trifold train tag": TINY,
    "trifold train summarize": TINY,
    "trifold train student.yaml": TINY,
    "trifold distill runs/demo": "train.steps=4",
    "trifold train transformer-xl": TINY,
    "trifold train masked data.train": TINY,
    "trifold train causal data.train=sayings.txt data.valid=sayings.txt": TINY,
    "trifold train causal start_from=model.gguf": TINY.removeprefix("model.d_model=16 "),
    "trifold train masked start_from": TINY.removeprefix("model.d_model=16 "),
    "trifold study scaling.yaml": (
        "settings.data.train=embedded:smoke settings.data.valid=embedded:smoke settings.data.holdout=0 "
        "settings.data.field=source settings.data.documents=line settings.data.cut=pieces tokens=[5000,7000,9000] "
        'sizes={"a":{"d_model":8},"b":{"d_model":16},"c":{"d_model":24}} resamples=100'
    ),
}
SHORTENED_KEYS = {
    "train.steps": 4,
    "train.validate_every": 4,
    "train.save_every": 4,
    "train.warmup": 2,
    "model.n_layers": 1,
    "data.holdout": 8,
}
MOST_LINES = 300  # of a text file that a page created, kept for the rest of the page
# Commands that set up the machine.
NOT_RUN = ("git clone", "cd ", "source ", "pip install", "make")


class Block(NamedTuple):
    """A fenced block: its language, text, preceding comment, and place."""

    language: str
    text: str
    remark: str
    place: str


def blocks(page: Path) -> Iterator[Block]:
    pattern = re.compile(
        r"(?:^<!-- (?P<remark>[^>]*?) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S
    )
    text = page.read_text(encoding="utf-8")
    for match in pattern.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield Block(match["language"], match["text"], match["remark"] or "", f"{page.name}:{line}")


def runnable(page: Path) -> bool:
    return any(block.language in ("bash", "console", "python") for block in blocks(page))


@cache
def smoke_model(folder: Path) -> Path:
    """A small model in place of the demo's: the commands are tested, not their quality."""
    run = folder / "smoke"
    assert main(["train", "smoke", *SMALL.split(), "train.warmup=2", "--out", str(run)]) == 0
    return run


class Reader:
    """Runs the blocks of a page in one folder, from top to bottom."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.capsys, self.monkeypatch = capsys, monkeypatch

    def follow(self, block: Block) -> None:
        if block.remark.startswith("not run:"):
            for command in _commands(block.text):
                _check_form(command, block.place)
            return
        match block.language:
            case "bash":
                for command in _commands(block.text):
                    code, output = self.type(command, block.place)
                    assert code == 0, f"{block.place}: {command}\n{output}"
            case "console":
                command, _, shown = block.text.removeprefix("$ ").partition("\n")
                _, output = self.type(command, block.place)
                expected = ".*".join(re.escape(part) for part in shown.strip().split("…"))
                assert re.fullmatch(expected, output.strip(), re.S), (
                    f"{block.place}: {command}\n{output}"
                )
            case "python" | "text" if block.remark.startswith("file:"):
                file = Path(block.remark.removeprefix("file:").strip())
                file.write_text(block.text, encoding="utf-8", newline="\n")
            case "python":
                with self.monkeypatch.context() as patch:
                    _shorten_python(patch)
                    exec(compile(block.text, block.place, "exec"), {"__name__": "__main__"})
                _shorten_files()
            case "yaml":
                _check_yaml(block)

    def type(self, command: str, place: str) -> tuple[int, str]:
        """Run one line; return the exit code and the output."""
        if command.startswith(NOT_RUN):
            _check_form(command, place)
            return 0, ""
        if ranks := RANKED.match(command):
            return self.on_ranks(int(ranks[1]), _shortened(command).removeprefix(ranks[0]))
        if nodes := SIMULATED.fullmatch(_shortened(command)):
            return self.on_ranks(int(nodes[1]), nodes[2], local_world=1)
        before, pipe, last = command.rpartition(" | ")
        if not last.startswith("trifold"):
            shortened = _shortened(command).replace("python examples/", f"python {ROOT}/examples/")
            shortened = shortened.replace("trees.conllu 2000", "trees.conllu 200")
            done = subprocess.run(
                ["bash", "-c", shortened],
                capture_output=True,
                text=True,
                timeout=600 if " train " in command else 60,
                env=_environment(),
                check=False,
            )
            return done.returncode, done.stdout + done.stderr
        if not pipe:
            return self.trifold(last, b"")
        producer = subprocess.run(["bash", "-c", before], stdout=subprocess.PIPE, check=True)
        return self.trifold(last, producer.stdout)

    def on_ranks(
        self, count: int, arguments: str, *, local_world: int | None = None
    ) -> tuple[int, str]:
        """Run `trifold` on forks of this process. Those of torchrun take seconds to load
        libraries. local_world: ranks of a machine, if there are several machines.
        """
        words = shlex.split(arguments, comments=True)
        if "train.sharding=full" in words:  # what the ranks would load each for itself
            importlib.import_module("torch.distributed.fsdp")
        log = Path("ranks.txt")

        def work(rank: int) -> int:
            with log.open("a", encoding="utf-8") as sys.stdout:
                sys.stderr = sys.stdout
                return main(words)

        codes = ranked(work, count, log=log, local_world=local_world)
        return int(any(codes)), log.read_text(encoding="utf-8")

    def trifold(self, command: str, stdin: bytes) -> tuple[int, str]:
        """Run a command in this process, because a new one takes seconds to start."""
        words = shlex.split(command, comments=True)[1:]
        output = _take_redirection(words, ">")
        if source := _take_redirection(words, "<"):
            stdin = Path(source).read_bytes()
        added = next(
            (more for start, more in SHORTENED.items() if command.startswith(start)), ""
        ).split()
        place = next((n for n, word in enumerate(words) if word.startswith("--")), len(words))
        words[place:place] = added
        self.capsys.readouterr()
        with self.monkeypatch.context() as patch:
            buffer = io.BufferedReader(io.BytesIO(stdin))
            patch.setattr(sys, "stdin", io.TextIOWrapper(buffer, encoding="utf-8"))
            code = main(words)
        out, err = self.capsys.readouterr()
        if output:
            Path(output).write_text(out, encoding="utf-8", newline="\n")
        return code, out + err


@pytest.fixture
def reader(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Reader:
    monkeypatch.chdir(tmp_path)
    inside = {place: list(each) for place, each in registry._variants.items()}
    monkeypatch.setattr(registry, "_variants", inside)  # a page adds parts
    monkeypatch.setattr(registry, "_loaded", {})
    monkeypatch.delenv("TRIFOLD_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    shutil.copytree(smoke_model(tmp_path_factory.getbasetemp()), tmp_path / "runs" / "demo")
    return Reader(capsys, monkeypatch)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if runnable(page)], ids=lambda page: page.name
)
def test_commands_of_a_page_work(page: Path, reader: Reader) -> None:
    if page.name == "gguf.md":
        write_model(Path("model.gguf"))
    for block in blocks(page):
        reader.follow(block)


def test_example_program_translates(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("a").write_text("".join(f"{n} a b c\n" for n in range(60)), encoding="utf-8", newline="\n")
    Path("b").write_text("".join(f"c b a {n}\n" for n in range(60)), encoding="utf-8", newline="\n")
    monkeypatch.setattr(
        sys,
        "argv",
        ["translate_your_own.py", "a", "b", "1 a b c", "--steps", "2", "--holdout", "4"],
    )
    runpy.run_path(str(ROOT / "examples" / "translate_your_own.py"), run_name="__main__")
    *_, trained, translated = capsys.readouterr().out.splitlines()
    assert trained.startswith("2 steps in ")
    assert translated.startswith("1 a b c  →  ")


def test_tables_of_keys_are_generated() -> None:
    page = ROOT / "docs" / "recipes.md"
    generator = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    assert page.read_text(encoding="utf-8") == generator["render"](), "run: python docs/generate.py"
    names = {key.name for rows in generator["keys"]().values() for key in rows}
    assert set(generator["MEANINGS"]) <= names, "MEANINGS without a key"


def test_table_of_families_is_generated() -> None:
    page = ROOT / "docs" / "families.md"
    generator = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    assert page.read_text(encoding="utf-8") == generator["render_families"](), (
        "run: python docs/generate.py"
    )


def test_the_list_of_parts_is_generated() -> None:
    page = ROOT / "docs" / "parts.md"
    generator = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    assert page.read_text(encoding="utf-8") == generator["render_parts"](), (
        "run: python docs/generate.py"
    )


def test_the_example_of_a_part_is_the_file_of_the_examples() -> None:
    (shown,) = [
        block.text for block in blocks(ROOT / "docs" / "parts.md") if block.language == "python"
    ]
    assert shown == (ROOT / "examples" / "cosine_attention.py").read_text(encoding="utf-8")


def test_the_walkthrough_is_generated() -> None:
    page = ROOT / "docs" / "walkthrough.md"
    generator = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    assert page.read_text(encoding="utf-8") == generator["render_walkthrough"](), (
        "run: python docs/generate.py"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_have_targets(page: Path) -> None:
    for target in _links(page):
        file, _, anchor = target.partition("#")
        if "://" in file:
            continue
        linked = page.parent / file if file else page
        assert linked.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in _anchors(linked.resolve()), f"{page.name}: {target}"


def test_the_links_to_the_next_page_lead_through_all_pages() -> None:
    """They begin at the index, are in the first paragraph, and end at a page outside docs/."""
    page = ROOT / "docs" / "index.md"
    passed = []
    while page in DOCS:
        assert page not in passed, f"{page.name}: is passed twice"
        passed.append(page)
        purpose = page.read_text(encoding="utf-8").split("\n\n")[1]
        link = re.fullmatch(r"This page .+\.\sNext:\s\[[^]]+\]\((\S+)\)\.", purpose, re.S)
        assert link, f"{page.name}: the first paragraph says neither its purpose nor what is next"
        page = (page.parent / link[1]).resolve()
    assert sorted(passed) == DOCS


def test_the_index_links_to_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / target.partition("#")[0]).resolve() for target in _links(index)}
    assert not {page.name for page in {*PAGES, *DOCS} - linked - {index}}


def test_the_glossary_is_sorted_and_links_each_word() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    words = [word.casefold() for word, *_ in rows[2:]]
    assert words == sorted(words)
    assert not [row for row in rows[2:] if len(row) != 3 or "](" not in row[2]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_inside_sentences_and_tables_are_well_formed(page: Path) -> None:
    text = _without_blocks(page)
    indented = re.findall(r"^    ((?:trifold|make) .+)$", text, re.M)
    for command in [*re.findall(r"`((?:trifold|make) [^`]+)`", text), *indented]:
        _check_form(command, page.name)


def test_parameters_of_the_literature_are_those_of_the_presets() -> None:
    """What `trifold show` prints, rounded as it is written."""
    page = (ROOT / "docs" / "literature.md").read_text(encoding="utf-8")
    rows = re.findall(r"`trifold show (\S+)` \| ([\d.,]+)( M| G| parameters) \|", page)
    assert len(rows) > 25
    for name, figure, unit in rows:
        config = PAPERS[name] if name in PAPERS else PRESETS[name].config
        millions = {" M": 1e6, " G": 1e9, " parameters": 1}[unit]
        digits = len(figure.partition(".")[2])
        assert f"{count_parameters(config) / millions:,.{digits}f}" == figure, name


def test_the_types_and_architectures_of_gguf_files_are_listed() -> None:
    page = (ROOT / "docs" / "gguf.md").read_text(encoding="utf-8")
    first = [line.split("|")[1] for line in page.splitlines() if line.startswith("| ")]
    listed = {word for cell in first for word in cell.strip().split(", ")}
    assert not {kind.name for kind in TYPES.values()} - listed
    assert not ARCHITECTURES.keys() - listed
    assert not BUILDERS.keys() - listed


def test_every_recipe_is_documented() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert not [name for name in recipe_names() if not re.search(rf"\b{name}\b", pages)]


def _commands(text: str) -> list[str]:
    joined = text.replace("\\\n", " ")
    return [
        line.strip() for line in joined.splitlines() if line.strip() and not line.startswith("#")
    ]


def _shortened(command: str) -> str:
    """The command with a short training."""
    return command.replace(" train smoke", f" train smoke {SMALL} train.warmup=2")


def _take_redirection(words: list[str], sign: str) -> str | None:
    """Remove a redirection from the words and return its file."""
    if sign not in words:
        return None
    place = words.index(sign)
    file = words[place + 1]
    del words[place : place + 2]
    return file


def _environment() -> dict[str, str]:
    """Environment variables that select the programs (sacrebleu, torchrun) and modules of this
    environment.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)}


def _shorten_python(patch: pytest.MonkeyPatch) -> None:
    import trifold

    real, resume = trifold.train, trifold.resume

    def short(recipe: str, **changes: Any) -> Any:
        keys = {
            key: value
            for key, value in SHORTENED_KEYS.items()
            if key != "data.holdout" or not (recipe == "smoke" or "data" in changes)
        }
        return real(recipe, **(changes | keys))

    def short_session(run: str, **changes: Any) -> Any:
        return resume(run, **(changes | {"train.steps": 2 * SHORTENED_KEYS["train.steps"]}))

    patch.setattr(trifold, "train", short)
    patch.setattr(trifold, "resume", short_session)


def _shorten_files() -> None:
    for file in [*Path().glob("train.*"), *Path().glob("test.*")]:
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        most = MOST_LINES if file.stem == "train" else 6
        file.write_text("".join(lines[:most]), encoding="utf-8", newline="\n")


def _check_yaml(block: Block) -> None:
    if block.remark.startswith("study:"):
        file = Path(block.remark.removeprefix("study:").strip())
        file.write_text(block.text, encoding="utf-8", newline="\n")
        assert plan_runs(load_study(file), Path("runs"))
        return
    if block.remark.startswith("file:"):
        file = Path(block.remark.removeprefix("file:").strip())
        file.write_text(block.text, encoding="utf-8", newline="\n")
        load_recipe(file, imports_parts=True)
        return
    values = {"data": {"train": "embedded:smoke"}} | yaml.safe_load(block.text)
    Path("part.yaml").write_text(yaml.safe_dump(values), encoding="utf-8", newline="\n")
    load_recipe("part.yaml")


def _links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", _without_blocks(page))


@cache
def _anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as code hosts derive them."""
    headings = re.findall(r"^#+ (.+)$", _without_blocks(page), re.M)
    texts = [re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w -]", "", text).lower().replace(" ", "-") for text in texts}


def _without_blocks(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


@cache
def _help(verb: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([verb, "--help"]) == 0
    return out.getvalue()


@cache
def _targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


def _check_form(command: str, place: str) -> None:
    """The target of `make` exists, or the command, options and recipe of `trifold`."""
    words = [word for word in shlex.split(command, comments=True) if not word.startswith("[")]
    if words[:1] == ["make"]:
        targets = [word for word in words[1:] if word.islower() and "=" not in word]
        assert set(targets) <= _targets(), f"{place}: {command}"
    if words[:1] != ["trifold"] or words[1].startswith("--") or words[1].isupper():
        return
    verb, *rest = words[1:]
    assert verb in COMMANDS, f"{place}: {command}"
    options = {word.partition("=")[0] for word in rest if word.startswith("--")}
    known = set(re.findall(r"--[a-z][a-z-]*", _help(verb)))
    assert options <= known, f"{place}: {command}"
    plain = [word for word in rest if not word.startswith("-")]
    changes = [word for word in plain[1:] if re.match(r"[a-z_.]+=", word) and "…" not in word]
    if verb == "train" and plain and plain[0] in recipe_names() and "stpes" not in command:
        load_recipe(plain[0], changes)
    if verb == "show" and changes and plain[0] in {*recipe_names(), *PAPERS, *PRESETS}:
        find_subject(plain[0], changes)


def test_free_settings_of_a_resumed_run_are_documented():
    page = (ROOT / "docs" / "recipes.md").read_text("utf-8")
    section = page.partition("## What may change when a run is continued")[2].partition("\n## ")[0]
    output = re.findall(r"`([a-z_.]+)`", section.partition("Any other change is refused")[0])
    assert sorted(set(output) - {"train.average"}) == sorted([*FREE, *FREE_WITHOUT_AVERAGING])
