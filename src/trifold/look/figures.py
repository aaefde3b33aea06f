"""Figures of embeddings, positions, masks and learning rates, computed by the code that models and
training use.
"""

from collections.abc import Iterator
from typing import Any, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.costs import SINUSOIDAL
from trifold.errors import UsageError
from trifold.look.session import Answer, Session
from trifold.nn import ModelConfig, Transformer
from trifold.nn.masks import Mask, padding_mask
from trifold.nn.packing import Packing
from trifold.nn.parts import EXAMPLE_TOKENS, EmbeddingsPart, RulePart, ScoresPart, part_of
from trifold.nn.positions import LearnedPositions, sinusoids
from trifold.nn.registry import registered_for
from trifold.predict.trace import check_count, check_index
from trifold.predict.trace_example import codec_of
from trifold.recipe import TrainSettings
from trifold.text import Tokenizer
from trifold.train.schedules import learning_rate, peak_rate

# Of the figures, at most.
POSITIONS = 64
WIDTH = 128
CPU = torch.device("cpu")


def offline(
    session: Session, text: str, target: str | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The requests that a written page answers: all figures, and the neighbours of the tokens of
    the text.
    """
    yield from (("positions", {}), ("masks", {}), ("schedules", {}))
    for side in tables(session):
        yield "components", {"side": side, "text": text, "target": target}
        for token in _ids(session, side, text, target):
            yield "neighbours", {"side": side, "token": token}


def tables(session: Session) -> list[str]:
    """The stacks with embeddings of their own: both if the vocabularies differ, none of a model of
    images.
    """
    config = session.pipeline.config
    if not part_of(EmbeddingsPart, config).has_tokens:
        return []
    sides = list(config.stacks)
    return sides if config.target_vocab_size else sides[-1:]


def _ids(session: Session, side: str, text: str | None, target: str | None) -> list[int]:
    """The ids of a side that a text has, each once, in order; none without a text."""
    if not text:
        return []
    return sorted(set(session.trace(text, target).example.ids.get(side, ())))


@torch.no_grad()
def _table(session: Session, side: str) -> tuple[Tensor, Tokenizer]:
    """The embeddings (V, E) of a stack and its tokenizer."""
    sides = tables(session)
    pipeline = session.pipeline
    if side not in sides:
        raise UsageError(
            f"side {side!r}: this model has embeddings of {' and '.join(sides) or 'no tokens'}"
        )
    module: Any = getattr(pipeline.model, f"{side}_embeddings").tokens
    rows = pipeline.config.vocab_size
    if side == "decoder":
        rows = pipeline.config.output_vocab_size
    table = module(torch.arange(rows, device=pipeline.device)[None])[0]
    return table.float().cpu(), codec_of(pipeline, side)


def neighbours(session: Session, side: str, token: int | str, count: int = 10) -> Answer:
    """The tokens whose embeddings have the largest cosine with that of `token`, an id or a text of
    one token.
    """
    check_count("count", count)
    table, codec = _table(session, side)
    if isinstance(token, str):
        token = _id_of(codec, token, len(table))
    token = check_index("token", token, len(table))
    similarity = F.normalize(table, dim=-1) @ F.normalize(table[token], dim=-1)
    similarity[token] = -torch.inf
    values, nearest = similarity.topk(min(count, len(table) - 1))
    ids = nearest.tolist()
    return {
        "id": token,
        "token": codec.pieces([token])[0],
        "tokens": codec.pieces(ids),
        "similarity": values,
    }


def _id_of(codec: Tokenizer, text: str, rows: int) -> int:
    """The id of a token below `rows` by its name or its text. Raises UsageError for a text of
    several tokens.
    """
    names = codec.pieces(range(rows))
    if text in names:
        return names.index(text)
    alone, after_space = codec.encode([text, f" {text}"])
    for ids in (alone, after_space):
        if len(ids) == 1:
            return ids[0]
    raise UsageError(f"{text!r:.40} has the tokens {' '.join(codec.pieces(alone))}; choose one")


def components(
    session: Session,
    side: str,
    text: str | None = None,
    target: str | None = None,
    count: int = 1_000,
) -> Answer:
    """points (N, 3): the first `count` embeddings, and those of the text, along the principal
    components of the first.

    shares (3,): of the variance. marked: the ids of the text. The largest weight of a component is
    positive.
    """
    check_count("count", count)
    table, codec = _table(session, side)
    first = table[:count].double()
    _, values, axes = torch.linalg.svd(first - first.mean(0), full_matrices=False)
    axes = axes[:3] * axes[:3].gather(1, axes[:3].abs().argmax(1, keepdim=True)).sign()
    marked = _ids(session, side, text, target)
    ids = [*range(len(first)), *(token for token in marked if token >= len(first))]
    points = (table[ids].double() - first.mean(0)) @ axes.T
    shares = values[:3].square() / values.square().sum()
    return {
        "ids": ids,
        "tokens": codec.pieces(ids),
        "marked": marked,
        "points": points,
        "shares": shares,
    }


@torch.no_grad()
def positions(session: Session) -> Answer:
    """sinusoids (T, W); similarity (T, T): cosines of the vectors that are added; frequencies of
    rotations (R/2,) by name, angles (T, R/2); what parts show (`ScoresPart.figures`).
    """
    model = session.pipeline.model
    config = session.pipeline.config
    numbers = torch.arange(min(POSITIONS, config.max_positions))
    waves = _sinusoids(config, numbers)
    learned = [x.weight for x in model.modules() if isinstance(x, LearnedPositions)]
    added = waves
    if learned:
        added = learned[0][config.position_offset :][: len(numbers)].float().cpu()
    rotations = _frequencies(config)
    of_model = [*part_of(ScoresPart, config).frequencies(config).values()]
    shown = of_model[-1] if of_model else next(iter(rotations.values()))
    return {
        "kind": config.positions,
        "sinusoids": waves,
        "similarity": F.normalize(added, dim=-1) @ F.normalize(added, dim=-1).T,
        "frequencies": rotations,
        "angles": numbers[:, None] * shown,
        **_of_scores(model, len(numbers)),
    }


def _sinusoids(config: ModelConfig, positions: Tensor) -> Tensor:
    """The sinusoids (T, W) of positions (T,): those of the model, or those of the paper."""
    width = min(WIDTH, config.sum_width)
    if config.positions in SINUSOIDAL:
        return sinusoids(positions + config.position_offset, width, config.positions)
    return sinusoids(positions, width, "sinusoidal")


def _frequencies(config: ModelConfig) -> dict[str, Tensor]:
    """The frequencies of rotations, plain ones first."""
    frequencies = dict[str, Tensor]()
    for part in registered_for(ScoresPart.place):
        frequencies |= part.frequencies(config)
    return frequencies


def _of_scores(model: Transformer, tokens: int) -> dict[str, Any]:
    """What positions in scores show, whichever the model has."""
    stacks = {side: getattr(model, side) for side in model.config.stacks}
    figures = dict[str, Any]()
    for part in registered_for(ScoresPart.place):
        figures |= part.figures(model.config, stacks, tokens)
    return figures


def masks(session: Session) -> Answer:
    """Every kind of mask, for 12 tokens: by name (T, S), True where a query may attend to a key."""
    dense_masks = {}
    for name, mask in _masks().items():
        queries = EXAMPLE_TOKENS - mask.offset
        keys = EXAMPLE_TOKENS
        dense = mask.dense(queries, keys, CPU)
        if dense is None:
            dense = torch.ones(1, 1, keys, keys, dtype=torch.bool)
        dense_masks[name] = dense[0, 0].expand(queries, keys).numpy()
    dense_masks["packed documents of 5, 3 and 4"] = _packed_mask([5, 3, 4]).numpy()
    return {"masks": dense_masks}


def _packed_mask(lengths: list[int]) -> Tensor:
    """The mask (T, T) of packed documents with T tokens together, the longest first."""
    width = lengths[0]
    packing = Packing.of(torch.tensor(lengths))
    grid = Mask(packing.attend, causal=True, packing=packing).dense(width, width, CPU)
    assert grid is not None
    cells = packing.cell_of_token[: sum(lengths)]
    row = cells // width
    column = cells % width
    return (row[:, None] == row) & grid[row[:, None], 0, column[:, None], column]


def _masks() -> dict[str, Mask]:
    """By name: first plain masks, then those with rules that keep queries from far keys."""
    real = padding_mask(torch.tensor([9]), EXAMPLE_TOKENS)
    plain = {
        "full": Mask(),
        "3 tokens of padding": Mask(real),
        "causal": Mask(causal=True),
        "causal, with padding": Mask(real, causal=True),
    }
    ruled = dict[str, Mask]()
    for part in registered_for(RulePart.place):
        ruled |= part.examples(ruled)
    near = {n: mask for n, mask in ruled.items() if any(rule.can_be_lifted for rule in mask.rules)}
    return plain | near | {"8 tokens in a cache": Mask(causal=True, offset=8)} | ruled


def schedules(session: Session) -> Answer:
    """The learning rates of every schedule over 1,000 steps with a warmup of 100, to the peak of
    the paper.
    """
    steps = torch.arange(1, 1_001, 3)
    peak = peak_rate(session.pipeline.config.d_model, 100)
    kinds = {
        name: {"schedule": name}
        for name in get_args(TrainSettings.model_fields["schedule"].annotation)
    }
    kinds["warmup-stable-decay, 1-sqrt"] = {
        "schedule": "warmup-stable-decay",
        "decay_form": "1-sqrt",
    }
    curves = {}
    for name, keys in kinds.items():
        settings = TrainSettings.parse({"steps": 1_000, "warmup": 100, **keys})
        curves[name] = torch.tensor(
            [learning_rate(settings, step, peak) for step in steps.tolist()]
        )
    return {"steps": steps, "peak": peak, "curves": curves}
