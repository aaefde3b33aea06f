"""A run whose data has changed is continued with an error that names the file, whatever defaults
follow from the data.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.command_line import run_command

pytestmark = pytest.mark.slow

RECIPE = """
task: {kind: classify}
data: {train: [a.tsv, b.tsv], holdout: 20}
train: {steps: 2, validate_every: 2, save_every: 2, device: cpu}
model: {d_model: 16, n_heads: 2, n_layers: 1, d_ff: 32}
"""
ROWS = "".join(f"text {i} is {name}\t{name}\n" for i in range(60) for name in ("good", "bad"))
CHANGED = "b.tsv: the content has changed since the run began; restore the old data"
MISSING = "b.tsv: part of the run when it began, and now missing; restore"


def lengthen(file: Path) -> None:
    file.write_text(file.read_text("utf-8").replace("is", "is very " * 200), encoding="utf-8")


def replace_by_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


# What happens to b.tsv -> the error, and that with --data-changed.
CHANGES: dict[str, tuple[Callable[[Path], object], *tuple[str, ...]]] = {
    "deleted": (Path.unlink, MISSING, MISSING),
    "renamed": (lambda file: file.rename(file.with_name("c.tsv")), MISSING, MISSING),
    "a folder": (replace_by_folder, MISSING, "b.tsv: no table in this folder"),
    "emptied": (lambda file: file.write_bytes(b""), CHANGED, "b.tsv: the file is empty"),
    "longer": (lengthen, CHANGED),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("changed")
    (folder / "my.yaml").write_text(RECIPE, encoding="utf-8")
    for name, word in (("a.tsv", "text"), ("b.tsv", "word")):
        content = "text\tlabel\n" + ROWS.replace("text", word)
        (folder / name).write_text(content, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run_command("train", "my.yaml", "--out", "run").code == 0
    return folder


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file_is_named_and_not_a_default_that_follows_from_it(
    trained: Path, change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply, *messages = CHANGES[change]
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    apply(tmp_path / "b.tsv")
    recorded = Path("run/data.json").read_bytes()
    for options, message in zip(([], ["--data-changed"]), messages, strict=False):
        result = run_command("train", "my.yaml", "--out", "run", "--resume", "auto", *options)
        assert result.code != 0 and message in result.err and "a.tsv" not in result.err
        assert Path("run/data.json").read_bytes() == recorded, "refused data is not recorded"
        assert result.err.splitlines()[-1].startswith("error: ")


# --- labels ---------------------------------------------------------------------------------------

IMAGES = RECIPE.replace("kind: classify", "kind: images").replace("[a.tsv, b.tsv]", "images")
IMAGES = IMAGES.replace("d_ff: 32", "d_ff: 32, image_size: [8, 8], patch_size: [4, 4]")
IMAGES = IMAGES.replace("holdout: 20", "holdout: 4")


def write_class(folder: Path, name: str) -> None:
    from PIL import Image

    (folder / "images" / name).mkdir(parents=True)
    for number in range(6):
        pixels = np.random.default_rng(len(name) + number).integers(0, 255, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "images" / name / f"{number}.png")


@pytest.fixture(scope="module")
def trained_on_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("PIL")
    folder = tmp_path_factory.mktemp("images")
    (folder / "my.yaml").write_text(IMAGES, encoding="utf-8")
    for name in ("cat", "dog"):
        write_class(folder, name)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run_command("train", "my.yaml", "--out", "run").code == 0
    return folder


def rename(folder: Path) -> None:
    (folder / "images" / "dog").rename(folder / "images" / "cow")


def add_without_model(folder: Path) -> None:
    shutil.rmtree(folder / "run" / "model")
    write_class(folder, "eel")


CLASSES: dict[str, tuple[Callable[[Path], object], str]] = {
    "added": (lambda folder: write_class(folder, "eel"), "the labels are now 'cat', 'dog', 'eel', but"),
    "added, and no model": (add_without_model, "the labels are now 'cat', 'dog', 'eel', but were"),
    "renamed": (rename, "the labels are now 'cat', 'cow', but were 'cat', 'dog' when the run began"),
    "removed": (lambda folder: shutil.rmtree(folder / "images" / "dog"), "the only label is 'cat'"),
}  # fmt: skip


@pytest.mark.parametrize("change", CLASSES)
def test_changed_classes_of_images_are_named(
    trained_on_images: Path, change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply, message = CLASSES[change]
    shutil.copytree(trained_on_images, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    apply(tmp_path)
    recorded = Path("run/data.json").read_bytes()
    result = run_command("resume", "run", "--data-changed")
    assert Path("run/data.json").read_bytes() == recorded, "refused data is not recorded"
    assert (result.code, result.out) == (1, "") and message in result.err
    assert result.err.splitlines()[-1].startswith("error: ")
