"""The figures have the numbers of the code that models and training use."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from trifold.errors import UsageError
from trifold.look.figures import (
    components,
    masks,
    neighbours,
    offline,
    positions,
    schedules,
    tables,
)
from trifold.look.requests import answer
from trifold.look.session import Session
from trifold.nn import ModelConfig, Transformer
from trifold.nn.masks import Mask
from trifold.pipeline import Pipeline

TEXT = "the quick fox."
SIZES = {"max_positions": 64, "d_model": 16, "n_layers": 1, "n_heads": 4, "d_ff": 24}


def decoder(pipeline: Pipeline, **options) -> Session:
    torch.manual_seed(4)
    config = ModelConfig(**SIZES, shape="decoder", vocab_size=pipeline.reader.vocab_size, **options)
    return Session(Pipeline(Transformer(config).eval(), pipeline.reader))


def test_neighbours_have_the_largest_cosines(pipeline):
    session = Session(pipeline)
    for side, codec in (("encoder", pipeline.reader), ("decoder", pipeline.writer)):
        table = (
            getattr(pipeline.model, f"{side}_embeddings").tokens.weight.detach().double().numpy()
        )
        unit = table / np.linalg.norm(table, axis=1, keepdims=True)
        for token in range(len(table)):
            cosines = unit @ unit[token]
            order = [n for n in np.argsort(-cosines) if n != token][:10]
            found = neighbours(session, side, token)
            assert found["tokens"] == codec.pieces(order)
            np.testing.assert_allclose(found["similarity"], cosines[order], atol=1e-6)


def test_a_token_is_found_by_its_text(pipeline):
    session = Session(pipeline)
    token = pipeline.reader.encode(["q"])[0][0]
    assert (
        neighbours(session, "encoder", "q")["tokens"]
        == neighbours(session, "encoder", token)["tokens"]
    )
    for wrong, message in (("qu", "choose one"), (10**6, "give a number from 0 to")):
        with pytest.raises(UsageError, match=message):
            answer(session, "neighbours", {"side": "encoder", "token": wrong})
    with pytest.raises(UsageError, match="side 'both'"):
        answer(session, "neighbours", {"side": "both", "token": 3})


def test_components_are_those_of_the_singular_values_of_numpy(pipeline):
    table = pipeline.model.encoder_embeddings.tokens.weight.detach().double().numpy()
    for count in (1000, 9):
        found, first = components(Session(pipeline), "encoder", TEXT, count=count), table[:count]
        _, values, axes = np.linalg.svd(first - first.mean(0), full_matrices=False)
        expected = (table[found["ids"]] - first.mean(0)) @ axes[:3].T
        signs = np.sign((found["points"].numpy() * expected).sum(0))
        np.testing.assert_allclose(found["points"], expected * signs, atol=1e-9)
        np.testing.assert_allclose(found["shares"], values[:3] ** 2 / (values**2).sum())
        assert found["tokens"] == pipeline.reader.pieces(found["ids"])
        assert found["marked"] == sorted(set(pipeline.read([TEXT])[0])) and {*found["marked"]} <= {
            *found["ids"]
        }


def test_positions_follow_their_formulas(pipeline):
    found = positions(Session(pipeline))
    places, pairs = np.arange(64)[:, None], np.arange(8)
    angles = places / 10_000 ** (2 * pairs / 16)
    np.testing.assert_allclose(found["sinusoids"][:, 0::2], np.sin(angles), atol=1e-6)
    np.testing.assert_allclose(found["sinusoids"][:, 1::2], np.cos(angles), atol=1e-6)
    unit = found["sinusoids"] / found["sinusoids"].norm(dim=-1, keepdim=True)
    np.testing.assert_allclose(found["similarity"], unit @ unit.T, atol=1e-6)
    np.testing.assert_allclose(
        found["angles"], places / 10_000 ** (2 * np.arange(2) / 4), rtol=1e-5
    )
    np.testing.assert_allclose(
        found["frequencies"]["linear × 4"], found["frequencies"]["unscaled"] / 4
    )
    slopes = 2.0 ** -(2 * np.arange(1, 5))
    np.testing.assert_allclose(found["slopes"], slopes)
    np.testing.assert_allclose(found["alibi"], -slopes[:, None] * (63 - np.arange(64)))
    both, causal = (found["buckets"][name].tolist() for name in ("both ways", "causal"))
    assert both[128] == causal[128] == 0 and causal[129:] == [0] * 128
    assert causal[128 - 15 : 128] == list(range(15, 0, -1)) and max(causal) == max(both) == 31


@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn", "llama3"])
def test_rotary_angles_are_those_of_the_attention(pipeline, kind):
    scaling = {"kind": kind, "factor": 4.0, "original_positions": 16}
    session = decoder(pipeline, positions="rotary", rotary_scaling=scaling)
    found = positions(session)
    assert [*found["frequencies"]] == ["unscaled", f"{kind} × 4"]
    # The key (1, 1, 0, 0) becomes (cos, cos, sin, sin) of its angles, times the magnitude of YaRN.
    rotary = session.pipeline.model.decoder.rotary.everywhere
    x = torch.zeros(1, 1, 64, 4)
    x[..., :2] = 1.0
    rotation = rotary.rotation(torch.arange(64)[None], Mask(causal=True), x)
    turned = rotation(x)[0, 0]
    seen = torch.atan2(turned[:, 2:], turned[:, :2])
    wrapped = torch.remainder(found["angles"] + math.pi, 2 * math.pi) - math.pi
    np.testing.assert_allclose(seen.cos(), wrapped.cos(), atol=1e-4)
    np.testing.assert_allclose(seen.sin(), wrapped.sin(), atol=1e-4)


def test_learned_tables_are_those_of_the_model(pipeline):
    session = decoder(pipeline, positions="learned", position_offset=2)
    weight = session.pipeline.model.decoder_embeddings.positions.weight.detach()[2:66]
    expected = torch.nn.functional.cosine_similarity(weight[:, None], weight[None], dim=-1)
    np.testing.assert_allclose(positions(session)["similarity"], expected, atol=1e-6)
    for options in ({}, {"sliding_window": 5}):
        session = decoder(pipeline, positions="relative", **options)
        ((name, offsets),) = positions(session)["offsets"].items()
        weight = session.pipeline.model.get_submodule(name).weight
        assert torch.equal(offsets[:, 32], weight[0]) and torch.equal(offsets[:, 31], weight[1])


def test_masks_follow_their_definitions(pipeline):
    found = dict(masks(Session(pipeline))["masks"])
    query, key = np.mgrid[:12, :12]
    document = np.repeat([0, 1, 2], [5, 3, 4])
    expected = {
        "full": key >= 0,
        "3 tokens of padding": key < 9,
        "causal": key <= query,
        "causal, with padding": (key <= query) & (key < 9),
        "window of 4": abs(key - query) < 4,
        "causal window of 4": (key <= query) & (query - key < 4),
        "window of 4, the first token global": (abs(key - query) < 4) | (key == 0) | (query == 0),
        "segments of 4, and 2 tokens before": (key <= query) & (key >= query // 4 * 4 - 2),
        "8 tokens in a cache": (key <= query)[8:],
        "prefix of 4": (key <= query) | (key < 4),
        "packed documents of 5, 3 and 4": (key <= query) & (document[key] == document[query]),
    }
    for name, allowed in expected.items():
        np.testing.assert_array_equal(found.pop(name), allowed, err_msg=name)
    blocks = found.pop("blocks of one token, one of them random")
    near = (abs(key - query) < 2) | (key == 0) | (key == 11)
    assert blocks[[0, 11]].all() and (blocks & near == near).all()
    assert ((blocks & ~near)[1:11].sum(1) == 1).all()
    content, stream = found.pop("permutation"), found.pop("query stream of the permutation")
    assert not found
    np.testing.assert_array_equal(content & ~np.eye(12, dtype=bool), stream)
    assert sorted(content.sum(1)) == list(range(1, 13)) and content.diagonal().all()


def test_masks_are_listed_from_plain_to_special(pipeline):
    assert list(masks(Session(pipeline))["masks"]) == [
        *("full", "3 tokens of padding", "causal", "causal, with padding"),
        *("window of 4", "causal window of 4", "window of 4, the first token global"),
        *("blocks of one token, one of them random", "segments of 4, and 2 tokens before"),
        *("8 tokens in a cache", "prefix of 4", "permutation", "query stream of the permutation"),
        "packed documents of 5, 3 and 4",
    ]


def test_schedules_follow_their_formulas(pipeline):
    found = schedules(Session(pipeline))
    steps, peak = found["steps"].numpy(), 16**-0.5 * 100**-0.5
    assert found["peak"] == pytest.approx(peak)
    after = np.maximum(steps - 100, 0) / 900
    expected = {
        "inverse-sqrt": 16**-0.5 * np.minimum(steps**-0.5, steps * 100**-1.5) / peak,
        "linear": 1 - after,
        "cosine": 0.5 * (1 + np.cos(np.pi * after)),
        "constant": np.ones(len(steps)),
        "warmup-stable-decay": np.minimum(1, (1000 - steps) / 100),
        "warmup-stable-decay, 1-sqrt": 1 - np.sqrt(np.maximum(0, steps - 900) / 100),
    }
    assert found["curves"].keys() == expected.keys()
    for name, factor in expected.items():
        rates = peak * np.where(steps < 100, steps / 100, factor)
        np.testing.assert_allclose(found["curves"][name], rates, atol=1e-8, err_msg=name)


def test_a_page_has_the_figures_of_every_table(pipeline, one_stack):
    assert tables(Session(pipeline)) == ["encoder", "decoder"]
    session = Session(one_stack)
    assert tables(session) == [one_stack.config.shape]
    names = [name for name, _ in offline(session, TEXT, None)]
    ids = len(set(session.trace(TEXT).example.ids[one_stack.config.shape]))
    assert names == ["positions", "masks", "schedules", "components", *["neighbours"] * ids]
