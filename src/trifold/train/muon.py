"""Muon: hidden matrices move along their orthogonalized momentum; AdamW updates all other
parameters.

    M ← μ M + (1 − μ) G
    O = orthogonalize((1 − μ) G + μ M)      ≈ U Vᵀ of the singular value decomposition U S Vᵀ
    w ← w − η λ w − η s(n, m) O

Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/, with Nesterov momentum.
Orthogonalization runs in bf16, as there, if training computes in low precision, else in fp32. The
scale s for n × m weights (out × in) is √max(1, n / m) there ("original") and 0.2 √max(n, m) in Liu
et al. 2025, section 2.2 ("match-rms"), which gives updates the size of AdamW's, so that one
learning rate serves both.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trifold.errors import SettingsError
from trifold.recipe import TrainSettings
from trifold.train.adam import Adam, is_hidden_matrix
from trifold.train.master_weights import MasterWeights

# train.muon_scale -> the scale of an n × m update
SCALES: dict[str, Callable[[int, int], float]] = {
    "match-rms": lambda n, m: 0.2 * math.sqrt(max(n, m)),
    "original": lambda n, m: math.sqrt(max(1.0, n / m)),
    "none": lambda n, m: 1.0,
}


class Muon:
    """Orthogonalizes all matrices of one shape in one batch."""

    def __init__(self, weights: MasterWeights, settings: TrainSettings) -> None:
        self._weights = weights
        self._settings = settings
        self._views = weights.named(weights.master)
        self._by_shape: dict[tuple[int, int], list[str]] = defaultdict(list)
        for name, view in self._views.items():
            if is_hidden_matrix(name, view):
                self._by_shape[view.shape[0], view.shape[1]].append(name)
        zeros = weights.master.new_zeros
        self._momenta = {
            shape: zeros(len(names), *shape) for shape, names in self._by_shape.items()
        }
        self._dtype = torch.float32  # of the orthogonalization
        if weights.low_precision:
            self._dtype = torch.bfloat16
        hidden = {name for names in self._by_shape.values() for name in names}
        if hidden == self._views.keys():
            raise SettingsError(
                "train.optimizer: muon needs a trained parameter that is not a matrix of a layer"
            )
        self._adam = Adam(weights, settings, self._views.keys() - hidden)

    @torch.no_grad()
    def step(self, gradient: Tensor, rate: float) -> None:
        """One update with `gradient` (P,); hidden matrices use `muon_rate` times the learning rate
        `rate`.
        """
        settings = self._settings
        self._adam.step(gradient, rate)
        gradients = self._weights.named(gradient)
        for shape, names in self._by_shape.items():
            momenta = self._momenta[shape]
            directions = torch.empty_like(momenta, dtype=self._dtype)
            # One matrix at a time, so that each stays in the processor cache.
            for name, momentum, direction in zip(names, momenta, directions, strict=True):
                momentum.lerp_(gradients[name], 1 - settings.momentum)
                direction.copy_(gradients[name].lerp(momentum, settings.momentum))
            updates = orthogonalize(directions, settings.muon_polynomial, settings.muon_iterations)
            scale = SCALES[settings.muon_scale](*shape)
            for name, update in zip(names, updates, strict=True):
                own_rate = rate * settings.muon_rate * self._weights.factors.get(name, 1.0)
                weight = self._views[name].mul_(1 - own_rate * settings.weight_decay)
                weight.add_(update, alpha=-(own_rate * scale))

    @property
    def state(self) -> dict[str, Tensor]:
        """momentum.PARAMETER of the hidden matrices, and the AdamW state of the others."""
        momenta = {
            f"momentum.{name}": momentum
            for shape, names in self._by_shape.items()
            for name, momentum in zip(names, self._momenta[shape], strict=True)
        }
        return {**momenta, **self._adam.state}


# --- orthogonalization ----------------------------------------------------------------------------
#
# With x = U S Vᵀ, f(x xᵀ) x is U f(S²) S Vᵀ for every polynomial f. A Newton–Schulz step is a
# quintic of the singular values, s ↦ a s + b s³ + c s⁵, that is f(g) = a + b g + c g² of the Gram
# matrix g = x xᵀ.

Quintic = tuple[float, float, float]

# Multiplies small singular values by 3.4445 and keeps large ones within about 0.7 … 1.2. After five
# steps, values above 0.2 % of the norm of the matrix exceed 0.65 (Jordan et al. 2024,
# https://kellerjordan.github.io/posts/muon/).
JORDAN: Quintic = (3.4445, -4.7750, 2.0315)

# The sequences of quintics that map values from 0.16 (one step), 0.04 (two), 0.01, 0.0023, 0.0006
# (five) … 1 to 0.7 … 1.3. Each step is optimal for the range that the previous one leaves, with a
# margin of 2 % for rounding. FIRST_STEP[n] is the first of n steps; the others are the last n - 1
# of LATER_STEPS (Amsel et al. 2025, The Polar Express, section 3,
# https://arxiv.org/abs/2505.16932).
FIRST_STEP: dict[int, Quintic] = {
    1: (4.63355, -9.91999, 6.43155),
    2: (6.93302, -18.47111, 12.91091),
    3: (7.95619, -22.33959, 15.86382),
    4: (8.25010, -23.45441, 16.71598),
    5: (8.32384, -23.73430, 16.93000),
}
LATER_STEPS: tuple[Quintic, ...] = (
    (4.13460, -2.95221, 0.52845),
    (4.01645, -2.87401, 0.52011),
    (3.60475, -2.59629, 0.49060),
    (2.68662, -1.93370, 0.42148),
)


# train.muon_polynomial -> the quintics of n steps
POLYNOMIALS: dict[str, Callable[[int], Sequence[Quintic]]] = {
    "jordan": lambda n: [JORDAN] * n,
    "polar-express": lambda n: [FIRST_STEP[n], *LATER_STEPS[len(LATER_STEPS) + 1 - n :]],
}
# The matrix is first divided by a norm, so that no value exceeds 1: (Σ s²)^½, and for these also (Σ
# s⁸)^⅛ = ‖g²‖^¼, an upper bound much closer to the largest singular value, obtained from the
# products of the first step.
TIGHT = ("polar-express",)


def orthogonalize(x: Tensor, polynomial: str, iterations: int) -> Tensor:
    """(N, n, m) -> matrices with the same singular vectors and singular values near 1, in the dtype
    of x.
    """
    if x.shape[-2] > x.shape[-1]:  # use the smaller Gram matrix
        return orthogonalize(x.mT, polynomial, iterations).mT
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp_min(1e-7)
    steps = POLYNOMIALS[polynomial](iterations)
    wide = 2 * x.shape[-2] <= x.shape[-1]
    for number, (a, b, c) in enumerate(steps, start=1):
        gram = x @ x.mT
        square = gram @ gram
        if polynomial in TIGHT and number == 1:
            largest = (
                torch.linalg.vector_norm(square, dim=(-2, -1), keepdim=True).clamp_min(1e-9) ** 0.25
            )
            x = x / largest
            gram = gram / largest**2
            square = square / largest**4
        change = square.mul_(c).add_(gram, alpha=b)
        if wide and number == iterations - 1:
            change.diagonal(dim1=-2, dim2=-1).add_(a)
            return _fuse_last_step(change, gram, steps[-1]) @ x
        x = torch.baddbmm(x, change, x, beta=a)
    return x


def _fuse_last_step(factor: Tensor, gram: Tensor, last: Quintic) -> Tensor:
    """The product (N, n, n) of the last two factors of x, from n × n instead of n × m products.

    The Gram matrix does not include the rounding of `factor @ x`; further steps would amplify that
    error.
    """
    gram = factor @ gram @ factor  # of factor @ x
    a, b, c = last
    change = (gram @ gram).mul_(c).add_(gram, alpha=b)
    return torch.baddbmm(factor, change, factor, beta=a)
