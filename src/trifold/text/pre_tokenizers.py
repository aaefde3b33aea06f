"""How byte-level tokenizers split a text before merges, by the names of these ways in GGUF files
(`tokenizer.ggml.pre`).

A way is a sequence of regular expressions. Each one cuts the pieces that the one before has left
into its matches and the text between them. All of them take linear time.
"""

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_CJK = "[一-龥぀-ゟ゠-ヿ]+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_START = r"[^\r\n\p{L}\p{N}]?"


def _cased(ending: str, digits: str) -> str:
    """Words in which lower case follows upper case; ending: what may follow a word."""
    return (
        rf"{_START}{_UPPER}*{_LOWER}+{ending}|{_START}{_UPPER}+{_LOWER}*{ending}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_SPACES}"
    )


GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN_2 = rf"{_WORDS}\p{{N}}{_REST}"
LLAMA_3 = rf"{_WORDS}\p{{N}}{{1,3}}{_REST}"
GPT_4O = _cased(rf"{_CONTRACTIONS}?", r"\p{N}{1,3}")
_DEEPSEEK = (
    r"\p{N}{1,3}",
    _CJK,
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*{_SPACES}",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")
_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|]+"

# Names, separated by spaces -> the way.
_TABLE: dict[str, tuple[str, ...]] = {
    """
    gpt-2 phi-2 mpt olmo jais exaone4 modern-bert roberta-bpe jina-v2-en jina-v2-es jina-v2-de
    jina-v2-code mellum trillion
    """: (GPT_2,),
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": (r"\p{N}", GPT_2),
    """
    llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2 dbrx smaug-bpe glm4 chatglm-bpe
    """: (LLAMA_3,),
    """
    qwen2 deepseek-r1-qwen stablelm2 hunyuan megrez grok-2 solar-open
    """: (QWEN_2,),
    "tekken": (_cased("", r"\p{N}"),),
    "gpt-4o llama4 kanana2": (GPT_4O,),
    "deepseek-v3 hunyuan-dense": _DEEPSEEK,
    "deepseek-coder": _DEEPSEEK_CODER,
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", GPT_2, "[0-9][0-9][0-9]"),
    "default": (_PUNCTUATION, GPT_2, r"\p{N}+", "[0-9][0-9][0-9]"),
}
PRE_TOKENIZERS = {name: way for names, way in _TABLE.items() for name in names.split()}
# Of these, words that are a token are not built by merges, and texts begin with a token by default.
WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2")
