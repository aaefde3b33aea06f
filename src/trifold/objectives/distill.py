"""Distillation: a student learns from a larger teacher that was trained on the same objective
(Hinton et al. 2015).

rows -> batch      those of the wrapped objective
loss               the wrapped objective's, plus terms over all input tokens (of a translation those
                   of the target; the soft targets of a classification are those of its classes):
                   soft targets and the cosine of the last states
                                                   DistilBERT: Sanh et al. 2019, section 3
                   attention and value relations of one layer       MiniLM: Wang et al. 2020; 2021
scores             those of the wrapped objective, for the student alone

The teacher reads the same inputs, without dropout, and is not trained.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from trifold.errors import SettingsError
from trifold.folders import named
from trifold.hub import load_model, read_config, resolve
from trifold.nn import ModelConfig, Transformer
from trifold.nn.attention import Attention
from trifold.nn.config import SINGLE
from trifold.nn.hooks import ModuleCall, record_calls
from trifold.nn.parts import AttentionPart, WalkPart, part_of, rules_of
from trifold.nn.stack import Stack
from trifold.objectives import distillation_losses
from trifold.objectives.batch import Batch, Examples, LossTerm
from trifold.objectives.causal import CausalSettings
from trifold.objectives.classify import ClassifySettings
from trifold.objectives.evaluation import ConstantAnswer, EvalContext, Evaluation
from trifold.objectives.masked import MaskedSettings
from trifold.objectives.objective import (
    BuildContext,
    Objective,
    ObjectiveSettings,
    TaskBundle,
)
from trifold.objectives.translate import TranslateSettings
from trifold.settings import Settings
from trifold.text import Truncation
from trifold.text.folder import read_tokenizers
from trifold.text.spans import Ids
from trifold.text.tokenizer import TARGET_TOKENIZER_FILE, TOKENIZER_FILE

Result = TypeVar("Result")

# --- settings -> rows -----------------------------------------------------------------------------


class RelationWeights(Settings):
    """Weights of the divergences between the relations of student and teacher in one layer; 0
    disables one.
    """

    attention: float = Field(0.0, ge=0, description="weight of query-key relations (MiniLM)")
    values: float = Field(
        0.0, ge=0, description="weight of value-value relations (MiniLM, both versions)"
    )
    queries: float = Field(0.0, ge=0, description="weight of query-query relations (MiniLMv2)")
    keys: float = Field(0.0, ge=0, description="weight of key-key relations (MiniLMv2)")
    heads: int | None = Field(
        None,
        gt=0,
        description="heads that vectors are split into; by default the models' own, equal in both",
    )
    teacher_layer: int | None = Field(
        None, ge=0, description="the teacher's layer from 0; default: the last"
    )

    @property
    def weights(self) -> dict[str, float]:
        """The non-zero weights, by name."""
        names = ("attention", "values", "queries", "keys")
        return {name: weight for name in names if (weight := getattr(self, name))}


class DistillSettings(ObjectiveSettings):
    """Settings of distillation. The default weights are those of DistilBERT's published run."""

    kind: Literal["distill"] = "distill"
    wraps = True

    of: CausalSettings | MaskedSettings | ClassifySettings | TranslateSettings = Field(
        CausalSettings(),
        discriminator="kind",
        description="the objective of both models, selected by its kind",
    )
    teacher: str = Field(description="the teacher: a run, a model folder, or a hub id")
    temperature: float = Field(2.0, gt=0, description="divides the logits of both models")
    soft: float = Field(
        5.0, ge=0, description="weight of the divergence from the teacher's probabilities"
    )
    hard: float = Field(2.0, ge=0, description="weight of the objective's own loss")
    cosine: float = Field(
        1.0, ge=0, description="weight of the cosine loss of the last states; requires equal widths"
    )
    relations: RelationWeights = Field(
        RelationWeights(), description="weights of the divergences of one layer's relations"
    )
    start: Literal["new", "spread"] | Annotated[tuple[int, ...], Field(strict=False)] = Field(
        "new",
        description="initial weights of the student: random, or copies of layers of the "
        "teacher: a list of numbers from 0, or spread evenly",
    )

    @classmethod
    def initial_model(cls, task: Mapping[str, Any]) -> ModelConfig | None:
        """The teacher's config with the number of copied layers: half of them if they are spread,
        as in DistilBERT.
        """
        start = task.get("start", "new")
        teacher = task.get("teacher")
        if start == "new" or not isinstance(teacher, str):
            return None
        config = read_config(resolve(teacher))
        if config.block_of_layer is not None:  # one block may be many layers
            return config
        count = max(1, config.n_layers // 2)
        if isinstance(start, list | tuple):
            count = len(start)
        return config.model_copy(update={"n_layers": count})

    @property
    def best_by(self) -> str:
        return self.of.best_by

    @property
    def evaluated(self) -> ObjectiveSettings:
        """The wrapped objective: the student is evaluated without its teacher."""
        return self.of

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        if not (self.soft or self.cosine or self.relations.weights):
            raise ValueError(
                "soft, cosine and all relations are 0: the teacher would have no effect"
            )
        return self

    def build(self, context: BuildContext) -> TaskBundle:
        """The student uses the teacher's tokenizer, whatever the recipe specifies: their
        probabilities are compared token by token. Raises SettingsError if teacher and student do
        not fit together.
        """
        folder = resolve(self.teacher)
        reader, writer = read_tokenizers(folder)
        if reader is None:
            raise SettingsError(f"task.teacher: {self.teacher} has no tokenizer")
        if not (named(context.folder) / TOKENIZER_FILE).exists():
            context.report(f"tokenizer: that of the teacher, {self.teacher}")
            own = named(context.folder).path
            own.mkdir(parents=True, exist_ok=True)
            reader.save(own)
            if writer is not None:
                writer.save(own, TARGET_TOKENIZER_FILE)
        joint = context.tokenizer.model_copy(update={"joint": writer is None})
        teacher, _ = load_model(folder)
        # The labels in the order of the teacher's.
        bundle = self.of.build(replace(context, tokenizer=joint, start=teacher.config))
        if teacher.config.vocab_size > bundle.config.vocab_size:  # rows without a token
            sizes = {"vocab_size": teacher.config.vocab_size}
            bundle = replace(bundle, config=bundle.config.model_copy(update=sizes))
        if problem := next(self._mismatches(bundle.config, teacher), None):
            raise SettingsError(problem)
        bundle = replace(bundle, objective=Distill(self, bundle.objective, teacher))
        if self.start == "new":
            return bundle
        steps: list[Callable[[Transformer], None]] = [partial(self._copy_layers, teacher=teacher)]
        if bundle.initialize is not None:
            steps.append(bundle.initialize)
        return replace(bundle, initialize=partial(_initialize, steps))

    def _mismatches(self, student: ModelConfig, model: Transformer) -> Iterator[str]:
        """Reasons why student and teacher cannot be compared."""
        teacher = model.config
        name = f"task.teacher: {self.teacher}"
        if teacher.shape != student.shape:
            yield (
                f"{name} has shape {teacher.shape}, the student {student.shape}; they must be equal"
            )
        if teacher.word_matches != student.word_matches:
            reads = "compares" if teacher.word_matches else "does not compare"
            yield (
                f"{name} {reads} the words of both texts (model.word_matches), unlike the student; "
                f"set model.word_matches={str(teacher.word_matches).lower()}"
            )
        if self.of.kind == "classify":
            yield from self._mismatches_of_labels(student, teacher)
        elif model.lm_head is None:
            yield f"{name} has no language-model head; choose another teacher"
        if teacher.vocab_size != student.vocab_size:
            yield (
                f"{name} has {teacher.vocab_size:,} tokens, but its tokenizer "
                f"{student.vocab_size:,}; they do not belong together"
            )
        if teacher.max_positions < student.max_positions:
            yield (
                f"{name} has {teacher.max_positions:,} positions, the student "
                f"{student.max_positions:,}; set model.max_positions={teacher.max_positions}"
            )
        teacher = teacher.output_side
        student = student.output_side
        if self.cosine and teacher.d_model != student.d_model:
            yield (
                f"task.cosine: the states of the student have width {student.d_model}, those of "
                f"the teacher {teacher.d_model}; set task.cosine=0, or "
                f"model.d_model={teacher.d_model}"
            )
        if self.relations.weights:
            yield from self._mismatches_of_relations(
                student, teacher, len(last_stack(model).block_of_layer)
            )

    def _mismatches_of_labels(self, student: ModelConfig, teacher: ModelConfig) -> Iterator[str]:
        """Reasons why the probabilities of the labels cannot be compared."""
        name = f"task.teacher: {self.teacher}"
        if "sequence" not in teacher.chosen_heads:
            yield f"{name} has no head for classes; choose a classifier"
        elif (student.problem_type or SINGLE) != SINGLE:
            yield (
                f"task.of: distillation compares the probabilities of one label per text, and "
                f"the data is for {student.problem_type}; use task.soft=0"
            )
        elif student.labels != teacher.labels:
            yield (
                f"{name} has the labels {', '.join(teacher.labels):.60}, the data "
                f"{', '.join(student.labels):.60}; use data with the teacher's labels"
            )

    def _mismatches_of_relations(
        self, student: ModelConfig, teacher: ModelConfig, layers: int
    ) -> Iterator[str]:
        """Reasons why the relations cannot be compared. layers: how many the teacher has."""
        relations = self.relations
        for who, config in (("student", student), ("teacher", teacher)):
            for part in self._without_relations(config, trains=who == "student"):
                yield f"task.relations cannot compare {part} of the {who}; omit it"
        if relations.heads is None and student.n_heads != teacher.n_heads:
            yield (
                f"task.relations: the student has {student.n_heads} heads, the teacher "
                f"{teacher.n_heads}; set task.relations.heads, which splits both, or model.n_heads"
            )
        widths = [
            config.n_heads * width
            for config in (student, teacher)
            for width in (config.head_width, config.value_width)
        ]
        for width in dict.fromkeys(widths):
            if width % (relations.heads or 1):
                yield f"task.relations.heads: {relations.heads} does not divide the width {width}"
        if relations.teacher_layer is not None and relations.teacher_layer >= layers:
            yield (
                f"task.relations.teacher_layer: {relations.teacher_layer} is not a layer of the "
                f"teacher, which has 0 to {layers - 1}"
            )

    def _without_relations(self, config: ModelConfig, *, trains: bool) -> Iterator[str]:
        """The names of the parts whose relations cannot be compared, in a model that trains or
        not.
        """
        relations = self.relations
        attention = part_of(AttentionPart, config)
        needs_scores = "attention" in relations.weights
        if not attention.has_vectors or (needs_scores and not attention.has_scores):
            yield attention.label(config)
        for rule in rules_of(config):
            if rule.differs_by_head and relations.heads:
                yield f"{rule.label(config)} beside heads"
        walk = part_of(WalkPart, config)
        if trains and not walk.is_recordable:
            yield walk.label(config)

    def _copy_layers(self, student: Transformer, *, teacher: Transformer) -> None:
        counts = (len(last_stack(model).blocks) for model in (student, teacher))
        layers = self.start
        if isinstance(layers, str):
            layers = distillation_losses.evenly_spaced(*counts)
        try:
            distillation_losses.copy_layers(student, teacher, layers)
        except ValueError as error:
            raise SettingsError(
                f"task.start: {error}; give the student the teacher's sizes, or set task.start=new"
            ) from None


def _initialize(steps: Sequence[Callable[[Transformer], None]], student: Transformer) -> None:
    """Set the initial weights of a student, one step after the other."""
    for step in steps:
        step(student)


# --- objective ------------------------------------------------------------------------------------


class Distill(Objective):
    """The wrapped objective with additional loss terms that compare student and teacher. Data and
    scores are those of the wrapped objective, for the student alone.
    """

    def __init__(
        self, settings: DistillSettings, objective: Objective, teacher: Transformer
    ) -> None:
        self.settings: DistillSettings = settings
        self.objective = objective
        self.tokenizer = objective.tokenizer
        self.row_name = objective.row_name
        self.read_name = objective.read_name
        self.token_name = objective.token_name
        self.packs = objective.packs
        self.save_options = objective.save_options
        self.generation = objective.generation
        self._teacher = teacher.eval().requires_grad_(False)
        self._lock = threading.Lock()
        self._local = threading.local()

    @cached_property
    def truncation(self) -> Truncation:
        return self.objective.truncation

    @property
    def starts_fitted(self) -> bool:
        return self.objective.starts_fitted

    def examples(self, rows: Any, draw: int | None = None) -> Examples:
        return self.objective.examples(rows, draw)

    def batch(self, examples: Any, rows: Ids, width: int | None = None, *, draw: int = 0) -> Batch:
        return self.objective.batch(examples, rows, width, draw=draw)

    def at_step(self, batch: Any, step: int) -> Any:
        return self.objective.at_step(batch, step)

    def evaluate(
        self, model: Transformer, rows: Any, examples: Any, context: EvalContext
    ) -> Evaluation:
        return self.objective.evaluate(model, rows, examples, context)

    def score_notes(self) -> Sequence[str]:
        return self.objective.score_notes()

    def constant_answer(self, examples: Any) -> ConstantAnswer | None:
        return self.objective.constant_answer(examples)

    def save(self, folder: Path) -> None:
        self.objective.save(folder)

    # --- loss -------------------------------------------------------------------------------------

    def counts(self, batch: Any) -> dict[str, int]:
        """The counts of the wrapped objective, and those of the teacher's terms: input tokens of
        the last stack, or texts for the probabilities of classes.
        """
        tokens = getattr(batch, "target", batch.inputs).packing.n_real
        counts = dict.fromkeys(self._weights, tokens)
        if self._compares_classes and "soft" in counts:
            counts["soft"] = batch.tokens
        return self.objective.counts(batch) | counts

    @property
    def _compares_classes(self) -> bool:
        return self.settings.of.kind == "classify"

    def loss(self, model: Transformer, batch: Any) -> dict[str, LossTerm]:
        """The weighted terms of the wrapped objective, and the teacher's: soft, cosine, and one per
        relation.
        """
        modules: list[nn.Module] = [model]
        if self.settings.relations.weights:
            modules.append(self_attention(model))
        recorded, wrapped = _record(modules, lambda: self.objective.loss(model, batch))
        counts = self.counts(batch)
        weights = self._weights
        hard = self.settings.hard
        compared = self._compare(model, *recorded)
        terms = {name: replace(term, weight=term.weight * hard) for name, term in wrapped.items()}
        return terms | {
            name: LossTerm(total, counts[name], weights[name]) for name, total in compared.items()
        }

    @property
    def _weights(self) -> dict[str, float]:
        """Non-zero weights of the teacher's terms, by name."""
        settings = self.settings
        weights = {"soft": settings.soft, "cosine": settings.cosine, **settings.relations.weights}
        return {name: weight for name, weight in weights.items() if weight}

    def _compare(
        self, student: Transformer, call: ModuleCall, *attention: ModuleCall
    ) -> dict[str, Tensor]:
        """Sums of the losses against the teacher, over the input tokens.

        call: the student's forward pass; attention: that of its compared self-attention, if any.
        """
        settings = self.settings
        names = list(self.settings.relations.weights)
        teacher = self._teacher_like(call.out)
        modules = [self_attention(teacher, settings.relations.teacher_layer)] if names else []
        with torch.no_grad():
            teacher_attention, out = _record(modules, lambda: teacher(*call.args))
        # All of these models read packed rows; an encoder-decoder also the target.
        read = [inputs for inputs in call.args if inputs is not None][-1]
        real = read.packing.n_real
        states = call.out[0, :real]
        teacher_states = out[0, :real]
        losses: dict[str, Tensor] = {}
        if settings.soft and self._compares_classes:
            logits, targets = (
                model.apply_heads(hidden, call.args[0], ["sequence"])["sequence"]
                for model, hidden in ((student, call.out), (teacher, out))
            )
            losses["soft"] = distillation_losses.class_target_loss(
                logits, targets, settings.temperature
            )
        elif settings.soft:
            head = student.lm_head
            teacher_head = teacher.lm_head
            assert head is not None and teacher_head is not None
            losses["soft"] = distillation_losses.soft_target_loss(
                head.features(states),
                head.weight,
                head.bias,
                teacher_head,
                teacher_states,
                settings.temperature,
            )
        if settings.cosine:
            losses["cosine"] = distillation_losses.cosine_loss(states, teacher_states)
        if names:
            ours = distillation_losses.attention_relations(self_attention(student), attention[0])
            theirs = distillation_losses.attention_relations(modules[0], teacher_attention[0])
            losses |= distillation_losses.relation_losses(
                ours, theirs, names, settings.relations.heads
            )
        return losses

    def _teacher_like(self, states: Tensor) -> Transformer:
        """The teacher with the student's precision and device: a copy for this thread, because its
        modules are hooked while they run. The copies share their weights.
        """
        with self._lock:
            if not hasattr(self._local, "teacher"):
                shared = self._teacher.to(device=states.device, dtype=states.dtype)
                weights = (*shared.parameters(), *shared.buffers())
                self._local.teacher = deepcopy(shared, {id(tensor): tensor for tensor in weights})
        teacher: Transformer = self._local.teacher
        return teacher


def self_attention(model: Transformer, layer: int | None = None) -> Attention:
    """The self-attention of a layer of the last stack; by default of its last layer."""
    if layer is None:
        layer = -1
    stack = last_stack(model)
    block = stack.blocks[stack.block_of_layer[layer]]
    attention: Attention = block.self_attention.sublayer  # type: ignore[union-attr, assignment]
    return attention


def last_stack(model: Transformer) -> Stack:
    """The decoder, or the encoder of a model without decoder."""
    stack = model.encoder if model.decoder is None else model.decoder
    assert stack is not None
    return stack


def _record(
    modules: Sequence[nn.Module], run: Callable[[], Result]
) -> tuple[list[ModuleCall], Result]:
    """The last call of each module while `run` runs, and the result of `run`."""
    with ExitStack() as hooks:
        recorded = [hooks.enter_context(record_calls(module)) for module in modules]
        result = run()
    return [calls[-1] for calls in recorded], result
