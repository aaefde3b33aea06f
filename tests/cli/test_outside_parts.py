"""Parts from outside: a recipe file names them, a folder imports nothing."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from trifold.errors import SettingsError, TrifoldError
from trifold.nn import ModelConfig, load_part, parts, registry
from trifold.pipeline import load
from trifold.settings import Settings

EXAMPLE = Path(__file__).parents[2] / "examples" / "cosine_attention.py"


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """A function that forgets the parts of this test, as a new process has none of them."""
    inside = {place: list(each) for place, each in registry._variants.items()}

    def clear():
        monkeypatch.setattr(
            registry, "_variants", {place: list(each) for place, each in inside.items()}
        )
        monkeypatch.setattr(registry, "_loaded", {})
        sys.modules.pop("my_cosine", None)

    clear()
    return clear


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with the part, its recipe and a text."""
    shutil.copy(EXAMPLE, tmp_path / "my_cosine.py")
    (tmp_path / "text.txt").write_text("the dog runs and the cat sleeps\n" * 20, "utf-8")
    model = "parts: [my_cosine], attention: cosine, shape: decoder, norm_placement: pre, "
    model += "d_model: 16, n_layers: 1, n_heads: 2, d_ff: 32, max_positions: 32"
    rest = (
        "task: {kind: causal}\ndata: {train: text.txt, valid: text.txt}\n"
        "train: {steps: 2, warmup: 1, check_memory: false}\nbatch: {tokens: 256}\n"
    )
    (tmp_path / "mine.yaml").write_text(f"model: {{{model}}}\n{rest}", "utf-8")
    (tmp_path / "other.yaml").write_text(rest, "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_recipe_file_imports_its_parts_and_a_folder_imports_nothing(trifold, folder, forget):
    done = trifold("train", "mine.yaml", "--out", "run")
    assert done.code == 0, done.err
    assert 'trifold generate run "your text" --part my_cosine' in done.out
    named = ["--part", "my_cosine"]
    commands = (
        ("eval", "run", "text.txt"),
        ("generate", "run", "the dog", "--max-new-tokens", "3"),
        ("show", "run"),
        ("look", "run", "the dog", "--out", "page.html"),
        ("convert", "run", "copy"),
        ("train", "other.yaml", "start_from=run/model", "--out", "more"),
        ("resume", "run", "train.steps=3"),
    )
    for command in commands:
        forget()
        done = trifold(*command)
        assert done.code and "my_cosine" not in sys.modules, command
        assert "add --part my_cosine" in " ".join(done.err.split()), done.err
        forget()
        done = trifold(*command, *named)
        assert done.code == 0, (command, done.err)
    forget()
    with pytest.raises(TrifoldError, match="add --part my_cosine"):
        load("run")
    load_part("my_cosine")
    assert load("run").config.attention == "cosine"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module", "no_such_module: no such module; check the name"),
        ("my_cosine.Cosine", "my_cosine.Cosine: is no part; name a module with PARTS"),
        ("my_cosine.math", "my_cosine.math: is no part"),
        ("", "--part: name a module or a part"),
    ],
)
def test_a_name_that_is_no_part_is_an_error(trifold, folder, name, message):
    done = trifold("recipes", "--part", name)
    assert done.code == 2 and message in " ".join(done.err.split())


def test_a_class_of_a_part_is_a_name(folder):
    (part,) = load_part("my_cosine.CosinePart")
    config = ModelConfig(attention="cosine", parts=("my_cosine.CosinePart",))
    assert parts.part_of(parts.AttentionPart, config) is part
    assert load_part("my_cosine.CosinePart") == (part,)


class Temperature(Settings):
    start: float = 1.0


class WarmPart(parts.AttentionPart):
    value = "warm"
    settings = Temperature


def test_settings_of_a_part_are_checked():
    registry.register(WarmPart())
    config = ModelConfig.parse({"attention": "warm", "options": {"warm": {"start": 0.5}}})
    assert parts.part_of(parts.AttentionPart, config).options(config).start == 0.5
    for options, message in (
        (
            {"warm": {"begin": 0.5}},
            r"model\.options\.warm\.begin: unknown key; known keys: start",
        ),
        ({"cold": {}}, r"options\.cold: no part of that name takes settings"),
    ):
        with pytest.raises(SettingsError, match=message):
            ModelConfig.parse({"attention": "warm", "options": options})
