"""Roles of heads: planted heads are found; every share equals that of a plain count."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from tests.predict.test_trace import new_pipeline
from torch import Tensor

from trifold.cli.look import _measure_roles
from trifold.errors import DataError, UsageError
from trifold.look.attention import HOOKS
from trifold.look.corpus import Line, Link, read_corpus
from trifold.look.effects import effect_on_bleu, effect_over_lines, scaled_heads
from trifold.look.page import offline_requests, write_page
from trifold.look.requests import answer
from trifold.look.roles import MARGIN, ROLES, head_roles, prune_edits, wilson
from trifold.look.session import Session
from trifold.nn import ModelConfig, Transformer
from trifold.pipeline import Pipeline
from trifold.text import TokenizerSettings, train_tokenizer

LETTERS = "abcdefghijkl"


def planted_model() -> Pipeline:
    """A decoder whose stream holds the token, the previous token and the position as one-hot
    vectors.

    Layer 1: head 1 attends to the previous token and copies it; head 2 to equal tokens, head 3 to
    the first token. Layer 2: head 1 attends to keys whose previous token equals the query (Elhage
    et al. 2021; Olsson et al. 2022)."""
    codec = train_tokenizer([LETTERS], TokenizerSettings(kind="char", min_frequency=1))
    size, places = codec.vocab_size, 40
    width = 2 * size + places
    config = ModelConfig(
        shape="decoder", heads=("lm",), vocab_size=size, max_positions=places, positions="learned", d_model=width,
        n_layers=2, n_heads=3, d_head=width, d_ff=4, norm="rms", norm_placement="pre", scale_embeddings=False,
    )  # fmt: skip
    model = Transformer(config).eval()
    token, before, place = (slice(0, size), slice(size, 2 * size), slice(2 * size, width))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "proj" in name or "embeddings" in name:
                weight.zero_()
        tables = [x for name, x in model.named_parameters() if "embeddings" in name]
        words, positions = sorted(tables, key=len)
        words[:, token], positions[:, place] = torch.eye(size), torch.eye(places)

        def head(layer: int, number: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            attention = model.decoder.blocks[layer].self_attention.sublayer
            rows = slice(number * width, (number + 1) * width)
            q, k, v, o = (getattr(attention, f"{name}_proj").weight for name in "qkvo")
            return q[rows], k[rows], v[rows], o[:, rows]

        strong = 40.0
        q, k, v, o = head(0, 0)
        q[:places, place], k[:places, place] = (
            strong * torch.eye(places).roll(-1, 0),
            torch.eye(places),
        )
        v[:size, token], o[before, :size] = torch.eye(size), torch.eye(size)
        q, k, _, _ = head(0, 1)
        q[:size, token], k[:size, token] = strong * torch.eye(size), torch.eye(size)
        q[size : size + places, place], k[size : size + places, place] = (
            -strong * torch.eye(places),
            torch.eye(places),
        )
        q, k, _, _ = head(0, 2)
        q[0, token], k[0, place.start] = strong, 1.0
        q, k, _, _ = head(1, 0)
        q[:size, token], k[:size, before] = strong * torch.eye(size), torch.eye(size)
        k[:size, place.start] = -1.0
        q[size : size + places, place], k[size : size + places, place] = (
            -strong * torch.eye(places),
            torch.eye(places),
        )
    return Pipeline(model, codec)


def repeated_lines() -> list[Line]:
    """Random letters, twice: the offset of a repetition differs from line to line."""
    draw = random.Random(4)
    halves = ["".join(draw.choices(LETTERS, k=draw.randint(4, 14))) for _ in range(30)]
    return [Line(half + half) for half in halves]


def test_planted_heads_are_found():
    report = head_roles(planted_model(), repeated_lines())
    found = {}
    for each in report["heads"]:
        if each["found"]:
            found.setdefault((each["role"], each["relation"]), set()).add(
                (each["layer"] + 1, each["head"] + 1)
            )
    assert found["positional", "offset -1"] == {(1, 1)}
    assert found["duplicate", ""] == {(1, 2)}
    assert found["induction", ""] == {(2, 1)}
    assert (1, 3) in found["separator", "first token"]
    induction = next(
        each for each in report["heads"] if each["role"] == "induction" and each["found"]
    )
    assert induction["share"] > 0.95 and induction["examples"]
    for example in induction["examples"]:
        text, row = example["text"], example["row"]
        query, key = example["tokens"]
        assert query == text[row - 1] or query == text[row]
        assert query + key in text


def plain_fit(role, relation, kind, queries, keys, special, counts, words, links, t, s):
    """Whether a role permits that query t has its largest weight at key s, in plain words."""
    if role == "positional":
        return s - t == int(relation.split()[1])
    if role == "separator":
        return s == 0 if relation == "first token" else special[s] and s > 0
    allowed = [n for n in range(len(keys)) if kind != "decoder" or n <= t]
    if role == "rare":
        plain = [n for n in allowed if not special[n]]
        return s in plain and counts[keys[s]] == min(counts[keys[n]] for n in plain)
    if role == "duplicate":
        return queries[t] == keys[s] and not special[s] and (kind == "cross" or s != t)
    if role == "induction":
        return kind != "cross" and s > 0 and s != t and keys[s - 1] == queries[t] and s - 1 != t
    last = max((n for n, word in enumerate(words[0]) if word == words[0][t]), default=-1)
    fitting = {
        (link.query, link.key) for link in links if (link.role, link.relation) == (role, relation)
    }
    return (
        t == last
        and (words[0][t], words[1][s]) in fitting
        and (role == "alignment") == (kind == "cross")
    )


def words_of(text: str, special: int) -> list[int]:
    """The word of each letter, of the space after a word too, then special tokens."""
    found, word = [], 0
    for letter in text:
        found.append(word)
        word += letter == " "
    return [*found, *[-1] * special]


@pytest.mark.parametrize("which", ["decoder", "translator"])
def test_shares_equal_a_plain_count(which, request, pipeline):
    if which == "translator":
        target = "der Fuchs"
        links = (
            Link("alignment", "", 0, 0),
            Link("alignment", "", 1, 2),
            Link("coreference", "", 2, 0),
        )
        texts = [("the quick fox.", target), ("the brown fox.", target), ("fox the quick", target)]
    else:
        torch.manual_seed(3)
        codec = train_tokenizer(
            ["the quick brown fox."], TokenizerSettings(kind="char", min_frequency=1)
        )
        config = ModelConfig(
            shape="decoder",
            heads=("lm",),
            vocab_size=codec.vocab_size,
            d_model=16,
            n_layers=2,
            n_heads=4,
            d_ff=8,
        )
        pipeline = Pipeline(Transformer(config).eval(), codec)
        links = (
            Link("syntactic", "det", 0, 1),
            Link("coreference", "", 2, 0),
            Link("syntactic", "det of", 1, 0),
        )
        texts = [
            ("the quick fox.", None),
            ("the brown fox.", None),
            ("fox the quick the fox", None),
        ]
    lines = [Line(text, target, f"line {n}", links) for n, (text, target) in enumerate(texts)]
    report = head_roles(pipeline, lines)
    assert (report["lines"], report["skipped"]) == (3, 0) and len(report["heads"]) > 20
    traces = [pipeline.trace(*each) for each in texts]
    counts = {
        side: Counter(x for trace in traces for x in trace.tokens[side])
        for side in traces[0].tokens
    }
    for each in report["heads"]:
        kind, side = each["kind"], "encoder" if each["kind"] == "cross" else each["kind"]
        hits, trials, offsets, chance = 0, 0, Counter(), 0.0
        for (text, target), trace in zip(texts, traces, strict=True):
            weights = trace[HOOKS[kind].format(each["layer"])][each["head"]]
            keys = trace.tokens[side]
            queries = trace.label_names(trace.labels.tolist()) if kind == "cross" else keys
            special = [key.startswith("<") for key in keys]
            side_text = target if kind in ("cross", "decoder") and target else text
            words = [
                words_of(side_text, len(queries) - len(side_text)),
                words_of(text, len(keys) - len(text)),
            ]
            if which == "decoder":
                first = len(keys) - len(text)
                words = [[-1] * first + words_of(text, 0)] * 2
            units = (
                words
                if each["role"] in ("alignment", "coreference", "syntactic")
                else [range(99), range(99)]
            )
            for t in range(len(queries)):
                allowed = [s for s in range(len(keys)) if kind != "decoder" or s <= t]
                arguments = (
                    each["role"],
                    each["relation"],
                    kind,
                    queries,
                    keys,
                    special,
                    counts[side],
                    words,
                    links,
                )
                fitting = [s for s in allowed if plain_fit(*arguments, t, s)]
                if not fitting or len(allowed) < 2:
                    continue
                trials, hits = trials + 1, hits + (int(weights[t].argmax()) in fitting)
                chance += len(fitting) / len(allowed)
                offsets.update({units[1][s] - units[0][t] for s in fitting})
        best = chance if each["role"] == "positional" else max(offsets.values())
        assert (each["trials"], each["share"]) == (trials, hits / trials), each
        assert each["baseline"] == pytest.approx(best / trials), each
        low, high = wilson(hits, trials)
        least = max(ROLES[each["role"]].least, best / trials + MARGIN)
        assert (each["low"], each["high"]) == (
            low,
            high,
        ) and low <= hits / trials + 1e-9 <= high + 2e-9
        assert each["found"] == (hits / trials >= least and low > each["baseline"])
        assert each["open"] == (high >= least and not each["found"])


def test_the_interval_is_that_of_wilson():
    """Wilson 1927; the values are those of Newcombe 1998, table I, method 3: 81/263, 15/148, 0/20,
    1/29.
    """
    for hits, trials, low, high in [
        (81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0, 0.1611), (1, 29, 0.0061, 0.1718)
    ]:  # fmt: skip
        assert wilson(hits, trials) == pytest.approx((low, high), abs=6e-5)


def test_lines_of_a_corpus_and_their_links(tmp_path):
    (tmp_path / "corpus").write_text("a b\tx y z\n\nc d\n", encoding="utf-8")
    (tmp_path / "align").write_text("0-2 1-0\n\n\n", encoding="utf-8")
    (tmp_path / "pairs").write_text("\n\n1-0\n", encoding="utf-8")
    tree = "# text = He ran\n1\tHe\t_\tPRON\t_\t_\t2\tnsubj\t_\t_\n2\tran\t_\tVERB\t_\t_\t0\troot\t_\t_\n\n"
    (tmp_path / "tree.conllu").write_text(tree, encoding="utf-8")
    first, second, third = read_corpus(
        *(tmp_path / name for name in ("corpus", "align", "pairs", "tree.conllu"))
    )
    links = (Link("alignment", "", 2, 0), Link("alignment", "", 0, 1))
    assert first == Line("a b", "x y z", f"{tmp_path / 'corpus'}:1", links)
    assert (second.text, second.target, second.links) == (
        "c d",
        None,
        (Link("coreference", "", 1, 0),),
    )
    assert (third.text, third.target, third.words) == ("He ran", None, ("He", "ran"))
    assert third.links == (Link("syntactic", "nsubj", 0, 1), Link("syntactic", "nsubj of", 1, 0))


TREE = """1\tthe\t_\tDET\t_\t_\t3\tdet
2\tquick\t_\tADJ\t_\t_\t3\tamod
3\tfox\t_\tNOUN\t_\t_\t0\troot
"""


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", ["bert", "classifier", "translator", "gpt2"])
def test_every_kind_of_model_reads_the_sentences_of_a_treebank(name, tmp_path):
    """As if each were a text without a target, whose words have the same links."""
    (tmp_path / "corpus").write_text("the fox\nbrown fox\t\n", encoding="utf-8")
    (tmp_path / "tree.conllu").write_text(TREE, encoding="utf-8")
    lines = read_corpus(tmp_path / "corpus", conllu=tmp_path / "tree.conllu")
    assert [line.target for line in lines] == [None] * 3
    links = lines[2].links
    plain = [Line("the fox"), Line("brown fox"), Line("the quick fox", links=links)]
    pipe = new_pipeline(name)
    report = head_roles(pipe, lines)
    assert report == head_roles(pipe, plain) and report["skipped"] == 0
    trials = {
        (each["kind"], each["relation"]): each["trials"]
        for each in report["heads"]
        if each["role"] == "syntactic"
    }
    side = "decoder" if name == "gpt2" else "encoder"
    of_head = {(side, "det of"): 1, (side, "amod of"): 1}
    to_head = {(side, "det"): 1, (side, "amod"): 1}  # in a decoder the head is not read yet
    assert trials.items() <= (of_head | to_head).items() and trials
    if name == "translator":  # the decoder reads its own output
        read = sum(len(pipe.trace(line.text).tokens["decoder"]) for line in lines)
        place = ("decoder", "separator", "first token")
        counted = next(
            each["trials"]
            for each in report["heads"]
            if (each["kind"], each["role"], each["relation"]) == place
        )
        assert counted == read - len(lines) > len(lines)  # rows with a single key do not count


def test_a_word_with_a_space_is_one_word(tmp_path):
    """As in the treebanks of Vietnamese."""
    tree = "1\tthe quick\t_\tX\t_\t_\t2\tdet\n2\tfox\t_\tX\t_\t_\t0\troot\n"
    (tmp_path / "corpus").write_text("the fox\n", encoding="utf-8")
    (tmp_path / "tree.conllu").write_text(tree, encoding="utf-8")
    line = read_corpus(tmp_path / "corpus", conllu=tmp_path / "tree.conllu")[1]
    report = head_roles(new_pipeline("bert"), [line])
    relations = {each["relation"] for each in report["heads"] if each["role"] == "syntactic"}
    assert report["skipped"] == 0 and relations <= {"det", "det of"} and relations


def test_links_count_beside_a_class_and_beside_a_continuation():
    links = (Link("coreference", "", 1, 0),)
    for name, target in (("classifier", "good"), ("gpt2", " brown")):
        report = head_roles(new_pipeline(name), [Line("fox the", target, links=links)])
        assert report["skipped"] == 0
        assert any(each["role"] == "coreference" for each in report["heads"])


def test_examples_of_cross_attention_name_what_is_read_and_written(pipeline):
    line = Line("the fox", "der Fuchs")
    report, trace = head_roles(pipeline, [line]), pipeline.trace(line.text, line.target)
    examples = {
        (example["row"], example["tokens"][0])
        for each in report["heads"]
        if each["kind"] == "cross"
        for example in each["examples"]
    }
    assert examples and examples <= {*enumerate(trace.queries["cross"])}
    assert trace.queries["cross"][:2] == ["reads <s> → writes d", "reads d → writes e"]


def test_a_decoder_that_writes_no_tokens_has_rows_that_are_read():
    pipe = new_pipeline("translator")
    config = pipe.config.model_copy(update={"heads": ("sequence",), "label_names": ("a", "b")})
    pipe = Pipeline(Transformer(config).eval(), pipe.tokenizer)
    report, trace = head_roles(pipe, [Line("the fox", "a")]), pipe.trace("the fox", "a")
    names = [f"reads {token.strip() or '␣'}" for token in trace.tokens["decoder"]]
    assert trace.queries["cross"] == names
    counted = {
        each["trials"]
        for each in report["heads"]
        if each["kind"] == "cross" and each["relation"] == "first token"
    }
    assert counted == {len(names)}


@pytest.mark.slow
def test_pruning_is_measured_on_the_pairs_where_there_are_pairs(pipeline):
    pairs, alone = [Line("the fox", "der Fuchs")], [Line("the quick fox")]
    role = next(each["role"] for each in head_roles(pipeline, pairs)["heads"] if each["found"])
    both = _measure_roles(pipeline, pairs + alone, [role])["pruned"]
    assert both["lines"] == 1 and both["labels"] == len("der Fuchs") + 1
    assert _measure_roles(pipeline, alone, [role])["pruned"]["lines"] == 1


BAD = {
    "not a pair": ("align", "0-x\n", "align:1: '0-x' is not a pair"),
    "no such word": ("align", "0-3\n", r"align:1: '0-3' .* has 2 and 3; write"),
    "other number of lines": ("align", "0-0\n0-0\n", "2 lines, .*corpus: 1; line N"),
    "no target": ("pairs", "0-2\n", "pairs:1: '0-2'"),
    "head out of range": (
        "tree.conllu",
        "1\tHe\t_\t_\t_\t_\t7\tnsubj\n",
        "tree.conllu:1: the head '7' of word 1",
    ),
    "too few columns": ("tree.conllu", "1\tHe\t_\tPRON\n", "tree.conllu:1: fewer than 8 columns"),
    "another name": ("tree.txt", "1\tHe\t_\n", "tree.txt: dependencies"),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_name_file_and_line(case, tmp_path):
    name, content, message = BAD[case]
    (tmp_path / "corpus").write_text("a b\tx y z\n", encoding="utf-8")
    (tmp_path / name).write_text(content, encoding="utf-8")
    files = [
        tmp_path / each if each == name.split(".")[0] else None
        for each in ("align", "pairs", "tree")
    ]
    files[2] = tmp_path / name if files[2] else None
    with pytest.raises(DataError, match=message):
        read_corpus(tmp_path / "corpus", *files)


def test_a_line_that_is_too_long_is_named(pipeline):
    with pytest.raises(DataError, match="corpus:7: "):
        head_roles(pipeline, [Line("the quick fox." * 20, "Fuchs", "corpus:7")])


def test_links_that_tokens_do_not_spell_are_counted(pipeline):
    line = Line("the ¶ fox", "der Fuchs", links=(Link("alignment", "", 0, 0),))
    report = head_roles(pipeline, [line, Line("the fox", "der Fuchs", links=line.links)])
    assert report["skipped"] == 1


@pytest.mark.slow
def test_pruned_heads_are_those_with_the_role():
    pipe, lines = planted_model(), repeated_lines()
    report = head_roles(pipe, lines)
    names = [f"decoder.blocks.{n}.self_attention.sublayer.heads" for n in range(2)]
    edits = [
        {"name": names[0], "heads": [0], "op": "zero"},
        {"name": names[1], "heads": [0], "op": "zero"},
    ]
    assert prune_edits(report, ["positional", "induction"]) == edits
    assert effect_over_lines(pipe, [line.text for line in lines], edits[:1])["lines"] == len(lines)
    with pytest.raises(UsageError, match=r"no such role.*induction"):
        prune_edits(report, ["inducton"])
    with pytest.raises(UsageError, match="no head is syntactic"):
        prune_edits(report, ["syntactic"])


def test_a_search_without_heads_equals_a_model_without_them(pipeline):
    """Removing a head equals zero columns of its output projection, in every step of a search."""
    texts = ["the quick fox.", "brown"]
    edits = [
        {"name": "decoder.blocks.1.cross_attention.sublayer.heads", "heads": [0, 2], "op": "zero"},
        {
            "name": "encoder.blocks.0.self_attention.sublayer.heads",
            "heads": [3],
            "op": "scale",
            "value": -2.0,
        },
    ]
    options = {"max_new_tokens": 12, "num_beams": 3}
    before = pipeline.generate(texts, **options)
    with scaled_heads(pipeline, edits):
        pruned = pipeline.generate(texts, **options)
    assert pipeline.generate(texts, **options) == before
    with torch.no_grad():
        for edit, factor in zip(edits, (0.0, -2.0), strict=True):
            name = edit["name"].replace("sublayer.heads", "sublayer.o_proj")
            weight = pipeline.model.get_submodule(name).weight
            for head in edit["heads"]:
                weight[:, 4 * head : 4 * head + 4] *= factor
    assert pipeline.generate(texts, **options) == pruned != before


@pytest.mark.slow
def test_bleu_needs_targets_and_edits_of_whole_heads(pipeline):
    name = "decoder.blocks.1.cross_attention.sublayer.heads"
    zero = {"name": name, "op": "zero"}
    before, after = effect_on_bleu(pipeline, ["the fox\tder Fuchs", "quick\tschnell"], [zero])
    assert 0 <= before <= 100 and 0 <= after <= 100
    assert effect_on_bleu(pipeline, ["the fox"], [zero]) is None
    assert effect_on_bleu(pipeline, ["the fox\tder Fuchs"], [{**zero, "positions": [0]}]) is None
    with pytest.raises(UsageError, match=r"heads 9"):
        effect_on_bleu(pipeline, ["the fox\tder Fuchs"], [{**zero, "heads": [9]}])


@pytest.mark.slow
def test_a_page_contains_the_roles_and_the_attention_of_their_examples(tmp_path):
    pipe, lines = planted_model(), repeated_lines()
    session = Session(pipe, roles=head_roles(pipe, lines))
    asked = list(offline_requests(session, lines[0].text))
    assert answer(session, "model", {})["has_roles"] and ("roles", {}) in asked
    texts = {params["text"] for name, params in asked if name == "attention"}
    assert 1 < len(texts) <= 21
    assert write_page(session, lines[0].text, None, tmp_path / "page.html").stat().st_size > 100_000
    with pytest.raises(UsageError, match="--roles CORPUS"):
        answer(Session(pipe), "roles", {})
