"""Looking up from training: average the last weights, measure them on validation data, keep the best."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trifold import disk
from trifold.batches import plan_epoch
from trifold.batches.plan import Plan
from trifold.generate import GenerationConfig
from trifold.hub import save_model
from trifold.nn import Transformer
from trifold.train import checkpoint
from trifold.train.run_folder import RunFolder
from trifold.train.setup import Prepared, save_tokenizers
from trifold.train.view import Validated


class Interrupted(Exception):
    """A signal came while validating; the loop saves and ends."""


class Best(NamedTuple):
    """The best validation so far; `since` counts the validations that were not better."""

    score: float | None = None
    step: int = 0
    since: int = 0


class Validator:
    """Owns a second model, in fp32, into which the (averaged) weights are read."""

    def __init__(self, prepared: Prepared, folder: RunFolder, device: torch.device) -> None:
        self.prepared, self.folder, self.device = prepared, folder, device
        self.model = Transformer(prepared.config).to(device).eval()

    def averaged(self, step: int, current: dict[str, Tensor]) -> dict[str, Tensor]:
        """The mean of the current weights and those of the last checkpoints, as many as the recipe averages.

        What an interruption saved does not count: a continued run averages what an uninterrupted one does.
        """
        settings = self.prepared.recipe.train
        earlier = checkpoint.regular(self.folder.checkpoints, settings.save_every)
        earlier = [path for path in earlier if checkpoint.step_of(path) < step][-(settings.average - 1) :]
        if settings.average == 1 or not earlier:
            return current
        mean = checkpoint.mean_weights(earlier)
        return {name: torch.lerp(mean[name], current[name].cpu(), 1 / (len(earlier) + 1)) for name in mean}

    @torch.no_grad()
    def __call__(
        self, step: int, current: dict[str, Tensor], best: Best, stop: Callable[[], bool]
    ) -> tuple[Validated, Best]:
        """Measure, write samples, and keep the weights in model/ if they are the best. Raises Interrupted."""
        weights = self.averaged(step, current)
        for name, parameter in self.model.named_parameters():
            parameter.copy_(weights[name])
        loss = self._loss(stop)
        outputs = self._translate(stop)
        references = self.prepared.valid_pairs.targets
        scores = self.prepared.task.scores(outputs, references)
        values = {name: score.value for name, score in scores.items()}
        by = self.prepared.recipe.task.best_by
        value = -loss if by == "loss" else values[by]
        better = best.score is None or value > best.score
        if better:
            self.keep()
        self._write_samples(step, outputs, [str(score) for score in scores.values()])
        shown = self.prepared.recipe.train.samples
        samples = list(zip(self.prepared.valid_pairs.sources, references, outputs, strict=True))[:shown]
        now = Best(value, step) if better else best._replace(since=best.since + 1)
        return Validated(step, loss, values, better, samples), now

    def keep(self) -> None:
        """Write the weights, config and tokenizers as a Hugging Face folder."""
        task = self.prepared.task
        generation = self.prepared.recipe.generate.model_dump()
        save_model(self.folder.model, self.model, generation=generation)
        save_tokenizers(self.folder.model, task.source, task.target)

    def _loss(self, stop: Callable[[], bool]) -> float:
        """Negative log-likelihood a target token, without smoothing, in nats."""
        examples, task = self.prepared.valid, self.prepared.task
        total, count = 0.0, 0
        # Every pair counts, whatever becomes of long ones in training.
        whole = self.prepared.recipe.batch.model_copy(update={"max_length": None, "on_overflow": "drop"})
        for rows in _polled(plan_epoch(examples.lengths, whole, seed=0, epoch=0, shuffle=False), stop):
            batch = task.batch(examples, rows).to(self.device)
            term = task.loss(self.model, batch)["tokens"]
            total, count = total + float(term.nll if term.nll is not None else term.sum), count + term.count
        return total / max(count, 1)

    def _translate(self, stop: Callable[[], bool]) -> list[str]:
        """Greedy: a validation is about the weights, not the search."""

        def poll(_done: int) -> None:
            if stop():
                raise Interrupted

        task = self.prepared.task
        greedy = GenerationConfig(max_new_tokens=self.prepared.recipe.generate.max_new_tokens)
        answers = task.predict(self.model, self.prepared.valid_pairs.sources, greedy, on_done=poll)
        return task.target.decode([hypotheses[0].tokens for hypotheses in answers])

    def _write_samples(self, step: int, outputs: list[str], scores: list[str]) -> None:
        pairs = self.prepared.valid_pairs
        lines = [
            f"{source}\t{reference}\t{output}"
            for source, reference, output in zip(pairs.sources, pairs.targets, outputs, strict=True)
        ]
        path = self.folder.samples / f"step-{step:08d}.tsv"
        disk.replace_text(path, "\n".join(["source\treference\tours", *lines]) + "\n")
        disk.replace_text(path.with_suffix(".scores.txt"), "\n".join(scores) + "\n")


def _polled(batches: Plan, stop: Callable[[], bool]) -> Iterator[NDArray[np.int64]]:
    for batch in batches:
        if stop():
            raise Interrupted
        yield batch
