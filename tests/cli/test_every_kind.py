"""Every command works on the runs of every task, or fails with one line that names the right
command.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from tests.cli.kinds_of_runs import KINDS, Runs
from tests.faults.runs import lines_of

import trifold as library
from trifold.recipe import load_recipe
from trifold.scores import score_text

pytestmark = pytest.mark.slow

GENERATORS = ["translate", "causal", "denoise", "spans", "text-to-text", "distill"]
ENCODERS = [kind for kind in KINDS if kind not in GENERATORS]
FILLERS = [*(kind for kind in ENCODERS if kind != "replaced"), "denoise", "spans"]
RAW_TEXT = [kind for kind in KINDS if kind not in ("translate", "text-to-text")]
MASKED = ["masked", "replaced", "pairs", "order", "distill-masked"]
WRITTEN = ["permutation", "denoise", "spans", "text-to-text"]
TEXT = "Today sun ."


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of each kind, trained at first use."""
    return Runs(tmp_path_factory.mktemp("kinds"))


def check_rejected(done, *words):
    assert done.code in (1, 2) and done.out == ""
    assert "Traceback" not in done.err
    last = done.err.splitlines()[-1]
    assert last.startswith("error: ") and [word for word in words if word not in last] == []


# --- eval -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "translate"])
def test_eval_measures_what_the_validation_measured(trifold, runs, kind):
    folder = runs[kind]
    done = trifold("eval", str(folder), "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    (metrics,) = (line for line in lines_of(folder) if "valid/loss" in line)
    assert report["loss"] == pytest.approx(metrics["valid/loss"], rel=1e-4)
    scores = {
        key.removeprefix("valid/"): score
        for key, score in metrics.items()
        if key.startswith("valid/")
    }
    del scores["loss"]
    assert report["scores"] == pytest.approx(scores, rel=1e-3, abs=1e-6)
    shown = trifold("eval", str(folder)).out
    unit = "masked token" if kind in MASKED else "target token" if kind in WRITTEN else "token"
    lines = shown.splitlines()
    assert lines[0].endswith(f" nats per {unit}")
    assert len([line for line in lines if " ± " not in line]) == 1 + len(scores)
    assert len(lines) <= 2 + len(scores)  # the interval of one score


def test_eval_of_a_translator_without_test_data_measures_its_validation_pairs(trifold, runs):
    done = trifold("eval", str(runs["translate"]), "--json")
    assert (done.code, json.loads(done.out)["sentences"]) == (0, 8)
    assert "held out" in done.err


@pytest.mark.parametrize("kind", RAW_TEXT)
def test_eval_of_another_text(trifold, runs, kind):
    folder = runs[kind]
    done = trifold("eval", str(folder), str(runs.here / "text.txt"), "--json")
    assert done.code == 0 and json.loads(done.out)["loss"] > 0
    assert (
        done.err.count("text.txt: 60 documents") == 1
    )  # though it also replaces the training text


@pytest.mark.parametrize("kind", KINDS)
def test_eval_rejects_options_of_other_tasks(trifold, runs, kind):
    folder = str(runs[kind])
    if kind in RAW_TEXT:
        check_rejected(
            trifold("eval", folder, "--num-beams", "2"),
            "--num-beams is for translations",
            "leave it out",
        )
        check_rejected(
            trifold("eval", folder, "--split", "test"), "names no test data", "name the data"
        )
        return
    check_rejected(
        trifold("eval", folder, "--documents", "line"),
        "--documents is for raw text",
        "leave it out",
    )
    if kind == "text-to-text":
        check_rejected(trifold("eval", folder, "--split", "test"), "names its own validation rows")


def losses_of(trifold, *arguments):
    done = trifold("eval", *map(str, arguments), "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    return report["loss"], [*report["scores"]]


def test_eval_of_text_to_text_measures_the_parts_of_the_files(trifold, runs, tmp_path):
    run, copy, like = runs["text-to-text"], runs.here / "copy.tsv", runs.here / "like.tsv"
    whole = losses_of(trifold, run)
    assert whole[1] == ["copy", "like", "mean"]
    assert losses_of(trifold, run, copy, like) == whole
    own, _ = losses_of(trifold, run, copy)
    assert losses_of(trifold, run, copy) == (own, ["copy", "mean"])
    assert losses_of(trifold, run, "task.part=copy") == (own, ["copy", "mean"])
    rows = [line.split("\t") for line in copy.read_text("utf-8").splitlines()[1:]]
    # The same rows in other files belong to the part by their columns, or as two files of lines.
    (tmp_path / "a.jsonl").write_text(
        "".join(f'{{"id": 1, "target": "{b}", "source": "{a}"}}\n' for a, b in rows), "utf-8"
    )
    assert losses_of(trifold, run, tmp_path / "a.jsonl")[0] == pytest.approx(own)
    for name, column in (("a", 0), ("b", 1)):
        (tmp_path / name).write_text("\n".join([row[column] for row in rows] + [""]), "utf-8")
    assert losses_of(trifold, run, tmp_path / "a", tmp_path / "b")[0] == pytest.approx(own)
    done = trifold("compare", str(run), str(run), str(tmp_path / "a.jsonl"), "--json")
    compared = json.loads(done.out)
    assert compared["examples"] == len(rows)
    assert compared["scores"]["loss"]["a"] == pytest.approx(own, rel=1e-4)


def test_eval_rejects_files_of_no_part_or_of_several(trifold, runs, tmp_path):
    run, files = str(runs["text-to-text"]), {}
    for name, header in {
        "none": "source,targe", "both": "source,target,one,two,score", "more": "source,target"
    }.items():  # fmt: skip
        files[name] = tmp_path / f"{name}.csv"
        files[name].write_text(f"{header}\n{','.join('1' for _ in header.split(','))}\n", "utf-8")
    check_rejected(trifold("eval", run, str(files["none"])), "no part of this model (copy, like)")
    both = str(files["both"])
    check_rejected(trifold("eval", run, both), "several parts of this", "add task.part=NAME")
    assert losses_of(trifold, run, both, "task.part=like")[1] == ["like", "mean"]
    check_rejected(trifold("eval", run, both, "task.part=lik"), "known: copy, like")
    copy = str(runs.here / "copy.tsv")
    check_rejected(trifold("eval", run, copy, str(files["more"])), "the part 'copy' too")


def test_parts_with_the_same_columns_are_told_apart_by_their_files(trifold, runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs["text-to-text"], folder, ignore=shutil.ignore_patterns("checkpoints"))
    values = yaml.safe_load((folder / "recipe.yaml").read_text("utf-8"))
    parts = values["task"]["parts"]
    copies = (runs.here / "copy.tsv").read_text("utf-8").splitlines()
    (tmp_path / "a.txt").write_text("\n".join(copies[1:5]) + "\n", "utf-8")
    own = {"input": "echo: {0}", "target": 1, "format": "tsv", "header": False}
    parts["echo"] = parts["copy"] | own | dict.fromkeys(("train", "valid"), f"{tmp_path}/a.txt")
    parts["again"] = parts["copy"] | {"input": "again: {source}", "train": f"{tmp_path}/b.tsv"}
    (tmp_path / "b.tsv").write_text("\n".join(copies) + "\n", "utf-8")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(values), "utf-8")
    assert losses_of(trifold, folder, tmp_path / "a.txt")[1] == ["echo", "mean"]
    assert losses_of(trifold, folder, tmp_path / "b.tsv")[1] == ["again", "mean"]
    # A file of several parts scores all of them.
    assert losses_of(trifold, folder, runs.here / "copy.tsv")[1] == ["again", "copy", "mean"]
    for name, rows in (("a.txt", 4), ("b.tsv", 20)):
        out = tmp_path / f"{name}.jsonl"
        done = trifold("predict", str(folder), str(tmp_path / name), "--out", str(out))
        assert done.code == 0, done.err
        assert len(out.read_text("utf-8").splitlines()) == rows
    first = json.loads(out.read_text("utf-8").splitlines()[0])
    assert first["prediction"] == library.load(folder).generate("again: ant")


def test_eval_of_a_student_does_not_need_its_teacher(trifold, runs):
    student, teacher = runs["distill"], runs["causal"]
    aside = teacher.rename(teacher.with_name("aside"))
    try:
        assert trifold("eval", str(student)).code == 0
    finally:
        aside.rename(teacher)


@pytest.mark.parametrize("kind", ["masked", "causal", "denoise"])
def test_eval_of_a_model_without_a_run(trifold, runs, tmp_path, kind):
    (tmp_path / "model").symlink_to(runs[kind] / "model")
    model, text = str(tmp_path / "model"), str(runs.here / "text.txt")
    if kind == "masked":
        check_rejected(trifold("eval", model, text), "its task is unknown", "trifold predict")
    elif kind == "causal":
        assert trifold("eval", model, text).code == 0
        check_rejected(trifold("eval", model), "name the data: trifold eval")
    else:
        check_rejected(trifold("eval", model, text), "pairs have two sides")


def test_eval_reports_a_missing_tokenizer(trifold, runs):
    folder = runs["order"] / "model"
    (folder / "tokenizer.json").rename(folder / "aside")
    try:
        check_rejected(trifold("eval", str(runs["order"])), "tokenizer.json", "is missing")
        assert not (folder / "tokenizer.json").exists()
    finally:
        (folder / "aside").rename(folder / "tokenizer.json")


@pytest.mark.parametrize("kind", KINDS)
def test_printed_usage_command_works(trifold, runs, kind):
    words = shlex.split(load_recipe(str(runs[kind] / "recipe.yaml")).task.usage(runs[kind]))
    done = trifold(*words[1:])
    assert words[0] == "trifold" and words[2] == str(runs[kind]) and done.code == 0, done.err


# --- the other commands ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_generate_works_or_names_the_right_command(trifold, runs, kind):
    one = trifold("generate", str(runs[kind]), TEXT)
    many = trifold("generate", str(runs[kind]), "-", stdin=b"Today sun .\n\nrain\n")
    if kind in ENCODERS and kind != "permutation":  # which writes through its query stream
        for done in (one, many):
            check_rejected(done, "an encoder cannot generate text", "use `trifold predict`")
        return
    assert (one.code, many.code) == (0, 0)
    assert many.out.count("\n") == 3 and many.out.startswith(one.out)


@pytest.mark.parametrize("kind", ["denoise", "spans"])
def test_a_model_trained_to_fill_holes_reads_them(trifold, runs, kind):
    text = f"Today {'<mask>' if kind == 'denoise' else '<extra_id_0>'} ."
    folder, lines = str(runs[kind]), f"{text}\n".encode()
    one, letters = trifold("generate", folder, text), ["--no-parse-special"]
    assert one.code == 0 and "warning: " not in one.err.replace("warning: the output", "")
    assert trifold("generate", folder, "-", stdin=lines).out == one.out
    plain = trifold("generate", folder, text, *letters)
    assert plain.code == 0 and "is read as letters; --parse-special" in plain.err
    assert "is read as letters" in trifold("generate", folder, "-", *letters, stdin=lines).err


@pytest.mark.parametrize("kind", GENERATORS)
def test_output_cut_off_at_the_last_position_is_reported_once(trifold, runs, kind):
    """A requested limit (4 in the recipe) gives no warning, but is in the JSON output."""
    folder, lines = str(runs[kind]), b"Today sun .\nsnow\n"
    requested = trifold("generate", folder, "-", "--json", "--min-new-tokens", "4", stdin=lines)
    outputs = [json.loads(line)["outputs"][0] for line in requested.out.splitlines()]
    assert {(one["finish_reason"], one["limit"]) for one in outputs} == {("length", "requested")}
    assert "stopped" not in requested.err
    more = ["--max-new-tokens", "99", "--min-new-tokens", "99"]
    cut = trifold("generate", folder, "-", "--json", *more, stdin=lines)
    assert {json.loads(line)["outputs"][0]["limit"] for line in cut.out.splitlines()} == {
        "positions"
    }
    reason = r"(?:stopped at the last position of the model \(max_positions 24\)|ended in repeated words: )"
    counts = re.findall(rf"^warning: ([12]) of 2 outputs {reason}", cut.err, re.MULTILINE)
    assert sum(map(int, counts)) == 2
    for way in ([], ["--stream"]):
        one = trifold("generate", folder, TEXT, *more, *way)
        assert len(re.findall(f"^warning: the output {reason}", one.err, re.MULTILINE)) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_predict_fill_mask_works_or_is_rejected(trifold, runs, kind):
    folder, masked = str(runs[kind]), "Today <mask> ."
    plain, requested = (
        trifold("predict", folder, masked, *task) for task in ([], ["--task", "fill-mask"])
    )
    if kind in FILLERS:
        assert requested.code == 0 and requested.out.count("\t") == 4
    else:
        check_rejected(requested)
    if kind in ("pairs", "order"):
        check_rejected(plain, "supports several tasks; name one of fill-mask, next-sentence, embed")
    elif kind == "replaced":  # which has no head of a task
        assert plain.out == trifold("predict", folder, masked, "--task", "embed").out
    elif kind in ENCODERS:
        assert plain.out == requested.out
    else:
        check_rejected(plain, "use `trifold generate`")
    message = trifold("predict", folder, TEXT, "--task", "embed")
    assert message.code == 0 and len(message.out.split()) == 16


@pytest.mark.parametrize("kind", KINDS)
def test_predict_next_sentence_works_or_is_rejected(trifold, runs, kind):
    done = trifold(
        "predict",
        str(runs[kind]),
        TEXT,
        "--pair",
        "Today fog .",
        "--task",
        "next-sentence",
        "--json",
    )
    if kind in ("pairs", "order"):
        assert done.code == 0 and 0 <= json.loads(done.out)["outputs"]["score"] <= 1
    else:
        check_rejected(done, "requires a next-sentence head", "it supports ")


@pytest.mark.parametrize("kind", KINDS)
def test_show_works_for_every_kind(trifold, runs, kind):
    report = json.loads(trifold("show", str(runs[kind]), "--json").out)
    assert (
        report["shape"] == ("encoder" if kind in ENCODERS else report["shape"])
        and report["parameters"] > 0
    )
    assert trifold("show", str(runs[kind])).code == 0


@pytest.mark.parametrize("kind", KINDS)
def test_look_returns_every_kind_of_attention(trifold, runs, kind):
    done = trifold("look", str(runs[kind]), TEXT, "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    parts = {"encoder": ["encoder"], "decoder": ["decoder"]}
    shape = json.loads(trifold("show", str(runs[kind]), "--json").out)["shape"]
    assert list(report["patterns"]) == parts.get(shape, ["encoder", "decoder", "cross"])
    for part, layers in report["patterns"].items():
        rows = report["source"] if part == "encoder" else report["written"]
        columns = report["given"] if part == "decoder" else report["source"]
        for heads in layers:
            for pattern in heads:
                assert [len(row) for row in pattern] == [len(columns)] * len(rows)
                assert all(sum(row) == pytest.approx(1, abs=1e-3) for row in pattern)
    if kind in ENCODERS and kind != "replaced":  # whose head reads no target
        check_rejected(
            trifold("look", str(runs[kind]), TEXT, "--target", "rain"), "leave the target out"
        )


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_look_draws_a_picture_of_one_stack(trifold, runs, tmp_path, kind):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "a.png"
    assert trifold("look", str(runs[kind]), TEXT, "--out", str(picture)).out == f"{picture}\n"
    check_rejected(
        trifold("look", str(runs[kind]), TEXT, "--kind", "cross", "--out", f"{picture}.svg"),
        "this model has",
    )


# --- model cards ----------------------------------------------------------------------------------


def card_of(folder):
    return (folder / "model" / "README.md").read_text("utf-8")


@pytest.mark.parametrize("kind", KINDS)
def test_the_programs_of_a_model_card_run(trifold, runs, kind):
    text = card_of(runs[kind]).replace("MODEL", str(runs[kind] / "model"))
    programs = re.findall("```python\n(.*?)```", text, re.DOTALL)
    (command,) = re.findall("```sh\ntrifold (.*?)\n```", text)
    assert trifold(*shlex.split(command)).code == 0
    for program in programs:
        exec(program, {})
    assert ("transformers" in programs[-1]) == ("has no class for this model" not in text)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_card_names_scores_data_and_recipe_but_no_folder(runs, kind):
    text = card_of(runs[kind])
    (metrics,) = (line for line in lines_of(runs[kind]) if "valid/loss" in line)
    names = [key.removeprefix("valid/") for key in metrics if key.startswith("valid/")]
    assert f"| loss | {metrics['valid/loss']:.4f} |" in text
    for name in names:
        assert f"| {score_text(name, 0.0).rsplit(' ', 1)[0]} |" in text
    digests = json.loads((runs[kind] / "data.json").read_text("utf-8"))
    for files in digests.values():
        for name, digest in files.items():
            assert f"`{Path(name).name}`" in text and digest["sha256"] in text
    assert f"kind: {KINDS[kind][0].get('kind', 'translate')}\n" in text
    assert str(runs.here) not in text
