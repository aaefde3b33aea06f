"""What is released: the sdist, the wheel that is built from it, and the workflow that does it."""

from __future__ import annotations

import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
# Of the repository, but of no use outside of it.
LEFT_OUT = {".editorconfig", ".gitattributes", ".pre-commit-config.yaml"}


def tracked(*paths: str) -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", *paths], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return set(listed.stdout.splitlines())


def test_sdist_has_the_repository_and_the_wheel_the_package(tmp_path: Path) -> None:
    sdist = pytest.importorskip("hatchling.builders.sdist", reason="`make setup` installs it")
    wheel = pytest.importorskip("hatchling.builders.wheel", reason="`make setup` installs it")
    if not tracked():
        pytest.skip("not a clone")
    (packed,) = sdist.SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(packed) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(tmp_path, filter="data")
    missing = {name for name in tracked() if (ROOT / name).exists()} - names
    assert missing == {name for name in LEFT_OUT if (ROOT / name).exists()}
    unpacked = tmp_path / Path(packed).name.removesuffix(".tar.gz")
    (built,) = wheel.WheelBuilder(str(unpacked)).build(
        directory=str(tmp_path), versions=["standard"]
    )
    with zipfile.ZipFile(built) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
        licences = [name for name in archive.namelist() if ".dist-info/licenses/" in name]
    assert files >= {name.removeprefix("src/") for name in tracked("src")}
    assert {name.partition("/")[0] for name in files} == {"trifold"}
    assert "trifold/py.typed" in files and licences


def test_workflow_calls_targets_and_scripts_only() -> None:
    text = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert {"make check", "make dist", "make smoke", ".ci/run"} <= set(commands)
    for command in commands:
        words = command.split()
        assert (words[0] == "make" and set(words[1:]) <= set(targets)) or (ROOT / command).is_file()
    assert jobs["wheel"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]
    assert set(jobs["publish"]["needs"]) == set(jobs) - {"publish"}
