"""Families with experts: published configs, quantized files, the layer that predicts further
tokens, fused experts.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tests.hub.checkpoints import edit, equal, read, settings, write
from tests.models import TWO_LAYERS

from trifold.errors import CheckpointError
from trifold.hub import load_model, save_model
from trifold.hub.families import FAMILIES
from trifold.hub.families.experts import fused
from trifold.hub.folder import describe_misfit
from trifold.hub.generation import read_generation
from trifold.hub.model_config import parse_config
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.text import read_tokenizer

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

Saved = Callable[..., Path]
# Name -> parameters, and generation_config.json as published.
PUBLISHED: dict[str, tuple[int, dict[str, Any]]] = {
    "mixtral-8x7b": (
        46_702_792_704,
        {"_from_model_config": True, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "qwen3-30b-a3b": (
        30_532_122_624,
        {
            "bos_token_id": 151643,
            "do_sample": True,
            "eos_token_id": [151645, 151643],
            "pad_token_id": 151643,
        }
        | {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    ),
    "gpt-oss-20b": (
        20_914_757_184,
        {"bos_token_id": 199998, "do_sample": True, "eos_token_id": [200002, 199999, 200012]}
        | {"pad_token_id": 199999},
    ),
    "deepseek-v3": (
        671_026_419_200,
        {"_from_model_config": True, "bos_token_id": 0, "eos_token_id": 1, "do_sample": True}
        | {"temperature": 0.6, "top_p": 0.95},
    ),
}


def published(name: str) -> dict[str, Any]:
    return json.loads(
        Path(__file__).with_name("published").joinpath(f"{name}.json").read_text(encoding="utf-8")
    )


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_read_and_written(name: str) -> None:
    values = published(name)
    quantized = values.pop("quantization_config", None)
    family = FAMILIES[values["model_type"]]
    config = family.read(values)
    assert family.fits(config) and family.read(family.write(config)) == config
    reference = getattr(transformers, f"{family.stem}Config")
    written, theirs = reference(**family.write(config)), reference(**values)
    for key in (
        "num_local_experts",
        "num_experts_per_tok",
        "sliding_window",
        "layer_types",
        "v_head_dim",
    ):
        assert getattr(written, key, None) == getattr(theirs, key, None), key
    read = read_generation(config, PUBLISHED[name][1], name)
    assert read.keys() <= {
        "do_sample",
        "temperature",
        "top_k",
        "top_p",
        "eos_token_id",
        "bad_words_ids",
    }
    if quantized:
        method = quantized["quant_method"].upper()
        with pytest.raises(
            CheckpointError, match=f"weights in {method} are not supported; use the"
        ):
            parse_config(values | {"quantization_config": quantized}, Path("config.json"))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_their_number_of_parameters(name: str) -> None:
    values = published(name)
    values.pop("quantization_config", None)
    config = FAMILIES[values["model_type"]].read(values)
    assert config.experts is not None
    few = config.experts.dense_layers + 1
    with torch.device("meta"):
        model = Transformer(config.model_copy(update={"n_layers": few}))
    last = sum(p.numel() for name, p in model.named_parameters() if f".blocks.{few - 1}." in name)
    assert model.count_parameters() + (config.n_layers - few) * last == PUBLISHED[name][0]


def test_weights_of_the_layer_for_further_tokens_are_not_read(saved: Saved, tmp_path: Path) -> None:
    for ending in ("ForCausalLM", "Model"):
        folder = saved("deepseek_v3", ending)
        before, _ = load_model(folder)
        tensors, layers = read(folder), before.config.n_layers
        layer = f"{'model.' if ending == 'ForCausalLM' else ''}layers"
        more = {
            "eh_proj.weight": torch.ones(16, 32),
            "mlp.experts.0.up_proj.weight": torch.ones(12, 16),
        }
        more |= {
            "embed_tokens.weight": tensors[
                f"{layer.removesuffix('layers')}embed_tokens.weight"
            ].clone()
        }
        write(
            folder, tensors | {f"{layer}.{layers}.{name}": tensor for name, tensor in more.items()}
        )
        assert equal(load_model(folder)[0], before)
        write(folder, tensors | {f"{layer}.{layers - 1}.eh_proj.weight": torch.ones(16, 32)})
        with pytest.raises(CheckpointError, match=r"not known: .*eh_proj"):
            load_model(folder)
        shutil.rmtree(folder)


def test_files_with_four_bits_are_rejected_without_their_key_too(saved: Saved) -> None:
    folder = saved("gpt_oss")
    tensors = read(folder)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    del tensors[name]
    write(
        folder,
        tensors
        | {f"{name}_blocks": torch.ones(4, 48, 1, 8), f"{name}_scales": torch.ones(4, 48, 1)},
    )
    with pytest.raises(CheckpointError, match=f"{name}_blocks, {name}_scales: weights in MXFP4"):
        load_model(folder)


@pytest.mark.parametrize("parts", [1, 2])
def test_fused_experts_are_split_and_joined(parts: int) -> None:
    transform = fused(3, parts)
    for shape in ((3, 5, 4 * parts), (3, 4 * parts)):
        whole = torch.randn(shape)
        split = transform.load([whole])
        assert [each.shape for each in split] == [(4, *shape[1:-1])] * (3 * parts)
        assert torch.equal(split[-1], whole[2, ..., parts - 1 :: parts].t())
        assert torch.equal(transform.save(split)[0], whole)
        shapes = transform.save([each.to("meta") for each in split])
        assert shapes[0].shape == whole.shape and shapes[0].is_meta


@pytest.mark.parametrize("share", [1.0, 0.707, 0.1, 3.3, 1 / 3])
@pytest.mark.parametrize("factor", [40.0, 1.7, 32.0, 4.0])
def test_the_scale_of_scores_keeps_its_bits(share: float, factor: float) -> None:
    rope = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": 64,
        "mscale_all_dim": share,
    }
    family = FAMILIES["deepseek_v3"]
    config = family.read({"rope_parameters": rope, "qk_nope_head_dim": 96})
    assert config.attention_scale != family.read({"qk_nope_head_dim": 96}).attention_scale is None
    written = family.write(config)
    assert written["rope_parameters"]["mscale_all_dim"] == pytest.approx(share, rel=1e-12)
    assert family.read(written) == config


SIZES = TWO_LAYERS | {"vocab_size": 31, "max_positions": 20}
DECODER = {
    "shape": "decoder",
    "positions": "rotary",
    "norm": "rms",
    "norm_placement": "pre",
    "gated": True,
}
DECODER |= {
    "scale_embeddings": False,
    "feed_forward_bias": False,
    "activation": "silu",
    "dropout": 0.0,
}
FEW = {"count": 4, "per_token": 2}
LATENT = {"width": 8, "d_rotary": 4, "d_value": 5}
GROUPED = FEW | {"score": "sigmoid", "correction": True, "shared": 1, "dense_layers": 1}
NEW: dict[str, tuple[str, dict[str, Any]]] = {
    "as wide as the network": ("mixtral", {"experts": FEW}),
    "the same width": ("mixtral", {"experts": FEW | {"d_ff": 24}}),
    "narrow experts": ("trifold", {"experts": FEW | {"d_ff": 12}}),
    "norms of queries": ("qwen3_moe", {"experts": FEW | {"d_ff": 12}, "qk_norm": "head", "tie_lm_head": False}),
    "norms of queries, one width": ("qwen3_moe", {"experts": FEW, "qk_norm": "head"}),
    "a shared expert": ("trifold", {"experts": FEW | {"shared": 1}}),
    "latent": ("deepseek_v3", {"experts": GROUPED, "latent": LATENT}),
    "latent, epsilon": ("deepseek_v3", {"experts": GROUPED, "latent": LATENT, "norm_epsilon": 1e-6}),
    "latent, another epsilon": ("trifold", {"experts": GROUPED, "latent": LATENT, "norm_epsilon": 1e-5}),
    "latent, scaled scores": ("trifold", {"experts": GROUPED, "latent": LATENT, "attention_scale": 0.3}),
}  # fmt: skip


@pytest.mark.parametrize("case", NEW)
def test_a_new_model_is_saved_in_the_family_that_fits(case: str, tmp_path: Path) -> None:
    family, values = NEW[case]
    norm = {"norm_epsilon": 1e-6 if family == "deepseek_v3" or "scaled" in case else 1e-5}
    model = Transformer(ModelConfig.parse(SIZES | DECODER | norm | values)).eval()
    save_model(tmp_path, model)
    assert settings(tmp_path)["model_type"] == family
    loaded, _ = load_model(tmp_path)
    assert equal(loaded, model)
    tokens = Inputs(torch.arange(3, 12)[None])
    assert torch.equal(loaded(tokens), model(tokens))
    assert bool(describe_misfit(model.config)) == (family == "trifold")


# --- tokenizers -----------------------------------------------------------------------------------

# The patterns, tokens and settings of the published tokenizers.
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
)
HARMONY = """{%- macro render(message) %}
{{- "<|start|>" + message.role + "<|message|>" + message.content + "<|end|>" }}{% endmacro -%}
{%- for message in messages %}{{- render(message) }}{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}"""
ROLES = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
{%- set ns = namespace(system='') %}{{ bos_token }}{%- for message in messages %}
{%- if message['role'] == 'user' %}{{ '<|User|>' + message['content'] }}{% else %}
{{- '<|Assistant|>' + message['content'] + '<|end|>' }}{% endif %}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|Assistant|>' }}{% endif %}"""
TOKENIZERS: dict[str, tuple[tuple[str, ...], list[str], str, dict[str, Any]]] = {
    "gpt_oss": (
        (O200K,),
        ["<|startoftext|>", "<|endoftext|>", "<|return|>", "<|start|>", "<|message|>", "<|end|>"],
        HARMONY,
        {"bos_token": "<|startoftext|>", "eos_token": "<|return|>", "pad_token": "<|endoftext|>"}
        | {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False},
    ),
    "deepseek_v3": (
        DEEPSEEK,
        ["<|begin|>", "<|end|>", "<|User|>", "<|Assistant|>"],
        ROLES,
        {
            name: {"__type": "AddedToken", "content": token, "lstrip": False, "normalized": True}
            | {"rstrip": False, "single_word": False}
            for name, token in (
                ("bos_token", "<|begin|>"),
                ("eos_token", "<|end|>"),
                ("pad_token", "<|end|>"),
            )
        }
        | {"add_bos_token": True, "add_eos_token": False, "legacy": True, "unk_token": None}
        | {
            "clean_up_tokenization_spaces": False,
            "sp_model_kwargs": {},
            "use_default_system_prompt": False,
        }
        | {"tokenizer_class": "LlamaTokenizerFast"},
    ),
}
TEXTS = [
    "Hello, world! It's 12345 o'clock.",
    "naïve ☂\n\n  CamelCase   x=1_000",
    "汉字 and かな mixed",
    "",
]


def tokenizer_folder(folder: Path, family: str) -> Path:
    """A folder with a tokenizer of the published kind and the config of a tiny model."""
    patterns, special, template, values = TOKENIZERS[family]
    library = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=False))
    splits = [tokenizers.pre_tokenizers.Split(tokenizers.Regex(p), "isolated") for p in patterns]
    byte_level = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False, trim_offsets=True, use_regex=False
    )
    library.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([*splits, byte_level])
    library.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    library.train_from_iterator(TEXTS * 3, trainer)
    if family == "deepseek_v3":
        library.post_processor = tokenizers.processors.TemplateProcessing(
            single="<|begin|> $A",
            pair="<|begin|> $A <|begin|> $B",
            special_tokens=[("<|begin|>", 0)],
        )
    library.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": family}), encoding="utf-8")
    inside = {"chat_template": template} if family == "deepseek_v3" else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(values | inside), encoding="utf-8")
    if not inside:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


@pytest.mark.parametrize("family", TOKENIZERS)
def test_tokenizers_as_published_are_read(family: str, tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path, family)
    ours, theirs = read_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    plain = theirs(TEXTS, add_special_tokens=False)["input_ids"]
    assert ours.encode(TEXTS) == plain
    around = theirs(TEXTS)["input_ids"]
    assert [row.ids for row in ours.rows(TEXTS)] == around
    for keep in (False, True):
        decoded = theirs.batch_decode(around, skip_special_tokens=not keep)
        assert ours.decode(around, keep_special=keep) == decoded
    roles = ("bos", "eos", "pad")
    assert all(getattr(ours, f"{role}_id") == getattr(theirs, f"{role}_token_id") for role in roles)
    assert ours.vocab_size == len(theirs)
    messages = [
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "Why?"},
    ]
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert ours.chat(messages, add_generation_prompt=True) == expected
    ids = ours.encode([expected], special_in_text=True)[0]
    assert ids == theirs(expected, add_special_tokens=False)["input_ids"]


# --- precision, sizes -----------------------------------------------------------------------------


def test_corrections_keep_their_precision_in_bfloat16(saved: Saved) -> None:
    folder = saved("deepseek_v3")
    tensors = read(folder)
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    write(folder, tensors | {name: torch.linspace(8, 8.01, 8)})
    model, _ = load_model(folder, dtype=torch.bfloat16)
    assert {n for n, p in model.named_parameters() if p.dtype != torch.bfloat16} == {
        "decoder.blocks.1.feed_forward.sublayer.router.correction"
    }
    router = model.get_submodule("decoder.blocks.1.feed_forward.sublayer.router")
    assert torch.equal(router.correction, torch.linspace(8, 8.01, 8))
    with torch.no_grad():
        assert model(Inputs(torch.tensor([[3, 4, 5]]))).dtype == torch.bfloat16


@pytest.mark.parametrize(("family", "key"), [
    ("mixtral", "num_local_experts"), ("qwen3_moe", "num_local_experts"), ("gpt_oss", "num_local_experts"),
    ("deepseek_v3", "n_routed_experts"),
])  # fmt: skip
def test_absurd_numbers_of_experts_are_rejected_early(family: str, key: str, saved: Saved) -> None:
    folder = saved(family)
    edit(folder, **{key: 10_000})
    with pytest.raises(
        CheckpointError, match=r"layers of 10000 experts, but the weights have \d+ elements"
    ):
        load_model(folder)
