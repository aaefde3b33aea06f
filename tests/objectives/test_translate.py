from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.objectives.common import eval_context, random_model
from torch.nn import functional as F

from trifold.data import Rows
from trifold.errors import SettingsError
from trifold.generate import GenerationConfig
from trifold.nn import Inputs, ModelConfig
from trifold.objectives import Translate, TranslateSettings
from trifold.objectives.translate import with_end
from trifold.predict.generate_texts import generate_rows
from trifold.text import TokenizerSettings, train_tokenizer


def pairs_of(sources, targets):
    return Rows({"source": sources, "target": targets}, range(1, len(sources) + 1))


PAIRS = pairs_of(
    ["ab", "c", "abcdef", "b", "fedcba", "aa"], ["x", "yz", "xyzxyz", "", "zyx", "zzzz"]
)
EVERY = np.arange(6)


@pytest.fixture(scope="module")
def tokenizers():
    settings = TokenizerSettings(kind="char", vocab_size=20, min_frequency=1)
    return train_tokenizer(PAIRS.sources, settings), train_tokenizer(PAIRS.targets, settings)


@pytest.fixture
def objective(tokenizers):
    return Translate(TranslateSettings(), *tokenizers)


@pytest.fixture
def examples(objective):
    return objective.examples(PAIRS)


@pytest.fixture
def model(tokenizers):
    source, target = tokenizers
    config = ModelConfig(
        vocab_size=source.vocab_size, target_vocab_size=target.vocab_size, max_positions=32,
        d_model=16, n_layers=2, n_heads=2, d_ff=24, dropout=0.0, lm_head_bias=True,
    )  # fmt: skip
    return random_model(config)


# --- examples and batches -------------------------------------------------------------------------


def test_both_sides_end_with_the_end_token(objective, examples):
    assert examples.lengths.tolist() == [[3, 2], [2, 3], [7, 7], [2, 1], [7, 4], [3, 5]]
    last = examples.targets.ids[examples.targets.starts[1:] - 1]
    assert (last == objective.target.eos_id).all()
    assert objective.target.decode(
        [examples.targets.ids[: examples.targets.starts[1]].tolist()]
    ) == ["x"]


def rows_of(batch, side) -> list[list[int]]:
    """The tokens of each row of a packed batch."""
    inputs = getattr(batch, side)
    (rows, width), places = (
        inputs.packing.shape,
        inputs.packing.cell_of_token[: inputs.packing.n_real],
    )
    taken = [[] for _ in range(rows)]
    for token, place in zip(inputs.tokens[0].tolist(), places.tolist(), strict=False):
        taken[place // width].append(token)
    return taken


def ids(ragged, row: int) -> list[int]:
    return ragged.ids[ragged.starts[row] : ragged.starts[row + 1]].tolist()


@pytest.mark.parametrize("chosen", [EVERY, np.array([4, 0, 2]), np.array([3]), np.array([2, 2])])
def test_decoder_inputs_are_shifted_targets(objective, examples, chosen):
    batch = objective.batch(examples, chosen)
    assert rows_of(batch, "inputs") == [ids(examples.sources, row) for row in chosen]
    assert rows_of(batch, "target") == [
        [objective.start_id, *ids(examples.targets, row)[:-1]] for row in chosen
    ]


def test_labels_are_the_target_tokens(objective, examples):
    batch = objective.batch(examples, EVERY)
    real = int(examples.lengths[:, 1].sum())
    assert batch.labels.tolist() == [
        *examples.targets.ids.tolist(),
        *[-1] * (len(batch.labels) - real),
    ]
    assert batch.tokens == real
    assert objective.counts(batch) == {"tokens": real}


def test_a_width_truncates_rows(objective, examples):
    batch = objective.batch(examples, EVERY, width=3)
    assert rows_of(batch, "inputs") == [ids(examples.sources, row)[:3] for row in EVERY]
    cut = [ids(examples.targets, row)[:3] for row in EVERY]
    assert rows_of(batch, "target") == [[objective.start_id, *row[:-1]] for row in cut]
    assert batch.tokens == np.minimum(examples.lengths[:, 1], 3).sum()


# --- loss -----------------------------------------------------------------------------------------


def by_hand(objective, model, examples, smoothing: float) -> torch.Tensor:
    """The sum over a padded batch from complete logits, with padding ignored by PyTorch."""
    source = examples.sources.padded(EVERY, 7, objective.source.pad_id)
    target = examples.targets.padded(EVERY, 7, objective.target.pad_id)
    read = torch.cat([torch.full((6, 1), objective.start_id), target[:, :-1]], dim=1)
    real = torch.arange(7) < torch.from_numpy(examples.lengths[:, :1])
    logits = model.lm_head(model(Inputs(source, real), Inputs(read)))
    labels = examples.targets.padded(EVERY, 7, -100)
    return F.cross_entropy(
        logits.flatten(0, 1),
        labels.flatten(),
        ignore_index=-100,
        reduction="sum",
        label_smoothing=smoothing,
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_packed_loss_equals_that_of_a_padded_batch(tokenizers, examples, model, smoothing):
    objective = Translate(TranslateSettings(label_smoothing=smoothing), *tokenizers)
    term = objective.loss(model, objective.batch(examples, EVERY))["tokens"]
    assert torch.allclose(term.sum, by_hand(objective, model, examples, smoothing), rtol=1e-5)
    assert torch.allclose(term.nll, by_hand(objective, model, examples, 0.0), rtol=1e-5)
    assert term.count == examples.lengths[:, 1].sum()


def test_the_packed_gradient_equals_that_of_a_padded_batch(objective, examples, model):
    parameters = list(model.parameters())
    ours = torch.autograd.grad(
        objective.loss(model, objective.batch(examples, EVERY))["tokens"].sum, parameters
    )
    theirs = torch.autograd.grad(by_hand(objective, model, examples, 0.1), parameters)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=2e-5)


# --- prediction -----------------------------------------------------------------------------------

TEXTS = ["ab", "f", "abcdefabc", "fedcba", "b", "aa", "cdef"]


def predict(objective, model, texts, config, **options):
    sources = with_end(objective.source, objective.source.encode(texts))
    return generate_rows(model, sources, config, codec=objective.target, **options)


def test_predictions_do_not_depend_on_order_or_batches(objective, model):
    config = GenerationConfig(num_beams=2, num_return_sequences=2, max_new_tokens=9)
    found = predict(objective, model, TEXTS, config)
    again = predict(objective, model, TEXTS[::-1], config)[::-1]
    alone = [predict(objective, model, [text], config)[0] for text in TEXTS]
    small = predict(objective, model, TEXTS, config, batch_tokens=12)
    for other in (again, alone, small):
        assert [[h.tokens for h in each] for each in other] == [
            [h.tokens for h in each] for each in found
        ]
        for one, two in zip(other, found, strict=True):
            assert [h.score for h in one] == pytest.approx([h.score for h in two], abs=1e-4)
    assert len({tuple(each[0].tokens) for each in found}) > 1


def test_on_done_counts_every_text_once(objective, model):
    heard = []
    predict(
        objective,
        model,
        TEXTS,
        GenerationConfig(max_new_tokens=2),
        batch_tokens=12,
        on_done=heard.append,
    )
    assert sum(heard) == len(TEXTS) and len(heard) > 1


def test_no_texts_give_no_predictions(objective, model):
    assert predict(objective, model, [], GenerationConfig()) == []


# --- scores and settings --------------------------------------------------------------------------


def test_a_validation_accepts_a_source_without_tokens(objective, model):
    rows = pairs_of(["", "ab"], ["x", "yz"])
    found = objective.evaluate(model, rows, objective.examples(rows), eval_context())
    assert [sample.source for sample in found.samples] == ["", "ab"]


def test_scores_follow_the_settings():
    plain = TranslateSettings().scores(["A b."], ["a b ."])
    lower = TranslateSettings(tokenize="none", lowercase=True).scores(["A b ."], ["a b ."])
    assert set(plain) == {"bleu", "chrf", "exact_match"}
    assert "tok:13a" in plain["bleu"].signature and "case:mixed" in plain["bleu"].signature
    assert "tok:none" in lower["bleu"].signature and "case:lc" in lower["bleu"].signature
    assert lower["exact_match"].value == 100 and plain["exact_match"].value == 0


def test_the_script_of_the_references_is_reported():
    chinese, russian = ["狗在草地上跑。"], ["Собака бежит."]
    note = "BLEU: tokenizer zh, by the script of the references"
    assert TranslateSettings().script_note(pairs_of(["a"], chinese)) == note
    assert TranslateSettings().script_note(pairs_of(["a"], russian)) is None
    assert TranslateSettings(tokenize="char").script_note(pairs_of(["a"], chinese)) is None
    scores = TranslateSettings().scores(chinese, chinese)
    assert scores["bleu"].value == pytest.approx(100) and "|tok:zh|" in scores["bleu"].signature


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"best_by": "blue"},
            r"task\.best_by: .*'bleu', 'chrf', 'exact_match' or 'loss', got 'blue'",
        ),
        (
            {"tokenize": "31a"},
            r"task\.tokenize: sacreBLEU has no tokenizer '31a'; did you mean '13a'\?",
        ),
        ({"label_smoothing": 1.0}, r"task\.label_smoothing: .*less than 1"),
    ],
)
def test_invalid_settings_are_errors(values, message):
    with pytest.raises(SettingsError, match=message):
        TranslateSettings.parse(values, at="task")


# --- scheduled sampling ---------------------------------------------------------------------------

HALF = {"share": 0.5, "schedule": "constant", "first": 2}


def test_scheduled_sampling_reads_predictions_of_a_first_pass(tokenizers, examples, model):
    """Without dropout, the loss is that of a decoder which reads its predictions where a draw says
    so.
    """
    objective = Translate(TranslateSettings(scheduled_sampling=HALF), *tokenizers)
    batch = objective.at_step(objective.batch(examples, EVERY, draw=7), 3)
    plain = Translate(TranslateSettings(), *tokenizers).batch(examples, EVERY, draw=7)
    plain = objective.at_step(plain, 3)
    assert plain.sampled is None and torch.equal(batch.target.tokens, plain.target.tokens)
    starts = batch.target.packing.starts
    assert (
        batch.sampled.any()
        and not batch.sampled[starts[:-1]].any()
        and not batch.sampled[batch.tokens :].any()
    )
    model.train()
    predicted = model.lm_head(model(batch.inputs, batch.target)[0]).argmax(-1)
    read = batch.target.tokens[0].clone()
    for place in batch.sampled.nonzero()[:, 0].tolist():
        read[place] = predicted[place - 1]
    mixed = replace(plain, target=replace(plain.target, tokens=read[None]))
    ours, theirs = objective.loss(model, batch)["tokens"], objective.loss(model, mixed)["tokens"]
    assert torch.equal(ours.sum, theirs.sum) and torch.equal(ours.nll, theirs.nll)
    assert not torch.equal(ours.sum, objective.loss(model, plain)["tokens"].sum)
    model.eval()  # a validation is not sampled, nor are the first steps
    unsampled = objective.batch(examples, EVERY, draw=7)
    assert objective.at_step(unsampled, 2) is unsampled
    measured = objective.measure(model, unsampled)["nll"]
    assert measured == float(objective.loss(model, plain)["tokens"].nll)


def test_what_is_sampled_depends_on_draw_and_example_only(tokenizers, examples):
    objective = Translate(TranslateSettings(scheduled_sampling=HALF), *tokenizers)

    def sampled(rows, draw):
        batch = objective.at_step(objective.batch(examples, np.array(rows), draw=draw), 3)
        bounds = batch.target.packing.starts.tolist()
        return {
            row: batch.sampled[a:b].tolist()
            for row, a, b in zip(rows, bounds, bounds[1:], strict=False)
        }

    alone = {row: flags for row in EVERY.tolist() for flags in [sampled([row], 3)[row]]}
    assert sampled([4, 2, 0, 1, 3, 5], 3) == alone != sampled(EVERY.tolist(), 4)
