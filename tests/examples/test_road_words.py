"""The lessons on words: laws of the parts, of what counts, and of vectors, and one run of each."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from examples.trigram import Trigram
from tests.command_line import run_command
from tests.models import add_noise

from trifold import costs
from trifold.errors import SettingsError
from trifold.nn import Inputs, ModelConfig, Transformer, capture, registry
from trifold.nn.stack import Block
from trifold.recipe import TrainSettings

FOLDER = Path(__file__).parents[2] / "examples" / "road"
SMALL = {"vocab_size": 23, "d_model": 12, "n_layers": 2, "n_heads": 1, "d_ff": 1, "dropout": 0.0}
RECURRENT = [
    pytest.param(shape, {"recurrent": {"cell": cell, "attention": attention}}, id=f"{shape}-{cell}-{attention}")
    for shape, cell, attention in (
        ("decoder", "rnn", "none"),
        ("decoder", "gru", "none"),
        ("decoder", "lstm", "none"),
        ("encoder-decoder", "rnn", "multiplicative"),
        ("encoder-decoder", "gru", "none"),
        ("encoder-decoder", "gru", "additive"),
        ("encoder-decoder", "lstm", "additive"),
        ("encoder-decoder", "lstm", "multiplicative"),
    )
]  # fmt: skip
DECODERS = [*RECURRENT, pytest.param("decoder", {"window": {"words": 3}}, id="window")]
EVERY = [*DECODERS, pytest.param("encoder", {"text_cnn": {"words": (2, 3)}}, id="text_cnn")]
REAL = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    """The scripts import each other as modules of their folder. Their parts are those of each test
    only.
    """
    monkeypatch.syspath_prepend(str(FOLDER))
    inside = {place: list(each) for place, each in registry._variants.items()}
    monkeypatch.setattr(registry, "_variants", inside)
    monkeypatch.setattr(registry, "_loaded", {})
    import words

    words.load_parts()


def make_model(shape, options):
    name = next(iter(options))
    parts = ["recurrent_parts" if name == "recurrent" else "convolution_parts"]
    torch.manual_seed(4)
    config = ModelConfig.parse(
        SMALL | {"shape": shape, "parts": parts, "options": options, "positions": "none"}
    )
    return add_noise(Transformer(config).double().eval(), 0.1)


def make_rows():
    return torch.randint(23, (2, 7), generator=torch.Generator().manual_seed(5))


def memory_of(model, tokens):
    if model.encoder is None:
        return None
    return model.encode(Inputs(tokens, REAL))


@pytest.mark.parametrize(("shape", "options"), EVERY)
def test_parameters_are_those_of_the_formula(shape, options):
    model = make_model(shape, options)
    assert costs.count_parameters(model.config) == model.count_parameters()


def test_a_model_without_options_has_none_of_the_parts():
    """Not even `window`, which is also the name of a method of configs."""
    model = Transformer(ModelConfig.parse(SMALL | {"shape": "decoder"}))
    assert type(model.decoder.blocks[0]) is Block


def test_positions_in_scores_are_refused_with_a_remedy():
    values = {"shape": "decoder", "options": {"recurrent": {}}, "positions": "alibi"}
    with pytest.raises(SettingsError, match=r"no offsets of scores.*set positions: sinusoidal"):
        ModelConfig.parse(SMALL | values)


@pytest.mark.parametrize(("shape", "options"), DECODERS)
def test_the_future_does_not_leak(shape, options):
    model, tokens = make_model(shape, options), make_rows()
    memory = memory_of(model, tokens)
    changed = tokens.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % 23
    found = model.decode(Inputs(changed), memory)
    torch.testing.assert_close(found[:, :4], model.decode(Inputs(tokens), memory)[:, :4])
    assert not torch.allclose(found[:, 4:], model.decode(Inputs(tokens), memory)[:, 4:])


@pytest.mark.parametrize(("shape", "options"), DECODERS)
def test_cached_equals_uncached_also_of_padded_prompts_and_of_beams(shape, options):
    model, tokens = make_model(shape, options), make_rows()
    memory = memory_of(model, tokens)
    whole = model.decode(Inputs(tokens), memory)
    # The second row begins after two columns of padding.
    padded = torch.cat((torch.zeros(2, 2, dtype=torch.int64), tokens), 1)
    attend = torch.ones_like(padded, dtype=torch.bool)
    attend[:, :2] = False
    cache = model.new_cache()
    first = model.decode(Inputs(padded[:, :5], attend[:, :5]), memory, cache)
    torch.testing.assert_close(first[:, 2:], whole[:, :3])
    cache.expand(2)
    rows = torch.tensor([1, 0, 2, 3])  # beams of the same source change places
    cache.reorder(rows)
    twice = padded.repeat_interleave(2, 0)
    steps = [
        model.decode(
            Inputs(twice[:, n : n + 1], attend.repeat_interleave(2, 0)[:, : n + 1]), memory, cache
        )
        for n in range(5, 9)
    ]
    torch.testing.assert_close(torch.cat(steps, 1), whole[:, 3:].repeat_interleave(2, 0))


@pytest.mark.parametrize(("shape", "options"), EVERY)
def test_a_row_alone_equals_that_row_in_a_batch(shape, options):
    model, tokens = make_model(shape, options), make_rows()
    if model.decoder is None:
        found = model(Inputs(tokens, REAL))
        alone = model(Inputs(tokens[1:, :4]))
    else:
        found = model.decode(Inputs(tokens, REAL), memory_of(model, tokens))
        source = None if model.encoder is None else model.encode(Inputs(tokens[1:, :4]))
        alone = model.decode(Inputs(tokens[1:, :4]), source)
    torch.testing.assert_close(found[1:, :4], alone)


@pytest.mark.parametrize("attention", ["additive", "multiplicative"])
def test_attention_equals_the_equations_of_its_paper(attention):
    model = make_model("encoder-decoder", {"recurrent": {"cell": "rnn", "attention": attention}})
    tokens = make_rows()[:1]
    memory = model.encode(Inputs(tokens)).hidden[0]
    with capture(model, "pattern") as captured:
        hidden = model.decode(Inputs(tokens), model.encode(Inputs(tokens)))[0]
    states = model.decoder.blocks[0](
        model.decoder_embeddings(Inputs(tokens), 0), *_layer_inputs(model, tokens)
    )[0]
    block = model.decoder.blocks[1]
    lookup, cell = block.cross_attention["sublayer"], block.cell
    half = memory.shape[1] // 2
    ends = torch.cat((memory[-1, :half], memory[0, half:]))
    s = torch.tanh(block.start_proj.weight @ ends + block.start_proj.bias)
    for t, x in enumerate(states):
        if attention == "additive":
            scores = torch.stack([
                lookup.score_proj.weight[0]
                @ torch.tanh(lookup.query_proj.weight @ s + lookup.query_proj.bias + lookup.key_proj.weight @ h)
                for h in memory
            ])  # fmt: skip
            weights = scores.softmax(0)
            x = torch.cat((x, weights @ memory))
        s = torch.tanh(
            cell.weight_ih_l0 @ x + cell.bias_ih_l0 + cell.weight_hh_l0 @ s + cell.bias_hh_l0
        )
        if attention == "multiplicative":
            weights = torch.stack([s @ lookup.key_proj.weight @ h for h in memory]).softmax(0)
        expected = torch.tanh(block.context_proj.weight @ torch.cat((s, weights @ memory)))
        torch.testing.assert_close(hidden[t], expected)
        pattern = captured["decoder.blocks.1.cross_attention.sublayer.pattern"]
        torch.testing.assert_close(pattern[0, 0, t], weights)


def _layer_inputs(model, tokens):
    from trifold.nn.masks import Mask
    from trifold.nn.walk import LayerInputs

    return (LayerInputs(Mask(causal=True), model.encode(Inputs(tokens)).hidden, Mask()),)


def test_a_convolution_equals_the_equations_of_its_paper():
    model = make_model("encoder", {"text_cnn": {"words": (2, 3)}})
    tokens = make_rows()[:1]
    block = model.encoder.blocks[1]
    x = torch.randn(1, 7, 12, dtype=torch.float64)
    from trifold.nn.masks import Mask
    from trifold.nn.walk import LayerInputs

    found = block(x, LayerInputs(Mask()))[0]
    rows = torch.cat((x[0], torch.zeros(2, 12, dtype=torch.float64)))
    expected = torch.cat([
        torch.stack([torch.relu(filters(rows[t : t + n].flatten())) for t in range(7)]).amax(0)
        for n, filters in zip((2, 3), block.groups, strict=True)
    ])  # fmt: skip
    torch.testing.assert_close(found, expected.expand(7, -1))
    assert model(Inputs(tokens)).shape == (1, 7, 12)


# --- counting -------------------------------------------------------------------------------------


def make_sentences():
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randint(5, (int(length),), generator=generator).tolist()
        for length in torch.randint(3, 9, (60,), generator=generator)
    ]


def test_a_chain_of_words_equals_a_plain_count():
    from next_words import Counts

    sentences = make_sentences()
    chain = Counts(sentences, 6, 2)
    plain = Trigram([[5, *ids] for ids in sentences], 6)  # a document begins with a special token
    for ids in sentences[:10]:
        for position in range(2, len(ids)):
            expected = plain.probabilities(ids[position - 2 : position])
            assert chain.probabilities(ids[:position]).tolist() == pytest.approx(expected.tolist())


def test_votes_of_skips_are_distributions_and_the_mask_keeps_the_surest():
    from next_words import Skips, entropy, perplexity

    sentences = make_sentences()
    skips, masked = Skips(sentences, 6, None), Skips(sentences, 6, 1)
    history = sentences[0][:3]
    votes = [vote for _, vote in skips.votes(history)]
    assert votes and all(vote.sum() == pytest.approx(1) for vote in votes)
    surest = min(votes, key=entropy)
    assert masked.probabilities(history).tolist() == surest.tolist()
    assert perplexity(skips, sentences) < 6


def test_the_table_of_words_and_the_votes_of_the_lesson(tmp_path, capsys):
    import word_tables

    word_tables.main(tmp_path)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["my", "0.50", "0.33", "0.00", "0.00", "0.17", "0.00", "0.00"] in rows
    assert ["all", "votes", "2.5", "1.5"] in rows
    assert ["with", "the", "mask", "1.0", "0.0"] in rows
    assert (tmp_path / "transitions.png").stat().st_size > 5000


# --- vectors --------------------------------------------------------------------------------------


def test_tf_idf_equals_its_formula():
    from bag_of_words import Vectors

    vectors = Vectors(["a b", "a c c"], is_weighted=True)
    rare = math.log(3 / 2)  # of b and c; a occurs in every text
    row = vectors.row("a b c c unknown")
    assert row[vectors.index["a"]] == 0
    length = math.hypot(rare, 2 * rare)
    assert row[vectors.index["c"]] == pytest.approx(2 * rare / length)
    assert Vectors(["a b", "a c c"], is_weighted=False).row("c c a") == {0: 1.0, 2: 1.0}


def test_the_classifier_learns_words_and_not_their_order(tmp_path, monkeypatch, capsys):
    import bag_of_words

    rows = [f"{'good' if n % 2 else 'bad'} film {n % 7}\t{n % 2}" for n in range(60)]
    table = tmp_path / "reviews.tsv"
    table.write_text("sentence\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")
    arguments = ["bag_of_words.py", str(table), "--test", str(table), "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    bag_of_words.main()
    printed = capsys.readouterr().out
    assert "always the same class" in printed and printed.count("100.0") == 2
    assert (tmp_path / "words.png").exists()


def test_a_table_without_the_columns_is_refused(tmp_path):
    from bag_of_words import read

    from trifold.errors import DataError

    table = tmp_path / "reviews.tsv"
    table.write_text("text\tstars\ngood\t5\n", encoding="utf-8")
    with pytest.raises(DataError, match="has no columns sentence and label"):
        read(table)


@pytest.mark.slow
@pytest.mark.parametrize("is_cbow", [False, True])
def test_words_with_the_same_neighbours_have_similar_vectors(is_cbow):
    from word_vectors import WordVectors, examples, fit, reciprocal_rank

    generator = torch.Generator().manual_seed(3)
    # Words 0 and 1 stand between 2 and 3; word 4 between 5 and 6.
    sentences = [
        [2, int(torch.randint(2, (), generator=generator)), 3] if n % 2 else [5, 4, 6]
        for n in range(400)
    ]
    words, near = examples(sentences)
    torch.manual_seed(1)
    model = WordVectors(7, 8, is_cbow=is_cbow)
    before = reciprocal_rank(model, words, near, words)
    fit(model, words, near, epochs=30, rows=64)
    assert model.neighbours(0, 1) == [1]
    assert reciprocal_rank(model, words, near, words) > before + 0.1


# --- gradients ------------------------------------------------------------------------------------


def test_gradients_of_a_recurrent_network_vanish_and_those_of_attention_do_not():
    from gradients import new_model, shares, texts

    torch.manual_seed(1)
    tokens = texts(50, [])[:8]
    network, transformer = (shares(new_model(name, 50), tokens) for name in ("RNN", "Transformer"))
    assert network.sum() == pytest.approx(1) and transformer.sum() == pytest.approx(1)
    assert network[31] < 1e-4 * network[0]
    assert transformer[31] > 1e-2 * transformer[0]


# --- runs -----------------------------------------------------------------------------------------


@pytest.fixture
def few_pairs(monkeypatch, tmp_path):
    """A corpus of files with few pairs."""
    import words

    lines = [f"the {color} dog runs" for color in ("red", "blue", "big", "old")] * 4
    paths = {}
    for split in words.SPLITS:
        paths[split] = [str(tmp_path / f"{split}.{language}") for language in ("en", "de")]
        for path in paths[split]:
            Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
    texts = dict.fromkeys(words.SPLITS, lines)
    corpus = words.Corpus(
        "few", texts, texts, paths, {name: each[0] for name, each in paths.items()}
    )
    for module in ("next_words", "translators"):
        __import__(module)
        monkeypatch.setattr(sys.modules[module], "load_corpus", lambda: corpus)


@pytest.mark.slow
def test_the_next_words_end_with_a_table_and_a_picture(few_pairs, tmp_path, monkeypatch, capsys):
    import next_words

    names = ["Markov chain, 1 word", "skips, masked", "LSTM"]
    arguments = ["next_words.py", "--steps", "2", "--only", *names, "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    next_words.main()
    printed = capsys.readouterr().out
    assert all(printed.count(f"\n{name}") == 2 for name in names)
    assert (tmp_path / "perplexity.png").exists()


@pytest.mark.slow
def test_translators_end_with_a_table_and_pictures(few_pairs, tmp_path, monkeypatch, capsys):
    import translators

    names = ["RNN", "GRU, additive"]
    arguments = ["translators.py", "--steps", "2", "--sentences", "8", "--only", *names]
    monkeypatch.setattr(sys, "argv", [*arguments, "--out", str(tmp_path)])
    translators.main()
    printed = capsys.readouterr().out
    assert all(printed.count(f"\n{name}") == 2 for name in names)
    assert {path.name for path in tmp_path.glob("*.png")} == {"GRU-additive.png", "lengths.png"}


def test_updates_fit_into_the_minutes(monkeypatch):
    """After the first 20 updates, which compile, 40 took 10 seconds: two minutes have 480."""
    import words

    lines = [
        {"step": 20, "seconds": 30.0, "train/tokens_per_second": 1.0},
        {"step": 40, "seconds": 35.0, "train/tokens_per_second": 1.0},
        {"step": 60, "seconds": 40.0, "train/tokens_per_second": 1.0},
        {"step": 60, "valid/loss": 1.0},
    ]

    def train(recipe, out):
        assert recipe == (words.TIMED, 1)
        Path(out, "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")

    monkeypatch.setattr(words.trifold, "train", train)
    assert words.updates_in(2, lambda steps, validations: (steps, validations)) == 480
    assert words.updates_in(0.001, lambda steps, validations: (steps, validations)) == 2


@pytest.mark.parametrize("steps", [2, 19, 20])
def test_a_few_updates_are_enough(steps):
    """A slow machine has two in the minutes that are asked for."""
    import words

    settings = TrainSettings.parse(words.training(steps, 0.003, 10))
    assert settings.warmup == steps // 20


@pytest.mark.slow
def test_minutes_end_a_training(few_pairs, tmp_path, monkeypatch, capsys):
    """By the option that the page names; a few updates are timed first. The command that measures
    the scores runs in this process; the test above starts it.
    """
    import next_words

    def run(command, **_):
        done = run_command(*command[3:])  # without the interpreter, -m and the module
        assert done.code == 0, done.err
        return SimpleNamespace(stdout=done.out)

    monkeypatch.setattr(next_words, "subprocess", SimpleNamespace(run=run, PIPE=None))
    arguments = ["next_words.py", "--minutes", "0.001", "--only", "RNN", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    next_words.main()
    assert capsys.readouterr().out.count("\nRNN") == 2


def test_sentences_are_joined_and_sorted_by_length():
    from translators import by_length, joined

    assert joined(["a", "b", "c"], 2) == ["a b", "c"]
    assert list(by_length(["a", " ".join("b" * 12), " ".join("c" * 20)])) == [[0], [1], [], [2]]
