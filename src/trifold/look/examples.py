"""What a model reads for one text or image, and what it should predict."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trifold.errors import DataError, UsageError
from trifold.look.attention import encode_target, read_ids
from trifold.nn import Inputs
from trifold.pipeline import Pipeline
from trifold.predict.model_reader import ModelReader
from trifold.settings import nearest


@dataclass(frozen=True)
class Example:
    """ids: those of each side, "encoder" and "decoder"; empty for an image. labels: (T,) the id
    that each position of the last side predicts, (1,) a class; -1 where there is none.
    """

    target: str | None
    ids: dict[str, list[int]]
    labels: Tensor
    inputs: Inputs
    decoder_inputs: Inputs | None = None


def read_example(pipeline: Pipeline, text: Any, target: str | None = None) -> Example:
    """The inputs and labels of a text, or of an image: a file, a Pillow image, or a tensor
    (channels, height, width).

    target: see `Pipeline.trace`. Raises DataError for a text without tokens, and for a masked text
    and a target of different lengths; UsageError for an unknown class.
    """
    config = pipeline.config
    device = pipeline.device
    reader = ModelReader(
        pipeline.model,
        pipeline.tokenizer,
        pipeline.pictures,
        on_overflow=None,
        parse_special=True,
    )
    predicts_tokens = "lm" in config.chosen_heads
    classes = list(config.labels)
    following = [-1]
    if target is not None and "sequence" in config.chosen_heads:
        if target not in classes:
            raise UsageError(
                f"target {target!r} is not a class{nearest(target, classes, 'classes')}"
            )
        following = [classes.index(target)]
    if config.n_patches:
        inputs = (
            Inputs(pixels=text[None]) if isinstance(text, Tensor) else reader.images([text], [0])
        )
        return Example(target, {}, torch.tensor(following), inputs.to(device))
    if not isinstance(text, str):
        raise UsageError(f"text is {type(text).__name__}; give a string")
    if config.shape == "encoder":
        rows = reader.encode([text])
        ids = {"encoder": (own := rows[0].ids)}
        mask = pipeline.reader.mask_id
        if predicts_tokens:
            full = own if target is None else reader.encode([target])[0].ids
            if len(full) != len(own):
                remedy = "a mask replaces one token. Without a masked text, leave the target out"
                raise DataError(f"text has {len(own)} tokens, target {len(full)}; {remedy}")
            known = mask not in own
            pairs = zip(own, full, strict=True)
            following = [
                new if new != mask and (known or old == mask) else -1 for old, new in pairs
            ]
        return Example(target, ids, torch.tensor(following), reader.inputs(rows).to(device))
    if config.shape == "decoder":
        continuation = encode_target(pipeline, target) if target and predicts_tokens else []
        ids = {"decoder": [*pipeline.read([text])[0], *continuation]}
        following = [*ids["decoder"][1:], -1] if predicts_tokens else following
    elif predicts_tokens:
        source, given, following, _ = read_ids(pipeline, text, target)
        ids = {"encoder": source, "decoder": given}
    else:
        source = pipeline.read([text])[0]
        ids = {"encoder": source, "decoder": [config.start_id, *source[:-1]]}
    inputs, *more = (Inputs(torch.tensor([row], device=device)) for row in ids.values())
    return Example(target, ids, torch.tensor(following), inputs, *more)
