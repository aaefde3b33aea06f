"""DecodingState: the rows being generated, with their cache and the logits of the next token.

Every sentence has the same number of rows (1, or the number of beams) and they are adjacent: row r
belongs to sentence r // beams. Shapes: B sentences, R rows, S source or prompt length, V
vocabulary, E model width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from trifold.costs import Workload, check_request
from trifold.errors import DataError, TrifoldError, UsageError
from trifold.generate.processors import ABSENT, Context, LogitsProcessor
from trifold.generate.stopping import StoppingCriteria, output_limit
from trifold.generation_config import GenerationConfig
from trifold.nn import Cache, Inputs, Memory, ModelConfig, ops
from trifold.nn.masks import Mask
from trifold.nn.parts import AttentionPart, part_of

CacheKind = Literal["growing", "static", "sliding"]
SMALL = 128  # a static cache of at most this many tokens is always allocated at once

StepCallback = Callable[[int, int], None]
"""(tokens generated so far, sentences not yet finished), called after each step."""

# score = log P / divisor(n, α), where n counts the generated tokens including the end token.
LENGTH_PENALTIES: dict[str, Callable[[float, float], float]] = {
    "power": lambda n, alpha: float(n**alpha),
    "gnmt": lambda n, alpha: float(((5 + n) / 6) ** alpha),  # Wu et al. 2016, equation 14
}


class Model(Protocol):
    """The model interface of a search. Searches modify the logits that `lm_head` returns in
    place.
    """

    @property
    def config(self) -> ModelConfig:
        """Shape, special tokens and max_positions."""

    @property
    def lm_head(self) -> Callable[[Tensor], Tensor] | None:
        """Hidden states (…, E) -> logits (…, V), float32."""

    def encode(self, inputs: Inputs) -> Memory:
        """Sources (B, S) -> the memory of the decoder."""

    def decode(
        self, inputs: Inputs, memory: Memory | None = None, cache: Cache | None = None
    ) -> Tensor:
        """The next tokens (R, T) -> hidden states (R, T, E); advances the cache."""

    def new_cache(self, kind: CacheKind, *, capacity: int, rollback: int) -> Cache:
        """An empty cache for at most `capacity` tokens, of which the last `rollback` can be
        removed.
        """


class SearchHook(Protocol):
    """Sees every step of beam search, greedy decoding and sampling, and may change the logits."""

    def process(self, logits: Tensor, context: Context) -> Tensor:
        """A logits processor that runs after all others."""

    def step(
        self,
        state: DecodingState,
        rows: Tensor,
        tokens: Tensor,
        scores: Tensor,
        kept: Tensor,
        ended: Tensor,
    ) -> None:
        """The candidates (B, N) of a step, before the state advances: the row that a token
        continues, the token, and log P of the output with it, -inf if forbidden. kept: they
        continue, or are outputs. ended: no token follows. The logits of the state are those of the
        model, before all processors.
        """


class SearchSetup(NamedTuple):
    """The options and callbacks of a search.

    has_scores: whether the scores of outputs are computed, if the search does not need them;
        otherwise they are NaN.
    """

    config: GenerationConfig
    process: LogitsProcessor
    stopping: StoppingCriteria
    on_step: StepCallback = lambda generated, unfinished: None
    hook: SearchHook | None = None
    has_scores: bool = True

    def divisor(self, length: int) -> float:
        """The divisor of log P in the score of an output of `length` tokens."""
        return LENGTH_PENALTIES[self.config.length_penalty_form](length, self.config.length_penalty)


class StateContext:
    """A `processors.Context`: that of a state."""

    def __init__(self, state: DecodingState) -> None:
        self._state = state

    @property
    def tokens(self) -> Tensor:
        return self._state.tokens

    @property
    def generated(self) -> int:
        return self._state.generated

    @property
    def remaining(self) -> Tensor:
        remaining = self._state.limits - self._state.generated
        return remaining.repeat_interleave(self._rows_of_sentence)

    @property
    def sources(self) -> Tensor | None:
        sources = self._state.sources
        return None if sources is None else sources.repeat_interleave(self._rows_of_sentence, dim=0)

    @property
    def _rows_of_sentence(self) -> int:
        return len(self.tokens) // max(len(self._state.limits), 1)


class DecodingState:
    """Sentences whose source (encoder-decoder) or prompt (decoder) has been read, initially with
    one row each.

    logits: (R, V) of the next token. hidden: (R, T, E) states of the prompt, or of the tokens that
        were read after it, see `advance`.
    generated: how many tokens were generated. sources: (B, S) what the encoder read, if a processor
    needs it. sentences: (B,) original index of each remaining sentence. limits: (B,) maximum number
    of generated tokens of each.
    """

    def __init__(
        self, model: Model, inputs: Inputs, config: GenerationConfig | None = None
    ) -> None:
        """Raises DataError for an empty or too long row, UsageError for a model without a
        language-model head, and for settings that need more than the available memory.
        """
        model_config = model.config
        head = model.lm_head
        config = config or GenerationConfig()
        if head is None:
            raise UsageError(
                f"a model of shape {model_config.shape} generates no text: use an "
                "encoder-decoder or a decoder"
            )
        self.head = head
        self.model = model
        self.max_positions = model_config.decoder_side.max_positions
        lengths = _check_lengths(inputs, model_config)
        inputs = _trim(inputs)
        self.sentences = torch.arange(len(lengths), device=lengths.device)
        self.generated = 0
        self.limits = _limits(config, model_config, lengths)
        width = 1 if model_config.encoder_layers else inputs.tokens.shape[1]
        capacity = width + int(self.limits.max())
        self._check_memory = partial(check_memory, model, capacity)
        self._beams_key, candidates = _rows_of_sentence(config)
        key = "max_new_tokens" if config.max_length is None else "max_length"
        chunk = min(width, config.prefill_chunk_size or width)
        source = inputs.tokens.shape[1] if model_config.encoder_layers else 0
        first = Workload(len(lengths), source, chunk, past=width - chunk)
        self._check_memory(first, key, getattr(config, key))
        if candidates > 1:  # as `expand` does later, which may take less
            self._check_memory(self._step(candidates), self._beams_key, candidates)
        self.memory = model.encode(inputs) if model_config.encoder_layers else None

        prompt = inputs
        if self.memory is not None:
            prompt = Inputs(inputs.tokens.new_full((len(lengths), 1), model_config.start_id))
        kind = config.cache or _choose_cache(model_config, width, capacity)
        rollback = max(config.num_assistant_tokens, config.prompt_lookup_num_tokens or 0)
        self.cache = model.new_cache(kind, capacity=capacity, rollback=rollback)

        # Padding remains between a short prompt and its output; its keys are masked.
        self.attend = prompt.attend
        self.sources: Tensor | None = None
        if self.memory is not None and config.encoder_no_repeat_ngram_size is not None:
            self.sources = _without_padding(inputs)
        self.hidden = self._read_prompt(prompt, config.prefill_chunk_size or prompt.tokens.shape[1])
        last = prompt.last_columns()
        self.logits = self.head(self.hidden[torch.arange(len(last), device=last.device), last])
        # The columns of `tokens`.
        self._columns = [_right_align(prompt, lengths)]

    @property
    def tokens(self) -> Tensor:
        """(R, L), see processors.Context."""
        if len(self._columns) > 1:
            self._columns = [torch.cat(self._columns, dim=1)]
        return self._columns[0]

    @property
    def context(self) -> Context:
        """The input of logits processors, until the state changes."""
        return StateContext(self)

    def expand(self, beams: int) -> None:
        """Repeat every row `beams` times within its sentence; the copies share their memory."""
        self._check_memory(self._step(beams), self._beams_key, beams)
        self.cache.expand(beams)
        self._select_rows(self._repeat(beams))
        self.logits = self.logits.repeat_interleave(beams, dim=0)

    def copy(self, times: int) -> None:
        """Repeat every sentence `times` times and renumber the sentences."""
        self._check_memory(self._step(times), "num_return_sequences", times)
        rows = self._repeat(times)
        self.select(rows, rows)
        self.logits = self.logits.repeat_interleave(times, dim=0)
        self.sentences = torch.arange(len(rows), device=rows.device)

    def generated_tokens(self, rows: Tensor) -> Tensor:
        """(n,) rows -> (n, generated) their tokens, without prompt or start token."""
        return self.tokens[rows, self.tokens.shape[1] - self.generated :]

    def advance(
        self,
        tokens: Tensor,
        rows: Tensor | None = None,
        sentences: Tensor | None = None,
        *,
        reads_states: bool = False,
    ) -> None:
        """Row i continues rows[i] (default: itself) with tokens[i]; compute the next logits.

        sentences: positions of the sentences that continue (default: all). reads_states: whether
            `hidden` is set.
        """
        if sentences is not None and len(sentences) < len(self.sentences):
            assert rows is not None, "sentences cannot be removed without naming rows"
            self.select(rows, sentences)
        elif rows is not None:
            self.cache.reorder(rows)
            self._select_rows(rows)
        self.append(tokens)
        if reads_states:
            self.hidden = self.read(tokens[:, None])
            self.logits = self.head(self.hidden[:, -1])
            return
        if self.attend is not None:
            self._extend_attend(tokens[:, None])
        self.logits = ops.next_logits(
            self.model, self.head, tokens, self.attend, self.memory, self.cache
        )

    def append(self, tokens: Tensor) -> None:
        """Append tokens[i] to row i without reading it."""
        self._columns.append(tokens.unsqueeze(1))
        self.generated += 1

    def read(self, tokens: Tensor) -> Tensor:
        """The next tokens (R, T) of every row -> hidden states (R, T, E); advances the cache."""
        self._extend_attend(tokens)
        return self.model.decode(Inputs(tokens, self.attend), self.memory, self.cache)

    def _extend_attend(self, tokens: Tensor) -> None:
        """All new tokens (R, T) are real."""
        if self.attend is not None:
            self.attend = torch.cat([self.attend, self.attend.new_ones(tokens.shape)], dim=1)

    def is_prefix(self, tokens: Tensor) -> bool:
        """Whether the state of the first of the next tokens (1, T) does not depend on the others.
        It does where they change the angles of rotary positions.
        """
        if self.cache.inputs is None:
            return True
        mask = Mask(causal=True, offset=self.cache.length)
        return self.cache.inputs.is_prefix(mask, tokens.shape[1], tokens.device)

    def rollback(self, count: int) -> None:
        """Remove the last `count` tokens from the cache; the rows must have no padding."""
        assert self.attend is None, "rows of a padded batch would lose different tokens"
        self.cache.truncate(self.cache.length - count)

    def select(self, rows: Tensor, sentences: Tensor) -> None:
        """Keep these rows, which belong to these sentences (positions in the current order)."""
        self.cache.select(rows, sentences)
        self.memory = None if self.memory is None else self.memory.select(sentences)
        self.sentences = self.sentences[sentences]
        self.limits = self.limits[sentences]
        self.sources = None if self.sources is None else self.sources[sentences]
        self._select_rows(rows)

    def _read_prompt(self, prompt: Inputs, chunk: int) -> Tensor:
        """-> hidden states (B, S, E), computed in chunks of at most `chunk` tokens."""
        hidden = []
        for start in range(0, prompt.tokens.shape[1], chunk):
            end = start + chunk
            attend = None if prompt.attend is None else prompt.attend[:, :end]
            part = Inputs(prompt.tokens[:, start:end], attend)
            hidden.append(self.model.decode(part, self.memory, self.cache))
        return hidden[0] if len(hidden) == 1 else torch.cat(hidden, dim=1)

    def _step(self, outputs: int) -> Workload:
        """A step with so many outputs of each sentence, whose source has been read."""
        return Workload(len(self.sentences), 0, 1, outputs=outputs)

    def _repeat(self, times: int) -> Tensor:
        return torch.arange(len(self.sentences), device=self.sentences.device).repeat_interleave(
            times
        )

    def _select_rows(self, rows: Tensor) -> None:
        self._columns = [self.tokens[rows]]
        self.attend = None if self.attend is None else self.attend[rows]


def _choose_cache(model: ModelConfig, width: int, capacity: int) -> CacheKind:
    """Sliding if a window is shorter than `capacity`, the longest possible text; static if
    `capacity` is small or at most twice the prompt; growing otherwise, since most texts end long
    before their limit.
    """
    side = model.decoder_side
    window = part_of(AttentionPart, side).window
    if any((window(side, layer) or capacity) < capacity for layer in range(side.n_layers)):
        return "sliding"
    return "static" if capacity <= max(SMALL, 2 * width) else "growing"


def _limits(config: GenerationConfig, model: ModelConfig, lengths: Tensor) -> Tensor:
    """(B,) the maximum number of generated tokens; lengths (B,) of the sources or prompts."""
    limits = [output_limit(config, model, length).tokens for length in lengths.tolist()]
    for row, limit in enumerate(limits):
        if limit < 1:
            assert config.max_length is not None
            raise DataError(
                f"row {row} is a prompt of {config.max_length - limit} tokens, and max_length "
                f"{config.max_length} "
                "includes the prompt: raise it, or set max_new_tokens instead"
            )
    return lengths.new_tensor(limits)


def _check_lengths(inputs: Inputs, config: ModelConfig) -> Tensor:
    """(B,) number of real tokens of each row."""
    rows, width = inputs.tokens.shape
    attend = inputs.attend
    lengths = (
        torch.full((rows,), width, device=inputs.tokens.device) if attend is None else attend.sum(1)
    )
    what = "source" if config.encoder_layers else "prompt"
    for row, length in enumerate(lengths.tolist()):
        if length == 0:
            raise DataError(
                f"row {row} is a {what} with zero tokens: add text, or leave the row out"
            )
        if length > config.max_positions:
            raise DataError(
                f"row {row} is a {what} of {length} tokens, and the model reads at most "
                f"{config.max_positions} "
                "(max_positions): shorten or split the text, or use a model with more positions"
            )
    return lengths


def _trim(inputs: Inputs) -> Inputs:
    """Without the columns at the end where every row is padding."""
    if inputs.attend is None:
        return inputs
    width = int(inputs.attend.any(0).nonzero().max()) + 1
    attend = inputs.attend[:, :width]
    positions = None if inputs.positions is None else inputs.positions[:, :width]
    return Inputs(inputs.tokens[:, :width], None if bool(attend.all()) else attend, positions)


def _right_align(inputs: Inputs, lengths: Tensor) -> Tensor:
    """(B, S) tokens moved to the end of their rows, ABSENT before them, so that generated tokens
    are adjacent.
    """
    if inputs.attend is None:
        return inputs.tokens
    width = inputs.tokens.shape[1]
    moved = torch.full_like(inputs.tokens, ABSENT)
    real = torch.arange(width, device=lengths.device) >= width - lengths[:, None]
    moved[real] = inputs.tokens[inputs.attend]
    return moved


def _without_padding(inputs: Inputs) -> Tensor:
    """(B, S) tokens, ABSENT in place of padding."""
    if inputs.attend is None:
        return inputs.tokens
    return inputs.tokens.masked_fill(~inputs.attend, ABSENT)


def check_memory(model: Model, tokens: int, work: Workload, key: str, value: object) -> None:
    """Raises UsageError, naming the setting, if a search for outputs of at most `tokens` tokens,
    each with its prompt, exceeds the available memory.
    """
    if not isinstance(model, nn.Module):  # of a test
        return
    rows = work.rows * work.outputs
    what = f"{rows:,} rows of up to {tokens:,} tokens"
    remedy = "read shorter or fewer texts"
    if work.source > tokens:
        what = f"{rows:,} sources of {work.source:,} tokens"
    elif value is not None:
        what = f"{key} {value}: {what}"
        remedy = f"lower it, or {remedy}"
    check_request(model, work._replace(scored=1, cached=tokens), what, remedy)


def refuse_nan(scores: Tensor) -> None:
    """Raises TrifoldError if a score is NaN."""
    if bool(scores.isnan().any()):
        refuse_non_finite(scores, "NaN scores")


def refuse_non_finite(values: Tensor, what: str = "NaN or infinity") -> None:
    """Raises TrifoldError if a value is NaN or infinite."""
    if not bool(values.isfinite().all()):
        reason = "its weights are damaged, or its training diverged; use an earlier checkpoint"
        raise TrifoldError(f"the model computes {what}: {reason}")


@contextmanager
def eval_mode(model: Any) -> Iterator[None]:
    """Disable dropout, and restore the mode of the model afterwards."""
    training = getattr(model, "training", False)
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()


def _rows_of_sentence(config: GenerationConfig) -> tuple[str, int]:
    """The key that sets how many rows a search needs for each sentence, and their number."""
    if config.penalty_alpha is None:
        return "num_beams", config.num_beams
    return "top_k", config.top_k or 1
