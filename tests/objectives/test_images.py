"""Classification of images: augmentation, runs that resume, prediction, and exchange with
transformers.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from tests.command_line import run_command
from tests.models import ONE_LAYER
from tests.objectives.common import eval_context, random_model

import trifold
from trifold.batches import BatchSettings
from trifold.data import DataSettings
from trifold.data.images import ImageSettings
from trifold.hub import save_model
from trifold.hub.images import read_image_settings, write_image_settings
from trifold.nn import ModelConfig, Transformer
from trifold.objectives.images import AugmentSettings, ImagesSettings, augment
from trifold.objectives.objective import BuildContext
from trifold.recipe import load_recipe
from trifold.text import TokenizerSettings
from trifold.text.spans import example_rng
from trifold.train import train

pillow = pytest.importorskip("PIL.Image")
SIZES = ONE_LAYER | {
    "shape": "encoder", "positions": "learned", "norm_placement": "pre", "attention_bias": True,
    "dropout": 0.0, "heads": ["sequence"], "image_size": [8, 8], "patch_size": [4, 4],
    "max_positions": 5, "scale_embeddings": False,
}  # fmt: skip
STEM = SIZES | {"stem": [4, 8, 8]}
TRAIN = {
    "steps": 6, "warmup": 1, "schedule": "constant", "learning_rate": 0.01, "validate_every": 3, "save_every": 3,
    "precision": "float32", "device": "cpu",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Twelve noisy images, dark and light."""
    folder, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(2)
    for name, low in (("dark", 0), ("light", 120)):
        (folder / name).mkdir()
        for number in range(6):
            pixels = rng.integers(low, low + 130, (8, 8, 3), dtype=np.uint8)
            pillow.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture
def recipe(folder, tmp_path):
    def write(model=STEM, **more):
        values = {
            "task": {"kind": "images", "augment": {"crop": 1, "flip": True, "erase": 2}}, "model": model,
            "data": {"train": str(folder), "valid": str(folder)}, "batch": {"rows": 4}, "train": TRAIN,
        }  # fmt: skip
        (tmp_path / "mine.yaml").write_text(json.dumps(values | more), encoding="utf-8")
        return tmp_path / "mine.yaml"

    return write


def build(folder, path, model=STEM, **task):
    data = DataSettings(train=str(folder), valid=str(folder))
    settings = ImagesSettings.parse({"augment": {"crop": 2, "flip": True, "erase": 3}} | task)
    context = BuildContext(
        data,
        TokenizerSettings(),
        ModelConfig.parse(model),
        BatchSettings(),
        1,
        path,
        print,
    )
    return settings.build(context)


def test_augmentation_shifts_mirrors_and_erases():
    images = np.arange(1, 37, dtype=np.uint8).reshape(1, 6, 6, 1).repeat(200, 0)
    rngs = [example_rng(3, row) for row in range(200)]
    plain = augment(images, AugmentSettings(), rngs)
    np.testing.assert_array_equal(plain, images)
    flipped = augment(images, AugmentSettings(flip=True), rngs)
    mirrored = (flipped == images[:, :, ::-1]).all((1, 2, 3))
    assert 70 < mirrored.sum() < 130
    np.testing.assert_array_equal(flipped[~mirrored], images[~mirrored])
    shifted = augment(images, AugmentSettings(crop=1), rngs)
    padded = np.pad(images[0], ((1, 1), (1, 1), (0, 0)), mode="edge")
    crops = [padded[y : y + 6, x : x + 6] for y in range(3) for x in range(3)]
    found = {next(n for n, crop in enumerate(crops) if (crop == image).all()) for image in shifted}
    assert found == set(range(9))
    erased = (augment(images, AugmentSettings(erase=2), rngs) == 0).sum((1, 2, 3))
    assert set(erased.tolist()) <= {1, 2, 4}
    assert (erased == 4).mean() > 0.5


def test_augmentation_depends_on_the_draw_and_the_example_only(folder, tmp_path):
    objective = build(folder, tmp_path).objective
    examples = objective.examples(build(folder, tmp_path).valid)

    def pixels(rows, draw):
        return objective.batch(examples, np.array(rows), draw=draw).inputs.pixels

    together = pixels([5, 0, 7], 9)
    for place, row in enumerate([5, 0, 7]):
        assert torch.equal(together[place], pixels([row], 9)[0])
    assert not torch.equal(together, pixels([5, 0, 7], 8))
    assert torch.equal(pixels([5], 0), pixels([5], 0))


@pytest.mark.parametrize("model", [SIZES, STEM])
def test_the_loss_of_an_image_does_not_depend_on_its_batch(folder, tmp_path, model):
    bundle = build(folder, tmp_path, model)
    objective, network = bundle.objective, random_model(bundle.config)
    examples = objective.examples(bundle.valid)
    with torch.no_grad():
        logits = objective.logits(network, objective.batch(examples, np.arange(12)))
        for row in range(12):
            alone = objective.logits(network, objective.batch(examples, np.array([row])))
            torch.testing.assert_close(alone[0], logits[row], rtol=1e-4, atol=1e-5)
    one, other = (
        objective.evaluate(network, bundle.valid, examples, eval_context(tokens))
        for tokens in (6, 100)
    )
    assert one.loss == pytest.approx(other.loss, rel=1e-5)
    assert one.scores == other.scores


def test_a_run_predicts_what_its_validation_measures(folder, recipe, tmp_path):
    run = train(recipe(), out=tmp_path / "run").folder
    files = sorted(folder.rglob("*.png"))
    found = trifold.load(run).predict([str(file) for file in files])
    correct = [
        labels[0].label == file.parent.name for labels, file in zip(found, files, strict=True)
    ]
    done = run_command("eval", str(run), str(folder), "--json")
    assert json.loads(done.out)["scores"]["accuracy"] == pytest.approx(
        100 * np.mean(correct), abs=0.01
    )
    done = run_command("predict", str(run), str(files[0]))
    assert done.out.startswith(f"{found[0][0].label} {found[0][0].score:.4f}\t")
    assert "12 rows, 12 converted" not in done.err


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(recipe, tmp_path):
    path = recipe()
    for steps in (3, 6):
        train(path, out=tmp_path / "two", resume="auto", **{"train.steps": steps})
    train(path, out=tmp_path / "one")
    one, two = (trifold.load(tmp_path / name).model.state_dict() for name in ("one", "two"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_vision_transformer_is_fine_tuned_with_its_preprocessing(folder, tmp_path):
    """And transformers computes the logits of the result."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, image_size=8, patch_size=4,
        num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    start, run = tmp_path / "vit", tmp_path / "run"
    transformers.ViTForImageClassification(config).save_pretrained(start)
    write_image_settings(
        start, ImageSettings(size=(8, 8), resample="bicubic", mean=(0.1, 0.2, 0.3))
    )
    changes = {f"train.{key}": value for key, value in TRAIN.items()} | {"data.valid": str(folder)}
    train("images", out=run, start_from=str(start), **{"data.train": str(folder)}, **changes)
    assert read_image_settings(run / "model") == read_image_settings(start)
    theirs = transformers.ViTForImageClassification.from_pretrained(run / "model").eval()
    assert theirs.config.id2label == {0: "dark", 1: "light"}
    pixels = torch.randn(3, 3, 8, 8)
    with torch.no_grad():
        ours = trifold.load(run).logits(pixels)
        torch.testing.assert_close(ours, theirs(pixels).logits, rtol=1e-4, atol=1e-5)


def test_a_model_with_a_stem_is_saved_and_loaded(tmp_path):
    model = random_model(ModelConfig.parse(STEM))
    save_model(tmp_path, model)
    write_image_settings(tmp_path, ImageSettings(size=(8, 8)))
    pixels = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        assert torch.equal(
            trifold.load(tmp_path).logits(pixels), trifold.load(tmp_path).logits(pixels)
        )
        loaded = trifold.load(tmp_path).model
    for (name, ours), theirs in zip(model.named_parameters(), loaded.parameters(), strict=True):
        assert torch.equal(ours, theirs), name


@pytest.mark.parametrize(
    ("side", "mode", "size", "patch", "channels"),
    [(28, "L", 28, 4, 1), (32, "RGB", 32, 4, 3), (31, "RGB", 32, 4, 3), (200, "P", 64, 8, 3)],
)
def test_a_bare_recipe_has_a_model_for_the_size_of_the_images(
    tmp_path, side, mode, size, patch, channels
):
    for name in "ab":
        (tmp_path / name).mkdir()
        pillow.new(mode, (side, side)).save(tmp_path / name / "1.png")
    recipe = load_recipe("images", [f"data.train={tmp_path}"])
    model = recipe.model
    assert (model.image_size, model.patch_size, model.n_channels) == (
        (size,) * 2,
        (patch,) * 2,
        channels,
    )
    assert recipe.train.steps == 100
    of_two = model.model_copy(update={"n_labels": 2})
    assert Transformer(of_two).count_parameters() < 2_000_000
