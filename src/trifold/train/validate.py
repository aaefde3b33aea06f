"""Looking up from training: average the last weights, measure them on validation data, keep the best."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from trifold import disk
from trifold.hub import save_model
from trifold.nn import Transformer
from trifold.objectives.objective import EvalContext, Evaluation
from trifold.train import checkpoint
from trifold.train.run_folder import RunFolder
from trifold.train.setup import Prepared
from trifold.train.view import Validated


class Interrupted(Exception):
    """A signal came while validating; the loop saves and ends."""


class Best(NamedTuple):
    """The best validation so far; `since` counts the validations that were not better."""

    score: float | None = None
    step: int = 0
    since: int = 0


class Validator:
    """Owns a second model, in fp32, into which the (averaged) weights are read.

    made_without: hears of a mean of the last weights from which damaged checkpoints are missing, and at which step.
    """

    def __init__(
        self,
        prepared: Prepared,
        folder: RunFolder,
        device: torch.device,
        made_without: Callable[[int, list[str]], None],
    ) -> None:
        self.prepared, self.folder, self.device, self.made_without = prepared, folder, device, made_without
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
        if mean.refused:
            self.made_without(step, mean.refused)
        if not mean.of:
            return current
        return {
            name: torch.lerp(value, current[name].cpu(), 1 / (mean.of + 1))
            for name, value in mean.weights.items()
        }

    @torch.no_grad()
    def __call__(
        self, step: int, current: dict[str, Tensor], best: Best, stop: Callable[[], bool]
    ) -> tuple[Validated, Best]:
        """Measure, write samples, and keep the weights in model/ if they are the best. Raises Interrupted."""
        weights = self.averaged(step, current)
        for name, parameter in self.model.named_parameters():
            parameter.copy_(weights[name])
        prepared, settings = self.prepared, self.prepared.recipe.train
        looking = EvalContext(
            prepared.recipe.batch, prepared.recipe.generate, settings.samples, settings.seed, _poll(stop)
        )
        found = prepared.task.evaluate(self.model, prepared.valid_rows, prepared.valid, looking)
        better = best.score is None or found.value > best.score
        if better:
            self.keep()
        self._write_samples(step, found)
        now = Best(found.value, step) if better else best._replace(since=best.since + 1)
        shown = list(found.samples[: settings.samples])
        return Validated(step, found.loss, found.scores, better, shown), now

    def keep(self) -> None:
        """Write the weights, config and tokenizers as a Hugging Face folder."""
        generation = self.prepared.recipe.generate.model_dump()
        save_model(self.folder.model, self.model, generation=generation)
        self.prepared.task.save(self.folder.model)

    def _write_samples(self, step: int, found: Evaluation) -> None:
        """What was generated, a row a line, and the scores with their signatures."""
        if not (found.samples or found.signatures):
            return
        lines = ["\t".join(_escaped(part) for part in sample if part is not None) for sample in found.samples]
        known = any(sample.reference is not None for sample in found.samples)
        head = ["source\treference\tours" if known else "prompt\tours"]
        path = self.folder.samples / f"step-{step:08d}.tsv"
        disk.replace_text(path, "\n".join([*head, *lines]) + "\n")
        disk.replace_text(path.with_suffix(".scores.txt"), "\n".join(found.signatures) + "\n")


def _poll(stop: Callable[[], bool]) -> Callable[[], None]:
    """What a task calls now and then: it ends the validation where a signal came."""

    def poll() -> None:
        if stop():
            raise Interrupted

    return poll


def _escaped(text: str) -> str:
    """In one cell of a table: line ends and tabs as two signs."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
