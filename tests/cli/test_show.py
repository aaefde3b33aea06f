from __future__ import annotations

import json

import pytest
from PIL import Image
from tests.cli.readers import HEADS, folder_of, pictures_folder

from trifold.hub.presets import PRESETS as PUBLISHED
from trifold.nn import PRESETS
from trifold.objectives import KINDS
from trifold.recipe import included_recipes, missing_files

pytestmark = pytest.mark.slow

# By data: their sizes are those of the recipe, or of the preset of that name.
NOT_SIZED = ("albert", "bigbird", "distilbert", "xlnet")
# Sized by the data or by a teacher, which they do not name.
NEEDS_DATA = [
    name
    for name, each in included_recipes().items()
    if missing_files(each) == ["data.train=FILE"] and name not in NOT_SIZED
]
MISSING = {"minilm": "task.teacher: a value is required"}


@pytest.mark.parametrize("name", NEEDS_DATA)
def test_a_recipe_without_data_has_no_sizes(trifold, name):
    done = trifold("show", name)
    assert (done.code, done.out) == (2, "")
    assert MISSING.get(name, "data.train: no training data; set") in done.err


@pytest.mark.parametrize("name", [*PRESETS, *sorted(included_recipes().keys() - NEEDS_DATA)])
def test_every_preset_and_recipe_can_be_shown(trifold, name):
    done = trifold("show", name)
    assert done.code == 0
    report = json.loads(trifold("show", name, "--json").out)
    assert sum(part["parameters"] for part in report["parts"]) == report["parameters"]
    assert f"{report['parameters']:,} parameters" in done.out
    assert ("cross-attention" in done.out) == (report["shape"] == "encoder-decoder")


@pytest.mark.parametrize("kind", ["causal", "masked", "classify"])
def test_show_and_train_resolve_a_recipe_to_the_same_model(trifold, tmp_path, kind):
    text = tmp_path / "text.tsv"
    text.write_text("text\tlabel\n" + "a b c\tgood\nc b a\tbad\n" * 20, encoding="utf-8")
    data = f"data: {{train: {text}, format: {'tsv' if kind == 'classify' else 'text'}, holdout: 5}}"
    recipe = tmp_path / "mine.yaml"
    sizes = "model: {d_model: 16, d_ff: 32, n_layers: 1}\ntokenizer: {kind: word, joint: false}"
    train = "train: {steps: 1, warmup: 0, device: cpu, precision: float32, validate_every: 1, save_every: 1}"
    recipe.write_text(f"task: {{kind: {kind}}}\n{data}\n{sizes}\n{train}\n", encoding="utf-8")
    shown = json.loads(trifold("show", str(recipe), "--json").out)["config"]
    done = trifold("train", str(recipe), "--out", str(tmp_path / "run"))
    assert done.code == 0, done.err
    trained = json.loads(trifold("show", str(tmp_path / "run"), "--json").out)["config"]
    ids = {
        "vocab_size",
        "label_names",
        "n_labels",
        "pad_id",
        "bos_id",
        "eos_id",
        "dropout",
        "attention_dropout",
    }
    assert {key for key in shown if shown[key] != trained[key]} <= ids


REJECTED = {("text-to-text", "{}"), ("distill", "{}"), ("permutation", "{preset: bert-base}")}
GIVEN = {
    "masked": "bert-base",
    "pairs": "bert-base",
    "permutation": "bert-base",
    "denoise": "transformer-tiny",
}


@pytest.mark.parametrize(
    ("kind", "model"),
    [*((kind, "{}") for kind in KINDS), *((k, f"{{preset: {name}}}") for k, name in GIVEN.items())],
)
def test_what_show_accepts_trains(trifold, tmp_path, kind, model):
    """A bare recipe of every kind of task, or one with a preset, and smaller sizes."""
    text = tmp_path / "text.tsv"
    text.write_text(
        "text\tlabel\n" + "A b c. C b a.\tgood\nC b a. A b.\tbad\n" * 20, encoding="utf-8"
    )
    table = kind in ("classify", "translate", "summarize", "embed")
    data = f"data: {{train: {text}, format: {'tsv' if table else 'text'}, holdout: 5}}"
    if kind == "answer":
        row = {"question": "A b?", "answers": [{"text": "b", "answer_start": 2}]}
        rows = (json.dumps({"context": f"A b c {n}.", **row}) for n in range(20))
        text.write_text("\n".join(rows), encoding="utf-8")
        data = data.replace("text,", "jsonl,")
    if kind == "embed":
        text.write_text(
            "text\tpair\n" + "".join(f"A b {n}.\tC b {n}.\n" for n in range(20)), encoding="utf-8"
        )
    if kind == "choose":
        row = json.dumps({"question": "A b c?", "choices": ["A", "b"], "label": 1})
        text.write_text(f"{row}\n" * 20, encoding="utf-8")
        data = data.replace("text,", "jsonl,")
    if kind == "images":
        text = tmp_path / "images"
        for number in range(20):
            (text / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8)).save(text / "ab"[number % 2] / f"{number}.png")
        data = f"data: {{train: {text}, holdout: 5}}"
    if kind == "tag":
        text.write_text("A\tB\nb\tO\nc\tO\n\n" * 20, encoding="utf-8")
        data = data.replace("text,", "conll,")
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        f"task: {{kind: {kind}}}\n{data}\ntokenizer: {{kind: word}}\nmodel: {model}\n",
        encoding="utf-8",
    )
    shown = trifold("show", str(recipe))
    sizes = "model.d_model=16 model.d_ff=32 model.n_layers=1 model.n_heads=4"
    train = "train.steps=1 train.warmup=0 train.device=cpu"
    done = trifold(
        "train", str(recipe), *f"{sizes} {train}".split(), "--out", str(tmp_path / "run")
    )
    assert shown.code == done.code, done.err
    assert (shown.code == 0) == ((kind, model) not in REJECTED)


def test_show_without_a_model_lists_the_presets(trifold):
    listed = {row["preset"]: row for row in json.loads(trifold("show", "--json").out)}
    others = [name for row in listed.values() for name in row["other_names"]]
    assert sorted([*listed, *others]) == sorted([*PRESETS, *PUBLISHED])
    assert listed["transformer-big"] == {
        "preset": "transformer-big", "shape": "encoder-decoder", "parameters": 214_171_648,
        "other_names": [],
    }  # fmt: skip
    assert listed["gpt"]["other_names"] == ["gpt-1", "gpt1", "openai-gpt"]
    lines = trifold("show").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split() for line in lines if line.startswith("transformer-big ")] == [
        ["transformer-big", "encoder-decoder", "214.2", "M"]
    ]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("bret", "bert"), ("gtp2", "gpt2"), ("runs/dmeo", "runs/demo"), ("smok", "smoke"), ("gpt2-smal", "gpt2"),
        ("gpt2-lrge", "gpt2-large"), ("tran-fr", "runs/tran-fr-1"),
    ],
)  # fmt: skip
def test_a_mistyped_name_gets_a_suggestion(trifold, tmp_path, monkeypatch, name, near):
    for run in ("demo", "tran-fr-1"):
        (tmp_path / "runs" / run).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    done = trifold("show", name)
    assert (done.code, done.out) == (1, "")
    assert done.err.endswith(f"; did you mean {near!r}?\n")


def test_a_model_that_training_rejects_is_not_shown(trifold, tmp_path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("task: {kind: causal}\ndata: {}\nmodel: {shape: encoder}\n", encoding="utf-8")
    done = trifold("show", str(recipe))
    assert (done.code, done.out) == (2, "")
    assert "model.shape: encoder does not support task.kind: causal" in done.err


def test_show_trained_model(trifold, run):
    report = json.loads(trifold("show", str(run), "--json").out)
    config = json.loads((run / "model" / "config.json").read_text("utf-8"))
    assert report["config"]["vocab_size"] == config["vocab_size"]


def test_the_signs_of_formulas_are_explained(trifold):
    legend = (
        "· times; V vocabulary, E width (d_model), F feed-forward width, H heads, D head\n"
        "    size, L blocks\n"
    )
    assert f"\n\n{legend}\n" in trifold("show", "transformer-base").out


def test_parameters_of_transformer_big(trifold):
    assert json.loads(trifold("show", "transformer-big", "--json").out)["parameters"] == 214_171_648


def test_training_memory_grows_with_the_batch_and_only_there(trifold):
    small, large = (
        json.loads(trifold("show", "transformer-base", "--json", "--batch-tokens", tokens).out)[
            "training_bytes"
        ]
        for tokens in ("1000", "2000")
    )
    assert large["activations"] == 2 * small["activations"]
    assert all(large[part] == small[part] for part in ("weights", "gradients", "optimizer"))


@pytest.mark.parametrize(
    ("precision", "weights"),
    [
        ("float32", "the model\n"),
        ("bfloat16", "the model, and its copy in the type of the computation\n"),
    ],
)
def test_the_parts_of_the_memory_say_what_they_hold(trifold, precision, weights):
    out = trifold("show", "transformer-base", "--precision", precision).out
    table = out.partition("memory to train")[2].partition("memory for inference")[0]
    assert f"iB   {weights}" in table
    assert "those of 1 worker, and their sum\n" in table or " workers, and their sum\n" in table
    assert "a second model, which is validated, and its file\n" in table


def test_show_recipe_agrees_with_the_memory_check_of_training(trifold, tmp_path):
    def bytes_of(*changes):
        recipe = tmp_path / "mine.yaml"
        recipe.write_text(
            "\n".join(["data: {}", "model: {preset: transformer-base}", *changes]) + "\n",
            encoding="utf-8",
        )
        return json.loads(trifold("show", str(recipe), "--json").out)["training_bytes"]

    plain = bytes_of("train: {precision: float32}")
    lean = bytes_of(
        "train: {precision: float32, optimizer: adafactor, learning_rate: 0.01, recompute: blocks, workers: 1}"
    )
    assert (plain["precision"], lean["workers"]) == ("float32", 1)
    assert lean["optimizer"] == plain["optimizer"] // 8
    assert lean["activations"] < plain["activations"] / 2
    more = bytes_of("train: {precision: float32, ema: 0.99, async_save: true}")
    assert more["optimizer"] == 3 * plain["optimizer"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_show_every_published_model(trifold, name):
    done = trifold("show", name)
    assert done.code == 0
    report = json.loads(trifold("show", name, "--json").out)
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 80
    for part in report["compared_with_2017"]:  # long cells are wrapped
        (line,) = (
            line
            for line in lines
            if line.startswith(f"{part['part']} ") and f" {part['verdict']} " in line
        )
        assert part["what"].split()[0] in line
    assert {part["verdict"] for part in report["compared_with_2017"]} <= {"same", "differs"}


def test_transformer_base_does_not_differ(trifold):
    report = json.loads(trifold("show", "transformer-base", "--json").out)
    assert {part["verdict"] for part in report["compared_with_2017"]} == {"same"}


def test_folders_of_other_families_are_shown(trifold, tmp_path):
    for task in HEADS:
        report = json.loads(trifold("show", str(folder_of(task, tmp_path / task)), "--json").out)
        output = report["compared_with_2017"][-1]
        assert output["verdict"] == "differs"
        assert (task in ("fill-mask", "both")) == (
            "additional layer before the logits" in output["what"]
        )


def test_length_of_a_picture_is_fixed(trifold, tmp_path):
    folder = pictures_folder(tmp_path)
    report = json.loads(trifold("show", str(folder), "--json", "--length", "3").out)
    assert report["length"] == 7
    assert "sequences of 7 tokens" in trifold("show", str(folder)).out


def test_a_stage_of_pretraining_is_mentioned(trifold, tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text(
        "data: {train: a.csv, valid: b.csv}\ntask: {kind: classify}\npretrain: {train: {steps: 7}}\n"
        "model: {preset: bert-base}\n",
        encoding="utf-8",
    )
    assert "pretrained first, with {'train': {'steps': 7}}" in trifold("show", str(file)).out
