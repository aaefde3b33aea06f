"""Keys of config.json that our tables lack: those that the reference reads are errors; the others
are ignored, and the reference gives the same without them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.checkpoints import edit
from tests.hub.parity import inputs_for, randomised
from tests.hub.tiny import TINY
from torch import Tensor

from trifold.errors import CheckpointError
from trifold.hub import load_model, read_config
from trifold.hub.families import FAMILIES
from trifold.hub.family import HARMLESS
from trifold.hub.generation import GENERATION_KEYS, KNOWN, read_generation
from trifold.hub.unknown_keys import CODE, is_newer, model_keys, reference_keys
from trifold.nn import Inputs, ModelConfig

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

Saved = Callable[..., Path]
VERSION = reference_keys().version

# --- what a user reads ----------------------------------------------------------------------------

# Written by the reference and by popular tools.
COMMON = {
    "_model_name_or_path": "google/gemma-3-1b-it",
    "model_name": "unsloth/gemma-3-1b-it",
    "neftune_noise_alpha": 5.0,
    "unk_token_id": 3,
    "unsloth_fixed": True,
    "unsloth_version": "2025.3.18",
    "use_mrope": True,
}
IGNORED: list[tuple[str, dict[str, Any], list[str]]] = [
    *((family, COMMON, [*COMMON]) for family in ("gemma3_text", "llama", "qwen2", "bert", "t5")),
    ("llama", {"max_window_layers": 28}, ["max_window_layers"]),
    ("llama", {"num_hidden_layer": 2, "num_hidden_layers": "absent"}, ["num_hidden_layer (did you mean 'num_hidden_layers'?)"]),
    ("llama", {"num_hidden_layer": 2}, ["num_hidden_layer"]),
    ("t5", {"num_head": 4, "num_heads": "absent"}, ["num_head (did you mean 'num_heads'?)"]),
    ("gpt2", {"vision_config": {"depth": 3}}, ["vision_config"]),
    ("qwen2", {"sliding_attention_pattern": 2, "attention_bias": True}, ["sliding_attention_pattern", "attention_bias"]),
    ("qwen3", {"mlp_bias": True}, ["mlp_bias"]),
    ("phi3", {"num_local_experts": 16}, ["num_local_experts"]),
    ("olmo2", {"clip_qkv": 8.0}, ["clip_qkv"]),
    ("olmo3", {"rope_local_base_freq": 50.0}, ["rope_local_base_freq"]),
    ("glm4", {"mlp_bias": True}, ["mlp_bias"]),
    ("cohere2", {"num_experts": 8}, ["num_experts"]),
    ("modernbert", {"norm_type": "rms"}, ["norm_type"]),
    ("longformer", {"attention_dilation": [1, 1]}, ["attention_dilation"]),
    ("big_bird", {"directionality": "bidi"}, ["directionality"]),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "finetuned": True}}, ["rope_scaling.finetuned"]),
    ("llama", {"rope_parameters": {"rope_theta": 9.0, "facto": 2.0}}, ["rope_parameters.facto"]),
    ("olmo3", {"rope_parameters": {"full_attention": {"no_such_key": 1}}}, ["rope_parameters.full_attention.no_such_key"]),
]  # fmt: skip


@pytest.mark.parametrize(("family", "keys", "listed"), IGNORED)
def test_ignored_keys_are_listed_in_one_line(
    family: str, keys: dict[str, Any], listed: list[str], saved: Saved, capsys: Any
) -> None:
    folder = saved(family)
    capsys.readouterr()
    edit(folder, **keys)
    for _ in range(2):
        read_config(folder)
    printed = " ".join(capsys.readouterr().err.split())
    end = f"which transformers {VERSION} does not read either: {', '.join(listed)}"
    plural = "s" if len(listed) > 1 else ""
    assert printed == f"warning: {folder / 'config.json'}: ignored key{plural}, {end}"


def test_keys_in_the_config_of_a_stack_are_ignored_and_listed(saved: Saved, capsys: Any) -> None:
    folder = saved("t5gemma")
    before = read_config(folder)
    encoder = json.loads((folder / "config.json").read_text(encoding="utf-8"))["encoder"]
    edit(folder, encoder=encoder | {"no_such_key": 1})
    assert read_config(folder) == before
    assert "encoder.no_such_key" in capsys.readouterr().err


def test_a_file_of_a_newer_version_may_have_further_keys(saved: Saved, capsys: Any) -> None:
    folder = saved("llama")
    edit(folder, transformers_version="99.1.0.dev0", a_part_of_the_future=True)
    read_config(folder)
    printed = " ".join(capsys.readouterr().err.split())
    assert (
        "the file is of version 99.1.0.dev0, which may read them: a_part_of_the_future" in printed
    )


@pytest.mark.parametrize(
    ("written_by", "version", "newer"),
    [
        ("5.10.0", "5.9.1", True),
        ("4.57.0", "5.9.1", False),
        ("5.9.1.dev0", "5.9.1", False),
        (None, "5.9.1", False),
        ("main", "5.9.1", False),
        ([9], "5.9.1", False),
    ],
)
def test_versions_are_compared_by_their_numbers(
    written_by: object, version: str, *, newer: bool
) -> None:
    assert is_newer(written_by, version) == newer


def test_many_ignored_keys_are_counted(saved: Saved, capsys: Any) -> None:
    folder = saved("llama")
    edit(folder, **{f"key_{number}": number for number in range(1_000)})
    read_config(folder)
    assert capsys.readouterr().err.rstrip().endswith("980 more")


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"attention_chunk_size": 8}, "attention_chunk_size: 8 is not supported, and transf"),
    ("bert", {"text_config": {"hidden_size": 8}}, "text_config: {'hidden_size': 8} is not"),
    ("gpt2", {"per_layer_config": {"0": {}}}, "per_layer_config: "),
    ("gpt2", {"transformers_weights": "../x.safetensors"}, "transformers_weights: "),
    ("llama", {"auto_map": {"AutoModel": "m.M"}}, "auto_map: the folder brings Python code of its"),
    ("mistral", {"is_causal": False}, "is_causal: False is not supported"),
]


@pytest.mark.parametrize(("family", "keys", "message"), REFUSED)
def test_keys_that_the_reference_reads_are_errors(
    family: str, keys: dict[str, Any], message: str, saved: Saved
) -> None:
    folder = saved(family)
    edit(folder, **keys)
    with pytest.raises(CheckpointError, match=rf"config\.json: {message}"):
        read_config(folder)


def test_a_key_with_the_default_of_the_reference_is_accepted(saved: Saved, capsys: Any) -> None:
    folder = saved("llama")
    edit(folder, tie_last_hidden_states=None, token_classification_bias=True)
    read_config(folder)
    assert capsys.readouterr().err == ""


# --- generation_config.json -----------------------------------------------------------------------


def test_keys_of_generation_that_nothing_reads_are_ignored(capsys: Any) -> None:
    file = {"chat_format": "chatml", "trust_remote_code": True, "num_beam": 3, "max_length": 9}
    config = ModelConfig(shape="decoder")
    assert read_generation(config, file, "here") == {"max_length": 9, "bad_words_ids": []}
    printed = " ".join(capsys.readouterr().err.split())
    listed = "chat_format, trust_remote_code, num_beam (did you mean 'num_beams'?)"
    assert printed.startswith("warning: here: ignored keys, which transformers ")
    assert printed.endswith(f"does not read either: {listed}")


def test_every_setting_of_the_reference_is_known_or_an_error() -> None:
    settings = transformers.GenerationConfig().to_dict()
    assert settings.keys() <= KNOWN | reference_keys().generation.keys()


def test_the_table_is_that_of_the_pinned_version() -> None:
    """After an update: python tools/reference_keys.py."""
    pins = (Path(__file__).parents[2] / "constraints.txt").read_text(encoding="utf-8").split()
    table = reference_keys()
    assert f"transformers=={table.version}" in pins
    assert f"peft=={table.adapter_version}" in pins


# --- laws -----------------------------------------------------------------------------------------

# They select types and forms of output, or the class; a reference with them does not compare. The
# last one is a setting of generation, which is read from config.json in old folders only.
FORMS = """
    architectures dtype torch_dtype id2label label2id model_type num_labels _num_labels return_dict
    output_attentions output_hidden_states transformers_version auto_map problem_type
    quantization_config compression_config quantization _attn_implementation attn_implementation
    experts_implementation is_decoder use_return_dict torchscript use_bfloat16 name_or_path
    _name_or_path _commit_hash task_specific_params pruned_heads tokenizer_class sep_token_id
    gradient_checkpointing output_cross_attentions output_router_logits summary_type
    summary_activation force_bos_token_to_be_generated
""".split()


OTHER_VALUES = {"initializer_range": 0.5, "attn_logit_softcapping": 3.0, "reuse_len": 2}


def other_value(key: str, values: list[Any]) -> Any:
    """A value of a key that is not its default, of the same type."""
    default = values[0] if values else None
    if isinstance(default, str):
        return "relu" if "act" in key else "first"
    if isinstance(default, bool):
        return not default
    if isinstance(default, int | float):
        return OTHER_VALUES.get(key, default + 1)
    return OTHER_VALUES.get(key, 3)


def reference_outputs(family: str, more: Mapping[str, Any]) -> list[Tensor]:
    """The states and the generated tokens of a tiny model of the reference, with more keys."""
    tiny = TINY[family]
    ending, options = next(iter(tiny.cases.values()))
    options = {key: value for key, value in options.items() if key != "own_head"}
    kind = getattr(transformers, tiny.stem + ending)
    file = json.loads(json.dumps(tiny.sizes | options | dict(more)))
    model = randomised(kind(kind.config_class.from_dict(file)))
    inputs = inputs_for(model)
    inputs.pop("decoder", None)
    if "pixel_values" in inputs:
        return [*model(**inputs, output_hidden_states=True).hidden_states]
    tokens = inputs.pop("tokens", torch.arange(6, 33).view(3, 9))
    both = model.config.is_encoder_decoder
    out = model(
        input_ids=tokens,
        **inputs,
        **({"decoder_input_ids": tokens[:, :5]} if both else {}),
        output_hidden_states=True,
    )
    states = out.decoder_hidden_states if both else out.hidden_states
    found = [out[0], *states]
    if model.can_generate():
        found.append(model.generate(tokens[:1], max_new_tokens=3, do_sample=False))
    return found


def assert_no_effect(family: str, keys: Mapping[str, Any]) -> None:
    """The reference computes the same with these keys."""
    plain = reference_outputs(family, {})
    for got, expected in zip(reference_outputs(family, keys), plain, strict=True):
        assert torch.allclose(got, expected, atol=1e-4), f"one of {', '.join(keys)}"


def foreign_keys(family: str) -> dict[str, Any]:
    """The keys of all other families that the reference does not read for this one."""
    reads = model_keys(family)
    known = {key for entry in FAMILIES[family].entries for key in entry.keys}
    return {
        key: other_value(key, values)
        for other in reference_keys().families.values()
        for key, values in sorted(other.items())
        if key not in reads and key not in known and key not in {*CODE, *GENERATION_KEYS}
    }


def read_and_ignored_keys(family: str) -> dict[str, Any]:
    """The keys that the reference reads for a family, and that ours ignores without a warning."""
    ours = {*HARMLESS, *FAMILIES[family].ignored.split()}
    ours -= {key for entry in FAMILIES[family].entries for key in entry.keys}
    return {
        key: other_value(key, values)
        for key, values in model_keys(family).items()
        if key in ours and key not in FORMS
    }


QUICK = random.Random(3).sample(sorted(TINY), 5)
LAW_CASES = [
    pytest.param(family, marks=() if family in QUICK else pytest.mark.slow)
    for family in sorted(TINY)
]


@pytest.mark.parametrize("family", LAW_CASES)
def test_ignored_keys_have_no_effect_in_the_reference(
    family: str, saved: Saved, capsys: Any
) -> None:
    """All at once: the fields and further keys of all other families."""
    foreign = foreign_keys(family)
    assert len(foreign) > 100
    folder = saved(family)
    before = read_config(folder)
    capsys.readouterr()
    edit(folder, **foreign)
    assert read_config(folder) == before
    assert len(capsys.readouterr().err.split("warning:")) == 2
    with torch.no_grad():
        assert_no_effect(family, foreign)


@pytest.mark.parametrize("family", LAW_CASES)
def test_keys_without_effect_have_none_in_the_reference(family: str) -> None:
    with torch.no_grad():
        assert_no_effect(family, read_and_ignored_keys(family))


@pytest.mark.parametrize("family", TINY)
def test_a_key_that_is_read_is_ours_or_an_error(family: str) -> None:
    table = FAMILIES[family]
    known = {key for entry in table.entries for key in entry.keys}
    known |= {*HARMLESS, *table.ignored.split(), *GENERATION_KEYS, "quantization_config"}
    read = {key: "another/value" for key in model_keys(family) if key not in known}
    unknown = table.unknown_keys(read)
    assert len(unknown.refused) == len(read)
    assert unknown.ignored == []


def test_an_ignored_key_does_not_change_a_loaded_model(saved: Saved) -> None:
    folder = saved("qwen2")
    tokens = torch.arange(6, 15)[None]
    before, _ = load_model(folder)
    edit(folder, **COMMON)
    after, _ = load_model(folder)
    assert torch.equal(before(Inputs(tokens)), after(Inputs(tokens)))
