"""Quantized matrices of a file are those that a model computes with, and are not decoded."""

import platform
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.hub.gguf.writing import CASES, Types
from torch import Tensor

import trifold
from trifold import fast
from trifold.errors import CheckpointError, UsageError
from trifold.fast import block_layout
from trifold.fast.block_weight import BlockWeight
from trifold.fast.file_weight import FileWeight
from trifold.fast.half_weight import HalfWeight
from trifold.fast.huge_pages import PAGE_BYTES, HugeMemory
from trifold.fast.quantized_weight import Weight
from trifold.folders import named
from trifold.hub import load_model
from trifold.hub.families import FAMILIES
from trifold.hub.fill import named_matrices
from trifold.hub.gguf import matrices
from trifold.hub.gguf.blocks import TYPES, BlockType, dequantize
from trifold.hub.gguf.file_format import TensorEntry
from trifold.hub.gguf.folder import open_gguf
from trifold.hub.gguf.matrices import MovedRows, lay_out, moved_matrices, stored_matrices
from trifold.hub.rules import conversions, converted, joined_routes, routes
from trifold.hub.tensors import TransformedTensors
from trifold.nn import Inputs, Transformer, ops
from trifold.nn.stack import all_parameters

KINDS = {kind.name: kind for kind in TYPES.values() if kind.values is not None}
# The types that are kept -> bits in memory.
KEPT = {"Q4_0": 4, "Q4_1": 4, "Q4_K": 4, "IQ4_NL": 4, "Q5_0": 5, "Q5_1": 5, "Q5_K": 5}
EXACT = ("Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1", "IQ4_NL")
HALF_A_STEP = 1 / 254  # of 8 bits; scales are float16
BOUNDS = {"Q4_K": 2**-10, "Q5_K": 2**-10}
ROWS, WIDTH = 40, 512
TOKENS = torch.tensor([[5, 11, 2, 47, 33, 8, 60, 21]])


def random_bytes(kind: BlockType, rows: int, seed: int = 0) -> Tensor:
    """Rows of blocks with small scales, bytes (rows, bytes of a row)."""
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, WIDTH // kind.length, kind.bytes)
    raw = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    halves = {"Q6_K": (208,), "Q3_K": (108,), "Q2_K": (80, 82), "MXFP4": ()}
    for at in halves.get(kind.name, (0, 2) if kind.name.endswith(("_1", "K")) else (0,)):
        numbers = torch.rand(*shape[:2], 1, generator=generator) / 100 + 0.001
        raw[..., at : at + 2] = numbers.half().view(torch.uint8)
    if kind.name == "MXFP4":
        raw[..., 0] = 120 + raw[..., 0] % 8
    return raw.flatten(1)


def stored(kind: BlockType, shape: tuple[int, ...] = (ROWS, WIDTH)) -> tuple[Mapping, Tensor]:
    """A tensor of a file, and its values."""
    raw = random_bytes(kind, shape[0] if len(shape) == 2 else shape[0] * shape[1])
    entry = TensorEntry(kind, shape, 0, raw.numel())
    values = dequantize(raw.flatten(), kind).view(shape)
    return stored_matrices({"a": entry}, lambda _name: raw.flatten()), values


def made_by(rows: MovedRows, dtype: torch.dtype = torch.float32) -> BlockWeight:
    """The matrix of these rows."""
    return laid_out({"ours": rows}, dtype)["ours"]


def laid_out(matrices: Mapping[str, MovedRows], dtype: torch.dtype) -> dict[str, Weight]:
    """The matrices when they may be read."""
    weights, finish = lay_out(matrices, dtype)
    finish()
    return weights


def move_by(function: Callable[[Tensor], Tensor]) -> Callable[[Mapping], Mapping]:
    return lambda tensors: TransformedTensors({"ours": "a"}, lambda _, a: function(tensors[a]))


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_values_of_all_types(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = KINDS[name]
    tensors, values = stored(kind)
    rows = moved_matrices(tensors, move_by(lambda x: x), {"ours": values.shape})["ours"]
    weight = made_by(rows)
    ours = weight.dequantize()
    if name in EXACT:
        assert torch.equal(ours, values)
    else:
        ranges = values.view(ROWS, -1, 32).abs().amax(-1, keepdim=True)
        errors = (ours - values).view(ROWS, -1, 32).abs() / ranges
        assert 0 < errors.max() < BOUNDS.get(name, HALF_A_STEP + 2**-11)
    assert made_by(rows, torch.bfloat16).dequantize().dtype is torch.bfloat16
    monkeypatch.setattr(matrices, "CHUNK", 16 * WIDTH)
    assert torch.equal(made_by(rows).dequantize(), ours)
    assert weight.bits == KEPT.get(name, 8)


@pytest.fixture
def compiled(interpreter: None) -> None:
    """Matrices are laid out by compiled code, which the interpreter contains."""
    pytest.importorskip("numba")
    fast.enable()
    assert block_layout.can_lay_out()


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("rows", [16, 40, 47])
@pytest.mark.parametrize("name", block_layout.KINDS)
def test_compiled_code_lays_out_the_same(name: str, rows: int) -> None:
    tensors, values = stored(KINDS[name], (rows, WIDTH))
    orders = {"all": slice(0, rows), "some": slice(8, rows), "moved": torch.randperm(rows)}
    moved = {key: MovedRows(tensors["a"], order) for key, order in orders.items()}
    found = laid_out(moved, torch.bfloat16)
    with fast.disabled():
        expected = laid_out(moved, torch.bfloat16)
    for key, weight in found.items():
        assert torch.equal(weight.values, expected[key].values)
        assert torch.equal(weight.scales.view(torch.int16), expected[key].scales.view(torch.int16))
        assert (weight.shape, weight.dtype) == (expected[key].shape, torch.bfloat16)
        if name in EXACT:
            assert torch.equal(weight.dequantize(), values[orders[key]].bfloat16())


@pytest.mark.usefixtures("compiled")
def test_what_is_nearly_half_is_not_rounded_up() -> None:
    # The scale of a block is 127 · 32 · d / 127, and of this the values 16 · d are a half. By
    # rounding, they are a little less for one d in seven.
    blocks = torch.zeros(512, WIDTH // 256, 210, dtype=torch.uint8)
    blocks[..., 128:144] = 3  # upper bits: 16 codes of 16; those that follow are -32
    blocks[..., 192:194] = torch.tensor([1, 127], dtype=torch.uint8)
    numbers = torch.arange(0x0800, 0x0800 + 1024, dtype=torch.int16)
    blocks[..., 208:210] = numbers.view(512, 2, 1).view(torch.uint8)
    entry = TensorEntry(KINDS["Q6_K"], (512, WIDTH), 0, blocks.numel())
    tensors = stored_matrices({"a": entry}, lambda _name: blocks.flatten())
    moved = {"a": MovedRows(tensors["a"], slice(0, 512))}
    found = laid_out(moved, torch.float32)["a"]
    with fast.disabled():
        expected = laid_out(moved, torch.float32)["a"]
    # Panels of 16 rows, blocks of 32 values, words of 4 codes: those of the first 16 values.
    codes = expected.values[:, 0, :4]
    assert {128, 129} == set(codes.unique().tolist())
    assert torch.equal(found.values, expected.values)


@pytest.mark.usefixtures("compiled")
def test_memory_is_provided_until_blocks_are_laid_out() -> None:
    tensors, values = stored(KINDS["Q8_0"])
    memory = HugeMemory()
    memory.provide(200 * PAGE_BYTES)
    weights, finish = lay_out({"a": MovedRows(tensors["a"], slice(0, ROWS))}, torch.float32, memory)
    finish()
    assert not [each for each in threading.enumerate() if each.name in ("pages", "layout")]
    finish()  # has no effect
    assert torch.equal(weights["a"].dequantize(), values)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", block_layout.KINDS)
@pytest.mark.parametrize("at", [0, 1])
def test_compiled_code_finds_numbers_that_are_not_finite(name: str, at: int) -> None:
    raw = random_bytes(KINDS[name], ROWS)
    places = {"Q6_K": (208, 208), "Q3_K": (108, 108), "Q2_K": (80, 82)}
    place = places.get(name, (0, 2 * name.endswith(("_1", "4_K", "5_K"))))[at]
    raw[-1, place : place + 2] = 0xFC  # also as an exponent
    entry = TensorEntry(KINDS[name], (ROWS, WIDTH), 0, raw.numel())
    tensors = stored_matrices({"a": entry}, lambda _name: raw.flatten())
    good = stored(KINDS[name])[0]["a"]
    rows = {"good": MovedRows(good, slice(0, ROWS)), "bad": MovedRows(tensors["a"], slice(0, ROWS))}
    with pytest.raises(ValueError, match="bad: has scales that are not finite"):
        laid_out(rows, torch.float32)
    finish = lay_out(rows, torch.float32, in_place=True)[1]
    with pytest.raises(ValueError, match="bad: has scales that are not finite"):
        finish()
    with fast.disabled(), pytest.raises(ValueError, match=r"bad: has (scales|values) that are not"):
        laid_out(rows, torch.float32)


# Where the scale of 256 codes is.
SCALES = {"Q4_K": 0, "Q5_K": 0, "Q6_K": 208, "Q3_K": 108, "Q2_K": 80}


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("name", SCALES)
def test_products_of_large_scales_are_examined(name: str, in_place: bool) -> None:
    def finish(scale: float) -> None:
        raw = random_bytes(KINDS[name], ROWS)
        place = SCALES[name]
        raw[-1, place : place + 2] = torch.tensor([scale]).half().view(torch.uint8)
        entry = TensorEntry(KINDS[name], (ROWS, WIDTH), 0, raw.numel())
        tensors = stored_matrices({"a": entry}, lambda _name: raw.flatten())
        rows = {"a": MovedRows(tensors["a"], slice(0, ROWS))}
        lay_out(rows, torch.float32, in_place=in_place)[1]()

    finish(1030.0)  # at most 64,890 as a product with 6 bits
    if name not in ("Q2_K", "Q3_K"):  # whose rounded scales are smaller
        with pytest.raises(ValueError, match="a: has scales that are not finite"):
            finish(65000.0)


MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "pairs of rows": lambda x: x.unflatten(0, (4, -1, 2)).transpose(1, 2).flatten(0, 2),
    "some rows": lambda x: x[8:24],
    "one of many": lambda x: x.unflatten(0, (2, -1))[1],
    "twice transposed": lambda x: x.t().contiguous().t(),
}


@pytest.mark.parametrize("name", MOVES)
def test_rows_are_moved(name: str) -> None:
    tensors, values = stored(KINDS["Q4_1"])
    expected = MOVES[name](values)
    made = moved_matrices(tensors, move_by(MOVES[name]), {"ours": expected.shape})
    assert torch.equal(made_by(made["ours"]).dequantize(), expected)


def test_matrices_of_experts_are_rows_of_one_tensor() -> None:
    tensors, values = stored(KINDS["Q8_0"], (3, 16, WIDTH))
    made = moved_matrices(tensors, move_by(lambda x: x[2]), {"ours": values[2].shape})
    assert torch.equal(made_by(made["ours"]).dequantize(), values[2])


OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "another number": lambda x: x[:8] + 1,
    "another unit": lambda x: x[:8] * 2,
    "columns": lambda x: x.flip(1),
    "transposed": lambda x: x.t(),
    "columns by number": lambda x: x.index_select(1, torch.arange(WIDTH).flip(0)),
    "means": lambda x: (x + x.flip(0)) / 2,
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_move_of_rows_is_decoded(name: str) -> None:
    tensors, values = stored(KINDS["Q8_0"])
    shape = OTHERS[name](values).shape
    assert moved_matrices(tensors, move_by(OTHERS[name]), {"ours": shape}) == {}


def test_rows_of_two_tensors_are_decoded() -> None:
    kind = KINDS["Q8_0"]
    raw = random_bytes(kind, ROWS)
    entries = dict.fromkeys("ab", TensorEntry(kind, (ROWS, WIDTH), 0, raw.numel()))
    tensors = stored_matrices(entries, lambda _name: raw.flatten())
    shape = torch.Size((2 * ROWS, WIDTH))
    made = moved_matrices(tensors, lambda x: {"ours": torch.cat([x["a"], x["b"]])}, {"ours": shape})
    assert made == {}


# --- models ---------------------------------------------------------------------------------------


@torch.no_grad()
def outputs(model: Transformer) -> Tensor:
    second = Inputs(TOKENS[:, :4]) if model.config.shape == "encoder-decoder" else None
    return model(Inputs(TOKENS), second)


@pytest.mark.parametrize("name", CASES)
def test_models_have_the_matrices_of_the_file(name: str, tmp_path: Path) -> None:
    path = CASES[name].write(tmp_path / "a.gguf", CASES[name].model(), Types.Q8_0)
    decoded, settings = load_model(path)
    model, same_settings = load_model(path, stored="file")
    assert settings == same_settings
    if name != "bert":
        assert not named_matrices(decoded).keys() & dict(model.named_parameters()).keys()
    expected = outputs(decoded)
    assert (outputs(model) - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("kind", [Types.Q8_0, Types.Q4_1, Types.Q4_K, Types.Q6_K])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_blocks_stay_in_the_file_until_a_step(name: str, kind: Types, tmp_path: Path) -> None:
    case = CASES[name]
    if KINDS[kind.name].length == 256:
        sizes = ("hidden_size", "intermediate_size", "n_embd")
        wide = {key: 256 for key in sizes if key in case.options}
        case = replace(case, options={**case.options, **wide})
    path = case.write(tmp_path / "a.gguf", case.model(), kind)
    model, _ = load_model(path, dtype=torch.bfloat16, stored="file")
    laid_out_model, _ = load_model(path, dtype=torch.bfloat16, stored="file")
    block_layout.lay_out_before_steps(laid_out_model)
    assert file_weights(model)
    assert not file_weights(laid_out_model)
    found, expected = (logits_of_steps(each) for each in (model, laid_out_model))
    assert torch.equal(found, expected)
    assert not file_weights(model)
    assert torch.equal(logits_of_steps(model), expected)


@pytest.mark.usefixtures("compiled")
def test_blocks_on_other_devices_are_not_laid_out(tmp_path: Path) -> None:
    path = CASES["llama"].write(tmp_path / "a.gguf", CASES["llama"].model(), Types.Q8_0)
    model, _ = load_model(path, stored="file")
    model.to("meta")
    block_layout.lay_out_before_steps(model)
    weights = file_weights(model)
    assert weights and all(weight.device.type == "meta" for weight in weights)


def file_weights(model: Transformer) -> list[FileWeight]:
    return [module for module in model.modules() if isinstance(module, FileWeight)]


@torch.inference_mode()
def logits_of_steps(model: Transformer) -> Tensor:
    """The logits of tokens of which the first ones are a prompt."""
    cache = model.new_cache()
    logits = [model.lm_head(model.decode(Inputs(TOKENS[:, :4]), None, cache)[:, -1])]
    for token in TOKENS[:, 4:].unbind(1):
        logits.append(ops.next_logits(model, model.lm_head, token, None, None, cache))
    return torch.stack(logits, 1)


def test_types_of_numbers_stay(tmp_path: Path) -> None:
    path = CASES["llama"].write(tmp_path / "a.gguf", CASES["llama"].model(), Types.F16)
    model, _ = load_model(path, stored="file")
    assert not any(isinstance(module, BlockWeight) for module in model.modules())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", [Types.BF16, Types.F16])
def test_matrices_in_16_bits_are_not_decoded_in_float32(
    name: str, kind: Types, tmp_path: Path
) -> None:
    path = CASES[name].write(tmp_path / "a.gguf", CASES[name].model(), kind)
    decoded, _ = load_model(path)
    model, _ = load_model(path, stored="file")
    found = {n: m for n, m in model.named_modules() if isinstance(m, HalfWeight)}
    if name != "bert":
        assert not named_matrices(decoded).keys() & dict(model.named_parameters()).keys()
        assert found
    for title, weight in found.items():
        assert torch.equal(weight.dequantize(), decoded.get_parameter(title))
    expected = outputs(decoded)
    assert (outputs(model) - expected).abs().max() <= 1e-5 * expected.abs().max()
    other = torch.float16 if kind is Types.BF16 else torch.bfloat16
    half, _ = load_model(path, dtype=other, stored="file")
    assert not any(isinstance(module, HalfWeight) for module in half.modules())


@pytest.mark.parametrize("kind", [Types.Q8_0, Types.BF16])
@pytest.mark.parametrize("name", CASES)
def test_matrices_that_are_made_alike_have_the_same_rows(
    name: str, kind: Types, tmp_path: Path
) -> None:
    path = CASES[name].write(tmp_path / "a.gguf", CASES[name].model(), kind)
    folder = open_gguf(named(path))
    model, _ = load_model(path)
    shapes = {title: each.shape for title, each in named_matrices(model).items()}
    assert model.family is not None
    found = conversions(FAMILIES[model.family].rules(model.config), all_parameters(model))
    ways = joined_routes(routes(found), folder.translation.routes)

    def move(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return converted(found, folder.translation.of(tensors))

    alike = moved_matrices(folder.stored, move, shapes, ways)
    alone = moved_matrices(folder.stored, move, shapes)
    assert alike.keys() == alone.keys()
    assert alike
    for title, rows in alone.items():
        assert alike[title].matrix is rows.matrix
        count = rows.matrix.rows
        numbers = torch.arange(count)
        assert torch.equal(numbers[alike[title].order], numbers[rows.order])
    if name == "llama":
        assert len({id(rows.order) for rows in alike.values()}) < len(alike)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="not Linux")
@pytest.mark.parametrize("kind", [Types.BF16, Types.F32])
def test_numbers_of_the_right_type_stay_in_the_memory_of_the_file(
    tmp_path: Path, kind: Types
) -> None:
    path = CASES["llama"].write(tmp_path / "a.gguf", CASES["llama"].model(), kind)
    full, _ = load_model(path, dtype=torch.bfloat16)
    model, _ = load_model(path, dtype=torch.bfloat16, stored="file")
    mapped = [
        tuple(int(each, 16) for each in line.split()[0].split("-"))
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(str(path))
    ]
    stays = set()
    for (name, ours), expected in zip(model.named_parameters(), full.parameters(), strict=True):
        assert ours.dtype is torch.bfloat16
        assert torch.equal(ours, expected)
        if any(start <= ours.data_ptr() < end for start, end in mapped):
            stays.add(name)
    matrices = {name for name, each in model.named_parameters() if each.dim() == 2}
    moved = {name for name in matrices if "q_proj" in name or "k_proj" in name}
    assert stays == (matrices - moved if kind is Types.BF16 else set())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1)
    again, _ = load_model(path, dtype=torch.bfloat16, stored="file")
    for ours, expected in zip(again.parameters(), full.parameters(), strict=True):
        assert torch.equal(ours, expected)


def test_scales_that_are_not_finite_are_an_error(tmp_path: Path) -> None:
    path = CASES["llama"].write(tmp_path / "a.gguf", CASES["llama"].model(), Types.Q8_0)
    content = bytearray(path.read_bytes())
    content[-34:-32] = b"\x00\x7c"  # the last block, of a row of the last tensor
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"a\.gguf: .*scales that are not finite"):
        load_model(path, stored="file")


def has_blocks(path: Path, **options: str) -> bool:
    model = trifold.load(path, **options).model
    return any(isinstance(module, BlockWeight) for module in model.modules())


def test_the_types_of_the_file_are_a_choice(tmp_path: Path) -> None:
    path = CASES["llama"].write(tmp_path / "a.gguf", CASES["llama"].model(), Types.Q8_0)
    assert has_blocks(path, weights="file")
    assert not has_blocks(path) and not has_blocks(path, weights="full")
    with pytest.raises(UsageError, match="weights='full'"):
        trifold.load(path, weights="file").save(tmp_path / "saved")


def test_encoders_are_decoded(tmp_path: Path) -> None:
    path = CASES["bert"].write(tmp_path / "a.gguf", CASES["bert"].model(), Types.Q8_0)
    assert not has_blocks(path, weights="file")


# Prints the growth of memory by the second of each two models, after loading and before the first
# decoding step.
MEMORY = """
import ctypes
import sys
import threading
from pathlib import Path
from trifold.fast import enable, prepare_interpreter
from trifold.fast.block_layout import can_lay_out, lay_out_before_steps
from trifold.folders import named
from trifold.hub import load_model
from trifold.hub.families import FAMILIES

def private():
    for each in threading.enumerate():
        if each.name == "pages":  # it may still read the file, or release its memory
            each.join()
    ctypes.CDLL(None).malloc_trim(0)  # what the allocator keeps is not the model's
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))

enable()
prepare_interpreter().join()
assert can_lay_out()
for small, large in zip(sys.argv[1::2], sys.argv[2::2]):
    load_model(small, stored="file")
    before = private()
    model, _ = load_model(large, stored="file")
    grown = 1024 * (private() - before)
    lay_out_before_steps(model)
    print(grown, 1024 * (private() - before))
    del model
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not Linux with glibc")
@pytest.mark.slow
def test_a_model_takes_the_memory_of_its_file(tmp_path: Path) -> None:
    case = CASES["llama"]
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "vocab_size": 8192}
    wide = replace(case, options={**case.options, **sizes, "num_hidden_layers": 3})
    model, wide_model, files = case.model(), wide.model(), list[Path]()
    for kind in (Types.Q4_1, Types.Q5_0, Types.BF16, Types.F16):
        files.append(case.write(tmp_path / f"small-{kind.name}.gguf", model, kind))
        files.append(wide.write(tmp_path / f"large-{kind.name}.gguf", wide_model, kind))
    command = [sys.executable, "-c", MEMORY, *map(str, files)]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    for file, grown in zip(files[1::2], done.stdout.splitlines(), strict=True):
        for size in map(int, grown.split()):
            assert size < 1.1 * file.stat().st_size, file.name
