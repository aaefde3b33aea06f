"""A batch of one equals a batch of many: tokens and labels are equal, numbers agree to 1e-4, because kernels
choose by shape. The model is wide enough for all kernels.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from tests.models import add_noise
from tests.recipes import WEATHER

from trifold.fast.instruction import FEW_ROWS
from trifold.fast.layers import MIN_WEIGHTS
from trifold.nn import ModelConfig, Transformer
from trifold.pipeline import Pipeline
from trifold.text import TokenizerSettings, train_tokenizer

TOLERANCE = 1e-4
WIDE = {"d_model": 512, "n_layers": 1, "n_heads": 8, "d_ff": 2048, "max_positions": 64}
ENCODER = {"shape": "encoder", "positions": "learned", "attention_bias": True, "n_labels": 3}
MODELS: dict[str, dict[str, Any]] = {
    "translator": {},
    "decoder": {"shape": "decoder"},
    "classifier": ENCODER | {"heads": ["pooler", "sequence"], "classifier_input": "pooler"},
    "tagger": ENCODER | {"heads": ["token"]},
    "reader": ENCODER | {"heads": ["span"]},
    "masked": ENCODER | {"heads": ["lm"], "lm_head_transform": "gelu"},
}


@cache
def texts() -> tuple[str, ...]:
    """More than a kernel for few rows reads, of different lengths."""
    rng = random.Random(3)
    return tuple(" ".join(rng.choices(WEATHER, k=1 + n)) for n in range(FEW_ROWS + 2))


@cache
def pipeline(name: str) -> Pipeline:
    settings = TokenizerSettings(kind="word", min_frequency=1, special=("cls", "sep", "mask"))
    tokenizer = train_tokenizer(texts(), settings)
    torch.manual_seed(3)
    values = WIDE | {"dropout": 0.0, "vocab_size": tokenizer.vocab_size} | MODELS[name]
    model = add_noise(Transformer(ModelConfig.parse(values)), 0.02)
    return Pipeline(model, tokenizer, generation={"max_new_tokens": 6})


Use = Callable[[Pipeline, list[str], int], list[Any]]


def generated(**options: Any) -> Use:
    """The best output with its score; `first` is the number of the first text."""
    return lambda pipe, chosen, first: [
        outputs[0] for outputs in pipe.hypotheses(chosen, first=first, **options)
    ]


USES: dict[str, tuple[str, Use]] = {
    "greedy": ("translator decoder", generated()),
    "beams": ("translator decoder", generated(num_beams=3)),
    "samples": ("translator decoder", generated(do_sample=True, seed=1)),
    "embed": ("translator decoder masked", lambda pipe, chosen, _: pipe.embed(chosen)),
    "classify": ("classifier", lambda pipe, chosen, _: pipe.classify(chosen)),
    "tag": ("tagger", lambda pipe, chosen, _: pipe.tag(chosen, ignore=())),
    "answer": ("reader", lambda pipe, chosen, _: pipe.answer(chosen, chosen)),
    "fill-mask": (
        "masked",
        lambda pipe, chosen, _: pipe.fill_mask([f"{text} <mask>" for text in chosen]),
    ),
}
CASES = [(model, use) for use, (models, _) in USES.items() for model in models.split()]


def differences(one: Any, other: Any) -> Iterator[float]:
    """Of the numbers in two results, whose texts, labels and ids must be equal."""
    if isinstance(one, torch.Tensor):
        yield float((one - other).abs().max())
    elif isinstance(one, float):
        yield abs(one - other)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for first, second in zip(one, other, strict=True):
            yield from differences(first, second)
    else:
        assert one == other


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("model", "use"), CASES)
def test_a_batch_of_one_equals_a_batch_of_many(model, use):
    pipe, run = pipeline(model), USES[use][1]
    together = run(pipe, list(texts()), 0)
    alone = [run(pipe, [text], number)[0] for number, text in enumerate(texts())]
    found = list(differences(together, alone))
    assert found and max(found) <= TOLERANCE


def test_the_model_of_these_tests_reaches_the_kernels_for_few_rows():
    """Their sums have another order, so some bits differ."""
    assert math.prod((WIDE["d_model"], WIDE["d_ff"])) >= MIN_WEIGHTS
    pipe = pipeline("masked")
    alone = [pipe.embed(text) for text in texts()]
    found = list(differences(pipe.embed(list(texts())), alone))
    assert 0 < max(found) <= TOLERANCE
