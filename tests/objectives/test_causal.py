from __future__ import annotations

import math
from copy import deepcopy

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from tests.objectives.common import eval_context, random_model
from tests.train.runs import RecordingView
from tokenizers import Tokenizer as Library, decoders, models, normalizers, pre_tokenizers
from torch.nn import functional as F

from trifold.batches import BatchSettings
from trifold.generate import GenerationConfig
from trifold.nn import Inputs, ModelConfig
from trifold.nn.parts import AttentionPart, part_of
from trifold.objectives.causal import Causal, CausalSettings, chunk_documents
from trifold.ragged import Ragged
from trifold.recipe import load_recipe
from trifold.text import Tokenizer, TokenizerSettings, train_tokenizer
from trifold.train.data import load_data

TEXTS = ["to be, or not to be", "a", "", "naïve ☂", "that is the question: whether"]
WIDTH = 8


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, TokenizerSettings(kind="char", vocab_size=60, min_frequency=1))


@pytest.fixture(scope="module")
def model(tokenizer):
    config = ModelConfig(
        shape="decoder", vocab_size=tokenizer.vocab_size, max_positions=WIDTH, positions="learned",
        norm_placement="pre", d_model=16, n_layers=2, n_heads=2, d_ff=24, dropout=0.0, scale_embeddings=False,
    )  # fmt: skip
    return random_model(config)


def make_objective(tokenizer, **settings):
    return Causal(CausalSettings(**settings), tokenizer, WIDTH)


# --- rows to examples -----------------------------------------------------------------------------

lengths = st.lists(st.integers(0, 40), min_size=1, max_size=12)


def corpus(lengths):
    """Documents whose tokens are 100 · document + position."""
    return Ragged.of(
        [[100 * document + place for place in range(n)] for document, n in enumerate(lengths)]
    )


def labels_of(found):
    return [
        int(token)
        for start, size in zip(found.chunks.starts, found.chunks.sizes, strict=True)
        for token in found.ids[start + 1 : start + 1 + size]
    ]


@given(
    lengths,
    st.integers(1, 20),
    st.sampled_from(["pieces", "windows"]),
    st.integers(0, 2**64 - 2048),
)
def test_every_token_but_the_first_of_a_document_is_a_label_once(lengths, width, cut, draw):
    found = chunk_documents(corpus(lengths), width, cut, draw)
    expected = [
        100 * document + place for document, n in enumerate(lengths) for place in range(1, n)
    ]
    assert sorted(labels_of(found)) == expected
    assert ((found.chunks.sizes >= 1) & (found.chunks.sizes <= width)).all()
    assert found.lengths.shape == (len(found.chunks.sizes), 1)


@given(
    lengths,
    st.integers(1, 20),
    st.sampled_from(["pieces", "windows", "drop"]),
    st.integers(0, 2**64 - 2048),
)
def test_chunks_do_not_cross_documents(lengths, width, cut, draw):
    found = chunk_documents(corpus(lengths), width, cut, draw)
    for start, size in zip(found.chunks.starts, found.chunks.sizes, strict=True):
        stretch = found.ids[start : start + size + 1]
        assert (np.diff(stretch) == 1).all()


@given(lengths, st.integers(1, 20))
def test_drop_removes_whole_documents(lengths, width):
    expected = [
        100 * document + place
        for document, n in enumerate(lengths)
        if n - 1 <= width
        for place in range(1, n)
    ]
    assert labels_of(chunk_documents(corpus(lengths), width, "drop")) == expected


def test_windows_are_a_function_of_the_draw():
    rows = corpus([1000, 5])
    one, two, again = (chunk_documents(rows, 16, "windows", draw) for draw in (7, 8, 7))
    assert one.chunks.starts.tolist() == again.chunks.starts.tolist() != two.chunks.starts.tolist()
    firsts = {
        int(chunk_documents(rows, 16, "windows", draw).chunks.sizes[0]) for draw in range(200)
    }
    assert firsts == set(range(1, 17))
    # Without a draw, windows equal pieces.
    assert (
        chunk_documents(rows, 16, "windows").chunks.starts.tolist()
        == chunk_documents(rows, 16).chunks.starts.tolist()
    )


@pytest.mark.parametrize(
    ("begin", "end"), [(True, True), (True, False), (False, True), (False, False)]
)
def test_begin_and_end_add_special_tokens(tokenizer, begin, end):
    rows = make_objective(tokenizer, begin=begin, end=end).encode(TEXTS)
    for number, text in enumerate(TEXTS):
        ids = rows.tokens.ids[rows.tokens.starts[number] : rows.tokens.starts[number + 1]].tolist()
        (plain,) = tokenizer.encode([text])
        assert ids == [tokenizer.bos_id] * begin + plain + [tokenizer.eos_id] * end
    firsts = 0 if begin else sum(len(text[:1].encode()) for text in TEXTS)
    assert rows.bytes == sum(len(text.encode()) for text in TEXTS) - firsts


def test_bytes_exclude_text_that_the_tokenizer_loses():
    """A word tokenizer loses repeated spaces, which are not predicted and do not count."""
    words = train_tokenizer(TEXTS, TokenizerSettings(kind="word", vocab_size=60, min_frequency=1))
    plain, spaced = ["to be or", "not to be"], ["to   be\tor", "not to    be"]
    kept, lost, both = (
        make_objective(words, begin=True).encode(texts) for texts in (plain, spaced, plain + spaced)
    )
    assert (kept.tokens.ids == lost.tokens.ids).all()
    assert kept.bytes == lost.bytes == both.bytes / 2 == sum(map(len, plain))


def test_bytes_exclude_text_that_decoding_inserts():
    library = Library(models.WordPiece({"[UNK]": 0, "a": 1, "(": 2, ")": 3}, unk_token="[UNK]"))
    library.pre_tokenizer, library.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    tokenizer = Tokenizer(library)
    assert tokenizer.decode(tokenizer.encode(["(a)"])) != ["(a)"]
    assert (
        make_objective(tokenizer, begin=False, end=False).encode(["(a)"]).bytes == 2
    )  # less the first


def by_bytes(**how):
    """Byte-level BPE, with or without merges."""
    return train_tokenizer(["日本 日本 😀😀 été"] * 5, TokenizerSettings(kind="byte-bpe", **how))


def by_fallback(*, before):
    """SentencePiece-like pieces for "▁a" and "日", and bytes for other text; `before` prepends a
    space to a text.
    """
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a", "日"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    library = Library(models.BPE(vocabulary, [("▁", "a")], unk_token="<unk>", byte_fallback=True))
    spaces, strip = normalizers.Replace(" ", "▁"), decoders.Strip(" ", 1, 0)
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁")] * before + [spaces])
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()] + [strip] * before
    )
    return Tokenizer(library)


def by_bytes_with_a_space_before():
    tokenizer = by_bytes(vocab_size=260)
    tokenizer.library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return Tokenizer(tokenizer.library)


BYTES_OF_THE_FIRST = {
    "bytes": (by_bytes(vocab_size=260), {"é": 1, "日本": 1, "😀": 1, "a é": 1, "": 0}),
    "bytes, merged": (by_bytes(vocab_size=290), {"日本": 6, "😀": 4, "été": 2, "ü": 1}),
    "a space before": (by_bytes_with_a_space_before(), {"é": 0, "a": 0, " é": 1}),
    "byte fallback": (
        by_fallback(before=False),
        {"é": 1, "日": 3, "本": 1, "😀": 1, " a": 2, "a": 1},
    ),
    "byte fallback, a space before": (by_fallback(before=True), {"a": 1, "aé": 1, " a": 0, "é": 0}),
}


@pytest.mark.parametrize("kind", BYTES_OF_THE_FIRST)
def test_bytes_of_a_partial_character(kind):
    tokenizer, known = BYTES_OF_THE_FIRST[kind]
    for text, first in known.items():
        rows = make_objective(tokenizer, begin=False).encode([text] * 5)
        assert rows.bytes == 5 * (len(text.encode()) - first), text


@given(st.lists(st.text("aé日😀 \ufffd", max_size=4), max_size=4))
def test_bytes_of_byte_tokens_exclude_one_per_document(texts):
    rows = make_objective(BYTES_OF_THE_FIRST["bytes"][0], begin=False).encode(texts)
    assert rows.bytes == sum(max(len(text.encode()) - 1, 0) for text in texts)


# --- examples to batch to loss --------------------------------------------------------------------


def test_labels_are_the_next_tokens(tokenizer):
    objective = make_objective(tokenizer)
    examples = objective.examples(objective.encode(TEXTS))
    chosen = np.array([3, 0, 5])
    batch = objective.batch(examples, chosen)
    rows = [
        examples.ids[examples.chunks.starts[n] :][: examples.chunks.sizes[n] + 1].tolist()
        for n in chosen
    ]
    assert batch.inputs.tokens[0, : batch.tokens].tolist() == [
        token for row in rows for token in row[:-1]
    ]
    assert batch.labels[: batch.tokens].tolist() == [token for row in rows for token in row[1:]]
    assert (batch.labels[batch.tokens :] == -1).all()
    assert (
        objective.counts(batch)
        == {"tokens": batch.tokens}
        == {"tokens": int(examples.chunks.sizes[chosen].sum())}
    )
    assert objective.batch(examples, chosen, 2).tokens == 6


def by_hand(model, examples, rows):
    """Negative log-likelihoods and correct predictions of single chunks, from complete logits."""
    losses, hits = [], []
    for n in rows:
        ids = torch.from_numpy(
            examples.ids[examples.chunks.starts[n] :][: examples.chunks.sizes[n] + 1]
        ).long()
        logits = model.head_outputs(Inputs(ids[None, :-1]))["lm"][0]
        losses.append(F.cross_entropy(logits, ids[1:], reduction="none"))
        hits.append(logits.argmax(-1) == ids[1:])
    return torch.cat(losses), torch.cat(hits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_gradients_equal_those_of_single_chunks(tokenizer, model, dtype):
    objective = make_objective(tokenizer)
    examples = objective.examples(objective.encode(TEXTS))
    every = np.arange(len(examples.chunks.sizes))
    packed, plain = deepcopy(model).to(dtype), deepcopy(model)
    objective.loss(packed, objective.batch(examples, every))["tokens"].sum.backward()
    by_hand(plain, examples, every)[0].sum().backward()
    ours, theirs = (
        torch.cat([p.grad.float().flatten() for p in m.parameters()]) for m in (packed, plain)
    )
    assert (ours - theirs).norm() <= (1e-5 if dtype is torch.float32 else 0.1) * theirs.norm()


ADAPTIVE = {"positions": "rotary", "adaptive_span": {"size": 4, "penalty": 0.1}}
COMPRESSED = {
    "positions": "none",
    "recurrence": {"size": 2, "reach": 2},
    "compression": {"rate": 2, "memory": 2},
}


@pytest.mark.parametrize(("keys", "weight"), [(ADAPTIVE, 0.1), (COMPRESSED, 1.0)])
def test_the_penalty_of_an_attention_is_a_loss_term(tokenizer, model, keys, weight):
    """Weighted by the tokens of the batch, beside the loss of the tokens, which it does not
    change.
    """
    config = ModelConfig.parse(model.config.model_dump(exclude_defaults=True) | keys)
    penalized = random_model(config)
    objective = Causal(CausalSettings(), tokenizer, WIDTH, penalty=weight)
    examples = objective.examples(objective.encode(TEXTS))
    batch = objective.batch(examples, np.arange(len(examples)))
    terms = objective.loss(penalized, batch)
    with part_of(AttentionPart, config).penalty(penalized) as penalty:
        penalized(batch.inputs)
    term = terms["penalty"]
    assert (term.sum / term.count).item() == pytest.approx(penalty().item(), rel=1e-5)
    assert (term.count, term.weight) == (batch.tokens, weight) and penalty().item() > 0
    assert objective.counts(batch)["penalty"] == batch.tokens
    alone = make_objective(tokenizer).loss(penalized, batch)
    assert alone.keys() == {"tokens"}
    assert torch.equal(alone["tokens"].sum, terms["tokens"].sum)


# --- scores ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("begin", [True, False])
def test_scores_follow_their_definitions(tokenizer, model, begin):
    objective = make_objective(tokenizer, begin=begin)
    rows = objective.encode(TEXTS)
    examples = objective.examples(rows)
    with torch.no_grad():
        losses, hits = by_hand(model, examples, range(len(examples.chunks.sizes)))
    nll = float(losses.double().sum())
    for tokens in (10, 1000):
        context = eval_context(batches=BatchSettings(tokens=tokens, max_length=2))
        found = objective.evaluate(model, rows, examples, context)
        loss, scores = found.loss, found.scores
        assert loss == pytest.approx(nll / len(losses), rel=1e-5)
        assert scores["perplexity"] == pytest.approx(math.exp(nll / len(losses)), rel=1e-5)
        assert scores["bits_per_byte"] == pytest.approx(nll / math.log(2) / rows.bytes, rel=1e-5)
        assert scores["accuracy"] == pytest.approx(100 * float(hits.float().mean()), rel=1e-5)


def test_scores_are_those_of_capped_logits(tokenizer, model):
    capped = random_model(model.config.model_copy(update={"logit_soft_cap": 0.5}))
    objective = make_objective(tokenizer)
    rows = objective.encode(TEXTS)
    examples = objective.examples(rows)
    with torch.no_grad():
        losses, _ = by_hand(capped, examples, range(len(examples.chunks.sizes)))
    found = objective.evaluate(capped, rows, examples, eval_context())
    assert found.loss == pytest.approx(float(losses.mean()), rel=1e-5)


# --- samples --------------------------------------------------------------------------------------


def test_samples_continue_documents_and_are_a_function_of_the_seed(tokenizer, model):
    objective = make_objective(tokenizer)
    rows = objective.encode(TEXTS)
    one, again, other = (
        objective.samples(model, rows, eval_context(samples=3, seed=seed)) for seed in (1, 1, 2)
    )
    assert one == again != other
    assert len(one) == 3
    for sample in one:
        assert sample.reference is None
        assert any(text.startswith(sample.source) for text in TEXTS)
    assert any(sample.ours for sample in one)


def test_a_sample_shows_at_most_half_of_a_document_as_its_prompt(tokenizer, model):
    objective = make_objective(tokenizer)
    texts = ["to be or not to be", "to be"]
    samples = objective.samples(model, objective.encode(texts), eval_context(samples=2))
    for text, sample in zip(texts, samples, strict=True):
        assert text.startswith(sample.source)
        assert len(sample.source) <= len(text) / 2 + 1


def test_samples_continue_the_prompts_of_the_recipe(tokenizer, model):
    objective = make_objective(tokenizer, prompts=["to be", ""])
    rows = objective.encode(TEXTS)
    assert [
        sample.source for sample in objective.samples(model, rows, eval_context(samples=5))
    ] == [
        "to be",
        "",
    ]
    greedy = GenerationConfig(do_sample=False, max_new_tokens=2)
    found = [
        objective.samples(model, rows, eval_context(generation=greedy, seed=seed))
        for seed in (1, 2)
    ]
    assert found[0] == found[1]
    assert all(len(sample.ours) <= 2 for sample in found[0])
    assert objective.samples(model, rows, eval_context(samples=0)) == []


def test_sampling_polls_at_every_token(tokenizer, model):
    """A signal during a validation must not wait for the end of a batch of texts."""
    objective, polls = make_objective(tokenizer, prompts=["to be"]), []
    greedy = GenerationConfig(do_sample=False, max_new_tokens=3, min_new_tokens=3)
    objective.samples(
        model,
        objective.encode(TEXTS),
        eval_context(generation=greedy, poll=lambda: polls.append(1)),
    )
    assert len(polls) >= 3, "one batch of texts, of three tokens each"


# --- disk -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("begin", [True, False])
def test_transformers_adds_the_same_special_tokens(tokenizer, tmp_path, begin):
    from transformers import AutoTokenizer

    make_objective(tokenizer, begin=begin).save(tmp_path)
    (plain,) = tokenizer.encode(["to be"])
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs("to be")["input_ids"] == [tokenizer.bos_id] * begin + plain


PARAGRAPHS = "\n\n".join(f"It was day {n},\nand the wind\nrose again." for n in range(60))
OBJECTS = "\n".join(f'{{"text": "{"" if n % 3 else "a text of " + str(n)}"}}' for n in range(90))


@pytest.mark.parametrize(
    ("name", "text", "changes", "is_reported"),
    [
        ("a.txt", PARAGRAPHS, {}, True),
        ("a.txt", PARAGRAPHS.replace("\n", "\r\n"), {}, True),
        ("a.txt", PARAGRAPHS, {"data.documents": "line"}, False),
        ("a.txt", PARAGRAPHS, {"data.documents": "blank"}, False),
        ("a.txt", PARAGRAPHS.replace("\n\n", "\n"), {}, False),
        ("a.jsonl", OBJECTS, {}, False),
    ],
)
def test_line_breaks_that_are_lost_are_reported(tmp_path, name, text, changes, is_reported):
    (tmp_path / name).write_bytes(text.encode())
    view = RecordingView()
    recipe = load_recipe("causal", {"data.train": str(tmp_path / name), **changes})
    load_data(recipe, tmp_path / "tokenizer", view)
    assert any("the model learns no line breaks" in line for line in view.lines) == is_reported
    assert any(line.startswith("perplexity is per token") for line in view.lines)
