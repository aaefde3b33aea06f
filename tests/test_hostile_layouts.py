"""Folders with links, named pipes, sockets and devices: an error names the place, the content of a
file outside does not appear, and nothing hangs.
"""

import json
import os
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import trifold
from trifold.cli.compare import _requests
from trifold.cli.eval import find_recipe
from trifold.cli.runs import describe_run, run as list_runs
from trifold.data import DataSettings
from trifold.data.corpus import survey
from trifold.data.image_sets import list_images
from trifold.data.images import ImageSettings, read_image
from trifold.errors import TrifoldError
from trifold.folders import named, read_bytes
from trifold.hub import load_model, read_config, resolve
from trifold.hub.convert import convert
from trifold.hub.images import read_image_settings
from trifold.hub.peft_config import read_adapter_config
from trifold.hub.pickles import read_pickles
from trifold.hub.sentence_transformers import read_modules
from trifold.hub.weights import read_weights
from trifold.look.plots import read_metric
from trifold.look.run_view import run as view_run
from trifold.nn import ModelConfig, Transformer
from trifold.pipeline import Pipeline
from trifold.recipe import load_recipe
from trifold.text import TokenizerSettings, read_tokenizer, train_tokenizer
from trifold.train import checkpoint
from trifold.train.run_folder import RunFolder, recipe_of_run
from trifold.train.study import StudySettings, plan_runs

SECRET = "the-secret-of-another-folder"
SECONDS = 20  # of a call, which takes milliseconds; a pipe would stop it for ever


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with a small model."""
    run = tmp_path_factory.mktemp("sound") / "run"
    tokenizer = train_tokenizer(["the fox"], TokenizerSettings(kind="char", min_frequency=1))
    sizes = {"n_layers": 1, "d_model": 8, "n_heads": 1, "d_ff": 8, "max_positions": 16}
    parts = {"shape": "decoder", "vocab_size": tokenizer.vocab_size}
    pipe = Pipeline(Transformer(ModelConfig.parse(parts | sizes)), tokenizer)
    pipe.save(run / "model")
    (run / "recipe.yaml").write_text(load_recipe("smoke").resolved(), "utf-8")
    (run / "environment.json").write_text('{"sessions": []}', "utf-8")
    (run / "metrics.jsonl").write_text('{"step": 1, "valid/loss": 1.0}\n', "utf-8")
    (run / "samples").mkdir()
    (run / "samples" / "step-00000001.tsv").write_text("a\tb\nc\td\n", "utf-8")
    (run / "checkpoints").mkdir()
    checkpoint.save(run / "checkpoints", checkpoint.Checkpoint({}, {}, {"step": 1}))
    return run


@pytest.fixture
def run(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "run")


# --- layouts: (the place of a file in the folder `run`, a file outside) -> None ------------------


def relative(place: Path, outside: Path) -> None:
    place.symlink_to(os.path.relpath(outside, place.parent))


def chain(place: Path, outside: Path) -> None:
    (place.parent / "second").symlink_to(outside)
    place.symlink_to("second")


def sibling(place: Path, outside: Path) -> None:
    """A folder whose name begins as that of the folder."""
    other = outside.parent / "run-2"
    other.mkdir()
    place.symlink_to(shutil.copy(outside, other))


def blobs_of_another(place: Path, outside: Path) -> None:
    blobs = outside.parent / "models--other" / "blobs"
    blobs.mkdir(parents=True)
    place.symlink_to(shutil.copy(outside, blobs))


def pipe_link(place: Path, outside: Path) -> None:
    os.mkfifo(place.parent / "pipe")
    place.symlink_to("pipe")


def bound_socket(place: Path, outside: Path) -> None:
    here = Path.cwd()
    os.chdir(place.parent)  # names of sockets are short
    try:
        socket.socket(socket.AF_UNIX).bind(place.name)
    finally:
        os.chdir(here)


LAYOUTS: dict[str, Callable[[Path, Path], Any]] = {
    "absolute": lambda place, outside: place.symlink_to(outside),
    "relative": relative,
    "chain": chain,
    "sibling": sibling,
    "blobs of another cache": blobs_of_another,
    "circular": lambda place, outside: place.symlink_to(place.name),
    "dangling": lambda place, outside: place.symlink_to("nothing"),
    "device": lambda place, outside: place.symlink_to("/dev/zero"),
    "pipe": lambda place, outside: os.mkfifo(place),
    "link to a pipe": pipe_link,
    "socket": bound_socket,
    "folder": lambda place, outside: place.mkdir(),
}

# --- uses: the file that a layout replaces, and what reads it -------------------------------------


def look(run: Path) -> Any:
    return view_run(SimpleNamespace(folder=run))  # type: ignore[arg-type]


def converted(run: Path) -> Any:
    return convert(named(run) / "model", run.parent / "new")


def described(run: Path) -> Any:
    """What `trifold runs` and `compare` know of a run; its error is part of the facts."""
    facts = describe_run(run, "run")
    if facts.error is not None:
        raise TrifoldError(facts.error)
    return facts


def trained(run: Path) -> Any:
    folder = RunFolder(run)
    try:
        folder.open(resume=True)
        return folder.identity(), folder.read_environment(), folder.truncate_metrics(1)
    finally:
        folder.close()


def compared(run: Path) -> Any:
    return _requests(str(run), str(run / "model"), [], None, {})


def started(run: Path) -> Any:
    """A recipe of the user that starts from the model."""
    task = {"task": {"kind": "causal"}, "data": {"train": "a.txt"}}
    file = run.parent / "mine.yaml"
    file.write_text(json.dumps({**task, "start_from": str(run)}), "utf-8")
    return load_recipe(file)


def studied(run: Path) -> Any:
    """A study of the user with the recipe of the run."""
    sizes = {"sizes": {"a": {"d_model": 8}}, "tokens": [1000]}
    settings = StudySettings.parse({"name": "x", "recipe": str(run), **sizes})
    return plan_runs(settings, run.parent / "study")


def adapted(run: Path) -> Any:
    """An adapter on the model."""
    adapter = run.parent / "adapter"
    adapter.mkdir()
    base = {"base_model_name_or_path": str(run / "model")}
    settings = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["q_proj"], **base}
    (adapter / "adapter_config.json").write_text(json.dumps(settings), "utf-8")
    save_file({"x": torch.zeros(1)}, adapter / "adapter_model.safetensors")
    return trifold.load(adapter)


def newest(run: Path) -> Any:
    return checkpoint.load_newest(RunFolder(run).below(run / "checkpoints"))


USES: tuple[tuple[str, Callable[[Path], Any]], ...] = (
    ("model/config.json", trifold.load),
    ("model/config.json", lambda run: read_config(resolve(str(run)))),
    ("model/model.safetensors", trifold.load),
    ("model/model.safetensors", lambda run: load_model(resolve(str(run)))),
    ("model/generation_config.json", trifold.load),
    ("model/tokenizer.json", trifold.load),
    ("model/tokenizer_config.json", trifold.load),
    ("model/special_tokens_map.json", trifold.load),
    ("model/chat_template.jinja", trifold.load),
    ("model/preprocessor_config.json", trifold.load),
    ("model/modules.json", trifold.load),
    ("model/modules.json", lambda run: read_modules(named(run) / "model")),
    ("model/preprocessor_config.json", lambda run: read_image_settings(named(run) / "model")),
    ("model/adapter_config.json", trifold.load),
    ("model/adapter_config.json", lambda run: read_adapter_config(named(run) / "model")),
    ("model/tokenizer.json", lambda run: read_tokenizer(named(run) / "model")),
    ("model/LICENSE", converted),
    ("model/model.safetensors", lambda run: read_weights(named(run) / "model")),
    ("model/pytorch_model.bin", lambda run: read_pickles(named(run) / "model", run)),
    ("model/config.json", lambda run: trifold.load(run).generate("the")),
    ("model/tokenizer.json", lambda run: trifold.load(run).predict("the")),
    ("model/model.safetensors", lambda run: trifold.load(run).embed("the")),
    ("model/config.json", started),
    ("model/model.safetensors", adapted),
    ("recipe.yaml", compared),
    ("recipe.yaml", studied),
    ("recipe.yaml", load_recipe),
    ("recipe.yaml", recipe_of_run),
    ("recipe.yaml", described),
    ("recipe.yaml", lambda run: find_recipe(str(run / "model"))),
    ("environment.json", described),
    ("environment.json", trained),
    ("metrics.jsonl", described),
    ("metrics.jsonl", trained),
    ("metrics.jsonl", look),
    ("metrics.jsonl", lambda run: read_metric(run, "valid/loss")),
    ("samples/step-00000001.tsv", look),
    ("checkpoints/step-00000001/manifest.json", newest),
    ("checkpoints/step-00000001/weights.safetensors", newest),
    ("checkpoints/step-00000001/progress.json", newest),
)


def message_of(use: Callable[[], Any]) -> str:
    """The error of a call that ends in time."""
    found: list[str] = []

    def call() -> None:
        try:
            found.append(f"no error: {use()!r:.200}")
        except TrifoldError as error:
            found.append(str(error))
        except Exception as error:
            found.append(f"no error of ours: {error!r}")

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert found, "hangs"
    return found[0]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_hostile_file_is_named_and_not_read(layout: str, sound: Path, tmp_path: Path) -> None:
    for number, (name, use) in enumerate(USES):
        outside = tmp_path / str(number) / "outside"
        run = shutil.copytree(sound, outside.parent / "run")
        outside.write_text(f"{SECRET}: 1\n", "utf-8")
        place = run / name
        place.unlink(missing_ok=True)
        LAYOUTS[layout](place, outside)
        message = message_of(lambda use=use, run=run: use(run))  # type: ignore[misc]
        assert not message.startswith("no error"), (name, message)
        assert str(place) in message and SECRET not in message, (name, message)


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("model", trifold.load),
        ("model", converted),
        ("model/additional_chat_templates", trifold.load),
        ("samples", look),
        ("samples", trained),
        ("checkpoints", newest),
        ("checkpoints", trained),
        ("checkpoints/step-00000001", newest),
        ("tokenizer", trained),
        ("rejected", trained),
    ],
)
def test_a_folder_that_is_a_link_out_is_not_followed(
    name: str, use: Callable[[Path], Any], run: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    if (run / name).exists():
        (run / name).rename(outside)
    else:
        outside.mkdir()
    (outside / f"{SECRET}.jinja").write_text(SECRET, "utf-8")
    (run / name).symlink_to(outside)
    message = message_of(lambda: use(run))
    assert f"{run / name}: a link that leads out" in message and SECRET not in message


def test_links_below_the_named_folder_are_followed(run: Path, tmp_path: Path) -> None:
    shutil.move(run / "model" / "config.json", run / "shared.json")
    (run / "model" / "config.json").symlink_to("../shared.json")
    (tmp_path / "latest").symlink_to(run)
    assert trifold.load(tmp_path / "latest").config.shape == "decoder"
    assert "leads out" in message_of(lambda: trifold.load(run / "model"))


def test_what_the_user_names_may_be_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").symlink_to(run / "recipe.yaml")
    assert load_recipe(tmp_path / "mine.yaml").task.kind == "translate"
    assert read_bytes(named(tmp_path / "mine.yaml"), 10**6) == (run / "recipe.yaml").read_bytes()


@pytest.mark.parametrize("layout", ["pipe", "device", "socket", "link to a pipe"])
def test_folders_of_data_are_read_without_pipes_and_devices(layout: str, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "cat"
    folder.mkdir(parents=True)
    for name in ("a.txt", "a.png"):
        LAYOUTS[layout](folder / name, tmp_path)
        if layout == "link to a pipe":  # one for each file
            (folder / "pipe").rename(folder / f"pipe-{name[2:]}")
            (folder / name).unlink()
            (folder / name).symlink_to(f"pipe-{name[2:]}")
    uses = (
        ("a.txt", lambda: survey(str(tmp_path / "data"), DataSettings())),
        ("a.txt", lambda: survey(str(folder / "*.txt"), DataSettings())),
        ("a.png", lambda: list_images(str(tmp_path / "data"))),
        ("a.png", lambda: read_image(folder / "a.png", ImageSettings(), 3)),
    )
    for name, use in uses:
        assert f"{folder / name}: a " in message_of(use)


def test_the_list_of_runs_names_a_summary_that_is_a_pipe(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "summary.json")
    message_of(lambda: list_runs(tmp_path))
    assert f"{tmp_path / 'summary.json'}" in capsys.readouterr().err
