"""Several ranks train like one process, and end together. ranked.py makes all runs once."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from filelock import FileLock
from safetensors.torch import load_file
from tests.faults.runs import TINY, state_of
from tests.train.runs import SAVED_OFTEN, assert_equal_runs, events_of, values_of
from torch.distributed import HashStore

from trifold.errors import OtherRankError, UsageError
from trifold.fast.int8_training import int8_training_obstacle
from trifold.recipe import load_recipe
from trifold.train import checkpoint, distributed
from trifold.train.data import load_data
from trifold.train.distributed import ProcessGroup
from trifold.train.monitor import View

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="needs fork")]
FORMS = ["1", "2", "sharded 3"]


class Made:
    """The runs of ranked.py."""

    def __init__(self, folder: Path, results: dict) -> None:
        self.folder, self.codes, self.seconds = folder, results["codes"], results["seconds"]

    def losses(self, name: str) -> np.ndarray:
        return np.array([loss for _, loss in values_of(self.folder / name, "train/loss")])

    def output(self, name: str) -> str:
        return (self.folder / f"{name}.txt").read_text("utf-8")

    def events(self, name: str) -> list[tuple[int, str]]:
        return events_of(self.folder / name)

    def is_undisturbed(self, name: str) -> bool:
        return state_of(self.folder / name) == state_of(self.folder / "undisturbed")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The runs, made by the first worker that asks for them."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "ranked"
    results = folder / "results.json"
    with FileLock(f"{folder}.lock"):
        if not results.is_file():
            folder.mkdir(exist_ok=True)
            done = subprocess.run(
                [sys.executable, str(Path(__file__).with_name("ranked.py")), str(folder)],
                capture_output=True,
                encoding="utf-8",
                check=False,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )
            assert done.returncode == 0, done.stderr
            results.write_text(done.stdout.splitlines()[-1], encoding="utf-8")
    return Made(folder, json.loads(results.read_text("utf-8")))


# --- equal results --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "others", "tolerance"),
    [
        ("float64 on 1", ["float64 on 2", "float64 on 3", "float64 sharded on 3"], 1e-10),
        ("float32 on 1", ["float32 on 2", "float32 sharded on 2"], 1e-4),
        ("int8 on 1", ["int8 sharded on 2"], 0.03),
        ("accumulating on 1", ["accumulating on 2", "accumulating sharded on 2"], 1e-10),
        ("few rows on 1", ["few rows on 3", "few rows sharded on 3"], 1e-10),
        ("frozen on 1", ["frozen sharded on 2"], 1e-10),
        ("experts on 1", ["experts on 2", "experts sharded on 2"], 1e-10),
        ("float64 on 1", ["sessions"], 1e-10),
    ],
)
def test_the_number_of_ranks_does_not_change_the_losses(
    made: Made, one: str, others: list[str], tolerance: float
) -> None:
    expected = made.losses(one)
    assert len(expected) == (12 if one == "float64 on 1" else 6)
    assert expected[0] - expected[-1] > 0.1
    for name in others:
        assert set(made.codes.get(name, [0])) == {0}, made.output(name)
        losses = made.losses(name)
        assert len(losses) == len(expected) and np.abs(losses - expected).max() <= tolerance, name
    if one == "int8 on 1" and not int8_training_obstacle(torch.device("cpu")):
        for name in (one, *others):
            assert "+int8, weights in " in made.output(name) and "layers in int8" in made.output(
                name
            )


@pytest.mark.parametrize("form", ["2", "3", "sharded 3"])
def test_the_gradient_is_equal_within_a_millionth(made: Made, form: str) -> None:
    def gradient(name: str) -> torch.Tensor:
        named = load_file(made.folder / f"gradient {name}.safetensors")
        return torch.cat([named[key].flatten() for key in sorted(named)])

    ours, theirs = gradient(form), gradient("1")
    assert float((ours - theirs).norm() / theirs.norm()) <= 1e-6
    assert float(theirs.norm()) > 0.1


def test_another_number_of_ranks_is_reported_on_resume(made: Made) -> None:
    assert "ranks changed from 1 to 3: results may differ in the last bits" in made.output(
        "session on 3"
    )
    assert "ranks changed from 3 to 2" in made.output("session on 2")
    environment = json.loads((made.folder / "sessions" / "environment.json").read_text("utf-8"))
    assert environment["ranks"] == 2
    assert [session["from_step"] for session in environment["sessions"]] == [0, 4, 8]


@pytest.mark.parametrize("by", FORMS)
@pytest.mark.parametrize("of", FORMS)
def test_a_checkpoint_does_not_depend_on_the_ranks(made: Made, of: str, by: str) -> None:
    """Each form loads the checkpoint of each other form and saves the same bytes."""
    assert set(made.codes[f"loaded by {by}"]) == {0}, made.output("exchange")
    before = made.folder / f"saved by {of}" / "checkpoints" / "step-00000004"
    after = made.folder / f"{of} by {by}" / "step-00000004"
    for file in ("weights.safetensors", "optimizer.safetensors", "progress.json"):
        assert (after / file).read_bytes() == (before / file).read_bytes(), file
    assert any(name.startswith("ema.") for name in load_file(after / "optimizer.safetensors"))


def test_only_rank_0_writes_and_prints(made: Made) -> None:
    output = made.output("float64 on 3")
    assert output.count("device cpu") == 1
    assert "3 ranks, computing in float64, weights in float64" in output
    assert "3 ranks with a sharded model" in made.output("float64 sharded on 3")
    steps = [step for step, _ in values_of(made.folder / "float64 on 3", "train/loss")]
    assert steps == list(range(1, 13))


# --- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_to_any_rank_stops_all_at_the_same_step(made: Made, name: str, code: int) -> None:
    assert made.codes[f"stopped by {name}"] == [code, code]
    command = "continue with `torchrun --nproc-per-node 2 -m trifold resume "
    assert f"stopped at step 5; {command}" in made.output(f"stopped by {name}")
    assert made.codes[f"continued after {name}"] == [0, 0]
    assert made.is_undisturbed(f"stopped by {name}")


def test_every_rank_accepts_a_save_request(made: Made) -> None:
    assert made.codes["save request"] == [0, 0]
    assert made.events("save request") == [(5, "saved")]


def test_a_signal_to_a_waiting_rank_interrupts_the_validation(made: Made) -> None:
    assert made.codes["validating"] == [143, 143]
    assert "stopped at step 6" in made.output("validating")
    assert made.codes["continued after validating"] == [0, 0]
    assert made.is_undisturbed("validating")


def test_a_killed_rank_ends_the_others_and_the_run_continues(made: Made) -> None:
    first, killed = made.codes["killed"]
    assert killed == -signal.SIGKILL and first in (1, -signal.SIGTERM, 143)
    assert made.seconds["killed"] < 30
    killed, second = made.codes["killed, sharded"]
    assert killed == -signal.SIGKILL and second in (1, 143)
    assert not any("Traceback" in made.output(name) for name in ("killed", "killed, sharded"))
    assert made.codes["continued after a kill"] == [0, 0]
    assert made.is_undisturbed("killed")


def test_a_non_finite_loss_on_one_rank_changes_no_weights(made: Made) -> None:
    assert made.codes["non-finite stops"] == [1, 1]
    assert made.events("non-finite stops") == [(5, "stopped")]
    assert made.output("non-finite stops").count("error: ") == 1
    name = "non-finite is skipped"
    assert made.codes[name] == [0, 0]
    assert made.events(name) == [(5, "skipped")]
    last = checkpoint.load(checkpoint.list_checkpoints(made.folder / name / "checkpoints")[-1])
    assert all(bool(value.isfinite().all()) for value in last.weights.values())
    ((_, file),) = values_of(made.folder / name, "batch")
    saved = load_file(made.folder / name / file)
    data = load_data(load_recipe("smoke", TINY), made.folder / "warm" / "tokenizer", View())
    rows = data.plan(data.train, 0)[4]
    labels = [saved[f"{share}.labels"] for share in range(2)]
    assert sum(int((each >= 0).sum()) for each in labels) == int(
        data.train.lengths[rows, 1].sum()
    ), "the batches of both ranks"


def test_all_ranks_rewind_after_a_spike(made: Made) -> None:
    assert made.codes["spike"] == [0, 0], made.output("spike")
    assert made.events("spike") == [(6, "rewound")]


@pytest.mark.parametrize(
    ("name", "code", "error"),
    [
        ("not resumed", 2, "error: .* contains files"),
        ("muon", 2, "error: train.sharding: full is incompatible with train.optimizer: muon"),
        ("missing data", 1, "error: corpus.txt: not on this machine"),
        (
            "other data",
            1,
            "error: embedded:smoke: .* reads 243 rows, .*, but rank 0 reads 244 rows",
        ),
    ],
)
def test_an_error_is_printed_once_and_ends_all_ranks(
    made: Made, name: str, code: int, error: str
) -> None:
    assert made.codes[name] == [code, code]
    assert made.output(name).count("error: ") == 1 and re.search(error, made.output(name))
    assert not (made.folder / name).exists()


# --- torchrun -------------------------------------------------------------------------------------


def test_torchrun_restarts_after_a_kill_and_the_result_is_the_same(
    made: Made, tmp_path: Path
) -> None:
    """The uninterrupted run is one of forked ranks."""
    words = [f"{key}={value}" for key, value in (TINY | SAVED_OFTEN).items()]
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
        *("--max-restarts", "1", "--monitor-interval", "0.05", "--master-port", "0"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
        *("-m", "trifold", "train", "smoke", *words),
        *("--resume", "auto", "--json", "--out", str(tmp_path / "killed")),
    ]
    killed = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )
    metrics, end = tmp_path / "killed" / "metrics.jsonl", time.monotonic() + 300
    while not metrics.is_file() or metrics.read_bytes().count(b"\n") < 12:
        assert time.monotonic() < end and killed.poll() is None, killed.communicate()
        time.sleep(0.005)
    os.kill(children_of(killed.pid)[-1], signal.SIGKILL)
    out, err = killed.communicate(timeout=300)
    assert killed.returncode == 0, err
    assert json.loads(out)["steps"] == 30, "one line, of rank 0"
    sessions = json.loads((tmp_path / "killed" / "environment.json").read_text("utf-8"))["sessions"]
    assert len(sessions) == 2 and sessions[1]["from_step"] >= 5
    assert made.codes["uninterrupted"] == [0, 0]
    assert_equal_runs(tmp_path / "killed", made.folder / "uninterrupted")


def children_of(parent: int) -> list[int]:
    """The processes of the ranks."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    )
    rows = [line.split(None, 2) for line in listed.stdout.splitlines()]
    return sorted(int(pid) for pid, ppid, args in rows if int(ppid) == parent and "trifold" in args)


# --- a group in one process -----------------------------------------------------------------------


class Store:
    """A key-value store in this process."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def get(self, key: str) -> bytes:
        return self.values[key].encode()

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def add(self, key: str, amount: int) -> int:
        self.values[key] = str(int(self.values.get(key, "0")) + amount)
        return int(self.values[key])


def test_results_and_errors_of_rank_0_reach_the_others() -> None:
    store = Store()
    first, second = (ProcessGroup(store, {"RANK": rank, "WORLD_SIZE": "2"}) for rank in "01")
    assert first.first(dict, a=1) == second.first(dict, b=2) == {"a": 1}

    def fail() -> None:
        raise UsageError("no")

    store.set("errors read", "1")  # do not wait for the second rank, which is the same thread here
    with pytest.raises(UsageError, match="no"):
        first.first(fail)
    with pytest.raises(OtherRankError, match="rank 0: no") as caught:
        second.first(fail)
    assert caught.value.exit_code == 2


def join_threads(store: HashStore, delays: list[float]) -> list[str]:
    """The group name that each rank finds; each rank is a thread that joins after a delay in
    seconds.
    """

    def join(rank: int) -> str:
        time.sleep(delays[rank])
        return distributed._meet(store, rank, len(delays))

    with ThreadPoolExecutor(len(delays)) as threads:
        return list(threads.map(join, range(len(delays))))


@pytest.mark.parametrize("late", [0, 1, 2])
def test_restarted_ranks_join_a_new_group_whichever_is_late(late: int) -> None:
    store = HashStore()  # outlives the ranks, with all their keys
    names = []
    for _ in range(3):
        found = set(join_threads(store, [0.1 if rank == late else 0.0 for rank in range(3)]))
        assert len(found) == 1
        names += found
    assert len(set(names)) == 3


def test_rank_without_others_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    join_threads(store, [0.0, 0.0])
    monkeypatch.setattr(distributed, "TIMEOUT", timedelta(seconds=0.2))
    for rank in (0, 1):
        with pytest.raises(OtherRankError, match=f"rank {rank}: not all of 2 ranks joined"):
            distributed._meet(store, rank, 2)


# --- documentation --------------------------------------------------------------------------------


def test_torchrun_and_trifold_accept_the_commands_of_the_documentation() -> None:
    """Also those of the job files, for which there is no cluster here."""
    from torch.distributed.run import get_args_parser

    text = (Path(__file__).parents[2] / "docs" / "machines.md").read_text("utf-8")
    (job,) = (
        each for each in yaml.safe_load_all(code_blocks(text, "yml")[0]) if each["kind"] == "Job"
    )
    (container,) = job["spec"]["template"]["spec"]["containers"]
    commands = [[*container["command"], *container["args"]]]
    for block in code_blocks(text, "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if "torchrun" in words:
                words = words[words.index("torchrun") :]
                commands.append(words[: words.index("&")] if "&" in words else words)
    assert len(commands) == 7
    for _, *words in commands:
        words = [re.sub(r"\$\w+", "1", word) for word in words]  # any number for a shell variable
        parsed = get_args_parser().parse_args(words)
        assert parsed.module and parsed.training_script == "trifold", words
        command, recipe, *rest = parsed.training_script_args
        assert command == "train"
        load_recipe(recipe, [word for word in rest if re.fullmatch(r"[a-z_.]+=.+", word)])


def code_blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)
