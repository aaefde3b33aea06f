"""Folders of sentence-transformers load and save with equal vectors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.command_line import run_command
from tests.predict.references import TEXTS, both

import trifold
from trifold.errors import CheckpointError, DataError, UsageError
from trifold.hub.convert import convert
from trifold.hub.sentence_transformers import SentenceModules, read_modules, write_modules

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
LONG = "the quick brown fox played " * 8
MODES = {"mean": "mean", "cls": "cls", "max": "max", "lasttoken": "last"}


def theirs(folder: Path, family: str, mode: str, *, normalize: bool, limit: int | None = None) -> Path:
    """A folder that sentence-transformers wrote."""
    library = pytest.importorskip("sentence_transformers")
    modules = library.sentence_transformer.modules
    source = both(folder / "source", family, "Model").folder
    steps = [modules.Transformer(str(source), max_seq_length=limit), modules.Pooling(32, mode)]
    steps += [modules.Normalize()] if normalize else []
    library.SentenceTransformer(modules=steps, device="cpu").save(str(folder / "theirs"))
    return folder / "theirs"


def encode(folder: Path) -> torch.Tensor:
    library = pytest.importorskip("sentence_transformers")
    model = library.SentenceTransformer(str(folder), device="cpu")
    return model.encode([*TEXTS, LONG], convert_to_tensor=True)


def assert_equal(ours, expected):
    torch.testing.assert_close(torch.stack(list(ours)), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "mode", "normalize"),
    [
        ("bert", "mean", True),
        ("distilbert", "cls", False),
        ("roberta", "max", True),
        ("albert", "lasttoken", False),
    ],
)
def test_a_folder_of_sentence_transformers_loads_saves_and_converts_with_equal_vectors(
    family, mode, normalize, tmp_path
):
    folder = theirs(tmp_path, family, mode, normalize=normalize, limit=20)
    expected = encode(folder)
    pipeline = trifold.load(folder)
    assert pipeline.modules == SentenceModules(MODES[mode], normalize, 20)
    assert_equal(pipeline.embed([*TEXTS, LONG]), expected)
    pipeline.save(tmp_path / "saved")
    convert(folder, tmp_path / "converted")
    for copy in (tmp_path / "saved", tmp_path / "converted"):
        assert read_modules(copy) == pipeline.modules
        assert_equal(trifold.load(copy).embed([*TEXTS, LONG]), expected)
        torch.testing.assert_close(encode(copy), expected, rtol=0, atol=1e-5)


def test_options_override_the_folder_and_a_truncated_text_is_reported(tmp_path, capsys):
    folder = both(tmp_path, "bert", "Model").folder
    plain = trifold.load(folder).embed(TEXTS, pooling="cls")
    write_modules(folder, SentenceModules("max", True, 12), width=32, positions=66)
    pipeline = trifold.load(folder)
    for got, expected in zip(
        pipeline.embed(TEXTS, pooling="cls", normalise=False, max_tokens=66), plain, strict=True
    ):
        assert torch.equal(got, expected)
    capsys.readouterr()
    vector = pipeline.embed(LONG)
    assert "texts were cut to fit" in capsys.readouterr().err
    with pytest.raises(DataError, match="but the model reads at most 12"):
        pipeline.embed(LONG, on_overflow="error")
    result = run_command("predict", str(folder), LONG, "--task", "embed")
    assert result.code == 0 and "texts were cut to fit" in result.err
    assert [float(x) for x in result.out.split()] == pytest.approx(vector.tolist(), rel=1e-4)
    shorter = run_command("predict", str(folder), "fox", "--pooling", "cls", "--no-normalise", "--json")
    assert (
        json.loads(shorter.out)["outputs"] == pipeline.embed("fox", pooling="cls", normalise=False).tolist()
    )


def steps(*types: str) -> str:
    paths = ["", "1_Pooling", "2_Normalize", "3_Dense"]
    return json.dumps([{"idx": 0, "path": p, "type": t} for p, t in zip(paths, types, strict=False)])


BASIC = steps("sentence_transformers.models.Transformer", "sentence_transformers.models.Pooling")
DENSE = steps("a.Transformer", "a.Pooling", "a.Dense")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"modules.json": DENSE}, "modules.json: Transformer, Pooling, Dense is not supported"),
        ({"modules.json": "[1]"}, "modules.json:  is not supported"),
        ({"modules.json": steps("os.system", "a.Pooling")}, "modules.json: system, Pooling is"),
        (
            {"1_Pooling/config.json": '{"pooling_mode": "weightedmean"}'},
            "config.json: pooling 'weightedmean' is",
        ),
        (
            {"1_Pooling/config.json": '{"pooling_mode_cls_token": true, "pooling_mode_max_tokens": true}'},
            r"config.json: pooling \['cls_token', 'max_tokens'\] is",
        ),
        ({"1_Pooling/config.json": '{"pooling_mode": ["mean", "max"]}'}, r"pooling \['mean', 'max'\] is"),
        ({"sentence_bert_config.json": '{"do_lower_case": true}'}, "do_lower_case True is"),
        ({"config_sentence_transformers.json": '{"default_prompt_name": "query"}'}, "prompt_name 'query' is"),
    ],
)
def test_unsupported_modules_are_an_error_of_embed_only(files, message, tmp_path):
    folder = both(tmp_path / "model", "bert", "Model").folder
    (folder / "1_Pooling").mkdir()
    for name, content in {"modules.json": BASIC, **files}.items():
        (folder / name).write_text(content)
    pipeline = trifold.load(folder)
    with pytest.raises(UsageError, match=f'{message}.*; pooling="mean" pools the states'):
        pipeline.embed("fox")
    assert torch.equal(
        pipeline.embed("fox", pooling="mean"), pipeline.hidden_states("fox")["encoder"][-1][0].mean(0)
    )
    with pytest.raises(CheckpointError, match=message):
        convert(folder, tmp_path / "converted")
    assert not (tmp_path / "converted").exists()


@pytest.mark.parametrize("content", ["[", '{"a": 1}}', "[],[", '[{"path": "", "path": ""}]'])
def test_an_invalid_list_of_modules_is_an_error(content, tmp_path):
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"modules\.json"):
        read_modules(tmp_path)
