"""A student beside its teacher: whole runs, their laws, what a loss is made of, what is refused."""

from __future__ import annotations

import json
import random
from copy import deepcopy

import numpy as np
import pytest
import torch
import yaml
from torch.nn import functional as F

from trifold.errors import SettingsError
from trifold.hub import load_model
from trifold.nn.distillation import evenly_spaced
from trifold.recipe import load_recipe
from trifold.train import train
from trifold.train.data import load_data

pytestmark = pytest.mark.slow

WRITER = {
    "shape": "decoder", "positions": "learned", "norm_placement": "pre", "scale_embeddings": False,
    "d_model": 16, "n_heads": 2, "n_layers": 4, "d_ff": 32, "max_positions": 16, "dropout": 0.0,
}  # fmt: skip
READER = WRITER | {
    "shape": "encoder", "norm_placement": "post", "heads": ["lm"], "lm_head_transform": "gelu", "lm_head_bias": True,
}  # fmt: skip
RELATIONS = {"attention": 1.0, "values": 1.0, "queries": 0.5, "keys": 0.5}
TRAIN = {
    "schedule": "constant", "learning_rate": 0.01, "warmup": 4, "precision": "float32", "device": "cpu",
    "steps": 12, "validate_every": 6, "save_every": 3, "keep_last": 4, "log_every": 1, "samples": 1,
}  # fmt: skip
TOKENIZER = {"kind": "word", "vocab_size": 40, "special": ["cls", "sep", "mask"]}
KINDS = {"causal": WRITER, "masked": READER}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Recipes of a teacher and of its student, for each kind of task, beside a text that follows a rule."""
    folder, draw = tmp_path_factory.mktemp("distilling"), random.Random(5)
    follows = {"sun": "rain", "rain": "snow", "snow": "hail", "hail": "fog", "fog": "sun"}
    lines = []
    for _ in range(80):
        words = [draw.choice(list(follows))]
        while len(words) < 9:
            words.append(follows[words[-1]])
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
            (folder / f"{name}.yaml").write_text(yaml.safe_dump(deepcopy(shared | values)), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def taught(folder):
    """The recipe of a student whose teacher has learnt."""

    def recipe(kind):
        if not (folder / f"{kind}-teacher").exists():
            steps = {"train.steps": 60, "train.validate_every": 60, "train.save_every": 60}
            train(folder / f"{kind}-teacher.yaml", out=folder / f"{kind}-teacher", **steps)
        return folder / f"{kind}-student.yaml"

    return recipe


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_is_bit_equal_to_one_that_never_stopped(taught, interrupting, state_of, tmp_path, kind):
    train(taught(kind), out=tmp_path / "whole")
    outcome = train(taught(kind), out=tmp_path / "parts", view=interrupting(7))
    assert outcome.stopped_by == "signal"
    train(taught(kind), out=tmp_path / "parts", resume="auto")
    ours, theirs = state_of(tmp_path / "parts"), state_of(tmp_path / "whole")
    assert [key for key in theirs if ours[key] != theirs[key]] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_students_loss_falls_and_it_comes_closer_to_its_teacher(taught, listening, tmp_path, kind):
    changes = {"train.steps": 40, "train.validate_every": 20, "train.save_every": 20, "task.start": "new"}
    train(taught(kind), out=tmp_path / "run", **changes)
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()
    ]
    losses = [line["valid/loss"] for line in lines if "valid/loss" in line]
    assert losses[-1] < losses[0]
    if kind == "causal":
        assert losses[-1] < 1.0  # nats; there are five words to choose from
    prepared = load_data(load_recipe(taught(kind), changes), tmp_path / "again", listening)
    batch, (learnt, _) = (
        prepared.objective.batch(prepared.train, np.arange(9)),
        load_model(tmp_path / "run" / "model"),
    )
    with torch.no_grad():
        new, after = (
            prepared.objective.loss(model.eval(), batch) for model in (prepared.new_model(), learnt)
        )
    for name in ("soft", "cosine"):
        assert float(after[name].sum) < 0.7 * float(new[name].sum)


@pytest.mark.parametrize("kind", KINDS)
def test_workers_share_a_batch_and_a_teacher(taught, tmp_path, kind):
    one, two = (
        train(taught(kind), out=tmp_path / str(workers), **{"train.workers": workers}) for workers in (1, 2)
    )
    assert one.scores == pytest.approx(two.scores, rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_students_terms_are_those_of_the_formulas(taught, listening, tmp_path, kind):
    """Weights, counts and sums of every term, by whole logits and states."""
    prepared = load_data(load_recipe(taught(kind), {"task.soft": 3.0, "task.hard": 0.5}), tmp_path, listening)
    task, model = prepared.objective, prepared.new_model().eval()
    batch = task.batch(prepared.train, np.arange(5), draw=3)
    counts, terms = task.counts(batch), task.loss(model, batch)
    real = batch.inputs.packing.real
    assert counts == {name: term.count for name, term in terms.items()}
    assert counts == {"tokens": batch.tokens} | dict.fromkeys(["soft", "cosine", *RELATIONS], real)
    weights = {name: term.weight for name, term in terms.items()}
    assert weights == {"tokens": 0.5, "soft": 3.0, "cosine": 1.0} | RELATIONS
    plain = task.objective.loss(model, batch)["tokens"]
    torch.testing.assert_close(terms["tokens"].sum, plain.sum)
    teacher = task._teacher
    mine, theirs = (made(batch.inputs)[0, :real] for made in (model, teacher))
    p, q = ((made.lm_head(h) / 2.0).softmax(-1) for made, h in ((teacher, theirs), (model, mine)))
    torch.testing.assert_close(terms["soft"].sum, 4 * (p * (p / q).log()).sum(), rtol=1e-3, atol=1e-4)
    expected = (1 - F.cosine_similarity(mine, theirs)).sum()
    torch.testing.assert_close(terms["cosine"].sum, expected, rtol=1e-3, atol=1e-4)
    sum((term.sum for term in terms.values()), torch.zeros(())).backward()
    assert all(p.grad is None for p in teacher.parameters())


def test_a_student_of_every_layer_that_begins_as_its_teacher_has_nothing_to_learn_from_it(
    taught, listening, tmp_path
):
    recipe = load_recipe(taught("causal"), {"model.n_layers": 4, "task.start": "spread"})
    prepared = load_data(recipe, tmp_path, listening)
    batch = prepared.objective.batch(prepared.train, np.arange(4))
    terms = prepared.objective.loss(prepared.new_model().eval(), batch)
    for name in ("soft", "cosine", *RELATIONS):
        assert float(terms[name].sum.detach()) == pytest.approx(0, abs=1e-3), name
    assert float(terms["tokens"].sum.detach()) > 0


def test_a_student_reads_with_the_teachers_tokenizer_and_begins_as_its_layers(taught, listening, tmp_path):
    prepared = load_data(load_recipe(taught("causal")), tmp_path, listening)
    teacher = prepared.objective._teacher
    assert prepared.config.vocab_size == teacher.config.vocab_size
    assert any("that of the teacher" in line for line in listening.lines)
    begun = dict(prepared.new_model().named_parameters())
    learnt = dict(teacher.named_parameters())
    for mine, layer in enumerate(evenly_spaced(2, 4)):
        name = "feed_forward.sublayer.in_proj.weight"
        assert torch.equal(begun[f"decoder.blocks.{mine}.{name}"], learnt[f"decoder.blocks.{layer}.{name}"])


REFUSED = [
    ({"model.d_model": 8}, r"task\.cosine=0, or model\.d_model=16"),
    ({"model.d_model": 8, "task.cosine": 0.0, "task.start": "spread"}, r"task\.start: the teacher has no"),
    ({"task.start": [0, 9]}, r"task\.start: .*layers \(0, 9\)"),
    ({"model.n_heads": 4}, r"the student has 4 heads, the teacher 2"),
    ({"task.relations.heads": 3}, r"3 does not divide the width 16"),
    ({"task.relations.teacher_layer": 4}, r"0 to 3"),
    ({"model.max_positions": 32}, r"model\.max_positions=16"),
    ({"model.shape": "encoder"}, "does not support task.kind: causal"),
    ({"task.soft": 0.0, "task.cosine": 0.0, "task.relations": {}}, "the teacher would have no effect"),
    ({"task.of": {"kind": "translate"}}, r"task\.of: kind 'translate' is not known"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_does_not_fit_is_refused(taught, listening, tmp_path, changes, message):
    with pytest.raises(SettingsError, match=message):
        load_data(load_recipe(taught("causal"), changes), tmp_path, listening).new_model()
