"""`trifold compare`: scores as in `trifold eval`, differences, and models that cannot be compared."""

from __future__ import annotations

import json
import shutil

import pytest
from tests.cli.kinds_of_runs import Runs
from tests.command_line import TINY, run_command

from trifold.cli.compare import UNDECIDED, verdict
from trifold.scores.bootstrap import Difference

pytestmark = pytest.mark.slow

CLASSIFY = (
    "task: {kind: classify}\ntokenizer: {kind: word, vocab_size: 60, special: [cls, sep, mask]}\n"
    "model: {shape: encoder, d_model: 16, n_heads: 2, n_layers: 1, d_ff: 32, max_positions: 32, heads: [sequence], "
    "classifier_input: first}\ntrain: {steps: 4, warmup: 1, validate_every: 4, save_every: 4, device: cpu}\n"
)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("kinds"))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A run of the recipe `smoke` that differs from `run`."""
    folder = tmp_path_factory.mktemp("runs") / "other"
    done = run_command("train", "smoke", *TINY.split(), "--out", str(folder))
    assert done.code == 0, done.err
    return folder


@pytest.fixture(scope="module")
def classifiers(tmp_path_factory):
    """Two classifiers of one validation set, and that file."""
    here = tmp_path_factory.mktemp("classify")
    rows = [
        f"{'sunny' if n % 3 else 'rainy'} day {n % 7}\t{'good' if n % 3 else 'bad'}"
        for n in range(60)
    ]
    (here / "a.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")
    (here / "r.yaml").write_text(CLASSIFY, encoding="utf-8")
    data = [f"data.train={here}/a.tsv", f"data.valid={here}/a.tsv"]
    for seed in (1, 2):
        out = ["--out", str(here / str(seed))]
        done = run_command("train", str(here / "r.yaml"), *data, f"train.seed={seed}", *out)
        assert done.code == 0, done.err
    return here / "1", here / "2", here / "a.tsv"


def compare(*arguments):
    done = run_command("compare", *map(str, arguments), "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def evaluate(*arguments):
    return json.loads(run_command("eval", *map(str, arguments), "--json").out)


def test_translations_have_the_scores_of_eval(run, other):
    found, reports = compare(run, other), [evaluate(model) for model in (run, other)]
    assert (found["examples"], found["samples"]) == (reports[0]["sentences"], 10_000)
    for name, score in found["scores"].items():
        values = [report["scores"][name]["value"] for report in reports]
        assert [score["a"], score["b"]] == pytest.approx(values)
        assert score["difference"] == pytest.approx(values[1] - values[0])
        assert score["low"] <= score["high"]


def test_a_run_that_has_not_ended_is_named(classifiers, tmp_path):
    shutil.copytree(classifiers[1], tmp_path / "killed")
    (tmp_path / "killed" / "environment.json").write_text('{"sessions": [{}]}', "utf-8")
    models = (classifiers[0], tmp_path / "killed")
    done = run_command("compare", *map(str, models), "--samples", "100")
    assert done.code == 0
    assert "killed is stopped at step 4; its best" in done.err
    assert done.err.count("is stopped") == 1  # the other one has ended


def test_classifiers_have_the_scores_of_eval(classifiers):
    found, reports = compare(*classifiers[:2]), [evaluate(model) for model in classifiers[:2]]
    expected = [report["scores"] | {"loss": report["loss"]} for report in reports]
    assert found["scores"].keys() == expected[0].keys() >= {"accuracy", "macro_f1", "loss"}
    for name, score in found["scores"].items():
        assert [score["a"], score["b"]] == pytest.approx(
            [values[name] for values in expected], rel=1e-4
        )


def test_taggers_have_the_scores_of_eval_that_select_their_weights_first(tmp_path):
    rows = [f"it O\nis O\n{city} B-LOC\n\n" for city in ("Rome", "Oslo", "Bonn")]
    (tmp_path / "a.conll").write_text("".join(rows * 12), encoding="utf-8")
    recipe = CLASSIFY.replace("classify", "tag").replace(", classifier_input: first", "")
    recipe = recipe.replace("[sequence]", "[token]").replace("steps: 4", "steps: 12")
    (tmp_path / "r.yaml").write_text(recipe, encoding="utf-8")
    data = [f"data.{split}={tmp_path}/a.conll" for split in ("train", "valid")]
    runs = [str(tmp_path / "1"), str(tmp_path / "2")]
    for rate, run in zip(("1e-9", "0.02"), runs, strict=True):
        rates = [f"train.learning_rate={rate}", "train.schedule=constant"]
        done = run_command("train", str(tmp_path / "r.yaml"), *data, *rates, "--out", run)
        assert done.code == 0, done.err
    found, reports = compare(*runs, "--samples", 100)["scores"], [*map(evaluate, runs)]
    assert [*found] == ["f1", "accuracy", "precision", "recall", "loss"]
    for name, score in found.items():
        expected = [report["scores"].get(name, report["loss"]) for report in reports]
        assert [score["a"], score["b"]] == pytest.approx(expected, rel=1e-4)
    assert found["f1"]["low"] > 0


def test_questions_of_several_windows_are_resampled_by_question(tmp_path):
    row = {"question": "who ?", "context": "it is Rome " + "and so on " * 30, "answer": "Rome"}
    lines = [json.dumps(row | {"answer_start": 6, "question": f"who {n} ?"}) for n in range(12)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    recipe = CLASSIFY.replace("classify", "answer").replace(", classifier_input: first", "")
    (tmp_path / "r.yaml").write_text(recipe.replace("[sequence]", "[span]"), encoding="utf-8")
    data = [f"data.{split}={tmp_path}/a.jsonl" for split in ("train", "valid")]
    run = str(tmp_path / "run")
    done = run_command("train", str(tmp_path / "r.yaml"), *data, "--out", run)
    assert done.code == 0, done.err
    found = compare(run, run, "--samples", 100)
    assert found["examples"] == 12
    scores = {name: score["a"] for name, score in found["scores"].items()}
    assert scores == pytest.approx(evaluate(run)["scores"])


def test_a_model_does_not_differ_from_itself(run, classifiers, kinds):
    for model in (run, classifiers[0], kinds["causal"], kinds["text-to-text"]):
        for score in compare(model, model, "--samples", 100)["scores"].values():
            assert (score["difference"], score["low"], score["high"], score["p_value"]) == (
                0,
                0,
                0,
                1,
            )


def test_embedding_models_are_compared_without_a_pooler_and_without_a_loss(tmp_path):
    rows = "".join(f"rain {n % 5} {n}\tsnow {n % 3} {n}\n" for n in range(30))
    (tmp_path / "a.tsv").write_text(f"text\ttext2\n{rows}", encoding="utf-8")
    recipe = CLASSIFY.replace("{kind: classify}", "{kind: embed}")
    recipe = recipe.replace(", heads: [sequence], classifier_input: first", "")
    (tmp_path / "r.yaml").write_text(recipe, encoding="utf-8")
    data = [f"data.{split}={tmp_path}/a.tsv" for split in ("train", "valid")]
    run = tmp_path / "run"
    done = run_command("train", str(tmp_path / "r.yaml"), *data, "--out", str(run))
    assert done.code == 0, done.err
    found, report = compare(run, run, "--samples", 100)["scores"], evaluate(run)
    # The ranking loss is one among the rows of a batch, so an example has none of its own.
    assert {name: score["a"] for name, score in found.items()} == pytest.approx(report["scores"])


def test_the_data_is_reported_once(classifiers):
    done = run_command("compare", *map(str, classifiers[:2]))
    assert done.err.count("60 rows") == 1
    assert done.err.count("labels: bad, good") == 1
    assert "60 texts, 1,000 resamples\nf1 is that of the label 'good'\n" in done.err
    heading = done.out.splitlines()[0]
    assert heading.endswith("p (one-sided)")
    assert "too narrow" not in done.err
    assert "A: " in done.err and ", B: " in done.err
    assert "decided by this data" in done.out or "is better" in done.out
    assert "f1 is that of the label 'good'" in run_command("eval", str(classifiers[0])).err


VERDICTS = {
    "more is better": ({"accuracy": (1, 3)}, "accuracy: B is better"),
    "less is better": ({"loss": (0.1, 0.3)}, "loss: A is better"),
    "the baseline is better": ({"bleu": (-3, -1)}, "BLEU: A is better"),
    "less bits": ({"bits_per_byte": (-3, -1)}, "bits per byte: B is better"),
    "undecided": ({"f1": (-1, 0.1), "chrf": (0, 0)}, f"f1, chrF2: {UNDECIDED}"),
    "both": (
        {"accuracy": (-10.78, 1.03), "loss": (0.01, 0.02)},
        f"loss: A is better; accuracy: {UNDECIDED}",
    ),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_the_last_line_says_what_the_data_decides(case):
    intervals, expected = VERDICTS[case]
    differences = {
        name: Difference(0, (low + high) / 2, (low + high) / 2, low, high, 0.5)
        for name, (low, high) in intervals.items()
    }
    assert verdict(differences) == expected


def test_swapping_the_models_negates_the_differences(classifiers):
    a, b, _ = classifiers
    one, other = compare(a, b)["scores"], compare(b, a)["scores"]
    for name, score in one.items():
        expected = -other[name]["difference"], -other[name]["high"], -other[name]["low"]
        assert (score["difference"], score["low"], score["high"]) == pytest.approx(expected)


def test_named_data_is_read_with_the_columns_of_the_first_run(classifiers, tmp_path):
    a, b, file = classifiers
    few = tmp_path / "few.tsv"
    few.write_text("".join(file.read_text("utf-8").splitlines(keepends=True)[:9]), encoding="utf-8")
    assert compare(a, b, few)["examples"] == 8
    done = run_command("compare", str(a), str(b), str(few))
    assert "warning: fewer than 30 texts, so that the intervals are too narrow" in done.err
    few.write_text("text\tlabel\nsunny day\tgood\n", encoding="utf-8")
    check_refused(run_command("compare", str(a), str(b), str(few)), "a single example")


def test_models_with_different_labels_are_refused(classifiers, tmp_path):
    a, b, file = classifiers
    other = shutil.copytree(b, tmp_path / "other")
    config = other / "model" / "config.json"
    config.write_text(config.read_text("utf-8").replace('"good"', '"fine"'), encoding="utf-8")
    for named in ((), (file,)):
        done = run_command("compare", str(a), str(other), *map(str, named))
        check_refused(done, "its labels are", "compare models with the same labels")


def test_a_model_folder_is_compared_in_the_task_of_the_run(run, classifiers, tmp_path):
    for name, model in (("translator", run), ("classifier", classifiers[0])):
        bare = shutil.copytree(model / "model", tmp_path / name)
        for pair in ((model, bare), (bare, model)):
            scores = compare(*pair, "--samples", 100)["scores"]
            assert {score["difference"] for score in scores.values()} == {0}


def test_language_models_without_a_run_need_data(kinds, tmp_path):
    bare = shutil.copytree(kinds["causal"] / "model", tmp_path / "bare")
    done = run_command("compare", str(bare), str(bare))
    assert done.code == 2 and "name the data" in done.err
    assert set(compare(bare, bare, kinds.here / "text.txt")["scores"]) == {"accuracy", "loss"}


def check_refused(done, *words):
    assert (done.code, done.out) == (2, "")
    last = done.err.splitlines()[-1]
    assert last.startswith("error: ") and [word for word in words if word not in last] == [], last


def test_other_tasks_are_refused(run, kinds, classifiers):
    for one, other, names in (
        (kinds["causal"], kinds["masked"], ("its task is masked", "is causal")),
        (run, classifiers[0], ("its task is classify", "is translate; compare models of one task")),
    ):
        check_refused(run_command("compare", str(one), str(other)), *names)
    bare = kinds["masked"] / "model"
    moved = shutil.copytree(bare, kinds.here / "bare-masked")
    done = run_command("compare", str(kinds["causal"]), str(moved), str(kinds.here / "text.txt"))
    check_refused(done, "this encoder (heads: lm) is no model for task.kind: causal")


def test_other_data_is_refused_by_name(run, classifiers, tmp_path):
    a, b, _ = classifiers
    copy = shutil.copytree(b, tmp_path / "copy")
    recipe = (copy / "recipe.yaml").read_text("utf-8").replace("valid: ", "valid: other-")
    (copy / "recipe.yaml").write_text(recipe, encoding="utf-8")
    check_refused(
        run_command("compare", str(a), str(copy)), "data.valid is ", "other-", "name the data"
    )
    held_out = shutil.copytree(run, tmp_path / "held-out")
    recipe = (held_out / "recipe.yaml").read_text("utf-8")
    for folder, seed in ((run, 1), (held_out, 2)):
        text = recipe.replace("valid: embedded:smoke", "valid: null").replace(
            "holdout: 0", "holdout: 20"
        )
        text = text.replace("seed: 1\n", f"seed: {seed}\n")
        target = shutil.copytree(folder, tmp_path / f"seed-{seed}")
        (target / "recipe.yaml").write_text(text, encoding="utf-8")
    done = run_command("compare", str(tmp_path / "seed-1"), str(tmp_path / "seed-2"))
    check_refused(done, "train.seed is 2, not 1")


def test_other_tokenizers_are_refused_for_language_models(kinds, tmp_path):
    recipe = json.loads((kinds["causal"].parent / "causal.yaml").read_text("utf-8"))
    recipe["tokenizer"] = {"kind": "char"}
    (tmp_path / "chars.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    done = run_command("train", str(tmp_path / "chars.yaml"), "--out", str(tmp_path / "chars"))
    assert done.code == 0, done.err
    done = run_command("compare", str(kinds["causal"]), str(tmp_path / "chars"))
    check_refused(done, "reads the data as", "the same tokenizer")
