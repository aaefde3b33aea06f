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
from trifold.look.attention import HOOKS, stacked_weights
from trifold.look.corpus import Line, find_words
from trifold.pipeline import Pipeline
from trifold.predict.trace import Edit, run_with
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
    people. words: the word of each query and key, or None. counts: of each key in the corpus.
    special: (S,) whether a key is a special token.
    """

    kind: str
    line: Line
    maxima: NDArray[np.int32]
    queries: NDArray[np.str_]
    names: Sequence[str]
    keys: NDArray[np.str_]
    special: Mask
    words: tuple[NDArray[np.int64], NDArray[np.int64]] | None
    counts: NDArray[np.int64]

    @property
    def allowed(self) -> Any:
        """Rows with a single key are not counted."""
        shape = len(self.queries), len(self.keys)
        mask = np.tri(*shape, dtype=bool) if self.kind == "decoder" else np.ones(shape, bool)
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
    counts = np.where(x.allowed & ~x.special, x.counts, np.iinfo(np.int64).max)
    yield "", counts == counts.min(1, keepdims=True)


def _duplicate(x: Pattern) -> Cases:
    same = (x.queries[:, None] == x.keys) & ~x.special
    yield "", same if x.kind == "cross" else same & ~np.eye(len(x.keys), dtype=bool)


def _induction(x: Pattern) -> Cases:
    if x.kind != "cross":
        mask = np.roll(x.queries[:, None] == x.keys, 1, axis=1) & ~np.eye(len(x.keys), dtype=bool)
        mask[:, 0] = False
        yield "", mask & (np.roll(np.arange(len(x.keys)), 1) != np.arange(len(x.keys))[:, None])


def _links(role: str) -> Callable[[Pattern], Cases]:
    def cases(x: Pattern) -> Cases:
        if x.words is None or (role == "alignment") != (x.kind == "cross"):
            return
        masks: dict[str, Mask] = {}
        for link in (link for link in x.line.links if link.role == role):
            rows = np.flatnonzero(x.words[0] == link.query)[
                -1:
            ]  # in a decoder the last token has read it
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

    def add(self, x: Pattern, mask: Mask, units: Any) -> None:
        """units: of queries and keys, in which offsets are counted."""
        mask = mask & x.allowed
        if not len(rows := np.flatnonzero(mask.any(1))):
            return
        hits = mask[rows, x.maxima[:, :, rows]]  # (L, H, rows)
        self.hits = self.hits + hits.sum(-1)
        self.trials = self.trials + len(rows)
        self.chance += float((mask.sum(1) / np.maximum(x.allowed.sum(1), 1))[rows].sum())
        row, key = np.nonzero(mask)
        queries, keys = units or (np.arange(len(x.queries)), np.arange(len(x.keys)))
        fitting = np.unique(np.stack([row, keys[key] - queries[row]]), axis=1)
        self.offsets.update(fitting[1].tolist())
        for layer, head in np.argwhere(hits.any(-1)).tolist():
            kept = self.examples.setdefault((layer, head), [])
            if len(kept) < MAX_EXAMPLES:
                at = int(rows[hits[layer, head].argmax()])
                pair = x.names[at], str(x.keys[x.maxima[layer, head, at]])
                kept.append(
                    {"text": x.line.text, "target": x.line.target, "row": at, "tokens": pair}
                )


def head_roles(
    pipeline: Pipeline, lines: Sequence[Line], on_done: Callable[[int], None] = lambda count: None
) -> dict[str, Any]:
    """lines, skipped: their numbers; skipped lines have links, but their tokens do not spell their
    words.

    heads: for each kind, layer and head, from 0, and each role its best relation, and every other
    that is `found`: share of the queries whose largest weight is at a key that fits, its 95 %
    interval (low, high; Wilson 1927), trials, baseline: the share of the best fixed offset (of
    words for links; for `positional`, of uniform attention), and examples: text, target, row,
    tokens. `found`: the share is at least that of the role and MARGIN above the baseline, and the
    interval is above the baseline. on_done: called with a number of lines.
    """
    patterns = list[Pattern]()
    skipped = 0
    counts: dict[str, Counter[str]] = {"encoder": Counter(), "decoder": Counter()}
    for line in lines:
        read, spelled = _read(pipeline, line, counts)
        patterns = patterns + read
        skipped = skipped + (not spelled)
        on_done(1)
    totals, queries = (
        defaultdict[tuple[str, str, str], _Total](_Total),
        Counter[str](),
    )  # of each kind
    for x in patterns:
        side = "encoder" if x.kind == "cross" else x.kind
        x.counts[:] = [counts[side][key] for key in x.keys]
        queries[x.kind] += int(x.allowed.any(1).sum())
        for role, (cases, _, _) in ROLES.items():
            for relation, mask in cases(x):
                totals[x.kind, role, relation].add(x, mask, x.words if role in LINKED else None)
    found = list[dict[str, Any]]()
    for (kind, role, relation), total in totals.items():
        if (
            role != "positional" or total.trials >= queries[kind] / 2
        ):  # most queries have a key at the offset
            found += _rate(kind, role, relation, total)
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for each in sorted(found, key=lambda each: each["share"] - each["baseline"]):
        best[each["kind"], each["layer"], each["head"], each["role"]] = each
    kept = [
        each for each in found if each["found"] or any(each is other for other in best.values())
    ]
    kept.sort(key=lambda each: (not each["found"], [*ROLES].index(each["role"]), -each["share"]))
    return {"lines": len(lines), "skipped": skipped, "heads": kept}


def _read(
    pipeline: Pipeline, line: Line, counts: Mapping[str, Counter[str]]
) -> tuple[list[Pattern], bool]:
    """The patterns of a line, and whether its tokens spell the words of its links."""
    try:
        trace = run_with(pipeline, line.text, line.target)
    except DataError as error:
        raise DataError(f"{line.place}: {error}") from error
    ids = trace.example.ids
    tokens = trace.tokens
    spelled = True
    if not ids:
        raise UsageError("roles are measured over texts; this model reads images")
    words: dict[str, list[int] | None] = {}
    codecs = {"encoder": pipeline.reader, "decoder": pipeline.writer}
    written = trace.labels.tolist() if len(ids) > 1 and trace.head == "lm" else []
    target = line.target if trace.head == "lm" else None  # else a class
    if line.links:
        side = next(iter(ids))
        continued = (target or "") if side == "decoder" else ""  # the decoder reads both
        read = line.words or (line.text + continued).split()
        words[side] = find_words(codecs[side], ids[side], read)
        if written and target:
            words["cross"] = find_words(pipeline.writer, written, target.split())
        spelled = None not in words.values()
    for side, pieces in tokens.items():
        counts[side].update(pieces)
    found = []
    for kind, weights in stacked_weights(trace).items():
        side = "encoder" if kind == "cross" else kind
        reads = tokens["decoder" if kind == "cross" else kind]
        queries = pipeline.writer.pieces(written) if kind == "cross" and written else reads
        units = words.get(kind), words.get(side)
        known = (
            None
            if units[0] is None or units[1] is None
            else (np.array(units[0]), np.array(units[1]))
        )
        special = [not text for text in codecs[side].decode([[token] for token in ids[side]])]
        found.append(
            Pattern(
                kind=kind,
                line=line,
                maxima=weights.argmax(-1).astype(np.int32),
                queries=np.array(queries),
                names=trace.queries[kind],
                keys=np.array(tokens[side]),
                special=np.array(special),
                words=known,
                counts=np.zeros(len(tokens[side]), np.int64),
            )
        )
    return found, spelled


def _rate(kind: str, role: str, relation: str, total: _Total) -> Iterator[dict[str, Any]]:
    if not (n := total.trials):
        return
    best = total.chance if role == "positional" else max(total.offsets.values())
    baseline = best / n
    least = ROLES[role].least
    for (layer, head), hits in np.ndenumerate(total.hits):
        low, high = wilson(int(hits), n)
        share = int(hits) / n
        found = share >= max(least, baseline + MARGIN) and low > baseline
        place = {"kind": kind, "layer": layer, "head": head, "role": role, "relation": relation}
        numbers = {"share": share, "low": low, "high": high, "trials": n, "baseline": baseline}
        yield {
            **place,
            "found": found,
            **numbers,
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
    for each in report["heads"]:
        if each["found"] and each["role"] in roles:
            point = HOOKS[each["kind"]].format(each["layer"]).replace("pattern", "heads")
            heads.setdefault(point, set()).add(each["head"])
    if not heads:
        raise UsageError(f"no head is {' or '.join(roles)}")
    return [
        {"name": name, "heads": sorted(numbers), "op": "zero"} for name, numbers in heads.items()
    ]
