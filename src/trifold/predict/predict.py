"""Predictions of a loaded model: the tasks that its heads support, and a method for each."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from trifold.data.images import ImageSettings
from trifold.errors import UsageError
from trifold.hub.sentence_transformers import SentenceModules
from trifold.nn import ModelConfig, Transformer
from trifold.nn.config import Head
from trifold.predict.answer import answer
from trifold.predict.choose import choose
from trifold.predict.classify import classify, next_sentence
from trifold.predict.embed import embed, search
from trifold.predict.features import features
from trifold.predict.fill_mask import fill_mask
from trifold.predict.model_reader import ModelReader
from trifold.predict.tag import tag
from trifold.settings import nearest, warn
from trifold.text import Tokenizer


class Task(NamedTuple):
    """The function of a task, the head that it requires, whether it reads pairs of texts, and
    whether it parses special tokens in a text by default (None: as transformers does).
    """

    run: Callable[..., list[Any]]
    head: Head | None
    pairs: Literal["never", "may", "must"]
    parse_special: bool | None = False

    @property
    def options(self) -> tuple[str, ...]:
        """The names of its options."""
        n_others = 2 if self.pairs == "never" else 3  # reader, texts; reader, texts, pairs
        return tuple(inspect.signature(self.run).parameters)[n_others:]


TASKS: dict[str, Task] = {
    "fill-mask": Task(fill_mask, "lm", "never", parse_special=True),
    "classify": Task(classify, "sequence", "may"),
    "choose": Task(choose, "choice", "never"),
    "tag": Task(tag, "token", "never"),
    "answer": Task(answer, "span", "must"),
    "next-sentence": Task(next_sentence, "next-sentence", "must"),
    "embed": Task(embed, None, "may", parse_special=None),
    "search": Task(search, None, "never", parse_special=None),
    "features": Task(features, None, "may", parse_special=None),
}

# Options of every task, passed to ModelReader.
READER_OPTIONS = (
    "batch_tokens",
    "max_tokens",
    "on_overflow",
    "places",
    "on_done",
    "on_cut",
    "parse_special",
)


def supported_tasks(config: ModelConfig) -> list[str]:
    """The tasks of a model with these heads. Every model can embed, search and give features; a
    decoder cannot fill masks.
    """
    heads = set[Head | None](config.chosen_heads)
    if config.shape == "decoder":
        heads.discard("lm")
    heads.add(None)
    return [name for name, task in TASKS.items() if task.head in heads]


def choose_task(config: ModelConfig, task: str | None) -> str:
    """The requested task, or by default the one that the model's heads are for.

    Raises UsageError for a task that is unknown or not supported, and if there is no single
    default.
    """
    supported = supported_tasks(config)
    if task is None:
        return _default_task(config, supported)
    if task not in TASKS:
        raise UsageError(f"task {task!r} is not known{nearest(task, list(TASKS), 'tasks')}")
    if task not in supported:
        head = TASKS[task].head
        needed = "a bidirectional language-model head" if head == "lm" else f"a {head} head"
        heads = ", ".join(config.chosen_heads) or "none"
        raise UsageError(
            f"task {task}: requires {needed}; this model has the heads: {heads}; it supports "
            f"{', '.join(supported)}"
        )
    return task


def _default_task(config: ModelConfig, supported: Sequence[str]) -> str:
    """The one task that the heads are for, or "embed" without heads. Raises UsageError for a model
    with several such tasks, and one that generates.
    """
    names = ", ".join(supported)
    generates = "lm" in config.chosen_heads and config.shape != "encoder"
    of_heads = [name for name in supported if TASKS[name].head is not None]
    if generates and "fill-mask" in of_heads:
        of_heads.remove("fill-mask")
    if len(of_heads) == 1:
        return of_heads[0]
    if of_heads:
        raise UsageError(f"this model supports several tasks; name one of {names}")
    if generates:
        raise UsageError(
            f"this is a generation model; use `trifold generate`, or name a task ({names})"
        )
    return "embed"


class PredictMixin:
    """Prediction methods of a pipeline. A single text gives one prediction, several texts give a
    list.

    All methods take the options of `ModelReader`: `on_overflow` ("error" or "truncate") for texts
    that are too long, `batch_tokens`, `parse_special` for special tokens that are written in a text
    (by default read as text, except by fill_mask, and by embed and search where transformers parses
    them), and the callbacks `on_done` and `on_cut`. Image models take file paths or Pillow images.

    All raise DataError for input that cannot be read and UsageError for tasks that the model does
    not support.
    """

    model: Transformer
    pictures: ImageSettings | None
    modules: SentenceModules | None

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the input, if there is one."""
        raise NotImplementedError

    def predict(
        self,
        texts: Any,
        pairs: str | Sequence[str] | None = None,
        *,
        task: str | None = None,
        **options: Any,
    ) -> Any:
        """The prediction of the model's head, or of `task`; the methods below, named like the
        tasks, describe it.

        pairs: the second text of each input, or one for all.
        """
        name = choose_task(self.model.config, task)
        chosen = TASKS[name]
        single = isinstance(texts, str) or not hasattr(texts, "__iter__")
        inputs = [texts] if single else list(texts)
        if name in ("embed", "search") and self.modules is not None:
            options = _with_modules(self.modules, options)
        reader_options = {key: options.pop(key) for key in READER_OPTIONS if key in options}
        if reader_options.get("on_overflow", "error") not in ("error", "truncate"):
            raise UsageError(
                f"on_overflow: {reader_options['on_overflow']!r} is neither error nor truncate"
            )
        _check_options(name, options)
        reader_options.setdefault("parse_special", chosen.parse_special)
        reader = ModelReader(self.model, self.tokenizer, self.pictures, **reader_options)
        seconds = second_texts(name, inputs, pairs)
        predictions = chosen.run(reader, inputs, *seconds, **options)
        return predictions[0] if single else predictions

    def fill_mask(self, texts: str | Sequence[str], **options: Any) -> Any:
        """For each mask of a text the `top_k` (5) most probable tokens (`Filling`), best first."""
        return self.predict(texts, task="fill-mask", **options)

    def classify(self, texts: Any, pairs: str | Sequence[str] | None = None, **options: Any) -> Any:
        """The `top_k` (5; None: all) most probable classes (`Label`) of a text, a pair or an image,
        best first.
        """
        return self.predict(texts, pairs, task="classify", **options)

    def choose(
        self, texts: str | Sequence[str], choices: Sequence[str], questions: Any = None
    ) -> Any:
        """The `choices` with the probability (`Label`) that each answers or continues a text, best
        first.

        questions: that of each text, as in a column `question` of training, or one for all.
        """
        if isinstance(questions, str):
            count = 1 if isinstance(texts, str) else len(texts)
            questions = [questions] * count
        return self.predict(texts, task="choose", choices=choices, questions=questions)

    def tag(self, texts: str | Sequence[str], **options: Any) -> Any:
        """Classes of words with their positions (`Tag`); adjacent words of one class form a tag.
        Further option: `ignore` (default: O).

        merge: none, simple, first, average or max, as in the pipelines of transformers, or words
        (`predict.tag`).
        """
        return self.predict(texts, task="tag", **options)

    def answer(
        self, questions: str | Sequence[str], contexts: str | Sequence[str], **options: Any
    ) -> Any:
        """The `top_k` (1) most probable answers (`Answer`) to a question, as spans of its context.

        Further options: max_answer_length, impossible, max_length and stride (`predict.answer`).
        """
        return self.predict(questions, contexts, task="answer", **options)

    def next_sentence(
        self, texts: str | Sequence[str], pairs: str | Sequence[str], **options: Any
    ) -> Any:
        """Whether the second text follows the first, with its probability (`Follows`)."""
        return self.predict(texts, pairs, task="next-sentence", **options)

    def embed(self, texts: Any, **options: Any) -> Any:
        """One vector (E,) in float32 for a text or an image; of length 1 with `normalise`.

        pooling: mean (default), cls (the first state), last or max, of the states, or the pooler's
        output. A folder of sentence-transformers sets the defaults and a number of tokens,
        `max_tokens`, to which texts are truncated.
        prompt: put before each text; prompt_name: that of the folder with this name.
        """
        return self.predict(texts, task="embed", **options)

    def features(self, texts: Any, **options: Any) -> Any:
        """The vectors (`Features`) of the tokens of a text or an image after a layer.

        layer: from 0, the embeddings; default: the last one, after the final norm. pooling: of the
        vector of the whole text: mean (default), cls, last or max.
        """
        return self.predict(texts, task="features", **options)

    def search(self, queries: str | Sequence[str], texts: Iterable[str], **options: Any) -> Any:
        """The `top_k` (5) texts nearest to each query by the similarity of their vectors (`Found`),
        best first.

        similarity: cosine, dot, euclidean or manhattan; by default that of a folder of
        sentence-transformers, or cosine. Distances are negative. Further options: pooling; prompt,
        put before each query, and corpus_prompt, before each text. By default these are the prompts
        "query" and "document" (or "passage", "corpus") of a folder of sentence-transformers. Memory
        holds 2,048 texts at a time, so `texts` may be an iterator of any length.
        """
        return self.predict(queries, task="search", corpus=texts, **options)


def _check_options(task: str, options: Iterable[str]) -> None:
    """Raise UsageError for a name that is not an option of a task."""
    known = TASKS[task].options
    for option in options:
        if option not in known:
            hint = nearest(option, list(known), "options") if known else ""
            raise UsageError(f"{option}: not an option of {task}{hint}")


def _with_modules(modules: SentenceModules, options: dict[str, Any]) -> dict[str, Any]:
    """The options of embed with the defaults of the folder. Raises UsageError for modules that are
    not supported.
    """
    if modules.problem and "pooling" not in options:
        raise UsageError(
            f"{modules.problem} is not supported; --pooling mean pools the states without it"
        )
    defaults = {
        "pooling": modules.pooling,
        "dense": modules.dense,
        "normalise": modules.normalise,
        "max_tokens": modules.max_length,
        "on_overflow": "truncate",
        "on_cut": lambda truncation: warn(str(truncation)),
    }
    if "corpus" in options:
        defaults["similarity"] = modules.similarity or "cosine"
    return defaults | _with_prompts(modules, options)


def _with_prompts(modules: SentenceModules, options: dict[str, Any]) -> dict[str, Any]:
    """The options with the text of the chosen prompt, or of the default one. Raises UsageError for
    an unknown name.
    """
    prompts = dict(modules.prompts)
    name = options.get("prompt_name")
    if name is not None and name not in prompts:
        known = f"the folder has {', '.join(prompts)}" if prompts else "the folder has no prompts"
        raise UsageError(f"prompt_name: {name!r} is not known; {known}")
    default = modules.default_prompt
    if "corpus" in options:
        chosen = {
            "prompt": _first_prompt(prompts, name, "query", default),
            "corpus_prompt": _first_prompt(prompts, "document", "passage", "corpus", default),
        }
    else:
        chosen = {"prompt": _first_prompt(prompts, name, default)}
        uses_none = name is None and default is None and "prompt" not in options
        if uses_none and any(prompts.values()):
            warn(
                "the model has prompts, and none is used; name one with prompt_name: "
                f"{', '.join(prompts)}"
            )
    return chosen | {key: value for key, value in options.items() if key != "prompt_name"}


def _first_prompt(prompts: Mapping[str, str], *names: str | None) -> str:
    """The prompt of the first of these names that has one; empty if none has."""
    for name in names:
        if name is not None and name in prompts:
            return prompts[name]
    return ""


def second_texts(name: str, texts: Sequence[Any], pairs: Any) -> list[list[str]]:
    """The argument of second texts in a list, which is empty without them. Raises UsageError if the
    task needs them, or reads none, and for another number of them than of texts.
    """
    needed = TASKS[name].pairs
    if pairs is None:
        if needed == "must":
            raise UsageError(f"{name} reads pairs of texts; give the second texts too")
        return []
    if needed == "never":
        raise UsageError(f"{name} reads single texts; remove the second texts")
    if isinstance(pairs, str):
        return [[pairs] * len(texts)]
    second_texts = list(pairs)
    if len(second_texts) != len(texts):
        raise UsageError(
            f"{len(texts):,} texts and {len(second_texts):,} second texts; give one for each, or "
            "one for all"
        )
    return [second_texts]
