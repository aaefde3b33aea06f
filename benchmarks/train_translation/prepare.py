"""One data set for all toolkits: tokenized once, written as ids and as lines of pieces."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from setting import Setting, training_flops
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

VOCAB_SIZE = 9712
SPECIALS = ["<blank>", "<s>", "</s>", "<unk>"]
PAD, BOS, EOS, UNK = range(4)
SYNTHETIC_PAIRS, SYNTHETIC_LEXICON = 29_000, 9_000

Pairs = list[tuple[str, str]]


def prepare(cache: Path) -> Path:
    """Write the data set under `cache`, unless it is there already, and give its folder.

    `pairs.json` holds token ids without start and end tokens; `train.source`, `train.target` and
    `vocab.txt` hold the same pieces as text, for toolkits that read files; `tokenizer.json` made
    them; `meta.json` describes them."""
    multi30k = Path(os.environ.get("TRIFOLD_DATA", "")) / "multi30k" / "tok"
    name, read = (
        ("multi30k-en-de", read_multi30k) if multi30k.is_dir() else ("synthetic", write_synthetic)
    )
    folder = cache / name
    if (folder / "meta.json").is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)

    pairs = list(read(multi30k))
    tokenizer = train_tokenizer(pairs)
    tokenizer.save(str(folder / "tokenizer.json"))
    vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.token_to_id)
    write_lines(folder / "vocab.txt", vocabulary)

    ids: dict[str, list[list[int]]] = {}
    for side, lines in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
        encodings = tokenizer.encode_batch(list(lines))
        ids[side] = [encoding.ids for encoding in encodings]
        write_lines(folder / f"train.{side}", (" ".join(encoding.tokens) for encoding in encodings))
    (folder / "pairs.json").write_text(json.dumps(ids), encoding="utf-8", newline="\n")

    lengths = [(len(source), len(target) + 1) for source, target in zip(*ids.values(), strict=True)]
    target_tokens = sum(target for _, target in lengths)
    meta = {
        "text": name,
        "pairs": len(pairs),
        "vocab_size": len(vocabulary),
        "source_tokens": sum(source for source, _ in lengths),
        "target_tokens": target_tokens,
        "flops_per_target_token": training_flops(Setting(len(vocabulary)), lengths) / target_tokens,
    }
    (folder / "meta.json").write_text(
        json.dumps(meta, indent=2) + "\n", encoding="utf-8", newline="\n"
    )
    return folder


def read_multi30k(folder: Path) -> Iterator[tuple[str, str]]:
    """English-German captions, lowercased and Moses-tokenized, in the order of the files."""
    sides = (
        gzip.decompress((folder / f"train.lc.norm.tok.{language}.gz").read_bytes())
        for language in ("en", "de")
    )
    english, german = (side.decode("utf-8").removesuffix("\n").split("\n") for side in sides)
    return zip(english, german, strict=True)


def write_synthetic(_: Path) -> Iterator[tuple[str, str]]:
    """Random words in sentences as long as captions, translated word by word with neighbours
    swapped.
    """
    chance = random.Random(1)
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]

    def invent() -> list[str]:
        words: dict[str, None] = {}
        while len(words) < SYNTHETIC_LEXICON:
            words["".join(chance.choices(syllables, k=chance.randint(1, 4)))] = None
        return list(words)

    source_words, target_words = invent(), invent()
    zipf = [1 / (rank + 3) for rank in range(SYNTHETIC_LEXICON)]
    for _ in range(SYNTHETIC_PAIRS):
        length = max(4, round(chance.gauss(12, 4)))
        chosen = chance.choices(range(SYNTHETIC_LEXICON), zipf, k=length)
        swapped = [chosen[i ^ 1] if i ^ 1 < length else chosen[i] for i in range(length)]
        yield " ".join(source_words[i] for i in chosen), " ".join(target_words[i] for i in swapped)


def train_tokenizer(pairs: Pairs) -> Tokenizer:
    """Joint byte-pair encoding over both sides; a piece that ends a word carries `</w>`."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIALS,
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    tokenizer.train_from_iterator((line for pair in pairs for line in pair), trainer)
    return tokenizer


def write_lines(path: Path, lines: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)
