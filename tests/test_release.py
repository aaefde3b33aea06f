"""What is released: the sdist, the wheel that is built from it, and the workflow that does it."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
NOTICES = ROOT / "src" / "trifold" / "look" / "THIRD_PARTY_LICENSES.txt"
# What each licence grants, as its text says it.
GRANTS = {
    "ISC": "Permission to use, copy, modify, and/or distribute",
    "MIT": "Permission is hereby granted, free of charge",
}
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
        (found,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(found).decode()
        licences = {
            name.partition("/licenses/")[2] for name in archive.namelist() if "/licenses/" in name
        }
    assert files >= {name.removeprefix("src/") for name in tracked("src")}
    assert {name.partition("/")[0] for name in files} == {"trifold"}
    assert "trifold/py.typed" in files
    assert metadata == (unpacked / "PKG-INFO").read_text("utf-8")
    assert metadata.startswith("Metadata-Version: 2.4\nName: trifold-transformer\n")
    assert licences == {"LICENSE", NOTICES.relative_to(ROOT).as_posix()}


def test_every_package_in_the_page_of_look_has_its_licence_there() -> None:
    """Those in the lock file that are not for development; the build refuses others."""
    lock = json.loads((ROOT / "web/package-lock.json").read_text("utf-8"))["packages"]
    expected = {
        (path.removeprefix("node_modules/"), entry["version"], entry["license"])
        for path, entry in lock.items()
        if path and not entry.get("dev") and not entry.get("optional")
    }
    text = NOTICES.read_text("utf-8")
    found = set()
    for section in re.split("^=+\n", text, flags=re.MULTILINE)[1:]:
        heads, _, content = section.partition("\n\n")
        for head in heads.splitlines():
            package, version, licence = head.replace(",", "").split()
            assert GRANTS[licence] in " ".join(content.split()) and "opyright" in content, head
            found.add((package, version, licence))
    assert found == expected
    assert f"<!--\n{text}-->" in (NOTICES.parent / "page.html").read_text("utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    licences = {"Apache-2.0", *(licence for *_, licence in expected)}
    assert set(project["license"].split(" AND ")) == licences


def test_workflow_calls_targets_and_scripts_only() -> None:
    jobs = yaml.safe_load(WORKFLOW.read_text("utf-8"))["jobs"]
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert {"make check", "make docs", "make dist", "make smoke", ".ci/run"} == set(commands)
    for command in commands:
        words = command.split()
        assert (words[0] == "make" and set(words[1:]) <= set(targets)) or (ROOT / command).is_file()
    # What is published has passed every other job, and nothing of the repository runs beside it.
    assert set(jobs["publish"]["needs"]) == set(jobs) - {"publish"}
    assert not [step for step in jobs["publish"]["steps"] if "run" in step]


def test_workflow_runs_every_python_that_the_metadata_name() -> None:
    jobs = yaml.safe_load(WORKFLOW.read_text("utf-8"))["jobs"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert jobs["smoke"]["strategy"]["matrix"]["python"] == named
    assert project["requires-python"] == f">={named[0]}"
    assert set(jobs["test"]["strategy"]["matrix"]["python"]) <= set(named)


def test_workflow_pins_actions_to_commits() -> None:
    uses = re.findall(r"uses: (.*)", WORKFLOW.read_text("utf-8"))
    assert uses
    releases = {}
    for use in uses:
        pinned = re.fullmatch(r"([\w./-]+)@([0-9a-f]{40}) # (v[\d.]+)", use)
        assert pinned, f"{use}: not a commit with its release"
        assert releases.setdefault(pinned[1], pinned.groups()) == pinned.groups()
