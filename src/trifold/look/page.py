"""The page of `trifold look`: the built file of web/, with answers to requests embedded in it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trifold import disk
from trifold.errors import TrifoldError
from trifold.look import figures
from trifold.look.attention import QUERY_SIDES
from trifold.look.requests import Floats, answer, key
from trifold.look.session import Session
from trifold.memory import require_memory
from trifold.nn.parts import AttentionPart, part_of

MARK = "/*ANSWERS*/"  # in the built file, where the embedded answers go
MAX_SEARCHED = 2**28  # parameters of a model whose file contains a search
MAX_TEXTS = 20  # examples of roles that a file contains
MAX_NEURONS = 2**20  # products of queries and keys that a file contains; 11 MB
# For each weight: two bytes in base64, in the answer, the JSON, its escaped form, the page and the
# file.
PAGE_BYTES = 5 * 2 * 4 // 3 + 1
FLOATS: dict[str, Floats] = {"attention": "float16"}  # in a file; other arrays are float32


def page(answers: Mapping[str, Any], start: Mapping[str, Any], *, live: bool = False) -> str:
    """The HTML with embedded answers. Markup in them cannot end the element that contains them.

    start: text and target that are shown first, and `models`, the names of the models.
    """
    template = files("trifold.look").joinpath("page.html").read_text(encoding="utf-8")
    values = {"live": live, "start": start, "answers": answers}
    content = json.dumps(values, ensure_ascii=False, allow_nan=False)
    for letter in "<>&\u2028\u2029":
        content = content.replace(letter, f"\\u{ord(letter):04x}")
    before, after = template.split(MARK)
    return before + content + after


Request = tuple[str, dict[str, Any]]


def offline_requests(session: Session, text: str, target: str | None = None) -> Iterator[Request]:
    """The requests that a written page answers: those of every view of one text that are not too
    large together.
    """
    config = session.pipeline.config
    shared = {"text": text, "target": target}
    model = answer(session, "model", {})
    kinds = model["layers"]
    trace = session.trace(text, target)
    yield "model", {}
    if session.folder is not None:
        yield "run", {}
    if session.roles is not None:
        yield "roles", {}
        yield from _examples(session.roles)
    yield "trace", shared
    for kind, layers in kinds.items():
        for layer in range(layers):
            yield "attention", {**shared, "kind": kind, "layer": layer}
    if trace.head is not None:
        yield "lens", shared
        yield "gradients", shared
    for side, tokens in trace.tokens.items():
        yield "walkthrough", {**shared, "side": side, "position": len(tokens) - 1}
    if model["generates"] and session.pipeline.model.count_parameters() <= MAX_SEARCHED:
        yield "search", {"text": text}
    yield from figures.offline(session, text, target)
    if not part_of(AttentionPart, config).has_scores:
        return
    neurons = list(_neurons(model, trace.tokens))
    keys = max(map(len, trace.tokens.values()))
    width = max(stack.head_width for stack in config.stacks.values())
    if len(neurons) * keys * width <= MAX_NEURONS:
        for params in neurons:
            yield "neuron", {**shared, **params}


def _neurons(
    model: Mapping[str, Any], tokens: Mapping[str, Sequence[str]]
) -> Iterator[dict[str, Any]]:
    """The parameters of the view of one query, for every query of every head. model: the answer to
    "model".
    """
    for kind, layers in model["layers"].items():
        queries = len(tokens[QUERY_SIDES[kind]])
        for layer, head, query in product(
            range(layers), range(model["heads"][kind]), range(queries)
        ):
            yield {"kind": kind, "layer": layer, "head": head, "query": query}


def _examples(roles: dict[str, Any]) -> Iterator[Request]:
    """The attention of the examples of heads that have a role, at most MAX_TEXTS texts."""
    texts = set[tuple[str, str | None]]()
    for head in roles["heads"]:
        if not head["found"]:
            continue
        for example in head["examples"]:
            shared = {"text": example["text"], "target": example["target"]}
            pair = (example["text"], example["target"])
            if pair in texts or len(texts) < MAX_TEXTS:
                texts.add(pair)
                yield "trace", shared
                yield "attention", {**shared, "kind": head["kind"], "layer": head["layer"]}


def _beside(
    first: Session, other: Session, text: str, target: str | None, number: int
) -> Iterator[Request]:
    """The requests of the view of attention for a model beside the first."""
    shared = {"text": text, "target": target, "model": number}
    first_layers = answer(first, "model", {})["layers"]
    other_layers = answer(other, "model", {})["layers"]
    yield "model", {"model": number}
    yield "trace", shared
    for kind in first_layers:
        for layer in range(other_layers.get(kind, 0)):
            yield "attention", {**shared, "kind": kind, "layer": layer}


def _count_weights(trace: Mapping[str, Tensor]) -> int:
    return sum(x.numel() for name, x in trace.items() if name.endswith("pattern"))


def write_page(
    session: Session | Sequence[Session], text: str, target: str | None, out: Path, *models: str
) -> Path:
    """Write one file that needs no network and no model, with the answers to the requests of all
    views of the first session; the view of attention shows the others beside it.

    models: the name of each.
    """
    sessions = [session] if isinstance(session, Session) else list(session)
    first, *others = sessions
    weights = sum(_count_weights(each.trace(text, target)) for each in sessions)
    require_memory(
        PAGE_BYTES * weights,
        torch.device("cpu"),
        f"a page with {weights:,} attention weights",
        "shorten the text, or draw a picture of one layer and head",
    )
    requests = list(offline_requests(first, text, target))
    for number, other in enumerate(others, start=1):
        requests += _beside(first, other, text, target, number)
    answers = {
        key(name, params): answer(sessions, name, params, FLOATS.get(name, "float32"))
        for name, params in requests
    }
    html = page(answers, {"text": text, "target": target, "models": models or [""]})
    try:
        disk.make_folder(out.parent)
        with disk.exclusive(out):
            disk.replace_text(out, html)
    except OSError as error:
        raise TrifoldError(
            f"{out}: cannot be written ({error.strerror}); {disk.remedy(error)}"
        ) from None
    return out
