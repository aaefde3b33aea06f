"""The declared packages, the command that installs them, and that nothing names a stranger's."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from email.message import Message
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from trifold import installation
from trifold.data.hub_datasets import import_library
from trifold.data.images import import_pillow
from trifold.data.lines import _zstd_factory
from trifold.errors import TrifoldError
from trifold.installation import DISTRIBUTION, extras, install_command, pip_command, requirements
from trifold.look.plots import new_figure
from trifold.look.server import create_app
from trifold.train.loop import Run

ROOT = Path(__file__).resolve().parents[1]
# A command or an extra of the package `trifold`, which belongs to another project.
STRANGER = re.compile(
    r"\b(?:pip3?|pipx|uv|conda|poetry)\b[^\n`]*\b(?:install|add|run)\b[^\n`]*[ \"']trifold(?![-\w/.])"
    r"|\btrifold\[(?:" + "|".join([*extras(), "dev"]) + r")\b"
)


@pytest.fixture
def without_clone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The package as if it was installed from a wheel."""
    monkeypatch.setattr(installation, "PROJECT", tmp_path / "pyproject.toml")
    installation._declared.cache_clear()
    yield monkeypatch
    installation._declared.cache_clear()


def test_no_text_names_the_package_of_another_project() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "*.py", "*.md", "*.yaml", "*.yml", "*.ipynb", "*.ts", "Makefile"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    if not files:  # an unpacked source distribution
        files = [path for end in ("py", "md", "yaml") for path in ROOT.rglob(f"*.{end}")]
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in files
        if path != Path(__file__).resolve() and path.exists()
        for match in STRANGER.finditer(path.read_text("utf-8"))
    ]
    assert not found


@pytest.mark.parametrize(
    ("text", "is_stranger"),
    [
        ("pip install trifold", True),
        ("pip install 'trifold[web]'", True),
        ('python -m pip install -U "trifold>=0.2"', True),
        ("uv add trifold", True),
        ("pipx run trifold", True),
        ("comes with trifold[zst]", True),
        ("pip install trifold-transformer", False),
        ('pip install -e ".[web]"', False),
        ("pip install ./trifold", False),
        ("git clone URL trifold", False),
    ],
)
def test_the_search_finds_commands_of_the_other_project(text: str, is_stranger: bool) -> None:
    assert bool(STRANGER.search(text)) == is_stranger


def without_tensorboard() -> None:
    said: list[str] = []
    training = SimpleNamespace(
        session=SimpleNamespace(changed_files=[]),
        ranks=SimpleNamespace(is_first=True),
        log=SimpleNamespace(board=None),
        view=SimpleNamespace(say=said.append, begin=lambda *numbers: None),
        settings=SimpleNamespace(end=1),
        progress=SimpleNamespace(step=0),
    )
    Run.report_start(training)
    raise TrifoldError(said[0])


# Missing modules, a call that needs them -> its message.
MESSAGES: list[tuple[tuple[str, ...], Callable[[], object], str]] = [
    (
        ("datasets",),
        lambda: import_library("datasets", "hub:x:train: needs the library `datasets`"),
        "hub:x:train: needs the library `datasets`; install it with `{datasets}`",
    ),
    (("PIL",), import_pillow, "reading images needs Pillow; install it with `{vision}`"),
    (
        ("compression.zstd", "zstandard"),
        lambda: _zstd_factory("a.zst"),
        "a.zst: reading zstd needs the `zstandard` library; install it with `{zst}`, or decompress "
        "the file with `zstd -d`",
    ),
    (
        ("matplotlib.figure",),
        lambda: new_figure(1, 1),
        "pictures need matplotlib; install it with `{plots}`",
    ),
    (
        ("starlette.applications",),
        lambda: create_app([], {}, 0, ""),
        "the live page needs starlette and uvicorn; install them with `{web}`, or write a file "
        "with --out page.html",
    ),
    (
        (),
        without_tensorboard,
        "metrics are in metrics.jsonl only; for TensorBoard, install it with `{plots}`",
    ),
]


@pytest.mark.parametrize(("missing", "call", "message"), MESSAGES)
def test_a_missing_package_is_named_with_the_command(missing, call, message, monkeypatch) -> None:
    for module in missing:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(TrifoldError) as raised:
        call()
    assert raised.value.message == message.format(**{one: install_command(one) for one in extras()})


def test_the_command_names_each_package_with_its_range_and_nothing_else(monkeypatch) -> None:
    for name in ("", *extras()):
        words = install_command(name).partition(" install ")[2]
        ranges = [f'"{one.name}{one.specifier}"' for one in requirements(name)]
        assert all(re.fullmatch(r'"[\w-]+>=[\d.]+"', word) for word in words.split())
        assert ranges == words.split()[: len(ranges)]
        assert "trifold" not in words
    assert '"starlette>=1.0" "uvicorn>=' in install_command("web")


def test_the_command_installs_into_this_environment(monkeypatch, tmp_path) -> None:
    own, other = tmp_path / "my env", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
        (folder / "pip").touch(0o755)
    monkeypatch.setattr(sys, "executable", str(own / "python"))
    monkeypatch.setenv("PATH", str(own))
    assert install_command("fast").startswith('pip install "numba>=')
    monkeypatch.setenv("PATH", str(other))
    assert install_command("fast").startswith(f"'{own}/python' -m pip install \"numba>=")
    assert pip_command("uninstall", "trifold") == f"'{own}/python' -m pip uninstall trifold"
    (other / "uv").touch(0o755)
    assert install_command("fast").startswith(f"'{own}/python' -m pip install")
    monkeypatch.setattr(installation, "find_spec", lambda name: None)  # uv's have no pip
    assert install_command("fast").startswith(f"uv pip install --python '{own}/python' \"numba>=")


def test_every_command_that_installs_comes_from_one_place() -> None:
    """So that it reaches the environment of the process, and names no package of a stranger."""
    sources = set((ROOT / "src").rglob("*.py")) - {Path(installation.__file__)}
    assert not [path for path in sources if "pip install" in path.read_text("utf-8")]


def wheel_metadata() -> Message:
    """What a build writes for two of the extras."""
    message = Message()
    for key, value in (
        ("Requires-Python", ">=3.11"),
        ("Provides-Extra", "web"),
        ("Provides-Extra", "zst"),
        ("Requires-Dist", "torch>=2.11"),
        ("Requires-Dist", "starlette>=1.0; extra == 'web'"),
        ("Requires-Dist", "zstandard>=0.23; (python_version < '3.14') and extra == 'zst'"),
        ("Requires-Dist", "never>=1; (python_version < '3') and extra == 'zst'"),
    ):
        message[key] = value
    return message


def test_an_installed_wheel_is_described_by_its_metadata(without_clone) -> None:
    without_clone.setattr(metadata, "metadata", {DISTRIBUTION: wheel_metadata()}.__getitem__)
    assert extras() == ["web", "zst"]
    assert [str(one) for one in requirements()] == ["torch>=2.11"]
    assert install_command("web").endswith(' install "starlette>=1.0"')
    names = [one.name for one in requirements("zst")]
    assert names == (["zstandard"] if sys.version_info < (3, 14) else [])
    assert '"zstandard>=0.23"' in install_command("zst")
    assert installation.python_range().contains("3.11.7")


def test_an_old_clone_does_not_count_as_the_project(without_clone, tmp_path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "site"\ndependencies = []\n')
    without_clone.setattr(metadata, "metadata", {DISTRIBUTION: wheel_metadata()}.__getitem__)
    assert extras() == ["web", "zst"]
