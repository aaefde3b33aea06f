"""The estimated memory of a request is near what PyTorch allocates while it runs. A process grows
by more, because the allocator does not return all at once.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.laws.parts import values_of
from torch.profiler import ProfilerActivity, profile

from trifold import fast, memory
from trifold.costs import Workload, request_memory, states_of_layers
from trifold.errors import NotEnoughMemoryError
from trifold.generate import GenerationConfig, generate_tokens
from trifold.look import read_attention
from trifold.look.attention import draw_heads
from trifold.look.page import write_page
from trifold.look.requests import answer
from trifold.look.session import Session
from trifold.nn import PRESETS, Inputs, ModelConfig, Transformer, capture
from trifold.pipeline import Pipeline
from trifold.predict.embed import embed
from trifold.predict.model_reader import ModelReader
from trifold.text import TokenizerSettings, train_tokenizer

ROWS, TOKENS = 2, 256
SIZES = {"d_model": 64, "d_ff": 256, "vocab_size": 500, "max_positions": 320, "dropout": 0.0}
# Classical shapes, and every part that answers for itself.
PARTS = (
    *("encoder-decoder", "encoder", "decoder", "window", "experts", "sinks"),
    *("relative", "relative sinusoids", "segment offsets", "disentangled", "recurrence"),
    *("low rank", "lsh", "latent", "spans"),
)


@contextmanager
def allocations() -> Iterator[dict[str, int]]:
    """`peak`: the largest number of bytes that were allocated and not freed meanwhile."""
    found = {"peak": 0}
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        yield found
    results: Any = profiled.profiler
    used = 0
    for event in results.kineto_results.events():
        if event.name() == "[memory]":
            used += event.nbytes()
            found["peak"] = max(found["peak"], used)


def new_model(name: str) -> Transformer:
    values = values_of((name,))
    own = {key: value for key, value in SIZES.items() if key != "max_positions"}
    config = ModelConfig.parse(values | own | {"max_positions": SIZES["max_positions"]})
    return Transformer(config).eval()


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", PARTS)
def test_the_memory_of_a_forward_pass_is_near_its_estimate(name: str) -> None:
    model = new_model(name)
    config = model.config
    attend = torch.arange(TOKENS)[None] < torch.tensor([[TOKENS], [TOKENS // 2]])
    inputs = [Inputs(torch.randint(4, config.vocab_size, (ROWS, TOKENS)), attend)]
    if config.shape == "encoder-decoder":
        inputs.append(Inputs(torch.randint(4, config.output_vocab_size, (ROWS, TOKENS))))
    fast.enable()
    for is_watched in (False, True):
        with torch.no_grad(), allocations() as found, ExitStack() as recording:
            if is_watched:
                recording.enter_context(capture(model))
            model(*inputs)
        work = Workload(ROWS, TOKENS, TOKENS, is_watched=is_watched)
        estimate = request_memory(config, work).total
        assert 0.55 < found["peak"] / estimate < 2, (is_watched, found, estimate)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("decoder", {"num_beams": 8}),
        ("encoder-decoder", {"num_beams": 8}),
        ("decoder", {"do_sample": True, "num_return_sequences": 8, "top_p": 0.9}),
    ],
)
def test_the_memory_of_a_search_is_near_its_estimate(name: str, options: dict[str, Any]) -> None:
    model = new_model(name)
    inputs = Inputs(torch.randint(4, 500, (ROWS, 200)))
    config = GenerationConfig(max_new_tokens=100, min_new_tokens=100, seed=1, **options)
    with allocations() as found:
        generate_tokens(model, inputs, config)
    tokens = 300 if name == "decoder" else 101
    source = 0 if name == "decoder" else 200
    work = Workload(ROWS, source, 1, past=tokens, scored=1, outputs=8, cached=tokens)
    estimate = request_memory(model.config, work).total
    assert 0.55 < found["peak"] / estimate < 2, (found, estimate)


@pytest.mark.parametrize("name", PRESETS)
def test_default_batches_of_presets_fit_into_two_gib(name: str) -> None:
    config = PRESETS[name]
    for work in (
        Workload(32, 128, 128),
        Workload(4, 128, 128, is_watched=True, scored=128),
        Workload(20, 40, 1, past=100, outputs=5, scored=1, cached=100),
    ):
        assert request_memory(config, work).total < 2**31


TEXT = "the quick fox " * 10
# The use, the setting or the text that the message names, and the remedy.
USES: list[tuple[Callable[[Pipeline], object], str, str]] = [
    (
        lambda pipe: pipe.generate(TEXT),
        "1 rows of up to [0-9]+ tokens",
        "read shorter or fewer texts",
    ),
    (
        lambda pipe: pipe.generate("the", max_new_tokens=300),
        "max_new_tokens 300: 1 rows",
        "lower it",
    ),
    (lambda pipe: pipe.generate("the", num_beams=20), "num_beams 20: 20 rows", "lower it"),
    (lambda pipe: pipe.generate("the", penalty_alpha=0.6, top_k=20), "top_k 20: 20 rows", "lower"),
    (lambda pipe: pipe.embed([TEXT] * 2), "2 inputs of 140 tokens", "lower batch_tokens"),
    (lambda pipe: pipe.embed(TEXT), "1 inputs of 140 tokens", "shorten the text"),
    (lambda pipe: pipe.logits(TEXT), "logits of 1 rows of 140 tokens", r"torch.no_grad\(\)"),
    (
        lambda pipe: pipe.hidden_states(TEXT),
        "states of 1 rows of 140 tokens after each layer",
        "give fewer or shorter rows",
    ),
    (lambda pipe: pipe.trace(TEXT), "the activations of 140 tokens", "shorten the text"),
    (
        lambda pipe: read_attention(pipe, TEXT, "x"),
        "the activations of 141 tok",
        "shorten the text",
    ),
]


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    settings = TokenizerSettings(kind="char", min_frequency=1)
    tokenizer = train_tokenizer([TEXT], settings)
    model = {"shape": "decoder", "positions": "rotary", "max_positions": 400, "d_model": 16}
    sizes = {"vocab_size": tokenizer.vocab_size, "n_layers": 1, "n_heads": 2, "d_ff": 16}
    return Pipeline(Transformer(ModelConfig.parse(model | sizes)), tokenizer)


@pytest.mark.parametrize(("use", "named", "remedy"), USES)
def test_every_use_refuses_what_does_not_fit(
    pipeline: Pipeline,
    use: Callable[[Pipeline], object],
    named: str,
    remedy: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "UNCHECKED", 0)
    monkeypatch.setattr(memory, "available_memory", lambda device: (5 * 10**4, "here"))
    with pytest.raises(NotEnoughMemoryError, match=f"^{named}.* available .here.; .*{remedy}"):
        use(pipeline)
    monkeypatch.setattr(memory, "available_memory", lambda device: (2**40, "here"))
    use(pipeline)


# The use, the available bytes at each check, and the message of the last.
RESULTS: list[tuple[Callable[[Pipeline], object], list[int], str]] = [
    (
        lambda pipe: pipe.embed(["the", "fox"]),
        [2**40, 127],
        r"the results of 2 inputs need .*; give fewer inputs at once",
    ),
    (
        lambda pipe: answer(Session(pipe), "trace", {"text": "the"}),
        [2**40, 0],
        r"trace: its arrays need .*; shorten the text",
    ),
    (
        lambda pipe: write_page(Session(pipe), "the", None, Path("a.html")),
        [2**40, 0],
        r"a page with \d+ attention weights need .*; shorten the text, or draw .*",
    ),
    (
        lambda pipe: draw_heads(read_attention(pipe, "the", "x")),
        [2**40, 0],
        r"a picture of \d+ attention weights need .*; choose a layer and a head, or shorten .*",
    ),
]


@pytest.mark.parametrize(("use", "available", "message"), RESULTS)
def test_results_are_compared_with_the_memory(
    pipeline: Pipeline,
    use: Callable[[Pipeline], object],
    available: list[int],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(memory, "UNCHECKED", 0)
    left = iter(available)
    monkeypatch.setattr(memory, "available_memory", lambda device: (next(left), "here"))
    with pytest.raises(NotEnoughMemoryError, match=f"^{message}$"):
        use(pipeline)
    monkeypatch.setattr(memory, "available_memory", lambda device: (2**40, "here"))
    use(pipeline)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last", "max"])
def test_vectors_do_not_keep_the_states_of_all_tokens(pipeline: Pipeline, pooling: str) -> None:
    reader = ModelReader(pipeline.model, pipeline.tokenizer)
    (vector,) = embed(reader, [TEXT], pooling=pooling)  # type: ignore[arg-type]
    assert vector.untyped_storage().nbytes() == vector.nbytes


@pytest.mark.parametrize("name", ["encoder", "encoder-decoder"])
def test_the_memory_of_states_of_all_layers_is_near_its_estimate(name: str) -> None:
    pipe = Pipeline(new_model(name))
    tokens = torch.randint(4, 500, (ROWS, TOKENS))
    fast.enable()
    with allocations() as found:
        pipe.hidden_states(tokens)
    returned = 4 * states_of_layers(pipe.config, ROWS, TOKENS, TOKENS)
    estimate = request_memory(pipe.config, Workload(ROWS, TOKENS, TOKENS)).total + returned
    assert 0.5 < found["peak"] / estimate < 2, (found, estimate)


def test_a_session_drops_old_traces_for_a_new_one(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(pipeline)
    first = weakref.ref(session.trace("the quick"))
    monkeypatch.setattr(memory, "UNCHECKED", 0)
    free = {True: 0, False: 2**40}  # by whether the first trace is in memory
    monkeypatch.setattr(memory, "available_memory", lambda device: (free[first() is not None], ""))
    assert session.trace("the fox").tokens and first() is None
