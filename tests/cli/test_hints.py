"""Words that trifold does not have: each answer names a command that exists."""

from __future__ import annotations

import re
from itertools import chain

import pytest
import typer

from trifold.cli import COMMANDS, _app, hints

# What a user types -> what the answer has, whose lines are joined. Nothing is read or written.
ANSWERS = {
    "translate hi": "no command 'translate': to translate or continue text: `trifold generate runs/demo",
    "models": "`trifold show` lists models",
    "finetune runs/shop data.train={here}/a.csv": "data.train={here}/a.csv start_from=runs/shop`",
    "finetune runs/shop b.csv": "`trifold train classify data.train=b.csv start_from=runs/shop`",
    "finetune runs/shop": "`trifold train classify data.train=FILE start_from=runs/shop`",
    "export runs/shop shop.onnx": "that format is not written; `trifold convert runs/shop demo-bf16",
    "save runs/shop shop.gguf": "`trifold convert runs/shop model.gguf --weights q8_0`",
    "finetune x": "`trifold train classify data.train=reviews.csv start_from=bert-base-uncased`",
    "fine-tune x": "start_from=bert-base-uncased`",
    "export runs/demo out": "`trifold convert runs/demo demo-bf16 --dtype bfloat16`",
    "evaluate runs/demo": "`trifold eval runs/demo`",
    "evalute runs/demo": "`trifold eval runs/demo`",  # a typing mistake in a word of others
    "eval_model": "write `trifold eval`",
    "visualise": "`trifold look runs/demo",
    "serve": "no server for programs",
    "version": "`trifold --version`",
    "help": "`trifold --help` lists the commands",
    "trian demo": "Did you mean 'train'? See `trifold --help`",
    "Train demo": "no command 'Train'; write `trifold train`",
    "--train demo": "commands have no dashes; write `trifold train`",
    "--model x": "no option --model: `trifold show` lists models",
    "foo": "no command 'foo'; the commands are demo, recipes,",
    "llama-cli -m a.gguf": "`trifold generate runs/demo",
    "onmt_translate -model a.pt": "`trifold generate runs/demo",
    "onmt_train": "no command 'onmt_train'; write `trifold train`",
    "fairseq-generate": "write `trifold generate`",
    "spm_train": "training makes the tokenizer of a recipe",
    "preprocess": "data is read as it is",
    "average_checkpoints": "`trifold train demo train.average=5`",
    "accelerate launch a.py": "torchrun --nproc-per-node 2 -m trifold train demo",
    "text-generation-launcher --model-id x": "to translate or continue text:",
    "llama-quantize a b": "to write a model in another format or precision",
    "wandb login": "`trifold runs` lists scores",
    "translate {here} 'Wie geht es?'": '`trifold generate {here} "Wie geht es?"`',
    "translate {here} Wie geht es --beams 4": '`trifold generate {here} "Wie geht es"`',
    "translate a/b hi": '`trifold generate a/b "hi"`',
    "translate nothere hi": '`trifold generate runs/demo "I love dogs."`',
    "summarize {here} {here}/a.csv": "`trifold generate {here} - < {here}/a.csv`",
    "classify {here} {here}/a.csv": "`trifold predict {here} {here}/a.csv --out FILE.csv`",
    "perplexity {here} {here}/a.csv": "to score a model: `trifold eval {here} {here}/a.csv`",
    "significance {here} other": "`trifold compare {here} other`",
    "attention {here} {here}/a.yaml": '`trifold look {here} "$(cat {here}/a.yaml)"`',
    "cache": "in the cache of huggingface_hub, which `hf cache ls` lists",
    "train.steps=3": "a setting follows the name of a recipe: `trifold train demo train.steps=3`",
    "{here}": "to use a model: `trifold generate {here}",
    "{here}/a.csv": "to train with this file: `trifold train classify data.train={here}/a.csv`",
    "{here}/a.yaml": "to train a recipe: `trifold train {here}/a.yaml`",
    # settings that are written as options
    "train smoke --lr 1e-4": "settings are key=value: `trifold train smoke train.learning_rate=1e-4`",
    "train smoke --lr=1e-4 x=1": "`trifold train smoke x=1 train.learning_rate=1e-4`",
    "train --lr 3": "`trifold train demo train.learning_rate=3`",
    "train smoke --dropout 0.3": "`trifold train smoke model.dropout=0.3`",
    "train smoke --train.steps 9": "`trifold train smoke train.steps=9`",
    "train smoke --epochs 3": "training is measured in steps: `trifold train smoke train.steps=2000`",
    "train smoke --batch-size 32": "a batch is measured in tokens: `trifold train smoke batch.tokens=4096`",
    "train --recipe smoke": "the recipe has no option: `trifold train smoke`",
    "train smoke --model gpt2": "`trifold train smoke start_from=gpt2` starts from a trained model",
    "train smoke --gpu": "`trifold train smoke train.device=cuda`",
    "train smoke --gpu 1": "`trifold train smoke train.device=cuda:1`",
    "train --bf16 smoke": "`trifold train smoke train.precision=bfloat16`",
    "train smoke --overwrite": "a run is never overwritten: `trifold train smoke --out runs/another`",
    "train smoke --out a --force": "`trifold train smoke --out runs/another` writes another,",
    "train smoke --learning_rate 3 --seed 4 --fp16": "`trifold train smoke train.seed=4 train.precision=bfloat16 train.learning_rate=3`",
    # of several options, those without a counterpart are left out and named
    "train smoke --data a.b --epochs 5": "`trifold train smoke data.train=a.b`; left out: --epochs 5",
    "train smoke --epochs 5 --zzz=4": "`trifold train smoke train.steps=2000`; it prints first how many batches an epoch has; left out: --zzz=4",
    "train -data x.csv -save_model out -train_steps 9": "`trifold train classify train.steps=9 data.train=x.csv --out out`",
    "train --data x.csv --src de --tgt en": "`trifold train translate data.source=de data.target=en data.train=x.csv`",
    "train --data x.txt --do_train": "`trifold train causal data.train=x.txt`; left out: --do_train",
    "train smoke {here}/a.csv --epochs 3": "`trifold train smoke data.train={here}/a.csv train.steps=2000`",
    "train lm {here}/a.csv": "Run `trifold train causal data.train={here}/a.csv`",
    "train lm novel.txt": "Run `trifold train causal data.train=novel.txt`",
    "generate x hi --temp 1 --zzz 5 --foo": "`trifold generate x hi --temperature 1`; left out: --zzz 5, --foo",
    # durations
    "train smoke --time 5m": "`trifold train smoke train.minutes=5`",
    "train smoke --hours 2": "`trifold train smoke train.minutes=120`",
    "train smoke --max-time 01:00:00": "`trifold train smoke train.minutes=60`",
    "train smoke --max-time 00:01:30:00": "`trifold train smoke train.minutes=90`",
    "train smoke --time_budget 1h30m": "`trifold train smoke train.minutes=90`",
    "train smoke --max-seconds 90": "`trifold train smoke train.minutes=1.5`",
    "train smoke --timeout soon": "`trifold train smoke train.minutes=5`",
    "train smoke --time date": "`trifold train smoke data.time=date`",
    "train smoke --resume_from_checkpoint x": "by `trifold resume x`",
    "train smoke --world_size 2": "torchrun --nproc-per-node 2 -m trifold train smoke",
    "train smoke --do_train --do_eval": "`trifold train smoke` trains and validates",
    "train smoke --resume": "--resume has a value: `trifold train smoke --resume auto`",
    "train smoke --data_changed": "write `trifold train smoke --data-changed`",
    "train smoke --fp16 --max-steps 4": "`trifold train smoke train.steps=4 train.precision=bfloat16`",
    "resume runs/demo --max-steps 500": "`trifold resume runs/demo train.steps=500`",
    "show smoke --lr 3": "`trifold show smoke train.learning_rate=3`",
    "train smoke --zzz 3": "No such option: --zzz; see `trifold train --help`",
    "generate --model x hi": "the model comes first: `trifold generate x hi`",
    "generate x --input a.txt": "lines are read from a pipe: `trifold generate x - < a.txt`",
    "generate x hi --temp 0.5": "write `trifold generate x hi --temperature 0.5`",
    "generate x hi --gpu": "write `trifold generate x hi --device cuda`",
    "generate x hi -o a.txt": "write `trifold generate x hi --out a.txt`",
    "generate x hi --out a.txt --force": "write `trifold generate x hi --out a.txt --overwrite`",
    "convert x y --exist_ok": "write `trifold convert x y --overwrite`",
    "generate -m x -p hi -n 9": "the model comes first: `trifold generate x hi --max-new-tokens 9`",
    "generate -model x -src a.txt -output b": "`trifold generate x --out b - < a.txt`",
    "generate x hi --repeat-penalty 2": "write `trifold generate x hi --repetition-penalty 2`",
    "generate x hi -t 8": "OMP_NUM_THREADS=4 before trifold",
    "generate x hi -ngl 99": "--device cuda names it",
    "generate x hi -c 4096": "the model reads as many tokens as it was made for",
    "generate x hi --trust-remote-code": "code of a model is never run",
    "generate x hi --token abc": "HF_TOKEN",
    "predict x hi --cache_dir abc": "HF_HOME",
    "generate x hi --verbose": "messages go to standard error",
    "generate x hi --batch_size 8": "write `trifold generate x hi --batch-size 8`",
    "generate -m x -p hi --temp 1 -ngl 9 -t 8 --verbose": "`trifold generate x hi --temperature 1`",
    "predict x hi --return_all_scores": "write `trifold predict x hi --probabilities`",
    "predict x hi --scores": "prints a score with each result, and --out FILE.csv has it as a column; --probabilities adds",
    "predict x hi --proba": "write `trifold predict x hi --probabilities`",
    "predict --model x --input_file a.csv --output_file b.csv": "`trifold predict x a.csv --out b.csv`",
    "eval --model x --data a.tsv": "the model comes first: `trifold eval x a.tsv`",
    "eval x --data a.tsv": "the data comes after the model: `trifold eval x a.tsv`",
    "eval x --metric bleu": "every score of it is printed",
    "convert x --outfile y": "the new folder comes after the old one: `trifold convert x y`",
    "look x hi --weights int8": "no option --weights: weights of few bits are for predictions",
    "show x --load-in-8bit": "write `trifold show x --weights int8`",
    "train smoke --weights int4": "commands that train a model or show its computation use full weights",
    "train smoke --weights runs/x": "`trifold train smoke start_from=runs/x`",
    "predict x hi --load-in-8bit": "write `trifold predict x hi --weights int8`",
    "compare x y --int4": "`trifold compare x y --weights int4`",
    "eval x --beams 4": "write `trifold eval x --num-beams 4`",
    "generate x hi --tempature 2": "(Possible options: --temperature)",
    # text without quotes
    "generate x I love dogs": 'put the text in quotes: `trifold generate x "I love dogs"`',
    "generate x --seed 1 I love dogs": '`trifold generate x "I love dogs" --seed 1`',
    "generate x 'Hi there.' Bye --seed 1": 'one text, or lines from a pipe: `printf \'%s\\n\' "Hi there." "Bye" | trifold generate x - --seed 1`',
    "look x 'Hi there.' 'Bye bye.'": '`trifold look` takes one text: `trifold look x "Hi there."`',
    "generate {here} {here}/a.yaml --out a.en --stop-strings 'a b'": "`trifold generate {here} - --stop-strings 'a b' --out a.en < {here}/a.yaml`",
    "generate x for '$5'": "`trifold generate x 'for $5'`",
    "look x one two --out a.html": '`trifold look x "one two" --out a.html`',
    "runs {here}/my runs": 'put the name in quotes: `trifold runs "{here}/my runs"`',
    "generate x hi temperature=0.5": "has options and no settings; write --temperature 0.5",
    # types of numbers
    "generate x hi --dtype fp8": "'fp8' is not known; give float32, bfloat16 or float16",
    "convert x y --dtype int4": "'int4' is not known",
    # keys
    "train smoke data.trian=x": "data.trian: unknown key; did you mean 'train'?",
    "train classify data.trian=x": "data.trian: unknown key; did you mean 'train'?",
    "show classify data.trian=x": "data.trian: unknown key; did you mean 'train'?",
    "train classify dta.train=x": "dta: unknown key; did you mean 'data'?",
    "train smoke steps=5": "steps: unknown key; did you mean 'train.steps'?",
    "train smoke train.d_model=5": "did you mean 'model.d_model'?",
    "train smoke train.lr=5": "train.lr: unknown key; did you mean 'train.learning_rate'?",
    "train smoke epochs=5": "epochs: unknown key; training is measured in steps: `trifold train smoke train.steps=2000`",
    "train smoke train.time=4m": "train.time: unknown key; did you mean 'train.minutes'?",
    "train smoke train.steps= 5": "write key=value without spaces, as in train.steps=5",
    "train smoke train.steps = 5": "write key=value without spaces, as in train.steps=5",
    # show
    "show gpt2 model.d_model=3": "gpt2: a model, whose settings are fixed; leave out 'model.d_model=3'",
    "show smok model.d_model=3": "unknown recipe 'smok'; did you mean 'smoke'?",
    "show smoke model.d_modle=3": "did you mean 'd_model'?",
}


def test_what_trifold_does_not_have_is_answered(trifold, tmp_path):
    (tmp_path / "my runs").mkdir()
    for name in ("a.csv", "a.yaml"):
        (tmp_path / name).touch()
    wrong = {}
    for typed, expected in ANSWERS.items():
        words = re.findall(r"'[^']*'|\S+", typed.format(here=tmp_path))
        done = trifold(*(word.strip("'") for word in words))
        answer = " ".join(done.err.split())
        if (done.code, done.out) != (2, "") or expected.format(here=tmp_path) not in answer:
            wrong[typed] = done
        for words in hints.words_in(answer):
            check_parses(words)
    assert not wrong


@pytest.mark.parametrize(
    ("typed", "command"),
    [("generate runs/demo hi", "trifold demo"), ("show runs/sst2", "trifold train sst2")],
)
def test_a_missing_run_names_the_recipe_that_makes_it(
    trifold, tmp_path, monkeypatch, typed, command
):
    monkeypatch.chdir(tmp_path)
    done = trifold(*typed.split())
    answer = " ".join(done.err.split())
    run = typed.split()[1]
    assert (done.code, answer) == (1, f"error: {run}: no such run here; `{command}` makes it")
    (tmp_path / f"{run}-2").mkdir(parents=True)
    answer = " ".join(trifold(*typed.split()).err.split())
    assert answer.endswith(f"makes it; did you mean '{run}-2'?")


def commands_of(answer: str) -> list[list[str]]:
    """The words of the commands in an answer."""
    return list(
        hints.words_in(answer.format(command="trifold train demo", name="train", value="demo"))
    )


def test_every_command_of_an_answer_parses():
    answers = [meaning.answer for meaning in hints.MEANINGS]
    answers += [*hints.TRAINING.values(), *hints.OTHERS.values(), *hints.OTHER_FLAGS.values()]
    found = list(chain.from_iterable(map(commands_of, answers)))
    assert len(found) > 40
    for words in found:
        check_parses(words)


def check_parses(words: list[str]) -> None:
    """Parses a command as the command line does."""
    _, name, *rest = words
    if name.startswith("--"):
        assert name in ("--help", "--version")
    elif rest and rest[-1] != "--help":
        command = typer.main.get_command(_app([name])).commands[name]
        command.make_context(name, rest)


def test_a_word_has_one_answer():
    words = [word for meaning in hints.MEANINGS for word in meaning.words.split()]
    keys = [
        word for row in (hints.KEYS, hints.FLAGS) for each in row.values() for word in each.split()
    ]
    assert len({*words}) == len(words)
    assert not {*words} & {*COMMANDS}
    assert len({*keys}) == len(keys)


def test_settings_of_answers_exist():
    from trifold.recipe import load_recipe

    recipe = load_recipe("smoke")
    for key in hints.KEYS.keys() - {"model.preset", "data.columns.text", "data.columns.label"}:
        group, _, name = key.partition(".")
        held = getattr(recipe, group)
        assert not name or hasattr(held, name), key
    for setting in hints.FLAGS:
        load_recipe("smoke", [setting])


def test_short_help(trifold):
    assert all("Examples" in trifold("runs", name).out for name in ("-h", "--help"))
