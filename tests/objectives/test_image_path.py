"""The linear path of images: its numbers, its fit, and that training, evaluation and prediction see
the same images.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from tests.train.runs import RecordingView, lines_of

import trifold
from trifold.costs import count_parameters
from trifold.errors import SettingsError
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.patch_filters import (
    NOISE,
    NUMBERS,
    THRESHOLD,
    image_numbers,
    normalized_patches,
)
from trifold.objectives.image_path import (
    SMOOTHING,
    STRENGTH,
    draw_filters,
    draw_patches,
    fit_images,
)
from trifold.recipe import load_recipe
from trifold.train import train

FILTERS = 5
SIZES = {
    "shape": "encoder", "d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 16, "n_channels": 3, "n_labels": 3,
    "image_size": (12, 12), "patch_size": (4, 4), "max_positions": 10, "heads": ("sequence",), "dropout": 0.0,
    "linear_path": {"words": 0, "characters": 0, "filters": FILTERS},
}  # fmt: skip


def config_of(**values: Any) -> ModelConfig:
    return ModelConfig.parse(SIZES | values)


def random_images(count: int, *shape: int) -> torch.Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(1)).clamp(-1, 1)


@pytest.mark.parametrize(("height", "width", "side"), [(12, 9, 6), (4, 8, 4), (64, 12, 6)])
def test_the_numbers_are_means_over_the_patches_of_each_ninth(height, width, side):
    images = random_images(70, 3, height, width)
    filters, offsets = torch.randn(FILTERS, 3, side, side), torch.randn(FILTERS)
    found = image_numbers(images, filters, offsets)
    assert found.shape == (70, NUMBERS * FILTERS)
    image = images[66].double()
    if height == 64:  # pairs of rows are averaged
        image = image.view(3, 32, 2, width).mean(2)
    rows, columns = image.shape[1] - side + 1, width - side + 1
    r = np.zeros((FILTERS, rows, columns))
    for row in range(rows):
        for column in range(columns):
            patch = image[:, row : row + side, column : column + side]
            patch = (patch - patch.mean()) / (patch.var(correction=0) + NOISE).sqrt()
            r[:, row, column] = (filters.double() * patch).sum((1, 2, 3)) - offsets.double()
    expected = []
    for sign in (1, -1):
        above = np.maximum(0, sign * r - THRESHOLD)
        for number in range(FILTERS):
            for i in range(3):
                for j in range(3):
                    rows_of = slice(i * rows // 3, -(-(i + 1) * rows // 3))
                    columns_of = slice(j * columns // 3, -(-(j + 1) * columns // 3))
                    expected.append(above[number, rows_of, columns_of].mean())
    np.testing.assert_allclose(found[66], expected, rtol=1e-3, atol=1e-4)
    assert torch.allclose(image_numbers(images[66:67], filters, offsets)[0], found[66], atol=1e-5)


def test_the_fit_is_that_of_scikit_learn():
    images, config = random_images(60, 3, 12, 12), config_of()
    labels = np.arange(60) % 3
    images[labels == 1, :, :6] *= 0.2

    def pixels_of(rows: Any) -> torch.Tensor:
        return images[torch.from_numpy(rows)]

    fitted = fit_images(config, pixels_of, labels)
    again = fit_images(config, pixels_of, labels)
    assert torch.equal(fitted.weight, again.weight) and fitted.logits is None
    filters, offsets = draw_filters(config, pixels_of, 60)
    x = image_numbers(images, filters, offsets)
    z = ((x - x.mean(0)) / x.std(0, correction=0)).numpy()
    oracle = LogisticRegression(C=STRENGTH, tol=1e-10, max_iter=5000).fit(z, labels)
    logits = (x @ fitted.weight + fitted.bias).log_softmax(1)
    np.testing.assert_allclose(logits, oracle.predict_log_proba(z), atol=2e-2)
    assert (logits.argmax(1).numpy() == labels)[labels == 1].mean() > 0.8
    model = Transformer(config)
    fitted.copy_to(model)
    assert torch.equal(model.heads["sequence"].path.filters, filters)


def test_a_filter_is_a_whitened_patch():
    """So its output is largest for that patch: the length of the patch minus the mean, whitened by
    the covariance (Mahalanobis), which no other filter of length 1 exceeds.
    """
    config = config_of(linear_path={"words": 0, "characters": 0, "filters": 40})
    images = (random_images(50, 3, 12, 12).cumsum(3) / 6 + torch.linspace(-1, 1, 12)).clamp(-1, 1)

    def pixels_of(rows: Any) -> torch.Tensor:
        return images[torch.from_numpy(rows)]

    filters, offsets = draw_filters(config, pixels_of, len(images))
    patches = normalized_patches(draw_patches(config, pixels_of, len(images))).double()
    outputs = patches[:40] @ filters.double().flatten(1).T - offsets
    assert torch.equal(outputs.argmax(1), torch.arange(40))
    centered = patches - patches.mean(0)
    covariance = centered.T @ centered / (len(patches) - 1)
    covariance += SMOOTHING * torch.eye(len(covariance))
    lengths = (centered[:40] * torch.linalg.solve(covariance, centered[:40].T).T).sum(1).sqrt()
    np.testing.assert_allclose(outputs.diagonal(), lengths, rtol=1e-4)


def test_patches_of_one_color_are_no_filters():
    images, config = torch.zeros(6, 3, 12, 12), config_of()
    fitted = fit_images(config, lambda rows: images[: len(rows)], np.arange(6) % 3)
    assert not fitted.of_features["filters"].any()
    assert fitted.weight.isfinite().all() and fitted.bias.isfinite().all()
    images[4] = random_images(1, 3, 12, 12)
    filters, _ = draw_filters(config, lambda rows: images[torch.from_numpy(rows)], 6)
    assert len(filters.flatten(1).unique(dim=0)) > 2  # a place may be drawn twice


def test_the_path_is_added_except_in_training():
    model, pixels = Transformer(config_of()), random_images(4, 3, 12, 12)
    assert model.count_parameters() == count_parameters(model.config)
    path = model.heads["sequence"].path
    before = model.eval().head_outputs(Inputs(pixels=pixels), heads=["sequence"])["sequence"]
    for parameter in path.parameters():
        torch.nn.init.normal_(parameter)
    added = path.scale * (
        image_numbers(pixels, path.filters, path.offsets) @ path.weight + path.bias
    )
    after = model.head_outputs(Inputs(pixels=pixels), heads=["sequence"])["sequence"]
    torch.testing.assert_close(after, before + added)
    trained = model.train().head_outputs(Inputs(pixels=pixels), heads=["sequence"])["sequence"]
    torch.testing.assert_close(trained, before)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"linear_path": {"words": 1, "characters": 0, "filters": 5}}, "excludes its other"),
        ({"linear_path": {"words": 1, "characters": 0}}, "the model reads images"),
        ({"image_size": None, "patch_size": None}, "the model reads texts"),
    ],
)
def test_a_path_of_images_needs_images(changes, message):
    with pytest.raises(SettingsError, match=message):
        config_of(**changes)


# --- runs -----------------------------------------------------------------------------------------


def write(folder: Path, seed: int, count: int = 20) -> str:
    """Images with stripes in one of two directions."""
    rng = np.random.default_rng(seed)
    for name in ("across", "down"):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            stripes = np.sin(np.arange(12) * rng.uniform(1, 2) + rng.uniform(0, 6))
            image = 128 + 60 * np.tile(stripes, (12, 1)) + rng.normal(0, 25, (12, 12))
            if name == "across":
                image = image.T
            Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(
                folder / name / f"{number}.png"
            )
    return str(folder)


@pytest.mark.slow
def test_training_evaluation_and_prediction_agree(tmp_path):
    """The run begins with the path alone; predictions of the saved model, alone and together, are
    those of its best validation.
    """
    settings: dict[str, Any] = {
        "data.train": write(tmp_path / "train", 1), "data.valid": write(tmp_path / "valid", 2),
        "train.steps": 4, "train.validate_every": 2, "train.save_every": 2, "train.samples": 0,
        "train.device": "cpu", "train.warmup": 1,
    }  # fmt: skip
    outcome = train("images", out=tmp_path / "run", view=RecordingView(), **settings)
    validations = [line for line in lines_of(tmp_path / "run") if "valid/loss" in line]
    assert [line["step"] for line in validations] == [0, 2, 4]
    alone = outcome.comparison.parts["its linear path alone"]["accuracy"]
    assert validations[0]["valid/accuracy"] == alone > 90
    model = trifold.load(tmp_path / "run")
    files = sorted(Path(settings["data.valid"]).rglob("*.png"))
    together = model.classify([str(file) for file in files])
    hits = sum(
        found[0].label == file.parent.name for found, file in zip(together, files, strict=True)
    )
    assert outcome.scores["accuracy"] == pytest.approx(100 * hits / len(files))
    (one,) = model.classify([str(files[3])])
    scores = ([each.score for each in found] for found in (one, together[3]))
    np.testing.assert_allclose(*scores, atol=1e-4)


def test_a_new_model_has_the_path_unless_a_recipe_names_its_model(tmp_path):
    data = {"data.train": write(tmp_path / "train", 1, count=2)}
    path = load_recipe("images", data).model.linear_path
    assert path is not None and path.filters > 0
    assert path.words == path.characters == 0
    assert load_recipe("images", data | {"model.linear_path": False}).model.linear_path is None
    named = load_recipe("cifar10-subset", data | {"data.test": None})
    assert named.model.linear_path is None
