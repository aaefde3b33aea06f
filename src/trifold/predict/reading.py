"""Many texts, pairs of texts or pictures through a model that reads: rows of like length go together.

What is said of each comes back in the order of the input, and depends neither on padding nor on the other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from trifold.data.pictures import PictureSettings, read_picture
from trifold.errors import CheckpointError, DataError, UsageError
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.masks import padding
from trifold.nn.transformer import shifted
from trifold.predict.writing import alike
from trifold.text import Encoded, Tokenizer, report

Overflow = Literal["error", "truncate"]
Say = Callable[[Inputs], Sequence[Tensor] | Tensor]  # one tensor for each row of the inputs

PICTURES = 16  # read at once: each is a sequence of its own


@dataclass(frozen=True)
class Reading:
    """A model with what reads for it, and how it is asked.

    on_overflow: what becomes of a text with more tokens than the model has positions: an error, or it is cut and
        `on_cut` hears of it. places: what errors call the inputs. on_done: hears how many inputs more were read.
    """

    model: Transformer
    tokenizer: Tokenizer | None = None
    pictures: PictureSettings | None = None
    batch_tokens: int = 4096
    on_overflow: Overflow = "error"
    places: Sequence[str] | None = None
    on_done: Callable[[int], None] | None = None
    on_cut: Callable[[str], None] | None = None

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def reader(self) -> Tokenizer:
        """The tokenizer. Raises UsageError where there is none."""
        if self.tokenizer is None:
            raise UsageError(
                "the model's folder has no tokenizer: use logits and hidden_states, which take ids"
            )
        return self.tokenizer

    def place(self, number: int, count: int) -> str:
        """What an error calls input `number` (from 0) of `count`."""
        return f"text {number + 1} of {count}" if self.places is None else self.places[number]

    # --- rows --------------------------------------------------------------------------------------------

    def rows(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, special_in_text: bool = False
    ) -> list[Encoded]:
        """Texts, or pairs of them, as the model reads them.

        Raises DataError for one without tokens, and for one that is too long where it may not be cut.
        """
        limit, cuts, end = self.config.max_positions, self.on_overflow == "truncate", self._missing_end
        room = limit - (end is not None) if cuts else None
        rows = self.reader.rows(texts, pairs, max_length=room, special_in_text=special_in_text)
        if end is not None:
            rows = [_ended(row, end) for row in rows]
        for number, row in enumerate(rows):
            place = self.place(number, len(rows))
            for which in range(1 if pairs is None else 2):
                if which not in row.texts:
                    raise DataError(
                        f"{place} has no tokens{' on one side' if pairs else ''}: there is nothing to read"
                    )
            if len(row.ids) > limit:
                raise DataError(
                    f"{place}: {len(row.ids):,} tokens, and the model reads at most {limit:,}; "
                    "shorten the text, or cut it (on_overflow: truncate)"
                )
        if cuts and self.on_cut is not None and (said := report(rows)):
            self.on_cut(said)
        return rows

    def each(self, texts: Sequence[Any], pairs: Sequence[str] | None, say: Say) -> list[Tensor]:
        """What `say` says of each input: a text, a pair, or a picture (a file, or one of Pillow's)."""
        if self.config.patch_size is None:
            return self.through(self.rows(texts, pairs), say)
        if pairs is not None:
            raise UsageError("this model reads pictures, one at a time: leave the second texts out")
        return self._pictures(texts, say)

    # --- through the model -------------------------------------------------------------------------------

    @torch.no_grad()
    def through(self, rows: Sequence[Encoded], say: Say) -> list[Tensor]:
        """What `say` says of each row, on the CPU; of padded places, which stand at the end, too."""
        said: list[Tensor] = [torch.empty(0)] * len(rows)
        lengths = np.array([len(row.ids) for row in rows], dtype=np.int64)
        for chosen in alike(lengths, self.batch_tokens):
            self._answer(said, chosen.tolist(), self._inputs([rows[number] for number in chosen]), say)
        return said

    @torch.no_grad()
    def _pictures(self, pictures: Sequence[Any], say: Say) -> list[Tensor]:
        said: list[Tensor] = [torch.empty(0)] * len(pictures)
        for start in range(0, len(pictures), PICTURES):
            chosen = range(start, min(start + PICTURES, len(pictures)))
            self._answer(said, chosen, self._pixels([(n, pictures[n]) for n in chosen], len(pictures)), say)
        return said

    def _answer(self, said: list[Tensor], chosen: Sequence[int], inputs: Inputs, say: Say) -> None:
        was_training = self.model.training
        self.model.eval()
        try:
            found = say(inputs.to(next(self.model.parameters()).device))
        finally:
            self.model.train(was_training)
        for number, one in zip(chosen, found, strict=True):
            said[number] = one.cpu()
        if self.on_done is not None:
            self.on_done(len(chosen))

    def hidden(self, inputs: Inputs) -> Tensor:
        """The states (B, T, E) that the heads read; an encoder-decoder's second input repeats its first."""
        second = None
        if self.config.shape == "encoder-decoder":
            second = replace(shifted(inputs, self.config.start_id), attend=None)
        hidden: Tensor = self.model(inputs, second)
        return hidden

    def head(self, name: str) -> Say:
        """What this head says: its logits, or the pooler's vectors."""
        return lambda inputs: self.model.answer(inputs, heads=[name])[name]

    # --- rows -> inputs ----------------------------------------------------------------------------------

    def _inputs(self, rows: Sequence[Encoded]) -> Inputs:
        config = self.config
        lengths = torch.tensor([len(row.ids) for row in rows])
        width = int(lengths.max())
        tokens = torch.tensor([_filled(row.ids, width, config.pad_id) for row in rows])
        if int(tokens.max()) >= config.vocab_size:
            raise CheckpointError(
                f"the tokenizer gives the id {int(tokens.max())}, and the model has {config.vocab_size:,} tokens: "
                "they do not belong together"
            )
        tells = (config.n_token_types > 1 or config.segment_offsets) and self.reader.tells_segments
        segments = torch.tensor([_filled(row.types, width, 0) for row in rows]) if tells else None
        return Inputs(tokens, padding(lengths, width), segments=segments)

    @property
    def _missing_end(self) -> int | None:
        """The end that an encoder-decoder reads behind every text, where its tokenizer does not put it there."""
        end = self.config.eos_id
        if self.config.shape != "encoder-decoder" or self.reader.rows([""])[0].ids[-1:] == [end]:
            return None
        return end

    def _pixels(self, pictures: Sequence[tuple[int, Any]], count: int) -> Inputs:
        config, settings = self.config, self.pictures
        if settings is None:
            raise UsageError(
                "the model's folder has no preprocessor_config.json, which says how pictures become numbers: "
                "copy the one that came with the model, or use logits, which takes pixels"
            )
        if settings.fixed_size not in (None, config.image_size):
            key = "size" if settings.crop is None else "crop_size"
            raise CheckpointError(
                f"preprocessor_config.json: {key}: pictures become {settings.fixed_size} pixels high and wide, "
                f"and the model reads {config.image_size}"
            )
        read = []
        for number, picture in pictures:
            place = self.place(number, count) if self.places is not None else str(picture)
            name = place if place == str(picture) else f"{place}: {picture}"
            pixels = read_picture(picture, settings, config.n_channels, name)
            if pixels.shape[1:] != config.image_size:
                raise DataError(f"{name}: {pixels.shape[1:]} pixels, and the model reads {config.image_size}")
            read.append(torch.from_numpy(pixels))
        return Inputs(pixels=torch.stack(read).to(next(self.model.parameters()).dtype))


def _ended(row: Encoded, end: int) -> Encoded:
    return replace(
        row,
        ids=[*row.ids, end],
        types=[*row.types, *(row.types[-1:] or [0])],
        offsets=[*row.offsets, (0, 0)],
        texts=[*row.texts, None],
        words=[*row.words, None],
    )


def _filled(values: Sequence[int], width: int, filling: int) -> list[int]:
    return [*values, *[filling] * (width - len(values))]
