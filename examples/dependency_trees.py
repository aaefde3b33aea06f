"""Dependency trees as the graph of a Transformer.

    python examples/dependency_trees.py trees.conllu 600
    trifold train tag data.train=trees.conllu task.edges=true task.best_by=accuracy

Writes random trees in the format CoNLL-U. The tag of a word is the class of its head, which only
the tree tells: with `task.edges` a word attends to its neighbours in the tree, and a Transformer is
a graph network. Without, it has to guess.
"""

import sys
from pathlib import Path
from random import Random

CLASSES = {"noun": "n", "verb": "v", "name": "p", "adverb": "a"}
NUMBERS = 20  # words of a class


def sentence(random: Random) -> list[str]:
    """The lines of a sentence: number, word, lemma, tag, …, number of the head, relation."""
    count = random.randint(5, 12)
    kinds = [random.choice([*CLASSES]) for _ in range(count)]
    root = random.randrange(count)
    lines = []
    for word, kind in enumerate(kinds):
        # A tree: a head is nearer to the root.
        head = 0
        tag = "root"
        if word != root:
            step = 1 if root > word else -1
            near = random.randint(1, abs(root - word))
            head = word + step * near + 1
            tag = kinds[head - 1]
        text = f"{CLASSES[kind]}{random.randrange(NUMBERS)}"
        lines.append(
            "\t".join([str(word + 1), text, text, tag, "_", "_", str(head), tag, "_", "_"])
        )
    return lines


def main(file: str, sentences: int) -> None:
    """Write so many sentences."""
    random = Random(0)
    blocks = ("\n".join(sentence(random)) for _ in range(sentences))
    Path(file).write_text("\n\n".join(blocks) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
