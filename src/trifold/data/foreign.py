"""Formats of other programs, which are not read: what each is, and how to get text or rows from it.

A file is one of them if it is no text, and its suffix or its first bytes are those of the format.
"""

from pathlib import PurePath
from typing import NamedTuple

from trifold.errors import DataError


class ForeignFormat(NamedTuple):
    """A format that is not read: the suffixes of its files, what one is, and the remedy."""

    suffixes: str
    what: str
    remedy: str


_SAVE = "save it as CSV in UTF-8"  # Excel workbooks are read as tables, and not as texts
FOREIGN_FORMATS = (
    ForeignFormat(
        ".xlsx .xlsm .xls .xlsb .xlt .ods .fods .numbers .gsheet",
        "a spreadsheet",
        f"{_SAVE} in the program that made it",
    ),
    ForeignFormat(
        ".docx .docm .doc .odt .rtf .pages .wpd",
        "a document of a word processor",
        "save it as plain text in UTF-8",
    ),
    ForeignFormat(
        ".pptx .ppt .odp .key", "a presentation", "export its text as plain text in UTF-8"
    ),
    ForeignFormat(
        ".pdf",
        "a PDF document",
        "extract its text, as with `pdftotext FILE.pdf`",
    ),
    ForeignFormat(
        ".epub .mobi .azw .azw3", "an electronic book", "convert it to plain text in UTF-8"
    ),
    ForeignFormat(
        ".pkl .pickle .joblib .dill",
        "a pickle, which can run code,",
        'write its rows as CSV: `pandas.read_pickle(FILE).to_csv("rows.csv", index=False)`, or '
        "pass them from Python: trifold.train(RECIPE, data=rows)",
    ),
    ForeignFormat(
        ".rdata .rda .rds",
        "a file of R",
        'write it as CSV in R: `write.csv(x, "rows.csv", row.names = FALSE)`',
    ),
    ForeignFormat(
        ".sav .zsav .por .dta .sas7bdat .xpt .mat .omv",
        "a file of a statistics program",
        f"{_SAVE} in that program",
    ),
    ForeignFormat(
        ".sqlite .sqlite3 .db .db3 .mdb .accdb .duckdb",
        "a database",
        "export a table as CSV, as with `sqlite3 -csv -header FILE 'SELECT * FROM NAME'`",
    ),
    ForeignFormat(
        ".feather .arrow .ipc .orc .avro",
        "a table of columns",
        'write it as Parquet: `pandas.read_feather(FILE).to_parquet("rows.parquet")`',
    ),
    ForeignFormat(
        ".parquet", "a Parquet file", "end its name with .parquet, or set data.format=parquet"
    ),
    ForeignFormat(
        ".npy .npz .h5 .hdf5 .hdf .nc .zarr",
        "a file of arrays",
        "write its texts as CSV or JSON lines",
    ),
    ForeignFormat(
        ".pt .pth .bin .safetensors .gguf .ckpt .onnx",
        "a file of weights",
        "name a text or a table as data, and a model with start_from",
    ),
    ForeignFormat(
        ".7z .rar .tar .tgz .bz2 .tbz .xz .txz .lz4 .lzma .br",
        "an archive or a compressed file",
        "unpack it (.zip, .gz and .zst are read as they are)",
    ),
    ForeignFormat(
        ".png .jpg .jpeg .gif .webp .bmp .tif .tiff .heic",
        "a picture",
        "name a folder of pictures with `trifold train images`, or write its text into a file",
    ),
    ForeignFormat(
        ".mp3 .wav .flac .ogg .m4a .mp4 .mkv .avi .mov .webm",
        "a recording",
        "name its transcript: sound and films are not read",
    ),
)
FORMAT_OF = {suffix: one for one in FOREIGN_FORMATS for suffix in one.suffixes.split()}
# First bytes -> suffix.
_MAGIC = {
    b"PAR1": ".parquet",
    b"%PDF-": ".pdf",
    b"{\\rtf": ".rtf",
    b"SQLite format 3": ".sqlite",
    b"RDX": ".rda",
    b"ARROW1": ".arrow",
    b"ORC": ".orc",
    b"Obj\1": ".avro",
    b"\x93NUMPY": ".npy",
    b"\x89HDF": ".h5",
    b"GGUF": ".gguf",
    b"$FL2@(#)": ".sav",
    b"<stata_dta>": ".dta",
    b"7z\xbc\xaf": ".7z",
    b"Rar!\x1a": ".rar",
    b"BZh": ".bz2",
    b"\xfd7zXZ": ".xz",
    b"\x89PNG": ".png",
    b"\xff\xd8\xff": ".jpg",
    b"GIF8": ".gif",
}
_FIRST_TEXTS = (b"PAR1\x15", b"%PDF-", b"{\\rtf", b"RDX2\n", b"RDX3\n", b"$FL2@(#)", b"<stata_dta>")


def foreign_error(name: str, first: bytes) -> DataError | None:
    """The error for a file of another program, if it is one. first: its first line, decompressed;
    that of some formats is a text.
    """
    if _is_text(first) and not first.startswith(_FIRST_TEXTS):
        return None
    path = PurePath(name.lower())
    suffixes = [path.suffix, PurePath(path.stem).suffix]  # of a.tar.gz
    suffixes += [suffix for magic, suffix in _MAGIC.items() if first.startswith(magic)]
    found = next((FORMAT_OF[suffix] for suffix in suffixes if suffix in FORMAT_OF), None)
    if found is None:
        return None
    return DataError(f"{name}: is {found.what} and no text; {found.remedy}")


def _is_text(line: bytes) -> bool:
    """Whether a line is UTF-8 without NUL bytes."""
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return b"\0" not in line
