"""Mutation testing across a refactoring: no bug that the old tests catch may escape the new tests.

    python tools/mutation_test.py old  [--reference C] [--count 300] [--seed 1]    mutate the
                                       reference commit, run its tests
    python tools/mutation_test.py new           map each caught mutation to this tree, run its tests
    python tools/mutation_test.py report                          list what only the old tests catch
    python tools/mutation_test.py draw --commit C [--under nn fast]        mutate any commit, run
                                       its own tests, list what they do not catch

`old` draws mutations of single expressions (comparison, arithmetic, boolean and constant operators)
from the sources of the reference commit. `new` finds the corresponding expression: equal up to the
names of identifiers, in the most similar function; without results of `old` it takes those of
mutation_baseline.json. Results are appended to build/mutations/*.jsonl, so an interrupted command
continues. The tests of a module run first, then the laws of nn and fast for half of the budget,
then those that import it, then those of its package, until one fails or the budget is spent. The
laws of parts that are named like the module run first, others in random order, because all of them
take ten budgets. Linux only (fork); a mutated tree is a copy in a temporary folder.
"""

from __future__ import annotations

import argparse
import ast
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "build" / "mutations"
REFERENCE = "909037c"
# The numbers of the 300 mutations of seed 1 that the tests of REFERENCE catch within 15 to 20
# seconds each.
BASELINE = Path(__file__).with_name("mutation_baseline.json")
# Not part of the package any more: the phrasebook's generator, the fault harness, the baselines of
# the demos.
EXCLUDED = (
    "data/phrasebook/",
    "data/embedded.py",
    "data/bodies.py",
    "faults/",
    "naive_bayes.py",
    "trigram.py",
)
HANGS = 300  # seconds of wall time beyond the budget, after which the mutation counts as caught
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    **{
        ast.Lt: ast.LtE,
        ast.LtE: ast.Lt,
        ast.Gt: ast.GtE,
        ast.GtE: ast.Gt,
        ast.Eq: ast.NotEq,
        ast.NotEq: ast.Eq,
    },
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In},
    **{
        ast.Add: ast.Sub,
        ast.Sub: ast.Add,
        ast.Mult: ast.FloorDiv,
        ast.FloorDiv: ast.Mult,
        ast.Div: ast.Mult,
    },
    **{ast.And: ast.Or, ast.Or: ast.And},
}


class Site(NamedTuple):
    """An expression that can be mutated: its place, the shapes of it, its statement and its
    function, the two texts.
    """

    path: str
    line: int
    column: int
    shape: str
    statement: str
    function: tuple[str, ...]
    original: str
    mutated: str
    start: int
    end: int


def sites(source: Path) -> Iterator[Site]:
    """All expressions of a source tree that can be mutated."""
    for file in sorted(source.rglob("*.py")):
        path = file.relative_to(source).as_posix()
        if any(part in path for part in EXCLUDED):
            continue
        text = file.read_text(encoding="utf-8")
        offsets = [0]
        for line in text.encode().splitlines(keepends=True):
            offsets.append(offsets[-1] + len(line))
        tree = ast.parse(text)
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            tokens = tuple(
                _shape(node) for node in ast.walk(function) if isinstance(node, ast.stmt)
            )[1:60]
            for top in function.body:
                for statement, node in _expressions(top, top):
                    mutated = _mutated(node)
                    if mutated is None or _annotated(node):
                        continue
                    start = offsets[node.lineno - 1] + node.col_offset
                    end = offsets[node.end_lineno - 1] + node.end_col_offset
                    original = text.encode()[start:end].decode()
                    yield Site(
                        path,
                        node.lineno,
                        node.col_offset,
                        _shape(node),
                        _first_line(statement),
                        tokens,
                        original,
                        mutated,
                        start,
                        end,
                    )


def _expressions(statement: ast.stmt, node: ast.AST) -> Iterator[tuple[ast.stmt, ast.AST]]:
    """Like `ast.walk`, with the statement of each node, without the insides of f-strings (Python
    3.11 does not know their positions) and of functions.
    """
    yield statement, node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.JoinedStr | ast.FunctionDef):
            yield from _expressions(child if isinstance(child, ast.stmt) else statement, child)


def _first_line(statement: ast.stmt) -> str:
    """The words of a statement without its body, in which a refactoring renames some."""
    return ast.unparse(statement).partition("\n")[0]


def _annotated(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)


def _mutated(node: Any) -> str | None:
    """The mutated expression, in parentheses; None if the node has no mutation."""
    copy = deepcopy(node)
    match copy:
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            copy.ops = [SWAPS[type(op)]()]
        case ast.BinOp(op=op, left=left) if type(op) in SWAPS and not isinstance(
            left, ast.Constant | ast.JoinedStr
        ):
            copy.op = SWAPS[type(op)]()
        case ast.BoolOp(op=op):
            copy.op = SWAPS[type(op)]()
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            copy = operand
        case ast.Constant(value=bool(value)):
            copy.value = not value
        case ast.Constant(value=int(value)):
            copy.value = value + 1
        case _:
            return None
    return f"({ast.unparse(copy)})"


def _shape(node: ast.AST) -> str:
    """The syntax tree without identifiers and strings."""
    copy = deepcopy(node)
    for each in ast.walk(copy):
        for field in ("id", "attr", "arg", "name"):
            if isinstance(getattr(each, field, None), str):
                setattr(each, field, "_")
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            each.value = ""
    return ast.dump(copy)


def find(site: Site, candidates: dict[str, list[Site]]) -> Site | None:
    """The corresponding expression of another tree: equal in shape, in the most similar
    function.
    """
    best, score = None, 0.45
    for other in candidates.get(site.shape, []):
        similarity = SequenceMatcher(None, site.function, other.function, autojunk=False).ratio()
        similarity += 0.05 * (Path(site.path).name == Path(other.path).name) + 0.05 * (
            site.original == other.original
        )
        if similarity + 0.3 > score:
            similarity += 0.3 * SequenceMatcher(None, site.statement, other.statement).ratio()
        if similarity > score:
            best, score = other, similarity
    return best


def tests_of(path: str, tests: Path) -> tuple[list[str], list[str], list[str]]:
    """Test files for a module: its own, laws, and those that import it or belong to its package."""
    parts = Path(path).with_suffix("").parts[1:]  # without "trifold"
    package, module = parts[0], parts[-1]
    dotted = ".".join(("trifold", *parts))
    own = [tests / Path(*parts[:-1]) / f"test_{module}.py", tests / f"test_{module}.py"]
    laws = (tests / "laws").glob("test_*.py") if package in ("nn", "fast") else ()
    laws = sorted(file for file in laws if file.name != "test_compile.py")  # the slowest
    importing = [
        file
        for file in sorted(tests.rglob("test_*.py"))
        if dotted in (text := file.read_text(encoding="utf-8"))
        or f"from trifold.{package} import" in text
    ]
    rest = sorted((tests / package).rglob("test_*.py"))
    whole = [
        tests / "test_pipeline.py",
        tests / "train" / "test_loop.py",
        tests / "cli" / "test_train.py",
    ]
    excluded = ("/faults/", "/laws/", "test_docs")
    others = dict.fromkeys(str(file) for file in (*importing, *rest, *whole) if file not in own)
    return (
        [str(file) for file in own if file.exists()],
        [str(file) for file in laws],
        [file for file in others if not any(part in file for part in excluded)],
    )


class Runner:
    """Runs tests against mutated copies of a tree, in forks of a process that has imported the
    libraries.
    """

    def __init__(self, tree: Path, budget: float) -> None:
        import pytest  # noqa: F401
        import torch  # noqa: F401
        import transformers  # noqa: F401

        self.budget = budget
        self.folder = Path(tempfile.mkdtemp(prefix="trifold-mutations-"))
        for name in ("src", "tests", "docs", "examples", "tools", "pyproject.toml", "README.md"):
            from_, to = tree / name, self.folder / name
            if from_.is_dir():
                shutil.copytree(from_, to, ignore=shutil.ignore_patterns("__pycache__"))
            elif from_.exists():
                shutil.copy(from_, to)
        self._fill_caches()

    def _fill_caches(self) -> None:
        """Let Numba compile the kernels of the copy, which takes longer than the budget of a
        mutation and would otherwise be repeated by each.
        """
        folder = self.folder
        path = os.pathsep.join((str(folder / "src"), str(folder)))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        subprocess.run(
            [*command, "tests/fast/test_plain.py"],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": path},
            stdout=subprocess.DEVNULL,
            check=False,
        )

    def verdict(self, site: Site) -> tuple[str, float]:
        """Whether the tests catch the mutation ("caught" or "survived"), and the seconds they
        take.
        """
        file = self.folder / "src" / site.path
        before = file.read_bytes()
        file.write_bytes(before[: site.start] + site.mutated.encode() + before[site.end :])
        started = time.monotonic()
        child = os.fork()
        if not child:
            self._test(site)
        try:
            verdict = self._wait(child, started)
        finally:
            file.write_bytes(before)
        return verdict, time.monotonic() - started

    def _wait(self, child: int, started: float) -> str:
        while time.monotonic() - started < 4 * self.budget + HANGS:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return "survived" if os.waitstatus_to_exitcode(status) in (0, 77) else "caught"
            time.sleep(0.1)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return "caught"  # a test hangs

    def _test(self, site: Site) -> None:
        """Run the tests in this fork; exit code 77 if the budget is spent without a failure."""
        os.setpgid(0, 0)
        os.chdir(self.folder)
        sink = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(sink, stream)
        sys.path[:0] = [str(self.folder / "src"), str(self.folder)]
        os.environ["PYTHONPATH"] = f"{self.folder / 'src'}{os.pathsep}{self.folder}"
        sys.dont_write_bytecode = True
        # Tiny training runs otherwise spend most of their time on these.
        os.fsync = lambda fd: None
        gc.collect = partial(gc.collect, 1)  # type: ignore[assignment]
        import pytest

        budget, module = self.budget, Path(site.path).stem
        words = {"fast"} if "/fast/" in site.path else {*module.split("_")} - {"attention"}

        class Budget:
            def pytest_runtest_setup(self, item: Any) -> None:
                if sum(os.times()[:4]) > budget:
                    os._exit(77)

        class Laws(Budget):
            def pytest_collection_modifyitems(self, items: list[Any]) -> None:
                drawn = random.Random(site.start)
                order = {
                    item: (not any(w in item.name for w in words), drawn.random()) for item in items
                }
                items.sort(key=order.__getitem__)

            @pytest.hookimpl(tryfirst=True)
            def pytest_runtest_setup(self, item: Any) -> None:
                if sum(os.times()[:4]) > budget / 2:
                    pytest.skip("half of the budget is spent")

        def run(files: list[str], plugin: Budget) -> None:
            options = ["-x", "-q", "-p", "no:cacheprovider"]
            code = pytest.main([*options, *files], plugins=[plugin])
            if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
                os._exit(int(code))

        own, laws, others = tests_of(site.path, self.folder / "tests")
        # One file after the other: collecting all of them takes longer than the test that fails.
        for file in own:
            run([file], Budget())
        if laws:
            run(laws, Laws())
        for file in others:
            run([file], Budget())
        os._exit(0)


def main() -> int:
    """Run one of the four commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("command", choices=("old", "new", "report", "draw"))
    parser.add_argument("--commit", default="HEAD", help="draw: the commit to mutate")
    parser.add_argument(
        "--reference", default=REFERENCE, help="old, new: the commit before the refactoring"
    )
    parser.add_argument(
        "--under", nargs="*", default=[], help="draw: mutate only these packages, such as nn"
    )
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--budget", type=float, default=60.0, help="seconds of processor time per mutation"
    )
    parser.add_argument(
        "--part",
        default=(0, 1),
        type=lambda text: tuple(map(int, text.split("/"))),
        help="K/N: every Nth mutation from K, for N processes at once",
    )
    chosen = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    return {"old": _old, "new": _new, "report": _report, "draw": _draw}[chosen.command](chosen)


def _old(chosen: argparse.Namespace) -> int:
    """Mutate the reference commit and run its tests."""
    with _checkout(chosen.reference) as tree:
        _run(tree, _part(_drawn(tree, chosen), chosen), RESULTS / "old.jsonl", chosen.budget)
    return 0


def _new(chosen: argparse.Namespace) -> int:
    """Map the mutations that the old tests catch to this tree, and run its tests."""
    old, results = _read(RESULTS / "old.jsonl"), RESULTS / "new.jsonl"
    with _checkout(chosen.reference) as tree:
        drawn = _drawn(tree, chosen)
    caught_before = [n for n, line in sorted(old.items()) if line["verdict"] == "caught"]
    if not old and (chosen.reference, chosen.seed, chosen.count) == (REFERENCE, 1, 300):
        caught_before = json.loads(BASELINE.read_text())
    candidates: dict[str, list[Site]] = {}
    for site in sites(ROOT / "src"):
        candidates.setdefault(site.shape, []).append(site)
    part, parts = chosen.part
    done = _read(results)
    caught = {
        number: find(drawn[number], candidates)
        for number in caught_before
        if number % parts == part and number not in done
    }
    for number, found in caught.items():
        if found is None:
            _append(results, number, drawn[number], "unmapped", 0.0)
    _run(ROOT, {n: site for n, site in caught.items() if site}, results, 2 * chosen.budget)
    return 0


def _draw(chosen: argparse.Namespace) -> int:
    """Mutate a commit and run its tests; print the share that they catch and what they do not."""
    command = ["git", "rev-parse", "--short=8", chosen.commit]
    commit = subprocess.check_output(command, cwd=ROOT, text=True).strip()
    draw = map(str, ("draw", commit, *chosen.under, chosen.seed, chosen.count))
    results = RESULTS / f"{'-'.join(draw)}.jsonl"
    with _checkout(commit) as tree:
        _run(tree, _part(_drawn(tree, chosen), chosen), results, chosen.budget)
    found = _read(results)
    caught = sum(line["verdict"] == "caught" for line in found.values())
    print(f"{commit}: {caught} of {len(found)} mutations caught")
    _print_escaped(found)
    return 0


def _report(_: argparse.Namespace) -> int:
    """Count the verdicts on the mutations that the old tests catch, and print those that the new
    tests do not.
    """
    new = _read(RESULTS / "new.jsonl")
    verdicts = Counter(line["verdict"] for line in new.values())
    print(dict(verdicts))
    _print_escaped(new)
    return 1 if verdicts["survived"] else 0


@contextmanager
def _checkout(commit: str) -> Iterator[Path]:
    """A temporary folder with the files of a commit."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True
        )
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder)


def _drawn(tree: Path, chosen: argparse.Namespace) -> list[Site]:
    """Random expressions of a tree, of the chosen packages."""
    packages = set(chosen.under)
    every = [
        site for site in sites(tree / "src") if not packages or site.path.split("/")[1] in packages
    ]
    return random.Random(chosen.seed).sample(every, min(chosen.count, len(every)))


def _part(drawn: list[Site], chosen: argparse.Namespace) -> dict[int, Site]:
    """The share of the drawn mutations that this process tests, by number."""
    part, parts = chosen.part
    return dict(list(enumerate(drawn))[part::parts])


def _run(tree: Path, chosen: dict[int, Site], results: Path, budget: float) -> None:
    runner, done = Runner(tree, budget), _read(results)
    for number, site in chosen.items():
        if number not in done:
            verdict, seconds = runner.verdict(site)
            _append(results, number, site, verdict, seconds)
            print(f"{number:4} {verdict:9} {seconds:6.1f} s  {site.path}:{site.line}", flush=True)
    shutil.rmtree(runner.folder)


def _append(results: Path, number: int, site: Site, verdict: str, seconds: float) -> None:
    line = {
        "number": number,
        "verdict": verdict,
        "seconds": round(seconds, 1),
        "place": f"{site.path}:{site.line}",
    }
    with results.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line | {"original": site.original, "mutated": site.mutated}) + "\n")


def _read(results: Path) -> dict[int, dict[str, Any]]:
    if not results.exists():
        return {}
    lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    return {line["number"]: line for line in lines}


def _print_escaped(results: dict[int, dict[str, Any]]) -> None:
    for number, line in sorted(results.items()):
        if line["verdict"] != "caught":
            change = f"{line['original']} -> {line['mutated']}"
            print(f"{number:4} {line['verdict']} {line['place']}: {change}")


if __name__ == "__main__":
    sys.exit(main())
