"""Which keys of config.json, generation_config.json and adapter_config.json the reference reads.

    python tools/reference_keys.py            rewrite src/trifold/hub/reference_keys.json
    python tools/reference_keys.py --check    compare it with the installed version

The reference is the installed version of transformers, which the file names. Loading ignores a key
that neither our table of a family nor this file has; a key that this file has and our table lacks
is an error, because it may select a part that we lack. So the file must have every key that is
read, and it is found in two ways, whose union it holds:

- The tiny models of tests/hub/tiny.yaml are saved, loaded, run, and generate text where they can,
  while every attribute that is read from a configuration is recorded, missing ones too.
- The source is searched for what reads a configuration: `config.key`, `getattr(config, "key")`,
  `kwargs.pop("key")` and the fields of classes. Searched are the modules of the family, those of
  the base classes of its models and configurations, and those that the recorded reads come from.

Of adapter_config.json, it has the fields of the class of peft.

A key has the values with which it does nothing, as far as the source gives them: the default of its
field, or that of `getattr`, `get` and `pop`.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from transformers import GenerationConfig, PreTrainedConfig

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.hub.parity import inputs_for, randomised  # noqa: E402
from tests.hub.tiny import TINY, Tiny  # noqa: E402

TABLE = ROOT / "src" / "trifold" / "hub" / "reference_keys.json"
LIBRARY = Path(transformers.__file__).parent
MODELS = LIBRARY / "models"
NOTHING = object()  # no default
# Functions that visit all keys of a configuration, whatever they are.
VISITORS = {"validate_token_ids", "__iter__", "to_dict", "to_diff_dict", "__eq__", "__setattr__"}
# Methods of configurations whose `kwargs` are arguments of a call, not the content of a file.
LOADING = """
    from_pretrained save_pretrained get_config_dict _get_config_dict from_dict from_model_config
    push_to_hub update
""".split()
BASES = ("PreTrainedConfig", "RotaryEmbeddingConfigMixin", "HeterogeneousConfigMixin")
# Configurations of other things than models.
OTHERS = """
    generation_config quantization_config kernel_config load_config peft_config cache_config
    compile_config distributed_config adapter_config watermarking_config continuous_batching_config
    fusion_config tp_config fsdp_config ds_config hf_deepspeed_config processor_config
""".split()
Defaults = dict[str, list[Any]]  # key -> its values without effect

# --- running --------------------------------------------------------------------------------------


class Recorder:
    """The attributes that are read from configurations, and the files that read them."""

    def __init__(self) -> None:
        self.keys: dict[type, set[str]] = {PreTrainedConfig: set(), GenerationConfig: set()}
        self.files: set[Path] = set()

    @contextmanager
    def recording(self) -> Iterator[None]:
        originals = {kind: kind.__getattribute__ for kind in self.keys}
        try:
            for kind, original in originals.items():
                kind.__getattribute__ = self._recorded(kind, original)
            yield
        finally:
            for kind, original in originals.items():
                kind.__getattribute__ = original

    def _recorded(self, kind: type, original: Any) -> Any:
        def read(config: Any, key: str) -> Any:
            code = sys._getframe(1).f_code
            file = Path(code.co_filename)
            if file.is_relative_to(LIBRARY) and code.co_name not in VISITORS:
                member = getattr(type(config), key, None)
                if not key.startswith("__") and not callable(member):
                    self.keys[kind].add(key)
                    self.files.add(file)
            return original(config, key)

        return read


def run_model(name: str, options: dict[str, Any], tiny: Tiny) -> None:
    """Save and load a tiny model, run it, and let it generate if it can."""
    kind = getattr(transformers, name)
    config = kind.config_class.from_dict(json.loads(json.dumps(tiny.sizes | options)))
    with tempfile.TemporaryDirectory() as folder:
        randomised(kind(config)).save_pretrained(folder)
        model = kind.from_pretrained(folder).eval()
    inputs = inputs_for(model)
    inputs.pop("decoder", None)
    if "pixel_values" in inputs:
        model(**inputs, output_hidden_states=True)
        return
    derived = "tokens" in inputs  # the model derives the second input from the first
    tokens = inputs.pop("tokens", torch.randint(6, 30, (3, 9)))
    decodes = model.config.is_encoder_decoder and "EncoderModel" not in name
    more = {"decoder_input_ids": tokens[:, :6]} if decodes and not derived else {}
    model(input_ids=tokens, attention_mask=torch.ones_like(tokens), **inputs, **more)
    if not model.can_generate():
        return
    for options in ({}, {"num_beams": 2}, {"do_sample": True}):
        model.generate(tokens[:1], max_new_tokens=2, **options)


def run_family(tiny: Tiny, recorder: Recorder) -> None:
    """Run every case; a case that fails on the way has been recorded so far."""
    for ending, options in tiny.cases.values():
        options = {key: value for key, value in options.items() if key != "own_head"}
        with recorder.recording():
            try:
                run_model(tiny.stem + ending, options, tiny)
            except Exception as error:
                print(f"{tiny.stem}{ending}: {type(error).__name__}: {error!s:.200}")


# --- searching ------------------------------------------------------------------------------------


def is_config(node: ast.AST) -> bool:
    """Whether an expression is named like the configuration of a model."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return (name == "config" or name.endswith("_config")) and name not in OTHERS
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in ("get_text_config", "get_decoder", "get_encoder")
    return False


def is_generation(node: ast.AST) -> bool:
    """Whether an expression is named like the settings of generation."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.endswith("generation_config")
    return False


class Reads(ast.NodeVisitor):
    """The keys that a module reads from configurations: from expressions that are `sources`, and in
    the classes `own` also from `self` and `kwargs`.
    """

    def __init__(self, sources: Callable[[ast.AST], bool], own: Collection[str]) -> None:
        self.is_source = sources
        self.own = own
        self.found: list[tuple[str, Any]] = []
        self.classes = 0

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        is_own = node.name in self.own
        self.classes += is_own
        self.generic_visit(node)
        self.classes -= is_own

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if not (self.classes and node.name in LOADING):
            self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load) and self._reads(node.value):
            self.found.append((node.attr, NOTHING))
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        match node:
            case ast.Compare(left=ast.Constant(str(key)), ops=[ast.In() | ast.NotIn()]):
                if self.classes or self._reads(node.comparators[0]):
                    self.found.append((key, NOTHING))
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        match node:
            case ast.Subscript(value=ast.Name("kwargs"), slice=ast.Constant(str(key))):
                if self.classes:
                    self.found.append((key, NOTHING))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        match node:
            case ast.Call(ast.Name("getattr" | "hasattr"), [source, ast.Constant(str(key)), *rest]):
                if self._reads(source):
                    self.found.append((key, constant(*rest[:1])))
            case ast.Call(
                ast.Attribute(ast.Name("kwargs"), "get" | "pop"), [ast.Constant(str(key)), *rest]
            ) if self.classes:
                self.found.append((key, constant(*rest[:1] or [ast.Constant(None)])))
        self.generic_visit(node)

    def _reads(self, node: ast.AST) -> bool:
        is_self = bool(self.classes) and isinstance(node, ast.Name) and node.id == "self"
        return is_self or self.is_source(node)


def constant(node: ast.AST | None = None) -> Any:
    """The value of a literal; NOTHING for anything else."""
    if node is None:
        return NOTHING
    try:
        return ast.literal_eval(node)
    except ValueError:
        return NOTHING


def search(
    file: Path, sources: Callable[[ast.AST], bool], own: Collection[str]
) -> list[tuple[str, Any]]:
    """The keys that a module reads from configurations, see `Reads`."""
    reads = Reads(sources, own)
    reads.visit(ast.parse(file.read_text(encoding="utf-8")))
    return reads.found


def search_rope(file: Path) -> set[str]:
    """The keys that a module reads from dictionaries of rotary positions."""
    keys = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.Subscript(source, ast.Constant(str(key))) | ast.Call(
                ast.Attribute(source, "get" | "pop" | "setdefault"), [ast.Constant(str(key)), *_]
            ) if "rope" in ast.unparse(source):
                keys.add(key)
    return keys


def config_classes(tiny: Tiny) -> list[type]:
    """The class of a configuration and those of the groups in it."""
    kind = getattr(transformers, tiny.config_class)
    return [kind, *kind.sub_configs.values()]


def classes_of(tiny: Tiny) -> set[type]:
    """The classes of a family, and their base classes in the folders of models."""
    models = [getattr(transformers, tiny.stem + ending) for ending, _ in tiny.cases.values()]
    found = {base for kind in [*models, *config_classes(tiny)] for base in kind.__mro__}
    return {kind for kind in found if kind.__module__.startswith("transformers.models.")}


def fields_of(tiny: Tiny) -> list[tuple[str, Any]]:
    """The fields of the configurations and their defaults."""
    found = []
    for kind in config_classes(tiny):
        for field in dataclasses.fields(kind):
            default = NOTHING if field.default is dataclasses.MISSING else field.default
            found.append((field.name, default))
    return found


def merge(table: Defaults, found: Iterable[tuple[str, Any]]) -> None:
    """Add keys; of a key with several defaults, none is known to do nothing."""
    for key, default in found:
        known = table.setdefault(key, [default])
        if known != [default] and repr(known) != repr([default]):
            table[key] = [NOTHING]


# --- the table ------------------------------------------------------------------------------------


def plain(table: Defaults, kind: type) -> Defaults:
    """The table in order, without the methods of a class, and with the values that JSON has."""
    return {
        key: [value for value in values if value is not NOTHING and is_json(value)]
        for key, values in sorted(table.items())
        if not key.startswith("__")
        and not callable(getattr(kind, key, None))
        and not hasattr(dict, key)
    }


def is_json(value: Any) -> bool:
    """Whether JSON has the value."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return not isinstance(value, tuple)


def build() -> dict[str, Any]:
    """The content of the file."""
    runs: dict[str, Recorder] = {}
    families: dict[str, Defaults] = {}
    rope = search_rope(LIBRARY / "modeling_rope_utils.py")
    for model_type, tiny in TINY.items():
        runs[model_type] = Recorder()
        run_family(tiny, runs[model_type])
        classes = classes_of(tiny)
        names = {kind.__name__ for kind in classes if issubclass(kind, PreTrainedConfig)}
        table: Defaults = {}
        for file in sorted({Path(inspect.getfile(kind)) for kind in classes}):
            merge(table, search(file, is_config, names))
            rope |= search_rope(file)
        for kind in config_classes(tiny):
            for pair in kind.attribute_map.items():
                merge(table, ((key, NOTHING) for key in pair))
        read = runs[model_type].keys[PreTrainedConfig]
        merge(table, ((key, NOTHING) for key in read if key not in table))
        table |= {key: [default] for key, default in fields_of(tiny)}
        for kind in config_classes(tiny):
            families[kind.model_type] = plain(table, kind)
    shared = plain(search_shared(runs.values()), PreTrainedConfig)
    for key in set.intersection(*map(set, families.values())) - shared.keys():
        shared[key] = []
    generation: Defaults = {}
    files = {file for run in runs.values() for file in run.files}
    for file in sorted({*files, *(LIBRARY / "generation").glob("*.py")}):
        merge(generation, search(file, is_generation, ["GenerationConfig"]))
    read = set.union(*(run.keys[GenerationConfig] for run in runs.values()))
    merge(generation, ((key, NOTHING) for key in read if key not in generation))
    generation = plain(generation, GenerationConfig)
    # The settings of generation may be in config.json.
    shared |= {key: [] for key in generation if key not in shared}
    return {
        "transformers": transformers.__version__,
        "peft": peft.__version__,
        "shared": dict(sorted(shared.items())),
        "generation": generation,
        "rope": sorted(rope),
        "adapter": sorted(field.name for field in dataclasses.fields(peft.LoraConfig)),
        "families": {
            # A read that was recorded has no value, and may be one of a shared module.
            model_type: {
                key: value
                for key, value in table.items()
                if key not in shared or (value and value != shared[key])
            }
            for model_type, table in sorted(families.items())
        },
    }


def search_shared(runs: Iterable[Recorder]) -> Defaults:
    """The keys that modules outside the folders of models read."""
    files = {file for run in runs for file in run.files if not file.is_relative_to(MODELS)}
    table: Defaults = {}
    for file in sorted(
        {*files, *(LIBRARY / f"{name}_utils.py" for name in ("configuration", "modeling"))}
    ):
        merge(table, search(file, is_config, BASES))
    # Class attributes, which a key would replace.
    merge(table, ((key, NOTHING) for key in dir(PreTrainedConfig) if key not in table))
    fields = {field.name: field.default for field in dataclasses.fields(PreTrainedConfig)}
    return table | {key: [default] for key, default in fields.items()}


def as_text(table: dict[str, Any]) -> str:
    """The content of the file: one line for each group and family."""
    families = table["families"]
    lines = [f"  {json.dumps(name)}: {json.dumps(keys)}" for name, keys in families.items()]
    parts = [
        f"{json.dumps(name)}: {json.dumps(table[name])}" for name in table if name != "families"
    ]
    inner = ",\n".join(lines)
    return "{" + ",\n".join([*parts, f'"families": {{\n{inner}\n}}']) + "}\n"


def main() -> int:
    """Write or compare the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    with torch.no_grad():
        text = as_text(build())
    if not chosen.check:
        TABLE.write_text(text, encoding="utf-8")
        return 0
    if text == TABLE.read_text(encoding="utf-8"):
        return 0
    print(f"{TABLE.name} differs from what transformers {transformers.__version__} reads")
    return 1


if __name__ == "__main__":
    sys.exit(main())
