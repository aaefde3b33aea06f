"""The tree of a search: every candidate that it considered, with its probability and what became of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trifold.errors import UsageError
from trifold.generate import GenerationConfig, Hypothesis, generate_tokens, resolve
from trifold.generate.config import end_ids
from trifold.generate.decoding import DecodingState
from trifold.generate.processors import NEVER, Context
from trifold.generate.sampling import chosen_filters
from trifold.look.session import Answer, Session
from trifold.nn import Inputs

BEAMS = 4  # if the model has no beams of its own
LENGTH = 20  # tokens of a decoder, which rarely ends
ALTERNATIVES = 4  # tokens that greedy decoding or sampling did not choose
MAX_NODES = 20_000
OTHERS = ("penalty_alpha", "prompt_lookup_num_tokens", "force_words", "force_words_ids")

Prefix = tuple[int, ...]


def search(
    session: Session, text: str, forced: Sequence[int] = (), samples: int = 0, **options: Any
) -> Answer:
    """The tree of a search for one text: nodes, outputs (text, score, node; best first) and settings.

    forced: the ids that every output begins with. samples: number of samples; 0: beams. options: those of `generate`;
    by default beams of the model, or 4; samples have seed 0, a decoder writes at most 20 tokens. A node has its parent
    (the first node, -1, has none), id, token, probability, score (the sum of log-probabilities so far), `kept`
    (continued, or an output), and the reason if it ends there. Raises UsageError for other searches, for a forced token
    that is forbidden, and for more than 20,000 nodes.
    """
    pipeline = session.pipeline
    if samples:
        options = {"do_sample": True, "seed": 0, **options, "num_return_sequences": samples}
    else:
        own = pipeline.generation.num_beams
        beams = options.setdefault("num_beams", own if own > 1 else BEAMS)
        options |= {"num_return_sequences": beams} | ({"do_sample": False} if beams == 1 else {})
    stored = pipeline.generation.model_dump(exclude_none=True).keys() | options.keys()
    if pipeline.config.shape == "decoder" and stored.isdisjoint(("max_new_tokens", "max_length")):
        options["max_new_tokens"] = LENGTH
    limit, config = pipeline.limit(text, **options), resolve(pipeline.generation, options)
    for name in OTHERS:
        if getattr(config, name) is not None:
            raise UsageError(
                f"{name}: the tree shows beam search, greedy decoding and sampling; set it to null"
            )
    ends, recorder = end_ids(config, pipeline.config), _Recorder(config, forced)
    inputs = Inputs(torch.tensor(pipeline.read([text]), device=pipeline.device))
    (found,) = generate_tokens(pipeline.model, inputs, config, codec=pipeline.writer, hook=recorder)
    places = recorder.finish(found, ends)
    names = pipeline.writer.pieces([each["id"] for each in recorder.nodes.values()])
    for node, name in zip(recorder.nodes.values(), names, strict=True):
        node["token"] = name
    texts = pipeline.decode([each.tokens for each in found], **options)
    outputs = [
        {"text": text, "score": each.score, "finish_reason": each.finish_reason, "node": places[n]}
        for n, (text, each) in enumerate(zip(texts, found, strict=True))
    ]
    settings = {"num_beams": 1, **config.model_dump(exclude_defaults=True), "max_new_tokens": limit.tokens}
    nodes = [
        {"parent": -1, "id": -1, "token": "", "probability": 1.0, "score": 0.0, "kept": True, "reason": ""}
    ]
    return {"nodes": [*nodes, *recorder.nodes.values()], "outputs": outputs, "settings": settings}


class _Recorder:
    """A SearchHook: collects the candidates of one sentence, and allows only the forced tokens first."""

    def __init__(self, config: GenerationConfig, forced: Sequence[int]) -> None:
        self.config, self.forced = config, list(forced)
        self.beams = config.num_beams // config.num_beam_groups if config.num_beams > 1 else 0
        self.nodes: dict[Prefix, Answer] = {}
        self.ended: set[Prefix] = set()
        self._numbers: dict[Prefix, int] = {(): 0}
        self._forced_score = 0.0  # where the search gives forced tokens the probability 1
        self._log_probs = torch.empty(0)

    def process(self, logits: Tensor, context: Context) -> Tensor:
        at = context.generated
        if at >= len(self.forced):
            self._log_probs = torch.empty(0) if self.beams else logits.log_softmax(-1)
            return logits
        token = self.forced[at]
        if not 0 <= token < logits.shape[-1] or float(logits[0, token]) == NEVER:
            raise UsageError(
                f"forced: token {token} at position {at} is forbidden or unknown; choose another"
            )
        if not self.beams or self.config.renormalize_logits:
            self._forced_score += float(logits[0].log_softmax(-1)[token])
        only = torch.full_like(logits, NEVER)
        only[:, token] = logits[:, token]
        self._log_probs = torch.empty(0)
        return only

    def step(
        self, state: DecodingState, rows: Tensor, tokens: Tensor, scores: Tensor, kept: Tensor, ended: Tensor
    ) -> None:
        for row, *columns in zip(
            *(each.tolist() for each in (rows, tokens, scores, kept, ended)), strict=True
        ):
            prefixes = [tuple(each) for each in state.generated_tokens(torch.tensor(row)).tolist()]
            candidates = zip(prefixes, *columns, strict=True)
            for rank, (prefix, token, score, is_kept, is_end) in enumerate(candidates, start=1):
                reason = f"fell out of the beam: rank {rank}, and {self.beams} continue"
                if is_end:
                    reason = f"ends at rank {rank}; only an end among the best {self.beams} counts"
                self._add(prefix, token, score + self._forced_score, "" if is_kept else reason)
                if is_kept and is_end:
                    self.ended.add((*prefix, token))
        if len(self._log_probs):
            self._add_alternatives(
                state, [row for (row,) in rows.tolist()], scores - self._log_probs.gather(1, tokens)
            )

    def _add_alternatives(self, state: DecodingState, rows: list[int], before: Tensor) -> None:
        """The best tokens that were not chosen, and the filter of the sampler that removed each."""
        left, removed = self._log_probs, dict[str, Tensor]()
        for key, keep in chosen_filters(self.config).items():
            left, former = keep(left), left
            removed[f"cut by {key} {getattr(self.config, key)}"] = (left == NEVER) & (former > NEVER)
        other = "not drawn" if self.config.is_sampling else "less probable than the best"
        values, ids = self._log_probs.topk(min(ALTERNATIVES + 1, self._log_probs.shape[-1]))
        for row, prefix in zip(rows, state.generated_tokens(torch.tensor(rows)).tolist(), strict=True):
            for value, token in zip(values[row].tolist(), ids[row].tolist(), strict=True):
                reason = next((why for why, cut in removed.items() if cut[row, token]), other)
                score = float(before[row]) + value + self._forced_score
                self._add(tuple(prefix), token, score, reason)

    def _add(self, prefix: Prefix, token: int, score: float, reason: str) -> None:
        """A candidate; no reason: it is kept. Beams of other groups and samples may share it."""
        key, parent = (*prefix, token), self.nodes.get(prefix)
        if score == NEVER or (reason and key in self.nodes):
            return
        if len(self.nodes) >= MAX_NODES:
            raise UsageError(
                f"the tree has more than {MAX_NODES:,} nodes; lower the beams, samples or length"
            )
        self._numbers.setdefault(key, len(self._numbers))
        self.nodes[key] = {
            "parent": self._numbers[prefix],
            "id": token,
            "probability": math.exp(score - (parent["score"] if parent else 0.0)),
            "score": score,
            "kept": not reason,
            "reason": reason,
        }

    def finish(self, outputs: Sequence[Hypothesis], ends: Sequence[int]) -> list[int]:
        """Set the reasons of the leaves that were kept; -> the node of each output."""
        places = {tuple(key[:-1] if key[-1] in ends else key): key for key in self.ended}
        found = [places[tuple(each.tokens)] for each in outputs]
        last, parents = (
            max(map(len, self.nodes)),
            {key[:-1] for key, node in self.nodes.items() if node["kept"]},
        )
        for key, node in self.nodes.items():
            if key in found:
                numbers = [str(n) for n, each in enumerate(found, start=1) if each == key]
                node["reason"] = f"output {', '.join(numbers)} ({outputs[found.index(key)].finish_reason})"
            elif key in self.ended:
                node["reason"] = f"finished, but worse than the {len(outputs)} best outputs"
            elif node["kept"] and key not in parents:
                stopped = "open when the search ended: it is unlikely to be better than the outputs"
                node["reason"] = stopped if len(key) == last else "no continuation remained in the beam"
        return [self._numbers[key] for key in found]
