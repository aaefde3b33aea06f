"""Every reader of metrics.jsonl accepts the same lines, and names the place of any other."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path

import pytest

from trifold.cli.runs import describe_run
from trifold.errors import CheckpointError
from trifold.folders import named
from trifold.jsonfiles import MAX_LINE, iter_metrics
from trifold.look import plots, run_view
from trifold.look.session import Session
from trifold.train.run_folder import RunFolder

FIRST = b'{"step": 1, "train/loss": 3.0, "valid/loss": 2.5, "seconds": 4}\n'

ODD = {
    "an array": (b"[]", "metrics are an object, not []"),
    "a number": (b"7", "metrics are an object, not 7"),
    "null": (b"null", "metrics are an object, not None"),
    "a text": (b'"a"', "metrics are an object, not 'a'"),
    "nothing": (b"", "not JSON"),
    "half a line": (b'{"step": 2', "not JSON"),
    "not UTF-8": (b'{"step": 2, "\xff": 1}', "byte 14 is not UTF-8"),
    "UTF-16": ('{"step": 2}'.encode("utf-16"), "byte 1 is not UTF-8"),
    "a null byte": (b'{"step": 2}\0', "not JSON"),
    "deep": (b'{"step":' * 50_000, "nested too deeply"),
    "long": (b'{"step": 2, "a": "' + b"a" * (10 * MAX_LINE) + b'"}', "less than"),
    "no step": (b'{"train/loss": 1.0}', "step is None"),
    "a step of text": (b'{"step": "2"}', "step is '2'"),
    "a step of truth": (b'{"step": true}', "step is True"),
    "half a step": (b'{"step": 1.5}', "step is 1.5"),
    "an infinite step": (b'{"step": Infinity}', "step is inf"),
    "a step before the first": (b'{"step": -1}', "step is -1"),
    "a huge step": (b'{"step": 99999999999999999999}', "step is 99999999999999999999"),
    "digits": (b'{"step": ' + b"9" * 9_999 + b"}", "not JSON"),
    "a loss of text": (b'{"step": 2, "valid/loss": "low"}', "'valid/loss' is 'low'"),
    "a loss in a list": (b'{"step": 2, "valid/loss": [1]}', "'valid/loss' is [1]"),
    "seconds of truth": (b'{"step": 2, "seconds": true}', "'seconds' is True"),
}

EVEN = {
    "no number": b'{"step": 2, "train/loss": null, "valid/loss": NaN, "seconds": null}',
    "infinity": b'{"step": 2, "train/loss": Infinity, "valid/loss": -Infinity}',
    "digits": b'{"step": 2, "train/loss": ' + b"9" * 999 + b"}",
    "an event": b'{"step": 2, "event": "skipped", "why": ["a"]}',
    "the same step": b'{"step": 1, "train/loss": 3.0}',
    "an earlier step": b'{"step": 0, "train/loss": 3.0}',
    "only a step": b'{"step": 2}',
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run without anything but its recipe and the first line of its metrics."""
    recipe = "name: a\ntask: {kind: causal, best_by: loss}\n"
    (tmp_path / "recipe.yaml").write_text(recipe, encoding="utf-8")
    (tmp_path / "metrics.jsonl").write_bytes(FIRST)
    return tmp_path


def view(run: Path) -> dict[str, object]:
    """The curves that `trifold look RUN` shows."""
    session = Session.__new__(Session)
    session.folder = run
    return run_view.run(session)["curves"]


@pytest.mark.parametrize("case", ODD)
def test_an_odd_line_is_named_by_every_reader_and_removed_by_resuming(run: Path, case: str) -> None:
    line, message = ODD[case]
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(line + b"\n" + FIRST.replace(b"1,", b"3,", 1))
    facts = describe_run(run, "a")
    assert facts.state == "damaged"
    place = f"{run / 'metrics.jsonl'}:2: "
    assert facts.error is not None
    assert place in facts.error and message in facts.error and "remove the line" in facts.error
    for read in (view, lambda run: plots.read_metric(run, "train/loss")):
        with pytest.raises(CheckpointError) as caught:
            read(run)
        assert str(caught.value) == facts.error
    assert RunFolder(run).truncate_metrics(5) == 2
    assert describe_run(run, "a").step == 3


@pytest.mark.parametrize("case", EVEN)
def test_lines_without_finite_numbers_are_read(run: Path, case: str) -> None:
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(EVEN[case] + b"\n")
    facts = describe_run(run, "a")
    assert (facts.error, facts.value, facts.seconds) == (None, 2.5, 4.0)
    assert view(run).keys() == {"train/loss", "valid/loss", "seconds"}
    assert plots.read_metric(run, "train/loss") == ([1], [3.0]) or b"0," in EVEN[case]


def test_a_last_line_that_is_being_written_is_left_out(run: Path) -> None:
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 2, "valid/lo')
    folder = named(run)
    assert [line["step"] for line in iter_metrics(folder / "metrics.jsonl")] == [1]
    assert [*iter_metrics(folder / "none.jsonl")] == []


def test_mutated_metrics_are_read_or_named(run: Path) -> None:
    """Bytes of a line are removed, repeated or replaced, 300 times."""
    rng = random.Random(11)
    lines = [*EVEN.values(), FIRST.strip(), json.dumps({"step": 9, "valid/loss": 1e308}).encode()]
    for _ in range(300):
        changed = bytearray(rng.choice(lines))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(changed))
            changed[at : at + rng.randint(0, 3)] = rng.choice(
                [b"", b"\xff", b"9e9", b"[", b"\n", b"-"]
            )
        (run / "metrics.jsonl").write_bytes(FIRST + bytes(changed) + b"\n")
        with suppress(CheckpointError):
            view(run)
        describe_run(run, "a")
        assert RunFolder(run).truncate_metrics(10**9) >= 1
