from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st
from tests.generate.models import LetterCodec, padded_batch, varied_model
from tokenizers import Tokenizer as Library, decoders, models, pre_tokenizers

from trifold.errors import UsageError
from trifold.generate import (
    GenerationConfig,
    TextStreamer,
    generate_tokens,
    stream_text,
    stream_tokens,
    truncate_at_stop,
)
from trifold.nn import Inputs
from trifold.text import Tokenizer

TEXTS = ["naïve café", "日本語のテキスト", "👩‍👩‍👧 and 🦜!", "  two  spaces ", "a\nb\tc", "e\u0301"]


def byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["Ġa", "an", "Ġan", "Ġand"]
    library = Library(
        models.BPE(
            vocab={token: n for n, token in enumerate([*alphabet, *words])},
            merges=[("Ġ", "a"), ("a", "n"), ("Ġa", "n"), ("Ġan", "d")],
        )
    )
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    return Tokenizer(library)


def byte_fallback() -> Tokenizer:
    """As SentencePiece models are loaded: ▁ for a space, <0xNN> for bytes, without the first space."""
    pieces = [*(f"<0x{n:02X}>" for n in range(256)), "▁", "a", "b", "n", "▁an", "d", "é"]
    library = Library(
        models.BPE(vocab={p: n for n, p in enumerate(pieces)}, merges=[], byte_fallback=True)
    )
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return Tokenizer(library)


CODECS = {"byte level": byte_level(), "byte fallback": byte_fallback()}


PARTS = CODECS["byte level"].encode(["🦜 né 日"])[0]


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("text", TEXTS)
def test_streamed_parts_are_whole_characters(name, text):
    codec = CODECS[name]
    (ids,) = codec.encode([text])
    streamer = TextStreamer(codec)
    pieces = [streamer.push(token) for token in ids]
    assert "\ufffd" not in "".join(pieces)
    assert "".join(pieces) + streamer.finish() == codec.decode([ids])[0]
    assert len([piece for piece in pieces if piece]) > len(text) // 3


@settings(max_examples=80)
@given(
    st.lists(
        st.integers(0, CODECS["byte level"].vocab_size - 1) | st.sampled_from(PARTS), max_size=25
    )
)
def test_streamed_parts_of_any_tokens_join_to_their_text(ids):
    """Parts of characters, whole and broken."""
    codec = CODECS["byte level"]
    streamer = TextStreamer(codec)
    assert "".join([*map(streamer.push, ids), streamer.finish()]) == codec.decode([ids])[0]


@settings(max_examples=80)
@given(st.sampled_from(list(CODECS)), st.text("abnd é日🦜", max_size=20))
def test_streamed_parts_join_to_any_text(name, text):
    codec = CODECS[name]
    (ids,) = codec.encode([text])
    streamer = TextStreamer(codec)
    assert "".join([*map(streamer.push, ids), streamer.finish()]) == codec.decode([ids])[0]


@given(
    st.lists(st.integers(3, 15), max_size=25),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_streamed_text_is_never_revoked(ids, stops):
    codec = LetterCodec("ab", "cab", "")
    streamer = TextStreamer(codec, stops)
    streamed = ""
    whole = truncate_at_stop(codec.decode([ids])[0], stops)
    for token in ids:
        streamed += streamer.push(token)
        assert whole.startswith(streamed)
    assert streamed + streamer.finish() == whole


@pytest.mark.parametrize(
    "search",
    [
        {},
        {"temperature": 1.5, "seed": 2},
        {"penalty_alpha": 0.6, "top_k": 4},
        {"prompt_lookup_num_tokens": 3},
        {"stop_strings": ["ab", "e"]},
    ],
    ids=lambda search: next(iter(search), "greedy"),
)
@pytest.mark.parametrize("shape", ["encoder-decoder", "decoder"])
def test_stream_equals_the_output(shape, search):
    model, inputs, codec = (
        varied_model(shape),
        padded_batch([[5, 6, 7], [9], [8, 8]]),
        LetterCodec(*"ABCDEFGHIJ"),
    )
    config = GenerationConfig(max_new_tokens=12, **search)
    found = generate_tokens(model, inputs, config, codec=codec)
    tokens: list[list[int]] = [[] for _ in found]
    for row, token in stream_tokens(model, inputs, config, codec=codec):
        tokens[row].append(token)
    assert tokens == [output.tokens for (output,) in found]
    texts = [""] * len(found)
    for row, piece in stream_text(model, inputs, config, codec):
        texts[row] += piece
    whole = [truncate_at_stop(text, config.stop_strings or ()) for text in codec.decode(tokens)]
    assert texts == whole
    alone = stream_text(model, padded_batch([[9]]), config, codec, numbers=[1])
    assert "".join(piece for _, piece in alone) == whole[1]


def test_tokens_are_streamed_immediately():
    model, passes = varied_model("decoder"), []
    decode = model.decode
    model.decode = lambda *args: (passes.append(1), decode(*args))[1]
    stream = stream_tokens(
        model, Inputs(torch.tensor([[5, 6]])), GenerationConfig(max_new_tokens=20)
    )
    next(stream)
    assert len(passes) == 1
    next(stream)
    assert len(passes) == 2
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize(
    "requested", [{"num_beams": 3}, {"temperature": 1.0, "num_return_sequences": 2}]
)
def test_only_one_output_per_row_can_be_streamed(requested):
    with pytest.raises(UsageError, match="only one output per row can be streamed"):
        next(stream_tokens(varied_model(), padded_batch([[3]]), GenerationConfig(**requested)))
