"""The command line: each command parses its arguments, makes one call and prints the result. One
file per command.

Commands share `terminal`, `progress`, `options`, `panels`, `batch` and `names`; `hints` answers
unknown words, and `interruption` has the last line after Ctrl-C.
`doctor` also has `checks` and `speed`; `predict` has `predictor`, `tables`, `parts`,
`prediction_output` and `table_output`; `eval` has `report`; `train` has `several` and `doubts`;
`runs` has `run_table`; `demo` has the folder `demos`.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted (Ctrl-C), 143 terminated. Results go to
standard output, everything else to standard error. Commands import what they need when they run, so
`--help` is fast.
"""

import inspect
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from typing import Annotated

import typer

import trifold
from trifold.cli.hints import explain, explain_keys, explain_run
from trifold.cli.interruption import print_last_line, with_last_line
from trifold.cli.panels import PanelCommand
from trifold.cli.terminal import DISK_FULL, is_main_process, print_error, use_utf8
from trifold.errors import OtherRankError, TrifoldError, UsageError

# Name of a command, which is also its module -> description in `trifold --help`.
COMMANDS = {
    "demo": "train a small model in a few minutes and use it",
    "recipes": "list the recipes that `train` knows",
    "data": "list and download the datasets that recipes use",
    "train": "train a model from a recipe",
    "resume": "continue a run",
    "distill": "train a smaller copy of a model, and compare both",
    "study": "measure how the loss depends on model size and tokens",
    "runs": "list runs with their scores",
    "eval": "score a model on test data",
    "glue": "score the nine tasks of GLUE and their mean",
    "compare": "test whether the scores of two models differ",
    "generate": "translate or continue text",
    "predict": "classify, tag, answer questions, fill in masks, embed",
    "show": "architecture, parameters, FLOPs and memory of a model",
    "look": "draw what a model attends to",
    "convert": "write a model in another format, precision or shard size",
    "doctor": "check the installation and the machine, and measure its speed",
}

_ABOUT = """Train, evaluate, run and inspect Transformers: encoder-decoders, encoders and decoders.

\b
First steps:
  trifold demo                               train a translator in minutes
  trifold generate runs/demo "I love dogs."  translate with it
  trifold recipes                            what else can be trained

Every command takes --part MODULE for models with parts of your own (docs/parts.md).
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line, by default that of the process; return the exit code."""
    use_utf8()
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        with _sigterm_as_exception():
            arguments = _load_parts(arguments)
            code = _app(arguments)(args=arguments, prog_name="trifold", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except TrifoldError as error:
        if not isinstance(error, OtherRankError) or (is_main_process() and not error.reported):
            print_error(explain_keys(explain_run(error.message), arguments))
        return error.exit_code
    except typer.TyperException as error:
        if (answer := explain(error, arguments, list(COMMANDS))) is not None:
            print_error(answer)
            return 2
        message = error.format_message().replace("Value error, ", "").rstrip(".")
        context = getattr(error, "ctx", None)
        see = " See" if message.endswith("?") else "; see"
        command = context.command_path if context else "trifold"
        print_error(f"{message}{see} `{command} --help`")
        return error.exit_code
    except SystemExit as stop:
        if stop.code != 143:  # not SIGTERM
            raise
        return 143
    except KeyboardInterrupt as stop:  # before the command; the library returns 130 for others
        print_last_line(stop, arguments)
        return 130
    except BrokenPipeError:
        # The interpreter's final flush would fail too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        name = error.filename
        if name is None and error.errno in DISK_FULL:
            name = "standard output"
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if name:
            print_error(f"{name}: {error.strerror}")
        else:
            print_error(str(error))
        return 1


def _load_parts(arguments: Sequence[str]) -> list[str]:
    """Import the parts that `--part NAME` names, before any model is read. Returns the other
    arguments.
    """
    others = list[str]()
    rest = iter(arguments)
    for argument in rest:
        option, equals, name = argument.partition("=")
        if argument == "--":
            return [*others, argument, *rest]
        if option != "--part":
            others.append(argument)
            continue
        name = name if equals else next(rest, "")
        if not name:
            raise UsageError("--part: name a module or a part, such as my_package.MyPart")
        from trifold.nn import load_part

        load_part(name)
    return others


@contextmanager
def _sigterm_as_exception() -> Iterator[None]:
    """Exit at SIGTERM with an exception unless the command handles the signal, so that open files
    are closed.
    """
    with ExitStack() as handlers:
        with suppress(ValueError):  # only the main thread may set signal handlers
            former = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
            handlers.callback(signal.signal, signal.SIGTERM, former)
        yield


def _app(arguments: Sequence[str]) -> typer.Typer:
    """The commands; only the module of the one that `arguments` call is imported."""
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        help=_ABOUT,
        context_settings={"max_content_width": 80, "help_option_names": ["--help", "-h"]},
    )
    app.callback(invoke_without_command=True)(_without_command)
    called = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, description in COMMANDS.items():
        if name == called:
            command = import_module(f"trifold.cli.{name}")
            examples = "\n".join(f"  {example}" for example in command.EXAMPLES)
            help = f"{inspect.getdoc(command.run)}\n\n\b\nExamples:\n{examples}"
            declare = app.command(name, cls=PanelCommand, short_help=description, help=help)
            declare(with_last_line(command.run, arguments))
        else:
            app.command(name, short_help=description)(lambda: None)  # not called
    return app


def _without_command(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(f"trifold {trifold.__version__}")
        raise typer.Exit(0)
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(2)
