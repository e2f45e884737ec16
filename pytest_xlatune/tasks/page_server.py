"""Serve pages on this machine's own address: for a browser here, or at the end of a tunnel.

Other users of the machine reach its address too, so a page is shown to those alone who know the
random word in its address. Nothing can be asked but pages, and nothing is changed.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.tasks.watched_pages import Served

HOST = "127.0.0.1"
PORT = 8421  # where none is named, so that the line for a tunnel stays the same
_TOKEN_BYTES = 16
_SILENT_S = 10.0  # after which a connection that asks for nothing is closed


@contextmanager
def serving(
    answer: Callable[[str, float], Served | None], port: int | None
) -> Iterator[tuple[ThreadingHTTPServer, str]]:
    """Give a server of pages, and the address of its index; the caller has it serve.

    `answer` returns the page at an address below the index. Without a port it is `PORT`, or any
    that is free.

    Raises:
        ConfigError: the port is taken, or may not be used.
    """
    token = secrets.token_urlsafe(_TOKEN_BYTES)

    class Handler(_Handler):
        def shown(self) -> Served | None:
            word, _, address = urlsplit(self.path).path.lstrip("/").partition("/")
            is_known = hmac.compare_digest(word.encode(), token.encode())
            return answer(address, time.time()) if is_known else None

    server = _bound(Handler, port)
    try:
        yield server, f"http://{HOST}:{server.server_port}/{token}/"
    finally:
        server.server_close()


def _bound(handler: type[_Handler], port: int | None) -> ThreadingHTTPServer:
    for each in (PORT, 0) if port is None else (port,):
        try:
            return _Server((HOST, each), handler)
        except (OSError, OverflowError) as error:
            why = error
    raise ConfigError(f"--page {port}: it cannot be served there: {why}; name another port")


class _Server(ThreadingHTTPServer):
    daemon_threads = True  # a browser keeps its connections

    def handle_error(self, *_: object) -> None:
        """Say nothing of a browser that went away."""


class _Handler(BaseHTTPRequestHandler, ABC):
    timeout = _SILENT_S
    server_version, sys_version = "xlatune", ""

    @abstractmethod
    def shown(self) -> Served | None:
        """Return what lies at the address; None where nothing does, or a stranger asks."""

    def do_GET(self) -> None:
        """Send a page."""
        self._send(has_body=True)

    def do_HEAD(self) -> None:
        """Say that there is one: a page asks before it loads itself again."""
        self._send(has_body=False)

    def _send(self, *, has_body: bool) -> None:
        found = self.shown()
        text = found.text if found is not None else "There is no such page.\n"
        data = text.encode(errors="replace")
        self.send_response(HTTPStatus.NOT_FOUND if found is None else HTTPStatus.OK)
        kind = found.kind if found is not None else "text/plain"
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if has_body:
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Keep the address, which is all that protects a page, out of every log."""


_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def tunnel_line(port: int) -> str:
    """Return what to type elsewhere to reach a port of this machine."""
    return f"ssh -N -L {port}:{HOST}:{port} {socket.gethostname()}"
