from __future__ import annotations

import json
import re
import sys
import webbrowser

import numpy as np
import pytest

from trifold.cli import look
from trifold.look import server

pytestmark = pytest.mark.slow


def test_weights_as_json_need_no_picture(trifold, run, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.chdir(tmp_path)
    done = trifold("look", str(run), "twenty seven", "--target", "2 7", "--json")
    report = json.loads(done.out)
    assert (done.code, report["picture"], [*tmp_path.iterdir()]) == (0, None, [])
    assert report["output"] == "2 7"
    for kind, weights in report["patterns"].items():
        rows = {"encoder": report["source"]}.get(kind, report["written"])
        columns = {"decoder": report["given"]}.get(kind, report["source"])
        assert np.shape(weights) == (2, 4, len(rows), len(columns))
        assert np.allclose(np.sum(weights, axis=-1), 1, atol=1e-5)


def test_json_has_the_selected_layer_and_head_and_names_its_axes(trifold, run):
    words = ["look", str(run), "one", "--target", "1", "--json", "--kind", "encoder"]
    whole = json.loads(trifold(*words).out)
    part = json.loads(trifold(*words, "--layer", "2", "--head", "3").out)
    assert whole["axes"]["encoder"] == {
        "layers": [1, 2], "heads": [1, 2, 3, 4], "queries": "queries", "keys": "keys"
    }  # fmt: skip
    assert (part["axes"]["encoder"]["layers"], part["axes"]["encoder"]["heads"]) == ([2], [3])
    assert np.array_equal(
        part["patterns"]["encoder"], np.array(whole["patterns"]["encoder"])[1:2, 2:3]
    )
    refused = trifold(*words, "--layer", "9")
    assert (refused.code, "layer 9: the model has layers 1 to 2" in refused.err) == (2, True)


def test_out_sets_the_path_of_the_picture(trifold, run, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "pictures" / "one.png"
    done = trifold(
        "look",
        str(run),
        "one",
        "--kind",
        "cross",
        "--layer",
        "2",
        "--head",
        "1",
        "--out",
        str(picture),
    )
    assert (done.code, done.out) == (0, f"{picture}\n")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_look_without_matplotlib(trifold, run, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = trifold("look", str(run), "one", "--out", str(tmp_path / "a.png"))
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: pictures need matplotlib; install it with ")


BAD = {
    "no such layer": (("one", "--layer", "3"), 2, "layers 1 to 2"),
    "no such head": (("one", "--head", "0"), 2, "heads 1 to 4"),
    "no such kind": (("one", "--kind", "inner"), 2, "--kind"),
    "not a picture format": (("one", "--out", "a.txt"), 2, ".png"),
    "same model": (("one", "--compare", "RUN"), 2, "the same model; name another, or a checkpoint"),
    "comparison as a picture": (("one", "--compare", "teaching", "--out", "a.png"), 2, "page.html"),
    "head on a page": (("one", "--head", "1", "--out", "a.html"), 2, "a page shows every head"),
    "empty text": (("",), 1, "no tokens"),
    "text too long for the model": (("x" * 500,), 1, "at most 128"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(trifold, run, case, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    arguments, code, message = BAD[case]
    done = trifold("look", str(run), *(str(run) if each == "RUN" else each for each in arguments))
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("error: ")
    assert message in done.err


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (["{file}"], 'look {run} "$(cat {file})"` reads its text'),
        (["one", "--target", "{file}"], 'look {run} TEXT --target "$(cat {file})"` reads'),
        (["{file}.gone.txt"], "no such file; check the path"),
    ],
)
def test_a_file_is_not_taken_for_a_text(trifold, run, tmp_path, options, advice):
    file = tmp_path / "a.txt"
    file.write_text("one two\n", encoding="utf-8")
    words = [option.format(file=file) for option in options]
    done = trifold("look", str(run), *words, "--json")
    error = " ".join(done.err.split())
    assert (done.code, done.out) == (2, "") and advice.format(run=run, file=file) in error
    assert trifold("look", str(run), *words, "--json", "--text").code == 0


def test_the_teaching_model_has_a_page(trifold, tmp_path):
    done = trifold("look", "teaching", "the cat sat", "--out", str(tmp_path / "page.html"))
    assert (done.code, done.out) == (0, f"{tmp_path / 'page.html'}\n")


def test_a_comparison_is_written_to_a_file(trifold, run, tmp_path):
    page = tmp_path / "page.html"
    done = trifold("look", str(run), "one", "--compare", "teaching", "--out", str(page))
    assert (done.code, done.out) == (0, f"{page}\n")
    assert f'"models": ["{run}", "teaching"]' in page.read_text(encoding="utf-8")


PAIRS = "twenty seven\t2 7\none\t1\n\nthree four five\t3 4 5\n"


def test_roles_over_a_corpus(trifold, run, tmp_path):
    corpus, align, out = (tmp_path / name for name in ("pairs.tsv", "align", "page.html"))
    corpus.write_text(PAIRS, encoding="utf-8")
    align.write_text("0-0 1-1\n0-0\n\n0-0 1-1 2-2\n", encoding="utf-8")
    done = trifold("look", str(run), "--roles", str(corpus), "--align", str(align), "--json")
    report = json.loads(done.out)
    assert (done.code, report["lines"], report["skipped"], report["pruned"]) == (0, 3, 0, None)
    assert {each["role"] for each in report["heads"]} >= {
        "positional",
        "separator",
        "rare",
        "alignment",
    }
    role = next(each["role"] for each in report["heads"] if each["found"])
    done = trifold("look", str(run), "--roles", str(corpus), "--prune", role, "--out", str(out))
    assert done.code == 0 and out.is_file()
    lines = done.out.splitlines()
    assert (
        max(map(len, lines)) <= 80
        and lines[0].split() == "role relation head share 95 % baseline queries".split()
    )
    for score in ("loss", "accuracy", "BLEU"):
        assert any(line.strip().startswith(score) and " → " in line for line in lines), score
    assert "heads have a role over 3 lines; " in done.err
    n_open = {(x["kind"], x["layer"], x["head"]) for x in report["heads"] if x["open"]}
    n_open -= {(x["kind"], x["layer"], x["head"]) for x in report["heads"] if x["found"]}
    assert n_open and f"{len(n_open)} other head" in done.err
    name = lines[2].split("  ")
    kind, layer, head = next(
        re.findall(r"(\w+) (\d+)\.(\d+)", cell) for cell in name if "." in cell
    )[0]
    assert f"{kind} {layer}.{head} is head {head} of layer {layer}\n" in done.err


def _rate(**values):
    rate = {"kind": "encoder", "layer": 0, "head": 0, "role": "rare", "relation": ""}
    return rate | {"found": False, "open": False} | values


NOTES = {
    "far from every role": ([_rate()], "so more lines would not help"),
    "a wide interval": ([_rate(open=True), _rate(open=True)], "1 other head may have one"),
}


@pytest.mark.parametrize("case", NOTES)
def test_without_a_role_a_note_says_whether_more_lines_help(case, capsys):
    heads, words = NOTES[case]
    look._print_roles({"heads": heads, "lines": 30, "skipped": 0, "pruned": None})
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "0 of 1 heads have a role over 30 lines"
    assert words in lines[1]


SERVED = {
    "a script": (None, False, "neither a browser nor a terminal; write it"),
    "a script with a browser": (None, True, ""),
    "a port": ("--port=8123", False, ""),
    "no browser": ("--no-browser", False, ""),
}


@pytest.mark.parametrize("case", SERVED)
def test_a_live_page_that_nobody_sees_is_refused(trifold, monkeypatch, case):
    option, has_browser, message = SERVED[case]
    pages = []

    def get():
        if not has_browser:
            raise webbrowser.Error

    monkeypatch.setattr(webbrowser, "get", get)
    monkeypatch.setattr(server, "serve", lambda *arguments: pages.append(arguments))
    done = trifold("look", "teaching", "one", *filter(None, [option]))
    assert (done.code, len(pages)) == ((2, 0) if message else (0, 1))
    assert message in " ".join(done.err.split())


@pytest.mark.parametrize(("arguments", "message"), [
    (("--align", "x"), "--align requires --roles FILE"),
    (("--prune", "positional"), "--prune requires --roles FILE"),
    (("--roles", "pairs.tsv", "--kind", "all"), "--roles prints a table"),
    (("--roles", "pairs.tsv", "--out", "a.png"), "--roles prints a table"),
    (("--roles", "pairs.tsv", "--prune", "posional"), "posional: no such role; did you mean 'positional'?"),
])  # fmt: skip
def test_options_of_roles(trifold, run, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.tsv").write_text(PAIRS, encoding="utf-8")
    done = trifold("look", str(run), *arguments)
    assert (done.code, done.out) == (2, "") and message in done.err
