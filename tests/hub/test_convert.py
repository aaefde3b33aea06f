"""Conversion keeps every value: round trips are bit-identical, and transformers loads the result."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.hub.checkpoints import equal, settings
from tests.hub.parity import make

from trifold.errors import CheckpointError, UsageError
from trifold.hub import convert as module, load_model, read_config, save_model
from trifold.hub.convert import convert
from trifold.nn import Inputs, Transformer

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]

Make = Callable[..., Transformer]

MODELS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "marian": (None, {}),
    "gpt2": (None, {}),
    "bert": ("ForSequenceClassification", {"id2label": {0: "bad", 1: "fair", 2: "good"}}),
    "t5": (None, {}),
    "mistral": (None, {"sliding_window": None}),
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Path]]:
    """A tiny model of transformers, and its folder."""

    @functools.cache
    def get(name: str) -> tuple[Any, Path]:
        ending, options = MODELS[name]
        model, folder = make(name, ending, **options), tmp_path_factory.mktemp(name)
        model.save_pretrained(folder)
        return model, folder

    return get


def logits(model: Any) -> torch.Tensor:
    tokens = torch.arange(3, 15).view(2, 6)
    more = {"decoder_input_ids": tokens + 2} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        return model.eval()(input_ids=tokens, **more).logits


def assert_same(one: Any, other: Any) -> None:
    a, b = one.state_dict(), other.state_dict()
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    # The parameters are equal; a matmul of two equal matrices may sum in another order.
    torch.testing.assert_close(logits(one), logits(other), rtol=0, atol=1e-5)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


# --- round trips ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_round_trip_keeps_all_bytes_and_the_reference_loads_it(
    name: str, reference: Any, tmp_path: Path
) -> None:
    model, folder = reference(name)
    done = convert(folder, tmp_path / "a")
    assert (done.was, done.family, done.dtype) == (name, name, "float32")
    native = convert(tmp_path / "a", tmp_path / "b", to="native")
    assert (native.was, native.family) == (name, "trifold")
    assert settings(tmp_path / "b")["model_type"] == "trifold"
    # Mistral without a window equals LLaMA: the folder records which of the two it was.
    back = convert(tmp_path / "b", tmp_path / "c", to="hugging-face")
    assert contents(tmp_path / "a") == contents(tmp_path / "c")
    assert back[1:] == done[1:] and set(back.files) == set(contents(tmp_path / "c"))

    before, after = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "a"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    reloaded, report = type(model).from_pretrained(tmp_path / "c", output_loading_info=True)
    assert not any(
        report[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys")
    )
    assert_same(reloaded, model)
    assert equal(load_model(folder)[0], load_model(tmp_path / "b")[0])


def test_a_round_trip_keeps_all_files_of_our_own_model(make_model: Make, tmp_path: Path) -> None:
    old = tmp_path / "old"
    save_model(old, make_model(), generation={"num_beams": 4, "eos_token_id": [2, 5]})
    (old / "tokenizer.json").write_bytes(b"{ }")
    (old / "target_tokenizer.json").write_bytes(b"{  }")
    convert(old, tmp_path / "native", to="native")
    done = convert(tmp_path / "native", tmp_path / "back")
    assert (done.was, done.family) == ("trifold", "marian")
    back = contents(tmp_path / "back")
    assert "`old`" in back.pop("README.md").decode()  # a new card
    assert contents(old) == back
    assert settings(tmp_path / "native", "generation_config.json")["eos_token_id"] == [2, 5]


def test_a_model_without_a_family_stays_native(make_model: Make, tmp_path: Path) -> None:
    save_model(tmp_path / "old", make_model(norm_placement="sandwich"))
    assert convert(tmp_path / "old", tmp_path / "new").family == "trifold"
    new = contents(tmp_path / "new")
    assert "`old`" in new.pop("README.md").decode()  # a new card
    assert contents(tmp_path / "old") == new
    with pytest.raises(CheckpointError, match="old: no Hugging Face family has all of its parts"):
        convert(tmp_path / "old", tmp_path / "other", to="hugging-face")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]


def test_the_message_names_the_settings_that_no_family_has(
    make_model: Make, tmp_path: Path
) -> None:
    decoder = {"shape": "decoder", "positions": "learned", "norm_placement": "pre"}
    gpt2 = {"activation": "gelu-tanh", "attention_bias": True, "scale_embeddings": False}
    save_model(tmp_path / "old", make_model(**decoder, **gpt2, d_value=3))
    with pytest.raises(CheckpointError, match=r"would fit \w+ with model.d_value=null"):
        convert(tmp_path / "old", tmp_path / "other", to="hugging-face")


def test_class_names_are_kept(reference: Any, tmp_path: Path) -> None:
    _, folder = reference("bert")
    convert(folder, tmp_path / "a", to="native")
    convert(tmp_path / "a", tmp_path / "b")
    for name in ("a", "b"):
        assert settings(tmp_path / name)["id2label"] == {"0": "bad", "1": "fair", "2": "good"}


# --- precision ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_all_tensors_are_converted_to_the_precision(
    dtype: torch.dtype, reference: Any, tmp_path: Path
) -> None:
    _, folder = reference("gpt2")
    done = convert(folder, tmp_path / "a", dtype=dtype)
    before, after = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "a"))
    assert all(torch.equal(before[key].to(dtype), after[key]) for key in before)
    assert all(after[key].dtype is dtype for key in before)
    name = str(dtype).removeprefix("torch.")
    assert done.dtype == settings(tmp_path / "a")["dtype"] == name
    assert done.bytes == sum(tensor.numel() * tensor.itemsize for tensor in after.values())


def test_tensors_keep_their_precision_by_default(reference: Any, tmp_path: Path) -> None:
    _, folder = reference("t5")
    old = tmp_path / "old"
    convert(folder, old)
    tensors = load_file(old / "model.safetensors")
    mixed = {key: tensor if "norm" in key else tensor.bfloat16() for key, tensor in tensors.items()}
    save_file(mixed, old / "model.safetensors", metadata={"format": "pt"})
    done = convert(old, tmp_path / "new", to="native", max_shard_size=1000)
    assert done.dtype == "bfloat16" and done.bytes == sum(
        t.numel() * t.itemsize for t in mixed.values()
    )
    convert(tmp_path / "new", tmp_path / "back", to="hugging-face")
    assert (old / "model.safetensors").read_bytes() == (
        tmp_path / "back" / "model.safetensors"
    ).read_bytes()


def test_values_beyond_the_range_of_a_precision_are_an_error(
    make_model: Make, tmp_path: Path
) -> None:
    model = make_model()
    with torch.no_grad():
        next(model.parameters())[0, 0] = 1e5
    save_model(tmp_path / "old", model)
    with pytest.raises(
        CheckpointError,
        match=r"model\.shared\.weight: 100000 is too large for float16: choose bfloat16",
    ):
        convert(tmp_path / "old", tmp_path / "new", dtype=torch.float16)
    assert not (tmp_path / "new").exists()


# --- shards ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_shards_are_compatible_with_the_reference(
    name: str, reference: Any, tmp_path: Path
) -> None:
    model, folder = reference(name)
    done = convert(folder, tmp_path / "ours", max_shard_size="4KB")
    index = settings(tmp_path / "ours", "model.safetensors.index.json")
    assert index["metadata"]["total_size"] == done.bytes
    shards = sorted(set(index["weight_map"].values()))
    assert shards == [
        f"model-{n:05d}-of-{len(shards):05d}.safetensors" for n in range(1, len(shards) + 1)
    ]
    assert len(shards) > 2 and not (tmp_path / "ours" / "model.safetensors").exists()
    for shard in shards:
        tensors = load_file(tmp_path / "ours" / shard)
        assert {key for key, file in index["weight_map"].items() if file == shard} == tensors.keys()
        assert len(tensors) == 1 or sum(t.numel() * t.itemsize for t in tensors.values()) <= 4000
    reloaded, report = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert_same(reloaded, model)

    model.save_pretrained(tmp_path / "theirs", max_shard_size="4KB")
    assert (tmp_path / "theirs" / "model.safetensors.index.json").is_file()
    for name in ("ours", "theirs"):
        convert(tmp_path / name, tmp_path / f"{name}-one")
    convert(folder, tmp_path / "one")
    for name in ("ours-one", "theirs-one"):
        expected = (tmp_path / "one" / "model.safetensors").read_bytes()
        assert (tmp_path / name / "model.safetensors").read_bytes() == expected


def test_saving_removes_older_shards_or_files(make_model: Make, tmp_path: Path) -> None:
    model = make_model()
    save_model(tmp_path, model)
    one = contents(tmp_path)
    save_model(tmp_path, model, max_shard_size=3000)
    assert "model.safetensors" not in contents(tmp_path)
    assert equal(model, load_model(tmp_path)[0])
    many = sorted(contents(tmp_path))
    save_model(tmp_path, model, max_shard_size="5KB")
    assert len(contents(tmp_path)) < len(many)
    save_model(tmp_path, model)
    assert contents(tmp_path) == one


# --- the folder -----------------------------------------------------------------------------------


def test_an_existing_target_is_never_changed(make_model: Make, tmp_path: Path) -> None:
    save_model(tmp_path / "old", make_model())
    (tmp_path / "empty").mkdir()
    convert(tmp_path / "old", tmp_path / "empty")
    before = contents(tmp_path)
    (tmp_path / "file").write_bytes(b"mine")
    for taken, words in (
        ("empty", "the folder exists and is not empty"),
        ("file", "is a file; name a folder"),
        ("old", "not empty"),
    ):
        with pytest.raises(UsageError, match=f"{taken}: .*{words}"):
            convert(tmp_path / "old", tmp_path / taken)
    assert contents(tmp_path) == before | {"file": b"mine"}


def test_only_a_model_is_overwritten(make_model: Make, tmp_path: Path) -> None:
    """What the old model had and the new one has not is removed; files of others stay."""
    save_model(tmp_path / "old", make_model())
    target = tmp_path / "taken"
    target.mkdir()
    (target / "notes.txt").write_bytes(b"mine")
    with pytest.raises(UsageError, match=r"taken: holds no model, so the folder is not replaced"):
        convert(tmp_path / "old", target, overwrite=True)
    (target / "config.json").write_bytes(b"{}")
    with pytest.raises(UsageError, match=r"taken/notes\.txt: is no file of a model, so"):
        convert(tmp_path / "old", target, overwrite=True)
    (target / "notes.txt").rename(target / "vocab.txt")
    convert(tmp_path / "old", target, overwrite=True)
    expected = convert(tmp_path / "old", tmp_path / "new").files
    assert sorted(contents(target)) == expected
    convert(target, target, dtype=torch.bfloat16, overwrite=True)  # in place
    assert read_config(target) == read_config(tmp_path / "old")
    assert {*tmp_path.iterdir()} == {tmp_path / name for name in ("old", "taken", "new")}


def test_a_full_disk_leaves_nothing(make_model: Make, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    save_model(tmp_path / "old", make_model())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(
            CheckpointError, match=r"new/model\.safetensors: cannot be written \(.*free the disk"
        ):
            convert(tmp_path / "old", tmp_path / "new")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize("name", ["file/new", "file"])
def test_an_impossible_target_is_an_error(name: str, make_model: Make, tmp_path: Path) -> None:
    save_model(tmp_path / "old", make_model())
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises((CheckpointError, UsageError), match=r"cannot be written|is a file"):
        convert(tmp_path / "old", tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "old"]


@pytest.mark.parametrize("step", ["write_weights", "write_settings", "_copy_files"])
def test_an_interrupted_conversion_leaves_nothing(
    step: str, make_model: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path / "old", make_model())
    original = getattr(module, step)

    def stopped(*arguments: Any, **more: Any) -> None:
        original(*arguments, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, step, stopped)
    with pytest.raises(KeyboardInterrupt):
        convert(tmp_path / "old", tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_names_of_code_are_removed_and_other_settings_keep_their_bytes(
    make_model: Make, tmp_path: Path
) -> None:
    old = tmp_path / "old"
    save_model(old, make_model())
    plain = b'{"model_max_length":  1000000000000000019884624838656}'
    (old / "preprocessor_config.json").write_bytes(plain)
    (old / "tokenizer_config.json").write_bytes(
        b'{"\\u0061uto_map": {"AutoTokenizer": "evil.Evil"}, "b": 1}'
    )
    (old / "evil.py").write_bytes(b"raise SystemExit")
    (old / "additional_chat_templates").mkdir()
    (old / "additional_chat_templates" / "tools.jinja").write_bytes(b"{{ 1 }}")
    done = convert(old, tmp_path / "new")
    assert settings(tmp_path / "new", "tokenizer_config.json") == {"b": 1}
    assert contents(tmp_path / "new")["preprocessor_config.json"] == plain
    assert "additional_chat_templates/tools.jinja" in done.files and "evil.py" not in done.files


@pytest.mark.parametrize("size", ["0", "-5", "many", "5 parsecs", "1e9", "", 0, "9" * 400])
def test_invalid_shard_sizes_are_rejected(
    size: int | str, make_model: Make, tmp_path: Path
) -> None:
    save_model(tmp_path / "old", make_model())
    with pytest.raises(
        UsageError, match="is not a shard size: write a number of bytes, 500MB or 5GB"
    ):
        convert(tmp_path / "old", tmp_path / "new", max_shard_size=size)
    assert not (tmp_path / "new").exists()


def test_a_converted_model_gives_the_same_output(make_model: Make, tmp_path: Path) -> None:
    model = make_model(shape="decoder", norm_placement="pre", positions="rotary", n_kv_heads=2)
    save_model(tmp_path / "old", model)
    convert(tmp_path / "old", tmp_path / "new", max_shard_size=2500)
    tokens = Inputs(torch.arange(12).view(2, 6))
    with torch.no_grad():
        assert torch.equal(
            load_model(tmp_path / "old")[0](tokens), load_model(tmp_path / "new")[0](tokens)
        )


def test_progress_reports_add_up_to_all_bytes(make_model: Make, tmp_path: Path) -> None:
    save_model(tmp_path / "old", make_model())
    calls: list[tuple[int, int]] = []
    options = {"dtype": torch.bfloat16, "max_shard_size": "5KB"}
    done = convert(
        tmp_path / "old", tmp_path / "new", **options, on_written=lambda *call: calls.append(call)
    )
    assert len(calls) == done.tensors and sum(size for _, size in calls) == done.bytes
    assert {total for total, _ in calls} == {done.bytes}
    for file in (tmp_path / "new").glob("model-*.safetensors"):
        tensors = load_file(file)
        assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
        assert len(tensors) == 1 or sum(tensor.nbytes for tensor in tensors.values()) <= 5000
