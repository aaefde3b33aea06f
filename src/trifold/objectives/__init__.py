"""What is learnt: one file a task, each read as rows -> example -> batch -> loss terms -> prediction -> scores."""

from trifold.objectives.terms import Term
from trifold.objectives.translate import Translate, TranslateSettings

__all__ = ["Term", "Translate", "TranslateSettings"]
