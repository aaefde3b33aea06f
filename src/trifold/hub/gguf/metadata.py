"""The metadata of a model in GGUF files as checked values. Errors name the file and the key."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from trifold.errors import CheckpointError
from trifold.hub.gguf.file_format import ReadValue
from trifold.hub.gguf.strings import FileStrings
from trifold.hub.tensors import shapes_of
from trifold.settings import similar

REMEDY = "copy the file again, or convert the model again"
MAX_SIZE = 2**31 - 1
# Sizes of which each unit is a name or a module, so that a large one would take all memory; the
# largest in use are a tenth.
MOST = dict.fromkeys((".block_count", ".decoder_block_count", ".expert_count"), 2**12)
ARCHITECTURE = "general.architecture"
REQUIRED: Any = ...  # the default of keys that must be there


class Metadata:
    """Values by key, and the tensors. A key that begins with a dot is one of the architecture:
    `.block_count` of a LLaMA is `llama.block_count`.

    place: names the file in errors.
    """

    def __init__(
        self, values: Mapping[str, ReadValue], tensors: Mapping[str, Tensor], place: str
    ) -> None:
        self.values = values
        self.tensors = tensors
        self.place = place
        self.architecture: str = self.text(ARCHITECTURE, "")

    def name(self, key: str) -> str:
        """The full name of a key."""
        if key.startswith("."):
            return self.architecture + key
        return key

    def has(self, key: str) -> bool:
        return self.name(key) in self.values

    def error(self, key: str, problem: str) -> CheckpointError:
        """The error for the value of a key."""
        return CheckpointError(f"{self.place}: {self.name(key)}: {problem}; {REMEDY}")

    def _missing(self, key: str, default: Any) -> Any:
        """The default. Raises CheckpointError if there is none."""
        if default is REQUIRED:
            name = self.name(key)
            raise self.error(key, f"is missing{similar(name, self.values, 0.9)}")
        return default

    def rows(self, name: str) -> int:
        """The rows of a matrix. Raises CheckpointError if the file has no such matrix."""
        shape = shapes_of(self.tensors)[name].shape if name in self.tensors else ()
        if len(shape) != 2:
            raise self.error(name, "the file has no such matrix")
        return int(shape[0])

    # --- single values ----------------------------------------------------------------------------

    def text(self, key: str, default: Any = REQUIRED) -> Any:
        if not self.has(key):
            return self._missing(key, default)
        value = self.values[self.name(key)]
        if not isinstance(value, str):
            raise self.error(key, f"{value!r:.60} is not a text")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.values.get(self.name(key), default)
        if not isinstance(value, bool):
            raise self.error(key, f"{value!r:.60} is not true or false")
        return value

    def size(self, key: str, default: Any = REQUIRED, *, least: int = 1) -> Any:
        """An integer; of an array with a value per layer, which must all be equal, that value."""
        if not self.has(key):
            return self._missing(key, default)
        value = self.values[self.name(key)]
        if isinstance(value, np.ndarray):
            value = self._single(key, value)
        most = MOST.get(key, MAX_SIZE)
        if type(value) is not int or not least <= value <= most:
            raise self.error(key, f"{value!r:.60} is not an integer from {least} to {most:,}")
        return value

    def _single(self, key: str, values: np.ndarray[Any, Any]) -> Any:
        """The value of an array in which all are equal."""
        if not len(values) or (values != values[0]).any():
            raise self.error(key, "values that differ between layers are not supported")
        return values[0].item()

    def number(self, key: str, default: Any = REQUIRED) -> Any:
        """A finite number."""
        if not self.has(key):
            return self._missing(key, default)
        value: Any = self.values[self.name(key)]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and math.isfinite(number := float(value)):
            return number
        raise self.error(key, f"{value!r:.60} is not a finite number")

    def choice(self, key: str, known: Collection[str], default: str) -> str:
        value = self.text(key, default)
        if value not in known:
            raise self.error(key, f"{value!r:.60} is not supported; known: {', '.join(known)}")
        return str(value)

    # --- arrays -----------------------------------------------------------------------------------

    def texts(self, key: str, default: Any = REQUIRED) -> list[str]:
        """An array of texts."""
        found = self._strings(key, default)
        return found.texts if isinstance(found, FileStrings) else found

    def places(self, key: str, text: str) -> list[int]:
        """The numbers of the texts of an array, or of none, that equal this text."""
        found = self._strings(key, [])
        if isinstance(found, FileStrings):
            return found.places(text)
        return [number for number, each in enumerate(found) if each == text]

    def _strings(self, key: str, default: Any) -> list[str] | FileStrings:
        if not self.has(key):
            return list(self._missing(key, default))
        value = self.values[self.name(key)]
        if isinstance(value, np.ndarray) and not len(value):  # of no matter which type
            return []
        if not isinstance(value, list | FileStrings):
            raise self.error(key, "is not an array of texts")
        return value

    def numbers(self, key: str, length: int) -> list[Any] | None:
        """An array of finite numbers, of this length; None if the key is missing."""
        if not self.has(key):
            return None
        value = self.values[self.name(key)]
        if not isinstance(value, np.ndarray) or len(value) != length:
            raise self.error(key, f"is not an array of {length:,} numbers")
        if not np.isfinite(value).all():
            raise self.error(key, "has a value that is not finite")
        found: list[Any] = value.tolist()
        return found
