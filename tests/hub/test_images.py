"""Old and new preprocessor_config.json files are read and written."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from trifold.data.images import ImageSettings, read_image
from trifold.errors import CheckpointError, DataError
from trifold.hub.images import FILE, read_image_settings, write_image_settings

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


def read(folder, values: dict[str, Any]) -> ImageSettings | None:
    (folder / FILE).write_text(json.dumps(values), encoding="utf-8")
    return read_image_settings(folder)


def test_old_and_new_files_are_equivalent(tmp_path):
    assert (
        read(tmp_path, OLD)
        == read(tmp_path, NEW)
        == ImageSettings(size=(384, 384), mean=(0.5, 0.4, 0.3))
    )


def test_a_folder_without_image_settings(tmp_path):
    assert read_image_settings(tmp_path) is None


@pytest.mark.parametrize(
    "settings",
    [
        ImageSettings(),
        ImageSettings(size=None, resample="nearest"),
        ImageSettings(size=(8, 12), scale=None, mean=None, deviation=None),
        ImageSettings(mean=(0.5,), deviation=(0.25,)),
        ImageSettings(size=None, shortest_edge=9, crop=(8, 6)),
        ImageSettings(size=None, shortest_edge=9, longest_edge=14),
        ImageSettings(size=None, crop=(4, 4)),
    ],
)
def test_written_values_are_read_back(settings, tmp_path):
    write_image_settings(tmp_path, settings)
    assert read_image_settings(tmp_path) == settings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"do_center_crop": True}, "crop_size: do_center_crop needs one"),
        (
            {"do_center_crop": True, "crop_size": {"shortest_edge": 4}},
            "crop_size: .* is not supported; give height",
        ),
        ({"do_center_crop": True, "crop_size": [0, 4]}, "crop_size: .* of 1 to 10,000 pixels"),
        ({"size": {"longest_edge": 224}}, "size: .* is not supported; give height and width"),
        ({"size": {"shortest_edge": 20_000}}, "size: .* of 1 to 10,000 pixels"),
        (
            {"size": {"shortest_edge": 224, "longest_edge": 100}},
            "longest_edge needs a shortest_edge",
        ),
        ({"do_pad": True}, "do_pad: "),
        ({"size": 0}, "size: .* of 1 to 10,000 pixels"),
        ({"size": [2**40, 2**40]}, "size: "),
        ({"size": {"height": "8", "width": 8}}, "size"),
        ({"resample": 9}, "resample: 9 is not known"),
        ({"image_std": [0.0, 1.0, 1.0]}, "image_std: .* numbers above 0"),
        ({"image_std": []}, "image_std: "),
        ({"do_resise": True}, "do_resise: unknown key; did you mean 'do_resize'"),
        ({"rescale_factor": -1}, "json: rescale_factor: "),
    ],
)
def test_an_unsupported_step_is_rejected(values, message, tmp_path):
    with pytest.raises(CheckpointError, match=message) as caught:
        read(tmp_path, NEW | values)
    assert FILE in str(caught.value)


# --- preprocessing--------------------------------------------------------------------------------------------


@st.composite
def processors(draw: st.DrawFn) -> dict[str, Any]:
    """Plausible values of a file."""
    side = st.integers(1, 30)
    edges = draw(st.tuples(side, side).map(sorted))
    size = draw(
        st.sampled_from(
            [
                *(
                    edges[0],
                    edges,
                    {"height": edges[1], "width": edges[0]},
                    {"shortest_edge": edges[0]},
                ),
                {"shortest_edge": edges[0], "longest_edge": edges[1] + 1},
            ]
        )
    )
    crops = draw(st.booleans())
    return {
        "do_resize": draw(st.booleans()),
        "size": size,
        "default_to_square": draw(st.booleans()),
        "resample": draw(st.sampled_from([0, 2, 3])),
        "do_center_crop": crops,
        "crop_size": draw(st.one_of(side, st.fixed_dictionaries({"height": side, "width": side}))),
        "do_normalize": draw(st.booleans()),
    }


@pytest.mark.slow
@given(processors(), st.integers(1, 40), st.integers(1, 40))
def test_preprocessing_equals_the_reference(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any], height: int, width: int
) -> None:
    pytest.importorskip("transformers")
    image = pytest.importorskip("PIL.Image")
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    noise = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    folder = tmp_path_factory.mktemp("processor")
    settings = read(folder, values)
    assert settings is not None
    try:
        theirs = ViTImageProcessorPil(**values)(image.fromarray(noise), return_tensors="np")[
            "pixel_values"
        ][0]
    except ValueError:  # a side of 0 pixels
        with pytest.raises(DataError, match="too narrow to be resized"):
            read_image(image.fromarray(noise), settings, 3)
        return
    got = read_image(image.fromarray(noise), settings, 3)
    np.testing.assert_allclose(got, theirs, rtol=0, atol=1e-6)
    if settings.fixed_size is not None:
        assert got.shape[1:] == settings.fixed_size
    write_image_settings(folder, settings)
    assert read_image_settings(folder) == settings
