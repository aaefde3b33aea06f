"""Classification of images by a Vision Transformer (Dosovitskiy et al. 2021).

rows -> example    an image (height, width, channels) of bytes, and its label
example -> batch   pixels, shifted, mirrored and partly erased at random in training
loss, scores       those of classification
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from trifold.data import Rows
from trifold.data.image_sets import read_images
from trifold.data.images import ImageSettings, normalize
from trifold.folders import named
from trifold.hub.images import read_image_settings, write_image_settings
from trifold.nn import Inputs
from trifold.nn.config import Shape
from trifold.objectives.batch import Batch
from trifold.objectives.classify import Classify, ClassifySettings
from trifold.objectives.image_path import fit_images
from trifold.objectives.label_config import config_with_labels
from trifold.objectives.linear_path import Fitted, has_path
from trifold.objectives.objective import BuildContext, TaskBundle
from trifold.objectives.plans import PATH_OF_IMAGES
from trifold.settings import Settings
from trifold.text.spans import Ids, example_rng

# --- settings -> rows -----------------------------------------------------------------------------


class AugmentSettings(Settings):
    """Random changes of training images, which differ in each epoch."""

    crop: int = Field(0, ge=0, description="largest shift in pixels; the edge is repeated")
    flip: bool = Field(False, description="mirror half of the images")
    erase: int = Field(
        0, ge=0, description="side of a black square in pixels (DeVries & Taylor 2017)"
    )


class ImagesSettings(ClassifySettings):
    """Settings of image classification. `data` names folders or tar archives with a folder per
    class, or IDX files.
    """

    pipeline_tag = "image-classification"
    data_kind = "images"  # type: ignore[assignment]
    command = "predict {folder} image.png"
    shapes = ("encoder",)
    defaults = {"model": {"preset": "vit-b"}}  # noqa: RUF012

    kind: Literal["images"] = "images"  # type: ignore[assignment]
    augment: AugmentSettings = Field(
        AugmentSettings(), description="random changes of training images"
    )

    @classmethod
    def defaults_for(cls, shape: Shape | None) -> Mapping[str, Mapping[str, Any]]:
        """Those of classification, with a linear path of images."""
        defaults = super().defaults_for(shape)
        return {**defaults, "model": {**defaults["model"], **PATH_OF_IMAGES}}

    def build(self, context: BuildContext) -> TaskBundle:
        # Preprocessing of this run, or of start_from, whose folder is also that of the tokenizer.
        folders = context.folder, context.tokenizer.file or context.folder
        pictures = next(filter(None, map(read_image_settings, folders)), None)
        if pictures is None:
            pictures = ImageSettings(size=context.model.image_size, mean=(0.5,), deviation=(0.5,))
        channels = context.model.n_channels
        train, valid = context.read(
            lambda source, data, _: read_images(source, pictures, channels, data)
        )
        config = config_with_labels(context, context.model, train, valid, self.label_separator)
        objective = Images(self, None, config, None, context.report, train=train, pictures=pictures)
        objective.save(named(context.folder).path)
        bundle = TaskBundle(objective, config, train, valid)
        if not has_path(config) or context.is_trained or context.is_counted:
            return bundle
        objective.path_rows = train
        return replace(bundle, initialize=objective.initialize)


# --- examples, batches ----------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageExamples:
    """Images of one shape, and labels (N,). lengths: (N, 1) patches, and the class token."""

    images: Sequence[NDArray[np.uint8]]
    labels: NDArray[Any]
    lengths: Ids


class Images(Classify):
    """Classification of images. pictures: their preprocessing."""

    row_name = token_name = "images"
    read_name = "patches"
    packs = False

    def __init__(
        self, settings: ImagesSettings, *parts: Any, pictures: ImageSettings, **options: Any
    ) -> None:
        super().__init__(settings, *parts, **options)
        self.pictures = pictures

    def examples(self, rows: Rows, draw: int | None = None) -> Any:
        lengths = np.full((len(rows), 1), self.config.n_patches + 1)
        return ImageExamples(rows.columns["image"], self._number_labels(rows), lengths)

    def batch(self, examples: Any, rows: Ids, width: int | None = None, *, draw: int = 0) -> Batch:
        """The pixels of the given images; with a `draw`, each is changed at random."""
        images = np.stack([examples.images[row] for row in rows])
        if draw:
            images = augment(
                images, self.settings.augment, [example_rng(draw, row) for row in rows]
            )
        inputs = Inputs(pixels=self._pixels(images))
        return Batch(inputs, torch.from_numpy(examples.labels[rows]), len(rows))

    def _pixels(self, images: NDArray[np.uint8]) -> Tensor:
        """(B, C, H, W) of images (B, H, W, C), as the model reads them."""
        planes = np.moveaxis(images, -1, 0)  # (C, B, H, W)
        values = normalize(planes.reshape(len(planes), -1, images.shape[2]), self.pictures)
        return torch.from_numpy(values.reshape(planes.shape)).transpose(0, 1)

    def fit_path(self, rows: Rows, labels: NDArray[Any]) -> Fitted:
        """The linear path of the images."""
        images = rows.columns["image"]

        def pixels_of(some: Ids) -> Tensor:
            return self._pixels(np.stack([images[row] for row in some.tolist()]))

        return fit_images(self.config, pixels_of, labels, self.weights)

    @property
    def learns_alone(self) -> bool:
        return True

    def save(self, folder: Path) -> None:
        """Write the preprocessing next to a model."""
        folder.mkdir(parents=True, exist_ok=True)
        write_image_settings(folder, self.pictures)


def augment(
    images: NDArray[np.uint8], settings: AugmentSettings, rngs: Sequence[np.random.Generator]
) -> NDArray[np.uint8]:
    """Images (B, H, W, C), each changed at random by its own generator."""
    drawn = np.stack([rng.random(5) for rng in rngs])
    sources = []  # of each side: the pixel (B, side) that each pixel is taken from
    erased = []  # of each side: whether a pixel (B, side) is in the black square
    for axis, side in enumerate(images.shape[1:3]):
        shift = ((2 * settings.crop + 1) * drawn[:, axis, None]).astype(np.int64) - settings.crop
        sources.append(np.clip(np.arange(side) + shift, 0, side - 1))
        center = side * drawn[:, 2 + axis, None]
        erased.append(abs(np.arange(side) + 0.5 - center) < settings.erase / 2)
    rows, columns = sources
    if settings.flip:
        columns = np.where(drawn[:, 4:] < 0.5, columns[:, ::-1], columns)
    images = images[np.arange(len(images))[:, None, None], rows[:, :, None], columns[:, None]]
    images[erased[0][:, :, None] & erased[1][:, None]] = 0
    return images
