"""From logits to tokens.

The path of a sentence: `trifold.generation_config` holds the options; `decoding` reads the source
or prompt and gives the logits after each token; `processors` penalize or forbid tokens; `sampling`
chooses one token, or a search follows several beams; `stopping` decides when an output ends;
`streaming` turns tokens into text as they come. `search` is the entry point and chooses among the
searches:

    token_search               greedy, sampling, contrastive
    speculative                the same tokens, several verified at once
    beam_search                beams in one group, or in diverse groups
    constrained_beam_search    beams in which every forced phrase appears

`scoring` computes the probability of a given output.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trifold.generate.decoding import Model
    from trifold.generate.scoring import TokenScores, score_tokens
    from trifold.generate.search import generate_tokens, stream_text, stream_tokens
    from trifold.generate.stopping import Codec, Hypothesis, OutputLimit, output_limit
    from trifold.generate.streaming import TextStreamer, truncate_at_stop
    from trifold.generation_config import GenerationConfig, resolve, with_generation_options

__all__ = ["Codec", "GenerationConfig", "Hypothesis", "Model", "OutputLimit", "TextStreamer"]
__all__ += [
    "TokenScores",
    "generate_tokens",
    "output_limit",
    "resolve",
    "score_tokens",
    "stream_text",
]
__all__ += ["stream_tokens", "truncate_at_stop", "with_generation_options"]

# Imported on first use and in this order, so that GenerationConfig is available without torch.
_MODULES = (
    "trifold.generation_config",
    *(f"{__name__}.{name}" for name in "decoding scoring stopping streaming search".split()),
)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    modules = map(import_module, _MODULES)
    value = globals()[name] = next(
        getattr(module, name) for module in modules if hasattr(module, name)
    )
    return value
