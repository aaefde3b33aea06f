"""Check an installed trifold from outside its repository, as a new user would use it.

    python tools/smoke_test.py                      the trifold of this Python
    python tools/smoke_test.py --install FILE...    in a new environment of this Python

A file is a wheel or an sdist. Several are tested in one environment, each in place of the one
before. Each step is a command or a program in an empty folder. The first that fails ends the test.
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
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for arguments, expected in STEPS:
        start = time.perf_counter()
        name = " ".join(arguments[:5]) if arguments[0] == "-m" else "a program"
        done = subprocess.run(
            [python, *arguments],
            cwd=folder, env=variables, capture_output=True, text=True, timeout=SECONDS,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode or expected not in done.stdout + done.stderr:
            raise SystemExit(
                f"error: {name}: exit code {done.returncode}, and the output lacks {expected!r} or "
                f"is an error:\n{done.stdout}{done.stderr}"
            )
        print(f"  {time.perf_counter() - start:5.1f} s  {name}", flush=True)
    return time.perf_counter() - begin


def environment(folder: Path) -> str:
    """Make a new environment of this Python; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    scripts = "Scripts" if os.name == "nt" else "bin"
    return str(folder / scripts / "python")


def install(python: str, distribution: Path) -> None:
    """Install a wheel or an sdist with the tested versions; raises SystemExit if pip fails."""
    begin = time.perf_counter()
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    file = str(distribution.resolve())
    # The packages first: the second command replaces a trifold of the same version by this file.
    for options in (["-c", str(CONSTRAINTS)], ["--force-reinstall", "--no-deps"]):
        done = subprocess.run([*pip, "install", "--quiet", *options, file], check=False)
        if done.returncode:
            raise SystemExit(f"error: pip cannot install {distribution}, see above")
    done = subprocess.run([*pip, "check"], check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"error: pip check of {distribution}:\n{done.stdout}{done.stderr}")
    print(f"  {time.perf_counter() - begin:5.1f} s  install {distribution.name}", flush=True)


def main() -> None:
    """Parse the arguments, install if requested, and check."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--install", type=Path, metavar="FILE", nargs="+", help="wheels or sdists", default=[]
    )
    files = parser.parse_args().install
    for file in files:
        if not file.is_file():
            raise SystemExit(f"error: there is no {file}; `make dist` builds it")
    version = sys.version.split()[0]
    print(f"smoke test: Python {version}", flush=True)
    with tempfile.TemporaryDirectory(prefix="trifold-smoke-") as temporary:
        python = sys.executable
        if files:
            python = environment(Path(temporary) / "environment")
        for number, file in enumerate(files or [None]):
            if file is not None:
                install(python, file)
            empty = Path(temporary) / f"empty-{number}"
            empty.mkdir()
            seconds = check(python, empty)
            report = {"file": file and file.name, "python": version, "torch": torch_version(python)}
            report |= {"steps": len(STEPS), "seconds": round(seconds, 1)}
            print(json.dumps(report), flush=True)


def torch_version(python: str) -> str:
    """The version of PyTorch beside this Python."""
    code = "from importlib import metadata; print(metadata.version('torch'))"
    return subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


if __name__ == "__main__":
    main()
