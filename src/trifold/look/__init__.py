"""See inside a model: what it attends to, how it is built, what it costs."""

from trifold.look.seen import Seen, seen

__all__ = ["Seen", "seen"]
