"""Training: the loop, optimizers, schedules, precision, distribution, checkpoints, validation.

In reading order:

    loop            `train` and `resume`; the loop: update, log, validate, save
    trainer         one update: forward, backward, clip, optimizer step
    schedules       the learning rate of a step
    master_weights  the fp32 vector that the optimizer changes
    flat_weights    the weights of a model that a rank has completely
    sharding        the weights of a model whose parts are on several ranks
    optimizers      the table of optimizers: adam, adafactor, muon, sgd
    moving_average  the average of the weights
    rejected        which updates are rejected
    recovery        what follows a rejected update
    validate        measures the weights and keeps the best

What precedes the first step:

    preparation     opens the folder, reads the data, creates the model, loads the checkpoint
    data            from a recipe to batches from any position
    sizing          positions, batches and steps for the counted tokens
    time_limit      the steps that fit into `train.minutes`
    duration        the expected time
    initial_weights random weights, or those of `start_from`, with adapters
    parameters      which parameters are trained, and their rates
    blocks          recomputation and compilation of the blocks
    device          what a run computes with, and its versions
    memory          whether a run fits into memory
    stages          a recipe with a first stage
    folds           runs on parts of the rows that choose the steps of a run on all
    held_out        what a fold predicts for the rows that it has not seen
    fold_scores     the scores of all folds together

The files of a run, and continuing it:

    run_folder      the files of a run
    checkpoint      the training state on disk
    resume          what may have changed when a run is continued, and what must not
    data_files      whether the data files have changed
    monitor         what is shown
    metrics         what is measured and logged
    advice          what a weak result means, and what to try

Processes and threads:

    ranks           a single process, and the interface of several
    launch          chooses between the two
    distributed     the processes that `torchrun` starts
    signals         requests to stop and to save
    prefetch        batches are built in a thread

Scaling studies, which are many runs: study, power_law
"""

from trifold.train.loop import train
from trifold.train.monitor import Outcome, View

__all__ = ["Outcome", "View", "train"]
