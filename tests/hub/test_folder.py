from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.checkpoints import edit, equal, settings

from trifold import yaml_dialect
from trifold.errors import CheckpointError
from trifold.hub import load_model, resolve, save_model
from trifold.hub.folder import describe_folder, describe_misfit
from trifold.nn import Inputs, ModelConfig, Transformer

Make = Callable[..., Transformer]

NATIVE: dict[str, dict[str, Any]] = {
    "pre-norm": {"norm_placement": "pre", "attention_bias": True},
    "sandwich, few key heads": {
        "norm_placement": "sandwich",
        "n_kv_heads": 2,
        "lm_head_bias": True,
    },
    "learned positions": {"positions": "learned", "target_vocab_size": 19},
    "no positions, untied": {"positions": "none", "tie_lm_head": False, "feed_forward_bias": False},
    "wide heads": {"d_head": 10, "decoder_start_id": 2},
    "decoder": {"shape": "decoder"},
    "encoder": {"shape": "encoder", "activation": "gelu-tanh"},
}


def states(model: Transformer) -> torch.Tensor:
    both = model.encoder is not None and model.decoder is not None
    tokens = torch.arange(12).view(2, 6)
    return model(Inputs(tokens), Inputs(tokens + 1) if both else None)


@pytest.mark.parametrize("case", NATIVE)
def test_a_model_without_a_family_is_restored(case: str, make_model: Make, tmp_path: Path) -> None:
    model = make_model(**NATIVE[case])
    save_model(tmp_path, model)
    assert settings(tmp_path)["model_type"] == "trifold"
    loaded, _ = load_model(tmp_path)
    assert loaded.config == model.config
    assert type(loaded) is Transformer
    assert not any(module.training for module in loaded.modules())
    assert equal(loaded, model)
    # The parameters are equal; a matmul of two equal matrices may sum in another order.
    assert torch.allclose(states(model), states(loaded), atol=1e-5)


@pytest.mark.parametrize(
    ("key", "value"),
    [("unsloth_fixed", True), ("_model_name_or_path", "x"), ("neftune_noise_alpha", 5)],
)
def test_keys_that_tools_add_to_our_format_are_ignored_and_listed(
    key: str, value: object, make_model: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model(tmp_path, make_model(**NATIVE["pre-norm"]))
    edit(tmp_path, **{key: value})
    load_model(tmp_path)
    warning = " ".join(capsys.readouterr().err.split())
    assert "config.json: ignored key, which" in warning and key in warning


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("norm_placment", "post", "norm_placment: unknown key; did you mean 'norm_placement'?"),
        ("num_local_experts", 4, "num_local_experts: unknown key"),
        ("memory_of_the_future", {"size": 4}, "memory_of_the_future: unknown key"),
    ],
)
def test_keys_that_may_select_a_part_of_our_format_are_errors(
    key: str, value: object, message: str, make_model: Make, tmp_path: Path
) -> None:
    save_model(tmp_path, make_model(**NATIVE["pre-norm"]))
    edit(tmp_path, **{key: value})
    with pytest.raises(CheckpointError, match=re.escape(message)):
        load_model(tmp_path)


def test_a_file_of_many_unknown_keys_is_refused_before_they_are_compared(
    make_model: Make, tmp_path: Path
) -> None:
    save_model(tmp_path, make_model(**NATIVE["pre-norm"]))
    edit(tmp_path, **{f"key_{number}": 1 for number in range(1001)})
    with pytest.raises(CheckpointError, match=r"config\.json: 1,001 unknown keys; remove them"):
        load_model(tmp_path)


@pytest.mark.parametrize("case", NATIVE)
def test_the_named_settings_make_a_model_fit_a_family(
    case: str, make_model: Make, tmp_path: Path
) -> None:
    model = make_model(**NATIVE[case])
    save_model(tmp_path / "before", model)
    assert describe_folder(tmp_path / "before") == f"{tmp_path / 'before'} (only trifold loads it)"
    note = " ".join(describe_misfit(model.config).split())
    family, found = re.fullmatch(
        r"transformers cannot load .* it fits (\S+) with (.+)", note
    ).groups()
    changes = dict(setting.removeprefix("model.").split("=") for setting in found.split())
    values = {name: yaml_dialect.load(value) for name, value in changes.items()}
    fitting = ModelConfig.parse(model.config.model_dump() | values)
    assert describe_misfit(fitting) == ""
    save_model(tmp_path / "after", Transformer(fitting))
    assert (
        describe_folder(tmp_path / "after")
        == f"{tmp_path / 'after'} ({family}; transformers loads it, too)"
    )


def test_another_family_than_that_of_the_loaded_folder_is_reported(
    make_model: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model(tmp_path, make_model(norm_placement="pre"))
    model, _ = load_model(tmp_path)
    assert capsys.readouterr().err == ""
    model.family = "marian"
    save_model(tmp_path, model)
    assert "saved as trifold, because marian cannot represent it" in capsys.readouterr().err


def test_no_family_has_every_shape_with_every_head() -> None:
    config = ModelConfig(shape="encoder", heads=("span", "token"))
    assert describe_misfit(config).endswith("which fits none of its families")


def test_saving_twice_gives_the_same_bytes(make_model: Make, tmp_path: Path) -> None:
    options = {"num_beams": 5, "length_penalty": 0.6, "length_penalty_form": "gnmt"}
    save_model(tmp_path / "a", make_model(), generation=options)
    model, generation = load_model(tmp_path / "a")
    assert generation == options
    save_model(tmp_path / "b", model, generation=generation)
    for file in ("config.json", "model.safetensors", "generation_config.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert len(list((tmp_path / "b").iterdir())) == 3


def test_loading_does_not_change_the_random_state(make_model: Make, tmp_path: Path) -> None:
    save_model(tmp_path, make_model())
    before = torch.get_rng_state()
    load_model(tmp_path)
    assert torch.equal(before, torch.get_rng_state())


def test_saving_in_bfloat16_rounds_the_parameters(make_model: Make, tmp_path: Path) -> None:
    model = make_model(positions="learned")
    save_model(tmp_path, model, dtype=torch.bfloat16)
    assert settings(tmp_path)["dtype"] == "bfloat16"
    loaded, _ = load_model(tmp_path)
    for got, expected in zip(model.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(got.bfloat16().float(), expected)
    assert next(load_model(tmp_path, dtype=torch.bfloat16)[0].parameters()).dtype is torch.bfloat16


def test_saving_does_not_change_a_model_in_training(make_model: Make, tmp_path: Path) -> None:
    model = make_model().train()
    save_model(tmp_path, model)
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


REJECTED: list[tuple[dict[str, object], str]] = [
    ({"model_type": "rnn"}, r"config\.json: model_type: 'rnn' is not known; known: albert, "),
    ({"model_type": None}, r"model_type: None is not known"),
    ({"model_type": ["marian"]}, r"model_type: \['marian'\] is not known"),
    (
        {"auto_map": {"AutoModel": "evil.Model"}},
        "auto_map: the folder brings Python code of its own",
    ),
    (
        {"_attn_implementation_internal": "kernels/evil"},
        "_attn_implementation_internal: 'kernels/evil' is not supported, and transformers",
    ),
    ({"d_model": "16"}, r"d_model: .*got '16'"),
    ({"d_model": True}, r"d_model: .*got True"),
    ({"normalize_before": True}, r"normalize_before: .*got True"),
    ({"tie_word_embeddings": False}, r"tie_word_embeddings: .*got False"),
    ({"encoder_layerdrop": 0.1}, r"encoder_layerdrop: .*got 0\.1"),
    ({"activation_function": "sine"}, "activation_function: 'sine' is not known; known: relu"),
    (
        {"encoder_attention_heads": 3, "decoder_attention_heads": 3},
        "n_heads 3 does not divide d_model 16",
    ),
    ({"encoder_layers": 10**9}, "encoder_layers: .*less than or equal to 10000"),
    ({"max_position_embeddings": 2**52}, "is too large"),
    (
        {"max_position_embeddings": 2**24},
        "of width 16 are too many: their table would be larger than the weights",
    ),
    ({"encoder_ffn_dim": 2**52, "decoder_ffn_dim": 2**52}, "is too large"),
    ({"decoder_layers": 3}, r"missing: model\.decoder\.layers\.2\.fc1\.weight"),
    (
        {"vocab_size": 32},
        r"wrong shape: model\.shared\.weight is \(31, 16\) and should be \(32, 16\)",
    ),
]


@pytest.mark.parametrize(("values", "message"), REJECTED)
def test_an_unsupported_or_hostile_config_key_is_named(
    values: dict[str, object], message: str, make_model: Make, tmp_path: Path
) -> None:
    save_model(tmp_path, make_model())
    edit(tmp_path, **values)
    with pytest.raises(CheckpointError, match=message):
        load_model(tmp_path)


def test_harmless_keys_of_the_reference_are_ignored(make_model: Make, tmp_path: Path) -> None:
    save_model(tmp_path, make_model())
    edit(
        tmp_path,
        transformers_version="9",
        id2label={"0": "LABEL_0"},
        use_cache=False,
        prefix=None,
        num_beams=4,
    )
    assert load_model(tmp_path)[0].config == make_model().config


def test_a_folder_that_cannot_be_created_is_an_error(make_model: Make, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot be created"):
        save_model(tmp_path / "file" / "model", make_model())


def test_resolve_finds_the_model_of_a_run(make_model: Make, tmp_path: Path) -> None:
    save_model(tmp_path / "run" / "model", make_model())
    assert resolve(str(tmp_path / "run")).path == tmp_path / "run" / "model"
    assert resolve(str(tmp_path / "run" / "model")).path == tmp_path / "run" / "model"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("runs/none/model", "no such folder"),
        ("./none", "no such folder"),
        ("", "no such folder"),
        ("https://example.org/model", "no such folder"),
        ("nobody/no-such-model", "no such folder here, and the hub cannot be reached"),
        ("a--b/c..d", "no such folder here, and the download failed"),
    ],
)
def test_resolve_explains_an_unknown_name(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        resolve(name)


def test_resolve_rejects_a_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match="a file, not the folder of a model"):
        resolve(str(tmp_path / "model.safetensors"))
