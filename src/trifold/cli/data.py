"""`trifold data`: list the datasets that recipes use, and download them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from trifold.cli.interruption import continued_by_the_same_command
from trifold.cli.options import Json, argument
from trifold.cli.progress import byte_progress
from trifold.cli.terminal import print_json, print_note, print_table
from trifold.errors import DataError, UsageError

if TYPE_CHECKING:
    from trifold.data.catalog import Dataset

EXAMPLES = ("trifold data", "trifold data multi30k", "trifold data tinyshakespeare stsb --json")


def run(
    names: Annotated[
        list[str] | None, argument("[NAME]...", "Datasets.", show_default="list them all")
    ] = None,
    json: Json = False,
) -> None:
    """List the public datasets that recipes use, or download some.

    A download is verified and stored in the folder of the environment variable TRIFOLD_DATA, by
    default in your cache folder; recipes look there. An interrupted download continues when the
    command is repeated. A licence is that of the authors, who may restrict the use of the data.
    """
    from trifold.data.catalog import VARIABLE, data_folder, datasets
    from trifold.settings import nearest

    known = datasets()
    if unknown := next((name for name in names or [] if name not in known), None):
        near = nearest(unknown, list(known))
        raise UsageError(f"unknown dataset {unknown!r}{near}\n  list them with: trifold data")
    for name in names or []:
        _obtain(known[name])
    facts = [_describe(known[name]) for name in names or known]
    if json:
        print_json(facts)
    elif names:
        for fact in facts:
            print(
                f"{fact['name']}: {fact['present']} of {len(fact['files'])} files in "
                f"{fact['folder']}"
            )
    else:
        print_table([("dataset", "MB", "here", "licence and source"), *map(_row, facts)], "lr")
        print_note(
            f"here: in {data_folder()}; the environment variable {VARIABLE} selects another folder"
        )
        print_note("`trifold data NAME` downloads a dataset, or describes how to obtain it")


def _obtain(dataset: Dataset) -> None:
    from trifold.data.download import download

    about = f"licence: {dataset.licence}; source: {dataset.source}"
    print_note(f"{dataset.name}: {dataset.description}; {about}")
    if dataset.by_hand and len(dataset.present()) < len(dataset.files):
        files = ", ".join(file.path for file in dataset.files)
        raise DataError(
            f"{dataset.name} cannot be downloaded: {dataset.by_hand}. Its files: {files}"
        )
    with continued_by_the_same_command():
        download(dataset, print_note, byte_progress)


def _describe(dataset: Dataset) -> dict[str, Any]:
    from trifold.data.catalog import data_folder

    size = sum(file.size for file in dataset.files)
    present = len(dataset.present())
    files = [file.path for file in dataset.files]
    folder = str(data_folder() / dataset.name)
    return dataset._asdict() | {"size": size, "folder": folder, "files": files, "present": present}


def _row(facts: dict[str, Any]) -> tuple[str, ...]:
    source = facts["source"].removeprefix("https://")
    size = f"{facts['size'] / 1e6:.1f}" if facts["size"] else "–"
    return facts["name"], size, _presence(facts), f"{facts['licence']}\n{source}"


def _presence(facts: dict[str, Any]) -> str:
    """How much of a dataset is here."""
    present = facts["present"]
    total = len(facts["files"])
    if present == total:
        return "yes"
    if present:
        return f"{present} of {total}"
    return "by hand" if facts["by_hand"] else "no"
