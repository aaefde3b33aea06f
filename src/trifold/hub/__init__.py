"""Load and save checkpoints of other libraries: a model folder is a Hugging Face folder."""

from trifold.hub.folder import load_model, read_config, save_model
from trifold.hub.names import resolve

__all__ = ["load_model", "read_config", "resolve", "save_model"]
