"""Conversions of published files to the form in which recipes read them: bytes in, bytes out.

Content of another form than the published one raises ValueError, LookupError or TypeError.
"""

import json


def join(first: bytes, *others: bytes) -> bytes:
    """One table from several with the same header."""
    return b"".join([first, *(other.partition(b"\n")[2] for other in others)])


def normalize(content: bytes) -> bytes:
    r"""Lines that end in `\n`, and ellipses for U+0085, which is the byte of an ellipsis in
    Windows-1252.
    """
    return content.replace(b"\r\n", b"\n").replace("\x85".encode(), "…".encode())


def bio(content: bytes) -> bytes:
    """CoNLL-2003 with BIO instead of IOB1 tags in the last column, and without -DOCSTART- lines.

    In IOB1 an entity begins with B- only if it follows another one of its type.
    """
    lines = []
    for sentence in normalize(content).decode().strip("\n").split("\n\n"):
        if sentence.startswith("-DOCSTART-"):
            continue
        before = "O"
        for line in [*sentence.split("\n"), ""]:
            columns, space, tag = line.rpartition(" ")
            begins = tag.startswith("I-") and before[2:] != tag[2:]
            in_bio = f"B{tag[1:]}" if begins else tag
            lines.append(f"{columns}{space}{in_bio}\n")
            before = tag
    return "".join(lines).encode()


def similarities(content: bytes) -> bytes:
    """STS-B with a header, and without the columns that name the origin of a pair."""
    lines = [line.split("\t") for line in content.decode().rstrip("\n").split("\n")]
    rows = [[columns[each].strip() for each in (0, 4, 5, 6)] for columns in lines]
    rows.insert(0, ["genre", "score", "sentence1", "sentence2"])
    return "".join("\t".join(row) + "\n" for row in rows).encode()


def summaries(content: bytes) -> bytes:
    """SciTLDR without the labels and scores of its sentences."""
    rows = [json.loads(line) for line in content.splitlines()]
    kept = [{key: row[key] for key in ("paper_id", "source", "target", "title")} for row in rows]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept).encode()
