"""Check an installed trifold from outside its repository, as a new user would use it.

    python tools/smoke_test.py                              the trifold of this Python
    python tools/smoke_test.py --install dist/NAME.whl      in a new environment of this Python
    python tools/smoke_test.py --install dist/NAME.tar.gz   the same, built from the sources

Each step is a command or a program in an empty folder. The first that fails ends the test.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
SECONDS = 600  # of one step, on a busy machine

# What an installation has beside its modules, and that it does not come from the repository.
CONTENT = """
import sys
from importlib import metadata
from importlib.resources import files
from pathlib import Path

import trifold

package = files("trifold")
for name in ("py.typed", "look/page.html", "recipes/smoke.yaml", "data/catalog.txt"):
    assert package.joinpath(name).is_file(), f"{name} is missing"
found = metadata.distribution("trifold-transformer")
assert found.version == trifold.__version__, (found.version, trifold.__version__)
for name in ("LICENSE", "THIRD_PARTY_LICENSES.txt"):
    licences = [path for path in found.files if "licenses" in path.parts and path.name == name]
    assert licences, f"{name} is missing"
assert Path(trifold.__file__).is_relative_to(sys.prefix), f"{trifold.__file__} is not installed"
print(f"trifold-transformer {found.version} in {Path(trifold.__file__).parent}")
"""
IN_PYTHON = """
import trifold

pipe = trifold.load("run")
text = pipe.generate("a b c", max_new_tokens=4)
assert isinstance(text, str), text
print(f"{pipe.config.d_model} dimensions: {text!r}")
"""

# Arguments of Python -> what its output contains.
STEPS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("-c", CONTENT), "trifold-transformer"),
    (("-m", "trifold", "--help"), "trifold demo"),
    (("-m", "trifold", "recipes"), "smoke"),
    (("-m", "trifold", "train", "smoke", "--out", "run"), "run"),
    (("-m", "trifold", "generate", "run", "a b c", "--max-new-tokens", "4"), "\n"),
    (("-c", IN_PYTHON), "64 dimensions"),
    (("-m", "trifold", "show", "run"), "parameters"),
    (("-m", "trifold", "eval", "run", "--json"), "bleu"),
    (("-m", "trifold", "doctor"), "torch"),
)


def check(python: str, folder: Path) -> float:
    """Run every step in a folder; return the seconds. Raises SystemExit with the failed step."""
    begin = time.perf_counter()
    # A repository on the path, or a module of this folder, would hide what is not installed.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for arguments, expected in STEPS:
        start = time.perf_counter()
        name = " ".join(arguments[:5]) if arguments[0] == "-m" else "a program"
        done = subprocess.run(
            [python, *arguments],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode or expected not in done.stdout + done.stderr:
            raise SystemExit(
                f"error: {name}: exit code {done.returncode}, and the output lacks {expected!r} or "
                f"is an error:\n{done.stdout}{done.stderr}"
            )
        print(f"  {time.perf_counter() - start:5.1f} s  {name}", flush=True)
    return time.perf_counter() - begin


def install(distribution: Path, folder: Path) -> str:
    """A new environment with a wheel or an sdist and the tested versions; returns its Python."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    scripts = "Scripts" if os.name == "nt" else "bin"
    python = str(folder / scripts / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
    subprocess.run([*pip, "-c", str(CONSTRAINTS), str(distribution.resolve())], check=True)
    print(f"  {time.perf_counter() - begin:5.1f} s  install {distribution.name}", flush=True)
    return python


def main() -> None:
    """Parse the arguments, install if requested, and check."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--install", type=Path, metavar="FILE", help="a wheel or an sdist")
    options = parser.parse_args()
    print(f"smoke test: Python {sys.version.split()[0]}", flush=True)
    with tempfile.TemporaryDirectory(prefix="trifold-smoke-") as temporary:
        python = sys.executable
        if options.install is not None:
            python = install(options.install, Path(temporary) / "environment")
        empty = Path(temporary) / "empty"
        empty.mkdir()
        seconds = check(python, empty)
        report = subprocess.run(
            [python, "-c", "import torch; print(torch.__version__)"],
            cwd=empty, capture_output=True, text=True, check=True,
        )  # fmt: skip
    print(json.dumps({"python": sys.version.split()[0], "torch": report.stdout.strip(),
                      "steps": len(STEPS), "seconds": round(seconds, 1)}))  # fmt: skip


if __name__ == "__main__":
    main()
