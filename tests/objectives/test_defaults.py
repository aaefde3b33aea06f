"""A recipe that leaves the model to its task gets defaults for the size of its data."""

from __future__ import annotations

import json
from math import ceil

import pytest
from tests.recipes import BERT

from trifold.errors import SettingsError
from trifold.hub import save_model
from trifold.hub.families import FAMILIES
from trifold.hub.folder import describe_misfit
from trifold.nn import ModelConfig, Transformer
from trifold.objectives.rates import fine_tuning_rate
from trifold.recipe import TrainSettings, included_recipes, load_recipe
from trifold.yaml_dialect import load

SENTENCE = "a sentence of some words . "  # 27 bytes


@pytest.fixture
def write(tmp_path):
    """Write a text and a recipe that reads it, and return the path of the recipe."""

    def write(text: str, more: str = "", kind: str = "causal"):
        (tmp_path / "text.txt").write_text(text, encoding="utf-8")
        path = tmp_path / "mine.yaml"
        path.write_text(
            f"task: {{kind: {kind}}}\ndata: {{train: {tmp_path / 'text.txt'}}}\n{more}",
            encoding="utf-8",
        )
        return path

    return write


@pytest.mark.parametrize(
    ("lines", "repeats", "size", "positions", "steps", "holdout"),
    [
        (100, 2, (64, 2), 64, 100, 0.1),
        (1_000, 20, (128, 2), 256, 738, 0.1),
        (5_000, 35, (256, 4), 512, 2_908, 0.1),
        (40_000, 20, (256, 4), 512, 10_000, 0.092),
    ],
)
def test_sizes_and_steps_follow_the_data(write, lines, repeats, size, positions, steps, holdout):
    recipe = load_recipe(write(f"{SENTENCE * repeats}\n" * lines))
    model, train = recipe.model, recipe.train
    assert (model.d_model, model.n_layers) == size
    assert (model.d_ff, model.n_heads, model.max_positions) == (4 * size[0], 4, positions)
    every = min(500, max(20, ceil(steps / 10)))
    assert (train.steps, train.warmup, train.validate_every, train.save_every) == (
        steps,
        steps // 10,
        every,
        every,
    )
    assert train.learning_rate == pytest.approx((4000 * size[0]) ** -0.5, rel=0.05)
    assert recipe.data.holdout == holdout


def test_characters_and_larger_batches_are_counted(write):
    text = f"{SENTENCE * 20}\n" * 1_000
    assert load_recipe(write(text, "tokenizer: {kind: char}\n")).train.steps == 1_323
    assert load_recipe(write(text), {"batch.tokens": 2048}).train.steps == 669
    assert load_recipe(write(text), {"train.accumulate": 2}).train.steps == 765


EXPLICIT = {
    "model.d_model": 32, "model.n_layers": 1, "model.d_ff": 40, "model.n_heads": 2, "model.max_positions": 8,
    "batch.tokens": 99, "train.steps": 7, "train.warmup": 3, "train.learning_rate": 0.5, "train.validate_every": 2, "train.save_every": 4,
    "data.holdout": 5,
}  # fmt: skip


@pytest.mark.parametrize("key", EXPLICIT)
def test_explicit_values_win(write, key):
    path = write(SENTENCE * 3 + "\n" + SENTENCE)
    group, name = key.split(".")
    recipe = load_recipe(path, {key: EXPLICIT[key]})
    assert getattr(getattr(recipe, group), name) == EXPLICIT[key]
    (line,) = recipe.size_notes
    printed = line.split()
    assert [each.split("=")[0] for each in printed[6:]] == [
        other for other in PRINTED if other != key
    ]


PRINTED = [
    *(
        "model.d_model",
        "model.n_layers",
        "model.n_heads",
        "model.d_ff",
        "model.max_positions",
        "batch.tokens",
        "train.learning_rate",
        "train.steps",
    ),
    *(
        "train.warmup",
        "train.validate_every",
        "train.save_every",
        "data.holdout",
    ),
]


@pytest.mark.parametrize("key", ["train.setps", "trian.steps", "model.width", "train.steps.x"])
def test_the_error_of_a_key_is_not_below_the_defaults(write, capsys, key):
    with pytest.raises(SettingsError):
        load_recipe(write(f"{SENTENCE}\n" * 100), [f"{key}=4"])
    assert capsys.readouterr().err == ""


def test_a_recipe_that_names_a_model_keeps_the_fixed_defaults(write):
    for model in ("preset: gpt2", "shape: decoder, n_layers: 2"):
        recipe = load_recipe(write(SENTENCE, f"model: {{{model}}}\n"))
        assert recipe.train == TrainSettings()
        assert (recipe.data.holdout, recipe.notes, recipe.size_notes) == (0, [], [])


@pytest.mark.parametrize("size", ["d_model", "n_layers"])
def test_another_shape_of_a_task_with_one_size_has_defaults_for_the_others(size, tmp_path):
    file = tmp_path / "pairs.tsv"
    file.write_text("source\ttarget\n" + "a b c\tb c d\n" * 200, encoding="utf-8")
    settings = [f"data.train={file}", "model.shape=decoder"]
    usual = load_recipe("translate", settings)
    recipe = load_recipe("translate", [*settings, f"model.{size}=16"])
    assert recipe.data.holdout == usual.data.holdout != 0
    assert recipe.train.steps == usual.train.steps
    assert getattr(recipe.model, size) == 16
    assert recipe.model.d_ff == 4 * recipe.model.d_model


def test_an_included_recipe_that_states_its_steps_leaves_no_size_to_its_data():
    recipes = included_recipes()
    names = [name for name, values in recipes.items() if "steps" in values.get("train", {})]
    sized = {name: load_recipe(name).sized for name in names}
    assert len(names) > 30 and not any(sized.values()), sized


def test_a_run_keeps_its_values_when_the_data_changes(write, tmp_path):
    recipe = load_recipe(write(SENTENCE))
    (tmp_path / "recipe.yaml").write_text(recipe.resolved(), encoding="utf-8")
    write(f"{SENTENCE * 20}\n" * 1_000)
    again = load_recipe(tmp_path / "recipe.yaml")
    assert again == recipe
    assert again.notes == again.size_notes == again.sized == []


def test_the_sizes_are_those_of_start_from_and_the_steps_those_of_the_data(write, tmp_path):
    save_model(tmp_path / "bert", Transformer(ModelConfig(**BERT)))
    start = f"train: {{start_from: {tmp_path / 'bert'}}}\n"
    recipe = load_recipe(write(f"{SENTENCE * 20}\n" * 1_000, start, "masked"))
    assert (recipe.model.d_model, recipe.model.n_layers) == (BERT["d_model"], BERT["n_layers"])
    assert (recipe.train.steps, recipe.train.warmup, recipe.data.holdout) == (738, 73, 0.1)
    assert recipe.train.learning_rate == pytest.approx((4000 * BERT["d_model"]) ** -0.5, rel=0.05)
    assert f"for the width of start_from, {BERT['d_model']}: train.l" in "\n".join(
        recipe.size_notes
    )


@pytest.mark.parametrize(
    ("width", "low", "high"),
    [
        (64, 1.9e-3, 2.1e-3),  # that from scratch
        (128, 1.3e-3, 1.5e-3),
        (256, 3e-4, 4e-4),  # 3e-4 (Turc et al. 2019)
        (768, 2e-5, 5e-5),  # Devlin et al. 2019, appendix A.3
        (1024, 2e-5, 5e-5),
    ],
)
def test_the_rate_of_fine_tuning_falls_with_the_width(width, low, high):
    assert low < fine_tuning_rate(width) < high


TEACHER = {
    "shape": "decoder", "positions": "rotary", "norm": "rms", "norm_placement": "pre", "d_model": 16, "n_layers": 4,
    "n_heads": 4, "n_kv_heads": 2, "d_ff": 24, "max_positions": 32, "vocab_size": 20,
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "start", "sizes"),
    [
        ("", "spread", {}),
        ("", "[0, 2, 3]", {"n_layers": 3}),
        ("n_layers: 3", "spread", {"n_layers": 3}),
        ("dropout: 0.25, d_ff: 40", "spread", {"dropout": 0.25, "d_ff": 40}),
    ],
)
def test_a_student_that_copies_layers_has_the_sizes_of_its_teacher(
    write, tmp_path, model, start, sizes
):
    save_model(tmp_path / "teacher", Transformer(ModelConfig(**TEACHER)))
    recipe = write(SENTENCE, f"model: {{{model}}}\n")
    task = {"kind": "distill", "teacher": str(tmp_path / "teacher"), "start": load(start)}
    found = load_recipe(recipe, {"task": task})
    assert found.model == ModelConfig(**TEACHER | {"n_layers": 2} | sizes)
    printed = " ".join(found.notes)
    assert "for the initial weights: model.d_model=16" in printed
    assert ("model.d_ff=24" in printed) == ("d_ff" not in sizes)


@pytest.mark.parametrize("teacher", ["new", "nowhere"])
def test_a_student_with_new_weights_or_without_its_teacher_keeps_its_sizes(
    write, tmp_path, teacher
):
    save_model(tmp_path / "new", Transformer(ModelConfig(**TEACHER)))
    start = "new" if teacher == "new" else "spread"
    own = "model: {preset: gpt2, d_model: 24}\ntrain: {steps: 9, learning_rate: 0.1}\n"
    recipe = write(SENTENCE, own)
    task = {"kind": "distill", "teacher": f"{tmp_path}/{teacher}", "start": start}
    found = load_recipe(recipe, {"task": task})
    assert (found.model.d_model, found.model.n_layers, found.notes) == (24, 12, [])


def test_the_steps_of_a_student_are_those_of_the_data_and_its_rate_that_of_a_new_model(
    write, tmp_path
):
    save_model(tmp_path / "teacher", Transformer(ModelConfig(**TEACHER)))
    task = {"kind": "distill", "teacher": str(tmp_path / "teacher"), "start": "spread"}
    train = load_recipe(write(f"{SENTENCE * 20}\n" * 1_000), {"task": task}).train
    assert (train.steps, train.warmup) == (334, 33)
    assert train.learning_rate == pytest.approx((4000 * 16) ** -0.5, rel=0.05)


def test_a_preset_has_the_sizes_of_the_teacher_whose_layers_it_copies(write, tmp_path):
    save_model(tmp_path / "gpt2", Transformer(ModelConfig(**GPT2_SIZES, **GPT2)))
    task = {"kind": "distill", "teacher": str(tmp_path / "gpt2"), "start": "spread"}
    recipe = write(SENTENCE, "model: {preset: gpt2, max_positions: 8}\n")
    model = load_recipe(recipe, {"task": task}).model
    sizes = GPT2_SIZES | {"n_layers": 2, "max_positions": 8}
    assert {key: getattr(model, key) for key in sizes} == sizes


GPT2_SIZES = {"d_model": 16, "n_layers": 4, "n_heads": 2, "d_ff": 24, "max_positions": 16}
GPT2 = {"shape": "decoder", "positions": "learned", "vocab_size": 20, "norm_placement": "pre"}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", ["masked", "classify"])
@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert", "albert"])
def test_a_model_gets_the_head_of_the_family_of_start_from(write, tmp_path, model_type, kind):
    family = FAMILIES[model_type]
    for name in family.architectures:
        config = family.write(family.read({"architectures": [name]}))
        (tmp_path / "config.json").write_text(
            json.dumps(config | {"model_type": model_type, "architectures": [name]})
        )
        recipe = load_recipe(write("", f"train: {{start_from: {tmp_path}}}\n", kind))
        assert (describe_misfit(recipe.model), recipe.model.n_labels) == ("", 2)
        assert family.fits(recipe.model)


def test_advice_keeps_the_family_of_start_from(tmp_path):
    family = FAMILIES["roberta"]
    config = family.read({"architectures": ["RobertaForMaskedLM"]})
    (tmp_path / "config.json").write_text(
        json.dumps(family.write(config) | {"model_type": "roberta"})
    )
    other = config.model_copy(update={"lm_head_transform": "tanh", "activation": "tanh"})
    assert "position_offset" in describe_misfit(other)  # no longer the positions of the weights
    assert describe_misfit(other, tmp_path).endswith("roberta with model.lm_head_transform=gelu")


def test_the_positions_of_csv_are_those_of_its_records(tmp_path):
    positions = []
    for end in (" ", "\n"):
        text = end.join([SENTENCE] * 20)
        (tmp_path / "a.csv").write_text(
            "text,label\n" + f'"{text}",x\n"{text}",y\n' * 20, encoding="utf-8"
        )
        recipe = tmp_path / "mine.yaml"
        recipe.write_text(
            f"task: {{kind: classify}}\ndata: {{train: {tmp_path / 'a.csv'}}}", encoding="utf-8"
        )
        positions.append(load_recipe(recipe).model.max_positions)
    assert positions[0] == positions[1] > 64
