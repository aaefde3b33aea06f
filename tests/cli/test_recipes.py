from __future__ import annotations

import json
import re

import pytest
import torch

from trifold.cli.recipes import BENCHMARKS, CONDENSED, FAMILIES, GLUE
from trifold.nn import Inputs, Transformer
from trifold.recipe import included_recipes, load_recipe, missing_files, recipe_names


def test_recipes_are_listed_as_table_and_json(trifold):
    lines = trifold("recipes").out.splitlines()
    listed = json.loads(trifold("recipes", "--json").out)
    assert {row["name"]: row["description"] for row in listed} == recipe_names()
    for row in listed:
        if row["group"] not in CONDENSED:
            (line,) = (line for line in lines if line.startswith(f"  {row['name']} "))
            assert row["description"] in line
    assert {row["name"] for row in listed if row["group"] == "benchmarks"} == BENCHMARKS
    assert {row["name"] for row in listed if row["group"] == "families"} == FAMILIES


def test_the_list_fits_a_screen_also_without_data(trifold, no_data):
    lines = trifold("recipes").out.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert len(lines) < 40


@pytest.mark.parametrize(
    ("word", "names"),
    [
        (
            "data",
            "answer causal choose classify gpt-classify images masked similarity summarize tag translate",
        ),
        ("gpt", "causal demo-write gpt-classify shakespeare-char shakespeare-char-tiny"),
        ("ner", "tag"),
    ],
)
def test_recipes_of_a_group_or_a_word(trifold, word, names):
    listed = json.loads(trifold("recipes", word, "--json").out)
    assert [row["name"] for row in listed if row["name"] in recipe_names()] == names.split()


@pytest.mark.parametrize(("group", "names"), [("benchmarks", BENCHMARKS), ("families", FAMILIES)])
def test_condensed_groups_are_described_on_request(trifold, group, names):
    words = " ".join(trifold("recipes", group).out.split())
    assert all(recipe_names()[name] in words for name in names)


@pytest.mark.parametrize("name", sorted(FAMILIES - {"distilbert", "minilm"}))
def test_a_family_sizes_itself_and_builds_its_model(name, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("A line of text, and another.\n" * 99, "utf-8")
    recipe = load_recipe(name, {"data.train": str(tmp_path / "text.txt")})
    assert recipe.train.steps == 100 and recipe.data.holdout == 0.1
    config = recipe.model.model_copy(update={"vocab_size": 30})
    model = Transformer(config).eval()
    tokens = torch.randint(5, 30, (2, 40))
    with torch.no_grad():
        states = model(Inputs(tokens))
    assert states.isfinite().all() and states.shape[:2] == tokens.shape
    if name == "electra":
        assert [*model.heads] == ["replaced"]
    else:
        assert model.lm_head is not None
    printed = capsys.readouterr().err
    assert "attention_dropout" not in printed  # no conflict of a default with another


def test_a_word_without_recipes_is_an_error(trifold):
    result = trifold("recipes", "foo")
    assert result.code == 2
    assert "'foo': no such recipe; leave it out, or name a group: data, public" in result.err


@pytest.fixture
def no_data(monkeypatch, tmp_path):
    monkeypatch.delenv("TRIFOLD_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_recipes_whose_data_is_missing_are_marked(trifold, no_data):
    lines = trifold("recipes").out.splitlines()
    listed = {row["name"]: row["missing"] for row in json.loads(trifold("recipes", "--json").out)}
    assert listed["smoke"] == listed["demo"] == []
    for name, missing in listed.items():
        is_condensed = name in BENCHMARKS | FAMILIES or name.startswith(GLUE)
        if is_condensed or missing == ["data.train=FILE"]:
            continue
        (line,) = (line for line in lines if line.startswith(f"  {name} "))
        first = next((file.removeprefix("${TRIFOLD_DATA}/").split("/")[0] for file in missing), "")
        assert first in line and ("TRIFOLD_DATA" in line) is False
    assert "TRIFOLD_DATA" in "".join(listed["multi30k-en-de"])


def test_data_in_the_cache_folder_is_found(trifold, no_data, tmp_path):
    for file in ("train.tsv", "dev.tsv"):
        path = tmp_path / "trifold" / "data" / "stsb" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (row,) = (
        row for row in json.loads(trifold("recipes", "--json").out) if row["name"] == "text-to-text"
    )
    assert row["missing"] == ["${TRIFOLD_DATA}/mrpc/train.tsv", "${TRIFOLD_DATA}/mrpc/val.tsv"]


def test_help_advertises_only_recipes_that_need_no_data(trifold, no_data):
    ready = {name for name, recipe in included_recipes().items() if not missing_files(recipe)}
    named = [
        re.findall(r"trifold train ([\w-]+)(?=\s)(?! data\.train=)", trifold(*words).out)
        for words in (["--help"], ["train", "--help"])
    ]
    assert {name for names in named for name in names} <= ready | {"my"}  # my.yaml
