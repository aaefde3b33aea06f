"""generation_config.json and our generation settings, which have the same names where they mean the same.

Where a key is absent, the reference's default and ours may differ; what is written and read is therefore made
explicit wherever that matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trifold.errors import CheckpointError
from trifold.nn import ModelConfig

# Ours -> theirs is the identity for these. The last two are ours alone: the reference keeps and ignores them.
SHARED = (
    "max_new_tokens",
    "min_new_tokens",
    "num_beams",
    "num_return_sequences",
    "length_penalty",
    "early_stopping",
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "length_penalty_form",
    "seed",
)
LENGTHS = {"max_length": "max_new_tokens", "min_length": "min_new_tokens"}
SAMPLING = ("temperature", "top_k", "top_p", "min_p")
OFF_AT_ZERO = ("top_k", "no_repeat_ngram_size")
TOP_K = 50  # what the reference takes when it samples and nobody says

# Theirs -> the values under which it changes nothing, besides null; None: whatever it holds.
HARMLESS: dict[str, tuple[object, ...] | None] = {
    "transformers_version": None,
    "_from_model_config": None,
    "use_cache": None,
    "return_dict_in_generate": None,
    "output_attentions": None,
    "output_hidden_states": None,
    "output_scores": None,
    "output_logits": None,
    "renormalize_logits": None,  # they are log-probabilities here
    "remove_invalid_values": None,
    "forced_eos_token_id": None,  # ends a text that was cut off; we say `finish_reason: length`
    "num_beam_groups": (1,),
    "diversity_penalty": (0.0,),
    "typical_p": (1.0,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "guidance_scale": (1.0,),
    "is_assistant": (False,),
    "token_healing": (False,),
}

IDS = {
    "pad_token_id": "pad_id",
    "bos_token_id": "bos_id",
    "eos_token_id": "eos_id",
    "decoder_start_token_id": "start_id",
}
FORBIDDEN = "bad_words_ids"  # Marian's files forbid the padding, which is never generated here

# Old folders hold these in config.json.
GENERATION_KEYS = frozenset({*SHARED, *LENGTHS, *HARMLESS, FORBIDDEN})


def write_generation(config: ModelConfig, ours: Mapping[str, object]) -> dict[str, object]:
    """generation_config.json from our settings (their values may be None) and the model's special ids."""
    unknown = set(ours) - set(SHARED)
    assert not unknown, f"not generation settings: {unknown}"
    given = {key: value for key, value in ours.items() if value is not None}
    if given.get("num_beams", 1) != 1:
        given.setdefault("early_stopping", True)
    if any(key in given for key in SAMPLING):
        given.setdefault("do_sample", True)
    if given.get("do_sample"):
        given.setdefault("top_k", 0)
    if "max_new_tokens" not in given:
        # Left alone, the reference would stop after 20 tokens. The null brings our own default back.
        given |= {"max_new_tokens": None, "max_length": config.max_positions}
    ids = {theirs: getattr(config, ours) for theirs, ours in IDS.items()}
    if config.shape != "encoder-decoder":
        del ids["decoder_start_token_id"]
    return given | ids


def read_generation(config: ModelConfig, theirs: Mapping[str, Any], place: str) -> dict[str, object]:
    """Our settings from a generation_config.json.

    Raises CheckpointError for a key that would change the text and that we cannot follow, and for an id that
    contradicts config.json.
    """
    given = {key: value for key, value in theirs.items() if value is not None}
    for key, value in given.items():
        _check(config, key, value, place)
    ours: dict[str, object] = {key: given[key] for key in SHARED if key in given}
    if config.shape == "encoder-decoder":  # elsewhere it counts the prompt too, which only the call knows
        for length, new in LENGTHS.items():
            if length in given and new not in theirs:
                ours[new] = max(given[length] - 1, 0)  # the start token counts as theirs, not as ours
    if ours.get("num_beams", 1) != 1:
        ours.setdefault("early_stopping", False)
    if not ours.get("do_sample"):
        ours = {key: value for key, value in ours.items() if key not in SAMPLING}  # there they say nothing
    elif "top_k" not in ours:
        ours["top_k"] = TOP_K
    for key in OFF_AT_ZERO:
        if ours.get(key) == 0:
            del ours[key]
    return ours


def _check(config: ModelConfig, key: str, value: object, place: str) -> None:
    if key in IDS:
        mine = getattr(config, IDS[key])
        if value != mine and (key != "decoder_start_token_id" or config.shape == "encoder-decoder"):
            raise CheckpointError(f"{place}: {key}: {value!r} contradicts config.json, which says {mine}")
    elif key == FORBIDDEN:
        if value != [[config.pad_id]]:
            raise CheckpointError(f"{place}: {key}: words cannot be forbidden yet; remove the key")
    elif key in HARMLESS:
        allowed = HARMLESS[key]
        if allowed is not None and value not in allowed:
            raise CheckpointError(f"{place}: {key}: {value!r} is not supported; remove the key")
    elif key == "early_stopping":
        if not isinstance(value, bool) and value != "never":
            raise CheckpointError(f"{place}: {key}: {value!r} is not true, false or never")
    elif key in LENGTHS:
        if not isinstance(value, int) or isinstance(value, bool):
            raise CheckpointError(f"{place}: {key}: {value!r} is not a number of tokens")
    elif key not in SHARED:
        raise CheckpointError(f"{place}: {key}: this key is not known; remove it")
