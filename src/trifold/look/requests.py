"""The requests of the page: a name and JSON parameters, answered by a function of this package.

The live server, the written page and Python use the same functions.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from inspect import Parameter, signature
from typing import Annotated, Any, Literal, get_type_hints

import numpy as np
import torch
from pydantic import ConfigDict, Field, StrictFloat, StrictInt, StrictStr, create_model
from torch import Tensor

from trifold.errors import UsageError
from trifold.look import effects, figures, run_view, search, session as traces, views
from trifold.look.session import Edits, Session
from trifold.memory import require_memory
from trifold.settings import Settings, nearest

_FUNCTIONS: tuple[Callable[..., dict[str, Any]], ...] = (
    views.model,
    views.attention,
    run_view.run,
    run_view.head_over_checkpoints,
    search.search,
    traces.trace,
    traces.neuron,
    traces.walkthrough,
    traces.lens,
    traces.gradients,
    traces.roles,
    traces.effect,
    effects.lines_effect,
    figures.neighbours,
    figures.components,
    figures.positions,
    figures.masks,
    figures.schedules,
)
Floats = Literal["float32", "float16"]
REQUESTS = {function.__name__: function for function in _FUNCTIONS}
ENCODED = 6  # bytes of the steps from a byte of an array to the answer
_MAX_NUMBER = 2**31 - 1  # of a parameter
_Int = Annotated[StrictInt, Field(ge=-_MAX_NUMBER, le=_MAX_NUMBER)]


class EditParams(Settings):
    """An edit of a request; see `predict.trace.Edit`. `patched` checks its values."""

    name: StrictStr
    op: StrictStr
    heads: list[_Int] | None = None
    positions: list[_Int] | None = None
    value: StrictInt | StrictFloat = 1.0
    source: StrictStr | None = Field(None, alias="from")


# Types in the signatures of requests that mean another one in JSON.
_JSON_TYPES: dict[Any, Any] = {
    Any: StrictStr,  # a text; in Python also an image
    int: _Int,
    int | None: _Int | None,
    int | str: _Int | StrictStr,
    Sequence[int]: list[_Int],
    Edits: list[EditParams],
}


@cache
def _params_class(name: str) -> type[Settings]:
    """The class that checks the parameters of a request, from the signature of its function."""
    function = REQUESTS[name]
    types = get_type_hints(function)
    fields: dict[str, Any] = {}
    base: type[Settings] = Settings
    _, *parameters = signature(function).parameters.values()  # without the session
    for parameter in parameters:
        if parameter.kind is Parameter.VAR_KEYWORD:  # options of generation, which it checks
            base = _OpenParams
            continue
        required = parameter.default is Parameter.empty
        kind = types[parameter.name]
        fields[parameter.name] = (
            _JSON_TYPES.get(kind, kind),
            Field(... if required else parameter.default),
        )
    return create_model(f"Params of {name}", __base__=base, **fields)


class _OpenParams(Settings):
    """Parameters that may have further keys."""

    model_config = ConfigDict(extra="allow")


def answer(
    session: Session | Sequence[Session],
    name: str,
    params: Mapping[str, Any],
    floats: Floats = "float32",
) -> dict[str, Any]:
    """The answer as JSON values; the parameter `model` selects one of several sessions, from 0.
    floats: see `encode`.

    Raises UsageError for unknown names and parameters, and for values of other types, and the
    errors of the model.
    """
    sessions = [session] if isinstance(session, Session) else session
    params = dict(params)
    number = params.pop("model", 0)
    if type(number) is not int or number not in range(len(sessions)):
        raise UsageError(f"model: {number!r:.40}; the models are 0 to {len(sessions) - 1}")
    if name not in REQUESTS:
        raise UsageError(f"{name!r:.40}: no such request{nearest(name, [*REQUESTS])}")
    _params_class(name).parse(params, at=name)
    with sessions[number].lock:
        found = REQUESTS[name](sessions[number], **params)
        require_memory(
            ENCODED * _size(found), torch.device("cpu"), f"{name}: its arrays", "shorten the text"
        )
        encoded = encode(found, floats)
    assert isinstance(encoded, dict)
    return encoded


def _size(value: Any) -> int:
    """Bytes of the arrays in a value."""
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    return value.nbytes if isinstance(value, Tensor | np.ndarray) else 0


def key(name: str, params: Mapping[str, Any]) -> str:
    """The name of an answer in a written page, as `key` in web/src/data.ts computes it."""
    given = {param: value for param, value in sorted(params.items()) if value is not None}
    return f"{name} {json.dumps(given, ensure_ascii=False, separators=(',', ':'), sort_keys=True)}"


def encode(value: Any, floats: Floats = "float32") -> Any:
    """A value for JSON: arrays become their shape, type and bytes in base64, numbers that are not
    finite text. floats: the type of arrays that are not small integers.
    """
    if isinstance(value, Tensor):
        value = value.detach().float().cpu().numpy()
    if isinstance(value, np.ndarray):
        is_small = value.dtype in (np.uint8, np.bool_)
        return _encode_array(value, "uint8" if is_small else floats)
    if isinstance(value, Mapping):
        return {str(name): encode(item, floats) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item, floats) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value


def _encode_array(array: np.ndarray[Any, Any], dtype: str) -> dict[str, Any]:
    content = array.astype(np.dtype(dtype).newbyteorder("<")).tobytes()
    return {
        "shape": list(array.shape),
        "dtype": dtype,
        "data": b64encode(content).decode("ascii"),
    }
