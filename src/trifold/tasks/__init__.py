"""What is learnt: one file a task, each read as rows -> example -> batch -> loss terms -> prediction -> scores."""

from trifold.tasks.terms import Term
from trifold.tasks.translate import Translate, TranslateSettings

__all__ = ["Term", "Translate", "TranslateSettings"]
