"""What the first views of the page show: the components of a model, and attention weights."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import nn

from trifold.costs import forward_flops
from trifold.errors import UsageError
from trifold.look.attention import HOOKS, KINDS
from trifold.look.figures import tables
from trifold.look.session import Answer, Edits, Session, Target
from trifold.look.trace import check_index
from trifold.nn import ModelConfig, Transformer
from trifold.nn.attention import Attention
from trifold.nn.heads import NEEDS_POSITIONS, LanguageModelHead
from trifold.nn.layers import Linear


def model(session: Session) -> Answer:
    """The tree of components with shapes, parameters, and FLOPs per token.

    A matrix has two FLOPs per element; attention has in addition 4 · H · D per key, for the scores
    and the weighted sum (Kaplan et al. 2020, section 2.1). Shared parameters count where they occur
    first, FLOPs wherever they are used.
    target: what the target of a text is, "Output", "Unmasked text" or "Class", or None. classes:
    their names.
    """
    pipeline = session.pipeline
    config, stacks, kinds = pipeline.config, pipeline.config.stacks, _kinds(pipeline.config)
    size, patch = config.image_size, config.patch_size
    head = next(
        (name for name in config.chosen_heads if name not in ("pooler", *NEEDS_POSITIONS)), None
    )
    targets = {
        "lm": "Unmasked text" if config.shape == "encoder" else "Output",
        "sequence": "Class",
    }
    grid = None if size is None or patch is None else [size[0] // patch[0], size[1] // patch[1]]
    names = ("d_model", "n_heads", "kv_heads", "head_width", "d_ff", "vocab_size", "max_positions")
    sizes, written = (
        {name: getattr(side, name) for name in names} for side in (config, config.output_side)
    )
    return {
        "name": pipeline.model.family or "trifold",
        "shape": config.shape,
        "sizes": sizes | {f"decoder {n}": size for n, size in written.items() if size != sizes[n]},
        "layers": kinds,
        "heads": {kind: stacks["decoder" if kind == "cross" else kind].n_heads for kind in kinds},
        "kinds": {kind: KINDS[kind] for kind in kinds},
        "has_run": session.folder is not None,
        "has_roles": session.roles is not None,
        "grid": grid,
        "has_logits": head is not None,
        "target": targets.get(head or ""),
        "classes": list(config.labels) if head == "sequence" else [],
        "generates": "decoder" in stacks
        and "lm" in config.chosen_heads
        and pipeline.tokenizer is not None,
        "tables": tables(session),
        "parameters": pipeline.model.count_parameters(),
        "flops": forward_flops(config, 1, 1)._asdict(),
        "tree": _node(pipeline.model, "", config.shape, set(), _uses(pipeline.model)),
    }


def _kinds(config: ModelConfig) -> dict[str, int]:
    """Kind of attention -> number of its layers."""
    layers = {side: sized.n_layers for side, sized in config.stacks.items()}
    return layers | ({"cross": layers["decoder"]} if config.shape == "encoder-decoder" else {})


def _uses(model: Transformer) -> Counter[str]:
    """The name of each block -> the number of its layers."""
    return Counter(
        f"{side}.blocks.{n}" for side in model.config.stacks for n in getattr(model, side).order
    )


def _node(
    module: nn.Module, name: str, title: str, seen: set[int], uses: Mapping[str, int]
) -> Answer:
    """A module, its own tensors, and its children that have parameters."""
    times = uses.get(".".join(name.split(".")[:3]), 1)
    tensors = [
        (key, value)
        for key, value in module.named_parameters(recurse=False)
        if id(value) not in seen
    ]
    seen.update(id(value) for _, value in tensors)
    children = [
        _node(child, f"{name}.{key}".lstrip("."), key, seen, uses)
        for key, child in module.named_children()
        if next(child.parameters(), None) is not None
    ]
    own = sum(value.numel() for _, value in tensors)
    flops = (
        2 * module.weight.numel() * times if isinstance(module, Linear | LanguageModelHead) else 0
    )
    per_key = 4 * module.q_proj.weight.shape[0] * times if isinstance(module, Attention) else 0
    return {
        "name": name,
        "title": title,
        "kind": type(module).__name__,
        "tensors": {key: list(value.shape) for key, value in tensors},
        "parameters": own + sum(child["parameters"] for child in children),
        "flops": flops + sum(child["flops"] for child in children),
        "flops_per_key": per_key + sum(child["flops_per_key"] for child in children),
        "children": children,
    }


def attention(
    session: Session,
    text: Any,
    target: Target = None,
    kind: str = "decoder",
    layer: int = 0,
    edits: Edits = (),
) -> Answer:
    """The weights of a layer, from 0: uint8 (H, T, S), 255 being 1. Raises UsageError for an
    unknown kind or layer.
    """
    kinds = _kinds(session.pipeline.config)
    if kind not in kinds:
        raise UsageError(f"kind: {kind!r}; this model has {', '.join(kinds)}")
    layer = check_index("layer", layer, kinds[kind])
    weights = session.trace(text, target, edits)[HOOKS[kind].format(layer)]
    return {"weights": weights.float().mul(255).round().byte().cpu().numpy()}
