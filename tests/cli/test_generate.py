from __future__ import annotations

import inspect
import io
import json
import shutil
from pathlib import Path

import pytest

import trifold as library
from trifold.cli.batch import REPETITION, Output, end_of, warn_limits
from trifold.cli.generate import run as command
from trifold.generate import GenerationConfig
from trifold.text import Tokenizer

pytestmark = pytest.mark.slow

LINES = ["twenty seven", "", "one hundred and five", "   ", "three\u2028four", "nine"]


def test_one_text_gives_one_line(trifold, run):
    done = trifold("generate", str(run), "twenty seven")
    assert done.code == 0
    assert done.out.count("\n") == 1
    assert done.err == ""


@pytest.mark.parametrize(
    "options", [(), ("--stream",), ("--num-beams", "2", "--num-return-sequences", "2")]
)
def test_control_characters_are_escaped_on_a_terminal_only(trifold, run, monkeypatch, options):
    text = "\x1b[2J\u202e\ttwo"
    monkeypatch.setattr(
        Tokenizer, "decode", lambda self, rows, **_: [text if row else "" for row in rows]
    )
    count = 2 if "2" in options else 1
    assert trifold("generate", str(run), "one", *options).out == f"{text}\n" * count
    terminal = type("Terminal", (io.TextIOWrapper,), {"isatty": lambda self: True})
    monkeypatch.setattr("tests.command_line.io.TextIOWrapper", terminal)
    assert trifold("generate", str(run), "one", *options).out == "\\x1b[2J\\u202e\ttwo\n" * count


def test_unknown_words_are_reported_in_one_line(trifold, run):
    one = trifold("generate", str(run), "twenty Ωmega, seven")
    assert (one.code, one.err) == (0, "warning: unknown words (1) are read as <unk>: 'Ωmega'\n")
    many = " ".join(chr(0x3B1 + number) for number in range(24))
    for arguments, stdin in (
        ((many,), None),
        ((many, "--stream"), None),
        ((), f"{many}\nnine\n".encode()),
    ):
        done = trifold("generate", str(run), *arguments, stdin=stdin)
        (line,) = (line for line in done.err.splitlines() if "unknown" in line)
        assert line.startswith("warning: unknown words (24) are read as <unk>: 'α', 'β', 'γ'")
        assert line.endswith(" …") and len(line) <= 80


def test_each_input_line_gives_one_output_line(trifold, run):
    stdin = "\n".join(LINES).encode() + b"\n"
    done = trifold("generate", str(run), "-", "--batch-size", "2", stdin=stdin)
    assert done.code == 0
    written = done.out.removesuffix("\n").split("\n")
    assert len(written) == len(LINES)
    for line, output in zip(LINES, written, strict=True):
        assert output == (
            trifold("generate", str(run), line).out.rstrip("\n") if line.strip() else output
        )
    assert written[1] == ""
    assert "blank" in done.err


def test_a_file_is_not_taken_for_a_text(trifold, run, tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("one\n", encoding="utf-8")
    done = trifold("generate", str(run), str(file))
    assert (done.code, done.out) == (2, "")
    assert f"{file}: is a file; `trifold generate {run} - < {file}` reads its lines" in done.err
    assert trifold("generate", str(run), str(file), "--text").code == 0


def test_pipe_needs_no_dash_and_batch_size_does_not_matter(trifold, run):
    stdin = "\n".join(LINES).encode()
    outputs = {
        trifold("generate", str(run), *size, stdin=stdin).out
        for size in ((), ("--batch-size", "1"))
    }
    assert len(outputs) == 1


def test_json_has_every_output_with_its_score_best_first(trifold, run):
    options = ("--num-beams", "4", "--num-return-sequences", "3", "--json")
    rows = [
        json.loads(line)
        for line in trifold(
            "generate", str(run), "-", *options, stdin=b"one\ntwo\n"
        ).out.splitlines()
    ]
    assert [row["source"] for row in rows] == ["one", "two"]
    for row in rows:
        scores = [output["score"] for output in row["outputs"]]
        assert scores == sorted(scores, reverse=True)
        assert len(scores) == 3
        assert {output["finish_reason"] for output in row["outputs"]} <= {"stop", "length"}


def test_n_best_prints_n_lines_for_each_input_line(trifold, run):
    # With one token, fewer than 40 different outputs exist.
    options = ("--num-beams", "40", "--num-return-sequences", "40", "--max-new-tokens", "1")
    done = trifold("generate", str(run), *options, stdin=b"one\n\ntwo\n")
    lines = done.out.removesuffix("\n").split("\n")
    assert len(lines) == 3 * 40
    assert 1 < len([line for line in lines[:40] if line]) < 40
    assert not any(lines[40:80])
    assert lines[:40] == trifold("generate", str(run), "one", *options).out.removesuffix(
        "\n"
    ).split("\n")


def test_streaming_with_stored_beams_names_their_source_and_the_flag(trifold, run, tmp_path):
    folder = shutil.copytree(run / "model", tmp_path / "model")
    stored = json.loads((folder / "generation_config.json").read_text("utf-8"))
    (folder / "generation_config.json").write_text(
        json.dumps(stored | {"num_beams": 4}), encoding="utf-8"
    )
    done = trifold("generate", str(folder), "one", "--stream")
    assert (done.code, done.out) == (2, "")
    assert "generation_config.json" in done.err
    assert "num_beams to 4; add --num-beams 1" in done.err
    for options in (["--num-beams", "1"], ["--temperature", "0.5"]):
        assert trifold("generate", str(folder), "one", "--stream", *options).code == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_named(trifold, run):
    done = trifold("generate", str(run), "one", "--out", "/dev/full")
    assert (done.code, done.err) == (1, "error: /dev/full: No space left on device\n")


def test_default_limit_is_reported(trifold, run):
    repeats_less = ("--no-repeat-ngram-size", "2")
    done = trifold(
        *("generate", str(run), "one", "--min-new-tokens", "90", "--json"), *repeats_less
    )
    (output,) = json.loads(done.out)["outputs"]
    assert (output["finish_reason"], output["limit"]) == ("length", "default")
    assert done.err.startswith(
        "warning: the output stopped at the default length; raise max_new_tokens, with --max"
    )
    ended = trifold("generate", str(run), "one", "--json")
    assert (json.loads(ended.out)["outputs"][0]["limit"], ended.err) == (None, "")


ENDS = {
    "It is a to to to to to to to to to to to to to to to to to to to to to": REPETITION,
    "I like the dog and the dog and the dog and the dog and the dog and the dog and the": REPETITION,
    "。" * 70: REPETITION,
    "the the the the the the the": REPETITION,
    "a good film about a little town that is very very very very": "default",
    "This is a very very very very good film about people who live in a town by the sea, and": "default",
    "": "default",
}


@pytest.mark.parametrize("text", ENDS)
def test_repetition_is_told_from_other_long_outputs(text):
    assert end_of(Output(text, 0.0, "length", "default")) == ENDS[text]
    assert end_of(Output(text, 0.0, "stop", None)) is None


def test_repetition_is_reported(trifold, run, capsys):
    pipeline = library.load(run)
    repeated = "warning: 2 of 4 outputs ended in repeated words: the model has learned"
    stopped = "outputs stopped at the default length"
    for limits, lines in (
        ([REPETITION, REPETITION, None, "default"], [repeated]),  # which need no larger limit
        ([REPETITION, REPETITION, "default", "default"], [repeated, f"2 of 4 {stopped}"]),
        ([None, None, "default"], [f"1 of 3 {stopped}"]),
    ):
        warn_limits(pipeline, limits)
        found = capsys.readouterr().err.replace("\n    ", " ").splitlines()
        assert len(found) == len(lines)
        for line, text in zip(found, lines, strict=True):
            assert text in line


def test_options_reach_the_search(trifold, run):
    done = trifold("generate", str(run), "one", "--max-new-tokens", "2", "--json")
    assert len(json.loads(done.out)["outputs"][0]["text"].replace(" ", "")) <= 2
    draws = [
        trifold("generate", str(run), "one", "--temperature", "5.0", "--seed", seed).out
        for seed in "112"
    ]
    assert draws[0] == draws[1] != draws[2]


def test_out_writes_the_results_to_a_file(trifold, run, tmp_path):
    direct = trifold("generate", str(run), "one").out
    done = trifold("generate", str(run), "one", "--out", str(tmp_path / "out.txt"))
    assert done.out == ""
    assert (tmp_path / "out.txt").read_bytes() == direct.encode()


def test_word_options(trifold, run):
    plain = trifold("generate", str(run), "one", "--max-new-tokens", "8").out.strip()
    assert plain
    letter = plain[-1]
    without = trifold("generate", str(run), "one", "--max-new-tokens", "8", "--bad-words", letter)
    assert without.code == 0
    assert letter not in without.out
    forced = trifold(
        "generate", str(run), "one", "--max-new-tokens", "12", "--num-beams", "3",
        "--force-words", "nine", "--force-words", "x", "--early-stopping", "never",
    )  # fmt: skip
    assert "nine" in forced.out
    assert "x" in forced.out
    stopped = trifold(
        "generate", str(run), "one", "--max-new-tokens", "8", "--stop-strings", letter
    )
    assert stopped.out.rstrip("\n") == plain[: plain.index(letter)]


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--stop-strings", "n"),
        ("--temperature", "2.0", "--seed", "3"),
        ("--penalty-alpha", "0.5", "--top-k", "3"),
    ],
)
def test_stream_option_prints_the_same_text(trifold, run, options):
    whole = trifold("generate", str(run), "twenty", *options)
    assert trifold("generate", str(run), "twenty", *options, "--stream").out == whole.out


def test_speculation_gives_the_same(trifold, run):
    plain = trifold("generate", str(run), "twenty one").out
    assert trifold("generate", str(run), "twenty one", "--draft", str(run)).out == plain
    assert (
        trifold("generate", str(run), "twenty one", "--prompt-lookup-num-tokens", "4").out == plain
    )


@pytest.mark.parametrize(
    "options",
    [
        ("--num-beams", "4", "--num-beam-groups", "2", "--diversity-penalty", "1.0"),
        ("--penalty-alpha", "0.5", "--top-k", "3"),
        ("--top-k", "3", "--top-k-form", "uniform", "--seed", "1"),
        ("--typical-p", "0.5", "--seed", "1"),
        ("--presence-penalty", "1.0", "--frequency-penalty", "0.5", "--repetition-penalty", "1.2"),
        ("--min-new-tokens", "5", "--no-repeat-ngram-size", "2", "--min-p", "0.1"),
        ("--num-beams", "2", "--renormalize-logits", "--no-repeat-ngram-size", "1"),
        ("--encoder-no-repeat-ngram-size", "2", "--suppress-tokens", "5", "--suppress-tokens", "6"),
        ("--begin-suppress-tokens", "5", "--min-new-tokens", "2"),
    ],
)
def test_every_strategy_has_options(trifold, run, options):
    done = trifold("generate", str(run), "twenty one", *options)
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize(
    "options",
    [
        ("--cache", "growing"),
        ("--cache", "static"),
        ("--prefill-chunk-size", "1"),
        ("--no-renormalize-logits", "--num-beams", "1"),
    ],
)
def test_cache_options_do_not_change_the_output(trifold, run, options):
    assert (
        trifold("generate", str(run), "twenty one", *options).out
        == trifold("generate", str(run), "twenty one").out
    )


# Settings that hold several token ids have no option.
BY_IDS = {"bad_words_ids", "force_words_ids", "eos_token_id", "forced_eos_token_id"}


def test_options_are_the_settings_and_their_help_is_the_description(trifold):
    options = inspect.signature(command).parameters.keys()
    assert set(GenerationConfig.model_fields) - options == BY_IDS
    text = "".join(trifold("generate", "--help").out.lower().split())
    for name, field in GenerationConfig.model_fields.items():
        assert name in BY_IDS or "".join(field.description.lower().split()) in text


def test_options_have_the_types_of_the_settings(trifold, run):
    options = [
        "--early-stopping",
        "true",
        "--num-beams",
        "2",
        "--no-renormalize-logits",
        "--min-length",
        "1",
    ]
    assert trifold("generate", str(run), "one", *options).code == 0
    for wrong in (["--early-stopping", "maybe"], ["--num-beams", "two"], ["--temperature", "warm"]):
        assert trifold("generate", str(run), "one", *wrong).code == 2


BAD = {
    "no such cache": (("x", "--cache", "round"), b"", 2, "--cache"),
    "no chunk": (("x", "--prefill-chunk-size", "0"), b"", 2, "prefill_chunk_size"),
    "a stream of lines": (("-", "--stream"), b"one\n", 2, "--stream"),
    "a stream of beams": (("x", "--stream", "--num-beams", "3"), b"", 2, "only one output"),
    "a text without a token": (("",), b"", 1, "no tokens"),
    "no text at all": ((), None, 2, "no TEXT"),
    "empty standard input": (("-",), b"", 1, "empty"),
    "invalid UTF-8": (("-",), b"one\ntw\xffo\n", 1, "standard input:2:3"),
    "a line too long for the model": (("-",), b"one\n" + b"x" * 500, 1, "line 2: 501 tokens"),
    "an argument that is not UTF-8": (("caf\udce9",), b"", 2, "TEXT: character 4"),
    "a contradiction": (("x", "--num-beams", "3", "--top-k", "2"), b"", 2, "contradict"),
    "a value out of range": (("x", "--top-p", "1.5"), b"", 2, "top_p"),
    "an unknown device": (("x", "--device", "abacus"), b"", 2, "abacus"),
    "a file that cannot be written": (
        ("x", "--out", "/no/such/folder/x"),
        b"",
        2,
        "/no/such/folder/x",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(trifold, run, case):
    arguments, stdin, code, message = BAD[case]
    done = trifold("generate", str(run), *arguments, stdin=stdin or b"", terminal=stdin is None)
    assert done.code == code
    assert done.err.startswith("error: ")
    assert message in done.err
    assert "Traceback" not in done.err


def test_missing_model(trifold, tmp_path):
    done = trifold("generate", str(tmp_path / "none"), "x")
    assert (done.code, done.out) == (1, "")
    assert "none" in done.err


@pytest.mark.parametrize(
    "command", ["generate {} one", "predict {} one --task embed", "eval {}", "look {} one --json"]
)
def test_tokenizer_names_another_folder(trifold, run, tmp_path, command):
    shutil.copytree(run, tmp_path / "run")
    for file in (tmp_path / "run" / "model").glob("*token*"):
        file.unlink()
    name, _, *more = command.split()
    failed = trifold(name, str(tmp_path / "run"), *more)
    assert (failed.code, failed.out) == (2 if name != "eval" else failed.code, "")
    assert "tokenizer" in failed.err and "name the folder of one with --tokenizer" in failed.err
    done = trifold(name, str(tmp_path / "run"), *more, "--tokenizer", str(run))
    assert (done.code, done.out) == (0, trifold(name, str(run), *more).out), done.err


def test_a_hole_that_is_read_as_letters_is_reported(trifold, run, monkeypatch):
    monkeypatch.setattr("trifold.text.annotation.written_holes", lambda *_: ["<mask>"])
    line = "warning: <mask> in the text is read as letters; --parse-special reads special tokens\n"
    assert trifold("generate", str(run), "a <mask>").err.endswith(line)
    many = trifold("generate", str(run), "-", stdin=b"a <mask>\nb <mask>\n")
    assert many.err.count(line) == 1
    assert line not in trifold("generate", str(run), "a <mask>", "--parse-special").err
