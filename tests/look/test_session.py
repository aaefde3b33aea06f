"""Requests: what the views of a text show equals the hook points of the forward pass."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.predict.test_trace import LONG, MODELS, SHAPES, TEXT, example, new_pipeline

from trifold.errors import UsageError
from trifold.look import session as requests
from trifold.look.session import Session
from trifold.nn import Mask
from trifold.nn.masks import PairBias
from trifold.nn.rotary import frequencies

BY_CONTENT = (
    "xlnet",
    "deberta",
    "deberta v2",
    "transformer-xl",
)  # whose offsets depend on the tokens
TEXTS = [name for name in MODELS if name != "vit"]


@pytest.mark.parametrize("name", [name for name in MODELS if name != "reformer"])
def test_the_neuron_view_recomputes_the_attention_of_every_family(name):
    session, (text, target) = Session(new_pipeline(name)), example(name)
    found = session.trace(text, target)
    kinds = {
        "translator": ("encoder", "decoder", "cross"),
        "bart": ("cross",),
        "t5": ("encoder", "decoder", "cross"),
    }
    for kind in kinds.get(name, (found.side,)):
        side, part = ("decoder", "cross_attention") if kind == "cross" else (kind, "self_attention")
        point = f"{side}.blocks.1.{part}.sublayer"
        view = requests.neuron(session, text, kind, layer=1, head=3, query=4, target=target)
        np.testing.assert_allclose(
            view["products"].sum(-1) * view["scale"], view["scores"], atol=1e-5
        )
        scores = np.where(view["allowed"], view["capped"] + view["offsets"], -np.inf)
        np.testing.assert_allclose(scores, found[f"{point}.scores"][3, 4], atol=1e-5)
        np.testing.assert_allclose(view["weights"], found[f"{point}.pattern"][3, 4], atol=1e-5)
        sums = view["weights"].sum() if name == "gpt_oss" else 1.0  # a sink takes the rest
        np.testing.assert_allclose(
            torch.tensor(scores).softmax(-1) * sums, view["weights"], atol=1e-5
        )
        stack = getattr(session.pipeline.model, side)
        offsets = 0.0
        if stack.offsets is not None and kind != "cross" and name not in BY_CONTENT:
            size = len(view["weights"])
            offsets = stack.offsets(Mask(causal=side == "decoder"), size, torch.device("cpu"), None)
            offsets = offsets.dense(size, size) if isinstance(offsets, PairBias) else offsets
            offsets = offsets.detach().expand(1, 4, size, size)[0, 3, 4]
        if name not in BY_CONTENT:
            expected = np.where(view["allowed"], offsets, 0)
            np.testing.assert_allclose(view["offsets"], expected, atol=1e-5)
        causal = 5 if kind == "decoder" else len(view["weights"])
        few = {"gemma2": 3, "longt5": 3, "modernbert": 5, "longformer": 6, "big_bird": 6}
        assert view["allowed"].sum() == few.get(name, causal)


def test_the_neuron_view_shows_rotated_queries_and_the_keys_of_the_group():
    session = Session(new_pipeline("llama"))
    view = requests.neuron(session, TEXT, "decoder", layer=0, head=3, query=4)
    model = session.pipeline.model
    layer = model.decoder.blocks[0].self_attention
    x = session.trace(TEXT)["decoder.blocks.0.self_attention.enter"]
    with torch.no_grad():
        q = layer.sublayer.q_proj(x)[4].view(4, 4)[3].numpy()
        k = layer.sublayer.k_proj(x).view(-1, 2, 4)[:, 1].numpy()

    def rotate(row, position):
        angles = position * frequencies(4, 10_000.0).numpy()
        a, b = row[:2], row[2:]
        return np.concatenate(
            [a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)]
        )

    np.testing.assert_allclose(view["query"], rotate(q, 4), atol=1e-5)
    np.testing.assert_allclose(view["keys"], [rotate(row, n) for n, row in enumerate(k)], atol=1e-5)


SCALES = {  # of layer 2, with heads of width 4
    "translator": 1 / 2,
    "t5": 1.0,
    "deberta": 1 / math.sqrt(3 * 4),
    "deepseek": 1 / math.sqrt(4 + 4),
}


@pytest.mark.parametrize("name", SCALES)
def test_the_scale_is_that_of_the_family(name):
    session, (text, target) = Session(new_pipeline(name)), example(name)
    kind = session.trace(text, target).side
    view = requests.neuron(session, text, kind, layer=1, head=3, query=4, target=target)
    assert view["scale"] == pytest.approx(SCALES[name])


@pytest.mark.parametrize(
    ("keys", "scale"),
    [
        ({"attention_scale": 0.3}, 0.3),
        ({"attention_scale_by_layer": True}, 1 / (2 * 2)),
        ({"attention_scale": 0.3, "attention_scale_by_layer": True}, 0.3 / 2),
        ({"attention_scale": 0.3, "score_soft_cap": 5.0}, 0.3),  # Gemma 2
    ],
    ids=str,
)
def test_the_scale_of_the_config_is_shown_and_not_part_of_the_query(keys, scale, monkeypatch):
    monkeypatch.setitem(MODELS, "scaled", MODELS["gpt2"] | keys)
    session = Session(new_pipeline("scaled"))
    view = requests.neuron(session, TEXT, "decoder", layer=1, head=3, query=4)
    attention = session.pipeline.model.decoder.blocks[1].self_attention
    with torch.no_grad():
        x = session.trace(TEXT)["decoder.blocks.1.self_attention.enter"]
        q = attention.sublayer.q_proj(x)[4].view(4, 4)[3]
    assert view["scale"] == pytest.approx(scale)
    np.testing.assert_allclose(view["query"], q, atol=1e-5)


FIRST = {"kind": "decoder", "layer": 0, "head": 0, "query": 0}


@pytest.mark.parametrize(("arguments", "message"), [
    ({"kind": "crossed"}, "kind 'crossed'"), ({"kind": "cross"}, "kind 'cross'"),
    ({"layer": 2}, "layer 3 · blocks.2"), ({"head": 4}, "head 4"), ({"query": 14}, "query 14"),
])  # fmt: skip
def test_a_neuron_that_does_not_exist_is_rejected(arguments, message):
    with pytest.raises(UsageError, match=message):
        requests.neuron(Session(new_pipeline("gpt2")), TEXT, **(FIRST | arguments))


@pytest.mark.parametrize("name", SHAPES)
def test_requests_have_a_value_for_every_token(name):
    session, (text, target) = Session(new_pipeline(name)), example(name)
    found = session.trace(text, target)
    answer = requests.trace(session, text, target)
    assert answer["tokens"] == found.tokens and answer["side"] == found.side
    assert len(answer["labels"]) == len(answer["loss"]) == len(found.labels)
    best, size = answer["top"], found.logits.shape[-1]
    assert torch.equal(
        torch.tensor(best["probabilities"]), found.logits.softmax(-1).topk(min(5, size)).values
    )
    best = requests.lens(session, text, target, top=2)
    assert best["probabilities"].shape[0] == len(best["tokens"]) == 3
    assert best["tokens"][-1] == requests.lens(session, text, target, top=2)["tokens"][-1]
    edits = [{"name": f"{found.side}.states.0", "op": "scale", "value": 2}]
    answer = requests.effect(session, text, target, edits)
    after = session.trace(text, target, edits)
    np.testing.assert_allclose(answer["after"]["loss"], after.loss)
    np.testing.assert_allclose(
        answer["largest"], (after.logits - found.logits).abs().amax(-1), rtol=1e-5
    )
    scores = requests.gradients(session, text, target)["scores"]
    assert {side: len(row) for side, row in scores.items()} == {
        side: len(row) for side, row in found.tokens.items()
    }


def test_the_trace_of_a_translator_names_its_words_and_its_output():
    session = Session(new_pipeline("translator"))
    answer = requests.trace(session, TEXT, LONG)
    assert answer["output"] == LONG and answer["words"]["encoder"]["texts"] == [
        "the",
        "quick",
        "fox",
        ".",
    ]
    assert answer["labels"][:-1] == answer["tokens"]["decoder"][1:]
    read, written = answer["tokens"]["decoder"], answer["labels"]
    assert answer["queries"]["cross"] == [
        f"reads {a.strip() or '␣'} → writes {b.strip() or '␣'}"
        for a, b in zip(read, written, strict=True)
    ]
    assert answer["queries"]["decoder"] == read
    own = requests.trace(session, TEXT)
    assert own["output"] == session.pipeline.generate(TEXT)


def test_a_session_keeps_the_last_traces(monkeypatch):
    session = Session(new_pipeline("gpt2"))
    first = session.trace(TEXT)
    assert (
        session.trace(TEXT) is first
        and session.trace(LONG) is not first
        and session.trace(TEXT) is first
    )
    size = sum(x.nbytes for x in first.values())
    monkeypatch.setattr(requests, "MAX_BYTES", size)
    session.trace(LONG)
    assert session.trace(TEXT) is not first
