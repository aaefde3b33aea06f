from __future__ import annotations

import json
import shutil

import pytest
import torch
from tests.train.runs import values_of

from trifold.hub import load_model
from trifold.recipe import load_recipe

FAST = ["train.steps=4", "train.samples=0"]
WORDS = ["good film", "bad film", "good plot", "bad plot", "good end", "bad end"]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A folder with rows, and a classifier of three layers trained on them, bad before good."""
    from tests.command_line import run_command

    folder = tmp_path_factory.mktemp("classifier")
    rows = [f"{text}\t{text.split()[0]}" for text in WORDS * 8]
    (folder / "rows.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n", "utf-8")
    sizes = ["model.d_model=16", "model.n_layers=3", "model.n_heads=2", "model.d_ff=32"]
    done = run_command(
        "train", "classify", f"data.train={folder / 'rows.tsv'}", *sizes, *FAST,
        "--out", str(folder / "teacher"),
    )  # fmt: skip
    assert done.code == 0, done.err
    return folder


@pytest.mark.slow
def test_student_of_a_classifier_copies_everything_but_layers(trifold, classifier, tmp_path):
    teacher = classifier / "teacher"
    done = trifold("distill", str(teacher), *FAST, "--json", "--out", str(tmp_path / "student"))
    assert done.code == 0, done.err
    assert "student: 1 of 3 layers" in done.err
    theirs, ours = json.loads(done.out)["models"]
    student, _ = load_model(tmp_path / "student" / "model")
    model, _ = load_model(teacher / "model")
    assert (student.config.n_layers, model.config.n_layers) == (1, 3) == (ours["layers"], 3)
    different = {"n_layers", "shared_layers", "block_of_layer"}
    assert student.config.model_dump(exclude=different) == model.config.model_dump(
        exclude=different
    )
    assert ours["parameters"] == student.count_parameters() < theirs["parameters"]
    assert theirs["scores"].keys() == ours["scores"].keys() >= {"loss", "accuracy"}
    logged = dict(values_of(teacher, "valid/accuracy"))
    assert theirs["scores"]["accuracy"] in logged.values()  # on the rows that the teacher held out
    recipe = load_recipe(tmp_path / "student")
    assert (recipe.task.soft, recipe.task.hard, recipe.task.cosine) == (5.0, 2.0, 1.0)


def test_soft_targets_of_classes_follow_their_formula(classifier):
    from trifold.objectives.distillation_losses import class_target_loss

    torch.manual_seed(1)
    logits = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    targets = torch.randn(4, 3, dtype=torch.float64)
    p, q = (targets / 2).softmax(-1), (logits / 2).softmax(-1)
    expected = 4 * (p * (p.log() - q.log())).sum()
    torch.testing.assert_close(class_target_loss(logits, targets, 2.0), expected)


@pytest.mark.slow
def test_student_of_a_translator_with_another_width_is_compared(trifold, run, tmp_path):
    arguments = ["--recipe", "minilm", "layers=1", "width=32", *FAST]
    done = trifold("distill", str(run), *arguments, "--out", str(tmp_path / "student"))
    assert done.code == 0, done.err
    assert "student: 1 layers of width 32, with new weights" in done.err
    rows = [line.split() for line in done.out.splitlines()]
    assert rows[0] == ["held-out", "data", "teacher", "student"]
    assert {row[0] for row in rows if row} >= {"parameters", "layers", "ms", "loss", "BLEU"}
    recipe = load_recipe(tmp_path / "student")
    assert recipe.task.relations.weights == {"attention": 1.0, "values": 1.0}
    assert (recipe.model.d_model, recipe.model.n_layers, recipe.task.start) == (32, 1, "new")
    again = trifold("distill", str(run), *arguments, "--out", str(tmp_path / "student"))
    assert again.code == 2 and "contains files" in again.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["layers=9"], "layers=9: the model has 3 layers; choose 1 to 3"),
        (["layers=some"], "layers=some: the model has 3 layers; choose 1 to 3"),
        (["width=9"], "width=9: not a multiple of the 2 heads of the model; choose 8, for example"),
        (
            ["--recipe", "masked"],
            "--recipe masked: trains no student; choose distilbert, minilm or",
        ),
        (["task.soft=0", "task.cosine=0"], "soft, cosine and all relations are 0"),
        (["data.trian=x"], "data.trian: unknown key; did you mean 'train'?"),
    ],
)
def test_impossible_students_are_errors(trifold, classifier, tmp_path, arguments, message):
    done = trifold(
        "distill", str(classifier / "teacher"), *arguments, "--out", str(tmp_path / "student")
    )
    assert done.code in (1, 2) and message in " ".join(done.err.split())


def test_model_without_a_run_needs_data_with_its_labels(trifold, classifier, tmp_path):
    shutil.copytree(classifier / "teacher" / "model", tmp_path / "model")
    done = trifold("distill", str(tmp_path / "model"), "--out", str(tmp_path / "student"))
    assert done.code == 2
    assert "no run, so its training data is unknown; name it" in " ".join(done.err.split())
    rows = (classifier / "rows.tsv").read_text("utf-8").replace("\tbad", "\tpoor")
    (tmp_path / "other.tsv").write_text(rows, "utf-8")
    data = f"data.train={tmp_path / 'other.tsv'}"
    done = trifold(
        "distill", str(tmp_path / "model"), data, *FAST, "--out", str(tmp_path / "student")
    )
    assert done.code == 1
    assert "the label 'poor' is not in model.label_names" in " ".join(done.err.split())
