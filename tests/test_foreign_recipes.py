"""The recipe of a folder that comes from others: nothing that it names is opened or imported until a
command needs it, and a file of that name beside a model is no recipe.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from tests.command_line import run_command

import trifold
from trifold import folders
from trifold.nn import ModelConfig, Transformer
from trifold.pipeline import Pipeline
from trifold.text import TokenizerSettings, read_tokenizer, train_tokenizer

CAUSAL = {"kind": "causal"}
TEXT = {"train": "outside/text.txt", "valid": "outside/text.txt"}
# Recipes that name something outside the run, below its folder, and code.
OUTSIDE = {
    "data": {"task": CAUSAL, "data": TEXT},
    "start_from": {"task": CAUSAL, "data": TEXT, "start_from": "outside/model"},
    "tokenizer": {"task": CAUSAL, "data": TEXT, "tokenizer": {"file": "outside/model"}},
    "teacher": {
        "task": {"kind": "distill", "teacher": "outside/model", "of": CAUSAL},
        "data": TEXT,
    },
}
# What uses a run without the data of its recipe.
COMMANDS = (
    "predict run the --task embed",
    "predict run/model the --task embed",
    "generate run the --max-new-tokens 1",
    "look run the --json",
    "show run",
    "runs .",
    "eval run mine.txt",
    "compare run run/model mine.txt --samples 100",
    "resume run",
)
# What llm-compressor writes beside a model that it has quantized.
OF_ANOTHER_TOOL = "default_stage: {default_modifiers: {QuantizationModifier: {bits: 8}}}\n"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small model."""
    folder = tmp_path_factory.mktemp("sound") / "model"
    tokenizer = train_tokenizer(["the fox"], TokenizerSettings(kind="char", min_frequency=1))
    sizes = {"n_layers": 1, "d_model": 8, "n_heads": 1, "d_ff": 8, "max_positions": 16}
    parts = {"shape": "decoder", "vocab_size": tokenizer.vocab_size}
    Pipeline(Transformer(ModelConfig.parse(parts | sizes)), tokenizer).save(folder)
    return folder


@pytest.fixture
def here(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a run, a file of the user and a folder outside both."""
    shutil.copytree(sound, tmp_path / "run" / "model")
    shutil.copytree(sound, tmp_path / "outside" / "model")
    (tmp_path / "outside" / "text.txt").write_text("the secret fox\n" * 9, "utf-8")
    (tmp_path / "mine.txt").write_text("the fox\n" * 9, "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("named", OUTSIDE)
def test_nothing_that_the_recipe_of_a_run_names_is_opened(
    here: Path, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "run" / "recipe.yaml").write_text(yaml.safe_dump(OUTSIDE[named]), "utf-8")
    (here / "run" / "environment.json").write_text("{}", "utf-8")
    opened: list[str] = []
    open_descriptor = folders._open_descriptor

    def record(path: str, flags: int) -> int:
        opened.append(path)
        return open_descriptor(path, flags)

    monkeypatch.setattr(folders, "_open_descriptor", record)
    for command in COMMANDS[:-1]:
        done = run_command(*command.split())
        assert done.code == 0, (command, done.err)
        outside = [path for path in opened if "outside" in path]
        assert not outside, (command, outside)
        assert "secret" not in done.out + done.err and "for the size" not in done.err, command
    assert any("run" in path for path in opened)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_part_that_the_recipe_of_a_run_names_is_imported(here: Path, command: str) -> None:
    (here / "run" / "own.py").write_text("raise SystemExit('imported')", "utf-8")
    recipe = {"model": {"parts": ["run.own"]}, "data": {"train": "mine.txt"}}
    (here / "run" / "recipe.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    done = run_command(*command.split())
    assert "imported" not in done.err
    if command.split(maxsplit=1)[0] in ("predict", "eval", "compare", "resume"):
        assert "run/recipe.yaml: model.parts: run.own is not registered." in done.err
        assert done.code == 2


def test_a_recipe_beside_the_files_of_a_model_is_of_another_tool(here: Path) -> None:
    model = here / "outside" / "model"
    (model / "recipe.yaml").write_text(OF_ANOTHER_TOOL, "utf-8")
    name = "outside/model"
    assert trifold.load(name).config.shape == "decoder"
    for command in (
        f"predict {name} the --task embed",
        f"eval {name} mine.txt",
        f"compare {name} run/model mine.txt --samples 100",
        f"generate {name} the --max-new-tokens 1",
    ):
        assert run_command(*command.split()).code == 0, command
    done = run_command("runs", "outside")
    assert name not in done.out + done.err
    done = run_command("resume", name)
    assert (done.code, " ".join(done.err.split())) == (
        2,
        "error: outside/model: the folder of a model, not of a run; to train it further, set "
        "start_from=outside/model",
    )


@pytest.mark.parametrize("command", ["eval run mine.txt", "compare run run mine.txt --samples 100"])
@pytest.mark.parametrize("kind", ["masked", "pairs", "permutation"])
def test_a_recipe_whose_task_does_not_fit_the_model_is_refused(
    here: Path, kind: str, command: str
) -> None:
    recipe = {"task": {"kind": kind}, "data": {"train": "mine.txt", "documents": "line"}}
    (here / "run" / "recipe.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    done = run_command(*command.split())
    assert (done.code, " ".join(done.err.split())) == (
        2,
        f"error: run: this decoder (heads: lm) is no model for task.kind: {kind}; name a run of "
        "that task, or use `trifold predict`",
    )


@pytest.mark.parametrize("heads", [["sequence"], ["token"], []])
def test_a_decoder_without_a_language_model_head_is_not_measured_on_text(
    here: Path, heads: list[str]
) -> None:
    tokenizer = read_tokenizer(folders.named("run/model"))
    sizes = {"n_layers": 1, "d_model": 8, "n_heads": 1, "d_ff": 8, "max_positions": 16}
    parts = {"shape": "decoder", "vocab_size": tokenizer.vocab_size, "heads": heads, "n_labels": 2}
    Pipeline(Transformer(ModelConfig.parse(parts | sizes)), tokenizer).save(here / "classifier")
    done = run_command("eval", "classifier", "mine.txt")
    text = " ".join(done.err.split())
    assert done.code == 2
    assert text.endswith(
        f"error: classifier: this decoder (heads: {', '.join(heads) or 'none'}) is no model for "
        "task.kind: causal; name a run of that task, or use `trifold predict`"
    )
