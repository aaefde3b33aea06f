"""Train tokenizers: settings, and the parts of the `tokenizers` library of each kind."""

import math
import os
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer as Library,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from trifold.errors import SettingsError
from trifold.folders import UntrustedPath, folder_or_file, open_named
from trifold.settings import Conflict, Settings
from trifold.text.folder import read_tokenizer
from trifold.text.special_tokens import SPECIAL, UNK, is_hole
from trifold.text.templates import template
from trifold.text.tokenizer import NO_LIMITS, TOKEN_TYPES, Tokenizer
from trifold.text.vocabulary import SPACE

DELIMITER = "<delimiter>"
EXTRACT = "<extract>"
_ROUNDS = 4  # of Viterbi training; further rounds change one token in a thousand


class TokenizerSettings(Settings):
    """The tokenizer to train, or the file of an existing one.

    Kinds: `byte-bpe` (text is restored exactly, nothing is unknown), `bpe` (merges within words;
    white space is restored as single spaces), `unigram` (most probable pieces) and `word`, both
    likewise, and `char` (exact). Characters or words outside the vocabulary become `<unk>`.
    """

    kind: Literal["byte-bpe", "bpe", "unigram", "word", "char"] = "bpe"
    vocab_size: int = Field(default=8000, ge=5)  # maximum number of tokens, including special ones
    joint: bool = True  # one vocabulary for source and target
    min_frequency: int = Field(
        default=2, ge=1, description="of a pair (bpe), word or character that gets a token"
    )
    lowercase: bool = False
    punctuation: bool = True  # bpe, unigram, word: split off punctuation; false for tokenized text
    special: tuple[Literal["cls", "sep", "mask"], ...] = Field(
        (),
        strict=False,
        description="further special tokens: cls and sep around a text, mask for masked tokens",
    )
    sentinels: int = Field(
        0, ge=0, le=10_000, description="number of sentinels <extra_id_0> … of span corruption"
    )
    file: str | None = None  # a tokenizer.json, a model folder or a run, instead of training
    add: Annotated[tuple[str, ...], Field(strict=False)] | str = Field(
        (), description="tokens to add to those of `file`, or a file with one per line"
    )
    extract: bool = Field(
        False,
        description="decoders: <s> before a text, <delimiter> between two and <extract> after them",
    )
    dropout: float = Field(
        default=0.0,
        ge=0.0,
        lt=1.0,
        description="bpe, byte-bpe: share of merges dropped in training",
    )
    dropout_epochs: int | None = Field(
        default=None, ge=1, description="number of first epochs with dropout; default all"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.dropout and self.file is None and self.kind not in ("bpe", "byte-bpe"):
            text = f"dropout drops BPE merges, and kind {self.kind!r} has none"
            raise Conflict(text, {"dropout": 0.0}, "set it to 0")
        if self.dropout_epochs and not self.dropout:
            text = "dropout_epochs has no effect without dropout"
            raise Conflict(text, {"dropout_epochs": None}, "set dropout, for example to 0.1")
        if self.add and (self.file is None or not self.joint):
            raise ValueError(
                "add: there is no joint tokenizer to add tokens to; set file, and joint to true"
            )
        if len({"cls", "sep"}.intersection(self.special)) == 1:
            raise ValueError("special: cls and sep surround a text together; give both or neither")
        return self


def make_tokenizer(texts: Iterable[str], settings: TokenizerSettings) -> Tokenizer:
    """The tokenizer in `settings.file`, with added tokens, if it is set, else one trained on
    `texts`.
    """
    if settings.file is None:
        tokenizer = train_tokenizer(texts, settings)
    else:
        tokenizer = _read_tokenizer(settings, settings.file)
    if settings.extract:
        _surround(tokenizer)
    return tokenizer


def _surround(tokenizer: Tokenizer) -> None:
    """Put the tokens of GPT's fine-tuning around texts (Radford et al. 2018, section 3.3): a head
    reads the state of the last one. Raises SettingsError without a start token.
    """
    start = tokenizer.names.get("bos_token")
    if start is None:
        raise SettingsError(
            "tokenizer.extract: the tokenizer has no start token (bos_token), which stands before "
            "each text; remove it"
        )
    library = tokenizer.library
    library.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in (DELIMITER, EXTRACT)]
    )
    library.post_processor = template(
        library, f"{start} $A {EXTRACT}", f"{start} $A {DELIMITER} $B {EXTRACT}"
    )


def _read_tokenizer(settings: TokenizerSettings, source: str) -> Tokenizer:
    """The tokenizer in a file or folder, with added tokens."""
    folder = find_tokenizer(source)
    if folder.is_folder():
        tokenizer = read_tokenizer(folder, complete=True, dropout=settings.dropout)
    else:
        tokenizer = Tokenizer.load(folder, dropout=settings.dropout)
    tokens = settings.add
    if isinstance(tokens, str):
        try:
            with open_named(Path(tokens).expanduser()) as file:
                tokens = tuple(file.read().decode("utf-8").splitlines())
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"tokenizer.add: {tokens} cannot be read ({error}); name a file"
            ) from None
    tokenizer.library.add_tokens([token for token in tokens if token.strip()])
    return tokenizer


def find_tokenizer(name: str) -> UntrustedPath:
    """The file or folder of the tokenizer that `tokenizer.file` names: of a run, the folder of its
    model, or, before the first validation, that of its tokenizer.
    """
    path = folder_or_file(Path(os.path.expandvars(name)).expanduser())
    if (path / "recipe.yaml").exists():
        inner = (path / "model", path / "tokenizer")
        return next((folder for folder in inner if folder.is_folder()), path)
    return path


def train_tokenizer(texts: Iterable[str], settings: TokenizerSettings) -> Tokenizer:
    """Train on `texts`; a pure function of texts and settings.

    Raises SettingsError if the vocabulary is smaller than the number of characters that occur.
    """
    library, trainer = _make_library(settings)
    texts = list(texts)
    if settings.kind != "word":
        _check_alphabet(library, texts, settings)
    library.train_from_iterator(texts, trainer)
    if settings.kind == "unigram":
        _recompute_scores(library, texts, special_tokens(settings))
    names = {f"{role}_token": f"<{role}>" for role in settings.special}
    if "cls_token" not in names:
        return Tokenizer(library, dropout=settings.dropout, names=names)
    library.post_processor = template(library, "<cls> $A <sep>", "<cls> $A <sep> $B:1 <sep>:1")
    return Tokenizer(
        library, dropout=settings.dropout, names=names, settings=NO_LIMITS | TOKEN_TYPES
    )


def special_tokens(settings: TokenizerSettings) -> list[str]:
    """The first tokens of a vocabulary: the four that training needs, then those of the
    settings.
    """
    more = [f"<{role}>" for role in settings.special]
    return [*SPECIAL, *more, *(f"<extra_id_{number}>" for number in range(settings.sentinels))]


def _make_library(settings: TokenizerSettings) -> tuple[Library, Any]:
    """The untrained parts of one kind of tokenizer, and the trainer.

    All kinds but byte-bpe and char split at white space and write ▁ for the space before a word.
    For them, "<" is a token of its own, so that no learned piece can be part of "</s>".
    """
    special = [
        # A hole replaces a word with the space before it, which is in its first byte-level token.
        AddedToken(
            name,
            special=True,
            normalized=False,
            lstrip=settings.kind == "byte-bpe" and is_hole(name),
        )
        for name in special_tokens(settings)
    ]
    common: dict[str, Any] = {"vocab_size": settings.vocab_size, "special_tokens": special}
    common["show_progress"] = False
    frequent = {"min_frequency": settings.min_frequency, **common}
    trainer: Any
    match settings.kind:
        case "byte-bpe":  # BPE on bytes (Radford et al. 2019)
            library = Library(models.BPE(unk_token=UNK))
            library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            library.decoder = decoders.ByteLevel()
            trainer = trainers.BpeTrainer(
                initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **frequent
            )
        case "char":  # single characters, including spaces and line ends
            library = Library(models.WordLevel(unk_token=UNK))
            library.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
            library.decoder = decoders.Fuse()
            trainer = trainers.WordLevelTrainer(**{**common, "min_frequency": 1})
        case "bpe":  # BPE on characters, within words (Sennrich et al. 2016)
            library = Library(models.BPE(unk_token=UNK))
            trainer = trainers.BpeTrainer(**frequent)
        case "unigram":  # the unigram language model (Kudo 2018)
            library = Library(models.Unigram())
            trainer = trainers.UnigramTrainer(unk_token=UNK, **common)
        case "word":  # whole words; rare ones are unknown
            library = Library(models.WordLevel(unk_token=UNK))
            trainer = trainers.WordLevelTrainer(**frequent)
    steps: list[Any] = []
    if settings.kind not in ("byte-bpe", "char"):
        steps.append(normalizers.Replace(SPACE, " "))
        splits: list[Any] = [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(SPACE, "always"),
            pre_tokenizers.Split(Regex("<"), "isolated"),
        ]
        if settings.punctuation:
            splits.append(pre_tokenizers.Punctuation("isolated"))
        library.pre_tokenizer = pre_tokenizers.Sequence(splits)
        library.decoder = decoders.Metaspace(SPACE, "always")
    if settings.lowercase:
        steps.append(normalizers.Lowercase())
    library.normalizer = normalizers.Sequence(steps)
    return library, trainer


def _check_alphabet(library: Library, texts: list[str], settings: TokenizerSettings) -> None:
    if settings.kind == "byte-bpe":
        count = 256
        what = "bytes"
        remedy = ""
    else:
        characters = set(chain.from_iterable(map(library.normalizer.normalize_str, texts)))
        if settings.kind != "char":
            characters = {c for c in characters if not c.isspace()} | {SPACE}
        count = len(characters)
        what = "characters of the text"
        remedy = ", or set kind to byte-bpe"
    special = len(special_tokens(settings))
    if settings.vocab_size < count + special:
        raise SettingsError(
            f"tokenizer.vocab_size: {settings.vocab_size:,} is smaller than the {count:,} {what} "
            f"and {special} special tokens; set it to at least {count + special:,}{remedy}"
        )


def _recompute_scores(library: Library, texts: list[str], special: list[str]) -> None:
    """Compute the scores of a unigram model from its pieces.

    The library adds probabilities in the random order of a hash table, so that two trainings agree
    in the pieces but not in the scores, and therefore not in the segmentation. Here the scores
    start from how often each piece occurs; then the best segmentations are counted in a few rounds
    of Viterbi training, in integers.
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
    scores = [
        (piece, round(math.log(max(count, 0.5) / total), 6)) for piece, count in counts.items()
    ]
    scores.sort(key=lambda entry: (-entry[1], entry[0]))
    return models.Unigram([*((name, 0.0) for name in special), *scores], unk_id=special.index(UNK))
