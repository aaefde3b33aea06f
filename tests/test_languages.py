"""Multilingual translation, from text to text, with tokenizers and models as published, equals the
reference.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.command_line import run_command
from tests.hub.parity import randomised
from tests.text.folders import OLD

import trifold
from trifold.errors import SettingsError, UsageError

transformers = pytest.importorskip("transformers")
pytest.importorskip("sentencepiece")
transformers.logging.set_verbosity_error()
pytestmark = pytest.mark.filterwarnings("default")

TEXTS = ["the quick brown fox", "école hello world playing played"]
# Tokenizer -> stem of the model's classes, and pairs of languages.
MODELS = {
    "nllb": ("M2M100", [("eng_Latn", "fra_Latn"), ("fra_Latn", "zho_Hans")]),
    "nllb legacy": ("M2M100", [("eng_Latn", "fra_Latn")]),
    "m2m": ("M2M100", [("en", "fr"), ("de", "ast")]),
    "mbart-50": ("MBart", [("en_XX", "de_DE"), ("gl_ES", "fr_XX")]),
    "mbart": ("MBart", [("en_XX", "ro_RO"), ("de_DE", "ro_RO")]),
}
Saved = Callable[[str], tuple[Path, Any, Any]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """The folder of a tokenizer and a tiny model that fits it; the reference's tokenizer and model."""
    found: dict[str, tuple[Path, Any, Any]] = {}

    def make(name: str) -> tuple[Path, Any, Any]:
        if name not in found:
            folder = OLD[name](tmp_path_factory.mktemp("languages") / "model")
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            stem, pairs = MODELS[name]
            start = tokenizer.convert_tokens_to_ids(pairs[0][1]) if name == "mbart" else 2
            config = getattr(transformers, f"{stem}Config")(
                vocab_size=len(tokenizer), d_model=16, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
                decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=64,
                decoder_start_token_id=start, forced_eos_token_id=None, forced_bos_token_id=None,
            )  # fmt: skip
            torch.manual_seed(0)
            model = randomised(getattr(transformers, f"{stem}ForConditionalGeneration")(config))
            with torch.no_grad():
                model.model.shared.weight.mul_(2)
            model.save_pretrained(folder)
            found[name] = folder, tokenizer, model
        return found[name]

    return make


CASES = [(name, *pair) for name, (_, pairs) in MODELS.items() for pair in pairs]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "source", "target"), CASES)
def test_a_translation_equals_the_reference(
    name: str, source: str, target: str, saved: Saved
) -> None:
    folder, tokenizer, model = saved(name)
    pipe = trifold.load(folder)
    tokenizer.src_lang = source
    theirs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    rows = [
        row[real] for row, real in zip(theirs.input_ids, theirs.attention_mask.bool(), strict=True)
    ]
    assert pipe.read(TEXTS, language=source) == [row.tolist() for row in rows]
    code = f"__{target}__" if name == "m2m" else target
    first = (
        {} if name == "mbart" else {"forced_bos_token_id": tokenizer.convert_tokens_to_ids(code)}
    )
    for options in ({}, {"num_beams": 3}):
        options = {"max_new_tokens": 8, **options}
        expected = model.generate(**theirs, do_sample=False, **first, **options)
        got = pipe.generate(
            TEXTS, source_language=source, target_language=target, bad_words_ids=[], **options
        )
        assert got == tokenizer.batch_decode(expected, skip_special_tokens=True)
        assert any(got)


@pytest.mark.slow
def test_the_command_line_translates(saved: Saved) -> None:
    folder, *_ = saved("nllb")
    options = ("--target-language", "fra_Latn", "--max-new-tokens", "6")
    done = run_command("generate", str(folder), TEXTS[0], *options, "--source-language", "zho_Hans")
    expected = trifold.load(folder).generate(
        TEXTS[0], source_language="zho_Hans", target_language="fra_Latn", max_new_tokens=6
    )
    assert (done.code, done.out) == (0, expected + "\n")
    assert not done.err or done.err.startswith("warning: the output ended in repeated words")
    assert run_command("generate", str(folder), TEXTS[0], *options).out != done.out  # from English
    streamed = run_command("generate", str(folder), TEXTS[0], *options, "--stream")
    assert streamed.out == run_command("generate", str(folder), TEXTS[0], *options).out


def test_unknown_languages_are_errors(saved: Saved, tmp_path: Path) -> None:
    folder, *_ = saved("nllb")
    pipe = trifold.load(folder)
    for key in ("source_language", "target_language"):
        with pytest.raises(
            UsageError, match=f"{key}: 'fr_Latn' is not a language .*; did you mean 'fra_Latn'"
        ):
            pipe.generate(TEXTS[0], **{key: "fr_Latn"})
    done = run_command("generate", str(folder), TEXTS[0], "--target-language", "klingon")
    assert done.code == 2
    assert (
        "target_language: 'klingon' is not a language of this tokenizer; did you mean" in done.err
    )
    with pytest.raises(
        SettingsError, match="target_language fra_Latn and forced_bos_token_id 3 contradict"
    ):
        pipe.generate(TEXTS[0], target_language="fra_Latn", forced_bos_token_id=3)
    one = trifold.load(saved("mbart")[0])
    with pytest.raises(UsageError, match="this model writes ro_RO only"):
        one.generate(TEXTS[0], target_language="de_DE")


def test_languages_of_a_folder(saved: Saved, tmp_path: Path) -> None:
    """Saved settings are defaults, which arguments override; a stored first token is replaced."""
    folder, tokenizer, _ = saved("nllb")
    pipe = trifold.load(folder)
    assert list(pipe.reader.languages) == ["ace_Arab", "eng_Latn", "fra_Latn", "zho_Hans"]
    expected = pipe.generate(TEXTS[0], target_language="fra_Latn", max_new_tokens=6)
    other = pipe.generate(TEXTS[0], target_language="zho_Hans", max_new_tokens=6)
    forced = tokenizer.convert_tokens_to_ids("zho_Hans")
    for stored in ({"target_language": "fra_Latn"}, {"forced_bos_token_id": forced}):
        pipe.generation = pipe.generation.model_validate(stored)
        pipe.save(tmp_path / "again", overwrite=True)
        again = trifold.load(tmp_path / "again")
        assert again.reader.languages == pipe.reader.languages
        assert again.generate(TEXTS[0], max_new_tokens=6) == (
            expected if "target_language" in stored else other
        )
        assert again.generate(TEXTS[0], target_language="fra_Latn", max_new_tokens=6) == expected
    keys = json.loads((tmp_path / "again" / "config.json").read_text(encoding="utf-8"))
    assert keys["model_type"] == "m2m_100"


def test_long_sources_keep_what_follows_the_text(saved: Saved) -> None:
    pipe = trifold.load(saved("mbart")[0])
    whole = pipe.read(["the quick brown fox"])[0]
    assert whole[-2:] == [2, pipe.reader.languages["en_XX"]]
    assert pipe.read(["the quick brown fox"], 5)[0] == [*whole[:3], *whole[-2:]]
