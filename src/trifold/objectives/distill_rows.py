"""From a recipe to a student: the teacher, its tokenizer, the task that both learn, where the student begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from trifold.errors import SettingsError
from trifold.hub import load_model, resolve
from trifold.nn import ModelConfig, Transformer
from trifold.nn.distillation import copy_layers, spread
from trifold.objectives.causal_rows import causal
from trifold.objectives.distill import Distill, DistillSettings, last_stack
from trifold.objectives.pretraining_rows import masked
from trifold.objectives.task import Asked, Material
from trifold.objectives.tokenizers import FILE
from trifold.text import read_tokenizer

# What can be wrapped.
WRAPPED: dict[str, Callable[[Any, Asked], Material]] = {"causal": causal, "masked": masked}


def distillation(settings: DistillSettings, asked: Asked) -> Material:
    """Load the teacher, read what both learn from. The student reads with the teacher's tokenizer, whatever the recipe
    says of one: their probabilities are compared token by token.

    Raises SettingsError where teacher and student do not fit, and what the task that is wrapped raises.
    """
    folder = resolve(settings.teacher)
    if not (asked.folder / FILE).is_file():
        asked.say(f"tokenizer: that of the teacher, {settings.teacher}")
        _keep_tokenizer(folder, asked.folder)
    material = WRAPPED[settings.of.kind](settings.of, asked)
    teacher, _ = load_model(folder)
    _refuse_unlike(settings, material.config, teacher)
    task = Distill(settings, material.task, teacher)

    def start(student: Transformer) -> None:
        _begin(student, teacher, settings)

    return replace(material, task=task, start=None if settings.start == "new" else start)


def _keep_tokenizer(teacher: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    read_tokenizer(teacher).save(folder)


def _refuse_unlike(settings: DistillSettings, student: ModelConfig, teacher: Transformer) -> None:
    """What cannot be compared, before anything is learnt."""
    theirs, relations = teacher.config, settings.relations
    name = f"task.teacher: {settings.teacher}"
    if theirs.shape != student.shape:
        raise SettingsError(f"{name} is of shape {theirs.shape}, and the student of shape {student.shape}")
    if teacher.lm_head is None:
        raise SettingsError(f"{name} has no language-model head: it says nothing of words")
    if theirs.vocab_size != student.vocab_size:
        raise SettingsError(
            f"{name} has {theirs.vocab_size:,} tokens, and its tokenizer {student.vocab_size:,}: "
            "they do not belong together"
        )
    if theirs.max_positions < student.max_positions:
        raise SettingsError(
            f"{name} reads {theirs.max_positions:,} tokens and the student {student.max_positions:,}: "
            f"set model.max_positions={theirs.max_positions}"
        )
    if student.logit_soft_cap is not None:
        raise SettingsError(
            "model.logit_soft_cap: the student's logits are never whole in training; leave it out"
        )
    if settings.cosine and theirs.d_model != student.d_model:
        raise SettingsError(
            f"task.cosine: states of width {student.d_model} have no angle with the teacher's of width "
            f"{theirs.d_model}; set task.cosine=0, or model.d_model={theirs.d_model}"
        )
    if relations.weighed:
        _refuse_heads(relations.heads, student, theirs)
        layers = len(last_stack(teacher).order)
        if relations.teacher_layer is not None and relations.teacher_layer >= layers:
            raise SettingsError(
                f"task.relations.teacher_layer: {relations.teacher_layer} of a teacher whose layers are "
                f"0 to {layers - 1}"
            )


def _refuse_heads(heads: int | None, student: ModelConfig, teacher: ModelConfig) -> None:
    if heads is None:
        if student.n_heads != teacher.n_heads:
            raise SettingsError(
                f"task.relations: {student.n_heads} heads of the student beside {teacher.n_heads} of the teacher; set "
                "task.relations.heads, into which both are cut anew, or model.n_heads"
            )
        return
    for config in (student, teacher):
        width = config.n_heads * config.head_width
        if width % heads:
            raise SettingsError(f"task.relations.heads: {heads} does not divide a width of {width}")


def _begin(student: Transformer, teacher: Transformer, settings: DistillSettings) -> None:
    mine, theirs = (len(last_stack(model).blocks) for model in (student, teacher))
    layers = spread(mine, theirs) if isinstance(settings.start, str) else settings.start
    try:
        copy_layers(student, teacher, layers)
    except ValueError as error:
        raise SettingsError(
            f"task.start: {error}; give the student the teacher's sizes, or set task.start=new"
        ) from None
