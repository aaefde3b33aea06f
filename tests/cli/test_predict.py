from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from tests.cli.readers import HEADS, folder_of, pictures_folder
from tests.hub import checkpoints
from tests.text.folders import WORDS

import trifold as library
from trifold.cli.prediction_output import _format_prediction, _visible
from trifold.cli.predictor import _choose_task
from trifold.predict.predict import TASKS
from trifold.recipe import load_recipe

pytestmark = pytest.mark.slow

LINES = [" ".join(WORDS[start : start + 3]) for start in (0, 2, 4)]
CONTEXT = " ".join(WORDS[:30])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each task, and one for pictures."""
    root = tmp_path_factory.mktemp("readers")
    found = {task: folder_of(task, root / task) for task in HEADS}
    return found | {"pictures": pictures_folder(root / "pictures")}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path_factory.mktemp("photos")
    paths = [str(folder / name) for name in ("a.png", "b.jpg", "c.png")]
    for number, path in enumerate(paths):
        picture = image.new("RGB", (20 + number, 15), (40 * number, 200, 90))
        picture.paste((255, 0, 10), (2, 3, 9, 8 + number))
        picture.save(path)
    return paths


# The tasks that give a line for a line.
LINE_TASKS = [name for name in TASKS if name not in ("search", "choose", "features")]


def inputs_of(task: str) -> list[str]:
    """Lines of input for a task."""
    if task == "fill-mask":
        return [f"{line} [MASK] {line}" for line in LINES]
    return [f"{line}\t{CONTEXT}" for line in LINES] if TASKS[task].pairs == "must" else LINES


@pytest.mark.parametrize("task", LINE_TASKS)
def test_each_input_line_gives_one_output_line(trifold, models, task):
    lines = inputs_of(task)
    stdin = "\n".join([lines[0], "", *lines[1:], "   "]).encode() + b"\n"
    done = trifold("predict", str(models[task]), "-", "--batch-size", "2", stdin=stdin)
    assert done.code == 0, done.err
    written = done.out.removesuffix("\n").split("\n")
    assert (len(written), written[1], written[4]) == (5, "", "")
    assert "2 of 5 lines are blank" in done.err
    for line, output in zip([lines[0], *lines[1:]], [written[0], *written[2:4]], strict=True):
        assert trifold("predict", str(models[task]), line).out == f"{output}\n"


@pytest.mark.parametrize(
    ("texts", "hint"),
    [
        (["a", "terrible", "film."], True),
        (["good", "bad"], False),
        (["a b", "c", "d"], False),
    ],
)
def test_a_text_without_quotes_is_noticed(trifold, models, texts, hint):
    model = str(models["classify"])
    done = trifold("predict", model, *texts)
    line = f'3 words are 3 texts; if they are one, put it in quotes: `trifold predict {model} "a '
    assert (done.code, len(done.out.splitlines())) == (0, len(texts))
    assert (line in done.err.replace("\n    ", " ")) == hint


def test_unknown_words_are_reported(trifold, models):
    text = f"{LINES[0]} ☃☃ [MASK]"
    done = trifold("predict", str(models["fill-mask"]), text, LINES[1] + " [MASK]")
    assert (done.code, done.err) == (0, "warning: unknown words (1) are read as [UNK]: '☃☃'\n")
    pair = trifold("predict", str(models["next-sentence"]), LINES[0], "--pair", "\x1b[7m ☃")
    assert "read as [UNK]: " in pair.err and "'☃'" in pair.err and "\x1b" not in pair.err


@pytest.mark.parametrize("task", LINE_TASKS)
def test_json_equals_the_python_result(trifold, models, task):
    pipe = library.load(models[task])
    lines = inputs_of(task)
    done = trifold("predict", str(models[task]), *lines, "--json", "--task", task)
    rows = [json.loads(line) for line in done.out.splitlines()]
    texts = [line.split("\t") for line in lines]
    assert [[row["source"], *([row["pair"]] if "pair" in row else [])] for row in rows] == texts
    assert {row["task"] for row in rows} == {task}
    pairs = [text[1] for text in texts] if len(texts[0]) > 1 else None
    for row, message in zip(
        rows, pipe.predict([text[0] for text in texts], pairs, task=task), strict=True
    ):
        from trifold.cli.prediction_output import to_json

        assert row["outputs"] == json.loads(json.dumps(to_json(message)))


def test_pair_is_for_all_texts_or_for_each(trifold, models):
    folder = str(models["answer"])
    tabbed = trifold("predict", folder, *(f"{line}\t{CONTEXT}" for line in LINES)).out
    assert trifold("predict", folder, *LINES, "--context", CONTEXT).out == tabbed
    repeated = [word for _ in LINES for word in ("--pair", CONTEXT)]
    assert trifold("predict", folder, *LINES, *repeated).out == tabbed
    stdin = "".join(f"{line}\n" for line in LINES).encode()
    assert trifold("predict", folder, "-", "--pair", CONTEXT, stdin=stdin).out == tabbed


def test_pairs_are_classified_with_tsv_or_pair(trifold, models):
    folder, line = str(models["classify"]), f"{LINES[0]}\t{LINES[1]}"
    paired = trifold("predict", folder, line, "--tsv").out
    assert paired == trifold("predict", folder, LINES[0], "--pair", LINES[1]).out
    assert paired != trifold("predict", folder, line).out


def test_top_k_results_are_sorted(trifold, models):
    for task, number in (("classify", 2), ("fill-mask", 4), ("answer", 3)):
        line = inputs_of(task)[0]
        done = trifold("predict", str(models[task]), line, "--top-k", str(number), "--json")
        outputs = json.loads(done.out)["outputs"]
        outputs = outputs[0] if task == "fill-mask" else outputs
        scores = [one["score"] for one in outputs]
        assert len(scores) == number and scores == sorted(scores, reverse=True)


def test_labels_have_the_names_of_the_folder(trifold, models):
    outputs = json.loads(trifold("predict", str(models["classify"]), LINES[0], "--json").out)[
        "outputs"
    ]
    assert {one["label"] for one in outputs} == {"bad", "so so", "good"}
    assert sum(one["score"] for one in outputs) == pytest.approx(1)


def test_pictures_are_classified(trifold, models, photos):
    done = trifold("predict", str(models["pictures"]), *photos, "--json")
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row["source"] for row in rows] == photos
    assert {one["label"] for one in rows[0]["outputs"]} == {"cat", "dog", "owl"}
    stdin = "".join(f"{path}\n" for path in photos).encode()
    assert trifold("predict", str(models["pictures"]), "-", "--json", stdin=stdin).out == done.out
    vectors = trifold(
        "predict", str(models["pictures"]), photos[0], "--task", "embed", "--json"
    ).out
    assert len(json.loads(vectors)["outputs"]) == 16


# Options of a threshold, by task, that some of the inputs reach and others do not.
THRESHOLDS = {
    "classify": ["0.7", "so so=0.7", "bad=0.01"],
    "several": ["0.465", "good=0.5", "good=0"],
    "next-sentence": ["0.85", "follows=0.85", "does not follow=0.12"],
    "pictures": ["0.5", "dog=0.5", "owl=0"],
}


@pytest.mark.parametrize("task", THRESHOLDS)
def test_a_threshold_chooses_from_the_probabilities_of_all_classes(
    trifold, models, photos, task, tmp_path_factory
):
    kinds = {"problem_type": "multi_label_classification"}
    several = task == "several"
    model = (
        folder_of("classify", tmp_path_factory.mktemp("m"), **kinds) if several else models[task]
    )
    texts = {"pictures": photos, "next-sentence": inputs_of("next-sentence")}.get(task, LINES)
    predict = partial(trifold, "predict", str(model), *texts)
    every = "--probabilities"

    def rows_of(*options: str) -> list[dict]:
        return [json.loads(line) for line in predict(*options, "--json").out.splitlines()]

    plain, all_classes = rows_of(), rows_of(every)
    names = {"next-sentence": ["follows", "does not follow"], "pictures": ["cat", "dog", "owl"]}
    for row, before in zip(all_classes, plain, strict=True):
        assert {**row, "probabilities": None} == {**before, "probabilities": None}
        assert {*row["probabilities"]} == {*names.get(task, ["bad", "so so", "good"])}
        assert several or sum(row["probabilities"].values()) == pytest.approx(1)
    for least in THRESHOLDS[task]:
        chosen = ("--threshold", least)
        # The predictions are those without the probabilities of all classes.
        expected = [each["outputs"] for each in rows_of(*chosen)]
        both = rows_of(every, *chosen)
        assert [row["outputs"] for row in both] == expected
        assert [row["probabilities"] for row in both] == [
            row["probabilities"] for row in all_classes
        ]
        for row in both:
            outputs = [row["outputs"]] if isinstance(row["outputs"], dict) else row["outputs"]
            for one in outputs:
                label = one.get("label") or names[task][not one["follows"]]
                assert one["score"] == row["probabilities"][label]
        lines = zip(predict(*chosen).out.split("\n"), predict(every).out.split("\n"), strict=True)
        assert predict(every, *chosen).out == "\n".join(" / ".join(each) for each in lines)[:-3]
    assert expected != [row["outputs"] for row in plain] or task == "several"


def test_an_answer_below_the_threshold_is_left_out(trifold, models, tmp_path):
    pipe = library.load(models["next-sentence"])
    firsts, seconds = zip(*(line.split("\t") for line in inputs_of("next-sentence")), strict=True)
    found = pipe.next_sentence(firsts, seconds)
    middle = sum(sorted(each.score for each in found)[:2]) / 2
    expected = [each if each.score >= middle else None for each in found]
    assert expected.count(None) == 1
    assert pipe.next_sentence(firsts, seconds, threshold=middle) == expected
    # The other answer has its own probability.
    opposite = pipe.next_sentence(firsts, seconds, threshold={found[0].label: 1.0})
    assert [each.score for each in opposite] == [
        pytest.approx(1 - each.score if each.follows is found[0].follows else each.score)
        for each in found
    ]
    table, out = tmp_path / "a.tsv", tmp_path / "b.jsonl"
    rows = ["text\tpair", *inputs_of("next-sentence"), ""]
    table.write_text("\n".join(rows), "utf-8")
    options = ("--probabilities", "--threshold", f"{middle}", "--out", str(out))
    done = trifold("predict", str(models["next-sentence"]), str(table), *options)
    assert done.code == 0, done.err
    for line, one, all_of in zip(out.read_text("utf-8").splitlines(), expected, found, strict=True):
        row = json.loads(line)
        assert (row["prediction"] is None) == (one is None)
        follows = all_of.score if all_of.follows else 1 - all_of.score
        assert row["p_follows"] == pytest.approx(follows, abs=1e-5)
        assert row["p_does not follow"] == pytest.approx(1 - follows, abs=1e-5)


def test_all_of_several_labels_that_reach_a_threshold_are_printed(trifold, tmp_path):
    names = [f"label {number}" for number in range(9)]
    kind = {"problem_type": "multi_label_classification", "n_labels": 9, "label_names": names}
    model = folder_of("classify", tmp_path, **kind)
    done = trifold("predict", str(model), LINES[0], "--threshold", "0", "--json")
    assert sorted(one["label"] for one in json.loads(done.out)["outputs"]) == names


def test_too_long_text_is_an_error_or_truncated_with_a_note(trifold, models):
    long = " ".join(WORDS * 3)
    folder = str(models["classify"])
    rejected = trifold("predict", folder, "-", stdin=f"{LINES[0]}\n{long}\n".encode())
    assert (rejected.code, rejected.out) == (1, "")
    assert "error: line 2: " in rejected.err and "reads at most 48" in rejected.err
    cut = trifold("predict", folder, LINES[0], long, "--on-overflow", "truncate")
    assert cut.code == 0
    assert "1 text cut to fit" in cut.err


def test_out_writes_the_results_to_a_file(trifold, models, tmp_path):
    direct = trifold("predict", str(models["tag"]), LINES[0]).out
    done = trifold("predict", str(models["tag"]), LINES[0], "--out", str(tmp_path / "out.txt"))
    assert (done.out, (tmp_path / "out.txt").read_bytes()) == ("", direct.encode())


# model, arguments, standard input (None: a terminal), exit code, part of the message
BAD = {
    "an unknown task": ("classify", ("x", "--task", "clasify"), b"", 2, "known; did you mean 'classify'?"),
    "a task without its head": ("classify", ("x", "--task", "tag"), b"", 2, "requires a token head; this"),
    "filling masks without a head": ("tag", ("x", "--task", "fill-mask"), b"", 2, "bidirectional language-model head"),
    "several tasks": ("both", ("x",), b"", 2, "name one of fill-mask, next-sentence, embed"),
    "no mask": ("fill-mask", (LINES[0],), b"", 1, "text 1 of 1 has no mask: write [MASK]"),
    "no mask in a line": ("fill-mask", ("-",), f"a [MASK]\n{LINES[0]}\n".encode(), 1, "line 2 has no mask"),
    "an empty text": ("classify", ("",), b"", 1, "text 1 of 1 has no tokens"),
    "an empty text of several": ("tag", (LINES[0], " "), b"", 1, "text 2 of 2 has no tokens"),
    "no text at all": ("classify", (), None, 2, "no TEXT"),
    "empty standard input": ("classify", ("-",), b"", 1, "empty"),
    "invalid UTF-8": ("classify", ("-",), b"one\ntw\xffo\n", 1, "standard input:2:3"),
    "an argument that is not UTF-8": ("classify", ("caf\udce9",), b"", 2, "TEXT: character 4"),
    "no context": ("answer", ("Who?",), b"", 1, "text 1 of 1: 0 tabs; pass two texts with one tab"),
    "two tabs": ("answer", ("-",), b"a\tb\nWho?\ta\tb\n", 1, "line 2: 2 tabs"),
    "an empty context": ("answer", ("Who?\t ",), b"", 1, "has no tokens on one side"),
    "an empty half of a pair": ("next-sentence", ("one\t",), b"", 1, "has no tokens on one side"),
    "an overlong question": ("answer", (CONTEXT * 3, "--pair", CONTEXT), b"", 2, "shorten the first text"),
    "a second text for a task without pairs": ("tag", ("a", "--pair", "b"), b"", 2, "tag reads single texts"),
    "two pairs for three texts": ("classify", ("a", "b", "c", "--pair", "d", "--pair", "e"), b"", 2, "2 second texts"),
    "pairs twice": ("classify", ("a\tb", "--tsv", "--pair", "c"), b"", 2, "leave one of them out"),
    "an option of another task": ("classify", ("a", "--merge", "max"), b"", 2, "merge: not an option of classify"),
    "no pooler": ("tag", ("a", "--task", "embed", "--pooling", "pooler"), b"", 2, "this model has no pooler"),
    "top-k of 0": ("classify", ("a", "--top-k", "0"), b"", 2, "--top-k"),
    "an unknown device": ("classify", ("x", "--device", "abacus"), b"", 2, "abacus"),
    "a file that cannot be written": ("classify", ("x", "--out", "/no/such/folder/x"), b"", 2, "/no/such/folder/x"),
    "a missing picture": ("pictures", ("none.png",), b"", 1, "text 1 of 1: none.png: no such file"),
    "a pair of pictures": ("pictures", ("a.png", "--pair", "b.png"), b"", 2, "reads single images"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input(trifold, models, case):
    task, arguments, stdin, code, message = BAD[case]
    done = trifold(
        "predict", str(models[task]), *arguments, stdin=stdin or b"", terminal=stdin is None
    )
    assert done.code == code, done.err
    assert done.err.startswith("error: ")
    assert message in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("names", "advice"),
    [
        (["a.txt"], "predict {model} - < a.txt` reads its lines"),
        (["a.csv", "b.csv"], "predict {model} a.csv --out FILE.csv` reads its rows"),
        (["a text", "words.conll"], "predict {model} words.conll --out FILE.csv"),
        (["a text", "--pair", "a.txt"], 'predict {model} TEXT --pair "$(cat a.txt)"'),
        (["a.txt "], "a.txt: is a file; `trifold predict {model} - < a.txt`"),
        (["a.csv\n"], "predict {model} a.csv --out FILE.csv` reads its rows"),
        (["file://{here}/a.txt"], "predict {model} - < {here}/a.txt` reads its lines"),
        (["~/a.txt"], "predict {model} - < {here}/a.txt` reads its lines"),
        (["$HOME/a.txt"], "predict {model} - < {here}/a.txt` reads its lines"),
        (["a.PNG"], "a.PNG: is a file; the model reads texts and no images"),
        (["folder"], "folder: is a folder; name a file in it"),
        (["a text", "tables/"], "predict {model} tables --out FILE.csv` reads its tables"),
        (["tables"], "--out: name a file"),
        (["*.txt"], "is a pattern of files; name the files, without quotes"),
        (["a.xlsx"], "--out: name a file (.csv, .tsv, .jsonl, .conll) for the rows"),
        (["a.xls"], "a.xls: is a file; save it as CSV in UTF-8 in the program that made it"),
        (["no.pdf"], "no.pdf: no such file; check the path"),
        (["no.txt"], "no.txt: no such file; check the path"),
        (["no.JPG"], "no.JPG: no such file; check the path"),
        (["no.csv"], "no.csv: no such file; check the path"),
    ],
)
def test_a_file_is_not_taken_for_a_text(trifold, models, tmp_path, monkeypatch, names, advice):
    (tmp_path / "folder").mkdir()
    (tmp_path / "tables").mkdir()
    for name in (
        "a.txt",
        "a.csv",
        "b.csv",
        "words.conll",
        "a.PNG",
        "a.xlsx",
        "a.xls",
        "tables/a.csv",
    ):
        (tmp_path / name).write_text("one two\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    model = str(models["classify"])
    names = [name.replace("{here}", str(tmp_path)) for name in names]
    with monkeypatch.context() as patch:
        patch.setattr("trifold.pipeline.load", None)  # the model is not loaded before
        done = trifold("predict", model, *names)
    error = done.err.replace("\n    ", " ")
    assert (done.code, done.out) == (2, "") and advice.format(model=model, here=tmp_path) in error
    assert "--text" in error
    done = trifold("predict", model, *names, "--text", "--on-overflow", "truncate")
    assert done.code == 0 and done.out


@pytest.mark.parametrize("text", ["What?", "$5 off", "wow*", "~nobody", "see a.txt", "a.b", "1.5"])
def test_other_texts_are_no_names_of_files(trifold, models, text, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("x", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert trifold("predict", str(models["classify"]), text).code == 0


def test_a_picture_in_the_home_folder_is_found(trifold, models, photos, monkeypatch):
    folder = Path(photos[0]).parent
    monkeypatch.setenv("HOME", str(folder))
    model = str(models["pictures"])
    assert trifold("predict", model, "~/a.png").out == trifold("predict", model, photos[0]).out


def test_predict_with_a_translator(trifold, run):
    done = trifold("predict", str(run), "one")
    assert (done.code, done.out) == (2, "")
    assert "this is a generation model; use `trifold generate`" in done.err
    done = trifold("predict", str(run), "one", "--task", "embed", "--normalise", "--json")
    assert sum(number**2 for number in json.loads(done.out)["outputs"]) == pytest.approx(
        1, abs=1e-5
    )


@pytest.mark.parametrize("json", [(), ("--json",)])
def test_predictions_that_are_not_finite_are_errors(trifold, photos, tmp_path, json):
    words = folder_of("classify", tmp_path / "words")
    tensors = checkpoints.read(words)
    tensors["classifier.bias"][:] = float("nan")
    checkpoints.write(words, tensors)
    pictures = pictures_folder(tmp_path / "pictures", rescale_factor=1e308)
    for folder, text, message in (
        (words, "fox", "error: the model computes NaN or infinity"),
        (pictures, photos[0], "error: text 1 of 1: "),
    ):
        done = trifold("predict", str(folder), text, *json)
        assert (done.code, done.out) == (1, "")
        assert message in done.err
    assert (
        "correct rescale_factor, image_mean and image_std in preprocessor_config.json" in done.err
    )


def test_images_that_become_larger_than_those_of_the_model_are_rejected(trifold, photos, tmp_path):
    folder = pictures_folder(tmp_path, size={"shortest_edge": 10_000})
    done = trifold("predict", str(folder), photos[0])
    assert (done.code, done.out) == (1, "")
    assert (
        "size: images become (10000, 10000) pixels high and wide, but the model reads (8, 12)"
        in done.err
    )


DAMAGED = {
    "names that are not an object": (
        {"id2label": ["a", "b"]},
        "id2label: an object of numbers and names is required",
    ),
    "a missing name": (
        {"id2label": {"0": "a", "2": "c"}},
        "id2label: its keys are not the numbers 0 to 1",
    ),
    "a key that is not a number": (
        {"id2label": {"a": "0", "b": "1"}},
        "id2label: its keys are not the numbers 0 to 1",
    ),
    "a name that is null": (
        {"id2label": {"0": "a", "1": None}},
        "id2label.1: None is not a class name",
    ),
    "names and weights that disagree": (
        {"id2label": {"0": "a", "1": "b"}},
        "wrong shape: classifier",
    ),
    "half of a character": (
        {"id2label": {"0": "a", "1": "\ud800", "2": "c"}},
        "config.json: a string contains U+D800",
    ),
    "an unknown problem type": (
        {"problem_type": "ranking"},
        "problem_type: 'ranking' is not known",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_labels(trifold, tmp_path, case):
    values, message = DAMAGED[case]
    folder_of("classify", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values), encoding="utf-8")
    done = trifold("predict", str(tmp_path), "x")
    assert (done.code, done.out) == (1, "")
    assert message in done.err and "Traceback" not in done.err


CORPORA = {
    "a named column": ("Body Xyz", "a", ["data.columns.text=Body Xyz"], 0, "1\t"),
    "a setting before the text": ("Body Xyz", "data.columns.text=Body Xyz", ["a"], 0, "1\t"),
    "a number": ("Review Text", "a", ["data.columns.text=1"], 0, "1\t"),
    "the last word of a name": ("Review Text", "a", ["--task", "search"], 0, "1\t"),
    "a setting of lines": (None, "a", ["data.columns.text=1"], 2, "corpus a.txt has lines"),
}


@pytest.mark.parametrize("case", CORPORA)
def test_a_corpus_may_have_other_columns_than_the_training(
    trifold, models, tmp_path, monkeypatch, case
):
    column, first, others, code, words = CORPORA[case]
    monkeypatch.chdir(tmp_path)
    name = "a.txt"
    if column is not None:
        name = "a.csv"
    (tmp_path / name).write_text(f"stars,{column}\n5,a b\n2,b a\n", encoding="utf-8")
    done = trifold("predict", str(models["classify"]), first, *others, "--corpus", name)
    assert (done.code, words in done.out + done.err) == (code, True), done.err


def test_a_pair_of_a_similarity_model_gives_the_cosine(tmp_path):
    (tmp_path / "a.csv").write_text("sentence1,sentence2,score\na,b,1\nb,a,2\n", encoding="utf-8")
    recipe = load_recipe("similarity", {"data.train": str(tmp_path / "a.csv")})
    options = {"is_rows": False}
    assert _choose_task(recipe.model, recipe, None, (), **options, has_pairs=True) == "similarity"
    assert _choose_task(recipe.model, recipe, None, (), **options, has_pairs=False) != "similarity"
    assert _format_prediction("similarity", 0.25) == "0.2500"


@pytest.mark.parametrize(("text", "shown"), [(" ", "' '"), ("", "''"), ("a", "a"), ("▁", "▁")])
def test_a_token_of_spaces_is_visible(text, shown):
    assert _visible(text) == shown
