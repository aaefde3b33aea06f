"""The catalogue describes the files that recipes read."""

from __future__ import annotations

import gzip
import hashlib
import re
import sys
from pathlib import Path

import pytest

from trifold.data import conversions, expand_path, iter_lines
from trifold.data.catalog import (
    UNKNOWN,
    data_folder as default_folder,
    datasets,
    find_dataset,
    missing_remedy,
)
from trifold.errors import DataError
from trifold.recipe import included_recipes

FILES = [file for dataset in datasets().values() for file in dataset.files]
# The authors' order of the images, where the folder of TRIFOLD_DATA has another; and a set that it
# does not have.
NOT_IN_FOLDER = ("mnist/", "squad/")


def test_every_dataset_has_facts_and_a_way_to_obtain_it() -> None:
    for name, dataset in datasets().items():
        assert dataset.name == name and dataset.description and dataset.licence and dataset.files
        assert dataset.source.startswith("https://")
        assert all(bool(file.urls) != bool(dataset.by_hand) for file in dataset.files)
    assert len({file.path for file in FILES}) == len(FILES)
    for file in FILES:
        is_known = re.fullmatch("[0-9a-f]{64}", file.sha256) and file.size > 0
        assert is_known or (file.sha256, file.size, file.urls) == (UNKNOWN, 0, ())
        assert all(url.startswith("https://") for url in file.urls)
        assert not file.conversion or callable(getattr(conversions, file.conversion))
        assert len(file.urls) < 2 or file.conversion == "join"


def test_sizes_and_digests_are_those_of_the_published_content(data_folder: Path) -> None:
    known = [file for file in FILES if file.sha256 != UNKNOWN]
    compared = [file for file in known if not file.path.startswith(NOT_IN_FOLDER)]
    assert len(compared) > 40
    for file in compared:
        content = (data_folder / file.path).read_bytes()
        content = gzip.decompress(content) if file.path.endswith(".gz") else content
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file.size, file.sha256), (
            file.path
        )


def test_images_of_digits_have_the_published_sizes(data_folder: Path) -> None:
    for file in datasets()["mnist"].files:
        with gzip.open(data_folder / file.path) as stream:
            assert len(stream.read()) == file.size


def test_every_public_file_of_a_recipe_is_in_the_catalogue() -> None:
    recipes = "\n".join(map(str, included_recipes().values()))
    named = set(re.findall(r"\$\{TRIFOLD_DATA\}/([^'\"]+)", recipes))
    assert len(named) > 20 and named <= {file.path for file in FILES}


@pytest.mark.parametrize(
    ("platform", "variables", "folder"),
    [
        ("linux", {}, "~/.cache/trifold/data"),
        ("linux", {"XDG_CACHE_HOME": "/c"}, "/c/trifold/data"),
        ("linux", {"XDG_CACHE_HOME": "/c", "TRIFOLD_DATA": "/d"}, "/d"),
        ("linux", {"TRIFOLD_DATA": "~/d"}, "~/d"),
        ("linux", {"TRIFOLD_DATA": "", "XDG_CACHE_HOME": ""}, "~/.cache/trifold/data"),
        ("darwin", {}, "~/Library/Caches/trifold/data"),
    ],
)
def test_the_data_folder_is_a_variable_or_a_cache(
    monkeypatch: pytest.MonkeyPatch, platform: str, variables: dict[str, str], folder: str
) -> None:
    for name in ("TRIFOLD_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    expected = Path(folder).expanduser()
    assert default_folder() == expand_path("${TRIFOLD_DATA}") == expected
    assert expand_path("$TRIFOLD_DATA/a") == expand_path("${TRIFOLD_DATA}/a") == expected / "a"


def test_a_missing_file_of_a_dataset_has_a_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRIFOLD_DATA", str(tmp_path))
    assert missing_remedy(tmp_path / "multi30k" / "a") == "`trifold data multi30k` downloads it"
    assert (
        missing_remedy(tmp_path / "tatoeba_ende" / "a")
        == "`trifold data tatoeba_ende` describes how to obtain it"
    )
    assert missing_remedy(tmp_path / "mine" / "a") == missing_remedy(tmp_path) == ""
    with pytest.raises(DataError, match=r"/a: no such file; `trifold data multi30k` downloads it$"):
        next(iter_lines("${TRIFOLD_DATA}/multi30k/a"))
    assert find_dataset(Path("multi30k/a")) is None
