"""all-MiniLM-L6-v2: it loads, its embeddings are those of transformers and have the published
quality, and fine-tuning by default learns from a thousand rows.

About 60 CPU seconds in all.
"""

from __future__ import annotations

import csv
import gzip
from itertools import islice

import pytest
import torch

from trifold import load, train
from trifold.scores.correlation import CorrelationScore
from trifold.train.monitor import View

pytestmark = pytest.mark.filterwarnings("default")

TEXTS = [
    "A plane is taking off.",
    "Ein Flugzeug hebt ab: 12,5 % früher.",
    "naïve café [SEP] 東京",
    "x",
    "An essay that is cut off. " * 60,
]
TRAINED, VALIDATED = 1000, 400  # rows


def test_embeddings_equal_those_of_transformers(minilm):
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(minilm)
    theirs = AutoModel.from_pretrained(minilm).eval()
    rows = tokenizer(TEXTS, padding=True, truncation=True, max_length=256, return_tensors="pt")
    with torch.no_grad():
        states = theirs(**rows).last_hidden_state
    shares = rows["attention_mask"] / rows["attention_mask"].sum(1, keepdim=True)
    means = torch.einsum("bt,bte->be", shares, states)
    expected = torch.nn.functional.normalize(means)
    found = torch.stack([*load(minilm).embed(TEXTS)])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_cosines_have_the_published_correlation(minilm, datasets):
    """82.03 (Spearman) in the results of MTEB for the test set of STS-B."""
    with (datasets / "stsb" / "test.tsv").open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    model = load(minilm)
    first, second = (
        torch.stack([*model.embed([row[name] for row in rows])])
        for name in ("sentence1", "sentence2")
    )
    score = CorrelationScore()
    score.add([float(row["score"]) for row in rows], (first * second).sum(1).numpy())
    assert len(rows) == 1379
    assert 100 * score.values()["spearman"] == pytest.approx(82.03, abs=0.02)


def test_fine_tuning_by_default(minilm, datasets, tmp_path):
    """A linear model on the same rows reaches 67 to 72."""
    with gzip.open(datasets / "sst2" / "train.tsv.gz", "rt", encoding="utf-8") as file:
        lines = [*islice(file, 1 + TRAINED)]
    (tmp_path / "train.tsv").write_text("".join(lines), encoding="utf-8")
    with (datasets / "sst2" / "dev.tsv").open(encoding="utf-8") as file:
        lines = [*islice(file, 1 + VALIDATED)]
    (tmp_path / "valid.tsv").write_text("".join(lines), encoding="utf-8")
    outcome = train(
        "classify",
        out=tmp_path / "run",
        view=View(),
        **{
            "start_from": str(minilm),
            "data.train": str(tmp_path / "train.tsv"),
            "data.valid": str(tmp_path / "valid.tsv"),
        },
    )
    assert outcome.scores["accuracy"] >= 78
