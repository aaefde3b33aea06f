"""Chat templates: messages to the text that a chat model was trained on.

Templates run in a sandbox process (`chat_handler`), which is started by the first rendering and
then reused.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trifold.errors import CheckpointError, DataError
from trifold.folders import UntrustedPath, read_text
from trifold.sandbox import Sandbox, SandboxError

MAX_TEMPLATE = 1 << 20  # bytes; the longest in use have about 30,000
TIMEOUT = 5.0  # seconds for one rendering; usual ones take a thousandth
_MEMORY = 1 << 30  # bytes for one rendering
# Characters that a template may add to those of its values, such as the system prompt of a model.
MAX_ADDED = 1 << 16
_SANDBOX = Sandbox(Path(__file__).with_name("chat_handler.py"))


def read_templates(folder: UntrustedPath, settings: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name (`default` is the usual one). Files take precedence over `chat_template` in
    the settings.
    """
    more = (folder / "additional_chat_templates").glob("*.jinja")[:32]
    files = {"default": folder / "chat_template.jinja", **{path.stem: path for path in more}}
    texts = {name: read_text(path, MAX_TEMPLATE) for name, path in files.items() if path.exists()}
    templates = texts or _templates_in_settings(settings.get("chat_template"))
    for name, text in templates.items():
        if len(text) > MAX_TEMPLATE:
            raise CheckpointError(
                f"{folder}: chat template {name!r} has {len(text):,} characters; at most "
                f"{MAX_TEMPLATE:,} are read"
            )
    return templates


def _templates_in_settings(value: object) -> dict[str, str]:
    """The templates by name in a value of the settings: one text, or a list of objects."""
    if isinstance(value, str):
        return {"default": value}
    if not isinstance(value, list):
        return {}
    entries = [entry for entry in value if isinstance(entry, dict)]
    return {str(entry.get("name")): str(entry.get("template", "")) for entry in entries}


def render(template: str, values: Mapping[str, Any], *, timeout: float = TIMEOUT) -> str:
    """Render a template with JSON-serializable values.

    Raises DataError if the template rejects the messages; CheckpointError if it is invalid, does
    something that is not allowed, or exceeds the time or memory limit.
    """
    try:
        request = {"template": template, "values": dict(values), "most": _most(values)}
        found = _SANDBOX.request(request, timeout=timeout, memory=_MEMORY)
    except SandboxError as error:
        raise CheckpointError(f"the chat template was stopped: {error}") from None
    except (TypeError, ValueError) as error:
        raise DataError(
            f"messages for a chat template must be text, lists and objects ({error})"
        ) from None
    if "refused" in found:
        raise DataError(f"the chat template refuses these messages: {found['refused']}")
    if "error" in found:
        raise CheckpointError(f"the chat template cannot be used ({found['error']})")
    return str(found["text"])


def _most(values: Mapping[str, Any]) -> int:
    """The characters that a template may return: each value several times, and its own."""
    return 4 * len(json.dumps(values, ensure_ascii=False)) + MAX_ADDED


def template_values(
    messages: Sequence[Mapping[str, Any]], more: Mapping[str, Any]
) -> dict[str, Any]:
    """Variables of a template: messages without empty entries, and `more`."""
    if not messages:
        raise DataError("a conversation needs at least one message")
    clean = [
        {key: value for key, value in message.items() if value is not None} for message in messages
    ]
    return {"tools": None, "documents": None, **more, "messages": clean}
