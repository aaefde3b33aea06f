"""What a user who names no recipe probably meant: another word for a task, a file of data, or the
folder of a model.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from trifold.data import expand_path
from trifold.errors import TrifoldError, UsageError
from trifold.hub.names import ADAPTER, CONFIG
from trifold.objectives.recognize import Guess, guess_recipe
from trifold.settings import similar

# The recipe for one's own data -> other words for what it trains.
WORDS = {
    "answer": "qa question questions question-answering extractive-qa reading-comprehension squad",
    "causal": "gpt gpt2 gpt-2 lm llm language-model language-modelling language-modeling clm chat "
    "chatbot writer writing generate generation text-generation decoder llama novel pretrain "
    "pretraining",
    "choose": "choice multiple-choice mcq swag quiz",
    "classify": "classification classifier text-classification sequence-classification sentiment "
    "topic topics intent intents spam emotion toxicity nli entailment paraphrase regression rating",
    "images": "image vision vit picture pictures photo photos image-classification",
    "masked": "bert mlm masked-lm masked-language-model fill-mask roberta encoder",
    "similarity": "embed embedding embeddings sbert sentence-bert sentence-transformers sts "
    "sentence-similarity semantic-search search retrieval",
    "summarize": "summarise summary summaries summarization summarisation tldr headline headlines",
    "tag": "ner entities entity named-entities named-entity-recognition pos pos-tagging tagger "
    "tagging token-classification conll chunking",
    "translate": "translation translator translations mt nmt machine-translation seq2seq "
    "text2text marian encoder-decoder",
}
RECIPE_OF = {word: recipe for recipe, words in WORDS.items() for word in words.split()}
LIST = "list them with `trifold recipes`"


def recipe_meant(name: str) -> str | None:
    """The recipe for one's own data that a word means; of several joined words, the first one that
    means one.
    """
    word = name.strip().lower().replace("_", "-").replace(" ", "-")
    if word in RECIPE_OF:
        return RECIPE_OF[word]
    return next((RECIPE_OF[part] for part in word.split("-") if part in RECIPE_OF), None)


def no_recipe_error(
    name: str, arguments: Sequence[str], recipes: Mapping[str, str]
) -> UsageError | None:
    """The error for a name that is neither a recipe nor a run, with the command that was probably
    meant; None for a folder without data, and for a path.

    arguments: those after the name, of the form key=value or names of files. recipes: name ->
    description.
    """
    key, equals, value = name.partition("=")
    if equals and "." in key:
        return _setting_error(name, key, value, arguments)
    sources = [*_existing([*name.split(",")])] or [*_existing([name])]
    if sources:
        return _data_error(name, [*sources, *_existing(arguments)], arguments)
    if Path(name).name != name and not Path(name).suffix:
        return None
    meant = recipe_meant(name)
    if meant is None:
        found = similar(name, [*recipes, *RECIPE_OF])
        near = found.rpartition("mean ")[2].rstrip("?").strip("'")
        meant = RECIPE_OF.get(near)
        if meant is None:
            kind = "unknown recipe"
            if Path(name).suffix or "/" in name:
                kind = "no such file or recipe:"
            return UsageError(f"{kind} {name!r}{found}; {LIST}")
    about = recipes[meant].rstrip(".").partition(" (")[0]
    command = _command([meant, *_with_data(arguments)])
    return UsageError(f"unknown recipe {name!r}; did you mean {meant!r} ({about})? Run {command}")


def check_arguments(recipe: str, arguments: Sequence[str]) -> None:
    """Raises UsageError for files without a key among the arguments after a recipe."""
    files = [*_existing(argument for argument in arguments if "=" not in argument)]
    if files:
        command = _command([recipe, *_with_data(arguments)])
        raise UsageError(f"{files[0]} is not key=value; data is named by {command}")


def with_recipe(arguments: Sequence[str]) -> list[str]:
    """The arguments of `trifold train` after a recipe, and with files as data: the recipe that
    reads the data if there is none, and `demo` without data.
    """
    if arguments and "=" not in arguments[0] and not [*_existing(arguments[:1])]:
        recipe, *others = arguments
        if [*_existing(word for word in others if "=" not in word)]:
            return [recipe, *_with_data(others)]
        return [*arguments]
    settings = arguments
    if [*_existing(word for word in arguments if "=" not in word)]:
        settings = _with_data(arguments)
    values = dict(setting.partition("=")[::2] for setting in settings)
    if not any(key.startswith("data.") for key in values):
        return ["demo", *settings]
    source = values.get("data.train", "")
    guess = None
    if sources := [*_existing(source.split(","))]:
        guess = _guess(sources)
    if guess is not None:
        added = [each for each in guess.settings if each.partition("=")[0] not in values]
        return [guess.recipe, *settings, *added]
    if {"data.source", "data.target"} & {*values}:
        return ["translate", *settings]
    recipe = "causal" if source.endswith((".txt", ".txt.gz")) else "classify"
    return [recipe, *settings]


def _with_data(arguments: Sequence[str]) -> list[str]:
    """The arguments with files as data, and what is named like a file; with a place for the name
    of a file if there is none.
    """
    words = [argument for argument in arguments if "=" not in argument]
    files = [word for word in words if [*_existing([word])] or Path(word).suffix]
    others = [argument for argument in arguments if argument not in files]
    if any(argument.startswith("data.train=") for argument in others):
        return others
    return [f"data.train={','.join(files) or 'FILE'}", *others]


def _existing(names: Iterable[str]) -> Iterator[str]:
    """The names that are files or folders."""
    for name in names:
        with suppress(TrifoldError, OSError, ValueError):
            if name and (expand_path(name).is_file() or expand_path(name).is_dir()):
                yield name


def _command(arguments: Iterable[str]) -> str:
    return f"`trifold train {shlex.join(arguments)}`"


def _recipe_of_model(arguments: Sequence[str]) -> str | None:
    """The recipe that the name of a model in the settings means; None without one."""
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key in ("model.preset", "start_from"):
            return recipe_meant(Path(value).name)
    return None


def _setting_error(name: str, key: str, value: str, arguments: Sequence[str]) -> UsageError:
    """The error for a setting in the place of the recipe."""
    guess = None
    sources = [*_existing(value.split(","))]
    if key == "data.train" and sources:
        guess = _guess(sources)
    recipe = guess.recipe if guess is not None else "RECIPE"
    settings = guess.settings if guess is not None else ()
    if recipe == "causal":  # raw text, which encoders read too
        recipe = _recipe_of_model(arguments) or recipe
    command = _command([recipe, name, *settings, *arguments])
    return UsageError(f"{name} is a setting, and a recipe is missing before it; run {command}")


def _guess(sources: Sequence[str]) -> Guess | None:
    with suppress(TrifoldError):  # which training reports
        return guess_recipe(sources)
    return None


def _data_error(name: str, sources: Sequence[str], arguments: Sequence[str]) -> UsageError | None:
    """The error for a file or a folder in the place of the recipe."""
    path = expand_path(sources[0])
    if path.name in (CONFIG, ADAPTER) or path.suffix == ".safetensors":
        name = str(path.parent)
        path = path.parent
    if path.is_dir() and any((path / file).exists() for file in (CONFIG, ADAPTER)):
        example = _command(["RECIPE", f"start_from={name}", "data.train=FILE"])
        return UsageError(f"{name} is the folder of a model, not a recipe; train it with {example}")
    guess = guess_recipe(sources)
    if guess is None and path.is_dir():
        return None
    if guess is None:
        return UsageError(
            f"{name} is data, not a recipe, and its columns fit no task that is known; choose a "
            "recipe of `trifold recipes`, and name the file as data.train"
        )
    others = [argument for argument in arguments if argument not in sources]
    command = _command([*guess.arguments(), *others])
    return UsageError(f"{name} is data ({guess.reason}), not a recipe; you probably mean {command}")
