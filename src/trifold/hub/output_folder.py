"""The folder that a conversion or `Pipeline.save` writes: complete, or not there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from trifold import disk
from trifold.errors import CheckpointError, UsageError
from trifold.hub.files import cannot_write
from trifold.hub.names import CARD, CONFIG, GENERATION, LICENCES, TOKENIZER_FILES

# Patterns of what `convert` and `Pipeline.save` write, and of the weights of other libraries.
MODEL_FILES = [
    *(CONFIG, GENERATION, CARD, *LICENCES, *TOKENIZER_FILES),
    *"""
    model*.safetensors model.safetensors.index.json pytorch_model*.bin pytorch_model.bin.index.json
    adapter_config.json adapter_model.safetensors preprocessor_config.json
    additional_chat_templates/*.jinja modules.json sentence_bert_config.json
    config_sentence_transformers.json [0-9]_*/config.json [0-9]_*/model.safetensors
    """.split(),
]


@contextmanager
def new_folder(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A temporary folder that becomes `path`, flushed to disk, when the block succeeds.

    overwrite: replace the files of the model that the folder holds. Raises UsageError if `path`
    exists and is not an empty folder otherwise, and if another process writes it. Raises
    CheckpointError if writing fails; then nothing is left.
    """
    absolute = path.resolve()  # "." has no name to derive another one from
    temporary = absolute.with_name(f".{absolute.name}.{os.getpid()}.tmp")
    try:
        _check_free(path, overwrite=overwrite)
        absolute.parent.mkdir(parents=True, exist_ok=True)
        with disk.exclusive(path):
            temporary.mkdir()
            yield temporary
            for written in temporary.rglob("*"):
                if written.is_dir():
                    disk.flush_folder(written)
                else:
                    disk.flush_path(written)
            disk.flush_folder(temporary)
            _check_free(path, overwrite=overwrite)
            _put_in_place(temporary, absolute)
        disk.flush_folder(absolute.parent)
    except CheckpointError as error:  # may name a file in the temporary folder
        raise CheckpointError(str(error).replace(str(temporary), str(path))) from None
    except OSError as error:
        raise cannot_write(path, error) from None
    finally:
        disk.remove(temporary)


def _check_free(path: Path, *, overwrite: bool) -> None:
    """Raise UsageError for a folder with content, unless this is a model to overwrite and nothing
    else.
    """
    disk.check_free(path, overwrite=overwrite, is_folder=True)
    if not path.is_dir() or not any(path.iterdir()):
        return
    remedy = "so the folder is not replaced; name another folder"
    if not (path / CONFIG).exists():
        raise UsageError(f"{path}: holds no model, {remedy}")
    for file in path.rglob("*"):
        name = file.relative_to(path).as_posix()
        if file.is_dir() and not file.is_symlink():
            continue
        if not any(fnmatchcase(name, pattern) for pattern in MODEL_FILES):
            raise UsageError(f"{file}: is no file of a model, {remedy}")


def _put_in_place(new: Path, folder: Path) -> None:
    """Rename a folder; if the other one exists and is not empty, replace its content.

    The other folder stays, because it may be a link or the current folder. Its config.json is
    removed first and written last: a folder without one is no model.
    """
    if folder.is_dir() and any(folder.iterdir()):
        config = folder / CONFIG
        config.unlink(missing_ok=True)
        for old in folder.iterdir():
            disk.remove(old)
        for file in sorted(new.iterdir(), key=lambda file: file.name == CONFIG):
            disk.rename(file, folder / file.name)
        disk.flush_folder(folder)
        return
    if folder.is_dir():
        folder.rmdir()  # some systems do not replace even an empty folder
    disk.rename(new, folder)
