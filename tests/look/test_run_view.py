"""The view of a training run shows what the run wrote, and attention of its checkpoints."""

from __future__ import annotations

import json

import numpy as np
import pytest

import trifold
from trifold.cli.look import _load
from trifold.errors import UsageError
from trifold.look.page import write_page
from trifold.look.requests import answer
from trifold.look.run_view import head_over_checkpoints, run, run_folder
from trifold.look.session import Session
from trifold.look.views import attention
from trifold.train import View

pytestmark = pytest.mark.slow

TEXT = "one two"


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("runs") / "smoke"
    trifold.train(
        "smoke",
        out=folder,
        view=View(),
        **{"train.steps": 20, "train.validate_every": 10, "train.save_every": 10},
    )
    return Session(trifold.load(folder), run_folder(str(folder)))


def test_curves_have_the_values_of_the_metrics(session):
    found = run(session)
    lines = [
        json.loads(line)
        for line in (session.folder / "metrics.jsonl").read_text("utf-8").splitlines()
    ]
    names = {name for line in lines for name in line} - {"step"}
    assert found["curves"].keys() == names
    for name, curve in found["curves"].items():
        expected = {line["step"]: line[name] for line in lines if name in line}
        np.testing.assert_allclose(curve["steps"], [*expected])
        np.testing.assert_allclose(curve["values"], [*expected.values()], rtol=1e-6)


def test_samples_and_checkpoints_are_those_of_the_folder(session):
    found = run(session)
    files = sorted((session.folder / "samples").glob("*.tsv"))
    assert [each["step"] for each in found["samples"]] == [
        int(file.stem.split("-")[1]) for file in files
    ]
    for each, file in zip(found["samples"], files, strict=True):
        lines = file.read_text("utf-8").splitlines()
        assert ["\t".join(row) for row in (each["header"], *each["rows"])] == lines[
            : 1 + len(each["rows"])
        ]
    assert len(found["checkpoints"]) == len([*(session.folder / "checkpoints").glob("step-*")]) > 0


def test_a_head_of_the_last_checkpoint_is_that_of_the_model(session):
    place = {"kind": "cross", "layer": 0, "head": 1}
    found = head_over_checkpoints(session, TEXT, **place)
    last = attention(session, TEXT, None, "cross", 0)["weights"][1]
    assert found["weights"].shape == (len(found["steps"]), *last.shape)
    np.testing.assert_allclose(found["weights"][-1], last, atol=0.004)  # bf16 weights of the model
    np.testing.assert_allclose(found["weights"].sum(-1), 1, atol=1e-5)


def test_a_checkpoint_of_a_run_is_a_model(session):
    checkpoints = sorted((session.folder / "checkpoints").glob("step-*"))
    earlier, last = (_load(str(each)) for each in (checkpoints[0], checkpoints[-1]))
    finished = trifold.load(session.folder)
    weights = [each.trace(TEXT, TEXT).logits for each in (earlier, last, finished)]
    np.testing.assert_allclose(weights[1], weights[2], atol=0.05)  # bf16 weights of the model
    assert (weights[0] - weights[1]).abs().max() > 0.05


def test_what_a_model_does_not_have_is_an_error(session):
    with pytest.raises(UsageError, match="head 99: give a number from 0 to"):
        head_over_checkpoints(session, TEXT, kind="cross", layer=0, head=99)
    with pytest.raises(UsageError, match="does not belong to a run"):
        answer(Session(session.pipeline), "run", {})


def test_a_line_that_is_being_written_is_left_out(session, tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "train/loss": 2.0}\n{"step": 2, "tr', encoding="utf-8"
    )
    found = run(Session(session.pipeline, tmp_path))
    assert (found["curves"]["train/loss"]["values"].tolist(), found["checkpoints"]) == ([2.0], [])


def test_the_page_draws_the_run(session, tmp_path):
    browser = pytest.importorskip("tests.look.test_browser")
    if browser.BROWSER is None:
        pytest.skip("requires Debian's chromium")
    file = write_page(session, TEXT, None, tmp_path / "page.html")
    with browser.playwright.sync_playwright() as running:
        opened = running.chromium.launch(
            executable_path=browser.BROWSER, args=browser.FLAGS.split()
        )
        page, problems = opened.new_page(), list[str]()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(f"{file.as_uri()}#view=run")
        page.wait_for_selector(".curve canvas")
        assert page.locator(".curve").count() == len(run(session)["curves"])
        assert page.locator(".samples tbody tr").count() == len(run(session)["samples"][-1]["rows"])
        assert problems == []
        opened.close()
