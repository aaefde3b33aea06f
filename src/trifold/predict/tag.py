"""Token classification: the class of each word, and spans of adjacent words of one class.

Merging follows the token-classification pipeline of transformers and uses its names.
"""

import re
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trifold.errors import UsageError
from trifold.predict.model_reader import ModelReader
from trifold.predict.tag_transitions import Transitions, best_classes
from trifold.predict.word_features import WordRows, form_buckets
from trifold.text import Encoded, Tokenizer

Merge = Literal["none", "simple", "first", "average", "max", "words"]
Scores = NDArray[np.float32]


class Tag(NamedTuple):
    """A class, its probability, and the characters [start, end) of the text that it applies to."""

    label: str
    score: float
    text: str
    start: int
    end: int


class _Token(NamedTuple):
    """A token or a word: scores (C,), its characters, and whether it continues the word before
    it.
    """

    scores: Scores
    start: int
    end: int
    continues: bool = False


# Prefixes of labels at the beginning, at the end and inside of a span: BIO, BIOES, BILOU and BMES.
FIRST = ("B-", "S-", "U-", "W-")
LAST = ("E-", "L-", "S-", "U-", "W-")
INNER = ("I-", "M-")

MERGE = "merge_tags"  # setting of a tokenizer: the default of `merge`
EDGES = "reads_edges"  # setting of a tokenizer: whether words attend along edges

# Scores (N, C) of the tokens of a word -> scores (C,) of the word.
WORDS: dict[str, Callable[[Scores], Scores]] = {
    "first": lambda scores: scores[0],
    "average": lambda scores: scores.mean(0),
    "max": lambda scores: scores[scores.max(1).argmax()],
}


def tag(
    reader: ModelReader,
    texts: Sequence[str | Sequence[str]],
    *,
    merge: Merge | None = None,
    ignore: Sequence[str] = ("O",),
) -> list[list[Tag]]:
    """The tags of each text in text order, without those whose label is in `ignore`.

    A text may be a list of words, as in training. It has one tag for each word, whatever `merge`
    and `ignore` are: the class of its first token, or O for a word without tokens.

    merge: `none` returns single tokens; `simple` merges adjacent tokens of one class (a label with
    B- starts a span); `first`, `average` and `max` merge whole words, with the class of their first
    token, of the mean of their tokens, or of their most certain token; `words` reads words between
    spaces, with the class of their first token, as training does, where labels without B- and I-
    are not merged. Default: words; with WordPiece, first, unless the model was trained here.

    Words have the most probable sequence of tags, if the model was trained here
    (`predict.tag_transitions`); tokens and merged words have the most probable tag of each. Raises
    UsageError if the tokenizer has no positions of tokens.
    """
    tokenizer = reader.required_tokenizer
    merge = _choose_merge(tokenizer, merge)
    if not tokenizer.has_offsets:
        raise UsageError(
            "this tokenizer does not provide the positions of tokens, which tags require"
        )
    if tokenizer.settings.get(EDGES):
        raise UsageError(
            "this model attends along the edges of graphs (task.edges), and texts have none: "
            "`trifold eval RUN FILE` reads a file with edges"
        )
    sentences = [text if isinstance(text, str) else " ".join(text) for text in texts]
    rows = reader.encode(sentences)
    labels = reader.config.labels
    transitions = Transitions.of(tokenizer, len(labels))
    tagged = []
    outputs = reader.run_rows(rows, reader.head("token"), _word_rows(reader, texts, rows))
    for given, sentence, row, logits in zip(texts, sentences, rows, outputs, strict=True):
        scores = logits[: len(row.ids)].softmax(-1).numpy()
        if isinstance(given, str):
            of_words = transitions if merge == "words" else None
            tags = _tag_text(tokenizer, sentence, row, scores, labels, merge, of_words)
            tagged.append([tag for tag in tags if tag.label not in ignore])
        else:
            tagged.append(_tag_words(given, sentence, row, scores, labels, transitions))
    return tagged


def _word_rows(
    reader: ModelReader, texts: Sequence[str | Sequence[str]], rows: Sequence[Encoded]
) -> WordRows | None:
    """The words of the texts, if the model reads them: those between spaces, or those of a list."""
    if not form_buckets(reader.config):
        return None
    sentences = []
    numbers = []
    for text, row in zip(texts, rows, strict=True):
        if isinstance(text, str):
            spans = _spans_between_spaces(text)
            sentences.append([text[start:end] for start, end in spans])
        else:
            spans = word_spans(text)
            sentences.append([*text])
        numbers.append(words_of_tokens(row, spans))
    return WordRows.of(reader.config, sentences, numbers)


def _spans_between_spaces(text: str) -> list[tuple[int, int]]:
    """The characters [start, end) of the words of a text."""
    return [match.span() for match in re.finditer(r"[^ \t\r\n]+", text)]


def _choose_merge(tokenizer: Tokenizer, merge: Merge | None) -> Merge:
    """The given way of merging, or the default of a tokenizer; see `tag`. Raises UsageError for an
    unknown one.
    """
    chosen: Merge | None = merge or tokenizer.settings.get(MERGE)
    if not chosen:
        is_wordpiece = hasattr(tokenizer.library.model, "max_input_chars_per_word")
        chosen = "first" if is_wordpiece else "words"
    if chosen not in ("none", "simple", "words", *WORDS):
        raise UsageError(
            f"merge: {chosen!r} is not known; known: none, simple, {', '.join(WORDS)}, words"
        )
    return chosen


def _tag_text(
    tokenizer: Tokenizer,
    text: str,
    row: Encoded,
    scores: Scores,
    labels: Sequence[str],
    merge: Merge,
    transitions: Transitions | None,
) -> list[Tag]:
    """The tags of a text, merged as `tag` describes. scores: (T, C) of the tokens of its row."""
    if merge == "words":
        units = _words_between_spaces(text, row, scores)
        # Labels without prefixes are parts of speech, for example.
        merges_spans = any(label != _class(label) for label in labels)
    else:
        units = _tokens(tokenizer, text, row, scores)
        if merge in WORDS:
            units = _merge_words(units, WORDS[merge])
        merges_spans = merge != "none"
    tags = _tags(units, labels, text, transitions)
    if merges_spans:
        return _merge_spans(tags, text)
    return tags


def _words_between_spaces(text: str, row: Encoded, scores: Scores) -> list[_Token]:
    """The words of a text that have tokens, with the scores of their first token."""
    words = _spans_between_spaces(text)
    units = []
    for (start, end), first in zip(words, first_tokens(row, words), strict=True):
        if first >= 0:
            units.append(_Token(scores[first], start, end))
    return units


def _tag_words(
    words: Sequence[str],
    text: str,
    row: Encoded,
    scores: Scores,
    labels: Sequence[str],
    transitions: Transitions | None,
) -> list[Tag]:
    """The tag of each of the words, which the text joins by spaces."""
    spans = word_spans(words)
    firsts = first_tokens(row, spans)
    placed = zip(spans, firsts, strict=True)
    units = [_Token(scores[first], *span) for span, first in placed if first >= 0]
    found = iter(_tags(units, labels, text, transitions))
    return [
        Tag("O", 0.0, "", *span) if first < 0 else next(found)
        for span, first in zip(spans, firsts, strict=True)
    ]


def word_spans(words: Sequence[str]) -> list[tuple[int, int]]:
    """The characters [start, end) of the words in their sentence, which joins them by spaces."""
    ends = accumulate((len(word) + 1 for word in words), initial=-1)
    return [(end + 1, end + 1 + len(word)) for end, word in zip(ends, words, strict=False)]


def first_tokens(row: Encoded, words: Sequence[tuple[int, int]]) -> list[int]:
    """The number of the first token of each word, given by characters [start, end); -1 for a word
    without tokens.

    words: in text order. A token that covers parts of several words belongs to the first of them.
    """
    firsts = [-1] * len(words)
    for token, word in enumerate(words_of_tokens(row, words)):
        if word >= 0 and firsts[word] < 0:
            firsts[word] = token
    return firsts


def words_of_tokens(row: Encoded, words: Sequence[tuple[int, int]]) -> list[int]:
    """The number of the word that each token belongs to; -1 for special tokens. See
    `first_tokens`.
    """
    numbers = [-1] * len(row.ids)
    word = 0
    for token, ((start, end), side) in enumerate(zip(row.offsets, row.texts, strict=True)):
        while word < len(words) and words[word][1] <= start:
            word += 1
        if word == len(words):
            break
        is_special = side is None
        if not is_special and end > words[word][0]:
            numbers[token] = word
    return numbers


def choose_tags(
    classes: NDArray[np.integer], firsts: Sequence[int], labels: Sequence[str]
) -> list[str]:
    """The tag of each word from the classes (T,) of the tokens; O for a word without tokens."""
    return ["O" if first < 0 else labels[classes[first]] for first in firsts]


def _tokens(tokenizer: Tokenizer, text: str, row: Encoded, scores: Scores) -> list[_Token]:
    """The tokens of the text, without special tokens."""
    prefix = getattr(tokenizer.library.model, "continuing_subword_prefix", None)
    tokens = []
    columns = zip(row.ids, row.offsets, row.texts, scores, strict=True)
    for token, (start, end), side, scores_of_token in columns:
        if side is None:
            continue
        if token == tokenizer.unk_id:
            continues = False
        elif prefix:  # a token inside a word is longer than its characters
            continues = len(str(tokenizer.library.id_to_token(token))) != end - start
        else:
            continues = start > 0 and " " not in text[start - 1 : start + 1]
        tokens.append(_Token(scores_of_token, start, end, continues))
    return tokens


def _merge_words(tokens: Sequence[_Token], join: Callable[[Scores], Scores]) -> list[_Token]:
    words: list[list[_Token]] = []
    for token in tokens:
        if not token.continues or not words:
            words.append([])
        words[-1].append(token)
    return [
        _Token(join(np.stack([t.scores for t in word])), word[0].start, word[-1].end)
        for word in words
    ]


def _tags(
    units: Sequence[_Token], labels: Sequence[str], text: str, transitions: Transitions | None
) -> list[Tag]:
    """The tag of each token or word."""
    if not units:
        return []
    (classes,) = best_classes(transitions, [np.stack([unit.scores for unit in units])])
    return [
        Tag(labels[best], float(scores[best]), text[start:end], start, end)
        for best, (scores, start, end, _) in zip(classes.tolist(), units, strict=True)
    ]


def _merge_spans(tags: Sequence[Tag], text: str) -> list[Tag]:
    """Adjacent tags of one class as one tag, without the prefix (B-, I-, …) in its label; its score
    is their mean.
    """
    groups: list[list[Tag]] = []
    for tag in tags:
        if not groups or _begins_span(tag.label, groups[-1][-1].label):
            groups.append([])
        groups[-1].append(tag)
    spans = []
    for group in groups:
        label = _class(group[0].label)
        score = float(np.mean([tag.score for tag in group]))
        start = group[0].start
        end = group[-1].end
        spans.append(Tag(label, score, text[start:end], start, end))
    return spans


def _begins_span(label: str, before: str) -> bool:
    """Whether a label does not belong to the span of the label before it."""
    if label.startswith(FIRST) or before.startswith(LAST):
        return True
    return _class(label) != _class(before)


def _class(label: str) -> str:
    """A label without its prefix."""
    if label.startswith((*FIRST, *LAST, *INNER)):
        return label[2:]
    return label
