"""Classification of texts, pairs and images, and next-sentence prediction, equal those of
transformers.
"""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.hub.parity import with_large_heads
from tests.predict.references import FAMILIES, TEXTS, assert_same, both, close

import trifold
from trifold.predict.classify import next_sentence

pytestmark = pytest.mark.filterwarnings("default")

NAMES = {0: "sad", 1: "glad", 2: "so so", 3: "no idea"}
PROBLEMS = {
    "one class": {"id2label": NAMES, "problem_type": "single_label_classification"},
    "no problem type": {"id2label": NAMES},
    "multi-label": {"id2label": NAMES, "problem_type": "multi_label_classification"},
    "regression": {"num_labels": 1, "problem_type": "regression"},
    "one label": {"num_labels": 1},
    "no names": {"num_labels": 5},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_classes_equal_those_of_transformers(family, tmp_path):
    pair = both(tmp_path, family, "ForSequenceClassification", id2label=NAMES)
    theirs = pair.pipeline("text-classification")
    for got, expected in zip(
        pair.ours.classify(TEXTS, top_k=3), theirs(TEXTS, top_k=3), strict=True
    ):
        assert_same(got, expected, label="label")
    seconds = TEXTS[::-1]
    given = [{"text": a, "text_pair": b} for a, b in zip(TEXTS, seconds, strict=True)]
    found = pair.ours.classify(TEXTS, seconds, top_k=None)
    for got, one in zip(found, given, strict=True):
        assert_same(got, theirs(one, top_k=None), label="label")


@pytest.mark.parametrize("family", ["albert", "bert"])
@pytest.mark.parametrize("configured", [True, False])
def test_segments_follow_the_settings_or_the_tokenizer_class(family, configured, tmp_path):
    """transformers gives segments to BERT but not to ALBERT, unless `model_input_names` differs."""
    pair = both(tmp_path, family, "ForSequenceClassification", id2label=NAMES)
    settings = tmp_path / "tokenizer_config.json"
    values = json.loads(settings.read_text("utf-8")) if settings.is_file() else {}
    names = ["input_ids", *(["token_type_ids"] if configured else []), "attention_mask"]
    settings.write_text(json.dumps(values | {"model_input_names": names}), encoding="utf-8")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert ("token_type_ids" in tokenizer("a", "b")) == configured
    theirs = transformers.pipeline("text-classification", model=pair.theirs, tokenizer=tokenizer)
    given = {"text": TEXTS[0], "text_pair": TEXTS[1]}
    ours = trifold.load(tmp_path)
    found = ours.classify(TEXTS[0], TEXTS[1], top_k=None)
    assert_same(found, theirs(given, top_k=None), label="label")
    plain = pair.ours.classify(TEXTS[0], TEXTS[1], top_k=None)
    assert (found == plain) == (configured == (family == "bert"))


@pytest.mark.parametrize("problem", PROBLEMS)
def test_scores_follow_the_problem_type_and_labels_survive_saving(problem, tmp_path):
    options = PROBLEMS[problem]
    pair = both(tmp_path / "theirs", "bert", "ForSequenceClassification", **options)
    expected = pair.pipeline("text-classification")(TEXTS, top_k=None)
    for got, one in zip(pair.ours.classify(TEXTS, top_k=None), expected, strict=True):
        assert_same(got, one, label="label")
    pair.ours.save(tmp_path / "back")
    before, after = (
        json.loads((tmp_path / name / "config.json").read_text("utf-8"))
        for name in ("theirs", "back")
    )
    assert after.get("problem_type") == before.get("problem_type")
    reloaded, names = (
        type(pair.theirs).from_pretrained(tmp_path / "back").config,
        pair.theirs.config.id2label,
    )
    assert (reloaded.id2label, reloaded.label2id) == (
        names,
        {name: number for number, name in names.items()},
    )
    assert trifold.load(tmp_path / "back").classify(TEXTS) == pair.ours.classify(TEXTS)


@pytest.mark.parametrize(
    ("family", "suffix"), [("bert", "ForNextSentencePrediction"), ("albert", "ForPreTraining")]
)
def test_next_sentence_predictions_equal_those_of_transformers(family, suffix, tmp_path):
    pair = both(tmp_path, family, suffix)
    seconds = TEXTS[::-1]
    found = pair.ours.predict(TEXTS, seconds, task="next-sentence")
    for first, second, got in zip(TEXTS, seconds, found, strict=True):
        with torch.no_grad():
            out = pair.theirs(**pair.tokenizer(first, second, return_tensors="pt"))
        expected = (out.logits if suffix.startswith("ForNext") else out.sop_logits).softmax(-1)[
            0, 0
        ]
        assert got.follows == bool(expected > 0.5)
        assert close(got.score, expected if got.follows else 1 - expected)
    assert pair.ours.next_sentence(TEXTS, seconds) == found


def test_the_score_is_the_probability_of_the_answer():
    logits = torch.tensor([[2.0, 1.0], [1.0, 2.0], [1.0, 1.0]])
    reader = SimpleNamespace(run=lambda texts, pairs, head: logits, head=lambda name: None)
    yes, no, tie = next_sentence(reader, ["a", "b", "e"], ["c", "d", "f"])
    assert (yes.follows, no.follows) == (True, False)
    assert (tie.follows, tie.score) == (True, 0.5)  # the class of argmax, as in training
    assert close(yes.score, no.score) and close(no.score, torch.tensor(1 / (1 + math.exp(-1))))


# --- images ---------------------------------------------------------------------------------------

PROCESSORS = {
    "default": {"size": {"height": 12, "width": 12}},
    "other steps": {
        "size": {"height": 12, "width": 12}, "resample": 3, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]
    },
    "neither rescaled nor normalized": {
        "size": {"height": 12, "width": 12}, "do_rescale": False, "do_normalize": False, "resample": 0
    },
    "lanczos": {"size": {"height": 12, "width": 12}, "resample": 1, "rescale_factor": 0.01},
}  # fmt: skip


@pytest.fixture(scope="module")
def image_files(tmp_path_factory):
    image = pytest.importorskip("PIL.Image")
    folder, random = tmp_path_factory.mktemp("image_files"), np.random.default_rng(5)
    pictures = {
        "color.png": image.fromarray(random.integers(0, 256, (31, 40, 3), dtype=np.uint8)),
        "photo.jpg": image.fromarray(random.integers(0, 256, (20, 9, 3), dtype=np.uint8)),
        "gray.png": image.fromarray(random.integers(0, 256, (12, 12), dtype=np.uint8)),
        "clear.png": image.fromarray(random.integers(0, 256, (15, 18, 4), dtype=np.uint8)),
        "few.png": image.fromarray(random.integers(0, 256, (9, 9, 3), dtype=np.uint8)).quantize(16),
    }
    for name, picture in pictures.items():
        picture.save(folder / name)
    turned = image.Exif()
    turned[0x0112] = 6  # rotated by 90°
    pictures["color.png"].save(folder / "turned.jpg", exif=turned)
    return sorted(str(path) for path in folder.iterdir())


@pytest.mark.parametrize("processor", PROCESSORS)
def test_classes_of_images_equal_those_of_transformers(processor, image_files, tmp_path):
    transformers = pytest.importorskip("transformers")
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
    }
    torch.manual_seed(3)
    config = transformers.ViTConfig(**sizes, image_size=12, patch_size=4, id2label=NAMES)
    model = with_large_heads(transformers.ViTForImageClassification(config)).eval()
    prepare = ViTImageProcessorPil(**PROCESSORS[processor])
    model.save_pretrained(tmp_path)
    prepare.save_pretrained(tmp_path)
    theirs = transformers.pipeline("image-classification", model=model, image_processor=prepare)
    ours = trifold.load(tmp_path)
    for got, expected in zip(ours.classify(image_files), theirs(image_files), strict=True):
        assert_same(got, expected, label="label")
    ours.save(tmp_path / "reloaded")
    reloaded = trifold.load(tmp_path / "reloaded")
    assert reloaded.pictures == ours.pictures
    assert reloaded.classify(image_files[0]) == ours.classify(image_files[0])
