from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from copy import deepcopy
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import example, given, settings, strategies as st
from tests.recipes import BERT, load_included
from tests.train.runs import RecordingView

from trifold import yaml_dialect
from trifold.cli import main
from trifold.cli.recipes import BENCHMARKS, FAMILIES, GLUE
from trifold.data import DataSettings, image_sets
from trifold.errors import SettingsError, UsageError
from trifold.hub import save_model
from trifold.hub.folder import describe_misfit, families_for
from trifold.nn import Transformer
from trifold.nn.presets import PRESETS
from trifold.nn.variants import ModelConfig
from trifold.objectives import KINDS, choose, embed, labels, questions, settings_class, tag
from trifold.recipe import (
    Recipe,
    TrainSettings,
    included_recipes,
    is_run,
    load_recipe,
    missing_files,
    recipe_names,
)
from trifold.settings import Settings
from trifold.train.schedules import learning_rate
from trifold.train.stages import pretrain
from trifold.yaml_dialect import YAMLError, dump, load


@pytest.fixture
def write(tmp_path):
    """Write a recipe file and return its path."""

    def write(text: str, name: str = "mine.yaml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


# --- included recipes -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", recipe_names())
def test_every_included_recipe_is_valid(name):
    recipe, needs_data = load_included(name), not included_recipes()[name].get("data")
    assert recipe.name == name
    assert recipe.description.strip() == recipe.description != ""
    if recipe.task.evaluated.data_kind == "parts":
        assert all(part.train and part.valid for part in recipe.task.parts.values())
        return
    assert recipe.data.train
    # Objectives on raw text are evaluated on their validation text.
    tested = recipe.data.test or needs_data or recipe.task.evaluated.data_kind == "documents"
    assert (recipe.data.valid and tested) or recipe.data.holdout


def test_the_recipes_of_the_readme_exist():
    assert {"smoke", "demo", "multi30k-en-de"} <= set(recipe_names())


@pytest.mark.parametrize("name", ["demo", "demo-write"])
def test_transformers_loads_the_models_of_demos(name):
    assert describe_misfit(load_recipe(name).model) == ""


@pytest.mark.parametrize(
    "kind",
    ["translate", "causal", "classify", "tag", "masked", "replaced", "pairs", "permutation"],
)
def test_transformers_loads_the_models_that_a_task_chooses(kind, write):
    file = write(f"task: {{kind: {kind}}}\ndata: {{train: a.tsv, holdout: 5}}\n")
    recipe = load_recipe(file)
    if kind in ("classify", "tag"):  # whose linear path no family has
        assert "it fits bert with model.linear_path=null" in describe_misfit(recipe.model)
        recipe = load_recipe(file, ["model.linear_path=false"])
    assert describe_misfit(recipe.model) == ""


def test_the_published_preset_has_the_published_size():
    tiny = load_recipe("multi30k-en-de").model
    assert (tiny.n_layers, tiny.decoder_layers, tiny.d_model, tiny.d_ff, tiny.n_heads) == (
        4,
        4,
        128,
        256,
        4,
    )


def test_recipes_command_lists_names_and_descriptions(capsys):
    assert main(["recipes"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    condensed = FAMILIES | BENCHMARKS | {n for n in recipe_names() if n.startswith(GLUE)}
    assert all(name in printed for name in recipe_names() if name not in condensed)
    assert main(["recipes", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["name"]: row["description"] for row in rows} == recipe_names()


# --- overrides ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("train.steps=7", 7),
        ("train.learning_rate=0.01", 0.01),
        ("train.learning_rate=5e-4", 5e-4),  # YAML 1.1 takes this for text
        ("train.learning_rate=2E-3", 2e-3),
        ("train.learning_rate=1", 1.0),
        ("train.learning_rate=null", None),
        ("train.learning_rate=", None),
        ("train.precision=bfloat16", "bfloat16"),
        ("data.train=a.en,a.de", "a.en,a.de"),
        ("data.train=[a.en, a.de]", ["a.en", "a.de"]),
        ("data.train=hub:wmt14@de-en:train", "hub:wmt14@de-en:train"),
        ("data.train=C:\\texts\\a=b.tsv", "C:\\texts\\a=b.tsv"),
        ("data.source=0", 0),
        ("data.target=no", "no"),  # the language code of Norwegian, which YAML 1.1 takes for false
        ("data.target='0'", "0"),
        ("data.header=true", True),
        ("description=2017-06-12", "2017-06-12"),
        ("description=@home", "@home"),
        ("tokenizer.joint=false", False),
    ],
)
def test_an_override_sets_the_value_under_its_key(override, value):
    recipe = load_recipe("smoke", [override])
    found = recipe
    for part in override.partition("=")[0].split("."):
        found = getattr(found, part)
    assert found == value
    assert type(found) is type(value)


def test_the_emitter_in_c_writes_what_the_one_in_python_does(monkeypatch):
    """Which writes a sign that the one in C would escape."""
    smoke = load_recipe("smoke").model_dump()
    recipes = [smoke | {"description": text} for text in ("été: 1e5", "😀")]
    texts = [dump(recipe) for recipe in recipes]
    assert "😀" in texts[1]
    monkeypatch.setattr(yaml_dialect, "_DUMPERS", yaml_dialect._DUMPERS[-1:])
    assert [dump(recipe) for recipe in recipes] == texts


def test_lone_surrogates_and_subclasses_of_str_are_written():
    class Name(str):
        pass

    assert dump({"a": "\ud800"}) == 'a: "\\uD800"\n'
    assert dump({Name("a"): Name("b")}) == "a: b\n"


@pytest.mark.parametrize("text", ["1:30", "-1:30", "1:30.5", "12:59:59", "010", "-08", "0_1"])
def test_numbers_to_other_bases_are_text(text):
    assert load(text) == load(f"{{a: {text}}}")["a"] == text
    assert load(dump({"a": text, "b": 10})) == {"a": text, "b": 10}
    with pytest.raises(SettingsError, match=rf"train\.steps: .* got '{re.escape(text)}'"):
        load_recipe("smoke", [f"train.steps={text}"])


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0), ("0.5", 0.5), ("1_000", 1000), ("00.5", 0.5), ("0x1f", 31)]
)
def test_decimal_and_hexadecimal_numbers_are_numbers(text, value):
    assert load(text) == value


@pytest.mark.parametrize(
    "key", ["train.seed", "train.steps", "train.learning_rate", "data.train", "train"]
)
def test_huge_integers_are_rejected(key):
    for value in (10**5000, -(10**5000), [10**5000]):
        with pytest.raises(
            SettingsError, match=rf"^{re.escape(key)}: .*(too large|thousands of digits)"
        ):
            load_recipe("smoke", {key: value})
    with pytest.raises(
        SettingsError, match=r"^train\.steps: 18446744073709551617 is too large; at most 2,147"
    ):
        load_recipe("smoke", {"train.steps": 2**64 + 1})


def integer_keys(cls: type[Settings], at: str = "", outer: tuple[type, ...] = ()) -> Iterator[str]:
    """The dotted keys of a class of settings that hold integers, except those of `parts`, which
    are settings by name, and those of a task inside of another.
    """
    for name, field in cls.model_fields.items():
        kinds = [*_kinds(field.annotation)]
        if int in kinds:
            yield f"{at}{name}"
        for kind in kinds:
            if kind is not int and kind not in outer and name not in ("parts", "of"):
                yield from integer_keys(kind, f"{at}{name}.", (*outer, kind))


def _kinds(annotation: Any) -> Iterator[type]:
    is_settings = isinstance(annotation, type) and issubclass(annotation, Settings)
    if annotation is int or is_settings:
        yield annotation
    for member in get_args(annotation):
        yield from _kinds(member)


def test_no_integer_is_larger_than_numpy_torch_and_the_disk_hold():
    """Every integer of a recipe; a seed has 64 bits, a line of a file 2^40 bytes."""
    recipe = load_recipe("smoke").model_dump()
    tasks = {f"task:{kind}.{key}" for kind in KINDS for key in integer_keys(settings_class(kind))}
    keys = {key for key in integer_keys(Recipe) if not key.startswith("task.")}
    assert len(keys) > 100 and len(tasks) > 15
    for key in sorted(keys | tasks):
        for value in (2**53, 2**63, 2**64, -(2**31), -(2**63)):
            values = deepcopy(recipe)
            if key in ("train.seed", "generate.seed", "model.lsh.seed") and 0 < value < 2**64:
                continue
            dotted = key
            if key.startswith("task:"):
                kind, _, inner = key.removeprefix("task:").partition(".")
                values["task"] = {"kind": kind}
                dotted = f"task.{inner}"
            *groups, last = dotted.split(".")
            place = values
            for group in groups:
                place[group] = place.get(group) or {}
                place = place[group]
            place[last] = value
            with pytest.raises(SettingsError, match=rf"(?m)^{re.escape(dotted)}"):
                Recipe.parse(values)


@pytest.mark.parametrize("digits", ["9", "0xf", "0x_f", "-0xf", "0b1"])
def test_numbers_of_thousands_of_digits_are_not_integers(digits):
    text = digits + digits[-1] * 20_000
    with pytest.raises(YAMLError, match="thousands of digits"):
        load(f"[{text}]")
    with pytest.raises(
        SettingsError, match=r"^train\.steps: input should be a valid integer, got '.{1,300}$"
    ):
        load_recipe("smoke", [f"train.steps={text}"])


def test_repeated_overrides_are_reported(capsys):
    load_recipe(
        "smoke",
        ["train.steps=60", "train.seed=5", "train.steps=70", "task={}", "task.kind=translate"],
    )
    assert capsys.readouterr().err == (
        "warning: train.steps is set again; 70 replaces the earlier value\n"
    )
    load_recipe("smoke", ["train.steps=60", "train={steps: 3, warmup: 1}"])
    assert capsys.readouterr().err.startswith("warning: train is set again; {'steps': 3")
    load_recipe("smoke", ["train.steps=60", "train.steps=60", "train.seed=5", "train.seed=0x5"])
    assert capsys.readouterr().err == ""


def test_the_last_override_wins():
    assert load_recipe("smoke", ["train.steps=60", "train.steps=70"]).train.steps == 70
    assert load_recipe("smoke", {"train.steps": 70}) == load_recipe("smoke", ["train.steps=70"])


def test_an_override_replaces_one_key():
    before, after = load_recipe("smoke"), load_recipe("smoke", ["model.dropout=0.3"])
    assert after.model == before.model.model_copy(update={"dropout": 0.3})


@pytest.mark.parametrize("text", ["train.steps", "=5", "steps 5"])
def test_an_override_without_key_or_value_is_an_error(text):
    with pytest.raises(UsageError, match=r"is not key=value; an example is train\.steps=2000"):
        load_recipe("smoke", [text])


def test_an_override_below_a_value_is_an_error():
    with pytest.raises(
        SettingsError, match=r"train\.steps\.more: steps is a value, not a group of keys"
    ):
        load_recipe("smoke", ["train.steps.more=5"])


# --- presets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_keys_change_a_preset(write, preset):
    path = write(f"data: {{train: a.tsv}}\nmodel: {{preset: {preset}, dropout: 0.25}}\n")
    assert load_recipe(path).model == PRESETS[preset].model_copy(update={"dropout": 0.25})
    assert load_recipe(path, ["model.n_layers=1"]).model.n_layers == 1


def test_a_preset_on_the_command_line_keeps_the_keys_of_the_file():
    recipe = load_recipe("smoke", ["model.preset=transformer-tiny"])
    assert (recipe.model.d_model, recipe.model.d_ff) == (64, 128)  # from smoke


def test_an_unknown_preset_shows_the_nearest():
    with pytest.raises(
        SettingsError,
        match=r"model\.preset: unknown preset 'transformer-bas'; did you mean 'transformer-base'",
    ):
        load_recipe("smoke", ["model.preset=transformer-bas"])


def test_the_default_model_is_the_base_model_of_the_paper(write):
    text = "data: {train: a.tsv}\nmodel: {shape: encoder-decoder}\n"
    assert load_recipe(write(text)).model == PRESETS["transformer-base"]


# --- defaults and choices -------------------------------------------------------------------------

ENCODER = "task: {kind: classify}\ndata: {train: a.tsv}\n"  # a BERT with attention_dropout 0.1
DECODER = "task: {kind: causal}\ndata: {train: a.tsv}\n"  # a GPT-2 with attention_dropout 0.1
ELU = "attention: elu excludes attention_dropout: 0.1"


@pytest.mark.parametrize("kind", ["elu", "favor", "low-rank", "spans"])
@pytest.mark.parametrize("text", [ENCODER, DECODER, ENCODER + "model: {preset: bert-base}\n"])
def test_a_kind_of_attention_needs_no_other_key(write, text, kind):
    if (text, kind) == (DECODER, "low-rank"):
        with pytest.raises(SettingsError, match="low-rank mixes all tokens and needs shape: encod"):
            load_recipe(write(text), {"model.attention": kind})
        return
    recipe = load_recipe(write(text), {"model.attention": kind})
    model = recipe.model
    before = load_recipe(write(text)).model
    update = {"attention": kind, "attention_dropout": 0.0}
    assert (model, before.attention_dropout) == (before.model_copy(update=update), 0.1)
    line = f"attention: {kind} excludes attention_dropout: 0.1; the default gives way: "
    printed = " ".join(recipe.notes)
    assert printed.count("gives way") == 1 and f"{line}model.attention_dropout=0.0" in printed


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("attention: elu, attention_dropout: 0.1", {}),
        ("attention_dropout: 0.1", {"model.attention": "elu"}),
        ("attention: elu", {"model.attention_dropout": 0.1}),
        ("preset: bert-base", {"model.attention": "elu", "model.attention_dropout": 0.1}),
        ("preset: bert-base", {"model": {"attention": "elu", "attention_dropout": 0.1}}),
    ],
)
def test_an_explicit_setting_that_a_choice_excludes_is_an_error(write, model, changes):
    path = write(f"{ENCODER}model: {{{model}}}\n")
    with pytest.raises(SettingsError, match=rf"^model: {ELU}; set attention_dropout: 0\.0$"):
        load_recipe(path, changes)


GIVES_WAY = [
    # (recipe, overrides, what gives way, the reason)
    ("conll2003", {"model.attention": "spans"}, {"model.positions": "sinusoidal"}, "excludes positions: rotary"),
    ("demo", {"model.d_embedding": 64}, {"model.tie_lm_head": False}, "a tied head of width 64"),
    ("mnist", {"model.image_size": [8, 8]}, {"model.max_positions": 5}, "4 patches and a class token need 5"),
    ("demo", {"train.optimizer": "adamw"}, {"train.muon_iterations": 5, "train.muon_polynomial": "jordan"},
     "has no effect with optimizer adamw"),
    ("demo", {"train.muon_iterations": 8}, {"train.muon_polynomial": "jordan"}, "exceeds the 5 of polar-express"),
    ("demo", {"train.steps": 100}, {"train.warmup": 10}, "warmup 150 leaves none of the 100 steps"),
    ("multi30k-en-de", {"train.ema": 0.9}, {"train.average": 1}, "both average the weights"),
    ("multi30k-en-de", {"train.average": 20}, {"train.keep_last": 20}, "average 20 requires keep_last"),
    ("multi30k-en-de", {"data.holdout": 9}, {"data.valid": None}, "holdout and valid contradict"),
    ("multi30k-en-de", {"generate.do_sample": True}, {"generate.num_beams": 1}, "do_sample excludes num_beams"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "others", "reason"), GIVES_WAY)
def test_defaults_of_included_recipes_give_way(name, changes, others, reason):
    loaded = load_recipe(name, changes)
    recipe = loaded.model_dump()
    for key, value in others.items():
        group, _, last = key.partition(".")
        assert recipe[group][last] == value
    printed = " ".join(loaded.notes)
    assert reason in printed and printed.count("gives way") >= len(others)


def test_a_recipe_whose_settings_agree_has_nothing_to_report(write):
    for name in ("demo", "multi30k-en-de", "mnist", "conll2003"):
        assert load_recipe(name).notes == []
    lsh = load_recipe(write(ENCODER + "model: {preset: bert-base, attention: lsh}\n"))
    assert lsh.notes == []


def test_the_stages_of_a_recipe_follow_its_choices(write, capsys):
    """The first stage of mrpc has keys of muon, and a stage of its own."""
    stages = []

    def train(recipe, **_):
        stages.append(recipe)
        return recipe

    recipe = load_recipe("mrpc", {"train.optimizer": "adamw"})
    view = RecordingView()
    while recipe.pretrain:
        recipe, _ = pretrain(recipe, Path("run"), view, train)
    last = stages[-1].train
    assert (len(stages), last.optimizer, last.muon_iterations) == (2, "adamw", 5)
    assert any("muon_iterations 3 has no effect with optimizer adamw" in x for x in view.lines)

    changes = {"train.optimizer": "adamw", "pretrain.pretrain.train.muon_iterations": 3}
    first, _ = pretrain(load_recipe("mrpc", changes), Path("run"), view, train)
    with pytest.raises(SettingsError, match="muon_iterations 3 has no effect with optimizer adamw"):
        pretrain(first, Path("run"), view, train)


def test_parts_have_data_of_their_own(write):
    part = "{train: a.tsv, valid: b.tsv, input: '{source}'}"
    recipe = load_recipe(write(f"task: {{kind: text-to-text, parts: {{one: {part}}}}}\n"))
    assert recipe.data == DataSettings()


# --- what the task determines ---------------------------------------------------------------------

TASKS = {
    "causal": ("decoder", {"lm"}, ()),
    "masked": ("encoder", {"lm"}, ("cls", "sep", "mask")),
    "permutation": ("encoder", {"lm"}, ("cls", "sep", "mask")),
    "replaced": ("encoder", {"replaced"}, ("cls", "sep", "mask")),
    "pairs": ("encoder", {"lm", "pooler", "next-sentence"}, ("cls", "sep", "mask")),
    "classify": ("encoder", {"pooler", "sequence"}, ("cls", "sep", "mask")),
    "answer": ("encoder", {"span"}, ("cls", "sep", "mask")),
    "tag": ("encoder", {"token"}, ("cls", "sep", "mask")),
    "embed": ("encoder", {"pooler"}, ("cls", "sep", "mask")),
}


@pytest.mark.parametrize("kind", TASKS)
def test_the_task_chooses_the_shape_the_heads_and_the_special_tokens(write, kind):
    recipe = load_recipe(
        write(f"task: {{kind: {kind}}}\ndata: {{train: a.txt}}\nmodel: {{n_layers: 2}}\n")
    )
    model = recipe.model
    assert (model.shape, set(model.chosen_heads), recipe.tokenizer.special) == TASKS[kind]
    assert (model.n_layers, model.d_model) == (2, 256)
    own_parts = {
        "classify": {"linear_path": None},
        "tag": {"linear_path": None},
        "answer": {"word_matches": False, "positions": "learned"},
    }
    without = model.model_copy(update=own_parts.get(kind, {}))
    assert next(families_for(without)).model_type != "trifold"  # other libraries can load it
    assert (without == model) == (kind not in own_parts)
    assert load_recipe(write(recipe.resolved())) == recipe


@pytest.mark.parametrize("preset", ["bert-base", "gpt2"])
def test_a_preset_gets_the_heads_of_the_task(write, preset):
    text = f"task: {{kind: classify}}\ndata: {{train: a.tsv}}\nmodel: {{preset: {preset}}}\n"
    model = load_recipe(write(text)).model
    assert "sequence" in model.chosen_heads
    assert model.classifier_input == ("last" if preset == "gpt2" else "pooler")
    chosen = ["model.heads=[sequence, token]", "model.classifier_input=first"]
    assert load_recipe(write(text), chosen).model.heads == ("sequence", "token")
    with pytest.raises(
        SettingsError, match=r"model\.heads: .*sequence is missing; set model\.heads="
    ):
        load_recipe(write(text), ["model.heads=[lm]"])


@pytest.mark.parametrize("shape", ["encoder", "decoder"])
def test_a_shape_without_heads_gets_those_of_the_task(write, shape):
    text = f"task: {{kind: classify}}\ndata: {{train: a.tsv}}\nmodel: {{shape: {shape}, classifier_input: first}}\n"
    model = load_recipe(write(text)).model
    assert "sequence" in model.chosen_heads
    norm = {"encoder": "post", "decoder": "pre"}[shape]  # of the core, and of GPT-2
    assert (model.classifier_input, model.norm_placement) == ("first", norm)


@pytest.mark.parametrize("kind", [*TASKS, "denoise"])
def test_a_shape_that_the_task_does_not_support_is_an_error(write, kind):
    wrong = "encoder-decoder" if kind in TASKS else "decoder"
    text = f"task: {{kind: {kind}}}\ndata: {{train: a.txt}}\nmodel: {{shape: {wrong}}}\n"
    with pytest.raises(
        SettingsError, match=rf"^model\.shape: {wrong} does not support task\.kind: {kind}"
    ):
        load_recipe(write(text))


def test_the_model_defaults_to_that_of_start_from(write, tmp_path):
    config = ModelConfig(**BERT, label_names=("a", "b"))
    save_model(tmp_path / "bert", Transformer(config))
    train = f"train: {{start_from: {tmp_path / 'bert'}}}\n"
    recipe = load_recipe(write("task: {kind: classify}\ndata: {train: a.tsv}\n" + train))
    sizes = ("d_model", "n_layers", "max_positions", "vocab_size", "n_token_types")
    assert all(getattr(recipe.model, size) == getattr(config, size) for size in sizes)
    assert (recipe.model.heads, recipe.model.label_names) == (("pooler", "sequence"), None)
    assert recipe.tokenizer.file == str(tmp_path / "bert")


def test_start_from_is_a_key_of_the_recipe_with_an_alias(write, tmp_path):
    save_model(tmp_path / "bert", Transformer(ModelConfig(**BERT)))
    folder = str(tmp_path / "bert")
    values = {"data.train": "a.csv"}
    recipe = load_recipe("classify", values | {"start_from": folder})
    assert recipe == load_recipe("classify", values | {"train.start_from": folder})
    assert recipe == load_recipe(
        "classify", values | {"start_from": folder, "train.start_from": folder}
    )
    assert (recipe.start_from, recipe.train.start_from) == (folder, None)
    assert load_recipe(write(recipe.resolved())).start_from == folder
    with pytest.raises(
        SettingsError,
        match=rf"start_from: {folder} and train\.start_from: other differ; remove one",
    ):
        load_recipe("classify", values | {"start_from": folder, "train.start_from": "other"})


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["../x", "../../x", "/x", "a/b", "..", ".", "", "a\\b", "c:x", "a\nb", "\x1b[2J"]
)
def test_a_name_that_is_no_folder_name_is_an_error(name):
    with pytest.raises(SettingsError, match=r"^name: .* cannot be the name of a folder in runs/"):
        load_recipe("smoke", {"name": name})


def test_a_run_folder_stands_for_its_recipe(write, tmp_path):
    recipe = load_recipe("smoke", ["train.steps=7"])
    write(recipe.resolved(), "recipe.yaml")
    assert load_recipe(tmp_path) == recipe
    with pytest.raises(UsageError, match=rf"no such run .*; did you mean '{tmp_path}'\?"):
        load_recipe(f"{tmp_path}x")


def test_an_included_recipe_precedes_a_run_of_the_same_name(write, tmp_path, monkeypatch):
    (tmp_path / "smoke").mkdir()
    write(load_recipe("demo").resolved(), "smoke/recipe.yaml")
    monkeypatch.chdir(tmp_path)
    assert load_recipe("smoke").train.steps == 300
    assert not is_run("smoke")


def test_missing_files_of_a_recipe_are_named(tmp_path, monkeypatch):
    recipe = {
        "data": {
            "train": ["${TRIFOLD_DATA}/a.en", "${TRIFOLD_DATA}/a.de"],
            "valid": "embedded:smoke",
        },
        "task": {
            "teacher": "runs/teacher",
            "parts": {"one": {"train": "hub:x:train", "valid": "b.tsv"}},
        },
        "tokenizer": {"file": "runs/other/model"},
        "pretrain": {"data": {"train": "c.tsv"}, "pretrain": {"data": {"valid": "b.tsv"}}},
    }
    named = [
        "${TRIFOLD_DATA}/a.en",
        "${TRIFOLD_DATA}/a.de",
        "b.tsv",
        "runs/teacher",
        "runs/other/model",
        "c.tsv",
    ]
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRIFOLD_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert missing_files(recipe) == named
    monkeypatch.setenv("TRIFOLD_DATA", str(tmp_path))
    for name in ("a.en", "b.tsv", "runs/teacher"):
        path = tmp_path / name
        path.mkdir(parents=True) if "/" in name else path.touch()
    assert missing_files(recipe) == [named[1], named[4], named[5]]
    assert missing_files(included_recipes()["smoke"]) == []


def test_the_default_name_is_the_stem_of_the_file(write):
    assert load_recipe(write("data: {train: a.tsv}\n", "en-xx.yaml")).name == "en-xx"
    assert load_recipe(write("name: other\ndata: {train: a.tsv}\n", "en-xx.yaml")).name == "other"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1", ["mine.yaml:1:6: not valid YAML"]),
        ("a: b: c", ["mine.yaml:1:5: not valid YAML"]),
        (
            "train: {steps: 5}\ntrain: {steps: 6}",
            ["mine.yaml:2:1: not valid YAML", "duplicate key 'train'"],
        ),
        ("train: {steps: !!int ''}", ["mine.yaml: not valid YAML"]),
        ("- a\n- b", ["mine.yaml: a recipe is a mapping"]),
        ("", ["mine.yaml: a recipe is a mapping"]),
        ("just text", ["mine.yaml: a recipe is a mapping"]),
        (
            "data: !!python/object/apply:os.system ['true']",
            ["mine.yaml:1:7: not valid YAML", "python/object"],
        ),
        ("data: {train: a.tsv}\ntrian: {steps: 5}", ["trian: unknown key", "did you mean 'train'"]),
        ("data: {train: a.tsv}\ntrain: 5", ["train: ", "got 5"]),
        ("description: no data", ["data.train: no training data"]),
    ],
)
def test_an_invalid_file_is_an_error_with_its_place(write, text, words):
    with pytest.raises(SettingsError) as caught:
        load_recipe(write(text))
    assert all(word in str(caught.value) for word in words), str(caught.value)


# An unknown key -> the one that is probably meant: of the same name elsewhere, else of similar
# letters.
MEANT = {
    **dict.fromkeys(["data.label", "data.lable", "data.labels", "label"], "data.columns.label"),
    "data.text": "data.columns.text",
    "data.tags": "data.columns.tags",
    "data.steps": "train.steps",
    "data.tran": "train",
    "train.alpha": "train.lora.alpha",
    "train.stpes": "steps",
    "model.layers": "n_layers",
}


@pytest.mark.parametrize(("key", "meant"), MEANT.items())
def test_an_unknown_key_names_the_one_that_is_meant(key, meant):
    with pytest.raises(SettingsError, match=rf"^{key}: unknown key; did you mean '{meant}'\?$"):
        load_recipe("smoke", {key: "x"})


def test_the_usual_columns_are_those_that_tasks_read():
    tables: list[dict[str, Any]] = [embed.COLUMNS]
    tables += [task.ROLES for task in (choose, image_sets, labels, questions, tag)]
    rare = {"id", "start", *choose.COLUMNS}
    assert {*DataSettings.usual_keys["columns"]} == {*chain(*tables)} - rare


# Texts that would take minutes or gigabytes -> the error.
LAUGHS = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 12)
)
COSTLY = [
    ("".join(f"k{n}: {n}\n" for n in range(200_000)), "mine.yaml: 2,977,780 bytes is too large"),
    ("# " + "x" * 2**19 + "\na: 1", "mine.yaml: 524,295 characters; a recipe has at most 524,288"),
    (
        "a: [" + "x," * 30_000 + "]",
        "mine.yaml:1:39999: too many keys and values; a recipe has at m",
    ),
    ("a: &a {x: 1}\nb: {<<: [" + "*a," * 9_000 + "]}", "mine.yaml:2:15001: too many keys and val"),
    (LAUGHS, "mine.yaml:5:30: too many keys and values; a recipe has at most 20,000"),
    (LAUGHS.replace("<<:", "y:"), "mine.yaml:5:29: too many keys and values"),
    ("a: &a [*a]", "mine.yaml:1:8: not valid YAML: the alias *a stands for a value that contains"),
    ("[" * 1500, "mine.yaml:1:101: nested too deeply; a recipe has at most 100 levels"),
]


@pytest.mark.parametrize(("text", "message"), COSTLY)
def test_a_costly_file_is_an_error_with_its_place(write, text, message):
    before = time.process_time()
    with pytest.raises(SettingsError) as caught:
        load_recipe(write(text))
    assert message in str(caught.value), str(caught.value)
    assert time.process_time() - before < 2


def test_the_largest_recipe_is_read_in_seconds_and_aliases_are_values():
    text = "a: &a {x: 1, y: 2}\n" + "".join(f"k{n}: {{<<: *a, y: {n}}}\n" for n in range(1_800))
    before = time.process_time()
    values = load(text)
    assert values["k1799"] == {"x": 1, "y": 1799} and len(values) == 1801
    assert time.process_time() - before < 3
    assert load("a: &a [1]\nb: *a\nc: *a") == {key: [1] for key in "abc"}


def test_invalid_utf_8_is_an_error_with_its_byte(tmp_path):
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"description: caf" + b"\xe9\n")
    with pytest.raises(SettingsError, match=r"latin\.yaml: byte 17 is not valid UTF-8"):
        load_recipe(path)


def test_a_missing_file_is_an_error():
    with pytest.raises(UsageError, match=r"nowhere\.yaml: cannot read the file \(No such file"):
        load_recipe("nowhere.yaml")


def test_an_unknown_name_shows_the_nearest():
    with pytest.raises(UsageError, match=r"unknown recipe 'smok'; did you mean 'smoke'\?"):
        load_recipe("smok")


# --- resolved -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", recipe_names())
def test_resolved_parses_to_the_same_recipe(write, name):
    recipe = load_included(name)
    text = recipe.resolved()
    assert load_recipe(write(text)) == recipe
    assert "beta2: " in text and "max_positions:" in text and "length_penalty_form:" in text


@pytest.mark.slow
@example("a\x85b\u2028c\u2029", 1e-9)
@settings(max_examples=20)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")), st.floats(1e-12, 1e6))
def test_text_and_numbers_survive_yaml(tmp_path_factory, text, number):
    recipe = load_recipe("smoke", {"description": text, "train.learning_rate": number})
    path = tmp_path_factory.getbasetemp() / "round.yaml"
    path.write_text(recipe.resolved(), encoding="utf-8", newline="\n")
    assert load_recipe(path) == recipe


@pytest.mark.parametrize(
    "text",
    ["5e-4", "no", "yes", "true", "2017-06-12", "010", "1_000", "~", "null", "1:30", "=", "a: b"],
)
def test_text_that_looks_like_another_type_stays_text(write, text):
    recipe = load_recipe("smoke", {"description": text})
    assert load_recipe(write(recipe.resolved())).description == text


# --- contradictions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"average": 6}, r"train: average 6 requires keep_last of at least 6, not 5"),
        (
            {"average": 2, "validate_every": 10, "save_every": 4},
            r"validate_every \(10\) must be a multiple of save_every \(4\)",
        ),
        *(
            (
                {"schedule": schedule, "warmup": warmup, "steps": 10},
                rf"warmup {warmup} leaves none of the 10 steps for the decay",
            )
            for schedule, warmup in (("linear", 10), ("cosine", 20), ("warmup-stable-decay", 20))
        ),
        (
            {"schedule": "warmup-stable-decay", "warmup": 50, "steps": 100, "decay": 60},
            r"warmup 50 and decay 60 exceed the 100 steps",
        ),
        (
            {"schedule": "warmup-stable-decay", "decay": 1.5},
            r"decay 1\.5 is neither a share below 1 nor a whole number of steps",
        ),
        (
            {"schedule": "constant", "final_rate": 0.1},
            r"final_rate 0\.1 has no effect with schedule constant",
        ),
        (
            {"schedule": "cosine", "decay_form": "1-sqrt"},
            r"decay_form 1-sqrt has no effect with schedule cosine; remove it, or use warmup-stable-decay",
        ),
        ({"optimizer": "lion"}, r"train\.optimizer: .*'adamw'.*got 'lion'"),
        ({"optimizer": "adafactor"}, r"adafactor requires learning_rate; .*0\.01"),
        ({"optimizer": "sgd"}, r"sgd requires learning_rate; try 0\.1"),
        (
            {"optimizer": "sgd", "learning_rate": 0.1, "nesterov": True, "momentum": 0},
            r"nesterov has no effect with momentum 0; set nesterov: false or momentum: 0\.9",
        ),
        ({"nesterov": True}, r"nesterov True has no effect with optimizer adam; .*use sgd"),
        (
            {"optimizer": "adafactor", "learning_rate": 0.01, "beta2": 0.9},
            r"beta2 0\.9 has no effect with optimizer adafactor; remove it, or use adam or adamw or muon",
        ),
        (
            {"momentum": 0.9},
            r"momentum 0\.9 has no effect with optimizer adam; remove it, or use muon or sgd",
        ),
        (
            {"optimizer": "muon", "muon_polynomial": "polar-express", "muon_iterations": 6},
            r"muon_iterations 6 exceeds the 5 of polar-express, .*; set it to 5 or less",
        ),
        (
            {"optimizer": "adamw", "relative_step": False},
            r"relative_step False has no effect with .* adamw",
        ),
        (
            {"weight_decay_on": "hidden"},
            r"weight_decay_on hidden has no effect with optimizer adam",
        ),
        (
            {"ema": 0.99, "average": 2},
            r"ema 0\.99 and average 2 both average the weights; choose one",
        ),
        *(
            (
                {"schedule": schedule, "warmup": 0, "steps": 1},
                rf"schedule {schedule} decays to rate 0 in a single step, .*; set steps to 2 or more",
            )
            for schedule in ("linear", "cosine")
        ),
        *(
            (
                {"schedule": "warmup-stable-decay", "warmup": 0, "steps": 12, "decay": decay},
                r"in a single step, which learns nothing; set decay to 2 or more, or final_rate above 0",
            )
            for decay in (1, 0.1)
        ),
        ({"ema": 1.0}, r"train\.ema: .*less than 1"),
        ({"recompute": "all"}, r"train\.recompute: .*'blocks'.*got 'all'"),
        ({"steps": 0}, r"train\.steps: .*greater than 0, got 0"),
        ({"steps": 1e4}, r"train\.steps: .*valid integer, got 10000\.0"),
        ({"schedule": "noam"}, r"train\.schedule: .*'inverse-sqrt'.*got 'noam'"),
    ],
)
def test_contradictory_train_settings_are_errors(values, message):
    with pytest.raises(SettingsError, match=message):
        TrainSettings.parse(values, at="train")


@pytest.mark.parametrize(
    "values",
    [
        {"schedule": "linear", "warmup": 0, "steps": 2},
        {"schedule": "linear", "warmup": 0, "steps": 1, "final_rate": 0.1},
        {
            "schedule": "warmup-stable-decay",
            "warmup": 0,
            "steps": 12,
            "decay": 1,
            "final_rate": 0.1,
        },
        {"schedule": "warmup-stable-decay", "warmup": 0, "steps": 12, "decay": 2},
        {"schedule": "constant", "warmup": 0, "steps": 1},
    ],
)
def test_short_schedules_with_a_positive_rate_are_valid(values):
    settings = TrainSettings.parse(values)
    rates = [learning_rate(settings, step, peak=1.0) for step in range(1, settings.steps + 1)]
    assert max(rates[-settings.decay_steps :] if "decay" in values else rates) > 0


def test_a_recipe_is_immutable():
    recipe = load_recipe("smoke")
    assert isinstance(recipe, Recipe)
    with pytest.raises(Exception, match="frozen"):
        recipe.name = "x"  # type: ignore[misc]
