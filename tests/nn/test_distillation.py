"""Losses of distillation against their formulas, and where a student begins."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.nn import functional as F

from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.distillation import (
    AttentionRelations,
    attention_relations,
    copy_layers,
    cosine_loss,
    evenly_spaced,
    relation_losses,
    soft_target_loss,
)
from trifold.nn.hooks import record_calls
from trifold.nn.losses import CHUNK
from trifold.nn.masks import Mask
from trifold.nn.packing import Packing

NAMES = ("attention", "values", "queries", "keys")


def model(layers: int = 2, seed: int = 0, **values: Any) -> Transformer:
    small = {
        **{"shape": "decoder", "vocab_size": 23, "d_model": 16, "n_heads": 4, "d_ff": 20, "dropout": 0.0},
        **{"max_positions": 32, "positions": "learned", "norm_placement": "pre", "n_layers": layers},
    }
    torch.manual_seed(seed)
    made = Transformer(ModelConfig.parse(small | values)).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return made


# --- soft targets --------------------------------------------------------------------------------------


@settings(max_examples=15)
@given(st.integers(1, CHUNK + 9), st.sampled_from([0.5, 1.0, 2.0, 8.0]), st.booleans())
def test_soft_targets_are_the_formula_and_its_gradients(rows: int, temperature: float, biased: bool) -> None:
    generator = torch.Generator().manual_seed(rows)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    mine = [drawn(rows, 6), drawn(11, 6), drawn(11) if biased else None]
    table, states = drawn(11, 4), drawn(rows, 4)
    ways = []
    for fast in (True, False):
        features, weight, bias = (None if x is None else x.clone().requires_grad_() for x in mine)
        if fast:
            loss = soft_target_loss(features, weight, bias, lambda h: h @ table.t(), states, temperature)
        else:
            p = torch.softmax(states @ table.t() / temperature, -1)
            q = torch.log_softmax(F.linear(features, weight, bias) / temperature, -1)
            loss = temperature**2 * (p * (p.log() - q)).sum()
        (3 * loss).backward()
        ways.append([loss.detach(), features.grad, weight.grad, *([bias.grad] if biased else [])])
    for ours, expected in zip(*ways, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def test_a_student_that_is_the_teacher_has_nothing_to_learn() -> None:
    twin = model()
    assert twin.lm_head is not None
    hidden = twin(Inputs(torch.arange(3, 13)[None]))[0]
    head = twin.lm_head
    loss = soft_target_loss(head.features(hidden), head.weight, head.bias, head, hidden.detach(), 2.0)
    assert float(loss.detach()) == pytest.approx(0, abs=1e-5)
    assert float(cosine_loss(hidden, hidden).detach()) == pytest.approx(0, abs=1e-5)
    (gradient,) = torch.autograd.grad(loss, [hidden])
    assert float(gradient.abs().max()) < 1e-5


def test_absurd_logits_stay_finite() -> None:
    features = torch.tensor([[1e4, -1e4]], requires_grad=True)
    loss = soft_target_loss(features, torch.eye(2), None, lambda h: -h, torch.tensor([[1e4, -1e4]]), 1.0)
    loss.backward()
    assert float(loss) == pytest.approx(2e4)
    assert features.grad is not None and bool(features.grad.isfinite().all())


@given(st.integers(1, 5), st.integers(2, 6))
def test_cosine_is_the_formula(rows: int, width: int) -> None:
    a, b = torch.randn(rows, width), torch.randn(rows, width)
    expected = sum(
        1 - float(x @ y) / math.sqrt(float(x @ x) * float(y @ y)) for x, y in zip(a, b, strict=True)
    )
    assert float(cosine_loss(a, b)) == pytest.approx(expected, rel=1e-4, abs=1e-5)


# --- relations -----------------------------------------------------------------------------------------


def random_look(heads: int, width: int, mask: Mask, rows: int = 2, tokens: int = 5) -> AttentionRelations:
    pairs = {
        name: (torch.randn(rows, heads, tokens, width), torch.randn(rows, heads, tokens, width))
        for name in NAMES
    }
    return AttentionRelations(pairs, None, mask)


def by_hand(
    student: AttentionRelations,
    teacher: AttentionRelations,
    name: str,
    heads: int | None,
    seen: Tensor,
    real: Tensor,
) -> float:
    """seen (B, T, T), real (B, T): a loop over everything."""

    def distribution(look: AttentionRelations, row: int, head: int, query: int) -> Tensor:
        x, y = (part[row].transpose(0, 1).flatten(1) for part in look.factors[name])  # (T, H·D)
        cut = x.shape[1] // (heads or look.factors[name][0].shape[1])
        part = slice(head * cut, (head + 1) * cut)
        keys = [key for key in range(len(y)) if seen[row, query, key]]
        return torch.stack([x[query, part] @ y[key, part] / math.sqrt(cut) for key in keys]).softmax(0)

    total, count = 0.0, heads or teacher.factors[name][0].shape[1]
    for row, query in real.nonzero().tolist():
        for head in range(count):
            p, q = (distribution(look, row, head, query) for look in (teacher, student))
            total += float((p * (p / q).log()).sum()) / count
    return total


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("widths", "heads"), [((4, 4), None), ((4, 3), None), ((4, 6), 2)])
def test_relations_are_the_formula(name: str, widths: tuple[int, int], heads: int | None) -> None:
    torch.manual_seed(1)
    real = torch.tensor([[True] * 5, [True, True, True, False, False]])
    mask = Mask(real)
    student, teacher = (random_look(4, width, mask) for width in widths)
    (found,) = relation_losses(student, teacher, [name], heads).values()
    expected = by_hand(student, teacher, name, heads, real[:, None].expand(-1, 5, -1), real)
    assert float(found) == pytest.approx(expected, rel=1e-4)
    causal = Mask(causal=True)
    student, teacher = (AttentionRelations(look.factors, None, causal) for look in (student, teacher))
    every = torch.ones(2, 5, dtype=torch.bool)
    (found,) = relation_losses(student, teacher, [name], heads).values()
    expected = by_hand(student, teacher, name, heads, torch.ones(2, 5, 5).tril().bool(), every)
    assert float(found) == pytest.approx(expected, rel=1e-4)


KINDS: dict[str, dict[str, Any]] = {
    "learned": {},
    "rotary, shared keys": {"positions": "rotary", "n_kv_heads": 2},
    "unscaled, relative": {"positions": "relative", "attention_scale": 1.0},
    "distances": {"positions": "relative-sinusoidal", "shape": "encoder"},
}


def look_at(made: Transformer, inputs: Inputs) -> tuple[AttentionRelations, Tensor]:
    """The last layer's relations, and the attention weights that it has by itself."""
    stack = made.encoder if made.decoder is None else made.decoder
    assert stack is not None
    attention = stack.blocks[-1].self_attention.sublayer  # type: ignore[union-attr]
    weights: list[Tensor] = []
    attention.pattern.watched = True  # type: ignore[union-attr]
    hook = attention.pattern.register_forward_hook(lambda _m, _a, out: weights.append(out))  # type: ignore[union-attr]
    with record_calls(attention) as seen:  # type: ignore[arg-type]
        made(inputs)
    hook.remove()
    return attention_relations(attention, seen[-1]), weights[-1]  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("packed", [False, True])
@torch.no_grad()
def test_the_attention_relation_is_the_models_own_attention(kind: str, packed: bool) -> None:
    """Scores of the pair, their offsets and the mask are what the layer itself gives to its softmax."""
    made, lengths = model(**KINDS[kind]), torch.tensor([6, 4])
    tokens = torch.randint(3, 23, (2, 6))
    real = torch.arange(6) < lengths[:, None]
    inputs = Inputs(tokens, real)
    if packed:
        packing = Packing.of(lengths)
        row = torch.zeros(1, packing.length, dtype=torch.long)
        row[0, : packing.real] = tokens[real]
        inputs = Inputs(row, packing=packing)
    look, weights = look_at(made, inputs)
    asking, found = look.factors["attention"]
    scores = asking @ found.transpose(-1, -2) / math.sqrt(asking.shape[-1])
    scores = scores if look.bias is None else scores + look.bias
    allowed = look.mask.dense(6, 6, scores.device)
    assert allowed is not None
    scores = scores.masked_fill(~allowed, float("-inf"))
    own = scores.softmax(-1).transpose(1, 2)[real]
    torch.testing.assert_close(own, weights.transpose(1, 2)[real], rtol=1e-4, atol=1e-5)
    zero = relation_losses(look, look, NAMES)
    assert all(float(loss) == pytest.approx(0, abs=1e-5) for loss in zero.values())


def test_gradients_reach_the_student_and_not_the_teacher() -> None:
    student, teacher = model(seed=1), model(seed=2)
    inputs = Inputs(torch.arange(3, 12)[None])
    looks = [look_at(made, inputs)[0] for made in (student, teacher)]
    sum(relation_losses(looks[0], looks[1], NAMES).values(), torch.zeros(())).backward()
    assert student.decoder is not None
    assert student.decoder.blocks[-1].self_attention.sublayer.v_proj.weight.grad.abs().sum() > 0  # type: ignore[union-attr]
    assert all(p.grad is None for p in teacher.parameters())


# --- where a student begins ----------------------------------------------------------------------------


def test_layers_are_spread_from_first_to_last() -> None:
    assert evenly_spaced(6, 12) == (0, 2, 4, 7, 9, 11)  # DistilBERT's
    assert evenly_spaced(4, 12) == (0, 4, 7, 11)
    assert evenly_spaced(1, 12) == (0,)
    assert evenly_spaced(3, 3) == (0, 1, 2)


def test_a_student_begins_as_the_chosen_layers_and_all_that_lies_around_them() -> None:
    teacher, student = model(5, seed=1), model(3, seed=2)
    copy_layers(student, teacher, (0, 3, 4))
    theirs = dict(teacher.named_parameters())
    for name, parameter in student.named_parameters():
        for mine, source in {0: 0, 1: 3, 2: 4}.items():
            name = name.replace(f"blocks.{mine}.", f"blocks.<{source}>.")
        assert torch.equal(parameter, theirs[name.replace("<", "").replace(">", "")])
    student.lm_head.weight.data.zero_()  # type: ignore[union-attr]
    assert teacher.lm_head.weight.abs().sum() > 0  # type: ignore[union-attr]


def test_a_student_of_all_layers_is_the_teacher() -> None:
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
def test_what_a_student_cannot_begin_as(
    layers: tuple[int, ...], values: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        copy_layers(model(2, **values), model(3), layers)
