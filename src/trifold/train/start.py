"""Beginning from the weights of a model that is there already, in the place of drawn ones."""

from __future__ import annotations

import torch

from trifold.errors import SettingsError
from trifold.hub import load_model, resolve
from trifold.nn import Transformer

HEADS = ("heads.", "lm_head.")  # what may be new, and what may be left behind


def begin_from(folder: str, model: Transformer) -> None:
    """Give `model` the weights of the model in `folder` (or hub id); a head that is not there stays as it was drawn.

    Raises CheckpointError where the folder cannot be read, SettingsError listing what does not fit.
    """
    source, _ = load_model(resolve(folder))
    theirs, mine = (dict(each.named_parameters()) for each in (source, model))
    parts = {name for name in theirs.keys() | mine.keys() if not name.startswith(HEADS)}
    wrong = sorted(name for name in parts if _shape(theirs, name) != _shape(mine, name))
    wrong += sorted(n for n in mine.keys() & theirs.keys() - parts if _shape(theirs, n) != _shape(mine, n))
    if wrong:
        listed = ", ".join(f"{n} ({_shape(theirs, n)} there, {_shape(mine, n)} here)" for n in wrong[:8])
        more = f" and {len(wrong) - 8} more" if len(wrong) > 8 else ""
        raise SettingsError(
            f"train.start_from: {folder}: does not fit the recipe's model: {listed}{more}; give model the sizes of "
            "that folder's config.json, and tokenizer.file its tokenizer"
        )
    with torch.no_grad():
        for name in mine.keys() & theirs.keys():
            mine[name].copy_(theirs[name])


def _shape(parameters: dict[str, torch.nn.Parameter], name: str) -> str:
    return "x".join(map(str, parameters[name].shape)) if name in parameters else "nothing"
