"""A first stage, such as masked pretraining on the texts of a task, then the task: ordinary runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.train.runs import InterruptingView, RecordingView

from trifold import train
from trifold.errors import SettingsError
from trifold.objectives.objective import BuildContext
from trifold.recipe import load_recipe
from trifold.train.run_folder import PRETRAINED
from trifold.train.stages import pretrain

ROOT = Path(__file__).resolve().parents[2]
SIZES = {
    "model.d_model": 16, "model.n_heads": 2, "model.n_layers": 1, "model.d_ff": 16, "model.max_positions": 32,
    "train.steps": 4, "train.warmup": 1, "train.validate_every": 4, "train.save_every": 2, "train.device": "cpu",
    "train.precision": "float32", "train.log_every": 1, "batch.tokens": 128, "tokenizer.vocab_size": 60,
}  # fmt: skip
WORDS = "red green blue small large warm".split()
ROWS = {
    "classify": [{"text": f"{a} {b}", "label": a} for a in WORDS for b in WORDS],
    "tag": [{"words": [a, b], "tags": ["B-X", "O"]} for a in WORDS for b in WORDS],
    "answer": [
        {
            "question": f"{a} or {b} ?",
            "context": f"it is {b}",
            "answers": [{"text": b, "answer_start": 6}],
        }
        for a in WORDS
        for b in WORDS
    ],
}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """The tiny recipe of a task on its rows, of which a sixth is held out."""
    folder = tmp_path_factory.mktemp("rows")

    def recipe(kind="classify", **changes):
        file = folder / f"{kind}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in ROWS[kind]), encoding="utf-8")
        data = {"data.train": str(file), "data.holdout": 6}
        return load_recipe(
            kind, SIZES | data | {key.replace("__", "."): each for key, each in changes.items()}
        )

    return recipe


@pytest.mark.slow
@pytest.mark.parametrize("kind", ROWS)
def test_both_stages_equal_two_runs_by_hand(recipe, tmp_path, monkeypatch, kind):
    (tmp_path / "hand").mkdir()
    (tmp_path / "one").mkdir()
    monkeypatch.chdir(tmp_path / "one")
    train(
        recipe(kind, pretrain={"train": {"steps": 6}, "task": {"rate": 0.3}}),
        out="run",
        view=RecordingView(),
    )
    monkeypatch.chdir(tmp_path / "hand")
    first = {
        "task": {"kind": "masked", "texts_of": kind, "rate": 0.3},
        "train.steps": 6,
        "model.heads": None,
        "model.linear_path": None,
    }
    Path("task.yaml").write_text(recipe(kind).resolved(), encoding="utf-8")
    train("task.yaml", out="run/pretrained", view=RecordingView(), **first)
    own = {"start_from": "run/pretrained/model", "tokenizer.file": "run/pretrained/model"}
    train("task.yaml", out="run", view=RecordingView(), resume="auto", **own)
    for stage in (f"run/{PRETRAINED}", "run"):
        ours, theirs = (tmp_path / name / stage / "model" for name in ("one", "hand"))
        for file in ("model.safetensors", "tokenizer.json"):
            assert (ours / file).read_bytes() == (theirs / file).read_bytes(), stage


def test_a_stage_of_another_task_has_its_own_settings_and_may_have_a_stage(recipe, tmp_path):
    first = {"task": {"kind": "tag"}, "model": {"heads": ["token"]}, "train": {"steps": 3}}
    nested = {
        "task": {"kind": "embed", "scale": 7},
        "pretrain": first,
        "model": {"heads": ["pooler"]},
    }
    stages = []

    def run(recipe, out):
        stages.append((recipe, out))

    outer = recipe("answer", task__stride=4, pretrain=nested)
    _, last = pretrain(outer, tmp_path, RecordingView(), run)
    pretrain(stages[0][0], stages[0][1], RecordingView(), run)
    (second, folder), (deepest, _) = stages
    assert (second.task.kind, second.task.scale, second.model.heads) == ("embed", 7, ("pooler",))
    assert (deepest.task.kind, deepest.model.heads, deepest.train.steps) == ("tag", ("token",), 3)
    assert (last.task, last.pretrain, last.start_from) == (outer.task, None, str(folder / "model"))


@pytest.fixture(scope="module")
def uninterrupted(recipe, tmp_path_factory):
    """A recipe with a first stage, and its run."""
    both, folder = recipe(pretrain={"train": {"steps": 5}}), tmp_path_factory.mktemp("both")
    train(both, out=folder, resume="auto", view=RecordingView())
    return both, folder


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2])
def test_an_interrupted_stage_continues_with_the_same_command(uninterrupted, tmp_path, stage):
    both, expected = uninterrupted
    at = {1: 3, 2: 2}[stage]

    class Interrupting(InterruptingView):
        stages = 0

        def begin(self, total, done=0):
            self.stages += 1
            self.at = at if self.stages == stage else -1

    stopped = train(both, out=tmp_path / "a", view=Interrupting(-1))
    assert (stopped.exit_code, (tmp_path / "a" / "recipe.yaml").exists()) == (143, stage == 2)
    view = RecordingView()
    assert train(both, out=tmp_path / "a", resume="auto", view=view).finished
    assert (
        f"pretraining in {tmp_path / 'a' / PRETRAINED}; repeat with --resume auto to continue"
        in view.lines
    )
    assert (tmp_path / "a/model/model.safetensors").read_bytes() == (
        expected / "model/model.safetensors"
    ).read_bytes()


def test_the_first_stage_reads_the_texts_of_training_rows_only(recipe, tmp_path):
    folder = tmp_path / "tokenizer"
    chosen = recipe("answer")
    lines = []
    task = load_recipe("mlm-plain", {"data.train": "x"}).task.model_copy(
        update={"texts_of": "answer"}
    )
    context = BuildContext(
        chosen.data,
        chosen.tokenizer,
        chosen.model,
        chosen.batch,
        chosen.train.seed,
        folder,
        lines.append,
    )
    train_rows, valid_rows = context.read(task.read)
    texts = task.texts(train_rows).texts
    assert len(texts) == len({*texts}) and {*texts} == {
        *train_rows.columns["context"],
        *train_rows.columns["question"],
    }
    assert len(valid_rows) == 6 and not {*valid_rows.columns["question"]} & {*texts}


def test_other_tasks_have_no_first_stage(tmp_path):
    recipe = load_recipe("smoke", {"pretrain": {}})
    with pytest.raises(
        SettingsError, match=r"pretrain: requires task\.kind classify, tag or answer, not translate"
    ):
        train(recipe, out=tmp_path / "run", view=RecordingView())
    assert not (tmp_path / "run").exists()


def test_wrong_keys_are_reported_before_training(recipe, tmp_path):
    with pytest.raises(SettingsError, match=r"task\.rat: unknown key"):
        train(recipe(pretrain={"task": {"rat": 0.1}}), out=tmp_path / "run", view=RecordingView())


@pytest.mark.parametrize(
    ("name", "file", "program"),
    [
        ("stsb", "pairs.tsv", "translation_pairs.py"),
        ("squad-subset", "cloze.json", "cloze_questions.py"),
        ("mrpc", "sts.tsv", "changed_sentences.py"),
    ],
)
def test_the_program_is_named_that_makes_the_data_of_a_first_stage(
    name, file, program, tmp_path, monkeypatch
):
    """Before anything is trained, and the program is there and says the same."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError) as error:
        train(name, out=tmp_path / "run", view=RecordingView())
    assert not (tmp_path / "run").exists()
    message = str(error.value)
    assert message.startswith(f"pretrain: {file} is not here; `python examples/{program} ")
    assert "pretrain=null" in message
    command = message.split("`")[1]
    assert command in (ROOT / "examples" / program).read_text("utf-8")
