"""Masked tokens and sentence pairs: losses against their definitions on complete logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.objectives.common import eval_context, random_model
from torch.nn import functional as F

from trifold.errors import DataError
from trifold.nn import Inputs, ModelConfig
from trifold.nn.masks import padding_mask
from trifold.objectives.masked import MaskedLM, MaskedSettings
from trifold.objectives.sentence_pairs import SentencePairs, SentencePairSettings
from trifold.text import TokenizerSettings, train_tokenizer
from trifold.text.annotation import annotate

TEXTS = [
    "One two three four. Five six seven. Eight nine ten.",
    "Red green blue. Black white grey pink. Old new.",
    "A b c d e f g h. I j k. L m n.",
]
EVERY = np.arange(3)


@pytest.fixture(scope="module")
def tokenizer():
    settings = TokenizerSettings(
        kind="bpe", vocab_size=70, min_frequency=1, special=("cls", "sep", "mask")
    )
    return train_tokenizer(TEXTS, settings)


@pytest.fixture(scope="module")
def rows(tokenizer):
    return annotate(tokenizer, TEXTS)


@pytest.fixture
def make(tokenizer):
    """An objective, and a model for it whose parameters are all random."""

    def make(kind, settings, positions=64):
        heads = ("lm", "boundary") if kind is MaskedLM and settings.boundary else ("lm",)
        heads += ("pooler", "next-sentence") if kind is SentencePairs else ()
        config = ModelConfig(
            shape="encoder", positions="learned", vocab_size=tokenizer.vocab_size, max_positions=positions,
            d_model=16, n_layers=2, n_heads=2, d_ff=24, dropout=0.0, lm_head_bias=True, n_token_types=2,
            lm_head_transform="gelu", heads=heads, boundary_positions=3, boundary_width=5,
        )  # fmt: skip
        return kind(settings, tokenizer, config, positions), random_model(config)

    return make


def padded(rows):
    """Masked rows as a padded batch."""
    lengths = torch.tensor([len(row.inputs) for row in rows])
    tokens = torch.nn.utils.rnn.pad_sequence(
        [torch.from_numpy(row.inputs) for row in rows], batch_first=True
    )
    return Inputs(tokens, padding_mask(lengths, int(lengths.max())))


@pytest.mark.parametrize("mask", ["plain", "words", "spans"])
@torch.no_grad()
def test_the_loss_is_the_cross_entropy_at_masked_positions(make, rows, mask):
    objective, model = make(MaskedLM, MaskedSettings(mask=mask, rate=0.4))
    examples = objective.examples(rows)
    batch = objective.batch(examples, EVERY, draw=5)
    hidden = [objective.mask(examples, row, draw=5) for row in EVERY]
    logits = model.head_outputs(padded(hidden))["lm"]
    expected = sum(
        float(
            F.cross_entropy(
                logits[n, row.positions], torch.from_numpy(row.targets), reduction="sum"
            )
        )
        for n, row in enumerate(hidden)
    )
    (term,) = objective.loss(model, batch).values()
    assert float(term.sum) == pytest.approx(expected, rel=1e-4)
    assert term.count == batch.tokens == sum(len(row.positions) for row in hidden) > 0
    found = objective.measure(model, batch)
    assert found["nll"] == pytest.approx(expected, rel=1e-4)
    assert found["correct"] == sum(
        int((logits[n, row.positions].argmax(-1) == torch.from_numpy(row.targets)).sum())
        for n, row in enumerate(hidden)
    )


@torch.no_grad()
def test_the_boundary_loss_follows_spanbert(make, rows):
    objective, model = make(MaskedLM, MaskedSettings(mask="spans", rate=0.5, boundary=0.5))
    examples = objective.examples(rows)
    batch = objective.batch(examples, EVERY, draw=2)
    hidden = [objective.mask(examples, row, draw=2) for row in EVERY]
    states, head, table = model(padded(hidden)), model.heads["boundary"], model.lm_head.weight
    expected, count = 0.0, 0
    for n, row in enumerate(hidden):
        original = torch.from_numpy(row.original)
        for start, end in row.spans:
            for place in range(start, min(end, start + 3)):  # the head tells three places apart
                x = torch.cat(
                    [states[n, start - 1], states[n, end], head.positions.weight[place - start]]
                )
                for dense, norm in zip(head.dense, head.norms, strict=True):
                    x = F.layer_norm(
                        F.gelu(x @ dense.weight.t() + dense.bias),
                        (16,),
                        norm.weight,
                        norm.bias,
                        model.config.norm_epsilon,
                    )
                expected += float(F.cross_entropy(table @ x + head.bias, original[place]))
                count += 1
    term = objective.loss(model, batch)["boundary"]
    assert (term.count, term.weight) == (count, 0.5) and 0 < count < batch.tokens
    assert objective.counts(batch) == {"tokens": batch.tokens, "boundary": count}
    assert float(term.sum) == pytest.approx(expected, rel=1e-4)


def whole_or_not(hidden, starts):
    """Whether all tokens of each word are masked, or none."""
    word = np.cumsum(starts)
    return all(len(set(hidden[word == number].tolist())) == 1 for number in set(word.tolist()))


@pytest.mark.parametrize("mask", ["plain", "words", "spans"])
def test_masks_respect_words_and_special_tokens(make, rows, tokenizer, mask):
    objective, _ = make(MaskedLM, MaskedSettings(mask=mask, rate=0.5), positions=24)
    examples, parted = objective.examples(rows), False
    assert len(examples.chunks.sizes) > 3
    for draw in range(40):
        for row in range(len(examples.chunks.sizes)):
            ids, starts, _ = examples[row]
            found = objective.mask(examples, row, draw=draw)
            assert found.original.tolist() == [tokenizer.cls_id, *ids, tokenizer.sep_id]
            hidden = np.zeros(len(found.inputs), np.bool_)
            hidden[found.positions] = True
            assert not hidden[0] and not hidden[-1]
            together = whole_or_not(hidden[1:-1], starts)
            assert together or mask == "plain"
            parted |= not together
    assert parted == (mask == "plain")


def test_every_parameter_gets_a_gradient(make, rows):
    objective, model = make(MaskedLM, MaskedSettings(mask="spans", boundary=1.0, rate=0.4))
    batch = objective.batch(objective.examples(rows), EVERY)
    sum(term.sum for term in objective.loss(model, batch).values()).backward()
    still = [
        name for name, parameter in model.named_parameters() if not parameter.grad.abs().sum() > 0
    ]
    assert still == []


@torch.no_grad()
def test_pseudo_perplexity_masks_every_token_once(make, rows, tokenizer):
    objective, model = make(MaskedLM, MaskedSettings(pseudo_perplexity=2))
    scores = objective.evaluate(model, rows, objective.examples(rows), eval_context(100)).scores
    total, count = 0.0, 0
    for text in TEXTS[:2]:
        ids = torch.tensor(tokenizer.rows([text])[0].ids)
        for place in range(1, len(ids) - 1):
            seen = ids.clone()
            seen[place] = tokenizer.mask_id
            total += float(
                F.cross_entropy(model.head_outputs(Inputs(seen[None]))["lm"][0, place], ids[place])
            )
            count += 1
    assert scores["pseudo_perplexity"] == pytest.approx(float(np.exp(total / count)), rel=1e-4)


def test_long_documents_are_split_without_loss(make, rows):
    objective, _ = make(MaskedLM, MaskedSettings(), positions=9)
    examples = objective.examples(rows)
    assert examples.lengths.max() == 9 and examples.chunks.sizes.sum() == len(rows.ids)
    assert (
        np.concatenate([examples[n][0] for n in range(len(examples.chunks.sizes))]).tolist()
        == rows.ids.tolist()
    )


def test_windows_are_a_function_of_the_draw(make, rows):
    objective, _ = make(MaskedLM, MaskedSettings(), positions=9)
    objective.cut = "windows"
    cuts = [objective.examples(rows, draw).chunks.starts.tolist() for draw in (1, 2, 1)]
    assert cuts[0] == cuts[2] != cuts[1]
    assert all(
        objective.examples(rows, draw).chunks.sizes.sum() == len(rows.ids) for draw in range(5)
    )
    objective.cut = "drop"
    assert not len(objective.examples(rows).chunks.sizes)


# --- pairs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("positions", [64, 14])
def test_pairs_are_consecutive_runs_of_sentences(make, rows, tokenizer, positions):
    objective, _ = make(SentencePairs, SentencePairSettings(), positions)
    examples = objective.examples(rows, 3)
    assert examples.lengths.max() <= positions
    for row in range(len(examples.document)):
        start, middle, end = examples.bounds[row]
        assert start < middle < end and rows.sentence_starts[middle]
        assert (
            rows.starts[examples.document[row]] <= start
            and end <= rows.starts[examples.document[row] + 1]
        )
        if positions == 64:
            assert rows.sentence_starts[start] and (
                end == len(rows.ids) or rows.sentence_starts[end]
            )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["follows", "order"])
def test_half_of_the_pairs_are_negative(make, rows, tokenizer, kind):
    objective, _ = make(SentencePairs, SentencePairSettings(pairs=kind, rate=0.01))
    answers = []
    for draw in range(400):
        examples = objective.examples(rows, draw)
        batch = objective.batch(examples, EVERY[:1], draw=draw)
        tokens, kinds = batch.inputs.tokens[0], batch.inputs.segments[0]
        size = batch.inputs.packing.n_real
        original = tokens.clone()
        original[batch.positions[: batch.tokens]] = batch.labels[: batch.tokens]
        first, second = (examples.text(0, which)[0].tolist() for which in (0, 1))
        seen = original[:size].tolist()
        middle = seen.index(tokenizer.sep_id)
        a, b = seen[1:middle], seen[middle + 1 : -1]
        assert seen[0] == tokenizer.cls_id and seen[-1] == tokenizer.sep_id
        assert kinds[:size].tolist() == [0] * (middle + 1) + [1] * (size - middle - 1)
        answer = int(batch.pairs[0])
        if not answer:
            assert (a, b) == (first, second)
        elif kind == "order":
            assert (a, b) == (second, first)
        else:
            others = [
                examples.text(row, 1)[0].tolist()
                for row in range(len(examples.document))
                if examples.document[row] != 0
            ]
            assert a == first and b in others
        answers.append(answer)
    assert np.mean(answers) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("kind", ["follows", "order"])
def test_masks_of_pairs_respect_words_and_special_tokens(make, rows, tokenizer, kind):
    objective, _ = make(SentencePairs, SentencePairSettings(pairs=kind, mask="words", rate=0.5))
    special = [tokenizer.cls_id, tokenizer.sep_id]
    # Whether a token begins a word follows from its text.
    begins = [piece.startswith("▁") for piece in tokenizer.pieces(range(tokenizer.vocab_size))]
    answers = set()
    for draw in range(40):
        batch = objective.batch(objective.examples(rows, draw), EVERY, draw=draw)
        hidden = np.zeros(batch.inputs.packing.n_real, np.bool_)
        places = batch.positions[: batch.tokens]
        hidden[places] = True
        original = batch.inputs.tokens[0].clone()
        original[places] = batch.labels[: batch.tokens]
        ids = original[: len(hidden)].tolist()
        starts = np.array([begins[token] or token in special for token in ids])
        punctuation = np.array(
            [tokenizer.pieces([token])[0].strip("▁") in (".", "") for token in ids]
        )
        assert not hidden[[token in special for token in ids]].any()
        assert whole_or_not(hidden, starts | punctuation)
        answers |= set(batch.pairs.tolist())
    assert answers == {0, 1}


@pytest.mark.parametrize("kind", ["follows", "order"])
@pytest.mark.parametrize("positions", [64, 14])
def test_lengths_of_pairs_are_those_of_their_batches(make, rows, kind, positions):
    objective, _ = make(SentencePairs, SentencePairSettings(pairs=kind), positions)
    for draw in range(20):
        examples = objective.examples(rows, draw)
        every = np.arange(len(examples.document))
        sizes = [
            objective.batch(examples, every[row : row + 1]).inputs.packing.n_real for row in every
        ]
        assert sizes == examples.lengths[:, 0].tolist() and max(sizes) <= positions


def test_negative_pairs_require_two_documents(make, tokenizer):
    alone = annotate(tokenizer, [". ".join(TEXTS)])
    objective, _ = make(SentencePairs, SentencePairSettings(pairs="order"))
    assert len(objective.examples(alone).document)
    objective, _ = make(SentencePairs, SentencePairSettings())
    with pytest.raises(
        DataError, match="of 1 documents 1 have two sentences or more; pairs require 2"
    ):
        objective.examples(alone)


@torch.no_grad()
def test_the_pair_loss_reads_the_first_state(make, rows):
    objective, model = make(SentencePairs, SentencePairSettings(weight=0.3))
    batch = objective.batch(objective.examples(rows), EVERY)
    total = 0.0
    starts = batch.inputs.packing.starts.tolist()
    for row, answer in enumerate(batch.pairs):
        part = slice(starts[row], starts[row + 1])
        inputs = Inputs(batch.inputs.tokens[:, part], segments=batch.inputs.segments[:, part])
        total += float(F.cross_entropy(model.head_outputs(inputs)["next-sentence"], answer[None]))
    terms = objective.loss(model, batch)
    assert set(terms) == {"tokens", "pairs"}
    assert float(terms["pairs"].sum) == pytest.approx(total, rel=1e-4)
    assert (terms["pairs"].count, terms["pairs"].weight) == (3, 0.3) and objective.counts(batch)[
        "pairs"
    ] == 3
    assert (
        0
        <= objective.evaluate(model, rows, objective.examples(rows), eval_context(100)).scores[
            "pairs_accuracy"
        ]
        <= 100
    )


def test_the_command_that_uses_a_model_names_its_mask_token(tmp_path):
    folder = tmp_path / "a run"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "special_tokens_map.json").write_text(
        '{"mask_token": "[MASK]"}', encoding="utf-8"
    )
    assert MaskedSettings().usage(folder) == f"trifold predict '{folder}' \"a text with a [MASK]\""
