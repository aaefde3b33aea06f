"""Many processes learn what one learns, and leave together: laws of the runs that ranked.py makes once for all."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from tests.faults.runs import TINY, lines_of, state_of

from trifold.errors import OtherRankError, SettingsError, UsageError
from trifold.fast.int8_training import bytes_hindrance
from trifold.objectives.causal import Causal, CausalSettings, Corpus
from trifold.ragged import Ragged
from trifold.recipe import load_recipe
from trifold.train import checkpoint, setup
from trifold.train.dealing import deal, everyones
from trifold.train.device import find_device
from trifold.train.memory import needed, there_is
from trifold.train.ranks import ALONE, Group, Ranks, joined
from trifold.train.sharding import check_sharding
from trifold.train.view import Silent

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="processes are copied")]
FORMS = ["1", "2", "4", "2 parts", "4 parts"]


class Made:
    """What ranked.py has made."""

    def __init__(self, folder: Path, told: dict) -> None:
        self.folder, self.codes, self.seconds = folder, told["codes"], told["seconds"]

    def curve(self, name: str) -> np.ndarray:
        return np.array([line["train/loss"] for line in lines_of(self.folder / name) if "train/loss" in line])

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.txt").read_text("utf-8")

    def events(self, name: str) -> list[tuple[int, str]]:
        return [(line["step"], line["event"]) for line in lines_of(self.folder / name) if "event" in line]

    def last(self, name: str) -> checkpoint.Checkpoint:
        return checkpoint.load(checkpoint.saved(self.folder / name / "checkpoints")[-1])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("ranked")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("ranked.py")), str(folder)],
        capture_output=True,
        encoding="utf-8",
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return Made(folder, json.loads(done.stdout.splitlines()[-1]))


# --- the same result --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("others", "one", "most"),
    [
        (["float64 on 2", "float64 on 4", "float64 in 4 parts"], "float64 on 1", 1e-10),
        (["float32 on 2", "float32 on 4", "float32 in 2 parts"], "float32 on 1", 1e-4),
        (["int8 in 2 parts"], "int8 on 1", 0.03),
        (["accumulating on 2", "accumulating in 2 parts"], "accumulating on 1", 1e-10),
        (["few rows on 4", "few rows in 4 parts"], "few rows on 1", 1e-10),
        (["sittings"], "sittings on 1", 1e-10),
    ],
)
def test_any_number_of_ranks_learns_what_one_learns(
    made: Made, others: list[str], one: str, most: float
) -> None:
    wanted = made.curve(one)
    if "int8" in one and not bytes_hindrance(torch.device("cpu")):
        for name in (one, *others):
            assert "+int8 arithmetic" in made.said(name) and "layers learning by bytes" in made.said(name)
    assert wanted[0] - wanted[-1] > 0.1, "it learns"
    for other in others:
        assert set(made.codes.get(other, [0])) == {0}, made.said(other)
        found = made.curve(other)
        assert len(found) == (50 if re.fullmatch("float.. on .", other) else 6 if "few" in other else 12)
        assert np.abs(found - wanted[: len(found)]).max() <= most, other


@pytest.mark.parametrize("form", ["2", "4", "4 parts"])
def test_one_gradient_is_the_same_to_a_millionth(made: Made, form: str) -> None:
    ours, theirs = (
        torch.cat(
            [
                value.flatten()
                for _, value in sorted(load_file(made.folder / f"gradient {each}.safetensors").items())
            ]
        )
        for each in (form, "1")
    )
    assert float((ours - theirs).norm() / theirs.norm()) <= 1e-6
    assert float(theirs.norm()) > 0.1


def test_another_number_of_ranks_is_said_when_a_run_goes_on(made: Made) -> None:
    assert "ranks was 1 and is 4: from here on the last bits may differ" in made.said("sitting on 4")
    assert "ranks was 4 and is 2" in made.said("sitting on 2")
    told = json.loads((made.folder / "sittings" / "environment.json").read_text("utf-8"))
    assert told["ranks"] == 2
    assert [sitting["from_step"] for sitting in told["sittings"]] == [0, 4, 8]


# --- states that travel -----------------------------------------------------------------------------------


@pytest.mark.parametrize("by", FORMS)
@pytest.mark.parametrize("of", FORMS)
def test_what_any_form_saves_any_other_loads_to_the_bit(made: Made, of: str, by: str) -> None:
    assert set(made.codes[f"loaded by {by}"]) == {0}, made.said("travels")
    before = made.folder / f"saved by {of}" / "checkpoints" / "step-00000004"
    after = made.folder / f"{of} by {by}" / "step-00000004"
    for file in ("weights.safetensors", "optimizer.safetensors", "progress.json"):
        assert (after / file).read_bytes() == (before / file).read_bytes(), file
    assert any(name.startswith("ema.") for name in load_file(after / "optimizer.safetensors"))


def test_rank_0_alone_writes_and_speaks(made: Made) -> None:
    said = made.said("float64 on 4").splitlines()
    assert len([line for line in said if line.startswith("device cpu")]) == 1
    assert "4 ranks, float64 arithmetic, float64 master weights" in made.said("float64 on 4")
    assert "4 ranks with a part of the model each" in made.said("float64 in 4 parts")
    steps = [line["step"] for line in lines_of(made.folder / "float64 on 4") if "train/loss" in line]
    assert steps == list(range(1, 51))


# --- bad days ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_to_any_rank_ends_all_at_one_step(made: Made, name: str, code: int) -> None:
    assert made.codes[f"stopped by {name}"] == [code, code]
    assert "stopped at step 5; go on with: torchrun --nproc-per-node 2 -m trifold train " in made.said(
        f"stopped by {name}"
    )
    assert made.codes[f"gone on after {name}"] == [0, 0]
    assert state_of(made.folder / f"stopped by {name}") == state_of(made.folder / "undisturbed")


def test_a_signal_to_any_rank_saves(made: Made) -> None:
    assert made.codes["asked to save"] == [0, 0]
    assert made.events("asked to save") == [(5, "saved")]


def test_a_signal_to_a_rank_that_waits_for_a_validation_ends_it(made: Made) -> None:
    assert made.codes["validating"] == [143, 143]
    assert "stopped at step 6" in made.said("validating")
    assert made.codes["gone on after validating"] == [0, 0]
    assert state_of(made.folder / "validating") == state_of(made.folder / "undisturbed")


def test_a_killed_rank_ends_the_others_and_nothing_is_lost(made: Made) -> None:
    first, killed = made.codes["killed"]
    assert killed == -signal.SIGKILL and first in (1, -signal.SIGTERM, 143)
    assert made.seconds["killed"] < 30
    assert made.codes["killed in parts"][0] == -signal.SIGKILL and made.codes["killed in parts"][1] in (
        1,
        143,
    )
    assert not any("Traceback" in made.said(name) for name in ("killed", "killed in parts"))
    assert made.codes["gone on after a kill"] == [0, 0]
    assert state_of(made.folder / "killed") == state_of(made.folder / "undisturbed")


def test_nonsense_on_one_rank_reaches_the_weights_of_none(made: Made) -> None:
    assert made.codes["nonsense stops"] == [1, 1]
    assert made.events("nonsense stops") == [(5, "stopped")]
    assert made.said("nonsense stops").count("error: ") == 1
    assert made.codes["nonsense is skipped"] == [0, 0]
    assert made.events("nonsense is skipped") == [(5, "skipped")]
    assert all(bool(value.isfinite().all()) for value in made.last("nonsense is skipped").weights.values())
    (event,) = (line for line in lines_of(made.folder / "nonsense is skipped") if "event" in line)
    kept = load_file(made.folder / "nonsense is skipped" / event["batch"])
    prepared = _prepared(made.folder / "warm" / "tokenizer")
    rows = prepared.plan(prepared.train, 0)[4]
    assert sum(int((kept[f"{share}.labels"] >= 0).sum()) for share in range(2)) == int(
        prepared.train.lengths[rows, 1].sum()
    ), "the batches of both ranks"


def test_all_ranks_go_back_from_a_spike(made: Made) -> None:
    assert made.codes["spikes"] == [0, 0], made.said("spikes")
    assert made.events("spikes") == [(6, "rewound")]


def test_what_is_refused_is_said_once_and_all_leave_with_its_code(made: Made) -> None:
    assert made.codes["refused"] == [2, 2]
    assert len(re.findall("error: .* holds files already", made.said("refused"))) == 1
    assert made.codes["muon"] == [2, 2]
    assert made.said("muon").count("error: train.sharding: full does not go with train.optimizer: muon") == 1
    assert not (made.folder / "muon").exists()


def test_what_one_rank_alone_has_to_complain_of_it_says_and_nothing_is_left(made: Made) -> None:
    assert made.codes["alone without data"] == [1, 1]
    assert "error: corpus.txt: not on this machine" in made.said("alone without data")
    assert made.said("alone without data").count("error: ") == 1
    assert not (made.folder / "alone without data").exists()


def test_ranks_that_read_other_data_are_refused(made: Made) -> None:
    assert made.codes["other data"] == [1, 1]
    assert re.search(
        "error: embedded:smoke: .* reads 243 rows, .*, and rank 0 244 rows", made.said("other data")
    )
    assert not (made.folder / "other data").exists()


# --- torchrun ---------------------------------------------------------------------------------------------


def test_torchrun_starts_again_after_a_kill_and_the_run_is_as_if_nothing_had_happened(tmp_path: Path) -> None:
    words = [f"{key}={value}" for key, value in (TINY | {"train.steps": 60, "train.save_every": 5}).items()]

    def torchrun(out: Path) -> subprocess.Popen:
        return subprocess.Popen(
            [
                *(
                    sys.executable,
                    "-m",
                    "torch.distributed.run",
                    "--nproc-per-node",
                    "2",
                    "--max-restarts",
                    "1",
                ),
                *("--monitor-interval", "0.05", "--master-port", "0", "--rdzv-backend", "c10d"),
                *("--rdzv-endpoint", "127.0.0.1:0", "-m", "trifold", "train", "smoke", *words),
                *("--out", str(out), "--resume", "auto", "--json"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        )

    killed = torchrun(tmp_path / "killed")
    end = time.monotonic() + 300
    while len(lines_of_so_far(tmp_path / "killed")) < 12:
        assert time.monotonic() < end and killed.poll() is None, killed.communicate()
        time.sleep(0.005)
    os.kill(_children(killed.pid)[-1], signal.SIGKILL)
    out, err = killed.communicate(timeout=300)
    assert killed.returncode == 0, err
    assert json.loads(out)["steps"] == 60, "one line, of rank 0"
    sittings = json.loads((tmp_path / "killed" / "environment.json").read_text("utf-8"))["sittings"]
    assert len(sittings) == 2 and sittings[1]["from_step"] >= 5
    whole = torchrun(tmp_path / "whole")
    _, err = whole.communicate(timeout=300)
    assert whole.returncode == 0, err
    assert state_of(tmp_path / "killed") == state_of(tmp_path / "whole")


def lines_of_so_far(folder: Path) -> list[bytes]:
    file = folder / "metrics.jsonl"
    return file.read_bytes().splitlines() if file.is_file() else []


def _children(parent: int) -> list[int]:
    """The ranks, from /proc or by ps."""
    told = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split(None, 2) for line in told.splitlines()]
    return sorted(int(pid) for pid, ppid, args in rows if int(ppid) == parent and "trifold" in args)


# --- every row, once --------------------------------------------------------------------------------------


def _prepared(tokenizer: Path, **changes: object) -> setup.Prepared:
    return setup.prepare(load_recipe("smoke", TINY | changes), tokenizer, Silent())


SITTINGS = [(1, 3), (4, 2), (2, 3), (3, 100)]  # ranks, and the updates that they make together


@pytest.mark.parametrize("accumulate", [1, 2, 4])
@pytest.mark.parametrize("workers", [1, 3])
def test_every_token_is_learnt_once_an_epoch_whatever_the_ranks_and_however_often_they_change(
    tmp_path: Path, accumulate: int, workers: int
) -> None:
    """Counted on a corpus whose every token has an id of its own."""
    sizes = np.random.default_rng(3).integers(1, 40, 60)
    task = Causal(CausalSettings(), _Tokenless(), 16)
    ids = np.arange(1, sizes.sum() + 1)
    examples = task.examples(
        Corpus(Ragged.of([part.tolist() for part in np.split(ids, np.cumsum(sizes)[:-1])]), 0)
    )
    prepared = _Plain(examples, task)
    wanted = Counter(int(i) for i in ids) - Counter(int(i) for i in ids[np.cumsum(sizes) - sizes])
    found: Counter[int] = Counter()
    place = (0, 0)
    for world, updates in SITTINGS:
        streams = [
            deal(prepared, workers, *place, accumulate=accumulate, rank=rank, world=world)
            for rank in range(world)
        ]
        for _ in range(updates):
            for _ in range(accumulate):
                dealt = [next(stream) for stream in streams]
                assert len({(each.epoch, each.number) for each in dealt}) == 1, "all ranks are at one place"
                place = dealt[0].epoch, dealt[0].number + 1
                if dealt[0].epoch == 0:
                    for each in dealt:
                        for share in each.shares:
                            found.update(int(i) for i in share.labels if i >= 0)
    assert place[0] > 0, "the epoch was finished"
    assert found == wanted


class _Tokenless:
    """A tokenizer of a corpus that is ids already."""

    pad_id = 0


class _Plain:
    """What `deal` needs of what was prepared."""

    width = None

    def __init__(self, examples: object, task: Causal) -> None:
        self._examples, self.task = examples, task

    def examples(self, epoch: int) -> object:
        return self._examples

    def draw(self, epoch: int) -> int:
        return epoch

    def plan(self, examples: object, epoch: int) -> object:
        from trifold.batches import BatchSettings, plan_epoch

        return plan_epoch(examples.lengths, BatchSettings(tokens=64), seed=1, epoch=epoch)


def test_all_ranks_have_the_same_work_and_idle_ones_keep_step(tmp_path: Path) -> None:
    prepared = _prepared(tmp_path, **{"batch.rows": 3})
    dealt = [next(deal(prepared, 1, rank=rank, world=4)) for rank in range(4)]
    assert [len(each.shares) + len(each.idle) for each in dealt] == [1, 1, 1, 1]
    assert sum(len(each.shares) for each in dealt) == 3
    whole = [list(islice(deal(prepared, 1, accumulate=4, rank=rank, world=2), 4)) for rank in range(2)]
    assert [[len(each.shares) for each in rank] for rank in whole] == [[1, 0, 1, 0], [0, 1, 0, 1]]
    assert not any(each.idle for rank in whole for each in rank)


def test_what_all_had_to_learn_is_made_once_more(tmp_path: Path) -> None:
    prepared = _prepared(tmp_path)
    mine = list(islice(deal(prepared, 1, rank=1, world=3), 2))
    again = everyones(prepared, 1, mine, world=3, accumulate=1)
    assert len(again) == 6
    assert torch.equal(again[2].labels, mine[0].shares[0].labels)


# --- without torchrun, and with less than it takes --------------------------------------------------------


def test_without_torchrun_there_is_one_process_and_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with joined() as ranks:
        assert ranks is ALONE and ranks.speaks
        assert ranks.total([1, 2.5]) == [1.0, 2.5]
        assert ranks.first(lambda: "x") == ranks.in_turn(lambda: "x") == "x"
        vector = torch.ones(2)
        ranks.add_up(vector)
        ranks.take_first(vector)
        assert vector.tolist() == [1, 1] and ranks.heard_elsewhere() is None
    assert not torch.distributed.is_initialized()


class _Four(Ranks):
    rank, world, local, beside = 1, 4, 1, 4


def test_devices_of_several_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("auto", _Four()).type == "cpu"
    with pytest.raises(UsageError, match=r"train\.device: 'cuda:0' is one device, and there are 4 ranks"):
        find_device("cuda:0", _Four())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UsageError, match=r"4 ranks on this machine, and 2 GPUs; .*--nproc-per-node 2"):
        find_device("auto", _Four())
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda number: None)
    assert find_device("cuda", _Four()) == torch.device("cuda:1")


def test_what_cannot_be_sharded_is_refused() -> None:
    for change, named in (({"optimizer": "muon"}, "muon"), ({"workers": 2}, "workers")):
        settings = load_recipe("smoke", {f"train.{key}": value for key, value in change.items()}).train
        with pytest.raises(SettingsError, match=rf"train\.sharding: full does not go with train\..*{named}"):
            check_sharding(settings)


def test_the_memory_of_a_rank_is_less(tmp_path: Path) -> None:
    recipe = load_recipe("smoke", TINY | {"train.sharding": "full"})
    config = _prepared(tmp_path).config
    one, four = (
        needed(recipe, config, 8, torch.float32, 1, on_cpu=True, ranks=ranks).memory
        for ranks in (ALONE, _Four())
    )
    assert four.optimizer < one.optimizer and four.activations < one.activations
    (limit, whose), (alone, _) = there_is(torch.device("cpu"), _Four()), there_is(torch.device("cpu"))
    assert limit < alone and "shared by 4 ranks" in whose


class _Store:
    """One store for the ranks of one process, and a rank 0 that has said something."""

    def __init__(self, **values: str) -> None:
        self.values = values

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def get(self, key: str) -> bytes:
        return self.values[key].encode()

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def add(self, key: str, amount: int) -> int:
        self.values[key] = str(int(self.values.get(key, "0")) + amount)
        return int(self.values[key])


def test_what_rank_0_says_is_heard() -> None:
    store = _Store()
    first, second = (Group(store, {"RANK": rank, "WORLD_SIZE": "2"}) for rank in "01")
    assert first.first(lambda: {"a": 1}) == second.first(lambda: {"b": 2}) == {"a": 1}

    def refuse() -> None:
        raise UsageError("no")

    store.set("last heard", "1")  # it does not wait for the other, who is the same thread here
    with pytest.raises(UsageError, match="no"):
        first.first(refuse)
    with pytest.raises(OtherRankError, match="rank 0: no") as caught:
        second.first(refuse)
    assert caught.value.exit_code == 2


# --- the guide --------------------------------------------------------------------------------------------


def test_every_torchrun_of_the_guide_is_one_that_torchrun_and_trifold_understand() -> None:
    """Also of the job files, for which there is no cluster here."""
    from torch.distributed.run import get_args_parser

    text = (Path(__file__).parents[2] / "docs" / "machines.md").read_text("utf-8")
    (job,) = (each for each in yaml.safe_load_all(_fenced(text, "yml")[0]) if each["kind"] == "Job")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    commands = [[*container["command"], *container["args"]]]
    for block in _fenced(text, "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if "torchrun" in words:
                words = words[words.index("torchrun") :]
                commands.append(words[: words.index("&")] if "&" in words else words)
    assert len(commands) == 7
    for _, *words in commands:
        known = get_args_parser().parse_args(_numbers(words))
        assert known.module and known.training_script == "trifold", words
        verb, recipe, *rest = known.training_script_args
        assert verb == "train"
        load_recipe(recipe, [word for word in rest if re.fullmatch(r"[a-z_.]+=.+", word)])


def _numbers(words: list[str]) -> list[str]:
    """With a number for every variable of the shell."""
    return [re.sub(r"\$\w+", "1", word) for word in words]


def _fenced(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)
