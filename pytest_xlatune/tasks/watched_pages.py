"""The pages of `xlatune watch --page`, and the server that shows them to a browser.

Every cell below a folder, the history, the reports. Each page is made when it is asked for, from
what lies there; nothing is written. An address is looked up among those that the index leads to, so
none leads elsewhere.

They are served on this machine's own address: for a browser here, or at the end of a tunnel. Other
users of the machine reach that too, so a page is shown to those alone who know the random word in
its address. Nothing can be asked but pages, and nothing is changed.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, urlsplit

from pytest_xlatune import owned
from pytest_xlatune.ledger import LEDGER
from pytest_xlatune.ledger.now import read_now
from pytest_xlatune.model.errors import ConfigError, XlatuneError
from pytest_xlatune.model.record import dataclass
from pytest_xlatune.model.redact import hide_kept
from pytest_xlatune.model.text import counted, percent
from pytest_xlatune.report.document import Document, brief, literal, mapped, plain
from pytest_xlatune.report.document import Text as Paragraph
from pytest_xlatune.report.history import history
from pytest_xlatune.report.page import Link, Links, Live, document_page, html, index_page
from pytest_xlatune.tasks.files import INDEX
from pytest_xlatune.tasks.measured import studies_below
from pytest_xlatune.tasks.publish import Known, document_of, page_text, read_known
from pytest_xlatune.tasks.report_index import files_of, report_index
from pytest_xlatune.tasks.watch import Seen, Standing, Watcher

_HISTORY, _REPORTS, _CELL = "history", "reports/", "cell/"
_HISTORY_S = 60.0  # a history is put together from every ledger
_KINDS = {".html": "text/html", ".json": "application/json"}
_PLAIN = "text/plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A page at an address: its type without the charset, and its text."""

    kind: str
    text: str


class WatchedPages:
    """The pages of one folder; what was made is kept as long as nothing has changed."""

    def __init__(self, watcher: Watcher, workdir: Path, reports: Path) -> None:
        self._watcher, self._workdir, self._reports = watcher, workdir, reports
        self._kept: dict[Path, tuple[int, Known, Document]] = {}
        self._history: tuple[float, str] = (float("-inf"), "")
        self._turn = threading.Lock()  # a browser asks for several at once

    def answer(self, address: str, now_s: float) -> Served | None:
        """Return what lies at an address below the index, which is ""; None where nothing does."""
        with self._turn:
            if address in ("", INDEX):
                return Served(kind="text/html", text=self._index(now_s))
            if address == _HISTORY:
                return Served(kind="text/html", text=self._of_history(now_s))
            if address.startswith(_REPORTS):
                return self._report(address.removeprefix(_REPORTS))
            if address.startswith(_CELL):
                found = {_address(each): each for each in self._watcher.look(now_s)}
                if (seen := found.get(address)) is not None:
                    return Served(kind="text/html", text=self._cell(seen, now_s))
            return None

    def _index(self, now_s: float) -> str:
        cells = self._watcher.look(now_s)
        running = sum(bool(each.running) for each in cells)
        live = Live(
            written_s=now_s,
            alive_s=now_s,
            event_s=max((at_s for each in cells for at_s, _ in each.events), default=now_s),
            progress=f"{counted(len(cells), 'cell')}, {running} with jobs in flight",
        )
        others = [Link(text="History", href=_HISTORY, said="all cells over time, and their cost")]
        if self._reports.is_dir():
            said = "leaderboards and tuning documents as they were written last"
            others.append(Link(text="Reports", href=f"{_REPORTS}{INDEX}", said=said))
        parts = [
            ("Cells", Links(links=tuple(map(_link, cells)), none="No cell lies here.")),
            ("Beside them", Links(links=tuple(others))),
        ]
        page = index_page("Cells", parts, source="the ledgers", live=live)
        return html(mapped(page, hide_kept))

    def _of_history(self, now_s: float) -> str:
        made_s, text = self._history
        if now_s - made_s > _HISTORY_S:
            try:
                document = history(studies_below(self._workdir).past, is_page=True)
            except XlatuneError as error:
                document = _failed("History", str(error))
            page = document_page(document, source="the ledgers", home=f"./{INDEX}")
            text = html(mapped(page, hide_kept))
            self._history = now_s, text
        return text

    def _report(self, name: str) -> Served | None:
        if name == INDEX:
            page = report_index(self._reports, home=f"../{INDEX}")
            return Served(kind="text/html", text=html(page))
        path = files_of(self._reports).get(name)
        if path is None:
            return None
        try:
            text = owned.read_shown(path)
        except (OSError, ValueError):
            return None
        return Served(kind=_KINDS.get(path.suffix, _PLAIN), text=text)

    def _cell(self, seen: Seen, now_s: float) -> str:
        home = f"../../{INDEX}"
        try:
            known, document = self._known(seen.folder)
        except (XlatuneError, OSError) as error:
            document = _failed(f"{seen.sweep} {seen.label}", str(error))
            return html(mapped(document_page(document, source="", home=home), hide_kept))
        live = None
        if not known.conclusion.complete:
            live = Live(
                written_s=now_s,
                alive_s=max(read_now(seen.folder).at_s, known.at_s),
                event_s=known.at_s,
                progress=seen.progress,
                running=tuple(
                    f"{literal(each.trial.called)} (job {plain(each.job_id)}) {each.words}"
                    for each in seen.running
                ),
            )
        return page_text(known, document, live=live, home=home)

    def _known(self, folder: Path) -> tuple[Known, Document]:
        size_bytes = (folder / LEDGER).stat().st_size
        kept = self._kept.get(folder)
        if kept is None or kept[0] != size_bytes:
            known = read_known(folder)
            kept = self._kept[folder] = size_bytes, known, document_of(known)
        return kept[1:]


def _failed(title: str, why: str) -> Document:
    return brief(title, Paragraph(text=f"It cannot be shown: {plain(why)}"))


def _address(seen: Seen) -> str:
    """Return where the page of a cell lies."""
    return f"{_CELL}{quote(seen.folder.parent.name)}/{quote(seen.folder.name)}"


def _link(seen: Seen) -> Link:
    parts = [str(seen.standing), seen.progress or plain(seen.why)]
    if seen.ranking:
        best = seen.ranking[0]
        so_far = "" if seen.standing is Standing.COMPLETE else " so far"
        parts.append(f"best{so_far} {literal(best.arm)} {percent(best.delta)}")
    said = ": ".join(filter(None, (parts[0], ", ".join(filter(None, parts[1:])))))
    return Link(text=f"{seen.sweep} {seen.label}", href=_address(seen), said=said)


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
