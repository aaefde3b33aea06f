"""Whether a run fits into memory: its estimated need.

The need consists of the persistent tensors and of those saved for the backward pass. Small tensors,
copies of weights and the overhead of the allocator are not counted.
"""

from typing import NamedTuple

import torch

from trifold.costs import count_parameters, keys_read, position_table
from trifold.errors import SettingsError
from trifold.fast import compiled_loops
from trifold.memory import Limit, format_size
from trifold.nn import ModelConfig
from trifold.nn.norms import norm_of
from trifold.nn.parts import (
    AttentionPart,
    BlockPart,
    FeedForwardPart,
    WalkPart,
    has_plain_attention,
    part_of,
)
from trifold.recipe import Recipe, TrainSettings
from trifold.train.device import Machine
from trifold.train.parameters import count_trained

RUNTIME = 450 * 2**20  # interpreter, PyTorch and compiled loops; measured
TOKEN_BYTES = 32  # of the tensors of a batch, for each token
BATCH_BYTES = 2**12  # of their headers
# Bytes of optimizer state per parameter, at most.
OPTIMIZER_BYTES = {"adam": 8, "adamw": 8, "adafactor": 1, "muon": 8, "sgd": 4}


class TrainingMemory(NamedTuple):
    """Peak bytes by part while training on a batch."""

    weights: int
    gradients: int
    optimizer: int
    validation: int
    activations: int
    batches: int
    runtime: int

    @property
    def total(self) -> int:
        """The sum in bytes."""
        return sum(self)


def estimate_memory(
    train: TrainSettings, tokens: int, config: ModelConfig, length: int, machine: Machine
) -> tuple[TrainingMemory, int]:
    """The need of rank 0, which validates, for batches of `tokens` tokens on either side in rows of
    `length`, and the number of parameters.

    weights      4 bytes per parameter, and the copy used in computations if it has another type; 32
                 bytes per element of a table of sinusoids, which is computed in float64
    gradients    in the type of the computation, for each worker, and 4 bytes per parameter for
                 their sum
    optimizer    its state, the moving average, and the copy that is saved in the background
    validation   a second model with the averaged weights and the file it is written to; a mean in
                 float64
    activations  `saved_elements` in the type of the computation; compiled blocks do not use the
                 compiled loops
    batches      the batches of an update, which are counted before its first forward pass
    runtime      the process, on a CPU
    """
    parameters = trained = count_parameters(config)
    if train.freeze or train.lora:
        trained = count_trained(config, train)
    world = machine.ranks.world
    dtype = machine.dtype
    on_cpu = machine.device.type == "cpu"
    micro_batch = tokens
    if train.accumulate % world:  # the ranks divide each batch
        micro_batch = -(-tokens // world)
    compiled = on_cpu and train.compile == "none" and compiled_loops() is not None
    elements = saved_elements(config, train, micro_batch, length, compiled=compiled)
    memory = TrainingMemory(
        weights=_weight_bytes(dtype) * parameters + 32 * position_table(config),
        gradients=(dtype.itemsize * machine.workers + 4) * trained,
        optimizer=_optimizer_bytes(train, dtype) * trained,
        validation=_validation_bytes(train, on_cpu=on_cpu) * parameters,
        activations=dtype.itemsize * elements,
        batches=train.accumulate * (BATCH_BYTES + TOKEN_BYTES * tokens),
        runtime=RUNTIME if on_cpu else 0,
    )
    if train.sharding == "full" and world > 1:
        # The shards of the model and of the master weights.
        memory = memory._replace(
            weights=2 * memory.weights // world,
            gradients=2 * memory.gradients // world,
            optimizer=memory.optimizer // world,
        )
    return memory, parameters


def _weight_bytes(dtype: torch.dtype) -> int:
    """Bytes per parameter of the master weights and of the copy used in computations."""
    if dtype is torch.float32:
        return 4  # there is no copy
    return 4 + dtype.itemsize


def _optimizer_bytes(train: TrainSettings, dtype: torch.dtype) -> int:
    """Bytes per trained parameter of the optimizer state and what goes with it."""
    size = OPTIMIZER_BYTES[train.optimizer]
    if train.ema:
        size += 4
    if train.async_save:
        size += 12
    if dtype is torch.float64:
        size *= 2
    return size


def _validation_bytes(train: TrainSettings, *, on_cpu: bool) -> int:
    """Bytes per parameter of the model that is validated, of its file, and of the mean of several
    checkpoints.
    """
    size = 4
    if on_cpu:  # on a GPU the file is built in host memory
        size += 4
    if train.average > 1:
        size += 12
    return size


def saved_elements(
    config: ModelConfig, train: TrainSettings, tokens: int, length: int, *, compiled: bool
) -> int:
    """Elements saved for the backward pass, with `tokens` on each side in rows of `length`.

    With E the model width, A = H·D and F the feed-forward width, a sub-layer saves per token: its
    input, the inputs of its norms (an RMS norm: also the scaled values) and the dropout mask (E
    each; once for parallel sub-layers). Attention adds q, k, v and its output, by heads and merged
    (A each), and H·S weights unless a fused kernel recomputes them. The feed-forward network adds
    the inputs of its activation (F, and F of a gate), and also the outputs with activation dropout
    or int8 training.

    compiled: whether the compiled loops run. Recomputed blocks save only their inputs, one block at
    a time the rest.
    """
    mask = int(config.dropout > 0 and not compiled)  # the compiled loops redraw the mask
    per_token = 0  # elements
    recompute = train.recompute == "blocks"
    int8 = train.precision == "int8"
    saves_layers = part_of(WalkPart, config).saves_layers and not recompute
    for side, sized in config.stacks.items():
        kept_keys = [_kept_keys(sized, layer, length, side) for layer in range(sized.n_layers)]
        kept = sum(kept_keys) / sized.n_layers
        attentions = 1
        if side == "decoder" and config.shape == "encoder-decoder":  # it also reads the encoder
            kept += length
            attentions = 2
        block = _saved_by_block(
            sized, kept, length, mask, attentions=attentions, int8=int8, compiled=compiled
        )
        if config.activation_dropout and not compiled:
            block += sized.d_ff
        if saves_layers:
            per_token += sized.n_layers * block
        else:
            per_token += block + _saved_inputs(sized)
        saved_at_the_end = 1 + mask  # the output of the stack
        if config.norm_placement != "post":
            saved_at_the_end += norm_of(config).saved  # the input of its final norm
        per_token += sized.d_model * saved_at_the_end
    per_token += config.d_model * part_of(BlockPart, config).saved_once(
        config, norm_of(config).saved, mask
    )
    return tokens * part_of(AttentionPart, config).rows(config, length) // length * per_token


def _saved_inputs(config: ModelConfig) -> int:
    """Elements per token of the inputs of recomputed blocks; those of a walk that saves no layers
    are the last ones only.
    """
    if part_of(WalkPart, config).saves_layers:
        return config.n_layers * config.d_model
    return config.stream_width


def _kept_keys(config: ModelConfig, layer: int, length: int, side: str) -> int:
    """For how many keys of a query self-attention may save weights."""
    keys = keys_read(config, layer, length, side)
    return part_of(AttentionPart, config).kept_keys(config, keys, length)


def _is_packed(config: ModelConfig, length: int) -> bool:
    """Whether attention is that of packed rows in compiled loops, which saves the weights, and its
    output only once.
    """
    is_scaled = config.qk_norm or config.attention_scale or config.attention_scale_by_layer
    reads_weights = config.attention_dropout or config.attention_sinks or config.score_soft_cap
    is_shared = config.kv_heads < config.n_heads
    return (
        length <= 512
        and has_plain_attention(config)
        and not (is_scaled or reads_weights or is_shared)
    )


def _saved_by_block(
    config: ModelConfig,
    kept: float,
    length: int,
    mask: int,
    attentions: int,
    *,
    int8: bool,
    compiled: bool,
) -> int:
    """Elements per token, saved by the residuals and the sub-layers of one block; kept: see
    `_kept_keys`.
    """
    merged = config.n_heads * max(config.head_width, config.value_width)
    residuals = part_of(BlockPart, config).saved(config, attentions, norm_of(config).saved, mask)
    is_packed = compiled and _is_packed(config, length)
    weights = part_of(AttentionPart, config).saved_weights(config, kept, is_packed=is_packed)
    inner = 1  # inputs or outputs of the activation
    if config.gated:
        inner = 2
    if config.activation_dropout or int8:  # both, and the product with the gate
        inner *= 2
    width, more = part_of(FeedForwardPart, config).saved(config)
    residuals += more
    return (
        config.d_model * residuals + attentions * (5 - is_packed) * merged + weights + width * inner
    )


def check_fits(memory: TrainingMemory, parameters: int, recipe: Recipe, limit: Limit) -> None:
    """Raises SettingsError, naming three settings to change, if a run needs more than the available
    memory.
    """
    available, origin = limit
    growth = memory.total - memory.runtime  # the process itself already exists
    if growth <= available:
        return
    if memory.batches > growth / 2:
        raise SettingsError(
            f"train.accumulate={recipe.train.accumulate}: the batches of an update need "
            f"{format_size(memory.batches)} of memory; {format_size(available)} available "
            f"({origin}). Lower it"
        )
    per_parameter = (growth - memory.activations - memory.batches) / parameters
    raise SettingsError(
        f"this run needs another {format_size(growth)} of memory; {format_size(available)} "
        f"available ({origin}). "
        f"Three settings to change: batch.tokens={recipe.batch.tokens} (activations take "
        f"{format_size(memory.activations)}; smaller batches with train.accumulate give the "
        "same updates); "
        f"model.d_model={recipe.model.d_model} and model.n_layers={recipe.model.n_layers} "
        f"({parameters:,} parameters take {per_parameter:.0f} bytes each); "
        "train.workers (each has its own gradients; 1 is the minimum). "
        "train.check_memory=false skips this check"
    )
