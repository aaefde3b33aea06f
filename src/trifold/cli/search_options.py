"""The options of `generate` that say how tokens are chosen: one for each setting of generate.GenerationConfig."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import typer


def _option(metavar: str | None, help: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, **more)


LengthPenalty: TypeAlias = Annotated[
    float | None, _option("A", "Exponent of the length; larger favours longer outputs.")
]
LengthPenaltyForm: TypeAlias = Annotated[
    Literal["power", "gnmt"] | None, _option(None, "score / n^A, or score / ((5 + n) / 6)^A.")
]
EarlyStopping: TypeAlias = Annotated[
    Literal["true", "false", "never"] | None,
    _option(None, "Of beams: at N finished outputs, when going on looks useless, or is proved useless."),
]
EARLY_STOPPING: dict[str, bool] = {"true": True, "false": False}
Renormalize: TypeAlias = Annotated[
    bool | None,
    _option(
        None,
        "Of beams: what is forbidden makes the other tokens likelier.",
        "--renormalize-logits/--no-renormalize-logits",
        show_default=False,
    ),
]
Groups: TypeAlias = Annotated[
    int | None, _option("N", "Groups of beams that keep away from each other's tokens.")
]
Diversity: TypeAlias = Annotated[
    float | None, _option("X", "How much: off the score for each earlier group with that token.")
]
ForceWords: TypeAlias = Annotated[
    list[str] | None, _option("WORDS", "Must appear in the output; may be repeated.", "--force-words")
]
DoSample: TypeAlias = Annotated[
    bool | None, _option(None, "Draw tokens at random.", "--do-sample/--no-do-sample", show_default=False)
]
Temperature: TypeAlias = Annotated[float | None, _option("T", "Sample; below 1 is bolder.")]
TopK: TypeAlias = Annotated[int | None, _option("K", "Sample among the K likeliest tokens.")]
TopKForm: TypeAlias = Annotated[
    Literal["proportional", "uniform"] | None, _option(None, "By their probabilities, or all K alike.")
]
TopP: TypeAlias = Annotated[
    float | None, _option("P", "Sample among the fewest tokens that hold this probability.")
]
MinP: TypeAlias = Annotated[
    float | None, _option("P", "Sample among tokens with this share of the likeliest one's probability.")
]
TypicalP: TypeAlias = Annotated[
    float | None, _option("P", "Sample among the tokens of most usual surprise that hold this probability.")
]
Seed: TypeAlias = Annotated[int | None, _option("N", "Of sampling.")]
PenaltyAlpha: TypeAlias = Annotated[
    float | None,
    _option("A", "Contrastive search among top-k tokens: weight of not resembling the text so far."),
]
PromptLookup: TypeAlias = Annotated[
    int | None, _option("N", "Same tokens, sooner: check N at once that followed the same words before.")
]
Draft: TypeAlias = Annotated[
    str | None, _option("MODEL", "Same tokens, sooner: a smaller model with the same tokenizer writes ahead.")
]
AssistantTokens: TypeAlias = Annotated[int | None, _option("N", "So many tokens ahead.", show_default="5")]
RepetitionPenalty: TypeAlias = Annotated[
    float | None, _option("X", "Above 1, tokens already written become less likely.")
]
PresencePenalty: TypeAlias = Annotated[
    float | None, _option("X", "Off the logit of tokens already generated.")
]
FrequencyPenalty: TypeAlias = Annotated[float | None, _option("X", "Likewise, for each time.")]
NoRepeat: TypeAlias = Annotated[int | None, _option("N", "No N tokens in a row are written twice.")]
BadWords: TypeAlias = Annotated[
    list[str] | None,
    _option("TEXT", "Never written, in whatever tokens; may be repeated.", "--bad-words"),
]
MaxNewTokens: TypeAlias = Annotated[
    int | None, _option("N", "Longest output.", show_default="tokens of the source + 50")
]
MinNewTokens: TypeAlias = Annotated[int | None, _option("N", "Shortest output.")]
StopStrings: TypeAlias = Annotated[
    list[str] | None, _option("TEXT", "The output ends before this; may be repeated.", "--stop-strings")
]
ChunkSize: TypeAlias = Annotated[
    int | None, _option("N", "Tokens of a prompt read at once, where a long one takes too much memory.")
]
Cache: TypeAlias = Annotated[
    Literal["growing", "static", "sliding"] | None,
    _option(
        None,
        "Room for keys and values: as needed, all at once, or only for what windows reach.",
        show_default="what suits",
    ),
]
Outputs: TypeAlias = Annotated[int | None, _option("N", "Outputs for each text, best first, one a line.")]
Stream: TypeAlias = Annotated[bool, _option(None, "Write the output while it is being found.", "--stream")]
