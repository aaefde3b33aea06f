"""The compiled decoding step: one more token for every row, or many of a prompt; replaces
`nn.ops.decoding_step`.

The stack is translated into instructions once per cache (compiled_decoder.py) and executed by
interpreter.py; a library multiplies more than a few rows. The plain step runs for everything
that is not supported: many rows in automatic casts; quantized weights other than blocks; gradients;
windows over padded rows; masks with other rules; unknown blocks and modules; hooks; and stacks with
fewer than MIN_WEIGHTS weights, for which the compilation takes longer than it saves. On processors
with `has_panels`, a prompt is a program, too (compiled_prompt.py); on others with instructions for
its attention, a short one in bf16 is.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from trifold.fast import compiled_interpreter, is_autocast, is_eager_cpu, prepare_interpreter
from trifold.fast.beam_index import current_index
from trifold.fast.block_layout import lay_out_before_steps
from trifold.fast.block_weight import PANEL, BlockWeight
from trifold.fast.compiled_decoder import CompiledDecoder, sublayers
from trifold.fast.compiled_prompt import CompiledPrompt
from trifold.fast.instruction import (
    ACTIVATIONS as ACTIVATION_CODES,
    FEW_ROWS,
    FEW_WIDENED_ROWS,
)
from trifold.fast.instruction_sets import has_panels, products_of_keys
from trifold.fast.int8_training import Int8TrainedLinear
from trifold.fast.thread_pool import DTYPES, is_readable
from trifold.nn.attention import Attention
from trifold.nn.cache import Cache, GrowingKeys, StaticKeys
from trifold.nn.hooks import HookPoint
from trifold.nn.layers import ACTIVATIONS, Dropout, FeedForward, Linear
from trifold.nn.masks import declares
from trifold.nn.norms import LayerNorm, RMSNorm
from trifold.nn.ops import decoding_step as plain_decoding_step
from trifold.nn.packing import Packing
from trifold.nn.stack import Stack, all_modules
from trifold.nn.walk import StackInputs

LINE = 64  # bytes of a register of the instructions for prompts
MIN_WEIGHTS = 4 * 10**6  # of a stack
SHORT_PROMPT = 48  # tokens, from which a library multiplies faster than instructions
# Of rows in bf16 that are multiplied with each part of a weight: what a cache of the second level
# holds beside it. A library multiplies more in less time.
PACKED_BYTES = 2**18
WIRINGS = ("sequential", "parallel")  # of blocks that have instructions
SUPPORTED = (
    *(Attention, FeedForward, Linear, Int8TrainedLinear, LayerNorm, RMSNorm),
    *(nn.Identity, Dropout, HookPoint),
)


class Translation(NamedTuple):
    """A compiled decoder for a stack and some numbers of rows; None if it is not supported."""

    stack: ReferenceType[Stack]
    rows: range
    decoder: CompiledDecoder | None


_translations: WeakKeyDictionary[Cache, Translation] = WeakKeyDictionary()
# The stack whose last prompt of a cache was a program: all its modules have instructions. To find
# that out takes milliseconds.
_examined: WeakKeyDictionary[Cache, ReferenceType[Stack]] = WeakKeyDictionary()


def translation_of(cache: Cache) -> Translation | None:
    """The translation that was made for a cache last."""
    return _translations.get(cache)


def decoding_step(stack: Stack, x: Tensor, inputs: StackInputs, cache: Cache) -> Tensor:
    """See `nn.ops.decoding_step`."""
    if supports_compiled_prompt(stack, x, inputs, cache):
        _examined[cache] = ref(stack)
        return compiled_prompt(stack, x, inputs, cache)
    decoder = _compiled_decoder(stack, x, inputs, cache)
    if decoder is None:
        return plain_decoding_step(stack, x, inputs, cache)
    return decoder.run(x, inputs, cache)


def _compiled_decoder(
    stack: Stack, x: Tensor, inputs: StackInputs, cache: Cache
) -> CompiledDecoder | None:
    """The compiled decoder of this cache if it supports the step."""
    if stack.training or torch.is_grad_enabled():
        return None
    if cache.length == 0:
        _prepare(stack, x)
        return None
    if not (_are_new_tokens(x) and _has_supported_masks(stack, inputs)):
        return None
    decoder = _translate(stack, x, cache)
    if decoder is None or decoder.is_observed():
        return None
    return decoder


def _prepare(stack: Stack, x: Tensor) -> None:
    """Load or compile what executes the next steps on another thread, while this one reads the
    prompt. A process that computes no step loads nothing.
    """
    if (
        is_eager_cpu(x)
        and x.dtype in DTYPES
        and _are_supported_weights(_weights(all_modules(stack)))
    ):
        prepare_interpreter()


def _are_new_tokens(x: Tensor) -> bool:
    """Whether x is one token for each row, of a type that instructions read."""
    return x.shape[1] == 1 and x.dtype in DTYPES and x.numel() > 0 and is_eager_cpu(x)


def _has_supported_masks(stack: Stack, inputs: StackInputs) -> bool:
    """Whether the masks exclude nothing but padding, and keys beyond windows."""
    mask = inputs.mask
    if isinstance(mask.packing, Packing) or not mask.has_only():
        return False
    if inputs.memory_mask is not None and not inputs.memory_mask.has_only():
        return False
    if mask.keys is not None and any(window is not None for window in stack.windows):
        return False
    return not stack.rules or _has_only_windows(stack, inputs)


def _translate(stack: Stack, x: Tensor, cache: Cache) -> CompiledDecoder | None:
    """The stack as instructions, translated once per cache and again for more rows."""
    rows = x.shape[0]
    known = _translations.get(cache)
    if known is not None and rows in known.rows and known.stack() is stack:
        return known.decoder
    lay_out_before_steps(stack)
    numbers = _translated_alike(rows)
    decoder = None
    if is_supported(stack, cache, x):
        decoder = CompiledDecoder(stack, x, numbers[-1])
    _translations[cache] = Translation(ref(stack), numbers, decoder)
    return decoder


def _translated_alike(rows: int) -> range:
    """The numbers of rows, at least up to this one, that the same instructions multiply."""
    first = 1
    for last in (FEW_ROWS, FEW_WIDENED_ROWS):
        if rows <= last:
            return range(first, last + 1)
        first = last + 1
    return range(first, rows + 1)


# --- prompts --------------------------------------------------------------------------------------


def supports_compiled_prompt(stack: Stack, x: Tensor, inputs: StackInputs, cache: Cache) -> bool:
    """Whether x (B, T, E) are many new tokens of the rows of a decoder, each of which reads all
    tokens before it, and instructions for many rows exist for all that the stack does.
    """
    if x.shape[1] == 1 or x.shape[0] * x.shape[1] <= FEW_ROWS or x.dtype not in DTYPES:
        return False
    if stack.training or torch.is_grad_enabled() or not is_eager_cpu(x) or is_autocast(x):
        return False
    modules = all_modules(stack)
    weights = _weights(modules)
    return (
        _has_many_row_instructions(weights, x)
        and _reads_all_before(stack, inputs, x.shape[1], cache)
        and _has_known_wiring(stack)
        and _are_supported_weights(weights)
        and all(_has_prompt_instructions(module, x.dtype) for module in _modules(stack))
        and not any(each._forward_hooks or each._forward_pre_hooks for each in modules)
        and compiled_interpreter() is not None
    )


def compiled_prompt(stack: Stack, x: Tensor, inputs: StackInputs, cache: Cache) -> Tensor:
    """All layers for x (B, T, E)."""
    return CompiledPrompt(stack, x).run(x, inputs, cache)


def _reads_all_before(stack: Stack, inputs: StackInputs, tokens: int, cache: Cache) -> bool:
    """Whether each new token reads all tokens before it, and only positions of rotations change
    scores.
    """
    mask = inputs.mask
    if inputs.memory is not None or inputs.bias is not None or not mask.causal:
        return False
    if mask.keys is not None or isinstance(mask.packing, Packing) or not mask.has_only():
        return False
    length = cache.length + tokens
    if any(window is not None and window < length for window in stack.windows):
        return False
    if stack.rules and not _has_only_windows(stack, inputs):
        return False
    kinds = {type(layer.past) for layer in cache.layers}
    if cache.inputs is not None or not kinds <= {GrowingKeys, StaticKeys}:
        return False
    is_ordered = cache.row_order is None or current_index(cache) is None
    return is_ordered and mask.offset == cache.length


def _has_prompt_instructions(module: nn.Module, dtype: torch.dtype) -> bool:
    """Whether instructions exist for a module, of attention those for prompts: heads fill
    registers, and scores are not capped.
    """
    if not _has_instructions(module):
        return False
    if not isinstance(module, Attention):
        return True
    return module.soft_cap is None and module.head_width * dtype.itemsize % LINE == 0


def _has_many_row_instructions(weights: Sequence[Any], x: Tensor) -> bool:
    """Whether instructions multiply the rows of x (B, T, E) with these weights, and a library does
    not do it faster.
    """
    if has_panels():
        return all(map(_has_panels, weights))
    rows = x.shape[0] * x.shape[1]
    if x.dtype is not torch.bfloat16 or products_of_keys("bfloat16") is None:
        return False
    if rows >= SHORT_PROMPT:
        return False
    most_inputs = PACKED_BYTES // (rows * x.dtype.itemsize)
    return all(
        isinstance(weight, BlockWeight)
        or (weight.dtype is torch.bfloat16 and weight.shape[1] <= most_inputs)
        for weight in weights
    )


def _has_panels(weight: Any) -> bool:
    """Whether an instruction multiplies many rows with a weight."""
    if isinstance(weight, BlockWeight):
        return True
    return all(size % PANEL == 0 for size in weight.shape)


def _has_only_windows(stack: Stack, inputs: StackInputs) -> bool:
    """Whether the rules of each layer are the window that its instruction reads, or none."""
    for layer, window in zip(stack.layers(inputs, 1), stack.windows, strict=True):
        # The window of a rule whose class states that it is nothing else.
        rules = layer.mask.rules
        stated = [rule.window if declares(rule, "window") else None for rule in rules]
        if stated != ([] if window is None else [window]):
            return False
    return True


def is_supported(stack: Stack, cache: Cache, x: Tensor) -> bool:
    """Whether the stack is large enough and instructions exist for all its modules and this number
    of rows.
    """
    examined = _examined.get(cache)
    return (
        (x.shape[0] <= FEW_ROWS or not is_autocast(x))
        and ((examined is not None and examined() is stack) or _has_only_instructions(stack))
        and _stores_readable_keys(cache)
    )


def _has_only_instructions(stack: Stack) -> bool:
    """Whether the stack is large enough, and instructions exist for all that its layers do."""
    return (
        _has_known_wiring(stack)
        and _are_supported_weights(_weights(all_modules(stack)))
        and all(_has_instructions(module) for module in _modules(stack))
        and compiled_interpreter() is not None
    )


def _weights(modules: Iterable[nn.Module]) -> list[Any]:
    """The weights of linear layers."""
    return [module.weight for module in modules if isinstance(module, Linear)]


def _has_known_wiring(stack: Stack) -> bool:
    """Whether blocks connect their sub-layers as the translation does, without a scale."""
    return all(declares(block, "wiring") in WIRINGS for block in stack.blocks) and all(
        getattr(part, "scale", 1) == 1 for block in stack.blocks for part in sublayers(block)
    )


def _are_supported_weights(weights: list[Any]) -> bool:
    """Whether they are readable, and so many that the translation takes less time than it saves."""
    count = sum(weight.shape[0] * weight.shape[1] for weight in weights)
    return count >= MIN_WEIGHTS and all(is_readable(weight) for weight in weights)


def _modules(stack: Stack) -> Iterator[nn.Module]:
    """The modules that need instructions."""
    for block in stack.blocks:
        for part in sublayers(block):
            for parent in (part, part.sublayer):
                # As `children` gives them, in a third of the time.
                yield from (child for child in parent._modules.values() if child is not None)
    yield stack.final_norm


def _stores_readable_keys(cache: Cache) -> bool:
    stored = [layer.past.buffers for layer in cache.layers]
    return all(buffers is not None and buffers[0].dtype in DTYPES for buffers in stored)


def _has_instructions(module: nn.Module) -> bool:
    """Whether instructions exist for a module and all that it does."""
    if type(module) not in SUPPORTED:
        return False
    if isinstance(module, Attention):
        return module.sinks is None and module.value_width == module.head_width
    if isinstance(module, FeedForward):
        name = module.activation_name
        is_known = name in ACTIVATION_CODES and module.activation is ACTIVATIONS.get(name)
        return is_known and module.limit is None
    return not (isinstance(module, Dropout) and module.active)
