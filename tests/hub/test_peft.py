"""Adapters are exchanged with peft in both directions, with equal logits."""

from __future__ import annotations

import json
import shutil
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
from trifold.train.initial_weights import start_from
from trifold.train.parameters import add_adapters

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]


def peft() -> Any:
    return pytest.importorskip("peft")


KINDS = {"lora": {}, "rslora": {"rslora": True}, "dora": {"dora": True}}
TOKENS = torch.randint(5, 20, (2, 7), generator=torch.Generator().manual_seed(1))


def new_base(folder: Path, family: str, ending: str, **options: Any) -> Any:
    """A random model of transformers, saved in the folder."""
    torch.manual_seed(4)
    stem = TINY[family].stem
    config = getattr(transformers, f"{stem}Config")(**TINY[family].sizes | options)
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
def logits_of(model: Transformer, head: str = "lm", tokens: torch.Tensor = TOKENS) -> torch.Tensor:
    return model.head_outputs(Inputs(tokens), heads=[head])[head]


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
    edit(folder, "adapter_config.json", base_model_name_or_path=str(folder.parent / "base"))
    return model


def randomize_trained(model: Any, folder: Path) -> None:
    """Give all trained parameters random values, and save them again."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    place = settings(folder, "adapter_config.json")["base_model_name_or_path"]
    model.save_pretrained(folder)
    edit(folder, "adapter_config.json", base_model_name_or_path=place)


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
    ours, _ = load_model(tmp_path / "adapter")
    same(logits_of(ours, "sequence"), theirs(TOKENS).logits)


QV = ["q_proj", "v_proj"]
# Name -> family, ending, settings of peft, whether the embeddings stay tied.
ADAPTERS: dict[str, tuple[str, str, dict[str, Any], bool]] = {
    "the table of embeddings": ("llama", "ForCausalLM", {"modules_to_save": ["embed_tokens"]}, False),
    "the output layer": ("llama", "ForCausalLM", {"modules_to_save": ["lm_head"]}, False),
    "both, one tensor no more": ("llama", "ForCausalLM", {"modules_to_save": ["embed_tokens", "lm_head"]}, False),
    "both, kept tied": ("llama", "ForCausalLM", {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}, True),
    "rows": ("llama", "ForCausalLM", {"trainable_token_indices": [7, 5, 39]}, True),
    "rows of a table by name": ("gpt2", "LMHeadModel", {"target_modules": ["c_attn"], "trainable_token_indices": {"wte": [7, 5]}}, True),
    "other rows of each table": ("llama", "ForCausalLM", {"trainable_token_indices": {"embed_tokens": [5, 6], "lm_head": [6, 8]}}, False),
    "rows of the output layer": ("llama", "ForCausalLM", {"trainable_token_indices": {"lm_head": [6, 8]}}, False),
    "adapted embeddings": ("llama", "ForCausalLM", {"target_modules": ["embed_tokens", "k_proj"]}, False),
    "adapted embeddings, kept tied": ("llama", "ForCausalLM", {"target_modules": ["embed_tokens"], "ensure_weight_tying": True}, True),
    "adapted embeddings with lengths": ("gpt2", "LMHeadModel", {"target_modules": ["wte", "wpe", "c_proj"], "use_dora": True}, False),
    "adapted output layer": ("gpt2", "LMHeadModel", {"target_modules": ["lm_head", "c_attn"]}, False),
    "adapted output layer of an encoder": ("bert", "ForMaskedLM", {"target_modules": ["decoder", "query"]}, False),
    "output layer of an encoder": ("bert", "ForMaskedLM", {"target_modules": ["query"], "modules_to_save": ["decoder"]}, False),
    "the whole head of an encoder": ("bert", "ForMaskedLM", {"target_modules": ["query"], "modules_to_save": ["predictions"]}, False),
    "patterns of alpha": ("llama", "ForCausalLM", {"alpha_pattern": {"q_proj": 11, "^model.layers.1.self_attn.v_proj": 2.5}}, True),
    "patterns of rank": ("llama", "ForCausalLM", {"rank_pattern": {r"layers\.(0|1)\.self_attn\.v.*": 2, "q_proj": 5}, "use_rslora": True}, True),
    "biases of adapted layers": ("bert", "ForMaskedLM", {"target_modules": ["query", "dense"], "bias": "lora_only"}, True),
    "all biases": ("gpt2", "LMHeadModel", {"target_modules": ["c_fc"], "bias": "all"}, True),
    "biases of B": ("bert", "ForMaskedLM", {"target_modules": ["key", "value"], "lora_bias": True}, True),
    "one layer": ("llama", "ForCausalLM", {"layers_to_transform": [1]}, True),
    "a layer by pattern": ("gpt2", "LMHeadModel", {"target_modules": ["c_attn"], "layers_to_transform": 0, "layers_pattern": "h"}, True),
    "without modules": ("llama", "ForCausalLM", {"target_modules": "all-linear", "exclude_modules": ["down_proj"]}, True),
    "a pattern of names": ("llama", "ForCausalLM", {"target_modules": r".*layers\.\d+\.(self_attn|mlp)\.(q|up)_proj"}, True),
}  # fmt: skip


@pytest.mark.parametrize("name", ADAPTERS)
@torch.no_grad()
def test_what_peft_computes_is_what_the_merged_model_computes(tmp_path, name):
    family, ending, options, is_tied = ADAPTERS[name]
    base = new_base(tmp_path / "base", family, ending, tie_word_embeddings=True)
    options = {"target_modules": QV} | options
    theirs = train_with_peft(base, tmp_path / "adapter", **options)
    randomize_trained(theirs, tmp_path / "adapter")
    ours, _ = load_model(tmp_path / "adapter")
    expected = theirs(TOKENS).logits
    same(logits_of(ours), expected)
    assert ours.config.tie_lm_head == is_tied
    convert(tmp_path / "adapter", tmp_path / "whole")
    same(logits_of(load_model(tmp_path / "whole")[0]), expected)


@torch.no_grad()
def test_rows_of_a_tied_head_with_a_bias_are_those_that_peft_merges(tmp_path):
    """Before a merge, peft forgets the bias of the output layer."""
    base = new_base(tmp_path / "base", "bert", "ForMaskedLM")
    options = {"target_modules": ["query"], "trainable_token_indices": [5, 6]}
    theirs = train_with_peft(base, tmp_path / "adapter", **options)
    randomize_trained(theirs, tmp_path / "adapter")
    same(logits_of(load_model(tmp_path / "adapter")[0]), theirs.merge_and_unload()(TOKENS).logits)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_modules": QV, "lora_bias": True}, "q_proj has no bias in the base"),
        ({"target_modules": QV, "trainable_token_indices": [1, 2]}, r"has no row 90 \(trainable_"),
    ],
)
def test_changes_that_no_merged_model_has_are_errors(tmp_path, options, message):
    train_with_peft(
        new_base(tmp_path / "base", "llama", "ForCausalLM"), tmp_path / "adapter", **options
    )
    if "trainable_token_indices" in options:
        edit(tmp_path / "adapter", "adapter_config.json", trainable_token_indices=[1, 90])
    with pytest.raises(CheckpointError, match=message):
        load_model(tmp_path / "adapter")


def test_half_of_a_table_that_a_family_cannot_untie_is_an_error(tmp_path):
    base = new_base(tmp_path / "base", "bart", "ForConditionalGeneration")
    options = {"target_modules": QV, "modules_to_save": ["lm_head"]}
    theirs = train_with_peft(base, tmp_path / "adapter", **options)
    randomize_trained(theirs, tmp_path / "adapter")
    with pytest.raises(CheckpointError, match=r"one in bart: lm_head.weight differ; train all"):
        load_model(tmp_path / "adapter")


def resized(folder: Path, *, tied: bool, **options: Any) -> Any:
    """An adapter, trained on a model with three more tokens than its base."""
    base = new_base(folder / "base", "llama", "ForCausalLM", tie_word_embeddings=tied)
    base.resize_token_embeddings(43)
    base.config._name_or_path = base.name_or_path = str(folder / "base")
    theirs = train_with_peft(base, folder / "adapter", **{"target_modules": QV} | options)
    randomize_trained(theirs, folder / "adapter")
    return theirs


@pytest.mark.parametrize(
    ("tied", "options", "stays"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"trainable_token_indices": [5, 42]}, True),
        (True, {"target_modules": ["embed_tokens"]}, False),
    ],
)
@torch.no_grad()
def test_a_resized_vocabulary_is_that_of_the_merged_model(tmp_path, tied, options, stays):
    theirs = resized(tmp_path, tied=tied, **options)
    ours, _ = load_model(tmp_path / "adapter")
    assert (ours.config.vocab_size, ours.config.tie_lm_head) == (43, stays)
    same(logits_of(ours, tokens=TOKENS + 23), theirs(TOKENS + 23).logits)


def test_new_rows_that_peft_has_not_saved_are_an_error(tmp_path):
    resized(tmp_path, tied=False, target_modules=["embed_tokens"])
    with pytest.raises(
        CheckpointError, match=r"lm_head.weight is \(40, 16\) and should be \(43, 16"
    ):
        load_model(tmp_path / "adapter")


@torch.no_grad()
def test_tensors_that_the_settings_do_not_select_are_left_out_and_counted(tmp_path, capsys):
    base = new_base(tmp_path / "base", "llama", "ForCausalLM")
    train_with_peft(base, tmp_path / "adapter", target_modules=QV)
    edit(tmp_path / "adapter", "adapter_config.json", layers_to_transform=[1])
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "base")
    theirs = peft().PeftModel.from_pretrained(again, tmp_path / "adapter").eval()
    same(logits_of(load_model(tmp_path / "adapter")[0]), theirs(TOKENS).logits)
    assert "the tensors of 2 of 4 modules are left out" in " ".join(capsys.readouterr().err.split())


@torch.no_grad()
def test_adapters_of_a_model_without_heads_are_found_in_one_with_a_head(tmp_path):
    new_base(tmp_path / "base", "bert", "ForMaskedLM")
    bare = transformers.BertModel.from_pretrained(tmp_path / "base").eval()
    theirs = train_with_peft(bare, tmp_path / "adapter", target_modules=["query"])
    hidden = load_model(tmp_path / "adapter")[0](Inputs(TOKENS))
    same(hidden, theirs(TOKENS).last_hidden_state)


# --- new tokens: ours -> peft ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "ending", "targets", "tied"),
    [
        ("llama", "ForCausalLM", ["q_proj"], True),
        ("llama", "ForCausalLM", ["q_proj"], False),
        ("gpt2", "LMHeadModel", ["in_proj"], True),
        ("gpt_neox", "ForCausalLM", ["o_proj"], False),
        ("bert", "ForMaskedLM", ["q_proj"], True),
        ("roberta", "ForMaskedLM", ["q_proj"], True),
        ("distilbert", "ForMaskedLM", ["q_proj"], True),
    ],
)
@torch.no_grad()
def test_peft_loads_our_adapters_with_new_tokens(tmp_path, family, ending, targets, tied):
    theirs = new_base(tmp_path / "base", family, ending, tie_word_embeddings=tied)
    config = load_model(tmp_path / "base")[0].config
    model = Transformer(config.model_copy(update={"vocab_size": 43})).eval()
    _, trained = start_from(str(tmp_path / "base"), model, range(40, 43))
    chosen = LoRASettings(rank=3, alpha=5.0, targets=tuple(targets))
    add_adapters(model, chosen, trained)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    weights, place = dict(model.named_parameters()), tmp_path / "adapter"
    save_adapter(place, str(tmp_path / "base"), model.config, chosen, weights, trained)

    theirs.resize_token_embeddings(43)
    found = peft().PeftModel.from_pretrained(theirs, place).eval()
    same(found(TOKENS + 23).logits, logits_of(model, tokens=TOKENS + 23))
    again, _ = load_model(place)
    assert again.config.tie_lm_head == tied
    same(logits_of(again, tokens=TOKENS + 23), logits_of(model, tokens=TOKENS + 23))
    found.save_pretrained(tmp_path / "saved")
    same(
        logits_of(load_model(tmp_path / "saved")[0], tokens=TOKENS + 23),
        logits_of(model, tokens=TOKENS + 23),
    )


@torch.no_grad()
def test_modules_with_other_names_in_memory_than_in_files_are_found_in_both_directions(tmp_path):
    """ViT: `vit.layers.0.attention.q_proj` is `vit.encoder.layer.0.attention.attention.query`."""
    base = new_base(tmp_path / "base", "vit", "ForImageClassification")

    def parameters(folder):
        return dict(load_model(folder)[0].named_parameters())

    def assert_merged(theirs, adapter):
        theirs.merge_and_unload().save_pretrained(tmp_path / "merged")
        ours, expected = parameters(adapter), parameters(tmp_path / "merged")
        for name in expected:
            same(ours[name], expected[name])
        changed = {name.split(".")[-2] for name in ours if not ours[name].equal(before[name])}
        assert changed == {"q_proj", "in_proj", "out_proj"}  # that of the head

    before, place = parameters(tmp_path / "base"), tmp_path / "adapter"
    model, _ = load_model(tmp_path / "base")
    add_adapters(model, chosen := LoRASettings(targets=("q_proj", "in_proj")), ())
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    for parameter in trained.values():
        torch.nn.init.normal_(parameter, std=0.3)
    weights = dict(model.named_parameters())
    save_adapter(place, str(tmp_path / "base"), model.config, chosen, weights, trained)
    again = type(base).from_pretrained(tmp_path / "base")
    assert_merged(peft().PeftModel.from_pretrained(again, place), place)

    options = {"target_modules": ["q_proj", "fc1"], "modules_to_save": ["classifier"]}
    theirs = train_with_peft(base, tmp_path / "theirs", **options)
    randomize_trained(theirs, tmp_path / "theirs")
    assert_merged(theirs, tmp_path / "theirs")


def test_the_base_is_named_by_its_hub_id_where_it_has_one(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    commit = "0123456789abcdef0123456789abcdef01234567"
    home = tmp_path / "models--someone--tiny-model" / "snapshots" / commit
    new_base(home, "llama", "ForCausalLM")
    model, _ = load_model(home)
    add_adapters(model, LoRASettings(), ())
    weights = dict(model.named_parameters())
    save_adapter(tmp_path / "adapter", str(home), model.config, LoRASettings(), weights, ())
    keys = settings(tmp_path / "adapter", "adapter_config.json")
    assert (keys["base_model_name_or_path"], keys["revision"]) == ("someone/tiny-model", commit)
    assert str(tmp_path) not in (tmp_path / "adapter" / "adapter_config.json").read_text()
    same(logits_of(load_model(tmp_path / "adapter")[0]), logits_of(model))


def test_an_adapter_cannot_be_the_base_of_another(tmp_path):
    train_with_peft(new_base(tmp_path / "base", "llama", "ForCausalLM"), tmp_path / "adapter")
    model, _ = load_model(tmp_path / "adapter")
    with pytest.raises(SettingsError, match=r"start_from \(.*\) is an adapter.*trifold convert"):
        adapter_tensors(tmp_path / "adapter", model.config, dict(model.named_parameters()), ())


# --- untrusted adapters ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter")
    base = new_base(folder / "base", "llama", "ForCausalLM")
    train_with_peft(base, folder / "adapter", target_modules=["q_proj"])
    return folder / "adapter"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"r": 10**9}, r"q_proj lacks the tensors lora_A.weight \(1000000000, 16\)"),
        ({"r": 10**12}, r"r: 1000000000000 is too large"),
        ({"r": 0}, "adapter_config.json: r: "),
        ({"lora_alpha": "1"}, "adapter_config.json: lora_alpha: "),
        ({"use_dora": True}, r"lora_magnitude_vector \(16,\) of adapter_config.json"),
        ({"peft_type": "IA3"}, "adapter_config.json: peft_type: "),
        ({"bias": "some"}, "adapter_config.json: bias: "),
        ({"init_lora_weights": "pissa"}, "adapter_config.json: init_lora_weights"),
        ({"rank_pattern": {"q_proj": 4}}, r"q_proj lacks the tensors lora_A.weight \(4, 16\)"),
        (
            {"rank_pattern": {"q_proj": 0}},
            "adapter_config.json: rank_pattern: input should be greater than 0",
        ),
        ({"target_modules": "(.*)*_proj("}, r"the pattern '\(\.\*\)\*_proj\(' cannot be matched"),
        ({"target_modules": r"((\w|\.)+)+!"}, "cannot be matched: it ran for more than"),
        ({"trainable_token_indices": 3}, "adapter_config.json: trainable_token_indices"),
        (
            {"target_parameters": ["a.b"]},
            r"adapter_config.json: target_parameters: \['a.b'\] is not supported, and peft",
        ),
        ({"base_model_name_or_path": "a/b", "revision": "../../x"}, "not the name of a revision"),
        ({"base_model_name_or_path": "../no/../folder"}, "no such folder"),
        (
            {"base_model_name_or_path": "SECRET"},
            r"adapter_config.json: base_model_name_or_path: .*secret is not the folder of a model; "
            "name that of the base, or its id on the hub$",
        ),
        ({"base_model_name_or_path": None}, "adapter_config.json: base_model_name_or_path: "),
        ({"base_model_name_or_path": "SELF"}, "is an adapter; merge that"),
    ],
)
def test_invalid_settings_of_an_adapter_are_errors(adapter, tmp_path, keys, message):
    (tmp_path / "adapter_model.safetensors").write_bytes(
        (adapter / "adapter_model.safetensors").read_bytes()
    )
    content = json.loads((adapter / "adapter_config.json").read_text("utf-8")) | keys
    if keys.get("base_model_name_or_path") == "SECRET":  # such as the settings of another program
        (tmp_path / "secret").mkdir()
        (tmp_path / "secret" / "config.json").write_text('{"auths": {"a": "password"}}', "utf-8")
        content["base_model_name_or_path"] = str(tmp_path / "secret")
    if keys.get("base_model_name_or_path") == "SELF":
        content["base_model_name_or_path"] = str(tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps(content), "utf-8")
    with pytest.raises(CheckpointError, match=message):
        load_model(tmp_path)


def test_keys_of_an_adapter_that_peft_does_not_read_are_ignored(adapter, tmp_path, capsys):
    shutil.copytree(adapter, tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_config.json"
    more = {"unsloth_fixed": True, "alora_config": {"a": 1}, "peft_version": "99.0"}
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | more), "utf-8")
    capsys.readouterr()
    load_model(tmp_path / "adapter")
    printed = " ".join(capsys.readouterr().err.split())
    assert printed.startswith(f"warning: {file}: ignored keys, which peft ")
    assert printed.endswith(
        "the file is of version 99.0, which may read them: unsloth_fixed, alora_config"
    )


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
