"""Write pairs of sentences of which one is changed, labelled by the words that they share, to
pretrain for MRPC.

    python examples/changed_sentences.py changed.tsv changed-valid.tsv sts.tsv

The sentences are those of the training part of MRPC and of newstest 2008 to 2013 in TRIFOLD_DATA.
The label is 1 if the words overlap as much as those of paraphrases in MRPC; the pairs of MRPC are
added with this label, not with their own. The third file gets the rows of STS-B (training) without
sentences of the validation and test parts of MRPC."""

from __future__ import annotations

import argparse
import gzip
import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from trifold.data import expand_path

THRESHOLD = 0.538  # the Dice coefficient above which most pairs of MRPC are paraphrases
PER_BIN = 9_000  # pairs of each twentieth of the overlap


def read_rows(name: str) -> list[list[str]]:
    """The rows of a table of TRIFOLD_DATA, without its header."""
    return [line.split("\t") for line in read_lines(name)[1:] if line]


def read_lines(name: str) -> list[str]:
    """The lines of a file of TRIFOLD_DATA, which may be compressed by gzip."""
    content = expand_path(f"${{TRIFOLD_DATA}}/{name}").read_bytes()
    text = (gzip.decompress(content) if name.endswith(".gz") else content).decode("utf-8")
    return text.replace("\r\n", "\n").split("\n")


def overlap(first: list[str], second: list[str]) -> float:
    """The Dice coefficient of the sets of words."""
    a, b = (set(re.findall(r"\w+", " ".join(words).lower())) for words in (first, second))
    return 2 * len(a & b) / max(1, len(a) + len(b))


def change(words: list[str], sentences: list[list[str]], rng: random.Random) -> list[str]:
    """Delete, replace, insert or move a few spans; new words come from another sentence."""
    changed = list(words)
    for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 4])):
        size, start = rng.randint(1, 6), rng.randrange(len(changed)) if changed else 0
        kind, other = rng.random(), rng.choice(sentences)
        at = rng.randrange(len(other))
        if kind < 0.35:
            del changed[start : start + size]
        elif kind < 0.65:
            changed[start : start + size] = other[at : at + size]
        elif kind < 0.85:
            changed[start:start] = other[at : at + size]
        else:
            span = changed[start : start + size]
            del changed[start : start + size]
            place = rng.randrange(len(changed) + 1)
            changed[place:place] = span
        if len(changed) < 4:
            changed += other[:6]
    return changed


def make_pairs(
    sentences: list[list[str]], count: int, rng: random.Random
) -> list[tuple[int, str, str]]:
    """Pairs with their labels, at most PER_BIN for each twentieth of the overlap."""
    rows, bins = list[tuple[int, str, str]](), Counter[int]()
    while len(rows) < count:
        first = second = rng.choice(sentences)
        for _ in range(rng.choice([1, 1, 2, 2, 3])):
            second = change(second, sentences, rng)
        shared = overlap(first, second)
        if not 0.2 <= shared <= 0.97 or bins[int(shared * 20)] > PER_BIN:
            continue
        bins[int(shared * 20)] += 1
        if rng.random() < 0.5:
            first, second = second, first
        rows.append((int(shared >= THRESHOLD), " ".join(first), " ".join(second)))
    return rows


def write(path: str, rows: Sequence[Sequence[object]]) -> None:
    """Write a TSV file; double quotes become two single ones."""
    lines = ("\t".join(map(str, row)).replace('"', "''") + "\n" for row in rows)
    Path(path).write_text("".join(lines), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write pairs of a sentence and a changed one.")
    parser.add_argument("train_table", help="TSV file of training pairs to write")
    parser.add_argument("valid_table", help="TSV file of validation pairs to write")
    parser.add_argument("similar_table", help="TSV file of rows of STS-B to write")
    parser.add_argument("--count", type=int, default=100_000, help="pairs to make")
    parser.add_argument("--holdout", type=int, default=1_000, help="pairs for validation")
    options = parser.parse_args(arguments)

    rng, mrpc = random.Random(0), read_rows("mrpc/train.tsv")
    texts = [text for row in mrpc for text in row[3:5]]
    for year in range(2008, 2014):
        texts += read_lines(f"newstest_ende/newstest{year}.en.gz")
    sentences = [words for words in map(str.split, texts) if 6 <= len(words) <= 40]
    rows = make_pairs(sentences, options.count, rng)
    rows += [(int(overlap(a.split(), b.split()) >= THRESHOLD), a, b) for _, _, _, a, b in mrpc]
    rng.shuffle(rows)
    header = ("label", "sentence1", "sentence2")
    write(options.train_table, [header, *rows[options.holdout :]])
    write(options.valid_table, [header, *rows[: options.holdout]])

    tested = {
        key(text)
        for part in ("val", "test")
        for row in read_rows(f"mrpc/{part}.tsv")
        for text in row[3:5]
    }
    similar = [
        row[1:4] for row in read_rows("stsb/train.tsv") if tested.isdisjoint(map(key, row[2:4]))
    ]
    write(options.similar_table, [("score", "sentence1", "sentence2"), *similar])
    print(f"{len(rows):,} pairs of sentences; {len(similar):,} rows of STS-B")


def key(text: str) -> str:
    """The letters and digits, which tell whether two sentences are the same."""
    return re.sub(r"\W+", "", text.lower())


if __name__ == "__main__":
    main()
