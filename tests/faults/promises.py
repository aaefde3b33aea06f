"""The promises by name: statement, trial function, trials of the sample, numbers of trials (short,
full), reliability goals.

The sample has one trial of each kind that no other test of a resumed or interrupted run executes.
What it leaves out: other configurations of `chains` (beside `RESUMED_IN_SAMPLE`, with the tests that
resume them), a signal to one of two ranks (a planted bug, and tests/train/test_distributed.py) and
ranks that are killed (test_distributed.py). `full-disk` fails in three ways, each tried once.

A trial of `kills` kills twice on average, a trial of `damage` makes a hundred mutations, and a
trial of `power` tries every prefix."""

from __future__ import annotations

from tests.faults import damage, large, numbers, ranks, stops, texts
from tests.faults.harness import Promise
from tests.faults.runs import CONFIGS

# Left out: bf16, averaging, BPE-dropout, accumulating, clipped, weight decay, moving average, other
# optimizers (tests/train/test_loop.py); workers, windows and masked text
# (tests/objectives/test_runs.py); recomputed and compiled (test_blocks.py); async save and spikes
# (promises below). The parts of a model (gated, rotary) are named weights to a resumed run.
RESUMED_IN_SAMPLE = ("plain", "int8", "small batches", "causal, packed")
CHAINS = tuple(list(CONFIGS).index(name) for name in RESUMED_IN_SAMPLE)
KILLED_IN_SAMPLE = ("plain", "async save")  # which loses one interval more
KILLS = tuple(list(CONFIGS).index(name) for name in KILLED_IN_SAMPLE)

PROMISES: dict[str, Promise] = {
    "kills": Promise(
        "a killed run resumes to the same bits and loses at most one save interval", stops.killed_runs_resume,
        KILLS, 40, 500, "1, 2"),
    "chains": Promise(
        "a run interrupted and resumed twice, later five times, equals an uninterrupted one", stops.chains_are_exact,
        CHAINS, 23, 115, "2"),
    "damage": Promise(
        "a changed byte or a truncated file is rejected by name (100 per trial)", damage.damage_is_rejected,
        range(2), 10, 100, "3"),
    "fall-back": Promise(
        "the newest intact checkpoint is used, with one warning", damage.falls_back_by_itself,
        range(2), 20, 100, "4"),
    "signals": Promise(
        "SIGTERM and SIGINT save in every phase and print the command that continues", stops.signals_save,
        range(7), 22, 220, "13"),
    "save-signal": Promise(
        "SIGUSR1 saves and the run continues", stops.sigusr1_saves,
        (0,), 4, 50, "13"),
    "non-finite": Promise(
        "NaN and infinity never reach the weights", numbers.nonfinite_values_stay_out,
        range(4), 20, 200, "10"),
    "full-disk": Promise(
        "a failed write costs nothing that was saved", damage.full_disks_are_survived,
        (0, 1, 3), 40, 320, "12"),
    "power": Promise(
        "a power failure during a save leaves the old or the new checkpoint", damage.power_cuts_are_survived,
        range(3), 3, 12, "14"),
    "async-save": Promise(
        "saving in the background is as durable, and the next step reports a failure",
        stops.background_saves_are_durable,
        range(2), 10, 100, "28"),
    "same-seed": Promise(
        "the same seed gives the same bits", stops.same_seed_same_run,
        (0,), 20, 100, "29"),
    "more-steps": Promise(
        "a finished run continues and reports the effect on its schedule", stops.finished_runs_continue,
        (0,), 2, 10, "2"),
    "spikes": Promise(
        "a loss spike is skipped or rewound, resumed or not", numbers.spikes_are_handled,
        range(2), 6, 40, "34"),
    "changed-data": Promise(
        "data changed between sessions is rejected unless allowed", damage.changed_data_is_rejected,
        (0,), 3, 20, ""),
    "aligned": Promise(
        "pairs stay aligned or are rejected by file and line", texts.pairs_stay_aligned,
        range(24), 80, 800, "8"),
    "counts": Promise(
        "blank, duplicate, odd and overlong rows are counted correctly", texts.skipped_rows_are_counted,
        range(12), 50, 500, "9"),
    "encodings": Promise(
        "unusual encodings are read exactly or rejected by position", texts.encodings_are_read_or_rejected,
        range(65), 65, 650, "32"),
    "large": Promise(
        "text of any size becomes tokens without loss or duplication", large.large_text_is_cached,
        (0,), 3, 20, "33"),
    "foreign-folders": Promise(
        "a foreign or stale folder among the checkpoints is never deleted", damage.foreign_folders_stay,
        (0,), 2, 10, ""),
    "accumulation": Promise(
        "how a batch is split changes the gradient by at most 1e-6", numbers.accumulation_changes_nothing,
        range(3), 20, 200, "11"),
    "ranks": Promise(
        "2 to 4 processes, one of them killed or stopped, equal one process", ranks.ranks_change_nothing,
        (1,), 4, 50, "11, 13, 16, 17"),
    "masked-rows": Promise(
        "attention to nothing is 0, with finite gradients", numbers.fully_masked_rows_are_zero,
        range(60), 500, 10_000, "18"),
    "losses": Promise(
        "the loss equals the definition, with smoothing and ignored positions", numbers.losses_match_the_definition,
        range(30), 200, 2000, "31"),
    "bf16-loss": Promise(
        "the bf16 loss over 128,000 classes is within 1e-3", numbers.losses_in_bf16,
        (0,), 3, 20, "30"),
    "too-large": Promise(
        "a run that cannot fit is rejected, with three settings to change", numbers.oversized_runs_are_rejected,
        (0,), 2, 10, "35"),
}  # fmt: skip
