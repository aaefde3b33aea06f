"""Losses of distillation against their formulas, and the initial weights of a student."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from tests.models import add_noise
from torch import Tensor
from torch.nn import functional as F

from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.hooks import hooked, record_calls
from trifold.nn.losses import CHUNK
from trifold.nn.masks import Mask
from trifold.nn.packing import Packing
from trifold.objectives.distillation_losses import (
    AttentionRelations,
    _log_relation,
    attention_relations,
    copy_layers,
    cosine_loss,
    evenly_spaced,
    relation_losses,
    soft_target_loss,
)

NAMES = ("attention", "values", "queries", "keys")


def model(layers: int = 2, seed: int = 0, **values: Any) -> Transformer:
    small = {
        **{
            "shape": "decoder",
            "vocab_size": 23,
            "d_model": 16,
            "n_heads": 4,
            "d_ff": 20,
            "dropout": 0.0,
        },
        **{
            "max_positions": 32,
            "positions": "learned",
            "norm_placement": "pre",
            "n_layers": layers,
        },
    }
    torch.manual_seed(seed)
    return add_noise(Transformer(ModelConfig.parse(small | values)), 0.3)


# --- soft targets ---------------------------------------------------------------------------------


@settings(max_examples=15)
@given(st.integers(1, CHUNK + 9), st.sampled_from([0.5, 1.0, 2.0, 8.0]), st.booleans())
def test_soft_target_loss_follows_its_formula_with_gradients(
    rows: int, temperature: float, biased: bool
) -> None:
    generator = torch.Generator().manual_seed(rows)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    student = [random(rows, 6), random(11, 6), random(11) if biased else None]
    table, states = random(11, 4), random(rows, 4)
    results = []
    for fast in (True, False):
        features, weight, bias = (
            None if x is None else x.clone().requires_grad_() for x in student
        )
        if fast:
            loss = soft_target_loss(
                features, weight, bias, lambda h: h @ table.t(), states, temperature
            )
        else:
            p = torch.softmax(states @ table.t() / temperature, -1)
            q = torch.log_softmax(F.linear(features, weight, bias) / temperature, -1)
            loss = temperature**2 * (p * (p.log() - q)).sum()
        (3 * loss).backward()
        results.append(
            [loss.detach(), features.grad, weight.grad, *([bias.grad] if biased else [])]
        )
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def test_losses_of_identical_models_and_their_gradients_are_0() -> None:
    made = model()
    hidden, head = made(Inputs(torch.arange(3, 13)[None]))[0], made.lm_head
    loss = soft_target_loss(
        head.features(hidden), head.weight, head.bias, head, hidden.detach(), 2.0
    )
    assert float(loss.detach()) == pytest.approx(0, abs=1e-5)
    assert float(cosine_loss(hidden, hidden).detach()) == pytest.approx(0, abs=1e-5)
    (gradient,) = torch.autograd.grad(loss, [hidden])
    assert float(gradient.abs().max()) < 1e-5


def test_extreme_logits_give_a_finite_loss() -> None:
    features = torch.tensor([[1e4, -1e4]], requires_grad=True)
    loss = soft_target_loss(
        features, torch.eye(2), None, lambda h: -h, torch.tensor([[1e4, -1e4]]), 1.0
    )
    loss.backward()
    assert float(loss.detach()) == pytest.approx(2e4)
    assert bool(features.grad.isfinite().all())


@given(st.integers(1, 5), st.integers(2, 6))
def test_cosine_loss_follows_its_formula(rows: int, width: int) -> None:
    a, b = torch.randn(rows, width), torch.randn(rows, width)
    expected = sum(
        1 - float(x @ y) / math.sqrt(float(x @ x) * float(y @ y)) for x, y in zip(a, b, strict=True)
    )
    assert float(cosine_loss(a, b)) == pytest.approx(expected, rel=1e-4, abs=1e-5)


# --- relations ------------------------------------------------------------------------------------


def random_relations(
    heads: int, width: int, mask: Mask, rows: int = 2, tokens: int = 5
) -> AttentionRelations:
    pairs = {
        name: (torch.randn(rows, heads, tokens, width), torch.randn(rows, heads, tokens, width))
        for name in NAMES
    }
    return AttentionRelations(pairs, None, mask)


def reference(
    student: AttentionRelations,
    teacher: AttentionRelations,
    name: str,
    heads: int | None,
    allowed: Tensor,
    real: Tensor,
) -> float:
    """A loop over rows, queries and heads; allowed (B, T, T), real (B, T)."""

    def distribution(relations: AttentionRelations, row: int, head: int, query: int) -> Tensor:
        x, y = (
            part[row].transpose(0, 1).flatten(1) for part in relations.factors[name]
        )  # (T, H·D)
        width = x.shape[1] // (heads or relations.factors[name][0].shape[1])
        part = slice(head * width, (head + 1) * width)
        return (y[allowed[row, query], part] @ x[query, part] / math.sqrt(width)).softmax(0)

    total, count = 0.0, heads or teacher.factors[name][0].shape[1]
    for row, query in real.nonzero().tolist():
        for head in range(count):
            p, q = (distribution(look, row, head, query) for look in (teacher, student))
            total += float((p * (p / q).log()).sum()) / count
    return total


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("widths", "heads"), [((4, 4), None), ((4, 3), None), ((4, 6), 2)])
def test_relation_losses_follow_their_formula(
    name: str, widths: tuple[int, int], heads: int | None
) -> None:
    torch.manual_seed(1)
    padded = torch.tensor([[True] * 5, [True, True, True, False, False]])
    full = torch.ones(2, 5, dtype=torch.bool)
    for mask, allowed, real in (
        (Mask(padded), padded[:, None].expand(-1, 5, -1), padded),
        (Mask(causal=True), torch.ones(2, 5, 5).tril().bool(), full),
    ):
        student, teacher = (random_relations(4, width, mask) for width in widths)
        (loss,) = relation_losses(student, teacher, [name], heads).values()
        expected = reference(student, teacher, name, heads, allowed, real)
        assert float(loss) == pytest.approx(expected, rel=1e-4)


KINDS: dict[str, dict[str, Any]] = {
    "learned": {},
    "rotary, shared keys": {"positions": "rotary", "n_kv_heads": 2},
    "unscaled, relative": {"positions": "relative", "attention_scale": 1.0},
    "distances": {"positions": "relative-sinusoidal", "shape": "encoder"},
    "soft cap": {"score_soft_cap": 0.5, "positions": "relative"},
}


def relations_and_weights(made: Transformer, inputs: Inputs) -> tuple[AttentionRelations, Tensor]:
    """The relations of the last layer, and its attention weights."""
    stack = made.encoder if made.decoder is None else made.decoder
    attention = stack.blocks[-1].self_attention.sublayer
    weights: list[Tensor] = []
    with (
        record_calls(attention) as calls,
        hooked(attention, lambda _, x: weights.append(x), "pattern"),
    ):
        made(inputs)
    return attention_relations(attention, calls[-1]), weights[-1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("packed", [False, True])
@torch.no_grad()
def test_the_attention_relation_equals_the_attention_weights_of_the_layer(
    kind: str, packed: bool
) -> None:
    made, lengths = model(**KINDS[kind]), torch.tensor([6, 4])
    tokens = torch.randint(3, 23, (2, 6))
    real = torch.arange(6) < lengths[:, None]
    inputs = Inputs(tokens, real)
    if packed:
        packing = Packing.of(lengths)
        row = torch.zeros(1, packing.length, dtype=torch.long)
        row[0, : packing.n_real] = tokens[real]
        inputs = Inputs(row, packing=packing)
    relations, weights = relations_and_weights(made, inputs)
    allowed = relations.mask.dense(6, 6, tokens.device)
    got = _log_relation(relations, "attention", None, allowed).exp().transpose(1, 2)[real]
    torch.testing.assert_close(got, weights.transpose(1, 2)[real], rtol=1e-4, atol=1e-5)
    losses = relation_losses(relations, relations, NAMES)
    assert all(float(loss) == pytest.approx(0, abs=1e-5) for loss in losses.values())


def test_gradients_reach_the_student_only() -> None:
    student, teacher = model(seed=1), model(seed=2)
    inputs = Inputs(torch.arange(3, 12)[None])
    relations = [relations_and_weights(made, inputs)[0] for made in (student, teacher)]
    sum(relation_losses(relations[0], relations[1], NAMES).values(), torch.zeros(())).backward()
    assert student.decoder.blocks[-1].self_attention.sublayer.v_proj.weight.grad.abs().sum() > 0
    assert all(p.grad is None for p in teacher.parameters())


# --- copied layers --------------------------------------------------------------------------------


def test_layers_are_evenly_spaced_from_first_to_last() -> None:
    assert evenly_spaced(6, 12) == (0, 2, 4, 7, 9, 11)  # DistilBERT's
    assert evenly_spaced(4, 12) == (0, 4, 7, 11)
    assert evenly_spaced(1, 12) == (0,)
    assert evenly_spaced(3, 3) == (0, 1, 2)


def test_copied_layers_keep_their_values_and_their_surroundings() -> None:
    teacher, student = model(5, seed=1), model(3, seed=2)
    copy_layers(student, teacher, (0, 3, 4))
    expected = dict(teacher.named_parameters())
    for name, parameter in student.named_parameters():
        for own, source in {0: 0, 1: 3, 2: 4}.items():
            name = name.replace(f"blocks.{own}.", f"blocks.<{source}>.")
        assert torch.equal(parameter, expected[name.replace("<", "").replace(">", "")])
    student.lm_head.weight.data.zero_()
    assert teacher.lm_head.weight.abs().sum() > 0


def test_a_student_of_all_layers_equals_the_teacher() -> None:
    teacher, student = model(3, seed=1), model(3, seed=2)
    copy_layers(student, teacher, evenly_spaced(3, 3))
    inputs = Inputs(torch.arange(3, 12)[None])
    assert torch.equal(student(inputs), teacher(inputs))


@pytest.mark.parametrize(
    ("layers", "values", "problem"),
    [
        ((0,), {}, r"cannot fill 2 layers of the student's decoder with layers \(0,\)"),
        ((0, 3), {}, r"cannot fill 2 layers of the student's decoder with layers \(0, 3\)"),
        (
            (0, 1),
            {"d_ff": 24},
            r"the teacher has no decoder\.blocks\.0\.feed_forward\.sublayer\.in_proj\.weight",
        ),
        ((0, 1), {"tie_lm_head": False}, r"the teacher has no lm_head\.weight of shape \(23, 16\)"),
    ],
)
def test_layers_that_do_not_fit_are_rejected(
    layers: tuple[int, ...], values: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        copy_layers(model(2, **values), model(3), layers)
