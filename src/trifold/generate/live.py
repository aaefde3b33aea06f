"""The rows still being written: what the model has read of each, and what it says comes next.

Every sentence has the same number of rows (1, or as many as there are beams), and they stand together: row r belongs
to sentence r // beams. Shapes: B sentences, R rows, S source or prompt width, V vocabulary, E model width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from trifold.errors import DataError, UsageError
from trifold.generate.config import GenerationConfig
from trifold.generate.limits import limit
from trifold.generate.processors import ABSENT, Written
from trifold.nn import Cache, Inputs, Memory, ModelConfig

Kind = Literal["growing", "static", "sliding"]
SMALL = 128  # tokens for which room is always made at once


class Model(Protocol):
    """What a search needs of a model. Logits that `lm_head` gives belong to the search, which writes into them."""

    @property
    def config(self) -> ModelConfig:
        """Shape, special tokens and max_positions."""

    @property
    def lm_head(self) -> Callable[[Tensor], Tensor] | None:
        """Hidden states (…, E) -> logits (…, V), float32."""

    def encode(self, inputs: Inputs) -> Memory:
        """Sources (B, S) -> what the decoder reads of them."""

    def decode(self, inputs: Inputs, memory: Memory | None = None, cache: Cache | None = None) -> Tensor:
        """The next tokens (R, T) -> hidden states (R, T, E); the cache advances."""

    def new_cache(self, kind: Kind = "growing", *, room: int | None = None, rollback: int = 0) -> Cache:
        """An empty cache: for at most `room` tokens, of which the last `rollback` may be taken back."""


class Live:
    """Sentences whose source (encoder-decoder) or prompt (decoder) has been read, with one row each at first.

    logits: (R, V), what comes next. hidden: (R, T, E), what the model thought of what it read last, the prompt at
    first. tokens: (R, L), see processors.Written. generated: how many of them the search wrote.
    sentences: (B,) the number each sentence had at the beginning. limits: (B,) the most tokens each may get.
    """

    def __init__(self, model: Model, inputs: Inputs, config: GenerationConfig | None = None) -> None:
        """Raises DataError for a row with no tokens or too many, UsageError for a model that cannot write."""
        about, head, config = model.config, model.lm_head, config or GenerationConfig()
        if head is None:
            raise UsageError(
                f"a model of shape {about.shape} writes no text: use an encoder-decoder or a decoder"
            )
        self.head = head
        self.decode = model.decode
        self.max_positions = about.max_positions
        lengths = _checked_lengths(inputs, about)
        inputs = _trimmed(inputs)
        self.sentences = torch.arange(len(lengths), device=lengths.device)
        self.generated = 0
        self.memory = model.encode(inputs) if about.encoder_layers else None

        prompt, prompt_lengths = inputs, lengths
        if self.memory is not None:
            prompt = Inputs(inputs.tokens.new_full((len(lengths), 1), about.start_id))
            prompt_lengths = torch.ones_like(lengths)
        self.limits = _limits(config, about, lengths)
        width = prompt.tokens.shape[1]
        room = width + int(self.limits.max())
        kind = config.cache or _suitable(about, width, room)
        rollback = max(config.num_assistant_tokens, config.prompt_lookup_num_tokens or 0)
        self.cache = model.new_cache(kind, room=room, rollback=rollback)

        # Padding stays where it is, between a short prompt and what follows it: no key there is ever attended to.
        self.attend = prompt.attend
        self.position = None if prompt.attend is None else prompt_lengths
        self.hidden = self._read_prompt(prompt, config.prefill_chunk_size or prompt.tokens.shape[1])
        last = _last_real(prompt)
        self.logits = self.head(self.hidden[torch.arange(len(last), device=last.device), last])
        self.tokens = _flushed_right(prompt, prompt_lengths)

    @property
    def written(self) -> Written:
        """What processors want to know."""
        left = self.limits - self.generated
        beams = len(self.tokens) // max(len(left), 1)
        return Written(self.tokens, self.generated, left if beams == 1 else left.repeat_interleave(beams))

    def branch(self, beams: int) -> None:
        """Every row becomes `beams` rows of the same sentence, which share its memory."""
        self.cache.expand(beams)
        self._take(self._repeated(beams))
        self.logits = self.logits.repeat_interleave(beams, dim=0)

    def copy(self, times: int) -> None:
        """Every sentence becomes `times` sentences, one after the other, numbered anew."""
        rows = self._repeated(times)
        self.keep(rows, rows)
        self.logits = self.logits.repeat_interleave(times, dim=0)
        self.sentences = torch.arange(len(rows), device=rows.device)

    def texts(self, rows: Tensor) -> Tensor:
        """(n,) rows -> (n, generated) their tokens, without prompt or start."""
        return self.tokens[rows, self.tokens.shape[1] - self.generated :]

    def go_on(self, tokens: Tensor, rows: Tensor | None = None, staying: Tensor | None = None) -> None:
        """Row i goes on from what was row rows[i] (None: itself), writing tokens[i]; then the model is asked again.

        staying: the sentences (positions in the present order) whose rows these are; None: all of them.
        """
        if staying is not None:
            assert rows is not None, "who leaves is said by rows and sentences together"
            self.keep(rows, staying)
        elif rows is not None:
            self.cache.reorder(rows)
            self._take(rows)
        self.write(tokens)
        self.hidden = self.read(tokens[:, None])
        self.logits = self.head(self.hidden[:, -1])

    def write(self, tokens: Tensor) -> None:
        """Row i gets tokens[i], which the model has not read yet."""
        self.tokens = torch.cat([self.tokens, tokens[:, None]], dim=1)
        self.generated += 1

    def read(self, tokens: Tensor) -> Tensor:
        """The next tokens (R, T) of every row -> hidden states (R, T, E); the cache advances."""
        positions = None
        if self.attend is not None and self.position is not None:
            self.attend = torch.cat([self.attend, self.attend.new_ones(tokens.shape)], dim=1)
            positions = self.position[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
            self.position = self.position + tokens.shape[1]
        return self.decode(Inputs(tokens, self.attend, positions), self.memory, self.cache)

    def unread(self, count: int) -> None:
        """The model forgets the last `count` tokens that it read, of rows that have no padding."""
        assert self.attend is None, "rows of a padded batch would forget different tokens"
        self.cache.truncate(self.cache.length - count)

    def _read_prompt(self, prompt: Inputs, chunk: int) -> Tensor:
        """-> hidden states (B, S, E), read in portions of at most `chunk` tokens."""
        tokens, attend = prompt.tokens, prompt.attend
        positions = None if attend is None else (attend.long().cumsum(1) - 1).clamp(min=0)
        parts = []
        for start in range(0, tokens.shape[1], chunk):
            here = slice(start, start + chunk)
            part = Inputs(
                tokens[:, here],
                None if attend is None else attend[:, : start + chunk],
                None if positions is None else positions[:, here],
            )
            parts.append(self.decode(part, self.memory, self.cache))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _repeated(self, times: int) -> Tensor:
        return torch.arange(len(self.sentences), device=self.sentences.device).repeat_interleave(times)

    def keep(self, rows: Tensor, sentences: Tensor) -> None:
        """Only these rows, which are those of these sentences (positions in the present order)."""
        self.cache.select(rows, sentences)
        self.memory = None if self.memory is None else self.memory.select(sentences)
        self.sentences, self.limits = self.sentences[sentences], self.limits[sentences]
        self._take(rows)

    def _take(self, rows: Tensor) -> None:
        self.tokens = self.tokens[rows]
        self.attend = None if self.attend is None else self.attend[rows]
        self.position = None if self.position is None else self.position[rows]


def _suitable(model: ModelConfig, width: int, room: int) -> Kind:
    """Sliding where a window is shorter than the text may become; static where that is no more room than a growing one
    takes for the prompt alone; growing where a text may be short although it could be long.
    """
    if any((model.window(layer) or room) < room for layer in range(model.decoder_layers)):
        return "sliding"
    return "static" if room <= max(SMALL, 2 * width) else "growing"


def _limits(config: GenerationConfig, model: ModelConfig, lengths: Tensor) -> Tensor:
    """(B,) the most tokens each row may get; lengths (B,) of its source or prompt."""
    limits = [limit(config, model, length).tokens for length in lengths.tolist()]
    for row, most in enumerate(limits):
        if most < 1:
            assert config.max_length is not None
            raise DataError(
                f"row {row} is a prompt of {config.max_length - most} tokens, and max_length "
                f"{config.max_length} counts them too: raise it, or give max_new_tokens instead"
            )
    return lengths.new_tensor(limits)


def _checked_lengths(inputs: Inputs, config: ModelConfig) -> Tensor:
    """(B,) real tokens of each row."""
    rows, width = inputs.tokens.shape
    attend = inputs.attend
    lengths = torch.full((rows,), width, device=inputs.tokens.device) if attend is None else attend.sum(1)
    what = "source" if config.encoder_layers else "prompt"
    for row, length in enumerate(lengths.tolist()):
        if length == 0:
            raise DataError(f"row {row} is a {what} with zero tokens: give it text, or leave the row out")
        if length > config.max_positions:
            raise DataError(
                f"row {row} is a {what} of {length} tokens, and the model reads at most {config.max_positions} "
                "(max_positions): shorten or split the text, or use a model with more positions"
            )
    return lengths


def _trimmed(inputs: Inputs) -> Inputs:
    """Without the columns at the end where every row is padding."""
    if inputs.attend is None:
        return inputs
    width = int(inputs.attend.any(0).nonzero().max()) + 1
    attend = inputs.attend[:, :width]
    positions = None if inputs.positions is None else inputs.positions[:, :width]
    return Inputs(inputs.tokens[:, :width], None if bool(attend.all()) else attend, positions)


def _last_real(inputs: Inputs) -> Tensor:
    """(B,) column of each row's last real token."""
    rows, width = inputs.tokens.shape
    columns = torch.arange(width, device=inputs.tokens.device).expand(rows, width)
    return columns[:, -1] if inputs.attend is None else (columns * inputs.attend).amax(1)


def _flushed_right(inputs: Inputs, lengths: Tensor) -> Tensor:
    """(B, S) tokens moved to the end of their rows, ABSENT before them, so that what follows stands next to them."""
    if inputs.attend is None:
        return inputs.tokens
    width = inputs.tokens.shape[1]
    moved = torch.full_like(inputs.tokens, ABSENT)
    moved[torch.arange(width, device=lengths.device) >= width - lengths[:, None]] = inputs.tokens[
        inputs.attend
    ]
    return moved


@contextmanager
def at_rest(model: Any) -> Iterator[None]:
    """Without dropout, whatever the model was doing before."""
    training = getattr(model, "training", False)
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()
