"""Schedules of the learning rate."""

import math

from trifold.recipe import TrainSettings


def peak_rate(d_model: int, warmup: int) -> float:
    """The peak of the paper: d_model^-0.5 · warmup^-0.5."""
    return float(d_model**-0.5 * max(warmup, 1) ** -0.5)


def learning_rate(settings: TrainSettings, step: int, peak: float) -> float:
    """The learning rate of update number `step`, counted from 1: a linear warmup to the peak, then
    the schedule.

    inverse-sqrt         d^-0.5 · min(step^-0.5, step · warmup^-1.5)
                                                                   (Vaswani et al. 2017, equation 3)
                         = peak · min(step / warmup, sqrt(warmup / step))
    linear               linear decay to the final rate at the last step
    cosine               cosine decay to the final rate       (Loshchilov & Hutter 2017, equation 5)
    constant             the peak
    warmup-stable-decay  the peak, then decay in the last `decay` steps (Hu et al. 2024,
                         section 4), linear or 1 − sqrt (Hägele et al. 2024, section 3)
    """
    if step < settings.warmup:
        return peak * step / settings.warmup
    final = settings.final_rate
    return peak * (final + (1 - final) * decay_factor(settings, step))


def decay_factor(settings: TrainSettings, step: int) -> float:
    """The factor after the warmup, from 1 at the peak to 0 at the final rate."""
    steps = settings.steps
    warmup = settings.warmup
    if settings.schedule == "inverse-sqrt":
        return math.sqrt(max(warmup, 1) / step)
    if settings.schedule == "linear":
        return max(0.0, (steps - step) / max(steps - warmup, 1))
    if settings.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / (steps - warmup))))
    if settings.schedule == "warmup-stable-decay":
        decayed = (step - (steps - settings.decay_steps)) / settings.decay_steps
        decayed = min(1.0, max(0.0, decayed))
        if settings.decay_form == "1-sqrt":
            decayed = math.sqrt(decayed)
        return 1.0 - decayed
    return 1.0
