"""Write translations as tables of pairs: the data of the first stage of the recipe `stsb`.

    TRIFOLD_DATA=… python examples/translation_pairs.py pairs.tsv pairs-valid.tsv python
    examples/translation_pairs.py pairs.tsv pairs-valid.tsv --train a.en a.de --valid b.en b.de

Ranking the translation of a sentence above other sentences brings sentences that mean the same near
each other (Guo et al. 2018), also in one language, without labels. The default is the text of the
datasets multi30k, tatoeba_ende and newstest_ende (`trifold data`). Pairs with an empty side are
left out, the others are shuffled."""

from __future__ import annotations

import argparse
import gzip
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from trifold.data import expand_path

TRAIN = [
    "multi30k/train",
    "tatoeba_ende/train",
    *(f"newstest_ende/newstest{year}" for year in range(2008, 2014)),
]


def in_data_folder(name: str) -> list[str]:
    """The two files of a dataset."""
    return [f"${{TRIFOLD_DATA}}/{name}.{language}.gz" for language in ("en", "de")]


def read_lines(path: str | Path) -> list[str]:
    """The lines of a text file, which may be compressed by gzip."""
    content = expand_path(path).read_bytes()
    text = (gzip.decompress(content) if str(path).endswith(".gz") else content).decode("utf-8")
    return [line.strip() for line in text.split("\n")]


def read_pairs(source: str | Path, target: str | Path) -> Iterator[tuple[str, str]]:
    """The pairs of lines of two files of equal length, without those of which one is empty."""
    for pair in zip(read_lines(source), read_lines(target), strict=True):
        if all(pair):
            yield pair


def write_table(path: str | Path, pairs: Sequence[tuple[str, str]]) -> None:
    """Write a TSV file; tabs in a text become spaces, and double quotes two single ones."""
    rows = [("sentence1", "sentence2"), *pairs]
    with Path(path).open("w", encoding="utf-8") as file:
        for row in rows:
            print(
                *(text.replace("\t", " ").replace('"', "''") for text in row), sep="\t", file=file
            )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write translations as tables of pairs.")
    parser.add_argument("train_table", help="TSV file of training pairs to write")
    parser.add_argument("valid_table", help="TSV file of validation pairs to write")
    files = {"nargs": 2, "metavar": ("SOURCE", "TARGET")}
    parser.add_argument(
        "--train", action="append", help="two files of lines; may be repeated", **files
    )
    parser.add_argument(
        "--valid", default=in_data_folder("multi30k/val"), help="two files of lines", **files
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the order of the training pairs"
    )
    options = parser.parse_args(arguments)

    pairs = [
        pair for files in options.train or map(in_data_folder, TRAIN) for pair in read_pairs(*files)
    ]
    random.Random(options.seed).shuffle(pairs)
    write_table(options.train_table, pairs)
    write_table(options.valid_table, valid := list(read_pairs(*options.valid)))
    print(f"{len(pairs):,} pairs in {options.train_table}, {len(valid):,} in {options.valid_table}")


if __name__ == "__main__":
    main()
