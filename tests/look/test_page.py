"""The page answers requests with the numbers of the model, embeds nothing that runs, and serves
only its own page.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import re
from contextlib import suppress
from inspect import signature
from socket import create_connection
from threading import Thread
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
import torch
from tests.models import ONE_LAYER
from tests.predict.test_trace import new_pipeline

from trifold import memory
from trifold.costs import forward_flops
from trifold.errors import TrifoldError, UsageError
from trifold.look import read_attention
from trifold.look.page import page, write_page
from trifold.look.requests import REQUESTS, answer, encode, key
from trifold.look.session import Session
from trifold.nn import ModelConfig, Transformer
from trifold.pipeline import Pipeline

TEXT = "the quick fox."


def decode(array: dict) -> np.ndarray:
    return np.frombuffer(base64.b64decode(array["data"]), np.dtype(array["dtype"])).reshape(
        array["shape"]
    )


def test_attention_is_that_of_the_model(pipeline):
    session, maps = Session(pipeline), read_attention(pipeline, TEXT)
    for kind, weights in maps.patterns.items():
        for layer, expected in enumerate(weights):
            found = decode(
                answer(session, "attention", {"text": TEXT, "kind": kind, "layer": layer})[
                    "weights"
                ]
            )
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("floats", "most"), [("float32", 1e-5), ("float16", 1e-3)])
def test_rows_of_many_tokens_sum_to_one(floats, most):
    """Also where 512 weights are nearly equal, or one is nearly 1."""
    scores = np.random.default_rng(0).normal(size=(64, 512)) * np.linspace(0, 8, 64)[:, None]
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    found = decode(encode(weights.astype(np.float32), floats))
    assert found.dtype == floats and np.abs(found.astype(float).sum(-1) - 1).max() < most


def test_the_type_of_the_computation_is_named(pipeline):
    pipeline.model.bfloat16()
    params = {"text": TEXT, "kind": "encoder", "layer": 0}
    assert answer(Session(pipeline), "attention", params)["computed"] == "bfloat16"


def test_blocks_are_named_by_their_layers(pipeline):
    """People count layers from 1, hook points from 0."""
    titles = [node["title"] for node in walk(answer(Session(pipeline), "model", {})["tree"])]
    assert [each for each in titles if "blocks." in each] == [
        *("layer 1 · blocks.0", "layer 2 · blocks.1"),  # of the encoder
        *("layer 1 · blocks.0", "layer 2 · blocks.1", "layer 3 · blocks.2"),
    ]
    shared = answer(Session(new_pipeline("albert")), "model", {})["tree"]
    assert "layers 1, 2 · blocks.0" in [node["title"] for node in walk(shared)]


def test_tokens_label_the_weights(pipeline):
    session = Session(pipeline)
    found = answer(session, "trace", {"text": TEXT, "target": "Fuchs!"})
    for kind, sides in {"encoder": ["encoder"] * 2, "cross": ["decoder", "encoder"]}.items():
        weights = answer(session, "attention", {"text": TEXT, "target": "Fuchs!", "kind": kind})[
            "weights"
        ]
        assert [len(found["tokens"][side]) for side in sides] == weights["shape"][1:]
        assert [len(found["words"][side]["of_token"]) for side in sides] == weights["shape"][1:]
    assert len(found["labels"]) == len(found["tokens"]["decoder"])


def test_components_have_all_parameters_and_flops(pipeline):
    check_components(pipeline)


def test_components_of_one_stack_have_all_parameters_and_flops(one_stack):
    check_components(one_stack)


def test_flops_of_shared_blocks_count_for_each_layer():
    check_components(new_pipeline("albert"))


def check_components(pipeline: Pipeline) -> None:
    found = answer(Session(pipeline), "model", {})
    tree, config = found["tree"], pipeline.config
    assert found["parameters"] == tree["parameters"] == pipeline.model.count_parameters()
    for node in walk(tree):
        module = pipeline.model.get_submodule(node["name"])
        assert node["tensors"].keys() <= dict(module.named_parameters(recurse=False)).keys()
    assert tree["flops"] + tree["flops_per_key"] == sum(forward_flops(config, 1, 1))


def walk(node: dict):
    yield node
    for child in node["children"]:
        yield from walk(child)


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("atention", {}, "did you mean 'attention'"),
        ("attention", {"kind": "cross"}, "text"),
        ("attention", {"text": ["a.png"]}, "text: input should be a valid string"),
        ("model", {"model": 1}, "models are 0 to 0"),
        ("model", {"other": 1}, "other"),
        ("attention", {"text": TEXT, "kind": "both", "layer": 0}, "kind: 'both'"),
        (
            "attention",
            {"text": TEXT, "kind": "cross", "layer": 9},
            "layer 9: give a number from 0 to",
        ),
    ],
)
def test_invalid_requests_are_rejected(pipeline, name, params, message):
    with pytest.raises(UsageError, match=message):
        answer(Session(pipeline), name, params)


def embedded(html: str) -> dict:
    (content,) = re.findall(
        r'<script type="application/json" id="answers">(.*?)</script>', html, re.DOTALL
    )
    return json.loads(content)


@pytest.mark.slow
def test_a_written_page_embeds_the_answers_as_text(pipeline, tmp_path):
    text = "</script><script>alert(1)</script><!-- & fox"
    session = Session(pipeline)
    html = write_page(session, text, None, tmp_path / "page.html").read_text(encoding="utf-8")
    assert html.count("<script") == page({}, {}).count("<script") == 2 and "alert(1)</" not in html
    found = embedded(html)
    assert found["live"] is False
    assert found["start"]["text"] == text
    params = {"text": text, "kind": "cross", "layer": 1}
    half = answer(session, "attention", params, "float16")
    assert found["answers"][key("attention", params)] == half
    full = decode(answer(session, "attention", params)["weights"])
    np.testing.assert_array_equal(decode(half["weights"]), full.astype(np.float16))


def test_a_written_page_has_the_attention_of_both_compared_models(pipeline, tmp_path):
    torch.manual_seed(4)
    sizes = ONE_LAYER
    config = ModelConfig(**sizes, vocab_size=pipeline.reader.vocab_size, max_positions=64)
    other = Session(Pipeline(Transformer(config).eval(), pipeline.reader))
    written = write_page(
        [Session(pipeline), other], "fox", "F", tmp_path / "page.html", "one", "two"
    )
    found = embedded(written.read_text(encoding="utf-8"))
    assert found["start"]["models"] == ["one", "two"]
    assert found["answers"][key("model", {"model": 1})] == answer(other, "model", {})
    for kind in ("encoder", "decoder", "cross"):
        params = {"text": "fox", "target": "F", "kind": kind, "layer": 0}
        expected = answer(other, "attention", params, "float16")
        assert found["answers"][key("attention", {**params, "model": 1})] == expected
        assert key("attention", {**params, "layer": 1, "model": 1}) not in found["answers"]


def test_a_page_is_one_file_without_addresses():
    html = page({}, {})
    assert "default-src 'none'" in html and "unsafe-eval" not in html
    assert re.findall(r'(?:src|href)="(?!data:)[^"]*"', html) == []


# --- the server -----------------------------------------------------------------------------------


@pytest.fixture
def server(pipeline):
    """(port, token) of a running server."""
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    from trifold.look.server import create_app, new_server, open_socket

    with open_socket() as listener:
        port = listener.getsockname()[1]
        running = new_server(create_app([Session(pipeline)], {}, port, "secret"))
        thread = Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        yield port
        running.should_exit = True
        thread.join(10)
        assert not thread.is_alive()


def send(port: int, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urlopen(
            Request(f"http://127.0.0.1:{port}{path}", body, names), timeout=20
        ) as response:
            return response.status, response.read()
    except HTTPError as error:
        return error.code, error.read()


def test_the_live_page_answers_as_python_does(server, pipeline):
    status, html = send(server, "/?token=secret")
    assert status == 200 and embedded(html.decode())["live"] is True
    status, body = send(server, "/api/model", b"{}", X_Token="secret")
    assert (status, json.loads(body)) == (200, answer(Session(pipeline), "model", {}))
    assert set(REQUESTS) >= {"model", "trace", "attention"}


@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [
        ("/", {}, 403),
        ("/?token=other", {}, 403),
        ("/?token=secret", {"Host": "evil.example"}, 403),
        ("/?token=secret", {"Origin": "http://evil.example"}, 403),
        ("/api/model", {}, 403),
        ("/api/model?token=secret", {}, 403),
        ("/api/model", {"X_Token": "secrét"}, 403),
        ("/api/model", {"X_Token": "secret", "Origin": "null"}, 403),
        ("/api/none", {"X_Token": "secret"}, 400),
    ],
)
def test_other_pages_are_refused(server, path, headers, expected):
    body = b"{}" if path.startswith("/api") else None
    status, content = send(server, path, body, **headers)
    assert status == expected and b"<script" not in content


def test_a_text_that_does_not_fit_into_memory_is_an_error(server, monkeypatch):
    monkeypatch.setattr(memory, "UNCHECKED", 0)
    monkeypatch.setattr(memory, "available_memory", lambda device: (2**19, "here"))

    def trace(text: str) -> tuple[int, bytes]:
        body = json.dumps({"text": text, "target": "the"}).encode()
        return send(server, "/api/trace", body, X_Token="secret")

    status, refused = trace("the quick fox " * 20)
    assert status == 400
    message = (
        "the activations of [0-9]+ and [0-9]+ tokens need [0-9]+ MiB of memory; 0 MiB available "
    )
    assert re.match(rf"{message}\(here\); shorten the text$", json.loads(refused)["error"]), refused
    assert trace("the")[0] == 200


BODIES = {b"[]": 400, b"{": 400, b"\xff": 400, b"[" * 100_000: 400, b" " * (1 << 20) + b"{}": 413}


@pytest.mark.parametrize(("body", "status"), BODIES.items(), ids=map(str, range(5)))
def test_invalid_bodies_end_in_an_error(server, body, status):
    found, content = send(server, "/api/model", body, X_Token="secret")
    assert found == status and json.loads(content)["error"]
    assert send(server, "/api/model", b"{}", X_Token="secret")[0] == 200


def test_a_client_that_leaves_prints_nothing(server, capfd):
    head = "POST /api/{} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nX-Token: secret\r\nContent-Length: {}\r\n\r\n"
    for name, body, length in (
        ("model", b"{", 100),
        ("search", b'{"text": "a"}', 13),
        ("model", b"", 9),
    ):
        with create_connection(("127.0.0.1", server)) as client:
            client.sendall(head.format(name, server, length).encode() + body)
    with create_connection(("127.0.0.1", server)) as client:
        client.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
        client.recv(100)
    assert send(server, "/api/model", b"{}", X_Token="secret")[0] == 200
    assert capfd.readouterr().err == ""


def test_a_request_without_its_end_is_no_error_of_the_application(pipeline):
    pytest.importorskip("starlette")
    from trifold.look.server import create_app

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def ignore(message: dict[str, object]) -> None:
        pass

    headers = [(b"host", b"localhost:7"), (b"x-token", b"secret")]
    request = {"type": "http", "method": "POST", "path": "/api/model", "headers": headers}
    app = create_app([Session(pipeline)], {}, 7, "secret")
    asyncio.run(app({**request, "query_string": b""}, receive, ignore))


WRONG = {
    "a number for a text": ("trace", {"text": 5}, "trace.text: input should be a valid string"),
    "a list for a text": ("lens", {"text": ["a"]}, "lens.text"),
    "no text": ("trace", {}, "trace.text: a value is required"),
    "true for a layer": ("attention", {"text": TEXT, "layer": True}, "attention.layer"),
    "half a layer": ("attention", {"text": TEXT, "layer": 0.5}, "attention.layer"),
    "a huge layer": ("attention", {"text": TEXT, "layer": 2**63}, "attention.layer"),
    "no candidates": ("lens", {"text": TEXT, "top": -1}, "top -1: give a number from 1"),
    "no neighbours": ("neighbours", {"side": "encoder", "token": 1, "count": 0}, "count 0"),
    "an unknown token": ("gradients", {"text": TEXT, "token": 9999}, "token 9999"),
    "edits in an object": ("trace", {"text": TEXT, "edits": {}}, "trace.edits"),
    "an edit without a name": ("trace", {"text": TEXT, "edits": [{"op": "zero"}]}, "edits.0.name"),
    "a text for a head": (
        "trace", {"text": TEXT, "edits": [{"name": "x", "op": "zero", "heads": ["0"]}]}, "edits.0.heads: input should be a valid integer",
    ),
    "a model of truth": ("model", {"model": True}, "model: True"),
    "an unknown parameter": ("lens", {"text": TEXT, "topp": 1}, "did you mean 'top'"),
    "forced text": ("search", {"text": TEXT, "forced": "a"}, "search.forced"),
    "a temperature of text": ("search", {"text": TEXT, "temperature": "hot"}, "temperature"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_values_of_wrong_types_are_the_error_of_the_client(server, case):
    name, params, message = WRONG[case]
    status, content = send(server, f"/api/{name}", json.dumps(params).encode(), X_Token="secret")
    assert status == 400 and message in json.loads(content)["error"]


VALUES = [
    *(None, True, 0, -1, 2, 10**6, 2**31, 2**53, 2**63, -(10**30), 0.5, 1e308),
    *("", "the", "é", "\ud800", "encoder", [], ["a"], [0], [-1], [None], {}, {"a": 1}, [{}]),
    *([{"name": "encoder.blocks.0.self_attention.heads", "op": op}] for op in ("zero", "copy", 1)),
    [{"name": "encoder.blocks.0.self_attention.heads", "op": "zero", "positions": [99]}],
    [{"name": "encoder.embeddings.output", "op": "zero", "heads": [0]}],
]  # fmt: skip
SOUND = {
    **{name: {"text": TEXT} for name in ("trace", "lens", "gradients", "walkthrough", "search")},
    **{name: {} for name in ("model", "run", "roles", "positions", "masks", "schedules")},
    "attention": {"text": TEXT, "kind": "encoder"},
    "head_over_checkpoints": {"text": TEXT, "kind": "encoder", "layer": 0, "head": 0},
    "neuron": {"text": TEXT, "kind": "encoder", "layer": 0, "head": 0, "query": 0},
    "effect": {"text": TEXT, "edits": []},
    "lines_effect": {"lines": "the\tder", "edits": []},
    "neighbours": {"side": "encoder", "token": 3},
    "components": {"side": "encoder"},
}


@pytest.mark.slow
def test_no_value_of_a_parameter_fails_inside(pipeline):
    """Every request with some values for each of its parameters, with others, and without each."""
    rng = random.Random(7)
    session = Session(pipeline)
    assert SOUND.keys() == REQUESTS.keys()
    for name, sound in SOUND.items():
        names = {*signature(REQUESTS[name]).parameters, "num_beams", "top_k", "model", "other"}
        for param in sorted(names - {"session", "options"}):
            without = {key: value for key, value in sound.items() if key != param}
            tried = [{**sound, param: value} for value in rng.sample(VALUES, 3)]
            for params in (without, *tried):
                with suppress(TrifoldError):
                    answer(session, name, params)


@pytest.mark.parametrize("body", [b'{"layer": NaN}', b'{"layer": Infinity}', b'{"a":' * 50_000])
def test_what_is_no_json_is_the_error_of_the_client(server, body):
    status, content = send(server, "/api/lens", body, X_Token="secret")
    assert status == 400 and json.loads(content)["error"].startswith("the parameters are ")


def test_an_unexpected_error_is_one_line(server, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setitem(REQUESTS, "model", fail)
    found, content = send(server, "/api/model", b"{}", X_Token="secret")
    assert (found, json.loads(content)) == (500, {"error": "model: RuntimeError: no memory"})
