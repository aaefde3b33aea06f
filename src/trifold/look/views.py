"""What the first views of the page show: the components of a model, and attention weights."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from trifold.costs import forward_flops
from trifold.errors import UsageError
from trifold.look.attention import HOOKS, KINDS
from trifold.look.figures import tables
from trifold.look.session import Answer, Edits, Session, Target
from trifold.nn import ModelConfig, Transformer
from trifold.nn.attention import Attention
from trifold.nn.heads import NEEDS_POSITIONS, LanguageModelHead
from trifold.nn.layers import Linear
from trifold.predict.trace import check_index


def model(session: Session) -> Answer:
    """The tree of components with shapes, parameters, and FLOPs per token.

    A matrix has two FLOPs per element; attention has in addition 4 · H · D per key, for the scores
    and the weighted sum (Kaplan et al. 2020, section 2.1). Shared parameters count where they occur
    first, FLOPs wherever they are used.
    target: what the target of a text is, "Output", "Unmasked text" or "Class", or None. classes:
    their names.
    """
    pipeline = session.pipeline
    config = pipeline.config
    stacks = pipeline.config.stacks
    kinds = _kinds(pipeline.config)
    head = next(
        (name for name in config.chosen_heads if name not in ("pooler", *NEEDS_POSITIONS)), None
    )
    targets = {
        "lm": "Unmasked text" if config.shape == "encoder" else "Output",
        "sequence": "Class",
    }
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
        "grid": config.patch_grid and list(config.patch_grid),
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


def _uses(model: Transformer) -> dict[str, list[int]]:
    """The name of each block -> its layers, from 0."""
    uses = defaultdict[str, list[int]](list)
    for side in model.config.stacks:
        for layer, block in enumerate(getattr(model, side).block_of_layer):
            uses[f"{side}.blocks.{block}"].append(layer)
    return uses


def _block_title(name: str, layers: Sequence[int]) -> str:
    """The layers of a block, from 1, and its name: layer 3 · blocks.2."""
    numbers = ", ".join(str(layer + 1) for layer in layers)
    if len(layers) > 2 and list(layers) == list(range(layers[0], layers[-1] + 1)):
        numbers = f"{layers[0] + 1} to {layers[-1] + 1}"
    plural = "s" if len(layers) > 1 else ""
    return f"layer{plural} {numbers} · {name.partition('.')[2]}"


def _node(
    module: nn.Module, name: str, title: str, seen: set[int], uses: Mapping[str, list[int]]
) -> Answer:
    """A module, its own tensors, and its children that have parameters."""
    times = len(uses.get(".".join(name.split(".")[:3]), [0]))
    title = _block_title(name, uses[name]) if name in uses else title
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
    """weights: (H, T, S) of a layer, from 0. computed: the type of the model's numbers. Raises
    UsageError for an unknown kind or layer.
    """
    kinds = _kinds(session.pipeline.config)
    if kind not in kinds:
        raise UsageError(f"kind: {kind!r}; this model has {', '.join(kinds)}")
    layer = check_index("layer", layer, kinds[kind])
    weights = session.trace(text, target, edits)[HOOKS[kind].format(layer)]
    computed = str(weights.dtype).removeprefix("torch.")
    return {"weights": weights.float().cpu().numpy(), "computed": computed}
