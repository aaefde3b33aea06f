"""F1 from counts, and checks of what is compared."""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence, Sized

from trifold.errors import DataError


def f1(correct: float, references: float, predictions: float) -> float:
    """The harmonic mean of precision and recall, from 0 to 1; 0 if nothing is counted."""
    return 2 * correct / max(references + predictions, 1)


def overlap_f1(reference: Iterable[Hashable], prediction: Iterable[Hashable]) -> float:
    """F1 of the items that occur in both, each as often as in the one that has fewer of it."""
    labels = Counter(reference)
    predicted = Counter(prediction)
    return f1((labels & predicted).total(), labels.total(), predicted.total())


def check_lengths(references: Sized, predictions: Sized, unit: str = "references") -> None:
    """Raises DataError unless there are as many predictions as references."""
    if len(references) != len(predictions):
        counts = f"{len(predictions):,} predictions but {len(references):,} {unit}"
        raise DataError(f"{counts}; the numbers must be equal")


def words_note(kind: str, count: int, examples: int) -> str:
    """The part of a signature that says how many examples have words of another kind; empty if none
    has.
    """
    if not count:
        return ""
    if count == examples:
        return f"|words:{kind}"
    return f"|words:{kind} in {count} of {examples}"


def as_texts(references: str | Sequence[str]) -> Sequence[str]:
    """The alternative references of an example; a string is the only one."""
    return [references] if isinstance(references, str) else references
