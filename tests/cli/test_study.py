"""`trifold study`: runs of normal training, continued without loss, and the law of their losses."""

from __future__ import annotations

import json
import os
import signal

import pytest

from trifold.hub.folder import read_config
from trifold.nn import Transformer
from trifold.train import loop, study as module
from trifold.train.trainer import Trainer

STUDY = """
recipe: shakespeare-char-tiny
settings:
  data: {{train: "{text}", holdout: 0.2}}
  model: {{max_positions: 16, n_layers: 1, n_heads: 2}}
  batch: {{tokens: 66, rows: 4}}
  train: {{device: cpu, precision: float32, workers: 1, samples: 0, save_every: 2, log_every: 2}}
warmup: 0.2
resamples: 100
sizes: {{a: {{d_model: 4, d_ff: 8}}, b: {{d_model: 8, d_ff: 16}}, c: {{d_model: 16, d_ff: 32}}}}
tokens: [130, 260, 520]
"""


@pytest.fixture
def file(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(
        "".join(f"line {n} of {n % 7} and {n % 3}\n" for n in range(150)), encoding="utf-8"
    )
    file = tmp_path / "study.yaml"
    file.write_text(STUDY.format(text=text), encoding="utf-8")
    return file


def without_seconds(done):
    found = json.loads(done.out)
    return [
        {key: value for key, value in run.items() if key != "seconds"} for run in found["runs"]
    ], found["law"]


@pytest.mark.slow
def test_an_interrupted_study_continues_to_the_numbers_of_an_uninterrupted_one(
    trifold, file, tmp_path, monkeypatch
):
    straight = trifold("study", str(file), "--out", str(tmp_path / "straight"), "--json")
    assert straight.code == 0, straight.err
    runs, law = without_seconds(straight)
    assert len(runs) == 9
    assert (
        law["estimates"].keys() == law["intervals"].keys() == {"E", "A", "alpha", "B", "beta", "a"}
    )

    updates, signals, update = [], {9, 15}, Trainer.update  # signals: in the middle of runs

    def signalled(trainer, batches, step, *arguments):
        updates.append(step)
        if len(updates) in signals:
            signals.remove(len(updates))
            os.kill(os.getpid(), signal.SIGTERM)
        return update(trainer, batches, step, *arguments)

    monkeypatch.setattr(Trainer, "update", signalled)
    out = str(tmp_path / "out")
    codes = []
    while not codes or codes[-1]:
        done = trifold("study", str(file), "--out", out, "--json")
        codes.append(done.code)
        assert len(codes) < 5 and (
            not done.code or "the same command continues the study" in done.err
        )
    assert codes == [143, 143, 0]
    assert without_seconds(done) == (runs, law)
    steps = [2, 4, 8] * 3
    assert len(updates) == sum(steps)  # no update twice

    # The table has the tokens that were counted, and the parameters of the layers.
    for run, planned in zip(
        runs, module.plan_runs(module.load_study(file), tmp_path / "out"), strict=True
    ):
        assert planned.is_complete and run["size"] == planned.size
        model = Transformer(read_config(planned.folder.model))
        named = {name: parameter.numel() for name, parameter in model.named_parameters()}
        embeddings = sum(size for name, size in named.items() if "embeddings" in name)
        assert 0 < embeddings == sum(named.values()) - run["parameters"]
        assert run["tokens"] == 64 * planned.recipe.train.steps

    # A complete study trains nothing; one more count of tokens trains three runs.
    updates.clear()
    table = trifold("study", str(file), "--out", out)
    assert table.code == 0 and not updates
    assert (
        "L(N, D) = E + A/N^alpha + B/D^beta" in table.out and "9 runs, 100 resamples" in table.out
    )
    assert max(map(len, table.out.splitlines())) <= 80
    assert (tmp_path / "out" / "study.png").stat().st_size > 1000
    lines = (tmp_path / "out" / "study.tsv").read_text("utf-8").splitlines()
    assert [line.split("\t")[0] for line in lines] == ["size", *(run["size"] for run in runs)]
    more = trifold("study", str(file), "tokens=[130,260,390,520]", "--out", out, "--json")
    assert more.code == 0 and len(updates) == 6 + 6 + 6
    assert [run for run in without_seconds(more)[0] if run["tokens"] != 384] == runs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["tokns=[1]"], "tokns: unknown key; did you mean 'tokens'?"),
        (["sizes.a.d_modle=4"], "model.d_modle: unknown key; did you mean 'd_model'?"),
        (["settings.train.stesp=4"], "train.stesp: unknown key; did you mean 'steps'?"),
        (["tokens=[0,1,2]"], "tokens: input should be greater than 0"),
        (["sizes={../a: {d_model: 4}}"], "'../a' cannot be a folder"),
        (["recipe=smoke", "settings={}"], "a study requires task.kind causal, not"),
        (
            ["tokens=[100]", "sizes={a: {d_model: 4}}"],
            "1 sizes and 1 numbers of tokens do not determine",
        ),
        (["warmup=1"], "warmup: input should be less than 1"),
    ],
)
def test_wrong_studies_are_rejected_before_training(
    trifold, file, tmp_path, change, message, monkeypatch
):
    monkeypatch.setattr(loop, "train", pytest.fail)
    done = trifold("study", str(file), *change, "--out", str(tmp_path / "out"))
    assert (done.code, done.out) == (2, "")
    assert message in " ".join(done.err.split())
    assert not (tmp_path / "out").exists()


def test_results_of_another_study_are_not_replaced(trifold, file, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "train", pytest.fail)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "study.png").write_bytes(b"mine")
    done = trifold("study", str(file), "--out", str(tmp_path / "out"))
    assert (done.code, done.out) == (2, "")
    assert "study.png: the file exists; name another file, or add --overwrite" in done.err
    (tmp_path / "out" / "study.png").unlink()
    monkeypatch.setattr(loop, "train", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    assert trifold("study", str(file), "--out", str(tmp_path / "out")).code == 130


def test_a_missing_file_is_named(trifold, tmp_path):
    done = trifold("study", str(tmp_path / "none.yaml"))
    assert done.code == 2 and "name the YAML file of a study" in " ".join(done.err.split())
