"""Messages to people: they arrive, and the target's secret is nowhere else."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.tasks.notify import Notifier, read_targets

SECRET = "hush-hush-token"


class Inbox(BaseHTTPRequestHandler):
    """Keeps what is posted to it."""

    messages: list[dict[str, Any]]

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.messages.append(json.loads(self.rfile.read(length)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def target() -> Iterator[str]:
    Inbox.messages = []
    server = HTTPServer(("127.0.0.1", 0), Inbox)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"json://127.0.0.1:{server.server_port}/{SECRET}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_message_arrives_and_nothing_is_logged(
    target: str, caplog: pytest.LogCaptureFixture
) -> None:
    notifier = Notifier((target,))
    with caplog.at_level(logging.DEBUG):
        assert notifier.send(title="halted", body="Reason: http://ada:hunter2hunter2@node") == ""
    (message,) = Inbox.messages
    assert (message["title"], message["message"]) == ("halted", "Reason: http://(hidden)@node")
    assert SECRET not in caplog.text
    assert SECRET not in repr(notifier)


def test_what_cannot_be_sent_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    for target, says in (
        (f"nosuch://{SECRET}", "that Apprise knows"),
        (f"json://127.0.0.1:9/{SECRET}", "could not deliver"),
    ):
        notifier = Notifier((target,))
        with caplog.at_level(logging.DEBUG):
            warning = notifier.send(title="t", body="b")
        assert says in warning
        assert SECRET not in warning + caplog.text
        assert notifier.send(title="t", body="b") == ""


def test_targets_come_from_the_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    assert Notifier(()).send(title="t", body="b") == "", "it needs no Apprise"
    assert "pytest-xlatune[notify]" in Notifier(("json://x",)).send(title="t", body="b")
    file = tmp_path / "targets"
    file.write_text("# the team's channel\n\n tgram://a/b \nmailto://c\n")
    environ = {"XLATUNE_NOTIFY_URL": "json://one json://two"}
    assert read_targets(environ, file) == ("tgram://a/b", "mailto://c")
    assert read_targets(environ) == ("json://one", "json://two")
    assert read_targets({}) == ()
    file.write_text("# no target\n")
    with pytest.raises(ConfigError, match="names no notification target"):
        read_targets({}, file)
