"""Figures of embeddings, positions, masks and learning rates, computed by the code that models and
training use.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.costs import SINUSOIDAL
from trifold.errors import UsageError
from trifold.look.session import Answer, Session
from trifold.look.trace import check_index
from trifold.nn.config_parts import RotaryScaling
from trifold.nn.masks import Mask, padding_mask
from trifold.nn.packing import Packing
from trifold.nn.positions import LearnedPositions, sinusoids
from trifold.nn.relative import AlibiOffsets, RelativeOffsets, buckets, slopes
from trifold.nn.rotary import SCALINGS, SCALINGS_BY_LENGTH, frequencies
from trifold.nn.rules import BlockSparse, GlobalTokens, Order, Segment, Window
from trifold.recipe import TrainSettings
from trifold.text import Tokenizer
from trifold.train.optimizers import learning_rate, peak_rate

POSITIONS, DISTANCES, WIDTH = 64, 128, 128  # of the figures, at most
LENGTHENED = {"factor": 4.0, "original_positions": 2048}  # scalings of a model that has none
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
    sides = [] if config.patch_size else list(config.stacks)
    return sides if config.target_vocab_size else sides[-1:]


def _ids(session: Session, side: str, text: str | None, target: str | None) -> list[int]:
    return sorted(set(session.trace(text, target).example.ids.get(side, ()))) if text else []


@torch.no_grad()
def _table(session: Session, side: str) -> tuple[Tensor, Tokenizer]:
    """The embeddings (V, E) of a stack and its tokenizer."""
    sides, pipeline = tables(session), session.pipeline
    if side not in sides:
        raise UsageError(
            f"side {side!r}: this model has embeddings of {' and '.join(sides) or 'no tokens'}"
        )
    codec = pipeline.reader if side == "encoder" else pipeline.writer
    module: Any = getattr(pipeline.model, f"{side}_embeddings").tokens
    return module(torch.arange(codec.vocab_size, device=pipeline.device)[None])[
        0
    ].float().cpu(), codec


def neighbours(session: Session, side: str, token: int | str, count: int = 10) -> Answer:
    """The tokens whose embeddings have the largest cosine with that of `token`, an id or a text of
    one token.
    """
    table, codec = _table(session, side)
    if isinstance(token, str):
        names = codec.pieces(range(len(table)))
        forms = [[names.index(token)]] if token in names else codec.encode([token, f" {token}"])
        if not (single := [ids for ids in forms if len(ids) == 1]):
            raise UsageError(
                f"{token!r:.40} has the tokens {' '.join(codec.pieces(forms[0]))}; choose one"
            )
        token = single[0][0]
    token = check_index("token", token, len(table))
    similarity = F.normalize(table, dim=-1) @ F.normalize(table[token], dim=-1)
    similarity[token] = -torch.inf
    values, found = similarity.topk(min(count, len(table) - 1))
    ids = found.tolist()
    return {
        "id": token,
        "token": codec.pieces([token])[0],
        "tokens": codec.pieces(ids),
        "similarity": values,
    }


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
    """sinusoids (T, W); similarity (T, T): cosines of the vectors that are added; rotary
    frequencies (R/2,) by scaling, angles (T, R/2); ALiBi slopes (H,), offsets (H, T) of the last
    query; buckets; learned offsets of the middle query.
    """
    model, config = session.pipeline.model, session.pipeline.config
    places = torch.arange(min(POSITIONS, config.max_positions))
    own_kind = config.positions in SINUSOIDAL
    kind, first = (config.positions, config.position_offset) if own_kind else ("sinusoidal", 0)
    waves = sinusoids(places + first, min(WIDTH, config.sum_width), kind)
    learned = [each.weight for each in model.modules() if isinstance(each, LearnedPositions)]
    added = learned[0][config.position_offset :][: len(places)].float().cpu() if learned else waves
    width, theta = config.rotated_width or config.head_width, config.rotary_theta
    omegas, own = {"unscaled": frequencies(width, theta)}, config.rotary_scaling
    for scaling in (
        [own] if own else [RotaryScaling.parse({"kind": kind, **LENGTHENED}) for kind in SCALINGS]
    ):
        name, by_length = (
            f"{scaling.kind} × {scaling.factor:g}",
            SCALINGS_BY_LENGTH.get(scaling.kind),
        )
        longest = torch.tensor([[int(scaling.factor * scaling.original_positions)]])
        scaled = by_length(width, theta, scaling, longest)[0] if by_length else None
        omegas[name] = frequencies(width, theta, scaling) if scaled is None else scaled
    distances = torch.arange(-DISTANCES, DISTANCES + 1)
    bucket = partial(buckets, distances, config.relative_buckets, config.relative_distance)
    offsets = {}
    for name, module in model.named_modules():
        if isinstance(module, RelativeOffsets):
            mask = Mask(causal=name.startswith("decoder"))
            bias = module(mask, len(places), module.weight.device, None)
            dense = bias if isinstance(bias, Tensor) else bias.dense(len(places), len(places))
            offsets[name] = dense[0, :, len(places) // 2]
    return {
        "kind": config.positions,
        "sinusoids": waves,
        "similarity": F.normalize(added, dim=-1) @ F.normalize(added, dim=-1).T,
        "frequencies": omegas,
        "angles": places[:, None] * [*omegas.values()][-1 if own else 0],
        "slopes": slopes(config.n_heads),
        "alibi": AlibiOffsets(config)(Mask(), len(places), CPU, None)[0, :, -1],
        "buckets": {"both ways": bucket(both_ways=True), "causal": bucket(both_ways=False)},
        "offsets": offsets,
    }


def masks(session: Session) -> Answer:
    """Every kind of mask, for 12 tokens: by name (T, S), True where a query may attend to a key."""
    real, order = (
        padding_mask(torch.tensor([9]), 12),
        torch.tensor([[3, 7, 0, 9, 1, 11, 5, 2, 10, 4, 8, 6]]),
    )
    places, packing = torch.arange(12), Packing.of(torch.tensor([5, 3, 4]))
    blocks = BlockSparse.of(None, 12, size=1, heads=1, random=1, seed=0, repeat=False)
    first = GlobalTokens((places == 0)[None])
    all_real, permutation = torch.ones(1, 12, dtype=torch.bool), (Order(order),)
    kinds = {
        "full": Mask(),
        "3 tokens of padding": Mask(real),
        "causal": Mask(causal=True),
        "causal, with padding": Mask(real, causal=True),
        "window of 4": Mask(rules=(Window(4),)),
        "causal window of 4": Mask(causal=True, rules=(Window(4),)),
        "window of 4, the first token global": Mask(rules=(Window(4), first)),
        "blocks of one token, one of them random": Mask(rules=(blocks,)),
        "segments of 4, and 2 tokens before": Mask(causal=True, rules=(Segment(4, 2),)),
        "8 tokens in a cache": Mask(causal=True, offset=8),
        "prefix of 4": Mask(rules=(Order((places - 3).clamp_min(0)[None]),)),
        "permutation": Mask(rules=permutation),
        "query stream of the permutation": Mask(all_real, queries=places[None], rules=permutation),
    }
    found = {}
    for name, mask in kinds.items():
        dense = mask.dense(12 - mask.offset, 12, CPU)
        allowed = torch.ones(12, 12, dtype=torch.bool) if dense is None else dense[0, 0]
        found[name] = allowed.expand(12 - mask.offset, 12).numpy()
    grid = Mask(packing.attend, causal=True, packing=packing).dense(5, 5, CPU)
    assert grid is not None
    row, place = packing.cell_of_token[:12] // 5, packing.cell_of_token[:12] % 5
    packed = (row[:, None] == row) & grid[row[:, None], 0, place[:, None], place]
    return {"masks": found | {"packed documents of 5, 3 and 4": packed.numpy()}}


def schedules(session: Session) -> Answer:
    """The learning rates of every schedule over 1,000 steps with a warmup of 100, to the peak of
    the paper.
    """
    steps, peak = torch.arange(1, 1_001, 3), peak_rate(session.pipeline.config.d_model, 100)
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
