from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal, Self, get_args

import pytest
from pydantic import Field, ValidationError, model_validator

import trifold.hub
import trifold.recipe  # noqa: F401 (the modules that define settings)
from trifold.errors import SettingsError
from trifold.objectives import KINDS, settings_class
from trifold.settings import Conflict, Settings, nearest


class Wheel(Settings):
    size: int = Field(10, gt=0)
    material: Literal["wood", "steel"] = "wood"
    names: str | list[str] | None = None


class Cart(Settings):
    load: float = 1.0
    wheel: Wheel = Wheel()
    spare: Wheel | None = None
    owner: str
    slope: float = Field(1.0, ge=1e-30, le=1e30)

    @model_validator(mode="after")
    def _carries(self) -> Self:
        if self.load > self.wheel.size:
            raise ValueError(f"load {self.load} is too much for a wheel of {self.wheel.size}")
        return self


GOOD = {"owner": "me"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "cart.owner: a value is required"),
        (GOOD | {"laod": 2.0}, "cart.laod: unknown key; did you mean 'load'?"),
        (
            GOOD | {"zzz": 2.0},
            "cart.zzz: unknown key; known keys: load, owner, slope, spare, wheel",
        ),
        (GOOD | {"wheel": {"sise": 3}}, "cart.wheel.sise: unknown key; did you mean 'size'?"),
        (
            GOOD | {"spare": {"matrial": 3}},
            "cart.spare.matrial: unknown key; did you mean 'material'?",
        ),
        (
            GOOD | {"wheel": {"size": "3"}},
            "cart.wheel.size: input should be a valid integer, got '3'",
        ),
        (GOOD | {"wheel": {"size": -1}}, "cart.wheel.size: input should be greater than 0, got -1"),
        (
            GOOD | {"wheel": {"material": "tin"}},
            "cart.wheel.material: input should be 'wood' or 'steel', got 'tin'",
        ),
        (GOOD | {"wheel": {"names": 5}}, "cart.wheel.names: input should be a valid string, got 5"),
        (
            {"owner": "m\ud800"},
            "cart.owner: 'm\\ud800' contains U+D800, an unpaired surrogate; remove it, or write the whole character",
        ),
        (
            GOOD | {"slope": 1e-31},
            "cart.slope: input should be greater than or equal to 1e-30, got 1e-31",
        ),
        (
            GOOD | {"slope": 1e31},
            "cart.slope: input should be less than or equal to 1e+30, got 1e+31",
        ),
        (GOOD | {"load": 99.0}, "cart: load 99.0 is too much for a wheel of 10"),
        (GOOD | {"load": True}, "cart.load: input should be a valid number, got True"),
    ],
)
def test_an_error_names_key_value_and_remedy(values, message):
    with pytest.raises(SettingsError) as caught:
        Cart.parse(values, at="cart")
    assert str(caught.value) == message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "owner: a value is required"),
        (GOOD | {"wheel": {"sise": 3}}, "wheel.sise: unknown key; did you mean 'size'?"),
        (GOOD | {"load": 99.0}, "load 99.0 is too much for a wheel of 10"),
    ],
)
def test_arguments_are_described_as_values_of_a_recipe(values, message):
    with pytest.raises(SettingsError) as caught:
        Cart(**values)
    assert str(caught.value) == message
    assert Cart(**GOOD, wheel={"size": 3}).wheel == Wheel(size=3)


class Engine(Settings):
    fuel: Literal["wood", "oil", "none"] = "wood"
    boiler: int = 0
    tank: int = 0
    grate: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.fuel != "wood" and self.grate:
            raise Conflict(f"fuel: {self.fuel} excludes grate", {"grate": False})
        if self.boiler and self.tank:
            raise Conflict("boiler and tank exclude each other", {"tank": 0, "boiler": 0})
        if self.fuel == "none":
            raise ValueError("an engine burns something")
        return self


@pytest.mark.parametrize(
    ("values", "chosen", "settled", "line"),
    [
        (
            {"fuel": "oil", "grate": True},
            ["fuel"],
            {"fuel": "oil", "grate": False},
            "fuel: oil excludes grate; the default gives way: engine.grate=false",
        ),
        (
            {"boiler": 1, "tank": 2},
            ["tank"],
            {"boiler": 0, "tank": 2},
            "boiler and tank exclude each other; the default gives way: engine.boiler=0",
        ),
        ({"fuel": "oil", "grate": True}, ["fuel", "grate"], None, ""),
        ({"boiler": 1, "tank": 2}, ["boiler", "tank"], None, ""),
        ({"boiler": 1}, [], None, ""),
        ({"fuel": "none"}, ["fuel"], None, ""),
        ({"fuel": "oil", "grate": True, "boiler": "x"}, ["fuel"], None, ""),
    ],
)
def test_a_default_gives_way_to_what_excludes_it(values, chosen, settled, line):
    before = dict(values)
    assert list(Engine.settle(values, chosen, "engine")) == ([line] if line else [])
    assert values == (settled or before)


def test_a_conflict_names_its_ways():
    for values, ways in (
        ({"fuel": "oil", "grate": True}, "set grate: false"),
        ({"boiler": 1, "tank": 2}, "set tank: 0 or boiler: 0"),
    ):
        with pytest.raises(SettingsError, match=f"; {ways}$"):
            Engine(**values)


def test_every_wrong_key_has_a_line():
    with pytest.raises(SettingsError) as caught:
        Cart.parse({"load": "heavy", "wheel": {"size": 0, "sise": 1}})
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == [
        "load", "wheel.size", "wheel.sise", "owner",
    ]  # fmt: skip


def test_only_integers_convert_to_floats():
    assert Cart.parse(GOOD | {"load": 2}).load == 2.0
    with pytest.raises(SettingsError):
        Cart.parse({"owner": 7})


def all_floats(cls: type[Settings] = Settings) -> Iterator[tuple[type[Settings], str]]:
    """Every setting of a number that is not an integer, in all classes."""
    for member in cls.__subclasses__():
        for key, field in member.model_fields.items():
            if contains_float(field.annotation):
                yield member, key
        yield from all_floats(member)


def contains_float(annotation: Any) -> bool:
    return annotation is float or any(map(contains_float, get_args(annotation)))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_every_number_is_finite(value: float) -> None:
    for kind in KINDS:
        settings_class(kind)  # imports its module
    accepted = [(cls.__name__, key) for cls, key in all_floats() if not rejects(cls, key, value)]
    assert accepted == []
    assert len(list(all_floats())) > 50


def rejects(cls: type[Settings], key: str, value: Any) -> bool:
    with pytest.raises(SettingsError) as caught:
        cls.parse({key: value})
    return any(
        line.startswith(f"{key}: ") and line.endswith(f", got {value}")
        for line in str(caught.value).splitlines()
    )


def test_settings_are_immutable():
    cart = Cart.parse(GOOD)
    with pytest.raises(ValidationError):
        cart.load = 2.0  # type: ignore[misc]


def test_nearest_shows_one_or_all_names():
    assert nearest("trian", ["train", "valid"]) == "; did you mean 'train'?"
    assert nearest("xyz", ["train", "valid"], "splits") == "; known splits: train, valid"


# --- one of several kinds -------------------------------------------------------------------------


class Horse(Settings):
    kind: Literal["horse"] = "horse"
    hooves: int = Field(4, gt=0)


class Motor(Settings):
    kind: Literal["motor"] = "motor"
    fuel: Literal["petrol", "wood"] = "wood"


class Carriage(Settings):
    drawn_by: Horse | Motor = Field(Horse(), discriminator="kind")
    hooves: int = 0


class Convoy(Settings):
    first: Carriage = Carriage()


def test_an_unknown_kind_in_a_nested_group_gets_a_suggestion() -> None:
    with pytest.raises(
        SettingsError, match=r"first\.drawn_by: kind 'hrose' is not known; did you mean 'horse'"
    ):
        Convoy.parse({"first": {"drawn_by": {"kind": "hrose"}}})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "hrose"}, "drawn_by: kind 'hrose' is not known; did you mean 'horse'?"),
        ({"kind": "tx"}, "drawn_by: kind 'tx' is not known; known kinds: horse, motor"),
        ({"kind": "motor", "fule": "wood"}, "drawn_by.fule: unknown key; did you mean 'fuel'?"),
        ({"kind": "horse", "hooves": 0}, "drawn_by.hooves: input should be greater than 0, got 0"),
        ({"kind": "motor", "hooves": 4}, "drawn_by.hooves: unknown key; known keys: fuel, kind"),
        (
            {"kind": "motor", "fuel": "hay"},
            "drawn_by.fuel: input should be 'petrol' or 'wood', got 'hay'",
        ),
        (5, "drawn_by: a group of keys is required, got 5"),
    ],
)
def test_an_error_in_a_union_names_the_key_as_written(values, message):
    with pytest.raises(SettingsError) as caught:
        Carriage.parse({"drawn_by": values})
    assert str(caught.value) == message


def test_the_kind_selects_the_class():
    assert Carriage.parse({"drawn_by": {"kind": "motor"}}).drawn_by == Motor()
    assert Carriage.parse({}).drawn_by == Horse()
