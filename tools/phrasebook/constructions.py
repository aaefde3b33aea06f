"""All constructions, in the order in which a textbook introduces them."""

from __future__ import annotations

from tools.phrasebook import actions, states
from tools.phrasebook.phrases import Construction

TABLE: list[Construction] = [
    *states.LIKING,
    *actions.HABITS,
    *actions.NOW,
    *actions.PAST,
    *actions.FUTURE,
    *actions.MODALS,
    *states.BEING,
    *states.HAVING,
    *states.PLACES,
    *actions.PRONOUNS_AS_OBJECTS,
    *actions.ORDERS,
    *actions.FRIENDLY,
]
