"""Mistakes in training: the error names value, place and remedy, without a traceback."""

from __future__ import annotations

import gzip
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from tests.command_line import (
    SMOKE,
    Case,
    check,
    parameters,
    run_command,
    split_command,
    write_files,
)

pytestmark = pytest.mark.slow

OWN = f"{SMOKE} data.train={{here}}/a.en,{{here}}/a.de data.valid={{here}}/good.en,{{here}}/good.de"
GENERATE = "generate {model}"

GOOD = {"good.en": b"one\ntwo\nthree\n", "good.de": b"eins\nzwei\ndrei\n"}


def pair(source: bytes, target: bytes = b"eins\nzwei\ndrei\n") -> dict[str, bytes]:
    return {"a.en": source, "a.de": target}


ONE = b"one\ntwo\nthree\n"
LATIN = "fein\nschön\n".encode("latin-1")

# --- text files -----------------------------------------------------------------------------------

TEXT = {
    "missing file": Case({}, OWN, 1, ("a.en: no such file; check the path",)),
    "empty file": Case(pair(b""), OWN, 1, ("a.en: the file is empty",)),
    "different lengths": Case(pair(ONE, b"eins\nzwei\n"), OWN, 1, ("a.en has 3 lines", "a.de has 2", "line n of")),
    "invalid UTF-8": Case(
        pair(ONE, LATIN + b"drei\n"), OWN, 1, ("a.de:2:4: byte 0xf6 is not valid UTF-8", "iconv -f CP1252")
    ),
    "UTF-16": Case(pair("one\ntwo\n".encode("utf-16")), OWN, 1, ("a.en:1:1: this is UTF-16", "iconv")),
    "NUL byte": Case(pair(b"one\nt\0wo\nthree\n"), OWN, 1, ("a.en:2:2: a NUL byte", "tr -d")),
    "long line": Case(
        pair(b"one\n" + b"two " * 60 + b"\nthree\n"), f"{OWN} data.max_line_bytes=100", 1,
        ("a.en:2: the line is longer than 100 bytes", "data.max_line_bytes"),
    ),
    "a folder instead of a file": Case({"a.en/x": b"", "a.de": b"x"}, OWN, 1, ("a.en: this is a folder; name a file in it",)),
    "lines that end in carriage returns": Case(
        pair(b"one\rtwo\rthree\r", b"eins\rzwei\rdrei\r"), OWN, 1,
        ("a.en:1: the lines end in carriage returns, as of old Macs; convert it with `tr",),
    ),
    "truncated gzip": Case(
        {"a.en": gzip.compress(ONE * 99)[:-12], "a.de": b"eins\n"}, OWN, 1, ("a.en: the compressed file ends too early",)
    ),
    "damaged gzip": Case({"a.en": b"\x1f\x8bnonsense" * 9, "a.de": b"x"}, OWN, 1, ("a.en: the compressed file is damaged",)),
    "not gzip": Case(
        {"a.en.gz": ONE, "a.de": ONE}, OWN.replace("a.en", "a.en.gz"), 1, ("a.en.gz: ends in .gz but is not gzip",)
    ),
    "only blank pairs": Case(pair(b"\n\n", b"x\ny\n"), OWN, 1, ("no pair is left (2 read, 2 blank)",)),
    "one file of lines": Case(
        {"a.txt": ONE}, f"{SMOKE} data.train={{here}}/a.txt", 2, ("a.txt is one file of plain lines", "data.format")
    ),
    "three files": Case({}, f"{SMOKE} data.train=a,b,c", 2, ("neither one table", "nor two files")),
    "variable not set": Case(
        {}, f"{SMOKE} data.train=${{{{TRIFOLD_NOWHERE}}}}/a.en,${{{{TRIFOLD_NOWHERE}}}}/a.de", 1,
        ("the environment variable TRIFOLD_NOWHERE is not set", "set it to the folder"),
    ),
    "TSV without the column": Case(
        {"a.tsv": b"english\tfrench\na\tb\n"}, f"{SMOKE} data.train={{here}}/a.tsv data.source=english data.target=german",
        1, ("a.tsv:1: no column 'german'", "english", "data.target"),
    ),
    "TSV with a ragged row": Case(
        {"a.tsv": b"source\ttarget\na\tb\nc\n"}, f"{SMOKE} data.train={{here}}/a.tsv", 1,
        ("a.tsv:3: 1 column where the first row has 2",),
    ),
    "CSV with an open quote": Case(
        {"a.csv": b'source,target\na,"b\n'}, f"{SMOKE} data.train={{here}}/a.csv", 1, ("a.csv:2: a quote is opened",)
    ),
    "broken JSONL": Case(
        {"a.jsonl": b'{"source": "a", "target": "b"}\n{"source": "a",\n'}, f"{SMOKE} data.train={{here}}/a.jsonl", 1,
        ("a.jsonl:2:", "not valid JSON", "write one object per line"),
    ),
    "JSONL without the key": Case(
        {"a.jsonl": b'{"source": "a"}\n'}, f"{SMOKE} data.train={{here}}/a.jsonl", 1,
        ("a.jsonl:1: no value 'target'", "found: source", "data.target"),
    ),
    "JSONL with a number": Case(
        {"a.jsonl": b'{"source": "a", "target": 5}\n'}, f"{SMOKE} data.train={{here}}/a.jsonl", 1,
        ("a.jsonl:1: 'target' is a value of type int, expected text",),
    ),
    "no such embedded text": Case({}, f"{SMOKE} data.train=embedded:smok", 1, ("embedded:smok", "phrasebook, smoke, translations")),
    "a hub name without a split": Case({}, f"{SMOKE} data.train=hub:wmt14", 2, ("hub:NAME:SPLIT",)),
    "all too long": Case(
        pair(b"one\n", b"eins\n"), f"{OWN} model.max_positions=3", 1,
        ("no validation row has at most 3 tokens", "model.max_positions"),
    ),
    "no row short enough": Case(
        pair(b"one two three four\n", b"eins zwei drei\n"), f"{OWN} model.max_positions=8", 1,
        ("no rows remain: all 1 are longer than 8 tokens",),
    ),
    "a long row, and long rows are errors": Case(
        pair(b"one\ntwo\n" + b"three " * 9 + b"\n"), f"{OWN} batch.max_length=20 batch.on_overflow=error", 1,
        ("row 2: 55 tokens, more than batch.max_length=20", "batch.on_overflow=drop"),
    ),
}  # fmt: skip

# Valid input: training succeeds, the pairs stay aligned, and unusual rows are counted.
VALID = {
    "BOM": Case(pair(b"\xef\xbb\xbf" + ONE), OWN, 0, ("a.en + a.de: 3 pairs\n",)),
    "CRLF": Case(pair(ONE.replace(b"\n", b"\r\n")), OWN, 0, ("a.en + a.de: 3 pairs\n",)),
    "no newline at the end": Case(pair(ONE[:-1]), OWN, 0, ("a.en + a.de: 3 pairs\n",)),
    "U+2028 and U+0085 inside": Case(
        pair("one\u2028uno\ntwo\x85due\nthree\n".encode()), OWN, 0,
        ("a.en + a.de: 3 pairs, 2 with unusual line breaks inside (kept)",),
    ),
    "blank on one side": Case(
        pair(b"one\n\nthree\n"), OWN, 0, ("a.en + a.de: 3 pairs, 1 with a blank side (dropped); 2 used",)
    ),
    "blank, kept": Case(
        pair(b"one\n\nthree\n"), f"{OWN} data.blank=keep", 0, ("a.en + a.de: 3 pairs, 1 with a blank side (kept)\n",)
    ),
    "overlong, left out": Case(
        pair(b"one\ntwo\n" + b"three " * 9 + b"\n"), f"{OWN} batch.max_length=20", 0,
        ("1 of 3 pairs are longer than 20 tokens: skipped",),
    ),
    "overlong, truncated on request": Case(
        pair(b"one\ntwo\n" + b"three " * 9 + b"\n"), f"{OWN} batch.max_length=20 batch.on_overflow=truncate", 0,
        ("1 of 3 pairs are longer than 20 tokens: truncated",),
    ),
    "overlong for validation": Case(
        pair(ONE) | {"good.en": b"one\n" + b"two " * 40 + b"\n", "good.de": b"eins\nzwei\n"},
        f"{OWN} model.max_positions=60", 0,
        ("good.en + good.de: 1 of 2 pairs are longer than 60 tokens: left out",),
    ),
}  # fmt: skip

# --- recipes and settings -------------------------------------------------------------------------

SETTINGS = {
    "unknown recipe": Case({}, "train multi30k-en-fr", 2, ("unknown recipe 'multi30k-en-fr'", "'multi30k-en-de'")),
    "recipe file missing": Case({}, "train {here}/my.yaml", 2, ("my.yaml: cannot read the file (No such file",)),
    "recipe that is a folder": Case({"my.yaml/x": b""}, "train {here}/my.yaml", 2, ("my.yaml: cannot read the file (Is a",)),
    "bad YAML": Case({"my.yaml": b"train: {steps: 5\n"}, "train {here}/my.yaml", 2, ("my.yaml:2:1: not valid YAML",)),
    "YAML that is not a mapping": Case({"my.yaml": b"- a\n"}, "train {here}/my.yaml", 2, ("a recipe is a mapping",)),
    "YAML that is not UTF-8": Case({"my.yaml": LATIN}, "train {here}/my.yaml", 2, ("my.yaml: byte 9 is not valid UTF-8",)),
    "recipe without data": Case({"my.yaml": b"train: {seed: 3}\n"}, "train {here}/my.yaml", 2, ("data.train: no training data",)),
    "mistyped key": Case({}, f"{SMOKE} train.stpes=5", 2, ("train.stpes: unknown key", "did you mean 'steps'?")),
    "unknown key": Case({}, f"{SMOKE} train.zzz=5", 2, ("train.zzz: unknown key", "known keys: accumulate, async_save")),
    "unknown top-level key": Case({}, f"{SMOKE} zzz=5", 2, ("zzz: unknown key", "known keys: batch, data, desc")),
    "unknown group": Case({}, f"{SMOKE} optimiser.beta=5", 2, ("optimiser: unknown key",)),
    "no key=value": Case({}, f"{SMOKE} train.lr", 2, ("'train.lr' is not key=value", "train.steps=2000")),
    "wrong type": Case({}, f"{SMOKE} train.steps=many", 2, ("train.steps: ", "valid integer", "got 'many'")),
    "too many layers": Case({}, f"{SMOKE} model.n_layers=100000", 2, ("model.n_layers: ", "less than or equal to 10000")),
    "too many batches in an update": Case(
        {}, f"{SMOKE} train.accumulate=100000000", 2, ("train.accumulate=100000000: the batches of an update need",)
    ),
    "more seeds than anyone trains": Case({}, f"{SMOKE} --seeds {10**12}", 2, ("--seeds 1000000000000: at most 1,000 runs",)),
    "a seed of 5,000 digits": Case({}, f"{SMOKE} --seeds 1,{'9' * 5000}", 2, ("--seeds 1,999", "give a number of seeds")),
    "more folds than anyone trains": Case({}, f"{SMOKE} --folds {2**31 - 1}", 2, ("--folds 2147483647: at most 1,000",)),
    "folds beyond 32 bits": Case({}, f"{SMOKE} --folds {2**31}", 2, ("--folds", "too large; at most 2,147,483,647")),
    "resamples without end": Case({}, f"compare a b --samples {2**53}", 2, ("--samples", "less than or equal to")),
    "a port beyond all": Case({}, "look a text --port 65536", 2, ("--port", "less than or equal to")),
    "first token that the table lacks": Case({}, f"{SMOKE} model.decoder_start_id={2**31 - 1}", 2, ("model.decoder_start_id: 2147483647 is no token",)),
    "chunk of more than all memory": Case({}, f"{SMOKE} model.lsh.chunk={2**53}", 2, ("model.lsh.chunk: 9007199254740992 is too large",)),
    "seed that no generator takes": Case({}, f"{SMOKE} train.seed={2**64}", 2, ("train.seed: ", "less than 18446744073709551616")),
    "integer of 5,000 digits": Case({}, f"{SMOKE} train.steps={'9' * 5000}", 2, ("train.steps: ", "valid integer")),
    "integer of 5,000 hexadecimal digits": Case({}, f"{SMOKE} train.seed=0x{'f' * 5000}", 2, ("train.seed: ", "valid integer")),
    "integer of 5,000 hexadecimal digits in a file": Case(
        {"my.yaml": b"train: {steps: 0x" + b"f" * 5000 + b"}\n"}, "train {here}/my.yaml", 2, ("not valid YAML: an integer of thousands of digits",)
    ),
    "integer of 5,000 digits in a file": Case(
        {"my.yaml": b"train: {steps: " + b"9" * 5000 + b"}\n"}, "train {here}/my.yaml", 2, ("not valid YAML: an integer of thousands of digits",)
    ),
    "tag that does not fit": Case({"my.yaml": b"name: !!timestamp x\n"}, "train {here}/my.yaml", 2, ("my.yaml: not valid YAML",)),
    "group for a value": Case({}, f"{SMOKE} train.steps.more=5", 2, ("train.steps.more: steps is a value",)),
    "value for a group": Case({}, "train smoke train=5 --out {here}/run", 2, ("train: a group of keys is required, got 5",)),
    "negative steps": Case({}, f"{SMOKE} train.steps=-5", 2, ("train.steps: ", "greater than 0, got -5")),
    "unknown choice": Case({}, f"{SMOKE} tokenizer.kind=bppe", 2, ("tokenizer.kind: ", "'byte-bpe'", "got 'bppe'")),
    "heads do not divide": Case(
        {}, f"{SMOKE} model.n_heads=3", 2, ("model: n_heads 3 does not divide d_model 16", "1, 2, 4, 8, 16", "d_head")
    ),
    "odd width with sinusoidal positions": Case({}, f"{SMOKE} model.d_model=15 model.n_heads=3", 2, ("even d_model, not 15",)),
    "contradiction: average": Case({}, f"{SMOKE} train.average=9 train.keep_last=5", 2, ("average 9 requires keep_last of at least 9",)),
    "contradiction: warm-up": Case(
        {}, f"{SMOKE} train.schedule=linear train.warmup=2", 2, ("warmup 2 leaves none of the 2 steps",)
    ),
    "contradiction: beams": Case(
        {}, f"{SMOKE} generate.num_beams=4 generate.top_k=5", 2, ("generate", "num_beams 4", "top_k 5")
    ),
    "contradiction: holdout": Case({}, f"{SMOKE} data.holdout=5 data.valid=a,b", 2, ("holdout and valid contradict each other",)),
    "unknown preset": Case({}, f"{SMOKE} model.preset=transformer-bi", 2, ("unknown preset 'transformer-bi'", "transformer-big")),
    "unknown score": Case({}, f"{SMOKE} task.best_by=bleurt", 2, ("task.best_by: ", "'bleu', 'chrf'", "got 'bleurt'")),
    "unknown scoring": Case({}, f"{SMOKE} task.tokenize=moses", 2, ("task.tokenize: sacreBLEU has no tokenizer 'moses'",)),
    "no validation data": Case({}, f"{SMOKE} data.valid=null data.holdout=0", 2, ("data.valid: no validation data", "data.holdout=500")),
    "no training data": Case({}, f"{SMOKE} data.train=null", 2, ("data.train: no training data",)),
    "more held out than available": Case(
        {}, f"{SMOKE} data.valid=null data.holdout=9999", 1, ("data.holdout: 9,999 pairs of 244 leave nothing",)
    ),
    "vocabulary smaller than the alphabet": Case(
        {}, f"{SMOKE} tokenizer.vocab_size=20", 2,
        ("tokenizer.vocab_size: 20 is smaller than the", "characters", "4 special tokens", "at least"),
    ),
    "tokenizer file missing": Case({}, f"{SMOKE} tokenizer.file={{here}}/t.json", 1, ("t.json: cannot be read",)),
    "tokenizer file of another format": Case(
        {"t.json": b"{}"}, f"{SMOKE} tokenizer.file={{here}}/t.json", 1, ("t.json: not a tokenizer",)
    ),
    "missing device": Case({}, f"{SMOKE} train.device=cuda:77", 2, ("device 'cuda:77' is not available", "cpu")),
    "unknown device": Case({}, f"{SMOKE} train.device=gpu", 2, ("unknown device 'gpu'", "auto, cpu")),
}  # fmt: skip

# --- run folders ----------------------------------------------------------------------------------

FOLDERS = {
    "run folder exists": Case({"run/x": b""}, SMOKE, 2, ("run: contains files", "--resume auto", "--out")),
    "a file instead of the run folder": Case({"run": b""}, SMOKE, 2, ("run: cannot be written", "choose another --out")),
    "a file instead of a parent folder": Case(
        {"file": b""}, SMOKE.replace("/run", "/file/run"), 2, ("file/run: cannot be written", "choose another --out")
    ),
    "run folder that is not UTF-8": Case({}, SMOKE.replace("/run", "/run\udcff"), 2, ("--out: ", "is not valid UTF-8")),
    "unknown command": Case({}, "trian smoke", 2, ("trian", "--help")),
    "no recipe": Case({}, "train", 2, ("RECIPE", "--help")),
    "unknown option": Case({}, "train smoke --step 5", 2, ("--step", "--help")),
    "unknown value of --resume": Case({}, "train smoke --resume always", 2, ("always", "auto")),
}  # fmt: skip


@pytest.fixture
def here(tmp_path) -> Path:
    return tmp_path


@pytest.mark.parametrize("case", parameters(TEXT, VALID, SETTINGS, FOLDERS))
def test_training(case, here):
    write_files(here, GOOD | case.files)
    before = sorted(path.name for path in here.iterdir())
    check(
        run_command(*split_command(case.command, here=here), stdin=case.stdin),
        case.code,
        case.words,
    )
    if case.code:
        assert sorted(path.name for path in here.iterdir()) == before, (
            "a failed command leaves no files"
        )


# --- cases with several commands ------------------------------------------------------------------


def test_resuming_with_another_recipe(here):
    assert run_command(*split_command(SMOKE, here=here)).code == 0
    result = run_command(
        *split_command(f"{SMOKE} model.d_ff=48 train.seed=7 --resume auto", here=here)
    )
    message = "recipe.yaml: the run began with other values of"
    check(result, 2, (message, "model.d_ff", "train.seed", "--out"))


@pytest.fixture
def interrupted(here) -> Path:
    """The newest checkpoint of a run that can be resumed."""
    assert run_command(*split_command(SMOKE, here=here)).code == 0
    return max((here / "run" / "checkpoints").iterdir())


RESUME = f"{SMOKE} --resume auto train.steps=4"


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("weights.safetensors", "truncated"),
        ("optimizer.safetensors", "changed"),
        ("progress.json", "missing"),
    ],
)
def test_a_damaged_checkpoint(here, interrupted, name, damage):
    file = interrupted / name
    content = file.read_bytes()
    file.unlink()
    if damage != "missing":
        file.write_bytes(content[:-9] if damage == "truncated" else content[:-1] + b"?")
    result = run_command(*split_command(RESUME, here=here))
    check(result, 1, (str(file), "missing" if damage == "missing" else "damaged"))


def test_a_foreign_checkpoint(here, interrupted):
    (interrupted / "manifest.json").write_text('{"format": "another"}', encoding="utf-8")
    result = run_command(*split_command(RESUME, here=here))
    check(result, 1, (str(interrupted), "not a checkpoint of trifold"))


def test_an_invalid_recipe_in_a_run_folder(here, interrupted):
    (here / "run" / "recipe.yaml").write_text("data: {tran: 5}\n", encoding="utf-8")
    check(run_command(*split_command(RESUME, here=here)), 2, ("data.tran: unknown key", "'train'"))


@pytest.fixture
def full_disk():
    """Limit the size of files: writing more fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [100, 1500, 10_000, 40_000])
def test_a_full_disk(here, full_disk, size):
    full_disk(size)
    result = run_command(*split_command(SMOKE, here=here))
    full_disk(resource.RLIM_INFINITY)
    check(result, 1, ("be written", "File too large", "free "))
    assert str(here / "run") in result.err
    assert not list(here.glob("run/checkpoints/step-*"))
    assert run_command(*split_command(f"{SMOKE} --resume auto", here=here)).code == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_no_permission_to_write(here):
    here.chmod(0o500)
    result = run_command(*split_command(SMOKE, here=here))
    here.chmod(0o700)
    check(result, 2, ("run: cannot be written (Permission denied)", "choose another --out"))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (
            ["train", "smoke", "train.stpes=5"],
            2,
            "error: train.stpes: unknown key; did you mean 'steps'?",
        ),
        (["generate", "nowhere/at-all/x", "hello"], 1, "error: 'nowhere/at-all/x': no such folder"),
    ],
)
def test_the_exit_code_and_output_of_a_process(arguments, code, words, here):
    done = subprocess.run(  # noqa: PLW1510 (the exit code is tested)
        [sys.executable, "-c", "import sys; from trifold.cli import main; sys.exit(main())", *arguments],
        cwd=here, capture_output=True, encoding="utf-8", timeout=120, stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr and "Traceback" not in done.stderr
