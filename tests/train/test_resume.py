"""What may differ when a run goes on; what may not is known from its checkpoints, whatever lies beside them."""

from __future__ import annotations

import json
import shutil
from contextlib import chdir
from pathlib import Path

import pytest

from trifold.errors import DataError, SettingsError
from trifold.recipe import load_recipe, recipe_names
from trifold.train import checkpoint, loop, resume, run_folder, train
from trifold.train.run_folder import IDENTITY, RunFolder

pytestmark = pytest.mark.slow
PAIRS = "".join(f"{word} {n}\t{n}\n" for word in ("one", "two", "three") for n in range(20))


@pytest.fixture(scope="module")
def changes(tiny):
    files = {
        "data.train": "pairs.tsv",
        "data.valid": "pairs.tsv",
        "data.test": None,
        "tokenizer.joint": False,
    }
    return tiny | files | {"train.steps": 6, "train.validate_every": 3}


@pytest.fixture(scope="module")
def made(tmp_path_factory, changes):
    """A run that has ended at step 6, one that has gone on to step 9, and what they learn from."""
    folder = tmp_path_factory.mktemp("made")
    with chdir(folder):
        Path("pairs.tsv").write_text(f"source\ttarget\n{PAIRS}", encoding="utf-8", newline="\n")
        train("smoke", out="run", **changes)
        train("smoke", out="whole", **changes | {"train.steps": 9})
    return folder


@pytest.fixture
def run(made, tmp_path, monkeypatch):
    """A copy of the ended run, to be changed; in the present folder."""
    shutil.copytree(made, tmp_path / "made")
    monkeypatch.chdir(tmp_path / "made")
    return Path("run")


@pytest.fixture
def go_on(changes, state_of):
    """Go on with the run to step 9, and compare it with the one that never stopped."""

    def go_on(recipe="smoke", **how):
        more = changes | {"train.steps": 9} if recipe == "smoke" else {"train.steps": 9}
        assert train(recipe, out="run", resume="auto", **more, **how).steps == 9
        ours, theirs = state_of(Path("run")), state_of(Path("whole"))
        return [key for key in theirs if ours[key] != theirs[key]]

    return go_on


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text("utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")


# --- the tokenizer -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tokenizer.json", "target_tokenizer.json"])
def test_a_tokenizer_that_was_changed_is_refused_by_name(run, go_on, name):
    tokens = json.loads((run / "tokenizer" / name).read_text("utf-8"))["model"]["vocab"]
    token = max(tokens, key=len)
    edit(run / "tokenizer" / name, f'"{token}"', f'"{token[:-1]}~"')  # as well-formed as before
    with pytest.raises(DataError, match=rf"tokenizer/{name}: damaged or replaced .* delete run/tokenizer"):
        go_on()


def test_a_tokenizer_that_is_gone_is_made_anew_and_is_the_same(run, go_on):
    shutil.rmtree(run / "tokenizer")
    assert go_on() == []


def test_a_tokenizer_that_is_made_anew_and_is_another_is_refused(run, go_on, monkeypatch):
    shutil.rmtree(run / "tokenizer")
    edit(Path("pairs.tsv"), "three 19", "eight 19")
    with pytest.raises(DataError, match=r"tokenizer/tokenizer\.json: damaged or replaced"):
        go_on(data_changed=True)


# --- the recipe ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("dropout: 0.1", "dropout: 0.3", r"model\.dropout \(0\.1\)"),
        ("seed: 1\n", "seed: 3\n", r"train\.seed \(1\)"),
        ("joint: false", "joint: true", r"tokenizer\.joint \(False\)"),
    ],
)
def test_a_recipe_yaml_that_was_changed_is_refused_by_its_key_and_told_what_was_there(
    run, go_on, old, new, said
):
    edit(run / "recipe.yaml", old, new)
    with pytest.raises(SettingsError, match=rf"run/recipe\.yaml: .* other values of {said}; resume"):
        go_on(run / "recipe.yaml")


def test_what_is_free_may_be_changed_in_it(run, go_on):
    edit(run / "recipe.yaml", "num_beams: 1", "num_beams: 2")
    edit(run / "recipe.yaml", "log_every: 1\n", "log_every: 2\n")
    go_on(run / "recipe.yaml")
    assert load_recipe(run / "recipe.yaml").generate.num_beams == 2


def test_the_right_recipe_goes_on_and_mends_it(run, go_on):
    edit(run / "recipe.yaml", "dropout: 0.1", "dropout: 0.3")
    assert go_on() == []
    assert load_recipe(run / "recipe.yaml").model.dropout == 0.1


@pytest.mark.parametrize("name", recipe_names())
def test_what_a_checkpoint_says_of_a_recipe_is_enough_to_know_it_again(name):
    recipe = load_recipe(name)
    bound = json.loads(
        json.dumps(run_folder._bound_settings(recipe.model_dump(), run_folder.free_settings(recipe)))
    )
    assert resume._original_recipe(bound, recipe) == recipe
    assert "steps" not in bound["train"] and "generate" not in bound
    del bound["train"]["accumulate"]  # a setting that is newer than the run has its usual value in it
    now = recipe.model_copy(update={"train": recipe.train.model_copy(update={"accumulate": 7})})
    usual = resume._original_recipe(bound, now)
    assert [*resume._differences(usual.model_dump(), now.model_dump())] == [("train.accumulate", 1)]


# --- the data ------------------------------------------------------------------------------------------------


def test_the_same_data_read_otherwise_is_refused_unless_told(run, go_on, monkeypatch):
    real = loop.load_data

    def prepare(*arguments):
        prepared = real(*arguments)
        prepared.train = prepared.objective.examples(prepared.bundle.train.select(list(range(50)), "fewer"))
        return prepared

    monkeypatch.setattr(loop, "load_data", prepare)
    with pytest.raises(DataError, match=r"now gives 50 rows, .* gave 60 rows.*--data-changed"):
        go_on()
    go_on(data_changed=True)
    go_on()  # now it is known


@pytest.mark.parametrize("text", [None, "", "{", '{"data.train": 5}'])
def test_data_that_changed_is_noticed_though_data_json_is_lost(run, go_on, text):
    (run / "data.json").unlink() if text is None else (run / "data.json").write_text(text, encoding="utf-8")
    edit(Path("pairs.tsv"), "one 7\t7", "one 7\t8")
    with pytest.raises(DataError, match=r"run/data\.json: missing or damaged, and the data differs"):
        go_on()
    edit(Path("pairs.tsv"), "one 7\t8", "one 7\t7")
    assert go_on() == []


# --- checkpoints from before they said of which run they are --------------------------------------------------


def test_older_checkpoints_are_gone_on_with_and_from_then_on_say_it(run, go_on):
    assert set(RunFolder(run).identity()) == {"recipe", "tokenizer", "data", "rows"}
    for path in checkpoint.list_checkpoints(run / "checkpoints"):
        state = checkpoint.load(path)
        del state.progress[IDENTITY]
        checkpoint.save(run / "checkpoints", state)
    assert RunFolder(run).identity() == {}
    assert go_on() == []
    assert RunFolder(run).identity() == RunFolder(Path("whole")).identity() != {}


def test_what_the_run_is_is_not_read_from_damaged_checkpoints(run):
    newest = checkpoint.list_checkpoints(run / "checkpoints")[-1]
    edit(newest / "progress.json", '"dropout": 0.1', '"dropout": 0.3')
    assert RunFolder(run).identity()["recipe"]["model"]["dropout"] == 0.1
    for path in checkpoint.list_checkpoints(run / "checkpoints"):
        (path / "manifest.json").unlink()
    assert RunFolder(run).identity() == {}
