from __future__ import annotations

import json

import pytest

LINES = ["twenty seven", "", "one hundred and five", "   ", "three\u2028four", "nine"]


def test_one_text_gives_one_line(trifold, run):
    done = trifold("generate", str(run), "twenty seven")
    assert done.code == 0
    assert done.out.count("\n") == 1
    assert done.err == ""


def test_every_line_of_input_gives_one_line_of_output_in_its_place(trifold, run):
    stdin = "\n".join(LINES).encode() + b"\n"
    done = trifold("generate", str(run), "-", "--batch-size", "2", stdin=stdin)
    assert done.code == 0
    written = done.out.removesuffix("\n").split("\n")
    assert len(written) == len(LINES)
    for line, output in zip(LINES, written, strict=True):
        assert output == (trifold("generate", str(run), line).out.rstrip("\n") if line.strip() else output)
    assert written[1] == ""
    assert "blank" in done.err


def test_a_pipe_needs_no_dash_and_any_portion_gives_the_same(trifold, run):
    stdin = "\n".join(LINES).encode()
    outputs = {trifold("generate", str(run), *size, stdin=stdin).out for size in ((), ("--batch-size", "1"))}
    assert len(outputs) == 1


def test_json_has_every_output_with_its_score_best_first(trifold, run):
    options = ("--num-beams", "4", "--num-return-sequences", "3", "--json")
    rows = [
        json.loads(line)
        for line in trifold("generate", str(run), "-", *options, stdin=b"one\ntwo\n").out.splitlines()
    ]
    assert [row["source"] for row in rows] == ["one", "two"]
    for row in rows:
        scores = [output["score"] for output in row["outputs"]]
        assert scores == sorted(scores, reverse=True)
        assert len(scores) == 3
        assert {output["finish_reason"] for output in row["outputs"]} <= {"stop", "length"}


def test_options_reach_the_search(trifold, run):
    done = trifold("generate", str(run), "one", "--max-new-tokens", "2", "--json")
    assert len(json.loads(done.out)["outputs"][0]["text"].replace(" ", "")) <= 2
    draws = [
        trifold("generate", str(run), "one", "--temperature", "5.0", "--seed", seed).out for seed in "112"
    ]
    assert draws[0] == draws[1] != draws[2]


def test_results_go_to_a_file_where_one_is_named(trifold, run, tmp_path):
    direct = trifold("generate", str(run), "one").out
    done = trifold("generate", str(run), "one", "--out", str(tmp_path / "out.txt"))
    assert done.out == ""
    assert (tmp_path / "out.txt").read_bytes() == direct.encode()


BAD = {
    "a text without a token": (("",), b"", 1, "no tokens"),
    "no text at all": ((), None, 2, "no TEXT"),
    "empty standard input": (("-",), b"", 1, "empty"),
    "invalid UTF-8": (("-",), b"one\ntw\xffo\n", 1, "standard input:2:3"),
    "a line too long for the model": (("-",), b"one\n" + b"x" * 500, 1, "line 2: 501 tokens"),
    "an argument that is not UTF-8": (("caf\udce9",), b"", 2, "TEXT: character 4"),
    "a contradiction": (("x", "--num-beams", "3", "--top-k", "2"), b"", 2, "contradict"),
    "a value out of range": (("x", "--top-p", "1.5"), b"", 2, "top_p"),
    "a device that is not here": (("x", "--device", "abacus"), b"", 2, "abacus"),
    "a file that cannot be written": (("x", "--out", "/no/such/folder/x"), b"", 2, "/no/such/folder/x"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(trifold, run, case):
    arguments, stdin, code, said = BAD[case]
    done = trifold("generate", str(run), *arguments, stdin=stdin or b"", terminal=stdin is None)
    assert done.code == code
    assert done.err.startswith("error: ")
    assert said in done.err
    assert "Traceback" not in done.err


def test_a_model_that_is_not_there(trifold, tmp_path):
    done = trifold("generate", str(tmp_path / "none"), "x")
    assert (done.code, done.out) == (1, "")
    assert "none" in done.err
