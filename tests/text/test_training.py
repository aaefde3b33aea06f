"""Training is a function of the texts and the settings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trifold.errors import SettingsError
from trifold.text import Tokenizer, TokenizerSettings, make_tokenizer, train_tokenizer

WORDS = (
    "haus baum straße garten kind hund katze wasser feuer erde luft stein blume vogel fisch".split()
)
CORPUS = [
    " ".join(WORDS[(i * j + j) % len(WORDS)] + "en" * (i % 3) for j in range(7)) + "."
    for i in range(300)
]

KINDS: list[Any] = ["byte-bpe", "bpe", "unigram", "word", "char"]

PROGRAM = """
import sys
sys.path[:0] = {path!r}
from trifold.text import TokenizerSettings, train_tokenizer
for kind in {kinds!r}:
    print(train_tokenizer({texts!r}, TokenizerSettings(kind=kind, vocab_size=300)).fingerprint)
"""


def test_the_file_of_a_tokenizer_may_be_a_folder_with_a_vocabulary_only(tmp_path: Path) -> None:
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ha", "##us", "."]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    tokenizer = make_tokenizer([], TokenizerSettings(file=str(tmp_path)))
    assert tokenizer.vocab_size == len(vocabulary)
    assert tokenizer.rows(["Haus."])[0].ids == [2, 5, 6, 7, 3]
    assert [tokenizer.required(role) for role in ("pad", "bos", "eos", "unk", "mask")] == [
        0,
        2,
        3,
        1,
        4,
    ]
    (tmp_path / "saved").mkdir()
    tokenizer.save(tmp_path / "saved")
    again = Tokenizer.load(tmp_path / "saved")
    assert (again.rows(["Haus."])[0].ids, again.names) == ([2, 5, 6, 7, 3], tokenizer.names)


@pytest.mark.slow
def test_training_is_reproducible_across_processes() -> None:
    settings = [TokenizerSettings(kind=kind, vocab_size=300) for kind in KINDS]
    ours = [train_tokenizer(CORPUS, each).fingerprint for each in settings]
    program = PROGRAM.format(path=sys.path, texts=CORPUS, kinds=KINDS)
    theirs = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert theirs.stdout.split() == ours


@pytest.mark.parametrize(
    ("kind", "size", "message"),
    [
        (
            "bpe",
            10,
            r"tokenizer\.vocab_size: 10 is smaller than the 24 characters .* 4 special tokens; set it to at least 28",
        ),
        ("unigram", 27, "27 is smaller than the 24 characters"),
        ("char", 10, "10 is smaller than the 24 characters .*, or set kind to byte-bpe"),
        (
            "byte-bpe",
            259,
            "259 is smaller than the 256 bytes and 4 special tokens; set it to at least 260$",
        ),
    ],
)
def test_a_vocabulary_smaller_than_the_alphabet_is_rejected(
    kind: Any, size: int, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        train_tokenizer(CORPUS, TokenizerSettings(kind=kind, vocab_size=size))


@pytest.mark.parametrize(
    ("kind", "size"), [("bpe", 28), ("unigram", 30), ("char", 28), ("byte-bpe", 260)]
)
def test_the_smallest_vocabulary_knows_every_character(kind: Any, size: int) -> None:
    tokenizer = train_tokenizer(CORPUS, TokenizerSettings(kind=kind, vocab_size=size))
    assert tokenizer.vocab_size <= size
    assert tokenizer.decode(tokenizer.encode(CORPUS)) == CORPUS


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_larger_vocabulary_gives_fewer_tokens(kind: Any) -> None:
    counts = [
        sum(
            map(
                len,
                train_tokenizer(CORPUS, TokenizerSettings(kind=kind, vocab_size=size)).encode(
                    CORPUS
                ),
            )
        )
        for size in (30, 45, 60)
    ]
    assert counts[0] > counts[1] > counts[2]


def test_rare_words_are_unknown_and_frequent_ones_first() -> None:
    texts = ["often often often", "often seldom"]
    tokenizer = train_tokenizer(texts, TokenizerSettings(kind="word", min_frequency=2))
    assert tokenizer.encode(["often seldom often"]) == [[4, 3, 4]]
    assert tokenizer.vocab_size == 5
