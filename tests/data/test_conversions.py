"""Published files become the files that recipes read."""

from __future__ import annotations

import json
from pathlib import Path

from trifold.data import conversions

IOB1 = """-DOCSTART- -X- -X- O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC
British JJ I-NP B-MISC
lamb NN I-NP I-MISC

-DOCSTART- -X- -X- O

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER
Brussels NNP I-NP I-LOC
. . O O

Fischler NNP I-NP I-PER

"""
BIO = """EU NNP I-NP B-ORG
rejects VBZ I-VP O
German JJ I-NP B-MISC
British JJ I-NP B-MISC
lamb NN I-NP I-MISC

Peter NNP I-NP B-PER
Blackburn NNP I-NP I-PER
Brussels NNP I-NP B-LOC
. . O O

Fischler NNP I-NP B-PER

"""


def test_an_entity_begins_with_b_and_documents_have_no_marks() -> None:
    assert conversions.bio(IOB1.encode()).decode() == BIO
    assert conversions.bio(IOB1.replace("\n", "\r\n").encode()).decode() == BIO


def test_bio_tags_stay_as_they_are(data_folder: Path) -> None:
    for name in ("dev.txt", "test.txt"):
        content = (data_folder / "conll2003" / name).read_bytes()
        assert conversions.bio(content) == content


def test_the_pairs_of_sts_b_keep_four_columns_in_any_quoting() -> None:
    rows = 'g\tMSRvid\t2012\t0001\t5.000\tA plane, "one. \tAn air plane.\ng\tf\t2014\t0\t3\ta\tb\turl\turl'
    expected = (
        'genre\tscore\tsentence1\tsentence2\ng\t5.000\tA plane, "one.\tAn air plane.\ng\t3\ta\tb\n'
    )
    assert conversions.similarities(rows.encode()).decode() == expected


def test_summaries_keep_their_texts_unchanged() -> None:
    row = {
        "source": ["A\n", "é \u2014  "],
        "source_labels": [0],
        "paper_id": "x",
        "target": ["t "],
        "title": "T",
    }
    lines = conversions.summaries(f"{json.dumps(row)}\n{json.dumps(row)}".encode()).decode()
    assert (
        lines
        == 2 * '{"paper_id": "x", "source": ["A\\n", "é —  "], "target": ["t "], "title": "T"}\n'
    )


def test_joined_tables_have_one_header() -> None:
    assert conversions.join(b"h\na\n", b"h\nb\n", b"h\nc\n") == b"h\na\nb\nc\n"


def test_line_ends_and_ellipses_are_normalized() -> None:
    assert conversions.normalize("a\r\nb\x85\nc\r\n".encode()).decode() == "a\nb…\nc\n"
