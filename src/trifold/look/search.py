"""The tree of a search: every candidate that it considered, with its probability and what became of
it.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trifold.errors import UsageError
from trifold.generate import GenerationConfig, Hypothesis, generate_tokens, resolve
from trifold.generate.decoding import DecodingState
from trifold.generate.processors import NEVER, Context
from trifold.generate.sampling import chosen_filters, draw_weights
from trifold.generation_config import end_ids
from trifold.look.session import Answer, Session
from trifold.nn import Inputs
from trifold.pipeline import Pipeline, reading_options

BEAMS = 4  # if the model has no beams of its own
LENGTH = 20  # tokens of a decoder, which rarely ends
ALTERNATIVES = 4  # tokens that greedy decoding or sampling did not choose
MAX_NODES = 20_000  # that a search may have; one that may have more does not begin
MAX_ROWS = 256  # beams or samples
OTHERS = ("penalty_alpha", "prompt_lookup_num_tokens", "force_words", "force_words_ids")

Prefix = tuple[int, ...]


def search(
    session: Session, text: str, forced: Sequence[int] = (), samples: int = 0, **options: Any
) -> Answer:
    """The tree of a search for one text: nodes, outputs (text, score, node; best first) and
    settings.

    forced: the ids that every output begins with. samples: number of samples; 0: beams. options:
    those of `generate`; by default beams of the model, or 4; samples have seed 0, a decoder writes
    at most 20 tokens. A node has its number, its parent (that of the first is -1), id, token,
    probability (the model's), adjusted (the probability in the search: after penalties and
    forbidden tokens, and of samples after temperature and filters), score (the sum of
    log-probabilities after penalties), `kept` (continued, or an output), and the reason if it ends
    there. Raises UsageError for other searches, for a forced token that is forbidden, and, before
    the search, for one that may have more than 20,000 nodes or has more than 256 beams or samples.
    """
    pipeline = session.pipeline
    options = _with_defaults(pipeline, samples, options)
    config, length = _resolve(pipeline, text, options)
    recorder = _Recorder(config, forced)
    rows = pipeline.read([text], **reading_options(config))
    inputs = Inputs(torch.tensor(rows, device=pipeline.device))
    (hypotheses,) = generate_tokens(
        pipeline.model, inputs, config, codec=pipeline.writer, hook=recorder
    )
    names = pipeline.writer.pieces([prefix[-1] for prefix in recorder.nodes if prefix])
    texts = pipeline.decode([hypothesis.tokens for hypothesis in hypotheses], **options)
    leaves = recorder.finish(hypotheses, end_ids(config, pipeline.config))
    outputs = [
        {**hypothesis._asdict(), "text": output, "node": node}
        for hypothesis, output, node in zip(hypotheses, texts, leaves, strict=True)
    ]
    settings = {
        "num_beams": 1,
        **config.model_dump(exclude_defaults=True),
        "max_new_tokens": length,
    }
    named = zip(recorder.nodes.values(), ["", *names], strict=True)
    nodes = [{**node, "token": name} for node, name in named]
    return {"nodes": nodes, "outputs": outputs, "settings": settings}


def _with_defaults(pipeline: Pipeline, samples: int, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a search that returns all of its samples, or of its beams."""
    if samples:
        options = {"do_sample": True, "seed": 0, **options, "num_return_sequences": samples}
    else:
        beams_of_model = pipeline.generation.num_beams
        default = beams_of_model if beams_of_model > 1 else BEAMS
        beams = options.get("num_beams", default)
        options = options | {"num_beams": beams, "num_return_sequences": beams}
        if beams == 1:
            options["do_sample"] = False
    if pipeline.config.shape == "decoder" and "max_length" not in options:
        options.setdefault("max_new_tokens", LENGTH)
    return options


def _resolve(
    pipeline: Pipeline, text: str, options: dict[str, Any]
) -> tuple[GenerationConfig, int]:
    """The settings of a search and its largest number of tokens. If that is not in the options, it
    is lowered as far as needed and put into them. Raises UsageError for a search that has no tree,
    or may have a too large one.
    """
    config = resolve(pipeline.generation, options)
    for name in OTHERS:
        if getattr(config, name) is not None:
            raise UsageError(
                f"{name}: the tree shows beams, greedy decoding and samples; set it to null"
            )
    rows = config.num_return_sequences
    what = "samples"
    nodes_per_row = ALTERNATIVES + 2  # the chosen token may be another than the best ones
    if config.num_beams > 1:
        rows = config.num_beams
        what = "num_beams"
        nodes_per_row = 1 + len(end_ids(config, pipeline.config))  # see `beam_search`
    if rows > MAX_ROWS:
        raise UsageError(f"{what} {rows:,}: the tree shows at most {MAX_ROWS}; lower it")
    length = pipeline.limit(text, **options).tokens
    longest = (MAX_NODES - 1) // (rows * nodes_per_row)
    if length > longest and not {"max_new_tokens", "max_length"} & options.keys():
        options["max_new_tokens"] = length = longest
        config = resolve(pipeline.generation, options)
    if length > longest:
        raise UsageError(
            f"{what} {rows} with {length:,} tokens: the tree may have over {MAX_NODES:,} nodes; "
            f"lower the length to {longest:,}, or {what}"
        )
    return config, length


class _Candidate(NamedTuple):
    """A token that a search considers for a row: its score, whether the search continues with it or
    it is an output, and whether it ends its row.
    """

    row: int
    token: int
    score: float
    is_kept: bool
    is_end: bool


class _Recorder:
    """A SearchHook: collects the candidates of one sentence, and allows only the forced tokens
    first.
    """

    def __init__(self, config: GenerationConfig, forced: Sequence[int]) -> None:
        self.config = config
        self.forced = list(forced)
        self.beams = 0  # of a group; 0 without beams
        if config.num_beams > 1:
            self.beams = config.num_beams // config.num_beam_groups
        start: Answer = {
            "number": 0,
            "parent": -1,
            "id": -1,
            "probability": 1.0,
            "adjusted": 1.0,
            "score": 0.0,
            "kept": True,
            "reason": "",
        }
        self.nodes: dict[Prefix, Answer] = {(): start}
        self.ended: set[Prefix] = set()
        self.weigh = draw_weights(config)
        # Of the current step, (rows, V): log-probabilities of the model and after penalties, and
        # probabilities of the sampler.
        self._model = torch.empty(0)
        self._log_probs = torch.empty(0)
        self._adjusted = torch.empty(0)

    def process(self, logits: Tensor, context: Context) -> Tensor:
        position = context.generated
        self._log_probs = logits.log_softmax(-1)
        if position >= len(self.forced):
            return logits
        token = self.forced[position]
        if token not in range(logits.shape[-1]) or float(logits[0, token]) == NEVER:
            raise UsageError(
                f"forced: token {token} at position {position} is forbidden or unknown"
            )
        others = torch.arange(logits.shape[-1], device=logits.device) != token
        return logits.masked_fill(others, NEVER)

    def step(
        self,
        state: DecodingState,
        rows: Tensor,
        tokens: Tensor,
        scores: Tensor,
        kept: Tensor,
        ended: Tensor,
    ) -> None:
        self._model = state.logits.log_softmax(-1)
        if not self.beams:
            weights = self.weigh(self._log_probs)
            self._adjusted = weights / weights.sum(-1, keepdim=True)
        columns = [x.tolist() for x in (rows, tokens, scores, kept, ended)]
        for group in zip(*columns, strict=True):
            for rank, values in enumerate(zip(*group, strict=True), start=1):
                self._consider(state, _Candidate(*values), rank)
        if not self.beams and state.generated >= len(self.forced):
            self._add_alternatives(state.generated_tokens(rows[:, 0]).tolist())

    def _consider(self, state: DecodingState, candidate: _Candidate, rank: int) -> None:
        """Add a candidate with its rank in its group, from 1."""
        row, token, score, is_kept, is_end = candidate
        prefix = tuple(state.tokens[row, state.tokens.shape[1] - state.generated :].tolist())
        reason = ""
        if not is_kept and is_end:
            reason = f"ends at rank {rank}; only an end among the best {self.beams} counts"
        elif not is_kept:
            reason = f"fell out of the beam: rank {rank}, and {self.beams} continue"
        if not self.beams:
            # Where a token is forced, such a search gives it the probability 1.
            log_prob = float(self._log_probs[row, token])
        elif score > NEVER:
            log_prob = score - self.nodes[prefix]["score"]
        else:
            log_prob = score
        self._add(prefix, row, token, log_prob, reason)
        if is_kept and is_end:
            self.ended.add((*prefix, token))

    def _add_alternatives(self, prefixes: list[list[int]]) -> None:
        """The best tokens that were not chosen, and the filter of the sampler that removed each."""
        filtered = self._log_probs
        removed = dict[str, Tensor]()
        for key, keep in chosen_filters(self.config).items():
            was_left = filtered > NEVER
            filtered = keep(filtered)
            removed[f"cut by {key} {getattr(self.config, key)}"] = was_left & (filtered == NEVER)
        other = "not drawn" if self.config.is_sampling else "less probable than the best"
        values, ids = self._log_probs.topk(min(ALTERNATIVES + 1, self._log_probs.shape[-1]))
        for row, prefix in enumerate(prefixes):
            for value, token in zip(values[row].tolist(), ids[row].tolist(), strict=True):
                reason = next((why for why, cut in removed.items() if cut[row, token]), other)
                self._add(tuple(prefix), row, token, value, reason)

    def _add(self, prefix: Prefix, row: int, token: int, log_prob: float, reason: str) -> None:
        """A candidate of a row; no reason: it is kept. Beams of other groups and samples may share
        it.
        """
        if log_prob == NEVER:
            return
        parent = self.nodes[prefix]
        node = self.nodes.setdefault((*prefix, token), {"number": len(self.nodes), "kept": False})
        if node["kept"]:
            return
        if self.beams:
            adjusted = math.exp(log_prob)
        else:
            adjusted = float(self._adjusted[row, token])
        node |= {
            "parent": parent["number"],
            "id": token,
            "adjusted": adjusted,
            "probability": math.exp(float(self._model[row, token])),
            "score": parent["score"] + log_prob,
            "kept": not reason,
            "reason": reason,
        }

    def finish(self, outputs: Sequence[Hypothesis], ends: Sequence[int]) -> list[int]:
        """Set the reasons of the leaves that were kept; -> the node of each output."""
        leaf_of_text = {_without_end(prefix, ends): prefix for prefix in self.ended}
        leaves = [leaf_of_text[tuple(output.tokens)] for output in outputs]
        longest = max(map(len, self.nodes))
        parents = {prefix[:-1] for prefix, node in self.nodes.items() if node["kept"]}
        for prefix, node in self.nodes.items():
            if prefix in leaves:
                numbers = [str(n) for n, leaf in enumerate(leaves, start=1) if leaf == prefix]
                why = outputs[leaves.index(prefix)].finish_reason
                node["reason"] = f"output {', '.join(numbers)} ({why})"
            elif prefix in self.ended:
                node["reason"] = f"finished, but worse than the {len(outputs)} best outputs"
            elif node["kept"] and prefix not in parents:
                is_open = len(prefix) == longest
                node["reason"] = (
                    "open when the search ended" if is_open else "no continuation remained"
                )
        return [self.nodes[prefix]["number"] for prefix in leaves]


def _without_end(prefix: Prefix, ends: Sequence[int]) -> Prefix:
    return prefix[:-1] if prefix[-1] in ends else prefix
