"""The benchmark of encoders: its ratios, its batches, and trifold's vectors in it."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from tests.benchmarks.scripts import load, run

report, setting = (load("encode", name) for name in ("report", "setting"))
WORDS = ("a", "dog", "runs", "over", "the", "green", "hill", "and", "sleeps")


def line(name: str, precision: str, best: float) -> dict[str, object]:
    return {
        **{"name": name, "precision": precision, "best": best, "middle": best, "first": best / 2},
        **{"load_s": 0.5, "peak_rss_mb": 100.0, "cosine": 0.999, "least_cosine": 0.99},
    }


def test_a_ratio_compares_medians_with_the_best_peer_of_the_precision() -> None:
    lines = [
        *(line("trifold", "int8", best) for best in (300.0, 500.0, 330.0)),
        *(line("OpenVINO", "int8", best) for best in (200.0, 220.0, 400.0)),
        line("ONNX Runtime", "int8", 110.0),
        line("OpenVINO", "fp32", 100.0),
        line("trifold", "fp32", 50.0),
        line("trifold", "bf16", 80.0),
    ]
    rows = [
        tuple(cell.strip() for cell in row.split("|")[1:6])
        for row in report.table(lines).splitlines()[2:]
    ]
    assert rows == [
        ("OpenVINO", "fp32", "100", "100–100", "1.00×"),
        ("trifold", "fp32", "50.0", "50.0–50.0", "**0.50×**"),
        ("trifold", "bf16", "80.0", "80.0–80.0", "**–**"),
        ("trifold", "int8", "330", "300–500", "**1.50×**"),
        ("OpenVINO", "int8", "220", "200–400", "1.00×"),
        ("ONNX Runtime", "int8", "110", "110–110", "0.50×"),
    ]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with 40 sentences of one to nine words."""
    rng = random.Random(1)
    texts = [" ".join(rng.choices(WORDS, k=rng.randrange(1, 10))) for _ in range(40)]
    file = tmp_path / setting.FILE
    file.parent.mkdir()
    file.write_bytes(gzip.compress("\n".join(texts).encode()))
    return tmp_path


@pytest.fixture
def prepare(data: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that makes models, with one small shape."""
    monkeypatch.setenv("TRIFOLD_DATA", str(data))
    prepare = load("encode", "prepare")
    sizes = {"vocab_size": 500, "hidden_size": 32, "intermediate_size": 64}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2}
    small = prepare.setting.Shape("BertConfig", "BertModel", sizes)
    monkeypatch.setitem(prepare.setting.SHAPES, "bert-base", small)
    return prepare


@pytest.mark.slow
def test_trifold_computes_the_vectors_of_the_plain_encoder(prepare: ModuleType, data: Path) -> None:
    """The plain encoder reads sorted batches; its vectors have the order of the inputs."""
    folder, texts = data / "encode", prepare.setting.inputs("bert-base", 40)
    prepare.write_random(folder / "model", "bert-base")
    encoder = prepare.load_encoder(folder, "bert-base").double()
    batches = prepare.plain.text_batches(folder / "model", texts)
    np.save(
        folder / "reference-40.npy", prepare.plain.encode(prepare.plain.torch_run(encoder), batches)
    )
    options = ["--folder", folder, "--model", "bert-base", "--count", 40, "--seconds", 0]
    printed = run("encode/trifold_runner.py", *options, "--precision", "fp32", "--threads", 1)
    found = json.loads(printed[-1])
    assert (found["name"], found["precision"], found["calls"]) == ("trifold", "fp32", 1)
    assert found["least_cosine"] == 1.0
