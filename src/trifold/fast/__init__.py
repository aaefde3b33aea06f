"""Faster versions of the operations in `trifold.nn.ops`, by device and precision.

`enable()` installs them; `trifold.load` and `trifold.train` call it. With `import trifold.nn` alone
the plain operations run. Each version decides whether it suits its input and otherwise calls the
plain definition. Some are compiled by Numba, which is optional: without it, the plain operations
run.

Training, to be read in this order: `loops` and `matmul`, then what calls them: `layers` with
`bfloat16_linear`, whose code is in `gradient_loops`; `attention` with `short_attention`, whose code
is in `attention_loops`; and `cross_entropy`;
`int8_training`; and `sparse`, which needs no compiled code.
Decoding steps: `instruction`, the format; `compiled_decoder`, which translates a stack, with
`beam_index`, and `compiled_prompt`, which translates it for the tokens of a prompt;
`decoding_step`, which decides whether they may; `token_step`, from tokens to logits; then what
executes instructions: `thread_pool` with `openmp`, and `interpreter` with `intrinsics`,
`step_linear` with `dot_products`, `step_panels` with `panel_tile`, `step_attention`, `step_prompt`
with `query_tile`, and `step_embedding`, whose code `machine_code` keeps on disk and `object_code`
loads. Both read the weights of `int8`. `block_weight` holds weights as GGUF files do, from which
`block_layout` makes them with the code of `step_layout`, `row_types` and `step_rows`; prompts
read those of `file_weight`. `quantized_weight` is the base of all kinds. The memory of weights has
`huge_pages`.
Reading many texts: `encoder_layers`, with the code of `block_loops` and `lanes` for the processors
in `instruction_sets`; `one_state`, for heads that read one state of each text; and `int8_linear`,
with the weights of `smoothing`.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from trifold.nn import ops

_blocked = False


@cache
def _versions() -> dict[str, Callable[..., Any]]:
    """The functions of these modules that have the name of a plain operation."""
    functions: dict[str, Any] = {}
    modules = ("layers", "int8_linear", "attention", "cross_entropy", "encoder_layers")
    for module in (*modules, "one_state", "decoding_step", "token_step"):
        functions |= vars(import_module(f"{__name__}.{module}"))
    return {name: functions[name] for name in ops.PLAIN}


def prepare() -> None:
    """Import the faster versions, so that `enable` need not."""
    _versions()


def enable() -> None:
    """Install the faster versions. Has no effect within `disabled()`."""
    if not _blocked:
        ops.install(_versions())


def enabled() -> bool:
    """Whether the faster versions are installed."""
    return ops.linear is not ops.PLAIN["linear"]


@contextmanager
def disabled() -> Iterator[None]:
    """Within this context, in all threads, the plain operations run."""
    global _blocked
    were_enabled = enabled()
    was_blocked = _blocked
    _blocked = True
    ops.install({})
    try:
        yield
    finally:
        _blocked = was_blocked
        if were_enabled:
            enable()


# --- compiled code --------------------------------------------------------------------------------


@cache
def _compiled(name: str) -> Any:
    try:
        return import_module(f"{__name__}.{name}")
    except ImportError:
        return None


# The modules of training loops, of attention of short rows, of gradients of weights, of loops for
# blocks of encoders, and of what executes decoding steps; None if Numba is not installed.
compiled_loops = partial(_compiled, "loops")
compiled_attention = partial(_compiled, "attention_loops")
compiled_gradients = partial(_compiled, "gradient_loops")
compiled_block = partial(_compiled, "block_loops")
compiled_interpreter = partial(_compiled, "machine_code")


def has_instructions(products: str) -> bool:
    """Whether there are loops for this processor that multiply in this precision, one of
    `LaneInstructions.products`.
    """
    from trifold.fast.instruction_sets import instruction_set

    found = instruction_set()
    return found is not None and products in found.products


@cache
def prepare_interpreter() -> threading.Thread:
    """Load or compile the interpreter on another thread, once.

    The process ends after that thread, so that what it has compiled is on disk.
    """
    thread = threading.Thread(target=_load_interpreter, name="machine code")
    thread.start()
    return thread


def _load_interpreter() -> None:
    if (machine_code := compiled_interpreter()) is not None:
        machine_code.entry_point()


def is_eager_cpu(x: Tensor) -> bool:
    """Whether x is on a CPU, and no graph is being compiled, exported or traced."""
    is_graph = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    return x.is_cpu and not is_graph


def is_autocast(x: Tensor) -> bool:
    """Whether operators on the device of x choose their precision (`torch.autocast`)."""
    kind = x.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def supports_loops(x: Tensor) -> bool:
    """Whether the loops can run on x: bf16 or fp32 on a CPU, and not in a graph, whose compiler
    fuses operators.
    """
    return (
        is_eager_cpu(x)
        and x.dtype in (torch.bfloat16, torch.float32)
        and compiled_loops() is not None
    )


def trains_with_loops(x: Tensor) -> bool:
    """Whether the loops can run on x and it requires a gradient. Inference uses the operators of
    PyTorch.
    """
    return torch.is_grad_enabled() and x.requires_grad and supports_loops(x)


def as_array(x: Tensor) -> NDArray[Any]:
    """The memory of x as an array, bf16 as uint16. A tensor that is not contiguous is copied."""
    x = x.detach().contiguous()
    return (x.view(torch.uint16) if x.dtype is torch.bfloat16 else x).numpy()


def copy_parameter(parameter: Tensor) -> Tensor:
    """A copy for the loops: an array would keep the storage of a sharded parameter from being
    freed.
    """
    return parameter.detach().clone()
