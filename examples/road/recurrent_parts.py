"""Recurrent networks as parts of trifold: RNN, GRU and LSTM, alone or with attention to an encoder.

    rnn    h_t = tanh(W x_t + U h_(t−1) + b)                                          (Elman 1990)
    gru    gates choose between h_(t−1) and a new state                          (Cho et al. 2014)
    lstm   gates of a second state, which passes many steps unchanged
                                                              (Hochreiter & Schmidhuber 1997)

A decoder starts from s_0 = tanh(W_s h), where h are the last states of the encoder's two directions
(Bahdanau et al. 2015, appendix A.2.2). Its last layer may attend to all states of the encoder:

    additive         a_tj = softmax_j(v · tanh(W s_(t−1) + U h_j)),   c_t = Σ_j a_tj h_j,
                     s_t = f([x_t; c_t], s_(t−1))               (Bahdanau et al. 2015, section 3.1)
    multiplicative   a_tj = softmax_j(s_t · W h_j),   c_t as above
                                         (Luong, Pham & Manning 2015, equations 7 and 8, "general")

and returns tanh(W_c [s_t; c_t]) (Luong et al., equation 5). Additive attention looks before the
step, so that one token waits for another; multiplicative attention looks after it.

A recipe names this file in `model.parts` and chooses the network in `model.options.recurrent`.
Data, batches, loop, search and scores are those of every other model. Shapes: B batch, T tokens, S
tokens of the encoder, E width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from trifold.nn.cache import GrowingKeys, LayerCache, RunningState
from trifold.nn.config import CoreConfig
from trifold.nn.formulas import FormulaRow
from trifold.nn.hooks import HookPoint
from trifold.nn.layers import Dropout, Linear
from trifold.nn.parts import BlockPart, FeedForwardPart, UnscoredPart
from trifold.nn.walk import LayerInputs
from trifold.settings import Settings

NAME = "recurrent"  # the key in model.options
CELLS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
GATES = {"rnn": 1, "gru": 3, "lstm": 4}  # matrices of each kind in a cell

State = tuple[Tensor, ...]  # h (1, B, E), and for an LSTM its second state


class RecurrentSettings(Settings):
    """Which network it is. attention: of the decoder of an encoder-decoder, in its last layer."""

    cell: Literal["rnn", "gru", "lstm"] = "lstm"
    attention: Literal["none", "additive", "multiplicative"] = "additive"


class LastState(RunningState):
    """The states (B, 1 or 2, E) after the tokens that a decoder has read."""

    @property
    def parts(self) -> State | None:
        """As a cell takes them."""
        if self.state is None:
            return None
        return tuple(x[None].contiguous() for x in self.state.unbind(1))


class Lookup(nn.Module):
    """Attention of a decoder's states to those of the encoder, with one head. Its hook point
    `pattern` is (B, 1, T, S).
    """

    watched = False

    def __init__(self, width: int) -> None:
        super().__init__()
        self.key_proj = Linear(width, width, bias=False)
        self.pattern = HookPoint("pattern")

    def keys(self, memory: Tensor) -> Tensor:
        """h_j (B, S, E) -> U h_j, or W h_j."""
        keys: Tensor = self.key_proj(memory)
        return keys

    def scores(self, states: Tensor, keys: Tensor) -> Tensor:
        """s (B, T, E), keys (B, S, E) -> (B, T, S)."""
        raise NotImplementedError

    def weights(self, states: Tensor, keys: Tensor, real: Tensor | None) -> Tensor:
        """s (B·N, T, E) of N rows that share one of the memory, keys (B, S, E), real (B, S) ->
        a (B·N, T, S).
        """
        shared = len(states) // len(keys)
        scores = self.scores(states.reshape(len(keys), -1, states.shape[2]), keys)
        if real is not None:
            scores = scores.masked_fill(~real[:, None], -torch.inf)
        return scores.softmax(-1).reshape(len(keys) * shared, -1, keys.shape[1])


class AdditiveLookup(Lookup):
    """v · tanh(W s + U h)."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.query_proj = Linear(width, width)
        self.score_proj = Linear(width, 1, bias=False)

    def scores(self, states: Tensor, keys: Tensor) -> Tensor:
        sums = torch.tanh(self.query_proj(states)[:, :, None] + keys[:, None])
        scores: Tensor = self.score_proj(sums).squeeze(-1)
        return scores


class MultiplicativeLookup(Lookup):
    """s · W h."""

    def scores(self, states: Tensor, keys: Tensor) -> Tensor:
        return states @ keys.mT


LOOKUPS: dict[str, type[Lookup]] = {
    "additive": AdditiveLookup,
    "multiplicative": MultiplicativeLookup,
}


class RecurrentBlock(nn.Module):
    """A layer: dropout(states of the cell), without norms, residuals and feed-forward network.

    An encoder reads in both directions, each with half of the width.
    """

    wiring = "recurrent"

    def __init__(
        self, config: CoreConfig, layer: int, options: RecurrentSettings, *, crosses: bool
    ) -> None:
        super().__init__()
        width = config.d_model
        self.is_causal = config.shape == "decoder" or crosses
        looks = crosses and layer == config.n_layers - 1 and options.attention != "none"
        self.looks_first = looks and options.attention == "additive"
        directions = 1 if self.is_causal else 2
        self.cell = CELLS[options.cell](
            width * (1 + self.looks_first),
            width // directions,
            batch_first=True,
            bidirectional=directions == 2,
        )
        self.has_two_states = options.cell == "lstm"
        self.start_proj: Linear | None = None
        if crosses:
            self.start_proj = Linear(width, width)
        self.cross_attention: nn.ModuleDict | None = None
        self.context_proj: Linear | None = None
        if looks:
            # Named as in a Transformer, so that the same pictures show its weights.
            self.cross_attention = nn.ModuleDict({"sublayer": LOOKUPS[options.attention](width)})
            self.context_proj = Linear(2 * width, width, bias=False)
        self.drop = Dropout(config.dropout)

    def forward(self, x: Tensor, inputs: LayerInputs, cache: LayerCache | None = None) -> Tensor:
        """x (B, T, E) -> (B, T, E)."""
        x = inputs.mask.grid(x)
        if self.is_causal:
            out = self.decode(x, inputs, cache)
        else:
            out = self.encode(x, inputs.mask.real)
        return inputs.mask.flat(self.drop(out))

    def encode(self, x: Tensor, real: Tensor | None) -> Tensor:
        """x (B, T, E), real (B, T) -> (B, T, E); 0 at padding."""
        if real is None:
            states: Tensor = self.cell(x)[0]
            return states
        # Real tokens first: a direction that ends with padding would start with it.
        order = real.int().argsort(dim=1, descending=True, stable=True)[..., None].expand_as(x)
        rows: PackedSequence = pack_padded_sequence(
            x.gather(1, order), real.sum(1).cpu(), batch_first=True, enforce_sorted=False
        )
        states = pad_packed_sequence(self.cell(rows)[0], batch_first=True, total_length=x.shape[1])[
            0
        ]
        return torch.zeros_like(states).scatter(1, order, states)

    def decode(self, x: Tensor, inputs: LayerInputs, cache: LayerCache | None) -> Tensor:
        """x (B, T, E) -> (B, T, E), from the state of the cache or that of the memory."""
        memory, real = _memory(inputs)
        stored = None if cache is None else cache.past
        state: State | None = None
        if isinstance(stored, LastState):
            state = stored.parts
        if state is None:
            state = self.first_state(x, memory, real)
        tokens = _padded(inputs, x.shape[1], is_last=cache is None)
        keys: Tensor | None = None
        if self.cross_attention is not None:
            keys, memory = self.memory_keys(memory, cache)
        if self.looks_first:
            states, contexts, state = self._look_and_step(x, state, tokens, keys, memory, real)
        else:
            states, state = self._read(x, state, tokens)
            contexts = None
        if isinstance(stored, LastState):
            stored.add(torch.cat(state).transpose(0, 1), x.shape[1])
        if self.cross_attention is None:
            return states
        if contexts is None:
            weights = self.cross_attention["sublayer"].weights(states, keys, real)
            contexts = _mix(self.shown(weights), memory)
        assert self.context_proj is not None
        return torch.tanh(self.context_proj(torch.cat((states, contexts), -1)))

    def first_state(self, x: Tensor, memory: Tensor | None, real: Tensor | None) -> State:
        """The state (1, B, E) before the first token."""
        first = x.new_zeros(len(x), self.cell.hidden_size)
        if self.start_proj is not None:
            assert memory is not None
            ends = torch.tanh(self.start_proj(_last_states(memory, real)))
            first = ends.repeat_interleave(len(x) // len(ends), 0)
        if self.has_two_states:
            return first[None], torch.zeros_like(first)[None]
        return (first[None],)

    def memory_keys(self, memory: Tensor | None, cache: LayerCache | None) -> tuple[Tensor, Tensor]:
        """Keys and states (B, S, E) of the memory, from the cache if it has them."""
        if cache is not None and cache.memory is not None:
            return cache.memory
        assert self.cross_attention is not None and memory is not None
        keys = self.cross_attention["sublayer"].keys(memory)
        if cache is not None:
            cache.memory = keys, memory
        return keys, memory

    def shown(self, weights: Tensor) -> Tensor:
        """The weights a (B, T, S), passed through their hook point."""
        assert self.cross_attention is not None
        shown: Tensor = self.cross_attention["sublayer"].pattern(weights[:, None])
        return shown[:, 0]

    def _step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """x (B, T, E') -> states (B, T, E), and the last one."""
        if self.has_two_states:
            states, last = self.cell(x, state)
            return states, last
        states, last = self.cell(x, state[0])
        return states, (last,)

    def _read(self, x: Tensor, state: State, tokens: Tensor | None) -> tuple[Tensor, State]:
        """All tokens; padding, where tokens (B, T) is False, does not change the state."""
        if tokens is None:
            return self._step(x, state)
        outs = []
        for position, each in enumerate(x.split(1, 1)):
            out, after = self._step(each, state)
            state = _where(tokens[:, position], after, state)
            outs.append(out)
        return torch.cat(outs, 1), state

    def _look_and_step(
        self,
        x: Tensor,
        state: State,
        tokens: Tensor | None,
        keys: Tensor | None,
        memory: Tensor | None,
        real: Tensor | None,
    ) -> tuple[Tensor, Tensor, State]:
        """The states (B, T, E), their contexts (B, T, E), and the last state."""
        assert self.cross_attention is not None and keys is not None and memory is not None
        lookup = self.cross_attention["sublayer"]
        outs, contexts, patterns = [], [], []
        for position, each in enumerate(x.split(1, 1)):
            weights = lookup.weights(state[0].transpose(0, 1), keys, real)
            context = _mix(weights, memory)
            out, after = self._step(torch.cat((each, context), -1), state)
            if tokens is not None:
                after = _where(tokens[:, position], after, state)
            state = after
            outs.append(out)
            contexts.append(context)
            patterns.append(weights)
        if lookup.watched:
            self.shown(torch.cat(patterns, 1))
        return torch.cat(outs, 1), torch.cat(contexts, 1), state


def _memory(inputs: LayerInputs) -> tuple[Tensor | None, Tensor | None]:
    """The states (B, S, E) of the encoder, and which are real (B, S); None if all are."""
    mask = inputs.memory_mask
    if inputs.memory is None or mask is None:
        return None, None
    real = mask.keys
    if real is None:
        real = mask.key_packing.attend
    return mask.key_grid(inputs.memory), real


def _padded(inputs: LayerInputs, count: int, *, is_last: bool) -> Tensor | None:
    """(B, T) False at padding among so many new tokens; None if none changes a state that is read
    later: there is none, or it ends the rows, and no token follows.
    """
    if inputs.mask.real is None:
        return None
    tokens = inputs.mask.real[:, -count:]
    ends_rows = bool((tokens[:, 1:] <= tokens[:, :-1]).all())
    if tokens.all() or (is_last and ends_rows):
        return None
    return tokens


def _last_states(memory: Tensor, real: Tensor | None) -> Tensor:
    """The last state (B, E) of each direction: of the last token, and of the first one."""
    columns = torch.arange(memory.shape[1], device=memory.device)
    if real is None:
        real = torch.ones(memory.shape[:2], dtype=torch.bool, device=memory.device)
    last = (columns * real).amax(1)
    first = real.int().argmax(1)
    rows = torch.arange(len(memory), device=memory.device)
    half = memory.shape[2] // 2
    return torch.cat((memory[rows, last, :half], memory[rows, first, half:]), -1)


def _mix(weights: Tensor, memory: Tensor) -> Tensor:
    """Σ_j a_j h_j: weights (B·N, T, S), memory (B, S, E) -> (B·N, T, E)."""
    contexts = weights.reshape(len(memory), -1, weights.shape[2]) @ memory
    return contexts.reshape(*weights.shape[:2], -1)


def _where(keep: Tensor, new: State, old: State) -> State:
    """The new state of the rows (B,) that are kept, and the old one of others."""
    return tuple(a.where(keep[:, None], b) for a, b in zip(new, old, strict=True))


# --- what they answer -----------------------------------------------------------------------------


class RecurrencePart(UnscoredPart):
    """The cell in the place of self-attention."""

    key = NAME
    settings = RecurrentSettings
    can_truncate = False
    has_vectors = False

    def new_keys(self, usual: Callable[[], GrowingKeys]) -> GrowingKeys:
        return LastState()

    def gates(self, config: CoreConfig) -> int:
        """How many matrices of each kind a cell has."""
        return GATES[self.options(config).cell]

    def parameters(self, config: CoreConfig, side: str, blocks: int) -> FormulaRow:
        gates = self.gates(config)
        cell = "(2·E·E + 2·E)"
        if side == "encoder":
            cell = "(E·E + E·E//2 + 2·E)"  # two directions of half the width
        return FormulaRow(f"{side} {self.options(config).cell}", f"L·{gates}·{cell}", {"L": blocks})

    def matrices(self, config: CoreConfig) -> int:
        return 2 * self.gates(config) * config.d_model**2

    def score_elements(self, config: CoreConfig, side: str, keys: int, read: Sequence[int]) -> int:
        return 0

    def cached_elements(self, config: CoreConfig, tokens: int) -> int:
        """The states, whose size does not depend on the tokens."""
        states = 1 + (self.options(config).cell == "lstm")
        return config.n_layers * states * config.d_model

    def phrase(self, config: CoreConfig) -> str:
        return f"recurrence ({self.options(config).cell}) in place of attention"


RECURRENCE = RecurrencePart()


class RecurrentBlockPart(BlockPart):
    """Layers of one cell each."""

    key = NAME

    def new(self, config: CoreConfig, layer: int, memory_width: int | None) -> nn.Module:
        options = RECURRENCE.options(config)
        return RecurrentBlock(config, layer, options, crosses=memory_width is not None)

    def norms(self, config: CoreConfig, *, crosses: bool) -> int:
        return 0

    def cross_parameters(
        self, config: CoreConfig, memory_width: int, blocks: int
    ) -> Iterator[FormulaRow]:
        """The first state of each block, and attention of the last one."""
        options = RECURRENCE.options(config)
        yield FormulaRow("decoder first states", "L·(E·E + E)", {"L": blocks})
        formulas = {
            "none": "0",
            # Also the columns of the cell that read the context.
            "additive": f"(4·E·E + 2·E + {GATES[options.cell]}·E·E)",
            "multiplicative": "3·E·E",
        }
        yield FormulaRow("decoder attention to the encoder", formulas[options.attention])

    def cross_elements(self, config: CoreConfig, memory_width: int, keys: int) -> tuple[int, int]:
        options = RECURRENCE.options(config)
        width = config.d_model
        if options.attention == "none":
            return 0, 0
        queries = 2 * width * width + 2 * width * keys  # the output, scores and their sum
        if options.attention == "additive":
            queries += (1 + GATES[options.cell]) * width * width
        return width * width, queries

    def equations(self, config: CoreConfig) -> Iterator[str]:
        yield "every block:  x ← dropout(cell(x))"


class NoFeedForward(FeedForwardPart):
    """No network after the cell."""

    key = NAME

    def new(self, config: CoreConfig, layer: int) -> nn.Module:
        return nn.Identity()

    def parameters(self, config: CoreConfig, side: str, blocks: int) -> Iterator[FormulaRow]:
        yield from ()

    def elements(self, config: CoreConfig, layer: int) -> int:
        return 0

    def saved(self, config: CoreConfig) -> tuple[int, int]:
        return 0, 1


PARTS = (RECURRENCE, RecurrentBlockPart(), NoFeedForward())
