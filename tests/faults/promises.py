"""The promises by name: statement, trial function, numbers of trials (sample, short, full),
reliability goals.

A trial of `kills` kills twice on average, a trial of `damage` makes a hundred mutations, and a
trial of `power` tries every prefix."""

from __future__ import annotations

from tests.faults import damage, large, numbers, ranks, stops, texts
from tests.faults.harness import Promise

PROMISES: dict[str, Promise] = {
    "kills": Promise(
        "a killed run resumes to the same bits and loses at most one save interval", stops.killed_runs_resume,
        3, 40, 500, "1, 2"),
    "chains": Promise(
        "a run interrupted and resumed twice, later five times, equals an uninterrupted one", stops.chains_are_exact,
        22, 23, 115, "2"),
    "damage": Promise(
        "a changed byte or a truncated file is rejected by name (100 per trial)", damage.damage_is_rejected,
        2, 10, 100, "3"),
    "fall-back": Promise(
        "the newest intact checkpoint is used, with one warning", damage.falls_back_by_itself,
        2, 20, 100, "4"),
    "signals": Promise(
        "SIGTERM and SIGINT save in every phase and print the command that continues", stops.signals_save,
        7, 22, 220, "13"),
    "save-signal": Promise(
        "SIGUSR1 saves and the run continues", stops.sigusr1_saves,
        1, 4, 50, "13"),
    "non-finite": Promise(
        "NaN and infinity never reach the weights", numbers.nonfinite_values_stay_out,
        4, 20, 200, "10"),
    "full-disk": Promise(
        "a failed write costs nothing that was saved", damage.full_disks_are_survived,
        4, 40, 320, "12"),
    "power": Promise(
        "a power failure during a save leaves the old or the new checkpoint", damage.power_cuts_are_survived,
        3, 3, 12, "14"),
    "async-save": Promise(
        "saving in the background is as durable, and the next step reports a failure",
        stops.background_saves_are_durable,
        2, 10, 100, "28"),
    "same-seed": Promise(
        "the same seed gives the same bits", stops.same_seed_same_run,
        1, 20, 100, "29"),
    "more-steps": Promise(
        "a finished run continues and reports the effect on its schedule", stops.finished_runs_continue,
        1, 2, 10, "2"),
    "spikes": Promise(
        "a loss spike is skipped or rewound, resumed or not", numbers.spikes_are_handled,
        2, 6, 40, "34"),
    "changed-data": Promise(
        "data changed between sessions is rejected unless allowed", damage.changed_data_is_rejected,
        1, 3, 20, ""),
    "aligned": Promise(
        "pairs stay aligned or are rejected by file and line", texts.pairs_stay_aligned,
        24, 80, 800, "8"),
    "counts": Promise(
        "blank, duplicate, odd and overlong rows are counted correctly", texts.skipped_rows_are_counted,
        12, 50, 500, "9"),
    "encodings": Promise(
        "unusual encodings are read exactly or rejected by position", texts.encodings_are_read_or_rejected,
        65, 65, 650, "32"),
    "large": Promise(
        "text of any size becomes tokens without loss or duplication", large.large_text_is_cached,
        1, 3, 20, "33"),
    "foreign-folders": Promise(
        "a foreign or stale folder among the checkpoints is never deleted", damage.foreign_folders_stay,
        1, 2, 10, ""),
    "accumulation": Promise(
        "how a batch is split changes the gradient by at most 1e-6", numbers.accumulation_changes_nothing,
        3, 20, 200, "11"),
    "ranks": Promise(
        "2 to 4 processes, one of them killed or stopped, equal one process", ranks.ranks_change_nothing,
        2, 4, 50, "11, 13, 16, 17"),
    "masked-rows": Promise(
        "attention to nothing is 0, with finite gradients", numbers.fully_masked_rows_are_zero,
        60, 500, 10_000, "18"),
    "losses": Promise(
        "the loss equals the definition, with smoothing and ignored positions", numbers.losses_match_the_definition,
        30, 200, 2000, "31"),
    "bf16-loss": Promise(
        "the bf16 loss over 128,000 classes is within 1e-3", numbers.losses_in_bf16,
        1, 3, 20, "30"),
    "too-large": Promise(
        "a run that cannot fit is rejected, with three settings to change", numbers.oversized_runs_are_rejected,
        1, 2, 10, "35"),
}  # fmt: skip
