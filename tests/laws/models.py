"""The models of the configs, with random parameters, and examples for them: rows of different
lengths, alone, padded on a side, or packed.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch
from tests.laws.configs import config_of
from tests.models import add_noise
from torch import Tensor
from torch.nn import Parameter

from trifold.fast.quantized_weight import QuantizedWeight
from trifold.hub.fill import fill_model
from trifold.nn import Cache, Inputs, Memory, ModelConfig, Transformer
from trifold.nn.packing import Packing

# Tokens of three rows. Queries of the first row read few of its keys, if they are limited; packed,
# all have more than 32 tokens. Three of
# the longest sources have more than 64, from which layers are stacked.
SOURCE, TARGET = (23, 9, 2), (18, 4, 12)
FIELDS = ("tokens", "segments", "matches", "order")  # of `Inputs`, one value per token
NOISE = 0.15


class Example(NamedTuple):
    """The inputs of a model; target: of the decoder of an encoder-decoder."""

    source: Inputs
    target: Inputs | None = None

    @property
    def last(self) -> Inputs:
        """Of the last stack."""
        return self.source if self.target is None else self.target


@cache
def model_of(name: str, dtype: torch.dtype = torch.float64) -> Transformer:
    """The model of a config in evaluation mode. Tests share it and may not change it."""
    if dtype is torch.float32:
        return new_model(config_of(name))
    return copy.deepcopy(model_of(name, torch.float32)).to(dtype)


def new_model(config: ModelConfig) -> Transformer:
    """A model with random parameters, the same at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return add_noise(Transformer(config), NOISE)


def model_in(operations: str, name: str) -> Transformer:
    """The model in the precision in which the operations run: float64, or float32 for kernels."""
    return model_of(name, torch.float64 if operations == "plain" else torch.float32)


def limit_of(operations: str) -> float:
    """How much states may differ, in units of the largest: by rounding only."""
    return 1e-9 if operations == "plain" else 1e-5


@cache
def bf16_values_of(name: str) -> Transformer:
    """The model of a config in float64, with the values of the one in bf16."""
    return copy.deepcopy(model_of(name, torch.bfloat16)).double()


@cache
def int8_model_of(name: str, dtype: torch.dtype = torch.float32) -> Transformer:
    """The model of a config with its matrices in int8."""
    model = new_model(config_of(name))
    own = [(title, p.detach().clone()) for title, p in model.named_parameters()]
    fill_model(model, own, dtype, "cpu", stored="int8")
    return model.eval()


def dequantized_of(name: str, dtype: torch.dtype = torch.float32) -> Transformer:
    """A model with the values of `int8_model_of` as parameters."""
    model, values = new_model(config_of(name)), dict[str, Tensor]()
    for title, module in int8_model_of(name).named_modules():
        if isinstance(module, QuantizedWeight):
            values[title] = module.dequantize()
    with torch.no_grad():
        for title, value in values.items():
            model.get_parameter(title).copy_(value)
    return model.to(dtype)


# --- examples -------------------------------------------------------------------------------------


def rows_of(config: ModelConfig, seed: int = 0, *, ordered: bool = False) -> list[Example]:
    """Rows of different lengths, each in a batch of its own. ordered: in a factorization order."""
    generator = torch.Generator().manual_seed(seed)
    if config.patch_size is not None and config.image_size is not None:
        shape = (1, config.n_channels, *config.image_size)
        pixels = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in SOURCE]
        return [Example(Inputs(pixels=each)) for each in pixels]
    lengths = TARGET if config.shape == "decoder" else SOURCE
    sources = [_row(config, length, generator, ordered=ordered) for length in lengths]
    if config.shape != "encoder-decoder":
        return [Example(source) for source in sources]
    targets = [_row(config, length, generator) for length in TARGET]
    return [Example(*each) for each in zip(sources, targets, strict=True)]


def _row(
    config: ModelConfig, length: int, generator: torch.Generator, *, ordered: bool = False
) -> Inputs:
    tokens = torch.randint(6, 29, (1, length), generator=generator)
    for third in (length // 3, 2 * length // 3):
        tokens[0, third] = config.eos_id
    if config.separator_id is not None:
        tokens[0, length // 2] = config.separator_id
    segments = order = matches = None
    if config.segment_offsets or (config.n_token_types and config.separator_id is None):
        segments = torch.randint(0, 2, (1, length), generator=generator)
    if ordered:
        order = torch.randperm(length, generator=generator)[None]
    if config.word_matches:
        matches = torch.randint(0, 3, (1, length), generator=generator)
    return Inputs(tokens, segments=segments, matches=matches, order=order)


def padded(rows: Sequence[Example], *, left: bool = False) -> Example:
    """One batch of the rows, padded with random tokens on the right, or on the left."""
    target = [row.target for row in rows if row.target is not None]
    source = _padded([row.source for row in rows], left)
    return Example(source, _padded(target, left) if target else None)


def _padded(rows: list[Inputs], left: bool) -> Inputs:
    if rows[0].pixels is not None:
        return Inputs(pixels=torch.cat([row.pixels for row in rows if row.pixels is not None]))
    lengths = torch.tensor([row.tokens.shape[1] for row in rows])
    width, columns = int(lengths.max()), torch.arange(int(lengths.max()))
    real = columns >= width - lengths[:, None] if left else columns < lengths[:, None]
    values: dict[str, Tensor | None] = {"attend": real}
    for field in FIELDS:
        if getattr(rows[0], field) is not None:
            filling = torch.arange(width).expand(len(rows), -1) % (5 if field == "tokens" else 2)
            given = torch.cat([getattr(row, field)[0] for row in rows])
            values[field] = filling.clone().masked_scatter(real, given)
    return Inputs(**values)  # type: ignore[arg-type]


def packed(rows: Sequence[Example]) -> Example:
    """One long row of the rows."""
    target = [row.target for row in rows if row.target is not None]
    source = _packed([row.source for row in rows])
    return Example(source, _packed(target) if target else None)


def _packed(rows: list[Inputs]) -> Inputs:
    packing = Packing.of(torch.tensor([row.tokens.shape[1] for row in rows]))
    values = {}
    for field in FIELDS[:3]:
        if getattr(rows[0], field) is not None:
            values[field] = torch.zeros(1, packing.length, dtype=torch.long)
            values[field][0, : packing.n_real] = torch.cat([getattr(row, field)[0] for row in rows])
    order = None if rows[0].order is None else _padded(rows, False).order  # on the grid
    return Inputs(packing=packing, order=order, **values)


# --- results --------------------------------------------------------------------------------------


def hidden_of(model: Transformer, example: Example) -> Tensor:
    """The hidden states (B, T, E) of the last stack."""
    source = example.source
    if source.pixels is not None:
        dtype = next(model.parameters()).dtype
        source = replace(source, pixels=source.pixels.to(dtype))
    return model(source, example.target)


def head_outputs(model: Transformer, example: Example) -> list[Tensor]:
    """What each head makes of rows, or of their real tokens."""
    config, outputs = model.config, list[Tensor]()
    hidden, inputs = hidden_of(model, example), example.last
    names = [head for head in config.chosen_heads if head != "boundary"]
    heads = model.apply_heads(hidden, inputs, names)
    attend = inputs.real
    for name in names:
        out = heads[name]
        if name == "lm" and isinstance(inputs.packing, Packing):
            outputs.append(real_states(model.lm_head(hidden), example))
        elif name in ("lm", "token", "span", "replaced"):
            outputs.append(out.flatten(0, 1) if attend is None else out[attend])
        else:
            outputs.append(out)
    return outputs


def real_states(hidden: Tensor, example: Example) -> Tensor:
    """(N, E) the states of real tokens, row by row."""
    inputs = example.last
    if isinstance(inputs.packing, Packing):
        return hidden[0, : inputs.packing.n_real]
    return hidden.flatten(0, 1) if inputs.attend is None else hidden[inputs.attend]


def loss_of(states: Tensor) -> Tensor:
    """A sum over rows of states (…, E), with a gradient in every direction."""
    generator = torch.Generator().manual_seed(7)
    width = states.shape[-1]
    weights = torch.randn(width, generator=generator, dtype=torch.float64) / width**0.5
    return (states * weights.to(states.dtype)).sum(-1).sin().sum()


def gradient_difference(got: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest difference of two elements, in units of the largest gradient of all."""
    largest = max(float(each.abs().max()) for each in expected)
    differences = [
        float((one.double() - other.double()).abs().max())
        for one, other in zip(got, expected, strict=True)
    ]
    return max(differences) / largest


def assert_gradients_close(got: Sequence[Tensor], expected: Sequence[Tensor], limit: float) -> None:
    """As `assert_close`, in units of the largest gradient of all."""
    largest = max(float(each.abs().max()) for each in expected)
    for mine, other in zip(got, expected, strict=True):
        assert_close(mine / largest, other / largest, limit)


def trained_of(model: Transformer) -> list[Parameter]:
    """The parameters that have gradients."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def gradients_of(total: Tensor, model: Transformer) -> list[Tensor]:
    """The gradients of all parameters that are trained; 0 of those that are not used."""
    used = trained_of(model)
    found = torch.autograd.grad(total, used, materialize_grads=True, allow_unused=True)
    return list(found)


def assert_close(got: Tensor, expected: Tensor, limit: float) -> None:
    """Whether no element differs by more than the limit, in units of the largest one, at least 1."""
    assert got.shape == expected.shape and got.isfinite().all()
    got, expected = got.detach().double(), expected.detach().double()
    largest = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    difference = float((got - expected).abs().max()) if got.numel() else 0.0
    assert difference <= limit * largest, f"differs by {difference / largest:.2g} of the largest"


def relative_error(got: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The norm of the difference of all tensors, in units of the norm of the exact ones."""
    one, other = (torch.cat([x.detach().double().flatten() for x in each]) for each in (got, exact))
    assert one.isfinite().all()
    return float((one - other).norm() / other.norm())


class Outcome(NamedTuple):
    """The states of real tokens, row by row; what heads make of them; the gradients of a loss."""

    states: Tensor
    heads: list[Tensor]
    gradients: list[Tensor]


@cache
def outcome_of(name: str, operations: str, form: str, *, ordered: bool = False) -> Outcome:
    """Of rows of different lengths: alone, padded on the left or the right, or packed. Laws share
    them.
    """
    model, rows = model_in(operations, name), rows_of(config_of(name), ordered=ordered)
    batches: Sequence[Example] = rows
    if form != "alone":
        batches = [packed(rows) if form == "packed" else padded(rows, left=form == "left")]
    states = torch.cat([real_states(hidden_of(model, each), each) for each in batches])
    with torch.no_grad():
        heads = [head_outputs(model, each) for each in batches]
    gradients = gradients_of(loss_of(states), model)
    return Outcome(states.detach(), [torch.cat(x) for x in zip(*heads, strict=True)], gradients)


def assert_same_outcome(one: Outcome, other: Outcome, operations: str) -> None:
    """Whether two outcomes are equal except for rounding. Logits are in float32."""
    assert_close(one.states, other.states, limit_of(operations))
    for got, expected in zip(one.heads, other.heads, strict=True):
        assert_close(got, expected, 1e-5)
    assert_gradients_close(one.gradients, other.gradients, 10 * limit_of(operations))


# --- decoding -------------------------------------------------------------------------------------


def texts_of(config: ModelConfig, rows: int, length: int, seed: int = 0) -> Tensor:
    """(rows, length) tokens for the decoder."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(6, 29, (rows, length), generator=generator)


def memory_of(model: Transformer, rows: int, *, is_padded: bool = True) -> Memory | None:
    """The encoder's output for several sources of different lengths; None without an encoder."""
    if model.encoder is None:
        return None
    sources = [rows_of(model.config, seed)[seed % 2] for seed in range(rows)]
    if not is_padded:
        sources = [sources[0]] * rows
    return model.encode(padded(sources).source)


def decode_parts(
    model: Transformer,
    tokens: Tensor,
    ends: Sequence[int],
    memory: Memory | None,
    cache: Cache,
    attend: Tensor | None = None,
) -> Tensor:
    """The states of tokens that a decoder with a cache reads in parts, up to each of the ends."""
    outs, start = [], cache.length
    for end in ends:
        own = None if attend is None else attend[:, :end]
        outs.append(model.decode(Inputs(tokens[:, start:end], own), memory, cache))
        start = end
    return torch.cat(outs, 1)
