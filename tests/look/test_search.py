"""The tree of a search is that of the real search: its outputs, its scores, and what it discards."""

from __future__ import annotations

import math

import pytest
import torch
from tests.models import TWO_LAYERS

from trifold.errors import UsageError
from trifold.generate import generate_tokens, resolve
from trifold.look.requests import answer
from trifold.look.search import search
from trifold.look.session import Session
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.pipeline import Pipeline

TEXT = "the quick fox."
SETTINGS = [
    {"num_beams": 1},
    {"num_beams": 3},
    {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    {"samples": 3, "top_k": 5, "temperature": 2.0},
]


@pytest.fixture(params=["encoder-decoder", "decoder"])
def session(request, pipeline) -> Session:
    """Nothing forbidden, so that the forward pass has the same probabilities."""
    if request.param == "encoder-decoder":
        return Session(Pipeline(pipeline.model, pipeline.tokenizer, pipeline.target_tokenizer))
    return Session(request.getfixturevalue("decoder"))


@pytest.fixture
def decoder(pipeline) -> Pipeline:
    torch.manual_seed(5)
    sizes = TWO_LAYERS | {"max_positions": 64}
    config = ModelConfig(**sizes, shape="decoder", vocab_size=pipeline.reader.vocab_size)
    return Pipeline(Transformer(config).eval(), pipeline.reader)


def prefixes(nodes: list[dict]) -> list[list[int]]:
    """The ids from the start to each node."""
    found: list[list[int]] = []
    for node in nodes:
        found.append([] if node["parent"] < 0 else [*found[node["parent"]], node["id"]])
    return found


def log_prob(pipeline: Pipeline, ids: list[int]) -> float:
    """The sum of the log-probabilities of the output `ids`, from one forward pass."""
    (source,), config = pipeline.read([TEXT]), pipeline.config
    first = config.shape == "decoder"
    tokens = torch.tensor([source + ids[:-1] if first else [config.start_id, *ids[:-1]]])
    logits = (
        pipeline.logits(tokens)
        if first
        else pipeline.logits(torch.tensor([source]), decoder_tokens=tokens)
    )
    rows = logits[0, -len(ids) :].log_softmax(-1)
    return float(rows[torch.arange(len(ids)), torch.tensor(ids)].sum().detach())


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_outputs_are_those_of_the_pipeline(session, settings):
    options = {**settings, "max_new_tokens": 6}
    tree = search(session, TEXT, **options)
    if samples := options.pop("samples", 0):
        options |= {"do_sample": True, "seed": 0, "num_return_sequences": samples}
    (expected,) = session.pipeline.hypotheses(
        [TEXT], **{"num_return_sequences": options.get("num_beams", 1), **options}
    )
    ends, paths = [session.pipeline.config.eos_id], prefixes(tree["nodes"])
    assert [each["score"] for each in tree["outputs"]] == [each.score for each in expected]
    for found, output in zip(tree["outputs"], expected, strict=True):
        ids = paths[found["node"]]
        assert (ids[:-1] if ids[-1] in ends else ids) == output.tokens
        assert found["finish_reason"] == output.finish_reason
        node = tree["nodes"][found["node"]]
        assert node["reason"].startswith("output")
        if "num_beam_groups" not in options:
            assert node["score"] / len(ids) == pytest.approx(output.score, rel=1e-4)
    assert tree["outputs"][0]["text"] == session.pipeline.generate(TEXT, **options)


@pytest.mark.parametrize("settings", [SETTINGS[n] for n in (0, 1, 3)], ids=str)
@pytest.mark.parametrize("forced", [[], [5, 7]], ids=str)
def test_scores_are_sums_of_log_probabilities_of_the_forward_pass(session, settings, forced):
    nodes = search(session, TEXT, forced, **settings, max_new_tokens=5, bad_words_ids=[])["nodes"]
    for node, ids in list(zip(nodes, prefixes(nodes), strict=True))[1:]:
        if node["kept"]:
            assert node["score"] == pytest.approx(log_prob(session.pipeline, ids), abs=2e-4)
            assert ids[:2] == forced[: len(ids)] or not forced


def test_what_fell_out_of_the_beam_is_less_probable_than_what_stayed(session):
    nodes = search(session, TEXT, num_beams=3, max_new_tokens=6)["nodes"]
    paths, checked = prefixes(nodes), 0
    for length in range(1, 7):
        level = [node for node, ids in zip(nodes, paths, strict=True) if len(ids) == length]
        stayed = [each["score"] for each in level if each["kept"]]
        fallen = [each["score"] for each in level if "fell out" in each["reason"]]
        late = [each["score"] for each in level if each["reason"].startswith("ends at rank")]
        assert len(level) == 6 and len(stayed) >= 3
        assert max([*fallen, *late]) <= sorted(stayed)[-3]
        checked += len(fallen)
    assert checked >= 5 and sum("output" in node["reason"] for node in nodes) >= 3


def test_a_filter_of_the_sampler_is_the_reason_of_what_it_cut(session):
    nodes = search(session, TEXT, samples=2, top_k=2, max_new_tokens=4)["nodes"]
    for parent in {node["parent"] for node in nodes[1:]}:
        children = [node for node in nodes if node["parent"] == parent]
        children.sort(key=lambda node: -node["probability"])
        assert [node["reason"] == "cut by top_k 2" for node in children] == [
            n >= 2 for n in range(len(children))
        ]


def next_logits(pipeline: Pipeline, ids: list[int]) -> torch.Tensor:
    """Of the token after the output `ids`, from one forward pass."""
    (source,), config = pipeline.read([TEXT]), pipeline.config
    if config.shape == "decoder":
        return pipeline.logits(torch.tensor([source + ids]))[0, -1]
    tokens = torch.tensor([[config.start_id, *ids]])
    return pipeline.logits(torch.tensor([source]), decoder_tokens=tokens)[0, -1]


def plain_distribution(logits, seen, temperature=1.0, penalty=1.0, top_k=None, top_p=None):
    """The probabilities after a repetition penalty, temperature, top-k and top-p, in plain words."""
    values = logits.tolist()
    for token in seen:
        values[token] *= 1 / penalty if values[token] > 0 else penalty
    powers = [math.exp(value / temperature) for value in values]
    order = sorted(range(len(powers)), key=lambda token: -powers[token])
    order = order[:top_k]
    total, mass, kept = sum(powers[token] for token in order), 0.0, []
    for token in order:
        if top_p is None or mass < top_p:
            kept.append(token)
        mass += powers[token] / total
    total = sum(powers[token] for token in kept)
    return [powers[token] / total if token in kept else 0.0 for token in range(len(powers))]


DISTRIBUTIONS = [
    {"temperature": 0.3},
    {"temperature": 2.0},
    {"temperature": 0.7, "top_k": 3},
    {"top_p": 0.6},
    {"temperature": 1.5, "top_k": 6, "top_p": 0.8, "repetition_penalty": 1.7},
]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("settings", DISTRIBUTIONS, ids=str)
def test_a_token_has_the_probability_of_the_model_and_that_of_the_sampler(session, settings):
    pipe, options = session.pipeline, {"samples": 2, "max_new_tokens": 4, "bad_words_ids": []}
    nodes = search(session, TEXT, **options, **settings)["nodes"]
    (source,), paths = pipe.read([TEXT]), prefixes(nodes)
    start = source if pipe.config.shape == "decoder" else [pipe.config.start_id]
    plain = dict(settings)
    plain["penalty"] = plain.pop("repetition_penalty", 1.0)
    for node, ids in list(zip(nodes, paths, strict=True))[1:]:
        logits = next_logits(pipe, ids[:-1]).detach()
        own = float(logits.softmax(-1)[node["id"]])
        assert node["probability"] == pytest.approx(own, rel=1e-3)
        expected = plain_distribution(logits, {*start, *ids[:-1]}, **plain)[node["id"]]
        assert node["adjusted"] == pytest.approx(expected, rel=1e-3, abs=1e-9)
        assert node["adjusted"] > 0 or not node["kept"]


@pytest.mark.quick_cases(1)
def test_beams_and_greedy_decoding_have_both_probabilities(session):
    pipe = session.pipeline
    (source,), start = pipe.read([TEXT]), [pipe.config.start_id]
    start = source if pipe.config.shape == "decoder" else start
    shared = {"repetition_penalty": 1.7, "max_new_tokens": 4, "bad_words_ids": []}
    for beams in (1, 3):
        nodes = search(session, TEXT, num_beams=beams, **shared)["nodes"]
        for node, ids in list(zip(nodes, prefixes(nodes), strict=True))[1:]:
            token, logits = node["id"], next_logits(pipe, ids[:-1]).detach()
            assert node["probability"] == pytest.approx(float(logits.softmax(-1)[token]), rel=1e-3)
            seen = {*start, *ids[:-1]}
            expected = plain_distribution(logits, seen, penalty=1.7)[token]
            if beams > 1:  # the penalty is applied to the log-probability, as in transformers
                value = float(logits.log_softmax(-1)[token])
                expected = math.exp(value * 1.7 if token in seen else value)
            assert node["adjusted"] == pytest.approx(expected, rel=1e-3)


def test_a_uniform_draw_gives_its_tokens_equal_probabilities(session):
    nodes = search(session, TEXT, samples=2, top_k=4, top_k_form="uniform", max_new_tokens=3)[
        "nodes"
    ]
    assert {round(node["adjusted"], 6) for node in nodes[1:]} <= {0.0, 0.25}


LARGE = [
    ({"num_beams": 100_000}, "num_beams 100,000: the tree shows at most 256"),
    ({"samples": 100_000}, "samples 100,000: the tree shows at most 256"),
    ({"num_beams": 200, "max_new_tokens": 60}, "lower the length to 49, or num_beams"),
    ({"num_beams": 100_000, "num_beam_groups": 2, "diversity_penalty": 1.0}, "num_beams 100,000"),
    ({"samples": 256, "max_new_tokens": 60}, "lower the length to 13, or samples"),
]


@pytest.mark.parametrize(("options", "message"), LARGE, ids=str)
def test_a_search_that_may_be_too_large_does_not_begin(pipeline, options, message, monkeypatch):
    monkeypatch.setattr("trifold.look.search.generate_tokens", None)
    with pytest.raises(UsageError, match=message):
        answer(Session(pipeline), "search", {"text": TEXT, **options})


def test_a_length_that_is_not_given_is_lowered(pipeline, monkeypatch):
    monkeypatch.setattr("trifold.look.search.MAX_NODES", 50)
    tree = search(Session(pipeline), TEXT, num_beams=4)
    assert tree["settings"]["max_new_tokens"] == 6 and len(tree["nodes"]) <= 50


@pytest.mark.parametrize("session", ["encoder-decoder"], indirect=True)
def test_a_forced_token_is_the_first_as_with_forced_bos(session):
    for token in (5, 8):
        tree = search(session, TEXT, [token], num_beams=3, max_new_tokens=6)
        options = {"num_beams": 3, "max_new_tokens": 6, "forced_bos_token_id": token}
        assert tree["outputs"][0]["text"] == session.pipeline.generate(TEXT, **options)


def test_forced_tokens_continue_a_decoder_as_if_they_were_its_prompt(decoder):
    forced = [5, 7, 9]
    tree = search(Session(decoder), TEXT, forced, num_beams=1, max_new_tokens=9)
    prompt = torch.tensor([decoder.read([TEXT])[0] + forced])
    (expected,) = decoder.generate_tokens(prompt, max_new_tokens=6)
    ids = prefixes(tree["nodes"])[tree["outputs"][0]["node"]]
    assert ids[:3] == forced and ids[3 : 3 + len(expected)] == expected


@pytest.mark.parametrize(
    "settings", [{"num_beams": 3}, {"do_sample": True, "seed": 4}, {}], ids=str
)
def test_a_hook_that_changes_nothing_changes_no_bit(session, settings):
    class Watch:
        steps = 0

        def process(self, logits, context):
            return logits

        def step(self, state, rows, tokens, scores, kept, ended):
            assert rows.shape == tokens.shape == scores.shape == kept.shape == ended.shape
            self.steps += 1

    pipeline, watch = session.pipeline, Watch()
    inputs = Inputs(torch.tensor(pipeline.read([TEXT, TEXT])))
    config = resolve(pipeline.generation, {**settings, "max_new_tokens": 6})
    plain, watched = (
        generate_tokens(pipeline.model, inputs, config, hook=hook) for hook in (None, watch)
    )
    assert plain == watched and watch.steps > 0


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"forced": [0], "num_beams": 2}, "forced: token 0"),
        ({"forced": [10**6], "num_beams": 2}, "forced: token 1000000"),
        ({"penalty_alpha": 0.5, "top_k": 4, "num_beams": 1}, "penalty_alpha"),
        ({"num_bems": 3}, "num_beams"),
    ],
    ids=str,
)
def test_what_has_no_tree_is_refused(pipeline, params, message):
    with pytest.raises(UsageError, match=message):
        answer(Session(pipeline), "search", {"text": TEXT, **params})


@pytest.mark.parametrize("one_stack", ["encoder"], indirect=True)
def test_a_model_that_cannot_generate_has_no_view(one_stack, pipeline):
    assert not answer(Session(one_stack), "model", {})["generates"]
    assert answer(Session(pipeline), "model", {})["generates"]
    with pytest.raises(UsageError, match="cannot generate"):
        answer(Session(one_stack), "search", {"text": TEXT})
