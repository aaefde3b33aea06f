"""Every family by its `model_type`, in the order in which they are asked whether a config fits."""

from trifold.hub.families import marian, native
from trifold.hub.family import Family

FAMILIES: dict[str, Family] = {family.model_type: family for family in (marian.FAMILY, native.FAMILY)}

__all__ = ["FAMILIES"]
