"""Documents: every token is in an example, or counted and reported."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tests.objectives.common import eval_context, random_model

from trifold.batches import BatchSettings
from trifold.data import DataSettings
from trifold.errors import SettingsError
from trifold.nn import ModelConfig
from trifold.objectives.causal import CausalSettings
from trifold.objectives.denoise import DenoiseSettings, SpansSettings
from trifold.objectives.masked import MaskedSettings
from trifold.objectives.objective import BuildContext
from trifold.objectives.permutation import PermutationSettings
from trifold.objectives.replaced import ReplacedSettings
from trifold.objectives.sentence_pairs import SentencePairExamples, SentencePairSettings
from trifold.text import TokenizerSettings, make_tokenizer

READS = {"shape": "encoder", "heads": ["lm"]}
TASKS = {
    "masked": (MaskedSettings(), READS),
    "replaced": (ReplacedSettings(), READS | {"heads": ["replaced"]}),
    "permutation": (
        PermutationSettings(),
        READS | {"positions": "relative-sinusoidal", "query_stream": True, "segment_offsets": True},
    ),
    "denoise": (DenoiseSettings(), {}),
    "spans": (SpansSettings(), {}),
    "causal": (CausalSettings(), {"shape": "decoder"}),
    "causal, nothing around": (CausalSettings(begin=False, end=False), {"shape": "decoder"}),
    "follows": (SentencePairSettings(), READS | {"heads": ["lm", "pooler", "next-sentence"]}),
    "order": (SentencePairSettings(pairs="order", short=0.5), READS | {"heads": ["lm", "pooler", "next-sentence"]}),
}  # fmt: skip

# Documents as numbers of words per sentence.
TEXTS = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=6), min_size=1, max_size=8)
# Documents that give pairs and fit the width, whatever happens to the others.
ALWAYS = [[3, 2], [1, 3]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a tokenizer of numbered words, so that a lost token is found."""
    folder = tmp_path_factory.mktemp("rows")
    words = " ".join(["Word", *(f"w{number}" for number in range(99)), "."])
    settings = TokenizerSettings(
        kind="word", vocab_size=200, min_frequency=1, special=("cls", "sep", "mask"), sentinels=20
    )
    make_tokenizer([words], settings).save(folder)
    return folder


def written(documents):
    """One document per line; sentences end with a full stop and begin with a capital letter."""
    lines, number = [], 0
    for document in documents:
        sentences = []
        for size in document:
            sentences.append(
                " ".join(["Word", *(f"w{(number + n) % 99}" for n in range(size - 1))]) + "."
            )
            number += size
        lines.append(" ".join(sentences))
    return "\n".join(lines) + "\n"


def built(folder, kind, documents, width, cut):
    """The bundle, and the lines reported about the training text."""
    task, model = TASKS[kind]
    for name, text in (("train.txt", documents), ("valid.txt", ALWAYS)):
        (folder / name).write_text(written(text), encoding="utf-8")
    data = DataSettings(train=str(folder / "train.txt"), valid=str(folder / "valid.txt"), cut=cut)
    config = ModelConfig.parse(
        {"d_model": 8, "n_heads": 2, "d_ff": 8, "n_layers": 1, "max_positions": width} | model
    )
    said = []
    bundle = task.build(
        BuildContext(data, TokenizerSettings(), config, BatchSettings(), 1, folder, said.append)
    )
    return bundle, [line for line in said if line.startswith("train.txt: ")]


def read_of(examples, total, shared=0):
    """How often each token of the text is in an example; `shared` tokens at the end of one begin
    the next.
    """
    seen = np.zeros(total, np.int64)
    if isinstance(examples, SentencePairExamples):
        stretches = examples.bounds[:, [0, 2]]
    else:
        starts, sizes = examples.chunks
        stretches = np.stack([starts, starts + sizes + shared], axis=1)
    for start, end in stretches:
        seen[start:end] += 1
    return seen


LOST = (
    r"left out, with ([\d,]+) tokens",
    r"truncated, ([\d,]+) tokens are lost",
    r"([\d,]+) documents of a single token: no label",
)


def counted(said):
    return sum(
        int(found.replace(",", ""))
        for law in LOST
        for line in said
        for found in re.findall(law, line)
    )


@pytest.mark.parametrize("kind", TASKS)
@settings(max_examples=10)
@given(texts=TEXTS, width=st.integers(9, 40), cut=st.sampled_from(["pieces", "windows", "drop"]))
def test_every_token_is_used_or_reported(folder, kind, texts, width, cut):
    bundle, said = built(folder, kind, [*ALWAYS, *texts], width, cut)
    rows = bundle.train
    total = len(rows.tokens.ids) if hasattr(rows, "tokens") else len(rows.ids)
    for draw in (None, 7) if cut == "windows" and kind not in ("follows", "order") else (None,):
        examples = bundle.objective.examples(rows, draw)
        shared = int(kind.startswith("causal"))  # a label, then an input
        seen = read_of(examples, total, shared)
        assert seen.max() <= 1 or shared
        assert np.count_nonzero(seen) + counted(said) == total, said


@pytest.mark.parametrize("kind", ["follows", "order"])
@settings(max_examples=10)
@given(texts=TEXTS, width=st.integers(9, 40), draw=st.integers(0, 2**64 - 1))
def test_every_token_is_in_at_most_one_pair(folder, kind, texts, width, draw):
    bundle, _ = built(folder, kind, [*ALWAYS, *texts], width, "pieces")
    pairs = bundle.objective.examples(bundle.train, draw)
    seen = read_of(pairs, len(bundle.train.ids))
    assert seen.max() == 1
    in_pairs = np.bincount(pairs.document, np.ptp(pairs.whole, axis=1), minlength=len(bundle.train))
    assert (in_pairs <= bundle.train.lengths).all()
    assert np.count_nonzero(in_pairs == 0) == sum(len(document) == 1 for document in texts)


@pytest.mark.parametrize("kind", ["follows", "order"])
@settings(max_examples=10)
@given(
    texts=st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=14), min_size=1, max_size=5),
    draw=st.integers(0, 2**64 - 1),
)
def test_only_last_sentences_are_unused_if_no_pair_is_too_long(folder, kind, texts, draw):
    bundle, _ = built(folder, kind, [*ALWAYS, *texts], 16, "pieces")
    rows = bundle.train
    pairs = bundle.objective.examples(rows, draw)
    seen = read_of(pairs, len(rows.ids)).astype(bool)
    assert (pairs.whole == pairs.bounds).all()
    for start, end in zip(rows.starts, rows.starts[1:], strict=False):
        left = ~seen[start:end]
        assert not (np.diff(left.astype(int)) < 0).any()  # nothing is read behind what is left
        assert rows.sentence_starts[start:end][left].sum() == left.any()


def test_unused_sentences_are_reported(folder):
    _, said = built(folder, "follows", [[4, 4, 4], [7], [30, 30], *ALWAYS], 13, "pieces")
    (name, *_), fates = said, [line.removeprefix("train.txt: ") for line in said[1:]]
    assert name == "train.txt: 5 documents, 359 characters"
    assert fates == [
        "1 documents of a single sentence: left out, with 8 tokens",
        "1 last sentences with none after them to form a pair (about as many in each epoch): left out, with 5 tokens",
        "1 of 4 pairs have more than 10 tokens (about as many in each epoch): truncated, 52 tokens are lost",
        "half of the pairs, others in each epoch, get the second text of another document, truncated if it "
        "does not fit",
    ]  # fmt: skip


def test_unused_validation_documents_are_reported(folder):
    task, model = TASKS["masked"]
    (folder / "train.txt").write_text(written(ALWAYS), encoding="utf-8")
    (folder / "valid.txt").write_text(written([[20], [2]]), encoding="utf-8")
    data = DataSettings(
        train=str(folder / "train.txt"), valid=str(folder / "valid.txt"), cut="drop"
    )
    config = ModelConfig.parse(
        {"d_model": 8, "n_heads": 2, "d_ff": 8, "n_layers": 1, "max_positions": 16} | model
    )
    said = []
    task.build(
        BuildContext(data, TokenizerSettings(), config, BatchSettings(), 1, folder, said.append)
    )
    assert "valid.txt: 1 of 2 documents have more than 14 tokens: left out, with 21 tokens" in said


def test_reports_from_a_cache_equal_those_from_memory(folder, tmp_path):
    """Of five documents one has no token, and two have a single token."""
    plain = make_tokenizer(
        ["sun rain"], TokenizerSettings(kind="bpe", vocab_size=20, min_frequency=1)
    )
    plain.save(tmp_path)
    (tmp_path / "text.txt").write_text(
        "sun rain\nsun\n\u2581\nrain rain rain\nrain\n", encoding="utf-8"
    )
    said = {}
    for place in ("memory", "disk"):
        cache = {"cache": str(tmp_path / "cache")} if place == "disk" else {}
        data = DataSettings.parse(
            dict.fromkeys(("train", "valid"), str(tmp_path / "text.txt")) | cache
        )
        config = ModelConfig.parse(
            {
                "d_model": 8,
                "n_heads": 2,
                "d_ff": 8,
                "n_layers": 1,
                "shape": "decoder",
                "max_positions": 512,
            }
        )
        said[place] = []
        task = CausalSettings(begin=False, end=False, prompts=["sun " * 600, "sun"])
        task.build(
            BuildContext(
                data, TokenizerSettings(), config, BatchSettings(), 1, tmp_path, said[place].append
            )
        )
    for lines in said.values():
        assert "text.txt: 1 documents without a token: left out" in lines
        assert "text.txt: 2 documents of a single token: no label in them" in lines
        assert any("documents is never a label" in line for line in lines)
        assert "task.prompts: 1 have more than 512 tokens and are truncated" in lines


def build_with(tokenizer, here):
    """Build a masked language model with a loaded tokenizer; what it reports."""
    text, said = str(here / "text.txt"), []
    (here / "text.txt").write_text("w1 w2 unheard\n" * 3, encoding="utf-8")
    task, model = TASKS["masked"]
    data, settings = DataSettings(train=text, valid=text), TokenizerSettings(file=str(tokenizer))
    run = here / f"run of {len(list(here.iterdir()))}"
    task.build(
        BuildContext(data, settings, ModelConfig.parse(model), BatchSettings(), 1, run, said.append)
    )
    return said


def test_reports_name_the_file_and_the_unknown_token_of_a_loaded_tokenizer(tmp_path):
    (tmp_path / "vocab.txt").write_text(
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nw1\nw2\n", encoding="utf-8"
    )
    said = build_with(tmp_path, tmp_path)
    assert f"tokenizer: {tmp_path} …" in said
    assert "text.txt: 3 of 9 tokens are unknown ([UNK]): inputs, but never targets" in said


def test_a_loaded_tokenizer_without_a_mask_token_is_an_error_with_its_remedy(tmp_path):
    (tmp_path / "words").mkdir()
    make_tokenizer(["w1 w2"], TokenizerSettings(kind="word", min_frequency=1)).save(
        tmp_path / "words"
    )
    with pytest.raises(
        SettingsError, match=r"no mask token; .* name a mask_token in the tokenizer_config\.json"
    ):
        build_with(tmp_path / "words", tmp_path)
    (tmp_path / "words" / "tokenizer_config.json").write_text(
        '{"mask_token": "[M]"}', encoding="utf-8"
    )
    assert build_with(tmp_path / "words", tmp_path)


def test_unknown_tokens_and_single_sentences_are_reported(folder):
    _, said = built(folder, "denoise", [[4], [2, 2], *ALWAYS], 30, "pieces")
    assert said[1:] == ["train.txt: 1 of 4 documents are a single sentence: nothing to permute"]
    (folder / "valid.txt").write_text(written(ALWAYS), encoding="utf-8")
    (folder / "train.txt").write_text("Word w1 nobody.\nWord w2.\n", encoding="utf-8")
    for kind, fate in (
        ("masked", "inputs, but never targets"),
        ("causal", "input and label are <unk>"),
    ):
        task, model = TASKS[kind]
        said = []
        data = DataSettings(train=str(folder / "train.txt"), valid=str(folder / "train.txt"))
        config = ModelConfig.parse({"d_model": 8, "n_heads": 2, "d_ff": 8, "n_layers": 1} | model)
        bundle = task.build(
            BuildContext(data, TokenizerSettings(), config, BatchSettings(), 1, folder, said.append)
        )
        assert any(line.endswith(f"tokens are unknown (<unk>): {fate}") for line in said) or any(
            f"tokens are unknown: {fate}" in line for line in said
        )
        if kind == "causal":
            assert said[-1].endswith("bits per byte is undefined with unknown tokens")
            assert any(
                "with tokenizer.kind=byte-bpe, which has no unknown" in line for line in said
            )
            objective, rows, model = bundle.objective, bundle.valid, random_model(bundle.config)
            scores = objective.evaluate(
                model, rows, objective.examples(rows), eval_context(samples=0)
            ).scores
            assert set(scores) == {"perplexity", "accuracy"}


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("follows", "data.cut", "drop"),
        ("masked", "tokenizer.dropout", 0.1),
        ("causal", "tokenizer.dropout", 0.1),
    ],
)
def test_keys_without_effect_are_errors(folder, kind, key, value):
    room, name = key.split(".")
    recipe = {"data": {"train": "a.txt", "valid": "b.txt"}, "tokenizer": {"kind": "bpe"}}
    recipe[room][name] = value
    asked = BuildContext(
        DataSettings(**recipe["data"]), TokenizerSettings(**recipe["tokenizer"]), ModelConfig(), BatchSettings(),
        1, folder, print,
    )  # fmt: skip
    with pytest.raises(SettingsError, match=rf"{key}: has no effect on a task of kind"):
        TASKS[kind][0].check_unused_keys(asked)
