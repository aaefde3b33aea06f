from __future__ import annotations

import hashlib
import json

import pytest
from tests.file_server import serve_files

from trifold.data import catalog, download
from trifold.data.catalog import Dataset, File

CONTENT = b"one\ntwo\n"


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """An empty data folder."""
    monkeypatch.delenv("TRIFOLD_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download, "BACK_OFF", 0)
    return tmp_path / "trifold" / "data"


@pytest.fixture
def server(monkeypatch):
    """A server, and the dataset `small` of one of its files."""
    with serve_files({"/a.txt": CONTENT}) as server:
        digest = hashlib.sha256(CONTENT).hexdigest()
        file = File("small/a.txt", len(CONTENT), digest, (f"{server.url}/a.txt",), "")
        small = Dataset("small", "few words", "CC0", "https://here/", "", (file,))
        monkeypatch.setattr(catalog, "datasets", lambda: {"small": small})
        yield server


def test_datasets_are_listed_with_size_licence_source_and_place(trifold, folder):
    for name in ("train.tsv", "dev.tsv"):
        (folder / "stsb").mkdir(parents=True, exist_ok=True)
        (folder / "stsb" / name).touch()
    (folder / "xquad").mkdir()
    (folder / "xquad" / "xquad.en.json").touch()
    done = trifold("data")
    assert done.code == 0 and str(folder) in done.err and "TRIFOLD_DATA" in done.err
    rows = {
        line.split()[0]: line
        for line in done.out.splitlines()
        if line and not line.startswith((" ", "─"))
    }
    assert set(catalog.datasets()) == set(rows) - {"dataset"}
    assert "2 of 3" in rows["stsb"] and " yes " in rows["xquad"] and " no " in rows["mnist"]
    assert rows["tatoeba_ende"].split()[1:4] == ["12.1", "by", "hand"]
    assert "CC BY-SA 4.0" in rows["xquad"] and "github.com/google-deepmind/xquad" in done.out
    for row in json.loads(trifold("data", "--json").out):
        dataset = catalog.datasets()[row["name"]]
        assert (row["licence"], row["source"], row["by_hand"]) == (
            dataset.licence,
            dataset.source,
            dataset.by_hand,
        )
        assert row["size"] == sum(file.size for file in dataset.files)
        assert row["files"] == [file.path for file in dataset.files]
        assert row["present"] == {"stsb": 2, "xquad": 1}.get(row["name"], 0)
        assert row["folder"] == str(folder / row["name"])


def test_a_dataset_is_downloaded_to_where_recipes_look(trifold, folder, server):
    server.script = ["500"]
    done = trifold("data", "small")
    assert (done.code, done.out) == (0, f"small: 1 of 1 files in {folder / 'small'}\n")
    assert "small: few words; licence: CC0; source: https://here/" in done.err
    assert "a.txt: HTTP Error 500: Internal Server Error; trying again in 0 s" in done.err
    assert "small/a.txt: downloaded and verified" in done.err
    assert catalog.data_folder() == folder
    assert (folder / "small" / "a.txt").read_bytes() == CONTENT
    again = trifold("data", "small", "--json")
    assert json.loads(again.out)[0]["present"] == 1 and len(server.log) == 2


def test_a_download_that_fails_is_an_error(trifold, folder, server):
    server.script = ["wrong bytes"]
    done = trifold("data", "small")
    assert (done.code, done.out) == (1, "")
    assert "error: " in done.err and "nothing is stored" in done.err
    assert list((folder / "small").iterdir()) == []


def test_a_dataset_without_a_download_says_how_to_obtain_it(trifold, folder):
    done = trifold("data", "tatoeba_ende")
    assert (done.code, done.out) == (1, "")
    assert (
        "cannot be downloaded: download deu-eng.zip" in done.err
        and "tatoeba_ende/dev.de.gz" in done.err
    )
    for file in catalog.datasets()["tatoeba_ende"].files:
        (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / file.path).touch()
    assert (
        trifold("data", "tatoeba_ende").out
        == f"tatoeba_ende: 4 of 4 files in {folder / 'tatoeba_ende'}\n"
    )


def test_an_unknown_dataset_gets_a_suggestion_before_anything_is_downloaded(
    trifold, folder, server
):
    done = trifold("data", "small", "smal")
    assert done.code == 2 and "unknown dataset 'smal'; did you mean 'small'?" in done.err
    assert server.log == []


def test_training_without_the_data_names_the_command(trifold):
    done = trifold("train", "multi30k-en-de")
    assert done.code == 1 and "no such file; `trifold data multi30k` downloads it" in done.err
