"""What a model reads for one text or image, and what it should predict."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from trifold.data.images import ImageSettings
from trifold.errors import DataError, UsageError
from trifold.generate.stopping import Hypothesis
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.predict.fill_mask import check_mask
from trifold.predict.model_reader import ModelReader
from trifold.predict.text_features import text_features
from trifold.settings import nearest
from trifold.text import Tokenizer
from trifold.text.prompts import Prompt


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

    @property
    def prompt(self) -> Prompt | None:
        """The template that a text is put into, if the model was trained with one."""

    def read(self, texts: Sequence[str], *, prompt: str | None = None) -> list[list[int]]:
        """The ids of each text in the prompt, with special tokens."""

    def hypotheses(
        self, texts: Sequence[str], *, prompt: str | None = None
    ) -> list[list[Hypothesis]]:
        """All outputs of each text in the prompt."""


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

    def lengths(self, config: ModelConfig) -> tuple[int, int]:
        """The tokens of the encoder, or patches, and of the decoder; 0 without one."""
        source = len(self.ids.get("encoder", ()))
        if config.n_patches:
            source = config.n_patches + 1
        return source, len(self.ids.get("decoder", ()))


class TextIds(NamedTuple):
    """The ids of one text: those that the encoder reads, those that the decoder reads, the one that
    follows each of the latter, and those of the output. Empty where a model has none.
    """

    source: list[int]
    given: list[int]
    written: list[int]
    output: list[int]


def codec_of(pipeline: TracedPipeline, side: str) -> Tokenizer:
    """The tokenizer of the "encoder" or the "decoder". Raises UsageError if there is none."""
    return pipeline.reader if side == "encoder" else pipeline.writer


def read_example(pipeline: TracedPipeline, text: Any, target: str | None = None) -> Example:
    """The inputs and labels of a text, or of an image: a file, a Pillow image, or a tensor
    (channels, height, width).

    target: see `Pipeline.trace`. Raises DataError for a text without tokens, and for a masked text
    and a target of different lengths; UsageError for an unknown class.
    """
    config = pipeline.config
    class_label = _class_label(config, target)
    if config.n_patches:
        return _read_image(pipeline, text, target, class_label)
    if not isinstance(text, str):
        raise UsageError(f"text is {type(text).__name__}; give a string")
    example = _read_text(pipeline, text, target, class_label)
    features = text_features(config, [text])
    if features is None:
        return example
    inputs = replace(example.inputs, features=features.to(pipeline.device))
    return replace(example, inputs=inputs)


def _read_text(
    pipeline: TracedPipeline, text: str, target: str | None, class_label: int
) -> Example:
    """The tokens and labels of a text."""
    config = pipeline.config
    if config.shape == "encoder":
        return _read_for_encoder(pipeline, text, target, class_label)
    ids, predicted = _read_for_decoder(pipeline, text, target)
    if "lm" not in config.chosen_heads:
        predicted = [class_label]
    inputs, *more = (Inputs(torch.tensor([row], device=pipeline.device)) for row in ids.values())
    return Example(target, ids, torch.tensor(predicted), inputs, *more)


def _class_label(config: ModelConfig, target: str | None) -> int:
    """The number of the class that the target names; -1 without a target, or without classes.
    Raises UsageError for an unknown class.
    """
    if target is None or "sequence" not in config.chosen_heads:
        return -1
    classes = list(config.labels)
    if target not in classes:
        raise UsageError(f"target {target!r} is not a class{nearest(target, classes, 'classes')}")
    return classes.index(target)


def _reader_of(pipeline: TracedPipeline) -> ModelReader:
    return ModelReader(
        pipeline.model,
        pipeline.tokenizer,
        pipeline.pictures,
        on_overflow=None,
        parse_special=True,
    )


def _read_image(
    pipeline: TracedPipeline, image: Any, target: str | None, class_label: int
) -> Example:
    if isinstance(image, Tensor):
        inputs = Inputs(pixels=image[None])
    else:
        inputs = _reader_of(pipeline).images([image], [0])
    return Example(target, {}, torch.tensor([class_label]), inputs.to(pipeline.device))


def _read_for_encoder(
    pipeline: TracedPipeline, text: str, target: str | None, class_label: int
) -> Example:
    """The example of a model without a decoder. target: the text without masks, or a class."""
    reader = _reader_of(pipeline)
    rows = reader.encode([text])
    ids = rows[0].ids
    labels = [class_label]
    if "lm" in pipeline.config.chosen_heads:
        check_mask(text, pipeline.reader)
        unmasked = ids if target is None else reader.encode([target])[0].ids
        if len(unmasked) != len(ids):
            remedy = _length_remedy(text, pipeline.reader.names.get("mask_token"))
            raise DataError(f"text has {len(ids)} tokens, target {len(unmasked)}; {remedy}")
        labels = _masked_labels(ids, unmasked, pipeline.reader.mask_id)
    inputs = reader.inputs(rows).to(pipeline.device)
    return Example(target, {"encoder": ids}, torch.tensor(labels), inputs)


def _length_remedy(text: str, mask: str | None) -> str:
    """What to try if a masked text and its target have different numbers of tokens."""
    remedy = "a mask replaces one token"
    if mask is None or mask not in text:
        return f"{remedy}. Without a masked text, leave the target out"
    escaped = re.escape(mask)
    if re.search(rf"[^\s\w]{escaped}|{escaped}[^\s\w]", text):
        return f"{remedy}. Put spaces between {mask} and punctuation, also in the target"
    return f"{remedy}: a word of several tokens needs as many masks"


def _masked_labels(ids: list[int], unmasked: list[int], mask_id: int | None) -> list[int]:
    """The token that each position predicts: that of the unmasked text at each mask, or everywhere
    if no token is masked; -1 elsewhere. Both texts have the same number of tokens.
    """
    has_masks = mask_id in ids
    labels = []
    for token, label in zip(ids, unmasked, strict=True):
        is_predicted = token == mask_id or not has_masks
        labels.append(label if is_predicted and label != mask_id else -1)
    return labels


def _read_for_decoder(
    pipeline: TracedPipeline, text: str, target: str | None
) -> tuple[dict[str, list[int]], list[int]]:
    """The ids of each side of a model with a decoder, and the token that each position of the
    decoder predicts; of a model that predicts no tokens, none.
    """
    config = pipeline.config
    predicts_tokens = "lm" in config.chosen_heads
    if config.shape == "encoder-decoder" and predicts_tokens:
        ids = read_ids(pipeline, text, target)
        return {"encoder": ids.source, "decoder": ids.given}, ids.written
    tokens = pipeline.read([text], prompt=_prompt_of(pipeline))[0]
    if config.shape == "encoder-decoder":
        return {"encoder": tokens, "decoder": [config.start_id, *tokens[:-1]]}, []
    if not predicts_tokens:
        return {"decoder": tokens}, []
    if target:
        tokens = [*tokens, *encode_target(pipeline, target)]
    return {"decoder": tokens}, [*tokens[1:], -1]


def read_ids(pipeline: TracedPipeline, text: str, target: str | None) -> TextIds:
    """The ids of a text and of its target, or of the model's own output. Raises UsageError for a
    target of an encoder.
    """
    shape = pipeline.config.shape
    writer = pipeline.writer
    if shape == "encoder":
        if target is not None:
            raise UsageError("an encoder generates no text: leave the target out")
        return TextIds(pipeline.read([text])[0], [], [], [])
    if target is None:
        best = pipeline.hypotheses([text], prompt=_prompt_of(pipeline))[0][0]
        output = best.tokens
        ended = best.finish_reason == "stop"
    else:
        output = encode_target(pipeline, target)
        ended = True
    source = pipeline.read([text], prompt=_prompt_of(pipeline))[0]
    written = list(output)
    if ended:
        written.append(writer.required("eos"))
    if shape == "decoder":
        whole = [*source, *written]
        return TextIds([], whole[:-1], whole[1:], output)
    return TextIds(source, [pipeline.config.start_id, *written[:-1]], written, output)


def _prompt_of(pipeline: TracedPipeline) -> str | None:
    """The template of a trace: that of the model, or none for a prompt of two texts, which is
    traced as a whole.
    """
    prompt = pipeline.prompt
    return "{text}" if prompt is not None and prompt.is_question else None


def encode_target(pipeline: TracedPipeline, target: str) -> list[int]:
    """The ids of an output, whose special tokens are parsed as those of the text are."""
    if pipeline.prompt is not None:
        return pipeline.prompt.ids_of_target(pipeline.writer, [target])[0]
    parses = pipeline.writer.parses_special
    return pipeline.writer.encode([target], special_in_text=parses)[0]


def name_queries(read: Sequence[str], written: Sequence[str] = ()) -> list[str]:
    """The names of the rows of cross-attention, everywhere: the token that the decoder reads, and
    the one that it then writes, if it writes any.
    """
    names = [f"reads {_visible(token)}" for token in read]
    if not written:
        return names
    return [
        f"{name} → writes {_visible(token)}" for name, token in zip(names, written, strict=True)
    ]


def _visible(token: str) -> str:
    return token if token.strip() else "␣"
