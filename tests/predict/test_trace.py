"""Traces: activations equal those of the model, edits change what they name and nothing else."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from tests.cli.readers import folder_of
from tests.models import TWO_LAYERS, add_noise

import trifold
from trifold import fast
from trifold.errors import DataError, UsageError
from trifold.look import session as views
from trifold.nn import ModelConfig, Transformer
from trifold.nn.hooks import hook_points
from trifold.pipeline import TRANSFORMER_LENS, Pipeline
from trifold.text import TokenizerSettings, train_tokenizer

SIZES = TWO_LAYERS | {"max_positions": 64}
TEXT, OTHER, LONG = "the quick fox.", "fox the quick.", "the quick brown fox."
PRE = {"norm_placement": "pre"}
ROTARY = {
    "positions": "rotary",
    "norm": "rms",
    "gated": True,
    "activation": "silu",
    "n_kv_heads": 2,
} | PRE
MODELS = {
    "translator": {},
    "translator with norms of queries and keys": {"qk_norm": "head"},
    "bart": {"positions": "learned", "attention_bias": True, "embedding_norm": True, "lm_head_bias": True},
    "t5": {"positions": "relative", "attention_scale": 1.0, "norm": "rms", "scale_embeddings": False} | PRE,
    "gpt2": {"shape": "decoder", "positions": "learned", "attention_bias": True, "scale_embeddings": False} | PRE,
    "llama": {"shape": "decoder", "scale_embeddings": False, "tie_lm_head": False} | ROTARY,
    "gemma2": {"shape": "decoder", "score_soft_cap": 5.0, "sliding_window": 3}
    | ROTARY | {"norm_placement": "sandwich"},
    "bloom": {"shape": "decoder", "positions": "alibi", "attention_bias": True} | PRE,
    "gemma3": {"shape": "decoder", "qk_norm": "head", "norm_weight": "plus-one"}
    | ROTARY | {"norm_placement": "sandwich"},
    "gpt_oss": {"shape": "decoder", "attention_sinks": True, "gate_limit": 0.5, "residual_scale": 0.5} | ROTARY,
    "deepseek": {"shape": "decoder", "latent": {"width": 12, "d_rotary": 4, "d_value": 4},
                 "experts": {"count": 4, "per_token": 2, "d_ff": 8}} | ROTARY | {"n_kv_heads": None},
    "falcon": {"shape": "decoder", "residual": "parallel"} | ROTARY,
    "reformer": {"shape": "decoder", "residual": "reversible", "attention": "lsh", "tie_lm_head": False,
                 "lsh": {"chunk": 4, "layers": ("lsh", "local"), "local_chunk": 4}} | ROTARY | {"n_kv_heads": None},
    "bert": {"shape": "encoder", "positions": "learned", "n_token_types": 2, "embedding_norm": True,
             "heads": ("lm",), "lm_head_transform": "gelu", "lm_head_bias": True, "attention_bias": True},
    "albert": {"shape": "encoder", "positions": "learned", "heads": ("lm",), "block_of_layer": (0, 0), "d_embedding": 8,
               "lm_head_transform": "gelu"},
    "xlnet": {"shape": "encoder", "positions": "relative-sinusoidal", "heads": ("lm",)},
    "deberta": {"shape": "encoder", "positions": "disentangled", "relative_norm": True, "heads": ("lm",),
                "lm_head_transform": "gelu"},
    "deberta v2": {"shape": "encoder", "positions": "disentangled", "heads": ("lm",), "embedding_norm": True,
                   "convolution": {"kernel": 5, "groups": 2, "activation": "tanh"}},
    "modernbert": {"shape": "encoder", "heads": ("sequence",), "classifier_transform": "gelu", "transform_norm": True,
                   "first_norm": False, "classifier_input": "mean", "label_names": ("bad", "good"),
                   "rotary_local_theta": 5.0, "sliding_window": 3, "window_pattern": ("global", "local")} | ROTARY,
    "longformer": {"shape": "encoder", "positions": "learned", "heads": ("lm",), "sliding_window": 3,
                   "global_tokens": "first", "global_projections": True},
    "big_bird": {"shape": "encoder", "positions": "learned", "heads": ("lm",),
                 "sparse_blocks": {"size": 1, "random": 1}},
    "longt5": {"positions": "relative", "sliding_window": 3, "global_tokens": "first"} | PRE,
    "t5gemma": {"d_decoder": 24, "d_embedding": 24, "d_decoder_head": 4, "n_decoder_heads": 4, "n_decoder_kv_heads": 1}
    | ROTARY | {"norm_placement": "sandwich"},
    "transformer-xl": {"shape": "decoder", "positions": "relative-sinusoidal", "recurrence": {"size": 5, "reach": 4}},
    "classifier": {"shape": "encoder", "positions": "learned", "heads": ("pooler", "sequence"),
                   "classifier_input": "pooler", "label_names": ("bad", "good")},
    "vit": {"shape": "encoder", "positions": "learned", "image_size": (8, 8), "max_positions": 5, "patch_size": (4, 4),
            "heads": ("sequence",), "label_names": ("bad", "good")} | PRE,
}  # fmt: skip
SHAPES = ["translator", "gpt2", "bert", "classifier", "vit"]


def new_pipeline(name: str) -> Pipeline:
    torch.manual_seed(5)
    special = ["cls", "sep", "mask"] if MODELS[name].get("shape") == "encoder" else []
    settings = TokenizerSettings(kind="char", min_frequency=1, special=special)
    codec = train_tokenizer([LONG], settings)
    config = ModelConfig.parse(SIZES | {"vocab_size": codec.vocab_size} | MODELS[name])
    return Pipeline(add_noise(Transformer(config), 0.3), None if name == "vit" else codec)


def example(name: str) -> tuple:
    """A text, or an image, and a target."""
    if name == "vit":
        return torch.randn(3, 8, 8), "good"
    return TEXT, {"encoder": None, "decoder": " brown"}.get(MODELS[name].get("shape"), LONG)


every = pytest.mark.parametrize("name", MODELS)
each_shape = pytest.mark.parametrize("name", SHAPES)


@every
def test_a_trace_holds_every_hook_point_and_the_logits_of_the_model(name):
    pipe, (text, target) = new_pipeline(name), example(name)
    trace = pipe.trace(text, target)
    assert set(trace) == {name for _, _, names in hook_points(pipe.model) for name in names}
    shown = repr(trace)
    assert shown.startswith(f"<Trace of {len(trace)} hook points")
    kinds = {re.sub(r"\d+", "", name) for name in trace}
    assert len(shown.splitlines()) == 1 + len(kinds)
    ids = [torch.tensor([row]) for row in trace.example.ids.values()] or [text[None]]
    with fast.disabled(), torch.no_grad():
        torch.testing.assert_close(trace.logits, pipe.logits(ids[0], None, *ids[1:])[0])
    last = trace[f"{trace.side}.states.1"]
    assert last.shape == (len(trace.tokens[trace.side]), pipe.config.output_side.stream_width)


@every
def test_a_trace_with_gradients_holds_the_same_values(name):
    pipe, (text, target) = new_pipeline(name), example(name)
    plain, traced = (pipe.trace(text, target, gradients=more) for more in (False, True))
    for point in plain:
        torch.testing.assert_close(traced[point], plain[point], atol=1e-5, rtol=1e-5)


@every
def test_hooks_that_return_their_input_change_no_bit(name):
    pipe, (text, target) = new_pipeline(name), example(name)
    trace = pipe.trace(text, target)
    seen = []
    same = pipe.run_with(
        text, target, hooks={n: lambda x: seen.append(0) or x.clone() for n in trace}
    )
    assert len(seen) == len(trace)
    for point in trace:
        assert torch.equal(same[point], trace[point]), point
    assert torch.equal(same.logits, trace.logits)


@every
def test_tracing_leaves_the_model_as_it_was(name):
    pipe, (text, target) = new_pipeline(name), example(name)
    ids = text[None] if name == "vit" else torch.tensor([pipe.tokenizer.encode([TEXT])[0]])
    before = pipe.logits(ids)
    pipe.trace(text, target)
    assert torch.equal(pipe.logits(ids), before)
    assert not any(point.watched or point._forward_hooks for point, _, _ in hook_points(pipe.model))


@every
def test_the_lens_at_the_last_layer_equals_the_logits(name):
    trace = new_pipeline(name).trace(*example(name))
    assert torch.equal(trace.layer_logits(2), trace.logits)
    assert not torch.equal(trace.layer_logits(1), trace.logits)
    lens = trace.lens(3)
    rows = 1 if trace.logits.dim() == 1 else len(trace.logits)
    assert lens[1].shape[0] == 3 and lens[1][0].numel() == rows * min(3, trace.logits.shape[-1])
    assert torch.equal(lens[1][-1], trace.top(3)[1])


# Hook points of the heads do not see global tokens with projections of their own.
@pytest.mark.parametrize("name", [n for n in MODELS if n != "longformer"])
def test_heads_of_zero_leave_the_bias_of_the_sublayer(name):
    trace = new_pipeline(name).trace(*example(name))
    part = f"{trace.side}.blocks.1.self_attention"
    zeroed = trace.patched([{"name": f"{part}.sublayer.heads", "op": "zero", "heads": range(4)}])
    block = getattr(trace.pipeline.model, trace.side).blocks[-1]
    residual = block.self_attention
    bias = (residual["sublayer"] if name == "falcon" else residual.sublayer).o_proj.bias
    x = torch.zeros_like(zeroed[f"{part}.output"]) + (0 if bias is None else bias.detach())
    expected = residual.exit(x).detach() if name == "gemma2" else x
    torch.testing.assert_close(zeroed[f"{part}.output"], expected)
    if bias is None:
        without = trace.patched([{"name": f"{part}.output", "op": "zero"}])
        torch.testing.assert_close(without.logits, zeroed.logits)
    else:
        moved = trace.pipeline.run_with(
            *example(name), hooks={f"{part}.output": lambda _: expected}
        )
        assert torch.equal(moved.logits, zeroed.logits)
    assert not torch.equal(zeroed.logits, trace.logits)


@pytest.mark.parametrize("name", [n for n in MODELS if n not in ("vit", "classifier")])
def test_copying_all_states_of_the_last_layer_gives_the_logits_of_the_other_text(name):
    pipe = new_pipeline(name)
    _, target = example(name)
    a, b = pipe.trace(TEXT, target), pipe.trace(OTHER, target)
    after, logits, _ = a.effect([{"name": f"{a.side}.states.1", "op": "copy", "from": OTHER}])
    assert torch.equal(after.logits, b.logits)
    torch.testing.assert_close(logits, b.logits - a.logits)
    assert not torch.equal(a.logits, b.logits)


@each_shape
def test_edits_change_the_chosen_heads_and_positions_only(name):
    trace = new_pipeline(name).trace(*example(name))
    point = f"{trace.side}.blocks.0.self_attention.sublayer.heads"
    x = trace[point]
    edit = {"name": point, "heads": [1, 3], "positions": [0, 2]}
    mean = x.mean(-2, keepdim=True).expand_as(x)
    for op, value in (("zero", 0 * x), ("mean", mean), ("scale", -3 * x)):
        found = trace.patched([edit | {"op": op, "value": -3}])[point]
        expected = x.clone()
        for head in (1, 3):
            for position in (0, 2):
                expected[head, position] = value[head, position]
        torch.testing.assert_close(found, expected)
    twice = trace.patched([edit | {"op": "scale", "value": 2}] * 2)
    assert torch.equal(twice[point][1, 0], 4 * x[1, 0])


def test_edited_scores_stay_masked():
    trace = new_pipeline("gpt2").trace(TEXT)
    scores = "decoder.blocks.0.self_attention.sublayer.scores"
    for op in ("zero", "mean", "scale"):
        pattern = trace.patched([{"name": scores, "op": op}])[scores.replace("scores", "pattern")]
        assert not pattern.triu(1).any()
        torch.testing.assert_close(pattern.sum(-1), torch.ones(4, len(pattern[0])))


def test_a_block_that_layers_share_is_edited_in_one_layer():
    trace = new_pipeline("albert").trace(TEXT)
    first, second = (f"encoder.blocks.{n}.feed_forward.output" for n in range(2))
    edited = trace.patched([{"name": second, "op": "zero"}])
    assert torch.equal(edited[first], trace[first]) and edited[first].any()
    assert not edited[second].any()


def test_copies_between_texts_of_different_lengths_need_positions():
    trace = new_pipeline("gpt2").trace(TEXT)
    edit = {"name": "decoder.states.0", "op": "copy", "from": LONG}
    with pytest.raises(DataError, match="14 and 20 tokens"):
        trace.patched([edit])
    found = trace.patched([edit | {"positions": [2]}])["decoder.states.0"]
    assert torch.equal(found[2], trace.of(LONG)["decoder.states.0"][2])
    assert torch.equal(found[3], trace["decoder.states.0"][3])


def test_the_loss_is_that_of_the_next_token_of_masks_and_of_the_class():
    for name, target in (("gpt2", " fox"), ("translator", "fox"), ("classifier", "good")):
        trace = new_pipeline(name).trace(TEXT, target)
        rows = trace.logits.reshape(-1, trace.logits.shape[-1])
        expected = [
            float("nan") if label < 0 else -float(row.log_softmax(-1)[label])
            for row, label in zip(rows, trace.labels.tolist(), strict=True)
        ]
        torch.testing.assert_close(trace.loss, torch.tensor(expected), equal_nan=True)
    bert = new_pipeline("bert")
    trace = bert.trace(f"the qu{bert.tokenizer.names['mask_token']}ck fox.", TEXT)
    assert trace.masks == trace.loss.isnan().logical_not().nonzero()[:, 0].tolist() == [7]
    assert trace.labels[7] == trace.of(TEXT).example.ids["encoder"][7]


# --- gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "llama", "bloom", "gemma2", "falcon"])
def test_no_gradient_reaches_the_future(name):
    trace = new_pipeline(name).trace(TEXT, gradients=True)
    gradient = trace.gradient_x_input(position=5)["decoder"]
    assert gradient[1:6].abs().min() > 0 and not gradient[6:].any()


# Gradients end at segments.
@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in MODELS if n != "transformer-xl"])
def test_gradients_equal_the_change_of_the_logit(name):
    """By the difference quotient in the direction of one position of the embeddings."""
    pipe, (text, target) = new_pipeline(name), example(name)
    pipe.model.double()
    if name == "vit":
        text = text.double()
    trace = pipe.trace(text, target, gradients=True)
    side, step = next(iter(trace.tokens)), 1e-3
    point = f"{side}_embeddings.output"

    def moved(by):
        factor = torch.ones(len(trace[point]), 1, dtype=torch.float64)
        factor[1] += by
        return pipe.run_with(text, target, hooks={point: lambda x: x * factor})

    index = (1,) if trace.logits.dim() == 1 else (-1, 7)
    quotient = (moved(step).logits[index] - moved(-step).logits[index]) / (2 * step)
    found = trace.gradient_x_input(*([None, 1] if len(index) == 1 else index))[side][1]
    torch.testing.assert_close(found, quotient, rtol=1e-2, atol=2e-3)
    losses = (moved(step).loss.nansum() - moved(-step).loss.nansum()) / (2 * step)
    if bool((trace.labels >= 0).any()):
        found = (trace.gradients[point][1] * trace[point][1]).sum()
        torch.testing.assert_close(found, losses, rtol=1e-2, atol=2e-2)


def test_parameters_keep_no_gradients():
    pipe = new_pipeline("gpt2")
    assert pipe.trace(TEXT, gradients=True).gradients
    assert all(parameter.grad is None for parameter in pipe.model.parameters())


# --- errors ---------------------------------------------------------------------------------------

HEADS = "decoder.blocks.0.self_attention.sublayer.heads"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"name": "decoder.states.9", "op": "zero"}, "decoder.states.9: no such hook point"),
        (
            {"name": HEADS, "op": "ablate"},
            "op 'ablate' is not known; use zero, mean, scale or copy",
        ),
        ({"name": HEADS, "op": "zero", "heads": [4]}, "a number from 0 to 3"),
        ({"name": HEADS, "op": "zero", "positions": [14]}, "a number from 0 to 13"),
        ({"name": "decoder.states.0", "op": "zero", "heads": [0]}, "has no heads"),
        ({"name": HEADS, "op": "zero", "head": [0]}, "head: no such key of an edit"),
        ({"name": HEADS, "op": "copy"}, "needs `from`"),
    ],
)
def test_invalid_edits_are_rejected(edit, message):
    with pytest.raises(UsageError, match=message):
        new_pipeline("gpt2").trace(TEXT).patched([edit])


HEADS = {
    "one class of several": {},
    "several labels": {"problem_type": "multi_label_classification"},
    "a single class": {"n_labels": 1, "label_names": ["yes"]},
    "a number": {"n_labels": 1, "label_names": ["score"], "problem_type": "regression"},
}


@pytest.mark.parametrize("kind", HEADS)
def test_a_trace_predicts_what_the_pipeline_predicts(kind, tmp_path):
    """The probability of a label is its own: not a share among labels that do not exclude each
    other, nor that of a number.
    """
    pipe = trifold.load(folder_of("classify", tmp_path, **HEADS[kind]))
    found, expected = pipe.trace("The quick fox"), pipe.classify("The quick fox")
    values, ids = found.top()
    assert found.label_names(ids.tolist()) == [each.label for each in expected]
    scores = [each.score for each in expected]
    assert values.tolist() == pytest.approx(scores, abs=1e-5)
    lens, _ = found.lens()
    assert lens[-1].tolist() == pytest.approx(scores, abs=1e-5)
    session = views.Session(pipe)
    top = views.trace(session, "The quick fox")["top"]
    steps = [step["title"] for step in views.walkthrough(session, "The quick fox")["steps"]]
    if kind == "a number":
        assert top["tokens"] == [f"score = {scores[0]:.4g}"]
        assert top["probabilities"].tolist() == [1]
        assert steps[-1] == "logits"
    else:
        assert top["probabilities"].tolist() == pytest.approx(scores, abs=1e-5)
        assert steps[-1] == ("softmax" if kind == "one class of several" else "sigmoid")
    if kind != "a number":
        label = expected[-1]
        loss = pipe.trace("The quick fox", label.label).loss
        assert math.exp(-float(loss[0])) == pytest.approx(label.score, abs=1e-5)


def test_a_trace_names_the_answers_of_other_heads(tmp_path):
    pipe = trifold.load(folder_of("next-sentence", tmp_path / "pairs"))
    values, ids = pipe.trace("The quick fox").top()
    probabilities = dict(
        zip(pipe.trace("The quick fox").label_names(ids.tolist()), values.tolist(), strict=True)
    )
    logits = pipe.trace("The quick fox").logits
    assert probabilities["follows"] == pytest.approx(float(logits.softmax(-1)[0]))
    assert {*probabilities} == {"follows", "does not follow"}
    # A start and an end are chosen among the tokens.
    found = trifold.load(folder_of("answer", tmp_path / "answer")).trace("The quick fox")
    values, ids = found.top()
    for number, name in enumerate(["start", "end"]):
        own = values[ids == number]
        assert float(own.sum()) == pytest.approx(1)
        assert own.tolist() == pytest.approx(found.logits[:, number].softmax(0).tolist())
        assert found.label_names([number]) == [name]


def test_invalid_arguments_are_rejected():
    pipe, headless = new_pipeline("gpt2"), new_pipeline("bert")
    headless.model = Transformer(headless.config.model_copy(update={"heads": ()}))
    with pytest.raises(UsageError, match="no such hook point"):
        pipe.run_with(TEXT, hooks={"decoder.state.0": lambda x: x})
    for wrong in (lambda x: x[:1], lambda x: 3):
        with pytest.raises(
            UsageError, match=r"decoder.states.0: a hook returns a tensor of shape \(14, 16\)"
        ):
            pipe.run_with(TEXT, hooks={"decoder.states.0": wrong})
    unchanged = pipe.run_with(TEXT, hooks={"decoder.states.0": lambda x: None})
    assert torch.equal(unchanged.logits, pipe.trace(TEXT).logits)
    with pytest.raises(UsageError, match="no head with logits"):
        headless.trace(TEXT).lens()
    with pytest.raises(UsageError, match="gradients=True"):
        print(pipe.trace(TEXT).gradients)
    with pytest.raises(KeyError, match="no such hook point"):
        pipe.trace(TEXT)["decoder.state.0"]
    with pytest.raises(DataError, match="exceed"):
        pipe.trace("x" * 65)
    with pytest.raises(DataError, match="16 tokens"):
        new_pipeline("bert").trace(TEXT, "fox")
    with pytest.raises(UsageError, match="not a class"):
        new_pipeline("classifier").trace(TEXT, "goof")


# --- documentation --------------------------------------------------------------------------------


def test_the_documentation_lists_the_hook_points():
    page = Path(__file__).parents[2] / "docs" / "look.md"
    rows = (
        page.read_text(encoding="utf-8")
        .split("<!-- hook points -->")[1]
        .split("\n\n")[1]
        .splitlines()[2:]
    )
    listed = {row.split("`")[1] for row in rows}
    parts = {
        name.replace("self_attention", "feed_forward")
        for name in listed
        if "self_attention.sub" not in name
    }
    found = {
        re.sub(r"\.\d+", ".N", point)
        .replace("encoder", "decoder")
        .replace("cross_attention", "self_attention")
        for name in MODELS
        for point in new_pipeline(name).trace(*example(name))
    }
    assert found <= listed | parts
    assert listed <= found


def test_the_names_of_transformer_lens_stand_beside_ours():
    page = Path(__file__).parents[2] / "docs" / "look.md"
    table = page.read_text("utf-8").split("<!-- TransformerLens -->")[1].split("\n\n")[1]
    trace = new_pipeline("gpt2").trace(*example("gpt2"))
    ours = re.findall(r"`(decoder[._][\w.]+)`(?:, `(\w+)`)?(?:, `(\w+)`)?", table)
    assert len(ours) == 10
    for name, *others in ours:
        first = name.replace(".N", ".0")
        stem = first.rpartition(".")[0]
        for point in (first, *(f"{stem}.{other}" for other in others if other)):
            assert len(trace[point])


@pytest.mark.parametrize("name", TRANSFORMER_LENS)
def test_methods_of_transformer_lens_are_answered_with_ours(name):
    pipe = new_pipeline("gpt2")
    with pytest.raises(AttributeError, match=f"{name}'; use `.*docs/look.md"):
        getattr(pipe, name)
    with pytest.raises(AttributeError, match=r"no attribute 'walk'$"):
        pipe.walk  # noqa: B018
