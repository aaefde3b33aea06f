"""GGUF files where commands and functions take a folder; models in several files."""

import json
import shutil
from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import load_file
from tests.hub.gguf.writing import CASES

import trifold
from trifold.errors import CheckpointError
from trifold.folders import FileAsFolder, folder_or_file, named, names_on_disk, read_bytes
from trifold.hub import load_model, read_config, resolve
from trifold.hub.convert import convert
from trifold.hub.weights import has_weights, read_weights


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    case = CASES["llama"]
    return case.write(tmp_path_factory.mktemp("gguf") / "a.gguf", case.model())


def test_a_file_is_read_like_a_folder(llama: Path) -> None:
    folder = resolve(str(llama))
    assert isinstance(folder, FileAsFolder)
    assert has_weights(folder)
    assert folder.is_folder()
    assert (str(folder), folder.name) == (str(llama), "a.gguf")
    config = folder / "config.json"
    assert config.exists()
    assert not config.is_folder()
    assert not (folder / "modules.json").exists()
    assert str(config) == f"{llama} (config.json)"
    assert (config.name, config.stem, config.suffix) == ("config.json", "config", ".json")
    assert config.parent == folder
    assert str(folder.parent) == str(llama.parent)
    assert [path.name for path in folder.glob("*.json")] == [
        "config.json",
        "generation_config.json",
    ]
    assert json.loads(read_bytes(config, 10_000))["model_type"] == "llama"
    with pytest.raises(CheckpointError, match="no such file"):
        read_bytes(folder / "tokenizer.json", 10_000)
    with pytest.raises(CheckpointError, match="is too large"):
        read_bytes(config, 10)
    assert read_config(str(llama)).n_layers == 2


def test_the_file_stands_for_its_content_in_digests(llama: Path, tmp_path: Path) -> None:
    assert names_on_disk(resolve(str(llama)), ["*.json"]) == [str(llama)]
    for name in ("b.json", "a.json", "c.txt"):
        (tmp_path / name).touch()
    paths = [str(tmp_path / name) for name in ("a.json", "b.json")]
    assert names_on_disk(named(tmp_path), ["*.json", "a*"]) == paths


def test_a_name_in_another_case_and_no_file(llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "A.GGUF"
    shutil.copy(llama, path)
    assert read_config(path).n_layers == 2
    missing = tmp_path / "b.gguf"
    assert not isinstance(folder_or_file(missing), FileAsFolder)
    with pytest.raises(CheckpointError, match="no such folder"):
        resolve(str(missing))
    (tmp_path / "c.txt").write_bytes(b"hello")
    with pytest.raises(CheckpointError, match="a file, not the folder of a model"):
        resolve(str(tmp_path / "c.txt"))


def test_a_changed_file_is_read_again(llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    shutil.copy(llama, path)
    assert read_config(path).positions == "rotary"
    CASES["gpt2"].write(path, CASES["gpt2"].model())
    assert (
        json.loads(read_bytes(resolve(str(path)) / "config.json", 10_000))["model_type"] == "gpt2"
    )


def test_tensors_that_are_not_quantized_share_memory_with_the_file(llama: Path) -> None:
    tensors = read_weights(llama)
    name = "model.layers.0.mlp.up_proj.weight"
    first, second = tensors[name], tensors[name]
    assert first.data_ptr() == second.data_ptr()


def test_conversion_keeps_values(llama: Path, tmp_path: Path) -> None:
    done = convert(llama, tmp_path / "new")
    assert (done.was, done.family, done.dtype) == ("llama", "llama", "float32")
    saved = load_file(tmp_path / "new/model.safetensors")
    model = CASES["llama"].model()
    for name, tensor in model.state_dict().items():
        assert torch.equal(saved[name], tensor), name


# --- models in several files ----------------------------------------------------------------------


def split(path: Path, folder: Path, count: int) -> list[Path]:
    """A model in several files, as llama.cpp's gguf-split writes them."""
    reader = gguf.GGUFReader(path)
    tensors = reader.tensors
    size = -(-len(tensors) // count)
    paths = []
    for number in range(count):
        part = folder / f"m-{number + 1:05d}-of-{count:05d}.gguf"
        writer = gguf.GGUFWriter(part, "llama")
        if number == 0:
            for key, field in reader.fields.items():
                if not key.startswith(("GGUF.", "general.architecture")):
                    writer.add_key_value(key, field.contents(), field.types[0])
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", len(tensors))
        for tensor in tensors[number * size : (number + 1) * size]:
            writer.add_tensor(tensor.name, tensor.data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        paths.append(part)
    return paths


def test_a_model_in_several_files(llama: Path, tmp_path: Path) -> None:
    first, *_ = split(llama, tmp_path, 3)
    whole, _ = load_model(llama)
    parts, _ = load_model(first)
    for (name, expected), (_, found) in zip(
        whole.named_parameters(), parts.named_parameters(), strict=True
    ):
        assert torch.equal(expected, found), name


def test_wrong_parts_are_errors(llama: Path, tmp_path: Path) -> None:
    first, second, third = split(llama, tmp_path, 3)
    with pytest.raises(CheckpointError, match="a further part of a model; give its first part"):
        load_model(second)
    shutil.copy(first, tmp_path / "renamed.gguf")
    with pytest.raises(
        CheckpointError, match="the first of 3 parts, which is named NAME-00001-of-0"
    ):
        load_model(tmp_path / "renamed.gguf")
    second.rename(tmp_path / "second")
    with pytest.raises(CheckpointError, match=r"m-00002-of-00003\.gguf: no such file; copy all p"):
        load_model(first)
    shutil.copy(third, second)
    with pytest.raises(CheckpointError, match=r"m-00002-of-00003\.gguf: not part 2 of 3"):
        load_model(first)
    second.write_bytes((tmp_path / "second").read_bytes()[:-64])
    with pytest.raises(CheckpointError, match=r"m-00002-of-00003\.gguf: tensor .* ends at byte"):
        load_model(first)


def test_parts_outside_the_folder_are_refused(llama: Path, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    outside = tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    first, second = split(llama, inside, 2)
    second.rename(outside / second.name)
    second.symlink_to(outside / second.name)
    with pytest.raises(CheckpointError, match="a link that leads out of its folder"):
        load_model(first)


def test_embeddings_are_pooled_as_the_file_says(tmp_path: Path) -> None:
    case = CASES["bert"]
    path = case.write(tmp_path / "a.gguf", case.model())
    pipeline = trifold.load(path)
    assert pipeline.modules is not None
    assert (pipeline.modules.pooling, pipeline.modules.max_length) == ("mean", 64)
