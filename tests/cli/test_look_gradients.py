"""`trifold look MODEL TEXT --gradients`."""

from __future__ import annotations

import json

import pytest
from tests.cli.readers import folder_of


@pytest.mark.slow
def test_gradients_are_a_table_a_picture_and_json(trifold, run, tmp_path):
    picture = tmp_path / "g.png"
    command = ("look", str(run), "one two", "--target", "one two", "--gradients")
    done = trifold(*command, "--out", str(picture))
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].split() == ["stack", "layer", "states", "attention", "cross", "feed-forward", "block"]  # fmt: skip
    assert max(map(len, lines[:-1])) <= 80 and lines[-1] == str(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "of the sum of the losses of its labels" in done.err
    report = json.loads(trifold(*command, "--json").out)
    assert report["loss"] and len(report["layers"]) == len(lines) - 3
    assert f"{report['layers'][1]['states']:.3g}" in lines[3]


ERRORS = {
    "no text": (("--gradients",), "TEXT is missing; --gradients are those of one text"),
    "a head": (("fox", "--gradients", "--head", "1"), "--gradients prints a table; remove"),
    "a page": (("fox", "--gradients", "--out", "{here}/a.html"), "remove --kind, --layer"),
    "no picture": (("fox", "--gradients", "--out", "{here}/a.txt"), "not a picture format"),
    "no head": (("fox", "--gradients"), "--gradients: this model has no head"),
}


@pytest.mark.parametrize(("arguments", "message"), ERRORS.values(), ids=ERRORS)
def test_errors(trifold, tmp_path, arguments, message):
    folder = folder_of("embed", tmp_path / "model")
    words = (word.replace("{here}", str(tmp_path)) for word in arguments)
    done = trifold("look", str(folder), *words)
    assert (done.code, done.out) == (2, "") and message in done.err
