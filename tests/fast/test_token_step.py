"""A decoding step as one program: which models have one, and what ends it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from tests.models import randomize
from torch import Tensor, nn

from trifold import fast
from trifold.fast import decoding_step, layers, token_step
from trifold.fast.block_weight import BlockWeight, blocks_of
from trifold.fast.half_weight import HalfWeight
from trifold.fast.quantized_weight import QuantizedWeight
from trifold.fast.token_step import TokenStep, Unsupported, next_logits
from trifold.generate import GenerationConfig, generate_tokens
from trifold.nn import Cache, Inputs, ModelConfig, RotaryScaling, Transformer, capture
from trifold.nn.ops import PLAIN

pytest.importorskip("numba", reason="the compiled loops need numba: `make setup` installs it")

BASE: dict[str, object] = {
    **{"shape": "decoder", "norm_placement": "pre", "dropout": 0.0, "scale_embeddings": False},
    **{"vocab_size": 50, "max_positions": 200, "d_model": 64, "n_heads": 4, "d_ff": 96},
    **{"n_layers": 2, "norm": "rms", "positions": "rotary", "tie_lm_head": True},
}
SUPPORTED: dict[str, dict[str, object]] = {
    "rotary": {},
    "learned": {"positions": "learned"},
    "sinusoids, scaled embeddings": {"positions": "sinusoidal", "scale_embeddings": True},
    "a rounded scale": {"scale_embeddings": True, "embedding_scale_rounded": True},
    "scaled states and logits": {"logits_scale": 0.3, "logit_soft_cap": 3.0},
    "a head with a bias": {"tie_lm_head": False, "lm_head_bias": True},
    "two rotations": {
        **{"rotary_local_theta": 7.0, "rotary_pattern": ("rotary", "none")},
        **{"rotary_pairs": "interleaved", "rotary_width": 8},
    },
    "scaled frequencies": {
        "rotary_scaling": RotaryScaling(kind="linear", factor=3.0, original_positions=50)
    },
}
UNSUPPORTED: dict[str, dict[str, object]] = {
    "a norm of the embeddings": {"embedding_norm": True},
    "a bias of scores": {"positions": "alibi"},
    "a window": {"sliding_window": 4},
    "frequencies by length": {
        "rotary_scaling": RotaryScaling(kind="dynamic", factor=2.0, original_positions=50)
    },
    "a narrow table": {"d_embedding": 32, "tie_lm_head": False},
}


def random_blocks(matrix: Tensor, *, has_offsets: bool) -> BlockWeight:
    """Random blocks of 4 bits, of the shape of a matrix."""
    rows, columns = matrix.shape
    blocks = blocks_of(columns)
    codes = torch.randint(256, (rows, blocks, 16), dtype=torch.uint8)
    scales = (torch.rand(rows, blocks) / 50).half()
    offsets = (-7 * scales.float()).half() if has_offsets else None
    return BlockWeight.from_codes(codes, scales, offsets, inputs=columns)


WEIGHTS: dict[str, Callable[[Tensor], QuantizedWeight]] = {
    "blocks of 8 bits": lambda matrix: BlockWeight.quantize(matrix, 8),
    "blocks of 6 bits": lambda matrix: BlockWeight.quantize(matrix, 6),
    "blocks of 5 bits": lambda matrix: BlockWeight.quantize(matrix, 5),
    "blocks of levels": lambda matrix: BlockWeight.quantize(matrix, 4),
    "blocks of 4 bits": lambda matrix: random_blocks(matrix, has_offsets=False),
    "blocks with offsets": lambda matrix: random_blocks(matrix, has_offsets=True),
    "bf16": lambda matrix: HalfWeight(matrix.bfloat16(), torch.float32),
    "fp16": lambda matrix: HalfWeight(matrix.half(), torch.float32),
}


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(decoding_step, "MIN_WEIGHTS", 0)
    monkeypatch.setattr(layers, "MIN_WEIGHTS", 0)
    fast.enable()
    with torch.no_grad():
        yield


def new_model(changes: dict[str, object], dtype: torch.dtype = torch.float32) -> Transformer:
    return randomize(Transformer(ModelConfig.parse(BASE | changes))).eval().to(dtype)


def quantize(model: Transformer, new: Callable[[Tensor], QuantizedWeight]) -> None:
    """Replace the matrices of a model; one that modules share stays shared."""
    known: dict[int, QuantizedWeight] = {}
    for module in [*model.modules()]:
        weight = module._parameters.get("weight")
        if weight is not None and weight.dim() == 2:
            if id(weight) not in known:
                known[id(weight)] = new(weight.detach())
            del module.weight
            module.weight = known[id(weight)]


class Text:
    """Rows of a cache that is read token by token, by two operations in turn."""

    def __init__(self, model: Transformer, rows: int = 1, length: int = 5) -> None:
        self.model = model
        self.tokens = torch.randint(3, 50, (rows, length))
        self.cache = self.read()
        self.other = self.read()

    def read(self) -> Cache:
        cache = self.model.new_cache("growing", capacity=200)
        self.model.decode(Inputs(self.tokens), None, cache)
        return cache

    @property
    def step(self) -> object:
        return token_step._steps.get(self.cache)

    def check(self, steps: int = 1, attend: Tensor | None = None) -> None:
        """The logits have the same bits as those of the plain operation."""
        for _ in range(steps):
            tokens = torch.randint(3, 50, (len(self.tokens),))
            given = self.model, self.model.lm_head, tokens, attend, None
            found = next_logits(*given, self.cache)
            assert torch.equal(found, PLAIN["next_logits"](*given, self.other))
            assert self.cache.length == self.other.length


def runs_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each run of a program from now on."""
    runs: list[int] = []
    run = TokenStep.run

    def counted(self: TokenStep, tokens: Tensor) -> Tensor:
        runs.append(len(tokens))
        return run(self, tokens)

    monkeypatch.setattr(TokenStep, "run", counted)
    return runs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("changes", SUPPORTED.values(), ids=SUPPORTED)
def test_a_program_computes_the_bits_of_the_operators(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], dtype: torch.dtype
) -> None:
    """Also after the memory of the cache has grown, and beyond the angles computed at first."""
    runs = runs_of(monkeypatch)
    text = Text(new_model(changes, dtype), rows=2)
    text.check(90)
    assert 80 < len(runs) < 90


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("new", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("width", [64, 40])
def test_tables_of_all_types_have_instructions(
    monkeypatch: pytest.MonkeyPatch,
    new: Callable[[Tensor], QuantizedWeight],
    dtype: torch.dtype,
    width: int,
) -> None:
    model = new_model({"d_model": width}, dtype)
    quantize(model, new)
    model.to(dtype)
    runs = runs_of(monkeypatch)
    Text(model, rows=3).check(4)
    assert runs == [3, 3, 3]


@pytest.mark.parametrize("changes", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_the_operators_compute_what_has_no_instruction(changes: dict[str, object]) -> None:
    text = Text(new_model(changes))
    text.check(4)
    assert text.step is None or isinstance(text.step, Unsupported)


Event = Callable[[Text], object]
EVENTS: dict[str, Event] = {
    "removed tokens": lambda text: [each.truncate(6) for each in (text.cache, text.other)],
    "another order": lambda text: [
        each.reorder(torch.tensor([1, 0])) for each in (text.cache, text.other)
    ],
    "other rows": lambda text: [
        each.select(torch.tensor([1, 0]), torch.tensor([1, 0])) for each in (text.cache, text.other)
    ],
    "more tokens": lambda text: [
        text.model.decode(Inputs(torch.full((2, 3), 7)), None, each)
        for each in (text.cache, text.other)
    ],
}


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_what_happens_to_the_cache_ends_a_program(
    monkeypatch: pytest.MonkeyPatch, event: Event
) -> None:
    text = Text(new_model({}), rows=2)
    text.check(3)
    assert isinstance(text.step, TokenStep)
    runs = runs_of(monkeypatch)
    event(text)
    text.check()
    assert runs == []
    text.check(3)


@contextmanager
def calls_of(module: nn.Module) -> Iterator[list[nn.Module]]:
    """The calls of a module."""
    seen: list[nn.Module] = []
    with module.register_forward_hook(lambda called, args, out: seen.append(called)):
        yield seen


def test_hooks_see_every_value_that_they_observe(monkeypatch: pytest.MonkeyPatch) -> None:
    text = Text(new_model({}))
    text.check(2)
    runs = runs_of(monkeypatch)
    model = text.model
    for module in (model.decoder_embeddings, model.decoder.final_norm, model.lm_head):
        with calls_of(module) as seen:
            text.check()
        assert seen == [module, module]
    with capture(model) as captured:
        text.check()
    assert captured
    assert runs == []
    text.check(2)
    assert runs


def test_padding_ends_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    text = Text(new_model({}), rows=2)
    text.check(2)
    runs = runs_of(monkeypatch)
    attend = torch.ones(2, text.cache.length + 1, dtype=torch.bool)
    attend[0, :2] = False
    text.check(attend=attend)
    assert runs == []


def test_training_ends_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    text = Text(new_model({}))
    text.check(2)
    runs = runs_of(monkeypatch)
    text.model.train()
    text.check()
    text.model.eval()
    given = text.model, text.model.lm_head, torch.tensor([3]), None, None
    with torch.enable_grad():
        assert next_logits(*given, text.read()).requires_grad
    assert runs == []


def test_another_head_ends_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    text = Text(new_model({}))
    text.check(2)
    runs = runs_of(monkeypatch)
    head = copy.deepcopy(text.model.lm_head)
    head.weight.add_(1)
    given = text.model, head, torch.tensor([3]), None, None
    found = next_logits(*given, text.cache)
    assert torch.equal(found, PLAIN["next_logits"](*given, text.other))
    assert runs == []


@pytest.mark.parametrize("token", [50, 10**6, -1])
def test_a_token_without_embedding_is_an_error(token: int) -> None:
    text = Text(new_model({"vocab_size": 50}))
    text.check(2)
    given = text.model, text.model.lm_head, torch.tensor([token]), None, None
    with pytest.raises(IndexError):
        next_logits(*given, text.cache)


def test_a_text_ends_at_the_last_position(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = runs_of(monkeypatch)
    text = Text(new_model({"positions": "learned", "max_positions": 12}))
    text.check(7)
    assert runs
    with pytest.raises(ValueError, match="13 tokens exceed max_positions = 12"):
        next_logits(text.model, text.model.lm_head, torch.tensor([3]), None, None, text.cache)


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"penalty_alpha": 0.5, "top_k": 3}])
def test_searches_find_the_same_outputs(options: dict[str, object]) -> None:
    model = new_model({})
    inputs = Inputs(torch.randint(3, 50, (2, 6)))
    config = GenerationConfig(max_new_tokens=20, **options)
    found = generate_tokens(model, inputs, config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trifold.nn.ops.next_logits", PLAIN["next_logits"])
        assert found == generate_tokens(model, inputs, config)
