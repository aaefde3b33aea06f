"""Training runs of a student and its teacher: laws of a run, loss terms, errors."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch
from tests.train.runs import InterruptingView, RecordingView, assert_equal_runs, values_of
from torch.nn import functional as F

from trifold.errors import SettingsError
from trifold.hub import load_model
from trifold.nn import ModelConfig, Transformer
from trifold.objectives.distill import DistillSettings
from trifold.objectives.distillation_losses import evenly_spaced
from trifold.recipe import load_recipe
from trifold.train import train
from trifold.train.data import load_data
from trifold.train.initial_weights import new_model

pytestmark = pytest.mark.slow

DECODER = {
    "shape": "decoder", "positions": "learned", "norm_placement": "pre", "scale_embeddings": False,
    "d_model": 16, "n_heads": 2, "n_layers": 4, "d_ff": 32, "max_positions": 16, "dropout": 0.0,
}  # fmt: skip
ENCODER = DECODER | {
    "shape": "encoder", "norm_placement": "post", "heads": ["lm"], "lm_head_transform": "gelu", "lm_head_bias": True,
}  # fmt: skip
RELATIONS = {"attention": 1.0, "values": 1.0, "queries": 0.5, "keys": 0.5}
TRAIN = {
    "schedule": "constant", "learning_rate": 0.01, "warmup": 4, "precision": "float32", "device": "cpu",
    "steps": 12, "validate_every": 6, "save_every": 3, "keep_last": 4, "log_every": 1, "samples": 1,
}  # fmt: skip
TOKENIZER = {"kind": "word", "vocab_size": 40, "special": ["cls", "sep", "mask"]}
KINDS = {"causal": DECODER, "masked": ENCODER}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Recipes of a teacher and a student for each kind of task, and a text that follows a rule."""
    folder, rng = tmp_path_factory.mktemp("distilling"), random.Random(5)
    next_word = {"sun": "rain", "rain": "snow", "snow": "hail", "hail": "fog", "fog": "sun"}
    lines = []
    for _ in range(80):
        words = [rng.choice(list(next_word))]
        while len(words) < 9:
            words.append(next_word[words[-1]])
        lines.append(" ".join(words))
    (folder / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    shared = {
        "tokenizer": TOKENIZER, "train": TRAIN, "batch": {"tokens": 128}, "generate": {"max_new_tokens": 4},
        "data": {"train": str(folder / "text.txt"), "holdout": 0.2},
    }  # fmt: skip
    for kind, model in KINDS.items():
        task = {
            "kind": "distill", "of": {"kind": kind}, "teacher": str(folder / f"{kind}-teacher"), "start": "spread",
            "relations": RELATIONS,
        }  # fmt: skip
        recipes = {
            f"{kind}-teacher": {"task": {"kind": kind}, "model": model},
            f"{kind}-student": {
                "task": task,
                "model": model | {"n_layers": 2},
                "tokenizer": {"kind": "char"},
            },
        }
        for name, values in recipes.items():
            (folder / f"{name}.yaml").write_text(json.dumps(shared | values), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def student(folder):
    """The recipe of a student; its teacher is trained at first use."""

    def student(kind):
        if not (folder / f"{kind}-teacher").exists():
            steps = {"train.steps": 60, "train.validate_every": 60, "train.save_every": 60}
            train(folder / f"{kind}-teacher.yaml", out=folder / f"{kind}-teacher", **steps)
        return folder / f"{kind}-student.yaml"

    return student


@pytest.mark.parametrize("kind", KINDS)
def test_resumed_run_equals_uninterrupted_run(student, tmp_path, kind):
    train(student(kind), out=tmp_path / "whole")
    outcome = train(student(kind), out=tmp_path / "parts", view=InterruptingView(7))
    assert outcome.stopped_by == "signal"
    train(student(kind), out=tmp_path / "parts", resume="auto")
    assert_equal_runs(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.parametrize("kind", KINDS)
def test_loss_falls_and_the_student_approaches_its_teacher(student, tmp_path, kind):
    changes = {
        "train.steps": 40,
        "train.validate_every": 20,
        "train.save_every": 20,
        "task.start": "new",
    }
    train(student(kind), out=tmp_path / "run", **changes)
    losses = [loss for _, loss in values_of(tmp_path / "run", "valid/loss")]
    assert losses[-1] < losses[0]
    if kind == "causal":
        assert losses[-1] < 1.0  # nats; there are five words
    data = load_data(load_recipe(student(kind), changes), tmp_path / "again", RecordingView())
    batch = data.objective.batch(data.train, np.arange(9))
    trained, _ = load_model(tmp_path / "run" / "model")
    with torch.no_grad():
        before, after = (
            data.objective.loss(model.eval(), batch) for model in (new_model(data), trained)
        )
    for name in ("soft", "cosine"):
        assert float(after[name].sum) < 0.7 * float(before[name].sum)


@pytest.mark.parametrize("kind", KINDS)
def test_workers_do_not_change_the_scores(student, tmp_path, kind):
    one, two = (
        train(student(kind), out=tmp_path / str(workers), **{"train.workers": workers})
        for workers in (1, 2)
    )
    assert one.scores == pytest.approx(two.scores, rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_loss_terms_follow_their_formulas(student, tmp_path, kind):
    """Weights, counts and sums, from all logits and states."""
    recipe = load_recipe(student(kind), {"task.soft": 3.0, "task.hard": 0.5})
    data = load_data(recipe, tmp_path, RecordingView())
    task, model = data.objective, new_model(data).eval()
    batch = task.batch(data.train, np.arange(5), draw=3)
    counts, terms = task.counts(batch), task.loss(model, batch)
    real = batch.inputs.packing.n_real
    assert counts == {name: term.count for name, term in terms.items()}
    assert counts == {"tokens": batch.tokens} | dict.fromkeys(["soft", "cosine", *RELATIONS], real)
    weights = {name: term.weight for name, term in terms.items()}
    assert weights == {"tokens": 0.5, "soft": 3.0, "cosine": 1.0} | RELATIONS
    plain = task.objective.loss(model, batch)["tokens"]
    torch.testing.assert_close(terms["tokens"].sum, plain.sum)
    teacher = task._teacher
    ours, theirs = (each(batch.inputs)[0, :real] for each in (model, teacher))
    p, q = ((each.lm_head(h) / 2.0).softmax(-1) for each, h in ((teacher, theirs), (model, ours)))
    torch.testing.assert_close(
        terms["soft"].sum, 4 * (p * (p / q).log()).sum(), rtol=1e-3, atol=1e-4
    )
    expected = (1 - F.cosine_similarity(ours, theirs)).sum()
    torch.testing.assert_close(terms["cosine"].sum, expected, rtol=1e-3, atol=1e-4)
    sum((term.sum for term in terms.values()), torch.zeros(())).backward()
    assert all(p.grad is None for p in teacher.parameters())


def test_loss_terms_are_zero_for_a_copy_of_the_teacher(student, tmp_path):
    recipe = load_recipe(student("causal"), {"model.n_layers": 4, "task.start": "spread"})
    data = load_data(recipe, tmp_path, RecordingView())
    batch = data.objective.batch(data.train, np.arange(4))
    terms = data.objective.loss(new_model(data).eval(), batch)
    for name in ("soft", "cosine", *RELATIONS):
        assert float(terms[name].sum.detach()) == pytest.approx(0, abs=1e-3), name
    assert float(terms["tokens"].sum.detach()) > 0


def test_student_starts_with_tokenizer_and_layers_of_the_teacher(student, tmp_path):
    view = RecordingView()
    data = load_data(load_recipe(student("causal")), tmp_path, view)
    teacher = data.objective._teacher
    assert data.config.vocab_size == teacher.config.vocab_size
    assert any("that of the teacher" in line and "causal-teacher" in line for line in view.lines)
    ours, theirs = (dict(model.named_parameters()) for model in (new_model(data), teacher))
    for ours_layer, layer in enumerate(evenly_spaced(2, 4)):
        name = "feed_forward.sublayer.in_proj.weight"
        assert torch.equal(
            ours[f"decoder.blocks.{ours_layer}.{name}"], theirs[f"decoder.blocks.{layer}.{name}"]
        )


REJECTED = [
    ({"model.d_model": 8}, r"task\.cosine=0, or model\.d_model=16"),
    (
        {"model.d_model": 8, "task.cosine": 0.0, "task.start": "spread"},
        r"task\.start: the teacher has no",
    ),
    ({"task.start": [0, 9]}, r"task\.start: .*layers \(0, 9\)"),
    ({"model.n_heads": 4}, r"the student has 4 heads, the teacher 2"),
    ({"task.relations.heads": 3}, r"3 does not divide the width 16"),
    ({"task.relations.teacher_layer": 4}, r"0 to 3"),
    (
        {"model.attention": "spans"},
        r"task\.relations cannot compare attention: spans of the student; omit it",
    ),
    (
        {"model.attention": "elu"},
        r"task\.relations cannot compare attention: elu of the student; omit it",
    ),
    (
        {"model.residual": "reversible", "model.tie_lm_head": False},
        r"compare residual: reversible of the student",
    ),
    (
        {"model.positions": "none", "model.recurrence": {"size": 4, "reach": 2}},
        r"compare recurrence of the student",
    ),
    ({"model.max_positions": 32}, r"model\.max_positions=16"),
    ({"model.shape": "encoder"}, "does not support task.kind: causal"),
    (
        {"task.soft": 0.0, "task.cosine": 0.0, "task.relations": {}},
        "the teacher would have no effect",
    ),
    ({"task.of": {"kind": "permutation"}}, r"task\.of: kind 'permutation' is not known"),
]


@pytest.mark.parametrize(("changes", "message"), REJECTED)
def test_unsuitable_students_are_rejected(student, tmp_path, changes, message):
    with pytest.raises(SettingsError, match=message):
        new_model(load_data(load_recipe(student("causal"), changes), tmp_path, RecordingView()))


def test_relations_of_other_keys_are_rejected():
    base, latent = ModelConfig(shape="decoder"), {"width": 8, "d_rotary": 4, "d_value": 8}
    other = ModelConfig(shape="decoder", positions="rotary", latent=latent)
    settings = DistillSettings(teacher="t", relations={"values": 1.0})
    for student, teacher, who in ((other, base, "student"), (base, other, "teacher")):
        with torch.device("meta"):
            found = next(settings._mismatches(student, Transformer(teacher)))
        assert found == f"task.relations cannot compare latent of the {who}; omit it"
