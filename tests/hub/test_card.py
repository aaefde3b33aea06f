"""Model cards: metadata that hubs read, licences of bases, and nothing of this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import trifold
from trifold.hub import save_model
from trifold.hub.card import Base, CardFile, ModelCard, code, describe_base, fenced, licence_of
from trifold.hub.convert import convert
from trifold.nn import Transformer
from trifold.yaml_dialect import load

Make = Callable[..., Transformer]


def metadata(text: str) -> dict[str, object]:
    """The values between the first two lines of dashes."""
    _, yaml, _ = text.split("---\n", 2)
    values = load(yaml)
    assert isinstance(values, dict)
    return values


def card_of(folder: Path) -> str:
    return (folder / "README.md").read_text("utf-8")


# --- what a card says -----------------------------------------------------------------------------


def test_metadata_names_library_task_base_and_licence() -> None:
    base = Base("org/base", "c0ffee", "apache-2.0")
    card = ModelCard("gpt2", "GPT2LMHeadModel", pipeline_tag="text-generation", base=base)
    assert metadata(card.render()) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "base_model": "org/base",
        "license": "apache-2.0",
        "tags": ["trifold", "gpt2"],
    }
    assert "from transformers import AutoTokenizer, GPT2LMHeadModel" in card.render()


@pytest.mark.parametrize(
    ("options", "library", "words"),
    [
        ({"family": "trifold"}, "trifold", "`transformers` has no class for this model"),
        ({"family": "bert", "makes_embeddings": True}, "sentence-transformers", "model.encode("),
        (
            {"family": "gpt2", "architecture": "GPT2LMHeadModel", "is_adapter": True},
            "peft",
            "PeftModel.from_pretrained",
        ),
    ],
)
def test_use_names_the_library_that_reads_the_folder(
    options: dict[str, object], library: str, words: str
) -> None:
    text = ModelCard(**options).render()  # type: ignore[arg-type]
    assert metadata(text)["library_name"] == library
    assert words in text


def test_a_local_base_is_named_without_its_folders_and_is_no_id_of_a_hub(tmp_path: Path) -> None:
    base = describe_base(str(tmp_path / "mine"), tmp_path / "mine")
    assert base == Base("mine", None, None)
    text = ModelCard("gpt2", base=base).render()
    assert "`mine`" in text and str(tmp_path) not in text
    assert "base_model" not in metadata(text)


def test_a_long_list_of_files_is_cut_and_counted() -> None:
    files = [CardFile("data.train", f"part-{n}", n, "0" * 64) for n in range(53)]
    text = ModelCard("gpt2", data=files).render()
    assert "`part-49`" in text and "`part-50`" not in text and "3 more files" in text


def test_foreign_text_does_not_leave_its_cell_or_its_block() -> None:
    assert code("a|b`c\nd\u202e") == "`a\\|b'c d\\u202e`"
    assert fenced("```\nx\n```", "text").startswith("````text\n")


# --- licences of bases ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "licence"),
    [
        ("---\nlicense: apache-2.0\n---\n# A", "apache-2.0"),
        ("---\r\nlicense: mit\r\n---\r\n# A", "mit"),
        ("# A\n---\nlicense: mit\n---\n", None),
        ("---\nlicense: [mit]\n---\n", None),
        ("---\nlicense: 'a b; rm'\n---\n", None),
        ("---\nlicense: !!python/object:os.system x\n---\n", None),
        ("---\n: : :\n---\n", None),
        ("---\n" + "a: &a [*a]\n" * 5_000 + "---\n", None),
        ("", None),
    ],
)
def test_the_licence_is_that_of_the_metadata(tmp_path: Path, text: str, licence: str) -> None:
    (tmp_path / "README.md").write_text(text, "utf-8", newline="")
    assert licence_of(tmp_path) == licence


def test_a_card_that_is_no_text_has_no_licence(tmp_path: Path) -> None:
    assert licence_of(tmp_path) is None
    (tmp_path / "README.md").write_bytes(b"\xff\xfe")
    assert licence_of(tmp_path) is None


def test_a_card_outside_the_folder_is_not_copied(
    make_model: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "secret.md").write_text("---\nlicense: mit\n---\n# Secret\n", "utf-8")
    old = tmp_path / "old"
    save_model(old, make_model())
    (old / "README.md").symlink_to(tmp_path / "secret.md")
    assert licence_of(old) is None
    convert(old, tmp_path / "new")
    warning = " ".join(capsys.readouterr().err.split())
    assert warning.count("README.md: ") == 1
    assert "the card is not used, and the licence counts as unknown" in warning
    assert "Secret" not in card_of(tmp_path / "new")


# --- saved and converted models -------------------------------------------------------------------


def test_converted_and_saved_models_keep_the_card_or_get_one(
    make_model: Make, tmp_path: Path
) -> None:
    old = tmp_path / "old"
    save_model(old, make_model())
    convert(old, tmp_path / "new")
    assert "`old`" in card_of(tmp_path / "new")
    trifold.load(old).save(tmp_path / "saved")
    assert card_of(tmp_path / "saved") == card_of(tmp_path / "new")

    (old / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n", "utf-8")
    convert(old, tmp_path / "kept")
    trifold.load(old).save(tmp_path / "again")
    assert card_of(tmp_path / "kept") == card_of(tmp_path / "again") == card_of(old)


def test_a_new_card_describes_the_files_beside_it(make_model: Make, tmp_path: Path) -> None:
    save_model(tmp_path / "old", make_model())
    convert(tmp_path / "old", tmp_path / "new")
    config = json.loads((tmp_path / "new" / "config.json").read_text("utf-8"))
    text = card_of(tmp_path / "new")
    assert config["model_type"] in text and config["architectures"][0] in text
