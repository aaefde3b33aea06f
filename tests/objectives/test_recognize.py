"""A file or folder of data is recognized, and the recipe that is named reads it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tests.train.runs import RecordingView

from trifold.objectives.recognize import guess_recipe
from trifold.recipe import load_recipe
from trifold.train.data import load_data

WORDS = "warm dull film music story a the quiet loud funny".split()
RNG = random.Random(1)
TEXTS = [" ".join(RNG.choices(WORDS, k=6)) + f" {number}" for number in range(40)]
LABELS = ["good", "bad"] * 20
QUESTION = {"question": "who ran home", "context": "Ada ran home"}
ANSWER = {"text": ["Ada"], "answer_start": [0]}
SENTENCE = "Ada B-PER\nran O\n.\tO\n\n".replace("\t", " ")
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63606060"
    "000000040001f61738550000000049454e44ae426082"
)


def table(header: str, *columns: list[str], sign: str = ",") -> str:
    """The content of a CSV file."""
    rows = zip(*columns, strict=True)
    return "\n".join([*filter(None, [header]), *map(sign.join, rows)]) + "\n"


def objects(*rows: object) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


CODES = [f"code of {number}" for number in range(40)]
SCORES = [str(number % 12 / 2) for number in range(40)]
NUMBERS = [str(number / 10) for number in range(40)]
# Files, their name that is given, and the arguments that read it after the one of data.train.
FILES: dict[str, tuple[dict[str, str | bytes], str]] = {
    "text and label": ({"a.csv": table("text,label", TEXTS, LABELS)}, "classify"),
    "other names": (
        {"a.tsv": table("comment\tverdict", TEXTS, LABELS, sign="\t")},
        'classify data.header=true data.columns.text=comment data.columns.label=verdict',
    ),
    "names with signs": (
        {"a.csv": table("id,#body,my label", NUMBERS, TEXTS, LABELS)},
        'classify data.columns.text="#body" data.columns.label=my label',
    ),
    "no header, label first": (
        {"a.csv": table("", LABELS, TEXTS)},
        "classify data.columns.text=1 data.columns.label=0",
    ),
    "two texts and a label": (
        {"a.csv": table("premise,hypothesis,label", TEXTS, TEXTS[::-1], LABELS)},
        "classify",
    ),
    "two texts and a score": (
        {"a.csv": table("sentence1,sentence2,score", TEXTS, TEXTS[::-1], NUMBERS)},
        "similarity",
    ),
    "two texts and a score, other names": (
        {"a.csv": table("this,that,closeness", TEXTS, TEXTS[::-1], SCORES)},
        "similarity data.header=true data.columns.text=this data.columns.pair=that "
        "data.columns.label=closeness",
    ),
    "short and long texts and a label": (
        {"a.csv": table("code,brief,whole,verdict", CODES, CODES, TEXTS, LABELS)},
        "classify data.header=true data.columns.text=whole data.columns.label=verdict",
    ),
    "an anchor": ({"a.jsonl": objects({"anchor": "a b", "positive": "b a"})}, "similarity"),
    "two languages": ({"a.csv": table("en,de", TEXTS, TEXTS[::-1])}, "translate"),
    "no header, two texts": ({"a.tsv": table("", TEXTS, TEXTS[::-1], sign="\t")}, "translate"),
    "a prompt and an id": (
        {"a.csv": table("id,prompt,completion", NUMBERS, TEXTS, TEXTS[::-1])},
        "translate data.source=prompt data.target=completion",
    ),
    "objects of two languages": (
        {"a.jsonl": objects({"translation": {"en": "a b", "de": "c d"}})},
        "translate data.source=translation.en data.target=translation.de",
    ),
    "a table with the suffix of text": (
        {"a.txt": table("", TEXTS, TEXTS[::-1], sign="\t")},
        "translate data.format=tsv",
    ),
    "two aligned files": (
        {"a.en": "\n".join(TEXTS), "a.de": "\n".join(TEXTS)},
        "translate",
    ),
    "lines": ({"a.txt": "\n".join(TEXTS)}, "causal"),
    "paragraphs": ({"a.txt": "one\ntwo\n\nthree\n"}, "causal data.documents=blank"),
    "a folder of text": ({"texts/a.txt": "one two\n", "texts/b.txt": "three\n"}, "causal"),
    "texts in objects": ({"a.jsonl": objects({"body": "a b c"})}, "causal data.field=body"),
    "CoNLL": ({"a.txt": SENTENCE * 9}, "tag"),
    "CoNLL by suffix": ({"a.conll": SENTENCE * 9}, "tag"),
    "lists of words": ({"a.jsonl": objects({"tokens": ["a"], "ner_tags": ["O"]})}, "tag"),
    "questions": ({"a.jsonl": objects({**QUESTION, "answers": ANSWER})}, "answer"),
    "choices": (
        {"a.jsonl": objects({"question": "a b", "choices": ["x", "y"], "label": 0})},
        "choose",
    ),
    "summaries": ({"a.jsonl": objects({"article": "a b c", "summary": "a"})}, "summarize"),
    "lists of sentences": ({"a.jsonl": objects({"source": ["a", "b"], "target": ["a"]})}, "summarize"),
    "images": ({"x/cat/1.png": PNG, "x/dog/1.png": PNG}, "images"),
    "splits": (
        {f"x/{split}.csv": table("text,label", TEXTS, LABELS) for split in ("train", "dev")},
        "classify data.valid=x/dev.csv",
    ),
}  # fmt: skip


def write_files(folder: Path, files: dict[str, str | bytes]) -> str:
    """Write the files, and return the name of the first one, or of its folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    first = next(iter(files))
    return first.split("/")[0]


# Few rows of columns with unknown names, and those of text and label. Signs in quotes separate
# nothing.
FOREIGN = {
    "semicolons": ('id;Rezension;Stimmung\n1;"gut ; sehr gut";gut\n2;mies;schlecht\n', "Rezension Stimmung"),
    "a byte order mark": ('\ufeffid;Rezension;Stimmung\n1;"gut ; sehr gut";gut\n2;mies;schlecht\n', "Rezension Stimmung"),
    "line ends of Windows": ('id;Rezension;Stimmung\r\n1;"gut ; sehr";gut\r\n2;mies;schlecht\r\n', "Rezension Stimmung"),
    "tabs": ('id\tRezension\tStimmung\n1\t"gut ; sehr gut"\tgut\n2\tmies\tschlecht\n', "Rezension Stimmung"),
    "decimal commas": (
        'Nr;Preis;Kommentar;Urteil\n1;3,5;"teuer; aber gut, sehr";gut\n2;2,99;billig und schlecht;schlecht\n'
        "3;1,50;nicht gut;schlecht\n",
        "Kommentar Urteil",
    ),
    "names in quotes": ('"id";"Rezension";"Stimmung"\n"1";"gut ; ""so"" gut";"gut"\n"2";"mies";"schlecht"\n', "Rezension Stimmung"),
    "bars": ("nr|opinión|sentimiento\n1|\"bueno| muy bueno\"|sí\n2|malo, de verdad|no\n3|algo malo|no\n", "opinión sentimiento"),
    "Japanese": ('番号;感想;評価\n1;"良い ; とても 良い";良\n2;悪い;悪\n3;ひどい 話 です;悪\n', "感想 評価"),
    "a line end in quotes": ('id;Rezension;Stimmung\n1;"gut ;\n sehr gut";gut\n2;mies;schlecht\n', "Rezension Stimmung"),
}  # fmt: skip


@pytest.mark.parametrize("case", FOREIGN)
def test_few_rows_of_unknown_names_are_recognized(tmp_path, monkeypatch, case):
    content, columns = FOREIGN[case]
    text, label = columns.split()
    monkeypatch.chdir(tmp_path)
    guess = guess_recipe([write_files(tmp_path, {"a.csv": content.encode()})])
    assert guess is not None
    assert guess.recipe == "classify"
    assert guess.settings[-2:] == (f"data.columns.text={text}", f"data.columns.label={label}")


@pytest.mark.parametrize("case", FILES)
def test_data_is_recognized(tmp_path, monkeypatch, case):
    files, expected = FILES[case]
    monkeypatch.chdir(tmp_path)
    guess = guess_recipe([write_files(tmp_path, files)])
    assert guess is not None
    recipe, _, *settings = guess.arguments()
    assert " ".join([recipe, *settings]) == expected


@pytest.mark.parametrize("case", ["other names", "names with signs", "no header, label first",
                                  "a prompt and an id", "a table with the suffix of text",
                                  "two aligned files", "paragraphs", "splits"])  # fmt: skip
def test_the_recipe_reads_the_data(tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    guess = guess_recipe([write_files(tmp_path, FILES[case][0])])
    assert guess is not None
    name, *settings = guess.arguments()
    holdout = [] if case == "splits" else ["data.holdout=1"]
    recipe = load_recipe(name, [*settings, *holdout, "model.d_model=8"])
    data = load_data(recipe, tmp_path / "tokenizer", RecordingView())
    assert len(data.train.lengths) > 0


@pytest.mark.parametrize(
    "files",
    [
        {"a.csv": "1\n2\n3\n"},
        {"a.jsonl": '{"a": 1}\n'},
        {"x/a.bin": b"\0"},
        {"a.csv": table("", NUMBERS, NUMBERS)},
    ],
)
def test_other_data_is_no_recipe(tmp_path, monkeypatch, files):
    monkeypatch.chdir(tmp_path)
    assert guess_recipe([write_files(tmp_path, files)]) is None
