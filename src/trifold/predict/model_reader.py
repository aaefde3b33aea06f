"""Runs a model over many texts, pairs of texts or images: inputs of similar length form batches.

Results keep the order of the inputs. Padding and the other inputs change them by rounding only, to
1e-4 in float32, because kernels choose by shape.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trifold.costs import Workload, check_request
from trifold.data.images import ImageSettings, read_image
from trifold.errors import CheckpointError, DataError, UsageError
from trifold.fast.thread_pool import map_on, share_of, workers_on
from trifold.generate.decoding import eval_mode, refuse_non_finite
from trifold.memory import require_memory
from trifold.nn import Inputs, ModelConfig, Transformer, ops
from trifold.nn.packing import Packing
from trifold.nn.parts import EmbeddingsPart, LogitsPart, has_packed_attention, part_of
from trifold.predict.generate_texts import batches_by_length, packed_batches, pad_rows
from trifold.predict.text_features import text_features
from trifold.predict.word_features import WordRows
from trifold.text import Encoded, Tokenizer, Truncation
from trifold.text.encoded import IdRows, check_strings, check_types

Overflow = Literal["error", "truncate"]
Apply = Callable[[Inputs], Sequence[Tensor] | Tensor]  # one tensor for each row of the inputs

IMAGES_PER_BATCH = 16


@dataclass(frozen=True)
class ModelReader:
    """A model with its tokenizer, and options of how inputs are read.

    on_overflow: what to do with a text that has more tokens than the model has positions: "error",
        or "truncate", which calls `on_cut` with a `Truncation`, a line as text; None: an error that
        does not name this option. places: names of the inputs in errors. on_done: called with the
        number of inputs of each finished batch. max_tokens: a lower limit than the positions.
        parse_special: whether special tokens in a text are parsed; None: as transformers does.
        in_parallel: whether several batches may be read at once, not while hook points are watched.
    """

    model: Transformer
    tokenizer: Tokenizer | None = None
    pictures: ImageSettings | None = None
    batch_tokens: int = 4096
    max_tokens: int | None = None
    on_overflow: Overflow | None = "error"
    places: Sequence[str] | None = None
    on_done: Callable[[int], None] | None = None
    on_cut: Callable[[Truncation], None] | None = None
    parse_special: bool | None = None
    in_parallel: bool = True

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def required_tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises UsageError if there is none."""
        return require_tokenizer(self.tokenizer, "logits and hidden_states")

    @property
    def parses_special(self) -> bool:
        """Whether special tokens in a text are parsed."""
        if self.parse_special is None:
            return self.required_tokenizer.parses_special
        return self.parse_special

    def place(self, number: int, count: int) -> str:
        """The name in errors of input `number` (from 0) of `count`."""
        if self.places is None:
            return f"text {number + 1} of {count}"
        return self.places[number]

    def run(self, texts: Sequence[Any], pairs: Sequence[str] | None, apply: Apply) -> list[Tensor]:
        """Apply a function to each input: a text, a pair, or an image (a file or a Pillow image).

        Raises TrifoldError if a result contains NaN or infinity.
        """
        if not self.config.n_patches:
            return self._run_ids(self.encode_ids(texts, pairs), apply, texts, pairs)
        if pairs is not None:
            raise UsageError("this model reads single images; remove the second texts")
        lengths = np.ones(len(texts), np.int64)
        return self._run(
            lengths, IMAGES_PER_BATCH, lambda chosen: self.images(texts, chosen), apply
        )

    def encode(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Encoded]:
        """Encode texts, or pairs of texts.

        Raises DataError for a text without tokens, and for a text that is too long if it may not be
        truncated.
        """
        check_strings(texts)
        check_strings(pairs or ())
        end = self._missing_end
        rows = self.required_tokenizer.rows(
            texts,
            pairs,
            max_length=self._room(end),
            special_in_text=self.parses_special,
            compares=self.config.word_matches,
        )
        if end is not None:
            rows = [_append(row, end) for row in rows]
        self._check(IdRows.of(rows), pairs is not None)
        return rows

    def encode_ids(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> IdRows:
        """`encode` without positions in the texts, in less than half the time."""
        compares = pairs is not None and self.config.word_matches
        if compares or self._missing_end is not None:
            return IdRows.of(self.encode(texts, pairs))
        check_strings(texts)
        check_strings(pairs or ())
        rows = self.required_tokenizer.id_rows(
            texts, pairs, max_length=self._room(None), special_in_text=self.parses_special
        )
        self._check(rows, pairs is not None)
        return rows

    @property
    def _limit(self) -> int:
        """The most tokens of a row."""
        return min(self.max_tokens or self.config.max_positions, self.config.max_positions)

    def _room(self, end: int | None) -> int | None:
        """The tokens to which a row is truncated before the end token, if it may be."""
        if self.on_overflow != "truncate":
            return None
        return self._limit if end is None else self._limit - 1

    def _check(self, rows: IdRows, is_pair: bool) -> None:
        """Report truncated rows. Raise DataError for a row with an empty text, or with more tokens
        than the limit.
        """
        limit = self._limit
        lengths = rows.ids.lengths.tolist()
        for number, (counts, length) in enumerate(zip(rows.counts, lengths, strict=True)):
            if length > limit or not counts[0] or (is_pair and not counts[1]):
                place = self.place(number, len(lengths))
                self._refuse(place, length, is_pair, is_empty=not all(counts[: 1 + is_pair]))
        if self.on_overflow == "truncate" and self.on_cut is not None:
            truncation = Truncation()
            truncation.add(rows.dropped)
            if truncation:
                self.on_cut(truncation)

    def _refuse(self, place: str, length: int, is_pair: bool, *, is_empty: bool) -> None:
        """Raise DataError for a row with an empty text, or with too many tokens."""
        if is_empty:
            of_pair = " on one side" if is_pair else ""
            raise DataError(f"{place} has no tokens{of_pair}: nothing to read")
        remedy = ", or truncate it (--on-overflow truncate)" if self.on_overflow else ""
        raise DataError(
            f"{place}: {length:,} tokens, but the model reads at most {self._limit:,}; "
            f"shorten the text{remedy}"
        )

    def run_rows(
        self, rows: Sequence[Encoded], apply: Apply, words: WordRows | None = None
    ) -> list[Tensor]:
        """Apply a function to each row; results are on the CPU and include padding at the end.
        words: of the rows, if the model reads their forms.

        The inputs of the function may be packed.
        """
        return self._run_ids(IdRows.of(rows), apply, words=words)

    def _run_ids(
        self,
        rows: IdRows,
        apply: Apply,
        texts: Sequence[str] | None = None,
        pairs: Sequence[str] | None = None,
        words: WordRows | None = None,
    ) -> list[Tensor]:
        """Apply a function to each row. texts, pairs, words: what the linear path of a model
        reads.
        """

        def batch(chosen: list[int]) -> Inputs:
            inputs = self._batch(rows, chosen)
            if words is not None:
                numbers = np.array(chosen, np.int64)
                of_words = words.features(inputs.shape, numbers, rows.ids.lengths[numbers])
                return replace(inputs, features=of_words)
            if texts is None or not self._reads_features:
                return inputs
            columns = [
                None if column is None else [column[number] for number in chosen]
                for column in (texts, pairs)
            ]
            features = text_features(self.config, columns[0] or (), columns[1])
            return replace(inputs, features=features)

        return self._run(rows.ids.lengths, self.batch_tokens, batch, apply)

    def _run(
        self,
        lengths: NDArray[np.int64],
        batch_size: int,
        inputs: Callable[[list[int]], Inputs],
        apply: Apply,
    ) -> list[Tensor]:
        """Apply a function to the inputs of each batch. batch_size: what the lengths of a batch may
        sum to, with padding.
        """
        device = next(self.model.parameters()).device
        workers = 1
        if self.in_parallel and has_packed_attention(self.config):
            workers = workers_on(device)
        size = share_of(int(lengths.sum()), batch_size, workers)
        divide = packed_batches if self._packs else batches_by_length
        batches = divide(lengths, size)

        @torch.no_grad()
        def read(batch: NDArray[np.int64]) -> Sequence[Tensor] | Tensor:
            batch_inputs = inputs(batch.tolist())
            self._check_memory(batch_inputs)
            return apply(batch_inputs.to(device))

        results: dict[int, Tensor] = {}
        with eval_mode(self.model):
            for batch, outputs in zip(batches, map_on(workers, read, batches), strict=True):
                if not results:
                    _check_results(outputs, len(lengths))
                for output in [outputs] if isinstance(outputs, Tensor) else outputs:
                    refuse_non_finite(output)
                results |= zip(batch.tolist(), (output.cpu() for output in outputs), strict=True)
                if self.on_done is not None:
                    self.on_done(len(batch))
        return [results[number] for number in range(len(results))]

    def _check_memory(self, inputs: Inputs) -> None:
        """Raise NotEnoughMemoryError if a batch does not fit into memory."""
        rows, width = inputs.shape
        if inputs.pixels is not None:
            rows = len(inputs.pixels)
            width = self.config.n_patches + 1
        what = f"{rows:,} inputs of {width:,} tokens"
        remedy = "shorten the text, or truncate it (max_tokens)"
        if rows > 1:
            remedy = "lower batch_tokens"
        check_request(self.model, Workload(rows, width, width), what, remedy)

    def head(self, name: str) -> Apply:
        """The function that returns the output of a head."""
        return lambda inputs: ops.head_output(self.model, inputs, name)

    # --- rows -> inputs ---------------------------------------------------------------------------

    def _batch(self, rows: IdRows, chosen: Sequence[int]) -> Inputs:
        """The chosen rows, packed or padded to the longest."""
        if not self._packs:
            return self._padded(rows, chosen)
        config = self.config
        numbers = np.array(chosen, np.int64)
        lengths = rows.ids.lengths[numbers]
        packing = Packing.of(torch.from_numpy(lengths), always_pad=False)
        ids = torch.from_numpy(rows.ids.joined(numbers, lengths))
        inputs = Inputs(packing.fill(ids, config.pad_id), packing=packing)
        if self._reads_types:
            types = check_types(rows.types, config.n_token_types)
            of_tokens = torch.from_numpy(types.joined(numbers, lengths))
            inputs = replace(inputs, segments=packing.fill(of_tokens, 0))
        if rows.matches is not None:
            of_tokens = torch.from_numpy(rows.matches.joined(numbers, lengths))
            inputs = replace(inputs, matches=packing.fill(of_tokens, 0))
        return inputs

    def inputs(self, rows: Sequence[Encoded]) -> Inputs:
        """The rows, padded to the longest."""
        return self._padded(IdRows.of(rows), range(len(rows)))

    def _padded(self, rows: IdRows, chosen: Sequence[int]) -> Inputs:
        """The chosen rows, padded to the longest."""
        config = self.config
        numbers = np.array(chosen, np.int64)
        inputs = pad_rows(rows.ids, numbers, config.pad_id)
        if self._reads_types:
            types = check_types(rows.types, config.n_token_types)
            inputs = replace(inputs, segments=types.padded(numbers, inputs.tokens.shape[1], 0))
        if rows.matches is not None:
            width = inputs.tokens.shape[1]
            inputs = replace(inputs, matches=rows.matches.padded(numbers, width, 0))
        return inputs

    @property
    def _packs(self) -> bool:
        """Whether texts are read as packed rows: attention is fastest then. An encoder-decoder may
        read them twice, the second time shifted, which packed rows cannot be.
        """
        config = self.config
        is_pair = config.shape == "encoder-decoder"
        return has_packed_attention(config) and not (config.n_patches or is_pair)

    @property
    def _reads_features(self) -> bool:
        """Whether the model reads features of the texts beside their tokens."""
        return any(part_of(LogitsPart, self.config).columns(self.config))

    @property
    def _reads_types(self) -> bool:
        """Whether the tokenizer gives the segments that the model reads."""
        return self.config.reads_segments and self.required_tokenizer.has_token_types

    @property
    def _missing_end(self) -> int | None:
        """The end token that an encoder-decoder requires after a text, if the tokenizer does not
        append it.
        """
        end = self.config.eos_id
        config = self.config
        if config.shape != "encoder-decoder" or end >= config.vocab_size:
            return None
        of_no_text = self.required_tokenizer.rows([""])[0]
        return None if of_no_text.ids[-1:] == [end] else end

    def images(self, images: Sequence[Any], chosen: Sequence[int]) -> Inputs:
        """The pixels of the chosen files or Pillow images."""
        config = self.config
        settings = self.pictures
        if settings is None:
            raise UsageError(
                "the model folder has no preprocessor_config.json, which defines how images are "
                "preprocessed; "
                "copy the file of the original model, or use logits, which takes pixels"
            )
        expected = part_of(EmbeddingsPart, config).image_size(config)
        assert expected is not None, "images are read by a model of images"
        size = settings.fixed_size
        edge = settings.shortest_edge
        if size is None and edge is not None and edge > max(expected):
            size = (edge, edge)  # at least; rejected before it is allocated
        if size not in (None, expected):
            key = "size" if settings.crop is None else "crop_size"
            raise CheckpointError(
                f"preprocessor_config.json: {key}: images become {size} pixels high and wide, "
                f"but the model reads {expected}"
            )
        pixels = []
        for number in chosen:
            name = str(images[number])
            if self.places is not None and self.places[number] != name:
                name = f"{self.places[number]}: {name}"
            image = read_image(images[number], settings, config.n_channels, name)
            if image.shape[1:] != expected:
                raise DataError(f"{name}: {image.shape[1:]} pixels, but the model reads {expected}")
            if not np.isfinite(image).all():
                raise CheckpointError(
                    f"{name}: a pixel becomes NaN or infinite; correct rescale_factor, "
                    "image_mean and image_std "
                    "in preprocessor_config.json"
                )
            pixels.append(torch.from_numpy(image))
        return Inputs(pixels=torch.stack(pixels))


def require_tokenizer(tokenizer: Tokenizer | None, alternative: str) -> Tokenizer:
    """Raises UsageError if there is no tokenizer; `alternative` names methods that take ids."""
    if tokenizer is None:
        raise UsageError(
            "the model folder has no tokenizer; load the model with tokenizer=FOLDER, or use "
            f"{alternative}, which take ids"
        )
    return tokenizer


def _append(row: Encoded, token: int) -> Encoded:
    types = [*row.types, *(row.types[-1:] or [0])]
    offsets = [*row.offsets, (0, 0)]
    texts = [*row.texts, None]
    words = [*row.words, None]
    return replace(
        row, ids=[*row.ids, token], types=types, offsets=offsets, texts=texts, words=words
    )


def _check_results(first: Tensor | Sequence[Tensor], count: int) -> None:
    """Raise NotEnoughMemoryError if the results of `count` inputs do not fit into memory. first:
    those of the first batch; results for each token are not compared, because their sizes differ.
    """
    if first[0].dim() == 1:
        need = count * first[0].nbytes
        what = f"the results of {count:,} inputs"
        require_memory(need, torch.device("cpu"), what, "give fewer inputs at once")
