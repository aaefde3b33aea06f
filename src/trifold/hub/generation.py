"""Convert between generation_config.json and our generation settings, which share most names.

The default of `transformers` for an absent key may differ from ours; such defaults are written and
read explicitly.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from trifold.errors import CheckpointError, SettingsError
from trifold.generation_config import LOOKUP, SAMPLING, GenerationConfig
from trifold.hub.files import naming
from trifold.hub.unknown_keys import UnknownKeys, reference_keys, warn_of_ignored
from trifold.nn import ModelConfig

# Keys with the same name and meaning in both; some are ours only, and `transformers` ignores them.
SHARED = tuple(GenerationConfig.model_fields)
LENGTHS = {"max_length": "max_new_tokens", "min_length": "min_new_tokens"}
# Values without effect; they are neither written nor kept.
OFF: dict[str, object] = {
    "top_k": 0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
    "typical_p": 1.0,
    "penalty_alpha": 0.0,
    "diversity_penalty": 0.0,
    "num_beam_groups": 1,
    "min_length": 0,
    "top_k_form": "proportional",
    "num_assistant_tokens": 5,
    "early_stopping": False,
    "renormalize_logits": False,
}
TOP_K = 50  # default of `transformers` for sampling

# Keys that do not change the text.
HARMLESS = """
    transformers_version _from_model_config use_cache return_dict_in_generate output_attentions
    output_hidden_states output_scores output_logits remove_invalid_values cache_implementation
    low_memory num_assistant_tokens_schedule assistant_confidence_threshold assistant_lookbehind
    target_lookbehind cache_config disable_compile return_legacy_cache assistant_early_exit
    compile_config continuous_batching_config max_cache_len speculation_type use_mtp
""".split()
# Keys that are not supported -> the value without effect, and what to use instead, if anything.
# `transformers` reads those of sampling only if it samples.
UNSUPPORTED: dict[str, tuple[object, str]] = {
    "assistant_ensemble_weight": (None, ""),
    "constraints": (None, "name the phrases in force_words_ids"),
    "custom_generate": (None, "it names Python code, which is never run"),
    "dola_layers": (None, ""),
    "encoder_repetition_penalty": (1.0, ""),
    "epsilon_cutoff": (0.0, "min_p cuts off unlikely tokens, too"),
    "eta_cutoff": (0.0, "min_p cuts off unlikely tokens, too"),
    "exponential_decay_length_penalty": (None, "length_penalty favours shorter outputs of beams"),
    "forced_decoder_ids": ([], "forced_bos_token_id forces the first token"),
    "guidance_scale": (1.0, ""),
    "is_assistant": (False, ""),
    "max_time": (None, "max_new_tokens limits the length"),
    "sequence_bias": (None, "bad_words_ids forbids phrases"),
    "token_healing": (False, ""),
    "top_h": (None, "top_p and min_p select likely tokens, too"),
    "watermarking_config": (None, ""),
}
SAMPLED = ("epsilon_cutoff", "eta_cutoff", "top_h")
SUPPRESSED = ("suppress_tokens", "begin_suppress_tokens")

# Largest values that a file may set, beyond any in use; arguments may be larger. Of lists: all ids
# or characters.
SEARCH = ("num_beams", "num_return_sequences", "num_assistant_tokens", *LOOKUP)
TOKENS = (
    "eos_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "bad_words_ids",
    "force_words_ids",
)
LISTS = (*TOKENS, *SUPPRESSED, "stop_strings", "bad_words", "force_words", "prompt")
MAX_VALUES = dict.fromkeys(SEARCH, 1_000) | dict.fromkeys(LISTS, 10_000) | {"num_beam_groups": 100}
# Each step of a search compares every beam with every phrase that must appear.
MAX_VALUES |= dict.fromkeys(("force_words", "force_words_ids"), 500)
MAX_LENGTHS = ("max_new_tokens", "max_length")
MAX_VALUES |= dict.fromkeys(MAX_LENGTHS, 2**17)
# Tokens of all outputs of a text that a search follows at once, if it follows several.
MAX_SEARCH = 2**18
SEVERAL = ("num_beams", "num_return_sequences", "top_k")

IDS = {"pad_token_id": "pad_id", "bos_token_id": "bos_id", "decoder_start_token_id": "start_id"}
END = "eos_token_id"  # may be several, or differ from config.json; generation uses this one
# We forbid the padding token by default; `transformers` does so only if this key lists it, as in
# Marian's files.
FORBIDDEN = "bad_words_ids"

KNOWN = frozenset({*SHARED, *HARMLESS, *UNSUPPORTED, *IDS})
# Old folders have these keys in config.json.
GENERATION_KEYS = KNOWN - {END, *IDS}


def write_generation(config: ModelConfig, ours: Mapping[str, object]) -> dict[str, object]:
    """The content of generation_config.json for our settings (values may be None) and the model's
    special ids.
    """
    unknown = set(ours) - set(SHARED)
    assert not unknown, f"not generation settings: {unknown}"
    given = {
        key: value for key, value in ours.items() if value is not None and value != OFF.get(key)
    }
    if "penalty_alpha" in given:
        given.setdefault("do_sample", False)
    elif any(key in given for key in SAMPLING):
        given.setdefault("do_sample", True)
    if given.get("do_sample"):
        given.setdefault("top_k", 0)
    if not LENGTHS.keys() & given.keys() and "max_new_tokens" not in given:
        # By default `transformers` would stop after 20 tokens. The null restores our default when
        # read.
        given |= {
            "max_new_tokens": None,
            "max_length": min(config.max_positions, MAX_VALUES["max_length"]),
        }
    if FORBIDDEN not in given and config.pad_id != config.eos_id:
        given[FORBIDDEN] = [[config.pad_id]]
    elif given.get(FORBIDDEN) == []:
        del given[FORBIDDEN]
    ids = {key: getattr(config, field) for key, field in IDS.items()} | {END: config.eos_id}
    if config.eos_id >= config.output_vocab_size:  # there is no end token
        ids[END] = None
    if config.shape != "encoder-decoder":
        del ids["decoder_start_token_id"]
    return ids | given


def read_generation(
    config: ModelConfig, theirs: Mapping[str, Any], place: str
) -> dict[str, object]:
    """Our settings for the content of a generation_config.json.

    Warns of keys that nothing reads, which are ignored. Raises CheckpointError for an unsupported
    key that would change the text, and for an id that contradicts config.json.
    """
    given = {key: value for key, value in theirs.items() if value is not None}
    _check_keys(config, theirs, given, place)
    ours = {key: given[key] for key in SHARED if key in given and _has_effect(key, given[key])}
    for length, new in LENGTHS.items():
        if new in theirs:  # takes precedence, as in `transformers`, even if it is null
            ours.pop(length, None)
    _drop_tokens_of_config(ours, config)
    for key in SUPPRESSED:
        _drop_missing_tokens(ours, key, config.output_vocab_size)
    if isinstance(ours.get("stop_strings"), str):
        ours["stop_strings"] = [ours["stop_strings"]]
    if "prompt_lookup_num_tokens" not in ours:
        ours.pop("max_matching_ngram_size", None)
    if ours.get("cache") == "static":  # may be large; a small cache is static by default
        del ours["cache"]
    uses_top_k = _drop_unused_sampling(ours)
    if uses_top_k and "top_k" not in given:
        ours["top_k"] = TOP_K
    with naming(place):
        check_limits(ours)
    return ours


def _check_keys(
    config: ModelConfig, theirs: Mapping[str, Any], given: Mapping[str, Any], place: str
) -> None:
    """Check the values of known keys, and sort the others by what the reference reads. given: the
    keys of `theirs` that are not null.
    """
    unknown = UnknownKeys()
    for key, value in given.items():
        if key in KNOWN:
            _check(config, key, value, place, bool(given.get("do_sample")))
        else:
            unknown.add(key, value, reference_keys().generation.get(key))
    with naming(place):
        unknown.check()
    missing = [key for key in SHARED if key not in theirs]
    warn_of_ignored(place, unknown, missing, theirs.get("transformers_version"))


def _has_effect(key: str, value: object) -> bool:
    """Whether a value differs from the one without effect. True, which equals the number 1, is kept
    for the check of types.
    """
    return value is True or value != OFF.get(key)


def _drop_tokens_of_config(ours: dict[str, Any], config: ModelConfig) -> None:
    """Remove an end token and a forbidden token that are the defaults for this config."""
    if ours.get(END) in (config.eos_id, [config.eos_id]):
        del ours[END]
    if ours.setdefault(FORBIDDEN, []) == [[config.pad_id]]:
        del ours[FORBIDDEN]


def _drop_missing_tokens(ours: dict[str, Any], key: str, size: int) -> None:
    """Remove the ids of a list that are no tokens: they need not be forbidden."""
    ids = ours.get(key)
    if not isinstance(ids, list) or not all(type(id) is int for id in ids):
        return  # the types of the settings are checked later
    ours[key] = [id for id in ids if 0 <= id < size]
    if not ours[key]:
        del ours[key]


def _drop_unused_sampling(ours: dict[str, Any]) -> bool:
    """Remove the settings of sampling where `transformers` ignores them. Returns whether `top_k` is
    used: by sampling and by contrastive search.
    """
    if ours.get("do_sample"):
        return True
    contrastive = "penalty_alpha" in ours
    for key in SAMPLING:
        if key != "top_k" or not contrastive:
            ours.pop(key, None)
    return contrastive


def check_limits(settings: Mapping[str, Any], at: str = "") -> None:
    """Raise SettingsError for settings that are too large to be read from a file; `at` is the start
    of their keys.
    """
    for key, largest in MAX_VALUES.items():
        value = settings.get(key)
        unit = ""
        if key in LISTS:
            unit = " ids or characters"
            value = sum(_characters_or_one(leaf) for leaf in _leaves(value))
        if isinstance(value, int) and value > largest:
            remedy = "lower it" if at else "lower it, or remove it and give it as an argument"
            raise SettingsError(
                f"{at}{key}: {value}{unit} is more than {largest:,}, the largest in the file of "
                f"a model; {remedy}"
            )
    _check_search(settings, at)


def _check_search(settings: Mapping[str, Any], at: str) -> None:
    """Raise SettingsError for a search that follows many long outputs."""
    several = {key: settings.get(key) for key in SEVERAL}
    if not settings.get("penalty_alpha"):
        del several["top_k"]  # which then chooses among the tokens of one output
    counts = {key: count for key, count in several.items() if isinstance(count, int)}
    lengths = {key: length for key in MAX_LENGTHS if isinstance(length := settings.get(key), int)}
    if not counts or not lengths:
        return
    outputs = max(counts, key=lambda key: counts[key])
    length = min(lengths, key=lambda key: lengths[key])
    tokens = counts[outputs] * lengths[length]
    if counts[outputs] > 1 and tokens > MAX_SEARCH:
        raise SettingsError(
            f"{at}{outputs}: {counts[outputs]} outputs of {length} {lengths[length]} are "
            f"{tokens:,} tokens, more than {MAX_SEARCH:,}, the most in the file of a model; lower "
            "one of the two, or remove it and give it as an argument"
        )


def _characters_or_one(leaf: object) -> int:
    """The characters of a text; an id counts as one."""
    if isinstance(leaf, str):
        return len(leaf)
    return 1


def _check(config: ModelConfig, key: str, value: object, place: str, sampled: bool) -> None:
    if key in IDS:
        expected = getattr(config, IDS[key])
        # A decoder starts with its prompt, and never generates or reads padding.
        if value != expected and config.shape == "encoder-decoder":
            raise CheckpointError(
                f"{place}: {key}: {value!r} contradicts config.json, which has {expected}"
            )
    elif key in UNSUPPORTED:
        harmless, instead = UNSUPPORTED[key]
        if value != harmless and (sampled or key not in SAMPLED):
            remedy = f"; {instead}" if instead else ""
            raise CheckpointError(
                f"{place}: {key}: {value!r:.100} is not supported; remove the key{remedy}"
            )
    elif key in TOKENS:
        size = config.output_vocab_size
        invalid = [id for id in _leaves(value) if isinstance(id, int) and not 0 <= id < size]
        if invalid and value not in (config.eos_id, [config.eos_id]):
            raise CheckpointError(
                f"{place}: {key}: {invalid[0]} is not a token of a vocabulary of {size}"
            )


def _leaves(value: object) -> Iterator[object]:
    """The values in nested lists; the types of the settings check the nesting."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, list):
            left += one
        else:
            yield one
