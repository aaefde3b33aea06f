"""Thresholds from which kernels run, lowered so that they run on small inputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from trifold import fast
from trifold.fast.matmul import MatmulRule
from trifold.fast.processor import has_int8_products

# module and name -> value
THRESHOLDS: dict[str, Any] = {
    "trifold.fast.attention.MIN_PACKED_TOKENS": 0,
    "trifold.fast.attention.MIN_QUERIES": 2,
    "trifold.fast.attention.MIN_WIDTH": 0,
    "trifold.fast.attention.QUERY_BLOCK": 8,
    "trifold.fast.bfloat16_linear.MANY_ROWS": 9,
    "trifold.fast.bfloat16_linear.WIDENED": 64,
    "trifold.fast.block_linear.DECODED": 1024,
    "trifold.fast.block_linear.MANY_ROWS": 12,
    "trifold.fast.block_weight.CHUNK": 512,
    "trifold.fast.cross_entropy.CHUNK": 8,
    "trifold.fast.decoding_step.MIN_WEIGHTS": 0,
    "trifold.fast.encoder_layers.MIN_TOKENS": 0,
    "trifold.fast.half_weight.CHUNK": 512,
    "trifold.fast.int8.CHUNK": 256,
    "trifold.fast.int8.CACHED": 64,
    "trifold.fast.int8_training.CHUNK": 16,
    "trifold.fast.int8_training.MIN_ROWS": 1,
    "trifold.fast.int8_training.MIN_WEIGHTS": 0,
    "trifold.fast.int8_linear.MIN_INT8_WEIGHTS": 0,
    "trifold.fast.layers.MIN_BLOCK_WEIGHTS": 0,
    "trifold.fast.layers.MIN_WEIGHTS": 0,
    "trifold.fast.matmul.rule": lambda: MatmulRule(rows=0, width=0, size=0, reuse=0),
    "trifold.fast.sparse.BLOCK": 4,
    "trifold.nn.variants.linear_attention.CHUNK": 4,
    "trifold.nn.variants.linear_attention.SEGMENT": 8,
    "trifold.nn.losses.CHUNK": 8,
    "trifold.nn.variants.lsh.MAX_SCORES": 64,
}
# Numbers of these modules that remain, with the reason.
KEPT: dict[str, str] = {
    "attention.MAX_PACKED_FLOAT32_SCORES": "up to which a kernel runs",
    "attention.MAX_PACKED_SCORES": "up to which a kernel runs",
    "attention.LANES": "a size of the processor",
    "attention_loops.LOG2_E": "not a threshold",
    "bfloat16_linear.MAX_WEIGHTS": "up to which a kernel runs",
    "bfloat16_linear.WORDS": "a size of the processor",
    "block_loops.ADDRESSES": "not a threshold",
    "block_loops.CHUNK_ROWS": "compiled; laws have more rows",
    "block_loops.COLUMNS": "compiled; laws have more columns",
    "block_loops.INNER_ROWS": "compiled; laws have more rows",
    "block_loops.INTEGER": "a size of the processor",
    "block_loops.MATRICES": "not a threshold",
    "block_loops.NORMS": "not a threshold",
    "block_loops.OF_WEIGHT": "not a threshold",
    "block_loops.ROWS": "compiled; laws have more rows",
    "block_loops.STEPS": "not a threshold",
    "block_loops.VECTORS": "compiled; laws have more columns",
    "block_tile._HALF": "not a threshold",
    "block_tile.LINE": "not a threshold",
    "block_tile._MAGIC": "not a threshold",
    "block_tile._MAGIC_BITS": "not a threshold",
    "block_tile.TILE_ROWS": "compiled into the interpreter",
    "block_weight.BLOCK": "the format of a weight",
    "block_weight.NIBBLES": "the format of a weight",
    "block_weight.PANEL": "the format of a weight",
    "block_weight.WORD": "the format of a weight",
    "compiled_decoder.UNLIMITED": "not a threshold",
    "cross_entropy.MAX_EXACT_NLL": "precision, without compiled loops",
    "dot_products.DOT_PREFETCH_BYTES": "compiled into the interpreter",
    "dot_products.HAS_PAIRS": "a property of the processor",
    "dot_products.LANES": "not a threshold",
    "dot_products.LINE_BYTES": "not a threshold",
    "dot_products.PAGE_BYTES": "not a threshold",
    "dot_products.PAGE_LINES": "compiled into the interpreter",
    "dot_products.PAIRS": "a size of the processor",
    "dot_products.STEP": "compiled into the interpreter",
    "dot_products.TILE": "compiled into the interpreter",
    "dot_products.TILE_PREFETCH_BYTES": "compiled into the interpreter",
    "dot_products.TILE_WEIGHTS": "a size of the processor",
    "dot_products.WIDE": "compiled into the interpreter",
    "decoding_step.LINE": "a size of the processor",
    "decoding_step.PACKED_BYTES": "up to which a kernel runs",
    "decoding_step.SHORT_PROMPT": "up to which a kernel runs",
    "dot_products.WIDTH": "a size of the processor",
    "encoder_layers.CACHE_LINE": "a size of the processor",
    "encoder_layers.LANES": "not a threshold",
    "gradient_loops.CAPACITY": "not a threshold",
    "gradient_loops.COLUMNS": "compiled; laws have more columns",
    "gradient_loops.PAIRS": "compiled; laws have more rows",
    "gradient_loops.ROWS": "compiled; laws have more columns",
    "gradient_loops.VECTORS": "compiled; laws have more columns",
    "huge_pages.ALIGNMENT": "a size of the processor",
    "huge_pages.MADV_HUGEPAGE": "not a threshold",
    "huge_pages.MADV_POPULATE_READ": "not a threshold",
    "huge_pages.PAGE_BYTES": "a size of the processor",
    "huge_pages.PROVIDED_BYTES": "size of memory that is written at a time",
    "huge_pages.REGION_BYTES": "size of memory that tensors share",
    "instruction.FEW_ROWS": "up to which a kernel runs; laws have fewer and more rows",
    "instruction.PANELS": "compiled into the interpreter",
    "instruction.FEW_WIDENED_ROWS": "up to which a kernel runs; laws have fewer and more rows",
    "instruction.PREFETCH_BYTES": "compiled into the interpreter",
    "instruction.PROMPT_QUERIES": "compiled; tests/fast/test_plain.py has more queries",
    "instruction.TASK_BYTES": "compiled into the interpreter",
    "interpreter.MAX_PREFETCH": "compiled into the interpreter",
    "interpreter.PREFETCH_PER_POLL": "compiled into the interpreter",
    "interpreter.SPINS": "compiled into the interpreter",
    "lanes.LANES": "not a threshold",
    "interpreter.STALL_YIELDS": "compiled into the interpreter",
    "lanes._MAGIC": "not a threshold",
    "lanes.VECTOR": "a size of the processor",
    "machine_code.DIGEST": "not a threshold",
    "openmp.CONTENDED": "time",
    "openmp.MAX_PAUSE": "time",
    "openmp.SAMPLE_SECONDS": "time",
    "openmp.STALL_SECONDS": "time",
    "panel_tile.DECODED_BLOCK": "not a threshold",
    "panel_tile.FEW": "compiled into the interpreter",
    "panel_tile.PAIRS": "not a threshold",
    "panel_tile.ROWS": "compiled into the interpreter",
    "panel_tile.SCALES": "not a threshold",
    "panel_tile._SIDE": "not a threshold",
    "short_attention.MAX_LENGTH": "up to which a kernel runs",
    "short_attention.WORDS": "a size of the processor",
    "smoothing.COLUMNS": "size of a sample",
    "smoothing.ROWS": "size of a sample",
    "smoothing.SMALLEST": "not a threshold",
    "step_layout.LARGE": "a bound, tested in tests/hub/gguf/test_matrices.py",
    "step_layout.MAGNITUDE": "not a threshold",
    "row_code.HALF_BYTES": "the format of a file",
    "row_code.INFINITE": "the format of a file",
    "row_code.SIGNS": "the format of a file",
    "row_types.CODE_BYTES": "the format of a file",
    "row_types.GROUP": "the format of a file",
    "row_types.GROUPS": "the format of a file",
    "row_types.HEADER_BYTES": "the format of a file",
    "row_types.LOWER": "not a threshold",
    "row_types.NEARLY_HALF": "not a threshold",
    "row_types.ONES": "not a threshold",
    "row_types.SCALED": "the format of a file",
    "row_types.UPPER": "not a threshold",
    "step_linear.GAP": "not a threshold",
    "step_linear.SEGMENT": "compiled into the interpreter",
    "step_panels.WIDTH": "compiled into the interpreter",
    "query_tile.QUERIES": "compiled; laws have more queries",
    "step_prompt.LOG2_E": "not a threshold",
    "thread_pool.BATCH_TOKENS": "size of batches",
    "thread_pool.MAIN_PROCESS": "not a threshold",
    "thread_pool.MAX_THREADS": "tests run on one thread",
    "thread_pool.MAX_WORKERS": "tests run on one thread",
    "thread_pool.MIN_BATCH_TOKENS": "size of batches",
    "thread_pool.STALLS": "not a threshold",
    "thread_pool.TASKS_PER_INSTRUCTION": "tests run on one thread",
    "token_step.POSITIONS": "laws of a single file have longer texts",
}


def _place(name: str) -> tuple[Any, str]:
    module, _, attribute = name.rpartition(".")
    return import_module(module), attribute


def _exists(name: str) -> bool:
    """Whether the package has the module; it may lack a variant."""
    try:
        return bool(_place(name))
    except ModuleNotFoundError:
        return False


LOW = {name: value for name, value in THRESHOLDS.items() if _exists(name)}
USUAL = {name: getattr(*_place(name)) for name in LOW}


def lower_thresholds(patch: pytest.MonkeyPatch) -> None:
    """Let kernels run on small inputs until the patch ends; those of int8 on every machine."""
    for name, value in LOW.items():
        patch.setattr(*_place(name), value)
    if not has_int8_products():
        patch.setattr(torch, "_int_mm", exact_int_mm)
        for module in ("int8_linear", "int8_training"):
            patch.setattr(f"trifold.fast.{module}.has_int8_products", lambda: True)


def exact_int_mm(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The product of two int8 matrices in int32. Without VNNI, that of PyTorch overflows."""
    product = (a.double() @ b.double()).to(torch.int32)
    return product if out is None else out.copy_(product)


@contextmanager
def plain() -> Iterator[None]:
    """Within this context the plain operations run, with the usual thresholds."""
    with fast.disabled(), pytest.MonkeyPatch.context() as patch:
        for name, value in USUAL.items():
            patch.setattr(*_place(name), value)
        yield
