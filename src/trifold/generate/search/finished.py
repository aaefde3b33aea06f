"""What has ended, how it is scored, and whether going on can still find something better."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from trifold.errors import TrifoldError
from trifold.generate.config import GenerationConfig
from trifold.generate.ends import Hypothesis
from trifold.generate.live import Live
from trifold.generate.processors import Processor

NEVER = float("-inf")

Watch = Callable[[int, int], None]
"""(tokens generated so far, sentences still being written), called after each step."""

# score = log P / divisor(n, α), with n the tokens generated, the end-of-sentence token among them.
LENGTH_PENALTIES: dict[str, Callable[[float, float], float]] = {
    "power": lambda n, alpha: float(n**alpha),
    "gnmt": lambda n, alpha: float(((5 + n) / 6) ** alpha),  # Wu et al. 2016, equation 14
}


def weighed(live: Live, process: Processor, config: GenerationConfig) -> Tensor:
    """(R, V) the log-probabilities of the next tokens, and then what processors make of them.

    What they forbid does not make the rest likelier, so that the score of an output is what the model thinks of it;
    unless `renormalize_logits` asks for probabilities that sum to 1 again.
    """
    log_probs = process(live.logits.log_softmax(-1), live.written)
    return log_probs.log_softmax(-1) if config.renormalize_logits else log_probs


def divisor(config: GenerationConfig, length: int) -> float:
    """What log P is divided by."""
    return LENGTH_PENALTIES[config.length_penalty_form](length, config.length_penalty)


class Finished:
    """The best `keep` outputs so far of each of `count` searches that go on side by side."""

    def __init__(self, config: GenerationConfig, count: int, keep: int) -> None:
        self.config, self.keep = config, keep
        self.outputs: list[list[Hypothesis]] = [[] for _ in range(count)]

    def add(self, number: int, output: Hypothesis) -> None:
        """One more output of search `number`, best first; the worst is forgotten where there are too many."""
        self.outputs[number] = best_first([*self.outputs[number], output])[: self.keep]

    def goes_on(self, number: int, length: int, limit: int, best: float) -> bool:
        """Whether search `number` goes on, `best` being log P of its likeliest beginning of `length` tokens.

        The ways to stop are those of the ecosystem's `early_stopping`.
        """
        config, found = self.config, self.outputs[number]
        if best == NEVER:
            return False
        if len(found) < self.keep:
            return True
        if config.early_stopping is True:
            return False
        # log P only falls; a positive α makes most of it at the greatest length.
        reach = limit if config.early_stopping == "never" and config.length_penalty > 0 else length
        return best / divisor(config, reach) > found[-1].score


def best_first(outputs: list[Hypothesis]) -> list[Hypothesis]:
    """By score, falling; what is equal stays as it stands."""
    return sorted(outputs, key=lambda output: output.score, reverse=True)


def refuse_nan(scores: Tensor) -> None:
    """Raises TrifoldError where a score is not a number."""
    if bool(scores.isnan().any()):
        raise TrifoldError(
            "the model gives scores that are not numbers: its weights are damaged, or its training diverged; "
            "use an earlier checkpoint"
        )
