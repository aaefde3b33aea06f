"""`trifold show MODEL --time`: times, arithmetic, memory traffic and the peak."""

from __future__ import annotations

import json

import pytest
from tests.models import ONE_LAYER

from trifold.cli import latency
from trifold.cli.show_time import _duration
from trifold.costs import forward_flops
from trifold.nn import ModelConfig, Transformer
from trifold.pipeline import Pipeline

SIZES = {**ONE_LAYER, "vocab_size": 11, "max_positions": 16, "dropout": 0.0}


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(latency, "SECONDS", 0.0)
    monkeypatch.setattr(latency, "PEAK_SECONDS", 0.0)
    monkeypatch.setattr("trifold.cli.speed.READ_BYTES", 2**12)


def measured(length: int, **keys: object) -> list[latency.Timing]:
    pipeline = Pipeline(Transformer(ModelConfig(**SIZES, **keys)).eval())
    return latency.measure_latency(pipeline, length)


def test_the_operations_of_an_encoder_are_those_of_the_formula():
    [timing] = measured(8, shape="encoder", heads=("pooler", "sequence"))
    config = ModelConfig(**SIZES, shape="encoder", heads=("pooler", "sequence"))
    assert timing.flops == 8 * forward_flops(config, 8, 8).source
    assert timing.step == "8 in" and 0 < timing.fastest <= timing.seconds <= timing.slowest


@pytest.mark.parametrize("shape", ["decoder", "encoder-decoder"])
def test_the_steps_of_a_writer_add_up(shape):
    config = ModelConfig(**SIZES, shape=shape)
    first, more, whole = measured(8, shape=shape)
    assert [first.step, more.step, whole.step] == ["8 in, 1 out", "1 more out", "8 in, 8 out"]
    assert abs(whole.flops - first.flops - 7 * more.flops) < 7
    assert whole.bytes == first.bytes + 7 * more.bytes
    # One token reads each matrix once, and half as many keys and values as are written, with those
    # of the text; the table of inputs is that of the outputs.
    flops = forward_flops(config, 1, 1).target
    cache = {"decoder": 4 * 2 * 16 * (8 + 4), "encoder-decoder": 4 * 2 * 16 * (8 + 4)}[shape]
    assert more.bytes == 2 * flops + cache


def test_one_token_has_no_other_one():
    assert [timing.step for timing in measured(1, shape="decoder")] == ["1 in, 1 out"]


def test_shares_are_those_of_the_peak():
    timing = latency.Timing("8 in", 2.0, 1.0, 3.0, 100, 40)
    [shares] = latency.report([timing], latency.Peak(200.0, 10.0))
    assert (shares["peak_share"], shares["bandwidth_share"]) == (0.25, 2.0)
    [without] = latency.report([timing], latency.Peak(200.0, None))
    assert without["bandwidth_share"] is None


def test_times_are_printed(trifold, run):
    done = trifold("show", str(run), "--time", "--length", "4")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[1].startswith("cpu, ") and lines[1].endswith("float32")
    assert max(map(len, lines[1:8])) <= 80 and "peak of this machine, measured: matmul" in done.out
    # A range that is wide, because the machine is busy, takes more lines.
    steps = [line[:13].strip() for line in lines[5:] if line[:1].isdigit()]
    assert steps == ["4 in, 1 out", "1 more out", "4 in, 4 out"]
    report = json.loads(trifold("show", "smoke", "--time", "--length", "2", "--json").out)
    assert report["random_weights"] and report["threads"] >= 1
    assert report["times"][0]["step"] == "2 in, 1 out"


def test_a_range_has_the_unit_of_its_end():
    assert _duration(0.0005, 0.0027) == "0.5–2.7 ms"
    assert _duration(2e-6) == "2 µs"


ERRORS = {
    "no model": (("--time",), "--time: name the MODEL"),
    "too long": (("bert", "--time", "--length", "513"), "positions for 512 such tokens"),
    "of a decoder": (("gpt2", "--time", "--length", "513"), "positions for 512 such tokens"),
    "a batch": (("bert", "--time", "--batch-tokens", "8"), "--time does not use it"),
    "too large": (("gpt3", "--time"), "the weights of gpt3"),
}


@pytest.mark.parametrize(("arguments", "message"), ERRORS.values(), ids=ERRORS)
def test_errors(trifold, arguments, message):
    done = trifold("show", *arguments)
    assert (done.code, done.out) == (2, "") and message in done.err
