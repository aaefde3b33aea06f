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
NO_PROMPTS = (("document", ""), ("query", ""))  # as the library writes them
MODES = {"mean": "mean", "cls": "cls", "max": "max", "lasttoken": "last"}


def theirs(
    folder: Path, family: str, mode: str, *, normalize: bool, limit: int | None = None
) -> Path:
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
        ("xlm-roberta", "mean", True),  # multilingual E5
        ("modernbert", "cls", True),  # GTE
        ("mpnet", "mean", True),
        ("deberta-v2", "mean", False),
    ],
)
def test_a_folder_of_sentence_transformers_loads_saves_and_converts_with_equal_vectors(
    family, mode, normalize, tmp_path
):
    folder = theirs(tmp_path, family, mode, normalize=normalize, limit=20)
    expected = encode(folder)
    pipeline = trifold.load(folder)
    assert pipeline.modules == SentenceModules(
        MODES[mode], normalize, 20, prompts=NO_PROMPTS, similarity="cosine"
    )
    assert_equal(pipeline.embed([*TEXTS, LONG]), expected)
    pipeline.save(tmp_path / "saved")
    convert(folder, tmp_path / "converted")
    for copy in (tmp_path / "saved", tmp_path / "converted"):
        assert read_modules(copy) == pipeline.modules
        assert_equal(trifold.load(copy).embed([*TEXTS, LONG]), expected)
        torch.testing.assert_close(encode(copy), expected, rtol=0, atol=1e-5)


def test_a_head_that_config_json_names_and_the_weights_lack_is_left_out(tmp_path):
    """As in all-mpnet-base-v2."""
    folder = theirs(tmp_path, "mpnet", "mean", normalize=True)
    expected = trifold.load(folder).embed(TEXTS)
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["MPNetForMaskedLM"]
    (folder / "config.json").write_text(json.dumps(config))
    for got, vector in zip(trifold.load(folder).embed(TEXTS), expected, strict=True):
        assert torch.equal(got, vector)
    (folder / "modules.json").unlink()
    with pytest.raises(CheckpointError, match="missing: lm_head"):
        trifold.load(folder)


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
    assert "text cut to fit" in capsys.readouterr().err
    with pytest.raises(DataError, match="but the model reads at most 12"):
        pipeline.embed(LONG, on_overflow="error")
    result = run_command("predict", str(folder), LONG, "--task", "embed")
    assert result.code == 0 and "text cut to fit" in result.err
    assert [float(x) for x in result.out.split()] == pytest.approx(vector.tolist(), rel=1e-4)
    shorter = run_command(
        "predict", str(folder), "fox", "--pooling", "cls", "--no-normalise", "--json"
    )
    assert (
        json.loads(shorter.out)["outputs"]
        == pipeline.embed("fox", pooling="cls", normalise=False).tolist()
    )


def steps(*types: str) -> str:
    paths = ["", "1_Pooling", "2_Normalize", "3_Dense"]
    return json.dumps(
        [{"idx": 0, "path": p, "type": t} for p, t in zip(paths, types, strict=False)]
    )


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
            {
                "1_Pooling/config.json": '{"pooling_mode_cls_token": true, "pooling_mode_max_tokens": true}'
            },
            r"config.json: pooling \['cls_token', 'max_tokens'\] is",
        ),
        (
            {"1_Pooling/config.json": '{"pooling_mode": ["mean", "max"]}'},
            r"pooling \['mean', 'max'\] is",
        ),
        (
            {"sentence_bert_config.json": '{"do_lower_case": true}', "tokenizer_config.json": "{}"},
            "do_lower_case True is",
        ),
        (
            {"config_sentence_transformers.json": '{"default_prompt_name": "query"}'},
            "prompt_name 'query' is",
        ),
        (
            {"config_sentence_transformers.json": '{"default_prompt_name": []}'},
            r"prompt_name \[\] is",
        ),
        (
            {"config_sentence_transformers.json": '{"prompts": ["query: "]}'},
            r"prompts \['query: '\] is",
        ),
        (
            {"1_Pooling/config.json": '{"pooling_mode": "mean", "include_prompt": false}'},
            "prompt False is",
        ),
        (
            {"sentence_roberta_config.json": '{"processing_kwargs": {"text": {"max_length": 6}}}'},
            "sentence_roberta_config.json: processing_kwargs {'text': {'max_length': 6}} is",
        ),
        (
            {
                "sentence_bert_config.json": '{"unpad_inputs": true, "modality_config": {"message": {}}}'
            },
            "modality_config {'message': {}} is",
        ),
        (
            {
                "modules.json": steps("a.Transformer", "a.Pooling", "a.Normalize"),
                "2_Normalize/config.json": '{"module_input_name": "token_embeddings"}',
            },
            "2_Normalize/config.json: module_input_name 'token_embeddings' is",
        ),
    ],
)
def test_unsupported_modules_are_an_error_of_embed_only(files, message, tmp_path):
    folder = both(tmp_path / "model", "bert", "Model").folder
    for name, content in {"modules.json": BASIC, "1_Pooling/config.json": "{}", **files}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    pipeline = trifold.load(folder)
    with pytest.raises(UsageError, match=f'{message}.*; pooling="mean" pools the states'):
        pipeline.embed("fox")
    torch.testing.assert_close(
        pipeline.embed("fox", pooling="mean"),
        pipeline.hidden_states("fox")["encoder"][-1][0].mean(0),
    )
    with pytest.raises(CheckpointError, match=message):
        convert(folder, tmp_path / "converted")
    assert not (tmp_path / "converted").exists()


@pytest.mark.parametrize("content", ["[", '{"a": 1}}', "[],[", '[{"path": "", "path": ""}]'])
def test_an_invalid_list_of_modules_is_an_error(content, tmp_path):
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"modules\.json"):
        read_modules(tmp_path)


def test_a_long_prompt_is_an_error(tmp_path):
    (tmp_path / "modules.json").write_text(BASIC)
    prompts = {"prompts": {"query": "long " * 2**20}, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    with pytest.raises(CheckpointError, match=r"prompts\.query: 5,242,880 characters; at most 16,"):
        read_modules(tmp_path)


PUBLISHED = {
    "e5": ("bert", {"mean_tokens": True}, {}),
    "bge": ("bert", {"cls_token": True, "mean_tokens": False}, {"do_lower_case": True}),
    "multilingual-e5": ("xlm-roberta", {"mean_tokens": True}, {}),
    "gte-modernbert": ("modernbert", {"cls_token": True}, {}),
}


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("prompted", [False, True])
def test_folders_as_published(name, prompted, tmp_path, capsys):
    """Of E5, BGE and GTE: modules.json, 1_Pooling and 2_Normalize as on the hub, with and without
    prompts.
    """
    family, modes, limits = PUBLISHED[name]
    folder = both(tmp_path / "model", family, "Model").folder
    kinds = ("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    pooling = {"word_embedding_dimension": 32} | {
        f"pooling_mode_{key}": value for key, value in modes.items()
    }
    prompts = {"prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": None}
    files = {
        "modules.json": listed,
        "1_Pooling/config.json": pooling,
        "sentence_bert_config.json": {"max_seq_length": 24, "do_lower_case": False} | limits,
        **({"config_sentence_transformers.json": prompts} if prompted else {}),
    }
    (folder / "1_Pooling").mkdir()
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content))
    pipeline = trifold.load(folder)
    texts = [*TEXTS, LONG]
    capsys.readouterr()
    vectors = pipeline.embed(texts)
    assert (
        "has prompts, and none is used; name one with prompt_name: passage, query"
        in capsys.readouterr().err
    ) == prompted
    assert_equal(vectors, encode(folder))
    queries = [f"query: {text}" for text in texts]
    assert_equal(
        pipeline.embed(texts, prompt="query: "), torch.stack(pipeline.embed(queries, prompt=""))
    )
    if not prompted:
        return
    library = pytest.importorskip("sentence_transformers").SentenceTransformer(
        str(folder), device="cpu"
    )
    expected = library.encode(texts, prompt_name="query", convert_to_tensor=True)
    assert_equal(pipeline.embed(texts, prompt_name="query"), expected)
    with pytest.raises(
        UsageError, match="prompt_name: 'qeury' is not known; the folder has passage, query"
    ):
        pipeline.embed("fox", prompt_name="qeury")
    cosines = library.similarity(
        library.encode("fox", prompt_name="query", convert_to_tensor=True),
        library.encode(TEXTS, prompt_name="passage", convert_to_tensor=True),
    )[0]
    found = pipeline.search("fox", TEXTS, top_k=len(TEXTS))
    assert {one.number - 1: one.score for one in found} == pytest.approx(
        dict(enumerate(cosines.tolist())), abs=1e-5
    )
    pipeline.save(tmp_path / "saved")
    convert(folder, tmp_path / "converted")
    for copy in (tmp_path / "saved", tmp_path / "converted"):
        assert read_modules(copy) == pipeline.modules
        assert json.loads((copy / "config_sentence_transformers.json").read_text()) == prompts


def test_a_default_prompt_is_used(tmp_path, capsys):
    folder = both(tmp_path, "bert", "Model").folder
    modules = SentenceModules("mean", True, 24, None, (("query", "query: "),), "query")
    write_modules(folder, modules, width=32, positions=66)
    pipeline = trifold.load(folder)
    assert pipeline.modules == modules
    capsys.readouterr()
    assert_equal(pipeline.embed(TEXTS), encode(folder)[:-1])
    assert_equal(pipeline.embed(TEXTS), torch.stack(pipeline.embed(TEXTS, prompt="query: ")))
    assert "has prompts" not in capsys.readouterr().err


def test_a_prompt_may_be_empty(tmp_path, capsys):
    folder = both(tmp_path, "bert", "Model").folder
    modules = SentenceModules("mean", True, 24, prompts=(("document", ""), ("query", "query: ")))
    for default in ("document", None):
        modules = modules._replace(default_prompt=default)
        write_modules(folder, modules, width=32, positions=66)
        pipeline = trifold.load(folder)
        assert pipeline.modules == modules
        named, plain = (
            pipeline.embed("fox", **option) for option in ({"prompt_name": "document"}, {})
        )
        assert torch.equal(named, plain) and torch.equal(plain, pipeline.embed("fox", prompt=""))
        assert ("none is used" in capsys.readouterr().err) == (default is None)


def test_the_file_of_limits_may_have_an_old_name(tmp_path):
    write_modules(tmp_path, SentenceModules(max_length=9), width=32, positions=66)
    (tmp_path / "sentence_bert_config.json").rename(tmp_path / "sentence_xlnet_config.json")
    assert read_modules(tmp_path) == SentenceModules(max_length=9)
