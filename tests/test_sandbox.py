"""The sandbox process: answers, time and memory limits, environment."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from trifold.sandbox import Sandbox, SandboxError, SandboxStartError

HANDLER = """
import os, time
kept = []
def answer(request):
    if "keep" in request:
        import resource
        kept.append(bytearray(request["keep"]))
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        return {"pid": os.getpid(), "limit": limit, "kept": len(kept)}
    if "error" in request: return {"error": str(os.getpid())}
    if "sleep" in request: time.sleep(request["sleep"])
    if "allocate" in request: return {"size": len(bytearray(request["allocate"]))}
    if "exit" in request: os._exit(1)
    if "list" in request: return [1]
    return {"environment": dict(os.environ), "pid": os.getpid(), "echo": request}
"""
LIMITS = {"timeout": 30.0, "memory": 2**26}


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    (tmp_path / "handler.py").write_text(HANDLER, encoding="utf-8")
    return Sandbox(tmp_path / "handler.py", {"MARK": "1"})


def test_one_process_answers_and_inherits_no_secrets(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    with sandbox:
        first, second = (sandbox.request({"é\n": [1, None]}, **LIMITS) for _ in range(2))
        assert first["echo"] == {"é\n": [1, None]} and first["pid"] == second["pid"]
        environment = first["environment"]
        assert environment["MARK"] == "1" and not {
            "HF_TOKEN",
            "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD",
        } & set(environment)
        for message in ({"a": float("nan")}, {"a": object()}):
            with pytest.raises((TypeError, ValueError)):
                sandbox.request(message, **LIMITS)


@pytest.mark.slow
def test_a_process_that_fails_is_replaced(sandbox: Sandbox) -> None:
    with sandbox:
        before = time.monotonic()
        with pytest.raises(SandboxError, match=r"it ran for more than 0\.2 s"):
            sandbox.request({"sleep": 60}, timeout=0.2, memory=2**26)
        assert time.monotonic() - before < 30
        for message in ({"exit": 1}, {"list": 1}):
            with pytest.raises(SandboxError, match="more memory than it may, or crashed"):
                sandbox.request(message, **LIMITS)
        assert sandbox.request({}, **LIMITS)["echo"] == {}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")
def test_memory_is_limited_for_each_request(sandbox: Sandbox) -> None:
    with sandbox:
        with pytest.raises(SandboxError, match="more memory than it may"):
            sandbox.request({"allocate": 2**28}, **LIMITS)
        assert sandbox.request({"allocate": 2**28}, timeout=30, memory=2**29) == {"size": 2**28}


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")
def test_the_limit_of_a_process_does_not_grow_with_what_it_keeps(sandbox: Sandbox) -> None:
    limits: dict[int, set[int]] = {}
    with sandbox:
        for _ in range(8):
            answer = sandbox.request({"keep": 20 * 2**20}, **LIMITS)
            limits.setdefault(answer["pid"], set()).add(answer["limit"])
            # It is replaced before what it keeps could reach the limit.
            assert answer["kept"] <= 2
        assert len(limits) > 1 and all(len(each) == 1 for each in limits.values())
        with pytest.raises(SandboxError, match="more memory than it may"):
            sandbox.request({"keep": 100 * 2**20}, **LIMITS)


def test_a_process_that_answers_with_an_error_is_replaced(sandbox: Sandbox) -> None:
    with sandbox:
        process = sandbox.request({}, **LIMITS)["pid"]
        assert sandbox.request({"error": 1}, **LIMITS) == {"error": str(process)}
        assert sandbox.request({}, **LIMITS)["pid"] != process


def test_a_handler_that_does_not_start_names_the_reason(tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text("import nothing_of_this_name", encoding="utf-8")
    with pytest.raises(SandboxStartError, match=r"could not be started .*nothing_of_this_name"):
        Sandbox(tmp_path / "handler.py").request({}, **LIMITS)
