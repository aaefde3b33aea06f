"""Blocks equal those of llama.cpp's quantizer, bit for bit."""

import hashlib

import gguf
import numpy as np
import pytest
import torch
from tests.hub.gguf.numbers import INPUTS, numbers

from trifold.hub.gguf.blocks import TYPES, dequantize
from trifold.hub.gguf.quantize import CHUNK, quantize

BY_NAME = {kind.name: kind for kind in TYPES.values()}
# Of these the `gguf` package has a quantizer of its own.
LEGACY = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
# The first half of the SHA-256 of the blocks of `numbers`, by `ggml_quantize_chunk` of
# llama-cpp-python 0.3.36, without an importance matrix; x86-64, GCC 12, -O3 without -march.
DIGESTS: dict[str, dict[str, str]] = {
    "Q4_K": {
        "normal": "a9880c188547d2894f693a2094b8040b",
        "heavy": "b9f03d2dfc62ff44e51f0dec742e0c47",
        "positive": "79acf9bb88f15a72ed4d60e8266ef5d7",
        "grid": "6f640196cabe9676d9c226961ba1c4d5",
        "sparse": "ca6ce743b3f78c8aa8e4738303c24b81",
        "constant": "18d7cd04176ff000c0b6f34d64650bee",
        "tiny": "f704a46123950aa84e91b757e1c716c4",
        "groups": "834739692f1f31d29a66ebb518fa5ff1",
    },
    "Q5_K": {
        "normal": "3f8626c0162941872a52304292f30c1e",
        "heavy": "9a1ccd648705ab1d56a364b9783f95c8",
        "positive": "92d3d46b53a5fb3d04e1ab97314c9024",
        "grid": "30af4eb3e14987de3b030921d350a666",
        "sparse": "f0899f87d9a3db17a6aa70ac48811029",
        "constant": "44c40d89e86c4f98a353c0926c1a55e4",
        "tiny": "302a3900dce5b614a74fa0dc1d2555a4",
        "groups": "a8728908a741984e7c2082730186e72a",
    },
    "Q6_K": {
        "normal": "e5b3246201047baff57853cd3c9ac053",
        "heavy": "1c7a38cd11e1554c22c831c426c73057",
        "positive": "1adda077fcaa3336e761d31b4992a865",
        "grid": "220ccd5fd7d69c73113fe34fdc7ed99a",
        "sparse": "5c6bb5eb2e55e0608e5e45c058d270ec",
        "constant": "3b4b510a8bf1285b621e06b6f8b98bc2",
        "tiny": "9e8e4d1848b6146e3a4ad37c38a8de9e",
        "groups": "d3c11b87c27d2c0d503d26acd02f2290",
    },
}
# The first block of "normal", by the same function.
FIRST = {
    "Q4_K": (
        "f01a6f26aff1b0b7b1f7bffd69cf5a09cc8874a77c48af6488f699b5988aae04cec48cd175509786b057"
        "a89ac2dc6848989777386e3b864951adaaf6da797a6d99ea095c8c7ac87580789abca4a9b54f66589aea"
        "bd46bf91b39287a0aca856672b349480956a069d956a3c9f6a8d76acd8f607393aaea243d56489b32fac"
        "64f6e1ee8c707640559254e69676c7d8f7c5"
    ),
    "Q5_K": (
        "57166d26b2f3b3b8b1f6bffb7cbf3b0dcf9b307675c5bb24a32eefaa7ff707849fce67262c140eb22a94"
        "9f3f9aff89b58811e94ef9714fc901fc226b21155d079c9809a1fbb03f1c70ae412494a8c081402efe61"
        "dd570c82a26b46fdc5f2e5da43e6029919f491ea10e0356959438a8fcca135f58a8d7f3287331e505851"
        "bddf476838214be40c4b4bd4783ed41afd59a0fd0f72643e438599c803664f39c8ecc1cdf9e0ec70aa33"
        "a9cc2bec8fa0ed9b"
    ),
    "Q6_K": (
        "8f6e4ea40d6d10ce0fd83b3a2dd525b2e820d3737601bf1810ac2389f9e00111addf5b958dae26461e6b"
        "9119814f77905b7c0d2f08bbf7bf04b739a37c6ecff1b41cd383393320e87e9561db0dac923f8f0c9dab"
        "26b4754797354d30d5a8035af59a18d1ce3e5108ef69dd8483357865493e69959aad30ca4a4bdf980ca4"
        "0fcc585596dab4e198d6c56e691a2995a8a39fed176ca56099558c51aaaa8c9f92329ae91511108ab467"
        "a26756a704856ae930028abbaaf5e278ea2560a8551826285d9f96c79380618b5a547a895d549f42918e"
    ),
}


# Integers from -6, "a", to 6, "m", for which two trials of the search have almost the same error, and
# their block of Q4_K by the same function.
CLOSE = (
    "jbbddmmjbdldlhacegiammffiemmfakfdcegebhllkgakdbcakkeilfibgmgifaelcmjcakbegellkkjblhe"
    "emmbjjbchmmejgahlfhiijfjadmmegelgelmgkldelldiallfdeiebjbkcfkjlbedhhgeimhfgcijghhabag"
    "bmbfdkckdlfheakefalejmgbkajedjmkgfgcfcekflhmceafjhajbdbicakmfeilbcegafefiajmjfhcahih"
    "ddjj"
)
CLOSE_BLOCK = (
    "d522232efbfafafcfefdfcffdaefdcdc4b215184541f9febe1d48e04de49102205d8da50afef66a61a85"
    "ff8fa6600d56be820f9be2609da1a5b765be0e4dfdfb518e59e5855feff18bdbe14259efef45ba708e8e"
    "0614057a15e11b614dc226cd4bde61855409c958650adf59b6e8721a2c00cbf5645bafec172657720662"
    "556ca60eb9ffb26590260b99a09b4144b1ba"
)


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("name", LEGACY)
def test_blocks_of_32_equal_those_of_the_package(name: str, kind: str) -> None:
    values = numbers(kind)
    theirs = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name])
    assert np.array_equal(quantize(torch.from_numpy(values), BY_NAME[name]), theirs.reshape(-1))


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("name", DIGESTS)
def test_blocks_of_256_equal_those_of_llama_cpp(name: str, kind: str) -> None:
    blocks = quantize(torch.from_numpy(numbers(kind)), BY_NAME[name])
    if kind == "normal":
        assert blocks[: BY_NAME[name].bytes].tobytes().hex() == FIRST[name]
    assert hashlib.sha256(blocks.tobytes()).hexdigest()[:32] == DIGESTS[name][kind]


def test_trials_with_close_errors_are_compared_as_llama_cpp_compares_them() -> None:
    values = torch.tensor([ord(letter) - ord("g") for letter in CLOSE], dtype=torch.float32)
    assert quantize(values, BY_NAME["Q4_K"]).tobytes().hex() == CLOSE_BLOCK


@pytest.mark.parametrize("name", [*LEGACY, *DIGESTS])
def test_values_come_back_within_half_a_step(name: str) -> None:
    values = torch.from_numpy(numbers("normal"))
    kind = BY_NAME[name]
    reread = dequantize(torch.from_numpy(quantize(values, kind)), kind)
    steps = {"Q8_0": 256, "Q6_K": 64, "Q5_0": 32, "Q5_1": 32, "Q5_K": 32}.get(name, 16)
    assert (reread - values).abs().max() < 4 / steps
    assert (reread - values).square().mean().sqrt() < 1.2 / steps


def test_chunks_do_not_change_blocks() -> None:
    values = torch.from_numpy(numbers("normal")).repeat(CHUNK // 2**14 + 1)
    whole = quantize(values, BY_NAME["Q4_K"]).reshape(-1, 144)
    assert np.array_equal(whole[-64:], whole[:64])


def test_values_in_bfloat16_are_those_of_float32() -> None:
    values = torch.from_numpy(numbers("normal")).bfloat16()
    kind = BY_NAME["Q4_K"]
    assert np.array_equal(quantize(values, kind), quantize(values.float(), kind))


@pytest.mark.parametrize("name", [*LEGACY, *DIGESTS])
def test_values_that_a_type_does_not_hold_are_refused(name: str) -> None:
    for value in (float("nan"), float("inf"), -float("inf")):
        values = torch.zeros(256)
        values[7] = value
        with pytest.raises(ValueError, match="not finite"):
            quantize(values, BY_NAME[name])
    with pytest.raises(ValueError, match=f"up to 1e.30, too large for {name}"):
        quantize(torch.linspace(-1e30, 1e30, 256), BY_NAME[name])
