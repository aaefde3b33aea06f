"""trifold on the recipe itself, `multi30k-en-de`: its pieces and the merges that drop out, rate, warm-up, clipping."""

from __future__ import annotations

from measure import Clock, arguments, print_line
from trifold_runner import positions

from trifold import fast
from trifold.recipe import load_recipe
from trifold.train.dealing import ahead, deal
from trifold.train.device import (
    choose_precision,
    choose_workers,
    find_device,
    keep_freed_memory,
    undisturbed,
)
from trifold.train.learner import Learner
from trifold.train.setup import prepare
from trifold.train.view import Silent

PRECISIONS = {"fp32": "float32", "bf16": "bfloat16"}


def main() -> None:
    args = arguments(__doc__)
    recipe = load_recipe("multi30k-en-de")
    fast.enable()
    keep_freed_memory()
    prepared = prepare(recipe, args.data / "recipe-tokenizer", Silent())
    device = find_device("cpu")
    workers = choose_workers(None, device, recipe.batch.tokens)
    learner = Learner(
        prepared.new_model(),
        prepared.task,
        recipe.train,
        seed=recipe.train.seed,
        device=device,
        dtype=choose_precision(PRECISIONS[args.precision], device),
        workers=workers,
    )
    clock = Clock("trifold, as the recipe", args)
    with undisturbed(workers):
        for step, dealt in enumerate(ahead(deal(prepared, workers)), start=1):
            shares = dealt.shares
            update = learner.update(shares, step)
            packings = [share.source.packing for share in shares]
            source_tokens = sum(packing.real for packing in packings if packing is not None)
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
