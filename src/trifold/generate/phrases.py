"""Which forced phrases a text holds already, and how far it has come with the others.

Each phrase is followed by the automaton of Knuth, Morris & Pratt (1977): its state is how much of the phrase the text
ends with. A wish is one phrase, or several of which one suffices.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import cast

FEW = 4  # wishes of which the shortest way to meet all is looked for
State = tuple[tuple[int, ...] | None, ...]
"""For each wish: how far each of its phrases has come; None where the wish is met."""


class Wishes:
    """Phrases that must appear, as a machine that reads one token after the other."""

    def __init__(self, wishes: Sequence[Sequence[Sequence[int]]]) -> None:
        self._wishes = [[tuple(phrase) for phrase in wish] for wish in wishes]
        self.start: State = tuple((0,) * len(wish) for wish in self._wishes)
        self._moved = cache(_moved)
        self.missing = cache(self._missing)

    @classmethod
    def of(cls, force_words_ids: Sequence[Sequence[int] | Sequence[Sequence[int]]]) -> Wishes:
        """From the setting, where a wish of one phrase is that phrase."""
        wishes = [[wish] if isinstance(wish[0], int) else wish for wish in force_words_ids]
        return cls(cast(Sequence[Sequence[Sequence[int]]], wishes))

    @property
    def words(self) -> set[int]:
        """Every token of every phrase."""
        return {token for wish in self._wishes for phrase in wish for token in phrase}

    def after(self, state: State, token: int) -> State:
        """The state when one more token has been read."""
        return tuple(
            None if progress is None else self._wish_after(wish, progress, token)
            for wish, progress in zip(self._wishes, state, strict=True)
        )

    def advances(self, state: State) -> set[int]:
        """The tokens that bring a wish that is not met one token further."""
        return {
            phrase[done]
            for wish, progress in zip(self._wishes, state, strict=True)
            if progress is not None
            for phrase, done in zip(wish, progress, strict=True)
        }

    def _missing(self, state: State) -> int:
        """So many more tokens meet all wishes; 0 where all is met. One of `advances` always makes it smaller.

        Of few wishes it is exact, phrases that overlap being said together; of many, as if none did.
        """
        if sum(progress is not None for progress in state) > FEW:
            return self._missing_one_by_one(state)
        reached, seen, steps = [state], {state}, 0
        while not any(all(progress is None for progress in each) for each in reached):
            following = [self.after(each, token) for each in reached for token in sorted(self.advances(each))]
            reached = [each for each in dict.fromkeys(following) if each not in seen]
            seen.update(reached)
            steps += 1
        return steps

    def _missing_one_by_one(self, state: State) -> int:
        """The phrase that has come furthest first, the others from their start."""
        total = saved = 0
        for wish, progress in zip(self._wishes, state, strict=True):
            if progress is None:
                continue
            shortest = min(map(len, wish))
            nearest = min(len(phrase) - done for phrase, done in zip(wish, progress, strict=True))
            total, saved = total + shortest, max(saved, shortest - nearest)
        return total - saved

    def _wish_after(
        self, wish: Sequence[tuple[int, ...]], progress: tuple[int, ...], token: int
    ) -> tuple[int, ...] | None:
        moved = tuple(self._moved(phrase, done, token) for phrase, done in zip(wish, progress, strict=True))
        met = any(done == len(phrase) for phrase, done in zip(wish, moved, strict=True))
        return None if met else moved


def _moved(phrase: tuple[int, ...], done: int, token: int) -> int:
    """How much of `phrase` a text ends with that ended with `done` tokens of it, and then with `token`."""
    text = (*phrase[:done], token)
    return next(n for n in range(len(text), -1, -1) if text[len(text) - n :] == phrase[:n])
