"""Tasks of a decoder that writes a text for another one: a prompt, and the target after it.

rows -> example    <s> + the prompt, filled with the texts of the row;  target + </s>
example -> batch   prompt and target as one row, without its last token; labels: the target, nothing
                   at the tokens of the prompt
loss               - Σ log P(y_t | prompt, y_<t) over the target tokens
scores             those of the task, for outputs that follow the prompts
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from pydantic import Field, field_validator
from torch import Tensor

from trifold.data import Rows
from trifold.errors import DataError, SettingsError
from trifold.generation_config import GenerationConfig
from trifold.nn import ModelConfig, Transformer
from trifold.objectives.batch import Batch, LossTerm, pack, pad_end, token_loss
from trifold.objectives.evaluation import EvalRun
from trifold.objectives.objective import (
    AnyRows,
    BuildContext,
    Objective,
    ObjectiveSettings,
    TaskBundle,
)
from trifold.predict.generate_texts import generate_rows
from trifold.ragged import Ragged, positions
from trifold.text import Tokenizer
from trifold.text.annotation import count_unknown
from trifold.text.prompts import Prompt, encode_prompts
from trifold.text.spans import Ids

# The field of each settings class of such a task.
PROMPT: str | None = Field(
    None,
    description="of a decoder: what it reads, with the names of the texts in braces; the target "
    "follows",
)

# --- settings -------------------------------------------------------------------------------------


class PromptSettings(ObjectiveSettings):
    """Base of the settings of tasks that a decoder learns by a prompt; each has a field `prompt`.

    default_prompt: of a recipe without one. prompt_names: the texts of a row that it names.
    """

    default_prompt: ClassVar[str]
    prompt_names: ClassVar[Sequence[str]] = ("source",)

    @field_validator("prompt", mode="before", check_fields=False)
    @classmethod
    def _check_prompt(cls, value: Any) -> Any:
        return None if value is None else Prompt.parse(value, cls.prompt_names).text

    @property
    def chosen_prompt(self) -> Prompt:
        """That of the recipe, or the default one."""
        return Prompt(getattr(self, "prompt", None) or self.default_prompt)

    def model_problem(self, config: ModelConfig) -> str | None:
        if config.shape != "decoder" and getattr(self, "prompt", None) is not None:
            return (
                f"task.prompt: has no effect on a model of shape {config.shape}; remove it, or set "
                "model.shape=decoder"
            )
        return super().model_problem(config)


def load_tokenizer(
    context: BuildContext, prompt: Prompt, values: Callable[[], Sequence[Any]], targets: Any
) -> tuple[Tokenizer, ModelConfig]:
    """The tokenizer of a task with prompts, a new one trained on filled prompts and targets, and
    the config of the model. values: what fills the prompts.

    Raises SettingsError for settings that two sides or draws of merges need.
    """
    for key, unused in (
        ("joint", not context.tokenizer.joint),
        ("dropout", context.tokenizer.dropout),
    ):
        if unused:
            raise SettingsError(
                f"tokenizer.{key}: not supported with a decoder, which reads prompt and target as "
                "one text; remove it"
            )
    tokenizer = context.load_or_train_tokenizer(
        lambda: [*map(prompt.fill, values()), *targets], prepend_bos=True
    )
    template = tokenizer.encode([prompt.fill(dict.fromkeys(prompt.names, " "))])[0]
    if unknown := count_unknown(tokenizer, np.array(template)):
        context.report(
            f"task.prompt: {unknown} of its {len(template)} tokens are unknown to the tokenizer; "
            "another prompt may be clearer"
        )
    return tokenizer, context.config_for(tokenizer)


# --- examples -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PromptedExamples:
    """Rows of a prompt and a target with </s>. prompts (N,): tokens of each prompt."""

    tokens: Ragged
    prompts: Ids

    @property
    def lengths(self) -> Ids:
        """(N, 1) tokens that the model reads: all but the last one."""
        return self.tokens.lengths[:, None] - 1

    @property
    def sources(self) -> Ragged:
        """The prompts."""
        return self.tokens.select(np.arange(len(self.prompts)), self.prompts)

    def select(self, rows: Ids) -> PromptedExamples:
        """The given examples."""
        return PromptedExamples(self.tokens.select(rows), self.prompts[rows])


class Prompted(Objective):
    """Base of the tasks of a decoder; a subclass has their scores.

    width: the most tokens of a row, to which prompts are shortened; None if they are not.
    """

    read_name = "tokens"
    token_name = "target tokens"
    predicts_tokens = True
    save_options = {"prepend_bos": True}  # noqa: RUF012

    def __init__(self, settings: Any, tokenizer: Tokenizer, width: int | None = None) -> None:
        self.settings = settings
        self.tokenizer = tokenizer
        self.source = tokenizer  # one for both sides
        self.target = tokenizer
        self.prompt: Prompt = settings.chosen_prompt
        self.width = width
        self.generation = {"prompt": self.prompt.text}

    def encode_rows(self, rows: Rows, draw: int | None = None) -> PromptedExamples:
        """Prompts and targets; a text in a prompt is shortened so that the row has `width` tokens,
        a target never is.
        """
        targets = self._targets(rows)
        values = self._values(rows)
        sizes = self._rooms(targets)
        longest = getattr(self.settings, "max_source", None)  # of a summary
        if self.width is not None and longest is not None:
            bare = map(len, self._encode_bare(values))
            sizes = [min(room, size + longest) for room, size in zip(sizes, bare, strict=True)]
        found = encode_prompts(self.prompt, values, sizes, self.tokenizer, self._encode)
        self.truncation.add(found.dropped)
        joined = [[*before, *after] for before, after in zip(found.rows, targets, strict=True)]
        prompts = np.array([*map(len, found.rows)], dtype=np.int64)
        return PromptedExamples(Ragged.of(joined), prompts)

    def fitting(self, rows: AnyRows, report: Callable[[str], None]) -> AnyRows:
        """The rows whose target fits beside the template and at least one token of the text.
        Reports how many are left out; raises DataError if none is left.
        """
        if self.width is None:
            return rows
        bare = self._encode_bare(self._values(rows))
        rooms = self._rooms(self._targets(rows))
        kept = [row for row, ids in enumerate(bare) if len(ids) < rooms[row]]
        if len(kept) == len(rows):
            return rows
        name = rows.report.name
        left_out = f"{len(rows) - len(kept):,} of {len(rows):,} {self.row_name}"
        why = f"have a target that leaves no room for the text in {self.width:,} tokens"
        if not kept:
            raise DataError(f"{name}: {left_out} {why}; raise model.max_positions")
        report(f"{name}: {left_out} {why}: left out")
        return rows.select(kept, name)

    def _values(self, rows: Any) -> list[dict[str, str]]:
        """What fills the prompt of each row."""
        names = self.prompt.names
        columns = (rows.columns[name] for name in names)
        return [dict(zip(names, texts, strict=True)) for texts in zip(*columns, strict=True)]

    def _encode_bare(self, values: Sequence[dict[str, str]]) -> list[list[int]]:
        """Prompts without the text that may be shortened."""
        return self._encode(
            [self.prompt.fill({**one, self.prompt.shortened: ""}) for one in values]
        )

    def _targets(self, rows: Any) -> list[list[int]]:
        end = self.tokenizer.required("eos")
        return [[*ids, end] for ids in self.prompt.ids_of_target(self.tokenizer, rows.targets)]

    def _rooms(self, targets: Sequence[Sequence[int]]) -> list[int]:
        """The tokens that each target leaves for its prompt; the last one is not read."""
        most = sys.maxsize if self.width is None else self.width
        return [most + 1 - len(target) for target in targets]

    def _encode(self, texts: list[str]) -> list[list[int]]:
        start = self.tokenizer.required("bos")
        return [[start, *ids] for ids in self.tokenizer.encode(texts)]

    def batch(
        self, examples: PromptedExamples, rows: Ids, width: int | None = None, *, draw: int = 0
    ) -> Batch:
        """Pack the given rows, of which the last `width` tokens are read if given."""
        tokens = examples.tokens
        starts = tokens.starts[rows]
        sizes = tokens.lengths[rows] - 1
        cut = np.zeros_like(sizes)
        if width is not None:
            cut = np.maximum(sizes - width, 0)
        indices = positions(starts + cut, sizes - cut)
        inputs, packing = pack(tokens.ids[indices], sizes - cut, self.tokenizer.padding_id)
        first_target = np.repeat(starts + examples.prompts[rows], sizes - cut)
        labels = np.where(indices + 1 >= first_target, tokens.ids[indices + 1], -1)
        return Batch(inputs, pad_end(labels, packing.length, -1), int((labels >= 0).sum()))

    # --- loss, outputs ----------------------------------------------------------------------------

    def token_states(self, model: Transformer, batch: Batch) -> Tensor:
        states: Tensor = model(batch.inputs)[0]
        return states

    def loss(self, model: Transformer, batch: Batch) -> dict[str, LossTerm]:
        smoothing = getattr(self.settings, "label_smoothing", 0.0)  # of answers
        return {"tokens": token_loss(model, self.token_states(model, batch), batch, smoothing)}

    def outputs(
        self, run: EvalRun, prompts: Ragged, search: GenerationConfig | None = None
    ) -> list[str]:
        """What the model writes after each prompt; by default greedily, which measures the weights
        and no search.
        """
        search = search or GenerationConfig(max_new_tokens=run.context.generation.max_new_tokens)
        search = search.model_copy(update=self.generation)
        found = generate_rows(
            run.model, prompts, search, codec=self.tokenizer, poll=run.context.poll
        )
        texts = self.tokenizer.decode([best[0].tokens for best in found])
        return [text.lstrip() for text in texts]


def bundle_prompted(
    context: BuildContext, objective: Prompted, config: ModelConfig, train: Any, valid: Any
) -> TaskBundle:
    """The task with the rows that the model can learn and read."""
    train = objective.fitting(train, context.report)
    examples = objective.examples(valid)
    remedy = ", or set batch.on_overflow=truncate"
    valid = context.select_readable(valid, examples, objective.row_name, remedy)
    return TaskBundle(objective, config, train, valid)
