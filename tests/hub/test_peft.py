"""Adapters are exchanged with peft in both directions, with equal logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.hub.checkpoints import edit, settings
from tests.hub.tiny import TINY

from trifold.errors import CheckpointError, SettingsError
from trifold.hub import load_model
from trifold.hub.convert import convert
from trifold.hub.peft import adapter_tensors, save_adapter
from trifold.nn import Inputs, Transformer
from trifold.nn.lora import LoRASettings
from trifold.train.parameters import add_adapters

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]


def peft() -> Any:
    return pytest.importorskip("peft")


KINDS = {"lora": {}, "rslora": {"rslora": True}, "dora": {"dora": True}}
TOKENS = torch.randint(5, 20, (2, 7), generator=torch.Generator().manual_seed(1))


def new_base(folder: Path, family: str, ending: str) -> Any:
    """A random model of transformers, saved in the folder."""
    torch.manual_seed(4)
    stem = TINY[family].stem
    config = getattr(transformers, f"{stem}Config")(**TINY[family].sizes)
    model = getattr(transformers, stem + ending)(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return model


def randomize_adapters(model: Any) -> None:
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
        if "magnitude" in name:
            parameter.data.mul_(torch.linspace(0.5, 1.5, parameter.numel()).view(parameter.shape))


@torch.no_grad()
def logits_of(model: Transformer, head: str = "lm") -> torch.Tensor:
    return model.head_outputs(Inputs(TOKENS), heads=[head])[head]


def same(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


# --- ours -> peft ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("family", "ending", "targets", "names"),
    [
        ("bert", "ForMaskedLM", ["q_proj", "v_proj"], ["query", "value"]),
        ("llama", "ForCausalLM", ["q_proj", "blocks.0.*.out_proj"], ["q_proj", "down_proj"]),
        ("gpt2", "LMHeadModel", ["o_proj", "in_proj", "out_proj"], ["c_proj", "c_fc"]),
    ],
)
@torch.no_grad()
def test_peft_loads_our_adapters(tmp_path, family, ending, targets, names, kind):
    theirs = new_base(tmp_path / "base", family, ending)
    chosen = LoRASettings.parse({"rank": 3, "alpha": 5.0, "targets": targets} | KINDS[kind])
    model, _ = load_model(tmp_path / "base")
    before = logits_of(model)
    add_adapters(model, chosen, ())
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained and all(".lora_" in name for name in trained)
    torch.testing.assert_close(logits_of(model), before, rtol=0, atol=0 if kind != "dora" else 1e-5)
    randomize_adapters(model)
    assert (logits_of(model) - before).abs().max() > 0.01
    weights = dict(model.named_parameters())
    save_adapter(
        tmp_path / "adapter", str(tmp_path / "base"), model.config, chosen, weights, trained
    )

    found = peft().PeftModel.from_pretrained(theirs, tmp_path / "adapter").eval()
    assert {
        name.rpartition(".")[2]
        for name in settings(tmp_path / "adapter", "adapter_config.json")["target_modules"]
    } == {*names}
    same(found(TOKENS).logits, logits_of(model))
    same(logits_of(load_model(tmp_path / "adapter")[0]), logits_of(model))
    saved, _ = tmp_path / "saved", found.save_pretrained(tmp_path / "saved")
    ours, again = (
        load_file(folder / "adapter_model.safetensors") for folder in (tmp_path / "adapter", saved)
    )
    assert ours.keys() == again.keys() and all(
        torch.equal(ours[name], again[name]) for name in ours
    )


def test_matrices_within_another_cannot_be_adapted_alone(tmp_path):
    new_base(tmp_path, "gpt2", "LMHeadModel")
    model, _ = load_model(tmp_path)
    add_adapters(model, LoRASettings(targets=("v_proj",)), ())
    with pytest.raises(
        SettingsError, match=r"gpt2 stores .*v_proj.weight .*with others \(.*c_attn.weight"
    ):
        adapter_tensors(tmp_path, model.config, dict(model.named_parameters()), ())


# --- peft -> ours ---------------------------------------------------------------------------------


def train_with_peft(base: Any, folder: Path, **options: Any) -> Any:
    """An adapter with random values, saved in the folder."""
    model = peft().get_peft_model(base, peft().LoraConfig(r=3, lora_alpha=5, **options)).eval()
    randomize_adapters(model)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("family", "ending", "targets"),
    [("gpt2", "LMHeadModel", ["c_attn", "c_proj"]), ("llama", "ForCausalLM", "all-linear")],
)
@torch.no_grad()
def test_adapters_of_peft_are_merged_into_their_base(tmp_path, family, ending, targets, kind):
    base = new_base(tmp_path / "base", family, ending)
    options = {f"use_{key}": value for key, value in KINDS[kind].items()}
    theirs = train_with_peft(
        base, tmp_path / "adapter", task_type="CAUSAL_LM", target_modules=targets, **options
    )
    edit(
        tmp_path / "adapter", "adapter_config.json", base_model_name_or_path=str(tmp_path / "base")
    )
    same(logits_of(load_model(tmp_path / "adapter")[0]), theirs(TOKENS).logits)
    convert(tmp_path / "adapter", tmp_path / "whole")
    same(logits_of(load_model(tmp_path / "whole")[0]), theirs(TOKENS).logits)
    whole = getattr(transformers, TINY[family].stem + ending).from_pretrained(tmp_path / "whole")
    same(whole(TOKENS).logits, theirs(TOKENS).logits)


@torch.no_grad()
def test_new_heads_are_part_of_an_adapter(tmp_path):
    new_base(tmp_path / "base", "roberta", "ForMaskedLM")
    base = transformers.RobertaForSequenceClassification.from_pretrained(
        tmp_path / "base", num_labels=3
    )
    theirs = train_with_peft(
        base, tmp_path / "adapter", task_type="SEQ_CLS", target_modules=["query"]
    )
    edit(
        tmp_path / "adapter", "adapter_config.json", base_model_name_or_path=str(tmp_path / "base")
    )
    ours, _ = load_model(tmp_path / "adapter")
    same(logits_of(ours, "sequence"), theirs(TOKENS).logits)


# --- untrusted adapters ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter")
    train_with_peft(
        new_base(folder / "base", "llama", "ForCausalLM"), folder, target_modules=["q_proj"]
    )
    edit(folder, "adapter_config.json", base_model_name_or_path=str(folder / "base"))
    return folder


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"r": 10**12}, r"q_proj lacks the tensors lora_A.weight \(1000000000000, 16\)"),
        ({"r": 0}, "adapter_config.json: r: "),
        ({"lora_alpha": "1"}, "adapter_config.json: lora_alpha: "),
        ({"use_dora": True}, r"lora_magnitude_vector \(16,\) of adapter_config.json"),
        ({"peft_type": "IA3"}, "adapter_config.json: peft_type: "),
        ({"bias": "all"}, "adapter_config.json: bias: "),
        ({"init_lora_weights": "pissa"}, "adapter_config.json: init_lora_weights"),
        ({"rank_pattern": {"q_proj": 4}}, "adapter_config.json: rank_pattern: unknown key"),
        ({"base_model_name_or_path": "../no/../folder"}, "no such folder"),
        ({"base_model_name_or_path": None}, "adapter_config.json: base_model_name_or_path: "),
        ({"base_model_name_or_path": "SELF"}, "is an adapter; merge that"),
    ],
)
def test_invalid_settings_of_an_adapter_are_errors(adapter, tmp_path, keys, message):
    (tmp_path / "adapter_model.safetensors").write_bytes(
        (adapter / "adapter_model.safetensors").read_bytes()
    )
    content = json.loads((adapter / "adapter_config.json").read_text("utf-8")) | keys
    if keys.get("base_model_name_or_path") == "SELF":
        content["base_model_name_or_path"] = str(tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps(content), "utf-8")
    with pytest.raises(CheckpointError, match=message):
        load_model(tmp_path)


def without_b(tensors):
    return {
        name: tensor for name, tensor in tensors.items() if "0.self_attn.q_proj.lora_B" not in name
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: {n.replace("q_proj", "x_proj"): v for n, v in t.items()},
            r"modules that .* does not have\n.*x_proj",
        ),
        (lambda t: {n: v.mT.contiguous() for n, v in t.items()}, r"q_proj lacks the tensors"),
        (without_b, r"q_proj lacks the tensors"),
        (
            lambda t: t | {"base_model.model.lm_head.weight": torch.ones(3, 16)},
            r"wrong shape: lm_head.weight",
        ),
        (lambda t: t | {"base_model.model.other": torch.ones(3)}, r"not known: 'other'"),
    ],
)
def test_tensors_that_do_not_fit_the_base_are_errors(adapter, tmp_path, change, message):
    tensors = load_file(adapter / "adapter_model.safetensors")
    save_file(change(tensors), tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_bytes((adapter / "adapter_config.json").read_bytes())
    with pytest.raises(CheckpointError, match=message):
        load_model(tmp_path)
