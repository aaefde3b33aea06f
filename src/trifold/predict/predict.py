"""Predictions of a loaded model: the tasks that its heads support, and a method for each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

from torch import Tensor

from trifold.data.images import ImageSettings
from trifold.errors import UsageError
from trifold.nn import ModelConfig, Transformer
from trifold.nn.config import Head
from trifold.predict.answer import Answer, answer
from trifold.predict.classify import Label, classify
from trifold.predict.embed import Pooling, embed
from trifold.predict.fill_mask import Filling, fill_mask
from trifold.predict.model_reader import ModelReader
from trifold.predict.next_sentence import Follows, next_sentence
from trifold.predict.tag import Merge, Tag, tag
from trifold.settings import nearest
from trifold.text import Tokenizer


class Task(NamedTuple):
    """The function of a task, the head that it requires, and whether it reads pairs of texts."""

    run: Callable[..., list[Any]]
    head: Head | None
    pairs: Literal["never", "may", "must"]

    @property
    def options(self) -> tuple[str, ...]:
        """The names of its options."""
        return tuple(inspect.signature(self.run).parameters)[3 if self.pairs != "never" else 2 :]


TASKS: dict[str, Task] = {
    "fill-mask": Task(fill_mask, "lm", "never"),
    "classify": Task(classify, "sequence", "may"),
    "tag": Task(tag, "token", "never"),
    "answer": Task(answer, "span", "must"),
    "next-sentence": Task(next_sentence, "next-sentence", "must"),
    "embed": Task(embed, None, "may"),
}

# Options of every task, passed to ModelReader.
READER_OPTIONS = ("batch_tokens", "on_overflow", "places", "on_done", "on_cut")


def supported_tasks(config: ModelConfig) -> list[str]:
    """The tasks of a model with these heads. Every model can embed; a decoder cannot fill masks."""
    heads = config.chosen_heads if config.shape != "decoder" else set(config.chosen_heads) - {"lm"}
    return [name for name, task in TASKS.items() if task.head is None or task.head in heads]


def choose_task(config: ModelConfig, task: str | None) -> str:
    """The requested task, or by default the one that the model's heads are for.

    Raises UsageError for a task that is unknown or not supported, and if there is no single default.
    """
    supported = supported_tasks(config)
    if task is None:
        generates = "lm" in config.chosen_heads and config.shape != "encoder"
        defaults = [name for name in supported if name != "embed" and not (generates and name == "fill-mask")]
        if len(defaults) == 1:
            return defaults[0]
        if defaults:
            raise UsageError(f"this model supports several tasks; name one of {', '.join(supported)}")
        if generates:
            raise UsageError(
                f"this is a generation model; use `trifold generate`, or name a task ({', '.join(supported)})"
            )
        return "embed"
    if task not in TASKS:
        raise UsageError(f"task {task!r} is not known{nearest(task, list(TASKS), 'tasks')}")
    if task not in supported:
        head = TASKS[task].head
        needed = "a bidirectional language-model head" if head == "lm" else f"a {head} head"
        heads = ", ".join(config.chosen_heads) or "none"
        raise UsageError(
            f"task {task}: requires {needed}; this model has the heads: {heads}; it supports {', '.join(supported)}"
        )
    return task


class Predicts:
    """Prediction methods of a pipeline. A single text gives one prediction, several texts give a list.

    All methods take the options of `ModelReader`: `on_overflow` ("error" or "truncate") for texts that are too long,
    `batch_tokens`, and the callbacks `on_done` and `on_cut`. Image models take file paths or Pillow images.

    All raise DataError for input that cannot be read and UsageError for tasks that the model does not support.
    """

    model: Transformer
    tokenizer: Tokenizer | None
    pictures: ImageSettings | None

    def predict(
        self, texts: Any, pairs: str | Sequence[str] | None = None, *, task: str | None = None, **options: Any
    ) -> Any:
        """The prediction of the model's head, or of `task`; the methods below, named like the tasks, describe it.

        pairs: the second text of each input, or one for all.
        """
        name = choose_task(self.model.config, task)
        chosen = TASKS[name]
        single = isinstance(texts, str) or not hasattr(texts, "__iter__")
        inputs = [texts] if single else list(texts)
        reader_options = {key: options.pop(key) for key in READER_OPTIONS if key in options}
        if reader_options.get("on_overflow", "error") not in ("error", "truncate"):
            raise UsageError(f"on_overflow: {reader_options['on_overflow']!r} is neither error nor truncate")
        for option in options:
            if option not in chosen.options:
                hint = nearest(option, list(chosen.options), "options") if chosen.options else ""
                raise UsageError(f"{option}: not an option of {name}{hint}")
        reader = ModelReader(self.model, self.tokenizer, self.pictures, **reader_options)
        found = chosen.run(reader, inputs, *_pairs(name, inputs, pairs), **options)
        return found[0] if single else found

    @overload
    def fill_mask(self, texts: str, *, top_k: int = 5, **how: Any) -> list[list[Filling]]: ...
    @overload
    def fill_mask(self, texts: Sequence[str], *, top_k: int = 5, **how: Any) -> list[list[list[Filling]]]: ...

    def fill_mask(self, texts: str | Sequence[str], *, top_k: int = 5, **how: Any) -> Any:
        """For each mask of the text the `top_k` most probable tokens, best first, each with the resulting text."""
        return self.predict(texts, task="fill-mask", top_k=top_k, **how)

    @overload
    def classify(
        self, texts: str | Path, pairs: str | None = None, *, top_k: int | None = 5, **how: Any
    ) -> list[Label]: ...
    @overload
    def classify(
        self,
        texts: Sequence[Any],
        pairs: str | Sequence[str] | None = None,
        *,
        top_k: int | None = 5,
        **how: Any,
    ) -> list[list[Label]]: ...

    def classify(self, texts: Any, pairs: Any = None, *, top_k: int | None = 5, **how: Any) -> Any:
        """The `top_k` most probable classes (None: all) of a text, a pair of texts or an image, best first."""
        return self.predict(texts, pairs, task="classify", top_k=top_k, **how)

    @overload
    def tag(self, texts: str, *, merge: Merge = "first", **how: Any) -> list[Tag]: ...
    @overload
    def tag(self, texts: Sequence[str], *, merge: Merge = "first", **how: Any) -> list[list[Tag]]: ...

    def tag(self, texts: str | Sequence[str], *, merge: Merge = "first", **how: Any) -> Any:
        """Classes of words with their positions; adjacent words of one class form a tag. `ignore` defaults to O.

        merge: none, simple, first, average or max, as in the pipelines of transformers (`predict.tag`).
        """
        return self.predict(texts, task="tag", merge=merge, **how)

    @overload
    def answer(self, questions: str, contexts: str, *, top_k: int = 1, **how: Any) -> list[Answer]: ...
    @overload
    def answer(
        self, questions: Sequence[str], contexts: str | Sequence[str], *, top_k: int = 1, **how: Any
    ) -> list[list[Answer]]: ...

    def answer(self, questions: Any, contexts: Any, *, top_k: int = 1, **how: Any) -> Any:
        """The `top_k` most probable answers to a question, as spans of its context.

        Further options: max_answer_length, impossible, max_length and stride (`predict.answer`).
        """
        return self.predict(questions, contexts, task="answer", top_k=top_k, **how)

    @overload
    def next_sentence(self, texts: str, pairs: str, **how: Any) -> Follows: ...
    @overload
    def next_sentence(
        self, texts: Sequence[str], pairs: str | Sequence[str], **how: Any
    ) -> list[Follows]: ...

    def next_sentence(self, texts: Any, pairs: Any, **how: Any) -> Any:
        """Whether the second text follows the first, with its probability."""
        return self.predict(texts, pairs, task="next-sentence", **how)

    @overload
    def embed(
        self, texts: str | Path, *, pooling: Pooling = "mean", normalise: bool = False, **how: Any
    ) -> Tensor: ...
    @overload
    def embed(
        self, texts: Sequence[Any], *, pooling: Pooling = "mean", normalise: bool = False, **how: Any
    ) -> list[Tensor]: ...

    def embed(self, texts: Any, *, pooling: Pooling = "mean", normalise: bool = False, **how: Any) -> Any:
        """One vector (E,) in float32 for a text or an image; of length 1 with `normalise`.

        pooling: the mean of the states, the first state (cls), the last state, or the pooler's output.
        """
        return self.predict(texts, task="embed", pooling=pooling, normalise=normalise, **how)


def _pairs(name: str, texts: Sequence[Any], pairs: Any) -> list[list[str]]:
    """The second texts as a list of zero or one argument."""
    needed = TASKS[name].pairs
    if pairs is None:
        if needed == "must":
            raise UsageError(f"{name} reads pairs of texts; give the second texts too")
        return []
    if needed == "never":
        raise UsageError(f"{name} reads single texts; remove the second texts")
    given = [pairs] * len(texts) if isinstance(pairs, str) else list(pairs)
    if len(given) != len(texts):
        raise UsageError(
            f"{len(texts):,} texts and {len(given):,} second texts; give one for each, or one for all"
        )
    return [given]
