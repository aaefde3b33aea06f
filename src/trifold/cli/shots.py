"""Examples in the prompt of a decoder that learned no task (few-shot: Brown et al. 2020).

Each example is the filled prompt with its target after it, on a line of its own; a prompt of
several lines is followed by a blank one. The output ends with its first line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trifold.errors import UsageError, plural

if TYPE_CHECKING:
    from trifold.data import Rows
    from trifold.text.prompts import Prompt

AS_IT_IS = "{text}"  # the prompt of a text that is one already


def parse_prompt(text: str) -> Prompt:
    """The prompt of the option, with one name in braces. Raises UsageError."""
    from trifold.text.prompts import Prompt

    try:
        prompt = Prompt.parse(text)
    except ValueError as error:
        raise UsageError(f"--prompt: {error}") from None
    if len(prompt.names) > 1:
        raise UsageError(f"--prompt: {text!r:.60} has several names in braces; name the source")
    return prompt


def choose_examples(rows: Rows, shots: int | None) -> Rows:
    """The first rows, by default all. Raises UsageError if there are fewer."""
    if shots is None:
        return rows
    if shots > len(rows):
        raise UsageError(f"--shots {shots}: {rows.report.name} has {plural(len(rows), 'row')}")
    return rows.select([*range(shots)], rows.report.name)


def fill_prompts(prompt: Prompt, sources: Sequence[str], examples: Rows | None) -> list[str]:
    """The prompt of each source, after the examples."""
    before = ""
    if examples is not None:
        end = "\n\n" if "\n" in prompt.text else "\n"
        space = "" if prompt.text[-1:].isspace() else " "
        pairs = zip(examples.sources, examples.targets, strict=True)
        before = "".join(
            prompt.fill(prompt.values(source)) + space + target + end for source, target in pairs
        )
    return [before + prompt.fill(prompt.values(source)) for source in sources]


def prompt_options() -> dict[str, Any]:
    """The options of the generation after filled prompts."""
    return {"prompt": AS_IT_IS, "stop_strings": ["\n"]}
