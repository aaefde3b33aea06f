"""Tagging: alignment of words and tokens, predictions, scores, and data that is not valid."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from tests.command_line import run_command
from tests.objectives.common import eval_context, random_model
from tests.text.folders import bert

import trifold
from trifold.data import DataSettings, Rows
from trifold.errors import DataError, UsageError
from trifold.nn import ModelConfig
from trifold.objectives.tag import NO_TAG, TagSettings, TagWords
from trifold.objectives.tag_columns import are_of_entities, numbers_warning
from trifold.pipeline import Pipeline
from trifold.predict.tag import (
    EDGES as EDGES_SETTING,
    choose_tags,
    first_tokens,
    word_spans,
    words_of_tokens,
)
from trifold.recipe import load_recipe
from trifold.text import TokenizerSettings, train_tokenizer

SENTENCES = [
    [("Peter", "B-PER"), ("Blackburn", "I-PER"), ("visits", "O"), ("U.S.", "B-LOC")],
    [("Blackburn", "B-LOC"), ("is", "O"), ("(really)", "O"), ("foggy", "O")],
    [("fog", "O")],
    [("the", "O"), ("U.N.", "B-ORG"), ("visits", "O"), ("Peter", "B-PER"), (".", "O")],
]
NAMES = ["O", "B-LOC", "B-ORG", "B-PER", "I-PER"]
KINDS = ("bpe", "byte-bpe", "unigram", "char")


def rows_of(sentences, name="train.txt"):
    words, tags = ([[pair[n] for pair in one] for one in sentences] for n in range(2))
    rows = Rows({"words": words, "tags": tags}, list(range(1, len(words) + 1)))
    rows.report.name = name
    return rows


def tokenizer_of(kind):
    texts = [" ".join(words) for words in rows_of(SENTENCES).columns["words"]]
    settings = TokenizerSettings(kind=kind, vocab_size=300, min_frequency=1, special=["cls", "sep"])
    return train_tokenizer(texts, settings)


@pytest.fixture(scope="module")
def tokenizers():
    return {kind: tokenizer_of(kind) for kind in KINDS}


def model_of(tokenizer, shape="encoder"):
    config = ModelConfig(
        shape=shape, vocab_size=tokenizer.vocab_size, max_positions=64, positions="learned", d_model=16, n_layers=2,
        n_heads=2, d_ff=24, dropout=0.0, heads=["token"], n_labels=len(NAMES), label_names=NAMES,
        eos_id=tokenizer.sep_id, pad_id=tokenizer.pad_id,
    )  # fmt: skip
    return random_model(config)


def outputs_of(objective, model, examples, rows):
    """The tags of the words of the given examples, read as one batch."""
    batch = objective.batch(examples, np.array(rows))
    with torch.no_grad():
        found = objective.split(objective.logits(model, batch).argmax(-1), batch)
    return [
        choose_tags(own, examples.firsts[row], NAMES) for own, row in zip(found, rows, strict=True)
    ]


# --- alignment ------------------------------------------------------------------------------------

TEXTS = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Zs", "Zl", "Zp")), min_size=1, max_size=8
)


@pytest.mark.parametrize("kind", KINDS)
@given(words=st.lists(TEXTS, min_size=1, max_size=6))
def test_every_word_has_exactly_one_labelled_token_which_is_its_first(tokenizers, kind, words):
    tokenizer = tokenizers[kind]
    text, spans = " ".join(words), word_spans(words)
    assert [text[start:end] for start, end in spans] == words
    row = tokenizer.rows([text])[0]
    firsts = first_tokens(row, spans)
    with_token = [first for first in firsts if first >= 0]
    assert with_token == sorted(set(with_token))
    for first, (start, end) in zip(firsts, spans, strict=True):
        overlapping = [
            place
            for place, (own, (begin, stop)) in enumerate(zip(row.texts, row.offsets, strict=True))
            if own is not None and begin < end and stop > start
        ]
        assert first == (overlapping[0] if overlapping else -1)
    if kind == "byte-bpe":  # no character is unknown, changed or removed
        assert -1 not in firsts


def test_the_label_of_a_word_is_on_its_first_token_only(tokenizers):
    tokenizer = tokenizers["bpe"]
    objective = TagWords(TagSettings(), tokenizer, model_of(tokenizer).config)
    rows = rows_of(SENTENCES)
    batch = objective.batch(objective.examples(rows), np.arange(4))
    numbers = [NAMES.index(tag) for tags in rows.columns["tags"] for tag in tags]
    assert batch.labels[batch.labels != NO_TAG].tolist() == numbers
    assert objective.counts(batch) == {"tokens": len(numbers)} == {"tokens": batch.tokens}
    special = torch.tensor([tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id])
    assert (batch.labels[torch.isin(batch.inputs.tokens[0], special)] == NO_TAG).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", ["encoder", "decoder"])
def test_tags_of_a_batch_are_those_of_single_sentences_and_of_predict(tokenizers, kind, shape):
    tokenizer = tokenizers[kind]
    model = model_of(tokenizer, shape)
    objective, rows = TagWords(TagSettings(), tokenizer, model.config), rows_of(SENTENCES)
    examples = objective.examples(rows)
    with torch.no_grad():  # so that the most probable class varies
        batch = objective.batch(examples, np.arange(4))
        logits = objective.logits(model, batch)[: batch.inputs.packing.n_real]
        model.heads["token"].out_proj.bias -= logits.mean(0)
    together = outputs_of(objective, model, examples, [2, 0, 3, 1])
    assert len({tag for tags in together for tag in tags}) > 2
    for row, tags in zip([2, 0, 3, 1], together, strict=True):
        assert outputs_of(objective, model, examples, [row]) == [tags]
        text = " ".join(rows.columns["words"][row])
        spans = Pipeline(model, tokenizer).tag(text, merge="words", ignore=())
        kinds = [tag[2:] or "O" for tag in tags]
        merged = [
            kinds[n] for n in range(len(tags))
            if n == 0 or tags[n].startswith("B-") or kinds[n] != kinds[n - 1]
        ]  # fmt: skip
        assert [span.label for span in spans] == merged
        assert " ".join(span.text for span in spans) == text


# --- what is left out -----------------------------------------------------------------------------


def test_words_beyond_the_width_and_unknown_tags_are_reported_and_count_as_wrong(tokenizers):
    tokenizer, lines = tokenizers["bpe"], []
    model = model_of(tokenizer)
    with torch.no_grad():  # every word is a place
        model.heads["token"].out_proj.bias[1] += 1000
    long = [("fog", "B-LOC")] * 5
    rows = rows_of([long, [("Peter", "B-GOD"), ("fog", "B-LOC")]], "dev.txt")
    objective = TagWords(TagSettings(), tokenizer, model.config, 4, lines.append)
    examples = objective.examples(rows)
    assert [places.count(-1) for places in examples.firsts] == [3, 0]
    assert str(objective.truncation) == "1 text cut to fit, 3 tokens lost (at most 3 in one)"
    assert "dev.txt: 3 words without a token, predicted as O" in lines
    assert "dev.txt: 1 tag not seen in training, counted as wrong: B-GOD" in lines
    found = objective.evaluate(model, rows, examples, eval_context())
    # Adjacent places that begin with B- are one entity each.
    assert found.scores == pytest.approx(
        {"accuracy": 300 / 7, "precision": 75, "recall": 300 / 7, "f1": 600 / 11}
    )
    assert found.samples[1] == ("Peter fog", "Peter (GOD), fog (LOC)", "Peter (LOC), fog (LOC)")
    assert any(line.startswith("GOD: f1 = 0.00") for line in found.signatures)


# --- graphs ---------------------------------------------------------------------------------------

EDGES = {"pairs": "[[0, 1], [1, 2]]", "heads": "[2, 3, 0]", "heads as texts": '["2", "3", "0"]'}


@pytest.mark.parametrize("form", EDGES)
def test_edges_are_pairs_from_0_or_heads_from_1(tmp_path, form):
    (tmp_path / "a.jsonl").write_text(
        f'{{"tokens": ["a", "b", "c"], "tags": ["O", "O", "B-X"], "edges": {EDGES[form]}}}'
    )
    settings = TagSettings(edges=True)
    rows = settings._read(str(tmp_path / "a.jsonl"), DataSettings(), "train")
    assert rows.columns["edges"] == [[(0, 1), (1, 2)]]


def test_the_heads_of_conllu_are_edges(tmp_path):
    lines = [f"{n + 1}\t{word}\t_\tO\t_\t_\t{head}\tdep\t_\t_" for n, (word, head) in enumerate(
        [("the", 2), ("fog", 3), ("lifts", 0)])]  # fmt: skip
    (tmp_path / "a.conllu").write_text("# text = the fog lifts\n" + "\n".join(lines) + "\n")
    rows = TagSettings(edges=True)._read(str(tmp_path / "a.conllu"), DataSettings(), "train")
    assert rows.columns["edges"] == [[(0, 1), (1, 2)]]


def test_tokens_attend_along_the_edges_of_their_words(tokenizers):
    """The tokens of a word to each other, to those of its neighbours, and to special tokens."""
    tokenizer = tokenizers["char"]
    rows = rows_of([[("fog", "O"), ("is", "O"), ("the", "O")], [("fog", "O")]])
    rows.columns["edges"] = [[(0, 2)], []]
    objective = TagWords(TagSettings(edges=True), tokenizer, model_of(tokenizer).config)
    examples = objective.examples(rows)
    batch = objective.batch(examples, np.arange(2))
    (first, second), width = examples.texts.lengths, batch.inputs.edges.shape[1]
    spans = word_spans(rows.columns["words"][0])
    words = words_of_tokens(tokenizer.rows(["fog is the"])[0], spans)
    for one in range(first):
        for other in range(first):
            pair = {words[one], words[other]}
            expected = len(pair) == 1 or -1 in pair or pair == {0, 2}
            assert bool(batch.inputs.edges[0, one, other]) == expected
    assert batch.inputs.edges.shape == (2, width, width)
    assert batch.inputs.edges[1, :second, :second].all()
    assert not batch.inputs.edges[1, second:].any()
    narrow = objective.batch(examples, np.arange(2), 4)
    assert torch.equal(narrow.inputs.edges[0], batch.inputs.edges[0, :4, :4])


def test_a_model_of_edges_reads_no_texts(tokenizers):
    tokenizer = tokenizers["char"]
    settings, model = tokenizer.settings, model_of(tokenizer)
    tokenizer.settings = {**settings, EDGES_SETTING: True}
    with pytest.raises(UsageError, match=r"attends along the edges .* `trifold eval RUN FILE`"):
        Pipeline(model, tokenizer).tag("the fog")
    tokenizer.settings = settings
    usage = TagSettings(edges=True).command_for("runs/a", "runs/a/model")
    assert usage == "eval runs/a FILE"


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ('"near"', "'edges' is 'near', not edges: write pairs of numbers of words from 0"),
        ("[[0, 1.5]]", r"'edges'\[0\] is 1.5, not edges"),
        ("[-1, 0]", r"'edges'\[0\] is -1, not edges"),
        ("[[0, 1, 2]]", r"'edges'\[0\] is \[0, 1, 2\], not edges"),
        ("[3, 0]", r"a.jsonl:1: an edge of word 1 to word 3, but the sentence has 2 words"),
        ("[[0, 5]]", r"a.jsonl:1: an edge of word 1 to word 6, but the sentence has 2 words"),
    ],
)
def test_what_are_no_edges(tmp_path, edges, message):
    row = f'{{"tokens": ["a", "b"], "tags": ["O", "B-X"], "edges": {edges}}}'
    (tmp_path / "a.jsonl").write_text(row)
    with pytest.raises(DataError, match=message):
        TagSettings(edges=True)._read(str(tmp_path / "a.jsonl"), DataSettings(), "train")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"shape": "decoder"}, "task.edges needs model.shape: encoder, not decoder"),
        ({"shape": "encoder", "attention": "elu"}, "attention: elu has no weight for each pair"),
    ],
)
def test_models_that_cannot_follow_edges(values, message):
    assert message in TagSettings(edges=True).model_problem(ModelConfig(**values))


READ = {
    "numbers of columns": ("1 fog NN O\n2 Port NP B-ORG\n", ["words column 0, tags column 3", "such as '2' → B-ORG"]),
    "a type that is a typo": (
        "Ada B-PERS\nLee I-PER\n\n" + "Port B-ORG\n\n" * 20,
        ["1 I- or E- tag in no entity of that type (such as I-PER after B-PERS)", "typo: PER, PERS"],
    ),
    "an I- tag that begins": ("fog O\nLee I-PER\n", ["(such as I-PER after O)"]),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_the_report_names_columns_and_odd_tags(tmp_path, name):
    content, words = READ[name]
    (tmp_path / "a.conll").write_text(content, encoding="utf-8")
    report = TagSettings()._read(str(tmp_path / "a.conll"), DataSettings(), "train").report
    assert [word in str(report) for word in words] == [True] * len(words), str(report)


@pytest.mark.parametrize(("column", "is_told"), [(0, True), (1, False)])
def test_words_that_are_numbers_are_told(tmp_path, column, is_told):
    (tmp_path / "a.conll").write_text("1 fog O\n2 Port B-ORG\n", encoding="utf-8")
    settings = DataSettings.parse({"columns": {"words": column}})
    warning = numbers_warning(TagSettings()._read(str(tmp_path / "a.conll"), settings, "train"))
    assert ("100 % of the words are numbers ('1', '2', …)" in str(warning)) == is_told


@pytest.mark.parametrize(
    ("tags", "are"),
    [
        ("O B-PER I-PER", True),
        ("O PER", True),
        ("B-A I-A", True),
        ("b-org i-org", True),
        ("0 1 2", True),
        ("NOUN VERB", False),
        ("S V A", False),
        ("NN-S VB DT", False),
        ("N_P V DT", False),
        ("n v o", False),
    ],
)
def test_tags_of_entities_are_recognized(tags, are):
    assert are_of_entities(tags.split()) == are


@pytest.mark.slow
def test_the_training_tags_decide_what_others_are(tmp_path):
    words = {"ner.txt": "fog O\n\nPort B-LOC\n", "pos.txt": "fog NOUN\n\nis VERB\nPort NOUN\n"}
    words["odd.txt"] = words["pos.txt"] + "\nfog O\n"
    for name, content in words.items():
        (tmp_path / name).write_text(content, encoding="utf-8")

    def trained(train, valid):
        files = {"data.train": str(tmp_path / train), "data.valid": str(tmp_path / valid)}
        return trifold.train("tag", out=tmp_path / "run" / train, **SMALL | files)

    with pytest.raises(DataError, match=r"pos\.txt:1: 'NOUN' is not a tag of the scheme"):
        trained("ner.txt", "pos.txt")
    assert trained("pos.txt", "pos.txt").scores == {"accuracy": 100}
    run = str(tmp_path / "run" / "pos.txt")
    done = run_command("eval", run, str(tmp_path / "odd.txt"), "--json")
    assert json.loads(done.out)["scores"]["accuracy"] == 75
    trained("ner.txt", "ner.txt")
    done = run_command("eval", str(tmp_path / "run" / "ner.txt"), str(tmp_path / "pos.txt"))
    assert "pos.txt:1: 'NOUN' is not a tag of the scheme" in " ".join(done.err.split())


INVALID = {
    "ragged columns": ("a.txt", "Peter B-PER\nis here O\n", r"a\.txt:2: 3 columns"),
    "a tag without a scheme": ("a.txt", "fog O\n\nPeter PER\n", r"a\.txt:3: 'PER' is not a tag .*best_by=accuracy"),
    "tags in lower case": ("a.txt", "fog O\nPort b-org\n\nPeter B-PER\n", r"a\.txt:1: 'b-org' is not a tag of the scheme BIO; did you mean 'B-ORG'\?"),
    "tags with _": ("a.txt", "fog O\nPort S_ORG\n\nPeter E-PER\n", r"scheme BIOES; did you mean 'S-ORG'"),
    "tags with the prefix last": ("a.txt", "fog O\nPort ORG-B\n", "did you mean 'B-ORG'"),
    "columns that are swapped": ("a.txt", "O fog\nB-ORG Port\n", "'fog' is not a tag .* the columns are swapped"),
    "words that are the tags": ("a.txt", "O O\nB-ORG B-ORG\n", r"a\.txt:1: the words are also the tags, such as 'O'"),
    "one tag too few": ("a.jsonl", '{"tokens": ["a", "b"], "tags": ["O"]}', r"a\.jsonl:1: 2 words and 1 tag"),
    "an empty sentence": (
        "a.jsonl", '{"tokens": ["a"], "tags": ["O"]}\n{"tokens": [], "tags": []}', r"a\.jsonl:2: 'tokens' is an empty"
    ),
    "a blank word": ("a.jsonl", '{"tokens": ["a", " "], "tags": ["O", "O"]}', r"a\.jsonl:1: 'tokens'\[1\] is blank"),
    "text instead of words": ("a.jsonl", '{"tokens": "a b", "tags": ["O"]}', r"a\.jsonl:1: .*data\.format=conll"),
    "a single tag": ("a.txt", "a O\nb O\n", "the only tag is 'O'"),
}  # fmt: skip


@pytest.mark.parametrize("name", INVALID)
def test_invalid_data_names_file_and_line(tmp_path, name):
    file, content, words = INVALID[name]
    (tmp_path / file).write_text(content, encoding="utf-8")
    path = str(tmp_path / file)
    with pytest.raises(DataError, match=words):
        trifold.train("tag", out=tmp_path / "run", **{"data.train": path, "data.valid": path})


# --- runs -----------------------------------------------------------------------------------------

SMALL = {
    "model.d_model": 32, "model.n_heads": 2, "model.n_layers": 1, "model.d_ff": 64, "model.dropout": 0.0,
    "model.attention_dropout": 0.0, "tokenizer.min_frequency": 1, "tokenizer.vocab_size": 100, "train.device": "cpu",
    "train.precision": "float32", "train.warmup": 5, "train.learning_rate": 0.01, "train.steps": 60,
    "train.validate_every": 60, "train.save_every": 60,
}  # fmt: skip


def write_conll(path, sentences):
    blocks = ["\n".join(f"{word} X {tag}" for word, tag in one) for one in sentences]
    path.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    return path


def bioes(sentence):
    """The tags of the sentence as BIOES."""
    following = [tag[:2] == "I-" for _, tag in sentence[1:]] + [False]
    names = {
        ("B", False): "S",
        ("B", True): "B",
        ("I", False): "E",
        ("I", True): "I",
        ("O", False): "O",
    }
    return [
        (word, names[tag[0], more] + tag[1:])
        for (word, tag), more in zip(sentence, following, strict=True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["BIO", "BIOES"])
def test_an_overfitted_model_finds_all_entities_of_its_training_sentences(tmp_path, scheme):
    sentences = SENTENCES if scheme == "BIO" else [bioes(one) for one in SENTENCES]
    path, run = write_conll(tmp_path / "train.txt", sentences), tmp_path / "run"
    if scheme == "BIOES":
        path = tmp_path / "train.jsonl"
        words = (
            {"tokens": [w for w, _ in one], "ner_tags": [t for _, t in one]} for one in sentences
        )
        path.write_text("\n".join(map(json.dumps, words)), encoding="utf-8")
    settings = SMALL | {"data.train": path, "data.valid": path}
    if scheme == "BIOES":  # WordPiece splits words at punctuation, which training does not
        settings |= {"tokenizer.file": str(bert(tmp_path / "bert"))}
    done = run_command(
        "train", "tag", *(f"{key}={value}" for key, value in settings.items()), "--out", str(run)
    )
    assert done.code == 0, done.err
    scores = json.loads(run_command("eval", str(run), str(path), "--json").out)["scores"]
    assert scores == {"f1": 100, "precision": 100, "recall": 100, "accuracy": 100}
    found = run_command("predict", str(run), "Peter Blackburn visits U.S.", "--json")
    tags = json.loads(found.out)["outputs"]
    spans = [(tag["label"], tag["start"], tag["end"]) for tag in tags]
    assert spans == [("PER", 0, 15), ("LOC", 23, 27)]
    compared = json.loads(run_command("compare", str(run), str(run), str(path), "--json").out)[
        "scores"
    ]
    assert compared["loss"]["difference"] == 0


@pytest.mark.slow
def test_tags_that_are_not_of_entities_have_an_accuracy(tmp_path):
    sentences = [[("the", "DT"), ("fog", "NN")], [("a", "DT"), ("fog", "NN"), ("is", "VB")]]
    path = write_conll(tmp_path / "train.conll", sentences)
    files = {"data.train": str(path), "data.valid": str(path)}
    outcome = trifold.train("tag", out=tmp_path / "run", **SMALL | files)
    assert outcome.scores == {"accuracy": 100}
    found = trifold.load(tmp_path / "run").tag("the fog fog is")  # one tag for each word
    assert [tag.text for tag in found] == ["the", "fog", "fog", "is"]


def test_the_positions_are_those_of_sentences(tmp_path):
    sentence = [(f"word{n}", "O") for n in range(100)]
    path = write_conll(tmp_path / "train.txt", [sentence] * 3)
    recipe = load_recipe("tag", [f"data.train={path}"])
    assert recipe.model.max_positions == 512  # of about 170 tokens
    assert recipe.model.heads == ("token",)
