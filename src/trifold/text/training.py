"""Learn a tokenizer from text: one recipe of parts a kind, all put together and trained by `tokenizers`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Library

from trifold.errors import SettingsError
from trifold.text.settings import TokenizerSettings
from trifold.text.tokenizer import SPACE, SPECIAL, UNK, Tokenizer

Progress: TypeAlias = Callable[[int], None]

_ROUNDS = 4  # of Viterbi training; later ones change a token in a thousand


def make_tokenizer(
    texts: Iterable[str], settings: TokenizerSettings, progress: Progress | None = None
) -> Tokenizer:
    """The tokenizer that the settings ask for: the one in `settings.file`, else one trained on `texts`."""
    if settings.file is not None:
        return Tokenizer.load(settings.file, dropout=settings.dropout)
    return train_tokenizer(texts, settings, progress)


def train_tokenizer(
    texts: Iterable[str], settings: TokenizerSettings, progress: Progress | None = None
) -> Tokenizer:
    """Train on `texts`; the same texts and settings give the same tokenizer. `progress` hears of every 1000.

    Raises SettingsError when the vocabulary cannot even hold the characters that occur.
    """
    parts = KINDS[settings.kind](settings)
    library = Library(parts.model)
    changes = [normalizers.Replace(SPACE, " ")] if parts.marks_spaces else []
    library.normalizer = normalizers.Sequence(
        changes + ([normalizers.Lowercase()] if settings.lowercase else [])
    )
    library.pre_tokenizer = parts.pre_tokenizer
    library.decoder = parts.decoder
    texts = list(texts)
    if parts.needs_alphabet:
        _check_alphabet(library, texts, settings)
    library.train_from_iterator(_watched(texts, progress), parts.trainer)
    if settings.kind == "unigram":
        _settle(library, texts, special_tokens(settings))
    roles = {f"{role}_token": f"<{role}>" for role in settings.special}
    if "cls_token" not in roles:
        return Tokenizer(library, dropout=settings.dropout, names=roles)
    library.post_processor = processors.TemplateProcessing(
        single="<cls> $A <sep>",
        pair="<cls> $A <sep> $B:1 <sep>:1",
        special_tokens=[(name, library.token_to_id(name)) for name in ("<cls>", "<sep>")],
    )
    return Tokenizer(library, dropout=settings.dropout, names=roles, settings=_TOLD)


# What other programs are to know of a tokenizer that tells two texts apart.
_TOLD = {
    "split_special_tokens": True,
    "model_max_length": int(1e30),
    "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
}


def special_tokens(settings: TokenizerSettings) -> list[str]:
    """The first tokens of a vocabulary: the four that training needs, then what the settings ask for."""
    more = [f"<{role}>" for role in settings.special]
    return [*SPECIAL, *more, *(f"<extra_id_{number}>" for number in range(settings.sentinels))]


@dataclass(frozen=True)
class Parts:
    """What a kind of tokenizer is made of."""

    model: Any
    trainer: Any
    pre_tokenizer: Any
    decoder: Any
    marks_spaces: bool = True  # a space is written as ▁, so a ▁ of the text itself has to give way
    needs_alphabet: bool = True  # every character must have a token


def _byte_bpe(settings: TokenizerSettings) -> Parts:
    """BPE on bytes (Radford et al. 2019)."""
    return Parts(
        model=models.BPE(unk_token=UNK),
        trainer=_bpe_trainer(settings, pre_tokenizers.ByteLevel.alphabet()),
        pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoder=decoders.ByteLevel(),
        marks_spaces=False,
    )


def _bpe(settings: TokenizerSettings) -> Parts:
    """BPE on characters that never crosses a word boundary (Sennrich et al. 2016)."""
    return Parts(
        model=models.BPE(unk_token=UNK),
        trainer=_bpe_trainer(settings, []),
        pre_tokenizer=_words(settings),
        decoder=decoders.Metaspace(SPACE, "always"),
    )


def _unigram(settings: TokenizerSettings) -> Parts:
    """The unigram language model (Kudo 2018)."""
    return Parts(
        model=models.Unigram(),
        trainer=trainers.UnigramTrainer(
            vocab_size=settings.vocab_size,
            special_tokens=special_tokens(settings),
            unk_token=UNK,
            show_progress=False,
        ),
        pre_tokenizer=_words(settings),
        decoder=decoders.Metaspace(SPACE, "always"),
    )


def _word(settings: TokenizerSettings) -> Parts:
    """Whole words; what is rare is unknown."""
    return Parts(
        model=models.WordLevel(unk_token=UNK),
        trainer=_level_trainer(settings, settings.min_frequency),
        pre_tokenizer=_words(settings),
        decoder=decoders.Metaspace(SPACE, "always"),
        needs_alphabet=False,
    )


def _char(settings: TokenizerSettings) -> Parts:
    """Single characters, spaces and line ends among them."""
    return Parts(
        model=models.WordLevel(unk_token=UNK),
        trainer=_level_trainer(settings, 1),
        pre_tokenizer=pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated"),
        decoder=decoders.Fuse(),
        marks_spaces=False,
    )


KINDS: dict[str, Callable[[TokenizerSettings], Parts]] = {
    "byte-bpe": _byte_bpe,
    "bpe": _bpe,
    "unigram": _unigram,
    "word": _word,
    "char": _char,
}


def _bpe_trainer(settings: TokenizerSettings, alphabet: list[str]) -> Any:
    return trainers.BpeTrainer(
        vocab_size=settings.vocab_size,
        min_frequency=settings.min_frequency,
        special_tokens=special_tokens(settings),
        initial_alphabet=alphabet,
        show_progress=False,
    )


def _level_trainer(settings: TokenizerSettings, min_frequency: int) -> Any:
    return trainers.WordLevelTrainer(
        vocab_size=settings.vocab_size,
        min_frequency=min_frequency,
        special_tokens=special_tokens(settings),
        show_progress=False,
    )


def _words(settings: TokenizerSettings) -> Any:
    """Words with the space before them as ▁. "<" stands alone, so that no learned piece can spell "</s>"."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(SPACE, "always"),
            pre_tokenizers.Split(Regex("<"), "isolated"),
            *([pre_tokenizers.Punctuation("isolated")] if settings.punctuation else []),
        ]
    )


def _check_alphabet(library: Library, texts: list[str], settings: TokenizerSettings) -> None:
    if settings.kind == "byte-bpe":
        characters, what, remedy = 256, "bytes", ""
    else:
        seen: Counter[str] = Counter()
        for text in texts:
            seen.update(library.normalizer.normalize_str(text))
        if settings.kind != "char":
            seen = Counter({c: n for c, n in seen.items() if not c.isspace()})
            seen[SPACE] += 1
        characters, what, remedy = len(seen), "characters of the text", ", or set kind to byte-bpe"
    special = len(special_tokens(settings))
    needed = characters + special
    if settings.vocab_size < needed:
        raise SettingsError(
            f"tokenizer.vocab_size: {settings.vocab_size:,} is smaller than the {characters:,} {what} "
            f"and {special} special tokens; set it to {needed:,} at the least{remedy}"
        )


def _settle(library: Library, texts: list[str], special: list[str]) -> None:
    """Compute the scores of a unigram model anew, from its pieces alone.

    The library adds up probabilities in the random order of a hash table, so two trainings agree in the
    pieces, but not in the scores and then not in the segmentation. Here the scores start from how often each
    piece occurs; a few rounds of best segmentation and counting follow (Viterbi training), in whole numbers.
    """
    words: Counter[str] = Counter()
    for text in texts:
        normal = library.normalizer.normalize_str(text)
        words.update(word for word, _ in library.pre_tokenizer.pre_tokenize_str(normal))
    pieces = sorted(set(library.get_vocab()) - set(special))
    longest = max(map(len, pieces), default=0)
    counts = dict.fromkeys(pieces, 0)
    for word, times in words.items():
        for start in range(len(word)):
            for end in range(start + 1, min(len(word), start + longest) + 1):
                if word[start:end] in counts:
                    counts[word[start:end]] += times
    for _ in range(_ROUNDS):
        library.model = _unigram_model(counts, special)
        counts = dict.fromkeys(pieces, 0)
        for word, times in words.items():
            for token in library.model.tokenize(word):
                if token.value in counts:
                    counts[token.value] += times
    library.model = _unigram_model(counts, special)


def _unigram_model(counts: dict[str, int], special: list[str]) -> Any:
    """Scores are log probabilities; a piece that is never used keeps half a count and so stays possible."""
    # Few digits, because the library does not read back every long number exactly as it wrote it.
    total = sum(counts.values()) or 1
    scores = [(piece, round(math.log(max(count, 0.5) / total), 6)) for piece, count in counts.items()]
    scores.sort(key=lambda entry: (-entry[1], entry[0]))
    return models.Unigram([*((name, 0.0) for name in special), *scores], unk_id=special.index(UNK))


def _watched(texts: list[str], progress: Progress | None) -> Iterator[str]:
    for number, text in enumerate(texts, start=1):
        yield text
        if progress is not None and (number % 1000 == 0 or number == len(texts)):
            progress(number)
