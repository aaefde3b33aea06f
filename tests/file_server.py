"""An HTTP server on this machine that fails as requested."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from typing import Any


class Server(http.server.ThreadingHTTPServer):
    """Answers each request by the next behaviour of `script`, and well after its end."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.script: list[str] = []
        self.log: list[tuple[str, str | None]] = []  # path and Range of each request
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        requested = self.headers["Range"]
        self.server.log.append((self.path, requested))
        behaviour = self.server.script.pop(0) if self.server.script else "well"
        body = self.server.files[self.path]
        if behaviour.isdecimal():
            self.send_error(int(behaviour))
            return
        if behaviour.startswith("to "):
            self.send_response(302)
            self.send_header("Location", behaviour.removeprefix("to "))
            self.end_headers()
            return
        start = 0
        if requested and behaviour != "ignores range":
            start = int(requested.removeprefix("bytes=").removesuffix("-"))
            if start >= len(body):
                self.send_error(416)
                return
        if behaviour == "wrong bytes":
            body = body[:-9] + b"other!!!\n"
        if behaviour == "another range":
            start //= 2
        rest = body[start:]
        declared = {"too long": len(rest) + 10, "too short": len(rest) - 10, "huge": 10**12}.get(
            behaviour, len(rest)
        )
        self.send_response(206 if requested and behaviour != "ignores range" else 200)
        if requested and behaviour != "ignores range":
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        if behaviour != "no length":
            self.send_header("Content-Length", str(declared))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(rest[: len(rest) // 2] if behaviour == "aborts" else rest[:declared])


@contextlib.contextmanager
def serve_files(files: dict[str, bytes]) -> Iterator[Server]:
    """A running server of these files, path -> content."""
    with Server(files) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()
