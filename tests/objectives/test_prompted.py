"""Tasks of a decoder: a prompt and its target, of which only the target is in the loss."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.command_line import run_command
from tests.objectives.common import eval_context, random_model
from tests.recipes import GPT2, SIZES
from tests.train.runs import InterruptingView, RecordingView, assert_equal_runs

import trifold
from trifold.data import DataSettings
from trifold.errors import DataError, SettingsError, UsageError
from trifold.generate import GenerationConfig
from trifold.hub import save_model
from trifold.nn import ModelConfig, Transformer
from trifold.objectives.answer import AnswerSettings
from trifold.objectives.questions import read_texts
from trifold.pipeline import Pipeline
from trifold.recipe import load_recipe
from trifold.train import train
from trifold.train.data import load_data

PAIRS = [(f"{a} {b} {c}", f"{b} {a}") for a in "pqrs" for b in "uvwx" for c in "yz"]
LONG = "p q r s " * 10
QUESTIONS = [
    {"question": f"who {b}", "context": f"{a} {b} .", "answers": [a, f"the {a}"]}
    for a in "pqrs"
    for b in "uvwx"
]
PARTS = {"a": {"train": "{here}/pairs.tsv", "valid": "{here}/pairs.tsv", "input": "a: {source}"}}
TASKS = {
    "translate": (
        {"kind": "translate", "prompt": "{source} =", "best_by": "exact_match"},
        "pairs.tsv",
    ),
    "summarize": ({"kind": "summarize"}, "pairs.tsv"),
    "answer": ({"kind": "answer"}, "questions.jsonl"),
    "text-to-text": ({"kind": "text-to-text", "parts": PARTS}, None),
}
TRAIN = {
    "steps": 8, "warmup": 2, "schedule": "constant", "learning_rate": 0.01, "precision": "float32", "device": "cpu",
    "validate_every": 4, "save_every": 4, "samples": 1, "log_every": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """Data and a recipe of each task."""
    here = tmp_path_factory.mktemp("prompted")
    rows = [f"{source}\t{target}" for source, target in PAIRS]
    (here / "pairs.tsv").write_text("source\ttarget\n" + "\n".join(rows) + "\n", encoding="utf-8")
    lines = [json.dumps(question) for question in QUESTIONS]
    (here / "questions.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name, (task, file) in TASKS.items():
        data = dict.fromkeys(("train", "valid"), f"{{here}}/{file}") if file else {}
        values = {
            "task": task, "data": data, "model": GPT2, "train": TRAIN,
            "tokenizer": {"kind": "word", "min_frequency": 1},
            "batch": {"tokens": 200, "on_overflow": "truncate"}, "generate": {"max_new_tokens": 4},
        }  # fmt: skip
        text = json.dumps(values).replace("{here}", str(here))
        (here / f"{name}.yaml").write_text(text, encoding="utf-8")
    return here


@pytest.fixture
def prepare(here, tmp_path):
    """Load the data of a recipe with some changes; returns it and the messages."""

    def prepare(name, **changes):
        view = RecordingView()
        changes = {key.replace("__", "."): value for key, value in changes.items()}
        recipe = load_recipe(here / f"{name}.yaml", changes)
        data = load_data(recipe, tmp_path / "tokenizer", view)
        return data, "\n".join(view.lines)

    return prepare


# --- the loss -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TASKS)
def test_only_the_target_is_in_the_loss(prepare, name):
    """Each label is a token of the target, which the model predicts from all before it."""
    data, _ = prepare(name)
    task = data.objective
    model = random_model(data.config)
    batch = task.batch(data.valid, np.array([0]))
    n_prompt = int(data.valid.prompts[0])
    row = data.valid.tokens.tolist()[0]
    labels = batch.labels[: len(row) - 1].tolist()
    assert labels == [-1] * (n_prompt - 1) + row[n_prompt:]
    assert row[0] == task.tokenizer.bos_id and row[-1] == task.tokenizer.eos_id
    # Other labels in the prompt would change the loss; its tokens are read.
    whole = batch.labels.clone()
    whole[: n_prompt - 1] = torch.tensor(row[1:n_prompt])
    with torch.no_grad():
        loss = task.loss(model, batch)["tokens"]
        everything = task.loss(model, replace(batch, labels=whole))["tokens"]
        logits = model.head_outputs(batch.inputs, heads=["lm"])["lm"][0].log_softmax(-1)
    expected = -sum(float(logits[n, label]) for n, label in enumerate(labels) if label >= 0)
    assert float(loss.nll) == pytest.approx(expected, rel=1e-5)
    assert float(everything.nll) > expected + 0.1
    assert batch.tokens == len(row) - n_prompt


@pytest.mark.parametrize("name", TASKS)
def test_a_narrow_batch_loses_the_beginning_of_prompts(prepare, name):
    data, _ = prepare(name)
    rows = np.arange(3)
    whole = data.objective.batch(data.valid, rows)
    width = int(data.valid.lengths[rows].max()) - 1
    cut = data.objective.batch(data.valid, rows, width)
    assert cut.tokens == whole.tokens and cut.inputs.packing.n_real < whole.inputs.packing.n_real


# --- what does not fit ----------------------------------------------------------------------------


def write_pairs(folder, rows):
    file = folder / "rows.tsv"
    text = "".join(f"{source}\t{target}\n" for source, target in rows)
    file.write_text("source\ttarget\n" + text, encoding="utf-8")
    return str(file)


def test_long_sources_are_shortened_and_counted(prepare, tmp_path):
    file = write_pairs(tmp_path, [*PAIRS, (LONG, "u v w x")])
    data, report = prepare("translate", data__train=file)
    assert "1 text cut to fit, 23 tokens lost" in report
    row = data.train.tokens.tolist()[-1]
    assert 24 <= len(row) <= 25  # of which the last is not read
    text = data.objective.tokenizer.decode([row])[0]
    assert text.startswith("p q r s") and text.endswith("= u v w x")


def test_targets_are_never_shortened(prepare, tmp_path):
    file = write_pairs(tmp_path, [*PAIRS, ("p", LONG)])
    data, report = prepare("translate", data__train=file)
    line = "rows.tsv: 1 of 33 pairs have a target that leaves no room for the text in 24 tokens"
    assert f"{line}: left out" in report
    assert len(data.train.lengths) == 32
    _, report = prepare("translate", data__train=file, batch__on_overflow="drop")
    assert "1 of 33 pairs are longer than 24 tokens: skipped" in report
    with pytest.raises(DataError, match=r"1 of 1 pairs have a target .* raise model\.max_pos"):
        prepare("translate", data__train=write_pairs(tmp_path, [("p", LONG)]))


def test_a_summary_has_a_limit_of_its_source(prepare):
    data, report = prepare("summarize", task__max_source=2)
    task = data.objective
    prompts = {
        text.partition(" TL")[0] for text in task.tokenizer.decode(data.train.sources.tolist())
    }
    assert {len(prompt.split()) for prompt in prompts} == {2} and "64 texts cut to fit" in report


# --- settings -------------------------------------------------------------------------------------

REJECTED = [
    ("translate", {"task__prompt": "{text} ="}, "task.prompt: '{text} =' names {text}; name {source} once"),
    ("answer", {"task__prompt": "{context}"}, "name {question} and {context} once"),
    ("translate", {"model__preset": "transformer-tiny"}, "task.prompt: has no effect on a model of shape encoder-decoder; "
     "remove it, or set model.shape=decoder"),
    ("translate", {"tokenizer__joint": False}, "tokenizer.joint: not supported with a decoder"),
    ("translate", {"tokenizer__kind": "bpe", "tokenizer__dropout": 0.1}, "tokenizer.dropout: not supported with a decoder"),
    ("translate", {"task__scheduled_sampling__share": 0.1}, "task.scheduled_sampling: needs a decoder that reads an encoder"),
    ("answer", {"task__stride": 3}, "task.stride: is for answers that are spans, and a decoder writes its answers"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "message"), REJECTED)
def test_settings_without_meaning_are_rejected(prepare, name, changes, message):
    with pytest.raises(SettingsError) as error:
        prepare(name, **changes)
    assert message in str(error.value)


def test_a_recipe_records_the_default_prompt(here):
    recipe = load_recipe(here / "summarize.yaml")
    assert recipe.task.prompt == "{source}\nTL;DR:"
    assert load_recipe("smoke", ["task.kind=translate"]).task.prompt is None


@pytest.mark.parametrize("kind", ["translate", "summarize", "answer", "classify"])
def test_a_task_chooses_a_decoder_for_its_data(here, kind):
    file = here / ("questions.jsonl" if kind == "answer" else "pairs.tsv")
    recipe = load_recipe(kind, [f"data.train={file}", "model.shape=decoder"])
    model = recipe.model
    assert (model.shape, model.d_model, recipe.train.steps) == ("decoder", 64, 100)
    assert (model.positions, model.norm_placement) == ("learned", "pre")  # as in GPT-2
    assert recipe.batch.on_overflow == "truncate"
    assert "for the size of the data: model.d_model=64" in recipe.size_notes[0]


def test_another_shape_than_that_of_start_from_is_an_error(here, tmp_path):
    save_model(tmp_path, Transformer(ModelConfig.parse(SIZES | {"vocab_size": 20})))
    values = {"data.train": f"{here}/pairs.tsv", "start_from": str(tmp_path)}
    message = r"model\.shape: decoder, but the model of start_from \(.*\) is of shape encoder-dec"
    with pytest.raises(SettingsError, match=message):
        load_recipe("translate", values | {"model.shape": "decoder"})


def test_the_prompt_of_a_task_is_not_one_of_generation(here):
    with pytest.raises(SettingsError, match=r"generate\.prompt: would differ from what the model"):
        load_recipe(here / "translate.yaml", {"generate.prompt": "{text}"})


def test_unknown_signs_of_a_prompt_are_reported(prepare, tmp_path):
    data, _ = prepare("translate")
    data.objective.save(tmp_path / "theirs")
    changes = {"tokenizer__file": str(tmp_path / "theirs"), "task__prompt": "{source} =>"}
    _, report = prepare("translate", **{key: changes[key] for key in changes})
    assert re.search(r"task\.prompt: 1 of its \d tokens are unknown to the tokenizer", report)


# --- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "texts"),
    [
        ("in other words", ["in other words"]),
        (["one", "two"], ["one", "two"]),
        ([{"text": "one", "answer_start": 3}], ["one"]),
        ({"text": ["one"], "answer_start": [3]}, ["one"]),
        ({"text": "one"}, ["one"]),
        ([], []),
        ([""], []),
        ([{"text": None}], []),
    ],
)
def test_answers_are_texts_of_any_form(tmp_path, answers, texts):
    file = tmp_path / "a.jsonl"
    row = {"question": "q", "context": "c", "answers": answers}
    file.write_text(json.dumps(row) + "\n", encoding="utf-8")
    rows = read_texts(str(file), DataSettings(), "train")
    assert rows.columns["answers"] == [[{"text": text} for text in texts]]
    assert rows.targets == [texts[0] if texts else ""]


def test_written_answers_have_the_scores_of_spans(prepare, monkeypatch):
    data, _ = prepare("answer")
    outputs = ["p", "the p", "q", ""] * 4
    monkeypatch.setattr(type(data.objective), "outputs", lambda *_: outputs)
    found = data.objective.evaluate(
        random_model(data.config), data.bundle.valid, data.valid, eval_context()
    )
    # "p" and "the p" are right for four questions each, and "q" for four.
    right = [
        out.removeprefix("the ") == q["answers"][0]
        for out, q in zip(outputs, QUESTIONS, strict=True)
    ]
    assert found.scores["exact_match"] == pytest.approx(100 * np.mean(right))
    assert found.value == found.scores["f1"]


def test_an_answer_settings_needs_a_head_by_shape():
    assert AnswerSettings.heads_for("decoder") == ("lm",)
    assert AnswerSettings.heads_for("encoder") == ("span",)


# --- runs -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(here, tmp_path_factory):
    """A run of each task, trained at first use."""
    runs = {}

    def run(name):
        if name not in runs:
            runs[name] = tmp_path_factory.mktemp("runs") / name
            rare = dict.fromkeys(("train.steps", "train.validate_every", "train.save_every"), 40)
            train(here / f"{name}.yaml", out=runs[name], view=RecordingView(), **rare)
        return runs[name]

    return run


def succeed(*arguments):
    done = run_command(*map(str, arguments))
    assert done.code == 0, done.err
    return done


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(here, tmp_path):
    recipe = here / "translate.yaml"
    changes = {"model.dropout": 0.1}
    train(recipe, out=tmp_path / "whole", view=RecordingView(), **changes)
    view = InterruptingView(5)
    assert train(recipe, out=tmp_path / "run", view=view, **changes).stopped_by == "signal"
    train(recipe, out=tmp_path / "run", resume="auto", view=RecordingView(), **changes)
    assert_equal_runs(tmp_path / "run", tmp_path / "whole")


@pytest.mark.slow
def test_a_saved_model_puts_texts_into_its_prompt(run):
    """In Python, on the command line, and in the same tokens as transformers."""
    transformers = pytest.importorskip("transformers")
    folder = run("translate")
    card = (folder / "model" / "README.md").read_text("utf-8")
    assert 'reader("your source =", return_tensors' in card and "text-generation" in card
    ours = trifold.load(folder)
    text = "p u y"
    output = ours.generate(text)
    assert output == "u p"
    assert "".join(ours.stream(text)) == output
    assert ours.generate(text, prompt="{source}") != output
    assert ours.generate(text, max_new_tokens=1) == output.split()[0]
    assert succeed("generate", folder, text).out == f"{output}\n"
    reader = transformers.AutoTokenizer.from_pretrained(folder / "model")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder / "model").eval()
    prompt = theirs.generation_config.to_dict()["prompt"]
    inputs = reader(prompt.format(source=text), return_tensors="pt")["input_ids"]
    assert inputs.tolist() == ours.read([text])
    with torch.no_grad():
        assert torch.allclose(theirs(inputs).logits, ours.logits(inputs), rtol=1e-4, atol=1e-5)
    written = theirs.generate(inputs, max_new_tokens=5)[0, inputs.shape[1] :]
    assert reader.decode(written, skip_special_tokens=True).strip() == output


@pytest.mark.slow
def test_a_prompted_model_is_measured_as_in_its_validation(run, here):
    for name, score in (("translate", "bleu"), ("answer", "f1"), ("text-to-text", "a")):
        values = json.loads(succeed("eval", run(name), "--json").out)["scores"]
        best = max(
            line[f"valid/{score}"]
            for line in map(json.loads, (run(name) / "metrics.jsonl").open(encoding="utf-8"))
            if f"valid/{score}" in line
        )
        value = values[score]["value"] if name == "translate" else values[score]
        assert value == pytest.approx(best, rel=1e-6)
    # The folder alone has the prompt, and so pairs are its data.
    model = run("translate") / "model"
    assert "sentences" in json.loads(succeed("eval", model, here / "pairs.tsv", "--json").out)
    assert "chrF2" in succeed("compare", run("translate"), model, here / "pairs.tsv").out


@pytest.mark.slow
def test_answers_are_predicted_from_a_question_and_a_context(run, tmp_path):
    folder = run("answer")
    found = trifold.load(folder).answer(["who u", "who v"], ["p u .", "q v ."])
    assert [answers[0].text for answers in found] == ["p", "q"]
    assert succeed("predict", folder, "who u", "--context", "p u .").out == "p\n"
    table = tmp_path / "a.csv"
    table.write_text("question,context\nwho u,p u .\n", encoding="utf-8")
    succeed("predict", folder, table, "--out", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text("utf-8").splitlines()[1].endswith(",p")
    with pytest.raises(UsageError, match=r"use `trifold predict MODEL QUESTION --context TEXT`"):
        trifold.load(folder).generate("who u")


@pytest.mark.slow
def test_a_task_starts_from_a_language_model(here, run, tmp_path):
    """Of a model that has read only text, the weights, the tokenizer and the shape are kept."""
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"{a} = {b}" for a, b in PAIRS) + "\n", encoding="utf-8")
    often = {
        "train.steps": 4,
        "train.warmup": 1,
        "train.device": "cpu",
        "train.precision": "float32",
    }
    sizes = {key: value for key, value in GPT2.items() if key != "preset"}
    train("causal", out=tmp_path / "gpt", view=RecordingView(), **often, **{"data.train": str(text)},
          **{f"model.{key}": value for key, value in sizes.items()})  # fmt: skip
    view = RecordingView()
    data = {"data.train": str(here / "pairs.tsv"), "data.valid": str(here / "pairs.tsv")}
    start = {"start_from": str(tmp_path / "gpt")}
    train("summarize", out=tmp_path / "run", view=view, **often, **data, **start)
    assert any("0 new" in line for line in view.lines), view.lines
    assert trifold.load(tmp_path / "run").prompt.text == "{source}\nTL;DR:"


def test_long_texts_leave_room_for_an_output(prepare, tmp_path):
    data, _ = prepare("translate")
    data.objective.save(tmp_path)
    codec = data.objective.tokenizer
    generation = data.objective.generation
    pipeline = Pipeline(random_model(data.config), codec, codec, generation)
    assert pipeline.longest_source() == 24 - 6
    (row,) = pipeline.read([LONG], pipeline.longest_source())
    assert len(row) <= 18 and codec.decode([row])[0].endswith(" =")
    assert GenerationConfig.parse(generation).prompt == "{source} ="
