"""Peaks of the learning rate of Adam that suit a model of a width."""

# Up to this width, a pretrained model learns a task at the rate of new weights: it was trained at
# that rate on small data, and smaller steps leave it where it is.
SMALL_WIDTH = 128
# Low-rank adapters start at no change, and learn at ten times the rate of all weights, up to the
# highest rate that was tried.
OF_ADAPTERS = 10
MOST_OF_ADAPTERS = 0.002


# Of a new Transformer beside a fitted linear path: it learns what the path lacks.
RATE_WITH_PATH = 3e-4


def new_rate(d_model: int) -> float:
    """The peak for new weights: that of 4,000 steps of warmup (Vaswani et al. 2017, equation 3)."""
    return float((4000 * d_model) ** -0.5)


def fine_tuning_rate(d_model: int, *, adapters: bool = False) -> float:
    """The peak for a model that training starts from, or for its low-rank adapters.

    Above `SMALL_WIDTH` it falls with the square of the width, 0.0014 · (128 / width)², which gives
    3.9e-5 for BERT-base and 2.2e-5 for BERT-large, between the 2e-5 and 5e-5 of their paper (Devlin
    et al. 2019, appendix A.3), and 3.5e-4 for width 256, where Turc et al. (2019) use 3e-4.
    """
    rate = new_rate(d_model) * float(min(1.0, (SMALL_WIDTH / d_model) ** 1.5))
    if adapters:
        return max(rate, min(OF_ADAPTERS * rate, MOST_OF_ADAPTERS))
    return rate
