"""The instruction set of a processor follows from its features."""

import pytest

from trifold.fast import has_instructions, instruction_sets
from trifold.fast.instruction_sets import SETS, instruction_set

AVX2 = ("avx2", "fma")
AVX512 = (*AVX2, "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni", "avx512bf16")


@pytest.mark.parametrize(
    ("features", "name", "has_bf16"),
    [
        (AVX512, "AVX-512", True),
        (AVX2, "AVX2", False),
        ((*AVX512, "amx-tile"), "AVX-512", False),
        (AVX512[:-1], None, False),
        (("avx2",), None, False),
        ((), None, False),
    ],
)
def test_a_set_is_chosen_by_features(
    features: tuple[str, ...], name: str | None, has_bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instruction_sets, "features", lambda: frozenset(features))
    chosen = instruction_set()
    assert (chosen and chosen.name) == name
    assert has_instructions("float32") == (name is not None)
    assert has_instructions("bfloat16") == has_bf16


@pytest.mark.parametrize(
    "found", SETS, ids=["/".join([each.name, *each.products]) for each in SETS]
)
def test_sums_of_int8_products_fit_in_32_bits(found) -> None:
    largest = 127 * (found.steps + 2)  # a weight times an input, which rounding may increase
    assert largest * found.most_inputs < 2**31 <= largest * (found.most_inputs + 2)
