"""Write ListOps (Nangia & Bowman 2018): nested lists with an operator, and the digit that each
evaluates to.

    python tools/listops.py listops-512 --longest 512 --arguments 5
    python tools/listops.py listops-2000 --shortest 501 --longest 2000 --arguments 10
    trifold train classify data.train=listops-512/train.tsv data.valid=listops-512/valid.tsv

An expression is `[MAX 2 9 [MIN 4 7 ] 0 ]`; tokens are between spaces. MIN, MAX, MED (median,
rounded down) and SM (sum modulo 10) take 2 or more arguments. An argument is a list with a
probability of 1/4, otherwise a digit. Expressions that are too short or too long are drawn again,
as in Long Range Arena (Tay et al. 2021), whose lengths and arguments are those of the second
command. No expression occurs twice.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median

NESTED = 0.25  # probability of a list as an argument

OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "MIN": min,
    "MAX": max,
    "MED": lambda values: int(median(values)),
    "SM": lambda values: sum(values) % 10,
}


def grow(
    rng: random.Random, tokens: list[str], longest: int, arguments: int, depth: int, level: int = 1
) -> int:
    """Append a random expression to `tokens`, and return its value. Raises OverflowError beyond
    `longest` tokens.

    depth: levels of the tree; the last has digits only.
    """
    if len(tokens) >= longest:
        raise OverflowError
    if level == depth or (level > 1 and rng.random() >= NESTED):
        value = rng.randrange(10)
        tokens.append(str(value))
        return value
    name = rng.choice([*OPERATORS])
    tokens.append(f"[{name}")
    count = rng.randint(2, arguments)
    values = [grow(rng, tokens, longest, arguments, depth, level + 1) for _ in range(count)]
    tokens.append("]")
    return OPERATORS[name](values)


def expressions(
    seed: int, shortest: int, longest: int, arguments: int, depth: int
) -> Iterator[tuple[str, int]]:
    """Different expressions of `shortest` to `longest` tokens and their values; a function of the
    arguments.
    """
    rng, seen = random.Random(seed), set[str]()
    while True:
        tokens: list[str] = []
        try:
            value = grow(rng, tokens, longest, arguments, depth)
        except OverflowError:
            continue
        text = " ".join(tokens)
        if shortest <= len(tokens) <= longest and text not in seen:
            seen.add(text)
            yield text, value


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the files of the three splits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="gets train.tsv, valid.tsv and test.tsv")
    parser.add_argument("--rows", type=int, nargs=3, default=(20_000, 1_000, 1_000), metavar="N")
    parser.add_argument("--shortest", type=int, default=16, metavar="TOKENS")
    parser.add_argument("--longest", type=int, default=512, metavar="TOKENS")
    parser.add_argument(
        "--arguments", type=int, default=5, metavar="N", help="largest number of a list"
    )
    parser.add_argument(
        "--depth", type=int, default=10, metavar="N", help="levels, digits included"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    sizes = (options.shortest, options.longest, options.arguments, options.depth)
    rows = expressions(options.seed, *sizes)
    for split, count in zip(("train", "valid", "test"), options.rows, strict=True):
        lines = [f"{text}\t{value}\n" for text, value in islice(rows, count)]
        file = options.folder / f"{split}.tsv"
        file.write_text("".join(["text\tlabel\n", *lines]), encoding="utf-8", newline="\n")
        print(
            f"{file}: {count:,} expressions, {sum(line.count(' ') + 1 for line in lines):,} tokens"
        )


if __name__ == "__main__":
    main()
