"""A loaded model with its tokenizers and its task: what `trifold.load` returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import torch

from trifold.errors import CheckpointError
from trifold.generate import GenerationConfig, Hypothesis, resolve, until_stop
from trifold.hub import load_model, save_model
from trifold.hub import resolve as find_folder
from trifold.nn import ModelConfig, Transformer
from trifold.tasks.translate import Translate, TranslateSettings
from trifold.text import Tokenizer

Dtype = Literal["float32", "bfloat16", "float16"]


class Pipeline:
    """Text in, text out. `generation` holds the settings that came with the model; arguments go before them."""

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        target_tokenizer: Tokenizer | None = None,
        generation: dict[str, object] | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.target_tokenizer = target_tokenizer or tokenizer
        self.generation = GenerationConfig.parse(generation or {}, at="generation_config.json")
        start = model.config.start_id
        self.task = Translate(TranslateSettings(), tokenizer, self.target_tokenizer, start_id=start)

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @overload
    def generate(self, text: str, **arguments: Any) -> str: ...
    @overload
    def generate(self, text: Sequence[str], **arguments: Any) -> list[str]: ...

    def generate(self, text: str | Sequence[str], **arguments: Any) -> str | list[str]:
        """The best output for one text, or for each of several, in their order.

        Arguments are those of GenerationConfig (num_beams, max_new_tokens, …), and `draft`, a model that speculates;
        a text ends before the first of its stop_strings. Raises DataError for a text without tokens or with more than
        the model has positions, SettingsError for unknown or contradictory arguments.
        """
        texts = [text] if isinstance(text, str) else list(text)
        best = [found[0].tokens for found in self.hypotheses(texts, **arguments)]
        outputs = self.decode(best, **arguments)
        return outputs[0] if isinstance(text, str) else outputs

    translate = generate

    def stream(self, text: str, *, draft: Pipeline | None = None, **arguments: Any) -> Iterator[str]:
        """What `generate` gives for one text, in pieces of whole characters as soon as they are known.

        Raises UsageError where several outputs are asked for, or beams, which know their words only at the end.
        """
        config = resolve(self.generation, arguments)
        return self.task.stream(self.model, text, config, draft=None if draft is None else draft.model)

    def decode(self, outputs: Sequence[Sequence[int]], **arguments: Any) -> list[str]:
        """The text of each output, up to the first of the stop strings that these arguments of `generate` name."""
        stops = resolve(self.generation, _settings(arguments)).stop_strings or ()
        return [until_stop(text, stops) for text in self.target_tokenizer.decode(outputs)]

    def hypotheses(
        self,
        texts: Sequence[str],
        *,
        first: int = 0,
        on_done: Callable[[int], None] | None = None,
        **arguments: Any,
    ) -> list[list[Hypothesis]]:
        """All outputs asked for (num_return_sequences), with scores; `on_done` hears how many texts were finished.

        `first` is the place of texts[0] in the whole input, so that sampling in portions draws what one call would.
        """
        draft = arguments.get("draft")
        return self.task.predict(
            self.model,
            texts,
            resolve(self.generation, _settings(arguments)),
            first=first,
            on_done=on_done,
            draft=None if draft is None else draft.model,
        )

    def save(self, folder: str | Path) -> None:
        """Write a Hugging Face folder: config, weights, tokenizers, generation settings."""
        path = Path(folder)
        generation = self.generation.model_dump(exclude_defaults=True)
        save_model(path, self.model, generation=generation, dtype=next(self.model.parameters()).dtype)
        self.tokenizer.save(path, append_eos=True)
        if self.target_tokenizer is not self.tokenizer:
            self.target_tokenizer.save(path, "target_tokenizer.json")


def _settings(arguments: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if key != "draft"}


def load(name: str | Path, *, device: str | None = None, dtype: Dtype = "float32") -> Pipeline:
    """A run folder, a model folder, or a hub id -> Pipeline on `device` (the best one found unless given).

    Raises CheckpointError where there is no model, or it is damaged or of an unknown family.
    """
    folder = find_folder(str(name))
    if (folder / "recipe.yaml").is_file():
        raise CheckpointError(f"{name}: the run has no model yet (it is written at the first validation)")
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    model, generation = load_model(folder, dtype=getattr(torch, dtype), device=place)
    if not (folder / "tokenizer.json").is_file():
        raise CheckpointError(f"{folder}: has no tokenizer.json")
    target = folder / "target_tokenizer.json"
    return Pipeline(
        model,
        Tokenizer.load(folder / "tokenizer.json"),
        Tokenizer.load(target) if target.is_file() else None,
        generation,
    )


def generate(model: str | Path | Pipeline, text: str, **arguments: Any) -> str:
    """The best output of a model, loaded or to be loaded, for one text: `trifold.generate("runs/demo", "…")`."""
    pipeline = model if isinstance(model, Pipeline) else load(model)
    return pipeline.generate(text, **arguments)
