"""The table of all constructions, in the order in which a book would teach them."""

from __future__ import annotations

from tools.phrasebook import deeds, states
from tools.phrasebook.sayings import Construction

TABLE: list[Construction] = [
    *states.LIKING,
    *deeds.HABITS,
    *deeds.NOW,
    *deeds.PAST,
    *deeds.FUTURE,
    *deeds.MODALS,
    *states.BEING,
    *states.HAVING,
    *states.PLACES,
    *deeds.PRONOUNS_AS_OBJECTS,
    *deeds.ORDERS,
    *deeds.FRIENDLY,
]
