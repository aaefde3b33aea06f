"""Make questions from plain text: the data of the first stages of the recipe `squad-subset`.

    TRIFOLD_DATA=… python examples/cloze_questions.py cloze.json cloze-valid.json python
    examples/cloze_questions.py cloze.json cloze-valid.json articles.txt more.json.gz --count 20000

A word or a name of a sentence is the answer. The question is the sentence with a question word in
its place and without some of the other words, so that the answer is found by comparing question and
context (in the manner of Lewis et al. 2019, without their translation). The output has the format
of SQuAD.

A text is a file in the JSON of SQuAD, of which the contexts are read, JSONL with a list of
sentences named `source`, or plain text with one sentence per line, of which five are a context. The
default is the training data of squad_subset, scitldr_a and English newstest_ende (`trifold data`).
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from trifold.data import expand_path

DEFAULT = [
    "squad_subset/train.json.gz",
    *(f"newstest_ende/newstest{year}.en.gz" for year in range(2008, 2014)),
    "scitldr_a/train.jsonl.gz",
]
WORD = re.compile(r"\w[\w'-]*")
SENTENCE_END = re.compile(r"[.!?] ")
FUNCTION_WORDS = frozenset(
    "the a an of in on at to for and or but by with from as is are was were be been it its this "
    "that these those he she they his her their which who whom what when where there has have "
    "had not no do does did".split()
)
ASK_NUMBER = ["when", "how many", "what"]
ASK_NAME = ["who", "what", "where", "which"]
ASK_OTHER = ["what", "what", "how", "why", "which"]
LINES = 5  # of plain text that are a context
LONGEST, LONGEST_PART = (
    1000,
    900,
)  # characters of a context, and of the part that is read of a longer one


def read_contexts(path: str | Path) -> list[str]:
    """The contexts of a file, which may be compressed by gzip."""
    content = expand_path(path).read_bytes()
    text = (gzip.decompress(content) if str(path).endswith(".gz") else content).decode("utf-8")
    if ".jsonl" in Path(path).suffixes:
        text = "\n".join(
            line.replace("\n", " ")
            for row in text.splitlines()
            for line in json.loads(row)["source"]
        )
    elif ".json" in Path(path).suffixes:
        return [
            paragraph["context"]
            for article in json.loads(text)["data"]
            for paragraph in article["paragraphs"]
        ]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return [" ".join(lines[first : first + LINES]) for first in range(0, len(lines), LINES)]


def draw_part(context: str, rng: random.Random) -> str:
    """A context that is not too long, or a part of it that begins with a word."""
    if len(context) <= LONGEST:
        return context
    start = rng.randrange(len(context) - LONGEST + 200)
    return context[context.find(" ", start) + 1 :][:LONGEST_PART]


def draw_words(context: str, rng: random.Random) -> list[re.Match[str]]:
    """The words of one sentence; none if no sentence has more than 30 characters."""
    ends = [0, *(found.end() for found in SENTENCE_END.finditer(context)), len(context)]
    spans = [(start, end) for start, end in pairwise(ends) if end - start > 30]
    return list(WORD.finditer(context, *rng.choice(spans))) if spans else []


def draw_question(context: str, rng: random.Random) -> tuple[str, str, int] | None:
    """A question, its answer and the position of the answer in the context, or None if the draw is
    not usable.
    """
    words = draw_words(context, rng)
    if len(words) < 6:
        return None
    texts = [word[0] for word in words]
    # Names and numbers; the first word of a sentence is capitalized in any case.
    names = [n for n, text in enumerate(texts) if n and (text[0].isupper() or text[0].isdigit())]
    first = rng.choice(names) if names and rng.random() < 0.6 else rng.randrange(len(words))
    if texts[first].lower() in FUNCTION_WORDS:
        return None
    last = first
    if first in names:
        while last + 1 in names and last - first < 4:
            last += 1
    else:
        last = min(first + rng.choice([1, 1, 2, 2, 3, 4]), len(words)) - 1
        while texts[last].lower() in FUNCTION_WORDS:
            last -= 1
    start = words[first].start()
    answer = context[start : words[last].end()]
    asks = ASK_OTHER if first not in names else ASK_NUMBER if answer[0].isdigit() else ASK_NAME
    kept = rng.uniform(0.4, 1.0)
    before = [text for text in texts[:first] if rng.random() < kept][-12:]
    after = [text for text in texts[last + 1 :] if rng.random() < kept][:12]
    ask = rng.choice(asks)
    if rng.random() < 0.5:
        asked = [ask, *before, *after] if rng.random() < 0.5 else [ask, *after, *before]
    else:
        asked = [*before, ask, *after]
    return (f"{' '.join(asked)} ?", answer, start) if len(asked) >= 4 else None


def make_rows(contexts: Sequence[str], rng: random.Random) -> Iterator[dict[str, Any]]:
    """Paragraphs in the format of SQuAD, each with one question, without end."""
    number = 0
    while True:
        context = draw_part(rng.choice(contexts), rng)
        if (drawn := draw_question(context, rng)) is not None:
            question, answer, start = drawn
            answers = [{"text": answer, "answer_start": start}]
            yield {
                "context": context,
                "qas": [{"id": str(number), "question": question, "answers": answers}],
            }
            number += 1


def write_squad(path: str | Path, paragraphs: list[dict[str, Any]]) -> None:
    content = {"version": "1.1", "data": [{"title": "", "paragraphs": paragraphs}]}
    Path(path).write_text(json.dumps(content), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Make questions from plain text, in the format of SQuAD."
    )
    parser.add_argument("train", help="JSON file of training questions to write")
    parser.add_argument("valid", help="JSON file of validation questions to write")
    parser.add_argument(
        "texts", nargs="*", help="SQuAD files, JSONL with a list `source`, or lines of text"
    )
    parser.add_argument("--count", type=int, default=60_000, help="number of questions")
    parser.add_argument(
        "--holdout", type=int, default=500, help="how many of them are for validation"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws")
    options = parser.parse_args(arguments)

    texts = options.texts or [f"${{TRIFOLD_DATA}}/{name}" for name in DEFAULT]
    rows = make_rows(
        [context for text in texts for context in read_contexts(text)], random.Random(options.seed)
    )
    train, valid = (
        [next(rows) for _ in range(n)] for n in (options.count - options.holdout, options.holdout)
    )
    write_squad(options.train, train)
    write_squad(options.valid, valid)
    print(f"{len(train):,} questions in {options.train}, {len(valid):,} in {options.valid}")


if __name__ == "__main__":
    main()
