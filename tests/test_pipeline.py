"""Pipeline: logits, generation, saving and loading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models import TWO_LAYERS, add_noise
from torch import Tensor

import trifold
from trifold.errors import CheckpointError, DataError, SettingsError, UsageError
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.pipeline import Pipeline, load
from trifold.text import Tokenizer, TokenizerSettings, train_tokenizer

TEXTS = ["the quick fox", "a dog", "jumps over it all"]
SMALL: dict[str, Any] = TWO_LAYERS | {"max_positions": 64}
SHAPES: dict[str, dict[str, Any]] = {
    "encoder-decoder": {},
    "decoder": {"shape": "decoder", "norm_placement": "pre", "positions": "rotary"},
    "encoder": {"shape": "encoder", "heads": ("lm",), "lm_head_transform": "gelu"},
    "classifier": {
        "shape": "encoder",
        "heads": ("pooler", "sequence"),
        "classifier_input": "pooler",
        "n_labels": 3,
    },
    "bare": {"shape": "encoder"},
}
IMAGES: dict[str, Any] = {
    "shape": "encoder",
    "heads": ("sequence",),
    "n_labels": 3,
    "scale_embeddings": False,
    "image_size": (8, 8),
    "patch_size": (4, 4),
    "max_positions": 5,
    "positions": "learned",
}
GENERATORS = ("encoder-decoder", "decoder")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TEXTS, TokenizerSettings(kind="char", min_frequency=1))


def make_pipeline(shape: str, tokenizer: Tokenizer | None = None, **values: Any) -> Pipeline:
    torch.manual_seed(5)
    size = {"vocab_size": 40 if tokenizer is None else tokenizer.vocab_size}
    model = Transformer(
        ModelConfig.parse(SMALL | size | (SHAPES | {"images": IMAGES})[shape] | values)
    )
    return Pipeline(add_noise(model, 0.3), tokenizer)


def batch() -> tuple[Tensor, Tensor]:
    tokens = torch.randint(4, 40, (3, 7), generator=torch.Generator().manual_seed(1))
    return tokens, torch.arange(7) < torch.tensor([7, 3, 5])[:, None]


# --- logits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["encoder-decoder", "decoder", "encoder", "classifier"])
@torch.no_grad()
def test_logits_do_not_depend_on_padding(shape: str) -> None:
    pipe = make_pipeline(shape)
    (tokens, attend), targets = batch(), torch.randint(4, 40, (3, 4))
    both = (targets,) if shape == "encoder-decoder" else ()
    together = pipe.logits(tokens, attend, *both)
    for row, length in enumerate(attend.sum(1).tolist()):
        alone = pipe.logits(
            tokens[row : row + 1, :length], None, *(w[row : row + 1] for w in both)
        )[0]
        here = together[row] if together.dim() == 2 or both else together[row, :length]
        torch.testing.assert_close(here, alone, rtol=0, atol=1e-5)
    if shape == "classifier":
        assert together.shape == (3, 3)


LEFT_PADDED = {
    "encoder": {},
    "decoder": {},
    "classifier": {},
    "eos": {"heads": ("sequence",), "classifier_input": "eos"},
    "span": {"heads": ("span",)},
}


@pytest.mark.parametrize("layout", ["left", "between"])
@pytest.mark.parametrize("case", LEFT_PADDED)
@torch.no_grad()
def test_logits_do_not_depend_on_where_padding_is(case: str, layout: str) -> None:
    shape = case if case in SHAPES else "encoder-decoder"
    pipe = make_pipeline(shape, **LEFT_PADDED[case])
    tokens, attend = batch()
    attend = attend.flip(1) if layout == "left" else attend[:, [0, 3, 1, 4, 2, 5, 6]]
    for row, real in enumerate(attend):
        tokens[row, real.nonzero().max()] = pipe.config.eos_id
    together, states = pipe.logits(tokens, attend), pipe.hidden_states(tokens, attend)
    for row, real in enumerate(attend):
        ids = tokens[row : row + 1, real]
        alone, here = (
            pipe.logits(ids)[0],
            together[row] if together.dim() == 2 else together[row, real],
        )
        torch.testing.assert_close(here, alone, rtol=0, atol=1e-5)
        for side, layers in pipe.hidden_states(ids).items():
            torch.testing.assert_close(
                states[side][-1][row, real], layers[-1][0], rtol=0, atol=1e-5
            )


@torch.no_grad()
def test_logits_of_text_are_those_of_its_ids(tokenizer: Tokenizer) -> None:
    for shape in ("encoder-decoder", "decoder", "encoder", "classifier"):
        pipe = make_pipeline(shape, tokenizer)
        together = pipe.logits(TEXTS)
        assert torch.equal(pipe.logits(TEXTS[0]), pipe.logits(torch.tensor(pipe.read(TEXTS[:1]))))
        for row, text in enumerate(TEXTS):
            alone = pipe.logits(text)[0]
            here = together[row] if alone.dim() == 1 else together[row, : len(alone)]
            torch.testing.assert_close(here, alone, rtol=0, atol=1e-5)
        assert pipe.hidden_states(TEXTS[0])[pipe.config.shape.split("-")[0]][0].shape[0] == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("run_with_cache", r"use `trace\(text\)`.*docs/look\.md"),
        ("to_str_tokens", r"use `trace\(text\)\.tokens`"),
        ("encode", r"use `embed\(texts\)` for vectors"),
        ("similarity", r"use `embed\(texts, normalise=True\)`"),
        ("transform", r"use `embed\(texts\)`"),
        ("predict_proba", r"use `classify\(texts, top_k=N\)`"),
        ("run", r"use `predict\(texts\)`"),
        ("walk", "a Pipeline has no attribute 'walk'$"),
    ],
)
def test_methods_of_other_libraries_are_answered_with_ours(name: str, message: str) -> None:
    with pytest.raises(AttributeError, match=message):
        getattr(make_pipeline("decoder"), name)


@torch.no_grad()
def test_logits_are_the_head_of_the_last_hidden_state() -> None:
    pipe, (tokens, attend) = make_pipeline("encoder-decoder"), batch()
    targets = torch.randint(4, 40, (3, 4))
    states = pipe.hidden_states(tokens, attend, targets)
    assert [len(states[side]) for side in ("encoder", "decoder")] == [3, 3]
    assert pipe.model.lm_head is not None
    torch.testing.assert_close(
        pipe.model.lm_head(states["decoder"][-1]), pipe.logits(tokens, attend, targets)
    )
    assert torch.equal(states["encoder"][-1], pipe.model.encode(Inputs(tokens, attend)).hidden)


@torch.no_grad()
def test_the_default_decoder_input_is_shifted() -> None:
    pipe, (tokens, attend) = make_pipeline("encoder-decoder"), batch()
    shifted = torch.cat([torch.full((3, 1), pipe.config.start_id), tokens[:, :-1]], 1)
    assert torch.equal(pipe.logits(tokens, attend), pipe.logits(tokens, attend, shifted))


def test_gradients_flow() -> None:
    pipe, (tokens, attend) = make_pipeline("decoder"), batch()
    pipe.logits(tokens, attend)[attend].sum().backward()
    assert all(parameter.grad is not None for parameter in pipe.model.parameters())


def test_logits_of_images() -> None:
    pipe = make_pipeline("images")
    pixels = torch.randn(2, 3, 8, 8)
    assert pipe.logits(pixels).shape == (2, 3)
    assert pipe.hidden_states(pixels)["encoder"][0].shape == (2, 5, 16)


INVALID: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "numbers as a mask": (
        {"attend": torch.ones(3, 7)},
        DataError,
        "attend has the type torch.float32; give booleans",
    ),
    "a mask of another shape": (
        {"attend": torch.ones(3, 6, dtype=torch.bool)},
        DataError,
        r"\(3, 6\)",
    ),
    "an id too large": (
        {"tokens": torch.full((3, 7), 40)},
        DataError,
        "id 40, but the vocabulary has 40",
    ),
    "an id below 0": ({"tokens": torch.full((3, 7), -1)}, DataError, "id -1"),
    "one row without its axis": ({"tokens": torch.arange(4)}, DataError, r"ids of shape \(B, T\)"),
    "fractions": ({"tokens": torch.rand(3, 7)}, DataError, "torch.float32; give ids"),
    "too many tokens": (
        {"tokens": torch.ones(3, 65).long(), "attend": None, "positions": "learned"},
        DataError,
        "65 tokens exceed max_positions = 64",
    ),
    "segments without types": (
        {"segments": torch.zeros(3, 7).long()},
        DataError,
        "does not use segments",
    ),
    "a segment too large": (
        {"segments": torch.full((3, 7), 2), "n_token_types": 2},
        DataError,
        "segments has the id 2, but the model has 2 token types",
    ),
    "rows of different lengths": (
        {"tokens": [[1, 2], [3]]},
        DataError,
        "tokens is not a tensor, but .*ids of shape",
    ),
    "no ids": ({"tokens": torch.ones(3, 0).long(), "attend": None}, DataError, "give ids of shape"),
    "a mask that is no tensor": ({"attend": "x"}, DataError, "give booleans of shape"),
    "text without a tokenizer": ({"tokens": "a dog", "attend": None}, UsageError, "no tokenizer"),
    "a mask for text": ({"tokens": "a dog"}, UsageError, "attend and segments belong to ids"),
    "no end token": (
        {"tokens": torch.full((3, 7), 5), "shape": "encoder-decoder"} | LEFT_PADDED["eos"],
        DataError,
        "row 0 has no end-of-sequence token",
    ),
    "other decoder rows": (
        {"decoder_tokens": torch.ones(2, 2).long(), "shape": "encoder-decoder"},
        DataError,
        "decoder_tokens has 2 rows, tokens 3",
    ),
    "pixels of another shape": (
        {"tokens": torch.zeros(1, 3, 4, 8), "shape": "images"},
        DataError,
        r"shape \(1, 3, 4, 8\); this model needs B images \(channels, height, width\) = \(3, 8, 8\)",
    ),
    "one image without its axis": (
        {"tokens": torch.zeros(3, 8, 8), "shape": "images"},
        DataError,
        r"shape \(3, 8, 8\); this model needs B images",
    ),
    "no image": (
        {"tokens": torch.zeros(0, 3, 8, 8), "shape": "images"},
        DataError,
        "is empty, .*give pixels",
    ),
    "no rows": (
        {"tokens": torch.ones(0, 7).long(), "attend": None},
        DataError,
        "is empty, .*give ids",
    ),
    "no texts": ({"tokens": [], "attend": None}, DataError, "is empty, .*give ids"),
    "no decoder rows": (
        {"decoder_tokens": torch.ones(0, 2).long(), "shape": "encoder-decoder"},
        DataError,
        "decoder_tokens is empty",
    ),
    "sparse ids": (
        {"tokens": torch.ones(3, 7).long().to_sparse()},
        DataError,
        "sparse .*give ids of shape",
    ),
    "ids without values": (
        {"tokens": torch.ones(3, 7, device="meta").long()},
        DataError,
        "on the meta device",
    ),
    "a sparse mask": (
        {"attend": torch.ones(3, 7).bool().to_sparse()},
        DataError,
        "attend is .*sparse",
    ),
    "complex ids": ({"tokens": torch.ones(3, 7) * 1j}, DataError, "torch.complex64; give ids"),
    "booleans": ({"tokens": torch.ones(3, 7).bool()}, DataError, "torch.bool; give ids"),
    "a list of segments without types": (
        {"segments": [[0] * 7] * 3},
        DataError,
        "does not use segments",
    ),
    "two inputs": (
        {"decoder_tokens": torch.ones(3, 2).long()},
        UsageError,
        "require an encoder-decoder",
    ),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_tensors_are_errors(case: str) -> None:
    arguments, error, message = INVALID[case]
    values = {key: value for key, value in arguments.items() if key in ModelConfig.model_fields}
    pipe = make_pipeline(values.pop("shape", "decoder"), **values)
    tokens, attend = batch()
    given = {"tokens": tokens, "attend": attend} | {
        k: v for k, v in arguments.items() if k not in values
    }
    given.pop("shape", None)
    for call in (pipe.logits, pipe.hidden_states):
        if case != "no end token" or call == pipe.logits:
            with pytest.raises(error, match=message):
                call(**given)


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int16]
)
def test_ids_of_every_integer_type_are_read(dtype: torch.dtype) -> None:
    pipe, (tokens, attend) = make_pipeline("decoder"), batch()
    assert torch.equal(pipe.logits(tokens.to(dtype), attend), pipe.logits(tokens, attend))
    with pytest.raises(DataError, match="id 100, but the vocabulary has 40"):
        pipe.logits(torch.full((3, 7), 100).to(dtype))


def test_a_long_text_is_an_error_without_options_of_predictions(tokenizer: Tokenizer) -> None:
    pipe = make_pipeline("classifier", tokenizer)
    with pytest.raises(DataError, match=r"reads at most 64; shorten the text$"):
        pipe.logits("a dog " * 100)
    with pytest.raises(
        DataError, match=r"reads at most 64; shorten .* \(on_overflow=\"truncate\"\)$"
    ):
        pipe.classify("a dog " * 100)


@pytest.mark.parametrize("text", [None, 5, [None], b"x", ["a dog", 3.5]])
def test_what_is_not_text_is_an_error(text: Any, tokenizer: Tokenizer) -> None:
    pipe = make_pipeline("decoder", tokenizer)
    for call in (pipe.generate, pipe.embed, pipe.limit, lambda text: list(pipe.stream(text))):
        with pytest.raises(DataError, match="a text is a string, not "):
            call(text)
    for read in (pipe.read, pipe.hypotheses, tokenizer.encode, tokenizer.rows):
        with pytest.raises(
            (DataError, UsageError), match=r"a text is a string, not |a list of texts is expected"
        ):
            read(text)


@pytest.mark.parametrize(
    "ids", [None, 5, [4, 5], ["a"], [["a"]], [[4.5]], [[-1]], [[2**40]], [None], "abc"]
)
def test_what_is_no_list_of_ids_cannot_be_decoded(ids: Any, tokenizer: Tokenizer) -> None:
    for decode in (make_pipeline("decoder", tokenizer).decode, tokenizer.decode):
        with pytest.raises(DataError, match="a list of lists of token ids is expected, not "):
            decode(ids)


def test_logits_require_a_head() -> None:
    pipe, (tokens, attend) = make_pipeline("bare"), batch()
    with pytest.raises(UsageError, match="use hidden_states"):
        pipe.logits(tokens, attend)
    assert len(pipe.hidden_states(tokens, attend)["encoder"]) == 3


# --- generation -----------------------------------------------------------------------------------


@torch.no_grad()
def generate_greedily(pipe: Pipeline, tokens: list[int], count: int) -> list[int]:
    """Greedy generation by `logits` alone; padding is never generated."""
    generated: list[int] = []
    for _ in range(count):
        if pipe.config.shape == "decoder":
            logits = pipe.logits(torch.tensor([[*tokens, *generated]]))
        else:
            logits = pipe.logits(
                torch.tensor([tokens]), None, torch.tensor([[pipe.config.start_id, *generated]])
            )
        logits[..., pipe.config.pad_id] = float("-inf")
        token = int(logits[0, -1].argmax())
        if token == pipe.config.eos_id:
            break
        generated.append(token)
    return generated


@pytest.mark.parametrize("shape", GENERATORS)
def test_greedy_tokens_do_not_depend_on_the_batch(shape: str) -> None:
    pipe, (tokens, attend) = make_pipeline(shape), batch()
    found = pipe.generate_tokens(tokens, attend, max_new_tokens=6)
    for row, length in enumerate(attend.sum(1).tolist()):
        assert found[row] == generate_greedily(pipe, tokens[row, :length].tolist(), 6)


def test_a_prompt_can_be_padded_on_the_left() -> None:
    pipe, (tokens, attend) = make_pipeline("decoder"), batch()
    reverse = pipe.generate_tokens(tokens.flip(1), attend.flip(1), max_new_tokens=5)
    for row, length in enumerate(attend.sum(1).tolist()):
        assert reverse[row] == generate_greedily(pipe, tokens[row, :length].flip(0).tolist(), 5)


@pytest.mark.parametrize("shape", GENERATORS)
def test_generate_encodes_and_decodes_text(shape: str, tokenizer: Tokenizer) -> None:
    pipe = make_pipeline(shape, tokenizer)
    encoded = pipe.read(TEXTS)
    assert all((ids[-1] == pipe.config.eos_id) == (shape == "encoder-decoder") for ids in encoded)
    expected = tokenizer.decode([generate_greedily(pipe, ids, 6) for ids in encoded])
    assert pipe.generate(TEXTS, max_new_tokens=6) == expected
    assert (
        pipe.generate(TEXTS[1], max_new_tokens=6)
        == expected[1]
        == trifold.generate(pipe, TEXTS[1], max_new_tokens=6)
    )
    found = pipe.hypotheses(TEXTS, max_new_tokens=6, num_beams=3, num_return_sequences=2)
    assert all(first.score >= second.score for first, second in found)


def test_an_end_token_outside_the_vocabulary_is_not_appended(tokenizer: Tokenizer) -> None:
    pipe = make_pipeline("encoder-decoder", tokenizer, eos_id=2**31 - 1)
    assert max(pipe.read(["a dog"])[0]) < tokenizer.vocab_size
    assert isinstance(pipe.generate("a dog", max_new_tokens=3), str)
    assert len(pipe.logits(["a dog"]).shape) == 3


@pytest.mark.parametrize("shape", ["encoder", "classifier", "bare"])
def test_an_encoder_cannot_generate(shape: str, tokenizer: Tokenizer) -> None:
    pipe = make_pipeline(shape, tokenizer)
    with pytest.raises(UsageError, match="cannot generate text; use `predict`"):
        pipe.generate(TEXTS[0])
    with pytest.raises(UsageError, match="predict"):
        pipe.generate_tokens(torch.ones(1, 3).long())


def test_a_decoder_without_language_model_head_cannot_generate(tokenizer: Tokenizer) -> None:
    pipe = make_pipeline("decoder", tokenizer, heads=("sequence",), classifier_input="last")
    with pytest.raises(
        UsageError, match=r"no language-model head \(its heads: sequence\); use `predict`"
    ):
        pipe.generate(TEXTS[0])


@pytest.mark.parametrize("shape", GENERATORS)
def test_a_text_without_tokens_is_an_error(shape: str, tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="text 2 of 2 has no tokens: nothing to"):
        make_pipeline(shape, tokenizer).generate([TEXTS[0], ""])


def test_the_representation_describes_the_model(tokenizer: Tokenizer, tmp_path: Path) -> None:
    pipe = make_pipeline("classifier", tokenizer)
    size, text = (
        f"{sum(p.numel() for p in pipe.model.parameters()):,}",
        f"{tokenizer.vocab_size} tokens",
    )
    assert (
        repr(pipe)
        == f"<Pipeline: trifold encoder; cpu; {size} parameters; heads: pooler, sequence; {text}>"
    )
    pipe = make_pipeline("bare")
    pipe.save(tmp_path)
    assert repr(load(tmp_path, device="cpu")).endswith("heads: none; no tokenizer>")


def test_a_stream_of_beams_is_an_error_that_names_the_source(tokenizer: Tokenizer) -> None:
    pipe = make_pipeline("decoder", tokenizer)
    pipe.generation = pipe.generation.model_copy(update={"num_beams": 3})
    message = r"^`stream` has a single output, and generation_config\.json .* sets num_beams to 3; add num_beams=1$"
    with pytest.raises(UsageError, match=message):
        list(pipe.stream(TEXTS[0]))
    with pytest.raises(UsageError, match=r"^num_beams 2: only one output"):
        list(pipe.stream(TEXTS[0], num_beams=2))
    assert "".join(pipe.stream(TEXTS[0], num_beams=1)) == pipe.generate(TEXTS[0], num_beams=1)


def test_unknown_arguments_are_errors(tokenizer: Tokenizer) -> None:
    with pytest.raises(SettingsError, match="did you mean 'num_beams'"):
        make_pipeline("decoder", tokenizer).generate(TEXTS[0], num_beam=3)


# --- folders --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_saving_and_loading_is_exact(shape: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    pipe = make_pipeline(shape, tokenizer)
    pipe.save(tmp_path / "once")
    again = load(tmp_path / "once")
    assert again.config == pipe.config and again.tokenizer is not None
    assert again.tokenizer.encode(TEXTS) == tokenizer.encode(TEXTS)
    if shape in GENERATORS:
        assert again.generate(TEXTS, max_new_tokens=6) == pipe.generate(TEXTS, max_new_tokens=6)
    again.save(tmp_path / "twice")
    with pytest.raises(UsageError, match=r"twice: .*not empty; name .*, or add overwrite=True to"):
        pipe.save(tmp_path / "twice")
    again.save(tmp_path / "twice", overwrite=True)
    files = sorted(path.name for path in (tmp_path / "once").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "twice").iterdir())
    for name in files:
        once, twice = ((tmp_path / folder / name).read_bytes() for folder in ("once", "twice"))
        if name.endswith(".json"):  # the order of keys is free
            once, twice = json.loads(once), json.loads(twice)
        assert once == twice, name


@pytest.mark.slow
def test_results_do_not_depend_on_memory_alignment() -> None:
    tokens, attend = batch()
    held = []  # so that the next tensors have other addresses
    for first in range(30):
        pipe = make_pipeline("decoder")
        expected = pipe.logits(tokens, attend)
        for second in range(15):
            held.append(torch.empty(1 + (first * 37 + second * 101) % 3000))
            assert torch.equal(pipe.logits(tokens, attend), expected)


def test_a_folder_without_a_tokenizer_accepts_ids(tmp_path: Path) -> None:
    pipe = make_pipeline("decoder")
    pipe.save(tmp_path)
    assert not (tmp_path / "tokenizer.json").exists()
    again, (tokens, attend) = load(tmp_path), batch()
    assert again.tokenizer is None
    assert torch.equal(again.logits(tokens, attend), pipe.logits(tokens, attend))
    assert again.generate_tokens(tokens, attend, max_new_tokens=4) == pipe.generate_tokens(
        tokens, attend, max_new_tokens=4
    )
    with pytest.raises(
        UsageError,
        match="no tokenizer; load the model with tokenizer=FOLDER, or use generate_tokens",
    ):
        again.generate("a dog")


def test_the_tokenizer_of_another_folder_is_read(tokenizer: Tokenizer, tmp_path: Path) -> None:
    pipe = make_pipeline("decoder", tokenizer)
    pipe.save(tmp_path / "whole")
    Pipeline(pipe.model).save(tmp_path / "bare")
    again = load(tmp_path / "bare", tokenizer=tmp_path / "whole")
    assert again.generate(TEXTS, max_new_tokens=4) == pipe.generate(TEXTS, max_new_tokens=4)
    with pytest.raises(CheckpointError, match=r"bare: no tokenizer, but .*whole needs"):
        load(tmp_path / "whole", tokenizer=tmp_path / "bare")
    make_pipeline("decoder", vocab_size=5).save(tmp_path / "small")
    with pytest.raises(
        CheckpointError, match=r"tokens, but .*small needs a tokenizer of at most 5"
    ):
        load(tmp_path / "small", tokenizer=tmp_path / "whole")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": "x"}, "dtype 'x' is not known; give 'float32' or 'bfloat16' or 'float16'"),
        ({"dtype": torch.int64}, "dtype 'torch.int64' is not known; give 'float32' or"),
        ({"device": "x"}, "unknown device 'x'; use auto, cpu, cuda, cuda:0 or mps"),
        ({"device": "meta"}, "device 'meta' is not available; available devices: cpu"),
        ({"weights": "int3"}, "weights 'int3' is not known; give None or 'full' or 'file' or"),
    ],
)
def test_load_states_the_values_of_an_argument(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        load("nowhere/at/all", **arguments)


def test_an_invalid_tokenizer_is_an_error(tokenizer: Tokenizer, tmp_path: Path) -> None:
    make_pipeline("decoder", tokenizer).save(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises((CheckpointError, DataError), match=r"tokenizer\.json"):
        load(tmp_path)


def test_arguments_take_precedence_over_the_folder(tokenizer: Tokenizer, tmp_path: Path) -> None:
    pipe = make_pipeline("decoder", tokenizer)
    pipe.save(tmp_path)
    path = tmp_path / "generation_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) | {"max_new_tokens": 2}
    path.write_text(json.dumps(settings), encoding="utf-8")
    tokens = torch.tensor(pipe.read(TEXTS[:1]))
    long = pipe.generate_tokens(tokens, max_new_tokens=5)[0]
    assert len(long) == 5  # otherwise the next two lines compare nothing
    assert load(tmp_path).generate_tokens(tokens)[0] == long[:2]
    assert load(tmp_path).generate_tokens(tokens, max_new_tokens=5)[0] == long


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("tied", [True, False])
def test_generation_equals_that_of_transformers(tied: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 60,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 2,
        "num_heads": 4,
    }
    reference = transformers.T5ForConditionalGeneration(
        transformers.T5Config(**sizes, decoder_start_token_id=0, tie_word_embeddings=tied)
    ).eval()
    add_noise(reference, 0.3)
    reference.save_pretrained(tmp_path)
    tokens, attend = batch()
    theirs = reference.generate(
        input_ids=tokens, attention_mask=attend.long(), max_new_tokens=8, do_sample=False
    )
    found = load(tmp_path).generate_tokens(tokens, attend, max_new_tokens=8)
    for ours, row in zip(found, theirs[:, 1:].tolist(), strict=True):
        assert ours == (row[: row.index(1)] if 1 in row else row)


# --- special tokens in a text ---------------------------------------------------------------------

HOLES = TokenizerSettings(kind="char", min_frequency=1, special=("mask",))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("shape", GENERATORS)
def test_special_tokens_in_a_text_are_parsed_as_the_folder_says(shape: str, tmp_path: Path) -> None:
    codec = train_tokenizer(TEXTS, HOLES)
    for parse_special in (False, True):
        make_pipeline(shape, codec).save(tmp_path, overwrite=True)
        codec.save(tmp_path, parse_special=parse_special, overwrite=True)
        pipe, text = load(tmp_path), "a <mask> dog </s> a"
        mask, end = pipe.reader.mask_id, pipe.config.eos_id
        assert pipe.parses_special() == parse_special
        for asked, parses in ((None, parse_special), (True, True), (False, False)):
            (ids,) = pipe.read([text], parse_special=asked)
            assert (ids.count(mask), ids.count(end)) == (parses, parses + (shape == GENERATORS[0]))
            options = {} if asked is None else {"parse_special": asked}
            expected = pipe.generate_tokens(torch.tensor([ids]), max_new_tokens=5)
            (found,) = pipe.hypotheses([text], max_new_tokens=5, **options)
            assert [found[0].tokens] == expected
            assert (
                pipe.generate(text, max_new_tokens=5, **options) == pipe.writer.decode(expected)[0]
            )
            parts = pipe.stream(text, max_new_tokens=5, **options)
            assert "".join(parts) == pipe.writer.decode(expected)[0]
            limits = pipe.limit(text, **options).tokens, pipe.limit("a" * (len(ids) - 1)).tokens
            assert shape == "decoder" or limits[0] == limits[1]
        logits = pipe.logits(pipe.read(["<mask>"])[0] and "<mask>")
        assert (logits.shape[1] <= 2) == parse_special


def test_generation_config_may_parse_special_tokens() -> None:
    pipe = make_pipeline("decoder", train_tokenizer(TEXTS, HOLES))
    pipe.generation = pipe.generation.model_copy(update={"parse_special": True})
    (ids,) = pipe.read(["a <mask>"])
    assert ids.count(pipe.reader.mask_id) == 1
    assert pipe.read(["a <mask>"], parse_special=False)[0].count(pipe.reader.mask_id) == 0


def test_a_truncated_text_keeps_the_end_token_after_it() -> None:
    pipe = make_pipeline("encoder-decoder", train_tokenizer(TEXTS, HOLES))
    end = pipe.config.eos_id
    (ids,) = pipe.read(["a</s>dog dog dog"], 6, parse_special=True)
    assert len(ids) == 6 and ids[1] == ids[-1] == end


def test_states_of_a_stack_that_the_model_lacks_are_named() -> None:
    pipe = make_pipeline("encoder")
    with pytest.raises(KeyError, match="decoder: this model has no such stack; its states are"):
        pipe.hidden_states(torch.tensor([[5, 6]]))["decoder"]
