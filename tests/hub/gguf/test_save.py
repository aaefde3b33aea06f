"""Models written as GGUF files: read back by trifold and by the `gguf` package."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from tests.hub.gguf.vocabularies import wordpiece
from tests.hub.gguf.writing import CASES
from torch import Tensor

import trifold
from trifold.errors import CheckpointError, UsageError
from trifold.hub.gguf.mixtures import Sizes, tensor_types
from trifold.hub.gguf.save import save_gguf

TOKENS = torch.tensor([[5, 11, 2, 47, 33, 8, 60, 21, 3, 19, 42, 7, 13, 28, 54, 36]])
# transformers ties this model without the scale that a tied file of T5 stands for.
WITHOUT_FORM = ("t5, gated, untied",)


@torch.no_grad()
def _outputs(path: Path, name: str) -> Tensor:
    pipeline = trifold.load(path)
    if name.startswith("t5"):
        return pipeline.logits(TOKENS, decoder_tokens=TOKENS[:, :6])
    if name == "bert":
        return pipeline.hidden_states(TOKENS)["encoder"][-1]
    return pipeline.logits(TOKENS)


@pytest.mark.parametrize("name", [name for name in CASES if name not in WITHOUT_FORM])
def test_outputs_equal_those_of_the_folder(name: str, tmp_path: Path) -> None:
    CASES[name].model().save_pretrained(tmp_path / "old")
    saved = save_gguf(tmp_path / "old", tmp_path / "a.gguf")
    assert (saved.architecture, saved.weights) == (CASES[name].name, "f32")
    assert torch.equal(_outputs(tmp_path / "old", name), _outputs(tmp_path / "a.gguf", name))


@pytest.mark.parametrize("name", ["llama 3", "gemma", "gpt2", "qwen3moe", "bert"])
def test_tensors_and_keys_are_those_of_the_reference_writer(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = case.model()
    theirs = gguf.GGUFReader(case.write(tmp_path / "theirs.gguf", model))
    model.save_pretrained(tmp_path / "old")
    save_gguf(tmp_path / "old", tmp_path / "ours.gguf", weights="f32")
    ours = gguf.GGUFReader(tmp_path / "ours.gguf")
    tensors = {tensor.name: tensor for tensor in ours.tensors}
    assert tensors.keys() == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        assert tensors[tensor.name].shape.tolist() == tensor.shape.tolist()
        assert np.allclose(tensors[tensor.name].data, tensor.data, rtol=1e-6, atol=0)
    for key, entry in theirs.fields.items():
        if not key.startswith("GGUF.") and key != "bert.pooling_type":  # of other files
            assert ours.fields[key].contents() == entry.contents(), key


@pytest.mark.parametrize("weights", ["f16", "bf16", "q8_0", "q4_0", "q4_k_m"])
def test_the_package_reads_every_type(weights: Any, tmp_path: Path) -> None:
    model = CASES["llama"].model()
    model.save_pretrained(tmp_path / "old")
    saved = save_gguf(tmp_path / "old", tmp_path / "a.gguf", weights=weights)
    matrix = "Q5_0" if weights == "q4_k_m" else weights.upper()  # rows of 32 and 64
    assert saved.types[matrix] >= 12
    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    assert Counter(tensor.tensor_type.name for tensor in reader.tensors) == saved.types
    [tensor] = [t for t in reader.tensors if t.name == "blk.1.ffn_up.weight"]
    values = model.state_dict()["model.layers.1.mlp.up_proj.weight"].numpy()
    expected = gguf.quants.quantize(values, tensor.tensor_type)
    assert np.array_equal(tensor.data.view(np.uint8), expected.view(np.uint8))
    difference = _outputs(tmp_path / "a.gguf", "llama") - _outputs(tmp_path / "old", "llama")
    assert difference.square().mean().sqrt() < (0.3 if "4" in weights else 0.02)


# What is not Q4_K in files of `llama_model_quantize` of llama-cpp-python 0.3.36, of random models.
MIXTURES: dict[str, tuple[Sizes, str]] = {
    "llama": (
        Sizes(layers=9),
        "output blk.{0|3|6|7|8}.attn_v blk.{0|3|6|7|8}.ffn_down -> Q6_K",
    ),
    "gpt2": (
        Sizes(layers=8),
        "token_embd blk.{0|3|6|7}.attn_qkv blk.{0|3|6|7}.ffn_down -> Q6_K",
    ),
    "mixtral": (
        Sizes(layers=4, experts=8),
        "output blk.{2|3}.ffn_down_exps -> Q6_K; blk.{0|1|2|3}.attn_k blk.{0|1|2|3}.attn_v -> Q8_0;"
        " blk.{0|1|2|3}.attn_output -> Q5_K",
    ),
}
NAMES = {
    "llama": "token_embd output blk.N.attn_q blk.N.attn_k blk.N.attn_v blk.N.attn_output "
    "blk.N.ffn_gate blk.N.ffn_up blk.N.ffn_down",
    "gpt2": "token_embd blk.N.attn_qkv blk.N.attn_output blk.N.ffn_up blk.N.ffn_down",
    "mixtral": "token_embd output blk.N.attn_q blk.N.attn_k blk.N.attn_v blk.N.attn_output "
    "blk.N.ffn_gate_exps blk.N.ffn_up_exps blk.N.ffn_down_exps",
}


def _expanded(names: str, layers: int) -> list[str]:
    found = []
    for name in names.split():
        before, _, rest = name.replace("N", f"{{{'|'.join(map(str, range(layers)))}}}").partition(
            "{"
        )
        numbers, _, after = rest.partition("}")
        found += [f"{before}{number}{after}.weight" for number in numbers.split("|")]
    return found


@pytest.mark.parametrize("name", MIXTURES)
def test_the_mixture_is_that_of_llama_cpp(name: str) -> None:
    sizes, text = MIXTURES[name]
    plain = ["blk.0.ffn_gate_inp.weight", "position_embd.weight", "blk.0.attn_norm.weight"]
    names = [*_expanded(NAMES[name], sizes.layers), *plain]
    expected = dict.fromkeys(names, "Q4_K") | dict.fromkeys(plain, "F32")
    for part in text.split(";"):
        listed, _, kind = part.partition(" -> ")
        expected |= dict.fromkeys(_expanded(listed, sizes.layers), kind)
    shapes = dict.fromkeys(names, torch.empty(512, 256, device="meta"))
    types = tensor_types("q4_k_m", shapes, sizes)
    assert {each: kind.name for each, (_, kind) in types.items()} == expected


def test_rows_that_are_no_whole_blocks_get_other_types() -> None:
    shapes = {
        f"blk.0.{name}.weight": torch.empty(4, width, device="meta")
        for name, width in (("attn_q", 256), ("attn_v", 288), ("attn_k", 288), ("ffn_up", 40))
    }
    shapes |= {"output.weight": shapes["blk.0.attn_v.weight"], "output.bias": torch.empty(288)}
    for weights, expected in (
        ("q4_k_m", "Q4_K Q8_0 Q5_0 F16 Q8_0 F32"),
        ("q4_0", "Q4_0 Q4_0 Q4_0 F16 Q8_0 F32"),
        ("q8_0", "Q8_0 Q8_0 Q8_0 F16 Q8_0 F32"),
    ):
        types = tensor_types(weights, shapes, Sizes(layers=1))
        assert [kind.name for _, kind in types.values()] == expected.split()


# --- what is refused ------------------------------------------------------------------------------

LLAMA = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
LLAMA |= {"num_attention_heads": 4, "max_position_embeddings": 64}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a window": (
        "MistralForCausalLM",
        {"sliding_window": 8, "num_key_value_heads": 2},
        "sliding_window: 8 would be read as None",
    ),
    "a head for classes": (
        "LlamaForSequenceClassification",
        {"num_key_value_heads": 2, "pad_token_id": 0},
        "GGUF files hold no heads such as sequence",
    ),
    "scaling of another kind": (
        "LlamaForCausalLM",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
        r"do not hold all settings of this model.*\n  rotary_scaling: kind='dynamic'",
    ),
    "a magnitude": (
        "Qwen2ForCausalLM",
        {"num_key_value_heads": 2, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "attention_factor": 3.0,
            "original_max_position_embeddings": 32,
        }},
        "rotary_scaling: kind='yarn'",
    ),
    "another family": (
        "GPTNeoXForCausalLM",
        {},
        "no architecture of GGUF files has all of its parts",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_file_does_not_hold_is_refused(name: str, tmp_path: Path) -> None:
    class_name, options, message = REFUSED[name]
    stem = class_name.partition("For")[0]
    config = getattr(transformers, f"{stem}Config")(**LLAMA, **options)
    getattr(transformers, class_name)(config).save_pretrained(tmp_path / "old")
    with pytest.raises(CheckpointError, match=message):
        save_gguf(tmp_path / "old", tmp_path / "new.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_values_beyond_float16_are_refused_by_name(tmp_path: Path) -> None:
    model = CASES["qwen2"].model()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 3] = 1e5
    model.save_pretrained(tmp_path / "old")
    name = (
        r'blk\.1\.ffn_up\.weight: has values up to 100000, too large for F16; choose weights="bf16'
    )
    with pytest.raises(CheckpointError, match=name):
        save_gguf(tmp_path / "old", tmp_path / "new.gguf", weights="f16")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    save_gguf(tmp_path / "old", tmp_path / "new.gguf", weights="bf16")


def test_files_are_not_replaced_unless_the_user_says_so(tmp_path: Path) -> None:
    CASES["qwen2"].model().save_pretrained(tmp_path / "old")
    for name in ("a.gguf", "a.Modelfile"):
        (tmp_path / name).write_text("mine", "utf-8")
        with pytest.raises(UsageError, match=f"{name}: the file exists"):
            save_gguf(tmp_path / "old", tmp_path / "a.gguf")
        assert (tmp_path / name).read_text("utf-8") == "mine"
        if name == "a.gguf":
            (tmp_path / name).unlink()
    save_gguf(tmp_path / "old", tmp_path / "a.gguf", overwrite=True)
    assert trifold.load(tmp_path / "a.gguf").config.n_layers == 2


def test_files_are_written_again_without_a_change(tmp_path: Path) -> None:
    CASES["llama"].model().save_pretrained(tmp_path / "old")
    save_gguf(tmp_path / "old", tmp_path / "a.gguf", weights="bf16")
    save_gguf(tmp_path / "a.gguf", tmp_path / "c.gguf")
    first, second = (gguf.GGUFReader(tmp_path / name) for name in ("a.gguf", "c.gguf"))
    for one, other in zip(first.tensors, second.tensors, strict=True):
        assert (one.name, one.tensor_type) == (other.name, other.tensor_type)
        assert np.array_equal(one.data, other.data)


@pytest.mark.slow
def test_adapters_are_merged(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = CASES["qwen2"].model()
    model.save_pretrained(tmp_path / "base")
    settings = peft.LoraConfig(target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    adapted = peft.get_peft_model(base, settings)
    adapted.save_pretrained(tmp_path / "adapter")
    saved = save_gguf(tmp_path / "adapter", tmp_path / "a.gguf")
    assert "the adapter is merged with the weights of its base" in saved.notes
    written = _outputs(tmp_path / "a.gguf", "qwen2")
    assert torch.equal(written, _outputs(tmp_path / "adapter", "qwen2"))
    assert (written - _outputs(tmp_path / "base", "qwen2")).abs().max() > 0.01


def test_special_tokens_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    """In llama.cpp, a BERT begins texts with the begin token, by default 101."""
    made = wordpiece()
    case = CASES["bert"]
    options = {**case.options, "vocab_size": made.size}
    case = replace(
        case, options=options, keys=lambda config: CASES["bert"].keys(config) | made.keys
    )
    embed = trifold.load(case.write(tmp_path / "a.gguf", case.model()))
    embed.save(tmp_path / "old")
    save_gguf(tmp_path / "old", tmp_path / "b.gguf")
    fields = gguf.GGUFReader(tmp_path / "b.gguf").fields
    found = {key: fields[key].contents() for key in fields if key.endswith("_token_id")}
    expected = {key: value for key, value in made.keys.items() if key.endswith("_token_id")}
    assert found == expected | {"tokenizer.ggml.bos_token_id": 2}


def test_pooling_is_written_and_dense_layers_are_refused(tmp_path: Path) -> None:
    case = CASES["bert"]
    embed = trifold.load(case.write(tmp_path / "a.gguf", case.model()))
    embed.save(tmp_path / "old")
    save_gguf(tmp_path / "old", tmp_path / "b.gguf")
    again = trifold.load(tmp_path / "b.gguf")
    assert again.modules is not None
    assert again.modules.pooling == "mean"
    pooling = tmp_path / "old" / "1_Pooling" / "config.json"
    values = json.loads(pooling.read_text("utf-8"))
    values = {key: value for key, value in values.items() if "pooling_mode" not in key}
    pooling.write_text(json.dumps(values | {"pooling_mode_max_tokens": True}), "utf-8")
    with pytest.raises(CheckpointError, match="GGUF files hold no pooling 'max'"):
        save_gguf(tmp_path / "old", tmp_path / "c.gguf")
