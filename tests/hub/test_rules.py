from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from trifold.errors import CheckpointError
from trifold.hub.rules import (
    Copy,
    Ignored,
    ParameterRule,
    Renamed,
    Unused,
    Zeros,
    _expression,
    checked,
    loading,
    matches,
    saving,
    unused,
)
from trifold.hub.transforms import (
    LEADING_AXIS,
    SAME,
    TRANSPOSED,
    Transform,
    chain,
    interleaved,
    permuted,
)

TABLE = [
    ParameterRule(
        tuple(f"blocks.{{i}}.{p}.weight" for p in "qkv"),
        "h.{i}.attn.weight",
        chain(interleaved(1, (1, 1, 1)), TRANSPOSED),
    ),
    ParameterRule("blocks.{i}.{p:o|in}.weight", "h.{i}.{p}.w", permuted([2, 0, 3, 1], axis=1)),
    ParameterRule("tokens.weight", "wte.weight"),
    Zeros("h.{i}.o.bias", beside="blocks.{i}.o.weight", remedy="say attention_bias: true"),
    Copy("head.{*rest}", of="wte.{*rest}"),
    Ignored("{*path}.mask"),
]


def save(*arguments: Any) -> dict[str, torch.Tensor]:
    return dict(saving(*arguments))


def load(rules: Any, theirs: Any, ours: Any, place: str) -> Any:
    return loading(rules, checked(rules, theirs, ours, place), ours).items()


def parameters(layers: int = 2) -> dict[str, torch.Tensor]:
    ours = {
        f"blocks.{i}.{p}.weight": torch.randn(4, 4)
        for i in range(layers)
        for p in ("q", "k", "v", "o", "in")
    }
    return ours | {"tokens.weight": torch.randn(5, 4)}


NAMES = st.lists(st.text("ab.\n1", max_size=9), max_size=20)


@given(st.text("ab.", max_size=3), st.text("ab.", max_size=3), NAMES)
def test_patterns_match_as_their_regular_expressions(
    head: str, tail: str, names: list[str]
) -> None:
    names = [*names, f"{head}1{tail}", head + tail]
    for placeholder in ("", "{i}", "{p:a|b}", "{*rest}", "{i}.{j}"):
        pattern = head + placeholder + tail
        expected = [(name, _expression(pattern).fullmatch(name)) for name in names]
        found = [(name, match.groupdict()) for name, match in expected if match]
        assert [*matches(pattern, names)] == found


@given(st.permutations(range(6)), st.integers(0, 1))
def test_loading_inverts_every_transform(order: list[int], axis: int) -> None:
    cases: list[tuple[Transform, int]] = [
        (SAME, 2),
        (TRANSPOSED, 2),
        (LEADING_AXIS, 2),
        (permuted(order, axis), 2),
        (interleaved(1, (1, 1, 1)), 3),
        (chain(permuted(order, axis), interleaved(1, (1, 1)), TRANSPOSED), 2),
    ]
    for transform, count in cases:
        ours = [torch.randn(6, 6) for _ in range(count)]
        theirs = transform.save(ours)
        assert all(torch.equal(a, b) for a, b in zip(ours, transform.load(theirs), strict=True))
        # Shapes are predicted without data.
        predicted = transform.save([tensor.to("meta") for tensor in ours])
        assert [tensor.shape for tensor in predicted] == [tensor.shape for tensor in theirs]


def test_permuted_order() -> None:
    assert permuted([2, 0, 1]).save([torch.tensor([10, 11, 12])])[0].tolist() == [12, 10, 11]


def test_a_round_trip_keeps_every_bit() -> None:
    ours = parameters()
    theirs = save(TABLE, ours)
    assert set(theirs) == {
        "wte.weight",
        *(f"h.{i}.{name}" for i in (0, 1) for name in ("attn.weight", "o.w", "in.w", "o.bias")),
    }
    assert not theirs["h.1.o.bias"].any()
    back = dict(load(TABLE, theirs, ours, "here"))
    assert set(back) == set(ours)
    assert all(torch.equal(back[name], ours[name]) for name in ours)


def test_copies_zeros_and_ignored_tensors_are_optional() -> None:
    ours = parameters()
    theirs = save(TABLE, ours)
    theirs["head.weight"] = theirs["wte.weight"].clone()
    theirs["h.0.attn.mask"] = torch.ones(3)
    del theirs["h.0.o.bias"]
    assert torch.equal(
        dict(load(TABLE, theirs, ours, "here"))["tokens.weight"], ours["tokens.weight"]
    )


def test_one_error_lists_all_problems() -> None:
    ours = parameters()
    theirs = save(TABLE, ours)
    del theirs["h.0.attn.weight"], theirs["h.1.attn.weight"]
    theirs["h.7.o.w"] = torch.ones(4, 4)
    theirs["h.0.in.w"] = torch.ones(4, 3)
    theirs["h.1.in.w"] = torch.ones(4, 4, dtype=torch.int8)
    theirs["h.1.o.bias"][2] = 1.0
    theirs["head.weight"] = theirs["wte.weight"] + 1
    with pytest.raises(CheckpointError) as caught:
        load(TABLE, theirs, ours, "folder")
    message = str(caught.value)
    for expected in (
        "folder: ",
        "missing: h.0.attn.weight",
        "missing: h.1.attn.weight",
        "not known: 'h.7.o.w'",
        "wrong shape: h.0.in.w is (4, 3) and should be (4, 4)",
        "wrong type: h.1.in.w is torch.int8",
        "not zero: h.1.o.bias",
        "say attention_bias: true",
        "not equal: head.weight and wte.weight",
    ):
        assert expected in message
    assert len(message.splitlines()) == 8


def test_a_table_without_a_parameter_fails_an_assertion() -> None:
    with pytest.raises(AssertionError, match=r"no rule for tokens\.weight"):
        save([rule for rule in TABLE if rule != TABLE[2]], parameters())


def test_a_table_with_a_parameter_twice_fails_an_assertion() -> None:
    with pytest.raises(AssertionError, match=r"two rules.* blocks\.0\.q\.weight"):
        save([*TABLE, ParameterRule("blocks.{i}.q.weight", "h.{i}.again")], parameters())


@given(st.integers(1, 3), st.lists(st.integers(1, 3), min_size=2, max_size=3), st.integers(1, 2))
def test_interleaved_is_invertible(groups: int, shares: list[int], unit: int) -> None:
    ours = [torch.randn(groups * share * unit, 5) for share in shares]
    transform = interleaved(groups, shares)
    (theirs,) = transform.save(ours)
    assert all(torch.equal(a, b) for a, b in zip(ours, transform.load([theirs]), strict=True))
    # the first group starts with the first share of each tensor
    row = 0
    for part, share in zip(ours, shares, strict=True):
        assert torch.equal(theirs[row], part[0])
        row += share * unit
    (predicted,) = transform.save([part.to("meta") for part in ours])
    assert predicted.shape == theirs.shape


RENAMES = [
    ParameterRule("tokens.weight", "model.wte.weight"),
    ParameterRule("norm.{part:weight|bias}", "model.norm.{part}"),
    Copy("head.weight", of="model.wte.weight"),
    Ignored("model.mask"),
    Renamed("{*path}.gamma", "{*path}.weight"),
    Renamed("{*path}", "model.{*path}"),
    Renamed("head.weight", "model.wte.weight"),
]
PARAMETERS = {
    "tokens.weight": torch.randn(3, 2),
    "norm.weight": torch.randn(2),
    "norm.bias": torch.randn(2),
}


@pytest.mark.parametrize(
    "names",
    [
        ("model.wte.weight", "model.norm.weight", "model.norm.bias"),
        ("wte.weight", "norm.weight", "norm.bias"),
        ("wte.weight", "norm.gamma", "norm.bias"),
        ("wte.weight", "model.norm.gamma", "model.norm.bias"),
        ("head.weight", "norm.gamma", "norm.bias"),
    ],
)
def test_old_names_are_renamed(names: tuple[str, ...]) -> None:
    theirs = dict(zip(names, PARAMETERS.values(), strict=True)) | {"mask": torch.zeros(1)}
    loaded = dict(load(RENAMES, theirs, PARAMETERS, "here"))
    assert all(torch.equal(loaded[name], tensor) for name, tensor in PARAMETERS.items())


def test_an_old_name_does_not_replace_a_current_one() -> None:
    theirs = dict(
        zip(
            ("model.wte.weight", "model.norm.weight", "model.norm.bias"),
            PARAMETERS.values(),
            strict=True,
        )
    )
    with pytest.raises(CheckpointError, match=r"not known: 'wte\.weight'"):
        load(RENAMES, theirs | {"wte.weight": torch.ones(3, 2)}, PARAMETERS, "here")
    with pytest.raises(CheckpointError, match=r"not equal: head\.weight"):
        load(RENAMES, theirs | {"head.weight": torch.ones(3, 2)}, PARAMETERS, "here")


UNUSED = [ParameterRule("bias", "decoder.bias"), Unused("bias", like="decoder.bias")]


@pytest.mark.parametrize(
    "unused", [{}, {"bias": torch.randn(3)}, {"bias": torch.zeros(5, dtype=torch.int8)}]
)
def test_unused_tensors_may_be_missing_or_have_any_value(unused: dict[str, torch.Tensor]) -> None:
    parameters_of_model = {"bias": torch.randn(3)}
    loaded = dict(
        load(
            UNUSED,
            {"decoder.bias": parameters_of_model["bias"]} | unused,
            parameters_of_model,
            "here",
        )
    )
    assert torch.equal(loaded["bias"], parameters_of_model["bias"])


@pytest.mark.parametrize(
    "tensor", [torch.randn(3), torch.zeros(5), torch.randn(3).half(), torch.ones(2, 2)]
)
def test_unused_tensors_are_kept(tensor: torch.Tensor) -> None:
    bias = torch.randn(3)
    kept = unused(UNUSED, {"decoder.bias": bias, "bias": tensor})
    assert saving(UNUSED, {"bias": bias}, kept)["bias"] is tensor


def test_unused_tensors_are_written_as_a_copy() -> None:
    theirs = save(UNUSED, {"bias": torch.randn(3)})
    assert torch.equal(theirs["bias"], theirs["decoder.bias"])
    assert (
        theirs["bias"].data_ptr() != theirs["decoder.bias"].data_ptr()
    )  # safetensors stores no shared memory
