"""The live page of `trifold look`: a server on the loopback interface that runs one model.

Pages of other sites could send requests to the loopback interface. The server therefore requires a
random token, which only the URL that it opens contains, and rejects other names in Host and other
origins.
"""

import hmac
import json
import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trifold.errors import TrifoldError, UsageError
from trifold.installation import install_command
from trifold.look.page import page
from trifold.look.requests import answer
from trifold.look.session import Session

HOST = "127.0.0.1"
MAX_BODY = 1 << 20  # bytes of a request
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def open_socket(port: int = 0) -> socket.socket:
    """A listening socket on the loopback interface; port 0: any free one. Raises UsageError if it
    is in use.
    """
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise UsageError(f"port {port}: {reason}; choose another, or leave it out") from None


def read_params(body: bytes) -> dict[str, Any]:
    """The parameters of a request. Raises UsageError unless they are a JSON object with finite
    numbers.
    """
    try:
        params = json.loads(body, parse_constant=_refuse_constant)
    except RecursionError:
        raise UsageError("the parameters are nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"the parameters are not JSON ({error})") from None
    if not isinstance(params, dict):
        raise UsageError("the parameters are not an object")
    return params


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def create_app(sessions: Sequence[Session], start: Mapping[str, Any], port: int, token: str) -> Any:
    """The ASGI application. Raises UsageError if starlette is not installed."""
    try:
        from starlette.applications import Starlette
        from starlette.concurrency import run_in_threadpool
        from starlette.requests import ClientDisconnect, Request
        from starlette.responses import HTMLResponse, JSONResponse, Response
        from starlette.routing import Route
    except ImportError:
        raise UsageError(
            "the live page needs starlette and uvicorn; install them with "
            f"`{install_command('web')}`, or write a file with --out page.html"
        ) from None
    hosts = {f"{name}:{port}" for name in (HOST, "localhost")}
    origins = {None, *(f"http://{host}" for host in hosts)}

    def refused(request: Request, given: str) -> Response | None:
        """An error for a request that does not come from the page."""
        if request.headers.get("host") not in hosts or request.headers.get("origin") not in origins:
            return JSONResponse({"error": "another host or origin"}, 403, HEADERS)
        if not hmac.compare_digest(given.encode(), token.encode()):
            return JSONResponse(
                {"error": "wrong token; open the URL that trifold look prints"}, 403, HEADERS
            )
        return None

    def respond(name: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """The status and the answer, or the error, of a request."""
        try:
            # A session runs one request at a time.
            return 200, answer(sessions, name, read_params(body))
        except TrifoldError as error:
            return 400, {"error": str(error)}
        except Exception as error:
            return 500, {"error": f"{name}: {type(error).__name__}: {error}"}

    async def index(request: Request) -> Response:
        failure = refused(request, request.query_params.get("token", ""))
        return failure or HTMLResponse(page({}, start, live=True), headers=HEADERS)

    async def api(request: Request) -> Response:
        if failure := refused(request, request.headers.get("x-token", "")):
            return failure
        body = b""
        try:
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY:
                    return JSONResponse({"error": f"more than {MAX_BODY:,} bytes"}, 413, HEADERS)
        except ClientDisconnect:  # nobody reads the answer
            return Response(status_code=400)
        status, answered = await run_in_threadpool(respond, request.path_params["name"], body)
        return JSONResponse(answered, status, HEADERS)

    return Starlette(routes=[Route("/", index), Route("/api/{name}", api, methods=["POST"])])


def new_server(app: Any) -> Any:
    """The server of an application, which prints nothing: it answers invalid requests, and an
    internal error is the answer of the application.
    """
    import uvicorn

    return uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))


def serve(
    sessions: Sequence[Session],
    start: Mapping[str, Any],
    port: int,
    on_ready: Callable[[str], None],
) -> None:
    """Serve until interrupted; `on_ready` is called with the URL. Raises UsageError without
    starlette and uvicorn.
    """
    token = secrets.token_urlsafe(24)
    with open_socket(port) as listener:
        number = listener.getsockname()[1]
        app = create_app(sessions, start, number, token)
        server = new_server(app)
        on_ready(f"http://{HOST}:{number}/?token={token}")
        server.run(sockets=[listener])
