"""Published models, which `make real` installs, and the folder of public datasets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def installed(name: str) -> Path:
    """The folder of a published model. Skips the test if it is not there."""
    folder = ROOT / ".venv" / "real" / name
    if not folder.exists():
        pytest.skip(f"{name} is not installed; `make real` installs it")
    return folder


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2."""
    return installed("all-MiniLM-L6-v2")


@pytest.fixture(scope="session")
def mpnet() -> Path:
    """The folder of all-mpnet-base-v2."""
    return installed("all-mpnet-base-v2")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct: matrices in Q4_1, embeddings in Q8_0."""
    return installed("SmolLM2-135M-Instruct") / "model.gguf"


@pytest.fixture(scope="session")
def gemma() -> Path:
    """The GGUF file of Gemma 3 270M (base, q4_k_m): its rows of 640 are Q5_0 and Q8_0."""
    return installed("gemma-3-270m") / "model.gguf"


@pytest.fixture(scope="session")
def datasets() -> Path:
    """The folder of public datasets."""
    folder = os.environ.get("TRIFOLD_DATA")
    if not folder:
        pytest.skip("TRIFOLD_DATA does not name a folder of public datasets")
    return Path(folder)
