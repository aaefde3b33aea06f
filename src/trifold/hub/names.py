"""The folders that names stand for: local ones, those of runs, and models of the hub."""

import re
from collections.abc import Iterable
from pathlib import Path

from trifold.errors import CheckpointError, UsageError
from trifold.folders import FileAsFolder, UntrustedPath, folder_or_file, named
from trifold.hub.weights import has_weights
from trifold.settings import similar

CONFIG = "config.json"
ADAPTER = "adapter_config.json"
GENERATION = "generation_config.json"
DOWNLOADED = """
    *.json model*.safetensors adapter_model.safetensors *.model *.spm *.txt *.jinja bpe.codes
    [0-9]_Dense/model.safetensors
""".split()
CARD = "README.md"  # the model card, with the licence
LICENCES = "LICENSE LICENSE.txt LICENSE.md NOTICE".split()
TOKENIZER_FILES = """
    tokenizer.json target_tokenizer.json special_tokens_map.json added_tokens.json
    chat_template.jinja vocab.json target_vocab.json vocab.txt merges.txt bpe.codes
    tokenizer_config.json spiece.model sentencepiece.bpe.model tokenizer.model spm.model source.spm
    target.spm
""".split()
PICKLED = ["pytorch_model*.bin"]  # downloaded if the user trusts them
_REVISION = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", re.ASCII)


def resolve(
    name: str, *, pickled: bool = False, others: Iterable[str] = (), revision: str | None = None
) -> UntrustedPath:
    """The model folder for a name: a local folder (of a model, or of a run that holds one), a GGUF
    file, or a hub id. Links in it may lead below the folder that the name stands for.

    pickled: also download pickled weights if the model has no others. others: names that an error
    may suggest besides folders. revision: a branch, tag or commit of the hub. Raises
    CheckpointError if the name is neither, or the model cannot be downloaded.
    """
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        return _model_in(named(folder), name)
    if folder.is_file():
        opened = folder_or_file(folder)
        if isinstance(opened, FileAsFolder):
            return opened
        raise CheckpointError(f"{name}: a file, not the folder of a model, and not a GGUF file")
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", name, re.ASCII):
        raise CheckpointError(f"{name!r}: no such folder{similar_folder(folder, others)}")
    if revision is not None and not _REVISION.fullmatch(revision):
        raise CheckpointError(f"{revision!r:.100}: not the name of a revision of {name}")
    try:
        downloaded = named(_download(name, [*DOWNLOADED, CARD], revision))
    except CheckpointError as error:
        raise CheckpointError(f"{error}{similar_folder(folder, others)}") from None
    if not pickled or has_weights(downloaded):
        return downloaded
    return named(_download(name, [*DOWNLOADED, CARD, *PICKLED], revision))


def _model_in(folder: UntrustedPath, name: str) -> UntrustedPath:
    """The folder of the model: this one, or that in a run; this one too if neither has a config.
    Raises CheckpointError for a run that has no model yet.
    """
    if not (folder / CONFIG).exists() and (folder / "model" / CONFIG).exists():
        return folder / "model"
    if find_run_recipe(folder) is not None:
        raise CheckpointError(
            f"{name}: the run has no model yet; continue with `trifold resume {name}`"
        )
    return folder


def find_run_recipe(folder: UntrustedPath) -> UntrustedPath | None:
    """The recipe.yaml of a run; None if the folder is no run. Beside the files of a model, it is a
    file of another tool, such as llm-compressor.
    """
    recipe = folder / "recipe.yaml"
    if not recipe.exists() or _has_model_files(folder):
        return None
    return recipe


def _has_model_files(folder: UntrustedPath) -> bool:
    return any((folder / name).exists() for name in (CONFIG, ADAPTER))


def hub_id(folder: UntrustedPath) -> tuple[str, str] | None:
    """The hub id and the commit of a folder in the cache of the hub; None for another folder."""
    parts = ("", "", "", *folder.path.absolute().parts)  # at least three
    *_, repository, snapshots, commit = parts
    if snapshots != "snapshots" or not repository.startswith("models--"):
        return None
    return repository.removeprefix("models--").replace("--", "/"), commit


def similar_folder(folder: Path, others: Iterable[str] = ()) -> str:
    """End of an error message about a missing folder: one beside it with a similar name, or one of
    `others`, if any, which are no paths.
    """
    beside = [path.name for path in folder.parent.glob("*") if path.is_dir() and path != folder]
    if folder.parent != Path():
        hint = similar(folder.name, beside)
        return hint.replace("mean '", f"mean '{folder.parent.as_posix()}/")
    hint = similar(folder.name, [*beside, *others])
    return hint or similar_folder(Path("runs", folder))  # where runs are by default


def no_run_error(folder: Path) -> UsageError:
    """The error for a folder that is not a run; it names a similar folder beside it, or runs around
    it.
    """
    path = named(folder)
    if _has_model_files(path) and find_run_recipe(path.parent) is None:
        return UsageError(
            f"{folder}: the folder of a model, not of a run; to train it further, set "
            f"start_from={folder}"
        )
    around = (folder.parent, *folder.parent.glob("*"), *folder.glob("*"))
    runs = sorted(path.as_posix() for path in around if find_run_recipe(named(path)) is not None)
    hint = ""
    if not folder.exists():
        hint = similar_folder(folder)
    if runs and not hint:
        hint = f"; known runs: {', '.join(runs[:10])}"
    return UsageError(f"{folder}: no such run (a run has a recipe.yaml){hint}")


def _download(name: str, files: list[str], revision: str | None = None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    missing = f"{name}: no such folder here, and"
    # Folders in the repository are left out, except numbered ones, such as 2_Dense.
    try:
        return Path(
            snapshot_download(
                name, revision=revision, allow_patterns=files, ignore_patterns=["[!0-9]*/*"]
            )
        )
    except RepositoryNotFoundError:
        raise CheckpointError(
            f"{missing} no model on the hub that you can access; check the name"
        ) from None
    except LocalEntryNotFoundError:
        raise CheckpointError(
            f"{missing} the hub cannot be reached and the model is not in the cache; "
            "go online once (and unset HF_HUB_OFFLINE), or give the path of a folder"
        ) from None
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise CheckpointError(f"{missing} the download failed: {reason}") from None
