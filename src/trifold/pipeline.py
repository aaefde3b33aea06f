"""Pipeline: what `trifold.load` returns. Generation, logits and states; predictions are in
predict/predict.py.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args, overload

import torch
from torch import Tensor

from trifold import fast
from trifold.costs import Workload, check_request, states_of_layers
from trifold.data.frames import is_frame, plain_column
from trifold.data.images import ImageSettings
from trifold.dtypes import Weights, dtype_name
from trifold.errors import CheckpointError, DataError, UsageError
from trifold.fast.quantized_weight import QuantizedWeight
from trifold.folders import FileAsFolder
from trifold.garbage import no_collections
from trifold.generate.query_stream import has_query_stream, writing_config
from trifold.generate.search import generate_tokens, has_texts, stream_text
from trifold.generate.stopping import Hypothesis, OutputLimit, output_limit
from trifold.generate.streaming import truncate_at_stop, without_first_space
from trifold.generation_config import (
    DEFAULT_MAX_NEW_TOKENS,
    GenerationConfig,
    resolve,
    with_generation_options,
)
from trifold.hub import load_model, resolve as find_folder, save_model
from trifold.hub.card import Origin, read_origin, write_derived_card
from trifold.hub.files import naming
from trifold.hub.folder import folder_with
from trifold.hub.images import read_image_settings, write_image_settings
from trifold.hub.output_folder import new_folder
from trifold.hub.sentence_transformers import SentenceModules, read_modules, write_modules
from trifold.memory import find_device, return_freed_memory
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.predict.generate_texts import generate_rows
from trifold.predict.model_reader import ModelReader, require_tokenizer
from trifold.predict.predict import PredictMixin, choose_task, second_texts
from trifold.predict.trace import Function, Trace, run_with
from trifold.ragged import Ragged
from trifold.text import Tokenizer
from trifold.text.encoded import Encoded, check_strings, truncate_ids
from trifold.text.folder import read_tokenizers
from trifold.text.languages import set_language
from trifold.text.prompts import Prompt, encode_prompts
from trifold.text.tokenizer import TARGET_TOKENIZER_FILE

fast.prepare()  # which every model needs
Dtype = Literal["float32", "bfloat16", "float16"]
TokensOrText: TypeAlias = Tensor | str | Sequence[str]
Tokenizers: TypeAlias = tuple[Tokenizer | None, Tokenizer | None]


# Methods of TransformerLens -> ours.
TRANSFORMER_LENS = {
    "run_with_cache": "`trace(text)`, which returns the activations",
    "run_with_hooks": "`run_with(text, hooks={name: function})`",
    "to_str_tokens": "`trace(text).tokens`",
}
# Methods of sentence-transformers, scikit-learn and others -> ours.
OTHER_LIBRARIES = {
    "encode": "`embed(texts)` for vectors, or `tokenizer.encode(text)` for ids",
    "similarity": "`embed(texts, normalise=True)`, whose products are cosines",
    "transform": "`embed(texts)`",
    "predict_proba": "`classify(texts, top_k=N)`, which gives labels with probabilities",
    "run": "`predict(texts)`, or `generate(texts)` of a model that writes",
}


class Written(NamedTuple):
    """An answer that a model has written, and the score of the output."""

    text: str
    score: float


class Pipeline(PredictMixin):
    """A model with its tokenizer, if it has one.

    target_tokenizer: tokenizer of the output, if it differs. generation: generation_config.json of
    the model; arguments take precedence. pictures: preprocessing of images, or None. modules: how
    embeddings are pooled, or None. origin: the folder that it was loaded from, for its model card.
    read_tokenizers: reads the two tokenizers when one is used first, in place of the arguments.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer | None = None,
        target_tokenizer: Tokenizer | None = None,
        generation: dict[str, object] | None = None,
        pictures: ImageSettings | None = None,
        modules: SentenceModules | None = None,
        origin: Origin | None = None,
        *,
        read_tokenizers: Callable[[], Tokenizers] | None = None,
    ) -> None:
        self.model = model
        self.pictures = pictures
        self.modules = modules
        self.origin = origin
        self._given_tokenizers = tokenizer, target_tokenizer
        self._read_tokenizers = read_tokenizers
        self.generation = GenerationConfig.parse(generation or {})

    if not TYPE_CHECKING:  # an attribute that is missing stays an error of types

        def __getattr__(self, name: str) -> Any:
            """Raises AttributeError, with our name for a method of another library."""
            message = f"a Pipeline has no attribute {name!r}"
            if name in TRANSFORMER_LENS:
                message += f"; use {TRANSFORMER_LENS[name]}, and see docs/look.md for other names"
            if name in OTHER_LIBRARIES:
                message += f"; use {OTHER_LIBRARIES[name]}"
            raise AttributeError(message, name=name, obj=self)

    def __repr__(self) -> str:
        heads = ", ".join(self.config.chosen_heads) or "none"
        codec = "no tokenizer"
        if self.tokenizer:
            codec = f"{self.tokenizer.vocab_size:,} tokens"
        size = f"{self.config.shape}; {self.device}; {self.model.count_parameters():,} parameters"
        return f"<Pipeline: {self.model.family or 'trifold'} {size}; heads: {heads}; {codec}>"

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @cached_property
    def _tokenizers(self) -> Tokenizers:
        """The tokenizers of input and output, for the tables of the model."""
        if self._read_tokenizers is None:
            reader, writer = self._given_tokenizers
        else:
            reader, writer = self._read_tokenizers()
            # Making one from 262,144 tokens and their merges takes twice the memory that it keeps.
            return_freed_memory()
        writer = writer or reader
        if reader is not None:
            reader = reader.for_model(self.config.vocab_size)
        if writer is not None:
            writer = writer.for_model(self.config.output_vocab_size)
        return reader, writer

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the input, if there is one. Raises CheckpointError if it is in a file
        and damaged.
        """
        return self._tokenizers[0]

    @property
    def target_tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the output, if there is one."""
        return self._tokenizers[1]

    @property
    def reader(self) -> Tokenizer:
        """The tokenizer of the input. Raises UsageError if there is none."""
        return require_tokenizer(self.tokenizer, "generate_tokens and logits")

    @property
    def writer(self) -> Tokenizer:
        """The tokenizer of the output. Raises UsageError if there is none."""
        return require_tokenizer(self.target_tokenizer, "generate_tokens and logits")

    def predict(
        self,
        texts: Any,
        pairs: str | Sequence[str] | None = None,
        *,
        task: str | None = None,
        **options: Any,
    ) -> Any:
        """As `PredictMixin.predict`; of a table (a data frame, a list of dicts, a dataset), the
        columns are read that this task is trained on.
        """
        prompt = self.prompt
        if prompt is not None and prompt.is_question and task in (None, "answer"):
            if is_frame(texts):
                texts, pairs = _read_inputs(texts, "answer")
            return self._write_answers(plain_column(texts), plain_column(pairs), **options)
        if is_frame(texts):
            task = choose_task(self.config, task)
            layout = "images" if self.config.n_patches else task  # see `find_layouts`
            texts, second_texts = _read_inputs(texts, layout)
            if pairs is None:
                pairs = second_texts
        if "corpus" in options:  # the texts that a search reads
            options["corpus"] = _sources(options["corpus"])
        return super().predict(plain_column(texts), plain_column(pairs), task=task, **options)

    # --- tensors ----------------------------------------------------------------------------------

    def logits(
        self,
        tokens: TokensOrText,
        attend: Tensor | None = None,
        decoder_tokens: Tensor | None = None,
        *,
        segments: Tensor | None = None,
    ) -> Tensor:
        """Output of the model's head: (B, T, V) for a language model, (B, classes) for a
        classifier, in float32.

        tokens: (B, T) ids; a text or several, which get special tokens and are padded at the end;
        or (B, channels, height, width) pixels for an image model. attend: (B, T) boolean, True at
        real tokens; all by default; padding may be anywhere. decoder_tokens: (B, T') input of the
        decoder of an encoder-decoder, including the start token; by default `tokens` shifted by
        one, as in classifiers. segments: (B, T) token types. Gradients are enabled; use
        torch.no_grad() to disable them. Raises DataError for ids out of range, mismatched shapes
        and too many tokens, UsageError if the model has no head, and for text if it has no
        tokenizer.
        """
        head = next((name for name in self.config.chosen_heads if name != "pooler"), None)
        if head is None:
            raise UsageError("this model has no head with logits; use hidden_states")
        with self._inputs(tokens, attend, decoder_tokens, segments) as (first, second):
            self._check_memory(first, second)
            return self.model.head_outputs(first, second, heads=[head])[head]

    def hidden_states(
        self,
        tokens: TokensOrText,
        attend: Tensor | None = None,
        decoder_tokens: Tensor | None = None,
        *,
        segments: Tensor | None = None,
    ) -> dict[str, list[Tensor]]:
        """States of each stack under "encoder" and "decoder": n_layers + 1 tensors (B, T, E),
        embeddings first.

        Arguments and errors are those of `logits`; no gradients. The last tensor includes the final
        norm, if any.
        """
        with self._inputs(tokens, attend, decoder_tokens, segments) as (first, second):
            rows, source, target = self._sizes(first, second)
            check_request(
                self.model,
                Workload(rows, source, target),
                f"states of {rows:,} rows of {source:,} tokens after each layer",
                "give fewer or shorter rows",
                returned=states_of_layers(self.config, rows, source, target),
            )
            return self.model.hidden_states(first, second)

    def trace(self, text: Any, target: str | None = None, *, gradients: bool = False) -> Trace:
        """The activations of one text or image by the name of their hook point.

        target: the output of an encoder-decoder (default: its own), the continuation of a decoder's
        text, the text without masks of a masked language model, the class of a classifier.
        gradients: whether the tensors are part of a graph.
        """
        return run_with(self, text, target, gradients=gradients)

    def run_with(
        self,
        text: Any,
        target: str | None = None,
        *,
        hooks: Mapping[str, Function],
    ) -> Trace:
        """The trace in which each function of `hooks`, {hook point: function}, replaces a tensor,
        which it does not change in place. Tensors have no batch axis.
        """
        return run_with(self, text, target, hooks=hooks)

    @with_generation_options
    def generate_tokens(
        self, tokens: Tensor, attend: Tensor | None = None, **arguments: Any
    ) -> list[list[int]]:
        """The best output for each row of ids (B, T), without start token, prompt and end token.

        attend: (B, T) boolean, True at real tokens. Other arguments and errors are those of
        `generate`.
        """
        draft, config = self._options(**arguments)
        codec = self.target_tokenizer if has_texts(config) else None
        with self._inputs(tokens, attend, None, None) as (inputs, _):
            hypotheses = generate_tokens(
                self.model, inputs, config, codec=codec, draft=draft, has_scores=False
            )
        return [outputs[0].tokens for outputs in hypotheses]

    def _check_memory(self, first: Inputs, second: Inputs | None) -> None:
        """Raise NotEnoughMemoryError if the logits of these inputs, and what their gradients need,
        do not fit into memory.
        """
        rows, width, target = self._sizes(first, second)
        has_gradients = torch.is_grad_enabled()
        scored = target if "lm" in self.config.chosen_heads else 1
        work = Workload(rows, width, target, scored=scored, has_gradients=has_gradients)
        remedy = "give fewer or shorter rows"
        if has_gradients:
            remedy += ", or use torch.no_grad()"
        check_request(self.model, work, f"logits of {rows:,} rows of {width:,} tokens", remedy)

    def _sizes(self, first: Inputs, second: Inputs | None) -> tuple[int, int, int]:
        """Rows, and the tokens or patches of each that the first stack and the last one read."""
        rows, width = first.tokens.shape
        if first.pixels is not None:
            rows = len(first.pixels)
            width = self.config.n_patches + 1
        target = width if second is None else second.tokens.shape[1]
        return rows, width, target

    @contextmanager
    def _inputs(
        self,
        tokens: TokensOrText,
        attend: Tensor | None,
        decoder_tokens: Tensor | None,
        segments: Tensor | None,
    ) -> Iterator[tuple[Inputs, Inputs | None]]:
        """The inputs of the encoder and the decoder; a ValueError of the model becomes a
        DataError.
        """
        first = self._first_inputs(tokens, attend, segments)
        second = None
        if decoder_tokens is not None:
            second = self._decoder_inputs(decoder_tokens, len(first.tokens))
        try:
            yield first, second
        except ValueError as error:
            raise DataError(str(error)) from error

    def _first_inputs(
        self, tokens: TokensOrText, attend: Tensor | None, segments: Tensor | None
    ) -> Inputs:
        """The inputs of the first stack: pixels, ids, or texts."""
        if self.config.n_patches:
            pixels = _tensor("tokens", tokens, "pixels of shape (B, channels, height, width)")
            return Inputs(pixels=pixels.to(self.device))
        if isinstance(tokens, str):
            tokens = [tokens]
        if isinstance(tokens, list | tuple) and any(isinstance(text, str) for text in tokens):
            if attend is not None or segments is not None:
                raise UsageError("attend and segments belong to ids; leave them out for text")
            reader = ModelReader(self.model, self.tokenizer, on_overflow=None)
            return reader.inputs(reader.encode(tokens)).to(self.device)
        return self._inputs_of_ids(tokens, attend, segments).to(self.device)

    def _inputs_of_ids(self, values: Any, attend: Tensor | None, segments: Tensor | None) -> Inputs:
        """The inputs for ids (B, T). Raises DataError for other shapes or types of `attend` and
        `segments`.
        """
        config = self.config
        tokens = _ids("tokens", values, config.vocab_size)
        if segments is not None:  # without a table of token types, any number
            segments = _ids(
                "segments", segments, config.n_token_types or 2**31, "model has {:,} token types"
            )
        if attend is not None:
            attend = _tensor("attend", attend, "booleans of shape (B, T)")
        for name, tensor in (("attend", attend), ("segments", segments)):
            if tensor is not None and tensor.shape != tokens.shape:
                raise DataError(
                    f"{name} has the shape {tuple(tensor.shape)}, not {tuple(tokens.shape)}"
                )
        if attend is not None and attend.dtype != torch.bool:
            raise DataError(
                f"attend has the type {attend.dtype}; give booleans, True at real tokens"
            )
        return Inputs(tokens, attend, segments=segments)

    def _decoder_inputs(self, tokens: Tensor, rows: int) -> Inputs:
        shape = self.config.shape
        if shape != "encoder-decoder":
            raise UsageError(
                f"decoder_tokens require an encoder-decoder; this model has the shape {shape}"
            )
        tokens = _ids("decoder_tokens", tokens, self.config.output_vocab_size).to(self.device)
        if len(tokens) != rows:
            raise DataError(
                f"decoder_tokens has {len(tokens)} rows, tokens {rows}; they must be equal"
            )
        return Inputs(tokens)

    # --- text -------------------------------------------------------------------------------------

    @overload
    def generate(self, text: str, **arguments: Any) -> str: ...
    @overload
    def generate(self, text: Sequence[str], **arguments: Any) -> list[str]: ...

    @with_generation_options
    def generate(self, text: str | Sequence[str], **arguments: Any) -> str | list[str]:
        """The best output for a text, or for each of several texts, in their order; a decoder
        continues its prompt.

        The arguments are those of GenerationConfig (num_beams, max_new_tokens, …) and `draft`, a
        model for speculative decoding. An output ends before the first of its stop_strings. Raises
        DataError for a text without tokens or with more tokens than the model has positions,
        SettingsError for unknown or contradictory arguments, UsageError for a model that cannot
        generate or has no tokenizer.
        """
        if isinstance(text, str) or not hasattr(text, "__iter__"):
            return self._best_outputs([text], **arguments)[0]
        return self._best_outputs([*_sources(text)], **arguments)

    def _best_outputs(self, texts: list[Any], **arguments: Any) -> list[str]:
        """The best output for each text; see `generate`."""
        hypotheses = self.hypotheses(texts, has_scores=False, **arguments)
        return self.decode([outputs[0].tokens for outputs in hypotheses], **arguments)

    translate = generate

    def _write_answers(
        self, questions: str | Sequence[str], contexts: Any, **options: Any
    ) -> list[Written] | list[list[Written]]:
        """The answers of a model that writes them, for each question the outputs, best first.
        options: those of `generate`.
        """
        single = isinstance(questions, str)
        texts = [questions] if isinstance(questions, str) else [*questions]
        (second,) = second_texts("answer", texts, contexts)
        outputs = self.hypotheses(texts, contexts=second, **options)
        decoded = iter(self.decode([one.tokens for of in outputs for one in of], **options))
        answers = [[Written(next(decoded), one.score) for one in of] for of in outputs]
        return answers[0] if single else answers

    @with_generation_options
    def hypotheses(
        self,
        texts: Sequence[str],
        *,
        first: int = 0,
        on_done: Callable[[int], None] | None = None,
        max_source: int | None = None,
        contexts: Sequence[str] | None = None,
        has_scores: bool = True,
        **arguments: Any,
    ) -> list[list[Hypothesis]]:
        """All outputs of each text (num_return_sequences) with their scores.

        first: number of texts[0] in the whole input, so that sampling part by part draws the same
            as a single call.
        on_done: called with the number of texts that were finished.
        max_source: tokens to which texts are truncated. contexts: see `read`. has_scores: see
            `generate.generate_tokens`.
        """
        draft, config = self._options(**arguments)
        texts = _sources(texts)
        reading = {"contexts": contexts, **reading_options(config)}
        rows = self.read(texts, max_source or sys.maxsize, **reading)
        options: dict[str, Any] = {"first": first, "on_done": on_done, "draft": draft}
        options["has_scores"] = has_scores
        return generate_rows(
            self.model, Ragged.of(rows), config, codec=self.target_tokenizer, **options
        )

    @with_generation_options
    def stream(
        self, text: str, *, on_end: Callable[[Hypothesis], None] | None = None, **arguments: Any
    ) -> Iterator[str]:
        """The output of `generate` for one text, in parts of whole characters as soon as they are
        final.

        on_end: called with the whole output and the reason why it ended. Raises UsageError for
        several outputs and for beam search, whose output is only known at the end.
        """
        draft, config = self._options(**arguments)
        # The search reports such arguments itself; a stored setting needs another remedy.
        for name in ("num_beams", "num_return_sequences"):
            if name not in arguments and (value := getattr(config, name)) > 1:
                raise UsageError(
                    "--stream has a single output, and generation_config.json of the model (the "
                    f"recipe's `generate`) sets {name} to {value}; add "
                    f"--{name.replace('_', '-')} 1"
                )
        rows = self.read([text], **reading_options(config))
        inputs = Inputs(torch.tensor(rows, device=self.device))

        def report_end(outputs: list[Hypothesis]) -> None:
            if on_end is not None:
                on_end(outputs[0])

        parts = stream_text(self.model, inputs, config, self.writer, draft=draft, on_end=report_end)
        texts = (part for _, part in parts)
        yield from texts if config.prompt is None else without_first_space(texts)

    def limit(self, text: str, context: str | None = None, **arguments: Any) -> OutputLimit:
        """The largest number of output tokens for this text, or a question and its context, and
        what sets it; the other arguments are those of `generate`.
        """
        _, config = self._options(**arguments)
        contexts = None if context is None else [context]
        rows = self.read([text], contexts=contexts, **reading_options(config))
        return output_limit(config, writing_config(self.config), len(rows[0]))

    def longest_source(self, most: int = sys.maxsize) -> int:
        """The number of tokens of the longest row that can be read for a text of at most `most`
        tokens: the positions of the model, without room for an output that follows a prompt.
        """
        positions = self.config.max_positions
        prompt = self.prompt
        if prompt is None or self.config.encoder_layers:
            return min(most, positions)
        bare = self.reader.rows([prompt.fill(dict.fromkeys(prompt.names, ""))])
        room = self.generation.max_new_tokens or DEFAULT_MAX_NEW_TOKENS
        return min(most + len(bare[0].ids), positions - min(room, positions // 4))

    @property
    def prompt(self) -> Prompt | None:
        """The template that a text is put into, which the model was trained with."""
        return self.prompt_for(None)

    def prompt_for(self, text: str | None) -> Prompt | None:
        """The requested template, or that of the model."""
        text = text or self.generation.prompt
        return None if text is None else Prompt(text)

    def parses_special(self, parse_special: bool | None = None) -> bool:
        """Whether special tokens in a text are parsed: as requested, as generation_config.json
        says, or as transformers does.
        """
        if parse_special is not None:
            return parse_special
        if self.generation.parse_special is not None:
            return self.generation.parse_special
        return self.reader.parses_special

    def read(
        self,
        texts: Sequence[str],
        limit: int = sys.maxsize,
        *,
        language: str | None = None,
        parse_special: bool | None = None,
        prompt: str | None = None,
        contexts: Sequence[str] | None = None,
    ) -> list[list[int]]:
        """The ids of each text, with special tokens, and with an end token for an encoder,
        truncated to `limit`.

        language: that of the texts, for a tokenizer that adds its token; default: the tokenizer's.
        parse_special: see `parses_special`. prompt: the template that the texts are put into, by
        default that of the model. contexts: those of the questions, for a prompt that names both.
        Raises DataError for a text without tokens, UsageError for an unknown language.
        """
        check_strings(texts)
        parses = self.parses_special(parse_special)
        template = self.prompt_for(prompt)
        if template is not None:
            self._check_filled(self.reader.encode(texts), "put into the prompt")
            texts = self._fill(template, texts, contexts, limit, parses=parses)
        encoded = self.reader.rows(texts, special_in_text=parses)
        has_encoder = self.config.shape == "encoder-decoder"
        # row.texts has None for each special token.
        purpose = "translate" if has_encoder else "continue"
        self._check_filled(
            [[text for text in row.texts if text is not None] for row in encoded], purpose
        )
        rows = [list(row.ids) for row in encoded]
        if has_query_stream(self.config):  # whose texts end in special tokens: none follows
            rows = [_without_end(row) for row in encoded]
        if language is not None:
            rows = set_language(encoded, language, self.reader.languages)
            self.reader.check_ids(rows)
        if not has_encoder:
            return [truncate_ids(ids, limit, None) for ids in rows]
        end = self.config.eos_id
        if end < self.config.vocab_size:
            for ids, row in zip(rows, encoded, strict=True):
                if end not in row.special:
                    ids.append(end)
        return [truncate_ids(ids, limit, end) for ids in rows]

    def _check_filled(self, rows: Sequence[Sequence[Any]], purpose: str) -> None:
        """Raises DataError if one of the rows is empty. purpose: of a text."""
        empty = next((number for number, row in enumerate(rows, start=1) if not row), None)
        if empty is not None:
            raise DataError(f"text {empty} of {len(rows)} has no tokens: nothing to {purpose}")

    def _fill(
        self,
        prompt: Prompt,
        texts: Sequence[str],
        contexts: Sequence[str] | None,
        limit: int,
        *,
        parses: bool,
    ) -> list[str]:
        """The prompts of texts, or of questions and their contexts, shortened to `limit` tokens.
        Raises UsageError for questions without contexts.
        """
        if prompt.is_question and contexts is None:
            raise UsageError(
                "this model answers questions about a text; use `trifold predict MODEL QUESTION "
                "--context TEXT`, or `answer(questions, contexts)` in Python"
            )

        def encode(filled: list[str]) -> list[list[int]]:
            return [row.ids for row in self.reader.rows(filled, special_in_text=parses)]

        both = zip(texts, contexts or [""] * len(texts), strict=True)
        values = [prompt.values(text, context) for text, context in both]
        sizes = [limit] * len(values)
        return encode_prompts(prompt, values, sizes, self.reader, encode).texts

    def decode(self, outputs: Sequence[Sequence[int]], **arguments: Any) -> list[str]:
        """The text of each output, up to the first of the stop strings in these arguments of
        `generate`, without the space between a prompt and its output.
        """
        config = self._options(**arguments)[1]
        texts = self.writer.decode(outputs)
        if config.prompt is not None:
            texts = [text.lstrip() for text in texts]
        return [truncate_at_stop(text, config.stop_strings or ()) for text in texts]

    # --- disk -------------------------------------------------------------------------------------

    def save(
        self,
        folder: str | Path,
        *,
        max_shard_size: int | str = "5GB",
        overwrite: bool = False,
    ) -> None:
        """Write a Hugging Face folder: config, weights, tokenizers, model card; settings of
        generation, images, embeddings, if any.

        Weights above `max_shard_size` (bytes, or a string such as 500MB) are split into several
        files. overwrite: replace a model that the folder holds. Raises UsageError if the folder is
        not empty otherwise.
        """
        if any(isinstance(module, QuantizedWeight) for module in self.model.modules()):
            raise UsageError(
                "weights of 4 to 16 bits are for inference only; load the model with weights='full'"
            )
        with new_folder(Path(folder).expanduser(), overwrite=overwrite) as path:
            self._write(path, max_shard_size)

    def _write(self, path: Path, max_shard_size: int | str) -> None:
        dtype = next(self.model.parameters()).dtype
        generation = self.generation.model_dump(exclude_defaults=True)
        save_model(
            path, self.model, generation=generation, dtype=dtype, max_shard_size=max_shard_size
        )
        if self.pictures is not None:
            write_image_settings(path, self.pictures)
        if self.modules is not None:
            write_modules(path, self.modules, self.config.d_model, self.config.max_positions)
        self._save_tokenizers(path)
        write_derived_card(path, self.origin)

    def _save_tokenizers(self, path: Path) -> None:
        if self.tokenizer is None:
            return
        # A source ends with </s>, unless a post-processor of the tokenizer adds its special tokens.
        append_eos = (
            self.config.shape == "encoder-decoder" and self.tokenizer.library.post_processor is None
        )
        self.tokenizer.save(path, append_eos=append_eos)
        target = self.target_tokenizer
        if target is not None and target.library is not self.tokenizer.library:
            target.save(path, TARGET_TOKENIZER_FILE)

    def _options(
        self, *, draft: Any = None, **arguments: Any
    ) -> tuple[Transformer | None, GenerationConfig]:
        """The draft model, if any, and the generation options. Raises UsageError if the model
        cannot generate.
        """
        options = resolve(self.generation, arguments)
        if not writing_config(self.config).decoder_layers:
            raise UsageError(
                "an encoder cannot generate text; use `trifold predict`, or another model"
            )
        if "lm" not in self.config.chosen_heads:
            heads = ", ".join(self.config.chosen_heads) or "none"
            raise UsageError(
                f"this model has no language-model head (its heads: {heads}); use `trifold predict`"
            )
        draft_model = None if draft is None else draft.model
        return draft_model, options


def _without_end(row: Encoded) -> list[int]:
    """The ids of a text without the special tokens at its end."""
    last = max(place for place, text in enumerate(row.texts) if text is not None)
    return list(row.ids[: last + 1])


def reading_options(config: GenerationConfig) -> dict[str, Any]:
    """The options of `Pipeline.read` among those of a generation."""
    return {
        "language": config.source_language,
        "parse_special": config.parse_special,
        "prompt": config.prompt,
    }


def _sources(texts: Any) -> Any:
    """The texts; of a table, those in the column that generation reads."""
    if is_frame(texts):
        return _read_inputs(texts, "generate")[0]
    return plain_column(texts)


def _read_inputs(texts: Any, task: str) -> tuple[list[Any], list[Any] | None]:
    from trifold.objectives.inputs import read_inputs  # most models read no tables

    return read_inputs(texts, task)


def _tensor(name: str, values: Any, expected: str) -> Tensor:
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        raise DataError(f"{name} is not a tensor, but {values!r:.60}; give {expected}") from None
    if not tensor.numel() or tensor.layout != torch.strided or tensor.is_meta:
        raise DataError(f"{name} is empty, sparse or on the meta device; give {expected}")
    return tensor


def _ids(name: str, values: Any, count: int, limit: str = "vocabulary has {:,} tokens") -> Tensor:
    """values (B, T) as integers below `count`; `limit` states that number in an error."""
    tokens = _tensor(name, values, "ids of shape (B, T)")
    if (
        tokens.dim() != 2
        or tokens.is_floating_point()
        or tokens.is_complex()
        or tokens.dtype == torch.bool
    ):
        given = f"shape {tuple(tokens.shape)} and the type {tokens.dtype}"
        raise DataError(f"{name} has the {given}; give ids of shape (B, T)")
    tokens = tokens.long()  # other types lack operations
    least = int(tokens.min())
    largest = int(tokens.max())
    if not 0 <= least <= largest < count:
        wrong = least if least < 0 else largest
        raise DataError(f"{name} has the id {wrong}, but the {limit.format(count)}")
    return tokens


@no_collections()
def load(
    name: str | Path,
    *,
    device: str | None = None,
    dtype: str | torch.dtype = "float32",
    weights: Weights | None = None,
    tokenizer: str | Path | None = None,
) -> Pipeline:
    """Load a run folder, a model folder or a hub id on `device` (cpu, cuda, cuda:1, mps, auto: a
    GPU if there is one).

    dtype: type of the computation and the weights, also by names such as bf16. weights: "full",
    the default, has matrices in `dtype`, "int8" or "int4" in so many bits, and "file" in the types
    of a GGUF file, in float32 also in 16 bits of a folder; the matrices can then neither be trained
    nor saved. Those of at most 8 bits are less accurate.
    tokenizer: the folder of the tokenizer, if it is not that of the model. Raises CheckpointError
    if there is no model or no such tokenizer, if it is damaged or of an unknown family, and if the
    tokenizer has more tokens than the model; UsageError for another argument or device. The
    tokenizer in a GGUF file is read, and checked, when it is used first.
    """
    dtype = dtype_name(str(dtype))
    for option, value, known in (
        ("dtype", dtype, get_args(Dtype)),
        ("weights", weights, (None, *get_args(Weights))),
    ):
        if value not in known:
            raise UsageError(
                f"{option} {value!r} is not known; give {' or '.join(map(repr, known))}"
            )
    if device is None or device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    found_device = find_device(device)
    fast.enable()
    model_folder = find_folder(str(name))
    model, generation = load_model(
        model_folder,
        dtype=getattr(torch, dtype),
        device=found_device,
        stored=None if weights == "full" else weights,
    )
    if weights not in (None, "full"):
        return_freed_memory()  # of the decoded matrices that these weights are made of
    folder = folder_with("tokenizer_config.json", model_folder)
    read: Callable[[], Tokenizers] | None = None
    reader = writer = None
    if tokenizer is not None:
        reader, writer = read_fitting_tokenizers(tokenizer, model.config, name)
    elif isinstance(folder, FileAsFolder):
        read = partial(read_tokenizers, folder)
    else:
        reader, writer = read_tokenizers(folder)
    file_of_settings = folder / "generation_config.json"
    if not file_of_settings.exists():
        file_of_settings = folder / "config.json"
    with naming(file_of_settings):
        return Pipeline(
            model,
            reader,
            writer,
            generation,
            read_image_settings(folder),
            read_modules(folder),
            read_origin(str(name), model_folder),
            read_tokenizers=read,
        )


def read_fitting_tokenizers(
    name: str | Path, config: ModelConfig, model: str | Path
) -> tuple[Tokenizer | None, Tokenizer | None]:
    """The tokenizers of a folder or hub id for another model. Raises CheckpointError if it has
    none, or more tokens.
    """
    reader, writer = read_tokenizers(find_folder(str(name)))
    for codec, size in ((reader, config.vocab_size), (writer or reader, config.output_vocab_size)):
        needed = f"{model} needs a tokenizer of at most {size:,}"
        if codec is None:
            raise CheckpointError(f"{name}: no tokenizer, but {needed}")
        if codec.vocab_size > size:
            raise CheckpointError(f"{name}: {codec.vocab_size:,} tokens, but {needed}")
    return reader, writer


@with_generation_options
def generate(model: str | Path | Pipeline, text: str, **arguments: Any) -> str:
    """The best output for a text, of a model or of the model to load:
    `trifold.generate("runs/demo", "…")`.
    """
    pipeline = model if isinstance(model, Pipeline) else load(model)
    return pipeline.generate(text, **arguments)
