from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from trifold.fast import cross_entropy
from trifold.nn import losses
from trifold.nn.losses import linear_cross_entropy, score_targets
from trifold.nn.ops import PLAIN


def gradients(loss: Tensor, *leaves: Tensor | None) -> list[Tensor]:
    return list(
        torch.autograd.grad(loss, [leaf for leaf in leaves if leaf is not None], allow_unused=True)
    )


@given(
    rows=st.integers(1, 13),
    classes=st.integers(2, 17),
    width=st.integers(1, 9),
    biased=st.booleans(),
    smoothing=st.sampled_from([0.0, 0.1, 0.6]),
    scale=st.sampled_from([0.1, 1.0, 5.0]),
)
def test_linear_cross_entropy_equals_its_plain_definition(
    rows: int, classes: int, width: int, biased: bool, smoothing: float, scale: float
) -> None:
    hidden = (torch.randn(rows, width) * scale).requires_grad_()
    weight = torch.randn(classes, width, requires_grad=True)
    bias = torch.randn(classes, requires_grad=True) if biased else None
    targets = torch.randint(-1, classes, (rows,))  # -1: no target
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cross_entropy, "CHUNK", 4)  # a few rows are several chunks
        fast = linear_cross_entropy(hidden, weight, bias, targets, smoothing)
        with torch.no_grad():
            without = linear_cross_entropy(
                hidden.detach(), weight.detach(), bias, targets, smoothing
            )
    plain = losses.LossSums(*PLAIN["cross_entropy"](hidden, weight, bias, targets, smoothing))
    for ours in (fast, without):
        torch.testing.assert_close(ours.loss, plain.loss, rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(ours.nll, plain.nll, rtol=1e-5, atol=1e-4)
    assert fast.loss.dtype is torch.float32
    # Times 3, to test that the incoming gradient is used.
    for ours, theirs in zip(
        gradients(3 * fast.loss, hidden, weight, bias),
        gradients(3 * plain.loss, hidden, weight, bias),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_bf16_sums_and_gradients_are_close_to_fp32() -> None:
    hidden, weight = torch.randn(200, 32), torch.randn(100, 32) * 0.3
    targets = torch.randint(100, (200,))
    exact = [x.clone().requires_grad_() for x in (hidden, weight)]
    rounded = [x.bfloat16().requires_grad_() for x in (hidden, weight)]
    plain = losses.LossSums(*PLAIN["cross_entropy"](*exact, None, targets, 0.1))
    fast = linear_cross_entropy(*rounded, None, targets, 0.1)
    assert abs(fast.loss.item() / plain.loss.item() - 1) < 2e-3
    assert abs(fast.nll.item() / plain.nll.item() - 1) < 2e-3
    for ours, theirs in zip(
        gradients(fast.loss, *rounded), gradients(plain.loss, *exact), strict=True
    ):
        assert ours.dtype is torch.bfloat16
        cosine = torch.cosine_similarity(ours.float().flatten(), theirs.flatten(), dim=0)
        assert cosine > 0.999
        assert abs(ours.float().norm() / theirs.norm() - 1) < 0.01


def test_the_loss_of_no_rows_is_0() -> None:
    hidden, weight = torch.empty(0, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    sums = linear_cross_entropy(hidden, weight, None, torch.empty(0, dtype=torch.long), 0.1)
    assert sums.loss.item() == sums.nll.item() == 0
    d_hidden, d_weight = gradients(sums.loss, hidden, weight)
    assert d_hidden.shape == (0, 4)
    assert not d_weight.any()


@pytest.mark.parametrize("smoothing", [0.1, 0.4])
def test_the_smoothed_loss_is_minimal_at_the_smoothed_target(smoothing: float) -> None:
    """At p = (1 - ε) onehot + ε / V the loss is that distribution's entropy, and the gradient is 0."""
    classes = 8
    targets = torch.arange(classes)
    expected = (1 - smoothing) * torch.eye(classes) + smoothing / classes
    hidden = expected.log().requires_grad_()
    sums = linear_cross_entropy(hidden, torch.eye(classes), None, targets, smoothing)
    entropy = -(expected * expected.log()).sum()
    torch.testing.assert_close(sums.loss, entropy)
    torch.testing.assert_close(
        gradients(sums.loss, hidden)[0], torch.zeros(classes, classes), rtol=0, atol=1e-6
    )
    worse = linear_cross_entropy(
        hidden + torch.randn(classes, classes) * 0.1, torch.eye(classes), None, targets, smoothing
    )
    assert worse.loss > sums.loss


def test_uniform_logits_cost_log_v_per_row() -> None:
    sums = linear_cross_entropy(
        torch.zeros(7, 4), torch.randn(50, 4), None, torch.randint(50, (7,)), 0.1
    )
    torch.testing.assert_close(sums.loss, torch.tensor(7 * math.log(50)))
    torch.testing.assert_close(sums.nll, torch.tensor(7 * math.log(50)))


@given(rows=st.integers(0, 13), classes=st.integers(2, 17), biased=st.booleans())
def test_score_targets_equals_the_scores_of_full_logits(
    rows: int, classes: int, biased: bool
) -> None:
    hidden, weight = torch.randn(rows, 5), torch.randn(classes, 5)
    bias = torch.randn(classes) if biased else None
    targets = torch.randint(-1, classes, (rows,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "CHUNK", 4)
        scores = score_targets(hidden, weight, bias, targets)
    has_target = targets >= 0
    logits = torch.nn.functional.linear(hidden, weight, bias)[has_target]
    plain = losses.LossSums(
        *PLAIN["cross_entropy"](hidden[has_target], weight, bias, targets[has_target], 0.0)
    )
    assert float(scores.nll) == pytest.approx(float(plain.nll), rel=1e-5, abs=1e-6)
    assert int(scores.correct) == int((logits.argmax(-1) == targets[has_target]).sum())


def test_score_targets_caps_the_logits() -> None:
    hidden, weight = 4 * torch.randn(9, 5), torch.randn(7, 5)
    targets = torch.randint(7, (9,))
    logits = 3 * torch.tanh(hidden @ weight.T / 3)
    scores = score_targets(hidden, weight, None, targets, soft_cap=3.0)
    expected = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
    torch.testing.assert_close(scores.nll, expected)


def test_a_float64_loss_is_exact() -> None:
    hidden, weight = (
        torch.randn(rows, 5, dtype=torch.float64, requires_grad=True) for rows in (7, 11)
    )
    targets = torch.tensor([3, -1, 0, 10, -1, 2, 2])
    sums = linear_cross_entropy(hidden, weight, None, targets, 0.1)
    logits = (hidden @ weight.T)[targets >= 0].log_softmax(-1)
    picked = logits.gather(1, targets[targets >= 0, None]).sum()
    expected = -0.9 * picked - 0.1 * logits.mean(-1).sum()
    assert sums.loss.dtype is sums.nll.dtype is torch.float64 and not sums.nll.requires_grad
    assert torch.allclose(sums.loss, expected, rtol=1e-13) and torch.allclose(
        sums.nll, -picked, rtol=1e-13
    )
    for ours, theirs in zip(
        gradients(sums.loss, hidden, weight), gradients(expected, hidden, weight), strict=True
    ):
        assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-14)
