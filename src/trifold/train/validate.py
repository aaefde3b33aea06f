"""Validation: average the last weights, measure them on validation data, and keep the best."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trifold import disk
from trifold.hub import save_model
from trifold.nn import Transformer
from trifold.objectives.objective import EvalContext, Evaluation
from trifold.train import checkpoint
from trifold.train.data import TrainingData
from trifold.train.monitor import Validated
from trifold.train.run_folder import RunFolder
from trifold.train.state import Best


class Validator:
    """Owns a second model, in fp32, that receives the (averaged) weights.

    on_damaged: called with the step and error messages if damaged checkpoints are left out of an average.
    """

    def __init__(
        self,
        data: TrainingData,
        folder: RunFolder,
        device: torch.device,
        on_damaged: Callable[[int, list[str]], None],
    ) -> None:
        self.data, self.folder, self.device, self.on_damaged = data, folder, device, on_damaged
        self.model = Transformer(data.config).to(device).eval()

    def averaged(self, step: int, current: dict[str, Tensor]) -> dict[str, Tensor]:
        """The mean of the current weights and those of the previous checkpoints, `train.average` in total.

        Checkpoints of an interruption do not count, so that a resumed run averages what an uninterrupted one does.
        """
        settings = self.data.recipe.train
        earlier = checkpoint.regular_checkpoints(self.folder.checkpoints, settings.save_every)
        earlier = [path for path in earlier if checkpoint.step_of(path) < step][-(settings.average - 1) :]
        if settings.average == 1 or not earlier:
            return current
        mean = checkpoint.mean_weights(earlier)
        if mean.rejected:
            self.on_damaged(step, mean.rejected)
        if not mean.used:
            return current
        return {
            name: torch.lerp(value, current[name].cpu(), 1 / (mean.used + 1))
            for name, value in mean.weights.items()
        }

    @torch.no_grad()
    def __call__(
        self, step: int, current: dict[str, Tensor], best: Best, poll: Callable[[], None]
    ) -> tuple[Validated, Best]:
        """Evaluate, write samples, and save the weights to model/ if they are the best.

        poll: called now and then; it may raise Interrupted.
        """
        weights = self.averaged(step, current)
        for name, parameter in self.model.named_parameters():
            parameter.copy_(weights[name])
        recipe = self.data.recipe
        context = EvalContext(recipe.batch, recipe.generate, recipe.train.samples, recipe.train.seed, poll)
        result = self.data.objective.evaluate(self.model, self.data.valid_rows, self.data.valid, context)
        is_best = best.score is None or result.value > best.score
        if is_best:
            self.save_model()
        self._write_samples(step, result)
        best = Best(result.value, step) if is_best else best._replace(since=best.since + 1)
        samples = list(result.samples[: recipe.train.samples])
        return Validated(step, result.loss, result.scores, is_best, samples), best

    def save_model(self) -> None:
        """Write the weights, config and tokenizers as a Hugging Face folder."""
        generation = self.data.recipe.generate.model_dump()
        save_model(self.folder.model, self.model, generation=generation)
        self.data.objective.save(self.folder.model)

    def _write_samples(self, step: int, result: Evaluation) -> None:
        """Write the generated samples as a table, and the signatures of the scores."""
        if not (result.samples or result.signatures):
            return
        rows = ["\t".join(_escape(cell) for cell in sample if cell is not None) for sample in result.samples]
        has_reference = any(sample.reference is not None for sample in result.samples)
        header = "source\treference\tours" if has_reference else "prompt\tours"
        path = self.folder.samples / f"step-{step:08d}.tsv"
        disk.replace_text(path, "\n".join([header, *rows]) + "\n")
        disk.replace_text(path.with_suffix(".scores.txt"), "\n".join(result.signatures) + "\n")


def _escape(text: str) -> str:
    """The text of a table cell, with escaped line ends and tabs."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
