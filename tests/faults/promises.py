"""The promises, by name: what is promised, how it is tried, how often, and the row of the reliability goals.

Full figures are those of the goals. A trial of `kills` kills twice on average, one of `damage` makes a hundred
mutations, one of `power` tries every prefix.
"""

from __future__ import annotations

from tests.faults import damage, large, numbers, ranks, stops, texts
from tests.faults.harness import Promise

PROMISES: dict[str, Promise] = {
    "kills": Promise(
        "a killed run resumes, to the same bits, losing one save interval at most", stops.killed_runs_resume,
        6, 40, 500, "1, 2"),
    "chains": Promise(
        "stopped and resumed five times = never stopped, bit by bit", stops.chains_are_exact,
        22, 23, 115, "2"),
    "damage": Promise(
        "a changed byte or a cut file is refused by name (100 a trial)", damage.damage_is_refused,
        2, 10, 100, "3"),
    "fall-back": Promise(
        "the newest sound checkpoint is taken instead, with one warning", damage.falls_back_by_itself,
        3, 20, 100, "4"),
    "signals": Promise(
        "SIGTERM and SIGINT save in every phase, and say the line that goes on", stops.signals_save,
        7, 22, 220, "13"),
    "save-signal": Promise(
        "SIGUSR1 saves and the run goes on", stops.sigusr1_saves,
        1, 4, 50, "13"),
    "nonsense": Promise(
        "NaN and infinity never reach the weights", numbers.nonsense_stays_out,
        4, 20, 200, "10"),
    "full-disk": Promise(
        "a disk that refuses any write costs nothing that was saved", damage.full_disks_are_survived,
        8, 40, 320, "12"),
    "power": Promise(
        "a power cut behind any operation of a save leaves the old or the new", damage.power_cuts_are_survived,
        3, 3, 12, "14"),
    "behind": Promise(
        "saving behind is as durable, and a failure is told by the next step", stops.saving_behind_is_honest,
        2, 10, 100, "28"),
    "same-seed": Promise(
        "the same seed gives the same bits", stops.same_seed_same_run,
        1, 20, 100, "29"),
    "more-steps": Promise(
        "a finished run goes on, and says what becomes of its schedule", stops.finished_runs_go_on,
        1, 2, 10, "2"),
    "spikes": Promise(
        "a loss that leaps is left out or gone back from, resumed or not", numbers.spikes_are_governed,
        2, 6, 40, "34"),
    "changed-data": Promise(
        "data that changed between sessions is refused unless told", damage.changed_data_is_refused,
        1, 3, 20, ""),
    "aligned": Promise(
        "pairs stay pairs, whatever is in them, or are refused by file and line", texts.pairs_stay_aligned,
        24, 80, 800, "8"),
    "counts": Promise(
        "what is blank, doubled, odd or too long is counted as it is", texts.what_is_left_out_is_counted,
        12, 50, 500, "9"),
    "encodings": Promise(
        "odd encodings, in every kind of file, are read exactly or refused by place", texts.encodings_are_told,
        65, 65, 650, "32"),
    "large": Promise(
        "text of any size becomes tokens: no loss, no doubling, little memory", large.large_text_is_cached,
        1, 3, 20, "33"),
    "foreign": Promise(
        "a foreign or stale folder among the checkpoints is never deleted", damage.foreign_folders_stay,
        1, 2, 10, ""),
    "accumulation": Promise(
        "how a batch is cut changes the gradient by 1e-6 at most", numbers.accumulation_changes_nothing,
        3, 20, 200, "11"),
    "ranks": Promise(
        "2 to 4 processes, one killed or asked to stop, learn what one process learns", ranks.ranks_change_nothing,
        2, 4, 50, "11, 13, 16, 17"),
    "blind-rows": Promise(
        "attention to nothing is 0, with finite gradients", numbers.blind_rows_are_zero,
        60, 500, 10_000, "18"),
    "losses": Promise(
        "the loss is that of theory, whatever is smoothed or ignored", numbers.losses_match_theory,
        30, 200, 2000, "31"),
    "bf16-loss": Promise(
        "the loss in bf16 over 128k classes is within 1e-3", numbers.losses_in_bf16,
        1, 3, 20, "30"),
    "too-large": Promise(
        "a run that cannot fit is refused, with three settings to change", numbers.too_large_is_refused,
        1, 2, 10, "35"),
}  # fmt: skip
