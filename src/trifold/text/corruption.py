"""Corruptions of token sequences: masking (BERT), denoising (BART), sentinels (T5), permutation
(XLNet).

Each is a pure function of a row and a random generator; the result holds what is needed to restore
the row.
Shapes: T tokens, M masked tokens in S spans.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from trifold.text import spans
from trifold.text.spans import Flags, Ids, LengthDistribution, Rng

# --- masked language modeling ---------------------------------------------------------------------
#
# 15 % of the tokens are selected: 80 % of these become the mask, 10 % a random token, 10 % stay
# unchanged (Devlin et al. 2019, section 3.1, task 1).


class Replacement(NamedTuple):
    """What selected tokens become: the mask, one of the `ordinary` (not special) tokens, or
    themselves.
    """

    mask: int
    ordinary: Ids
    masked: float = 0.8
    random: float = 0.1


class MaskedRow(NamedTuple):
    """inputs (T,), selected positions (M,) in order, original tokens there (M,), and bounds of
    their runs (S, 2).
    """

    inputs: Ids
    positions: Ids
    targets: Ids
    spans: Ids

    @property
    def original(self) -> Ids:
        """The row before masking."""
        row = self.inputs.copy()
        row[self.positions] = self.targets
        return row


def choose_tokens(free: Flags, starts: Flags | None, rate: float, rng: Rng) -> Ids:
    """Positions of single tokens (`starts` is unused)."""
    positions = np.flatnonzero(free)
    return positions[spans.choose_units(np.ones(len(positions), np.int64), rate, rng)]


def choose_words(free: Flags, starts: Flags, rate: float, rng: Rng) -> Ids:
    """Positions of whole words (whole word masking)."""
    bounds = spans.find_words(free, starts)
    return spans.expand_spans(bounds[spans.choose_units(bounds[:, 1] - bounds[:, 0], rate, rng)])


def choose_spans(
    free: Flags,
    starts: Flags,
    rate: float,
    rng: Rng,
    distribution: LengthDistribution = spans.geometric,
) -> Ids:
    """Positions of spans of whole words (SpanBERT, Joshi et al. 2020, section 3.1).

    The number of spans is drawn first and then every length, so that short rows do not shorten
    spans by exhausting their 15 %. Spans never touch: the tokens on both sides of a span stay
    visible.
    """
    bounds = spans.find_words(free, starts)
    lengths = spans.draw_span_lengths(len(bounds), rate, distribution, rng)
    first = spans.place_spans(lengths, len(bounds), rng)
    positions = spans.expand_spans(
        np.stack([bounds[first, 0], bounds[first + lengths - 1, 1]], axis=1)
    )
    return positions[free[positions]]


MaskChoice = Callable[[Flags, Flags, float, Rng], Ids]
MASK_CHOICES: dict[str, MaskChoice] = {
    "plain": choose_tokens,
    "words": choose_words,
    "spans": choose_spans,
}


def mask_tokens(
    ids: Ids, positions: Ids, rng: Rng, replacement: Replacement, *, per_span: bool = False
) -> MaskedRow:
    """Mask a row at the given positions. The replacement is drawn per token, or per span of
    adjacent tokens.
    """
    flags = np.zeros(len(ids), np.bool_)
    flags[positions] = True
    runs = spans.find_runs(flags)
    lengths = runs[:, 1] - runs[:, 0]
    if per_span:
        draws = np.repeat(rng.random(len(runs)), lengths)
    else:
        draws = rng.random(len(positions))
    random_tokens = replacement.ordinary[
        rng.integers(len(replacement.ordinary), size=len(positions))
    ]
    inputs = ids.copy()
    targets = ids[positions]
    unmasked = np.where(draws < replacement.masked + replacement.random, random_tokens, targets)
    inputs[positions] = np.where(draws < replacement.masked, replacement.mask, unmasked)
    return MaskedRow(inputs, positions, targets, runs)


# --- BART's noises (Lewis et al. 2020, section 2.2) -----------------------------------------------
#
# The authors' model was trained with infill 0.3 and permute 1. Special tokens keep their positions.


class NoiseInput(NamedTuple):
    """ids (T,), which of them may change, sentence starts, and the maximum length of the noised
    row.
    """

    ids: Ids
    free: Flags
    starts: Flags
    max_length: int | None = None


class NoisedRow(NamedTuple):
    """inputs (I,) and the original position of each; -1 for inserted masks."""

    inputs: Ids
    origin: Ids


def permute_sentences(row: NoiseInput, rng: Rng, rate: float, mask: int) -> NoisedRow:
    """Shuffle a share of the sentences among each other."""
    positions = np.flatnonzero(row.free)
    heads = np.flatnonzero(row.starts[positions] | (np.arange(len(positions)) == 0))
    order = np.arange(len(heads))
    moved = rng.permutation(len(heads))[: spans.round_randomly(rate * len(heads), rng)]
    order[moved] = rng.permutation(moved)
    sentences = np.split(np.arange(len(positions)), heads[1:])
    shuffled = np.concatenate([sentences[number] for number in order]) if len(heads) else positions
    return _reorder(row, positions, shuffled)


def rotate(row: NoiseInput, rng: Rng, rate: float, mask: int) -> NoisedRow:
    """With probability `rate`, start the row at a random token and append what preceded it."""
    positions = np.flatnonzero(row.free)
    by = 0
    if len(positions) and rng.random() < rate:
        by = int(rng.integers(len(positions)))
    return _reorder(row, positions, np.roll(np.arange(len(positions)), -by))


def delete_tokens(row: NoiseInput, rng: Rng, rate: float, mask: int) -> NoisedRow:
    """Delete a share of the tokens."""
    kept = np.delete(np.arange(len(row.ids)), choose_tokens(row.free, None, rate, rng))
    return NoisedRow(row.ids[kept], kept)


def replace_by_mask(row: NoiseInput, rng: Rng, rate: float, mask: int) -> NoisedRow:
    """Replace a share of the tokens by the mask."""
    inputs = row.ids.copy()
    inputs[choose_tokens(row.free, None, rate, rng)] = mask
    return NoisedRow(inputs, np.arange(len(inputs)))


def infill_spans(row: NoiseInput, rng: Rng, rate: float, mask: int) -> NoisedRow:
    """Replace spans that hold a share of the tokens by one mask each; spans never touch.

    Each span of length 0 inserts a mask, neither inside nor next to another span, while
    `max_length` permits.
    """
    positions = np.flatnonzero(row.free)
    lengths = spans.draw_span_lengths(len(positions), rate, spans.poisson, rng)
    inserted = int((lengths == 0).sum())
    lengths = lengths[lengths > 0]
    first = spans.place_spans(lengths, len(positions), rng)
    removed = np.zeros(len(row.ids), np.bool_)
    gaps = np.ones(len(positions) + 1, np.bool_)
    for start, length in zip(first, lengths, strict=True):
        removed[positions[start : start + length]] = True
        gaps[start : start + length + 1] = False
    inputs = row.ids.copy()
    origin = np.arange(len(row.ids))
    kept = ~removed
    heads = spans.find_runs(removed)[:, 0]
    if row.max_length is not None:
        inserted = max(0, min(inserted, row.max_length - int(kept.sum()) - len(heads)))
    inputs[heads] = mask
    origin[heads] = -1
    kept[heads] = True
    at = positions[:0]
    if inserted:
        slots = np.append(positions, positions[-1] + 1)
        at = slots[np.sort(rng.permutation(np.flatnonzero(gaps))[:inserted])]
    kept = np.insert(kept, at, True)
    return NoisedRow(np.insert(inputs, at, mask)[kept], np.insert(origin, at, -1)[kept])


Noise = Callable[[NoiseInput, Rng, float, int], NoisedRow]
# Order of application: sentences are permuted while they are complete.
NOISES: dict[str, Noise] = {
    "permute": permute_sentences,
    "rotate": rotate,
    "delete": delete_tokens,
    "mask": replace_by_mask,
    "infill": infill_spans,
}


def apply_noises(row: NoiseInput, rng: Rng, rates: Mapping[str, float], mask: int) -> NoisedRow:
    """Apply every noise whose rate is not 0, in the order of NOISES."""
    current = row
    origin = np.arange(len(row.ids))
    for name, noise in NOISES.items():
        if rates.get(name, 0.0) > 0:
            inputs, source = noise(current, rng, rates[name], mask)
            old = source >= 0  # inserted tokens are masks and do not change again
            free = old & current.free[source] & (inputs != mask)
            starts = old & current.starts[source]
            current = NoiseInput(inputs, free, starts, row.max_length)
            origin = np.where(old, origin[source], -1)
    return NoisedRow(current.ids, origin)


def _reorder(row: NoiseInput, positions: Ids, order: Ids) -> NoisedRow:
    origin = np.arange(len(row.ids))
    origin[positions] = positions[order]
    return NoisedRow(row.ids[origin], origin)


# --- T5's span corruption (Raffel et al. 2020, sections 3.1.4 and 3.3.4) --------------------------
#
#     original   Thank you for inviting me to your party last week
#     input      Thank you <0> me to your party <1> week
#     target     <0> for inviting <1> last
#
# The distribution is that of the authors' code. Of n >= 2 tokens, round(rate * n) are noise (at
# least one, and at least one is not), in round(noise / mean) spans (at least one). Noise and rest
# are both divided uniformly at random into that many non-empty parts, which alternate, starting
# with the rest and ending with noise. The code writes no sentinel after the last span, although
# section 3.1.4 mentions one.
#
# Up to about thirty tokens form a single span, which would always lie at the end. The authors train
# on packed rows of 512 tokens; rows here can be short documents, so a single span is placed
# uniformly at random instead.


class SpanCorruptedRow(NamedTuple):
    """inputs: the row with one sentinel per span; targets: every sentinel, followed by the tokens
    it replaces.
    """

    inputs: Ids
    targets: Ids


def corrupt_spans(
    ids: Ids, free: Flags, rng: Rng, sentinels: Ids, rate: float = 0.15, mean: float = 3.0
) -> SpanCorruptedRow:
    """Replace spans of a row (T,) by sentinels; tokens that are not `free` stay and split a span.

    Raises ValueError if there are more spans than sentinels.
    """
    noise = np.zeros(len(ids), np.bool_)
    noise[np.flatnonzero(free)] = draw_noise_mask(int(free.sum()), rng, rate, mean)
    runs = spans.find_runs(noise)
    if len(runs) > len(sentinels):
        raise ValueError(
            f"{len(runs)} spans need as many sentinels; the tokenizer has {len(sentinels)}"
        )
    used = sentinels[: len(runs)]
    inputs = ids.copy()
    kept = ~noise
    inputs[runs[:, 0]] = used
    kept[runs[:, 0]] = True
    lengths = runs[:, 1] - runs[:, 0]
    targets = np.insert(ids[noise], np.cumsum(lengths) - lengths, used)
    return SpanCorruptedRow(inputs[kept], targets)


def draw_noise_mask(tokens: int, rng: Rng, rate: float, mean: float) -> Flags:
    """(tokens,): True at noise tokens."""
    if tokens < 2:
        return np.zeros(tokens, np.bool_)
    noise = min(max(round(tokens * rate), 1), tokens - 1)
    count = min(max(round(noise / mean), 1), tokens - noise)
    if count == 1:
        positions = np.arange(tokens) - rng.integers(tokens - noise + 1)
        return (positions >= 0) & (positions < noise)
    lengths = np.stack(
        [_partition(tokens - noise, count, rng), _partition(noise, count, rng)], axis=1
    )
    return np.repeat(np.arange(2 * count) % 2 == 1, lengths.ravel())


def max_spans(tokens: int, rate: float, mean: float) -> int:
    """The maximum number of spans, and therefore sentinels, of a row of `tokens` tokens."""
    noise = max(round(max(tokens, 2) * rate), 1)
    return max(round(noise / mean), 1)


def _partition(items: int, count: int, rng: Rng) -> Ids:
    """Lengths of `count` non-empty parts of `items`; all partitions are equally likely."""
    cuts = np.sort(rng.permutation(items - 1)[: count - 1]) + 1
    return np.diff(cuts, prepend=0, append=items)


# --- XLNet's permutation language modeling (Yang et al. 2019, sections 2.2-2.3) -------------------
#
#     max E_z Σ_{t > c} log P(x_{z_t} | x_{z_1}, …, x_{z_{t-1}})
#
# Only the last 1/K of the factorization order z is predicted (partial prediction). A row's order is
# an array of ranks: 0 for all other tokens, which see each other, and 1, 2, … for the predicted
# tokens. In the content stream a token sees ranks up to its own; in the query stream it sees lower
# ranks only.


def choose_last_in_order(free: Flags, share: int, longest: int, rng: Rng) -> Ids:
    """Positions of the last 1/share of a random order (`longest` is unused)."""
    positions = np.flatnonzero(free)
    order = rng.permutation(positions)
    return np.asarray(order[: spans.round_randomly(len(positions) / share, rng)], dtype=np.int64)


def choose_spans_in_context(free: Flags, share: int, longest: int, rng: Rng) -> Ids:
    """Positions of spans of 1 to `longest` tokens, each at a random place within `share` times as
    many tokens.

    1/share of the remainder at the end of a row is chosen too (section 3.1: K = 6, at most 5).
    """
    positions = np.flatnonzero(free)
    chosen = []
    start = 0
    while start < len(positions):
        length = int(rng.integers(1, longest + 1))
        context = length * share
        if context > len(positions) - start:
            context = len(positions) - start
            length = spans.round_randomly(context / share, rng)
        first = start + int(rng.integers(context - length + 1))
        chosen.append(positions[first : first + length])
        start += context
    return np.concatenate([np.zeros(0, np.int64), *chosen])


PREDICTION_CHOICES = {"spans": choose_spans_in_context, "tokens": choose_last_in_order}


def draw_ranks(positions: Ids, size: int, rng: Rng) -> Ids:
    """(size,) ranks: 1, 2, … at these positions in random order; 0 elsewhere."""
    ranks = np.zeros(size, np.int64)
    ranks[rng.permutation(positions)] = np.arange(1, len(positions) + 1)
    return ranks
