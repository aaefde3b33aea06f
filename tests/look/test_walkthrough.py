"""Every result of the walkthrough equals the forward pass."""

from __future__ import annotations

import math

import pytest
import torch
from tests.predict.test_trace import LONG, MODELS, TEXT, example, new_pipeline
from torch import nn

from trifold.errors import UsageError
from trifold.look.session import Session, walkthrough as request
from trifold.look.walkthrough import teaching_model, walkthrough


def assert_equals_forward_pass(trace, side, position):
    steps = walkthrough(trace, side, position)
    named = [step for step in steps if step.hook]
    for step in named:
        x = trace.logits if step.hook == "logits" else trace[step.hook]
        row = x if x.dim() == 1 else x.select(-2, position)
        torch.testing.assert_close(
            step.result, row, atol=2e-5, rtol=1e-4, msg=f"{step.title}: {step.hook}"
        )
    return steps, named


@pytest.mark.parametrize("name", MODELS)
def test_every_result_equals_its_hook_point(name):
    pipe, (text, target) = new_pipeline(name), example(name)
    trace = pipe.trace(text, target)
    passed = set()
    for side in trace.tokens:
        for position in (0, 3):
            steps, named = assert_equals_forward_pass(trace, side, position)
        passed |= {step.hook for step in named}
        assert len(named) >= 0.55 * len(steps)
    # Shown as operands, or equal to another hook point of the same tensor.
    others = ("states.0", "states.1", "cross_attention.sublayer.keys", "cross_attention.sublayer.values",
              ".after", ".exit", "embeddings.norm", "lm_head.norm",
              "offsets.norm", "sequence.norm", "sublayer.q_norm", "sublayer.k_norm")  # fmt: skip
    if name in (
        "deepseek",
        "longformer",
        "reformer",
    ):  # whose attention and experts are one step each
        others += ("queries", "keys", "values", "scores", "pattern", "heads", "kv_norm", "inner")
    assert {hook for hook in set(trace) - passed if not hook.endswith(others)} == set()


def test_steps_keep_one_token_in_memory():
    trace = new_pipeline("gpt2").trace(TEXT)
    results = [step.result for step in walkthrough(trace) if step.result.numel() > 1]
    rows = [x for x in results if x.shape[-1] == len(trace.tokens["decoder"])]
    assert rows, "the scores of a query"
    assert all(x.untyped_storage().nbytes() == x.nbytes for x in rows)


def test_the_mask_names_its_rules():
    masks = {
        name: {
            step.title.split(": ")[-1]
            for step in walkthrough(new_pipeline(name).trace(*example(name)))
        }
        for name in ("big_bird", "modernbert", "transformer-xl", "gpt2")
    }
    sentences = {
        "big_bird": "near, first, last and random blocks of ",
        "modernbert": "a window of ",
        "transformer-xl": "segments of ",
    }
    for name, sentence in sentences.items():
        assert any(title.startswith(f"mask ({sentence}") for title in masks[name])
    assert "mask and offsets" in masks["gpt2"]


def test_the_factor_of_a_scaled_query_is_shown(monkeypatch):
    monkeypatch.setitem(MODELS, "scaled", MODELS["gpt2"] | {"attention_scale": 0.3})
    steps = walkthrough(new_pipeline("scaled").trace(TEXT))
    factors = [float(step.operands["c"]) for step in steps if "scaled query" in step.title]
    assert factors == pytest.approx([0.3 * math.sqrt(4)] * 2)


def test_the_request_holds_the_steps_as_arrays():
    session = Session(new_pipeline("t5"))
    steps = request(session, TEXT, LONG, side="encoder", position=2)["steps"]
    expected = walkthrough(session.trace(TEXT, LONG), "encoder", 2)
    assert [step["title"] for step in steps] == [step.title for step in expected]
    for step, other in zip(steps, expected, strict=True):
        assert (
            step["result"].tolist() == other.result.tolist()
            and step["operands"].keys() == other.operands.keys()
        )


def test_a_side_or_a_token_that_does_not_exist_is_rejected():
    trace = new_pipeline("gpt2").trace(TEXT)
    with pytest.raises(UsageError, match="side 'encoder'"):
        walkthrough(trace, "encoder")
    with pytest.raises(UsageError, match="a number from 0 to 13"):
        walkthrough(trace, position=14)


# --- modules from outside -------------------------------------------------------------------------


class Halved(nn.Module):
    """A module that the walkthrough does not know, with or without options of a layer."""

    def forward(self, x, *inputs, **options):
        return x / 2


class Named(Halved):
    formula = "x / 2"


class Explained(Halved):
    def explain(self, steps, x, inputs, name):
        half = steps.add("half", "x / 4", x / 4, x=x)
        return steps.add("twice", "2 · y", 2 * half, y=half)


@pytest.mark.parametrize(
    ("module", "steps"),
    [
        (Halved(), [("one", "Halved")]),
        (Named(), [("one", "x / 2")]),
        (Explained(), [("half", "x / 4"), ("twice", "2 · y")]),
    ],
)
@pytest.mark.parametrize("place", ["attention", "feed-forward", "block"])
def test_an_unknown_module_is_one_step_or_explains_itself(place, module, steps):
    pipe = new_pipeline("gpt2")
    block = pipe.model.decoder.blocks[0]
    if place == "block":
        pipe.model.decoder.blocks[0] = module
    elif place == "attention":
        block.self_attention.sublayer = module
    else:
        block.feed_forward.sublayer = module
    found, _ = assert_equals_forward_pass(pipe.trace(TEXT), "decoder", 2)
    shown = [(step.title.removeprefix("layer 1: "), step.formula) for step in found]
    titles = [(place if title == "one" else title, formula) for title, formula in steps]
    start = shown.index(titles[0])
    assert shown[start : start + len(titles)] == titles


# --- with a calculator ----------------------------------------------------------------------------


def softmax(row):
    powers = [math.exp(x) for x in row]
    return [x / sum(powers) for x in powers]


def test_the_softmax_of_the_copied_example():
    assert [round(x, 4) for x in softmax([0, 1 / math.sqrt(3), 0])] == [0.2645, 0.4711, 0.2645]


def test_the_numbers_of_the_teaching_model_follow_from_its_weights():
    """In plain Python, for the second of three words."""
    embedded = [[1, -1, 1, -1], [1 + 1, 1, -1, -1 - 1]]  # the, cat, each with its position

    def norm(row):
        mean = sum(row) / 4
        deviation = math.sqrt(sum((x - mean) ** 2 for x in row) / 4)
        return [(x - mean) / deviation for x in row]

    the, cat = map(norm, embedded)
    q, heads = [cat[0], cat[1], cat[2], -cat[3]], []
    keys = [[x[1], x[0], x[2], x[3]] for x in (the, cat)]
    for a in (0, 2):
        weights = softmax([(q[a] * k[a] + q[a + 1] * k[a + 1]) / math.sqrt(2) for k in keys])
        heads += [
            sum(w * x[a + i] / 2 for w, x in zip(weights, (the, cat), strict=True)) for i in (0, 1)
        ]
    stream = [
        x + y for x, y in zip(embedded[1], [heads[0], heads[1], heads[3], heads[2]], strict=True)
    ]
    inner = [max(0, x + b) for x, b in zip(norm(stream), [0, 0, 0.5, 0.5], strict=True)]
    last = norm([x + y / 2 for x, y in zip(stream, inner, strict=True)])
    words = {"▁the": [1, -1, 1, -1], "▁cat": [1, 1, -1, -1], "▁sat": [1, -1, -1, 1]}
    logits = {
        word: sum(x * y for x, y in zip(last, row, strict=True)) for word, row in words.items()
    }

    pipe = teaching_model()
    trace = pipe.trace("the cat sat")
    assert trace.tokens["decoder"] == ["▁the", "▁cat", "▁sat"]
    found = {
        word: float(trace.logits[1, pipe.tokenizer.library.token_to_id(word)]) for word in words
    }
    assert found == pytest.approx(logits, abs=1e-5)
    assert_equals_forward_pass(trace, "decoder", 1)
