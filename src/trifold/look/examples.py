"""What a model reads for one text or image, and what it should predict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trifold.errors import DataError, UsageError
from trifold.look.attention import read_ids
from trifold.nn import Inputs
from trifold.pipeline import Pipeline
from trifold.predict.model_reader import ModelReader
from trifold.settings import nearest


@dataclass(frozen=True)
class Example:
    """What a model reads. ids: those of each side, "encoder" and "decoder". labels: (T,) the id that each position of
    the last side predicts, (1,) for a class, -1 where there is none.
    """

    text: Any
    target: str | None
    inputs: Inputs
    decoder_inputs: Inputs | None = None
    ids: dict[str, list[int]] = field(default_factory=dict)
    labels: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))


def read_example(pipeline: Pipeline, text: Any, target: str | None = None) -> Example:
    """The inputs and labels of a text, or of an image: a file, a Pillow image, or a tensor (channels, height, width).

    target: the output of an encoder-decoder (default: its own), the continuation of a decoder's text, the text of a
    masked language model without masks, the class of a classifier.
    """
    config, device = pipeline.config, pipeline.device
    if config.patch_size is not None:
        reader = ModelReader(pipeline.model, pictures=pipeline.pictures)
        pixels = text[None] if isinstance(text, Tensor) else reader.images([text], [0]).pixels
        return Example(text, target, Inputs(pixels=pixels).to(device), labels=_class(pipeline, target))
    if not isinstance(text, str):
        raise UsageError(f"text is {type(text).__name__}; give a string")
    if config.shape == "encoder":
        return _read_encoder(pipeline, text, target)
    generates, labels = "lm" in config.chosen_heads, _class(pipeline, target)
    if config.shape == "decoder":
        more = pipeline.writer.encode([target])[0] if target and generates else []
        ids = {"decoder": [*pipeline.read([text])[0], *more]}
        following = [*ids["decoder"][1:], -1]
    elif generates:
        source, given, following, _ = read_ids(pipeline, text, target)
        ids = {"encoder": source, "decoder": given}
    else:
        source = pipeline.read([text])[0]
        ids, following = {"encoder": source, "decoder": [config.start_id, *source[:-1]]}, []
    inputs = [Inputs(torch.tensor([row], device=device)) for row in ids.values()]
    labels = torch.tensor(following) if generates else labels
    return Example(text, target, inputs[0], inputs[1] if len(inputs) > 1 else None, ids, labels)


def _read_encoder(pipeline: Pipeline, text: str, target: str | None) -> Example:
    reader = ModelReader(pipeline.model, pipeline.tokenizer, on_overflow=None)
    rows = reader.encode([text], special_in_text=True)
    ids, labels = rows[0].ids, _class(pipeline, target)
    if "lm" in pipeline.config.chosen_heads:
        full = ids if target is None else reader.encode([target], special_in_text=True)[0].ids
        if len(full) != len(ids):
            raise DataError(f"text has {len(ids)} tokens and target {len(full)}; a mask replaces one token")
        mask = pipeline.reader.mask_id
        labels = torch.tensor(
            [
                -1 if new == mask or (old != mask and mask in ids) else new
                for old, new in zip(ids, full, strict=True)
            ]
        )
    return Example(text, target, reader.inputs(rows).to(pipeline.device), None, {"encoder": ids}, labels)


def _class(pipeline: Pipeline, target: str | None) -> Tensor:
    """(1,) the number of a class, -1 if there is none."""
    names = pipeline.config.labels
    if target is None or "sequence" not in pipeline.config.chosen_heads:
        return torch.tensor([-1])
    if target not in names:
        raise UsageError(f"target {target!r} is not a class{nearest(target, list(names), 'classes')}")
    return torch.tensor([names.index(target)])
