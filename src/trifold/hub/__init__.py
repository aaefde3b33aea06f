"""Load and save checkpoints of other libraries: a model folder is a Hugging Face folder.

"Ours" are the parameters, fields and settings of trifold, "theirs" those of the other library.

To be read in this order: `files`, `quantized`, `transforms`, `tensors`, `rules`, `rows`,
`unknown_keys`, `generation`, `labels`, `family`, `rope`; a file of `families`; `model_config`,
`weights`, `names`, `fill`, and `folder`, which loads and saves with all of these. Then
`convert`, `presets`, `images`, `sentence_transformers`, `pickles` and `pickle_handler`, and the
adapters: `peft_config`, `name_handler`, `peft_merge`, `peft`.
"""

from trifold.hub.folder import load_model, read_config, save_model
from trifold.hub.names import resolve

__all__ = ["load_model", "read_config", "resolve", "save_model"]
