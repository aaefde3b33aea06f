"""Which changes a resumed run accepts. The checkpoints know the run, whatever the other files
contain.
"""

from __future__ import annotations

import json
import shutil
from contextlib import chdir
from pathlib import Path

import pytest
import torch
from tests.recipes import load_included
from tests.train.runs import TINY, InterruptingView, assert_equal_runs, events_of

from trifold.errors import DataError, SettingsError
from trifold.recipe import Recipe, TrainSettings, load_recipe, recipe_names
from trifold.train import checkpoint, loop, preparation, resume, train
from trifold.train.run_folder import IDENTITY, RunFolder

PAIRS = "".join(f"{word} {n}\t{n}\n" for word in ("one", "two", "three") for n in range(20))
pytestmark = pytest.mark.slow

CHANGES = TINY | {
    "data.train": "pairs.tsv",
    "data.valid": "pairs.tsv",
    "data.test": None,
    "tokenizer.joint": False,
    "train.steps": 6,
    "train.validate_every": 3,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with data, a run of 6 steps and a run of 9 steps."""
    folder = tmp_path_factory.mktemp("runs")
    with chdir(folder):
        Path("pairs.tsv").write_text(f"source\ttarget\n{PAIRS}", encoding="utf-8", newline="\n")
        train("smoke", out="run", **CHANGES)
        train("smoke", out="whole", **CHANGES | {"train.steps": 9})
    return folder


@pytest.fixture
def folder(runs, tmp_path, monkeypatch):
    """A copy of the run of 6 steps, which the test may change, in the current folder."""
    shutil.copytree(runs, tmp_path / "runs")
    monkeypatch.chdir(tmp_path / "runs")
    return Path("run")


def continue_run(recipe="smoke", **options):
    """Continue to step 9."""
    changes = CHANGES if recipe == "smoke" else {}
    steps = train(recipe, out="run", resume="auto", **changes | {"train.steps": 9}, **options).steps
    assert steps == 9


def check_continues():
    """Continue to step 9 with the result of the run of 9 steps."""
    continue_run()
    assert_equal_runs(Path("run"), Path("whole"))


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text("utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")


# --- tokenizer ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tokenizer.json", "target_tokenizer.json"])
def test_changed_tokenizer_is_rejected_by_name(folder, name):
    tokens = json.loads((folder / "tokenizer" / name).read_text("utf-8"))["model"]["vocab"]
    token = max(tokens, key=len)
    edit(folder / "tokenizer" / name, f'"{token}"', f'"{token[:-1]}~"')  # still a valid tokenizer
    with pytest.raises(
        DataError, match=rf"tokenizer/{name}: damaged or replaced .* delete run/tokenizer"
    ):
        continue_run()


def test_missing_tokenizer_is_trained_again(folder):
    shutil.rmtree(folder / "tokenizer")
    check_continues()


def test_missing_tokenizer_is_an_error_if_training_it_gives_another(folder):
    shutil.rmtree(folder / "tokenizer")
    edit(Path("pairs.tsv"), "three 19", "eight 19")
    with pytest.raises(DataError, match=r"tokenizer/tokenizer\.json: damaged or replaced"):
        continue_run(data_changed=True)


# --- recipe ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "before"),
    [
        ("dropout: 0.1", "dropout: 0.3", r"model\.dropout \(0\.1\)"),
        ("seed: 1\n", "seed: 3\n", r"train\.seed \(1\)"),
        ("joint: false", "joint: true", r"tokenizer\.joint \(False\)"),
    ],
)
def test_changed_recipe_error_names_key_and_previous_value(folder, old, new, before):
    edit(folder / "recipe.yaml", old, new)
    with pytest.raises(
        SettingsError, match=rf"run/recipe\.yaml: .* other values of {before}; resume"
    ):
        continue_run(folder / "recipe.yaml")


def test_other_recipe_is_rejected_with_all_keys(run):
    run(train__steps=3, train__validate_every=3)
    changes = {"model__d_ff": 48, "train__beta2": 0.9, "train__optimizer": "muon"}
    with pytest.raises(SettingsError) as error:
        run(resume="auto", train__steps=3, train__validate_every=3, **changes)
    for word in ("model.d_ff", "train.beta2", "train.optimizer", "recipe.yaml", "`out`"):
        assert word in str(error.value)
    assert "d_model" not in str(error.value)


def test_free_settings_may_change_and_are_recorded(run, tmp_path):
    run(train__steps=3, train__validate_every=3)
    free = {
        "train__minutes": 9.0,
        "train__log_every": 2,
        "train__samples": 1,
        "generate__num_beams": 2,
    }
    assert run(resume="auto", train__steps=6, train__validate_every=3, **free).steps == 6
    assert load_recipe(tmp_path / "run" / "recipe.yaml").generate.num_beams == 2


def test_free_settings_may_be_edited_in_the_recipe(folder):
    edit(folder / "recipe.yaml", "num_beams: 1", "num_beams: 2")
    edit(folder / "recipe.yaml", "log_every: 1\n", "log_every: 2\n")
    continue_run(folder / "recipe.yaml")
    assert load_recipe(folder / "recipe.yaml").generate.num_beams == 2


def test_original_recipe_replaces_an_edited_one(folder):
    edit(folder / "recipe.yaml", "dropout: 0.1", "dropout: 0.3")
    check_continues()
    assert load_recipe(folder / "recipe.yaml").model.dropout == 0.1


@pytest.mark.parametrize(
    ("key", "free"),
    [("train.steps", True), ("generate.num_beams", True), ("generated", False), ("train", False)],
)
def test_settings_of_a_free_group_are_free(key, free):
    assert resume.is_free(key, resume.FREE) == free


@pytest.mark.parametrize("name", recipe_names())
def test_recipe_can_be_restored_from_a_checkpoint(name):
    recipe = load_included(name)
    free = resume.free_settings(recipe)
    bound = json.loads(json.dumps(resume._bound_settings(recipe.model_dump(), free)))
    assert Recipe.parse(resume._merge(bound, recipe.model_dump())) == recipe
    assert "steps" not in bound["train"] and "generate" not in bound
    del bound["train"][
        "accumulate"
    ]  # as if the setting were newer than the run: the default applies
    current = recipe.model_copy(update={"train": recipe.train.model_copy(update={"accumulate": 7})})
    original = Recipe.parse(resume._merge(bound, current.model_dump()))
    assert [*resume._differences(original.model_dump(), current.model_dump())] == [
        ("train.accumulate", 1)
    ]


# --- schedule and environment ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (
            "linear",
            "train.steps changed from 3 to 6: the linear schedule now ends at step 6, so the "
            "learning rate jumps here, from 0% to 40% of its peak",
        ),
        ("constant", "does not depend on the number of steps"),
        ("inverse-sqrt", "does not depend on the number of steps"),
    ],
)
def test_effect_of_more_steps_on_the_schedule_is_reported(run, recorder, schedule, message):
    run(train__steps=3, train__schedule=schedule, train__warmup=1)
    run(resume="auto", view=recorder, train__steps=6, train__schedule=schedule, train__warmup=1)
    assert any(message in line for line in recorder.lines)


LINEAR = TrainSettings(schedule="linear", steps=1864, warmup=186)
STABLE = TrainSettings(schedule="warmup-stable-decay", steps=1000, warmup=100, decay=0.2)
CHANGED_STEPS = {
    "in the warmup": (
        LINEAR,
        230,
        51,
        ["now ends at step 230", "stays 186, which is 81% of 230 steps"],
    ),
    "in the decay": (LINEAR, 230, 201, ["jumps here, from 99% to 66% of its peak"]),
    "more steps": (LINEAR, 2000, 201, ["now ends at step 2,000"]),
    "a short warmup": (LINEAR, 900, 900, ["jumps here, from 57% to 0% of its peak"]),
    "before the decay": (STABLE, 2000, 700, ["now ends at step 2,000"]),
    "after the decay began": (STABLE, 2000, 901, ["jumps here, from 50% to 100% of its peak"]),
    "the same number": (LINEAR, 1864, 201, []),
}


@pytest.mark.parametrize("case", CHANGED_STEPS)
def test_other_steps_say_whether_the_rate_jumps_and_whether_the_warmup_is_long(case):
    before, steps, step, expected = CHANGED_STEPS[case]
    now = before.model_copy(update={"steps": steps})
    lines = [*resume._schedule_changes(before, now, step)]
    assert len(lines) == len(expected)
    for line, words in zip(lines, expected, strict=True):
        assert words in line
        assert ("jumps" in line) == ("jumps" in words)


def test_a_run_that_continues_changes_nothing_before_its_first_step(folder, monkeypatch):
    files = [folder / "recipe.yaml", folder / "environment.json"]
    before = [file.read_bytes() for file in files]

    def stop(session):
        raise BrokenPipeError

    monkeypatch.setattr(loop.Run, "report_start", stop)
    with pytest.raises(BrokenPipeError):
        continue_run()
    assert [file.read_bytes() for file in files] == before


def test_more_steps_before_the_decay_equal_a_longer_run(run, recorder, tmp_path):
    changes = {"train__schedule": "warmup-stable-decay", "train__warmup": 1, "train__decay": 3}
    run(view=InterruptingView(5), train__steps=9, **changes)
    run(resume="auto", view=recorder, train__steps=12, **changes)
    run("long", train__steps=12, **changes)
    message = "changed from 9 to 12: the warmup-stable-decay schedule now ends"
    assert any(message in line for line in recorder.lines)
    assert_equal_runs(tmp_path / "run", tmp_path / "long")


def test_other_threads_and_versions_are_reported(run, tmp_path, recorder):
    run(train__steps=3)
    file = tmp_path / "run" / "environment.json"
    environment = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps(environment | {"torch": "1.0", "threads": 64}), encoding="utf-8")
    run(resume="auto", view=recorder, train__steps=6)
    (line,) = (line for line in recorder.lines if "may differ in the last bits" in line)
    assert f"torch changed from 1.0 to {torch.__version__}" in line
    assert f"threads changed from 64 to {torch.get_num_threads()}" in line


# --- data -----------------------------------------------------------------------------------------


def test_changed_data_is_rejected_by_name_unless_confirmed(folder, recorder):
    edit(Path("pairs.tsv"), "one 7\t7", "one 7\t8")
    with pytest.raises(DataError, match=r"pairs\.tsv: the content has changed .*data_changed=True"):
        continue_run()
    train("smoke", out="run", resume="auto", data_changed=True, view=recorder, **CHANGES)
    continue_run()
    assert events_of(folder) == [(6, "data changed")]  # though that session had no step
    continue_run()


def test_other_rows_from_the_same_files_are_rejected_unless_confirmed(folder, monkeypatch):
    real = preparation.load_data

    def load_fewer(*arguments):
        data = real(*arguments)
        data.train = data.objective.examples(data.bundle.train.select(list(range(50)), "fewer"))
        return data

    monkeypatch.setattr(preparation, "load_data", load_fewer)
    with pytest.raises(DataError, match=r"now gives 50 rows, .* gave 60 rows.*data_changed=True"):
        continue_run()
    continue_run(data_changed=True)
    continue_run()


@pytest.mark.parametrize("text", [None, "", "{", '{"data.train": 5}'])
def test_changed_data_is_detected_without_data_json(folder, text):
    if text is None:
        (folder / "data.json").unlink()
    else:
        (folder / "data.json").write_text(text, encoding="utf-8")
    edit(Path("pairs.tsv"), "one 7\t7", "one 7\t8")
    with pytest.raises(
        DataError, match=r"run/data\.json: missing or damaged, and the data differs"
    ):
        continue_run()
    edit(Path("pairs.tsv"), "one 7\t8", "one 7\t7")
    check_continues()


# --- older and damaged runs -----------------------------------------------------------------------


def test_checkpoints_without_identity_are_continued_and_receive_one(folder):
    assert set(RunFolder(folder).identity()) == {"recipe", "tokenizer", "data", "rows", "labels"}
    for path in checkpoint.list_checkpoints(folder / "checkpoints"):
        state = checkpoint.load(path)
        del state.progress[IDENTITY]
        checkpoint.save(folder / "checkpoints", state)
    assert RunFolder(folder).identity() == {}
    check_continues()
    assert RunFolder(folder).identity() == RunFolder(Path("whole")).identity() != {}


def test_identity_is_not_read_from_damaged_checkpoints(folder):
    newest = checkpoint.list_checkpoints(folder / "checkpoints")[-1]
    edit(newest / "progress.json", '"dropout": 0.1', '"dropout": 0.3')
    assert RunFolder(folder).identity()["recipe"]["model"]["dropout"] == 0.1
    for path in checkpoint.list_checkpoints(folder / "checkpoints"):
        (path / "manifest.json").unlink()
    assert RunFolder(folder).identity() == {}
