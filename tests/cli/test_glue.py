"""The nine recipes of GLUE on files of ten rows in the published format, and their total."""

from __future__ import annotations

import json

import pytest

from trifold.cli.recipes import GLUE
from trifold.recipe import included_recipes
from trifold.scores.glue import TASKS, mean, task_scores

WORDS = "a man walks his dog in the park today".split()
PARSE = "( ( A man ) walks )"


def sentence(number: int) -> str:
    """A sentence with a quotation mark that is not closed, as in the published files."""
    return f'"{" ".join(WORDS[: 3 + number % 5])} {number % 4} .'


def pairs(header: str, row: str, labels: tuple[str, ...]) -> str:
    """A table of ten rows: `row` with number n, two sentences and a label."""
    lines = [header.replace(" ", "\t")]
    for n in range(10):
        values = {"n": n, "a": sentence(n), "b": sentence(n + 3), "label": labels[n % len(labels)]}
        lines.append("\t".join(cell.format(**values) for cell in row.split("|")))
    return "\n".join(lines) + "\n"


NLI = ("entailment", "neutral", "contradiction")
ENTAILS = ("entailment", "not_entailment")
MNLI = (
    "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse "
    "sentence2_parse sentence1 sentence2"
)
MNLI_ROW = f"{{n}}|{{n}}n|{{n}}e|fiction|{PARSE}|{PARSE}|{PARSE}|{PARSE}|{{a}}|{{b}}"
# Task -> the content of its files, in the format of the archives of GLUE.
TRAIN = {
    "cola": "".join(f"gj04\t{n % 2}\t{'' if n % 2 else '*'}\t{sentence(n)}\n" for n in range(10)),
    "sst2": pairs("sentence label", "{a}|{label}", ("0", "1")),
    "mrpc": pairs("Quality #1_ID #2_ID #1_String #2_String", "{label}|{n}|{n}|{a}|{b}", ("0", "1")).replace("_", " "),
    "stsb": pairs("genre score sentence1 sentence2", "news|{label}|{a}|{b}", ("1.250", "5.000", "0.0")),
    "qqp": pairs("id qid1 qid2 question1 question2 is_duplicate", "{n}|1{n}|2{n}|{a}|{b}|{label}", ("0", "1")),
    "mnli": pairs(f"{MNLI} label1 gold_label", f"{MNLI_ROW}|{{label}}|{{label}}", NLI),
    "qnli": pairs("index question sentence label", "{n}|{a}|{b}|{label}", ENTAILS),
    "rte": pairs("index sentence1 sentence2 label", "{n}|{a}|{b}|{label}", ENTAILS),
    "wnli": pairs("index sentence1 sentence2 label", "{n}|{a}|{b}|{label}", ("0", "1")),
}  # fmt: skip
MNLI_DEV = pairs(
    f"{MNLI} label1 label2 label3 label4 label5 gold_label",
    f"{MNLI_ROW}|{'|'.join(['{label}'] * 6)}",
    NLI,
)
SMALL = (
    "data.holdout=3 tokenizer.kind=word tokenizer.min_frequency=1 model.d_model=16 "
    "model.n_heads=2 model.n_layers=1 model.d_ff=32 train.steps=2 train.warmup=1 "
    "train.validate_every=2 train.save_every=2 train.device=cpu train.precision=float32"
).split()


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    """The folder of the nine sets, and one for runs."""
    root = tmp_path_factory.mktemp("glue")
    for name, content in TRAIN.items():
        folder = root / "data" / name
        folder.mkdir(parents=True)
        (folder / "train.tsv").write_text(content)
        (folder / "dev.tsv").write_text(content)
    data = root / "data"
    (data / "sst2" / "train.tsv").rename(data / "sst2" / "train.tsv.gz")
    (data / "mrpc" / "dev.tsv").rename(data / "mrpc" / "val.tsv")
    for name in ("dev_matched", "dev_mismatched"):
        (data / "mnli" / f"{name}.tsv").write_text(MNLI_DEV)
    import gzip

    packed = data / "sst2" / "train.tsv.gz"
    packed.write_bytes(gzip.compress(packed.read_bytes()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIFOLD_DATA", str(data))
        yield root


def test_every_task_has_a_recipe():
    assert {f"{GLUE}{name}" for name in TASKS} == {
        name for name in included_recipes() if name.startswith(GLUE)
    }
    assert [*TASKS] == [*TRAIN] and len(TASKS) == 9


@pytest.mark.slow
def test_the_total_is_the_mean_of_nine_means(trifold, glue):
    runs = glue / "runs"
    for name in TASKS:
        if name == "wnli":  # first without the last task
            done = trifold("glue", str(runs))
            assert done.code == 0 and "wnli is left out: no run" in done.err, done.err
            assert done.out.splitlines()[-1].startswith("8 of 9   their mean, which is no total")
        done = trifold("train", f"glue-{name}", *SMALL, "--out", str(runs / f"glue-{name}"))
        assert done.code == 0, (name, done.err)
    report = json.loads(trifold("glue", str(runs), "--json").out)
    assert report["skipped"] == {} and [*report["means"]] == [*TASKS]
    assert [*report["scores"]["mnli"]] == ["accuracy 1", "accuracy 2"]
    assert [*report["scores"]["stsb"]] == ["pearson", "spearman"]
    assert report["total"] == pytest.approx(sum(report["means"].values()) / 9)
    table = trifold("glue", str(runs)).out.splitlines()
    assert table[-1].split()[-1] == f"{report['total']:.1f}" and max(map(len, table)) <= 80
    alone = json.loads(trifold("eval", str(runs / "glue-qqp"), "--json").out)["scores"]
    assert report["scores"]["qqp"] == {name: alone[name] for name in ("accuracy", "f1")}
    (glue / "data" / "rte" / "dev.tsv").rename(glue / "data" / "rte" / "moved.tsv")
    done = trifold("glue", str(runs))
    assert (
        "rte is left out" in done.err
        and "`trifold data rte` describes how to obtain it" in done.err
    )


def test_correlations_are_in_percent():
    measured = {"matthews": 0.25, "accuracy": 71.0, "f1": 60.0}
    assert task_scores("cola", measured) == {"matthews": 25.0}
    assert task_scores("mrpc", measured) == {"accuracy": 71.0, "f1": 60.0}
    assert mean([25.0, 65.5]) == 45.25


def test_without_a_run_there_is_nothing_to_score(trifold, tmp_path):
    done = trifold("glue", str(tmp_path))
    assert (done.code, done.out) == (2, "")
    assert "no run of a task of GLUE; train one with `trifold train glue-sst2`" in done.err


def test_a_set_that_cannot_be_had_is_described(trifold, monkeypatch, tmp_path):
    monkeypatch.setenv("TRIFOLD_DATA", str(tmp_path))
    done = trifold("data", "mnli")
    assert (
        done.code == 1 and "mnli cannot be downloaded: download MNLI.zip from https://" in done.err
    )
    done = trifold("train", "glue-mnli", "--out", str(tmp_path / "run"))
    assert done.code == 1 and "`trifold data mnli` describes how to obtain it" in done.err
