"""Roles of attention heads: what the largest weights of a head have in common over a corpus.

Voita et al. 2019 (section 5; positional, syntactic, rare word), Clark et al. 2019 (separators,
coreference), Olsson et al. 2022 (induction), Wang et al. 2022 (duplicates).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trifold.errors import DataError, UsageError
from trifold.look.attention import HOOKS, KEY_SIDES, QUERY_SIDES, stacked_weights
from trifold.look.corpus import Line, find_words
from trifold.pipeline import Pipeline
from trifold.predict.trace import Edit, Trace, run_with
from trifold.predict.trace_example import codec_of
from trifold.settings import nearest

FARTHEST = 32  # offset of a positional head
MAX_EXAMPLES = 3  # of a head in a role
MARGIN = 0.1  # by which the share exceeds that of the best fixed offset
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Pattern:
    """The attention of one kind over one line: T queries, S keys.

    maxima: (L, H, T) the key with the largest weight. allowed: (T, S). queries, keys: tokens; in
    cross-attention a query is the token that it writes, if it writes any. names: of the queries for
    people. words: the word of each query and key, or None. frequencies: how often the corpus has a
    token of the keys' side. special: (S,) whether a key is a special token.
    """

    kind: str
    line: Line
    maxima: NDArray[np.int32]
    queries: NDArray[np.str_]
    names: Sequence[str]
    keys: NDArray[np.str_]
    special: Mask
    words: tuple[NDArray[np.int64], NDArray[np.int64]] | None
    frequencies: Mapping[str, int]

    @property
    def allowed(self) -> Any:
        """Rows with a single key are not counted."""
        mask = np.ones((len(self.queries), len(self.keys)), bool)
        if self.kind == "decoder":
            mask = np.tril(mask)
        return mask & (mask.sum(1, keepdims=True) > 1)


# Relation, and the keys (T, S) that fit each query; rows without any are not counted.
Cases = Iterator[tuple[str, Any]]


def _positional(x: Pattern) -> Cases:
    for offset in range(-FARTHEST, FARTHEST + 1):
        yield f"offset {offset:+d}", np.eye(len(x.queries), len(x.keys), offset, dtype=bool)


def _separator(x: Pattern) -> Cases:
    columns = np.arange(len(x.keys))
    yield "first token", np.broadcast_to(columns == 0, (len(x.queries), len(x.keys)))
    yield "separator", np.broadcast_to(x.special & (columns > 0), (len(x.queries), len(x.keys)))


def _rare(x: Pattern) -> Cases:
    frequencies = np.array([x.frequencies[key] for key in x.keys], np.int64)
    counts = np.where(x.allowed & ~x.special, frequencies, np.iinfo(np.int64).max)
    yield "", counts == counts.min(1, keepdims=True)


def _duplicate(x: Pattern) -> Cases:
    same = (x.queries[:, None] == x.keys) & ~x.special
    if x.kind != "cross":
        same = same & ~np.eye(len(x.keys), dtype=bool)
    yield "", same


def _induction(x: Pattern) -> Cases:
    if x.kind == "cross":
        return
    columns = np.arange(len(x.keys))
    rows = columns[:, None]
    is_after_same = np.roll(x.queries[:, None] == x.keys, 1, axis=1)
    is_after_same[:, 0] = False  # before the first key there is none
    # Neither the key nor the token before it is the query itself.
    is_elsewhere = (columns != rows) & (columns - 1 != rows)
    yield "", is_after_same & is_elsewhere


def _links(role: str) -> Callable[[Pattern], Cases]:
    def cases(x: Pattern) -> Cases:
        if x.words is None or (role == "alignment") != (x.kind == "cross"):
            return
        masks: dict[str, Mask] = {}
        for link in x.line.links:
            if link.role != role:
                continue
            # In a decoder, only the last token of a word has read all of it.
            rows = np.flatnonzero(x.words[0] == link.query)[-1:]
            mask = masks.setdefault(link.relation, np.zeros((len(x.queries), len(x.keys)), bool))
            mask[np.ix_(rows, x.words[1] == link.key)] = True
        yield from masks.items()

    return cases


class RoleDefinition(NamedTuple):
    """cases: the keys that a head of this role attends to. least: the share of queries that it has
    at least.
    """

    cases: Callable[[Pattern], Cases]
    least: float
    meaning: str


ROLES = {
    "positional": RoleDefinition(_positional, 0.9, "the token at one offset"),
    "separator": RoleDefinition(_separator, 0.5, "the first token, or a special token"),
    "rare": RoleDefinition(_rare, 0.5, "the least frequent token of the line"),
    "duplicate": RoleDefinition(_duplicate, 0.5, "the same token at another place"),
    "induction": RoleDefinition(
        _induction, 0.5, "the token after an earlier occurrence of this one"
    ),
    "alignment": RoleDefinition(
        _links("alignment"), 0.5, "the source word of the word that is written"
    ),
    "syntactic": RoleDefinition(
        _links("syntactic"), 0.0, "the head, or a dependent, in a dependency tree"
    ),
    "coreference": RoleDefinition(_links("coreference"), 0.0, "the antecedent of a mention"),
}


LINKED = ("alignment", "syntactic", "coreference")  # roles that files of links define


@dataclass
class _Total:
    """hits: (L, H). offsets: how often a key at that offset fits. chance: the expected hits of a
    uniform head.
    """

    hits: Any = 0
    trials: int = 0
    chance: float = 0.0
    offsets: Counter[int] = field(default_factory=Counter)
    examples: dict[tuple[int, int], list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, x: Pattern, mask: Mask, *, by_words: bool) -> None:
        """Count the queries whose largest weight is at a key of the mask (T, S). by_words: whether
        offsets are counted in words, not in tokens.
        """
        mask = mask & x.allowed
        rows = np.flatnonzero(mask.any(1))
        if not len(rows):
            return
        hits = mask[rows, x.maxima[:, :, rows]]  # (L, H, rows)
        self.hits = self.hits + hits.sum(-1)
        self.trials = self.trials + len(rows)
        self.chance += float((mask.sum(1) / np.maximum(x.allowed.sum(1), 1))[rows].sum())
        row, key = np.nonzero(mask)
        queries = np.arange(len(x.queries))
        keys = np.arange(len(x.keys))
        if by_words and x.words is not None:
            queries, keys = x.words
        # Each offset of a query counts once, though several keys may be at it.
        fitting = np.unique(np.stack([row, keys[key] - queries[row]]), axis=1)
        self.offsets.update(fitting[1].tolist())
        for layer, head in np.argwhere(hits.any(-1)).tolist():
            kept = self.examples.setdefault((layer, head), [])
            if len(kept) < MAX_EXAMPLES:
                query = int(rows[hits[layer, head].argmax()])
                tokens = x.names[query], str(x.keys[x.maxima[layer, head, query]])
                kept.append(
                    {"text": x.line.text, "target": x.line.target, "row": query, "tokens": tokens}
                )


def head_roles(
    pipeline: Pipeline, lines: Sequence[Line], on_done: Callable[[int], None] = lambda count: None
) -> dict[str, Any]:
    """The roles of all heads over the lines. on_done: called with a number of lines.

    lines, skipped: their numbers; skipped lines have links, but their tokens do not spell their
        words.
    heads: for each kind, layer and head, from 0, and each role its best relation, and every other
        that is `found`. Each has the following values.
    trials: queries for which there is a key that fits.
    share: of these, the queries whose largest weight is at a key that fits; low, high: its 95 %
        interval (Wilson 1927).
    baseline: the share of the best fixed offset (of words for links; for `positional`, of uniform
        attention).
    found: whether the share is at least that of the role and MARGIN above the baseline, and the
        interval is above the baseline.
    open: whether it is not found, but its interval reaches the share that it needs.
    examples: text, target, row, tokens.
    """
    patterns = list[Pattern]()
    skipped = 0
    frequencies: dict[str, Counter[str]] = {"encoder": Counter(), "decoder": Counter()}
    for line in lines:
        of_line, spells_words = _read_line(pipeline, line, frequencies)
        patterns += of_line
        if not spells_words:
            skipped += 1
        on_done(1)
    return {"lines": len(lines), "skipped": skipped, "heads": _best_rates(_rates(patterns))}


def _read_line(
    pipeline: Pipeline, line: Line, frequencies: Mapping[str, Counter[str]]
) -> tuple[list[Pattern], bool]:
    """The patterns of a line, and whether its tokens spell the words of its links. Its tokens are
    added to the frequencies of their side.
    """
    try:
        trace = run_with(pipeline, line.text, line.target)
    except DataError as error:
        raise DataError(f"{line.place}: {error}") from error
    if not trace.example.ids:
        raise UsageError("roles are measured over texts; this model reads images")
    words = _words_of_tokens(trace, line)
    for side, tokens in trace.tokens.items():
        frequencies[side].update(tokens)
    patterns = [
        _new_pattern(trace, line, kind, weights.argmax(-1), words, frequencies[KEY_SIDES[kind]])
        for kind, weights in stacked_weights(trace).items()
    ]
    return patterns, None not in words.values()


def _written_ids(trace: Trace) -> list[int]:
    """The ids that the decoder of an encoder-decoder writes; none of a classifier."""
    if len(trace.example.ids) == 1 or trace.head != "lm":
        return []
    return trace.labels.tolist()


def _words_of_tokens(trace: Trace, line: Line) -> dict[str, list[int] | None]:
    """Side -> the word of each of its tokens, of the sides whose words have links; "cross": of the
    written tokens. None if the tokens do not spell the words.
    """
    words: dict[str, list[int] | None] = {}
    if not line.links:
        return words
    ids = trace.example.ids
    target = line.target or ""
    if trace.head != "lm":
        target = ""  # it is a class
    side = next(iter(ids))
    text = line.text
    if side == "decoder":  # it reads both
        text += target
    codec = codec_of(trace.pipeline, side)
    words[side] = find_words(codec, ids[side], line.words or text.split())
    written = _written_ids(trace)
    if written and target:
        words["cross"] = find_words(trace.pipeline.writer, written, target.split())
    return words


def _new_pattern(
    trace: Trace,
    line: Line,
    kind: str,
    maxima: NDArray[np.int64],
    words: Mapping[str, list[int] | None],
    frequencies: Mapping[str, int],
) -> Pattern:
    """The pattern of one kind. words: see `_words_of_tokens`."""
    side = KEY_SIDES[kind]
    codec = codec_of(trace.pipeline, side)
    queries = trace.tokens[QUERY_SIDES[kind]]
    written = _written_ids(trace)
    if kind == "cross" and written:
        queries = trace.pipeline.writer.pieces(written)
    query_words = words.get(kind)
    key_words = words.get(side)
    known_words = None
    if query_words is not None and key_words is not None:
        known_words = (np.array(query_words), np.array(key_words))
    shown = codec.decode([[token] for token in trace.example.ids[side]])
    return Pattern(
        kind=kind,
        line=line,
        maxima=maxima.astype(np.int32),
        queries=np.array(queries),
        names=trace.queries[kind],
        keys=np.array(trace.tokens[side]),
        special=np.array([not text for text in shown]),
        words=known_words,
        frequencies=frequencies,
    )


def _rates(patterns: Sequence[Pattern]) -> list[dict[str, Any]]:
    """How well each head fits each relation of each role."""
    totals = defaultdict[tuple[str, str, str], _Total](_Total)
    queries_of_kind = Counter[str]()
    for x in patterns:
        queries_of_kind[x.kind] += int(x.allowed.any(1).sum())
        for role, definition in ROLES.items():
            for relation, mask in definition.cases(x):
                totals[x.kind, role, relation].add(x, mask, by_words=role in LINKED)
    rates = list[dict[str, Any]]()
    for (kind, role, relation), total in totals.items():
        # Most queries have a key at the offset of a positional head.
        if role != "positional" or total.trials >= queries_of_kind[kind] / 2:
            rates += _rate(kind, role, relation, total)
    return rates


def _best_rates(rates: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each head and role the relation that exceeds its baseline most, and every other that is
    `found`; those that are found first, in the order of ROLES, the largest share first.
    """
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for rate in sorted(rates, key=lambda rate: rate["share"] - rate["baseline"]):
        # The last one stays, which exceeds its baseline most.
        best[rate["kind"], rate["layer"], rate["head"], rate["role"]] = rate
    kept = [
        rate for rate in rates if rate["found"] or any(rate is other for other in best.values())
    ]
    order = [*ROLES]
    kept.sort(key=lambda rate: (not rate["found"], order.index(rate["role"]), -rate["share"]))
    return kept


def _rate(kind: str, role: str, relation: str, total: _Total) -> Iterator[dict[str, Any]]:
    """How well each head fits a relation; see `head_roles`. Yields nothing without trials."""
    trials = total.trials
    if not trials:
        return
    expected = total.chance if role == "positional" else max(total.offsets.values())
    baseline = expected / trials
    least = max(ROLES[role].least, baseline + MARGIN)
    for (layer, head), hits in np.ndenumerate(total.hits):
        low, high = wilson(int(hits), trials)
        share = int(hits) / trials
        yield {
            "kind": kind,
            "layer": layer,
            "head": head,
            "role": role,
            "relation": relation,
            "found": share >= least and low > baseline,
            "open": high >= least and not (share >= least and low > baseline),
            "share": share,
            "low": low,
            "high": high,
            "trials": trials,
            "baseline": baseline,
            "examples": total.examples.get((layer, head), []),
        }


def wilson(hits: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """The score interval of a proportion (Wilson 1927)."""
    share = hits / trials
    scale = 1 + z * z / trials
    middle = (share + z * z / (2 * trials)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return max(0.0, middle - half), min(1.0, middle + half)


def check_roles(roles: Sequence[str]) -> None:
    """Raise UsageError for an unknown role."""
    for role in roles:
        if role not in ROLES:
            raise UsageError(f"{role}: no such role{nearest(role, [*ROLES], 'roles')}")


def prune_edits(report: Mapping[str, Any], roles: Sequence[str]) -> list[Edit]:
    """The edits that zero the outputs of all heads with one of these roles. Raises UsageError if
    there are none.
    """
    check_roles(roles)
    heads: dict[str, set[int]] = {}
    for rate in report["heads"]:
        if rate["found"] and rate["role"] in roles:
            point = HOOKS[rate["kind"]].format(rate["layer"]).replace("pattern", "heads")
            heads.setdefault(point, set()).add(rate["head"])
    if not heads:
        raise UsageError(f"no head is {' or '.join(roles)}")
    return [
        {"name": name, "heads": sorted(numbers), "op": "zero"} for name, numbers in heads.items()
    ]
