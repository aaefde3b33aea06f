"""The compiled layers of an encoder compute what the plain ones do: packed rows and images, in fp32,
bf16 and int8.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from tests.laws.models import new_model, relative_error
from tests.laws.operations import plain
from torch import Tensor

from trifold.fast import encoder_layers, one_state
from trifold.fast.int8 import Int8Weight
from trifold.fast.one_state import head_output
from trifold.hub.fill import fill_model
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.hooks import capture
from trifold.nn.masks import Mask, padding_mask
from trifold.nn.packing import Packing
from trifold.nn.walk import StackInputs

pytestmark = [
    pytest.mark.parametrize("operations", ["fast"], indirect=True),
    pytest.mark.skipif(
        encoder_layers.compiled_block() is None or not encoder_layers.has_instructions("float32"),
        reason="the processor lacks instructions, or numba is not installed",
    ),
]
# More than a chunk, rows longer and shorter than a tile, and one of a single token.
LENGTHS = (70, 49, 48, 33, 32, 31, 17, 16, 15, 12, 8, 7, 3, 2, 1)
SIZES = {"shape": "encoder", "vocab_size": 60, "max_positions": 80, "dropout": 0.0}
SIZES |= {"d_model": 64, "d_ff": 80, "n_layers": 2, "activation": "gelu", "attention_bias": True}
BERT = {"positions": "learned", "n_token_types": 2, "embedding_norm": True}
CONFIGS = {
    "post": SIZES | BERT | {"n_heads": 2},
    "pre": SIZES | BERT | {"n_heads": 4, "norm_placement": "pre"},
    "relu": SIZES | BERT | {"n_heads": 2, "activation": "relu"},
    "gelu-tanh": SIZES | BERT | {"n_heads": 2, "activation": "gelu-tanh"},
    "no biases": SIZES
    | {"n_heads": 2, "attention_bias": False, "norm_bias": False, "feed_forward_bias": False},
    "heads": SIZES | BERT | {"n_heads": 2, "heads": ("pooler", "sequence", "token", "span")},
    "relative": SIZES
    | {"n_heads": 2, "positions": "relative", "relative_buckets": 8, "relative_distance": 20},
    "t5": SIZES
    | {"n_heads": 2, "positions": "relative", "relative_buckets": 8, "relative_distance": 20}
    | {"norm": "rms", "norm_placement": "pre", "activation": "relu", "attention_scale": 1.0}
    | {"attention_bias": False, "feed_forward_bias": False},
    "images": {
        **(SIZES | {"n_heads": 1, "norm_placement": "pre", "heads": ("sequence",), "n_labels": 3}),
        **{"image_size": (16, 20), "patch_size": (4, 4), "n_channels": 2, "max_positions": 21},
        **{"positions": "learned", "d_ff": 64},
    },
}
PRECISIONS = [
    each for each in ("float32", "bfloat16", "int8") if encoder_layers.has_instructions(each)
]
ACTIVATIONS = ("relu", "gelu-tanh")
cases = pytest.mark.parametrize(
    "name", [name for name in CONFIGS if name not in ("heads", *ACTIVATIONS)]
)


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@cache
def exact_model(name: str) -> Transformer:
    return new_model(ModelConfig.parse(CONFIGS[name])).eval()


@cache
def model_of(name: str, precision: str) -> Transformer:
    """The model in a precision; with int8 weights the states are bf16."""
    if precision != "int8":
        return copy.deepcopy(exact_model(name)).to(getattr(torch, precision))
    model = Transformer(exact_model(name).config)
    own = [(title, p.detach().clone()) for title, p in exact_model(name).named_parameters()]
    fill_model(model, own, torch.bfloat16, "cpu", stored="int8")
    return model.eval()


def inputs_of(name: str, numbers: tuple[int, ...] = tuple(range(len(LENGTHS)))) -> Inputs:
    """The packed rows with these numbers, or as many images."""
    generator = torch.Generator().manual_seed(2)
    if name == "images":
        shape = len(LENGTHS), 2, *CONFIGS[name]["image_size"]
        return Inputs(pixels=torch.randn(shape, generator=generator)[list(numbers)])
    rows = [torch.randint(5, 60, (length,), generator=generator) for length in LENGTHS]
    tokens = torch.cat([rows[number] for number in numbers])
    packing = Packing.of(torch.tensor([LENGTHS[number] for number in numbers]))
    return Inputs(packing.fill(tokens, 0), packing=packing)


def states(model: Transformer, inputs: Inputs) -> Tensor:
    """The states (N, E) of all real tokens in fp32."""
    if inputs.pixels is not None:
        dtype = next(p.dtype for p in model.parameters())
        return model(replace(inputs, pixels=inputs.pixels.to(dtype))).flatten(0, 1).float()
    assert isinstance(inputs.packing, Packing)
    return model(inputs)[0, : inputs.packing.n_real].float()


def reference(name: str, precision: str) -> tuple[Tensor, Tensor]:
    """The states in float64 of the values that the weights have in a precision, and those of plain
    operations in it.
    """
    model = model_of(name, precision)
    exact = copy.deepcopy(exact_model(name))
    for title, module in model.named_modules():
        if isinstance(module, Int8Weight):
            exact.get_parameter(title).copy_(module.dequantize())
    for title, parameter in model.named_parameters():
        exact.get_parameter(title).copy_(parameter)
    with plain():
        return states(exact.double(), inputs_of(name)).float(), states(model, inputs_of(name))


def errors_of_rows(got: Tensor, exact: Tensor) -> Tensor:
    return (got - exact).norm(dim=1) / exact.norm(dim=1)


def runs(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The list to which each run of the compiled layers is added: whether it is of chosen states."""
    found: list[bool] = []
    function = encoder_layers.encoder_layers

    def counted(*args: Any) -> Tensor:
        found.append(len(args) > 3)
        return function(*args)

    for module in (encoder_layers, one_state):
        monkeypatch.setattr(module, "encoder_layers", counted)
    return found


@cases
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_state_has_the_rounding_error_of_its_precision(
    name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact, rounded = reference(name, precision)
    ran = runs(monkeypatch)
    errors = errors_of_rows(states(model_of(name, precision), inputs_of(name)), exact)
    assert ran == [False]
    plain_errors = errors_of_rows(rounded, exact)
    if precision == "float32":
        assert errors.max() < 1e-5
    elif precision == "bfloat16":
        assert errors.max() < 1.1 * plain_errors.max() and errors.mean() < plain_errors.mean()
    else:  # plain operations do not quantize states
        assert errors.max() < 2 * plain_errors.max() and errors.mean() < 1.6 * plain_errors.mean()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_other_activations(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = runs(monkeypatch)
    model = exact_model(name)
    got = states(model, inputs_of(name))
    assert ran == [False]
    assert errors_of_rows(got, reference(name, "float32")[0]).max() < 1e-5


@cases
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_row_has_the_same_bits_in_every_batch(name: str, precision: str) -> None:
    model = model_of(name, precision)
    together = states(model, inputs_of(name)).split(
        [21] * len(LENGTHS) if name == "images" else list(LENGTHS)
    )
    numbers = (0, 4, 9, 14)
    some = states(model, inputs_of(name, numbers))
    assert torch.equal(some, torch.cat([together[number] for number in numbers]))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_row(precision: str, value: float) -> None:
    model = copy.deepcopy(model_of("post", precision))
    inputs = inputs_of("post")
    model.encoder_embeddings.token_types.weight.data[1] = value
    segments = torch.zeros_like(inputs.tokens)
    start = sum(LENGTHS[:3])
    segments[0, start + 5] = 1
    out = states(model, replace(inputs, segments=segments)).isfinite().split(LENGTHS)
    assert [bool(row.any()) for row in out] == [number != 3 for number in range(len(LENGTHS))]
    assert all(bool(row.all()) for number, row in enumerate(out) if number != 3)


@pytest.mark.parametrize("name", ["post", "pre"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_chosen_states_have_the_bits_that_they_have_among_all(name: str, precision: str) -> None:
    model = model_of(name, precision)
    inputs = inputs_of(name)
    assert isinstance(inputs.packing, Packing)
    lengths = torch.tensor(LENGTHS)
    for columns in (torch.zeros_like(lengths), lengths // 2, lengths - 1):
        chosen = inputs.packing.starts[:-1] + columns
        every = model.encoder_embeddings(inputs)
        read = StackInputs(Mask(inputs.real, packing=inputs.packing))
        expected = encoder_layers.encoder_layers(model.encoder, every, read)[0, chosen]
        assert torch.equal(
            encoder_layers.encoder_layers(model.encoder, every, read, chosen), expected
        )


@pytest.mark.parametrize(
    ("name", "head"),
    [("heads", "sequence"), ("heads", "token"), ("heads", "span"), ("images", "sequence")],
)
def test_heads_read_compiled_layers(name: str, head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = exact_model(name)
    inputs = inputs_of(name)
    ran = runs(monkeypatch)
    got = head_output(model, inputs, head)
    assert ran == [head == "sequence"]
    with plain():
        expected = model.head_outputs(inputs, heads=[head])[head]
    real = inputs.real if head in ("token", "span") else slice(None)
    assert relative_error([got[real]], [expected[real]]) < 1e-5


def test_padding_of_packed_rows_is_finite() -> None:
    assert bool(exact_model("post")(inputs_of("post")).isfinite().all())


def test_changed_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    model = copy.deepcopy(exact_model("post"))
    ran = runs(monkeypatch)
    states(model, inputs_of("post"))
    for parameter in model.parameters():
        parameter.mul_(0.9)
    got = states(model, inputs_of("post"))
    assert len(ran) == 2
    with plain():
        assert relative_error([got], [states(model, inputs_of("post"))]) < 1e-5


def test_sums_that_may_overflow_take_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = runs(monkeypatch)
    found = encoder_layers.instruction_set()
    assert found is not None
    inner = CONFIGS["post"]["d_ff"]
    too_many = found._replace(steps=2**31 // (127 * inner))
    monkeypatch.setattr(encoder_layers, "instruction_set", lambda: too_many)
    states(model_of("post", "int8"), inputs_of("post"))
    assert not ran
    states(model_of("images", "float32"), inputs_of("images"))
    assert ran


def test_other_layers_take_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    model = copy.deepcopy(exact_model("post"))
    inputs = inputs_of("post")
    ran = runs(monkeypatch)
    with torch.enable_grad():
        model(inputs)
    with capture(model, "pattern"):
        model(inputs)
    hook = model.encoder.blocks[0].feed_forward.sublayer.register_forward_hook(lambda *a: None)
    model(inputs)
    hook.remove()
    tokens = torch.randint(5, 60, (3, 30))
    model(Inputs(tokens, padding_mask(torch.tensor([30, 8, 9]), 30)))
    model.train()
    for module in model.modules():
        if hasattr(module, "p"):
            module.p = 0.1
    model(inputs)
    monkeypatch.setattr(encoder_layers, "has_instructions", lambda products: False)
    model.eval()(inputs)
    assert not ran
