"""Initial weights: those of `start_from`, also with new tokens and new heads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.runs import RecordingView

from trifold import load
from trifold.errors import CheckpointError, SettingsError
from trifold.hub import read_config
from trifold.nn import ModelConfig, Transformer
from trifold.pipeline import Pipeline
from trifold.text import TokenizerSettings, train_tokenizer
from trifold.train import train
from trifold.train.initial_weights import start_from

SMALL = {
    "vocab_size": 40,
    "d_model": 16,
    "n_heads": 2,
    "d_ff": 32,
    "n_layers": 2,
    "max_positions": 32,
}


def save_small_model(folder: Path, **values: object) -> Transformer:
    model = Transformer(ModelConfig.parse(SMALL | values)).eval()
    Pipeline(model).save(folder)
    return model


@pytest.mark.slow
def test_start_from_copies_all_weights(tmp_path: Path) -> None:
    saved = save_small_model(tmp_path)
    torch.manual_seed(9)
    model = Transformer(ModelConfig.parse(SMALL))
    start_from(str(tmp_path), model)
    for (name, ours), theirs in zip(model.named_parameters(), saved.parameters(), strict=True):
        assert torch.equal(ours, theirs), name


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("unused", [0, 1, 5])
def test_rows_of_added_tokens_begin_as_the_mean_of_the_others(
    tmp_path: Path, tied: bool, unused: int
) -> None:
    saved = save_small_model(
        tmp_path, shape="decoder", vocab_size=20 + unused, tie_lm_head=tied, lm_head_bias=True
    )
    torch.nn.init.normal_(saved.lm_head.bias)
    Pipeline(saved).save(tmp_path, overwrite=True)
    model = Transformer(saved.config.model_copy(update={"vocab_size": max(22, 20 + unused)}))
    start_from(str(tmp_path), model, range(20, 22))
    for name, theirs in saved.named_parameters():
        ours = model.get_parameter(name)
        if not name.endswith(("tokens.weight", "lm_head.weight", "lm_head.bias")):
            assert torch.equal(ours, theirs), name
            continue
        assert torch.equal(ours[:20], theirs[:20]) and torch.equal(ours[22:], theirs[22:]), name
        torch.testing.assert_close(ours[20:22], theirs[:20].mean(0).expand_as(ours[20:22]))


@pytest.mark.slow
def test_added_tokens_are_single_and_in_the_saved_model(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\na warm film,good\na dull film,bad\n", "utf-8")
    changes = {"data.train": str(tmp_path / "a.csv"), "data.valid": str(tmp_path / "a.csv")}
    changes |= {"train.steps": 2, "train.warmup": 0, "train.device": "cpu", "train.workers": 2}
    train("classify", out=tmp_path / "base", **changes | {"model.d_model": 8, "model.n_layers": 1})
    (tmp_path / "tokens").write_text("romcom\n\nfilm noir\n", "utf-8")
    base = load(tmp_path / "base")
    for number, add in enumerate((["romcom", "film noir"], str(tmp_path / "tokens"))):
        view, run = RecordingView(), tmp_path / str(number)
        given = {"start_from": str(tmp_path / "base"), "tokenizer.add": add}
        train("classify", out=run, view=view, **changes | given)
        assert (
            "tokenizer.add: 2 new tokens; their rows begin as the mean of the others" in view.lines
        )
        ours = load(run)
        size = base.reader.vocab_size
        assert ours.config.vocab_size == ours.reader.vocab_size == size + 2
        assert ours.reader.encode(["romcom film noir"])[0][-1] == size + 1
        assert size in ours.reader.encode(["a romcom"])[0]
        assert ours.reader.encode(["a warm film"]) == base.reader.encode(["a warm film"])
    assert train(run, resume="auto", **{"train.steps": 3}).finished


def test_start_from_keeps_the_initialization_of_missing_heads(tmp_path: Path) -> None:
    saved = save_small_model(tmp_path, shape="encoder")
    values = {"shape": "encoder", "heads": ["sequence"], "n_labels": 3}
    model = Transformer(ModelConfig.parse(SMALL | values))
    heads = {name: p.clone() for name, p in model.named_parameters() if name.startswith("heads.")}
    assert heads
    line, _ = start_from(str(tmp_path), model)
    found = dict(model.named_parameters())
    assert re.search(
        r"weights copied, 2 new \(heads\.sequence\.out_proj\.bias, .*\), \d not used", line
    )
    assert all(torch.equal(found[name], p) for name, p in heads.items())
    assert all(torch.equal(found[name], p) for name, p in saved.named_parameters() if name in found)


def test_start_from_copies_the_pooler_beside_a_language_model_head(tmp_path: Path) -> None:
    """As in bert-base-uncased, whose architecture has no pooler, but whose file has its weights."""
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    theirs = transformers.BertForPreTraining(transformers.BertConfig(num_hidden_layers=2, **sizes))
    theirs.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(file.read_text().replace("BertForPreTraining", "BertForMaskedLM"))
    unused = {"lm_head_transform": None, "lm_head_bias": False}
    heads = {"heads": ("pooler", "sequence"), "classifier_input": "pooler"}
    model = Transformer(read_config(tmp_path).model_copy(update=heads | unused))
    line, _ = start_from(str(tmp_path), model)
    assert torch.equal(model.heads["pooler"].dense.weight, theirs.bert.pooler.dense.weight), line
    assert "2 new (heads.sequence.out_proj.bias" in line


def test_start_from_another_architecture_is_rejected_and_changes_nothing(tmp_path: Path) -> None:
    save_small_model(tmp_path)
    model = Transformer(ModelConfig.parse(SMALL | {"d_ff": 48, "n_layers": 3}))
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(SettingsError, match="start_from: ") as error:
        start_from(str(tmp_path), model)
    assert "feed_forward" in str(error.value) and "more" in str(error.value)
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    with pytest.raises(CheckpointError):
        start_from(str(tmp_path / "nothing"), model)
    assert load(tmp_path).config.d_ff == 32


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs of two steps of a causal, a masked and a translation model, and texts."""
    folder = tmp_path_factory.mktemp("start")
    lines = [f"the film number {number} was warm and funny" for number in range(30)]
    (folder / "a.txt").write_text("\n".join(lines), "utf-8")
    (folder / "b.txt").write_text("\n".join(f"{line} again" for line in lines), "utf-8")
    for recipe in ("causal", "masked", "translate"):
        train(recipe, out=folder / recipe, view=RecordingView(), **settings_of(folder, recipe))
    return folder


def settings_of(folder: Path, recipe: str, data: str = "a.txt") -> dict[str, Any]:
    """The settings of a run of two steps, with a model of one small layer."""
    source = str(folder / data)
    if recipe == "translate":
        source = f"{source},{source}"
    sizes = {"model.d_model": 8, "model.n_layers": 1, "train.workers": 1, "train.samples": 0}
    return {"data.train": source, "train.steps": 2, "train.device": "cpu"} | sizes


def continued(folder: Path, recipe: str, **changes: Any) -> tuple[Path, list[str]]:
    """The folder and the report of a run that starts from the one in the folder, on new text."""
    given = settings_of(folder, recipe, "b.txt")
    given = {key: value for key, value in given.items() if not key.startswith("model.")}
    view = RecordingView()
    out = folder / f"{recipe}-{len([*folder.iterdir()])}"
    train(recipe, out=out, view=view, **{"start_from": str(folder / recipe)} | given | changes)
    return out, view.lines


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["causal", "masked", "translate"])
def test_a_run_continues_on_new_text_without_model_and_tokenizer(start: Path, recipe: str) -> None:
    out, lines = continued(start, recipe)
    assert any(
        re.search(r"start_from: \d+ weights copied, 0 new, 0 not used", line) for line in lines
    )
    ours, theirs = load(out).reader, load(start / recipe).reader
    assert ours.library.get_vocab() == theirs.library.get_vocab()


def test_the_tokenizer_of_a_run_is_named_by_its_folder(start: Path) -> None:
    out, _ = continued(start, "causal", **{"tokenizer.file": str(start / "causal")})
    again = load(out).reader.library.get_vocab()
    assert again == load(start / "causal").reader.library.get_vocab()


def test_adapters_of_a_gpt_are_in_the_layers_that_peft_can_adapt(start: Path) -> None:
    out, lines = continued(start, "causal", **{"train.lora": {"rank": 2}})
    assert any("train.lora: adapters of o_proj, in_proj, out_proj" in line for line in lines)
    again, lines = continued(start, "causal", start_from=str(out / "adapter"))
    assert any("weights copied, 0 new" in line for line in lines)
    assert load(again).config.n_layers == 1


# What a recipe sets beside start_from -> the error.
LEAVE_OUT = "leave out model and tokenizer, because start_from has both"
NOT_FITTING = {
    "model.n_layers=2": f"model.n_layers: 2, but the model of start_from (RUN) has 1; {LEAVE_OUT}",
    "model.preset=gpt2": f"model.preset: gpt2 has d_model 768, but the model of start_from (RUN) has 8; {LEAVE_OUT}",
    "tokenizer.kind=char": "tokenizer.kind: has no effect, because start_from has a tokenizer; leave it out",
    "tokenizer.vocab_size=99": "tokenizer.vocab_size: has no effect, because start_from has a tokenizer; leave it out",
    "task.kind=masked": "RUN is of shape decoder, but this task trains shape encoder; train it as `causal`, or start from another model",
    "model.max_positions=128": f"(64x8 there, 128x8 here); {LEAVE_OUT}",
    "tokenizer.file=OTHER": f"8 here); {LEAVE_OUT}",
    "model.shape=decoder": f"RUN has another tokenizer than the one that was trained now; {LEAVE_OUT}, or set tokenizer.file=RUN",
}  # fmt: skip


@pytest.mark.parametrize("change", NOT_FITTING)
def test_settings_that_start_from_has_are_to_be_left_out(start: Path, change: str) -> None:
    key, _, value = change.partition("=")
    changes: dict[str, Any] = {key: value if not value.isdigit() else int(value)}
    if value == "OTHER":
        other = ["x y z", "z y x"]
        (start / "other").mkdir()
        train_tokenizer(other, TokenizerSettings(vocab_size=20)).save(start / "other")
        changes[key] = str(start / "other")
    if key == "model.shape":
        own = load(start / "causal").config.model_dump()
        changes = {"model": own, "data.holdout": 0.1, "train.warmup": 0}
    with pytest.raises(SettingsError) as error:
        continued(start, "causal", **changes)
    assert NOT_FITTING[change].replace("RUN", str(start / "causal")) in error.value.message
