"""preprocessor_config.json of all ages, in and out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trifold.data.pictures import PictureSettings
from trifold.errors import CheckpointError
from trifold.hub.pictures import FILE, read_pictures, write_pictures

OLD = {
    "do_normalize": True,
    "do_resize": True,
    "feature_extractor_type": "ViTFeatureExtractor",
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.5, 0.5, 0.5],
    "resample": 2,
    "size": 384,
}
NEW = {
    "do_convert_rgb": None,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.5, 0.4, 0.3],
    "image_processor_type": "ViTImageProcessor",
    "image_std": [0.5, 0.5, 0.5],
    "resample": 2,
    "rescale_factor": 0.00392156862745098,
    "size": {"height": 384, "width": 384},
}


def read(folder, values: dict[str, Any]) -> PictureSettings | None:
    (folder / FILE).write_text(json.dumps(values), encoding="utf-8")
    return read_pictures(folder)


def test_old_and_new_files_say_the_same(tmp_path):
    assert (
        read(tmp_path, OLD) == read(tmp_path, NEW) == PictureSettings(size=(384, 384), mean=(0.5, 0.4, 0.3))
    )


def test_a_folder_may_say_nothing(tmp_path):
    assert read_pictures(tmp_path) is None


@pytest.mark.parametrize(
    "settings",
    [
        PictureSettings(),
        PictureSettings(size=None, resample="nearest"),
        PictureSettings(size=(8, 12), scale=None, mean=None, deviation=None),
        PictureSettings(mean=(0.5,), deviation=(0.25,)),
    ],
)
def test_what_is_written_is_read_again(settings, tmp_path):
    write_pictures(tmp_path, settings)
    assert read_pictures(tmp_path) == settings


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"do_center_crop": True}, "do_center_crop: "),
        ({"size": {"shortest_edge": 224}}, "size: .* is not read; give height and width"),
        ({"size": 0}, "size: .* of 1 to 10,000 pixels"),
        ({"size": [2**40, 2**40]}, "size: "),
        ({"size": {"height": "8", "width": 8}}, "size"),
        ({"resample": 9}, "resample: 9 is not known"),
        ({"image_std": [0.0, 1.0, 1.0]}, "image_std: .* numbers above 0"),
        ({"image_std": []}, "image_std: "),
        ({"do_resise": True}, "do_resise: unknown key; did you mean 'do_resize'"),
        ({"rescale_factor": -1}, "scale: "),
    ],
)
def test_a_step_that_is_not_ours_is_refused(values, said, tmp_path):
    with pytest.raises(CheckpointError, match=said) as caught:
        read(tmp_path, NEW | values)
    assert FILE in str(caught.value)
