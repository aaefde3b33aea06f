"""Every hook point passes, and an identity hook changes nothing; another one does."""

from __future__ import annotations

import torch
from tests.laws.configs import cases, config_of
from tests.laws.models import assert_close, hidden_of, limit_of, model_in, padded, rows_of

from trifold.nn import capture
from trifold.nn.hooks import hook_points, hooked


@torch.no_grad()
@cases("hooks", fast_alone=True)
def test_hooks_are_complete_and_change_nothing(name: str, operations: str) -> None:
    model, example = model_in(operations, name), padded(rows_of(config_of(name)))
    plain = hidden_of(model, example)
    with capture(model) as seen:
        captured = hidden_of(model, example)
    with hooked(model, lambda point, x: x.clone()):
        copied = hidden_of(model, example)
    attend = example.last.attend
    real = slice(None) if attend is None else attend
    assert_close(captured[real], plain[real], limit_of(operations))
    assert torch.equal(copied, captured)
    points = {each for _, _, names in hook_points(model) for each in names}
    # Heads do not run here, nor experts that no token chose.
    missing = {each for each in points - seen.keys() if "head" not in each.partition(".")[0]}
    assert not {each for each in missing if ".experts." not in each}
    for point, x in seen.items():
        assert x.isfinite().all() or point.endswith("scores"), point
        if point.endswith("pattern"):
            assert bool((x >= 0).all()) and float(x.sum(-1).max()) <= 1 + 1e-4, point
    side = "decoder" if model.decoder is not None else "encoder"
    with hooked(model, lambda point, x: x.flip(-1) * 0.9, f"{side}.states.0"):
        changed = hidden_of(model, example)
    assert not torch.allclose(changed, plain)
