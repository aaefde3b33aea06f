"""`trifold show MODEL --positions`: what each scheme of positions adds, and the linear relation of
sinusoids.
"""

from __future__ import annotations

from math import tau
from typing import TYPE_CHECKING, Any

from trifold.cli.terminal import print_json, print_table
from trifold.errors import wrapped

if TYPE_CHECKING:
    from trifold.look.schemes import Relation, Scheme
    from trifold.nn.variants import ModelConfig

OFFSETS = (1, 2, 10, 100)
SHOWN = 4  # waves of the table
MOST_POSITIONS = 4096  # at which the relation is measured


def show_positions(name: str, config: ModelConfig, *, as_json: bool) -> None:
    """Print the parameters of each scheme in a model of these sizes, and the relation of its
    sinusoids, or of those of 2017.
    """
    from trifold.look.schemes import check_relation, kind_of, schemes

    found = [*schemes(config)]
    width = config.sum_width
    kind = kind_of(config)
    positions = min(config.max_positions, MOST_POSITIONS)
    # A width that is odd has no pairs of waves.
    offsets = OFFSETS if width % 2 == 0 else ()
    relations = [check_relation(offset, positions, width, kind) for offset in offsets]
    if as_json:
        print_json(
            name=name,
            positions=config.positions,
            schemes=[scheme._asdict() for scheme in found],
            sinusoids={
                "kind": kind,
                "width": width,
                "positions": positions,
                "relations": [relation._asdict() for relation in relations],
            },
        )
        return
    _print_schemes(name, config, found)
    if relations:
        _print_relation(kind, width, positions, relations)


def _print_schemes(name: str, config: ModelConfig, found: list[Scheme]) -> None:
    from trifold.costs import legend

    print(f"{name}: positions {config.positions}; a model of its sizes with each scheme\n")
    rows = []
    for scheme in found:
        label = f"{scheme.name} *" if scheme.own else scheme.name
        parameters = f"{scheme.parameters:,}"
        if scheme.problem:
            parameters = "–"
        rows.append((label, parameters, scheme.formula, scheme.problem or scheme.description))
    print_table([("scheme", "parameters", "formula", "description"), *rows], " r")
    letters = legend(scheme.formula for scheme in found)
    print(f"\n{wrapped(f'* that of this model; {letters}')}")


def _print_relation(kind: str, width: int, positions: int, relations: list[Relation]) -> None:
    from trifold.nn.positions import wave_frequencies

    frequencies = wave_frequencies(width, kind)
    print(f"\n{kind} positions: PE(p + k) = M(k)·PE(p), which turns (sin, cos) by kω\n")
    rows: list[Any] = [
        (
            str(number),
            f"{frequency:.6f}",
            f"{tau / frequency:,.2f}",
            f"{angle.cos():.4f} {angle.sin():.4f}",
            f"{-angle.sin():.4f} {angle.cos():.4f}",
        )
        for number, (frequency, angle) in enumerate(
            zip(frequencies.tolist(), frequencies, strict=True), start=1
        )
    ]
    if len(rows) > SHOWN:
        rows = [*rows[: SHOWN - 1], ("…", "", "", "", ""), rows[-1]]
    heading = ("pair", "ω", "wavelength", "M(1): new sine", "new cosine")
    print_table([heading, *rows], "rrrrr")
    errors = ", ".join(f"{one.error:.0e} (k = {one.offset})" for one in relations)
    checked = f"largest difference at {positions:,} positions in float64: {errors}"
    print(f"\n{wrapped(checked)}")
