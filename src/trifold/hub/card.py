"""Model cards: the README.md of a model folder, in Markdown, with metadata in YAML in front that
hubs read.

A card is a function of its values: it holds no date and no path of this machine, so that a resumed
run writes the same bytes as an uninterrupted one.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from trifold import yaml_dialect
from trifold.errors import CheckpointError, escape, plural
from trifold.folders import AnyPath, UntrustedPath, named, read_text
from trifold.hub.families import NATIVE
from trifold.hub.files import replacing
from trifold.hub.names import CARD, CONFIG, hub_id
from trifold.installation import DISTRIBUTION
from trifold.jsonfiles import read_json
from trifold.settings import warn

MAX_CARD = 2**20  # bytes of a card that is read
MAX_METADATA = 2**14  # characters of its metadata
MOST_FILES = 50  # that a card lists
ADAPTED = "peft"  # the library of adapters
# Identifiers of licences in metadata, such as apache-2.0 and cc-by-sa-4.0.
_LICENCE = re.compile(r"[\w.+-]{1,60}", re.ASCII)
_METADATA = re.compile(r"---\r?\n(.*?)\r?\n---\r?(?:\n|\Z)", re.DOTALL)

FROM_TRANSFORMERS = """\
from transformers import {reader}, {architecture}

reader = {reader}.from_pretrained("MODEL")
model = {architecture}.from_pretrained("MODEL")
{program}
"""
# What the program does with `reader` and `model`, by the name of the task on hubs.
PRINT_OUTPUT = """\
inputs = reader("your text", return_tensors="pt")
print(model(**inputs)[0])"""
PRINT_TEXT = """\
inputs = reader("your text", return_tensors="pt")
print(reader.decode(model.generate(**inputs)[0], skip_special_tokens=True))"""
PROGRAMS = dict.fromkeys(
    ("text-generation", "text2text-generation", "translation", "summarization"), PRINT_TEXT
) | {
    "question-answering": """\
inputs = reader("a question", "a text that contains the answer", return_tensors="pt")
print(model(**inputs))""",
    "multiple-choice": """\
pairs = [("your text", "one"), ("your text", "another")]
inputs = reader(pairs, padding=True, return_tensors="pt")
print(model(**{name: values[None] for name, values in inputs.items()})[0])""",
    "image-classification": """\
inputs = reader(Image.open("image.png"), return_tensors="pt")
print(model(**inputs)[0])""",
}
FROM_SENTENCE_TRANSFORMERS = """\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("MODEL")
print(model.encode(["your text", "another text"]))
"""
FROM_PEFT = """\
from peft import PeftModel
from transformers import {architecture}

base = {architecture}.from_pretrained("BASE")
model = PeftModel.from_pretrained(base, "MODEL")
"""


class Base(NamedTuple):
    """A model that another one was made from: its hub id or the name of its folder, its commit on
    the hub, and the identifier of its licence.
    """

    name: str
    revision: str | None
    licence: str | None


class Origin(NamedTuple):
    """The model that another one is converted from or saved as: the text of its card, if it has
    one, and the model as a base.
    """

    card: str | None
    base: Base


class CardFile(NamedTuple):
    """A data file: its key in the recipe, its name without folders, bytes, and SHA-256
    (hexadecimal).
    """

    key: str
    name: str
    size: int
    sha256: str


class CardScore(NamedTuple):
    """A score as text: its value, and its 95 % interval or ""."""

    name: str
    value: str
    interval: str


@dataclass(frozen=True)
class ModelCard:
    """What a card says.

    family: the model type. architecture: the class of `transformers`, or "" without one.
    pipeline_tag: the name of the task on hubs. input: what the model reads, such as a prompt.
    command: arguments of `trifold` for MODEL.
    is_readable: whether `transformers` reads the tokenizer. measured: what the scores were computed
    on. signatures: how they are computed. versions: of libraries, by name.
    """

    family: str
    architecture: str = ""
    parameters: int | None = None
    pipeline_tag: str = ""
    input: str = "your text"
    command: str = ""
    base: Base | None = None
    data: Sequence[CardFile] = ()
    scores: Sequence[CardScore] = ()
    signatures: Sequence[str] = ()
    measured: str = ""
    recipe: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    is_adapter: bool = False
    is_image_model: bool = False
    is_readable: bool = True
    makes_embeddings: bool = False

    def render(self) -> str:
        """The text of the card."""
        sections = [
            f"---\n{yaml_dialect.dump(self._metadata())}---\n",
            f"# {self._title()}\n\n{self._summary()}\n",
            f"## Use\n\n`MODEL` is the path of this folder or its id on a hub.\n\n{self._uses()}",
        ]
        if self.scores:
            sections.append(f"## Scores\n\n{self._score_table()}")
        if self.data:
            sections.append(f"## Data\n\n{self._data_table()}")
        sections.append(f"## Licence\n\n{self._licence()}\n")
        if self.recipe:
            sections.append(f"## Recipe\n\n{fenced(self.recipe, 'yaml')}")
        if self.versions:
            listed = "\n".join(f"- {name} {version}" for name, version in self.versions.items())
            sections.append(f"## Versions\n\n{listed}\n")
        return "\n".join(sections)

    def _metadata(self) -> dict[str, Any]:
        values: dict[str, Any] = {"library_name": self._library()}
        if self.pipeline_tag:
            values["pipeline_tag"] = self.pipeline_tag
        if self.base is not None:
            if self.base.revision is not None:  # the name is an id of the hub
                values["base_model"] = self.base.name
            if self.base.licence is not None:
                values["license"] = self.base.licence
        return values | {"tags": list(dict.fromkeys(("trifold", self.family)))}

    def _library(self) -> str:
        """The library that hubs name beside the model."""
        if self.is_adapter:
            return ADAPTED
        if self.makes_embeddings:
            return "sentence-transformers"
        if self.family == NATIVE:
            return NATIVE
        return "transformers"

    def _title(self) -> str:
        kind = "Adapter" if self.is_adapter else "Model"
        task = f" for {self.pipeline_tag.replace('-', ' ')}" if self.pipeline_tag else ""
        return f"{kind}{task}"

    def _summary(self) -> str:
        """Family, size and base in one paragraph."""
        size = "" if self.parameters is None else f", {plural(self.parameters, 'parameter')}"
        lines = [f"Model type `{self.family}`{size}."]
        if self.base is not None:
            revision = "" if self.base.revision is None else f", commit `{self.base.revision}`"
            lines.append(f"It was made from {code(self.base.name)}{revision}.")
        return "\n".join(lines)

    def _uses(self) -> str:
        parts = []
        if not self.is_adapter:
            parts.append(f"With trifold (distribution `{DISTRIBUTION}`):\n")
            parts.append(fenced(f"trifold {self.command or 'show MODEL'}", "sh"))
            parts.append(fenced('import trifold\n\nmodel = trifold.load("MODEL")', "python"))
        else:
            text = FROM_PEFT.format(architecture=self.architecture)
            parts.append(f"`BASE` is the base model.\n\n{fenced(text, 'python')}")
        if self.makes_embeddings:
            parts.append(fenced(FROM_SENTENCE_TRANSFORMERS, "python"))
        elif self.architecture and not self.is_adapter and self.is_readable:
            parts.append(fenced(self._from_transformers(), "python"))
        elif self.family == NATIVE:
            parts.append("`transformers` has no class for this model.\n")
        return "\n".join(parts)

    def _from_transformers(self) -> str:
        program = FROM_TRANSFORMERS.format(
            architecture=self.architecture,
            reader="AutoImageProcessor" if self.is_image_model else "AutoTokenizer",
            program=PROGRAMS.get(self.pipeline_tag, PRINT_OUTPUT).replace(
                '"your text"', json.dumps(self.input, ensure_ascii=False)
            ),
        )
        if self.is_image_model:
            return f"from PIL import Image\n{program}"
        return program

    def _score_table(self) -> str:
        """The scores as a table, and what they were computed on."""
        text = f"{self.measured}\n\n{table([('score', 'value', '95 % interval'), *self.scores])}"
        if not self.signatures:
            return text
        signatures = fenced("\n".join(self.signatures), "text")
        return f"{text}\nHow they are computed:\n\n{signatures}"

    def _data_table(self) -> str:
        """The data files with their digests; names of folders are left out."""
        rows = [("part", "file", "bytes", "SHA-256")]
        rows += [
            (code(file.key), code(file.name), f"{file.size:,}", code(file.sha256))
            for file in self.data[:MOST_FILES]
        ]
        rest = len(self.data) - MOST_FILES
        if rest <= 0:
            return table(rows)
        return f"{table(rows)}\n{plural(rest, 'more file')}.\n"

    def _licence(self) -> str:
        if self.base is None:
            return "None is stated. Add one to the metadata above before you publish the model."
        if self.base.licence is None:
            return (
                f"The licence of the base, {code(self.base.name)}, is not known here. Look it up, "
                "and state that of this model in the metadata above."
            )
        return f"The base, {code(self.base.name)}, has the licence `{self.base.licence}`."


def write_card(folder: Path, card: ModelCard) -> None:
    """Write README.md atomically. Raises CheckpointError."""
    _write_text(folder, card.render())


def _write_text(folder: Path, text: str) -> None:
    with replacing(folder / CARD) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def read_origin(name: str, folder: UntrustedPath) -> Origin:
    """The origin in `folder`, which the user calls `name`."""
    return Origin(read_card(folder), describe_base(name, folder))


def write_derived_card(folder: Path, origin: Origin | None) -> None:
    """Write the card of a converted or saved model: that of its origin, or a new one from the
    config in `folder`. Raises CheckpointError.
    """
    if origin is not None and origin.card is not None:
        _write_text(folder, origin.card)
        return
    base = None if origin is None else origin.base
    config = read_json(named(folder) / CONFIG)
    write_card(folder, ModelCard(**describe_model(folder, config), base=base))


def describe_model(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """What a card says of the files in a folder. config: the content of its config.json."""
    family = str(config["model_type"])
    architecture = ""
    if family != NATIVE:
        architecture = str(config["architectures"][0])
    return {
        "family": family,
        "architecture": architecture,
        "is_readable": not (folder / "target_tokenizer.json").is_file(),
        "makes_embeddings": (folder / "modules.json").is_file(),
    }


def read_card(folder: AnyPath) -> str | None:
    """The text of the card in a folder; None if it has none, or one that cannot be read, of which
    it warns.
    """
    try:
        return read_text(named(folder) / CARD, MAX_CARD)
    except CheckpointError as error:
        if os.path.lexists(str(named(folder) / CARD)):
            _warn_once(f"{error}; the card is not used, and the licence counts as unknown")
        return None


@lru_cache(maxsize=256)
def _warn_once(line: str) -> None:
    warn(line)


def describe_base(name: str, folder: AnyPath) -> Base:
    """The base in `folder`, which the user calls `name`: a hub id or a path, of which only the last
    part is kept.
    """
    repository, revision = hub_id(named(folder)) or (Path(name).expanduser().absolute().name, None)
    return Base(escape(repository), revision, licence_of(folder))


def licence_of(folder: AnyPath) -> str | None:
    """The identifier of the licence in the metadata of a card; None if there is none."""
    found = _METADATA.match(read_card(folder) or "")
    if found is None or len(found[1]) > MAX_METADATA:
        return None
    try:
        values = yaml_dialect.load(found[1])
    except (yaml_dialect.YAMLError, RecursionError):
        return None
    licence = values.get("license") if isinstance(values, dict) else None
    if not isinstance(licence, str) or not _LICENCE.fullmatch(licence):
        return None
    return licence


# --- Markdown -------------------------------------------------------------------------------------


def code(text: str) -> str:
    """The text as code in a line or a cell; "" stays empty."""
    if not text:
        return ""
    plain = escape(text).replace("`", "'").replace("\n", " ").replace("|", "\\|")
    return f"`{plain}`"


def fenced(text: str, language: str) -> str:
    """A block of code, within a fence that the text does not contain."""
    longest = max((len(found) for found in re.findall("`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text.strip()}\n{fence}\n"


def table(rows: Iterable[Sequence[str]]) -> str:
    """A table; the first row is its head."""
    return "".join(_table_lines([*rows]))


def _table_lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for number, row in enumerate(rows):
        yield f"| {' | '.join(row)} |\n"
        if not number:
            yield f"|{' --- |' * len(row)}\n"
