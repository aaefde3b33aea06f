"""Train tokenizers: each kind is a set of parts of the `tokenizers` library."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from tokenizers import (
    Regex,
    Tokenizer as Library,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from trifold.errors import SettingsError
from trifold.text.settings import TokenizerSettings
from trifold.text.tokenizer import NO_LIMITS, SPECIAL, TOKEN_TYPES, UNK, Tokenizer
from trifold.text.vocabulary import SPACE

Progress: TypeAlias = Callable[[int], None]

_ROUNDS = 4  # of Viterbi training; further rounds change one token in a thousand


def make_tokenizer(
    texts: Iterable[str], settings: TokenizerSettings, progress: Progress | None = None
) -> Tokenizer:
    """The tokenizer in `settings.file` if it is set, else one trained on `texts`."""
    if settings.file is not None:
        return Tokenizer.load(settings.file, dropout=settings.dropout)
    return train_tokenizer(texts, settings, progress)


def train_tokenizer(
    texts: Iterable[str], settings: TokenizerSettings, progress: Progress | None = None
) -> Tokenizer:
    """Train on `texts`; a pure function of texts and settings. `progress` is called every 1000 texts.

    Raises SettingsError if the vocabulary is smaller than the number of characters that occur.
    """
    parts = KINDS[settings.kind](settings)
    library = Library(parts.model)
    steps = [normalizers.Replace(SPACE, " ")] if parts.marks_spaces else []
    library.normalizer = normalizers.Sequence(
        steps + ([normalizers.Lowercase()] if settings.lowercase else [])
    )
    library.pre_tokenizer = parts.pre_tokenizer
    library.decoder = parts.decoder
    texts = list(texts)
    if parts.needs_alphabet:
        _check_alphabet(library, texts, settings)
    library.train_from_iterator(_report_progress(texts, progress), parts.trainer)
    if settings.kind == "unigram":
        _recompute_scores(library, texts, special_tokens(settings))
    names = {f"{role}_token": f"<{role}>" for role in settings.special}
    if "cls_token" not in names:
        return Tokenizer(library, dropout=settings.dropout, names=names)
    library.post_processor = processors.TemplateProcessing(
        single="<cls> $A <sep>",
        pair="<cls> $A <sep> $B:1 <sep>:1",
        special_tokens=[(name, library.token_to_id(name)) for name in ("<cls>", "<sep>")],
    )
    return Tokenizer(library, dropout=settings.dropout, names=names, settings=NO_LIMITS | TOKEN_TYPES)


def special_tokens(settings: TokenizerSettings) -> list[str]:
    """The first tokens of a vocabulary: the four that training needs, then those of the settings."""
    more = [f"<{role}>" for role in settings.special]
    return [*SPECIAL, *more, *(f"<extra_id_{number}>" for number in range(settings.sentinels))]


@dataclass(frozen=True)
class Parts:
    """The parts of one kind of tokenizer."""

    model: Any
    trainer: Any
    pre_tokenizer: Any
    decoder: Any
    marks_spaces: bool = True  # a space is written as ▁, so a ▁ in the text is replaced
    needs_alphabet: bool = True  # every character needs a token


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
    """BPE on characters, within words (Sennrich et al. 2016)."""
    return _on_words(settings, models.BPE(unk_token=UNK), _bpe_trainer(settings, []))


def _unigram(settings: TokenizerSettings) -> Parts:
    """The unigram language model (Kudo 2018)."""
    trainer = trainers.UnigramTrainer(
        vocab_size=settings.vocab_size,
        special_tokens=special_tokens(settings),
        unk_token=UNK,
        show_progress=False,
    )
    return _on_words(settings, models.Unigram(), trainer)


def _word(settings: TokenizerSettings) -> Parts:
    """Whole words; rare ones are unknown."""
    trainer = _word_level_trainer(settings, settings.min_frequency)
    return _on_words(settings, models.WordLevel(unk_token=UNK), trainer, needs_alphabet=False)


def _char(settings: TokenizerSettings) -> Parts:
    """Single characters, including spaces and line ends."""
    return Parts(
        model=models.WordLevel(unk_token=UNK),
        trainer=_word_level_trainer(settings, 1),
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


def _on_words(settings: TokenizerSettings, model: Any, trainer: Any, *, needs_alphabet: bool = True) -> Parts:
    """Split at white space, with ▁ for the space before a word.

    "<" is a token of its own, so that no learned piece can be part of "</s>".
    """
    steps = [
        pre_tokenizers.WhitespaceSplit(),
        pre_tokenizers.Metaspace(SPACE, "always"),
        pre_tokenizers.Split(Regex("<"), "isolated"),
        *([pre_tokenizers.Punctuation("isolated")] if settings.punctuation else []),
    ]
    decoder = decoders.Metaspace(SPACE, "always")
    return Parts(model, trainer, pre_tokenizers.Sequence(steps), decoder, needs_alphabet=needs_alphabet)


def _bpe_trainer(settings: TokenizerSettings, alphabet: list[str]) -> Any:
    return trainers.BpeTrainer(
        vocab_size=settings.vocab_size,
        min_frequency=settings.min_frequency,
        special_tokens=special_tokens(settings),
        initial_alphabet=alphabet,
        show_progress=False,
    )


def _word_level_trainer(settings: TokenizerSettings, min_frequency: int) -> Any:
    return trainers.WordLevelTrainer(
        vocab_size=settings.vocab_size,
        min_frequency=min_frequency,
        special_tokens=special_tokens(settings),
        show_progress=False,
    )


def _check_alphabet(library: Library, texts: list[str], settings: TokenizerSettings) -> None:
    if settings.kind == "byte-bpe":
        count, what, remedy = 256, "bytes", ""
    else:
        characters: set[str] = set()
        for text in texts:
            characters.update(library.normalizer.normalize_str(text))
        if settings.kind != "char":
            characters = {c for c in characters if not c.isspace()} | {SPACE}
        count, what, remedy = len(characters), "characters of the text", ", or set kind to byte-bpe"
    special = len(special_tokens(settings))
    if settings.vocab_size < count + special:
        raise SettingsError(
            f"tokenizer.vocab_size: {settings.vocab_size:,} is smaller than the {count:,} {what} "
            f"and {special} special tokens; set it to at least {count + special:,}{remedy}"
        )


def _recompute_scores(library: Library, texts: list[str], special: list[str]) -> None:
    """Compute the scores of a unigram model from its pieces.

    The library adds probabilities in the random order of a hash table, so that two trainings agree in the pieces but
    not in the scores, and therefore not in the segmentation. Here the scores start from how often each piece occurs;
    then the best segmentations are counted in a few rounds of Viterbi training, in integers.
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
    """Scores are log probabilities; a piece with count 0 gets half a count and stays possible."""
    # Rounded, because the library does not read back every long number exactly as it wrote it.
    total = sum(counts.values()) or 1
    scores = [(piece, round(math.log(max(count, 0.5) / total), 6)) for piece, count in counts.items()]
    scores.sort(key=lambda entry: (-entry[1], entry[0]))
    return models.Unigram([*((name, 0.0) for name in special), *scores], unk_id=special.index(UNK))


def _report_progress(texts: list[str], progress: Progress | None) -> Iterator[str]:
    for number, text in enumerate(texts, start=1):
        yield text
        if progress is not None and (number % 1000 == 0 or number == len(texts)):
            progress(number)
