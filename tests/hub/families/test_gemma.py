"""Gemma, as published: configs, tokenizers, generation, and EmbeddingGemma with its dense layers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.parity import make
from tests.hub.tiny import TINY
from tests.text import folders
from tokenizers import AddedToken, Tokenizer as Library, models, processors, trainers

import trifold
from trifold.costs import count_parameters
from trifold.errors import CheckpointError, DataError, SettingsError, UsageError
from trifold.hub import load_model, read_config
from trifold.hub.convert import convert
from trifold.hub.families import FAMILIES
from trifold.hub.family import HARMLESS
from trifold.hub.sentence_transformers import Dense, SentenceModules, read_modules, write_modules
from trifold.nn import Inputs
from trifold.objectives.defaults import complete

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

PUBLISHED = json.loads(
    Path(__file__).parents[1].joinpath("published", "gemma.json").read_text("utf-8")
)
DECODERS = ("gemma", "gemma2", "gemma3_text")
Saved = Callable[..., Path]


# --- configs --------------------------------------------------------------------------------------


def read_by_the_reference(values: dict[str, Any]) -> dict[str, Any]:
    """The reference's keys that change what a model computes."""
    name = TINY[values["model_type"]].config_class
    found = getattr(transformers, name).from_dict(json.loads(json.dumps(values))).to_dict()
    for part in (found, *(each for each in found.values() if isinstance(each, dict))):
        for key in [
            *HARMLESS,
            "_sliding_window_pattern",
            "sliding_window_pattern",
            "cache_implementation",
            "eos_token_id",
        ]:
            part.pop(key, None)
    ignored = FAMILIES[values["model_type"]].ignored.split()
    return {key: value for key, value in found.items() if key not in ignored and value is not None}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_is_read_and_written(name: str) -> None:
    values, parameters = PUBLISHED[name]["config"], PUBLISHED[name]["parameters"]
    family = FAMILIES[values["model_type"]]
    config = family.read(values)
    if parameters is not None:
        assert count_parameters(config) == parameters
    written = family.write(config) | {"model_type": family.model_type}
    assert family.read(written | {"architectures": values["architectures"]}) == config
    assert read_by_the_reference(written) == read_by_the_reference(values)
    with pytest.raises(SettingsError, match=r"text_config: .* is not supported, and transformers"):
        family.read(values | {"text_config": {}})


def test_an_encoder_of_9b_and_a_decoder_of_2b() -> None:
    values = PUBLISHED["google/t5gemma-2b-2b-prefixlm-it"]["config"]
    wide = {
        "hidden_size": 3584,
        "intermediate_size": 14336,
        "num_attention_heads": 16,
        "num_hidden_layers": 42,
    }
    wide |= {"num_key_value_heads": 8, "layer_types": ["sliding_attention", "full_attention"] * 21}
    values |= {"encoder": values["encoder"] | wide}
    values |= {"decoder": values["decoder"] | {"cross_attention_hidden_size": 3584}}
    config = FAMILIES["t5gemma"].read(values)
    encoder, decoder = config.stacks.values()
    assert (encoder.d_model, encoder.n_layers, encoder.n_heads, encoder.kv_heads, encoder.d_ff) == (
        *(3584, 42, 16, 8, 14336),
    )
    assert (decoder.d_model, decoder.n_layers, decoder.n_heads, decoder.kv_heads, decoder.d_ff) == (
        *(2304, 26, 8, 4, 9216),
    )
    assert encoder.head_width == decoder.head_width == 256
    written = FAMILIES["t5gemma"].write(config) | {"model_type": "t5gemma"}
    assert read_by_the_reference(written) == read_by_the_reference(values)
    with torch.device("meta"):
        theirs = transformers.T5GemmaForConditionalGeneration(
            transformers.T5GemmaConfig.from_dict(values)
        )
    assert count_parameters(config) == sum(each.numel() for each in theirs.parameters())


MODULE = TINY["t5gemma"].sizes["decoder"]


@pytest.mark.parametrize(
    ("side", "key", "value"),
    [
        *(
            ("decoder", key, value)
            for key, value in {"hidden_activation": "silu", "rms_norm_eps": 1e-3}.items()
        ),
        *(
            ("decoder", key, value)
            for key, value in {"attention_bias": True, "query_pre_attn_scalar": 9}.items()
        ),
        ("decoder", "attn_logit_softcapping", 3.0),
        ("decoder", "rope_parameters", {"rope_type": "default", "rope_theta": 500.0}),
        ("encoder", "layer_types", ["full_attention"] * 3),
        ("decoder", "layer_types", ["full_attention", "sliding_attention", "full_attention"]),
    ],
)
def test_stacks_that_differ_otherwise_are_rejected(side: str, key: str, value: Any) -> None:
    sides = {"encoder": MODULE, "decoder": MODULE, side: MODULE | {key: value}}
    with pytest.raises(SettingsError, match=rf"decoder\.{key}: .*differs from that of the encoder"):
        FAMILIES["t5gemma"].read({"vocab_size": 40, **sides})


def test_scales_and_rotations_of_stacks_with_different_sizes() -> None:
    """Each stack may have the scale of its own heads, or both the same; dynamic rotations need
    equal positions.
    """
    family, narrow = FAMILIES["t5gemma"], MODULE | {"head_dim": 4, "query_pre_attn_scalar": 4}
    same = narrow | {"query_pre_attn_scalar": 6}
    scales = [
        family.read({"encoder": MODULE, "decoder": decoder}).attention_scale
        for decoder in (narrow, same)
    ]
    assert scales == [None, 6**-0.5]
    dynamic = MODULE | {
        "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    }
    assert family.read({"encoder": dynamic, "decoder": dynamic}).rotary_scaling is not None
    with pytest.raises(SettingsError, match=r"decoder\.max_position_embeddings: 30 differs"):
        family.read({"encoder": dynamic, "decoder": dynamic | {"max_position_embeddings": 30}})


def test_models_of_images_are_rejected_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gemma3", "text_config": {}}')
    with pytest.raises(CheckpointError, match="'gemma3' is not supported: it reads images too"):
        read_config(tmp_path)


@pytest.mark.parametrize("family", DECODERS)
def test_embeddings_in_bfloat16_are_scaled_like_the_reference(family: str, saved: Saved) -> None:
    folder = saved(family)
    model, _ = load_model(folder, dtype=torch.bfloat16)
    model.decoder_embeddings.scale = 3072**0.5  # type: ignore[union-attr]
    tokens = torch.arange(5, 9)[None]
    table = model.decoder_embeddings.tokens.weight  # type: ignore[union-attr]
    with torch.no_grad():
        expected = table[tokens] * torch.tensor(3072**0.5).to(torch.bfloat16)
        assert torch.equal(model.decoder_embeddings(Inputs(tokens)), expected)  # type: ignore[misc]


# --- generation -----------------------------------------------------------------------------------


WIDE = {
    "hidden_size": 24,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "num_hidden_layers": 2,
}


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        *((family, {}) for family in (*DECODERS, "t5gemma")),
        ("t5gemma", {"encoder": MODULE | WIDE}),
        ("t5gemma", {"decoder": MODULE | WIDE | {"head_dim": 10, "query_pre_attn_scalar": 10}}),
    ],
    ids=str,
)
def test_greedy_texts_equal_the_reference(
    family: str, sizes: dict[str, Any], tmp_path: Path
) -> None:
    """Two prompts of different lengths, beyond the windows."""
    model = make(family, **sizes)
    model.save_pretrained(tmp_path)
    pipe = trifold.load(tmp_path)
    tokens = torch.randint(3, 40, (2, 7), generator=torch.Generator().manual_seed(4))
    real = torch.ones(2, 7, dtype=torch.bool)
    if family == "t5gemma":
        real[1, 5:] = False
    else:
        real[1, :2] = False  # the reference generates from prompts padded on the left
    tokens = tokens.where(real, 0)
    out = model.generate(
        tokens, attention_mask=real.long(), max_new_tokens=8, do_sample=False, bad_words_ids=[[0]]
    )
    rows = out[:, 1 if family == "t5gemma" else 7 :].tolist()
    expected = [row[: row.index(1)] if 1 in row else row for row in rows]
    assert max(map(len, expected)) > 4
    assert pipe.generate_tokens(tokens, real, max_new_tokens=8, bad_words_ids=[[0]]) == expected
    if sizes:  # beams; matrices in int8
        options: dict[str, Any] = {
            "num_beams": 3,
            "max_new_tokens": 6,
            "min_new_tokens": 6,
            "bad_words_ids": [[0]],
        }
        best = model.generate(tokens, attention_mask=real.long(), do_sample=False, **options)
        assert pipe.generate_tokens(tokens, real, **options) == best[:, 1:].tolist()
        small = trifold.load(tmp_path, weights="int8")
        exact, rounded = (each.logits(tokens, real, tokens).detach() for each in (pipe, small))
        assert float((rounded - exact).std() / exact.std()) < 0.1


# --- tokenizers -----------------------------------------------------------------------------------

TEMPLATE = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for message in messages %}{% set role = 'model' if message['role'] == 'assistant' else "
    "message['role'] %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
TURNS = ("<start_of_turn>", "<end_of_turn>")


def tokenizer(folder: Path, *, eos: bool = False) -> Path:
    """Files as Gemma's: BPE with bytes, spaces as ▁, and a template for chats; EmbeddingGemma's
    adds <eos>.
    """
    byte_pieces = [f"<0x{number:02X}>" for number in range(256)]
    library = Library(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    kind = transformers.GemmaTokenizer()._tokenizer
    library.normalizer, library.pre_tokenizer, library.decoder = (
        kind.normalizer,
        kind.pre_tokenizer,
        kind.decoder,
    )
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=[*SPECIAL, *TURNS, *byte_pieces],
        limit_alphabet=60,
        show_progress=False,
    )
    library.train_from_iterator(folders.CORPUS, trainer)
    state = json.loads(library.to_str())
    state["added_tokens"] = [
        each for each in state["added_tokens"] if each["content"] not in byte_pieces
    ]
    library = Library.from_str(json.dumps(state))
    library.add_special_tokens([AddedToken(each, normalized=False, special=True) for each in TURNS])
    library.post_processor = processors.TemplateProcessing(
        single="<bos> $A" + " <eos>" * eos,
        pair="<bos> $A <bos> $B",
        special_tokens=[("<bos>", 2), ("<eos>", 1)],
    )
    settings = {
        "add_bos_token": True, "add_eos_token": eos, "bos_token": "<bos>",
        **({} if eos else {"chat_template": TEMPLATE}),
        "clean_up_tokenization_spaces": False, "eos_token": "<eos>", "model_max_length": int(1e30),
        "pad_token": "<pad>", "sp_model_kwargs": {}, "spaces_between_special_tokens": False,
        "tokenizer_class": "GemmaTokenizer", "unk_token": "<unk>", "use_default_system_prompt": False,
        "boi_token": "<start_of_turn>", "padding_side": "left",
        "added_tokens_decoder": {
            str(number): {"content": name, "lstrip": False, "normalized": False, "rstrip": False,
                          "single_word": False, "special": True}
            for number, name in enumerate((*SPECIAL, *TURNS))
        },
    }  # fmt: skip
    return folders.write(folder, tokenizer__json=library.to_str(), tokenizer_config__json=settings)


def test_tokenizer_and_chat_template_equal_the_reference(tmp_path: Path) -> None:
    tokenizer(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    make("gemma2", vocab_size=len(theirs)).save_pretrained(tmp_path)
    sampling = {"top_k": 64, "top_p": 0.95, "do_sample": True, "cache_implementation": "hybrid"}
    sampling |= {"bos_token_id": 2, "eos_token_id": [1, 6], "pad_token_id": 0}
    (tmp_path / "generation_config.json").write_text(json.dumps(sampling))
    pipe = trifold.load(tmp_path)
    assert (pipe.generation.top_k, pipe.generation.top_p, pipe.generation.eos_token_id) == (
        64,
        0.95,
        [1, 6],
    )
    ours = pipe.tokenizer
    assert ours is not None
    texts = [*folders.lines()[::40], "  two  spaces\n\n日本 😀 ÿ", ""]
    ids = [theirs(text, add_special_tokens=False).input_ids for text in texts]
    assert ours.encode(texts) == ids and ours.decode(ids) == theirs.batch_decode(ids)
    assert [row.ids for row in ours.rows(texts)] == theirs(texts).input_ids
    chat = [
        {"role": "user", "content": " the quick fox "},
        {"role": "assistant", "content": "played"},
    ]
    chat.append({"role": "user", "content": "the école"})
    text = ours.chat(chat, add_generation_prompt=True)
    assert text == theirs.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert (
        ours.encode([text], special_in_text=True)
        == theirs([text], add_special_tokens=False).input_ids
    )
    with pytest.raises(DataError, match="System role not supported"):
        ours.chat([{"role": "system", "content": "fox"}])


# --- EmbeddingGemma -------------------------------------------------------------------------------


def embedder(folder: Path) -> Path:
    """A folder as that of EmbeddingGemma, written by sentence-transformers."""
    library = pytest.importorskip("sentence_transformers")
    modules = library.sentence_transformer.modules
    source = tokenizer(folder / "source", eos=True)
    size = len(transformers.AutoTokenizer.from_pretrained(source))
    ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    options = {
        "use_bidirectional_attention": True,
        "sliding_window": 4,
        "max_position_embeddings": 64,
        **ids,
    }
    make("gemma3_text", "TextModel", vocab_size=size, **options).save_pretrained(source)
    torch.manual_seed(0)
    steps = [
        modules.Transformer(str(source), max_seq_length=20),
        modules.Pooling(16, "mean"),
        modules.Dense(16, 24, bias=False, activation_function=torch.nn.Identity()),
        modules.Dense(24, 16),
        modules.Normalize(),
    ]
    model = library.SentenceTransformer(
        modules=steps, device="cpu", prompts={"query": "task: search result | query: "}
    )
    model.save(str(folder / "theirs"))
    return folder / "theirs"


TEXTS = ["the quick brown fox played", "fox", "naïve 日本語 wolves " * 9]


@pytest.mark.slow
def test_a_folder_of_embeddinggemma_gives_equal_vectors(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = embedder(tmp_path)
    expected = library.SentenceTransformer(str(folder), device="cpu").encode(
        TEXTS, convert_to_tensor=True
    )
    pipe = trifold.load(folder)
    assert pipe.config.shape == "encoder" and pipe.modules is not None
    assert [layer.activation for layer in pipe.modules.dense] == [None, "tanh"]
    torch.testing.assert_close(torch.stack(pipe.embed(TEXTS)), expected, rtol=0, atol=1e-4)
    found = pipe.search("fox", ["the fox", "wolves"])[0]
    expected_score = float(pipe.embed("fox", prompt_name="query") @ pipe.embed(found.text))
    torch.testing.assert_close(found.score, expected_score, rtol=0, atol=1e-5)
    pipe.save(tmp_path / "saved")
    convert(folder, tmp_path / "converted")
    for copy in (tmp_path / "saved", tmp_path / "converted"):
        torch.testing.assert_close(
            torch.stack(trifold.load(copy).embed(TEXTS)), expected, rtol=0, atol=1e-4
        )
        again = library.SentenceTransformer(str(copy), device="cpu").encode(
            TEXTS, convert_to_tensor=True
        )
        torch.testing.assert_close(again, expected, rtol=0, atol=1e-4)


def test_training_does_not_drop_dense_layers(saved: Saved) -> None:
    folder = saved("gemma3_text", "TextModel")
    layer = Dense(torch.randn(6, 16), None, None)
    write_modules(folder, SentenceModules(dense=(layer,)), width=16, positions=64)
    with pytest.raises(
        SettingsError, match="dense layers after pooling, which training does not support"
    ):
        complete(
            {"task": {"kind": "embed"}, "start_from": str(folder), "data": {"train": "a.jsonl"}},
            {},
        )


def test_dense_layers_are_written_and_read(tmp_path: Path) -> None:
    layers = (
        Dense(torch.randn(6, 4), None, None),
        Dense(torch.randn(4, 6), torch.randn(4), "tanh"),
    )
    for normalise in (False, True):
        folder = tmp_path / str(normalise)
        write_modules(
            folder, SentenceModules("cls", normalise, 9, dense=layers), width=4, positions=64
        )
        back = read_modules(folder)
        assert back is not None and back[:4] == ("cls", normalise, 9, None)
        x = torch.randn(2, 4)
        expected = torch.tanh(x @ layers[0].weight.T @ layers[1].weight.T + layers[1].bias)
        torch.testing.assert_close(back.dense[1](back.dense[0](x)), expected)
    with pytest.raises(UsageError, match="reads vectors of width 6, not 4"):
        back.dense[1](x)
    edit_dense: dict[str, object] = {
        "activation_function": ["my.Own"],
        "use_residual": True,
        "module_input_name": "token_embeddings",
    }
    for key, value in edit_dense.items():
        config = tmp_path / "True" / "3_Dense" / "config.json"
        before = config.read_text("utf-8")
        config.write_text(json.dumps(json.loads(before) | {key: value}))
        found = read_modules(tmp_path / "True")
        assert found is not None and key in str(found.problem)
        config.write_text(before)
    config.write_text(json.dumps(json.loads(before) | {"out_features": 5}))
    with pytest.raises(CheckpointError, match="3_Dense: the weights do not fit"):
        read_modules(tmp_path / "True")
    (config.parent / "model.safetensors").unlink()
    found = read_modules(tmp_path / "True")
    assert found is not None and "without model.safetensors" in str(found.problem)
