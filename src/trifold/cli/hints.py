"""What the command line answers to words that trifold does not have: commands and options of other
programs, settings written as options, and text without quotes.

Each answer names what to use instead, with a command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from trifold.errors import TrifoldError


def explain(error: Exception, arguments: Sequence[str], commands: Sequence[str]) -> str | None:
    """The message about an error of the command line; None if that of the error is good enough.

    arguments: of the command line. commands: the names of all.
    """
    context: Any = getattr(error, "ctx", None)
    option: str | None = getattr(error, "option_name", None)
    if option == "--resume" and "argument" in str(error):
        return f"--resume has a value: `trifold {shlex.join([*arguments, 'auto'])}`"
    if context is None:
        return None
    is_unknown_option = hasattr(error, "possibilities")
    if context.parent is None:  # the command itself is unknown
        name = option or _first_word(arguments)
        return answer_command(name, commands, _words_after(name, arguments))
    words = [*arguments][[*arguments].index(context.info_name) + 1 :]
    parameters = context.command.params
    known = {
        name: not getattr(each, "is_flag", False)
        for each in parameters
        for name in (*each.opts, *each.secondary_opts)
        if name.startswith("-")
    }
    if is_unknown_option and option is not None:
        metavars = [str(each.metavar) for each in parameters if each.param_type_name == "argument"]
        known |= dict.fromkeys(re.findall("[A-Z]+", " ".join(metavars)), True)
        return answer_option(option, context.info_name, words, known)
    if "unexpected extra" in str(error):
        return _explain_extra(context, words)
    return None


def _explain_extra(context: Any, words: list[str]) -> str | None:
    """The message about words beyond the arguments of a command: a text or the name of a file
    without quotes.
    """
    found, extra, _ = context.command.make_parser(context).parse_args(args=[*words])
    names = [each for each in context.command.params if each.param_type_name == "argument"]
    taken = [found[each.name] for each in names]
    for word in (*taken, *extra):
        words.remove(word)
    takes_text = "TEXT" in str(names[-1].metavar)
    if takes_text or _exists(" ".join([*taken[-1:], *extra])):
        return answer_extra(context.info_name, taken, extra, words)
    return None


def _first_word(arguments: Sequence[str]) -> str:
    """The word in place of a command."""
    return next((word for word in arguments if not word.startswith("-")), "")


def _words_after(name: str, arguments: Sequence[str]) -> list[str]:
    """The words between the name of a command and the first option."""
    if name not in arguments:
        return []
    rest = arguments[[*arguments].index(name) + 1 :]
    return [*takewhile(lambda word: not word.startswith("-"), rest)]


# --- commands -------------------------------------------------------------------------------------


_START = "`trifold train classify data.train=reviews.csv start_from=bert-base-uncased`"
NOT_WRITTEN = "onnx torchscript tflite"  # formats
WITH_BLOCKS = "gguf ggml llamacpp"


class Meaning(NamedTuple):
    """Words for something, and the answer to them. A word may stand in one row only."""

    words: str
    answer: str


MEANINGS = (
    Meaning(
        "translate translation complete completion generation decoder write sample prompt "
        "summarize summarise",
        'to translate or continue text: `trifold generate runs/demo "I love dogs."`',
    ),
    Meaning(
        "chat talk repl interactive shell",
        "there are no conversations; `trifold generate runs/demo -` answers each line that you "
        "type",
    ),
    Meaning(
        "infer inference apply use pipeline llama-cli vllm ollama",
        'for text that a model writes: `trifold generate runs/demo "I love dogs."`; for labels, '
        'tags, answers and vectors: `trifold predict runs/reviews "A lovely film."`',
    ),
    Meaning(
        "run",
        'to use a model: `trifold generate runs/demo "I love dogs."`; to train one: '
        "`trifold train demo`; to list runs: `trifold runs`",
    ),
    Meaning(
        "classify classifier classification label sentiment tag ner answer qa question choose",
        'with a trained model: `trifold predict runs/reviews "A lovely film."`; to train one: '
        "`trifold train classify data.train=reviews.csv`; `trifold recipes` lists others",
    ),
    Meaning(
        "fill-mask fillmask fill mask unmask embed embedding embeddings encode-text similarity "
        "prediction predictions",
        'with the option --task: `trifold predict bert-base-uncased "Paris is the [MASK] of '
        'France." --task fill-mask`',
    ),
    Meaning(
        "search index retrieve retrieval rag",
        'to find texts by meaning: `trifold predict runs/demo "A dog runs." --corpus lines.txt`',
    ),
    Meaning(
        "models model presets preset families family architectures architecture zoo params "
        "parameters summary describe flops memory",
        "`trifold show` lists models, and `trifold show transformer-big` describes one",
    ),
    Meaning(
        "finetune finetuning tune sft lora adapt transfer",
        f"training starts from a model with start_from: {_START}",
    ),
    Meaning(
        "fit learn training pretrain pretraining launch",
        "to train: `trifold train demo`; `trifold recipes` lists what else can be trained",
    ),
    Meaning(
        "continue",
        "to continue a run: `trifold resume runs/demo`; to continue a text: "
        '`trifold generate runs/demo "I love dogs."`',
    ),
    Meaning("restart restore proceed unpause", "to continue a run: `trifold resume runs/demo`"),
    Meaning(
        "stop kill cancel pause abort",
        "Ctrl-C stops a training with a checkpoint, and `trifold resume runs/demo` continues it",
    ),
    Meaning(
        "export import save cast quantize quantise shard merge safetensors",
        "to write a model in another format or precision: "
        "`trifold convert runs/demo demo-bf16 --dtype bfloat16`",
    ),
    Meaning(
        WITH_BLOCKS,
        "to write a GGUF file, for llama.cpp and Ollama: "
        "`trifold convert runs/demo model.gguf --weights q8_0`",
    ),
    Meaning(
        NOT_WRITTEN,
        "that format is not written; `trifold convert runs/demo demo-bf16 --dtype bfloat16` writes "
        "a Hugging Face folder, which other programs convert",
    ),
    Meaning(
        "evaluate evaluation test testing score scores validate valid metrics benchmark bleu "
        "perplexity accuracy",
        "to score a model: `trifold eval runs/demo`",
    ),
    Meaning(
        "diff versus vs significance bootstrap",
        "to compare two models: `trifold compare runs/small runs/large`",
    ),
    Meaning(
        "inspect visualize visualise visualization view plot attention draw explain page web ui "
        "gui browse open",
        'to look into a model: `trifold look runs/demo "I love dogs."`',
    ),
    Meaning(
        "tensorboard dashboard curves losses wandb mlflow",
        "`trifold runs` lists scores; curves are in the tensorboard folder of a run, for "
        "`tensorboard --logdir runs`",
    ),
    Meaning(
        "serve server serving api deploy host http rest endpoint gradio app",
        "trifold has no server for programs; `trifold generate runs/demo -` answers each line of "
        'a pipe, and Python calls trifold.load("runs/demo").generate("I love dogs.")',
    ),
    Meaning(
        "list ls ll dir history experiments logs log status checkpoints best",
        "to list the runs: `trifold runs`; what can be trained: `trifold recipes`; datasets: "
        "`trifold data`",
    ),
    Meaning(
        "datasets dataset corpus corpora",
        "to list the datasets: `trifold data`; to download one: `trifold data multi30k`",
    ),
    Meaning(
        "download get fetch pull",
        "a dataset: `trifold data multi30k`; a model is downloaded when it is first named, as by "
        "`trifold show bert-base-uncased`",
    ),
    Meaning(
        "init new create setup start quickstart tutorial example examples hello scaffold",
        "nothing has to be set up: `trifold demo` trains a small model, and `trifold recipes` "
        "lists others",
    ),
    Meaning(
        "config configs configure settings options set recipe templates template",
        "settings follow the name of a recipe: `trifold train demo train.steps=100`; "
        "`trifold recipes` lists recipes",
    ),
    Meaning(
        "tokenize tokenise tokenizer tokeniser tokens encode decode vocab vocabulary bpe "
        "build-vocab spm spm-train spm-encode learn-bpe subword-nmt sentencepiece",
        "training makes the tokenizer of a recipe: `trifold train demo tokenizer.vocab_size=4000`; "
        'Python has trifold.load("runs/demo").tokenizer',
    ),
    Meaning(
        "preprocess prepare binarize binarise convert-data clean-data",
        "data is read as it is, and training makes what it needs: "
        "`trifold train classify data.train=reviews.csv`",
    ),
    Meaning(
        "accelerate torchrun deepspeed distributed ddp multi-gpu",
        "several processes are started by torchrun: "
        "torchrun --nproc-per-node 2 -m trifold train demo",
    ),
    Meaning(
        "average-checkpoints average ensemble",
        "a run averages its last checkpoints by a setting: `trifold train demo train.average=5`",
    ),
    Meaning(
        "cache caches",
        "models are in the cache of huggingface_hub, which `hf cache ls` lists; datasets are in "
        "the folder that `trifold data` names",
    ),
    Meaning(
        "distillation prune compress shrink student",
        "a smaller copy of a model learns from it: `trifold distill RUN layers=2`",
    ),
    Meaning(
        "sweep grid hyperparameters hparams hpo optuna scaling laws",
        "for sizes of models: `trifold study examples/scaling.yaml`; for seeds: "
        "`trifold train demo --seeds 5`",
    ),
    Meaning(
        "check diagnose env environment info system devices device gpu gpus hardware",
        "to describe this machine: `trifold doctor`",
    ),
    Meaning(
        "help man usage docs documentation commands",
        "`trifold --help` lists the commands, and `trifold generate --help` describes one",
    ),
    Meaning("version about", "`trifold --version`"),
    Meaning(
        "push upload publish login share",
        "trifold uploads nothing; `hf upload NAME runs/demo/model` of huggingface_hub does",
    ),
    Meaning(
        "delete remove rm clean clear reset",
        "a run is a folder, and trifold deletes none; remove it with `rm -r runs/NAME`",
    ),
)
_ANSWERS = {word: meaning.answer for meaning in MEANINGS for word in meaning.words.split()}


def answer_command(name: str, commands: Sequence[str], words: Sequence[str] = ()) -> str | None:
    """The message about a command that does not exist; None if it resembles the name of one.

    words: those after it, which replace the model and the text of examples.
    """
    answer = _answer_command(name, commands)
    others = [word for word in words if not _is_model(word)]  # a model in GGUF is read
    formats = [part for word in others for part in re.split(r"\W+", word.lower())]
    named = f"{NOT_WRITTEN} {WITH_BLOCKS}".split()
    foreign = next((part for part in formats if part in named), None)
    if answer is not None and foreign is not None:  # export RUN model.onnx
        answer = _answer_command(foreign, commands)
    if answer is None or not words or not _is_model(words[0]):
        return answer
    model, *rest = words
    if _START in answer:
        return answer.replace(_START, f"`{_start_command(model, rest)}`")
    return _EXAMPLE.sub(lambda found: _given_example(found, model, rest), answer)


def _start_command(model: str, words: Sequence[str]) -> str:
    """The command that trains a model further on the data that was given, if any."""
    from trifold.objectives.recognize import guess_recipe

    data = next(
        (word.removeprefix("data.train=") for word in words if not word.startswith("-")), ""
    )
    arguments = ["classify", f"data.train={data or 'FILE'}"]
    with suppress(TrifoldError, OSError):
        if _exists(data) and (guess := guess_recipe([data])) is not None:
            arguments = guess.arguments()
    return f"trifold train {shlex.join([*arguments, f'start_from={model}'])}"


# A command for a trained model in an answer: its name, the model, what it reads, and the rest.
_EXAMPLE = re.compile(
    r"""`trifold (\w+) (?:runs/\w+|bert-base-uncased)( "[^"]*"| runs/large)?([^`]*)`"""
)


def _is_model(word: str) -> bool:
    """Whether a word names a folder or a GGUF file, or may be the id of a model in a hub."""
    if _exists(word):
        return _is_model_path(word)
    return re.fullmatch(r"[\w-]+/[\w.-]+", word) is not None


def _given_example(example: re.Match[str], model: str, rest: Sequence[str]) -> str:
    """The example with this model in place of its own, and with the words after it."""
    command, read, end = example.groups(default="")
    text = " ".join(rest)
    is_file = _exists(text)
    if read == " runs/large" and rest:
        read = f" {_quoted(rest[0])}"
    elif read.startswith(' "') and is_file:
        read = f" {_file_words(command, text)}"
    elif read.startswith(' "') and rest:
        read = f" {in_quotes(text)}"
    elif command == "eval" and is_file:
        read = f" {_quoted(text)}"
    return f"`trifold {command} {_quoted(model)}{read}{end}`"


def _file_words(command: str, file: str) -> str:
    """How a command that uses a model reads a file."""
    if command == "predict" and file.endswith(ROWS):
        return f"{_quoted(file)} --out FILE.csv"
    if command == "look":
        return f'"$(cat {_quoted(file)})"'
    return f"- < {_quoted(file)}"


def _answer_command(name: str, commands: Sequence[str]) -> str | None:
    """The message with the examples of `MEANINGS`."""
    word = re.sub(r"[-_ ]", "", name.casefold().strip("-"))
    answers = {known.replace("-", ""): answer for known, answer in _ANSWERS.items()}
    start = f"no command {name!r:.60}"
    if name.startswith("-"):
        if word in commands:
            return f"{name}: commands have no dashes; write `trifold {word}`"
        start = f"no option {name}"
    if word in commands:
        return f"{start}; write `trifold {word}`"
    if word in answers:
        return f"{start}: {answers[word]}"
    if _is_object(name):
        return f"{start}: {_about_object(name)}"
    parts = re.split("[-_ ]", name.casefold())
    for part in (parts[0], parts[-1], *parts):
        if part in answers:  # eval_model
            return f"{start}: {answers[part]}"
        if part in commands:  # fairseq-train
            return f"{start}; write `trifold {part}`"
    near = get_close_matches(word, [*commands, *answers], n=1, cutoff=0.75)
    if near and near[0] in answers:
        return f"{start}: {answers[near[0]]}"
    if near or get_close_matches(name, commands):
        return None
    return f"{start}; the commands are {', '.join(commands)}"


def _exists(name: str) -> bool:
    """Whether there is a file or a folder of this name."""
    from trifold.cli.names import is_path  # which is slow, and `trifold --help` imports this module

    return is_path(Path.exists, name)


def _is_object(name: str) -> bool:
    """Whether a word is the name of a file or a folder, or a setting."""
    return _exists(name) or "=" in name


def _is_model_path(word: str) -> bool:
    """Whether a path leads to a folder or a GGUF file."""
    path = Path(word).expanduser()
    return path.is_dir() or path.suffix.lower() == ".gguf"


def _about_object(name: str) -> str:
    """What can be done with a file, a folder or a setting that stands in place of a command."""
    quoted = shlex.quote(name)
    if not _exists(name):
        return f"a setting follows the name of a recipe: `trifold train demo {quoted}`"
    if _is_model_path(name):
        return (
            f'to use a model: `trifold generate {quoted} "I love dogs."`; to describe it: '
            f"`trifold show {quoted}`"
        )
    if Path(name).suffix in (".yaml", ".yml"):
        return f"to train a recipe: `trifold train {quoted}`"
    return f"to train with this file: `trifold train classify data.train={quoted}`"


# --- settings that are written as options ---------------------------------------------------------

SETTINGS_COMMANDS = ("train", "resume", "show", "study")  # which take key=value
# Option -> the key of a recipe that has its value.
KEYS = {
    "train.learning_rate": "lr learning-rate peak-lr rate",
    "train.steps": "max-steps steps iterations iters num-steps max-iters n-steps train-steps",
    "train.minutes": "time hours hour seconds max-time time-limit max-minutes max-hours "
    "max-seconds time-budget budget duration timeout wall-time walltime train-time",
    "train.warmup": "warmup-steps num-warmup-steps",
    "train.seed": "random-seed",
    "train.device": "gpus",
    "train.precision": "dtype mixed-precision",
    "train.schedule": "lr-scheduler lr-scheduler-type scheduler",
    "train.optimizer": "optim",
    "train.accumulate": "gradient-accumulation-steps accumulation grad-accum accum",
    "train.clip": "max-grad-norm grad-clip clip-norm gradient-clip",
    "train.validate_every": "eval-steps eval-every validate-every val-every valid-steps",
    "train.save_every": "save-steps checkpoint-every save-checkpoint-steps",
    "train.keep_last": "save-total-limit",
    "train.log_every": "logging-steps log-interval",
    "train.patience": "early-stopping-patience early-stopping",
    "train.workers": "num-workers num-processes threads",
    "data.train": "data dataset train-file train-data input train-path training-data file",
    "data.valid": "valid-file validation-file val-data valid-data dev eval-data",
    "data.test": "test-file test-data",
    "data.holdout": "val-split validation-split split val-size test-size",
    "data.columns.text": "text-column",
    "data.columns.label": "label-column",
    "data.source": "source-column src",
    "data.target": "target-column tgt",
    "tokenizer.vocab_size": "vocab vocabulary-size vocab-size",
    "model.preset": "arch architecture preset",
    "model.n_layers": "layers num-layers num-hidden-layers depth n-layer",
    "model.d_model": "hidden-size dim embedding-dim width n-embd d-model",
    "model.n_heads": "heads num-heads num-attention-heads n-head",
    "model.d_ff": "ffn-dim intermediate-size",
    "model.dropout": "drop",
    "model.max_positions": "block-size context-length max-position-embeddings",
    "batch.tokens": "max-tokens batch-tokens tokens-per-batch",
    "batch.max_length": "max-length max-seq-length seq-len sequence-length max-len",
    "task.label_smoothing": "smoothing",
    "start_from": "checkpoint ckpt from-pretrained pretrained init-from base-model base weights "
    "model-name-or-path load",
    "name": "run-name experiment",
}
# Option without a value -> a setting.
FLAGS = {
    "train.device=cuda": "gpu cuda use-gpu use-cuda",
    "train.device=cpu": "cpu no-cuda no-gpu",
    "train.device=mps": "mps",
    "train.precision=bfloat16": "fp16 bf16 half amp",
    "train.precision=float32": "fp32",
    "train.compile=blocks": "compile torch-compile",
    "train.recompute=blocks": "gradient-checkpointing checkpointing",
    "train.sharding=full": "fsdp",
}
_KEY_OF = {word: key for key, words in KEYS.items() for word in words.split()}
_FLAG_OF = {word: setting for setting, words in FLAGS.items() for word in words.split()}
# Option of training -> what to do.
TRAINING = {
    "epochs num-epochs num-train-epochs max-epochs n-epochs epoch": "training is measured in "
    "steps: `{command} train.steps=2000`; it prints first how many batches an epoch has",
    "batch-size batch bs per-device-train-batch-size train-batch-size": "a batch is measured in "
    "tokens: `{command} batch.tokens=4096`",
    "model model-type": "`{command} start_from={value}` starts from a trained model, and "
    "`{command} model.preset={value}` from random weights",
    "config config-file recipe cfg conf": "the recipe has no option: `trifold {name} {value}`",
    "overwrite overwrite-output-dir force yes exist-ok": "a run is never overwritten: "
    "`{command} --out runs/another` writes another, and --resume auto continues one",
    "resume-from-checkpoint resume-from train-from restore": "a run is continued from its newest "
    "checkpoint by `trifold resume {value}`",
    "world-size gpu-ranks nproc nproc-per-node num-gpus": "several processes are started by "
    "torchrun --nproc-per-node 2 -m {command}",
    "do-train do-eval do-predict": "`{command}` trains and validates; `trifold eval runs/demo` "
    "scores a run",
    "lora peft": "a group of settings: `{command} train.lora.rank=8`",
    "verbose quiet wandb report-to": "training prints its progress to standard error, and writes "
    "metrics.jsonl and tensorboard to the folder of the run",
}

# Options of other programs -> ours, with a value where it takes none there.
OPTIONS = {
    "--temperature": "temp",
    "--repetition-penalty": "repeat-penalty",
    "--num-beams": "beams beam beam-size num-beam beam-width",
    "--max-new-tokens": "max-length max-tokens length tokens max-len n-tokens n n-predict "
    "num-predict max-gen-len",
    "--num-return-sequences": "samples num-samples n-best nbest",
    "--out": "output output-file o save save-to output-dir outfile out-file output-folder "
    "save-model save-dir save-path model-dir out-dir run-dir logdir log-dir",
    "--device cuda": "gpu cuda use-gpu",
    "--device cpu": "cpu no-cuda",
    "--dtype float16": "fp16 half",
    "--dtype bfloat16": "bf16 amp",
    "--dtype": "precision torch-dtype",
    "--weights int8": "int8 quantize load-in-8bit 8bit",
    "--weights int4": "int4 load-in-4bit 4bit",
    "--batch-size": "batch bs",
    "--pair": "text2 second text-pair context",
    "--choices": "choice labels candidate-labels",
    "--top-k": "k topk",
    "--top-p": "topp nucleus",
    "--split": "subset",
    "--report": "confusion mistakes errors",
    "--json": "format as-json",
    "--probabilities": "return-all-scores all-scores probs proba predict-proba probability",
    "--overwrite": "force yes overwrite-output overwrite-output-dir clobber exist-ok replace",
    "--shard-size": "max-shard-size",
    "--precision": "dtype",
    "--length": "seq-len max-length",
}
POSITIONAL = "model m model-name model-name-or-path checkpoint ckpt run recipe folder".split()
INPUT = "input file input-file i f infile src src-file prompts-file".split()
TEXT = "prompt p text sentence source query q".split()
DATA = "data dataset test-file test-data input file input-file".split()
ROWS = (".csv", ".tsv", ".jsonl", ".parquet", ".xlsx", ".json", ".conll")  # suffixes
NEW = "output outfile out output-dir o save".split()
# Options of other programs that no option stands for, with a value -> what to do.
OTHERS = {
    "threads t n-threads num-threads intra-op": "the environment sets the number of threads: "
    "OMP_NUM_THREADS=4 before trifold",
    "n-gpu-layers ngl gpu-layers device-map": "a model is on one device as a whole; --device cuda "
    "names it",
    "ctx-size c n-ctx context-size num-ctx": "the model reads as many tokens as it was made for; "
    "`trifold show runs/demo` has the number of positions",
    "cache-dir": "the environment names the cache of models, HF_HOME, and that of datasets, "
    "TRIFOLD_DATA",
    "hf-token token use-auth-token auth-token": "the environment has it: HF_TOKEN, or "
    "`hf auth login` of huggingface_hub",
    "metric metrics tasks": "the task of the model decides what is measured, and every score of it "
    "is printed",
}
# Words for small weights: values of --weights, and options of other programs.
SMALL = "int8 int4 quantize load-in-8bit load-in-4bit 8bit 4bit"
FULL_WEIGHTS = (
    "weights of few bits are for predictions: `predict`, `generate`, `eval`, `compare` and `glue` "
    "have --weights, and `show` counts their bytes; commands that train a model or show its "
    "computation use full weights"
)
# The same without a value.
OTHER_FLAGS = {
    "trust-remote-code": "code of a model is never run; its parts are those of trifold, or "
    "named by --part MODULE",
    "verbose v debug log-level quiet silent": "messages go to standard error; 2>/dev/null hides "
    "them",
    "scores score return-scores with-scores confidence": "`predict` prints a score with each "
    "result, and --out FILE.csv has it as a column; --probabilities adds those of all classes",
    "interactive conversation cnv color": "type `-` in place of the text; each line that you type "
    "is answered",
}


def answer_option(
    option: str, command: str, words: Sequence[str], known: Mapping[str, bool]
) -> str | None:
    """The message about an option that a command does not have; None without a better answer than
    the names that resemble it.

    words: those that follow the name of the command. known: the options of the command, and whether
    they take a value; the names of its arguments.
    """
    option = _whole_option(option, words)
    name = _plain(option)
    used = _Use.find(option, words)
    if "--weights" not in known and (used.value if name == "weights" else name) in SMALL.split():
        return f"no option {option}: {FULL_WEIGHTS}"
    if command in SETTINGS_COMMANDS and (answer := _answer_setting(name, command, used, known)):
        return f"no option {option}: {answer}"
    for names, text in (OTHERS | OTHER_FLAGS).items():
        if name in names.split():
            return f"no option {option}: {text}"
    fixed = _without_foreign(option, words, known)
    if fixed is None:
        return None
    text, words = fixed
    left_out = list[str]()
    while (more := _next_foreign(words, known)) is not None:
        fixed = _without_foreign(more, words, known)
        if fixed is not None and fixed[0]:
            _, words = fixed
            continue
        used = _Use.find(more, words)
        if fixed is None:
            left_out.append(used.text)
            words = used.others
        else:
            left_out.append(more)
            words = fixed[1]
    end = _left_out(left_out)
    return f"no option {option}{text} `trifold {command} {_command_line(words)}`{end}"


def _left_out(words: Sequence[str]) -> str:
    """The end of an answer that names the options without a counterpart; "" without any."""
    if not words:
        return ""
    return f"; left out: {', '.join(words)}"


def _command_line(words: Sequence[str]) -> str:
    """The words as they are typed; `<` is that of the shell."""
    return " ".join(word if word == "<" else _quoted(word) for word in words)


def _plain(option: str) -> str:
    """The name of an option without dashes, as `OPTIONS` writes it."""
    return option.lstrip("-").replace("_", "-").casefold()


def _whole_option(option: str, words: Sequence[str]) -> str:
    """The option with all of its letters, also if it has one dash, as in `-src`."""
    if option in words or option.startswith("--"):
        return option
    return next((word for word in words if re.match(rf"{option}[a-z]", word)), option)


def _next_foreign(words: Sequence[str], known: Mapping[str, bool]) -> str | None:
    """The first option among the words that the command does not have."""
    options = (word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word))
    return next((option for option in options if option not in known), None)


def _without_foreign(
    option: str, words: Sequence[str], known: Mapping[str, bool]
) -> tuple[str, list[str]] | None:
    """The words with ours in place of an option of another program, after what is said about it,
    or without it, after ""; None if there is none.
    """
    name = _plain(option)
    used = _Use.find(option, words)
    if any(name in names.split() for names in OTHERS):
        return "", used.others
    if any(name in names.split() for names in OTHER_FLAGS):
        return "", [*used.before, *_unless_equal(used), *used.after]
    if (ours := _our_option(name, known)) is not None:
        needs_value = " " not in ours and known[ours]
        return "; write", used.replaced(ours, needs_value=needs_value)
    if not used.value:
        return None
    place = _Place.of(name, used.value, known)
    if place is None:
        return None
    n_before = place.n_before
    if used.others[:1] and used.others[0].startswith("-"):  # no model yet
        n_before = 0
    before = used.others[:n_before]
    after = used.others[n_before:]
    if place.is_piped:
        return place.answer, [*before, *after, "-", "<", used.value]
    return place.answer, [*before, used.value, *after]


class _Place(NamedTuple):
    """Where the value of an option of another program stands without the option: after how many
    words, or behind a pipe; and the answer.
    """

    answer: str
    n_before: int = 1
    is_piped: bool = False

    @classmethod
    def of(cls, name: str, value: str, known: Mapping[str, bool]) -> _Place | None:
        """The place in a command with these options and arguments."""
        if "MODEL" in known and name in POSITIONAL:
            return cls(": the model comes first:", 0)
        if "NEW" in known and name in NEW:
            return cls(": the new folder comes after the old one:")
        if "DATA" in known and name in DATA:
            return cls(": the data comes after the model:")
        if "TEXT" in known and name in TEXT:
            return cls(": the text comes after the model:")
        if "TABLE" in known and name in INPUT and value.endswith(ROWS):
            return cls(": the table comes after the model:")
        if "TEXT" in known and name in INPUT:
            return cls(": lines are read from a pipe:", is_piped=True)
        return None


class _Use(NamedTuple):
    """An option on a command line. value: what follows it, "" if it is an option too or the end.
    before, after: the other words.
    """

    option: str
    value: str
    before: list[str]
    after: list[str]
    has_equals: bool

    @classmethod
    def find(cls, option: str, words: Sequence[str]) -> _Use:
        """The first use of an option."""
        for place, word in enumerate(words):
            name, equals, value = word.partition("=")
            if name != option:
                continue
            rest = [*words[place + 1 :]]
            if not equals and rest and not re.match(r"-\D", rest[0]):
                value = rest.pop(0)
            return cls(option, value, [*words[:place]], rest, bool(equals))
        return cls(option, "", [*words], [], False)

    @property
    def text(self) -> str:
        """The option with its value."""
        sign = "=" if self.has_equals else " "
        return sign.join(filter(None, [self.option, self.value and _quoted(self.value)]))

    @property
    def without_option(self) -> list[str]:
        """The words if the option has no value, so that what follows it is another word."""
        return [*self.before, *_unless_equal(self), *self.after]

    @property
    def others(self) -> list[str]:
        """The words without the option."""
        return [*self.before, *self.after]

    def replaced(self, option: str, *, needs_value: bool) -> list[str]:
        """The words with another option in its place. option: with its own value, if it has one;
        then the value is a word.
        """
        value = [self.value] if self.value else []
        if not value and needs_value:
            value = ["VALUE"]
        return [*self.before, *option.split(), *value, *self.after]


def _answer_setting(name: str, command: str, used: _Use, known: Mapping[str, bool]) -> str | None:
    """What to write for a setting that is written as an option of a command with settings."""
    for names, text in TRAINING.items():
        if name in names.split() and command != "study":
            return _answer_training(text, names, command, used, known)
    others = _Translated.of(used.others, known)
    if name in _FLAG_OF:
        setting = _FLAG_OF[name]
        if used.value.isdecimal() and setting.endswith("cuda"):  # --gpu 0
            setting += f":{used.value}"
        else:
            others = _Translated.of(used.without_option, known)
    elif (key := _key_of(name)) is None:
        return None
    else:
        setting = _setting(name, key, used.value or "VALUE")
    words = _whole_command(command, [*others.words, setting], known)
    end = _left_out(others.left_out)
    return f"settings are key=value: `trifold {command} {_command_line(words)}`{end}"


def _answer_training(
    text: str, names: str, command: str, used: _Use, known: Mapping[str, bool]
) -> str:
    """An answer of `TRAINING` with the command that was typed, without the options that it is
    about.
    """
    others = _Translated.of(used.others, known, unnamed=names.split())
    words = others.words
    if " --out " in text:
        words = _Use.find("--out", words).others
    if "`trifold {name} {value}`" in text:  # which has a recipe
        words = []
    words = _whole_command(command, words, known)
    value = _quoted(used.value or "NAME")
    whole = f"trifold {command} {_command_line(words)}"
    answer = text.format(command=whole, name=command, value=value)
    return answer + _left_out(others.left_out)


class _Translated(NamedTuple):
    """Words of a command with settings, with ours in place of options of other programs; and the
    options that nothing stands for.
    """

    words: list[str]
    left_out: list[str]

    @classmethod
    def of(
        cls, words: Sequence[str], known: Mapping[str, bool], unnamed: Sequence[str] = ()
    ) -> _Translated:
        """The words in ours. unnamed: options that are left out without being named."""
        words = [*words]
        left_out = list[str]()
        while (option := _next_foreign(words, known)) is not None:
            used = _Use.find(option, words)
            name = _plain(option)
            is_flag = any(name in names.split() for names in (*_TRAINING_FLAGS, *OTHER_FLAGS))
            ours = _our_option(name, known)
            if name in _FLAG_OF:
                words = [*used.without_option, _FLAG_OF[name]]
            elif used.value and (key := _key_of(name)) is not None:
                words = [*used.others, _setting(name, key, used.value)]
            elif ours is not None:
                words = used.replaced(ours, needs_value=known[ours])
            elif is_flag:
                words = used.without_option
            else:
                words = used.others
            if len(words) < len(used.others) + 1 and name not in unnamed:
                left_out.append(option if is_flag else used.text)
        return cls(words, left_out)


# Names of TRAINING without a value.
_TRAINING_FLAGS = [
    names for names in TRAINING if {"do-train", "overwrite", "verbose"} & {*names.split()}
]


def _whole_command(command: str, words: Sequence[str], known: Mapping[str, bool]) -> list[str]:
    """The words after a command with settings, with what it needs: a recipe, or a run."""
    if command != "train":
        return [*words] or [f"{'runs/' * (command == 'resume')}demo"]
    from trifold.suggest import with_recipe

    values = list[str]()
    names = list[str]()
    rest = iter(words)
    for word in rest:
        option, equals, _ = word.partition("=")
        if not word.startswith("-"):
            names.append(word)
            continue
        values.append(word)
        if known.get(option) and not equals:
            values += [*filter(None, [next(rest, "")])]
    return [*with_recipe(names), *values]


def _setting(name: str, key: str, value: str) -> str:
    """The setting of a key for the value of an option; a duration becomes a number of minutes.

    A value of `--time` that is no duration names the column of a split by time.
    """
    if key != "train.minutes":
        return f"{key}={value}"
    unit = next((unit for unit in UNITS if unit[:-1] in name.rpartition("-")[2]), "minutes")
    minutes = read_minutes(value, unit)
    if minutes is None and name == "time" and value != "VALUE":
        return f"data.time={value}"
    if minutes is None:
        return f"{key}=5"
    return f"{key}={minutes:g}"


UNITS = {"days": 1440.0, "hours": 60.0, "minutes": 1.0, "seconds": 1 / 60}  # in minutes
_DURATION = re.compile(r"(\d+(?:\.\d+)?) *([dhms])[a-z]*[ ,]*", re.IGNORECASE)


def read_minutes(text: str, unit: str = "minutes") -> float | None:
    """The minutes in a duration such as 5m, 1h30m, 01:30:00 or, of the unit, 5; None if it is
    none.
    """
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text) * UNITS[unit]
    if re.fullmatch(r"\d+(:\d+){1,3}", text):
        parts = reversed(text.split(":"))
        units = reversed(UNITS.values())
        return sum(int(part) * size for part, size in zip(parts, units, strict=False))
    sizes = {name[0]: size for name, size in UNITS.items()}
    if text and not _DURATION.sub("", text):
        found = _DURATION.findall(text)
        return sum(float(number) * sizes[sign.lower()] for number, sign in found)
    return None


def _unless_equal(used: _Use) -> list[str]:
    """The word that follows an option without a value."""
    if used.has_equals or not used.value:
        return []
    return [used.value]


def _key_of(name: str) -> str | None:
    """The dotted key of a recipe for the name of an option."""
    if name in _KEY_OF:
        return _KEY_OF[name]
    key = name.replace("-", "_")
    if "." in key:
        return key
    from trifold.recipe import Recipe

    groups: Mapping[str, Any] = {
        group: field.annotation for group, field in Recipe.model_fields.items()
    }
    for group in ("train", "model", "batch", "tokenizer", "data", "generate"):
        if key in groups[group].model_fields:
            return f"{group}.{key}"
    return key if key in groups else None


def explain_run(message: str) -> str:
    """A message with the command that makes a missing run, if it has the name of a recipe."""
    from trifold.recipe import included_names

    found = re.match(r"runs/([\w-]+): no such folder here", message)
    if found is None or found[1] not in included_names():
        return message
    name = found[1]
    command = f"trifold train {name}"
    if name == "demo":
        command = "trifold demo"
    _, similar, other = message.partition("; did you mean ")
    return f"runs/{name}: no such run here; `{command}` makes it{similar}{other}"


def explain_keys(message: str, arguments: Sequence[str]) -> str:
    """A message with what other programs mean by the unknown keys in its lines. arguments: of the
    command line, whose recipe is that of the remedies.
    """
    recipe = next((word for word in arguments[1:] if "=" not in word), "demo")
    explain_key = partial(_explain_key, recipe=recipe)
    return re.sub(r"^([\w.]+): unknown key.*", explain_key, message, flags=re.MULTILINE)


def _explain_key(line: re.Match[str], recipe: str) -> str:
    """The line of a message about an unknown key."""
    name = line[1].rpartition(".")[2].replace("_", "-")
    if name in _KEY_OF:
        return f"{line[1]}: unknown key; did you mean {_KEY_OF[name]!r}?"
    for words, text in TRAINING.items():
        if name in words.split()[:6] and "=" in text:
            remedy = text.format(
                command=f"trifold train {shlex.quote(recipe)}", name="train", value=recipe
            )
            return f"{line[1]}: unknown key; {remedy}"
    return line[0]


def _our_option(name: str, known: Mapping[str, bool]) -> str | None:
    """The option of this command, among the known ones, for an option of another program."""
    if f"--{name}" in known:  # written with _
        return f"--{name}"
    for option, words in OPTIONS.items():
        if name in words.split() and option.split()[0] in known:
            return option
    return None


# --- text without quotes --------------------------------------------------------------------------


def answer_extra(
    command: str, taken: Sequence[str], extra: Sequence[str], options: Sequence[str]
) -> str:
    """The message about words after the text, or the name of a file, that a command takes.

    taken: the arguments that it took, of which the last is the text or the name. extra: the words
    after them. options: the other words.
    """
    settings = [word for word in extra if re.match(r"--?\w|[a-z_.]+=", word)]
    if settings:
        key, _, value = settings[0].partition("=")
        option = key.rpartition(".")[2].replace("_", "-")
        return (
            f"{settings[0]!r:.60}: `trifold {command}` has options and no settings; write "
            f"--{option} {_quoted(value)}, if it is one of `trifold {command} --help`"
        )
    *arguments, text = taken
    whole = " ".join([text, *extra])
    if any(" " in word for word in (text, *extra)) and not _exists(whole):
        return _answer_texts(command, arguments, [text, *extra], options)
    kind = "name" if _exists(whole) else "text"
    words = " ".join([*map(_quoted, arguments), in_quotes(whole), *map(_quoted, options)])
    return f"put the {kind} in quotes: `trifold {command} {words}`"


def _answer_texts(
    command: str, arguments: Sequence[str], texts: Sequence[str], options: Sequence[str]
) -> str:
    """The message about several texts in quotes after the arguments of a command of one."""
    first = " ".join(map(_quoted, [*arguments, texts[0], *options]))
    if command != "generate":
        return f"`trifold {command}` takes one text: `trifold {command} {first}`"
    lines = " ".join(map(in_quotes, texts))
    words = " ".join(map(_quoted, [*arguments, "-", *options]))
    return (
        "`trifold generate` takes one text, or lines from a pipe: "
        f"`printf '%s\\n' {lines} | trifold generate {words}`"
    )


def in_quotes(text: str) -> str:
    """The text in quotes, double ones where the shell leaves what is in them as it is."""
    if re.search(r'["$`\\!]', text):
        return shlex.quote(text)
    return f'"{text}"'


def _quoted(word: str) -> str:
    """The word, in double quotes if it needs quotes."""
    return word if shlex.quote(word) == word else in_quotes(word)


def words_in(command: str) -> Iterator[list[str]]:
    """The words of each command of trifold that an answer names in backticks."""
    for found in re.findall("`(trifold [^`]*)`", command):
        yield shlex.split(found.partition(" < ")[0])
