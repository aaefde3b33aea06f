"""Compare this source tree with a reference commit, bit by bit: losses, checkpoint tensors,
generated text and its scores.

    python tools/compare_reference.py        against 15829777, the commit that only reformatted
    python tools/compare_reference.py --reference HEAD~1
                                                against another commit, or a folder with its sources
    python tools/compare_reference.py --only smoke           chosen cases; --list names them
    python tools/compare_reference.py --together             both trees at once, on two cores

15829777 wrapped the sources at 100 columns and changed no result. Both trees execute the same
commands with the same seeds, in one environment: a few steps of training with every kind of
attention and most objectives, and generation with the trained decoders (reference_cases.py). Each
command runs in a fork of a process that has imported the libraries, so Windows is not supported.
Cases that need the public datasets read them from TRIFOLD_DATA and are skipped without it. Exit
code 0: every value is equal.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

from reference_cases import GENERATION, ON_DATASETS, PROMPTS, TRAINING, write_files

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = "15829777"


def main() -> int:
    """Run the cases in both trees; 1 if any value differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--reference", default=REFERENCE, help="a commit, or a folder with src/")
    parser.add_argument("--only", action="append", help="these cases; repeatable")
    parser.add_argument("--list", action="store_true", help="list the cases")
    parser.add_argument("--together", action="store_true", help="run both trees at once")
    chosen = parser.parse_args()
    cases = chosen.only or [*TRAINING, *GENERATION]
    if chosen.list:
        print("\n".join(cases))
        return 0
    unequal = 0
    with tempfile.TemporaryDirectory(prefix="trifold-compare-") as folder:
        sources = {"reference": sources_of(chosen.reference, Path(folder)), "here": ROOT / "src"}
        trees = [Tree(source, Path(folder) / name) for name, source in sources.items()]
        with ThreadPoolExecutor(len(trees) if chosen.together else 1) as pool:
            for case in cases:
                if case in ON_DATASETS and "TRIFOLD_DATA" not in os.environ:
                    print(f"{case:28} skipped: TRIFOLD_DATA is not set", flush=True)
                    continue
                before, after = pool.map(partial(Tree.values, case=case), trees)
                different = [
                    key for key in {**before, **after} if before.get(key) != after.get(key)
                ]
                unequal += bool(different)
                verdict = "DIFFERENT: " + ", ".join(different[:4]) if different else "equal"
                print(f"{case:28} {len(before):4} values  {verdict}", flush=True)
        for tree in trees:
            tree.server.communicate()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{unequal} cases differ; {used.ru_utime + used.ru_stime:.0f} s of processor time")
    return 1 if unequal else 0


def sources_of(reference: str, folder: Path) -> Path:
    """The folder `src` of a commit or a folder."""
    if (Path(reference) / "src").is_dir():
        return Path(reference).resolve() / "src"
    tree = folder / "tree"
    tree.mkdir()
    archive = subprocess.run(
        ["git", "archive", reference, "src"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive.stdout, check=True)
    return tree / "src"


class Tree:
    """A source tree, the folder of its runs, and the process that executes its commands there."""

    def __init__(self, source: Path, folder: Path) -> None:
        folder.mkdir()
        write_files(folder)
        self.source, self.folder = source, folder
        # One thread: the matrix products of some processors depend on how threads share them.
        single = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        path = {"PYTHONPATH": f"{source}{os.pathsep}{Path(__file__).parent}"}
        self.server = subprocess.Popen(
            [sys.executable, "-c", "import compare_reference; compare_reference.serve()"],
            cwd=folder,
            env=os.environ | single | path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def values(self, case: str) -> dict[str, str]:
        """Values by name: losses and tensors of a training run, or generated texts with scores."""
        if case in TRAINING:
            run = self.folder / "runs" / case
            if not run.exists():
                self._trifold(["train", *TRAINING[case].split(), "--out", str(run)])
            return _metrics(run) | _tensors(run)
        trained, options = GENERATION[case]
        if not (self.folder / "runs" / trained).exists():
            self.values(trained)
        words = ["generate", f"runs/{trained}", "-", "--json", "--max-new-tokens", "24"]
        outputs = self._trifold([*words, *options.split()])
        return {f"line {number}": line for number, line in enumerate(outputs.splitlines())}

    def _trifold(self, words: list[str]) -> str:
        """What a command prints when it reads the prompts."""
        (self.folder / "stdin").write_text("\n".join(PROMPTS) + "\n", encoding="utf-8")
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.write(json.dumps(words) + "\n")
        if self.server.stdout.readline() != "0\n":
            errors = (self.folder / "stderr").read_text(encoding="utf-8")
            raise SystemExit(f"{' '.join(words)} failed in {self.source}:\n{errors[-3000:]}")
        return (self.folder / "stdout").read_text(encoding="utf-8")


def serve() -> None:
    """Execute the command lines of standard input, each in a fork, and print their exit codes.

    Their own standard streams are files of the current folder.
    """
    import torch._dynamo  # noqa: F401

    import trifold.cli

    for module in walk_packages(trifold.__path__, "trifold."):
        with suppress(ImportError):  # of optional libraries
            import_module(module.name)
    with suppress(ImportError):
        import_module("numba").njit(lambda: None)()  # the first compilation imports most of numba
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os.dup2(os.open("stdin", os.O_RDONLY), 0)
            for number, name in enumerate(("stdout", "stderr"), start=1):
                os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            code = 1
            try:
                code = trifold.cli.main(json.loads(line))
            except Exception:
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(code)  # to free all objects takes longer than most commands
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _metrics(run: Path) -> dict[str, str]:
    """The losses, gradient norms and scores of validation, by name and step."""
    found = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        values = json.loads(line)
        for key, value in values.items():
            if key in ("train/loss", "train/gradient_norm") or key.startswith("valid/"):
                found[f"{key} {values['step']}"] = repr(value)
    return found


def _tensors(run: Path) -> dict[str, str]:
    """The digests of the tensors of the model and of checkpoints."""
    from safetensors import safe_open

    found = {}
    for file in sorted(
        [*run.glob("model/*.safetensors"), *run.glob("checkpoints/*/*.safetensors")]
    ):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                content = tensors.get_tensor(name).contiguous().view(-1).numpy(force=True).tobytes()
                digest = hashlib.sha256(content).hexdigest()
                found[f"{file.parent.name}/{file.name}/{name}"] = digest
    return found


if __name__ == "__main__":
    sys.exit(main())
