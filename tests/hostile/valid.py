"""Valid folders of every kind, to be damaged: small, and each made by the part that writes such
folders, or by the reference library."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import chdir, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tests.cli import kinds_of_runs, readers
from tests.hub import parity
from tests.hub.gguf.vocabularies import write_model
from tests.hub.tiny import TINY
from tests.models import TWO_LAYERS, add_noise
from tests.text import folders

from trifold.hub import load_model, save_model
from trifold.hub.peft import save_adapter
from trifold.hub.sentence_transformers import SentenceModules, write_modules
from trifold.nn import ModelConfig, Transformer
from trifold.nn.lora import LoRASettings
from trifold.pipeline import Pipeline
from trifold.text import TokenizerSettings, read_tokenizer, train_tokenizer
from trifold.train.parameters import add_adapters

MODEL = "model"  # the folder that is opened, where a kind names no other
ALWAYS = ("show", "show json", "load", "logits", "convert", "convert native")
DECODER = (*ALWAYS, "generate", "generate", "defaults", "stream", "look json", "look page",
           "eval texts", "start from", "trace", "embed")  # fmt: skip
SEQ2SEQ = (*ALWAYS, "generate", "generate", "defaults", "look json", "eval pairs", "trace")
MASKED = (*ALWAYS, "predict", "embed", "look json", "start masked", "trace")
CLASSES = (*ALWAYS, "predict", "predict", "predict lines", "look json", "trace")
ANSWERS = (*ALWAYS, "answer", "answer", "look json")
BARE = (*ALWAYS, "embed", "embed", "look json", "trace")
PICTURES = (*ALWAYS, "picture", "picture", "look picture")
RUN = (*ALWAYS, "resume", "resume", "runs", "runs json", "eval", "compare", "look json", "of run")


class Valid(NamedTuple):
    """A kind of folder. write: makes its files below the current folder. uses: names of entry
    points (`entries.ENTRIES`). opened: the folder that they open."""

    write: Callable[[], object]
    uses: tuple[str, ...]
    opened: str = MODEL


# --- tiny models of all families ------------------------------------------------------------------

# End of the name of a class -> uses.
USES: dict[str, tuple[str, ...]] = {
    "ForMaskedLM": MASKED,
    "ForPreTraining": MASKED,
    "ForSequenceClassification": CLASSES,
    "ForNextSentencePrediction": (*ALWAYS, "pairs"),
    "ForTokenClassification": CLASSES,
    "ForQuestionAnswering": ANSWERS,
    "ForQuestionAnsweringSimple": ANSWERS,
    "ForImageClassification": PICTURES,
    "ForConditionalGeneration": SEQ2SEQ,
    "MTModel": SEQ2SEQ,
    "Model": BARE,
    "TextModel": BARE,
    "EncoderModel": BARE,
}
LETTERS = "the quick fox [MASK]"


def _letters(folder: Path, size: int = 40) -> None:
    """A tokenizer of characters, for models of few tokens."""
    settings = TokenizerSettings(kind="char", min_frequency=1, special=("cls", "sep", "mask"))
    tokenizer = train_tokenizer([LETTERS], settings)
    assert tokenizer.vocab_size <= size
    tokenizer.save(folder)


def _family(family: str, ending: str, options: dict[str, Any]) -> None:
    parity.make(family, ending, **options).save_pretrained(MODEL)
    folder = Path(MODEL)
    if family == "vit":
        _picture_settings(folder, json.loads((folder / "config.json").read_text("utf-8")))
    else:
        _letters(folder)


def _picture_settings(folder: Path, config: dict[str, Any]) -> None:
    size = config["image_size"]
    height, width = (size, size) if isinstance(size, int) else size
    channels = config.get("num_channels", 3)
    folders.write(
        folder,
        preprocessor_config__json={
            "size": {"height": height, "width": width},
            "image_mean": [0.5] * channels,
            "image_std": [0.5] * channels,
        },
    )
    _picture()


def _picture() -> None:
    from PIL import Image

    pixels = bytes(range(192)) * 3
    Image.frombytes("RGB", (16, 12), pixels[: 16 * 12 * 3]).save("picture.png")


def _families() -> Iterator[tuple[str, Valid]]:
    """The first case of each class of each family."""
    for family, tiny in TINY.items():
        seen = set[str]()
        for ending, options in tiny.cases.values():
            if ending not in seen:
                seen.add(ending)
                uses = PICTURES if family == "vit" else USES.get(ending, DECODER)
                name = f"{family} {ending.removeprefix('For')}"
                yield name, Valid(partial(_family, family, ending, options), uses)


# --- tokenizers -----------------------------------------------------------------------------------

# Shape of a model -> its values; the model fits the tokenizer, not its family.
GPT2: dict[str, Any] = TWO_LAYERS | {
    "shape": "decoder", "positions": "learned", "norm_placement": "pre", "scale_embeddings": False,
    "attention_bias": True, "activation": "gelu-tanh", "max_positions": 48,
}  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def _tokenizer(name: str) -> None:
    """A GPT-2 with the tokenizer files of another family, whose class they name."""
    folder = Path(MODEL)
    folders.OLD[name](folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    tokenizer = read_tokenizer(folder)
    model = _random(GPT2 | {"vocab_size": tokenizer.vocab_size})
    save_model(folder, model)
    settings = folder / "tokenizer_config.json"
    values = json.loads(settings.read_text("utf-8")) if settings.is_file() else {}
    if "tokenizer_class" not in values:
        from trifold.text.classes import CLASS_OF_MODEL

        values["tokenizer_class"] = CLASS_OF_MODEL[config["model_type"]]
    folders.write(folder, tokenizer_config__json=values)


def _random(values: dict[str, Any]) -> Transformer:
    torch.manual_seed(3)
    model: Transformer = add_noise(Transformer(ModelConfig.parse(values)), 0.2)
    return model


def _chat() -> None:
    _native(MODEL)
    folders.write(
        Path(MODEL),
        tokenizer_config__json={"chat_template": TEMPLATE},
        chat_template__jinja=TEMPLATE,
    )


# --- other layouts --------------------------------------------------------------------------------


def _native(folder: str, values: dict[str, Any] = GPT2, **save: Any) -> None:
    tokenizer = train_tokenizer([LETTERS], TokenizerSettings(kind="char", min_frequency=1))
    model = _random(values | {"vocab_size": tokenizer.vocab_size})
    Pipeline(model, tokenizer).save(folder, **save)


def _adapter() -> None:
    """An adapter beside its base."""
    _native("base")
    chosen = LoRASettings.parse({"rank": 2, "alpha": 5.0, "targets": ["o_proj", "in_proj"]})
    model, _ = load_model(Path("base"))
    add_adapters(model, chosen, ())
    weights = dict(model.named_parameters())
    trained = [name for name, parameter in weights.items() if parameter.requires_grad]
    for name in trained:
        torch.nn.init.normal_(weights[name].data, std=0.3)
    Path(MODEL).mkdir()
    save_adapter(Path(MODEL), "base", model.config, chosen, weights, trained)


def _pickled(shards: int = 1) -> None:
    from safetensors.torch import load_file

    _native(MODEL)
    folder = Path(MODEL)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    if shards == 1:
        torch.save(tensors, folder / "pytorch_model.bin")
        return
    names = sorted(tensors)
    files = {
        f"pytorch_model-{n + 1:05}-of-{shards:05}.bin": names[n::shards] for n in range(shards)
    }
    for file, part in files.items():
        torch.save({name: tensors[name] for name in part}, folder / file)
    places = {name: file for file, part in files.items() for name in part}
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    folders.write(folder, **{"pytorch_model__bin__index__json": index})


def _hub_cache() -> None:
    """A snapshot whose files are links to blobs."""
    _native("whole")
    blobs = Path("models--a--b/blobs")
    revision = Path("models--a--b/snapshots/0123abcd")
    blobs.mkdir(parents=True)
    revision.mkdir(parents=True)
    for number, path in enumerate(sorted(Path("whole").iterdir())):
        path.rename(blobs / str(number))
        (revision / path.name).symlink_to(f"../../blobs/{number}")
    Path("whole").rmdir()


def _sentences(**modules: Any) -> None:
    readers.folder_of("embed", Path(MODEL))
    values = {"pooling": "mean", "normalise": True, "max_length": 20, "similarity": "cosine"}
    write_modules(Path(MODEL), SentenceModules(**values | modules), width=16, positions=48)


def _run(kind: str) -> None:
    """A run folder with its checkpoints, and its data beside it."""
    here = Path("data")
    here.mkdir()
    with chdir(here.parent):
        runs = kinds_of_runs.Runs(here)
        path = runs[kind]
    shutil.move(path, MODEL)
    shutil.rmtree(Path(MODEL) / ".lock", ignore_errors=True)


def _gguf() -> None:
    write_model(Path("model.gguf"))


def _pictures() -> None:
    readers.pictures_folder(Path(MODEL))
    _picture()


TWO_STACKS: dict[str, Any] = TWO_LAYERS | {"max_positions": 48}
_READERS = {
    "fill-mask": MASKED,
    "classify": CLASSES,
    "tag": CLASSES,
    "answer": ANSWERS,
    "next-sentence": (*ALWAYS, "pairs"),
    "embed": BARE,
}
# Kinds that are made without other libraries, and their uses.
OURS: dict[str, Valid] = {
    "gpt2": Valid(partial(_native, MODEL), (*DECODER, "look")),
    "shards": Valid(partial(_native, MODEL, max_shard_size="7KB"), DECODER),
    "marian": Valid(partial(_native, MODEL, TWO_STACKS), (*SEQ2SEQ, "look")),
    "native": Valid(partial(_native, MODEL, GPT2 | {"positions": "sinusoidal"}), DECODER),
    "hub cache": Valid(_hub_cache, DECODER, "models--a--b/snapshots/0123abcd"),
    "chat": Valid(_chat, (*ALWAYS, "generate", "chat", "chat")),
    "adapter": Valid(_adapter, DECODER),
    "gguf": Valid(_gguf, (*DECODER, "chat"), "model.gguf"),
    "pickle": Valid(_pickled, (*ALWAYS, "pickle", "pickle")),
    "pickles": Valid(partial(_pickled, 3), (*ALWAYS, "pickle", "pickle")),
    "sentences": Valid(_sentences, (*BARE, "embed", "embed", "search", "start from")),
    "prompts": Valid(
        partial(_sentences, prompts=(("query", "query: "),), default_prompt="query"),
        (*BARE, "embed", "embed", "search"),
    ),
    "pictures": Valid(_pictures, PICTURES),
    **{
        f"reader {task}": Valid(partial(readers.folder_of, task, Path(MODEL)), uses)
        for task, uses in _READERS.items()
    },
}
RUNS: dict[str, Valid] = {
    f"run {kind}": Valid(partial(_run, kind), RUN)
    for kind in ("translate", "causal", "masked", "permutation", "pairs", "denoise", "text-to-text")
}
TOKENIZERS: dict[str, Valid] = {
    f"tokenizer {name}": Valid(
        partial(_tokenizer, name), (*ALWAYS, "generate", "generate", "look json", "tokens")
    )
    for name in folders.OLD
}
KINDS: dict[str, Valid] = OURS | RUNS | TOKENIZERS | dict(_families())
# A group is drawn first, so that the families, which are many, are not all that is drawn.
GROUPS: dict[str, tuple[int, tuple[str, ...]]] = {
    "ours": (30, tuple(OURS)),
    "runs": (15, tuple(RUNS)),
    "tokenizers": (20, tuple(TOKENIZERS)),
    "families": (35, tuple(name for name in KINDS if name not in OURS | RUNS | TOKENIZERS)),
}

# Content of a file, or the target of a link.
File = bytes | str


def make_trees(kinds: Iterable[str], folder: Path) -> dict[str, dict[str, File]]:
    """Kind -> path -> content of the files of valid folders. They are made below `folder` in a
    forked process, so that this one does not import the libraries that make them."""
    kinds = sorted(set(kinds))
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "trees"
    log = folder / "log"
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT, 0o600), 2)  # progress bars of libraries
            file.write_bytes(pickle.dumps({kind: _make(kind, folder / "made") for kind in kinds}))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    with suppress(ProcessLookupError):  # what it started
        os.killpg(child, signal.SIGKILL)
    if status:
        raise RuntimeError(f"the valid folders could not be made: {log.read_text('utf-8')}")
    trees: dict[str, dict[str, File]] = pickle.loads(file.read_bytes())
    file.unlink()
    return trees


def _make(kind: str, here: Path) -> dict[str, File]:
    here.mkdir()
    with chdir(here):
        KINDS[kind].write()
    tree = dict(_files_below(here))
    shutil.rmtree(here)
    return tree


def _files_below(folder: Path) -> Iterator[tuple[str, File]]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            yield name, str(path.readlink())
        elif path.is_file():
            yield name, path.read_bytes()
