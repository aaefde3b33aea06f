"""What the first views of the page show: the components of a model, and attention weights."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from trifold.costs import forward_flops
from trifold.errors import UsageError
from trifold.look.attention import HOOKS, KINDS, QUERY_SIDES
from trifold.look.figures import tables
from trifold.look.session import Answer, Edits, Session, Target
from trifold.nn import ModelConfig, Transformer
from trifold.nn.attention import Attention
from trifold.nn.heads import LanguageModelHead
from trifold.nn.layers import Linear
from trifold.predict.trace import check_index, traced_head

SIZES = ("d_model", "n_heads", "kv_heads", "head_width", "d_ff", "vocab_size", "max_positions")


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
    stacks = config.stacks
    kinds = _kinds(config)
    head = traced_head(config)
    generates = "decoder" in stacks and "lm" in config.chosen_heads
    return {
        "name": pipeline.model.family or "trifold",
        "shape": config.shape,
        "sizes": _sizes(config),
        "layers": kinds,
        "heads": {kind: stacks[QUERY_SIDES[kind]].n_heads for kind in kinds},
        "kinds": {kind: KINDS[kind] for kind in kinds},
        "has_run": session.folder is not None,
        "has_roles": session.roles is not None,
        "grid": config.patch_grid and list(config.patch_grid),
        "has_logits": head is not None,
        "target": _target_name(config, head),
        "classes": list(config.labels) if head == "sequence" else [],
        "generates": generates and pipeline.tokenizer is not None,
        "tables": tables(session),
        "parameters": pipeline.model.count_parameters(),
        "flops": forward_flops(config, 1, 1)._asdict(),
        "tree": _node(pipeline.model, "", config.shape, set(), _uses(pipeline.model)),
    }


def _sizes(config: ModelConfig) -> dict[str, int]:
    """The sizes of a model, and those of its decoder that differ."""
    sizes = {name: getattr(config, name) for name in SIZES}
    decoder_sizes = {f"decoder {name}": getattr(config.output_side, name) for name in SIZES}
    differing = {
        name: size
        for name, size in decoder_sizes.items()
        if size != sizes[name.removeprefix("decoder ")]
    }
    return sizes | differing


def _target_name(config: ModelConfig, head: str | None) -> str | None:
    """What the target of a text is; None if there is none."""
    if head == "sequence":
        return "Class"
    if head != "lm":
        return None
    return "Unmasked text" if config.shape == "encoder" else "Output"


def _kinds(config: ModelConfig) -> dict[str, int]:
    """Kind of attention -> number of its layers."""
    kinds = {side: sized.n_layers for side, sized in config.stacks.items()}
    if config.shape == "encoder-decoder":
        kinds["cross"] = kinds["decoder"]
    return kinds


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
    block = ".".join(name.split(".")[:3])  # such as encoder.blocks.2, if it is in one
    times = len(uses.get(block, [0]))
    if name in uses:
        title = _block_title(name, uses[name])
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
    parameters = sum(value.numel() for _, value in tensors)
    flops, flops_per_key = _flops(module)
    return {
        "name": name,
        "title": title,
        "kind": type(module).__name__,
        "tensors": {key: list(value.shape) for key, value in tensors},
        "parameters": parameters + sum(child["parameters"] for child in children),
        "flops": flops * times + sum(child["flops"] for child in children),
        "flops_per_key": flops_per_key * times + sum(child["flops_per_key"] for child in children),
        "children": children,
    }


def _flops(module: nn.Module) -> tuple[int, int]:
    """The FLOPs of a module without its children, per token, and per token and key."""
    if isinstance(module, Linear | LanguageModelHead):
        return 2 * module.weight.numel(), 0
    if isinstance(module, Attention):
        return 0, 4 * module.q_proj.weight.shape[0]
    return 0, 0


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
