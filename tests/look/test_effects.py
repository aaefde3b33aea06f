"""The effect of edits over lines: sums over the traces of the lines."""

from __future__ import annotations

import pytest
from tests.predict.test_trace import LONG, OTHER, TEXT, new_pipeline

from trifold.errors import DataError
from trifold.look.effects import effect_over_lines


@pytest.mark.parametrize(("name", "lines"), [
    ("gpt2", [TEXT, OTHER]), ("bert", [TEXT, LONG]), ("translator", [f"{TEXT}\t{LONG}\n", f"{LONG}\t{OTHER}\n", "\n"]),
    ("classifier", [f"{TEXT}\tgood", f"{OTHER}\tbad"]),
])  # fmt: skip
def test_the_effect_is_the_mean_over_all_labels(name, lines):
    pipe = new_pipeline(name)
    edits = [
        {
            "name": f"{pipe.trace(TEXT).side}.blocks.0.self_attention.output",
            "op": "scale",
            "value": 3.0,
        }
    ]
    found = effect_over_lines(pipe, lines, edits)
    examples = [(*line.strip().split("\t"), None)[:2] for line in lines if line.strip()]
    traces = [pipe.trace(*each) for each in examples]
    count = sum(int((trace.labels >= 0).sum()) for trace in traces)
    assert (found["lines"], found["labels"]) == (2, count)
    for which, group in enumerate((traces, [trace.patched(edits) for trace in traces])):
        assert found["loss"][which] == pytest.approx(
            sum(float(trace.loss.nansum()) for trace in group) / count
        )
        right = [
            label == best
            for trace in group
            for label, best in zip(
                trace.labels.tolist(), trace.top(1)[1].reshape(-1).tolist(), strict=True
            )
        ]
        assert found["accuracy"][which] == pytest.approx(sum(right) / count)
    assert found["loss"][0] != found["loss"][1]
    assert len(set(effect_over_lines(pipe, lines, [])["loss"])) == 1


def test_lines_without_labels_are_an_error():
    with pytest.raises(DataError, match="have no labels"):
        effect_over_lines(new_pipeline("classifier"), [TEXT], [])
