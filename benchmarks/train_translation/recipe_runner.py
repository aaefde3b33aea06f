"""trifold with the recipe `multi30k-en-de`, including its BPE-dropout, learning rate, warm-up and
clipping.
"""

from __future__ import annotations

from measure import Clock, arguments, print_line
from trifold_runner import positions

from trifold import fast
from trifold.nn.packing import Packing
from trifold.recipe import load_recipe
from trifold.train.data import iterate_batches, load_data
from trifold.train.device import (
    Machine,
    choose_precision,
    choose_workers,
    find_device,
    keep_freed_memory,
)
from trifold.train.initial_weights import new_model
from trifold.train.monitor import View
from trifold.train.prefetch import prefetch
from trifold.train.trainer import Trainer

PRECISIONS = {"fp32": "float32", "bf16": "bfloat16"}


def main() -> None:
    args = arguments(__doc__)
    recipe = load_recipe("multi30k-en-de")
    fast.enable()
    keep_freed_memory()
    prepared = load_data(recipe, args.data / "recipe-tokenizer", View())
    device = find_device("cpu")
    workers = choose_workers(None, device, recipe.batch.tokens)
    trainer = Trainer(
        new_model(prepared),
        prepared.objective,
        recipe.train,
        Machine(device, choose_precision(PRECISIONS[args.precision], device), workers),
    )
    clock = Clock("trifold, as the recipe", args)
    for step, dealt in enumerate(prefetch(iterate_batches(prepared, workers)), start=1):
        shares = dealt.micro_batches
        update = trainer.update(shares, step)
        packings = [share.inputs.packing for share in shares]
        source_tokens = sum(packing.n_real for packing in packings if isinstance(packing, Packing))
        if not clock.step(
            loss=update.loss,
            source_tokens=source_tokens,
            target_tokens=update.tokens,
            positions=positions(shares),
        ):
            print_line(clock.line())
            return


if __name__ == "__main__":
    main()
