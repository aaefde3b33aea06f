"""What a loaded model says of what it reads: which tasks its heads can do, and a method for each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

from torch import Tensor

from trifold.data.pictures import PictureSettings
from trifold.errors import UsageError
from trifold.nn import ModelConfig, Transformer
from trifold.nn.config import Head
from trifold.objectives.classify import Label, classify
from trifold.predict.answer import Answer, answer
from trifold.predict.embed import Pooling, embed
from trifold.predict.fill_mask import Filling, fill_mask
from trifold.predict.next_sentence import Follows, next_sentence
from trifold.predict.reading import Reading
from trifold.predict.tag import Merge, Tag, tag
from trifold.settings import nearest
from trifold.text import Tokenizer


class Task(NamedTuple):
    """How a task is done, the head that it needs, and whether it reads pairs of texts."""

    run: Callable[..., list[Any]]
    head: Head | None
    pairs: Literal["never", "may", "must"]

    @property
    def options(self) -> tuple[str, ...]:
        """The names of what may be asked besides."""
        return tuple(inspect.signature(self.run).parameters)[3 if self.pairs != "never" else 2 :]


TASKS: dict[str, Task] = {
    "fill-mask": Task(fill_mask, "lm", "never"),
    "classify": Task(classify, "sequence", "may"),
    "tag": Task(tag, "token", "never"),
    "answer": Task(answer, "span", "must"),
    "next-sentence": Task(next_sentence, "next-sentence", "must"),
    "embed": Task(embed, None, "may"),
}

# Options of every task: those of Reading.
HOW = ("batch_tokens", "on_overflow", "places", "on_done", "on_cut")


def tasks_of(config: ModelConfig) -> list[str]:
    """What a model with these heads can do; every one can embed, and who only looks back fills no masks."""
    heads = config.chosen_heads if config.shape != "decoder" else set(config.chosen_heads) - {"lm"}
    return [name for name, task in TASKS.items() if task.head is None or task.head in heads]


def choose(config: ModelConfig, task: str | None) -> str:
    """The task that is asked for, or the one that the heads are for.

    Raises UsageError for a task that is not known or that the model cannot do, and where nothing is asked for and the
    heads are for several tasks, or for writing.
    """
    can = tasks_of(config)
    if task is None:
        writes = "lm" in config.chosen_heads and config.shape != "encoder"
        for_heads = [name for name in can if name != "embed" and not (writes and name == "fill-mask")]
        if len(for_heads) == 1:
            return for_heads[0]
        if for_heads:
            raise UsageError(f"this model can do several tasks: name one of {', '.join(can)}")
        if writes:
            raise UsageError(f"this model writes: use `generate`, or name a task ({', '.join(can)})")
        return "embed"
    if task not in TASKS:
        raise UsageError(f"task {task!r} is not known{nearest(task, list(TASKS), 'tasks')}")
    if task not in can:
        heads = ", ".join(config.chosen_heads) or "none"
        raise UsageError(
            f"task {task}: it needs {_needs(task)}, and this model's heads are: {heads}; it can {', '.join(can)}"
        )
    return task


def _needs(task: str) -> str:
    head = TASKS[task].head
    return "a language-model head that looks both ways" if head == "lm" else f"a {head} head"


class Predicts:
    """The half of a pipeline that reads; `Reading` says how. A text gives one prediction, several give a list.

    What all methods take besides: `on_overflow` ("error", or "truncate"), what becomes of a text that is too long;
    `batch_tokens`, how many tokens go through the model at once; `on_done` and `on_cut`, which hear of progress and of
    what was cut. Models of pictures take paths of files, or pictures of Pillow's, for texts.

    All raise DataError for what cannot be read and UsageError for what the model cannot do.
    """

    model: Transformer
    tokenizer: Tokenizer | None
    pictures: PictureSettings | None

    def predict(
        self, texts: Any, pairs: str | Sequence[str] | None = None, *, task: str | None = None, **options: Any
    ) -> Any:
        """What the model's head says (or that of `task`); the methods below, which are named for the tasks, say what.

        pairs: the second text of each, or one for all.
        """
        name = choose(self.model.config, task)
        chosen = TASKS[name]
        single = isinstance(texts, str) or not hasattr(texts, "__iter__")
        inputs = [texts] if single else list(texts)
        how = {key: options.pop(key) for key in HOW if key in options}
        if how.get("on_overflow", "error") not in ("error", "truncate"):
            raise UsageError(f"on_overflow: {how['on_overflow']!r} is neither error nor truncate")
        for option in options:
            if option not in chosen.options:
                known = list(chosen.options)
                raise UsageError(
                    f"{option}: no option of {name}" + (nearest(option, known, "options") if known else "")
                )
        reading = Reading(self.model, self.tokenizer, self.pictures, **how)
        found = chosen.run(reading, inputs, *_pairs(name, inputs, pairs), **options)
        return found[0] if single else found

    @overload
    def fill_mask(self, texts: str, *, top_k: int = 5, **how: Any) -> list[list[Filling]]: ...
    @overload
    def fill_mask(self, texts: Sequence[str], *, top_k: int = 5, **how: Any) -> list[list[list[Filling]]]: ...

    def fill_mask(self, texts: str | Sequence[str], *, top_k: int = 5, **how: Any) -> Any:
        """For each mask of the text the `top_k` likeliest tokens, best first, each with the text that it makes."""
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
        """The `top_k` likeliest classes (None: all) of a text, a pair of texts or a picture, best first."""
        return self.predict(texts, pairs, task="classify", top_k=top_k, **how)

    @overload
    def tag(self, texts: str, *, merge: Merge = "first", **how: Any) -> list[Tag]: ...
    @overload
    def tag(self, texts: Sequence[str], *, merge: Merge = "first", **how: Any) -> list[list[Tag]]: ...

    def tag(self, texts: str | Sequence[str], *, merge: Merge = "first", **how: Any) -> Any:
        """Classes of words with their places in the text, neighbours of one class together; `ignore` leaves out O.

        merge: none, simple, first, average or max, as the reference's pipelines have it (`tasks.tag`).
        """
        return self.predict(texts, task="tag", merge=merge, **how)

    @overload
    def answer(self, questions: str, contexts: str, *, top_k: int = 1, **how: Any) -> list[Answer]: ...
    @overload
    def answer(
        self, questions: Sequence[str], contexts: str | Sequence[str], *, top_k: int = 1, **how: Any
    ) -> list[list[Answer]]: ...

    def answer(self, questions: Any, contexts: Any, *, top_k: int = 1, **how: Any) -> Any:
        """The `top_k` likeliest answers to a question, as spans of its context; a long context is read in parts.

        `how` may hold max_answer_length, impossible, max_length and stride (`tasks.answer`).
        """
        return self.predict(questions, contexts, task="answer", top_k=top_k, **how)

    @overload
    def next_sentence(self, texts: str, pairs: str, **how: Any) -> Follows: ...
    @overload
    def next_sentence(
        self, texts: Sequence[str], pairs: str | Sequence[str], **how: Any
    ) -> list[Follows]: ...

    def next_sentence(self, texts: Any, pairs: Any, **how: Any) -> Any:
        """Whether the second text follows the first, with the probability that it does."""
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
        """One vector (E,) in float32 for a text or a picture; with `normalise`, of length 1.

        pooling: the mean of the states, the first (cls), the last, or the pooler's vector.
        """
        return self.predict(texts, task="embed", pooling=pooling, normalise=normalise, **how)


def _pairs(name: str, texts: Sequence[Any], pairs: Any) -> list[list[str]]:
    """The second texts as an argument, where there are any."""
    wanted = TASKS[name].pairs
    if pairs is None:
        if wanted == "must":
            raise UsageError(f"{name} reads two texts: give the second ones too")
        return []
    if wanted == "never":
        raise UsageError(f"{name} reads one text at a time: leave the second ones out")
    given = [pairs] * len(texts) if isinstance(pairs, str) else list(pairs)
    if len(given) != len(texts):
        raise UsageError(
            f"{len(texts):,} texts and {len(given):,} second texts: give one for each, or one for all"
        )
    return [given]
