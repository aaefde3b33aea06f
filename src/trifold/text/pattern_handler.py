"""Run the patterns of a tokenizer in the sandbox process (see `trifold.sandbox`); imports nothing
of trifold.
"""

import json
from typing import Any

from tokenizers import Tokenizer

# A vocabulary of one token, because only the other parts have patterns.
MODEL = {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}

_built: dict[str, Tokenizer] = {}  # the last tokenizer


def answer(request: dict[str, Any]) -> dict[str, str]:
    """Encode the texts and decode the tokens: {}, or {"error": …} if that fails."""
    parts = request["parts"]
    try:
        if parts not in _built:
            _built.clear()
            _built[parts] = Tokenizer.from_str(json.dumps({"model": MODEL, **json.loads(parts)}))
        _built[parts].encode_special_tokens = not request["special"]
        for text in request["texts"]:
            _built[parts].encode(text)
        for row in request["tokens"]:
            _built[parts].decoder.decode(row)
    except BaseException as error:  # the library panics on some patterns, and prints that to stderr
        _built.clear()
        return {"error": str(error)[:200]}
    return {}
