"""What a model reads for one text or image, and what it should predict."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from trifold.data.images import ImageSettings
from trifold.errors import DataError, UsageError
from trifold.generate.stopping import Hypothesis
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.predict.model_reader import ModelReader
from trifold.settings import nearest
from trifold.text import Tokenizer


class TracedPipeline(Protocol):
    """What a trace needs of a `Pipeline`: the model, its tokenizers, and the ids and outputs of a
    text.
    """

    @property
    def model(self) -> Transformer:
        """The model whose activations are recorded."""

    @property
    def config(self) -> ModelConfig:
        """That of the model."""

    @property
    def device(self) -> torch.device:
        """That of the weights."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the input, if there is one."""

    @property
    def pictures(self) -> ImageSettings | None:
        """Preprocessing of images, if the model reads them."""

    @property
    def reader(self) -> Tokenizer:
        """The tokenizer of the input. Raises UsageError if there is none."""

    @property
    def writer(self) -> Tokenizer:
        """The tokenizer of the output. Raises UsageError if there is none."""

    def read(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, with special tokens."""

    def hypotheses(self, texts: Sequence[str]) -> list[list[Hypothesis]]:
        """All outputs of each text."""


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


def read_example(pipeline: TracedPipeline, text: Any, target: str | None = None) -> Example:
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


def read_ids(pipeline: TracedPipeline, text: str, target: str | None) -> tuple[list[int], ...]:
    """Ids that the encoder reads, that the decoder reads, that follow each of the latter, and of
    the output.
    """
    shape = pipeline.config.shape
    writer = pipeline.writer
    if shape == "encoder":
        if target is not None:
            raise UsageError("an encoder generates no text: leave the target out")
        return pipeline.read([text])[0], [], [], []
    if target is None:
        best = pipeline.hypotheses([text])[0][0]
        output = best.tokens
        ended = best.finish_reason == "stop"
    else:
        output = encode_target(pipeline, target)
        ended = True
    source = pipeline.read([text])[0]
    written = [*output, writer.required("eos")] if ended else output
    if shape == "decoder":
        whole = [*source, *written]
        return [], whole[:-1], whole[1:], output
    return source, [pipeline.config.start_id, *written[:-1]], written, output


def encode_target(pipeline: TracedPipeline, target: str) -> list[int]:
    """The ids of an output, whose special tokens are parsed as those of the text are."""
    parses = pipeline.writer.parses_special
    return pipeline.writer.encode([target], special_in_text=parses)[0]


def name_queries(read: Sequence[str], written: Sequence[str] = ()) -> list[str]:
    """The names of the rows of cross-attention, everywhere: the token that the decoder reads, and
    the one that it then writes, if it writes any.
    """
    read, written = ([token if token.strip() else "␣" for token in row] for row in (read, written))
    if not written:
        return [f"reads {token}" for token in read]
    return [f"reads {token} → writes {then}" for token, then in zip(read, written, strict=True)]
